//! HTTP/2, also with hand-made frames.

use std::time::{Duration, Instant};

use axum::body::Body;
use hyper::body::Body as _;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::support::{KeyedServer, TestServer, reserve};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const WINDOW_UPDATE: u8 = 8;
const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = u32::try_from(payload.len()).unwrap().to_be_bytes()[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// An uncompressed request head.
fn head(method: &str, path: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (name, value) in [(":method", method), (":path", path), (":scheme", "http"), (":authority", "localhost")] {
        bytes.push(0);
        for text in [name, value] {
            bytes.push(u8::try_from(text.len()).unwrap());
            bytes.extend(text.as_bytes());
        }
    }
    bytes
}

/// A connection with this flow-control window for each response.
async fn connect(server: &TestServer, window: u32) -> TcpStream {
    let mut tcp = TcpStream::connect(server.address).await.unwrap();
    let mut setting = vec![0, 4];
    setting.extend(window.to_be_bytes());
    tcp.write_all(PREFACE).await.unwrap();
    tcp.write_all(&frame(SETTINGS, 0, 0, &setting)).await.unwrap();
    tcp.write_all(&frame(SETTINGS, ACK, 0, &[])).await.unwrap();
    tcp
}

/// Pings the server and reads until it hangs up.
async fn is_let_go_despite_pings(tcp: TcpStream) -> bool {
    let (mut reader, mut writer) = tcp.into_split();
    let pings = tokio::spawn(async move {
        while writer.write_all(&frame(PING, 0, 0, &[0; 8])).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    let mut taken = [0; 1 << 12];
    let taking = async { while matches!(reader.read(&mut taken).await, Ok(1..)) {} };
    let is_let_go = timeout(Duration::from_secs(10), taking).await.is_ok();
    pings.abort();
    is_let_go
}

async fn quick_to_lose_patience() -> TestServer {
    TestServer::with(|_, options| {
        options.header_timeout = Duration::from_millis(300);
        options.request_timeout = Duration::from_millis(300);
    })
    .await
}

/// Responses to a client that opened no window but answered pings stayed in memory for ever.
#[tokio::test]
async fn a_client_that_opens_no_window_for_its_answers_is_let_go() {
    let server = quick_to_lose_patience().await;
    for window in [0, 1, 100] {
        let mut tcp = connect(&server, window).await;
        for number in 0..50 {
            let ask = frame(HEADERS, END_STREAM | END_HEADERS, 2 * number + 1, &head("GET", "/openapi.json"));
            tcp.write_all(&ask).await.unwrap();
        }
        let start = Instant::now();
        assert!(is_let_go_despite_pings(tcp).await, "{window}");
        assert!(start.elapsed() >= Duration::from_millis(250), "{window}: {:?}", start.elapsed());
        server.until("earmark_connections", 1.0).await;
    }
}

/// 22 clients without credentials that read nothing used up the memory for the large answers of all, for half a minute.
/// The batches behind them were executed, and answered with `overloaded`.
#[tokio::test]
async fn clients_that_read_no_public_answer_take_no_room_from_others() {
    let server = TestServer::with(|_, options| options.answers_bytes_max = 1 << 20).await;
    server.put_rolling("a", 1_000, 60).await;
    let mut strangers = Vec::new();
    for _ in 0..22 {
        let mut tcp = connect(&server, 0).await;
        for number in 0..100 {
            let ask = frame(HEADERS, END_STREAM | END_HEADERS, 2 * number + 1, &head("GET", "/openapi.json"));
            tcp.write_all(&ask).await.unwrap();
        }
        strangers.push(tcp);
    }
    server.until("earmark_http_requests_total{route=\"openapi\",status=\"200\"}", 2_200.0).await;
    let requests: Vec<Value> = (0..200).map(|_| reserve(&server.lease(), &[("a", 1)])).collect();
    let results = server.ok("POST", "/v1/reserve/batch", &json!({"requests": requests})).await;
    assert!(results["results"].as_array().unwrap().iter().all(|result| result["allowed"] == true));
    drop(strangers);
}

/// A batch was executed before its answer found no room, so that its client took the reserves for not made.
#[tokio::test]
async fn a_batch_whose_answer_has_no_room_is_refused_before_it_is_executed() {
    let server = TestServer::with(|_, options| options.answers_bytes_max = 24 << 10).await;
    for number in 0..30 {
        server.put_rolling(&format!("a{number}"), 1_000, 60).await;
    }
    // An answer that is never read. It is the only one of its address, so it may be larger than the share.
    let mut tcp = connect(&server, 0).await;
    tcp.write_all(&frame(HEADERS, END_STREAM | END_HEADERS, 1, &head("GET", "/v1/admin/limits"))).await.unwrap();
    while server.ask("GET", "/v1/admin/limits", "").await.status == 200 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let batch = |lease: String| json!({"requests": [reserve(&lease, &[("a0", 1)])]}).to_string() + &" ".repeat(3_000);
    let answer = server.ask("POST", "/v1/reserve/batch", &batch(server.lease())).await;
    let message = answer.problem(503, "overloaded");
    assert!(
        message.ends_with("of this address wait to be read; nothing happened, retry the same request later"),
        "{message}"
    );
    assert_eq!(server.reserved("a0").await, 0);
    drop(tcp);
    for _ in 0..200 {
        if server.ask("POST", "/v1/reserve/batch", &batch(server.lease())).await.status == 200 {
            assert_eq!(server.reserved("a0").await, 1);
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("the room of a closed connection was not given back");
}

#[tokio::test]
async fn a_client_that_does_not_end_its_head_is_let_go() {
    let server = quick_to_lose_patience().await;
    let whole = frame(HEADERS, END_STREAM, 1, &head("GET", "/healthz"));
    // A whole frame without END_HEADERS, and parts of frames.
    for sent in [whole.len(), whole.len() - 3, 5] {
        let mut tcp = connect(&server, 1 << 16).await;
        tcp.write_all(&whole[..sent]).await.unwrap();
        let mut rest = Vec::new();
        assert!(timeout(Duration::from_secs(10), tcp.read_to_end(&mut rest)).await.is_ok(), "{sent}");
    }
}

type Sender = hyper::client::conn::http2::SendRequest<Body>;
type Driver = tokio::task::JoinHandle<hyper::Result<()>>;

async fn client(server: &TestServer) -> (Sender, Driver) {
    let tcp = TcpStream::connect(server.address).await.unwrap();
    let executor = hyper_util::rt::TokioExecutor::new();
    let io = hyper_util::rt::TokioIo::new(tcp);
    let (sender, connection) = hyper::client::conn::http2::handshake(executor, io).await.unwrap();
    (sender, tokio::spawn(connection))
}

#[tokio::test]
async fn a_client_that_takes_its_answers_may_be_idle_between_requests() {
    let server = quick_to_lose_patience().await;
    let (mut sender, _driver) = client(&server).await;
    for path in ["/openapi.json", "/healthz", "/healthz"] {
        let request = hyper::Request::get(format!("http://localhost{path}")).body(Body::empty()).unwrap();
        let response = sender.send_request(request).await.unwrap();
        assert_eq!(response.status().as_u16(), 200);
        assert!(!collect(response.into_body()).await.is_empty());
        tokio::time::sleep(Duration::from_millis(1_200)).await;
    }
}

#[tokio::test]
async fn a_large_body_comes_through_small_windows() {
    let server = TestServer::open().await;
    server.put_rolling("a", 1_000, 60).await;
    let (mut sender, _driver) = client(&server).await;
    let body = reserve(&server.lease(), &[("a", 1)]).to_string() + &" ".repeat(900_000);
    let request = hyper::Request::post("http://localhost/v1/reserve").body(Body::from(body)).unwrap();
    let response = sender.send_request(request).await.unwrap();
    let json: Value = serde_json::from_slice(&collect(response.into_body()).await).unwrap();
    assert_eq!(json["allowed"], true);
}

#[tokio::test]
async fn http_2_is_spoken_with_clients_that_start_with_it() {
    let server = TestServer::open().await;
    server.put_rolling("a", 1_000, 60).await;
    let (sender, driver) = client(&server).await;
    let asks = (0..100).map(|_| {
        let (mut sender, body) = (sender.clone(), reserve(&server.lease(), &[("a", 1)]).to_string());
        tokio::spawn(async move {
            let request = hyper::Request::post("http://localhost/v1/reserve").body(Body::from(body)).unwrap();
            let response = sender.send_request(request).await.unwrap();
            assert_eq!((response.status().as_u16(), response.version()), (200, hyper::Version::HTTP_2));
            let json: Value = serde_json::from_slice(&collect(response.into_body()).await).unwrap();
            assert_eq!(json["allowed"], true);
        })
    });
    for ask in asks.collect::<Vec<_>>() {
        ask.await.unwrap();
    }
    assert_eq!(server.reserved("a").await, 100);
    server.stop().await;
    driver.await.unwrap().unwrap();
}

/// HTTP/2 has no header for closing a connection.
#[tokio::test]
async fn a_connection_ends_whose_failed_logins_find_no_room_to_wait() {
    let keyed = KeyedServer::with(|options| {
        options.failed_logins_waiting_max = 0;
        options.header_timeout = Duration::from_millis(300);
    })
    .await;
    let (mut sender, driver) = client(&keyed.server).await;
    for _ in 0..6 {
        assert!(!driver.is_finished());
        let request = hyper::Request::get("http://localhost/v1/audit").body(Body::empty()).unwrap();
        assert_eq!(sender.send_request(request).await.unwrap().status().as_u16(), 401);
    }
    timeout(Duration::from_secs(20), driver).await.unwrap().unwrap().unwrap();
}

/// The heads that `heads.rs` sends over HTTP/1.
#[tokio::test]
async fn a_repeated_host_or_origin_is_refused() {
    let server = TestServer::open().await;
    let (mut sender, _) = client(&server).await;
    let twice: [(&[(&str, &str)], u16); 5] = [
        (&[], 200),
        (&[("host", "localhost")], 200),
        (&[("host", "evil.example")], 403),
        (&[("host", "localhost"), ("host", "localhost")], 403),
        (&[("origin", "http://localhost"), ("origin", "http://localhost")], 403),
    ];
    for (headers, status) in twice {
        let mut request = hyper::Request::get("http://localhost/v1/admin/limits");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response = sender.send_request(request.body(Body::empty()).unwrap()).await.unwrap();
        assert_eq!(response.status().as_u16(), status, "{headers:?}");
    }
}

/// `transfer-encoding` does not exist in HTTP/2. The stream ends with an error instead of an answer.
#[tokio::test]
async fn a_transfer_encoding_is_a_protocol_error() {
    let server = TestServer::open().await;
    let mut tcp = connect(&server, 1 << 16).await;
    let mut head = head("POST", "/v1/reserve");
    for text in ["transfer-encoding", "chunked"] {
        if text == "transfer-encoding" {
            head.push(0);
        }
        head.push(u8::try_from(text.len()).unwrap());
        head.extend(text.as_bytes());
    }
    tcp.write_all(&frame(HEADERS, END_STREAM | END_HEADERS, 1, &head)).await.unwrap();
    let kind = loop {
        let mut header = [0; 9];
        tcp.read_exact(&mut header).await.unwrap();
        let mut payload = vec![0; usize::from(u16::from_be_bytes([header[1], header[2]]))];
        tcp.read_exact(&mut payload).await.unwrap();
        if ![SETTINGS, WINDOW_UPDATE].contains(&header[3]) {
            break header[3];
        }
    };
    assert_eq!(kind, RST_STREAM);
}

async fn collect(mut body: hyper::body::Incoming) -> Vec<u8> {
    let mut whole = Vec::new();
    while let Some(frame) = std::future::poll_fn(|context| std::pin::Pin::new(&mut body).poll_frame(context)).await {
        whole.extend_from_slice(&frame.unwrap().into_data().unwrap());
    }
    whole
}
