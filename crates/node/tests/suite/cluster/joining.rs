//! Ids that the cluster gives, and nodes that return without their data folder.

use std::collections::BTreeSet;

use earmark_admission::Cluster as _;
use earmark_node::{Node, NodeOptions};

use crate::support::client::{MINUTE, definition, issue, open};
use crate::support::disk::SimDisk;
use crate::support::sim_cluster::{Settings, SimCluster, address, until};

async fn opened(count: u64) -> SimCluster {
    let cluster = SimCluster::of(count, Settings::default()).await;
    cluster.client(1).put(definition("rpm", MINUTE, 1_000)).await;
    cluster.client(1).write("billing", 1, vec![open("acme"), issue("acme", 9)]).await;
    cluster
}

/// Options of a node without an id, at the address of a host.
fn unnumbered(cluster: &SimCluster, host: u64) -> NodeOptions {
    NodeOptions { id: None, ..cluster.options(host) }
}

fn voters(cluster: &SimCluster, id: u64) -> BTreeSet<u64> {
    let members = cluster.status(id).members.into_iter();
    members.filter(|member| member.is_voter).map(|member| member.node).collect()
}

#[tokio::test(start_paused = true)]
async fn nodes_that_join_at_once_get_different_ids_that_were_never_used() {
    let mut cluster = opened(3).await;
    let gone = cluster.follower().await;
    cluster.node(cluster.leader().await).remove(gone).await.unwrap();
    cluster.stop(gone).await;
    for host in [11, 12] {
        cluster.insert(host);
    }
    let starting = [11, 12].map(|host| (host, tokio::spawn(Node::open(unnumbered(&cluster, host)))));
    let mut given = BTreeSet::new();
    for (host, node) in starting {
        let node = node.await.unwrap().unwrap();
        given.insert(node.identity().node);
        cluster.hosts.get_mut(&host).unwrap().node = Some(node);
    }
    assert_eq!(given, BTreeSet::from([4, 5]));
    let leader = cluster.leader().await;
    until("both are voters", || voters(&cluster, leader).is_superset(&given)).await;
    // A restart keeps the id, and an id that was given is not taken by another.
    cluster.kill(11);
    let node = Node::open(unnumbered(&cluster, 11)).await.unwrap();
    assert!(given.contains(&node.identity().node));
    cluster.hosts.get_mut(&11).unwrap().node = Some(node);
    cluster.leader().await;
    cluster.agree().await;
}

/// A node that lost its folder had to be removed by hand, and started with another id by hand.
#[tokio::test(start_paused = true)]
async fn a_node_that_lost_its_folder_returns_with_a_new_id_and_the_old_one_leaves() {
    let mut cluster = opened(3).await;
    for round in 0..3 {
        let lost = cluster.follower().await;
        let old = cluster.status(lost).node;
        cluster.kill(lost);
        cluster.hosts.get_mut(&lost).unwrap().disk = SimDisk::new();
        let node = Node::open(unnumbered(&cluster, lost)).await.unwrap();
        let new = node.identity().node;
        assert_eq!(new, 4 + round);
        cluster.hosts.get_mut(&lost).unwrap().node = Some(node);
        let is_replaced = |id: u64| {
            let voters = voters(&cluster, id);
            voters.contains(&new) && !voters.contains(&old) && voters.len() == 3
        };
        until("the new one has replaced the old one", || cluster.running().into_iter().all(is_replaced)).await;
        let members = cluster.status(lost).members;
        assert_eq!(members.iter().filter(|member| member.address == address(lost)).count(), 1);
        assert_eq!(cluster.client(lost).balance_of("acme").await, (9, 0));
        cluster.client(lost).admit(&[("rpm", 1)]).await;
    }
    cluster.agree().await;
}

/// The old process still runs at the name, so the new one cannot take its place.
#[tokio::test(start_paused = true)]
async fn a_living_member_is_not_replaced_by_another_node_that_takes_its_name() {
    let mut cluster = opened(3).await;
    let leader = cluster.leader().await;
    let living = cluster.follower().await;
    cluster.insert(9);
    let options = NodeOptions {
        peer_listen: Some("thief:1".into()),
        peer_advertise: Some(address(living)),
        net: std::sync::Arc::new(cluster.net.at("thief:1")),
        ..unnumbered(&cluster, 9)
    };
    let thief = Node::open(options).await.unwrap();
    tokio::time::sleep(std::time::Duration::from_secs(20)).await;
    assert_eq!(voters(&cluster, leader), BTreeSet::from([1, 2, 3]));
    assert_eq!(thief.status().last_log_index, None);
    cluster.client(living).admit(&[("rpm", 1)]).await;
    thief.shut_down().await;
    cluster.hosts.remove(&9);
    cluster.agree().await;
}
