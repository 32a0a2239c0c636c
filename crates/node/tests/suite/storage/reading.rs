//! Log reads: from memory and disk, bounded, and beside truncations.

use std::time::Duration;

use earmark_node::{Entry, LogOptions, LogStore};
use openraft::RaftLogReader;
use openraft::storage::RaftLogStorage;

use crate::support::disk::SimDisk;
use crate::support::log_driver::{CLUSTER, append, append_later, block_on, entry, id, open, read};
use crate::support::random::Random;

fn entries(range: std::ops::Range<u64>, term: u64, bytes: u64) -> Vec<Entry> {
    range.map(|index| entry(&mut Random::new(index), id(term, index), bytes)).collect()
}

async fn new_log(seed: u64, options: LogOptions) -> (SimDisk, LogStore) {
    let disk = SimDisk::new().with_latency(seed, Duration::from_millis(5));
    LogStore::create(&disk, CLUSTER).unwrap();
    let store = open(&disk, options).await.unwrap();
    (disk, store)
}

#[test]
fn what_is_not_on_disk_yet_is_read_from_memory_whatever_its_bound() {
    block_on(async {
        let (_disk, mut store) = new_log(1, LogOptions { segment_bytes: 1_000, cache_bytes: 0 }).await;
        let written = entries(0..40, 1, 300);
        for part in written.chunks(4) {
            append_later(&mut store, part.to_vec()).await.unwrap();
            let upto = part.last().unwrap().log_id.index;
            assert_eq!(
                store.try_get_log_entries(upto..).await.unwrap(),
                written[usize::try_from(upto).unwrap()..=usize::try_from(upto).unwrap()]
            );
        }
        assert_eq!(read(&mut store).await.entries, written);
    });
}

#[test]
fn a_follower_gets_half_a_mebibyte_at_a_time_and_at_least_one_entry() {
    block_on(async {
        for cache_bytes in [0, 64 * 1024 * 1024] {
            let (_disk, mut store) = new_log(1, LogOptions { cache_bytes, ..LogOptions::default() }).await;
            let big = |index, len| Entry {
                log_id: id(1, index),
                payload: openraft::EntryPayload::Normal(bytes::Bytes::from(vec![7_u8; len]).into()),
            };
            let log = [big(0, 10), big(1, 9 << 17), big(2, 1 << 17), big(3, 1 << 17), big(4, 3 << 17)];
            for entry in &log {
                assert!(append(&mut store, vec![entry.clone()]).await);
            }
            let mut parts = Vec::new();
            let mut next = 0;
            while next < 5 {
                let part = store.limited_get_log_entries(next, 5).await.unwrap();
                parts.push(part.len());
                next += part.len() as u64;
            }
            assert_eq!(parts, [1, 1, 2, 1], "with {cache_bytes} bytes of memory");
            assert_eq!(store.try_get_log_entries(..).await.unwrap(), log);
        }
    });
}

#[test]
fn a_read_beside_a_truncation_gives_the_log_before_it_or_after_it() {
    block_on(async {
        for seed in 0..200 {
            let (_disk, mut store) = new_log(seed, LogOptions { segment_bytes: 700, cache_bytes: 0 }).await;
            let before = entries(0..20, 1, 200);
            assert!(append(&mut store, before.clone()).await);
            let mut reader = store.get_log_reader().await;
            let reading = tokio::spawn(async move { reader.try_get_log_entries(0..20).await.unwrap() });
            tokio::time::sleep(Duration::from_micros(seed * 5)).await;
            store.truncate(id(1, 12)).await.unwrap();
            let after = entries(12..15, 2, 200);
            assert!(append(&mut store, after.clone()).await);
            let read = reading.await.unwrap();
            let fits = read == before || read == before[..12] || read == [&before[..12], &after].concat();
            assert!(fits, "{:?}", read.iter().map(|entry| entry.log_id).collect::<Vec<_>>());
        }
    });
}

#[test]
fn damage_that_is_found_while_reading_stops_the_log_by_name() {
    block_on(async {
        let (disk, mut store) = new_log(1, LogOptions { segment_bytes: 1 << 20, cache_bytes: 0 }).await;
        assert!(append(&mut store, entries(0..9, 1, 200)).await);
        let path = "log/00000000000000000000.log";
        disk.corrupt(path, 500, 1);
        let error = store.try_get_log_entries(..).await.unwrap_err();
        assert!(error.to_string().contains("is damaged at byte"), "{error}");
        assert!(store.failure().get().unwrap().contains(&format!("sim:/{path} is damaged")));
        assert!(!append(&mut store, entries(9..10, 1, 200)).await);
    });
}

#[test]
fn what_does_not_follow_the_log_is_not_taken() {
    block_on(async {
        let (_disk, mut store) = new_log(1, LogOptions::default()).await;
        assert!(append(&mut store, entries(0..3, 2, 50)).await);
        assert!(!append(&mut store, entries(4..5, 2, 50)).await, "a hole");
        assert!(!append(&mut store, entries(2..3, 2, 50)).await, "a second entry 2");
        assert!(!append(&mut store, entries(3..4, 1, 50)).await, "an older term");
        store.purge(id(2, 1)).await.unwrap();
        assert!(store.truncate(id(2, 1)).await.is_err(), "what is purged");
        assert!(store.purge(id(1, 2)).await.is_err(), "an id that is not in the log");
        assert!(append(&mut store, entries(3..4, 2, 50)).await);
        assert_eq!(read(&mut store).await.last(), Some(id(2, 3)));
        assert_eq!(store.failure().get(), None);
    });
}
