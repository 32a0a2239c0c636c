//! Journal tests: against a model, and through crashes, damage and disk failures.
//!
//! `EARMARK_SEED=7` replays one seed.

mod damage;
mod failures;
mod import;
mod model;
mod reads;
mod records;

use earmark_core::JournalRecord;
use earmark_node::{Journal, JournalEntry, JournalOptions, JournalPosition};

use crate::support::disk::SimDisk;
use crate::support::is_exhaustive;
use crate::support::soak::number;

const CLUSTER: u128 = 0xc1;

/// Segments of a few records each.
const SMALL: JournalOptions =
    JournalOptions { cluster: CLUSTER, segment_bytes: 600, write_bytes: 200, buffer_bytes_max: 500 };

fn open(disk: &SimDisk, position: Option<JournalPosition>) -> Journal {
    Journal::open(disk.mount(), SMALL, position).unwrap()
}

/// A synced journal of these records, three per log entry.
fn filled(records: &[JournalRecord]) -> (SimDisk, Journal, JournalPosition) {
    let disk = SimDisk::new();
    let journal = open(&disk, None);
    for (chunk, log_index) in records.chunks(3).zip(1..) {
        journal.append(log_index, chunk).unwrap();
    }
    let position = journal.flush_blocking().unwrap();
    (disk, journal, position)
}

fn all(journal: &Journal) -> Vec<JournalEntry> {
    let mut entries = Vec::new();
    journal
        .scan(1, journal.position(), |entry| {
            entries.push(entry.clone());
            true
        })
        .unwrap();
    entries
}

fn seeds(by_default: u64) -> Vec<u64> {
    let count = if is_exhaustive() { by_default * 10 } else { by_default };
    number("EARMARK_SEED").map_or_else(|| (0..count).collect(), |seed| vec![seed])
}
