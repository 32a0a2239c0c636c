//! The journal: what happened, on disk, for ever.
//!
//! It is a stream of numbered records, cut into segments by a rule that depends on their bytes alone. So the
//! journal is a function of the log, and the same on every replica to the byte. A snapshot remembers the
//! [`JournalPosition`] it was made at. What is behind it when a node starts is cut, and comes again with the log.

mod error;
mod format;
mod import;
mod index;
mod open;
mod read;
mod state;
mod walk;
mod write;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use earmark_core::{AccountId, JournalRecord};
use metrics::Gauge;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

pub use error::JournalError;
pub use format::JournalPosition;
pub use read::JournalStream;

use crate::disk::Disk;
use open::Opening;
use state::State;
use write::Writer;

/// A segment is complete once its records take so many bytes.
pub(crate) const SEGMENT_BYTES: u64 = 16 * 1024 * 1024;
/// The largest segment that can be asked for. Places in it are counted in 32 bits.
const SEGMENT_BYTES_MAX: u64 = 1024 * 1024 * 1024;
/// So much is appended before it is written in the background.
const WRITE_BYTES: usize = 1024 * 1024;
/// So much may wait to be written; beyond it whoever appends has to write.
const BUFFER_BYTES_MAX: usize = 8 * 1024 * 1024;

const FOLDER: &str = "journal";

/// The segment behind a record, by the number of its first.
fn segment_path(start: u64) -> String {
    format!("{FOLDER}/{:020}.journal", start.saturating_add(1))
}

fn index_path(start: u64) -> String {
    format!("{FOLDER}/{:020}.index", start.saturating_add(1))
}

/// How a journal is set up.
#[derive(Clone, Copy, Debug)]
pub struct JournalOptions {
    /// The cluster whose history it is. A folder of another one is refused.
    pub cluster: u128,
    /// When a segment is complete. All replicas have to use the same, or their files differ.
    pub segment_bytes: u64,
    /// How much is appended before it is written in the background.
    pub write_bytes: usize,
    /// How much may wait to be written.
    pub buffer_bytes_max: usize,
}

impl JournalOptions {
    /// The usual, for a cluster.
    #[must_use]
    pub const fn new(cluster: u128) -> JournalOptions {
        JournalOptions {
            cluster,
            segment_bytes: SEGMENT_BYTES,
            write_bytes: WRITE_BYTES,
            buffer_bytes_max: BUFFER_BYTES_MAX,
        }
    }
}

/// A record and where it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalEntry {
    /// Its number, counted from 1.
    pub number: u64,
    /// The entry of the log that it came from.
    pub log_index: u64,
    /// What happened.
    pub record: JournalRecord,
}

/// The journal of a node. Records go into memory first and are written in the background; [`flush`](Self::flush)
/// puts them on disk. After a write or a sync that failed nothing is taken any more.
///
/// Reads block on the disk, and belong where blocking is allowed.
#[derive(Clone, Debug)]
pub struct Journal(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    disk: Arc<dyn Disk>,
    cluster: u128,
    write_bytes: usize,
    buffer_bytes_max: usize,
    /// Held for moments only, and never while a file is read or written.
    state: Mutex<State>,
    /// Taken before `state` where both are.
    writer: Mutex<Writer>,
    rebuilding: Mutex<()>,
    bytes: Gauge,
    records: Gauge,
}

impl Journal {
    /// Opens the journal as of a position, which is that of the snapshot that the node starts from: makes sure
    /// that all before it is there, and cuts what is behind. Without a position everything is cut.
    ///
    /// # Errors
    /// When something before the position is missing or damaged, or belongs to another cluster or to a newer
    /// program; then nothing was changed. Or when the file system refuses.
    pub fn open(
        disk: Arc<dyn Disk>,
        options: JournalOptions,
        position: Option<JournalPosition>,
    ) -> Result<Journal, JournalError> {
        let JournalOptions { cluster, segment_bytes, write_bytes, buffer_bytes_max } = options;
        let segment_bytes = segment_bytes.min(SEGMENT_BYTES_MAX);
        // Before the first record there is one position only.
        let to = position.filter(|position| position.records > 0).unwrap_or(JournalPosition::START);
        let state = Opening { disk: &*disk, cluster, segment_bytes, to }.open()?;
        let (bytes, records) = gauges();
        let shared = Shared {
            disk,
            cluster,
            write_bytes,
            buffer_bytes_max,
            state: Mutex::new(state),
            writer: Mutex::default(),
            rebuilding: Mutex::default(),
            bytes,
            records,
        };
        shared.measure(to);
        Ok(Journal(Arc::new(shared)))
    }

    /// Appends what an entry of the log brought about. This goes to memory; only if too much waits to be
    /// written does it write, and so slows down whoever is too fast for the disk.
    ///
    /// # Errors
    /// When the journal has stopped, or stops now.
    pub fn append(&self, log_index: u64, records: &[JournalRecord]) -> Result<(), JournalError> {
        {
            let mut state = self.0.state();
            state.check()?;
            for record in records {
                if let Err(what) = state.push(log_index, record) {
                    let number = state.end.records.saturating_add(1);
                    drop(state);
                    return Err(self.0.fail(JournalError::Refused { number, what: what.to_owned() }));
                }
            }
        }
        self.0.make_room()
    }

    /// Appends records that another node sent, as its [`read_stream`](Self::read_stream) gave them. Those that
    /// are here already are passed over, so a chunk may come twice.
    ///
    /// # Errors
    /// When a record is damaged or does not follow on what is here; then none of the chunk was taken. Or when
    /// the journal has stopped, or stops now.
    pub fn import(&self, chunk: &[u8]) -> Result<(), JournalError> {
        self.0.import(chunk)?;
        self.0.make_room()
    }

    /// Puts what was imported on disk, and makes sure that it leads to where the other node is.
    ///
    /// # Errors
    /// When it does not: then the journal stops, since the histories of the nodes differ. Or when a write or
    /// a sync fails.
    pub fn finish_import(&self, position: JournalPosition) -> Result<(), JournalError> {
        let found = self.flush_blocking()?;
        if found == position {
            return Ok(());
        }
        let what = format!("with it the journal should be at {position:?}, and is at {found:?}");
        Err(self.0.fail(JournalError::Refused { number: found.records, what }))
    }

    /// Puts everything that was appended so far on disk, and says how much that is.
    ///
    /// # Errors
    /// When a write or a sync fails; then the journal has stopped.
    pub async fn flush(&self) -> Result<JournalPosition, JournalError> {
        let (done, flushed) = oneshot::channel();
        let shared = Arc::clone(&self.0);
        let work = Box::new(move || {
            // Whoever asked may have gone.
            _ = done.send(shared.flush());
        });
        self.0.disk.offload(work).await;
        flushed.await.unwrap_or(Err(JournalError::Interrupted))
    }

    /// The same as [`flush`](Self::flush), for threads that may block.
    ///
    /// # Errors
    /// When a write or a sync fails; then the journal has stopped.
    pub fn flush_blocking(&self) -> Result<JournalPosition, JournalError> {
        self.0.flush()
    }

    /// Behind the last record that was appended.
    #[must_use]
    pub fn position(&self) -> JournalPosition {
        self.0.state().end
    }

    /// The entry of the log that the last record came from; 0 before the first.
    #[must_use]
    pub fn last_log_index(&self) -> u64 {
        self.0.state().last_log_index
    }

    /// What stopped the journal, if it has stopped: the file, what failed and what to do.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        self.0.state().failure.clone()
    }

    /// The records about an account behind a number, oldest first and so many at most, and whether there are
    /// more.
    ///
    /// # Errors
    /// When a file cannot be read or is damaged.
    pub fn records_of(
        &self,
        account: AccountId,
        after: u64,
        limit: usize,
    ) -> Result<(Vec<JournalEntry>, bool), JournalError> {
        self.0.records_of(account, after, limit)
    }

    /// Reads the records from one on up to a position, in order and in bounded memory.
    ///
    /// # Errors
    /// When a file cannot be read or is damaged, or the records are not those that led to the position.
    pub fn scan(
        &self,
        from: u64,
        to: JournalPosition,
        each: &mut dyn FnMut(&JournalEntry),
    ) -> Result<(), JournalError> {
        self.0.scan(from, to, &mut |entry| {
            each(entry);
            true
        })
    }

    /// Reads the records from one on up to a position as long as `each` says yes.
    ///
    /// # Errors
    /// When a file cannot be read or is damaged.
    pub fn scan_while(
        &self,
        from: u64,
        to: JournalPosition,
        each: &mut dyn FnMut(&JournalEntry) -> bool,
    ) -> Result<(), JournalError> {
        self.0.scan(from, to, each)
    }

    /// The records from one on up to a position, for another node.
    #[must_use]
    pub fn read_stream(&self, from: u64, to: JournalPosition) -> JournalStream {
        JournalStream::new(Arc::clone(&self.0), from, to)
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn writer(&self) -> MutexGuard<'_, Writer> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has what waits written if it is much: in the background, or here if it is too much.
    fn make_room(self: &Arc<Shared>) -> Result<(), JournalError> {
        let mut state = self.state();
        self.measure(state.end);
        if state.unwritten >= self.buffer_bytes_max {
            drop(state);
            return self.write();
        }
        if state.unwritten < self.write_bytes || state.is_writing {
            return Ok(());
        }
        let Ok(runtime) = Handle::try_current() else {
            drop(state);
            return self.write();
        };
        state.is_writing = true;
        drop(state);
        let shared = Arc::clone(self);
        runtime.spawn(self.disk.offload(Box::new(move || {
            // A failure is kept, and told to whoever appends or flushes next.
            _ = shared.write();
            shared.state().is_writing = false;
        })));
        Ok(())
    }

    fn measure(&self, end: JournalPosition) {
        self.bytes.set(end.bytes as f64);
        self.records.set(end.records as f64);
    }
}

/// How large the journal is: in bytes and in records.
fn gauges() -> (Gauge, Gauge) {
    metrics::describe_gauge!("earmark_node_journal_bytes", "What the records of the journal take on disk.");
    metrics::describe_gauge!("earmark_node_journal_records", "The records of the journal.");
    (metrics::gauge!("earmark_node_journal_bytes"), metrics::gauge!("earmark_node_journal_records"))
}
