//! Links with limited bandwidth.

use std::time::Duration;

use crate::support::client::{issue, open};
use crate::support::sim_cluster::{Settings, SimCluster, until};

/// One message took longer than a heartbeat, and was then sent again from the start. A new node on a slow link
/// received hundreds of megabytes but no entry of a four-megabyte log.
#[tokio::test(start_paused = true)]
async fn a_new_node_catches_up_over_a_slow_link() {
    // 100 Mbit/s.
    let mut cluster = SimCluster::empty(Settings { bytes_per_ms: Some(12_500), ..Settings::default() });
    cluster.join(1).await;
    load(&cluster, 400).await;
    cluster.join(2).await;
    until("node 2 is a voter", || cluster.is_voter(2)).await;
    cluster.agree().await;
}

/// Makes the log and the journal of node 1 long.
async fn load(cluster: &SimCluster, writes: u64) {
    cluster.leader().await;
    cluster.client(1).write("load", 1, vec![open("acme")]).await;
    for sequence in 2..writes {
        cluster.client(1).write("load", sequence, vec![issue("acme", 1); 256]).await;
    }
}

/// A snapshot with its journal had ten minutes, and was then sent again from the start. A node with a slower link
/// could never join.
#[tokio::test(start_paused = true)]
async fn a_journal_may_take_as_long_to_arrive_as_it_needs() {
    let bytes_per_ms = 12;
    let settings = Settings { keep_entries: 0, segment_bytes: 100_000, ..Settings::default() };
    let mut cluster = SimCluster::empty(Settings { bytes_per_ms: Some(bytes_per_ms), ..settings });
    cluster.join(1).await;
    load(&cluster, 800).await;
    cluster.node(1).snapshot().await.unwrap();
    let disk = &cluster.hosts[&1].disk;
    let journal = disk.paths().into_iter().filter(|path| path.ends_with(".journal"));
    let bytes: usize = journal.map(|path| disk.bytes(&path).len()).sum();
    let takes = Duration::from_millis(bytes as u64 / bytes_per_ms);
    assert!(takes > Duration::from_secs(700), "{takes:?} proves little");
    cluster.join(2).await;
    tokio::time::sleep(takes).await;
    until("node 2 is a voter", || cluster.is_voter(2)).await;
    cluster.agree().await;
}
