//! Network partitions: no acknowledgement without a quorum, and no stale reads.

use std::time::Duration;

use earmark_admission::Backend as _;
use tokio::time::Instant;

use crate::support::desk::{
    Desk, MINUTE, definition, issue, key, lease, namespace, open, reserve_request, write_request,
};
use crate::support::fleet::{Fleet, Settings, TIMING, until};

/// Slightly more than a caller's deadline.
const SOON: Duration = Duration::from_millis(3_100);

async fn opened(count: u64) -> Fleet {
    let fleet = Fleet::of(count, Settings::default()).await;
    let desk = fleet.desk(1);
    desk.write("billing", 1, vec![open("acme"), issue("acme", 100)]).await;
    desk.put(definition("rpm", MINUTE, 10)).await;
    fleet
}

/// Writes, reserves and reads all fail within the deadline.
async fn answers_nothing(desk: &Desk) {
    let started = Instant::now();
    let reserve = desk.ask(reserve_request(lease(), &[("rpm", 1)]));
    let write = desk.try_write(write_request("billing", 2, vec![issue("acme", 1)]));
    let read = desk.0.usage(namespace(), key("rpm"));
    let (reserve, write, read) = tokio::join!(reserve, write, read);
    for message in
        [reserve.unwrap_err(), write.unwrap_err(), read.unwrap_err()].map(|error| error.to_string())
    {
        let is_clear = ["majority", "leads", "answer", "reached"].iter().any(|word| message.contains(word));
        assert!(is_clear, "{message}");
    }
    // The reserve waits for the write before it in the same queue.
    assert!(started.elapsed() <= SOON * 2, "{:?}", started.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_is_cut_off_acknowledges_and_reads_nothing_and_follows_when_it_is_back() {
    let fleet = opened(3).await;
    let old = fleet.leader().await;
    fleet.isolate(old);
    // It does not know yet that it is cut off.
    answers_nothing(&fleet.desk(old)).await;
    let others: Vec<u64> = fleet.running().into_iter().filter(|id| *id != old).collect();
    fleet.leader_of(&others).await;
    let desk = fleet.desk(others[0]);
    desk.admit(&[("rpm", 4)]).await;
    desk.write("billing", 2, vec![issue("acme", 5)]).await;
    answers_nothing(&fleet.desk(old)).await;
    fleet.net.heal();
    fleet.leader().await;
    assert_eq!(fleet.desk(old).usage("rpm").await.reserved, 4);
    assert_eq!(fleet.desk(old).purse("acme").await, (105, 0));
    fleet.agree().await;
}

/// Each queued batch waited for a quorum on its own. The last request of a long queue failed after many deadlines,
/// and a shutdown took as long.
#[tokio::test(start_paused = true)]
async fn without_a_majority_the_last_of_a_long_queue_is_told_in_time_too() {
    let mut fleet = opened(3).await;
    let leader = fleet.leader().await;
    fleet.running().into_iter().filter(|id| *id != leader).for_each(|id| fleet.kill(id));
    let desk = fleet.desk(leader);
    let started = Instant::now();
    let asked: Vec<_> = (0..60)
        .map(|_| {
            let backend = desk.0.clone();
            let requests = (0..256).map(|_| reserve_request(lease(), &[("rpm", 1)])).collect();
            tokio::spawn(async move { backend.reserve(requests).await })
        })
        .collect();
    for answers in asked {
        assert!(answers.await.unwrap().iter().all(Result::is_err));
    }
    assert!(started.elapsed() <= SOON * 2, "{:?}", started.elapsed());
}

#[tokio::test(start_paused = true)]
async fn without_a_majority_every_request_fails_in_time_and_nothing_happens() {
    let mut fleet = opened(3).await;
    let leader = fleet.leader().await;
    let others: Vec<u64> = fleet.running().into_iter().filter(|id| *id != leader).collect();
    others.iter().for_each(|id| fleet.kill(*id));
    answers_nothing(&fleet.desk(leader)).await;
    // Still without a quorum much later.
    tokio::time::sleep(TIMING.election * 10).await;
    answers_nothing(&fleet.desk(leader)).await;
    let why = fleet.desk(leader).0.ready().unwrap_err();
    assert!(why.starts_with("no majority of the nodes has answered this leader"), "{why}");
    for id in others {
        fleet.start(id).await;
    }
    fleet.leader().await;
    // They know the leader before the leader has their replies.
    until("it is ready", || fleet.desk(leader).0.ready().is_ok()).await;
    // The outcome was unknown: the write happened at most once, and after the retry exactly once.
    let desk = fleet.desk(leader);
    desk.write("billing", 2, vec![issue("acme", 1)]).await;
    assert_eq!(desk.purse("acme").await, (101, 0));
    fleet.agree().await;
}

#[tokio::test(start_paused = true)]
async fn a_follower_that_is_cut_off_fails_in_time_and_the_others_go_on() {
    let fleet = opened(3).await;
    let cut_off = fleet.follower().await;
    fleet.isolate(cut_off);
    answers_nothing(&fleet.desk(cut_off)).await;
    let leader =
        fleet.leader_of(&fleet.running().into_iter().filter(|id| *id != cut_off).collect::<Vec<_>>()).await;
    fleet.desk(leader).admit(&[("rpm", 2)]).await;
    fleet.net.heal();
    fleet.leader().await;
    // A request that the follower forwarded may still arrive.
    let reserved = fleet.desk(cut_off).usage("rpm").await.reserved;
    assert!((2..=3).contains(&reserved), "{reserved}");
    fleet.agree().await;
}

/// A request behind a batch without a quorum waited a full deadline again.
#[tokio::test(start_paused = true)]
async fn requests_that_waited_for_others_in_vain_are_given_up_soon_after_them() {
    let fleet = opened(3).await;
    let leader = fleet.leader().await;
    fleet.isolate(leader);
    let desk = fleet.desk(leader);
    let started = Instant::now();
    let first = desk.ask(reserve_request(lease(), &[("rpm", 1)]));
    let second = async {
        tokio::time::sleep(TIMING.heartbeat).await;
        desk.ask(reserve_request(lease(), &[("rpm", 1)])).await
    };
    let (first, second) = tokio::join!(first, second);
    assert!(first.is_err() && second.is_err());
    let soon = TIMING.deadline + TIMING.election * 5;
    assert!(started.elapsed() < soon, "{:?}", started.elapsed());
    fleet.net.heal();
    fleet.leader().await;
    fleet.agree().await;
}

/// A follower waited for its forwarded request until the deadline, and all later requests behind it, although a new
/// leader had been elected.
#[tokio::test(start_paused = true)]
async fn what_was_passed_on_to_a_leader_that_is_gone_is_passed_on_to_the_next_one() {
    for _ in 0..3 {
        let fleet = opened(3).await;
        let follower = fleet.follower().await;
        fleet.isolate(fleet.leader().await);
        let desk = fleet.desk(follower);
        let started = Instant::now();
        let (_, usage) = tokio::join!(desk.admit(&[("rpm", 2)]), desk.usage("rpm"));
        assert!(usage.reserved <= 2);
        assert!(started.elapsed() < TIMING.deadline, "{:?}", started.elapsed());
        assert_eq!(desk.usage("rpm").await.reserved, 2);
        fleet.net.heal();
        fleet.leader().await;
        fleet.agree().await;
    }
}

/// Two of five nodes may fail.
#[tokio::test(start_paused = true)]
async fn a_minority_may_be_away() {
    let mut fleet = opened(5).await;
    let leader = fleet.leader().await;
    let away: Vec<u64> =
        [leader].into_iter().chain(fleet.running().into_iter().filter(|id| *id != leader)).take(2).collect();
    away.iter().for_each(|id| fleet.kill(*id));
    fleet.leader().await;
    fleet.desk(fleet.running()[0]).admit(&[("rpm", 2)]).await;
    for id in away {
        fleet.start(id).await;
    }
    fleet.leader().await;
    fleet.agree().await;
}
