//! Expiry without requests, and wall clocks that disagree.

use std::time::Duration;

use earmark_admission::{Backend as _, EntryKind, EntryQuery};
use earmark_core::{Kind, LimitStatus};

use crate::support::client::{MINUTE, TestClient, credit, definition, issue, key, namespace, open, path};
use crate::support::sim_cluster::{Settings, SimCluster, until};

async fn released(client: &TestClient) -> bool {
    let page = client.0.entries(path("acme"), EntryQuery::oldest_first(0, 100)).await.unwrap();
    page.entries.iter().any(|entry| matches!(entry.what, EntryKind::Release(_)))
}

async fn status(client: &TestClient, name: &str) -> (LimitStatus, u64) {
    let limit = client.0.limit(namespace(), key(name)).await.unwrap().unwrap();
    (limit.status, limit.definition.capacity)
}

#[tokio::test(start_paused = true)]
async fn what_falls_due_on_an_idle_cluster_happens_within_two_seconds_and_is_not_shown_before() {
    let cluster = SimCluster::of(3, Settings::default()).await;
    let client = cluster.client(1);
    client.write("billing", 1, vec![open("acme"), issue("acme", 100)]).await;
    client.put(credit("usd", "acme", 60)).await;
    client.put(definition("down", MINUTE, 10)).await;
    client.admit(&[("usd", 30), ("down", 8)]).await;
    client.put(definition("down", MINUTE, 5)).await;
    assert_eq!(client.balance_of("acme").await, (70, 30));
    cluster.advance_ms(61_000);
    // The records still exist, but no read counts them.
    for id in cluster.running() {
        assert_eq!(cluster.client(id).balance_of("acme").await, (100, 0), "node {id}");
        assert_eq!(cluster.client(id).usage("down").await.reserved, 0, "node {id}");
    }
    let leader = cluster.leader().await;
    let before = cluster.status(leader).last_log_index;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(cluster.status(leader).last_log_index > before, "nothing was done");
    for id in cluster.running() {
        let client = cluster.client(id);
        assert!(released(&client).await, "node {id} still holds it");
        assert_eq!(client.balance_of("acme").await, (100, 0));
        assert_eq!(status(&client, "down").await, (LimitStatus::Active, 5));
    }
    let done = cluster.status(leader).last_log_index;
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(cluster.status(leader).last_log_index, done, "an idle cluster writes nothing");
    cluster.agree().await;
}

const HOUR_MS: u64 = 3_600_000;
const DAY: Kind = Kind::Rolling { window_seconds: 86_400 };

/// The wall clocks are hours apart and are changed while the leader changes; log time continues steadily.
#[tokio::test(start_paused = true)]
async fn log_time_neither_runs_back_nor_leaps_whatever_the_wall_clocks_say() {
    let mut cluster = SimCluster::of(3, Settings::default()).await;
    let start = cluster.hosts[&1].clock.clone();
    let wall = earmark_admission::TimeSource::wall_us(&*start) / 1_000;
    cluster.hosts[&2].clock.set_wall(wall + HOUR_MS);
    cluster.hosts[&3].clock.set_wall(wall - HOUR_MS);
    // Log time does not jump to a majority's wall clock while something is reserved.
    cluster.client(1).put(definition("calls", DAY, 10)).await;
    cluster.client(1).admit(&[("calls", 1)]).await;
    let mut last = None;
    let mut sequence = 0;
    for round in 0..12_u64 {
        for _ in 0..5 {
            cluster.advance_ms(1_000);
            sequence += 1;
            let id = cluster.running()[usize::try_from(round).unwrap() % cluster.running().len()];
            let at = cluster.client(id).write("billing", sequence, vec![]).await.committed_at.log.get();
            if let Some(last) = last {
                assert!(at > last, "time ran back from {last} to {at}");
                assert!(at - last <= 1_100, "time leapt from {last} to {at}");
            }
            last = Some(at);
        }
        let leader = cluster.leader().await;
        let shift = if round % 2 == 0 { 5 * HOUR_MS } else { 0 };
        cluster.hosts[&leader].clock.set_wall(wall - HOUR_MS + shift);
        // A restarted node learns log time from the others before it may lead.
        cluster.kill(leader);
        cluster.leader().await;
        cluster.start(leader).await;
        cluster.leader().await;
        until("it has learned the time", || cluster.status(leader).applied_index.is_some()).await;
    }
    cluster.agree().await;
}

fn wall(cluster: &SimCluster, id: u64) -> u64 {
    earmark_admission::TimeSource::wall_us(&*cluster.hosts[&id].clock) / 1_000
}

/// A restarted leader used its wall clock as log time, although its followers knew better. With a clock hours ahead,
/// all holds expired at once.
#[tokio::test(start_paused = true)]
async fn a_leader_that_is_started_again_with_a_wrong_clock_learns_the_time_from_its_followers() {
    let mut cluster = SimCluster::of(3, Settings::default()).await;
    let leader = cluster.leader().await;
    let client = cluster.client(leader);
    client.put(definition("calls", MINUTE, 10)).await;
    client.admit(&[("calls", 8)]).await;
    let mut last = client.write("billing", 1, vec![]).await.committed_at.log.get();
    for sequence in 2..6 {
        let leader = cluster.leader().await;
        cluster.hosts[&leader].clock.set_wall(wall(&cluster, leader) + 5 * HOUR_MS);
        cluster.kill(leader);
        cluster.start(leader).await;
        cluster.advance_ms(1_000);
        // Neither a read of its stats nor a failed request sets its clock.
        let client = cluster.client(leader);
        client.0.stats();
        assert_eq!(client.usage("calls").await.reserved, 8);
        let at = client.write("billing", sequence, vec![]).await.committed_at.log.get();
        assert!((last..=last + 1_100).contains(&at), "time leapt from {last} to {at}");
        last = at;
    }
    cluster.agree().await;
}

/// Two of three nodes lose power and return with wrong clocks. They are a majority, but the third knows log time.
#[tokio::test(start_paused = true)]
async fn the_one_node_that_was_not_started_again_is_asked_for_the_time() {
    let mut cluster = SimCluster::of(3, Settings::default()).await;
    cluster.client(1).put(definition("calls", DAY, 10)).await;
    cluster.client(1).admit(&[("calls", 1)]).await;
    let before = cluster.client(1).write("billing", 1, vec![]).await.committed_at.log.get();
    let leader = cluster.leader().await;
    let other = cluster.follower().await;
    for id in [leader, other] {
        cluster.hosts[&id].clock.set_wall(wall(&cluster, id) + 5 * HOUR_MS);
        cluster.kill(id);
    }
    for id in [leader, other] {
        cluster.start(id).await;
    }
    let at = cluster.client(leader).write("billing", 2, vec![]).await.committed_at.log.get();
    assert!((before..=before + 1_100).contains(&at), "time leapt from {before} to {at}");
    cluster.agree().await;
}

/// If all nodes restart, nobody knows log time and the wall clock is used, even if one node stays down.
#[tokio::test(start_paused = true)]
async fn nodes_that_were_all_started_again_go_on_with_the_time_on_the_wall() {
    let mut cluster = SimCluster::of(3, Settings::default()).await;
    let before = cluster.client(1).write("billing", 1, vec![]).await.committed_at.log.get();
    (1..=3).for_each(|id| cluster.kill(id));
    cluster.advance_ms(HOUR_MS);
    cluster.start(2).await;
    cluster.start(3).await;
    let leader = cluster.leader().await;
    let at = cluster.client(leader).write("billing", 2, vec![]).await.committed_at.log.get();
    assert!(at >= before + HOUR_MS, "time went on from {before} at {at}");
    cluster.start(1).await;
    cluster.leader().await;
    cluster.agree().await;
}

/// Log time followed the wall clock by 0.1 percent only, so after a correction of the clocks it was wrong for weeks.
#[tokio::test(start_paused = true)]
async fn log_time_jumps_to_the_wall_clocks_of_a_majority_once_nothing_is_reserved() {
    let cluster = SimCluster::of(3, Settings::default()).await;
    let client = cluster.client(cluster.leader().await);
    client.put(definition("calls", MINUTE, 10)).await;
    client.admit(&[("calls", 1)]).await;
    for id in 1..=3 {
        cluster.hosts[&id].clock.set_wall(wall(&cluster, id) + HOUR_MS);
    }
    let before = client.write("billing", 1, vec![]).await.committed_at;
    assert!(before.wall.get() >= before.log.get() + HOUR_MS - 1_000, "records carry the wall time: {before:?}");
    tokio::time::sleep(Duration::from_secs(5)).await;
    let held = client.write("billing", 2, vec![]).await.committed_at;
    assert!(held.log.get() < before.log.get() + 60_000, "a reservation ended early: {held:?} after {before:?}");
    cluster.advance_ms(61_000);
    let mut sequence = 2;
    let mut at = held;
    for _ in 0..60 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        sequence += 1;
        at = client.write("billing", sequence, vec![]).await.committed_at;
        if at.wall.ms_since(at.log) <= 2_000 {
            break;
        }
    }
    assert!(at.wall.ms_since(at.log) <= 2_000, "log time is still behind: {at:?}");
    cluster.agree().await;
}
