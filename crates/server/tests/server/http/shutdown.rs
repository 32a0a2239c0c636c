//! Shutdown.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use earmark_admission::{LocalBook, LocalOptions, ManualClock};
use earmark_server::ServerOptions;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::support::{Gate, START_MS, TestServer, Wire, request, reserve};

async fn gated(shutdown_timeout: Duration) -> (TestServer, Arc<Gate>) {
    let clock = ManualClock::at(START_MS);
    let local = LocalOptions { clock: Arc::<ManualClock>::clone(&clock), ..LocalOptions::default() };
    let gate = Arc::new(Gate::before(LocalBook::open(local).await.unwrap()));
    let header_timeout = Duration::from_millis(500);
    let options = ServerOptions { header_timeout, shutdown_timeout, ..TestServer::options() };
    let server = TestServer::on(clock, Arc::<Gate>::clone(&gate), options).await;
    server.put_rolling("a", 5, 60).await;
    (server, gate)
}

#[tokio::test]
async fn what_is_in_flight_is_finished_and_whoever_comes_meanwhile_is_told() {
    let (server, gate) = gated(Duration::from_secs(20)).await;
    let address = server.address;
    let mut idle = Wire::to(address).await;
    idle.ask("GET", "/healthz", "").await;
    let mut busy = Wire::to(address).await;
    busy.send(&request("POST", "/v1/reserve", &reserve(&server.lease(), &[("a", 1)]).to_string())).await;
    server.until("earmark_live_leases", 1.0).await;

    let stopping = tokio::spawn(server.stop());
    // The idle connection closes at once, which shows that the shutdown has begun.
    assert!(idle.is_closed().await);
    // The port once closed at once, so that `/readyz` could not be read.
    for (path, code) in [("/readyz", "not_ready"), ("/healthz", "overloaded")] {
        let mut late = Wire::to(address).await;
        let answer = late.ask("GET", path, "").await;
        assert_eq!(answer.header("connection"), Some("close"));
        assert!(answer.problem(503, code).starts_with("shutting down"), "{answer:?}");
        assert!(late.is_closed().await);
    }
    // A silent connection does not delay the shutdown.
    let _silent = Wire::to(address).await;
    assert!(!gate.is_shut_down.load(Ordering::SeqCst));
    gate.gate.add_permits(1);
    let answer = busy.answer().await;
    assert_eq!(answer.header("connection"), Some("close"));
    assert_eq!(answer.json()["allowed"], true);
    assert!(busy.is_closed().await);
    timeout(Duration::from_secs(10), stopping).await.unwrap().unwrap();
    assert!(gate.is_shut_down.load(Ordering::SeqCst));
    assert!(TcpStream::connect(address).await.is_err());
}

#[tokio::test]
async fn what_does_not_finish_in_time_is_given_up() {
    let (server, gate) = gated(Duration::from_millis(300)).await;
    let mut busy = Wire::to(server.address).await;
    busy.send(&request("POST", "/v1/reserve", &reserve(&server.lease(), &[("a", 1)]).to_string())).await;
    server.until("earmark_live_leases", 1.0).await;
    let start = Instant::now();
    timeout(Duration::from_secs(10), server.stop()).await.unwrap();
    assert!(start.elapsed() >= Duration::from_millis(300));
    assert!(busy.is_closed().await);
    assert!(gate.is_shut_down.load(Ordering::SeqCst));
}

#[tokio::test]
async fn connections_on_which_nothing_or_half_a_request_has_come_do_not_hold_it_up() {
    let (server, _) = gated(Duration::from_secs(60)).await;
    let mut silent = Wire::to(server.address).await;
    let mut slow = Wire::to(server.address).await;
    slow.send("GET /healthz HTTP/1.1\r\nhost: ear").await;
    server.until("earmark_connections", 3.0).await;
    timeout(Duration::from_secs(20), server.stop()).await.unwrap();
    assert!(silent.is_closed().await);
}

#[tokio::test]
async fn an_empty_server_stops_at_once() {
    let server = TestServer::open().await;
    assert_eq!(server.ok("GET", "/readyz", &Value::Null).await["status"], "ready");
    timeout(Duration::from_secs(5), server.stop()).await.unwrap();
}
