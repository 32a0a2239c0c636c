//! Keys that are revoked while a node is cut off.

use earmark_admission::{Backend as _, BackendError, Keys as _, Token};
use earmark_core::{CreateKey, Principal, RevokeKey, Role};

use crate::support::client::{MINUTE, definition, key, lease, namespace, reserve_request, write_request};
use crate::support::sim_cluster::{Settings, SimCluster, address, until};

fn create(token: &Token) -> CreateKey {
    CreateKey {
        id: token.id().clone(),
        secret: token.hash(),
        name: "billing".parse().unwrap(),
        role: Role::Admin,
        namespace: namespace(),
        client: None,
        labels: earmark_core::Labels::default(),
        may_set: earmark_core::MaySet::default(),
        valid_seconds: None,
        is_first: false,
        actor: "system:bootstrap".parse().unwrap(),
    }
}

async fn keyed() -> (SimCluster, Token, Principal) {
    let cluster = SimCluster::of(3, Settings::default()).await;
    let client = cluster.client(1);
    client.put(definition("rpm", MINUTE, 100)).await;
    let root = Token::random().unwrap();
    client.0.create(Principal::System, create(&root)).await.unwrap();
    let token = Token::random().unwrap();
    let info = client.0.create(Principal::System, create(&token)).await.unwrap();
    (cluster, token, Principal::Key(info.number))
}

fn revoke(token: &Token) -> RevokeKey {
    RevokeKey { id: token.id().clone(), namespace: None, actor: "client:root".parse().unwrap() }
}

/// A follower that is cut off does not learn of a revocation. After the reconnect its local check still accepts the
/// key for a moment, and it forwards the request to the leader.
#[tokio::test(start_paused = true)]
async fn a_revoked_key_replayed_on_a_follower_that_has_not_heard_of_it_is_refused() {
    let (cluster, token, by) = keyed().await;
    let follower = cluster.follower().await;
    let leader = cluster.leader().await;
    let behind = cluster.client(follower);
    until("the follower knows the key", || behind.0.authenticate(token.id(), &token.hash()).is_some()).await;
    assert!(behind.0.reserve(by.clone(), vec![reserve_request(lease(), &[("rpm", 1)])]).await[0].is_ok());
    cluster.isolate(follower);
    cluster.client(leader).0.revoke(Principal::System, revoke(&token)).await.unwrap();

    // The follower's local check still accepts the key.
    assert!(behind.0.authenticate(token.id(), &token.hash()).is_some());
    let alone = behind.0.reserve(by.clone(), vec![reserve_request(lease(), &[("rpm", 1)])]).await;
    assert!(matches!(alone[0], Err(BackendError::Failed(_))), "{alone:?}");
    let read = behind.0.check(by.clone()).await;
    assert!(matches!(read, Err(BackendError::Failed(_))), "{read:?}");

    cluster.net.heal();
    cluster.leader().await;
    let reserve = behind.0.reserve(by.clone(), vec![reserve_request(lease(), &[("rpm", 1)])]);
    let write = behind.0.write(by.clone(), write_request("billing", 1, vec![]));
    let check = behind.0.check(by.clone());
    let (reserve, write, check) = tokio::join!(reserve, write, check);
    assert_eq!(reserve, [Err(BackendError::Unauthenticated)]);
    assert_eq!(write, Err(BackendError::Unauthenticated));
    assert_eq!(check, Err(BackendError::Unauthenticated));
    assert_eq!(cluster.client(leader).0.usage(namespace(), key("rpm")).await.unwrap().unwrap().reserved, 1);
    cluster.agree().await;
}

/// A follower forwarded a reserve; the leader executed it and died before its reply. The key was revoked before the
/// follower's retry, and the caller was told that nothing had happened.
#[tokio::test(start_paused = true)]
async fn whoever_lost_their_key_before_the_outcome_was_known_is_not_told_that_nothing_happened() {
    let (mut cluster, token, by) = keyed().await;
    let (leader, follower) = (cluster.leader().await, cluster.follower().await);
    let other = cluster.running().into_iter().find(|id| ![leader, follower].contains(id)).unwrap();
    let behind = cluster.client(follower);
    until("the follower knows the key", || behind.0.authenticate(token.id(), &token.hash()).is_some()).await;
    let index = cluster.status(leader).last_log_index;
    let asking = {
        let (behind, by) = (cluster.client(follower), by.clone());
        tokio::spawn(async move { behind.0.reserve(by, vec![reserve_request(lease(), &[("rpm", 1)])]).await.remove(0) })
    };
    let mut steps = 0;
    while cluster.status(leader).last_log_index <= index {
        tokio::task::yield_now().await;
        steps += 1;
        assert!(steps < 1_000_000, "the leader never got it");
    }
    // The third node still receives from the leader, so the reserve and the revocation commit.
    cluster.net.cut(&address(leader), &address(follower));
    cluster.client(leader).0.revoke(Principal::System, revoke(&token)).await.unwrap();
    assert!(!asking.is_finished());
    cluster.kill(leader);
    let answer = asking.await.unwrap();
    let Err(BackendError::Failed(why)) = &answer else { panic!("{answer:?}") };
    assert!(why.contains("outcome is unknown"), "{why}");
    assert_eq!(cluster.client(other).0.usage(namespace(), key("rpm")).await.unwrap().unwrap().reserved, 1);
    // A new request with the revoked key is simply refused.
    let anew = behind.0.reserve(by, vec![reserve_request(lease(), &[("rpm", 1)])]).await;
    assert_eq!(anew, [Err(BackendError::Unauthenticated)]);
}

/// Whether requests need a key is decided by the log: the first key applies to all nodes at once.
#[tokio::test(start_paused = true)]
async fn the_first_key_closes_the_doors_of_nodes_that_have_not_heard_of_it() {
    let cluster = SimCluster::of(3, Settings::default()).await;
    cluster.client(1).put(definition("rpm", MINUTE, 100)).await;
    let follower = cluster.follower().await;
    let leader = cluster.leader().await;
    let behind = cluster.client(follower);
    cluster.isolate(follower);
    let root = Token::random().unwrap();
    cluster.client(leader).0.create(Principal::System, create(&root)).await.unwrap();
    assert!(!behind.0.has_keys());
    cluster.net.heal();
    cluster.leader().await;
    let answers = behind.0.reserve(Principal::Anonymous, vec![reserve_request(lease(), &[("rpm", 1)])]).await;
    assert_eq!(answers, [Err(BackendError::Unauthenticated)]);
}

#[tokio::test(start_paused = true)]
async fn keys_survive_the_end_of_every_node_and_reach_one_that_joins() {
    let (mut cluster, token, _) = keyed().await;
    cluster.add(4).await;
    until("the new node knows the key", || cluster.client(4).0.authenticate(token.id(), &token.hash()).is_some()).await;
    cluster.agree().await;
    for id in cluster.running() {
        cluster.stop(id).await;
    }
    for id in 1..=4 {
        cluster.start(id).await;
    }
    cluster.leader().await;
    assert_eq!(cluster.client(4).0.check(Principal::Anonymous).await, Err(BackendError::Unauthenticated));
    assert!(cluster.client(4).0.authenticate(token.id(), &token.hash()).is_some(), "{}", address(4));
}
