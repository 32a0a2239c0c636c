//! Random appends, flushes, reads, restarts and crashes against a list as the model.

use earmark_core::AccountId;
use earmark_node::{Journal, JournalEntry, JournalPosition};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::journal::records::{ACCOUNTS, records};
use crate::journal::{all, open, seeds};
use crate::support::disk::SimDisk;

struct Run {
    random: StdRng,
    disk: SimDisk,
    journal: Journal,
    model: Vec<JournalEntry>,
    log_index: u64,
    /// Journal position of the last snapshot.
    position: Option<JournalPosition>,
    crashes: u32,
    what: String,
}

impl Run {
    fn new(seed: u64) -> Run {
        let disk = SimDisk::new();
        Run {
            random: StdRng::seed_from_u64(seed),
            journal: open(&disk, None),
            disk,
            model: Vec::new(),
            log_index: 0,
            position: None,
            crashes: 0,
            what: format!("EARMARK_SEED={seed}"),
        }
    }

    fn append(&mut self) {
        self.log_index += self.random.gen_range(1..4);
        let count = self.random.gen_range(0..6);
        let records = records(&mut self.random, count);
        self.journal.append(self.log_index, &records).unwrap();
        for record in records {
            let number = self.model.len() as u64 + 1;
            self.model.push(JournalEntry { number, log_index: self.log_index, record });
        }
    }

    /// Like a snapshot: its position is taken before the flush.
    fn flush(&mut self) {
        let position = self.journal.position();
        if self.random.r#gen() {
            self.append();
        }
        let flushed = self.journal.flush_blocking().unwrap();
        assert!(flushed.records >= position.records, "{}", self.what);
        self.position = Some(position);
    }

    fn start_again(&mut self) {
        if self.random.r#gen() {
            self.crashes += 1;
            self.disk.crash(self.random.r#gen());
        } else {
            self.disk.kill();
        }
        self.journal = open(&self.disk, self.position);
        let position = self.position.unwrap_or_default();
        assert_eq!(self.journal.position(), position, "{}", self.what);
        self.model.truncate(usize::try_from(position.records).unwrap());
        self.log_index = self.model.last().map_or(0, |entry| entry.log_index);
        assert_eq!(self.journal.last_log_index(), self.log_index, "{}", self.what);
    }

    fn read(&mut self) {
        let account = AccountId(self.random.gen_range(0..ACCOUNTS + 1));
        let after = self.random.gen_range(0..=self.model.len() as u64 + 1);
        let limit = self.random.gen_range(0..20);
        let of_account = |entry: &&JournalEntry| entry.number > after && entry.record.accounts().contains(&account);
        let mut expected: Vec<JournalEntry> = self.model.iter().filter(of_account).cloned().collect();
        let has_more = expected.len() > limit;
        expected.truncate(limit);
        let found = self.journal.records_of(account, after, limit).unwrap();
        assert_eq!(found, (expected, has_more), "{}: {account:?} after {after}, {limit}", self.what);
        let of_log = self.model.iter().rev().filter(|entry| entry.record.is_change());
        let of_log = of_log.filter(|entry| after == 0 || entry.number < after);
        let expected: Vec<JournalEntry> = of_log.take(limit).cloned().collect();
        let mut found = Vec::new();
        let rest = self.journal.changes(after, |entry| {
            let is_wanted = found.len() < limit;
            found.extend(is_wanted.then(|| entry.clone()));
            is_wanted
        });
        assert_eq!((rest.unwrap(), found), (None, expected), "{}: changes before {after}, {limit}", self.what);
    }
}

#[test]
fn the_journal_is_a_list_that_survives_crashes() {
    let mut crashes = 0;
    for seed in seeds(60) {
        let mut run = Run::new(seed);
        for _ in 0..200 {
            match run.random.gen_range(0..100) {
                0..50 => run.append(),
                50..58 => run.flush(),
                58..62 => run.start_again(),
                62..65 => assert_eq!(all(&run.journal), run.model, "{}", run.what),
                _ => run.read(),
            }
        }
        assert_eq!(all(&run.journal), run.model, "{}", run.what);
        run.journal.flush_blocking().unwrap();
        let files = run.disk.files();
        let again = write_at_once(&run.model);
        assert!(files == again, "{}: it differs from a journal that was never interrupted", run.what);
        crashes += run.crashes;
    }
    assert!(crashes > 40 || seeds(60).len() == 1, "only {crashes} crashes");
}

/// Files of an uninterrupted journal with these entries.
fn write_at_once(entries: &[JournalEntry]) -> std::collections::BTreeMap<String, Vec<u8>> {
    let disk = SimDisk::new();
    let journal = open(&disk, None);
    for entry in entries {
        journal.append(entry.log_index, std::slice::from_ref(&entry.record)).unwrap();
    }
    journal.flush_blocking().unwrap();
    disk.files()
}
