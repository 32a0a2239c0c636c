//! Journal tests: against a model, and through crashes, damage and disk failures.
//!
//! `EARMARK_SEED=7` replays one seed.

#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used, unreachable_pub, reason = "a test may")]

mod damage;
mod failures;
mod import;
mod memory_disk;
mod model;
mod reads;
mod records;

use std::env;
use std::sync::Arc;

use earmark_core::JournalRecord;
use earmark_node::{Journal, JournalEntry, JournalOptions, JournalPosition};
use memory_disk::MemoryDisk;

const CLUSTER: u128 = 0xc1;

/// Segments of a few records each.
const SMALL: JournalOptions =
    JournalOptions { cluster: CLUSTER, segment_bytes: 600, write_bytes: 200, buffer_bytes_max: 500 };

fn open(disk: &Arc<MemoryDisk>, position: Option<JournalPosition>) -> Journal {
    Journal::open(disk.clone(), SMALL, position).unwrap()
}

/// A synced journal of these records, three per log entry.
fn filled(records: &[JournalRecord]) -> (Arc<MemoryDisk>, Journal, JournalPosition) {
    let disk = MemoryDisk::new();
    let journal = open(&disk, None);
    for (chunk, log_index) in records.chunks(3).zip(1..) {
        journal.append(log_index, chunk).unwrap();
    }
    let position = journal.flush_blocking().unwrap();
    (disk, journal, position)
}

fn all(journal: &Journal) -> Vec<JournalEntry> {
    let mut entries = Vec::new();
    journal.scan(1, journal.position(), &mut |entry| entries.push(entry.clone())).unwrap();
    entries
}

fn seeds(by_default: u64) -> Vec<u64> {
    match env::var("EARMARK_SEED") {
        Ok(seed) => vec![seed.parse().unwrap()],
        Err(_) => (0..by_default).collect(),
    }
}
