//! The scenarios that the clients of all languages run: faults on the way to a server, and what a client must do about
//! them. The file describes its own fields.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use earmark_client::core::Kind;
use earmark_client::{AcquireError, Actuals, Client, ClientOptions, Deadline, Job, Limiter, LimiterOptions, Protocol};
use serde::Deserialize;
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};

use crate::fixture::{TestServer, limiter};
use crate::support::proxy::message;
use crate::support::{key, limit, soon};

const FILE: &str = include_str!("../../../../clients/scenarios.json");
/// The time for which a late answer is held back: longer than the attempts of its scenarios.
const LATE: Duration = Duration::from_millis(1_500);

#[derive(Deserialize)]
struct File {
    scenarios: Vec<Scenario>,
}

#[derive(Deserialize)]
struct Scenario {
    name: String,
    #[serde(default = "one")]
    servers: usize,
    #[serde(default)]
    down: Vec<usize>,
    limits: BTreeMap<String, Definition>,
    held: Option<BTreeMap<String, u64>>,
    requirements: BTreeMap<String, u64>,
    /// `None` if the call fails.
    actuals: Option<BTreeMap<String, u64>>,
    attempt_timeout_ms: Option<u64>,
    timeout_ms: Option<u64>,
    #[serde(default)]
    faults: Vec<BTreeMap<usize, Fault>>,
    requests: Option<Vec<Request>>,
    #[serde(default)]
    first_requests: Vec<Request>,
    result: String,
    #[serde(default)]
    reserved: BTreeMap<String, u64>,
}

fn one() -> usize {
    1
}

#[derive(Deserialize)]
struct Definition {
    kind: String,
    capacity: u64,
    window_seconds: Option<u32>,
    timeout_seconds: Option<u32>,
}

#[derive(Clone, Copy, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
enum Fault {
    LoseRequest,
    LoseAnswer,
    Unavailable,
    UnavailableAfter,
    LateAnswer,
    Duplicate,
    NotEarmark,
}

/// The number of the server, the kind, and the lease.
type Request = (usize, String, String);

/// The requests that reached the proxies, in order, with the leases that the client named.
type Seen = Arc<Mutex<Vec<Request>>>;

/// A proxy before the server, whose nth request gets the fault with that number.
struct Proxy {
    number: usize,
    upstream: SocketAddr,
    faults: BTreeMap<usize, Fault>,
    count: Mutex<usize>,
    seen: Seen,
}

impl Proxy {
    async fn start(self) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let proxy = Arc::new(self);
        tokio::spawn(async move {
            while let Ok((caller, _)) = listener.accept().await {
                let proxy = Arc::clone(&proxy);
                // Broken connections are the purpose.
                tokio::spawn(async move { _ = proxy.serve(caller).await });
            }
        });
        url
    }

    async fn serve(&self, mut caller: TcpStream) -> std::io::Result<()> {
        loop {
            let request = message(&mut caller).await?;
            let answer = match self.fault_of(&request) {
                Some(Fault::LoseRequest) => return Ok(()),
                Some(Fault::Unavailable) => answer(503, r#"{"error":"overloaded","message":"the queue is full"}"#),
                Some(Fault::NotEarmark) => answer(200, "<html>Welcome to nginx!</html>"),
                fault => {
                    let mut executed = self.forward(&request).await?;
                    if fault == Some(Fault::Duplicate) {
                        executed = self.forward(&request).await?;
                    }
                    match fault {
                        Some(Fault::LoseAnswer) => return Ok(()),
                        Some(Fault::UnavailableAfter) => {
                            executed = answer(503, r#"{"error":"overloaded","message":"no leader"}"#);
                        }
                        Some(Fault::LateAnswer) => tokio::time::sleep(LATE).await,
                        _ => {}
                    }
                    executed
                }
            };
            caller.write_all(&answer).await?;
        }
    }

    async fn forward(&self, request: &[u8]) -> std::io::Result<Vec<u8>> {
        let mut server = TcpStream::connect(self.upstream).await?;
        server.write_all(request).await?;
        message(&mut server).await
    }

    /// Notes a request. All that it notes of one batch stays together.
    fn fault_of(&self, request: &[u8]) -> Option<Fault> {
        let text = std::str::from_utf8(request).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let kind = head.split(' ').nth(1).unwrap().trim_start_matches("/v1/").trim_end_matches("/batch");
        let body: serde_json::Value = serde_json::from_str(body).unwrap();
        let items = body["requests"].as_array().cloned().unwrap_or_else(|| vec![body.clone()]);
        let lease = |item: &serde_json::Value| item["lease_id"].as_str().unwrap().to_owned();
        let mut seen = self.seen.lock().unwrap();
        seen.extend(items.iter().map(|item| (self.number, kind.to_owned(), lease(item))));
        let mut count = self.count.lock().unwrap();
        *count += 1;
        self.faults.get(&count).copied()
    }
}

fn answer(status: u16, body: &str) -> Vec<u8> {
    format!("HTTP/1.1 {status} X\r\ncontent-length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

fn job(requirements: &BTreeMap<String, u64>) -> Job {
    Job::new(requirements.iter().map(|(name, amount)| (key(name), *amount))).unwrap()
}

impl Scenario {
    /// The addresses of the proxies, of which some refuse connections.
    async fn urls(&self, upstream: SocketAddr, seen: &Seen) -> Vec<String> {
        let mut urls = Vec::new();
        for number in 0..self.servers {
            if self.down.contains(&number) {
                let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
                urls.push(format!("http://{closed}"));
                continue;
            }
            let faults = self.faults.get(number).cloned().unwrap_or_default();
            let proxy = Proxy { number, upstream, faults, count: Mutex::new(0), seen: Arc::clone(seen) };
            urls.push(proxy.start().await);
        }
        urls
    }

    async fn result(&self, limiter: &Limiter) -> &'static str {
        let deadline = Deadline::after(Duration::from_millis(self.timeout_ms.unwrap_or(10_000)));
        let guard = match limiter.acquire(&job(&self.requirements), deadline).await {
            Ok(guard) => guard,
            Err(AcquireError::Never { .. }) => return "never",
            Err(AcquireError::UnknownLimitKey { .. }) => return "unknown_limit_key",
            Err(AcquireError::DeadlinePassed { .. }) => return "timeout",
            Err(other) => panic!("{}: {other}", self.name),
        };
        // A call that fails drops its guard.
        let Some(actuals) = &self.actuals else { return "error" };
        let used = |actuals: Actuals, (name, amount): (&String, &u64)| actuals.used(key(name), *amount);
        let completed = guard.complete(actuals.iter().fold(Actuals::unknown(), used)).await.unwrap();
        assert!(completed.reconciled, "{}", self.name);
        "admitted"
    }

    async fn run(&self, is_batching: bool) {
        let server = TestServer::start().await;
        let admin = server.client(Protocol::Http);
        for (name, definition) in &self.limits {
            let kind = match definition.kind.as_str() {
                "rolling" => Kind::Rolling { window_seconds: definition.window_seconds.unwrap() },
                "concurrency" => Kind::Concurrency { timeout_seconds: definition.timeout_seconds.unwrap() },
                other => panic!("{}: kind {other}", self.name),
            };
            admin.put_limit(&limit(name, kind, definition.capacity), soon()).await.unwrap();
        }
        let holder = limiter(&admin);
        let held = match &self.held {
            Some(held) => Some(holder.acquire(&job(held), soon()).await.unwrap()),
            None => None,
        };
        let seen = Seen::default();
        let mut options = ClientOptions::of(&self.urls(server.address, &seen).await).unwrap();
        options.attempt_timeout = Duration::from_millis(self.attempt_timeout_ms.unwrap_or(8_000));
        let mut limiting = LimiterOptions::default();
        if !is_batching {
            limiting.batching = None;
        }
        let limiter = Limiter::new(&Client::new(options).unwrap(), limiting).unwrap();
        assert_eq!(self.result(&limiter).await, self.result, "{}", self.name);
        assert!(limiter.flush(soon()).await, "{}", self.name);
        let seen = named(&seen.lock().unwrap());
        match &self.requests {
            Some(requests) => assert_eq!(seen, *requests, "{}", self.name),
            None => assert_eq!(seen[..self.first_requests.len()], self.first_requests, "{}", self.name),
        }
        for (name, amount) in &self.reserved {
            assert_eq!(admin.usage(&key(name), soon()).await.unwrap().reserved, *amount, "{}", self.name);
        }
        drop(held);
    }
}

/// The requests with leases named A, B, ... in the order of their first request.
fn named(seen: &[Request]) -> Vec<Request> {
    let mut leases: Vec<&String> = Vec::new();
    let mut named = Vec::new();
    for (server, kind, lease) in seen {
        let place = leases.iter().position(|known| *known == lease).unwrap_or_else(|| {
            leases.push(lease);
            leases.len() - 1
        });
        let letter = char::from(b'A' + u8::try_from(place).unwrap());
        named.push((*server, kind.clone(), letter.to_string()));
    }
    named
}

#[tokio::test]
async fn the_scenarios_of_all_clients_are_followed() {
    // `$:` stands for a prefix that is unique to a run. Here every scenario has a server of its own.
    let File { scenarios } = serde_json::from_str(&FILE.replace("$:", "s:")).unwrap();
    assert!(scenarios.len() >= 19);
    for scenario in &scenarios {
        for is_batching in [true, false] {
            scenario.run(is_batching).await;
        }
    }
}
