//! Nodes in one process, on simulated disks and a simulated network, each with its own clock. Runs under tokio's
//! paused time, so waiting for an election costs no real time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use earmark_admission::{Cluster as _, ClusterStatus, ManualClock};
use earmark_node::{LogOptions, Node, NodeError, NodeOptions, Timing};

use super::client::{START_MS, TestClient};
use super::disk::SimDisk;
use super::net::SimNet;

pub const TIMING: Timing = Timing {
    heartbeat: Duration::from_millis(100),
    election: Duration::from_millis(500),
    deadline: Duration::from_secs(3),
};

/// Sizes that tests override.
#[derive(Clone, Copy)]
pub struct Settings {
    pub snapshot_bytes: u64,
    pub keep_entries: u64,
    pub segment_bytes: u64,
    pub journal_segment_bytes: u64,
    /// Bandwidth of each node; unlimited by default.
    pub bytes_per_ms: Option<u64>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            snapshot_bytes: u64::MAX,
            keep_entries: 1_000,
            segment_bytes: 64 << 20,
            journal_segment_bytes: 16 << 20,
            bytes_per_ms: None,
        }
    }
}

/// Tiny files: many segments, and no log entries behind a snapshot.
pub const SMALL: Settings = Settings {
    snapshot_bytes: u64::MAX,
    keep_entries: 0,
    segment_bytes: 300,
    journal_segment_bytes: 400,
    bytes_per_ms: None,
};

/// Disk, clock and process of one node.
pub struct SimHost {
    pub disk: SimDisk,
    pub clock: Arc<ManualClock>,
    pub node: Option<Node>,
}

/// A simulated cluster.
pub struct SimCluster {
    pub net: SimNet,
    pub hosts: BTreeMap<u64, SimHost>,
    pub settings: Settings,
}

pub fn address(id: u64) -> String {
    format!("node-{id}:1")
}

impl SimCluster {
    pub fn empty(settings: Settings) -> SimCluster {
        SimCluster { net: SimNet::new(), hosts: BTreeMap::new(), settings }
    }

    /// A cluster of nodes 1 to `count`, all of them voters.
    pub async fn of(count: u64, settings: Settings) -> SimCluster {
        let mut cluster = SimCluster::empty(settings);
        for id in 1..=count {
            cluster.add(id).await;
        }
        cluster.leader().await;
        cluster
    }

    /// Adds a node and waits until it is a voter.
    pub async fn add(&mut self, id: u64) {
        self.join(id).await;
        until(&format!("node {id} is a voter"), || self.is_voter(id)).await;
    }

    /// Starts a new node without waiting for its membership.
    pub async fn join(&mut self, id: u64) {
        self.insert(id);
        self.start(id).await;
    }

    /// Adds a host without a node.
    pub fn insert(&mut self, id: u64) {
        let clock = ManualClock::at(START_MS);
        self.hosts.insert(id, SimHost { disk: SimDisk::new(), clock, node: None });
    }

    pub fn is_voter(&self, id: u64) -> bool {
        self.status(id).members.iter().any(|member| member.node == id && member.is_voter)
    }

    pub fn options(&self, id: u64) -> NodeOptions {
        let host = &self.hosts[&id];
        let others = self.hosts.iter().filter(|(other, host)| **other != id && host.node.is_some());
        let join: Vec<String> = others.map(|(other, _)| address(*other)).collect();
        NodeOptions {
            id: Some(id),
            peer_listen: Some(address(id)),
            bootstrap: if join.is_empty() { vec![address(id)] } else { Vec::new() },
            join,
            timing: TIMING,
            time: Arc::clone(&host.clock) as _,
            net: Arc::new(self.net.at(&address(id)).limited(self.settings.bytes_per_ms)),
            log: LogOptions { segment_bytes: self.settings.segment_bytes, cache_bytes: 10_000 },
            snapshot_bytes: self.settings.snapshot_bytes,
            keep_entries: self.settings.keep_entries,
            journal_segment_bytes: self.settings.journal_segment_bytes,
            trusts_peers: true,
            ..NodeOptions::new(host.disk.mount())
        }
    }

    pub async fn try_start(&mut self, id: u64) -> Result<(), NodeError> {
        let node = Node::open(self.options(id)).await?;
        self.hosts.get_mut(&id).unwrap().node = Some(node);
        Ok(())
    }

    pub async fn start(&mut self, id: u64) {
        self.try_start(id).await.unwrap();
    }

    /// Shuts a node down cleanly.
    pub async fn stop(&mut self, id: u64) {
        let node = self.hosts.get_mut(&id).unwrap().node.take().unwrap();
        node.shut_down().await;
        drop(node);
        self.hosts[&id].disk.kill();
    }

    /// Kills a node, like `kill -9`.
    pub fn kill(&mut self, id: u64) {
        let host = self.hosts.get_mut(&id).unwrap();
        host.disk.kill();
        drop(host.node.take());
    }

    /// Cuts and restores the power of a node.
    pub fn crash(&mut self, id: u64, seed: u64) {
        let host = self.hosts.get_mut(&id).unwrap();
        host.disk.crash(seed);
        drop(host.node.take());
    }

    pub fn node(&self, id: u64) -> &Node {
        self.hosts[&id].node.as_ref().unwrap()
    }

    pub fn client(&self, id: u64) -> TestClient {
        TestClient(self.node(id).backend())
    }

    pub fn status(&self, id: u64) -> ClusterStatus {
        self.node(id).status()
    }

    pub fn running(&self) -> Vec<u64> {
        self.hosts.iter().filter(|(_, host)| host.node.is_some()).map(|(id, _)| *id).collect()
    }

    /// Waits until all running nodes follow the same leader, and returns it.
    pub async fn leader(&self) -> u64 {
        self.leader_of(&self.running()).await
    }

    pub async fn leader_of(&self, ids: &[u64]) -> u64 {
        let led = || {
            let status = self.status(*ids.first()?);
            let leader = status.leader.filter(|leader| ids.contains(leader))?;
            let same = |id: &u64| {
                let other = self.status(*id);
                other.leader == Some(leader) && other.term == status.term
            };
            ids.iter().all(same).then_some(leader)
        };
        until("all follow one leader", || led().is_some()).await;
        led().unwrap()
    }

    pub async fn follower(&self) -> u64 {
        let leader = self.leader().await;
        self.running().into_iter().find(|id| *id != leader).unwrap()
    }

    /// Cuts all links of a node.
    pub fn isolate(&self, id: u64) {
        for other in self.hosts.keys().filter(|other| **other != id) {
            self.net.cut(&address(id), &address(*other));
        }
    }

    /// Advances all clocks.
    pub fn advance_ms(&self, ms: u64) {
        self.hosts.values().for_each(|host| host.clock.advance_ms(ms));
    }

    /// Checks that all nodes have byte-identical snapshots and journals.
    pub async fn agree(&self) {
        let ids = self.running();
        let last = || ids.iter().map(|id| self.status(*id).last_log_index).max().flatten();
        let done = |id: &u64| self.status(*id).applied_index == last();
        until("all have applied the same", || ids.iter().all(done)).await;
        let at = last();
        let mut first = None;
        for id in &ids {
            assert_eq!(self.node(*id).snapshot().await.unwrap(), at, "node {id}");
            let disk = &self.hosts[id].disk;
            let is_state = |path: &String| path.starts_with("journal/") || path.ends_with(".snapshot");
            let files: BTreeMap<String, Vec<u8>> =
                disk.paths().into_iter().filter(is_state).map(|path| (path.clone(), disk.bytes(&path))).collect();
            assert!(files.keys().any(|path| path.ends_with(".snapshot")), "node {id} has no snapshot");
            let (other, expected) = first.get_or_insert_with(|| (*id, files.clone()));
            assert!(files == *expected, "nodes {other} and {id} differ at entry {at:?}");
        }
        assert_eq!(last(), at, "something was written meanwhile");
    }
}

/// Waits up to a minute for a condition.
pub async fn until(what: &str, mut happened: impl FnMut() -> bool) {
    for _ in 0..6_000 {
        if happened() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("not met within a minute: {what}");
}
