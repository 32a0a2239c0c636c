//! TLS: requests go to servers with a trusted certificate only.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use earmark_admission::{Backend, Keys as _, LocalBook, LocalOptions, Token};
use earmark_client::core::{CreateKey, KeyId, Labels, MaySet, Principal, Role};
use earmark_client::{
    ApiKey, Client, ClientCertificate, ClientOptions, Deadline, Failure, OptionsError, Protocol, Roots,
};
use earmark_server::{CertificateKeys, Server, ServerOptions, Tls};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, CertifiedKey, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    generate_simple_self_signed,
};
use tempfile::TempDir;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

use crate::fixture::TestServer;
use crate::support::{concurrency, soon};

/// Starts a TLS proxy in front of a server. Returns its port and its certificate.
async fn in_front_of(server: &TestServer, folder: &TempDir) -> (u16, PathBuf) {
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
    let upstream = server.address;
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let Ok(mut stream) = acceptor.accept(stream).await else { return };
                let mut backend = TcpStream::connect(upstream).await.unwrap();
                _ = tokio::io::copy_bidirectional(&mut stream, &mut backend).await;
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
async fn a_server_with_a_trusted_certificate_gets_requests() {
    let (server, folder) = (TestServer::start().await, TempDir::new().unwrap());
    let (port, pem) = in_front_of(&server, &folder).await;
    for protocol in [Protocol::Http, Protocol::Grpc] {
        let client = Client::new(options(port, protocol, Roots::PemFile(pem.clone()))).unwrap();
        client.put_limit(&concurrency("a", 1), soon()).await.unwrap();
        assert_eq!(client.limits(soon()).await.unwrap().len(), 1, "{protocol:?}");
    }
}

#[tokio::test]
async fn a_server_with_an_untrusted_certificate_gets_no_request() {
    let (server, folder, other) = (TestServer::start().await, TempDir::new().unwrap(), TempDir::new().unwrap());
    let (port, _) = in_front_of(&server, &folder).await;
    let (_, others) = in_front_of(&server, &other).await;
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

#[tokio::test]
async fn a_key_is_not_sent_unencrypted_to_another_machine_unless_that_is_allowed() {
    let with = |server: &str, protocol: Protocol| {
        let mut options = ClientOptions::of(&["http://127.0.0.1:1", server]).unwrap();
        options.protocol = protocol;
        options.key = Some(ApiKey::new("emk_a_secret").unwrap());
        options
    };
    for protocol in [Protocol::Http, Protocol::Grpc] {
        for server in ["http://192.0.2.1:1", "http://earmark.example:1"] {
            let refused = Client::new(with(server, protocol)).unwrap_err();
            assert!(matches!(refused, OptionsError::Plaintext { .. }), "{refused}");
            assert!(refused.to_string().contains(server), "{refused}");
            assert!(refused.to_string().contains("is_plaintext_allowed"), "{refused}");
            let mut allowed = with(server, protocol);
            assert!(!format!("{allowed:?} {refused:?}").contains("secret"));
            allowed.is_plaintext_allowed = true;
            assert!(Client::new(allowed).is_ok());
            let mut keyless = with(server, protocol);
            keyless.key = None;
            assert!(Client::new(keyless).is_ok());
        }
        assert!(Client::new(with("http://localhost:1", protocol)).is_ok());
    }
}

/// A server whose clients have certificates of one authority, which signs its own certificate too. `app.example` acts as
/// an admin key.
async fn server_with_clients(folder: &TempDir) -> (u16, [PathBuf; 3]) {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let ca = folder.path().join("ca.pem");
    std::fs::write(&ca, authority.pem()).unwrap();
    let issue = |name: &str, usage: ExtendedKeyUsagePurpose| {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.extended_key_usages = vec![usage];
        let files = ["pem", "key"].map(|ending| folder.path().join(format!("{name}.{ending}")));
        std::fs::write(&files[0], params.signed_by(&key, &authority).unwrap().pem()).unwrap();
        std::fs::write(&files[1], key.serialize_pem()).unwrap();
        files
    };
    let [cert, key] = issue("localhost", ExtendedKeyUsagePurpose::ServerAuth);
    let [client_cert, client_key] = issue("app.example", ExtendedKeyUsagePurpose::ClientAuth);
    let (book, token) = (LocalBook::open(LocalOptions::default()).await.unwrap(), Token::random().unwrap());
    let command = CreateKey {
        id: token.id().clone(),
        secret: token.hash(),
        name: "app".parse().unwrap(),
        role: Role::Admin,
        namespace: "default".parse().unwrap(),
        client: None,
        labels: Labels::default(),
        may_set: MaySet::default(),
        valid_seconds: None,
        is_first: false,
        actor: "system:test".parse().unwrap(),
    };
    book.create(Principal::System, command).await.unwrap();
    let bound: [(String, KeyId); 1] = [("app.example".to_owned(), token.id().clone())];
    let options = ServerOptions {
        listen: ([127, 0, 0, 1], 0).into(),
        tls: Some(Arc::new(Tls::open_with_clients(&cert, &key, &ca).unwrap())),
        certificate_keys: CertificateKeys::new(bound).unwrap(),
        ..ServerOptions::default()
    };
    let backend: Arc<dyn Backend> = Arc::new(book);
    let server = Server::bind(options, backend).await.unwrap();
    let port = server.local_addr().port();
    tokio::spawn(server.run(std::future::pending()));
    (port, [ca, client_cert, client_key])
}

#[tokio::test]
async fn a_client_with_a_certificate_needs_no_key() {
    let folder = TempDir::new().unwrap();
    let (port, [ca, cert, key]) = server_with_clients(&folder).await;
    for protocol in [Protocol::Http, Protocol::Grpc] {
        let mut options = options(port, protocol, Roots::PemFile(ca.clone()));
        let refused = Client::new(options.clone()).unwrap().limits(soon()).await.unwrap_err();
        assert!(matches!(refused, Failure::Unauthorized { .. }), "{protocol:?}: {refused:?}");
        options.certificate = Some(ClientCertificate { cert: cert.clone(), key: key.clone() });
        let client = Client::new(options).unwrap();
        client.put_limit(&concurrency("a", 1), soon()).await.unwrap();
        assert_eq!(client.limits(soon()).await.unwrap().len(), 1, "{protocol:?}");
    }
    let mistakes = [(cert.clone(), cert.clone(), "private key"), (ca.clone(), key.clone(), "cannot use")];
    for (cert, key, what) in mistakes {
        let mut options = options(port, Protocol::Http, Roots::PemFile(ca.clone()));
        options.certificate = Some(ClientCertificate { cert, key });
        let error = Client::new(options).unwrap_err().to_string();
        assert!(error.starts_with("certificate: ") && error.contains(what), "{error}");
    }
}
