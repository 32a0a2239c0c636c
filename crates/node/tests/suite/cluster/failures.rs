//! Disk failures: the node stops with a reason, acknowledges nothing afterwards, and loses nothing.

use std::time::Duration;

use earmark_admission::WriteAnswer;

use crate::support::client::{issue, open, write_request};
use crate::support::disk::{DiskError, Kind};
use crate::support::sample;
use crate::support::sim_cluster::{SMALL, Settings, SimCluster, TIMING};

/// Writes until the node stops, with snapshots in between. Returns the number of acknowledged writes.
async fn write_until_it_stops(cluster: &SimCluster) -> u64 {
    let (node, client) = (cluster.node(1), cluster.client(1));
    let mut acknowledged = 1;
    for sequence in 2..60 {
        let answer = client.try_write(write_request("load", sequence, vec![issue("acme", 1)])).await;
        match answer {
            Ok(WriteAnswer::Committed(_)) => {
                assert_eq!(sequence, acknowledged + 1, "something was acknowledged after a failure");
                acknowledged = sequence;
            }
            Ok(WriteAnswer::Refused(error)) => panic!("{error:?}"),
            Err(_) => break,
        }
        if sequence % 5 == 0 && node.snapshot().await.is_err() {
            break;
        }
    }
    acknowledged
}

async fn one_failure(kind: Kind, after: u64, disk_error: DiskError) -> bool {
    let what = format!("{kind:?} {after} {disk_error:?}");
    let mut cluster = SimCluster::of(1, Settings { snapshot_bytes: 1_000, ..SMALL }).await;
    cluster.client(1).write("load", 1, vec![open("acme"), issue("acme", 1)]).await;
    cluster.hosts[&1].disk.fail(kind, after, disk_error);
    let acknowledged = write_until_it_stops(&cluster).await;
    let failure = tokio::time::timeout(Duration::from_secs(1), cluster.node(1).failure().wait()).await;
    let failed = failure.is_ok();
    if let Ok(message) = failure {
        assert!(message.contains("sim:/"), "{what}: {message} names no file");
        let is_advice = ["start this node again", "start the node again"].iter().any(|word| message.contains(word));
        assert!(is_advice, "{what}: {message} gives no advice");
        if disk_error == DiskError::Full {
            assert!(message.contains("full") || message.contains("space"), "{what}: {message}");
        }
        let late = cluster.client(1).try_write(write_request("load", acknowledged + 1, vec![issue("acme", 1)])).await;
        assert!(late.is_err(), "{what}: {late:?} after a failure");
    }
    cluster.crash(1, after);
    cluster.start(1).await;
    cluster.leader().await;
    let client = cluster.client(1);
    let (has, _) = client.balance_of("acme").await;
    let expected = i128::from(acknowledged);
    assert!(has == expected || has == expected + 1, "{what}: {acknowledged} acknowledged, {has} there");
    client.write("load", acknowledged + 1, vec![issue("acme", 1)]).await;
    assert_eq!(client.balance_of("acme").await.0, expected + 1, "{what}");
    cluster.agree().await;
    failed
}

async fn failures(kind: Kind, tries: u64) {
    let (mut failed, mut tried) = (0, 0);
    for after in sample(tries) {
        tried += 1;
        for disk_error in [DiskError::Full, DiskError::Broken] {
            failed += u64::from(one_failure(kind, after, disk_error).await);
        }
    }
    assert!(failed > tried, "{failed} failures prove little");
}

#[tokio::test(start_paused = true)]
async fn a_write_that_fails_stops_the_node_and_loses_nothing() {
    failures(Kind::Write, 60).await;
}

#[tokio::test(start_paused = true)]
async fn a_sync_that_fails_stops_the_node_and_loses_nothing() {
    failures(Kind::Sync, 60).await;
}

#[tokio::test(start_paused = true)]
async fn a_name_that_cannot_be_made_stops_the_node_and_loses_nothing() {
    failures(Kind::Name, 25).await;
    failures(Kind::SyncDir, 20).await;
}

/// The other nodes continue.
#[tokio::test(start_paused = true)]
async fn a_disk_that_fails_under_the_leader_costs_one_node() {
    for kind in [Kind::Write, Kind::Sync] {
        let mut cluster = SimCluster::of(3, Settings::default()).await;
        cluster.client(1).write("load", 1, vec![open("acme"), issue("acme", 1)]).await;
        let leader = cluster.leader().await;
        cluster.hosts[&leader].disk.fail(kind, 0, DiskError::Broken);
        let other = cluster.running().into_iter().find(|id| *id != leader).unwrap();
        // A write through another node succeeds within the deadline.
        cluster.client(other).write("load", 2, vec![issue("acme", 1)]).await;
        let failure = cluster.node(leader).failure().wait().await.to_owned();
        assert!(failure.contains("sim:/log/"), "{failure}");
        cluster.crash(leader, 1);
        cluster.leader().await;
        cluster.start(leader).await;
        cluster.leader().await;
        assert_eq!(cluster.client(leader).balance_of("acme").await, (2, 0));
        cluster.agree().await;
    }
}

/// A follower returned with an old copy of its folder. The leader's Raft task panicked, and the node stayed ready
/// while it refused every request.
#[tokio::test(start_paused = true)]
async fn a_leader_whose_log_has_panicked_stops_as_after_any_other_failure() {
    let mut cluster = SimCluster::of(3, Settings::default()).await;
    let follower = cluster.follower().await;
    let leader = cluster.leader().await;
    cluster.stop(follower).await;
    let old = cluster.hosts[&follower].disk.copy();
    cluster.start(follower).await;
    cluster.leader().await;
    cluster.client(leader).write("load", 1, vec![open("acme"), issue("acme", 1)]).await;
    cluster.agree().await;
    cluster.kill(follower);
    cluster.hosts.get_mut(&follower).unwrap().disk = old;
    cluster.start(follower).await;
    let failure = tokio::time::timeout(Duration::from_secs(60), cluster.node(leader).failure().wait()).await;
    assert!(failure.as_ref().unwrap().contains("the log has stopped"), "{failure:?}");
    cluster.kill(leader);
    cluster.start(leader).await;
    cluster.leader().await;
    assert_eq!(cluster.client(leader).balance_of("acme").await, (1, 0));
}

/// The disk of a new node was full before the snapshot had arrived. The leader sent it forever, and nothing said why
/// the node did not catch up.
#[tokio::test(start_paused = true)]
async fn a_node_whose_disk_has_no_room_for_a_snapshot_stops_and_says_so() {
    let mut told = 0;
    for after in 0..6 {
        let mut cluster = SimCluster::of(1, SMALL).await;
        cluster.client(1).write("load", 1, vec![open("acme"), issue("acme", 1)]).await;
        cluster.node(1).snapshot().await.unwrap();
        tokio::time::sleep(TIMING.election).await;
        cluster.join(2).await;
        cluster.hosts[&2].disk.fail(Kind::Write, after, DiskError::Full);
        let failure = tokio::time::timeout(Duration::from_secs(60), cluster.node(2).failure().wait()).await;
        let message = failure.unwrap_or_else(|_| panic!("after {after} writes nothing was said"));
        assert!(message.contains("space"), "{message}");
        told += u32::from(message.contains("incoming"));
    }
    assert!(told >= 2, "{told} of them while the snapshot arrived");
}
