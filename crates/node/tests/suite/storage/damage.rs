//! Every byte of every file of a stopped node, flipped or truncated. The node opens with exactly the old contents, or
//! refuses and names the file.

use earmark_node::{Expected, Fault, Folder, Identity, LogOptions, LogStore, Vote};
use openraft::storage::RaftLogStorage;

use crate::support::disk::SimDisk;
use crate::support::is_exhaustive;
use crate::support::log_driver::{CLUSTER, Log, append, block_on, entry, id, open, read, vote};
use crate::support::random::Random;

const OPTIONS: LogOptions = LogOptions { segment_bytes: 300, cache_bytes: 1_000 };
const IDENTITY: Identity = Identity { cluster: CLUSTER, node: 3, incarnation: 99, is_founder: true };
/// The two slots of `vote` and `log/mark`; the bytes between them are never read.
const SLOTS: [std::ops::Range<usize>; 2] = [0..104, 4096..4200];

/// A data folder with several segments, after a truncation, a purge and some votes.
async fn made(seed: u64) -> (SimDisk, LogStore) {
    let mut random = Random::new(seed);
    let disk = SimDisk::new();
    IDENTITY.format(&disk, |disk| LogStore::create(disk, CLUSTER)).unwrap();
    // The lock file exists after the first start.
    Folder::take(&disk, Expected::default()).unwrap();
    let mut store = open(&disk, OPTIONS).await.unwrap();
    let mut next = 0;
    for term in 1..7 {
        for count in [1, 3] {
            let entries = (next..next + count).map(|index| entry(&mut random, id(term, index), 60)).collect();
            assert!(append(&mut store, entries).await);
            next += count;
        }
        store.save_vote(&vote(&mut random)).await.unwrap();
        if term == 3 {
            next -= 2;
            store.truncate(id(3, next)).await.unwrap();
        }
    }
    store.purge(id(2, 5)).await.unwrap();
    store.save_vote(&vote(&mut random)).await.unwrap();
    (disk, store)
}

#[derive(Debug, PartialEq)]
struct Found {
    log: Log,
    vote: Option<Vote>,
}

async fn find(disk: &SimDisk) -> Result<Found, Fault> {
    let expected = Expected { cluster: Some(CLUSTER), node: Some(3) };
    let (folder, _lock) = Folder::take(&*disk.mount(), expected)?;
    assert_eq!(folder, Folder::Made(IDENTITY));
    let mut store = open(disk, OPTIONS).await?;
    let log = read(&mut store).await;
    Ok(Found { log, vote: store.read_vote().await.unwrap() })
}

/// Offsets of a file to damage.
fn places(path: &str, len: usize) -> Vec<usize> {
    let slotted = path == "vote" || path == "log/mark";
    let worth = |at: &usize| !slotted || at.is_multiple_of(97) || SLOTS.iter().any(|slot| slot.contains(at));
    (0..len).filter(worth).collect()
}

/// Damages each file at each offset. `may_lose` decides whether a shorter log is acceptable.
async fn damage_everywhere(disk: &SimDisk, expected: &Found, may_lose: impl Fn(&str, usize, &Found) -> bool) {
    let (mut opened, mut refused) = (0, 0);
    for path in disk.paths() {
        for place in places(&path, disk.bytes(&path).len()) {
            // A different bit at every offset, and sometimes all bits or a truncation.
            let bit = 1_u8.rotate_left(u32::try_from(place % 8).unwrap());
            let is_full = is_exhaustive();
            let cut = (is_full || place.is_multiple_of(3)).then_some(None);
            let all = (is_full || place.is_multiple_of(5)).then_some(Some(0xff));
            for xor in [Some(bit)].into_iter().chain(cut).chain(all) {
                let disk = disk.copy();
                match xor {
                    None => disk.truncate(&path, place),
                    Some(xor) => disk.corrupt(&path, place, xor),
                }
                let what = format!("{path}, byte {place}, {xor:x?}");
                let changes = disk.changes();
                match find(&disk).await {
                    Ok(found) => {
                        opened += 1;
                        let right = found == *expected || may_lose(&path, place, &found);
                        assert!(right, "{what}: found {found:?}, expected {expected:?}");
                    }
                    Err(fault) => {
                        refused += 1;
                        assert!(fault.to_string().contains(&format!("sim:/{path}")), "{what}: {fault}");
                        assert_eq!(disk.changes(), changes, "{what}: something was written");
                    }
                }
            }
        }
    }
    assert!(opened > 300 && refused > 300, "{opened} opened and {refused} refused prove little");
}

#[test]
fn a_node_that_was_closed_opens_right_or_refuses_whatever_byte_is_damaged() {
    block_on(async {
        let (disk, mut store) = made(1).await;
        let expected = Found { log: read(&mut store).await, vote: store.read_vote().await.unwrap() };
        store.close().await.unwrap();
        disk.kill();
        // Purging removes whole files, so purged entries within a segment reappear.
        let shown = find(&disk.copy()).await.unwrap();
        assert_eq!((shown.log.last(), shown.vote), (expected.log.last(), expected.vote));
        damage_everywhere(&disk, &shown, |_, _, _| false).await;
    });
}

#[test]
fn a_node_that_was_killed_opens_right_or_refuses_whatever_byte_is_damaged() {
    block_on(async {
        let (disk, mut store) = made(2).await;
        let last = read(&mut store).await.last();
        disk.kill();
        let shown = find(&disk.copy()).await.unwrap();
        assert_eq!(shown.log.last(), last);
        damage_everywhere(&disk, &shown, |_, _, _| false).await;
    });
}

/// A power cut may lose the last advance of the mark. Then a damaged last write looks like a torn one. Only that
/// write may be lost.
#[test]
fn after_a_power_cut_only_the_last_write_can_be_taken_for_torn() {
    block_on(async {
        for seed in 0..if is_exhaustive() { 4 } else { 2 } {
            let (disk, mut store) = made(10 + seed).await;
            let mut random = Random::new(seed);
            let log = read(&mut store).await;
            let entries = (log.next()..log.next() + 2).map(|index| entry(&mut random, id(9, index), 60)).collect();
            assert!(append(&mut store, entries).await);
            disk.crash(seed);
            Folder::take(&disk, Expected::default()).unwrap();
            let shown = find(&disk.copy()).await.unwrap();
            assert_eq!(shown.log.last(), Some(id(9, log.next() + 1)));
            let last_segment = disk.paths().into_iter().rfind(|path| path.ends_with(".log")).unwrap();
            damage_everywhere(&disk, &shown, |path, _, found| {
                let kept = shown.log.until(found.log.next());
                path == last_segment && found.log == kept && found.vote == shown.vote && found.log.next() >= log.next()
            })
            .await;
        }
    });
}

#[test]
fn damage_that_later_writes_prove_is_no_torn_tail_even_without_a_mark() {
    block_on(async {
        let (disk, store) = made(3).await;
        let options = LogOptions { segment_bytes: 1_000_000, ..OPTIONS };
        store.close().await.unwrap();
        disk.kill();
        let mut store = open(&disk, options).await.unwrap();
        let mark = disk.bytes("log/mark");
        let next = read(&mut store).await.next();
        for index in next..next + 3 {
            let mut random = Random::new(index);
            assert!(append(&mut store, vec![entry(&mut random, id(9, index), 60)]).await);
        }
        let path = disk.paths().into_iter().rfind(|path| path.ends_with(".log")).unwrap();
        let bytes = disk.bytes(&path);
        let found = find(&disk.copy()).await.unwrap();
        disk.kill();
        // Restores the mark from before the last three writes, as a power cut may do.
        disk.put("log/mark", &mark);
        assert_eq!(find(&disk.copy()).await.unwrap().log, found.log);
        let record_end = |at: &usize| {
            let len = u32::from_le_bytes(bytes[*at..at + 4].try_into().unwrap());
            Some(at + 44 + usize::try_from(len).unwrap()).filter(|end| *end < bytes.len())
        };
        let starts = std::iter::successors(Some(68), record_end).collect::<Vec<usize>>();
        let [.., first, second, third] = starts[..] else { panic!("too few records") };
        for place in first..third {
            let disk = disk.copy();
            disk.corrupt(&path, place, 0x10);
            let fault = find(&disk).await.err().unwrap_or_else(|| panic!("byte {place} was taken for torn"));
            let wrong_at = if place < second { first } else { second };
            assert!(fault.to_string().contains(&format!("sim:/{path} is damaged at byte {wrong_at}:")), "{fault}");
        }
        // Only the last write can be torn.
        disk.corrupt(&path, third, 0x10);
        assert_eq!(find(&disk).await.unwrap().log, found.log.until(next + 2));
    });
}

#[test]
fn a_file_that_is_gone_is_missed_by_name() {
    block_on(async {
        let (disk, store) = made(4).await;
        store.close().await.unwrap();
        disk.kill();
        for path in disk.paths().into_iter().filter(|path| path != "lock") {
            let disk = disk.copy();
            earmark_node::Disk::remove(&disk, &path).unwrap();
            let fault = find(&disk).await.err().unwrap_or_else(|| panic!("{path} was not missed"));
            assert!(fault.to_string().contains(&format!("sim:/{path}")), "{path}: {fault}");
        }
    });
}

#[test]
fn files_of_another_cluster_and_of_a_newer_format_are_told_from_damage() {
    block_on(async {
        let (disk, store) = made(5).await;
        store.close().await.unwrap();
        disk.kill();
        for path in ["vote", "log/mark"].map(str::to_owned).into_iter().chain(disk.paths()) {
            if path == "identity" || path == "lock" {
                continue;
            }
            let (newer, other) = (disk.copy(), disk.copy());
            let resum = |disk: &SimDisk, change: &dyn Fn(&mut [u8])| {
                let mut bytes = disk.bytes(&path);
                for start in [0, 4096].into_iter().filter(|start| *start == 0 || !path.ends_with(".log")) {
                    let len = 32 + usize::from(bytes[start + 24]);
                    let slot = &mut bytes[start..start + len];
                    change(slot);
                    let sum = crc32fast::hash(&slot[..len - 4]);
                    slot[len - 4..].copy_from_slice(&sum.to_le_bytes());
                }
                disk.put(&path, &bytes);
            };
            resum(&newer, &|slot| slot[4] = 2);
            assert!(matches!(find(&newer).await, Err(Fault::NewerFormat { found: 2, .. })), "{path}");
            resum(&other, &|slot| slot[8] ^= 1);
            assert!(matches!(find(&other).await, Err(Fault::OtherCluster { .. })), "{path}");
        }
    });
}
