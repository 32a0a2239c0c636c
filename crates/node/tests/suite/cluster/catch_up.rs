//! A lagging or new node catches up.

use earmark_admission::{Backend as _, CompleteRequest, PutLimitRequest, ReserveAnswer, ReserveRequest};
use earmark_core::{NamespaceName, Principal};

use crate::support::client::{SLOTS, Scenario, definition, issue, key, lease, reserve_request, write_request};
use crate::support::disk::SimDisk;
use crate::support::sample;
use crate::support::sim_cluster::{SMALL, Settings, SimCluster, TIMING, until};

async fn all_show_the_same(cluster: &SimCluster, scenario: &Scenario) {
    cluster.agree().await;
    let ids = cluster.running();
    let expected = scenario.visible_state(&cluster.client(ids[0])).await;
    for id in ids {
        assert_eq!(scenario.visible_state(&cluster.client(id)).await, expected, "node {id}");
    }
}

/// Every node makes a snapshot and purges its log.
async fn forget_the_log(cluster: &SimCluster) {
    for id in cluster.running() {
        cluster.node(id).snapshot().await.unwrap();
    }
    tokio::time::sleep(TIMING.election).await;
}

#[tokio::test(start_paused = true)]
async fn a_node_that_was_away_for_a_short_time_catches_up_by_log() {
    let mut cluster = SimCluster::of(3, Settings::default()).await;
    let away = cluster.follower().await;
    cluster.kill(away);
    let leader = cluster.leader().await;
    let scenario = Scenario::run(&cluster.client(leader)).await;
    cluster.start(away).await;
    cluster.leader().await;
    let shown = scenario.visible_state(&cluster.client(away)).await;
    assert_eq!(shown, scenario.visible_state(&cluster.client(leader)).await);
    assert_eq!(cluster.status(away).snapshot_index, None);
    all_show_the_same(&cluster, &scenario).await;
}

#[tokio::test(start_paused = true)]
async fn a_node_that_was_away_for_long_catches_up_by_snapshot_and_journal() {
    let mut cluster = SimCluster::of(3, SMALL).await;
    let leader = cluster.leader().await;
    // It has part of the journal already, so only the rest is sent.
    let mut scenario = Scenario::run(&cluster.client(leader)).await;
    let away = cluster.follower().await;
    cluster.stop(away).await;
    cluster.leader().await;
    for sequence in 1..20 {
        scenario.write(&cluster.client(leader), write_request("load", sequence, vec![issue("acme", 1)])).await;
    }
    forget_the_log(&cluster).await;
    let behind = cluster.status(leader).snapshot_index;
    scenario.write(&cluster.client(leader), write_request("load", 20, vec![issue("acme", 1)])).await;
    cluster.start(away).await;
    cluster.leader().await;
    scenario.repeat_all(&cluster.client(away)).await;
    assert_eq!(cluster.status(away).snapshot_index, behind);
    all_show_the_same(&cluster, &scenario).await;
    // The installed snapshot survives a power cut.
    cluster.crash(away, 7);
    cluster.start(away).await;
    cluster.leader().await;
    all_show_the_same(&cluster, &scenario).await;
}

/// Only the header of a received snapshot was checked. A snapshot damaged on the sender's disk stopped every node
/// that received it.
#[tokio::test(start_paused = true)]
async fn a_damaged_snapshot_is_refused_and_the_next_one_is_taken() {
    let mut cluster = SimCluster::of(1, SMALL).await;
    let mut scenario = Scenario::run(&cluster.client(1)).await;
    forget_the_log(&cluster).await;
    let disk = cluster.hosts[&1].disk.clone();
    let path = disk.paths().into_iter().find(|path| path.ends_with(".snapshot")).unwrap();
    disk.corrupt(&path, disk.bytes(&path).len() - 20, 1);
    cluster.join(2).await;
    tokio::time::sleep(TIMING.deadline).await;
    assert_eq!(cluster.node(2).failure().get(), None);
    assert!(!cluster.is_voter(2) && cluster.status(2).snapshot_index.is_none());
    scenario.reserve(&cluster.client(1), &[("rpm", 1)]).await;
    cluster.node(1).snapshot().await.unwrap();
    until("node 2 is a voter", || cluster.is_voter(2)).await;
    all_show_the_same(&cluster, &scenario).await;
}

/// The journal received with a snapshot was stored twice: as received, and as the journal.
#[tokio::test(start_paused = true)]
async fn what_arrived_with_a_snapshot_is_not_kept_besides() {
    let mut cluster = SimCluster::of(1, SMALL).await;
    Scenario::run(&cluster.client(1)).await;
    forget_the_log(&cluster).await;
    cluster.add(2).await;
    assert!(cluster.status(2).snapshot_index.is_some(), "it must have come by snapshot");
    let left: Vec<String> = cluster.hosts[&2].disk.paths();
    assert!(!left.iter().any(|path| path.contains("incoming")), "{left:?}");
    cluster.agree().await;
}

#[tokio::test(start_paused = true)]
async fn a_new_node_gets_the_snapshot_and_the_whole_journal() {
    let mut cluster = SimCluster::of(1, SMALL).await;
    let mut scenario = Scenario::run(&cluster.client(1)).await;
    forget_the_log(&cluster).await;
    scenario.reserve(&cluster.client(1), &[("rpm", 1)]).await;
    cluster.add(2).await;
    cluster.add(3).await;
    all_show_the_same(&cluster, &scenario).await;
    cluster.kill(1);
    cluster.leader().await;
    scenario.repeat_all(&cluster.client(2)).await;
    cluster.start(1).await;
    cluster.leader().await;
    all_show_the_same(&cluster, &scenario).await;
}

/// A follower built its answers from its own Book, which may lag behind the leader's outcome. A node that had just
/// restarted denied without naming the limit, reported missing credit as an error, and did not know a new namespace.
#[tokio::test(start_paused = true)]
async fn a_node_that_is_just_back_answers_like_one_that_was_never_away() {
    let mut cluster = SimCluster::of(3, Settings::default()).await;
    let away = cluster.follower().await;
    cluster.kill(away);
    let leader = cluster.leader().await;
    let client = cluster.client(leader);
    let scenario = Scenario::run(&client).await;
    let team = NamespaceName::new("team").unwrap();
    let definition = definition("calls", SLOTS, 2);
    let put = PutLimitRequest { namespace: team.clone(), definition, expected_revision: None };
    client.0.put_limit(Principal::System, put).await.unwrap();
    let in_team = |amount| ReserveRequest { namespace: team.clone(), ..reserve_request(lease(), &[("calls", amount)]) };
    let taken = in_team(2);
    client.ask(taken.clone()).await.unwrap();
    let complete = || {
        let actuals = Vec::new();
        vec![CompleteRequest {
            namespace: team.clone(),
            lease: taken.lease,
            job: None,
            claim: earmark_core::LeaseClaim::default(),
            actuals,
            labels: earmark_core::SettleLabels::NONE,
        }]
    };
    for round in 0..4 {
        cluster.start(away).await;
        let client = cluster.client(away);
        match round {
            0 => scenario.repeat_all(&client).await,
            1 => match client.ask(reserve_request(lease(), &[("tokens", 1)])).await.unwrap() {
                ReserveAnswer::Denied { limited_by, .. } => assert_eq!(limited_by, [key("tokens")]),
                other => panic!("{other:?}"),
            },
            2 => match client.ask(in_team(1)).await.unwrap() {
                ReserveAnswer::Denied { limited_by, .. } => assert_eq!(limited_by, [key("calls")]),
                other => panic!("{other:?}"),
            },
            _ => assert!(client.0.complete(Principal::System, complete()).await.pop().unwrap().unwrap().reconciled),
        }
        cluster.kill(away);
    }
    cluster.start(away).await;
    cluster.leader().await;
    cluster.agree().await;
}

/// Snapshots are triggered by log growth alone.
#[tokio::test(start_paused = true)]
async fn the_log_stays_short_by_itself_and_late_nodes_still_catch_up() {
    let mut cluster = SimCluster::of(3, Settings { snapshot_bytes: 3_000, ..SMALL }).await;
    let mut scenario = Scenario::run(&cluster.client(1)).await;
    let away = cluster.follower().await;
    for round in 0..4 {
        cluster.kill(away);
        cluster.leader().await;
        let client = cluster.client(cluster.running()[0]);
        for sequence in 1..60 {
            scenario.write(&client, write_request("load", round * 59 + sequence, vec![issue("acme", 1)])).await;
        }
        tokio::time::sleep(TIMING.deadline).await;
        cluster.start(away).await;
        cluster.leader().await;
    }
    let log = |id: u64| {
        let disk = &cluster.hosts[&id].disk;
        disk.paths().iter().filter(|path| path.starts_with("log/0")).map(|path| disk.bytes(path).len()).sum::<usize>()
    };
    for id in cluster.running() {
        assert!(log(id) < 20_000, "the log of node {id} has {} bytes", log(id));
    }
    all_show_the_same(&cluster, &scenario).await;
}

/// openraft purges the log while the snapshot that replaces it is still being installed. A power cut in between left
/// neither, and the node could not start.
#[tokio::test(start_paused = true)]
async fn a_node_whose_power_goes_at_any_moment_of_an_installation_can_be_started_again() {
    let mut cluster = SimCluster::of(3, SMALL).await;
    let away = cluster.follower().await;
    let mut scenario = Scenario::run(&cluster.client(away)).await;
    cluster.stop(away).await;
    let mut leader = cluster.leader().await;
    for sequence in 1..10 {
        scenario.write(&cluster.client(leader), write_request("load", sequence, vec![issue("acme", 1)])).await;
    }
    forget_the_log(&cluster).await;
    let left = cluster.hosts[&away].disk.copy();
    let mut installed = 0;
    for changes in sample(90) {
        // Disk work is slow, so concurrent work can overtake it.
        let disk: SimDisk = left.copy().with_latency(changes, TIMING.heartbeat / 4);
        cluster.hosts.get_mut(&away).unwrap().disk = disk.clone();
        disk.cut_power_after(changes);
        if cluster.try_start(away).await.is_ok() {
            tokio::time::sleep(TIMING.election * 2).await;
        }
        cluster.crash(away, changes);
        cluster.try_start(away).await.unwrap_or_else(|error| panic!("after {changes} changes: {error}"));
        cluster.leader().await;
        let client = cluster.client(away);
        assert_eq!(
            scenario.visible_state(&client).await,
            scenario.visible_state(&cluster.client(leader)).await,
            "{changes}"
        );
        installed += u64::from(cluster.status(away).snapshot_index.is_some());
        cluster.stop(away).await;
        // A leader remembers a follower's progress, and the next round uses an older disk.
        for id in cluster.running() {
            cluster.stop(id).await;
        }
        for id in [1, 2, 3].into_iter().filter(|id| *id != away) {
            cluster.start(id).await;
        }
        leader = cluster.leader().await;
    }
    assert!(installed > 12, "{installed} installations prove little");
}
