//! Joining by invitation, between nodes with certificates.

use std::time::Duration;

use earmark_admission::{Cluster as _, NewInvitation};
use earmark_node::Node;

use crate::support::client::{MINUTE, TestClient, definition};
use crate::support::real_cluster::{folder, reopen, until};
use crate::tls::{Named, invite};

fn is_voter(first: &Node, id: u64) -> bool {
    first.status().members.iter().any(|member| member.node == id && member.is_voter)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_use_admits_one_of_two_nodes_that_race_for_it() {
    let named = Named::of(1).await;
    let first = &named.nodes[0];
    let invitation = invite(first, NewInvitation::default()).await;
    let (one, two) = (folder(), folder());
    let (one, two) = tokio::join!(
        Node::open(named.joining(2, &one, Some(invitation.clone()))),
        Node::open(named.joining(3, &two, Some(invitation.clone()))),
    );
    // The slower one is refused before it starts, or once it asks.
    until(|| is_voter(first, 2) || is_voter(first, 3)).await;
    let joined = if is_voter(first, 2) { 2 } else { 3 };
    let loser = if joined == 2 { &two } else { &one };
    match loser {
        Err(error) => assert!(error.to_string().contains("used up"), "{error}"),
        Ok(node) => {
            let failure = tokio::time::timeout(Duration::from_secs(20), node.failure().wait()).await.unwrap();
            assert!(failure.contains("used up"), "{failure}");
        }
    }
    assert_eq!(first.status().members.len(), 2);
    TestClient(first.backend()).put(definition("rpm", MINUTE, 10)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bad_invitation_is_refused_before_anything_is_written() {
    let named = Named::of(1).await;
    let first = &named.nodes[0];
    let used = invite(first, NewInvitation::default()).await;
    let used_folder = folder();
    let _second = Node::open(named.joining(2, &used_folder, Some(used.clone()))).await.unwrap();
    until(|| is_voter(first, 2)).await;
    let expired = invite(first, NewInvitation { uses: 1, expires_seconds: Some(60) }).await;
    named.clock.advance_ms(60_000);
    // Log time follows the leader's clock with the next command.
    TestClient(first.backend()).put(definition("rpm", MINUTE, 10)).await;
    for (bad, why) in [(used, "used up"), (expired, "expired"), ("emi_guess".to_owned(), "unknown")] {
        let new = folder();
        let error = Node::open(named.joining(3, &new, Some(bad))).await.err().unwrap().to_string();
        assert!(error.contains(why) && error.contains("earmark cluster invite"), "{error}");
        assert!(!new.path.join("identity").exists());
    }
    assert_eq!(first.status().members.len(), 2);
}

/// The retry of a node uses nothing, also after a restart of the cluster from its snapshot.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_invitation_survives_a_snapshot_and_a_member_needs_it_only_once() {
    let mut named = Named::of(1).await;
    let invitation = invite(&named.nodes[0], NewInvitation { uses: 2, expires_seconds: None }).await;
    let (two, three) = (folder(), folder());
    let second = Node::open(named.joining(2, &two, Some(invitation.clone()))).await.unwrap();
    until(|| is_voter(&named.nodes[0], 2)).await;
    let address = second.peer_address().unwrap().to_owned();
    second.shut_down().await;
    drop(second);
    // A member needs no invitation.
    let second = reopen(|| named.joining_at(2, &two, &address)).await;
    until(|| second.status().leader.is_some()).await;
    until(|| is_voter(&named.nodes[0], 2)).await;
    named.nodes[0].snapshot().await.unwrap();
    let first = named.nodes.pop().unwrap();
    let address = first.peer_address().unwrap().to_owned();
    first.shut_down().await;
    drop(first);
    let again = reopen(|| named.joining_at(1, &named.folders[0], &address)).await;
    named.nodes.push(again);
    until(|| named.nodes[0].status().leader.is_some()).await;
    let third = Node::open(named.joining(3, &three, Some(invitation))).await.unwrap();
    until(|| is_voter(&third, 3)).await;
}

/// `earmark cluster add` is an admin's permission too, for a node that runs and has no invitation.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_without_an_invitation_waits_until_an_admin_adds_it() {
    let named = Named::of(2).await;
    let new = folder();
    let third = Node::open(named.joining(3, &new, None)).await.unwrap();
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(third.status().last_log_index, None);
    assert_eq!(named.nodes[0].status().members.len(), 2);
    assert_eq!(third.failure().get(), None);
    let address = third.peer_address().unwrap().to_owned();
    // Through either node: a follower asks the leader.
    let added = named.nodes[1].add(3, address.clone()).await;
    if added.is_err() {
        named.nodes[0].add(3, address).await.unwrap();
    }
    until(|| is_voter(&third, 3)).await;
    TestClient(third.backend()).put(definition("rpm", MINUTE, 10)).await;
}
