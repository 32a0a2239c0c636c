//! Flipped and missing bytes at every offset of every file.

use std::collections::BTreeMap;

use earmark_core::AccountId;
use earmark_node::{Fault, Journal, JournalEntry, JournalOptions, JournalPosition};
use rand::SeedableRng;
use rand::rngs::StdRng;

use crate::journal::records::{ACCOUNTS, records};
use crate::journal::{CLUSTER, SMALL, all, filled};
use crate::support::disk::SimDisk;

type Files = BTreeMap<String, Vec<u8>>;

struct Whole {
    files: Files,
    position: JournalPosition,
    entries: Vec<JournalEntry>,
}

fn whole() -> Whole {
    let (disk, journal, position) = filled(&records(&mut StdRng::seed_from_u64(1), 20));
    let files = disk.files();
    assert!(files.keys().filter(|name| name.ends_with(".journal")).count() >= 4, "{:?}", files.keys());
    assert!(files.keys().filter(|name| name.ends_with(".index")).count() >= 3, "{:?}", files.keys());
    Whole { files, position, entries: all(&journal) }
}

impl Whole {
    fn open(&self, files: &Files) -> Result<Journal, Fault> {
        Journal::open(SimDisk::of(files).mount(), SMALL, Some(self.position))
    }

    /// Opens damaged files and reads everything. The result must be right, or an error must name the file. Returns
    /// whether all was right.
    fn check(&self, files: &Files, name: &str, what: &str) -> bool {
        let journal = match self.open(files) {
            Ok(journal) => journal,
            Err(error) => return named(&error, name, what),
        };
        assert_eq!(journal.position(), self.position, "{what}");
        let mut is_right = true;
        for account in (0..=ACCOUNTS).map(AccountId) {
            let of_account = |entry: &&JournalEntry| entry.record.accounts().contains(&account);
            let expected: Vec<JournalEntry> = self.entries.iter().filter(of_account).cloned().collect();
            match journal.records_of(account, 0, 1_000) {
                Ok(found) => assert_eq!(found, (expected, false), "{what}"),
                Err(error) => is_right = named(&error, name, what),
            }
        }
        let mut scanned = Vec::new();
        match journal.scan(1, self.position, |entry| {
            scanned.push(entry.clone());
            true
        }) {
            Ok(()) => assert_eq!(scanned, self.entries, "{what}"),
            Err(error) => is_right = named(&error, name, what),
        }
        assert!(self.entries.starts_with(&scanned), "{what}");
        is_right
    }
}

/// Offsets to damage: all of a segment, and of an index its header and a sample of the mostly empty page.
fn offsets(name: &str, len: usize) -> impl Iterator<Item = usize> {
    let step = if name.ends_with(".index") { 61 } else { 1 };
    (0..len.min(120)).chain((120..len).step_by(step))
}

fn named(error: &Fault, name: &str, what: &str) -> bool {
    let text = error.to_string();
    assert!(text.starts_with(&format!("sim:/{name}")), "{what}: {text}");
    assert!(text.contains("docs/operating.md") || text.contains("version") || text.contains("own data"), "{text}");
    false
}

#[test]
fn a_flipped_bit_anywhere_is_harmless_or_found_by_name() {
    let whole = whole();
    let mut found = 0;
    for (name, bytes) in &whole.files {
        let mut files = whole.files.clone();
        for place in offsets(name, bytes.len()) {
            let bit = 1_u8 << (place % 8);
            files.get_mut(name).unwrap()[place] ^= bit;
            let is_right = whole.check(&files, name, &format!("byte {place} of {name}"));
            // An index is rebuilt; damage in a segment is reported.
            assert_eq!(is_right, name.ends_with(".index"), "byte {place} of {name}");
            files.get_mut(name).unwrap()[place] ^= bit;
            found += u32::from(!is_right);
        }
    }
    assert!(found > 1_000, "only {found} of the flips were in segments");
}

#[test]
fn a_file_that_was_cut_anywhere_is_harmless_or_found_by_name() {
    let whole = whole();
    for (name, bytes) in &whole.files {
        for len in offsets(name, bytes.len()) {
            let mut files = whole.files.clone();
            files.get_mut(name).unwrap().truncate(len);
            let is_right = whole.check(&files, name, &format!("{name} cut to {len}"));
            assert_eq!(is_right, name.ends_with(".index"), "{name} cut to {len}");
        }
    }
}

#[test]
fn a_missing_file_is_found_and_a_missing_index_is_made_again() {
    let whole = whole();
    for name in whole.files.keys() {
        let mut files = whole.files.clone();
        files.remove(name);
        if name.ends_with(".index") {
            assert!(whole.check(&files, name, name));
            let disk = SimDisk::of(&files);
            Journal::open(disk.mount(), SMALL, Some(whole.position)).unwrap();
            assert!(disk.files() == whole.files, "{name} was not made again");
        } else {
            let error = whole.open(&files).unwrap_err().to_string();
            assert!(error.starts_with("sim:/journal/0"), "{error}");
        }
    }
}

#[test]
fn anything_after_the_position_is_cut_whatever_it_is() {
    let whole = whole();
    let last = whole.files.keys().rfind(|name| name.ends_with(".journal")).unwrap();
    let mut files = whole.files.clone();
    files.get_mut(last).unwrap().extend_from_slice(b"torn");
    files.insert("journal/00000000000000000099.journal".into(), b"EMJ".to_vec());
    files.insert("journal/00000000000000000099.index".into(), Vec::new());
    files.insert("journal/00000000000000000001.index.new".into(), vec![1]);
    let disk = SimDisk::of(&files);
    let journal = Journal::open(disk.mount(), SMALL, Some(whole.position)).unwrap();
    assert_eq!(all(&journal), whole.entries);
    assert!(disk.files() == whole.files);
}

#[test]
fn a_longer_segment_before_the_last_is_refused() {
    let whole = whole();
    let segments: Vec<&String> = whole.files.keys().filter(|name| name.ends_with(".journal")).collect();
    for name in &segments[..segments.len() - 1] {
        let mut files = whole.files.clone();
        files.get_mut(*name).unwrap().push(0);
        named(&whole.open(&files).unwrap_err(), name, name);
    }
}

/// All records of such a journal are valid; only the hash chain differs.
#[test]
fn another_history_of_the_same_length_is_refused() {
    let whole = whole();
    let mut position = whole.position;
    position.head.0[31] ^= 1;
    let error = Journal::open(SimDisk::of(&whole.files).mount(), SMALL, Some(position)).unwrap_err();
    assert!(error.to_string().contains("its records are not those"), "{error}");
}

#[test]
fn a_journal_of_another_cluster_or_a_newer_program_is_refused_and_left_alone() {
    let whole = whole();
    let first = "journal/00000000000000000001.journal";
    for position in [None, Some(whole.position)] {
        let disk = SimDisk::of(&whole.files);
        let error = Journal::open(disk.mount(), JournalOptions::new(CLUSTER + 1), position).unwrap_err();
        assert!(matches!(error, Fault::OtherCluster { .. }), "{error}");
        named(&error, first, "cluster");
        assert!(disk.files() == whole.files);

        let mut files = whole.files.clone();
        let header = &mut files.get_mut(first).unwrap()[..80];
        header[4] = 2;
        let crc = crc32fast::hash(&header[..76]);
        header[76..].copy_from_slice(&crc.to_le_bytes());
        let disk = SimDisk::of(&files);
        let error = Journal::open(disk.mount(), SMALL, position).unwrap_err();
        assert!(matches!(error, Fault::NewerFormat { found: 2, .. }), "{error}");
        assert!(disk.files() == files);
    }
}

#[test]
fn a_journal_that_is_refused_stays_as_it_is() {
    let whole = whole();
    let longer = JournalPosition { records: whole.position.records + 1, ..whole.position };
    let disk = SimDisk::of(&whole.files);
    let error = Journal::open(disk.mount(), SMALL, Some(longer)).unwrap_err();
    assert!(matches!(error, Fault::JournalShort { .. }), "{error}");
    assert!(disk.files() == whole.files);
    let error = Journal::open(SimDisk::new().mount(), SMALL, Some(whole.position)).unwrap_err();
    assert!(matches!(error, Fault::JournalShort { found: 0, .. }), "{error}");
}
