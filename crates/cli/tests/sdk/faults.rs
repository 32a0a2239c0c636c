//! Callers and writers through a faulty proxy.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use earmark_client::{BatchOptions, Client, ClientOptions, Limiter, LimiterOptions, Protocol};
use tempfile::TempDir;

use crate::callers::{Known, prepare};
use crate::history;
use crate::random::Random;
use crate::served::Server;
use crate::support::proxy::Proxy;
use crate::writers::Scribe;

const CALLERS: u64 = 8;
const WRITERS: u64 = 3;
/// Calls per four operations; the rest are writes.
const CALLS_OF_FOUR: u64 = 3;
/// One request in four gets a fault.
const ONE_IN: u64 = 4;
/// Bytes after which a connection is cut: a few requests.
const BYTES_MAX: u64 = 6_000;
/// Longer than the proxy delays a request.
const LATE: Duration = Duration::from_millis(300);

pub fn run(seed: u64, operations: u64, protocol: Protocol) {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(faulty(seed, operations, protocol));
    runtime.shutdown_background();
}

fn client(url: &str, protocol: Protocol) -> Client {
    let mut options = ClientOptions::of(&[url]).unwrap();
    options.protocol = protocol;
    options.attempt_timeout = Duration::from_secs(2);
    Client::new(options).unwrap()
}

async fn faulty(seed: u64, operations: u64, protocol: Protocol) {
    let folder = TempDir::new().unwrap();
    let server = Server::start(&["--log-level", "error"]);
    let direct = client(&server.url(), Protocol::Http);
    prepare(&direct).await;
    let proxy = match protocol {
        Protocol::Http => Proxy::http(&server.address, seed, ONE_IN).await,
        Protocol::Grpc => Proxy::bytes(&server.address, seed, BYTES_MAX).await,
    };
    let mut random = Random::new(seed);
    let known = Arc::new(Known::default());
    // One limiter batches requests, the other does not.
    let limiters: Vec<Limiter> = [Some(BatchOptions::default()), None]
        .into_iter()
        .map(|batching| {
            let options = LimiterOptions { batching, ..LimiterOptions::default() };
            Limiter::new(&client(&proxy.url(), protocol), options).unwrap()
        })
        .collect();
    let calls = operations * CALLS_OF_FOUR / 4 / CALLERS;
    let callers: Vec<_> = (0..CALLERS)
        .map(|number| {
            let limiter = limiters[usize::try_from(number).unwrap() % limiters.len()].clone();
            tokio::spawn(Arc::clone(&known).call(limiter, Random::new(random.next()), calls))
        })
        .collect();
    let writes = operations * (4 - CALLS_OF_FOUR) / 4 / WRITERS;
    let writers: Vec<_> = (0..WRITERS)
        .map(|number| {
            let scribe = Scribe {
                client: client(&proxy.url(), protocol),
                account: format!("writer{number}"),
                path: folder.path().join(format!("writer{number}")),
                random: Random::new(random.next()),
                done: Vec::new(),
            };
            tokio::spawn(scribe.write(writes))
        })
        .collect();
    for caller in callers {
        caller.await.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
    let mut written = 0;
    for writer in writers {
        let scribe = writer.await.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        tokio::time::sleep(LATE).await;
        let address = server.address.clone();
        written += scribe.done.len();
        tokio::task::spawn_blocking(move || history::check(&address, &scribe.account, &scribe.done, 1))
            .await
            .unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
    known.check(&direct, &limiters).await;
    let admitted = known.admitted.load(Ordering::SeqCst);
    let went_wrong = match protocol {
        Protocol::Http => format!("{:?}", proxy.faults()),
        Protocol::Grpc => format!("{} connections were cut", proxy.through()),
    };
    println!("seed {seed}, {protocol:?}: {admitted} calls admitted, {written} written; {went_wrong}");
    assert!(admitted > calls && written > 0, "hardly anything happened");
    match protocol {
        Protocol::Http => assert!(proxy.faults().iter().all(|(_, count)| *count > 0), "{went_wrong}"),
        Protocol::Grpc => assert!(proxy.through() > 10, "{went_wrong}"),
    }
}
