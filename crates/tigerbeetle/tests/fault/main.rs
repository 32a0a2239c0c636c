//! Kills TigerBeetle and Earmark processes with SIGKILL under load.
//!
//! Callers retry with the same lease until they have an answer. Afterwards no lease was allowed twice, no debt was
//! doubled or lost, and no slot is held. `EARMARK_KILLS=100` kills more often.

#![allow(clippy::unwrap_used, clippy::panic, unreachable_pub, reason = "a test may")]

mod load;
#[path = "../support/mod.rs"]
mod support;
mod worker;

use std::sync::Arc;
use std::time::Duration;

use earmark_admission::Limits;
use earmark_tigerbeetle::{TigerBeetleLimits, TigerBeetleOptions};
use load::{Direct, Load};
use support::random::Random;
use support::server::Server;
use support::soak::number;
use worker::Workers;

fn kills() -> u64 {
    number("EARMARK_KILLS").unwrap_or(4)
}

fn options(server: &Server) -> TigerBeetleOptions {
    TigerBeetleOptions { deadline: Duration::from_secs(2), ..server.options() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tigerbeetle_is_killed_under_load_and_nothing_is_lost_or_doubled() {
    let Some(mut server) = Server::start() else { return };
    let registry = load::registry();
    let limits = Arc::new(TigerBeetleLimits::open(options(&server), registry.clone()).await.unwrap());
    let load = Load::start(Arc::new(Direct(Arc::clone(&limits))));
    let mut random = Random::new(1);
    for _ in 0..kills() {
        tokio::time::sleep(Duration::from_millis(random.between(300, 1_200))).await;
        server.kill();
        tokio::time::sleep(Duration::from_millis(random.between(0, 1_500))).await;
        server.up();
        assert!(load.progresses().await, "no call is answered after a kill: {}", server.logs());
    }
    let totals = load.finish().await;
    println!("TigerBeetle was killed {} times: {totals:?}", kills());
    load::check(&limits, &registry, &totals).await;
    limits.shut_down().await;
}

/// Two of three replicas go on without the third, which is a different one each time. It has to catch up, because the
/// next kill leaves only it and one other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_of_three_is_killed_under_load_and_nothing_is_lost_or_doubled() {
    let Some(mut server) = Server::start_three() else { return };
    let registry = load::registry();
    let limits = Arc::new(TigerBeetleLimits::open(options(&server), registry.clone()).await.unwrap());
    let load = Load::start(Arc::new(Direct(Arc::clone(&limits))));
    assert!(load.progresses().await, "no call is answered: {}", server.logs());
    for place in (0..3).cycle().take(usize::try_from(kills()).unwrap()) {
        server.kill_one(place);
        assert!(load.progresses().await, "no call is answered by two of three: {}", server.logs());
        server.up();
        assert!(load.progresses().await, "no call is answered by three: {}", server.logs());
    }
    let totals = load.finish().await;
    println!("replicas were killed {} times: {totals:?}", kills());
    load::check(&limits, &registry, &totals).await;
    limits.shut_down().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn earmark_is_killed_under_load_and_nothing_is_lost_or_doubled() {
    let Some(server) = Server::start() else { return };
    let workers = Arc::new(Workers::start(server.address()).await);
    let load = Load::start(workers.clone());
    let mut random = Random::new(2);
    for _ in 0..kills() {
        tokio::time::sleep(Duration::from_millis(random.between(500, 2_500))).await;
        workers.kill_and_start().await;
        assert!(load.progresses().await, "no call is answered after a kill: {}", server.logs());
    }
    let totals = load.finish().await;
    println!("Earmark was killed {} times: {totals:?}", kills());
    let registry = load::registry();
    let limits = TigerBeetleLimits::open(options(&server), registry.clone()).await.unwrap();
    load::check(&limits, &registry, &totals).await;
}

/// Not a test: the process that the other test starts and kills. It does nothing on its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_does_as_it_is_told() {
    worker::work().await;
}
