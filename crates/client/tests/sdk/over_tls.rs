//! TLS: the right server is spoken to, and nobody else.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use earmark_client::{Client, ClientOptions, Deadline, Failure, Protocol, Roots};
use rcgen::{CertifiedKey, generate_simple_self_signed};
use tempfile::TempDir;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

use crate::served::Served;
use crate::support::{concurrency, soon};

/// Speaks TLS before a server that does not; gives its port and its certificate.
async fn in_front_of(served: &Served, folder: &TempDir) -> (u16, PathBuf) {
    let CertifiedKey { cert, signing_key } = generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let path = folder.path().join("root.pem");
    std::fs::write(&path, cert.pem()).unwrap();
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(signing_key.serialize_der()));
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let config = config.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
    let mut config = config.with_single_cert(vec![cert.der().clone()], key).unwrap();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let upstream = served.address;
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let Ok(mut stream) = acceptor.accept(stream).await else { return };
                let mut server = TcpStream::connect(upstream).await.unwrap();
                _ = tokio::io::copy_bidirectional(&mut stream, &mut server).await;
            });
        }
    });
    (port, path)
}

fn options(port: u16, protocol: Protocol, roots: Roots) -> ClientOptions {
    let mut options = ClientOptions::of(&[format!("https://localhost:{port}")]).unwrap();
    options.protocol = protocol;
    options.roots = roots;
    options
}

#[tokio::test]
async fn a_server_whose_certificate_is_trusted_is_spoken_to() {
    let (served, folder) = (Served::start().await, TempDir::new().unwrap());
    let (port, pem) = in_front_of(&served, &folder).await;
    for protocol in [Protocol::Http, Protocol::Grpc] {
        let client = Client::new(options(port, protocol, Roots::PemFile(pem.clone()))).unwrap();
        client.put_limit(&concurrency("a", 1), soon()).await.unwrap();
        assert_eq!(client.limits(soon()).await.unwrap().len(), 1, "{protocol:?}");
    }
}

#[tokio::test]
async fn a_server_whose_certificate_is_not_trusted_hears_nothing() {
    let (served, folder, other) = (Served::start().await, TempDir::new().unwrap(), TempDir::new().unwrap());
    let (port, _) = in_front_of(&served, &folder).await;
    let (_, others) = in_front_of(&served, &other).await;
    for protocol in [Protocol::Http, Protocol::Grpc] {
        let client = Client::new(options(port, protocol, Roots::PemFile(others.clone()))).unwrap();
        let failure = client.limits(Deadline::after(Duration::from_millis(300))).await.unwrap_err();
        let Failure::DeadlinePassed { last: Some(last) } = failure else { panic!("{failure:?}") };
        assert!(matches!(*last, Failure::Unreachable { .. }), "{protocol:?}: {last:?}");
    }
}

#[test]
fn a_file_without_certificates_is_refused_by_name() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("empty.pem");
    std::fs::write(&path, "nothing\n").unwrap();
    for path in [path, folder.path().join("missing.pem")] {
        let name = path.display().to_string();
        let error = Client::new(options(1, Protocol::Http, Roots::PemFile(path))).unwrap_err().to_string();
        assert!(error.contains(&name), "{error}");
    }
}
