//! A backup is the data folder of a new cluster. It holds everything acknowledged before the request.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use earmark_admission::{Backend as _, ManualClock};
use earmark_core::{ClientId, VaultName};
use earmark_node::{Disk, Expected, Failure, Folder, LogOptions, LogStore, Node, recover};
use openraft::storage::RaftLogStorage as _;
use openraft::{CommittedLeaderId, Entry, EntryPayload, LogId};

use crate::support::client::{START_MS, Scenario, issue, namespace, open, write_request};
use crate::support::disk::SimDisk;
use crate::support::sim_cluster::{SMALL, Settings, SimCluster, SimHost, TIMING};

/// A cluster that starts from a disk.
pub async fn begun_with(disk: &SimDisk, settings: Settings) -> SimCluster {
    let mut cluster = SimCluster::empty(settings);
    disk.kill();
    let host = SimHost { disk: disk.clone(), clock: ManualClock::at(START_MS), node: None };
    cluster.hosts.insert(1, host);
    cluster.start(1).await;
    cluster.leader().await;
    cluster
}

#[tokio::test(start_paused = true)]
async fn a_backup_of_any_node_begins_a_cluster_that_has_everything() {
    for settings in [Settings::default(), SMALL] {
        let mut cluster = SimCluster::of(3, settings).await;
        let mut scenario = Scenario::run(&cluster.client(1)).await;
        cluster.node(1).snapshot().await.unwrap();
        scenario.reserve(&cluster.client(2), &[("rpm", 2), ("usd", 3)]).await;
        // Later terms; the backup has to continue after them.
        for _ in 0..2 {
            let leader = cluster.leader().await;
            cluster.kill(leader);
            cluster.leader().await;
            cluster.start(leader).await;
            cluster.leader().await;
        }
        let expected = scenario.visible_state(&cluster.client(1)).await;
        for id in 1..=3 {
            let disk = SimDisk::new();
            let backup = cluster.node(id).backup(disk.mount()).await.unwrap();
            assert!(backup.index.is_some() && backup.identity.cluster != cluster.node(id).identity().cluster);
            let again = cluster.node(id).backup(disk.mount()).await.unwrap_err().to_string();
            assert!(again.contains("sim:/"), "{again}");
            let mut other = begun_with(&disk, settings).await;
            assert_eq!(scenario.visible_state(&other.client(1)).await, expected, "from node {id}");
            scenario.repeat_all(&other.client(1)).await;
            scenario.write(&other.client(1), write_request("load", 1, vec![issue("acme", 1)])).await;
            other.add(2).await;
            other.add(3).await;
            other.kill(1);
            other.leader().await;
            scenario.repeat_all(&other.client(2)).await;
            other.start(1).await;
            other.leader().await;
            other.agree().await;
            scenario.writes.pop();
        }
        cluster.agree().await;
    }
}

/// Backups under load. Each holds a prefix of the writes, at least all that were acknowledged before it.
#[tokio::test(start_paused = true)]
async fn a_backup_under_load_has_all_that_was_acknowledged_before_it() {
    let cluster = Arc::new(SimCluster::of(3, Settings { snapshot_bytes: 2_000, ..SMALL }).await);
    cluster.client(1).write("load", 1, vec![open("acme"), issue("acme", 1)]).await;
    let acknowledged = Arc::new(AtomicU64::new(1));
    let load = tokio::spawn({
        let (cluster, acknowledged) = (Arc::clone(&cluster), Arc::clone(&acknowledged));
        async move {
            for sequence in 2.. {
                cluster.client(1 + sequence % 3).write("load", sequence, vec![issue("acme", 1)]).await;
                acknowledged.store(sequence, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    });
    for round in 0..10_u64 {
        tokio::time::sleep(Duration::from_millis(13 * round)).await;
        let disk = SimDisk::new().with_latency(round, Duration::from_millis(20));
        let before = acknowledged.load(Ordering::SeqCst);
        cluster.node(1 + round % 3).backup(disk.mount()).await.unwrap();
        let other = begun_with(&disk, Settings::default()).await;
        let main = VaultName::new(VaultName::MAIN).unwrap();
        let client = ClientId::new("load").unwrap();
        let has = other.client(1).0.client_state(namespace(), Some(main.clone()), client).await.unwrap();
        assert!(has >= before, "{before} were acknowledged, {has} are there");
        assert_eq!(other.client(1).balance_of("acme").await, (i128::from(has), 0));
        assert!(other.client(1).0.audit(namespace(), main).await.unwrap().balanced);
    }
    load.abort();
    assert!(acknowledged.load(Ordering::SeqCst) > 50);
}

#[tokio::test(start_paused = true)]
async fn a_backup_that_was_cut_off_is_no_data_folder_or_a_whole_one() {
    let cluster = SimCluster::of(1, SMALL).await;
    let scenario = Scenario::run(&cluster.client(1)).await;
    let expected = scenario.visible_state(&cluster.client(1)).await;
    let whole = SimDisk::new();
    cluster.node(1).backup(whole.mount()).await.unwrap();
    let mut begun = 0;
    // The last changes complete the data folder.
    let all = whole.changes();
    for changes in (0..all).filter(|changes| changes % 7 == 0 || changes + 12 > all) {
        let disk = SimDisk::new();
        disk.cut_power_after(changes);
        cluster.node(1).backup(disk.mount()).await.unwrap_err();
        disk.crash(changes);
        let (folder, lock) = Folder::take(&*disk.mount(), Expected::default()).unwrap();
        drop(lock);
        match folder {
            // An incomplete backup can be repeated.
            Folder::New => _ = cluster.node(1).backup(disk.mount()).await.unwrap(),
            Folder::Made(_) => begun += 1,
        }
        let other = begun_with(&disk, SMALL).await;
        assert_eq!(scenario.visible_state(&other.client(1)).await, expected, "after {changes} changes");
    }
    assert!(begun < 10, "{begun} were whole before they were done");
}

/// Two of three nodes are lost. The log of the third is recovered, committed or not.
#[tokio::test(start_paused = true)]
async fn what_is_left_of_a_cluster_begins_a_new_one() {
    for seed in 0..4 {
        let mut cluster = SimCluster::of(3, SMALL).await;
        let mut scenario = Scenario::run(&cluster.client(1)).await;
        let left = if seed % 2 == 0 { cluster.leader().await } else { cluster.follower().await };
        if seed % 4 < 2 {
            cluster.node(left).snapshot().await.unwrap();
            tokio::time::sleep(TIMING.election).await;
            scenario.reserve(&cluster.client(1), &[("rpm", 2), ("usd", 3)]).await;
        }
        let expected = scenario.visible_state(&cluster.client(left)).await;
        for id in cluster.running() {
            cluster.crash(id, seed);
        }
        let target = SimDisk::new();
        let source = cluster.hosts[&left].disk.clone();
        recover(source.mount(), target.mount(), None).await.unwrap();
        let again = recover(source.mount(), target.mount(), None).await.unwrap_err().to_string();
        assert!(again.contains("data folder of a node already"), "{again}");
        let usual = Settings::default().journal_segment_bytes;
        let mut other = begun_with(&target, Settings { journal_segment_bytes: usual, ..SMALL }).await;
        assert_eq!(scenario.visible_state(&other.client(1)).await, expected);
        scenario.repeat_all(&other.client(1)).await;
        other.add(2).await;
        other.agree().await;
    }
    let nothing: Arc<dyn Disk> = SimDisk::new().mount();
    let error = recover(nothing, SimDisk::new().mount(), None).await.unwrap_err().to_string();
    assert!(error.contains("identity"), "{error}");
}

/// A committed entry that cannot be decoded stopped the node at every start, and nothing got it out of its log.
#[tokio::test(start_paused = true)]
async fn a_log_with_an_entry_that_cannot_be_applied_is_recovered_up_to_that_entry() {
    let mut cluster = SimCluster::of(1, Settings::default()).await;
    let scenario = Scenario::run(&cluster.client(1)).await;
    let expected = scenario.visible_state(&cluster.client(1)).await;
    let identity = cluster.node(1).identity();
    cluster.stop(1).await;
    let disk = cluster.hosts[&1].disk.clone();
    let failure = Failure::default();
    let mut log = LogStore::open(disk.mount(), identity.cluster, LogOptions::default(), failure).await.unwrap();
    let last = log.get_log_state().await.unwrap().last_log_id.unwrap();
    let (sender, done) = tokio::sync::oneshot::channel();
    let log_id = LogId::new(CommittedLeaderId::new(last.leader_id.term, last.leader_id.node_id), last.index + 1);
    let garbage = Entry { log_id, payload: EntryPayload::Normal(bytes::Bytes::from_static(&[1, 0xff, 0xff]).into()) };
    log.append_entries(vec![garbage], Box::new(|result| _ = sender.send(result))).await.unwrap();
    done.await.unwrap().unwrap();
    log.close().await.unwrap();
    drop(log);
    disk.kill();

    let node = Node::open(cluster.options(1)).await.unwrap();
    let why = tokio::time::timeout(TIMING.deadline * 4, node.failure().wait()).await.unwrap();
    let damaged = format!("entry {} of the log cannot be applied", log_id.index);
    assert!(why.contains(&damaged) && why.contains("docs/operating.md"), "{why}");
    node.shut_down().await;
    drop(node);
    disk.kill();
    let error = recover(disk.mount(), SimDisk::new().mount(), None).await.unwrap_err().to_string();
    assert!(error.contains(&damaged), "{error}");
    disk.kill();
    let target = SimDisk::new();
    recover(disk.mount(), target.mount(), Some(last.index)).await.unwrap();
    let mut other = begun_with(&target, Settings::default()).await;
    assert_eq!(scenario.visible_state(&other.client(1)).await, expected);
    other.add(2).await;
    other.agree().await;
}
