//! Membership changes; node ids are never reused.

use earmark_admission::{Cluster as _, ClusterError, ManualClock};
use earmark_node::{Node, NodeOptions};
use std::sync::Arc;

use crate::support::desk::{MINUTE, START_MS, definition, issue, open};
use crate::support::disk::SimDisk;
use crate::support::fleet::{Fleet, Seat, Settings, TIMING, address, until};

async fn opened(count: u64) -> Fleet {
    let fleet = Fleet::of(count, Settings::default()).await;
    fleet.desk(1).put(definition("rpm", MINUTE, 1_000)).await;
    fleet.desk(1).write("billing", 1, vec![open("acme"), issue("acme", 9)]).await;
    fleet
}

fn refusal(result: Result<(), ClusterError>) -> String {
    match result {
        Err(ClusterError::Refused(message)) => message,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn the_id_of_a_node_that_was_removed_is_never_used_again() {
    let mut fleet = opened(3).await;
    let gone = fleet.follower().await;
    fleet.node(gone).remove(gone).await.unwrap();
    fleet.stop(gone).await;
    let leader = fleet.leader().await;
    assert!(fleet.status(leader).members.iter().all(|member| member.node != gone));
    // With its old folder.
    fleet.start(gone).await;
    let failure = tokio::time::timeout(TIMING.deadline * 2, fleet.node(gone).failure().wait()).await;
    let is_told =
        ["was removed", "never used again"].iter().any(|why| failure.as_ref().unwrap().contains(why));
    assert!(is_told, "{failure:?}");
    let added = fleet.node(leader).add(gone, address(gone)).await;
    assert!(refusal(added).contains("never used again"));
    fleet.stop(gone).await;
    // With a new folder, which stays empty.
    fleet.seats.get_mut(&gone).unwrap().disk = SimDisk::new();
    let error = fleet.try_start(gone).await.unwrap_err().to_string();
    assert!(error.contains("never used again"), "{error}");
    assert!(fleet.seats[&gone].disk.paths().is_empty());
    // Nor after a leader change and a restart.
    for id in fleet.running() {
        fleet.kill(id);
        fleet.start(id).await;
    }
    fleet.leader().await;
    let error = fleet.try_start(gone).await.unwrap_err().to_string();
    assert!(error.contains("never used again"), "{error}");
    fleet.desk(leader).admit(&[("rpm", 1)]).await;
    fleet.agree().await;
}

/// A founder starts without asking anyone, so it does not notice that it was removed while it was down. Its elections
/// must not disturb the cluster.
#[tokio::test(start_paused = true)]
async fn a_founder_that_was_removed_while_it_was_away_disturbs_nobody() {
    let mut fleet = opened(3).await;
    fleet.kill(1);
    let leader = fleet.leader().await;
    fleet.node(leader).remove(1).await.unwrap();
    let term = fleet.status(leader).term;
    fleet.start(1).await;
    tokio::time::sleep(TIMING.election * 20).await;
    assert_eq!(fleet.status(leader).term, term, "there were elections");
    assert_eq!(fleet.leader_of(&[2, 3]).await, leader);
    fleet.desk(leader).admit(&[("rpm", 1)]).await;
    fleet.kill(1);
    fleet.agree().await;
}

/// A founder never asks for membership, so it was not told that it was removed while it led. It kept running as a
/// leader and refused everything, also after a restart.
#[tokio::test(start_paused = true)]
async fn a_founder_that_is_removed_while_it_leads_is_told_so_and_stops() {
    let mut fleet = opened(3).await;
    assert_eq!(fleet.leader().await, 1, "nobody else has led yet");
    fleet.node(1).remove(1).await.unwrap();
    for _ in 0..2 {
        let failure = tokio::time::timeout(TIMING.deadline * 4, fleet.node(1).failure().wait()).await;
        assert!(failure.as_ref().unwrap().contains("never used again"), "{failure:?}");
        fleet.stop(1).await;
        fleet.start(1).await;
    }
    fleet.kill(1);
    fleet.leader().await;
    fleet.desk(2).admit(&[("rpm", 1)]).await;
    fleet.agree().await;
}

#[tokio::test(start_paused = true)]
async fn a_leader_can_be_removed_and_so_on_down_to_one() {
    let mut fleet = opened(3).await;
    for left in [2, 1] {
        let leader = fleet.leader().await;
        let asked = fleet.running().into_iter().find(|id| *id != leader).unwrap();
        fleet.node(asked).remove(leader).await.unwrap();
        fleet.stop(leader).await;
        fleet.leader().await;
        fleet.desk(asked).admit(&[("rpm", 1)]).await;
        fleet.agree().await;
        assert_eq!(fleet.status(asked).members.len(), left);
    }
    let last = fleet.running()[0];
    assert!(refusal(fleet.node(last).remove(last).await).contains("only voter"));
    assert!(refusal(fleet.node(last).remove(77).await).contains("not a member"));
    fleet.add(4).await;
    fleet.add(5).await;
    assert_eq!(fleet.desk(5).purse("acme").await, (9, 0));
    fleet.agree().await;
}

#[tokio::test(start_paused = true)]
async fn a_dead_node_is_replaced_by_one_with_a_new_id() {
    let mut fleet = opened(3).await;
    let dead = fleet.follower().await;
    fleet.kill(dead);
    let leader = fleet.leader().await;
    fleet.node(leader).remove(dead).await.unwrap();
    fleet.add(4).await;
    assert_eq!(fleet.status(leader).members.iter().filter(|member| member.is_voter).count(), 3);
    // Now another node may fail.
    let other = fleet.running().into_iter().find(|id| *id != 4 && *id != leader).unwrap();
    fleet.kill(other);
    fleet.leader().await;
    fleet.desk(4).admit(&[("rpm", 1)]).await;
    fleet.start(other).await;
    fleet.leader().await;
    fleet.agree().await;
}

/// A third node became a voter while the second was unreachable. The leader logged the joint membership and timed
/// out, and nobody logged the final one. Every decision then needed both original voters.
#[tokio::test(start_paused = true)]
async fn a_change_of_the_voters_that_was_cut_off_is_completed() {
    let mut fleet = opened(2).await;
    let leader = fleet.leader().await;
    let other = 3 - leader;
    // The new node joins through the other node, and cannot catch up at first.
    fleet.net.cut(&address(leader), &address(3));
    let clock = ManualClock::at(START_MS);
    fleet.seats.insert(3, Seat { disk: SimDisk::new(), clock, node: None });
    fleet.start(3).await;
    let is_known = || fleet.status(other).members.iter().any(|member| member.node == 3);
    until("node 3 is a learner", is_known).await;
    fleet.net.cut(&address(leader), &address(other));
    fleet.net.mend(&address(leader), &address(3));
    tokio::time::sleep(TIMING.deadline * 2).await;
    assert!(fleet.is_voter(3), "it must have come as far as the change of the voters");
    fleet.net.heal();
    fleet.leader().await;
    fleet.desk(3).admit(&[("rpm", 1)]).await;
    tokio::time::sleep(TIMING.deadline).await;
    let lost = fleet.running().into_iter().find(|id| *id != 3).unwrap();
    fleet.kill(lost);
    fleet.leader().await;
    fleet.desk(3).admit(&[("rpm", 1)]).await;
    fleet.start(lost).await;
    fleet.leader().await;
    fleet.agree().await;
}

/// A node lost its disk and restarted with a new one under its old id. The others talked to it before its join was
/// refused, and relied on votes and entries that it no longer had.
#[tokio::test(start_paused = true)]
async fn a_node_that_lost_its_folder_is_not_taken_for_the_one_that_had_it() {
    let mut fleet = opened(3).await;
    let lost = fleet.follower().await;
    fleet.kill(lost);
    let leader = fleet.leader().await;
    fleet.seats.get_mut(&lost).unwrap().disk = SimDisk::new();
    let error = fleet.try_start(lost).await.unwrap_err().to_string();
    assert!(error.contains("another data folder"), "{error}");
    assert!(fleet.seats[&lost].disk.paths().is_empty());
    // Without a majority nobody can refuse it, and it does not count towards one.
    let other = fleet.running().into_iter().find(|id| *id != leader).unwrap();
    fleet.kill(other);
    fleet.start(lost).await;
    let asked = crate::support::desk::reserve_request(crate::support::desk::lease(), &[("rpm", 1)]);
    assert!(fleet.desk(leader).ask(asked).await.is_err());
    fleet.start(other).await;
    let failure = tokio::time::timeout(TIMING.deadline * 2, fleet.node(lost).failure().wait()).await;
    assert!(failure.as_ref().unwrap().contains("another data folder"), "{failure:?}");
    assert_eq!(fleet.status(lost).last_log_index, None, "it was given entries");
    fleet.kill(lost);
    fleet.leader().await;
    fleet.agree().await;
}

/// A busy leader never found a follower that had moved to another address.
#[tokio::test(start_paused = true)]
async fn a_node_that_moved_is_found_at_its_new_address() {
    let mut fleet = opened(3).await;
    let moved = fleet.follower().await;
    fleet.stop(moved).await;
    let leader = fleet.leader().await;
    // It cannot be elected without this entry.
    fleet.desk(leader).admit(&[("rpm", 1)]).await;
    let options = NodeOptions {
        peer_listen: Some("elsewhere:1".into()),
        net: Arc::new(fleet.net.at("elsewhere:1")),
        join: Vec::new(),
        ..fleet.options(moved)
    };
    fleet.seats.get_mut(&moved).unwrap().node = Some(Node::open(options).await.unwrap());
    let known = || fleet.status(leader).members.iter().any(|member| member.address == "elsewhere:1");
    until("it is known at its new address", known).await;
    fleet.leader().await;
    assert_eq!(fleet.desk(moved).usage("rpm").await.reserved, 1);
    fleet.agree().await;
}

/// All nodes moved. They looked for each other at the old addresses, so no leader could be elected to store the new
/// ones, although `--join` named them.
#[tokio::test(start_paused = true)]
async fn nodes_that_have_all_moved_find_each_other_by_the_addresses_they_are_told() {
    let mut fleet = opened(3).await;
    for id in 1..=3 {
        fleet.stop(id).await;
    }
    let moved = |id: u64| format!("moved-{id}:1");
    for id in 1..=3 {
        let options = NodeOptions {
            peer_listen: Some(moved(id)),
            net: Arc::new(fleet.net.at(&moved(id))),
            join: (1..=3).filter(|other| *other != id).map(moved).collect(),
            ..fleet.options(id)
        };
        fleet.seats.get_mut(&id).unwrap().node = Some(Node::open(options).await.unwrap());
    }
    fleet.leader().await;
    fleet.desk(1).admit(&[("rpm", 1)]).await;
    let is_known = |id: u64| fleet.status(1).members.iter().any(|member| member.address == moved(id));
    until("all are known at their new addresses", || (1..=3).all(is_known)).await;
    fleet.agree().await;
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_dropped_takes_part_no_longer_and_leaves_its_folder() {
    let mut fleet = opened(3).await;
    for _ in 0..3 {
        let old = fleet.leader().await;
        // A caller still holds its backend, and thereby its log.
        let _kept = fleet.desk(old);
        drop(fleet.seats.get_mut(&old).unwrap().node.take());
        fleet.leader().await;
        fleet.desk(fleet.running()[0]).admit(&[("rpm", 1)]).await;
        fleet.start(old).await;
        fleet.leader().await;
    }
    fleet.agree().await;
}

/// The node watches its log for a failure; a clean shutdown is not one.
#[tokio::test(start_paused = true)]
async fn a_node_that_is_shut_down_has_not_failed() {
    let mut fleet = Fleet::of(1, Settings::default()).await;
    for _ in 0..30 {
        let failure = fleet.node(1).failure().clone();
        fleet.stop(1).await;
        tokio::time::sleep(TIMING.heartbeat).await;
        assert_eq!(failure.get(), None);
        fleet.start(1).await;
    }
}
