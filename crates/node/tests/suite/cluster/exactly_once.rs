//! One write and one reserve, retried at every possible moment, have one effect and one answer.

use std::sync::Arc;

use earmark_admission::{ReserveAnswer, WriteAnswer};

use crate::support::client::{
    MINUTE, credit, definition, issue, lease, open, reserve_request, transfer, write_request,
};
use crate::support::sim_cluster::{SMALL, Settings, SimCluster, TIMING};

/// An account with 1,000 usd, and limits on it.
async fn opened(settings: Settings) -> SimCluster {
    let cluster = SimCluster::of(3, settings).await;
    let client = cluster.client(1);
    client.write("setup", 1, vec![open("acme"), open("other"), issue("acme", 1_000)]).await;
    client.put(definition("rpm", MINUTE, 100)).await;
    client.put(credit("usd", "acme", 60)).await;
    cluster
}

/// The write and the reserve under test.
struct RequestPair {
    write: earmark_admission::WriteRequest,
    reserve: earmark_admission::ReserveRequest,
}

impl RequestPair {
    fn new() -> RequestPair {
        RequestPair {
            write: write_request("billing", 1, vec![transfer("acme", "other", 7)]),
            reserve: reserve_request(lease(), &[("rpm", 3), ("usd", 50)]),
        }
    }

    /// Sends both to a node, which must answer.
    async fn of(&self, cluster: &SimCluster, id: u64) -> (WriteAnswer, ReserveAnswer) {
        let client = cluster.client(id);
        let answers =
            (client.try_write(self.write.clone()).await.unwrap(), client.ask(self.reserve.clone()).await.unwrap());
        assert!(matches!(answers.0, WriteAnswer::Committed(_)), "{answers:?}");
        assert!(matches!(answers.1, ReserveAnswer::Allowed { .. }), "{answers:?}");
        answers
    }

    /// Repeats both on every node and checks that each had one effect.
    async fn happened_once(&self, cluster: &SimCluster, first: &(WriteAnswer, ReserveAnswer)) {
        for id in cluster.running() {
            assert_eq!(self.of(cluster, id).await, *first, "node {id} answers otherwise");
            let client = cluster.client(id);
            assert_eq!(client.balance_of("acme").await, (1_000 - 7 - 50, 50), "node {id}");
            assert_eq!(client.balance_of("other").await, (7, 0), "node {id}");
            assert_eq!(client.usage("rpm").await.reserved, 3, "node {id}");
        }
        cluster.agree().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_retry_after_the_answer_gets_the_same_answer_from_any_node() {
    let cluster = opened(Settings::default()).await;
    let requests = RequestPair::new();
    let first = requests.of(&cluster, cluster.follower().await).await;
    requests.happened_once(&cluster, &first).await;
}

#[tokio::test(start_paused = true)]
async fn a_request_that_never_reached_the_log_is_carried_out_when_it_is_asked_again() {
    let cluster = opened(Settings::default()).await;
    let requests = RequestPair::new();
    let cut_off = cluster.follower().await;
    cluster.isolate(cut_off);
    let client = cluster.client(cut_off);
    let write = client.try_write(requests.write.clone());
    let (write, reserve) = tokio::join!(write, client.ask(requests.reserve.clone()));
    assert!(write.is_err() && reserve.is_err(), "{write:?} {reserve:?}");
    cluster.net.heal();
    cluster.leader().await;
    let first = requests.of(&cluster, cut_off).await;
    requests.happened_once(&cluster, &first).await;
}

/// The leader appends and cannot commit. A new leader without the entries is elected, and the old leader's entries
/// are truncated.
#[tokio::test(start_paused = true)]
async fn what_was_appended_and_lost_with_its_leader_happens_once_when_it_is_asked_again() {
    let cluster = opened(Settings::default()).await;
    let requests = RequestPair::new();
    let old = cluster.leader().await;
    cluster.isolate(old);
    let before = cluster.status(old).last_log_index;
    let client = cluster.client(old);
    let (write, reserve) = tokio::join!(client.try_write(requests.write.clone()), client.ask(requests.reserve.clone()));
    assert!(write.is_err() && reserve.is_err(), "{write:?} {reserve:?}");
    assert!(cluster.status(old).last_log_index > before, "it was to be appended");
    let others: Vec<u64> = cluster.running().into_iter().filter(|id| *id != old).collect();
    let new = cluster.leader_of(&others).await;
    let first = requests.of(&cluster, new).await;
    cluster.net.heal();
    cluster.leader().await;
    requests.happened_once(&cluster, &first).await;
}

/// The entries reach the followers, but the leader dies before their replies. The new leader commits them, and the
/// retry is logged a second time.
#[tokio::test(start_paused = true)]
async fn what_is_in_the_log_twice_has_one_effect() {
    let mut cluster = opened(Settings::default()).await;
    let requests = RequestPair::new();
    let old = cluster.leader().await;
    let index = cluster.status(old).last_log_index;
    let asking = {
        let (client, write, reserve) = (cluster.client(old), requests.write.clone(), requests.reserve.clone());
        tokio::spawn(async move { tokio::join!(client.try_write(write), client.ask(reserve)) })
    };
    // Wait until the followers have the entry; the leader dies before it can answer.
    let others: Vec<u64> = cluster.running().into_iter().filter(|id| *id != old).collect();
    let mut steps = 0;
    while others.iter().all(|id| cluster.status(*id).last_log_index <= index) {
        tokio::task::yield_now().await;
        steps += 1;
        assert!(steps < 1_000_000, "the followers never got it");
    }
    cluster.kill(old);
    asking.abort();
    cluster.leader().await;
    let entries = cluster.status(others[0]).last_log_index;
    let first = requests.of(&cluster, others[0]).await;
    assert!(cluster.status(others[0]).last_log_index > entries, "the retry is in the log as well");
    cluster.start(old).await;
    cluster.leader().await;
    requests.happened_once(&cluster, &first).await;
}

#[tokio::test(start_paused = true)]
async fn a_retry_after_a_failover_gets_the_first_answer() {
    let mut cluster = opened(Settings::default()).await;
    let requests = RequestPair::new();
    let first = requests.of(&cluster, 2).await;
    for _ in 0..3 {
        let leader = cluster.leader().await;
        cluster.kill(leader);
        cluster.leader().await;
        let other = cluster.running()[0];
        assert_eq!(requests.of(&cluster, other).await, first);
        cluster.start(leader).await;
        cluster.leader().await;
    }
    requests.happened_once(&cluster, &first).await;
}

#[tokio::test(start_paused = true)]
async fn a_retry_after_a_snapshot_was_installed_gets_the_first_answer() {
    let mut cluster = opened(SMALL).await;
    let requests = RequestPair::new();
    let away = cluster.follower().await;
    cluster.kill(away);
    cluster.leader().await;
    let other = cluster.running()[0];
    let first = requests.of(&cluster, other).await;
    for id in cluster.running() {
        cluster.node(id).snapshot().await.unwrap();
    }
    tokio::time::sleep(TIMING.election).await;
    cluster.start(away).await;
    cluster.leader().await;
    assert_eq!(requests.of(&cluster, away).await, first);
    assert!(cluster.status(away).snapshot_index.is_some(), "it was to come by snapshot");
    // The one that knows it from a snapshot alone leads, and answers.
    for id in cluster.running().into_iter().filter(|id| *id != away) {
        cluster.kill(id);
        cluster.start(id).await;
    }
    cluster.leader().await;
    requests.happened_once(&cluster, &first).await;
}

#[tokio::test(start_paused = true)]
async fn copies_at_once_through_all_nodes_are_one() {
    let cluster = Arc::new(opened(Settings::default()).await);
    let requests = Arc::new(RequestPair::new());
    let copies: Vec<_> = (0..30)
        .map(|copy| {
            let (cluster, requests) = (Arc::clone(&cluster), Arc::clone(&requests));
            tokio::spawn(async move { requests.of(&cluster, 1 + copy % 3).await })
        })
        .collect();
    let mut answers = Vec::new();
    for copy in copies {
        answers.push(copy.await.unwrap());
    }
    assert!(answers.iter().all(|answer| *answer == answers[0]), "{answers:?}");
    requests.happened_once(&cluster, &answers[0]).await;
}
