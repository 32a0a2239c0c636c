//! HTTP/2 on both sides, TLS, trailers and interim answers.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use earmark_client::{CallResult, CallUsage};
use earmark_gateway::open_calls::OpenCalls;
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http2::SendRequest;
use hyper::service::service_fn;
use hyper::{Request, Response, Version};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rcgen::{CertifiedKey, generate_simple_self_signed};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;

use crate::earmark::Double;
use crate::fixture::{Answer, CHAT_BODY, CHAT_STREAM_BODY, Running, config};
use crate::upstream::{CHAT, CHAT_STREAM, Step, Upstream, chunk, stream, stream_head, whole};

fn used() -> CallResult {
    CallResult::Used(CallUsage { input_tokens: 7, output_tokens: 3, ..CallUsage::default() })
}

/// The usage in [`CHAT`].
fn used_of_chat() -> CallResult {
    let usage = CallUsage { input_tokens: 7, output_tokens: 3, ..CallUsage::default() };
    CallResult::Used(CallUsage { cached_input_tokens: Some(4), ..usage })
}

fn request(body: &str) -> Request<Full<Bytes>> {
    let request = Request::post("http://localhost/v1/chat/completions").header("content-type", "application/json");
    request.body(Full::new(Bytes::from(body.to_owned()))).unwrap()
}

async fn http2(gateway: &Running) -> SendRequest<Full<Bytes>> {
    let stream = TokioIo::new(gateway.connect().await);
    let (sender, connection) = hyper::client::conn::http2::handshake(TokioExecutor::new(), stream).await.unwrap();
    tokio::spawn(connection);
    sender
}

#[tokio::test]
async fn one_connection_of_http_2_carries_many_calls() {
    let gateway = Running::start("").await;
    gateway.upstream.always(stream(&CHAT_STREAM));
    let sender = http2(&gateway).await;
    let mut calls = Vec::new();
    for _ in 0..8 {
        let mut sender = sender.clone();
        calls.push(tokio::spawn(async move {
            let answer = sender.send_request(request(CHAT_STREAM_BODY)).await.unwrap();
            assert_eq!((answer.status().as_u16(), answer.version()), (200, Version::HTTP_2));
            answer.into_body().collect().await.unwrap().to_bytes()
        }));
    }
    let expected = [CHAT_STREAM[0], CHAT_STREAM[1], CHAT_STREAM[2], CHAT_STREAM[4]].concat();
    for call in calls {
        assert_eq!(call.await.unwrap(), expected);
    }
    assert_eq!(gateway.earmark.settled().await, vec![used(); 8]);
}

#[tokio::test]
async fn a_cut_upstream_resets_a_stream_of_http_2_and_a_reset_stream_is_drained() {
    let gateway = Running::start("").await;
    let mut sender = http2(&gateway).await;
    gateway.upstream.then(vec![stream_head(), chunk(CHAT_STREAM[0]), Step::Close]);
    let answer = sender.send_request(request(CHAT_STREAM_BODY)).await.unwrap();
    assert!(answer.into_body().collect().await.is_err(), "the client sees that it is not whole");
    let mut steps = stream(&CHAT_STREAM);
    steps.insert(2, Step::Wait(Duration::from_millis(100)));
    gateway.upstream.then(steps);
    let mut answer = sender.send_request(request(CHAT_STREAM_BODY)).await.unwrap();
    assert!(answer.body_mut().frame().await.is_some());
    drop(answer);
    assert_eq!(gateway.earmark.settled().await, [CallResult::Unknown, used()]);
}

#[tokio::test]
async fn interim_answers_and_trailers_of_an_upstream_end_at_the_gateway() {
    let gateway = Running::start("").await;
    let interim = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n";
    let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\
                trailer: x-checksum\r\n\r\n";
    let body = format!("{:x}\r\n{CHAT}\r\n0\r\nx-checksum: 1\r\n\r\n", CHAT.len());
    gateway.upstream.then(vec![Step::Send(format!("{interim}{head}{body}").into_bytes())]);
    let answer = gateway.chat(CHAT_BODY).await;
    assert_eq!((answer.status, answer.text().as_str(), answer.is_whole), (200, CHAT, true));
    assert!(answer.header("link").is_none() && answer.header("trailer").is_none(), "{}", answer.head);
    gateway.upstream.then(vec![Step::Send(b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\n\r\n".to_vec())]);
    let upgraded = gateway.chat(CHAT_BODY).await;
    assert_eq!(upgraded.status, 502, "{upgraded:?}");
    let results = gateway.earmark.settled().await;
    assert!(matches!(results[..], [CallResult::Used(_), CallResult::Refused]), "{results:?}");
}

#[tokio::test]
async fn a_chunked_request_with_trailers_goes_upstream_with_its_length() {
    let gateway = Running::start("").await;
    gateway.upstream.always(whole(200, "", CHAT));
    let mut client = gateway.connect().await;
    let (first, second) = CHAT_BODY.split_at(20);
    let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
                expect: 100-continue\r\ntransfer-encoding: chunked\r\ntrailer: x-a\r\n\r\n";
    let body = format!("{:x}\r\n{first}\r\n{:x}\r\n{second}\r\n0\r\nx-a: b\r\n\r\n", first.len(), second.len());
    client.write_all((head.to_owned() + &body).as_bytes()).await.unwrap();
    let mut bytes = Vec::new();
    tokio::io::AsyncReadExt::read_to_end(&mut client, &mut bytes).await.unwrap();
    let answer = bytes.strip_prefix(b"HTTP/1.1 100 Continue\r\n\r\n".as_slice()).unwrap_or(&bytes);
    assert_eq!(Answer::parse(answer).status, 200);
    let seen = &gateway.upstream.seen()[0];
    assert_eq!(seen.header("content-length"), Some(seen.body.len().to_string()));
    assert!(seen.header("transfer-encoding").is_none() && seen.header("x-a").is_none(), "{}", seen.head);
    assert_eq!(seen.json()["messages"][0]["content"], "hi");
}

/// A certificate for localhost: an acceptor for HTTP/2, and the PEM files of certificate and key.
fn certificate(folder: &Path) -> TlsAcceptor {
    let CertifiedKey { cert, signing_key } = generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    std::fs::write(folder.join("cert.pem"), cert.pem()).unwrap();
    std::fs::write(folder.join("key.pem"), signing_key.serialize_pem()).unwrap();
    let key = PrivateKeyDer::try_from(signing_key.serialize_der()).unwrap();
    let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
    let mut config = builder.with_single_cert(vec![cert.der().clone()], key).unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    TlsAcceptor::from(Arc::new(config))
}

#[tokio::test]
async fn tls_and_http_2_work_to_the_upstream_and_to_the_client() {
    let folder = tempfile::tempdir().unwrap();
    let acceptor = certificate(folder.path());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let accepted = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&accepted);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            counted.fetch_add(1, Ordering::Relaxed);
            let stream = TokioIo::new(acceptor.accept(stream).await.unwrap());
            let service = service_fn(|request: Request<hyper::body::Incoming>| async move {
                assert_eq!(request.version(), Version::HTTP_2);
                let length = request.headers()["content-length"].to_str().unwrap().parse::<usize>().unwrap();
                assert_eq!(request.into_body().collect().await.unwrap().to_bytes().len(), length);
                let answer = Response::builder().header("content-type", "application/json");
                answer.body(Full::new(Bytes::from_static(CHAT.as_bytes())))
            });
            let serving = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            tokio::spawn(async move { _ = serving.serve_connection(stream, service).await });
        }
    });
    let mut upstream = Upstream::start().await;
    upstream.url = format!("https://localhost:{port}");
    let (cert, key) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
    let tls = format!("tls_cert = {:?}\ntls_key = {:?}\n", cert.display().to_string(), key.display().to_string());
    let more = format!("ca_file = {:?}", cert.display().to_string());
    let text = tls + &config(&upstream, &more);
    // The other upstreams have no roots that they need here.
    let text = text.replace("name = \"two\"", &format!("name = \"two\"\n{more}"));
    let text = text.replace("name = \"anthropic\"", &format!("name = \"anthropic\"\n{more}"));
    let gateway = Running::with(&text, upstream, Double::default(), OpenCalls::in_memory(), false).await;
    let stream = client_tls(&cert, gateway.connect().await).await;
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    for calls in 1..=3 {
        let answer = sender.send_request(request(CHAT_BODY)).await.unwrap();
        assert_eq!(answer.status(), 200);
        assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), CHAT);
        assert_eq!(gateway.earmark.settled().await, vec![used_of_chat(); calls]);
    }
    assert_eq!(accepted.load(Ordering::Relaxed), 1, "one connection to the upstream carries all calls");
}

/// A connection to the gateway with TLS, which trusts this certificate and speaks HTTP/2.
async fn client_tls(
    cert: &Path,
    stream: tokio::net::TcpStream,
) -> tokio_rustls::client::TlsStream<tokio::net::TcpStream> {
    use tokio_rustls::rustls::pki_types::CertificateDer;
    use tokio_rustls::rustls::pki_types::pem::PemObject as _;
    use tokio_rustls::rustls::{ClientConfig, RootCertStore};
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(cert).unwrap()).unwrap();
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions().unwrap();
    let mut config = builder.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    connector.connect("localhost".try_into().unwrap(), stream).await.unwrap()
}
