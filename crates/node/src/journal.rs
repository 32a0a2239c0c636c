//! The journal: every credit change and limit change, kept forever.
//!
//! Numbered records are stored in segments. The segment boundaries depend only on the record bytes, so the journal is
//! a function of the log and identical on every replica. A snapshot stores its [`JournalPosition`]. On start the
//! journal is truncated to that position, and the log is replayed from there.

mod format;
mod import;
mod index;
mod open;
mod read;
mod state;
mod walk;
mod write;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use earmark_core::JournalRecord;
use metrics::Gauge;
use tokio::runtime::Handle;

pub use format::{ChainHead, JournalPosition};
pub(crate) use format::{FRAMING as JOURNAL_FRAMING, split_record};
pub use read::JournalStream;

use crate::disk::Disk;
use crate::failure::Failure;
use crate::fault::Fault;
use open::Opening;
use state::State;
use write::Writer;

/// Segment size in bytes.
pub(crate) const SEGMENT_BYTES: u64 = 16 * 1024 * 1024;
/// Maximum segment size in bytes. Offsets in the index have 32 bits.
const SEGMENT_BYTES_MAX: u64 = 1024 * 1024 * 1024;
/// Appended bytes that trigger a background write.
const WRITE_BYTES: usize = 1024 * 1024;
/// Maximum unwritten bytes. Beyond this an append writes by itself, which slows the caller down to disk speed.
const BUFFER_BYTES_MAX: usize = 8 * 1024 * 1024;

const FOLDER: &str = "journal";

/// Path of the segment that follows a record number.
fn segment_path(start: u64) -> String {
    format!("{FOLDER}/{:020}.journal", start.saturating_add(1))
}

fn index_path(start: u64) -> String {
    format!("{FOLDER}/{:020}.index", start.saturating_add(1))
}

/// Journal options.
#[derive(Clone, Copy, Debug)]
pub struct JournalOptions {
    /// Cluster id. Files of another cluster are refused.
    pub cluster: u128,
    /// Segment size in bytes. All replicas must use the same value, or their files differ.
    pub segment_bytes: u64,
    /// Appended bytes that trigger a background write.
    pub write_bytes: usize,
    /// Maximum unwritten bytes.
    pub buffer_bytes_max: usize,
}

impl JournalOptions {
    /// Default options for a cluster.
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

/// A record with its number and its log index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalEntry {
    /// Record number, from 1.
    pub number: u64,
    /// Index of the log entry that produced it.
    pub log_index: u64,
    /// The record.
    pub record: JournalRecord,
}

/// Journal of a node. Appends go to memory and are written in the background; [`flush`](Self::flush) syncs them. The
/// first failed write or sync stops the journal.
///
/// Reads block on the disk.
#[derive(Clone, Debug)]
pub struct Journal(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    disk: Arc<dyn Disk>,
    cluster: u128,
    write_bytes: usize,
    buffer_bytes_max: usize,
    /// Locked only briefly, never during file I/O.
    state: Mutex<State>,
    /// Lock order: `writer` before `state`.
    writer: Mutex<Writer>,
    rebuilding: Mutex<()>,
    failure: Failure,
    bytes: Gauge,
    records: Gauge,
}

impl Journal {
    /// Opens the journal at the position of the node's snapshot. Everything before the position must be intact;
    /// everything after it is removed. `None` removes all records.
    ///
    /// # Errors
    /// If a file before the position is missing, damaged, of another cluster or of a newer format; nothing is changed
    /// then. Or if the file system fails.
    pub fn open(
        disk: Arc<dyn Disk>,
        options: JournalOptions,
        position: Option<JournalPosition>,
    ) -> Result<Journal, Fault> {
        let JournalOptions { cluster, segment_bytes, write_bytes, buffer_bytes_max } = options;
        let segment_bytes = segment_bytes.min(SEGMENT_BYTES_MAX);
        // Before the first record there is only one valid position.
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
            failure: Failure::default(),
            bytes,
            records,
        };
        shared.measure(to);
        Ok(Journal(Arc::new(shared)))
    }

    /// Appends the records of one log entry to memory. Writes only if too much is unwritten.
    pub fn append(&self, log_index: u64, records: &[JournalRecord]) -> Result<(), Fault> {
        {
            self.0.check()?;
            let mut state = self.0.state();
            for record in records {
                if let Err(why) = state.push(log_index, record) {
                    let number = state.end.records.saturating_add(1);
                    return Err(self.0.fail(Fault::RecordRefused { number, why: why.to_owned() }));
                }
            }
        }
        self.0.make_room()
    }

    /// Syncs the imported records and compares the position with the sender's.
    ///
    /// # Errors
    /// If the positions differ: the journal stops, because the histories differ. Or if a write or sync fails.
    pub fn finish_import(&self, position: JournalPosition) -> Result<(), Fault> {
        let found = self.flush_blocking()?;
        if found == position {
            return Ok(());
        }
        let why = format!("the journal should end at {position:?} and ends at {found:?}");
        Err(self.0.fail(Fault::RecordRefused { number: found.records, why }))
    }

    /// Syncs all records appended so far and returns their position.
    ///
    /// # Errors
    /// If a write or sync fails; the journal has stopped then.
    pub async fn flush(&self) -> Result<JournalPosition, Fault> {
        let shared = Arc::clone(&self.0);
        self.0.disk.run(move || shared.flush()).await
    }

    /// [`flush`](Self::flush) for threads that may block.
    ///
    /// # Errors
    /// If a write or sync fails; the journal has stopped then.
    pub fn flush_blocking(&self) -> Result<JournalPosition, Fault> {
        self.0.flush()
    }

    /// Position after the last appended record.
    #[must_use]
    pub fn position(&self) -> JournalPosition {
        self.0.state().end
    }

    /// Log index of the last record; 0 for an empty journal.
    #[must_use]
    pub fn last_log_index(&self) -> u64 {
        self.0.state().last_log_index
    }

    /// The failure that stopped the journal, if any.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        self.0.failure.get().map(str::to_owned)
    }

    /// Encoded records from a number up to a position, for another node.
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

    /// Writes pending records if there are many: in the background, or here if there are too many.
    fn make_room(self: &Arc<Shared>) -> Result<(), Fault> {
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
            // The failure is stored; the next append or flush reports it.
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

/// Metrics for the journal size in bytes and in records.
fn gauges() -> (Gauge, Gauge) {
    metrics::describe_gauge!("earmark_node_journal_bytes", "Bytes of journal records on disk.");
    metrics::describe_gauge!("earmark_node_journal_records", "Number of journal records.");
    (metrics::gauge!("earmark_node_journal_bytes"), metrics::gauge!("earmark_node_journal_records"))
}
