//! Every byte of every file of a stopped node, flipped or truncated, or the file removed. The node starts with
//! exactly the old state, or refuses and names the file.

use earmark_admission::{Cluster as _, ManualClock};
use earmark_node::{Disk as _, LogOptions, Node, NodeOptions};

use crate::support::client::{START_MS, Scenario, TestClient, try_visible_state};
use crate::support::disk::SimDisk;
use crate::support::is_exhaustive;
use crate::support::sim_cluster::{SMALL, SimCluster, SimHost, TIMING};

/// The two slots of `vote` and `log/mark`; the bytes between them are never read.
const SLOTS: [std::ops::Range<usize>; 2] = [0..96, 4096..4192];
/// Header of an index. The rest is one page, nearly all of it zero and covered by one checksum.
const INDEX_HEAD: std::ops::Range<usize> = 0..96;

#[derive(Clone, Copy, Debug)]
enum Damage {
    Flip { at: usize, xor: u8 },
    Cut { at: usize },
    Remove,
}

impl Damage {
    fn to(self, disk: &SimDisk, path: &str) {
        match self {
            Damage::Flip { at, xor } => disk.corrupt(path, at, xor),
            Damage::Cut { at } => disk.truncate(path, at),
            Damage::Remove => {
                disk.remove(path).unwrap();
                disk.sync_dir(path.rsplit_once('/').map_or("", |(folder, _)| folder)).unwrap();
            }
        }
    }
}

fn damages(path: &str, len: usize) -> Vec<Damage> {
    let is_worth = |at: &usize| match path {
        "vote" | "log/mark" => at.is_multiple_of(397) || SLOTS.iter().any(|slot| slot.contains(at)),
        _ if path.ends_with(".index") => at.is_multiple_of(131) || INDEX_HEAD.contains(at),
        _ => true,
    };
    let each = |at: usize| {
        // A different bit at every offset, and sometimes all bits or a truncation.
        let bit = 1_u8.rotate_left(u32::try_from(at % 8).unwrap());
        let cut = (is_exhaustive() || at.is_multiple_of(4)).then_some(Damage::Cut { at });
        let all = at.is_multiple_of(9).then_some(Damage::Flip { at, xor: 0xff });
        [Damage::Flip { at, xor: bit }].into_iter().chain(cut).chain(all)
    };
    (0..len).filter(is_worth).flat_map(each).chain([Damage::Remove]).collect()
}

/// A node with a snapshot and later entries.
async fn made() -> (SimCluster, Scenario, Vec<String>) {
    let cluster = SimCluster::of(1, SMALL).await;
    let client = cluster.client(1);
    let mut scenario = Scenario::run(&client).await;
    cluster.node(1).snapshot().await.unwrap();
    // The log is purged in the background.
    tokio::time::sleep(TIMING.election).await;
    scenario.reserve(&client, &[("rpm", 2), ("usd", 3)]).await;
    scenario.reserve(&client, &[("slots", 1)]).await;
    let visible_state = scenario.visible_state(&client).await;
    (cluster, scenario, visible_state)
}

/// Opens a disk as a single node. Returns its visible state, or the reason of its refusal.
async fn start(disk: &SimDisk, scenario: &Scenario) -> Result<Vec<String>, String> {
    let options = NodeOptions {
        timing: TIMING,
        time: ManualClock::at(START_MS) as _,
        log: LogOptions { segment_bytes: SMALL.segment_bytes, cache_bytes: 10_000 },
        keep_entries: 0,
        journal_segment_bytes: SMALL.journal_segment_bytes,
        ..NodeOptions::new(disk.mount())
    };
    let node = Node::open(options).await.map_err(|error| error.to_string())?;
    let client = TestClient(node.backend());
    while node.status().leader.is_none() {
        if let Some(failure) = node.failure().get() {
            return Err(failure.to_owned());
        }
        tokio::time::sleep(TIMING.heartbeat).await;
    }
    // Damage in a file that the start does not read is found by a later read.
    let visible_state = tokio::spawn({
        let (client, leases) = (client.clone(), scenario.leases.clone());
        async move { try_visible_state(&client, &leases).await }
    });
    let visible_state = visible_state.await.unwrap();
    disk.kill();
    visible_state
}

async fn damage_everywhere(disk: &SimDisk, scenario: &Scenario, expected: &[String]) {
    assert_eq!(start(&disk.copy(), scenario).await.unwrap(), expected, "without any damage");
    let (mut started, mut refused) = (0, 0);
    for path in disk.paths() {
        for damage in damages(&path, disk.bytes(&path).len()) {
            let disk = disk.copy();
            damage.to(&disk, &path);
            match start(&disk, scenario).await {
                Ok(found) => {
                    started += 1;
                    assert_eq!(found, expected, "{path}, {damage:?}");
                }
                Err(message) => {
                    refused += 1;
                    let folder = path.rsplit_once('/').map_or(path.as_str(), |(folder, _)| folder);
                    let is_named = message.contains(&format!("sim:/{path}"))
                        || matches!(damage, Damage::Remove) && message.contains(&format!("sim:/{folder}"));
                    assert!(is_named, "{path}, {damage:?}: {message}");
                }
            }
        }
    }
    assert!(started > 150 && refused > 500, "{started} started and {refused} refused prove little");
}

#[tokio::test(start_paused = true)]
async fn a_node_that_was_stopped_starts_right_or_refuses_whatever_byte_is_damaged() {
    let (mut cluster, scenario, visible_state) = made().await;
    cluster.stop(1).await;
    let SimHost { disk, .. } = &cluster.hosts[&1];
    for kind in ["log/", "journal/", "snapshot/"] {
        assert!(disk.paths().iter().any(|path| path.starts_with(kind)), "{:?}", disk.paths());
    }
    damage_everywhere(disk, &scenario, &visible_state).await;
}

#[tokio::test(start_paused = true)]
async fn a_node_that_was_killed_starts_right_or_refuses_whatever_byte_is_damaged() {
    let (mut cluster, scenario, visible_state) = made().await;
    cluster.kill(1);
    damage_everywhere(&cluster.hosts[&1].disk, &scenario, &visible_state).await;
}
