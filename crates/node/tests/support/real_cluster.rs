//! Nodes in one process, on real files and sockets.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use earmark_admission::{Cluster as _, ManualClock, TimeSource};
use earmark_node::{Node, NodeOptions, RealDisk, Timing};
use tempfile::TempDir;

/// Fast enough for tests, slow enough for a busy machine.
pub const TIMING: Timing = Timing {
    heartbeat: Duration::from_millis(100),
    election: Duration::from_millis(500),
    deadline: Duration::from_secs(10),
};

pub struct Folder {
    _keep: TempDir,
    pub path: PathBuf,
}

pub fn folder() -> Folder {
    let keep = TempDir::new().unwrap();
    let path = keep.path().join("data");
    Folder { _keep: keep, path }
}

pub fn options(folder: &Folder, time: Arc<dyn TimeSource>) -> NodeOptions {
    let disk = Arc::new(RealDisk::new(&folder.path).unwrap());
    NodeOptions { time, timing: TIMING, ..NodeOptions::new(disk) }
}

/// A one-node cluster.
pub async fn one(folder: &Folder, clock: &Arc<ManualClock>) -> Node {
    let node = Node::open(options(folder, Arc::clone(clock) as _)).await.unwrap();
    until(|| node.status().leader.is_some()).await;
    node
}

/// Nodes 1 to `count`; node 1 starts the cluster.
pub async fn several(count: u64, clock: &Arc<ManualClock>) -> (Vec<Folder>, Vec<Node>) {
    let mut folders = Vec::new();
    let mut nodes: Vec<Node> = Vec::new();
    for id in 1..=count {
        let folder = folder();
        let join = nodes.first().and_then(Node::peer_address).map(str::to_owned);
        let node = Node::open(NodeOptions {
            id: Some(id),
            peer_listen: Some("127.0.0.1:0".into()),
            bootstrap: if join.is_none() { vec!["127.0.0.1:0".into()] } else { Vec::new() },
            join: join.into_iter().collect(),
            trusts_peers: true,
            ..options(&folder, Arc::clone(clock) as _)
        });
        nodes.push(node.await.unwrap());
        folders.push(folder);
    }
    for node in &nodes {
        until(|| {
            let status = node.status();
            let voters = status.members.iter().filter(|member| member.is_voter).count();
            status.leader.is_some() && voters as u64 == count
        })
        .await;
    }
    (folders, nodes)
}

/// Checks that all nodes have byte-identical snapshots and journals.
pub async fn agree(nodes: &[Node], folders: &[Folder]) {
    // An idle cluster may still expire items between two comparisons.
    for _ in 0..20 {
        let last = || nodes.iter().map(|node| node.status().last_log_index).max().flatten();
        until(|| nodes.iter().all(|node| node.status().applied_index == last())).await;
        let mut files = Vec::new();
        for (node, folder) in nodes.iter().zip(folders) {
            files.push((node.snapshot().await.unwrap(), state_files(folder)));
        }
        if files.iter().all(|(index, _)| *index == files[0].0) {
            assert!(files.iter().all(|file| *file == files[0]), "the nodes differ at entry {:?}", files[0].0);
            return;
        }
    }
    panic!("the nodes were never at the same entry");
}

/// Snapshot and journal files of a node.
fn state_files(folder: &Folder) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    for inner in ["snapshot", "journal"] {
        for file in fs::read_dir(folder.path.join(inner)).unwrap() {
            let file = file.unwrap();
            let name = format!("{inner}/{}", file.file_name().to_string_lossy());
            files.insert(name, fs::read(file.path()).unwrap());
        }
    }
    files
}

/// Waits up to a minute for a condition, because a busy machine needs several elections.
pub async fn until(mut happened: impl FnMut() -> bool) {
    for _ in 0..6_000 {
        if happened() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("condition not met within a minute");
}

/// Starts a node again. The tasks of its last run may hold its folder and its port for a moment.
pub async fn reopen(options: impl Fn() -> NodeOptions) -> Node {
    for _ in 0..600 {
        if let Ok(node) = Node::open(options()).await {
            return node;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Node::open(options()).await.unwrap()
}
