//! Expiry without requests, and wall clocks that disagree.

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
    // The records still exist, but no read counts them.
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

/// The wall clocks are hours apart and are changed while the leader changes; log time continues steadily.
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
        // A restarted node learns log time from the others before it may lead.
        fleet.kill(leader);
        fleet.leader().await;
        fleet.start(leader).await;
        fleet.leader().await;
        until("it has learned the time", || fleet.status(leader).applied_index.is_some()).await;
    }
    fleet.agree().await;
}

fn wall(fleet: &Fleet, id: u64) -> u64 {
    earmark_admission::TimeSource::wall_us(&*fleet.seats[&id].clock) / 1_000
}

/// A restarted leader used its wall clock as log time, although its followers knew better. With a clock hours ahead,
/// all holds expired at once.
#[tokio::test(start_paused = true)]
async fn a_leader_that_is_started_again_with_a_wrong_clock_learns_the_time_from_its_followers() {
    let mut fleet = Fleet::of(3, Settings::default()).await;
    let leader = fleet.leader().await;
    let desk = fleet.desk(leader);
    desk.put(definition("calls", MINUTE, 10)).await;
    desk.admit(&[("calls", 8)]).await;
    let mut last = desk.write("billing", 1, vec![]).await.committed_at.get();
    for sequence in 2..6 {
        let leader = fleet.leader().await;
        fleet.seats[&leader].clock.set_wall(wall(&fleet, leader) + 5 * HOUR_MS);
        fleet.kill(leader);
        fleet.start(leader).await;
        fleet.advance_ms(1_000);
        // Neither a read of its stats nor a failed request sets its clock.
        let desk = fleet.desk(leader);
        desk.0.stats();
        assert_eq!(desk.usage("calls").await.reserved, 8);
        let at = desk.write("billing", sequence, vec![]).await.committed_at.get();
        assert!((last..=last + 1_100).contains(&at), "time leapt from {last} to {at}");
        last = at;
    }
    fleet.agree().await;
}

/// Two of three nodes lose power and return with wrong clocks. They are a majority, but the third knows log time.
#[tokio::test(start_paused = true)]
async fn the_one_node_that_was_not_started_again_is_asked_for_the_time() {
    let mut fleet = Fleet::of(3, Settings::default()).await;
    let before = fleet.desk(1).write("billing", 1, vec![]).await.committed_at.get();
    let leader = fleet.leader().await;
    let other = fleet.follower().await;
    for id in [leader, other] {
        fleet.seats[&id].clock.set_wall(wall(&fleet, id) + 5 * HOUR_MS);
        fleet.kill(id);
    }
    for id in [leader, other] {
        fleet.start(id).await;
    }
    let at = fleet.desk(leader).write("billing", 2, vec![]).await.committed_at.get();
    assert!((before..=before + 1_100).contains(&at), "time leapt from {before} to {at}");
    fleet.agree().await;
}

/// If all nodes restart, nobody knows log time and the wall clock is used, even if one node stays down.
#[tokio::test(start_paused = true)]
async fn nodes_that_were_all_started_again_go_on_with_the_time_on_the_wall() {
    let mut fleet = Fleet::of(3, Settings::default()).await;
    let before = fleet.desk(1).write("billing", 1, vec![]).await.committed_at.get();
    (1..=3).for_each(|id| fleet.kill(id));
    fleet.advance_ms(HOUR_MS);
    fleet.start(2).await;
    fleet.start(3).await;
    let leader = fleet.leader().await;
    let at = fleet.desk(leader).write("billing", 2, vec![]).await.committed_at.get();
    assert!(at >= before + HOUR_MS, "time went on from {before} at {at}");
    fleet.start(1).await;
    fleet.leader().await;
    fleet.agree().await;
}
