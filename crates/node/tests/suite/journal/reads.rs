//! Cost of reads, and reads beside appends.

use std::sync::Arc;

use earmark_core::AccountId;
use earmark_node::{Disk, Journal, JournalEntry, JournalOptions, RealDisk};

use crate::journal::records::{hold_of, limit_put};
use crate::journal::{CLUSTER, SMALL, all};
use crate::support::disk::SimDisk;

/// A journal of 20,000 holds in about 30 segments. Account 7 has every thousandth hold, account 500 only the last.
fn large() -> (SimDisk, Journal) {
    let disk = SimDisk::new();
    let options = JournalOptions { segment_bytes: 50_000, ..SMALL };
    let journal = Journal::open(disk.mount(), options, None).unwrap();
    for number in 1..=20_000_u64 {
        let account = match number {
            20_000 => 500,
            _ if number % 1_000 == 0 => 7,
            _ => 8 + u32::try_from(number % 400).unwrap(),
        };
        journal.append(number, &[hold_of(account, number)]).unwrap();
    }
    journal.flush_blocking().unwrap();
    (disk, journal)
}

#[test]
fn the_records_of_an_account_are_found_without_reading_the_journal() {
    let (disk, journal) = large();
    let read = |account: u32, after: u64, limit: usize| {
        let before = disk.read_bytes();
        let (found, has_more) = journal.records_of(AccountId(account), after, limit).unwrap();
        (found.iter().map(|entry| entry.number).collect::<Vec<_>>(), has_more, disk.read_bytes() - before)
    };
    let (found, has_more, bytes) = read(7, 0, 4);
    assert_eq!((found, has_more), (vec![1_000, 2_000, 3_000, 4_000], true));
    // The bytes include index pages: a complete segment has no index in memory.
    assert!((4 * 4_096..60_000).contains(&bytes), "{bytes} bytes were read");
    let (found, has_more, bytes) = read(7, 16_500, 100);
    assert_eq!((found, has_more), (vec![17_000, 18_000, 19_000], false));
    assert!(bytes < 60_000, "{bytes} bytes were read");
    // Only the last segment has such a high account number.
    let (found, has_more, bytes) = read(500, 0, 100);
    assert_eq!((found, has_more), (vec![20_000], false));
    assert!(bytes < 6_000, "{bytes} bytes were read");
    assert!(journal.position().bytes > 1_000_000);
}

#[test]
fn a_start_reads_the_last_two_segments_and_little_of_the_others() {
    let (disk, journal) = large();
    let position = journal.position();
    let again = SimDisk::of(&disk.files());
    let options = JournalOptions { segment_bytes: 50_000, ..SMALL };
    let opened = Journal::open(again.mount(), options, Some(position)).unwrap();
    assert!(again.read_bytes() < 120_000, "{} bytes were read", again.read_bytes());
    assert_eq!(all(&opened), all(&journal));
}

#[test]
fn pages_reach_from_the_first_record_to_the_last() {
    let (_, journal) = large();
    let (mut numbers, mut after) = (Vec::new(), 0);
    loop {
        let (page, has_more) = journal.records_of(AccountId(9), after, 7).unwrap();
        numbers.extend(page.iter().map(|entry| entry.number));
        after = *numbers.last().unwrap();
        if !has_more {
            break;
        }
    }
    let expected: Vec<u64> = (1..20_000).filter(|number| number % 400 == 1).collect();
    assert_eq!(numbers, expected);
}

/// Changes are found by the index: holds between them are not read. A long run of segments without changes is read in
/// pieces.
#[test]
fn changes_are_found_without_reading_the_holds_between_them() {
    let disk = SimDisk::new();
    let options = JournalOptions { segment_bytes: 1_000, ..SMALL };
    let journal = Journal::open(disk.mount(), options, None).unwrap();
    for number in 1..=10_000_u64 {
        let record = if [1, 20, 9_999].contains(&number) { limit_put() } else { hold_of(7, number) };
        journal.append(number, &[record]).unwrap();
    }
    journal.flush_blocking().unwrap();
    let read = |before: u64| {
        let (mut numbers, bytes) = (Vec::new(), disk.read_bytes());
        let rest = journal.changes(before, |entry| {
            assert_eq!(entry.record, limit_put());
            numbers.push(entry.number);
            true
        });
        let bytes = disk.read_bytes() - bytes;
        assert!(bytes < 1_500_000, "{bytes} bytes were read");
        (numbers, rest.unwrap())
    };
    let (mut found, mut before, mut pieces) = (Vec::new(), 0, 0);
    loop {
        let (numbers, rest) = read(before);
        found.extend(numbers);
        pieces += 1;
        match rest {
            Some(rest) => before = rest,
            None => break,
        }
    }
    assert_eq!(found, [9_999, 20, 1]);
    assert!((2..6).contains(&pieces), "{pieces} pieces");
    assert_eq!(read(20), (vec![1], None));
    assert_eq!(read(1), (vec![], None));
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The file formats are permanent: a node has to read its own journal after an upgrade.
#[test]
fn the_bytes_of_the_files_never_change() {
    let disk = SimDisk::new();
    let journal = Journal::open(disk.mount(), JournalOptions { segment_bytes: 1, ..SMALL }, None).unwrap();
    journal.append(9, &[hold_of(3, 4)]).unwrap();
    journal.flush_blocking().unwrap();
    let files = disk.files();
    let names: Vec<&str> = files.keys().map(String::as_str).collect();
    assert_eq!(names, ["journal/00000000000000000001.index", "journal/00000000000000000001.journal"]);
    assert_eq!(
        hex(&files[names[1]]),
        include_str!("segment.hex").split_whitespace().collect::<String>(),
        "the segment"
    );
    let index = &files[names[0]];
    assert_eq!(index.len(), 140 + 8 + 4 + 4096);
    let (start, rest) = index.split_at(140 + 8 + 4 + 12);
    assert_eq!(hex(start), include_str!("index.hex").split_whitespace().collect::<String>(), "the index");
    assert!(rest[..rest.len() - 4].iter().all(|byte| *byte == 0));
}

/// A lookup read an account from the growing segment. Meanwhile that segment grew, was completed, and a new one
/// started. The lookup continued with the new segment and left a gap that no later page filled.
#[test]
fn a_page_leaves_out_nothing_that_is_appended_while_it_is_read() {
    let disk = SimDisk::new();
    let journal = Journal::open(disk.mount(), SMALL, None).unwrap();
    journal.append(1, &[hold_of(1, 1)]).unwrap();
    journal.flush_blocking().unwrap();
    let writer = journal.clone();
    disk.on_read(move || {
        for number in 2..=20 {
            writer.append(number, &[hold_of(1, number)]).unwrap();
        }
    });
    let numbers = |after| {
        let (found, has_more) = journal.records_of(AccountId(1), after, 100).unwrap();
        (found.iter().map(|entry| entry.number).collect::<Vec<_>>(), has_more)
    };
    assert_eq!(numbers(0), (vec![1], false));
    assert_eq!(journal.position().records, 20);
    assert_eq!(numbers(1), ((2..=20).collect(), false));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_on_a_real_disk_go_on_while_records_are_appended() {
    const ENTRIES: u64 = 20_000;
    let folder = tempfile::tempdir().unwrap();
    let disk: Arc<dyn Disk> = Arc::new(RealDisk::new(folder.path()).unwrap());
    let options =
        JournalOptions { cluster: CLUSTER, segment_bytes: 200_000, write_bytes: 20_000, buffer_bytes_max: 100_000 };
    let journal = Journal::open(Arc::clone(&disk), options, None).unwrap();
    let reader = journal.clone();
    let reads = tokio::task::spawn_blocking(move || {
        let (mut after, mut pages) = (0, 0);
        while after < ENTRIES - 10 {
            let (page, _) = reader.records_of(AccountId(1), after, 50).unwrap();
            for entry in &page {
                after += 10;
                assert_eq!((entry.number, entry.log_index), (after, after));
                assert_eq!(entry.record, hold_of(1, after));
            }
            let to = reader.position();
            let mut last = 0;
            if pages % 50 == 0 {
                let each = |entry: &JournalEntry| {
                    last = entry.number;
                    true
                };
                reader.scan(1, to, each).unwrap();
                assert_eq!(last, to.records);
            }
            pages += 1;
        }
        pages
    });
    let mut position = None;
    for number in 1..=ENTRIES {
        let account = if number % 10 == 0 { 1 } else { 2 };
        journal.append(number, &[hold_of(account, number)]).unwrap();
        if number % 5_000 == 0 {
            position = Some(journal.flush().await.unwrap());
        }
        if number % 100 == 0 {
            tokio::task::yield_now().await;
        }
    }
    assert!(reads.await.unwrap() > 0);
    assert_eq!(position, Some(journal.position()));
    drop(journal);
    let again = Journal::open(disk, options, position).unwrap();
    assert_eq!(all(&again).len() as u64, ENTRIES);
}
