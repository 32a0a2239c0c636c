//! Connections: pipelined, half-closed, slow, too many, gone.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use earmark_admission::{LocalBook, LocalOptions, ManualClock};
use earmark_core::Role;
use earmark_server::{Server, ServerError, ServerOptions};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::support::{Gate, KeyedServer, START_MS, TestServer, Wire, request, reserve};

#[tokio::test]
async fn pipelined_requests_are_answered_in_order() {
    let server = TestServer::open().await;
    server.put_rolling("a", 2, 60).await;
    let mut wire = Wire::to(server.address).await;
    let body = |_| reserve(&server.lease(), &[("a", 1)]).to_string();
    let requests: Vec<String> = (0..3).map(|n| request("POST", "/v1/reserve", &body(n))).collect();
    wire.send(&requests.concat()).await;
    for is_allowed in [true, true, false] {
        assert_eq!(wire.answer().await.json()["allowed"], is_allowed);
    }
}

#[tokio::test]
async fn a_client_that_says_it_is_done_asking_still_gets_its_answer() {
    let server = TestServer::open().await;
    server.put_rolling("a", 2, 60).await;
    let mut wire = Wire::to(server.address).await;
    wire.send(&request("POST", "/v1/reserve", &reserve(&server.lease(), &[("a", 1)]).to_string())).await;
    wire.tcp.shutdown().await.unwrap();
    assert_eq!(wire.answer().await.json()["allowed"], true);
    assert!(wire.is_closed().await);
}

#[tokio::test]
async fn the_reserve_of_a_client_that_hangs_up_counts_and_its_retry_comes_out_the_same() {
    let clock = ManualClock::at(START_MS);
    let local = LocalOptions { clock: Arc::<ManualClock>::clone(&clock), ..LocalOptions::default() };
    let gate = Arc::new(Gate::before(LocalBook::open(local).await.unwrap()));
    let server = TestServer::on(clock, Arc::<Gate>::clone(&gate), TestServer::options()).await;
    server.put_concurrency("slots", 8, 60).await;
    let bodies: Vec<Value> = (0..8).map(|_| reserve(&server.lease(), &[("slots", 1)])).collect();
    for body in &bodies {
        let mut wire = Wire::to(server.address).await;
        wire.send(&request("POST", "/v1/reserve", &body.to_string())).await;
        // The backend waits, so that the client is gone before the response.
        drop(wire);
    }
    server.until("earmark_live_leases", 8.0).await;
    gate.gate.add_permits(100);
    for body in &bodies {
        let retry = server.ok("POST", "/v1/reserve", body).await;
        assert_eq!((&retry["allowed"], &retry["reserved_at_unix_ms"]), (&json!(true), &json!(START_MS)));
    }
    assert_eq!(server.reserved("slots").await, 8);
    // Neither connections nor concurrency slots leak.
    server.until("earmark_connections", 1.0).await;
    server.clock.advance_ms(60_000);
    assert_eq!(server.reserved("slots").await, 0);
}

async fn quick_to_lose_patience() -> TestServer {
    TestServer::with(|_, options| {
        options.header_timeout = Duration::from_millis(300);
        options.request_timeout = Duration::from_millis(300);
    })
    .await
}

#[tokio::test]
async fn a_client_that_sends_its_body_byte_by_byte_is_told_that_it_is_too_slow() {
    let server = quick_to_lose_patience().await;
    server.put_rolling("a", 2, 60).await;
    let mut wire = Wire::to(server.address).await;
    let text = request("POST", "/v1/reserve", &reserve(&server.lease(), &[("a", 1)]).to_string());
    let (start, last) = text.split_at(text.len() - 20);
    wire.send(start).await;
    let last = last.to_owned();
    let (mut reader, mut writer) = wire.tcp.into_split();
    let drip = tokio::spawn(async move {
        for byte in last.into_bytes() {
            tokio::time::sleep(Duration::from_millis(50)).await;
            if writer.write_all(&[byte]).await.is_err() {
                break;
            }
        }
    });
    let mut text = String::new();
    _ = tokio::io::AsyncReadExt::read_to_string(&mut reader, &mut text).await;
    assert!(text.starts_with("HTTP/1.1 408 "), "{text}");
    assert!(text.contains("\r\nconnection: close\r\n"), "{text}");
    assert!(text.contains(r#"{"error":"request_timeout","message":"body: "#), "{text}");
    drip.abort();
    assert_eq!(server.reserved("a").await, 0);
}

#[tokio::test]
async fn a_client_that_sends_its_head_byte_by_byte_is_told_that_it_is_too_slow() {
    let server = quick_to_lose_patience().await;
    for head in ["GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"] {
        let start = Instant::now();
        let (mut reader, mut writer) = TcpStream::connect(server.address).await.unwrap().into_split();
        let drip = tokio::spawn(async move {
            for byte in head.bytes() {
                if writer.write_all(&[byte]).await.is_err() {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        });
        let mut text = String::new();
        _ = tokio::io::AsyncReadExt::read_to_string(&mut reader, &mut text).await;
        assert!(text.starts_with("HTTP/1.1 408 "), "{text}");
        assert!(text.contains(r#"{"error":"request_timeout","message":"head: "#), "{text}");
        assert!(start.elapsed() >= Duration::from_millis(300));
        drip.abort();
    }
}

#[tokio::test]
async fn a_connection_that_is_idle_between_requests_stays() {
    let server = quick_to_lose_patience().await;
    let mut wire = Wire::to(server.address).await;
    for _ in 0..2 {
        assert_eq!(wire.ask("GET", "/healthz", "").await.status, 200);
        tokio::time::sleep(Duration::from_millis(900)).await;
    }
    assert_eq!(wire.ask("GET", "/healthz", "").await.status, 200);
}

#[tokio::test]
async fn a_client_that_takes_no_answers_is_let_go() {
    let server = quick_to_lose_patience().await;
    let mut wire = Wire::to(server.address).await;
    let asks = request("GET", "/openapi.json", "").repeat(100);
    let asking = async { while wire.tcp.write_all(asks.as_bytes()).await.is_ok() {} };
    // The server stops reading when it cannot write, and then closes the connection.
    tokio::time::timeout(Duration::from_secs(10), asking).await.unwrap();
    server.until("earmark_connections", 1.0).await;
}

#[tokio::test]
async fn a_head_that_is_too_large_is_refused() {
    let server = TestServer::open().await;
    for headers in [format!("x: {}\r\n", "y".repeat(16 << 10)), "x: y\r\n".repeat(101)] {
        let mut wire = Wire::to(server.address).await;
        wire.send(&format!("GET /healthz HTTP/1.1\r\nhost: localhost\r\n{headers}\r\n")).await;
        assert_eq!(wire.answer().await.status, 431);
    }
}

#[tokio::test]
async fn what_is_no_http_is_refused() {
    let server = TestServer::open().await;
    for nonsense in ["\0\0\0\0\r\n\r\n", "PING\r\n\r\n", "PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n"] {
        let mut wire = Wire::to(server.address).await;
        wire.send(nonsense).await;
        assert_eq!(wire.answer().await.status, 400, "{nonsense:?}");
        assert!(wire.is_closed().await);
    }
}

#[tokio::test]
async fn connections_beyond_the_allowed_are_told_so_and_room_that_is_free_again_is_used() {
    let server = TestServer::with(|_, options| options.connections_max = 2).await;
    let (mut first, mut second) = (Wire::to(server.address).await, Wire::to(server.address).await);
    for wire in [&mut first, &mut second] {
        assert_eq!(wire.ask("GET", "/v1/admin/limits", "").await.status, 200);
    }
    let mut third = Wire::to(server.address).await;
    let message = third.ask("GET", "/healthz", "").await.problem(503, "overloaded");
    assert!(message.contains("connections"), "{message}");
    assert!(third.is_closed().await);
    let metrics = first.ask("GET", "/metrics", "").await.text;
    assert!(metrics.contains("\nearmark_connections_refused_total 1\n"), "{metrics}");
    assert_eq!(first.ask("GET", "/healthz", "").await.status, 200);
    drop(first);
    for _ in 0..100 {
        if Wire::to(server.address).await.ask("GET", "/healthz", "").await.status == 200 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("the place of a closed connection was not given to another");
}

/// 10,000 silent connections of one address locked everybody out for as long as they stayed.
#[tokio::test]
async fn silent_connections_make_room_and_those_with_credentials_stay() {
    for (connections_max, connections_per_address) in [(4, 100), (100, 4)] {
        let keyed = KeyedServer::with(|options| {
            options.connections_max = connections_max;
            options.connections_per_address = connections_per_address;
        })
        .await;
        let mut known = Wire::to(keyed.server.address).await;
        let ask = format!("GET /v1/admin/limits HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\n\r\n", keyed.root);
        known.send(&ask).await;
        assert_eq!(known.answer().await.status, 200);
        let mut silent = Vec::new();
        for _ in 0..50 {
            silent.push(Wire::to(keyed.server.address).await);
        }
        // A new client is served, and so is the one that was there.
        let limit = json!({"key": "a", "kind": "rolling", "capacity": 1, "window_seconds": 60}).to_string();
        assert_eq!(keyed.ask(Some(&keyed.root), "PUT", "/v1/admin/limits", &limit).await.status, 200);
        known.send(&ask).await;
        assert_eq!(known.answer().await.status, 200);
        assert!(silent[0].is_closed().await);
        let metrics = keyed.ask(Some(&keyed.root), "GET", "/metrics", "").await.text;
        assert!(!metrics.contains("\nearmark_connections_evicted_total 0\n"), "{metrics}");
    }
}

#[tokio::test]
async fn an_address_at_its_bound_is_told_so_and_another_is_served() {
    let server = TestServer::with(|_, options| options.connections_per_address = 2).await;
    let (mut first, mut second) = (Wire::to(server.address).await, Wire::to(server.address).await);
    for wire in [&mut first, &mut second] {
        assert_eq!(wire.ask("GET", "/v1/admin/limits", "").await.status, 200);
    }
    let message = server.ask("GET", "/healthz", "").await.problem(503, "overloaded");
    assert!(message.contains("--connections-per-address"), "{message}");
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.2:0".parse().unwrap()).unwrap();
    let mut other = Wire::of(socket.connect(server.address).await.unwrap());
    assert_eq!(other.ask("GET", "/healthz", "").await.status, 200);
}

/// The unfinished bodies of one caller used up the memory for the bodies of all.
#[tokio::test]
async fn the_unfinished_bodies_of_one_caller_do_not_refuse_those_of_another() {
    const LENGTH: usize = 200 << 10;
    let keyed = KeyedServer::with(|options| options.bodies_bytes_max = 8 << 20).await;
    let (noisy, quiet) = (keyed.key(Role::Caller, "noisy").await, keyed.key(Role::Caller, "quiet").await);
    let mut unfinished = Vec::new();
    for _ in 0..40 {
        let mut wire = Wire::to(keyed.server.address).await;
        let head = format!(
            "POST /v1/reserve HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {noisy}\r\ncontent-length: {LENGTH}\r\n\r\n{{"
        );
        wire.send(&head).await;
        unfinished.push(wire);
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    let body = reserve(&keyed.server.lease(), &[("a", 1)]).to_string();
    let body = format!("{body}{}", " ".repeat(LENGTH - body.len()));
    let refused = keyed.ask(Some(&noisy), "POST", "/v1/reserve", &body).await;
    assert!(refused.problem(503, "overloaded").contains("bodies of this caller"), "{refused:?}");
    let answer = keyed.ask(Some(&quiet), "POST", "/v1/reserve", &body).await;
    assert_eq!((answer.status, &answer.json()["error"]), (200, &json!("unknown_limit_key:a")));
}

#[tokio::test]
async fn a_server_that_everyone_could_reach_does_not_start() {
    let backend = Arc::new(LocalBook::open(LocalOptions::default()).await.unwrap());
    for listen in ["0.0.0.0:0", "[::]:0", "192.0.2.1:0"] {
        let options = ServerOptions { listen: listen.parse().unwrap(), ..ServerOptions::default() };
        let error = Server::bind(options, Arc::<LocalBook>::clone(&backend)).await.err().unwrap();
        assert!(matches!(error, ServerError::NotLoopback { .. }), "{error}");
        assert!(error.to_string().contains(&format!("found {listen}, but there are no keys")), "{error}");
    }
}

#[tokio::test]
async fn an_address_that_is_taken_is_an_error_that_names_it() {
    let server = TestServer::open().await;
    let backend = Arc::new(LocalBook::open(LocalOptions::default()).await.unwrap());
    let listen: SocketAddr = server.address;
    let error = Server::bind(ServerOptions { listen, ..ServerOptions::default() }, backend).await.err().unwrap();
    assert!(error.to_string().starts_with(&format!("listen: cannot listen on {listen}: ")), "{error}");
}
