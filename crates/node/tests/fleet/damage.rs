//! Every byte of every file of a stopped node, flipped or truncated, or the file removed. The node starts with
//! exactly the old state, or refuses and names the file.

use earmark_admission::{Cluster as _, ManualClock};
use earmark_node::{Disk as _, LogOptions, Node, NodeOptions};

use crate::support::desk::{Desk, START_MS, Story, try_picture};
use crate::support::disk::SimDisk;
use crate::support::fleet::{Fleet, SMALL, Seat, TIMING};

/// The two slots of `vote` and `log/mark`; the bytes between them are never read.
const SLOTS: [std::ops::Range<usize>; 2] = [0..96, 4096..4192];
/// Header of an index. The rest is one page, nearly all of it zero and covered by one checksum.
const INDEX_HEAD: std::ops::Range<usize> = 0..96;

/// Damage to a file.
#[derive(Clone, Copy, Debug)]
enum Harm {
    Flip { at: usize, xor: u8 },
    Cut { at: usize },
    Remove,
}

impl Harm {
    fn to(self, disk: &SimDisk, path: &str) {
        match self {
            Harm::Flip { at, xor } => disk.corrupt(path, at, xor),
            Harm::Cut { at } => disk.truncate(path, at),
            Harm::Remove => {
                disk.remove(path).unwrap();
                disk.sync_dir(path.rsplit_once('/').map_or("", |(folder, _)| folder)).unwrap();
            }
        }
    }
}

fn harms(path: &str, len: usize) -> Vec<Harm> {
    let is_worth = |at: &usize| match path {
        "vote" | "log/mark" => at.is_multiple_of(397) || SLOTS.iter().any(|slot| slot.contains(at)),
        _ if path.ends_with(".index") => at.is_multiple_of(131) || INDEX_HEAD.contains(at),
        _ => true,
    };
    let each = |at: usize| {
        // A different bit at every offset, and sometimes all bits.
        let bit = 1_u8.rotate_left(u32::try_from(at % 8).unwrap());
        let all = at.is_multiple_of(3).then_some(Harm::Flip { at, xor: 0xff });
        [Harm::Flip { at, xor: bit }, Harm::Cut { at }].into_iter().chain(all)
    };
    (0..len).filter(is_worth).flat_map(each).chain([Harm::Remove]).collect()
}

/// A node with a snapshot and later entries.
async fn made() -> (Fleet, Story, Vec<String>) {
    let fleet = Fleet::of(1, SMALL).await;
    let desk = fleet.desk(1);
    let mut story = Story::tell(&desk).await;
    fleet.node(1).snapshot().await.unwrap();
    // The log is purged in the background.
    tokio::time::sleep(TIMING.election).await;
    story.reserve(&desk, &[("rpm", 2), ("usd", 3)]).await;
    story.reserve(&desk, &[("slots", 1)]).await;
    let picture = story.picture(&desk).await;
    (fleet, story, picture)
}

/// Opens a disk as a single node. Returns its visible state, or the reason of its refusal.
async fn start(disk: &SimDisk, story: &Story) -> Result<Vec<String>, String> {
    let options = NodeOptions {
        timing: TIMING,
        time: ManualClock::at(START_MS) as _,
        log: LogOptions { segment_bytes: SMALL.segment_bytes, cache_bytes: 10_000 },
        keep_entries: 0,
        journal_segment_bytes: SMALL.journal_segment_bytes,
        ..NodeOptions::new(disk.mount())
    };
    let node = Node::open(options).await.map_err(|error| error.to_string())?;
    let desk = Desk(node.backend());
    while node.status().leader.is_none() {
        if let Some(failure) = node.failure().get() {
            return Err(failure.to_owned());
        }
        tokio::time::sleep(TIMING.heartbeat).await;
    }
    // Damage in a file that the start does not read is found by a later read.
    let picture = tokio::spawn({
        let (desk, leases) = (desk.clone(), story.leases.clone());
        async move { try_picture(&desk, &leases).await }
    });
    let picture = picture.await.unwrap();
    disk.kill();
    picture
}

async fn damage_everywhere(disk: &SimDisk, story: &Story, expected: &[String]) {
    assert_eq!(start(&disk.copy(), story).await.unwrap(), expected, "without any damage");
    let (mut started, mut refused) = (0, 0);
    for path in disk.paths() {
        for harm in harms(&path, disk.bytes(&path).len()) {
            let disk = disk.copy();
            harm.to(&disk, &path);
            match start(&disk, story).await {
                Ok(found) => {
                    started += 1;
                    assert_eq!(found, expected, "{path}, {harm:?}");
                }
                Err(message) => {
                    refused += 1;
                    let folder = path.rsplit_once('/').map_or(path.as_str(), |(folder, _)| folder);
                    let is_named = message.contains(&format!("sim:/{path}"))
                        || matches!(harm, Harm::Remove) && message.contains(&format!("sim:/{folder}"));
                    assert!(is_named, "{path}, {harm:?}: {message}");
                }
            }
        }
    }
    assert!(started > 300 && refused > 1_000, "{started} started and {refused} refused prove little");
}

#[tokio::test(start_paused = true)]
async fn a_node_that_was_stopped_starts_right_or_refuses_whatever_byte_is_damaged() {
    let (mut fleet, story, picture) = made().await;
    fleet.stop(1).await;
    let Seat { disk, .. } = &fleet.seats[&1];
    for kind in ["log/", "journal/", "snapshot/"] {
        assert!(disk.paths().iter().any(|path| path.starts_with(kind)), "{:?}", disk.paths());
    }
    damage_everywhere(disk, &story, &picture).await;
}

#[tokio::test(start_paused = true)]
async fn a_node_that_was_killed_starts_right_or_refuses_whatever_byte_is_damaged() {
    let (mut fleet, story, picture) = made().await;
    fleet.kill(1);
    damage_everywhere(&fleet.seats[&1].disk, &story, &picture).await;
}
