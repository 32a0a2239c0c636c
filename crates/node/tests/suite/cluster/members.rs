//! Membership changes; node ids are never reused.

use earmark_admission::{Cluster as _, ClusterError};
use earmark_node::{Node, NodeOptions};
use std::sync::Arc;

use crate::support::client::{MINUTE, definition, issue, open};
use crate::support::disk::SimDisk;
use crate::support::sim_cluster::{Settings, SimCluster, TIMING, address, until};

async fn opened(count: u64) -> SimCluster {
    let cluster = SimCluster::of(count, Settings::default()).await;
    cluster.client(1).put(definition("rpm", MINUTE, 1_000)).await;
    cluster.client(1).write("billing", 1, vec![open("acme"), issue("acme", 9)]).await;
    cluster
}

fn refusal(result: Result<(), ClusterError>) -> String {
    match result {
        Err(ClusterError::Refused(message)) => message,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn the_id_of_a_node_that_was_removed_is_never_used_again() {
    let mut cluster = opened(3).await;
    let gone = cluster.follower().await;
    cluster.node(gone).remove(gone).await.unwrap();
    cluster.stop(gone).await;
    let leader = cluster.leader().await;
    assert!(cluster.status(leader).members.iter().all(|member| member.node != gone));
    // With its old folder.
    cluster.start(gone).await;
    let failure = tokio::time::timeout(TIMING.deadline * 2, cluster.node(gone).failure().wait()).await;
    let is_told = ["was removed", "never used again"].iter().any(|why| failure.as_ref().unwrap().contains(why));
    assert!(is_told, "{failure:?}");
    let added = cluster.node(leader).add(gone, address(gone)).await;
    assert!(refusal(added).contains("never used again"));
    cluster.stop(gone).await;
    // With a new folder, which stays empty.
    cluster.hosts.get_mut(&gone).unwrap().disk = SimDisk::new();
    let error = cluster.try_start(gone).await.unwrap_err().to_string();
    assert!(error.contains("never used again"), "{error}");
    assert!(cluster.hosts[&gone].disk.paths().is_empty());
    // Nor after a leader change and a restart.
    for id in cluster.running() {
        cluster.kill(id);
        cluster.start(id).await;
    }
    cluster.leader().await;
    let error = cluster.try_start(gone).await.unwrap_err().to_string();
    assert!(error.contains("never used again"), "{error}");
    cluster.client(leader).admit(&[("rpm", 1)]).await;
    cluster.agree().await;
}

/// A founder starts without asking anyone, so it does not notice that it was removed while it was down. Its elections
/// must not disturb the cluster.
#[tokio::test(start_paused = true)]
async fn a_founder_that_was_removed_while_it_was_away_disturbs_nobody() {
    let mut cluster = opened(3).await;
    cluster.kill(1);
    let leader = cluster.leader().await;
    cluster.node(leader).remove(1).await.unwrap();
    let term = cluster.status(leader).term;
    cluster.start(1).await;
    tokio::time::sleep(TIMING.election * 20).await;
    assert_eq!(cluster.status(leader).term, term, "there were elections");
    assert_eq!(cluster.leader_of(&[2, 3]).await, leader);
    cluster.client(leader).admit(&[("rpm", 1)]).await;
    cluster.kill(1);
    cluster.agree().await;
}

/// A founder never asks for membership, so it was not told that it was removed while it led. It kept running as a
/// leader and refused everything, also after a restart.
#[tokio::test(start_paused = true)]
async fn a_founder_that_is_removed_while_it_leads_is_told_so_and_stops() {
    let mut cluster = opened(3).await;
    assert_eq!(cluster.leader().await, 1, "nobody else has led yet");
    cluster.node(1).remove(1).await.unwrap();
    for _ in 0..2 {
        let failure = tokio::time::timeout(TIMING.deadline * 4, cluster.node(1).failure().wait()).await;
        assert!(failure.as_ref().unwrap().contains("never used again"), "{failure:?}");
        cluster.stop(1).await;
        cluster.start(1).await;
    }
    cluster.kill(1);
    cluster.leader().await;
    cluster.client(2).admit(&[("rpm", 1)]).await;
    cluster.agree().await;
}

#[tokio::test(start_paused = true)]
async fn a_leader_can_be_removed_and_so_on_down_to_one() {
    let mut cluster = opened(3).await;
    for left in [2, 1] {
        let leader = cluster.leader().await;
        let asked = cluster.running().into_iter().find(|id| *id != leader).unwrap();
        cluster.node(asked).remove(leader).await.unwrap();
        cluster.stop(leader).await;
        cluster.leader().await;
        cluster.client(asked).admit(&[("rpm", 1)]).await;
        cluster.agree().await;
        assert_eq!(cluster.status(asked).members.len(), left);
    }
    let last = cluster.running()[0];
    assert!(refusal(cluster.node(last).remove(last).await).contains("only voter"));
    assert!(refusal(cluster.node(last).remove(77).await).contains("not a member"));
    cluster.add(4).await;
    cluster.add(5).await;
    assert_eq!(cluster.client(5).balance_of("acme").await, (9, 0));
    cluster.agree().await;
}

#[tokio::test(start_paused = true)]
async fn a_dead_node_is_replaced_by_one_with_a_new_id() {
    let mut cluster = opened(3).await;
    let dead = cluster.follower().await;
    cluster.kill(dead);
    let leader = cluster.leader().await;
    cluster.node(leader).remove(dead).await.unwrap();
    cluster.add(4).await;
    assert_eq!(cluster.status(leader).members.iter().filter(|member| member.is_voter).count(), 3);
    // Now another node may fail.
    let other = cluster.running().into_iter().find(|id| *id != 4 && *id != leader).unwrap();
    cluster.kill(other);
    cluster.leader().await;
    cluster.client(4).admit(&[("rpm", 1)]).await;
    cluster.start(other).await;
    cluster.leader().await;
    cluster.agree().await;
}

/// A third node became a voter while the second was unreachable. The leader logged the joint membership and timed
/// out, and nobody logged the final one. Every decision then needed both original voters.
#[tokio::test(start_paused = true)]
async fn a_change_of_the_voters_that_was_cut_off_is_completed() {
    // 6 MB/s, so that the new node needs about half a second to catch up.
    let mut cluster = SimCluster::of(2, Settings { bytes_per_ms: Some(6_000), ..Settings::default() }).await;
    cluster.client(1).put(definition("rpm", MINUTE, 1_000)).await;
    cluster.client(1).write("billing", 1, vec![open("acme"), issue("acme", 9)]).await;
    for sequence in 2..300 {
        cluster.client(1).write("billing", sequence, vec![issue("acme", 1); 256]).await;
    }
    let leader = cluster.leader().await;
    let other = 3 - leader;
    cluster.join(3).await;
    let is_known = || cluster.status(leader).members.iter().any(|member| member.node == 3);
    until("node 3 is a learner", is_known).await;
    assert!(!cluster.is_voter(3), "it has caught up already");
    cluster.net.cut(&address(leader), &address(other));
    tokio::time::sleep(TIMING.deadline * 2).await;
    assert!(cluster.is_voter(3), "it must have come as far as the change of the voters");
    cluster.net.heal();
    cluster.leader().await;
    cluster.client(3).admit(&[("rpm", 1)]).await;
    tokio::time::sleep(TIMING.deadline).await;
    let lost = cluster.running().into_iter().find(|id| *id != 3).unwrap();
    cluster.kill(lost);
    cluster.leader().await;
    cluster.client(3).admit(&[("rpm", 1)]).await;
    cluster.start(lost).await;
    cluster.leader().await;
    cluster.agree().await;
}

/// A node lost its disk and restarted with a new one under its old id. The others talked to it before its join was
/// refused, and relied on votes and entries that it no longer had.
#[tokio::test(start_paused = true)]
async fn a_node_that_lost_its_folder_is_not_taken_for_the_one_that_had_it() {
    let mut cluster = opened(3).await;
    let lost = cluster.follower().await;
    cluster.kill(lost);
    let leader = cluster.leader().await;
    cluster.hosts.get_mut(&lost).unwrap().disk = SimDisk::new();
    let error = cluster.try_start(lost).await.unwrap_err().to_string();
    assert!(error.contains("another data folder"), "{error}");
    assert!(cluster.hosts[&lost].disk.paths().is_empty());
    // Nor without a majority.
    let other = cluster.running().into_iter().find(|id| *id != leader).unwrap();
    cluster.kill(other);
    let error = cluster.try_start(lost).await.unwrap_err().to_string();
    assert!(error.contains("another data folder"), "{error}");
    cluster.start(other).await;
    cluster.leader().await;
    cluster.agree().await;
}

/// Only members are heard, and this node knows none of those that are left. It learns of them from `--join`.
#[tokio::test(start_paused = true)]
async fn a_node_that_was_away_while_all_others_were_replaced_finds_the_new_ones() {
    let mut cluster = opened(3).await;
    cluster.stop(3).await;
    cluster.add(4).await;
    for gone in [1, 2] {
        let leader = cluster.leader().await;
        cluster.node(leader).remove(gone).await.unwrap();
        cluster.stop(gone).await;
        cluster.hosts.remove(&gone);
        if gone == 1 {
            cluster.add(5).await;
        }
    }
    let leader = cluster.leader().await;
    assert!(leader == 4 || leader == 5);
    cluster.client(leader).admit(&[("rpm", 1)]).await;
    cluster.start(3).await;
    cluster.leader().await;
    assert_eq!(cluster.client(3).usage("rpm").await.reserved, 1);
    cluster.agree().await;
}

/// A busy leader never found a follower that had moved to another address.
#[tokio::test(start_paused = true)]
async fn a_node_that_moved_is_found_at_its_new_address() {
    let mut cluster = opened(3).await;
    let moved = cluster.follower().await;
    cluster.stop(moved).await;
    let leader = cluster.leader().await;
    // It cannot be elected without this entry.
    cluster.client(leader).admit(&[("rpm", 1)]).await;
    let options = NodeOptions {
        peer_listen: Some("elsewhere:1".into()),
        net: Arc::new(cluster.net.at("elsewhere:1")),
        join: Vec::new(),
        ..cluster.options(moved)
    };
    cluster.hosts.get_mut(&moved).unwrap().node = Some(Node::open(options).await.unwrap());
    let known = || cluster.status(leader).members.iter().any(|member| member.address == "elsewhere:1");
    until("it is known at its new address", known).await;
    cluster.leader().await;
    assert_eq!(cluster.client(moved).usage("rpm").await.reserved, 1);
    cluster.agree().await;
}

/// All nodes moved. They looked for each other at the old addresses, so no leader could be elected to store the new
/// ones, although `--join` named them.
#[tokio::test(start_paused = true)]
async fn nodes_that_have_all_moved_find_each_other_by_the_addresses_they_are_told() {
    let mut cluster = opened(3).await;
    for id in 1..=3 {
        cluster.stop(id).await;
    }
    let moved = |id: u64| format!("moved-{id}:1");
    for id in 1..=3 {
        let options = NodeOptions {
            peer_listen: Some(moved(id)),
            net: Arc::new(cluster.net.at(&moved(id))),
            join: (1..=3).filter(|other| *other != id).map(moved).collect(),
            ..cluster.options(id)
        };
        cluster.hosts.get_mut(&id).unwrap().node = Some(Node::open(options).await.unwrap());
    }
    cluster.leader().await;
    cluster.client(1).admit(&[("rpm", 1)]).await;
    let is_known = |id: u64| cluster.status(1).members.iter().any(|member| member.address == moved(id));
    until("all are known at their new addresses", || (1..=3).all(is_known)).await;
    cluster.agree().await;
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_dropped_takes_part_no_longer_and_leaves_its_folder() {
    let mut cluster = opened(3).await;
    for _ in 0..3 {
        let old = cluster.leader().await;
        // A caller still holds its backend, and thereby its log.
        let _kept = cluster.client(old);
        drop(cluster.hosts.get_mut(&old).unwrap().node.take());
        cluster.leader().await;
        cluster.client(cluster.running()[0]).admit(&[("rpm", 1)]).await;
        cluster.start(old).await;
        cluster.leader().await;
    }
    cluster.agree().await;
}

/// The node watches its log for a failure; a clean shutdown is not one.
#[tokio::test(start_paused = true)]
async fn a_node_that_is_shut_down_has_not_failed() {
    let mut cluster = SimCluster::of(1, Settings::default()).await;
    for _ in 0..30 {
        let failure = cluster.node(1).failure().clone();
        cluster.stop(1).await;
        tokio::time::sleep(TIMING.heartbeat).await;
        assert_eq!(failure.get(), None);
        cluster.start(1).await;
    }
}
