//! The files of the decision log: bounds, torn ends, damage and power cuts.

use earmark_admission::{RECORDS_BYTES_MIN, RecordBounds, RecordStore, StoredRecord};
use earmark_core::UnixMs;
use earmark_node::{DecisionFiles, Fault};

use crate::support::disk::SimDisk;
use crate::support::random::Random;
use crate::support::soak::each_seed;

const CLUSTER: u128 = 7;
const BOUNDS: RecordBounds = RecordBounds { bytes: RECORDS_BYTES_MIN, age_ms: 3_600_000 };
const START_MS: u64 = 1_700_000_000_000;

fn at(ms: u64) -> UnixMs {
    UnixMs::new(START_MS + ms)
}

fn open(disk: &SimDisk) -> Result<DecisionFiles, Fault> {
    DecisionFiles::open(disk.mount(), CLUSTER, BOUNDS, at(0))
}

fn record(number: u64, bytes: usize) -> StoredRecord {
    StoredRecord { number, at: at(number), payload: (0..bytes).map(|place| (number as usize + place) as u8).collect() }
}

/// All records, oldest first.
fn all(files: &DecisionFiles) -> Vec<StoredRecord> {
    let (mut records, mut before) = (Vec::new(), u64::MAX);
    while let Some(mut segment) = files.segment_before(before).unwrap() {
        before = segment.first;
        segment.records.extend(records);
        records = segment.records;
    }
    records
}

/// Appends, and closes full segments.
fn append(files: &DecisionFiles, records: &[StoredRecord]) -> Result<(), String> {
    if files.append(records)? { files.rotate(records.last().unwrap().at) } else { Ok(()) }
}

#[test]
fn records_survive_a_kill_and_numbers_go_on() {
    let disk = SimDisk::new();
    let files = open(&disk).unwrap();
    assert_eq!(files.next_number(), 1);
    let records: Vec<StoredRecord> = (1..=100).map(|number| record(number, 50)).collect();
    records.chunks(7).for_each(|chunk| append(&files, chunk).unwrap());
    assert_eq!(all(&files), records);
    // Killed: nothing was synced, and the page cache stays.
    disk.kill();
    let files = open(&disk).unwrap();
    assert_eq!(files.next_number(), 101);
    assert_eq!(all(&files), records);
    append(&files, &[record(101, 5)]).unwrap();
    assert_eq!(all(&files).len(), 101);
}

#[test]
fn the_torn_end_is_cut_at_every_byte_and_writing_goes_on() {
    let disk = SimDisk::new();
    let files = open(&disk).unwrap();
    append(&files, &[record(1, 30), record(2, 40), record(3, 50)]).unwrap();
    let path = disk.paths().into_iter().find(|path| path.ends_with(".decisions")).unwrap();
    let whole = disk.bytes(&path);
    let last = whole.len() - (4 + 16 + 4 + 50 + 4);
    for len in last..whole.len() {
        let torn = disk.copy();
        torn.truncate(&path, len);
        let files = open(&torn).unwrap();
        assert_eq!(all(&files), [record(1, 30), record(2, 40)], "{len}");
        assert_eq!(files.next_number(), 3);
        append(&files, &[record(3, 60)]).unwrap();
        assert_eq!(all(&files), [record(1, 30), record(2, 40), record(3, 60)], "{len}");
        assert_eq!(open(&torn).unwrap().next_number(), 4);
    }
}

/// The log is advice: damage ends the reading of a segment, and neither the node nor the other segments.
#[test]
fn damage_of_a_closed_segment_hides_its_rest_only() {
    let disk = SimDisk::new();
    let files = open(&disk).unwrap();
    for number in 1..=300 {
        append(&files, &[record(number, 1_000)]).unwrap();
    }
    let paths: Vec<String> = disk.paths().into_iter().filter(|path| path.ends_with(".decisions")).collect();
    assert!(paths.len() > 3, "{paths:?}");
    let all_before = all(&files).len();
    let damaged = disk.copy();
    damaged.corrupt(&paths[1], disk.bytes(&paths[1]).len() / 2, 1);
    let files = open(&damaged).unwrap();
    let rest = all(&files);
    assert!(rest.len() < all_before && rest.len() > all_before / 2, "{}", rest.len());
    assert!(rest.iter().all(|found| *found == record(found.number, 1_000)), "no damaged record is shown");
    assert_eq!(rest.last().unwrap().number, 300);
    // A damaged header loses its segment.
    let headless = disk.copy();
    headless.corrupt(&paths[1], 5, 1);
    assert!(all(&open(&headless).unwrap()).len() < all_before);
    assert!(!headless.paths().contains(&paths[1]));
    // A file of another cluster is refused, and nothing changes.
    let before = disk.files();
    let fault = DecisionFiles::open(disk.mount(), CLUSTER + 1, BOUNDS, at(0)).unwrap_err();
    assert!(matches!(fault, Fault::OtherCluster { .. }), "{fault}");
    assert_eq!(disk.files(), before);
}

#[test]
fn bytes_and_age_bound_the_files_and_the_oldest_go_first() {
    let disk = SimDisk::new();
    let files = open(&disk).unwrap();
    let size = |disk: &SimDisk| disk.files().values().map(|bytes| bytes.len() as u64).sum::<u64>();
    for number in 1..=3_000 {
        append(&files, &[record(number, 1_000)]).unwrap();
        assert!(size(&disk) <= BOUNDS.bytes, "{} bytes after {number}", size(&disk));
    }
    let kept = all(&files);
    assert!(kept.len() > 700 && kept[0].number > 1_000, "{} from {}", kept.len(), kept[0].number);
    assert!(kept.windows(2).all(|pair| pair[0].number + 1 == pair[1].number));
    drop(files);
    // Two hours later only the newest segment is left.
    let files = DecisionFiles::open(disk.mount(), CLUSTER, BOUNDS, at(2 * 3_600_000)).unwrap();
    assert!(all(&files).len() < 100);
    assert_eq!(files.next_number(), 3_001);
    // A smaller bound takes effect at the start.
    assert!(size(&disk) < 200_000, "{}", size(&disk));
}

/// After a power cut at any moment the log opens, and shows only whole records, in order.
#[test]
fn a_power_cut_at_any_moment_leaves_a_log_that_opens() {
    each_seed("power cuts of the decision log", 40, |seed| {
        let mut random = Random::new(seed);
        let disk = SimDisk::new();
        let mut next = 1;
        for life in 0..4 {
            disk.cut_power_after(random.between(1, 60));
            if let Ok(files) = open(&disk) {
                next = files.next_number().max(next);
                loop {
                    let count = random.between(1, 20);
                    let records: Vec<StoredRecord> =
                        (next..next + count).map(|number| record(number, random.below(4_000) as usize)).collect();
                    next += count;
                    if append(&files, &records).is_err() {
                        break;
                    }
                }
            }
            disk.crash(seed * 10 + life);
            let shown = all(&open(&disk).unwrap());
            assert!(shown.is_sorted_by(|one, other| one.number < other.number), "seed {seed}");
            for found in &shown {
                assert_eq!(*found, record(found.number, found.payload.len()), "seed {seed}");
            }
        }
    });
}
