//! TLS for clients, and certificates that change.

use std::path::Path;
use std::sync::Arc;

use earmark_server::Tls;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::support::{KeyedServer, Wire};

type Authority = CertifiedIssuer<'static, KeyPair>;

fn authority() -> Authority {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

fn write(folder: &Path, authority: &Authority) {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    std::fs::write(folder.join("cert.pem"), params.signed_by(&key, authority).unwrap().pem()).unwrap();
    std::fs::write(folder.join("key.pem"), key.serialize_pem()).unwrap();
}

async fn connect(keyed: &KeyedServer, authority: &Authority, alpn: &[u8]) -> std::io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    roots.add(authority.der().clone()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let mut config = config.unwrap().with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![alpn.to_vec()];
    let tcp = TcpStream::connect(keyed.server.address).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    TlsConnector::from(Arc::new(config)).connect(name, tcp).await
}

async fn ask(stream: &mut TlsStream<TcpStream>, key: &str) -> String {
    let request = format!(
        "GET /v1/admin/limits HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {key}\r\nconnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    // A server may close without close_notify.
    _ = stream.read_to_end(&mut answer).await;
    String::from_utf8(answer).unwrap()
}

#[tokio::test]
async fn a_server_speaks_behind_tls_and_takes_a_new_certificate_without_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let (first, second) = (authority(), authority());
    write(folder.path(), &first);
    let (cert, key) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
    let tls = Arc::new(Tls::open(&cert, &key).unwrap());
    let keyed = KeyedServer::with(|options| options.tls = Some(Arc::clone(&tls))).await;

    let mut stream = connect(&keyed, &first, b"http/1.1").await.unwrap();
    let answer = ask(&mut stream, &keyed.root).await;
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    let stream = connect(&keyed, &first, b"h2").await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    assert!(connect(&keyed, &second, b"http/1.1").await.is_err(), "an authority that did not sign it");
    let mut wire = Wire::to(keyed.server.address).await;
    wire.send("GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    let mut refused = Vec::new();
    _ = wire.tcp.read_to_end(&mut refused).await;
    assert!(!refused.starts_with(b"HTTP"), "something was said in clear");

    // A certificate without its key is not used; the current one stays.
    let old = std::fs::read(&key).unwrap();
    write(folder.path(), &second);
    let new = std::fs::read(&key).unwrap();
    std::fs::write(&key, old).unwrap();
    assert!(tls.reload().unwrap_err().to_string().contains("cannot use the certificate"));
    assert!(connect(&keyed, &first, b"http/1.1").await.is_ok());
    std::fs::write(&key, new).unwrap();
    // The server checks the files every second.
    for _ in 0..100 {
        if connect(&keyed, &second, b"http/1.1").await.is_ok() {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    let mut stream = connect(&keyed, &second, b"http/1.1").await.unwrap();
    assert!(ask(&mut stream, &keyed.root).await.starts_with("HTTP/1.1 200 OK\r\n"));
    assert!(connect(&keyed, &first, b"http/1.1").await.is_err());
}

#[test]
fn files_that_cannot_be_used_are_named_and_keys_are_not_shown() {
    let folder = tempfile::tempdir().unwrap();
    let authority = authority();
    write(folder.path(), &authority);
    let (cert, key) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
    let missing = folder.path().join("nowhere.pem");
    assert!(Tls::open(&missing, &key).unwrap_err().to_string().contains("nowhere.pem: cannot read a certificate"));
    assert!(Tls::open(&cert, &cert).unwrap_err().to_string().contains("cannot read a private key"));
    let shown = format!("{:?}", Tls::open(&cert, &key).unwrap());
    assert!(!shown.contains("PRIVATE KEY") && shown.contains("key.pem"), "{shown}");
}
