//! Time passes: without requests, and on clocks that nobody agrees on.

use std::time::Duration;

use earmark_admission::{Backend as _, EntryKind};
use earmark_core::LimitStatus;

use crate::support::desk::{Desk, MINUTE, credit, definition, issue, key, namespace, open, path};
use crate::support::fleet::{Fleet, Settings, until};

async fn released(desk: &Desk) -> bool {
    let page = desk.0.entries(path("acme"), 0, 100).await.unwrap();
    page.entries.iter().any(|entry| matches!(entry.what, EntryKind::Release(_)))
}

async fn status(desk: &Desk, name: &str) -> (LimitStatus, u64) {
    let limit = desk.0.limit(namespace(), key(name)).await.unwrap().unwrap();
    (limit.status, limit.definition.capacity)
}

#[tokio::test(start_paused = true)]
async fn what_falls_due_on_an_idle_cluster_happens_within_two_seconds_and_is_not_shown_before() {
    let fleet = Fleet::of(3, Settings::default()).await;
    let desk = fleet.desk(1);
    desk.write("billing", 1, vec![open("acme"), issue("acme", 100)]).await;
    desk.put(credit("usd", "acme", 60)).await;
    desk.put(definition("down", MINUTE, 10)).await;
    desk.admit(&[("usd", 30), ("down", 8)]).await;
    desk.put(definition("down", MINUTE, 5)).await;
    assert_eq!(desk.purse("acme").await, (70, 30));
    fleet.advance_ms(61_000);
    // The records are still there, and no read counts them.
    for id in fleet.running() {
        assert_eq!(fleet.desk(id).purse("acme").await, (100, 0), "node {id}");
        assert_eq!(fleet.desk(id).usage("down").await.reserved, 0, "node {id}");
    }
    let leader = fleet.leader().await;
    let before = fleet.status(leader).last_log_index;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(fleet.status(leader).last_log_index > before, "nothing was done");
    for id in fleet.running() {
        let desk = fleet.desk(id);
        assert!(released(&desk).await, "node {id} still holds it");
        assert_eq!(desk.purse("acme").await, (100, 0));
        assert_eq!(status(&desk, "down").await, (LimitStatus::Active, 5));
    }
    let done = fleet.status(leader).last_log_index;
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(fleet.status(leader).last_log_index, done, "an idle cluster writes nothing");
    fleet.agree().await;
}

const HOUR_MS: u64 = 3_600_000;

/// The wall clocks are hours apart, and are set while everything runs; leaders change; log time goes on as if nothing
/// were.
#[tokio::test(start_paused = true)]
async fn log_time_neither_runs_back_nor_leaps_whatever_the_wall_clocks_say() {
    let mut fleet = Fleet::of(3, Settings::default()).await;
    let start = fleet.seats[&1].clock.clone();
    let wall = earmark_admission::TimeSource::wall_us(&*start) / 1_000;
    fleet.seats[&2].clock.set_wall(wall + HOUR_MS);
    fleet.seats[&3].clock.set_wall(wall - HOUR_MS);
    let mut last = None;
    let mut sequence = 0;
    for round in 0..12_u64 {
        for _ in 0..5 {
            fleet.advance_ms(1_000);
            sequence += 1;
            let id = fleet.running()[usize::try_from(round).unwrap() % fleet.running().len()];
            let at = fleet.desk(id).write("billing", sequence, vec![]).await.committed_at.get();
            if let Some(last) = last {
                assert!(at > last, "time ran back from {last} to {at}");
                assert!(at - last <= 1_100, "time leapt from {last} to {at}");
            }
            last = Some(at);
        }
        let leader = fleet.leader().await;
        let shift = if round % 2 == 0 { 5 * HOUR_MS } else { 0 };
        fleet.seats[&leader].clock.set_wall(wall - HOUR_MS + shift);
        // The one that is back hears from the others before it may lead.
        fleet.kill(leader);
        fleet.leader().await;
        fleet.start(leader).await;
        fleet.leader().await;
        until("it has learned the time", || fleet.status(leader).applied_index.is_some()).await;
    }
    fleet.agree().await;
}
