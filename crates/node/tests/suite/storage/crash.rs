//! Repeated power cuts at any moment. Acknowledged entries survive, in order and without gaps; a prefix of the
//! unacknowledged ones may survive.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use earmark_node::{Entry, LogOptions, LogStore, Vote};
use openraft::storage::RaftLogStorage;

use crate::support::disk::SimDisk;
use crate::support::log_driver::{CLUSTER, Ever, Log, append, append_later, block_on, entry, id, open, read, vote};
use crate::support::random::Random;
use crate::support::soak::each_seed;

const SEEDS: u64 = 400;
const LIVES: u64 = 6;

/// States that may be found after a power cut.
struct Oracle {
    /// Possible logs; the first is the last acknowledged one.
    logs: Vec<Log>,
    votes: Vec<Option<Vote>>,
    term: u64,
    /// Every entry ever appended.
    ever: Ever,
}

impl Oracle {
    /// The log as the running store shows it.
    fn now(&self) -> &Log {
        self.logs.last().unwrap()
    }

    /// All requested changes are on disk.
    fn settled(&mut self) {
        self.logs.drain(..self.logs.len() - 1);
    }

    fn found(&mut self, log: Log, vote: Option<Vote>, what: &str) {
        let fits = self.logs.iter().any(|expected| expected.is_shown_by(&log, &self.ever));
        assert!(fits, "{what}: found {log:?}, expected one of {:#?}", self.logs);
        assert!(self.votes.contains(&vote), "{what}: found {vote:?}, expected one of {:?}", self.votes);
        self.logs = vec![log];
        self.votes = vec![vote];
    }

    /// New entries after the last, in the same or a later term.
    fn entries(&mut self, random: &mut Random) -> Vec<Entry> {
        self.term += u64::from(random.chance(20));
        let first = self.now().next();
        let count = random.between(1, 5);
        let entries = (first..first + count).map(|index| entry(random, id(self.term, index), 700)).collect::<Vec<_>>();
        self.ever.extend(entries.iter().map(|entry| (entry.log_id, entry.clone())));
        entries
    }

    /// Any prefix of these entries may reach the disk.
    fn may_have(&mut self, entries: &[Entry]) {
        for entry in entries {
            let mut log = self.now().clone();
            log.entries.push(entry.clone());
            self.logs.push(log);
        }
    }
}

/// One random step. Returns false if the store has failed, which requires a power cut.
async fn step(store: &mut LogStore, oracle: &mut Oracle, random: &mut Random) -> bool {
    match random.below(100) {
        0..50 => {
            let entries = oracle.entries(random);
            oracle.may_have(&entries);
            append(store, entries).await && acknowledged(oracle)
        }
        50..60 => {
            let mut flags = Vec::new();
            for _ in 0..random.between(2, 4) {
                let entries = oracle.entries(random);
                oracle.may_have(&entries);
                flags.push((append_later(store, entries).await, oracle.logs.len()));
            }
            tokio::time::sleep(Duration::from_millis(random.below(40))).await;
            let done = |flag: &Option<Arc<AtomicBool>>| flag.as_ref().is_some_and(|flag| flag.load(Ordering::SeqCst));
            assert!(flags.windows(2).all(|pair| done(&pair[0].0) || !done(&pair[1].0)), "acknowledged out of order");
            if let Some((_, upto)) = flags.iter().rev().find(|(flag, _)| done(flag)) {
                oracle.logs.drain(..upto - 1);
            }
            flags.iter().all(|(flag, _)| flag.is_some())
        }
        60..75 => {
            let log = oracle.now().clone();
            let Some(first) = log.entries.first().map(|entry| entry.log_id.index) else { return true };
            let since = random.between(first, log.next() - 1);
            for index in (since..log.next()).rev() {
                oracle.logs.push(log.until(index));
            }
            oracle.term += 1;
            store.truncate(id(0, since)).await.is_ok() && acknowledged(oracle)
        }
        75..85 => {
            let log = oracle.now().clone();
            let purge = match log.entries.len() {
                0 => return true,
                len => log.entries[random.index(len)].log_id,
            };
            oracle.logs.push(log.after(purge));
            store.purge(purge).await.is_ok()
        }
        85..88 => {
            // A snapshot ahead of this log.
            oracle.term += 1;
            let purge = id(oracle.term, oracle.now().next() + random.below(5));
            oracle.logs.push(Log { entries: Vec::new(), purged: Some(purge) });
            store.purge(purge).await.is_ok()
        }
        _ => {
            let vote = vote(random);
            oracle.votes.push(Some(vote));
            let saved = store.save_vote(&vote).await.is_ok();
            if saved {
                oracle.votes = vec![Some(vote)];
            }
            saved && acknowledged(oracle)
        }
    }
}

/// Tasks run in order, so all earlier ones are done too.
fn acknowledged(oracle: &mut Oracle) -> bool {
    oracle.settled();
    true
}

async fn run(seed: u64) {
    let mut random = Random::new(seed);
    let disk = SimDisk::new().with_latency(random.next(), Duration::from_millis(10));
    LogStore::create(&disk, CLUSTER).unwrap();
    let options = LogOptions {
        segment_bytes: random.pick(&[0, 1_000, 4_000, 1_000_000]),
        cache_bytes: usize::try_from(random.pick(&[0, 2_000, 1_000_000])).unwrap(),
    };
    let mut oracle = Oracle { logs: vec![Log::default()], votes: vec![None], term: 1, ever: Ever::new() };
    for life in 0..LIVES {
        let what = format!("EARMARK_SEED={seed}, life {life}");
        // Sometimes the power is cut while the log is opened.
        let steps_max = random.pick(&[8, 60, 400]);
        disk.cut_power_after(random.below(steps_max));
        match open(&disk, options).await {
            Err(fault) => assert!(fault.to_string().contains("the power is gone"), "{what}: {fault}"),
            Ok(mut store) => {
                let saved = store.read_vote().await.unwrap();
                oracle.found(read(&mut store).await, saved, &what);
                while step(&mut store, &mut oracle, &mut random).await {
                    if random.chance(70) {
                        continue;
                    }
                    let shown = read(&mut store).await;
                    assert!(
                        oracle.now().is_shown_by(&shown, &oracle.ever),
                        "{what}: {shown:?} is shown, {:?} is there",
                        oracle.now()
                    );
                    if random.chance(6) {
                        break;
                    }
                }
                if random.chance(10) && store.close().await.is_ok() {
                    oracle.settled();
                }
            }
        }
        if random.chance(30) { disk.kill() } else { disk.crash(random.next()) }
    }
    let mut store = open(&disk, options).await.unwrap_or_else(|fault| panic!("EARMARK_SEED={seed}: {fault}"));
    let saved = store.read_vote().await.unwrap();
    oracle.found(read(&mut store).await, saved, &format!("EARMARK_SEED={seed}, at the end"));
}

#[test]
fn what_was_acknowledged_survives_every_crash() {
    each_seed("crashes of the log", SEEDS, |seed| block_on(run(seed)));
}
