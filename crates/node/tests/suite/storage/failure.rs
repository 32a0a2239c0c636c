//! Full disks and failed writes and syncs. Nothing is acknowledged afterwards, the error names the file, and the next
//! start finds everything acknowledged before.

use earmark_node::{LogOptions, LogStore};
use openraft::storage::RaftLogStorage;

use crate::support::disk::{DiskError, Kind, SimDisk};
use crate::support::log_driver::{CLUSTER, Log, append, block_on, entry, id, open, read};
use crate::support::random::Random;

const OPTIONS: LogOptions = LogOptions { segment_bytes: 400, cache_bytes: 500 };

/// The acknowledged log, and its store.
struct ScriptRun {
    disk: SimDisk,
    store: LogStore,
    acknowledged: Log,
    failed: bool,
}

/// Appends, truncates, purges and votes until something fails, then continues.
async fn run(kind: Kind, after: u64, disk_error: DiskError) -> ScriptRun {
    let mut random = Random::new(5);
    let disk = SimDisk::new();
    LogStore::create(&disk, CLUSTER).unwrap();
    let store = open(&disk, OPTIONS).await.unwrap();
    disk.fail(kind, after, disk_error);
    let mut ran = ScriptRun { disk, store, acknowledged: Log::default(), failed: false };
    for term in 1..7 {
        for _ in 0..2 {
            let first = ran.acknowledged.next();
            let entries = (first..first + 2).map(|index| entry(&mut random, id(term, index), 90)).collect::<Vec<_>>();
            let written = append(&mut ran.store, entries.clone()).await;
            ran.note(written, |log| log.entries.extend(entries));
        }
        if term == 3 {
            let since = ran.acknowledged.next() - 3;
            let cut = ran.store.truncate(id(0, since)).await.is_ok();
            ran.note(cut, |_| ());
            // A failed truncation may have taken effect.
            ran.acknowledged = ran.acknowledged.until(since);
        }
        if term == 5 {
            let upto = ran.acknowledged.entries[3].log_id;
            let purged = ran.store.purge(upto).await.is_ok();
            ran.note(purged, |log| *log = log.after(upto));
        }
        let voted = ran.store.save_vote(&earmark_node::Vote::new(term, 1)).await.is_ok();
        ran.note(voted, |_| ());
        if ran.failed {
            break;
        }
    }
    ran
}

impl ScriptRun {
    /// Records an acknowledgement. After a failure there must be none.
    fn note(&mut self, acknowledged: bool, change: impl FnOnce(&mut Log)) {
        assert!(!(self.failed && acknowledged), "acknowledged after {:?}", self.store.failure().get());
        match acknowledged {
            true => change(&mut self.acknowledged),
            false => self.failed = true,
        }
    }
}

/// Whether the log holds everything acknowledged. It may hold more: pending writes, and purged entries of whole
/// files.
fn holds(found: &Log, acknowledged: &Log) -> bool {
    let from = acknowledged.entries.first().map_or(u64::MAX, |entry| entry.log_id.index);
    let found = found.entries.iter().filter(|entry| entry.log_id.index >= from).cloned().collect::<Vec<_>>();
    found.starts_with(&acknowledged.entries)
}

#[test]
fn whatever_fails_and_whenever_nothing_more_is_acknowledged_and_nothing_is_lost() {
    block_on(async {
        let mut failures = 0;
        for kind in [Kind::Write, Kind::Sync, Kind::SetLen, Kind::Name, Kind::SyncDir] {
            for disk_error in [DiskError::Full, DiskError::Broken] {
                for after in 0.. {
                    let mut ran = run(kind, after, disk_error).await;
                    let failure = ran.store.failure();
                    let Some(text) = failure.get() else {
                        assert!(!ran.failed);
                        break;
                    };
                    failures += 1;
                    let what = format!("{kind:?} {after}, {disk_error:?}: {text}");
                    assert!(text.contains("sim:/log") || text.contains("sim:/vote"), "{what}");
                    let full = text.contains("The disk is full: free some space");
                    assert_eq!(full, disk_error == DiskError::Full, "{what}");

                    let entries = vec![entry(&mut Random::new(1), id(50, ran.acknowledged.next()), 9)];
                    assert!(!append(&mut ran.store, entries).await, "{what}");
                    assert!(ran.store.save_vote(&earmark_node::Vote::new(90, 1)).await.is_err(), "{what}");
                    assert!(ran.store.close().await.is_err(), "{what}");

                    // A restart without a power cut may see writes that never reached the disk. Once seen, they must
                    // survive a power cut.
                    ran.disk.kill();
                    let mut store = open(&ran.disk, OPTIONS).await.unwrap_or_else(|fault| panic!("{what}: {fault}"));
                    let seen = read(&mut store).await;
                    let vote = store.read_vote().await.unwrap();
                    assert!(holds(&seen, &ran.acknowledged), "{what}: {seen:?} for {:?}", ran.acknowledged);
                    ran.disk.crash(after);
                    let mut store = open(&ran.disk, OPTIONS).await.unwrap_or_else(|fault| panic!("{what}: {fault}"));
                    assert_eq!(read(&mut store).await, seen, "{what}");
                    assert_eq!(store.read_vote().await.unwrap(), vote, "{what}");
                }
            }
        }
        assert!(failures > 200, "only {failures} failures were tried");
    });
}

#[test]
fn a_power_cut_right_after_a_failure_loses_nothing_that_was_acknowledged() {
    block_on(async {
        for (kind, seed) in [(Kind::Write, 1), (Kind::Sync, 2), (Kind::Sync, 3)] {
            for after in 0..60 {
                let ran = run(kind, after, DiskError::Broken).await;
                ran.disk.crash(seed);
                let what = format!("{kind:?} {after}");
                let mut store = open(&ran.disk, OPTIONS).await.unwrap_or_else(|fault| panic!("{what}: {fault}"));
                let found = read(&mut store).await;
                assert!(holds(&found, &ran.acknowledged), "{what}: {found:?} for {:?}", ran.acknowledged);
            }
        }
    });
}
