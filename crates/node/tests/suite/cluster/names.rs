//! Nodes with names that resolve to addresses: names keep their nodes, whatever they resolve to.

use earmark_node::{Node, NodeOptions};
use std::sync::Arc;

use crate::support::client::{MINUTE, definition, issue, open};
use crate::support::sim_cluster::{Settings, SimCluster, TIMING, address, until};

fn name(id: u64) -> String {
    format!("n{id}.example:1")
}

/// Starts a node that others know by its name, listening at an address.
async fn start(cluster: &mut SimCluster, id: u64, at: &str) {
    let options = NodeOptions {
        id: None,
        peer_listen: Some(at.to_owned()),
        peer_advertise: Some(name(id)),
        bootstrap: (1..=3).map(name).collect(),
        join: Vec::new(),
        net: Arc::new(cluster.net.at(at)),
        ..cluster.options(id)
    };
    let node = Node::open(options).await.unwrap();
    cluster.hosts.get_mut(&id).unwrap().node = Some(node);
}

/// Three founders with names, which begin together.
async fn named() -> SimCluster {
    let mut cluster = SimCluster::empty(Settings::default());
    let mut starting = Vec::new();
    for id in 1..=3 {
        cluster.net.resolve(&name(id), Some(&address(id)));
        cluster.insert(id);
        let options = NodeOptions {
            id: None,
            peer_advertise: Some(name(id)),
            bootstrap: (1..=3).map(name).collect(),
            join: Vec::new(),
            ..cluster.options(id)
        };
        starting.push((id, tokio::spawn(Node::open(options))));
    }
    for (id, node) in starting {
        cluster.hosts.get_mut(&id).unwrap().node = Some(node.await.unwrap().unwrap());
    }
    cluster.leader().await;
    cluster.client(1).put(definition("rpm", MINUTE, 1_000)).await;
    cluster.client(2).write("billing", 1, vec![open("acme"), issue("acme", 9)]).await;
    cluster
}

fn names_of(cluster: &SimCluster, id: u64) -> Vec<(u64, String)> {
    cluster.status(id).members.into_iter().map(|member| (member.node, member.address)).collect()
}

#[tokio::test(start_paused = true)]
async fn founders_begin_one_cluster_with_all_of_them_as_voters() {
    let cluster = named().await;
    let expected: Vec<(u64, String)> = (1..=3).map(|id| (id, name(id))).collect();
    for id in 1..=3 {
        assert_eq!(names_of(&cluster, id), expected);
        assert_eq!(cluster.status(id).cluster, cluster.status(1).cluster);
        assert!(cluster.is_voter(id));
    }
    cluster.agree().await;
}

#[tokio::test(start_paused = true)]
async fn a_node_whose_name_does_not_resolve_for_a_while_catches_up_afterwards() {
    let mut cluster = named().await;
    let away = cluster.follower().await;
    cluster.kill(away);
    cluster.net.resolve(&name(away), None);
    start(&mut cluster, away, &address(away)).await;
    let others: Vec<u64> = (1..=3).filter(|id| *id != away).collect();
    cluster.leader_of(&others).await;
    cluster.client(others[0]).admit(&[("rpm", 1)]).await;
    tokio::time::sleep(TIMING.election * 10).await;
    cluster.net.resolve(&name(away), Some(&address(away)));
    cluster.leader().await;
    assert_eq!(cluster.client(away).usage("rpm").await.reserved, 1);
    cluster.agree().await;
}

#[tokio::test(start_paused = true)]
async fn a_node_that_changes_its_address_keeps_its_name_and_the_membership_stays() {
    let mut cluster = named().await;
    let before = names_of(&cluster, 1);
    // One after the other, the leader too.
    for id in 1..=3 {
        cluster.stop(id).await;
        let at = format!("10.0.0.{id}:1");
        cluster.net.resolve(&name(id), Some(&at));
        start(&mut cluster, id, &at).await;
        cluster.leader().await;
        cluster.client(id).admit(&[("rpm", 1)]).await;
    }
    assert_eq!(cluster.client(1).usage("rpm").await.reserved, 3);
    assert_eq!(names_of(&cluster, 1), before);
    cluster.agree().await;
}

#[tokio::test(start_paused = true)]
async fn a_name_that_resolves_to_another_node_is_not_taken_for_its_own() {
    let mut cluster = named().await;
    let before = names_of(&cluster, 1);
    let lost = cluster.follower().await;
    cluster.kill(lost);
    let others: Vec<u64> = (1..=3).filter(|id| *id != lost).collect();
    let leader = cluster.leader_of(&others).await;
    let other = others.iter().copied().find(|id| *id != leader).unwrap();
    for wrong in [leader, other] {
        cluster.net.resolve(&name(lost), Some(&address(wrong)));
        cluster.client(other).admit(&[("rpm", 1)]).await;
        tokio::time::sleep(TIMING.election * 5).await;
        assert_eq!(cluster.status(leader).leader, Some(leader), "the leader stays");
    }
    // Without the other node there is no majority, whatever the names resolve to.
    let lag = |id| cluster.status(leader).members.iter().find(|member| member.node == id).unwrap().lag;
    assert!(lag(lost).is_some_and(|lag| lag > 0), "the wrong node has taken entries for {lost}: {:?}", lag(lost));
    cluster.net.resolve(&name(lost), Some(&address(lost)));
    start(&mut cluster, lost, &address(lost)).await;
    cluster.leader().await;
    assert_eq!(cluster.client(lost).usage("rpm").await.reserved, 2);
    assert_eq!(names_of(&cluster, 1), before);
    cluster.agree().await;
    until("all are up to date", || (1..=3).all(|id| cluster.is_voter(id))).await;
}
