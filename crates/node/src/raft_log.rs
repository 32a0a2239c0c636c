//! The Raft log on disk: openraft's log storage.
//!
//! The folder `log` holds segment files, named after their first index, and the file `mark`, which records how far
//! they are synced. One writer task makes all changes in order. An append is one write and one sync, and is
//! acknowledged after the sync. The newest entries stay in memory; older ones are read from their segment.
//!
//! The first failed write or sync stops the log: every later call fails, and [`failure`](LogStore::failure) has the
//! reason. On open, anything wrong is damage and refused. The exception is the end of the last segment, where a power
//! cut may have torn an unacknowledged write; that write is dropped.

mod files;
mod mark;
mod memory;
mod open;
mod segment;
mod writer;

use std::fmt::Debug;
use std::io;
use std::ops::{Bound, Range, RangeBounds};
use std::sync::{Arc, Mutex, OnceLock};

use openraft::storage::{LogFlushed, RaftLogStorage};
use openraft::{LogState, OptionalSend, RaftLogReader, StorageError, StorageIOError};
use tokio::sync::{mpsc, oneshot, watch};

use crate::disk::Disk;
use crate::failure::Failure;
use crate::fault::Fault;
use crate::identity::FolderLock;
use crate::types::{Entry, LogId, Types, Vote};

use files::lock;
use memory::{Memory, Piece};
pub use writer::Flushed;
use writer::{QUEUE_MAX, WriteTask};

/// Maximum bytes per disk read. A single longer entry is still read whole.
const PIECE_BYTES_MAX: u64 = 8 * 1024 * 1024;
/// Maximum bytes sent to a follower at once. A single longer entry is still sent whole. The message has to arrive and
/// be synced within one heartbeat, after which openraft sends it again.
const LIMITED_BYTES_MAX: u64 = 512 * 1024;

/// Log options.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Segment size in bytes that starts a new segment.
    pub segment_bytes: u64,
    /// Memory for the newest entries, in bytes.
    pub cache_bytes: usize,
}

impl Default for Options {
    fn default() -> Options {
        Options { segment_bytes: 64 * 1024 * 1024, cache_bytes: 64 * 1024 * 1024 }
    }
}

/// Log reader. Clones share the same log.
#[derive(Clone, Debug)]
pub struct LogReader {
    disk: Arc<dyn Disk>,
    memory: Arc<Mutex<Memory>>,
    failure: Failure,
}

/// Log of a node. Clones share the same log.
#[derive(Clone, Debug)]
pub struct LogStore {
    reader: LogReader,
    queue: mpsc::Sender<WriteTask>,
    vote: Arc<Mutex<Option<Vote>>>,
    context: Arc<OnceLock<NodeContext>>,
}

#[derive(Debug)]
struct NodeContext {
    /// Last index of the newest snapshot.
    covered: watch::Receiver<Option<u64>>,
    /// Keeps the folder locked while writes may still happen.
    _lock: FolderLock,
}

impl LogStore {
    /// Creates an empty log and an empty vote in a folder that has neither.
    pub fn create(disk: &dyn Disk, cluster: u128) -> Result<(), Fault> {
        files::create(disk, cluster)
    }

    /// Creates a log with a first entry.
    pub(crate) fn create_with(disk: &Arc<dyn Disk>, cluster: u128, first: Entry) -> Result<(), Fault> {
        files::create(&**disk, cluster)?;
        let (mut files, _) = open::open(Arc::clone(disk), cluster, Options::default())?;
        files.append(&[first])?;
        files.close()
    }

    /// Opens the log of a folder. Spawns the writer task, so it needs a tokio runtime.
    ///
    /// # Errors
    /// If a file is missing, damaged, of another cluster or of a newer format; nothing is written then.
    pub async fn open(
        disk: Arc<dyn Disk>,
        cluster: u128,
        options: Options,
        failure: Failure,
    ) -> Result<LogStore, Fault> {
        let handle = Arc::clone(&disk);
        let (files, vote) = disk.run(move || open::open(handle, cluster, options)).await?;
        let reader = LogReader { disk: Arc::clone(&disk), memory: Arc::clone(&files.memory), failure: failure.clone() };
        let (queue, work) = mpsc::channel(QUEUE_MAX);
        let context = Arc::default();
        earmark_admission::spawn(writer::run(disk, files, failure, Arc::clone(&context), work));
        Ok(LogStore { reader, queue, vote: Arc::new(Mutex::new(vote)), context })
    }

    pub(crate) fn purged(&self) -> Option<LogId> {
        lock(&self.reader.memory).purged
    }

    /// From now on entries are removed from disk only after a snapshot covers them. openraft purges entries while the
    /// snapshot that replaces them is still being installed.
    pub(crate) fn attach(&self, covered: watch::Receiver<Option<u64>>, lock: FolderLock) {
        // Only the first call counts: a log has one state machine in one folder.
        let _ = self.context.set(NodeContext { covered, _lock: lock });
    }

    /// The failure that stopped the log, if any.
    #[must_use]
    pub fn failure(&self) -> Failure {
        self.reader.failure.clone()
    }

    /// Appends entries. They can be read when this returns; `done` is called after the sync or its failure.
    ///
    /// # Errors
    /// If they do not follow the last entry, or the log has failed or is closed.
    pub async fn append_entries(&mut self, entries: Vec<Entry>, done: Flushed) -> io::Result<()> {
        self.reader.failure.check()?;
        let permit = self.queue.reserve().await.map_err(|_| closed())?;
        let mut memory = lock(&self.reader.memory);
        // Purged entries are not written again.
        let purged = memory.purged;
        let is_new = |entry: &Entry| purged.is_none_or(|purged| purged.index < entry.log_id.index);
        let entries = entries.into_iter().filter(is_new).collect::<Vec<_>>();
        check_order(&memory, &entries)?;
        entries.iter().for_each(|entry| memory.push(entry.clone()));
        drop(memory);
        permit.send(WriteTask::Append { entries, done });
        Ok(())
    }

    /// Waits for pending work and syncs the mark, so that later damage is recognised.
    pub async fn close(&self) -> io::Result<()> {
        self.ask(|done| WriteTask::Close { done }).await
    }

    /// Sends a task to the writer and waits for its result.
    async fn ask(&self, work: impl FnOnce(oneshot::Sender<io::Result<()>>) -> WriteTask) -> io::Result<()> {
        self.reader.failure.check()?;
        let (done, answer) = oneshot::channel();
        self.queue.send(work(done)).await.map_err(|_| closed())?;
        answer.await.map_err(|_| closed())?
    }

    async fn truncate_since(&self, since: u64) -> io::Result<()> {
        self.reader.failure.check()?;
        let permit = self.queue.reserve().await.map_err(|_| closed())?;
        let (done, answer) = oneshot::channel();
        {
            let mut memory = lock(&self.reader.memory);
            if memory.purged.is_some_and(|purged| since <= purged.index) {
                return Err(io::Error::other(format!("entry {since} is purged and cannot be truncated")));
            }
            if since >= memory.next() {
                return Ok(());
            }
            memory.truncate(since);
            memory.pending = memory.pending.saturating_add(1);
            permit.send(WriteTask::Truncate { since, last: memory.last, done });
        }
        answer.await.map_err(|_| closed())?
    }

    async fn purge_upto(&self, upto: LogId) -> io::Result<()> {
        self.reader.failure.check()?;
        let permit = self.queue.reserve().await.map_err(|_| closed())?;
        let mut memory = lock(&self.reader.memory);
        if memory.purged.is_some_and(|purged| upto.index <= purged.index && upto <= purged) {
            return Ok(());
        }
        // An empty log may learn the id that precedes its first entry.
        let unknown = memory.purged.is_none() && upto.index.checked_add(1) == Some(memory.start());
        if memory.id(upto.index) == Some(upto) || unknown && Some(upto) < memory.id(memory.start()) {
            memory.purge(upto);
            permit.send(WriteTask::Purge { upto: upto.index });
        } else if memory.last < Some(upto) {
            // An installed snapshot is ahead of this log, so none of its entries are needed.
            memory.reset(Some(upto));
            memory.pending = memory.pending.saturating_add(1);
            permit.send(WriteTask::Begin { before: upto });
        } else {
            return Err(io::Error::other(format!("cannot purge {upto}: it is not in the log")));
        }
        Ok(())
    }
}

fn check_order(memory: &Memory, entries: &[Entry]) -> io::Result<()> {
    let mut last = memory.last;
    for entry in entries {
        let id = entry.log_id;
        // A log without entries may start at any index, as openraft's tests do.
        let follows = last.is_none_or(|last| last.index.checked_add(1) == Some(id.index) && last < id);
        if !follows {
            let last = last.map_or("nothing".to_owned(), |last| last.to_string());
            return Err(io::Error::other(format!("entry {id} does not follow {last}")));
        }
        last = Some(id);
    }
    Ok(())
}

fn closed() -> io::Error {
    io::Error::other("the log is closed")
}

impl LogReader {
    async fn read(&self, range: Range<u64>, bytes_max: Option<u64>) -> io::Result<Vec<Entry>> {
        loop {
            let plan = {
                let memory = lock(&self.memory);
                let range = memory.clip(range.clone());
                let range = bytes_max.map_or(range.clone(), |bytes_max| memory.limit(range, bytes_max));
                memory.plan(range, PIECE_BYTES_MAX)
            };
            if plan.pieces.is_empty() {
                return Ok(plan.cached);
            }
            let pieces = plan.pieces;
            let result = self
                .disk
                .run(move || {
                    let mut entries = Vec::new();
                    pieces.iter().try_for_each(|piece| read_piece(piece, &mut entries)).map(|()| entries)
                })
                .await;
            // Entries were removed during the read, so it is repeated.
            if lock(&self.memory).revision != plan.revision {
                continue;
            }
            let mut entries = result.map_err(|fault| {
                if !matches!(fault, Fault::Interrupted) {
                    self.failure.set(&fault);
                }
                io::Error::other(fault)
            })?;
            entries.extend(plan.cached);
            return Ok(entries);
        }
    }
}

fn read_piece(piece: &Piece, entries: &mut Vec<Entry>) -> Result<(), Fault> {
    let len = usize::try_from(piece.bytes.end.saturating_sub(piece.bytes.start)).unwrap_or(usize::MAX);
    let mut bytes = piece.file.read(piece.bytes.start, len)?;
    for index in piece.entries.clone() {
        let offset = piece.bytes.end.saturating_sub(bytes.len() as u64);
        let (entry, len) =
            segment::read_entry(&piece.seed, &bytes).map_err(|defect| piece.file.damaged(offset, defect))?;
        if entry.log_id.index != index {
            let found = format!("found entry {}, expected entry {index}", entry.log_id.index);
            return Err(piece.file.damaged(offset, found));
        }
        entries.push(entry);
        bytes = bytes.slice(len..);
    }
    Ok(())
}

fn range_of(range: &impl RangeBounds<u64>) -> Range<u64> {
    let start = match range.start_bound() {
        Bound::Included(&start) => start,
        Bound::Excluded(&start) => start.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(&end) => end.saturating_add(1),
        Bound::Excluded(&end) => end,
        Bound::Unbounded => u64::MAX,
    };
    start..end
}

impl RaftLogReader<Types> for LogReader {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> Result<Vec<Entry>, StorageError<u64>> {
        self.read(range_of(&range), None).await.map_err(|error| StorageIOError::read_logs(&error).into())
    }

    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> Result<Vec<Entry>, StorageError<u64>> {
        let entries = self.read(start..end, Some(LIMITED_BYTES_MAX)).await;
        entries.map_err(|error| StorageIOError::read_logs(&error).into())
    }
}

impl RaftLogReader<Types> for LogStore {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> Result<Vec<Entry>, StorageError<u64>> {
        self.reader.try_get_log_entries(range).await
    }

    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> Result<Vec<Entry>, StorageError<u64>> {
        self.reader.limited_get_log_entries(start, end).await
    }
}

impl RaftLogStorage<Types> for LogStore {
    type LogReader = LogReader;

    async fn get_log_state(&mut self) -> Result<LogState<Types>, StorageError<u64>> {
        Ok(lock(&self.reader.memory).state())
    }

    async fn get_log_reader(&mut self) -> LogReader {
        self.reader.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> Result<(), StorageError<u64>> {
        let vote = *vote;
        self.ask(|done| WriteTask::Vote { vote, done }).await.map_err(|error| StorageIOError::write_vote(&error))?;
        *self.vote.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(vote);
        Ok(())
    }

    async fn read_vote(&mut self) -> Result<Option<Vote>, StorageError<u64>> {
        Ok(*self.vote.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
    }

    async fn append<I>(&mut self, entries: I, callback: LogFlushed<Types>) -> Result<(), StorageError<u64>>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let entries = entries.into_iter().collect();
        let done = Box::new(move |result| callback.log_io_completed(result));
        self.append_entries(entries, done).await.map_err(|error| StorageIOError::write_logs(&error).into())
    }

    async fn truncate(&mut self, log_id: LogId) -> Result<(), StorageError<u64>> {
        self.truncate_since(log_id.index).await.map_err(|error| StorageIOError::write_logs(&error).into())
    }

    async fn purge(&mut self, log_id: LogId) -> Result<(), StorageError<u64>> {
        self.purge_upto(log_id).await.map_err(|error| StorageIOError::write_logs(&error).into())
    }
}
