//! The Book decides like TigerBeetle: one random stream of reserves, retries, completes and changes of limits into
//! both, every answer and every usage compared.
//!
//! Time is real. On limits whose reservations end after seconds nothing is compared near an end, for the two do not
//! decide at the same moment: from [`TOLERANCE_MS`] before it to [`TOLERANCE_MS`] after it, and for what was settled a
//! second longer, since TigerBeetle counts in whole seconds. On limits that end nothing within the test everything is
//! compared always. Not compared are hints, which of several limits in the way come after the first, and what became
//! of a denied lease that was completed: that is known only to the process that denied it.
//!
//! Two processes' worth of limits stand before one server and are asked in turns, so that what one of them remembers
//! is as often as not unknown to the other. The registry of the second is behind that of the first until it asks, as that
//! of a node which follows; it hears at once only of what it may decide otherwise on until then: a limit that is going
//! down, and another rule for overage.
//!
//! `EARMARK_SEED=7` replays one seed; `EARMARK_SOAK_SECONDS=600` runs fresh ones for that long.

#![allow(clippy::unwrap_used, clippy::panic, unreachable_pub, reason = "a test may")]

mod compare;
mod stream;
#[path = "../support/mod.rs"]
mod support;
mod tally;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use earmark_admission::{LocalBook, LocalOptions, Registry};
use earmark_tigerbeetle::{TigerBeetleLimits, TigerBeetleOptions};
use stream::Stream;
use support::registry::{Lagging, TestRegistry};
use support::server::Server;
use support::soak::each_seed;
use tally::Tally;

/// How far apart the two may be in time.
pub const TOLERANCE_MS: u64 = 250;
/// A busy machine may take longer than a server would have its callers wait.
const PATIENCE: Duration = Duration::from_secs(60);
/// Streams of one seed, side by side, each in a namespace of its own.
const STREAMS: u64 = 60;
/// Operations of one stream.
const OPERATIONS: u64 = 110;
/// Seeds that are tried if nothing else is asked for.
const SEEDS: u64 = 4;

#[test]
fn the_book_decides_like_tigerbeetle() {
    let Some(server) = Server::start() else { return };
    let mut total = Tally::default();
    let mut try_seed = |seed| {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let tally = runtime.unwrap().block_on(run(&server, seed));
        println!("EARMARK_SEED={seed}: {tally}");
        total.add(&tally);
        total.is_enough()
    };
    let mut is_enough = std::env::var("EARMARK_SEED").is_ok();
    each_seed("differential", SEEDS, |seed| is_enough |= try_seed(seed));
    // Streams that a busy machine disturbed are made up for.
    let mut more = SEEDS..4 * SEEDS;
    while !is_enough && let Some(seed) = more.next() {
        is_enough = try_seed(seed);
    }
    println!("differential: {total}");
    total.check();
}

async fn run(server: &Server, seed: u64) -> Tally {
    let registry = Arc::new(TestRegistry::default());
    let lagging = Arc::new(Lagging::new(registry.clone()));
    let mut nodes = Vec::new();
    for registry in [registry.clone() as Arc<dyn Registry>, lagging.clone()] {
        let options = TigerBeetleOptions { deadline: PATIENCE, ..server.options() };
        let node = TigerBeetleLimits::open(options, registry).await.unwrap();
        nodes.push(Arc::new(node));
    }
    let book = Arc::new(LocalBook::open(LocalOptions::default()).await.unwrap());
    let streams: Vec<_> = (0..STREAMS)
        .map(|number| {
            let registries = (registry.clone(), lagging.clone());
            let stream = Stream::new(seed, number, Arc::clone(&book), nodes.clone(), registries);
            tokio::spawn(stream.run(OPERATIONS))
        })
        .collect();
    let mut tally = Tally::default();
    for stream in streams {
        match stream.await {
            Ok(met) => tally.add(&met),
            Err(failed) => std::panic::resume_unwind(failed.into_panic()),
        }
    }
    tally.behind = lagging.behind.load(Ordering::Relaxed);
    tally
}
