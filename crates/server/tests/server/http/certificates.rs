//! Clients that prove who they are by a certificate instead of a key.

use std::path::PathBuf;
use std::sync::Arc;

use earmark_admission::Token;
use earmark_core::{KeyId, Role};
use earmark_proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use earmark_proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use earmark_proto::envoy::service::ratelimit::v3::RateLimitRequest;
use earmark_server::{CertificateKeys, Tls};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message as _;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair, SanType};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::support::KeyedServer;

type Authority = CertifiedIssuer<'static, KeyPair>;

const GATEWAY: &str = "envoy.mesh.example";
const READER: &str = "spiffe://mesh.example/ns/ops/sa/console";

fn authority() -> Authority {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// A server with TLS whose clients are signed by an authority of their own.
struct Fixture {
    keyed: KeyedServer,
    server_authority: Authority,
    clients: Authority,
    gateway: String,
    _folder: TempDir,
}

fn write(folder: &TempDir, name: &str, text: &str) -> PathBuf {
    let path = folder.path().join(name);
    std::fs::write(&path, text).unwrap();
    path
}

impl Fixture {
    async fn open() -> Fixture {
        let folder = tempfile::tempdir().unwrap();
        let (server_authority, clients) = (authority(), authority());
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        let cert = write(&folder, "cert.pem", &params.signed_by(&key, &server_authority).unwrap().pem());
        let key = write(&folder, "key.pem", &key.serialize_pem());
        let client_ca = write(&folder, "clients.pem", &clients.pem());
        let tls = Arc::new(Tls::open_with_clients(&cert, &key, &client_ca).unwrap());
        let [gateway, reader, never_made] = [(); 3].map(|()| Token::random().unwrap());
        let bound = [(GATEWAY, &gateway), (READER, &reader), ("gone.example", &never_made)];
        let bound: Vec<(String, KeyId)> = bound.map(|(name, key)| (name.to_owned(), key.id().clone())).into();
        let keyed = KeyedServer::with(|options| {
            options.tls = Some(tls);
            options.certificate_keys = CertificateKeys::new(bound).unwrap();
        })
        .await;
        for (token, role) in [(&gateway, Role::Gateway), (&reader, Role::Reader)] {
            let made = |command: &mut earmark_core::CreateKey| {
                (command.id, command.secret) = (token.id().clone(), token.hash());
            };
            keyed.key_of(role, "default", made).await;
        }
        Fixture { keyed, server_authority, clients, gateway: gateway.reveal(), _folder: folder }
    }

    /// Connects with a certificate that `signer` signed for these names, or without one.
    async fn connect(&self, signer: &Authority, names: Option<&[SanType]>, alpn: &[u8]) -> TlsStream<TcpStream> {
        let mut roots = RootCertStore::empty();
        roots.add(self.server_authority.der().clone()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let config = config.unwrap().with_root_certificates(roots);
        let mut config = match names {
            None => config.with_no_client_auth(),
            Some(names) => {
                let key = KeyPair::generate().unwrap();
                let mut params = CertificateParams::new(Vec::new()).unwrap();
                params.subject_alt_names = names.to_vec();
                params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
                let chain = vec![params.signed_by(&key, signer).unwrap().der().clone()];
                let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
                config.with_client_auth_cert(chain, key).unwrap()
            }
        };
        config.alpn_protocols = vec![alpn.to_vec()];
        let tcp = TcpStream::connect(self.keyed.server.address).await.unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        TlsConnector::from(Arc::new(config)).connect(name, tcp).await.unwrap()
    }

    /// The answer to a request over HTTP/1, or nothing if the handshake failed.
    async fn ask(&self, names: Option<&[SanType]>, headers: &str, request: (&str, &str)) -> String {
        let stream = self.connect(&self.clients, names, b"http/1.1").await;
        send(stream, headers, request).await
    }

    async fn whoami(&self, names: Option<&[SanType]>, headers: &str) -> String {
        self.ask(names, headers, ("GET /v1/whoami", "")).await
    }

    /// The status of a request of Envoy over gRPC.
    async fn rate_limit(&self, names: Option<&[SanType]>) -> String {
        let stream = self.connect(&self.clients, names, b"h2").await;
        let io = TokioIo::new(stream);
        let (mut sender, connection) = hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await.unwrap();
        tokio::spawn(connection);
        let entries = vec![Entry { key: "user".into(), value: "u".into() }];
        let descriptors = vec![RateLimitDescriptor { entries, ..RateLimitDescriptor::default() }];
        let message = RateLimitRequest { domain: "default".into(), descriptors, ..RateLimitRequest::default() };
        let message = message.encode_to_vec();
        let length = u32::try_from(message.len()).unwrap().to_be_bytes();
        let request =
            hyper::Request::post("https://localhost/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit");
        let request = request.header("content-type", "application/grpc").header("te", "trailers");
        let body = [&[0], &length[..], &message[..]].concat();
        let response = sender.send_request(request.body(Full::new(Bytes::from(body))).unwrap()).await.unwrap();
        let in_head = response.headers().get("grpc-status").cloned();
        let trailers = response.into_body().collect().await.unwrap().trailers().cloned();
        let status = in_head.or_else(|| trailers?.get("grpc-status").cloned()).unwrap();
        status.to_str().unwrap().to_owned()
    }
}

async fn send(mut stream: TlsStream<TcpStream>, headers: &str, (request, body): (&str, &str)) -> String {
    let length = body.len();
    let text = format!(
        "{request} HTTP/1.1\r\nhost: localhost\r\n{headers}content-length: {length}\r\nconnection: close\r\n\r\n{body}"
    );
    // The alert about a bad certificate may arrive before or after the request is written.
    _ = stream.write_all(text.as_bytes()).await;
    let mut answer = Vec::new();
    _ = stream.read_to_end(&mut answer).await;
    String::from_utf8(answer).unwrap()
}

fn dns(name: &str) -> SanType {
    SanType::DnsName(name.try_into().unwrap())
}

fn uri(name: &str) -> SanType {
    SanType::URI(name.try_into().unwrap())
}

fn is_refused(answer: &str, why: &str) {
    assert!(answer.starts_with("HTTP/1.1 401 ") && answer.contains(why), "{answer}");
}

#[tokio::test]
async fn a_certificate_acts_as_the_key_that_its_name_is_bound_to() {
    let fixture = Fixture::open().await;
    for (name, role) in [(dns(GATEWAY), "gateway"), (dns("ENVOY.mesh.example"), "gateway"), (uri(READER), "reader")] {
        let answer = fixture.whoami(Some(&[dns("other.example"), name]), "").await;
        assert!(answer.starts_with("HTTP/1.1 200 OK") && answer.contains(&format!(r#""role":"{role}""#)), "{answer}");
    }
    // The rights are those of the key.
    let answer = fixture.ask(Some(&[uri(READER)]), "", ("POST /v1/admin/keys", "{}")).await;
    assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
    // Envoy needs no other credentials.
    let policy = r#"{"policy":"unmatched = \"allow\"\n"}"#;
    let root = format!("authorization: Bearer {}\r\n", fixture.keyed.root);
    let put = fixture.ask(None, &root, ("PUT /v1/admin/policy", policy)).await;
    assert!(put.starts_with("HTTP/1.1 200 OK"), "{put}");
    let (ok, unauthenticated, forbidden) = ("0", "16", "7");
    assert_eq!(fixture.rate_limit(Some(&[dns(GATEWAY)])).await, ok);
    assert_eq!(fixture.rate_limit(Some(&[uri(READER)])).await, forbidden);
    assert_eq!(fixture.rate_limit(None).await, unauthenticated);
}

#[tokio::test]
async fn a_certificate_without_a_valid_key_is_refused_by_name() {
    let fixture = Fixture::open().await;
    is_refused(&fixture.whoami(None, "").await, "the credentials are missing or not valid");
    is_refused(&fixture.whoami(Some(&[dns("a.example")]), "").await, "names a.example, which is bound to no key");
    is_refused(&fixture.whoami(Some(&[dns("gone.example")]), "").await, "of the client certificate is not valid");
    is_refused(&fixture.whoami(Some(&[dns("*.mesh.example")]), "").await, "no DNS name and no URI");
    is_refused(&fixture.whoami(Some(&[dns(GATEWAY), uri(READER)]), "").await, "names of several keys");
    // A revoked key ends its certificate too.
    assert!(fixture.whoami(Some(&[dns(GATEWAY)]), "").await.starts_with("HTTP/1.1 200 OK"));
    fixture.keyed.revoke(&fixture.gateway).await;
    // The state rejects a command at once, whatever is cached, and the cache forgets the caller.
    let lease = fixture.keyed.server.lease();
    let body = format!(r#"{{"lease_id":"{lease}","requirements":[{{"key":"a","amount":1}}]}}"#);
    let answer = fixture.ask(Some(&[dns(GATEWAY)]), "", ("POST /v1/reserve", &body)).await;
    is_refused(&answer, "the credentials are missing or not valid");
    is_refused(&fixture.whoami(Some(&[dns(GATEWAY)]), "").await, "of the client certificate is not valid");
}

/// A sidecar may add its certificate to every connection, so an explicit key decides alone, good or bad.
#[tokio::test]
async fn a_key_in_the_request_decides_alone() {
    let fixture = Fixture::open().await;
    let root = format!("authorization: Bearer {}\r\n", fixture.keyed.root);
    let answer = fixture.whoami(Some(&[dns(GATEWAY)]), &root).await;
    assert!(answer.contains(r#""role":"admin""#), "{answer}");
    let answer = fixture.whoami(Some(&[dns(GATEWAY)]), "authorization: Bearer wrong\r\n").await;
    is_refused(&answer, "the credentials are missing or not valid");
    // The id of a key is no secret: as a token it is worth nothing, also while its certificate is cached.
    let id = fixture.gateway.split('_').nth(1).unwrap();
    assert!(fixture.whoami(Some(&[dns(GATEWAY)]), "").await.starts_with("HTTP/1.1 200 OK"));
    let answer = fixture.whoami(None, &format!("authorization: Bearer {id}\r\n")).await;
    is_refused(&answer, "the credentials are missing or not valid");
}

#[tokio::test]
async fn a_certificate_of_another_authority_ends_the_handshake() {
    let fixture = Fixture::open().await;
    for signer in [&fixture.server_authority, &authority()] {
        let stream = fixture.connect(signer, Some(&[dns(GATEWAY)]), b"http/1.1").await;
        assert_eq!(send(stream, "", ("GET /healthz", "")).await, "");
    }
}

#[test]
fn an_authority_that_cannot_be_used_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let (authority, key) = (authority(), KeyPair::generate().unwrap());
    let params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    let cert = write(&folder, "cert.pem", &params.signed_by(&key, &authority).unwrap().pem());
    let key = write(&folder, "key.pem", &key.serialize_pem());
    let empty = write(&folder, "empty.pem", "");
    let error = Tls::open_with_clients(&cert, &key, &empty).unwrap_err().to_string();
    assert!(error.contains("empty.pem: cannot verify client certificates with it: it has no certificate"), "{error}");
    let missing = folder.path().join("nowhere.pem");
    let error = Tls::open_with_clients(&cert, &key, &missing).unwrap_err().to_string();
    assert!(error.contains("nowhere.pem: cannot read a certificate"), "{error}");
}
