//! A write, a reserve and an extension, retried at every possible moment, have one effect and one answer each.

use std::sync::Arc;

use earmark_admission::{Backend as _, BackendError, ExtendAnswer, ExtendRequest, ReserveAnswer, WriteAnswer};
use earmark_core::{LeaseClaim, LeaseId, Principal};

use crate::support::client::{
    MINUTE, TestClient, amounts, credit, definition, issue, lease, namespace, open, reserve_request, transfer,
    write_request,
};
use crate::support::sim_cluster::{SMALL, Settings, SimCluster, TIMING};

/// An account with 1,000 usd, and limits on it. A lease holds 1 rpm and 10 usd.
async fn opened(settings: Settings) -> (SimCluster, Requests) {
    let cluster = SimCluster::of(3, settings).await;
    let client = cluster.client(1);
    client.write("setup", 1, vec![open("acme"), open("other"), issue("acme", 1_000)]).await;
    client.put(definition("rpm", MINUTE, 100)).await;
    client.put(credit("usd", "acme", 60)).await;
    let lease = client.admit(&[("rpm", 1), ("usd", 10)]).await.lease;
    let requests = Requests::new(lease);
    (cluster, requests)
}

/// The requests under test.
#[derive(Clone)]
struct Requests {
    write: earmark_admission::WriteRequest,
    reserve: earmark_admission::ReserveRequest,
    /// It adds to both limits of a lease that was reserved before.
    extend: ExtendRequest,
}

type Answers = (WriteAnswer, ReserveAnswer, ExtendAnswer);

impl Requests {
    fn new(extended: LeaseId) -> Requests {
        Requests {
            write: write_request("billing", 1, vec![transfer("acme", "other", 7)]),
            reserve: reserve_request(lease(), &[("rpm", 3), ("usd", 50)]),
            extend: ExtendRequest {
                namespace: namespace(),
                lease: extended,
                number: 1,
                add: amounts(&[("rpm", 2), ("usd", 20)]),
                used: amounts(&[("usd", 4)]),
                renew: true,
                claim: LeaseClaim::default(),
            },
        }
    }

    /// Sends all at once to a node.
    async fn ask(
        self,
        client: TestClient,
    ) -> (Result<WriteAnswer, BackendError>, Result<ReserveAnswer, BackendError>, Result<ExtendAnswer, BackendError>)
    {
        let extend = async { client.0.extend(Principal::System, vec![self.extend.clone()]).await.remove(0) };
        tokio::join!(client.try_write(self.write.clone()), client.ask(self.reserve.clone()), extend)
    }

    /// Sends all to a node, which must answer.
    async fn of(&self, cluster: &SimCluster, id: u64) -> Answers {
        let (written, reserved, extended) = self.clone().ask(cluster.client(id)).await;
        let answers = (written.unwrap(), reserved.unwrap(), extended.unwrap());
        assert!(matches!(answers.0, WriteAnswer::Committed(_)), "{answers:?}");
        assert!(matches!(answers.1, ReserveAnswer::Allowed { .. }), "{answers:?}");
        assert!(matches!(answers.2, ExtendAnswer::Extended { ends_at: Some(_), .. }), "{answers:?}");
        answers
    }

    /// Repeats all on every node and checks that each had one effect.
    async fn happened_once(&self, cluster: &SimCluster, first: &Answers) {
        for id in cluster.running() {
            assert_eq!(self.of(cluster, id).await, *first, "node {id} answers otherwise");
            let client = cluster.client(id);
            assert_eq!(client.balance_of("acme").await, (1_000 - 7 - 50 - 30, 80), "node {id}");
            assert_eq!(client.balance_of("other").await, (7, 0), "node {id}");
            assert_eq!(client.usage("rpm").await.reserved, 6, "node {id}");
        }
        cluster.agree().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_retry_after_the_answer_gets_the_same_answer_from_any_node() {
    let (cluster, requests) = opened(Settings::default()).await;
    let first = requests.of(&cluster, cluster.follower().await).await;
    requests.happened_once(&cluster, &first).await;
}

#[tokio::test(start_paused = true)]
async fn a_request_that_never_reached_the_log_is_carried_out_when_it_is_asked_again() {
    let (cluster, requests) = opened(Settings::default()).await;
    let cut_off = cluster.follower().await;
    cluster.isolate(cut_off);
    let (write, reserve, extend) = requests.clone().ask(cluster.client(cut_off)).await;
    assert!(write.is_err() && reserve.is_err() && extend.is_err(), "{write:?} {reserve:?} {extend:?}");
    cluster.net.heal();
    cluster.leader().await;
    let first = requests.of(&cluster, cut_off).await;
    requests.happened_once(&cluster, &first).await;
}

/// The leader appends and cannot commit. A new leader without the entries is elected, and the old leader's entries
/// are truncated.
#[tokio::test(start_paused = true)]
async fn what_was_appended_and_lost_with_its_leader_happens_once_when_it_is_asked_again() {
    let (cluster, requests) = opened(Settings::default()).await;
    let old = cluster.leader().await;
    cluster.isolate(old);
    let before = cluster.status(old).last_log_index;
    let (write, reserve, extend) = requests.clone().ask(cluster.client(old)).await;
    assert!(write.is_err() && reserve.is_err() && extend.is_err(), "{write:?} {reserve:?} {extend:?}");
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
    let (mut cluster, requests) = opened(Settings::default()).await;
    let old = cluster.leader().await;
    let index = cluster.status(old).last_log_index;
    let asking = tokio::spawn(requests.clone().ask(cluster.client(old)));
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
    let (mut cluster, requests) = opened(Settings::default()).await;
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
    let (mut cluster, requests) = opened(SMALL).await;
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
    let (cluster, requests) = opened(Settings::default()).await;
    let (cluster, requests) = (Arc::new(cluster), Arc::new(requests));
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
