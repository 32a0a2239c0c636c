//! Disk failures: the node stops with a reason, acknowledges nothing afterwards, and loses nothing.

use std::time::Duration;

use earmark_admission::{ManualClock, WriteAnswer};

use crate::support::desk::{START_MS, issue, open, write_request};
use crate::support::disk::{Kind, SimDisk, Trouble};
use crate::support::fleet::{Fleet, SMALL, Seat, Settings, TIMING};

/// Writes until the node stops, with snapshots in between. Returns the number of acknowledged writes.
async fn write_until_it_stops(fleet: &Fleet) -> u64 {
    let (node, desk) = (fleet.node(1), fleet.desk(1));
    let mut acknowledged = 1;
    for sequence in 2..60 {
        let answer = desk.try_write(write_request("load", sequence, vec![issue("acme", 1)])).await;
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

async fn one_failure(kind: Kind, after: u64, trouble: Trouble) -> bool {
    let what = format!("{kind:?} {after} {trouble:?}");
    let mut fleet = Fleet::of(1, Settings { snapshot_bytes: 1_000, ..SMALL }).await;
    fleet.desk(1).write("load", 1, vec![open("acme"), issue("acme", 1)]).await;
    fleet.seats[&1].disk.fail(kind, after, trouble);
    let acknowledged = write_until_it_stops(&fleet).await;
    let failure = tokio::time::timeout(Duration::from_secs(1), fleet.node(1).failure().wait()).await;
    let failed = failure.is_ok();
    if let Ok(message) = failure {
        assert!(message.contains("sim:/"), "{what}: {message} names no file");
        let is_advice =
            ["start this node again", "start the node again"].iter().any(|word| message.contains(word));
        assert!(is_advice, "{what}: {message} gives no advice");
        if trouble == Trouble::Full {
            assert!(message.contains("full") || message.contains("space"), "{what}: {message}");
        }
        let late =
            fleet.desk(1).try_write(write_request("load", acknowledged + 1, vec![issue("acme", 1)])).await;
        assert!(late.is_err(), "{what}: {late:?} after a failure");
    }
    fleet.crash(1, after);
    fleet.start(1).await;
    fleet.leader().await;
    let desk = fleet.desk(1);
    let (has, _) = desk.purse("acme").await;
    let expected = i128::from(acknowledged);
    assert!(has == expected || has == expected + 1, "{what}: {acknowledged} acknowledged, {has} there");
    desk.write("load", acknowledged + 1, vec![issue("acme", 1)]).await;
    assert_eq!(desk.purse("acme").await.0, expected + 1, "{what}");
    fleet.agree().await;
    failed
}

async fn failures(kind: Kind, tries: u64) {
    let mut failed = 0;
    for after in 0..tries {
        for trouble in [Trouble::Full, Trouble::Broken] {
            failed += u64::from(one_failure(kind, after, trouble).await);
        }
    }
    assert!(failed > tries, "{failed} failures prove little");
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
        let mut fleet = Fleet::of(3, Settings::default()).await;
        fleet.desk(1).write("load", 1, vec![open("acme"), issue("acme", 1)]).await;
        let leader = fleet.leader().await;
        fleet.seats[&leader].disk.fail(kind, 0, Trouble::Broken);
        let other = fleet.running().into_iter().find(|id| *id != leader).unwrap();
        // A write through another node succeeds within the deadline.
        fleet.desk(other).write("load", 2, vec![issue("acme", 1)]).await;
        let failure = fleet.node(leader).failure().wait().await.to_owned();
        assert!(failure.contains("sim:/log/"), "{failure}");
        fleet.crash(leader, 1);
        fleet.leader().await;
        fleet.start(leader).await;
        fleet.leader().await;
        assert_eq!(fleet.desk(leader).purse("acme").await, (2, 0));
        fleet.agree().await;
    }
}

/// A follower returned with an old copy of its folder. The leader's Raft task panicked, and the node stayed ready
/// while it refused every request.
#[tokio::test(start_paused = true)]
async fn a_leader_whose_log_has_panicked_stops_as_after_any_other_failure() {
    let mut fleet = Fleet::of(3, Settings::default()).await;
    let follower = fleet.follower().await;
    let leader = fleet.leader().await;
    fleet.stop(follower).await;
    let old = fleet.seats[&follower].disk.copy();
    fleet.start(follower).await;
    fleet.leader().await;
    fleet.desk(leader).write("load", 1, vec![open("acme"), issue("acme", 1)]).await;
    fleet.agree().await;
    fleet.kill(follower);
    fleet.seats.get_mut(&follower).unwrap().disk = old;
    fleet.start(follower).await;
    let failure = tokio::time::timeout(Duration::from_secs(60), fleet.node(leader).failure().wait()).await;
    assert!(failure.as_ref().unwrap().contains("the log has stopped"), "{failure:?}");
    fleet.kill(leader);
    fleet.start(leader).await;
    fleet.leader().await;
    assert_eq!(fleet.desk(leader).purse("acme").await, (1, 0));
}

/// The disk of a new node was full before the snapshot had arrived. The leader sent it forever, and nothing said why
/// the node did not catch up.
#[tokio::test(start_paused = true)]
async fn a_node_whose_disk_has_no_room_for_a_snapshot_stops_and_says_so() {
    let mut told = 0;
    for after in 0..6 {
        let mut fleet = Fleet::of(1, SMALL).await;
        fleet.desk(1).write("load", 1, vec![open("acme"), issue("acme", 1)]).await;
        fleet.node(1).snapshot().await.unwrap();
        tokio::time::sleep(TIMING.election).await;
        let clock = ManualClock::at(START_MS);
        fleet.seats.insert(2, Seat { disk: SimDisk::new(), clock, node: None });
        fleet.start(2).await;
        fleet.seats[&2].disk.fail(Kind::Write, after, Trouble::Full);
        let failure = tokio::time::timeout(Duration::from_secs(60), fleet.node(2).failure().wait()).await;
        let message = failure.unwrap_or_else(|_| panic!("after {after} writes nothing was said"));
        assert!(message.contains("space"), "{message}");
        told += u32::from(message.contains("incoming"));
    }
    assert!(told >= 2, "{told} of them while the snapshot arrived");
}
