//! The speed of the client: `acquire` without a server, and the gain of shared requests with one.
//!
//! ```sh
//! cargo bench -p earmark-client --bench client
//! ```
//!
//! Both are ratios within one run: `acquire` to its bound of 2 microseconds, and shared requests to one request for each
//! call. The server is in this process, so that callers and server share the machine as in `earmark bench`.

#![allow(clippy::unwrap_used, missing_docs, reason = "a benchmark that fails panics")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use earmark_admission::{Backend, LocalBook};
use earmark_client::core::{Definition, Kind, LimitKey};
use earmark_client::{
    Actuals, BatchOptions, Client, ClientOptions, Deadline, Job, Limiter, LimiterOptions, LocalOptions, Protocol,
};
use earmark_server::{Server, ServerOptions};

const KEYS: [&str; 4] = ["model:rpm", "model:tpm", "model:calls", "tenant:tpd"];
const TASKS: usize = 1_000;
const WARM_UP: Duration = Duration::from_secs(1);
const MEASURED: Duration = Duration::from_secs(5);

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(60))
}

async fn put_limits(client: &Client) -> Job {
    let mut needs = Vec::new();
    for name in KEYS {
        let key: LimitKey = name.parse().unwrap();
        let kind = match name.ends_with("calls") {
            true => Kind::Concurrency { timeout_seconds: 600 },
            false => Kind::Rolling { window_seconds: 60 },
        };
        let limit = Definition::new(key.clone(), kind, 1 << 40);
        client.put_limit(&limit, soon()).await.unwrap();
        needs.push((key, 1));
    }
    Job::new(needs).unwrap()
}

/// Nanoseconds of an `acquire` of four limits on a Book in this process, and of one with its `complete`.
async fn in_process() -> (f64, f64) {
    const ROUNDS: u32 = 200_000;
    let client = Client::local(LocalOptions::default()).unwrap();
    let job = put_limits(&client).await;
    let limiter = Limiter::new(&client, LimiterOptions::default()).unwrap();
    let mut guards = Vec::with_capacity(ROUNDS as usize);
    let deadline = Deadline::after(Duration::from_secs(600));
    for _ in 0..ROUNDS / 10 {
        limiter.acquire(&job, deadline).await.unwrap().release().await.unwrap();
    }
    let start = Instant::now();
    for _ in 0..ROUNDS {
        guards.push(limiter.acquire(&job, deadline).await.unwrap());
    }
    let acquire = start.elapsed();
    for guard in guards {
        guard.release().await.unwrap();
    }
    let start = Instant::now();
    for _ in 0..ROUNDS {
        limiter.acquire(&job, deadline).await.unwrap().complete(Actuals::unknown()).await.unwrap();
    }
    let nanos = |time: Duration| time.as_nanos() as f64 / f64::from(ROUNDS);
    (nanos(acquire), nanos(start.elapsed()))
}

/// Calls a second by a thousand tasks, each an acquire and a complete.
async fn over_the_wire(url: &str, protocol: Protocol, batching: Option<BatchOptions>) -> f64 {
    let mut options = ClientOptions::of(&[url]).unwrap();
    options.protocol = protocol;
    options.connections_max = 64;
    let client = Client::new(options).unwrap();
    let job = put_limits(&client).await;
    let limiter = Limiter::new(&client, LimiterOptions { batching, ..LimiterOptions::default() }).unwrap();
    let calls = Arc::new(AtomicU64::new(0));
    let tasks: Vec<_> = (0..TASKS)
        .map(|_| {
            let (limiter, job, calls) = (limiter.clone(), job.clone(), Arc::clone(&calls));
            tokio::spawn(async move {
                loop {
                    let guard = limiter.acquire(&job, soon()).await.unwrap();
                    guard.release().await.unwrap();
                    calls.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    tokio::time::sleep(WARM_UP).await;
    let (start, before) = (Instant::now(), calls.load(Ordering::Relaxed));
    tokio::time::sleep(MEASURED).await;
    let done = calls.load(Ordering::Relaxed) - before;
    let rate = done as f64 / start.elapsed().as_secs_f64();
    for task in tasks {
        task.abort();
    }
    rate
}

#[tokio::main]
async fn main() {
    let (acquire, pair) = in_process().await;
    println!("in process: acquire {acquire:.0} ns, acquire and complete {pair:.0} ns (acquire: at most 2,000 ns)");
    let options = earmark_admission::LocalOptions::default();
    let backend: Arc<dyn Backend> = Arc::new(LocalBook::open(options).await.unwrap());
    let listen = SocketAddr::from(([127, 0, 0, 1], 0));
    let server = Server::bind(ServerOptions { listen, ..ServerOptions::default() }, backend).await.unwrap();
    let url = format!("http://{}", server.local_addr());
    tokio::spawn(server.run(std::future::pending()));
    for protocol in [Protocol::Http, Protocol::Grpc] {
        let alone = over_the_wire(&url, protocol, None).await;
        let shared = over_the_wire(&url, protocol, Some(BatchOptions::default())).await;
        println!(
            "{protocol:?}, {TASKS} tasks: {alone:.0} calls/s with a request each, {shared:.0} calls/s with shared ones: \
             {:.1} times",
            shared / alone
        );
    }
}
