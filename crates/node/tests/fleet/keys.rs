//! Keys that are revoked while a node is cut off.

use earmark_admission::{Backend as _, BackendError, Keys as _, Token};
use earmark_core::{By, CreateKey, RevokeKey, Role};

use crate::support::desk::{MINUTE, definition, key, lease, namespace, reserve_request, write_request};
use crate::support::fleet::{Fleet, Settings, address, until};

fn create(token: &Token) -> CreateKey {
    CreateKey {
        id: token.id().clone(),
        secret: token.hash(),
        name: "billing".parse().unwrap(),
        role: Role::Admin,
        namespace: namespace(),
        client: None,
        valid_seconds: None,
        is_first: false,
        actor: "system:bootstrap".parse().unwrap(),
    }
}

async fn keyed() -> (Fleet, Token, By) {
    let fleet = Fleet::of(3, Settings::default()).await;
    let desk = fleet.desk(1);
    desk.put(definition("rpm", MINUTE, 100)).await;
    let root = Token::random().unwrap();
    desk.0.create(By::Itself, create(&root)).await.unwrap();
    let token = Token::random().unwrap();
    let info = desk.0.create(By::Itself, create(&token)).await.unwrap();
    (fleet, token, By::Key(info.number))
}

fn revoke(token: &Token) -> RevokeKey {
    RevokeKey { id: token.id().clone(), namespace: None, actor: "client:root".parse().unwrap() }
}

/// A follower that is cut off does not learn of a revocation. After the reconnect its local check still accepts the
/// key for a moment, and it forwards the request to the leader.
#[tokio::test(start_paused = true)]
async fn a_revoked_key_replayed_on_a_follower_that_has_not_heard_of_it_is_refused() {
    let (fleet, token, by) = keyed().await;
    let follower = fleet.follower().await;
    let leader = fleet.leader().await;
    let behind = fleet.desk(follower);
    until("the follower knows the key", || behind.0.authenticate(token.id(), &token.hash()).is_some()).await;
    assert!(behind.0.reserve_by(by.clone(), vec![reserve_request(lease(), &[("rpm", 1)])]).await[0].is_ok());
    fleet.isolate(follower);
    fleet.desk(leader).0.revoke(By::Itself, revoke(&token)).await.unwrap();

    // The follower's local check still accepts the key.
    assert!(behind.0.authenticate(token.id(), &token.hash()).is_some());
    let alone = behind.0.reserve_by(by.clone(), vec![reserve_request(lease(), &[("rpm", 1)])]).await;
    assert!(matches!(alone[0], Err(BackendError::Failed(_))), "{alone:?}");
    let read = behind.0.check(by.clone()).await;
    assert!(matches!(read, Err(BackendError::Failed(_))), "{read:?}");

    fleet.net.heal();
    fleet.leader().await;
    let reserve = behind.0.reserve_by(by.clone(), vec![reserve_request(lease(), &[("rpm", 1)])]);
    let write = behind.0.write_by(by.clone(), write_request("billing", 1, vec![]));
    let check = behind.0.check(by.clone());
    let (reserve, write, check) = tokio::join!(reserve, write, check);
    assert_eq!(reserve, [Err(BackendError::Unauthenticated)]);
    assert_eq!(write, Err(BackendError::Unauthenticated));
    assert_eq!(check, Err(BackendError::Unauthenticated));
    assert_eq!(fleet.desk(leader).0.usage(namespace(), key("rpm")).await.unwrap().unwrap().reserved, 1);
    fleet.agree().await;
}

/// A follower forwarded a reserve; the leader executed it and died before its reply. The key was revoked before the
/// follower's retry, and the caller was told that nothing had happened.
#[tokio::test(start_paused = true)]
async fn whoever_lost_their_key_before_the_outcome_was_known_is_not_told_that_nothing_happened() {
    let (mut fleet, token, by) = keyed().await;
    let (leader, follower) = (fleet.leader().await, fleet.follower().await);
    let other = fleet.running().into_iter().find(|id| ![leader, follower].contains(id)).unwrap();
    let behind = fleet.desk(follower);
    until("the follower knows the key", || behind.0.authenticate(token.id(), &token.hash()).is_some()).await;
    let index = fleet.status(leader).last_log_index;
    let asking = {
        let (behind, by) = (fleet.desk(follower), by.clone());
        tokio::spawn(async move {
            behind.0.reserve_by(by, vec![reserve_request(lease(), &[("rpm", 1)])]).await.remove(0)
        })
    };
    let mut steps = 0;
    while fleet.status(leader).last_log_index <= index {
        tokio::task::yield_now().await;
        steps += 1;
        assert!(steps < 1_000_000, "the leader never got it");
    }
    // The third node still receives from the leader, so the reserve and the revocation commit.
    fleet.net.cut(&address(leader), &address(follower));
    fleet.desk(leader).0.revoke(By::Itself, revoke(&token)).await.unwrap();
    assert!(!asking.is_finished());
    fleet.kill(leader);
    let answer = asking.await.unwrap();
    let Err(BackendError::Failed(why)) = &answer else { panic!("{answer:?}") };
    assert!(why.contains("the outcome is unknown"), "{why}");
    assert_eq!(fleet.desk(other).0.usage(namespace(), key("rpm")).await.unwrap().unwrap().reserved, 1);
    // A new request with the revoked key is simply refused.
    let anew = behind.0.reserve_by(by, vec![reserve_request(lease(), &[("rpm", 1)])]).await;
    assert_eq!(anew, [Err(BackendError::Unauthenticated)]);
}

/// Whether requests need a key is decided by the log: the first key applies to all nodes at once.
#[tokio::test(start_paused = true)]
async fn the_first_key_closes_the_doors_of_nodes_that_have_not_heard_of_it() {
    let fleet = Fleet::of(3, Settings::default()).await;
    fleet.desk(1).put(definition("rpm", MINUTE, 100)).await;
    let follower = fleet.follower().await;
    let leader = fleet.leader().await;
    let behind = fleet.desk(follower);
    fleet.isolate(follower);
    let root = Token::random().unwrap();
    fleet.desk(leader).0.create(By::Itself, create(&root)).await.unwrap();
    assert!(!behind.0.has_keys());
    fleet.net.heal();
    fleet.leader().await;
    let answers = behind.0.reserve_by(By::Anyone, vec![reserve_request(lease(), &[("rpm", 1)])]).await;
    assert_eq!(answers, [Err(BackendError::Unauthenticated)]);
}

#[tokio::test(start_paused = true)]
async fn keys_survive_the_end_of_every_node_and_reach_one_that_joins() {
    let (mut fleet, token, _) = keyed().await;
    fleet.add(4).await;
    until("the new node knows the key", || fleet.desk(4).0.authenticate(token.id(), &token.hash()).is_some())
        .await;
    fleet.agree().await;
    for id in fleet.running() {
        fleet.stop(id).await;
    }
    for id in 1..=4 {
        fleet.start(id).await;
    }
    fleet.leader().await;
    assert_eq!(fleet.desk(4).0.check(By::Anyone).await, Err(BackendError::Unauthenticated));
    assert!(fleet.desk(4).0.authenticate(token.id(), &token.hash()).is_some(), "{}", address(4));
}
