//! A server on a free port, with a clock and helpers.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use earmark_admission::{Backend, LocalBook, LocalOptions, ManualClock};
use earmark_core::{LeaseId, UnixMs};
use earmark_server::{Server, ServerError, ServerOptions};
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::client::{Answer, Wire};
use super::doubles::Nodes;

/// Start time of the clocks.
pub(crate) const START_MS: u64 = 1_700_000_000_000;

/// A server on a free port.
pub(crate) struct TestServer {
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) address: SocketAddr,
    leases: AtomicU64,
    stop: oneshot::Sender<()>,
    server: JoinHandle<Result<(), ServerError>>,
}

impl TestServer {
    /// In memory, with default options.
    pub(crate) async fn open() -> TestServer {
        TestServer::with(|_, _| {}).await
    }

    /// In memory, with other options.
    pub(crate) async fn with(change: impl FnOnce(&mut LocalOptions, &mut ServerOptions)) -> TestServer {
        let clock = ManualClock::at(START_MS);
        let mut local = LocalOptions { clock: Arc::<ManualClock>::clone(&clock), ..LocalOptions::default() };
        let mut options = TestServer::options();
        change(&mut local, &mut options);
        let backend = LocalBook::open(local).await.unwrap();
        TestServer::on(clock, Arc::new(backend), options).await
    }

    /// With another backend.
    pub(crate) async fn on(clock: Arc<ManualClock>, backend: Arc<dyn Backend>, options: ServerOptions) -> TestServer {
        TestServer::of(clock, Server::bind(options, backend).await.unwrap())
    }

    /// With this cluster.
    pub(crate) async fn with_nodes(nodes: Nodes) -> TestServer {
        let backend = LocalBook::open(LocalOptions::default()).await.unwrap();
        let server = Server::bind(TestServer::options(), Arc::new(backend)).await.unwrap();
        TestServer::of(ManualClock::at(START_MS), server.with_cluster(Arc::new(nodes)))
    }

    fn of(clock: Arc<ManualClock>, server: Server) -> TestServer {
        let address = server.local_addr();
        let (stop, stopped) = oneshot::channel();
        let server = tokio::spawn(server.run(async {
            _ = stopped.await;
        }));
        TestServer { clock, address, leases: AtomicU64::new(0), stop, server }
    }

    pub(crate) fn options() -> ServerOptions {
        ServerOptions { listen: SocketAddr::from(([127, 0, 0, 1], 0)), ..ServerOptions::default() }
    }

    /// Starts the shutdown; the future completes when it has ended.
    pub(crate) fn stop(self) -> impl Future<Output = ()> {
        self.stop.send(()).unwrap();
        async { self.server.await.unwrap().unwrap() }
    }

    /// A new lease id of the current time.
    pub(crate) fn lease(&self) -> String {
        let number = self.leases.fetch_add(1, Ordering::Relaxed);
        let now = earmark_admission::Clock::now(&*self.clock).wall;
        LeaseId::from_parts(now, u128::from(number) + 1).to_string()
    }

    /// A lease id of this time.
    pub(crate) fn lease_at(ms: u64) -> String {
        LeaseId::from_parts(UnixMs::new(ms), 7).to_string()
    }

    pub(crate) async fn ask(&self, method: &str, path: &str, body: &str) -> Answer {
        Wire::to(self.address).await.ask(method, path, body).await
    }

    /// Asserts status 200, and returns the JSON.
    pub(crate) async fn ok(&self, method: &str, path: &str, body: &Value) -> Value {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let answer = self.ask(method, path, &body).await;
        assert_eq!(answer.status, 200, "{method} {path} {body}: {answer:?}");
        answer.json()
    }

    pub(crate) async fn put_rolling(&self, key: &str, capacity: u64, window_seconds: u32) -> Value {
        let kind = json!({"key": key, "kind": "rolling", "capacity": capacity, "window_seconds": window_seconds});
        self.ok("PUT", "/v1/admin/limits", &kind).await
    }

    pub(crate) async fn put_concurrency(&self, key: &str, capacity: u64, timeout_seconds: u32) -> Value {
        let kind = json!({"key": key, "kind": "concurrency", "capacity": capacity, "timeout_seconds": timeout_seconds});
        self.ok("PUT", "/v1/admin/limits", &kind).await
    }

    pub(crate) async fn reserve(&self, lease: &str, amounts: &[(&str, u64)]) -> Value {
        self.ok("POST", "/v1/reserve", &reserve(lease, amounts)).await
    }

    pub(crate) async fn complete(&self, lease: &str, amounts: &[(&str, u64)]) -> Value {
        self.ok("POST", "/v1/complete", &complete(lease, amounts)).await
    }

    /// The reserved amount of a limit.
    pub(crate) async fn reserved(&self, key: &str) -> u64 {
        self.usage(key).await["reserved"].as_u64().unwrap()
    }

    pub(crate) async fn usage(&self, key: &str) -> Value {
        self.ok("GET", &format!("/v1/admin/limits/{key}/usage"), &Value::Null).await
    }

    /// The value of a metric.
    pub(crate) async fn metric(&self, name: &str) -> f64 {
        let answer = self.ask("GET", "/metrics", "").await;
        let line = answer.text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("{name} is not in {}", answer.text)).parse().unwrap()
    }

    /// Waits until a metric has a value.
    pub(crate) async fn until(&self, name: &str, value: f64) {
        for _ in 0..200 {
            if self.metric(name).await == value {
                return;
            }
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
        panic!("{name} does not become {value}, it is {}", self.metric(name).await);
    }
}

pub(crate) fn reserve(lease: &str, amounts: &[(&str, u64)]) -> Value {
    let requirements: Vec<Value> = amounts.iter().map(|(key, amount)| part(key, "amount", *amount)).collect();
    json!({"lease_id": lease, "requirements": requirements})
}

pub(crate) fn complete(lease: &str, amounts: &[(&str, u64)]) -> Value {
    let actuals: Vec<Value> = amounts.iter().map(|(key, amount)| part(key, "actual_amount", *amount)).collect();
    json!({"lease_id": lease, "actuals": actuals})
}

/// An amount of a limit, which is `!<namespace>:<key>` in another namespace.
fn part(key: &str, field: &str, amount: u64) -> Value {
    match key.strip_prefix('!').and_then(|key| key.split_once(':')) {
        Some((namespace, key)) => json!({"namespace": namespace, "key": key, field: amount}),
        None => json!({"key": key, field: amount}),
    }
}
