//! One write and one reserve, retried at every possible moment, have one effect and one answer.

use std::sync::Arc;

use earmark_admission::{ReserveAnswer, WriteAnswer};

use crate::support::desk::{
    MINUTE, credit, definition, issue, lease, open, reserve_request, transfer, write_request,
};
use crate::support::fleet::{Fleet, SMALL, Settings, TIMING};

/// An account with 1,000 usd, and limits on it.
async fn opened(settings: Settings) -> Fleet {
    let fleet = Fleet::of(3, settings).await;
    let desk = fleet.desk(1);
    desk.write("setup", 1, vec![open("acme"), open("other"), issue("acme", 1_000)]).await;
    desk.put(definition("rpm", MINUTE, 100)).await;
    desk.put(credit("usd", "acme", 60)).await;
    fleet
}

/// The write and the reserve under test.
struct Asked {
    write: earmark_admission::WriteRequest,
    reserve: earmark_admission::ReserveRequest,
}

impl Asked {
    fn new() -> Asked {
        Asked {
            write: write_request("billing", 1, vec![transfer("acme", "other", 7)]),
            reserve: reserve_request(lease(), &[("rpm", 3), ("usd", 50)]),
        }
    }

    /// Sends both to a node, which must answer.
    async fn of(&self, fleet: &Fleet, id: u64) -> (WriteAnswer, ReserveAnswer) {
        let desk = fleet.desk(id);
        let answers = (
            desk.try_write(self.write.clone()).await.unwrap(),
            desk.ask(self.reserve.clone()).await.unwrap(),
        );
        assert!(matches!(answers.0, WriteAnswer::Committed(_)), "{answers:?}");
        assert!(matches!(answers.1, ReserveAnswer::Allowed { .. }), "{answers:?}");
        answers
    }

    /// Repeats both on every node and checks that each had one effect.
    async fn happened_once(&self, fleet: &Fleet, first: &(WriteAnswer, ReserveAnswer)) {
        for id in fleet.running() {
            assert_eq!(self.of(fleet, id).await, *first, "node {id} answers otherwise");
            let desk = fleet.desk(id);
            assert_eq!(desk.purse("acme").await, (1_000 - 7 - 50, 50), "node {id}");
            assert_eq!(desk.purse("other").await, (7, 0), "node {id}");
            assert_eq!(desk.usage("rpm").await.reserved, 3, "node {id}");
        }
        fleet.agree().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_retry_after_the_answer_gets_the_same_answer_from_any_node() {
    let fleet = opened(Settings::default()).await;
    let asked = Asked::new();
    let first = asked.of(&fleet, fleet.follower().await).await;
    asked.happened_once(&fleet, &first).await;
}

#[tokio::test(start_paused = true)]
async fn a_request_that_never_reached_the_log_is_carried_out_when_it_is_asked_again() {
    let fleet = opened(Settings::default()).await;
    let asked = Asked::new();
    let cut_off = fleet.follower().await;
    fleet.isolate(cut_off);
    let desk = fleet.desk(cut_off);
    let write = desk.try_write(asked.write.clone());
    let (write, reserve) = tokio::join!(write, desk.ask(asked.reserve.clone()));
    assert!(write.is_err() && reserve.is_err(), "{write:?} {reserve:?}");
    fleet.net.heal();
    fleet.leader().await;
    let first = asked.of(&fleet, cut_off).await;
    asked.happened_once(&fleet, &first).await;
}

/// The leader appends and cannot commit. A new leader without the entries is elected, and the old leader's entries
/// are truncated.
#[tokio::test(start_paused = true)]
async fn what_was_appended_and_lost_with_its_leader_happens_once_when_it_is_asked_again() {
    let fleet = opened(Settings::default()).await;
    let asked = Asked::new();
    let old = fleet.leader().await;
    fleet.isolate(old);
    let before = fleet.status(old).last_log_index;
    let desk = fleet.desk(old);
    let (write, reserve) = tokio::join!(desk.try_write(asked.write.clone()), desk.ask(asked.reserve.clone()));
    assert!(write.is_err() && reserve.is_err(), "{write:?} {reserve:?}");
    assert!(fleet.status(old).last_log_index > before, "it was to be appended");
    let others: Vec<u64> = fleet.running().into_iter().filter(|id| *id != old).collect();
    let new = fleet.leader_of(&others).await;
    let first = asked.of(&fleet, new).await;
    fleet.net.heal();
    fleet.leader().await;
    asked.happened_once(&fleet, &first).await;
}

/// The entries reach the followers, but the leader dies before their replies. The new leader commits them, and the
/// retry is logged a second time.
#[tokio::test(start_paused = true)]
async fn what_is_in_the_log_twice_has_one_effect() {
    let mut fleet = opened(Settings::default()).await;
    let asked = Asked::new();
    let old = fleet.leader().await;
    let index = fleet.status(old).last_log_index;
    let asking = {
        let (desk, write, reserve) = (fleet.desk(old), asked.write.clone(), asked.reserve.clone());
        tokio::spawn(async move { tokio::join!(desk.try_write(write), desk.ask(reserve)) })
    };
    // Wait until the followers have the entry; the leader dies before it can answer.
    let others: Vec<u64> = fleet.running().into_iter().filter(|id| *id != old).collect();
    let mut steps = 0;
    while others.iter().all(|id| fleet.status(*id).last_log_index <= index) {
        tokio::task::yield_now().await;
        steps += 1;
        assert!(steps < 1_000_000, "the followers never got it");
    }
    fleet.kill(old);
    asking.abort();
    fleet.leader().await;
    let entries = fleet.status(others[0]).last_log_index;
    let first = asked.of(&fleet, others[0]).await;
    assert!(fleet.status(others[0]).last_log_index > entries, "the retry is in the log as well");
    fleet.start(old).await;
    fleet.leader().await;
    asked.happened_once(&fleet, &first).await;
}

#[tokio::test(start_paused = true)]
async fn a_retry_after_a_failover_gets_the_first_answer() {
    let mut fleet = opened(Settings::default()).await;
    let asked = Asked::new();
    let first = asked.of(&fleet, 2).await;
    for _ in 0..3 {
        let leader = fleet.leader().await;
        fleet.kill(leader);
        fleet.leader().await;
        let other = fleet.running()[0];
        assert_eq!(asked.of(&fleet, other).await, first);
        fleet.start(leader).await;
        fleet.leader().await;
    }
    asked.happened_once(&fleet, &first).await;
}

#[tokio::test(start_paused = true)]
async fn a_retry_after_a_snapshot_was_installed_gets_the_first_answer() {
    let mut fleet = opened(SMALL).await;
    let asked = Asked::new();
    let away = fleet.follower().await;
    fleet.kill(away);
    fleet.leader().await;
    let other = fleet.running()[0];
    let first = asked.of(&fleet, other).await;
    for id in fleet.running() {
        fleet.node(id).snapshot().await.unwrap();
    }
    tokio::time::sleep(TIMING.election).await;
    fleet.start(away).await;
    fleet.leader().await;
    assert_eq!(asked.of(&fleet, away).await, first);
    assert!(fleet.status(away).snapshot_index.is_some(), "it was to come by snapshot");
    // The one that knows it from a snapshot alone leads, and answers.
    for id in fleet.running().into_iter().filter(|id| *id != away) {
        fleet.kill(id);
        fleet.start(id).await;
    }
    fleet.leader().await;
    asked.happened_once(&fleet, &first).await;
}

#[tokio::test(start_paused = true)]
async fn copies_at_once_through_all_nodes_are_one() {
    let fleet = Arc::new(opened(Settings::default()).await);
    let asked = Arc::new(Asked::new());
    let copies: Vec<_> = (0..30)
        .map(|copy| {
            let (fleet, asked) = (Arc::clone(&fleet), Arc::clone(&asked));
            tokio::spawn(async move { asked.of(&fleet, 1 + copy % 3).await })
        })
        .collect();
    let mut answers = Vec::new();
    for copy in copies {
        answers.push(copy.await.unwrap());
    }
    assert!(answers.iter().all(|answer| *answer == answers[0]), "{answers:?}");
    asked.happened_once(&fleet, &answers[0]).await;
}
