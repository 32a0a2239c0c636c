//! Disk failures.

use earmark_node::{Fault, Journal, JournalOptions};
use rand::SeedableRng;
use rand::rngs::StdRng;

use crate::journal::records::{hold_of, records};
use crate::journal::{SMALL, all, open};
use crate::support::disk::SimDisk;

#[test]
fn the_first_refusal_stops_the_journal_and_loses_nothing_that_was_flushed() {
    let records = records(&mut StdRng::seed_from_u64(7), 40);
    let mut refusals = 0;
    for changes in 0.. {
        let disk = SimDisk::new();
        let journal = open(&disk, None);
        disk.fill_after(changes);
        let mut flushed = None;
        let mut failed = None;
        for (record, log_index) in records.iter().zip(1..) {
            let mut result = journal.append(log_index, std::slice::from_ref(record));
            if result.is_ok() && log_index % 7 == 0 {
                result = journal.flush_blocking().map(|position| flushed = Some(position));
            }
            if let Err(error) = result {
                failed = Some(error.to_string());
                break;
            }
        }
        let Some(failed) = failed else { break };
        refusals += 1;
        assert!(failed.contains(" sim:/journal"), "{failed}");
        assert!(failed.contains("The disk is full: free some space"), "{failed}");
        assert_eq!(journal.failure().as_ref(), Some(&failed));
        for result in [journal.append(99, &records), journal.flush_blocking().map(|_| ())] {
            assert!(matches!(result, Err(Fault::Stopped { why }) if why.ends_with(&failed)));
        }
        for seed in 0..4 {
            let disk = disk.copy();
            disk.crash(seed);
            let again = Journal::open(disk.mount(), SMALL, flushed).unwrap();
            let kept = all(&again).into_iter().map(|entry| entry.record);
            let count = usize::try_from(flushed.unwrap_or_default().records).unwrap();
            assert!(kept.eq(records[..count].iter().cloned()), "after {changes} changes");
        }
    }
    assert!(refusals > 20, "only {refusals} changes were tried");
}

#[test]
fn opening_on_a_disk_that_refuses_names_what_it_refused() {
    let records = records(&mut StdRng::seed_from_u64(8), 20);
    let (disk, journal, position) = crate::journal::filled(&records);
    journal.append(50, &records).unwrap();
    journal.flush_blocking().unwrap();
    let files = disk.files();
    for changes in 0.. {
        let disk = SimDisk::of(&files);
        disk.fill_after(changes);
        let Err(error) = Journal::open(disk.mount(), SMALL, Some(position)) else {
            assert!(changes > 4);
            break;
        };
        assert!(error.to_string().contains(" sim:/"), "{error}");
        let healed = SimDisk::of(&disk.files());
        let journal = Journal::open(healed.mount(), SMALL, Some(position)).unwrap();
        assert_eq!(all(&journal).len() as u64, position.records);
    }
}

#[test]
fn records_of_earlier_entries_of_the_log_are_a_bug_that_stops_the_journal() {
    let journal = open(&SimDisk::new(), None);
    journal.append(5, &[hold_of(1, 1)]).unwrap();
    journal.append(5, &[hold_of(1, 2)]).unwrap();
    assert!(matches!(journal.append(4, &[hold_of(1, 3)]), Err(Fault::RecordRefused { .. })));
    assert!(journal.failure().is_some());
}

#[test]
fn what_waits_to_be_written_is_bounded() {
    let disk = SimDisk::new();
    let options = JournalOptions { write_bytes: usize::MAX, buffer_bytes_max: 2_000, ..SMALL };
    let journal = Journal::open(disk.mount(), options, None).unwrap();
    for number in 1..500 {
        journal.append(number, &[hold_of(1, number)]).unwrap();
        let headers = |bytes: &Vec<u8>| bytes.len().saturating_sub(80);
        let is_segment = |(name, _): &(&String, &Vec<u8>)| name.ends_with(".journal");
        let files = disk.files();
        let written: usize = files.iter().filter(is_segment).map(|(_, bytes)| headers(bytes)).sum();
        assert!(journal.position().bytes - (written as u64) < 2_000);
    }
}
