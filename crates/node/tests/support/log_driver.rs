//! Drives a log store and records what was acknowledged.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use earmark_node::{Entry, Failure, Fault, LogId, LogOptions, LogStore, Vote};
use openraft::storage::RaftLogStorage;
use openraft::{CommittedLeaderId, EntryPayload, RaftLogReader};

use super::disk::SimDisk;
use super::random::Random;

pub const CLUSTER: u128 = 0x0123_4567_89ab_cdef_0123_4567_89ab_cdef;

/// All entries ever appended, by id.
pub type Ever = BTreeMap<LogId, Entry>;

/// Contents of a log, seen from outside.
#[derive(Clone, Default, PartialEq)]
pub struct Log {
    /// The readable entries.
    pub entries: Vec<Entry>,
    pub purged: Option<LogId>,
}

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let show = |id: LogId| format!("{}.{}", id.leader_id.term, id.index);
        write!(f, "after {}:", self.purged.map_or("nothing".to_owned(), show))?;
        self.entries.iter().try_for_each(|entry| write!(f, " {}", show(entry.log_id)))
    }
}

impl Log {
    pub fn last(&self) -> Option<LogId> {
        self.entries.last().map(|entry| entry.log_id).or(self.purged)
    }

    pub fn next(&self) -> u64 {
        self.last().map_or(0, |last| last.index + 1)
    }

    /// This log without the entries from an index on.
    pub fn until(&self, index: u64) -> Log {
        let mut log = self.clone();
        log.entries.retain(|entry| entry.log_id.index < index);
        log
    }

    /// This log without the entries up to an id.
    pub fn after(&self, id: LogId) -> Log {
        let mut log = Log { purged: Some(id), ..self.clone() };
        log.entries.retain(|entry| entry.log_id.index > id.index);
        log
    }

    /// Whether `shown` is a valid view of this log. Purging removes whole files, so `shown` may reach further back,
    /// with entries that existed.
    pub fn is_shown_by(&self, shown: &Log, ever: &Ever) -> bool {
        let back = shown.entries.iter().take_while(|entry| Some(entry.log_id.index) <= self.purged.map(|id| id.index));
        let back = back.cloned().collect::<Vec<_>>();
        let known = back.iter().all(|entry| ever.get(&entry.log_id) == Some(entry));
        let from = if back.is_empty() { shown.purged == self.purged } else { shown.purged < self.purged };
        let joined = back.last().is_none_or(|last| Some(last.log_id) == self.purged);
        known && from && joined && shown.entries[back.len()..] == self.entries
    }
}

/// Runs a test on one thread, under paused time.
pub fn block_on<T>(test: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap().block_on(test)
}

pub async fn open(disk: &SimDisk, options: LogOptions) -> Result<LogStore, Fault> {
    LogStore::open(disk.mount(), CLUSTER, options, Failure::default()).await
}

/// Reads the whole log, once in one piece and once in limited pieces.
pub async fn read(store: &mut LogStore) -> Log {
    let state = store.get_log_state().await.unwrap();
    let entries = store.try_get_log_entries(..).await.unwrap();
    let log = Log { entries, purged: state.last_purged_log_id };
    assert_eq!(log.last(), state.last_log_id);
    let indexes = log.entries.iter().map(|entry| entry.log_id.index).collect::<Vec<_>>();
    assert!(indexes.windows(2).all(|pair| pair[0] + 1 == pair[1]), "a hole: {indexes:?}");
    let mut again = Vec::new();
    let mut reader = store.get_log_reader().await;
    while let (Some(&first), true) = (indexes.get(again.len()), again.len() < indexes.len()) {
        let part = reader.limited_get_log_entries(first, log.next()).await.unwrap();
        assert!(!part.is_empty());
        again.extend(part);
    }
    assert_eq!(again, log.entries);
    log
}

pub fn id(term: u64, index: u64) -> LogId {
    LogId::new(CommittedLeaderId::new(term, term % 3), index)
}

/// An entry with random bytes.
pub fn entry(random: &mut Random, id: LogId, bytes_max: u64) -> Entry {
    let len = usize::try_from(random.below(bytes_max)).unwrap();
    Entry { log_id: id, payload: EntryPayload::Normal(Bytes::from(random.bytes(len)).into()) }
}

pub fn vote(random: &mut Random) -> Vote {
    let mut vote = Vote::new(random.below(1_000_000), random.below(3));
    vote.committed = random.chance(50);
    vote
}

/// Appends and waits; true if acknowledged.
pub async fn append(store: &mut LogStore, entries: Vec<Entry>) -> bool {
    let (told, answer) = tokio::sync::oneshot::channel();
    let done = Box::new(move |result: std::io::Result<()>| {
        let _ = told.send(result.is_ok());
    });
    store.append_entries(entries, done).await.is_ok() && answer.await.unwrap_or(false)
}

/// Appends without waiting; the flag is set on acknowledgement.
pub async fn append_later(store: &mut LogStore, entries: Vec<Entry>) -> Option<Arc<AtomicBool>> {
    let flag = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&flag);
    let done = Box::new(move |result: std::io::Result<()>| told.store(result.is_ok(), Ordering::SeqCst));
    store.append_entries(entries, done).await.ok().map(|()| flag)
}
