//! Network partitions: no acknowledgement without a quorum, and no stale reads.

use earmark_core::Principal;
use std::time::Duration;

use earmark_admission::Backend as _;
use tokio::time::Instant;

use crate::support::client::{
    MINUTE, TestClient, definition, issue, key, lease, namespace, open, reserve_request, write_request,
};
use crate::support::sim_cluster::{Settings, SimCluster, TIMING, until};

/// Slightly more than a caller's deadline.
const SOON: Duration = Duration::from_millis(3_100);

async fn opened(count: u64) -> SimCluster {
    let cluster = SimCluster::of(count, Settings::default()).await;
    let client = cluster.client(1);
    client.write("billing", 1, vec![open("acme"), issue("acme", 100)]).await;
    client.put(definition("rpm", MINUTE, 10)).await;
    cluster
}

/// Writes, reserves and reads all fail within the deadline.
async fn answers_nothing(client: &TestClient) {
    let started = Instant::now();
    let reserve = client.ask(reserve_request(lease(), &[("rpm", 1)]));
    let write = client.try_write(write_request("billing", 2, vec![issue("acme", 1)]));
    let read = client.0.usage(namespace(), key("rpm"));
    let (reserve, write, read) = tokio::join!(reserve, write, read);
    for message in [reserve.unwrap_err(), write.unwrap_err(), read.unwrap_err()].map(|error| error.to_string()) {
        let is_clear = ["majority", "leader", "answer", "reached"].iter().any(|word| message.contains(word));
        assert!(is_clear, "{message}");
    }
    // The reserve waits for the write before it in the same queue.
    assert!(started.elapsed() <= SOON * 2, "{:?}", started.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_is_cut_off_acknowledges_and_reads_nothing_and_follows_when_it_is_back() {
    let cluster = opened(3).await;
    let old = cluster.leader().await;
    cluster.isolate(old);
    // It does not know yet that it is cut off.
    answers_nothing(&cluster.client(old)).await;
    let others: Vec<u64> = cluster.running().into_iter().filter(|id| *id != old).collect();
    cluster.leader_of(&others).await;
    let client = cluster.client(others[0]);
    client.admit(&[("rpm", 4)]).await;
    client.write("billing", 2, vec![issue("acme", 5)]).await;
    answers_nothing(&cluster.client(old)).await;
    cluster.net.heal();
    cluster.leader().await;
    assert_eq!(cluster.client(old).usage("rpm").await.reserved, 4);
    assert_eq!(cluster.client(old).balance_of("acme").await, (105, 0));
    cluster.agree().await;
}

/// Each queued batch waited for a quorum on its own. The last request of a long queue failed after many deadlines,
/// and a shutdown took as long.
#[tokio::test(start_paused = true)]
async fn without_a_majority_the_last_of_a_long_queue_is_told_in_time_too() {
    let mut cluster = opened(3).await;
    let leader = cluster.leader().await;
    cluster.running().into_iter().filter(|id| *id != leader).for_each(|id| cluster.kill(id));
    let client = cluster.client(leader);
    let started = Instant::now();
    let asked: Vec<_> = (0..60)
        .map(|_| {
            let backend = client.0.clone();
            let requests = (0..256).map(|_| reserve_request(lease(), &[("rpm", 1)])).collect();
            tokio::spawn(async move { backend.reserve(Principal::System, requests).await })
        })
        .collect();
    for answers in asked {
        assert!(answers.await.unwrap().iter().all(Result::is_err));
    }
    assert!(started.elapsed() <= SOON * 2, "{:?}", started.elapsed());
}

#[tokio::test(start_paused = true)]
async fn without_a_majority_every_request_fails_in_time_and_nothing_happens() {
    let mut cluster = opened(3).await;
    let leader = cluster.leader().await;
    let others: Vec<u64> = cluster.running().into_iter().filter(|id| *id != leader).collect();
    others.iter().for_each(|id| cluster.kill(*id));
    answers_nothing(&cluster.client(leader)).await;
    // Still without a quorum much later.
    tokio::time::sleep(TIMING.election * 10).await;
    answers_nothing(&cluster.client(leader)).await;
    let why = cluster.client(leader).0.ready().unwrap_err();
    assert!(why.starts_with("no majority of the nodes has answered this leader"), "{why}");
    for id in others {
        cluster.start(id).await;
    }
    cluster.leader().await;
    // They know the leader before the leader has their replies.
    until("it is ready", || cluster.client(leader).0.ready().is_ok()).await;
    // The outcome was unknown: the write happened at most once, and after the retry exactly once.
    let client = cluster.client(leader);
    client.write("billing", 2, vec![issue("acme", 1)]).await;
    assert_eq!(client.balance_of("acme").await, (101, 0));
    cluster.agree().await;
}

#[tokio::test(start_paused = true)]
async fn a_follower_that_is_cut_off_fails_in_time_and_the_others_go_on() {
    let cluster = opened(3).await;
    let cut_off = cluster.follower().await;
    cluster.isolate(cut_off);
    answers_nothing(&cluster.client(cut_off)).await;
    let leader =
        cluster.leader_of(&cluster.running().into_iter().filter(|id| *id != cut_off).collect::<Vec<_>>()).await;
    cluster.client(leader).admit(&[("rpm", 2)]).await;
    cluster.net.heal();
    cluster.leader().await;
    // A request that the follower forwarded may still arrive.
    let reserved = cluster.client(cut_off).usage("rpm").await.reserved;
    assert!((2..=3).contains(&reserved), "{reserved}");
    cluster.agree().await;
}

/// A leader that restarts within its term leads again at once. It said it was ready although no other node had answered
/// it since.
#[tokio::test(start_paused = true)]
async fn a_leader_that_restarts_alone_is_not_ready() {
    let mut cluster = SimCluster::of(3, Settings::default()).await;
    let leader = cluster.leader().await;
    let others: Vec<u64> = cluster.running().into_iter().filter(|id| *id != leader).collect();
    others.iter().for_each(|id| cluster.kill(*id));
    tokio::time::sleep(TIMING.election * 3).await;
    assert!(cluster.client(leader).0.ready().is_err(), "its quorum is gone");
    cluster.stop(leader).await;
    cluster.start(leader).await;
    for _ in 0..100 {
        tokio::time::sleep(TIMING.heartbeat).await;
        assert!(cluster.client(leader).0.ready().is_err());
    }
    for id in others {
        cluster.start(id).await;
    }
    until("it is ready", || cluster.client(leader).0.ready().is_ok()).await;
}

/// A follower said it was ready while its leader could not commit.
#[tokio::test(start_paused = true)]
async fn a_follower_of_a_leader_without_a_quorum_is_not_ready() {
    let mut cluster = SimCluster::of(5, Settings::default()).await;
    let leader = cluster.leader().await;
    let mut others: Vec<u64> = cluster.running().into_iter().filter(|id| *id != leader).collect();
    let follower = others.pop().unwrap();
    until("the follower is ready", || cluster.client(follower).0.ready().is_ok()).await;
    others.iter().for_each(|id| cluster.kill(*id));
    until("the follower is not ready", || cluster.client(follower).0.ready().is_err()).await;
    tokio::time::sleep(TIMING.election * 10).await;
    assert!(cluster.client(follower).0.ready().is_err());
    for id in others {
        cluster.start(id).await;
    }
    until("the follower is ready", || cluster.client(follower).0.ready().is_ok()).await;
}

/// A request behind a batch without a quorum waited a full deadline again.
#[tokio::test(start_paused = true)]
async fn requests_that_waited_for_others_in_vain_are_given_up_soon_after_them() {
    let cluster = opened(3).await;
    let leader = cluster.leader().await;
    cluster.isolate(leader);
    let client = cluster.client(leader);
    let started = Instant::now();
    let first = client.ask(reserve_request(lease(), &[("rpm", 1)]));
    let second = async {
        tokio::time::sleep(TIMING.heartbeat).await;
        client.ask(reserve_request(lease(), &[("rpm", 1)])).await
    };
    let (first, second) = tokio::join!(first, second);
    assert!(first.is_err() && second.is_err());
    let soon = TIMING.deadline + TIMING.election * 5;
    assert!(started.elapsed() < soon, "{:?}", started.elapsed());
    cluster.net.heal();
    cluster.leader().await;
    cluster.agree().await;
}

/// A follower waited for its forwarded request until the deadline, and all later requests behind it, although a new
/// leader had been elected.
#[tokio::test(start_paused = true)]
async fn what_was_passed_on_to_a_leader_that_is_gone_is_passed_on_to_the_next_one() {
    for _ in 0..3 {
        let cluster = opened(3).await;
        let follower = cluster.follower().await;
        cluster.isolate(cluster.leader().await);
        let client = cluster.client(follower);
        let started = Instant::now();
        let (_, usage) = tokio::join!(client.admit(&[("rpm", 2)]), client.usage("rpm"));
        assert!(usage.reserved <= 2);
        assert!(started.elapsed() < TIMING.deadline, "{:?}", started.elapsed());
        assert_eq!(client.usage("rpm").await.reserved, 2);
        cluster.net.heal();
        cluster.leader().await;
        cluster.agree().await;
    }
}

/// Two of five nodes may fail.
#[tokio::test(start_paused = true)]
async fn a_minority_may_be_away() {
    let mut cluster = opened(5).await;
    let leader = cluster.leader().await;
    let away: Vec<u64> =
        [leader].into_iter().chain(cluster.running().into_iter().filter(|id| *id != leader)).take(2).collect();
    away.iter().for_each(|id| cluster.kill(*id));
    cluster.leader().await;
    cluster.client(cluster.running()[0]).admit(&[("rpm", 2)]).await;
    for id in away {
        cluster.start(id).await;
    }
    cluster.leader().await;
    cluster.agree().await;
}
