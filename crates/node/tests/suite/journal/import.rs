//! Import of a journal by a new replica.

use bytes::Bytes;
use earmark_node::{Fault, Journal, JournalOptions, JournalPosition};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::journal::records::{hold_of, records};
use crate::journal::{SMALL, all, filled, open, seeds};
use crate::support::disk::SimDisk;

fn stream(journal: &Journal, from: u64, to: JournalPosition) -> Vec<Bytes> {
    journal.read_stream(from, to).collect::<Result<_, _>>().unwrap()
}

#[tokio::test]
async fn a_replica_that_receives_the_journal_has_the_same_files() {
    for seed in seeds(15) {
        let mut random = StdRng::seed_from_u64(seed);
        let count = random.gen_range(1..80);
        let records = records(&mut random, count);
        let (disk, journal, to) = filled(&records);
        // Records after the position are not sent.
        journal.append(1_000, &records).unwrap();
        let had = random.gen_range(0..=count / 3) * 3;
        let (own_disk, replica, has) = filled(&records[..had]);
        let from = random.gen_range(1..=has.records + 1);
        for chunk in stream(&journal, from, to) {
            replica.import(&chunk).unwrap();
            replica.import(&chunk).unwrap();
        }
        replica.finish_import(to).unwrap();
        let (whole, _, _) = filled(&records);
        assert!(own_disk.files() == whole.files(), "EARMARK_SEED={seed}");
        let again = Journal::open(own_disk.mount(), SMALL, Some(to)).unwrap();
        let sent = all(&Journal::open(disk.mount(), SMALL, Some(to)).unwrap());
        assert_eq!(all(&again), sent, "EARMARK_SEED={seed}");
        assert_eq!(replica.last_log_index(), again.last_log_index(), "EARMARK_SEED={seed}");
    }
}

#[tokio::test]
async fn a_large_journal_comes_in_chunks_of_whole_records() {
    let options = JournalOptions { segment_bytes: 64 * 1024, ..SMALL };
    let (disk, replica_disk) = (SimDisk::new(), SimDisk::new());
    let journal = Journal::open(disk.mount(), options, None).unwrap();
    for number in 1..=10_000 {
        journal.append(number, &[hold_of(u32::try_from(number % 100).unwrap(), number)]).unwrap();
    }
    let to = journal.flush_blocking().unwrap();
    let chunks = stream(&journal, 1, to);
    assert!(chunks.len() > 2 && chunks.iter().all(|chunk| chunk.len() < 300 * 1024), "{}", chunks.len());
    let replica = Journal::open(replica_disk.mount(), options, None).unwrap();
    for chunk in &chunks {
        replica.import(chunk).unwrap();
    }
    replica.finish_import(to).unwrap();
    assert!(replica_disk.files() == disk.files());
    assert_eq!(stream(&journal, to.records + 1, to), Vec::<Bytes>::new());
}

#[test]
fn a_chunk_with_any_damage_is_refused_as_a_whole() {
    let (_, journal, to) = filled(&records(&mut StdRng::seed_from_u64(2), 12));
    let chunk = stream(&journal, 1, to).concat();
    let replica = open(&SimDisk::new(), None);
    for place in 0..chunk.len() {
        let mut damaged = chunk.clone();
        damaged[place] ^= 1 << (place % 8);
        let error = replica.import(&damaged).unwrap_err();
        assert!(matches!(error, Fault::RecordRefused { .. }), "byte {place}: {error}");
        let error = replica.import(&chunk[..chunk.len() - 1 - place % 20]).unwrap_err();
        assert!(error.to_string().contains("truncated"), "{error}");
    }
    assert_eq!(replica.position(), JournalPosition::START);
    assert_eq!(replica.failure(), None);
    replica.import(&chunk).unwrap();
    assert_eq!(replica.position(), to);
}

#[test]
fn records_that_do_not_follow_are_refused() {
    let (_, journal, to) = filled(&records(&mut StdRng::seed_from_u64(3), 9));
    let replica = open(&SimDisk::new(), None);
    let gap = stream(&journal, 2, to).concat();
    let error = replica.import(&gap).unwrap_err().to_string();
    assert!(error.starts_with("journal record 1 is invalid: found record 2"), "{error}");
    replica.append(99, &records(&mut StdRng::seed_from_u64(4), 1)).unwrap();
    let error = replica.import(&gap).unwrap_err().to_string();
    assert!(error.contains("its log index is lower"), "{error}");
}

#[tokio::test]
async fn a_replica_with_another_history_stops() {
    let (_, journal, to) = filled(&records(&mut StdRng::seed_from_u64(5), 9));
    let (_, replica, _) = filled(&records(&mut StdRng::seed_from_u64(6), 3));
    for chunk in stream(&journal, 1, to) {
        replica.import(&chunk).unwrap();
    }
    let error = replica.finish_import(to).unwrap_err().to_string();
    assert!(error.contains("the journal should end at"), "{error}");
    assert!(matches!(replica.append(1_000, &[]), Err(Fault::Stopped { .. })));
    assert!(replica.failure().unwrap().contains("replace this node"));
}
