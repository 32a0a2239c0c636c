//! Sequenced writes: exactly once, even when the process is killed in between.
//!
//! A sequence number is on disk before it is sent, together with the hash of its operations. While its outcome is unknown,
//! the number is used only for the same operations or for a *fence*: a transaction without operations, which takes the
//! number from any copy that may still arrive. Only then comes the next number.

mod content;
mod file;
mod recover;
mod send;

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use earmark_core::{ClientId, Operation};

use crate::answer::{Receipt, Scope, WriteRefusal};
use crate::client::Client;
use crate::deadline::Deadline;
use crate::failure::Failure;

pub use content::ContentHash;
use file::{Record, SequenceFile};
pub use file::{SequenceFileError, Step};

/// The options of a [`Writer`].
#[derive(Clone)]
pub struct WriterOptions {
    /// The file with the last used sequence number. A lock file has the same name with `.lock`.
    pub path: PathBuf,
    /// The scope of the writes.
    pub scope: Scope,
    /// The client id. No other writer may use it in this scope.
    pub client_id: ClientId,
    /// Called at every step: for logs, and for tests that kill the process there.
    pub observer: Option<Arc<dyn Fn(Step) + Send + Sync>>,
}

impl WriterOptions {
    /// Options without an observer.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>, scope: Scope, client_id: ClientId) -> WriterOptions {
        WriterOptions { path: path.into(), scope, client_id, observer: None }
    }
}

impl fmt::Debug for WriterOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WriterOptions")
            .field("path", &self.path)
            .field("scope", &self.scope)
            .field("client_id", &self.client_id)
            .finish_non_exhaustive()
    }
}

/// A write whose outcome its caller has not learned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unfinished {
    /// The sequence number.
    pub sequence: u64,
    /// The hash of the operations.
    pub content: ContentHash,
    /// Whether a fence was sent under the same number.
    is_fenced: bool,
}

/// The final outcome of an unfinished write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The write was committed.
    Committed,
    /// The write was not committed, and never will be.
    NeverHappened,
}

/// Why a write was not committed, or the writer cannot continue.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriterError {
    /// The server refused the write. Nothing changed, and no copy can change anything later.
    #[error("the write was refused: {0}")]
    Refused(#[source] WriteRefusal),
    /// The request was not sent, or refused before the write was examined. Nothing changed.
    #[error(transparent)]
    NotSent(Failure),
    /// The outcome is unknown. The writer remembers the write as unfinished.
    #[error("the outcome of sequence {sequence} is unknown; repeat or settle it: {source}")]
    OutcomeUnknown {
        /// The sequence number.
        sequence: u64,
        /// Why the outcome is unknown.
        source: Failure,
    },
    /// An earlier write is unfinished.
    #[error("sequence {sequence} is unfinished; repeat or settle it first")]
    Unfinished {
        /// The sequence number.
        sequence: u64,
    },
    /// The operations to repeat differ from those of the unfinished write.
    #[error("sequence {sequence} has other operations; repeat those, or settle it")]
    OtherContent {
        /// The sequence number.
        sequence: u64,
    },
    /// The write to repeat was fenced off: it was not committed and never will be.
    #[error("sequence {sequence} was taken by a fence and its write never happened; write it again")]
    Fenced {
        /// The sequence number.
        sequence: u64,
    },
    /// There is no write to repeat.
    #[error("no write is unfinished")]
    NothingToRepeat,
    /// To continue could lose or repeat a write.
    #[error("the writer stopped: {0}")]
    Conflict(#[from] SequenceConflict),
    /// The sequence file cannot be used.
    #[error(transparent)]
    File(#[from] SequenceFileError),
    /// The last committed sequence could not be read from the server.
    #[error("cannot read the last committed sequence of this client: {0}")]
    State(#[source] Failure),
    /// All sequence numbers are used up.
    #[error("client {client_id} has used all sequence numbers; use a new client_id")]
    Exhausted {
        /// The client id.
        client_id: ClientId,
    },
}

/// Why the server and the sequence file contradict each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SequenceConflict {
    /// The server has sequence numbers that this writer never used.
    #[error(
        "the server has committed sequence {server} of this client, but its file ends at {file}: another writer uses the \
         same client_id, or the file is an old copy. Stop the other writer; without another writer, remove the file, and \
         check what the sequences in between did before writing them again"
    )]
    ServerAhead {
        /// The last sequence of the server.
        server: u64,
        /// The last sequence of the file.
        file: u64,
    },
    /// The server lost sequence numbers that it had acknowledged.
    #[error(
        "sequence {file} of this client was acknowledged, but the server ends at {server}: it lost its data, was \
         restored from an older backup, or is another server. If you accept the loss, remove the file and repeat the \
         missing writes"
    )]
    ServerBehind {
        /// The last sequence of the server.
        server: u64,
        /// The last acknowledged sequence.
        file: u64,
    },
    /// The sequence number was taken by a write of another writer.
    #[error(
        "sequence {sequence} of this client was committed with other operations: another writer uses the same \
         client_id. Give each writer its own"
    )]
    NumberTaken {
        /// The sequence number.
        sequence: u64,
    },
}

/// Writes transactions exactly once, one at a time.
///
/// ```no_run
/// use std::time::Duration;
/// use earmark_client::{Client, ClientOptions, Deadline, Scope, Writer, WriterOptions};
/// use earmark_client::core::{GrantTerms, Operation};
///
/// # async fn write() -> Result<(), Box<dyn std::error::Error>> {
/// let client = Client::new(ClientOptions::of(&["http://127.0.0.1:7878"])?)?;
/// let scope = Scope { namespace: "default".parse()?, vault: Some("main".parse()?) };
/// let options = WriterOptions::new("billing.sequence", scope, "billing".parse()?);
/// let within = || Deadline::after(Duration::from_secs(30));
///
/// let mut writer = Writer::open(&client, options, within()).await?;
/// // The process was killed during a write: find out whether it was committed.
/// if writer.unfinished().is_some() {
///     println!("the last write: {:?}", writer.settle(within()).await?);
/// }
/// let issue = Operation::Issue {
///     account: "acme".parse()?, asset: "usd".parse()?, amount: 5_000_000, memo: "order 17".into(),
///     terms: GrantTerms::PLAIN,
/// };
/// println!("committed as {}", writer.write(vec![issue], within()).await?.tx_id);
/// # Ok(())
/// # }
/// ```
pub struct Writer {
    client: Client,
    scope: Scope,
    client_id: ClientId,
    file: Arc<Mutex<SequenceFile>>,
    observer: Option<Arc<dyn Fn(Step) + Send + Sync>>,
    /// The last sequence number that is known to be committed.
    committed: u64,
    unfinished: Option<Unfinished>,
    /// The record that is certainly in the file; `None` while a store is not known to have succeeded.
    stored: Option<Record>,
    /// Numbers the stores, so that an older record never replaces a newer one.
    stamp: u64,
    conflict: Option<SequenceConflict>,
}

impl fmt::Debug for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writer")
            .field("client_id", &self.client_id)
            .field("committed", &self.committed)
            .field("unfinished", &self.unfinished)
            .finish_non_exhaustive()
    }
}

impl Writer {
    /// Opens the file, and compares it with the state of the server.
    ///
    /// A writer that was not closed may have an [`unfinished`](Writer::unfinished) write. Repeat or settle it before the
    /// next one.
    ///
    /// Without a file the writer continues after the last sequence of the server, behind a fence: once this returns, no
    /// earlier write can still be committed.
    ///
    /// # Errors
    /// When the file is damaged, in use or of another writer; when server and file contradict each other; when no answer
    /// came in time.
    pub async fn open(client: &Client, options: WriterOptions, deadline: Deadline) -> Result<Writer, WriterError> {
        let (path, scope, client_id) = (options.path, options.scope, options.client_id);
        let owner = (scope.clone(), client_id.clone());
        let opened = blocking(move || SequenceFile::open(path, &owner.0, &owner.1)).await??;
        let (file, record) = opened;
        let mut writer = Writer {
            client: client.clone(),
            scope,
            client_id,
            file: Arc::new(Mutex::new(file)),
            observer: options.observer,
            committed: 0,
            unfinished: None,
            stored: None,
            stamp: 0,
            conflict: None,
        };
        match record {
            Some(record) => writer.resume(record, deadline).await?,
            None => writer.recover_without_file(deadline).await?,
        }
        Ok(writer)
    }

    /// The write whose outcome the caller has not learned.
    pub const fn unfinished(&self) -> Option<Unfinished> {
        self.unfinished
    }

    /// The last sequence number that is known to be committed.
    pub const fn committed(&self) -> u64 {
        self.committed
    }

    /// Writes a transaction with the next sequence number.
    ///
    /// # Errors
    /// When the write is [`unfinished`](Writer::unfinished) afterwards, as with [`WriterError::OutcomeUnknown`], it may
    /// have been committed. Otherwise it was not, and never will be.
    pub async fn write(&mut self, operations: Vec<Operation>, deadline: Deadline) -> Result<Receipt, WriterError> {
        self.check()?;
        if let Some(Unfinished { sequence, .. }) = self.unfinished {
            return Err(WriterError::Unfinished { sequence });
        }
        // The server refuses u64::MAX, because no sequence could follow it.
        let next = self.committed.checked_add(1).filter(|next| *next < u64::MAX);
        let sequence = next.ok_or_else(|| WriterError::Exhausted { client_id: self.client_id.clone() })?;
        let content = ContentHash::of(&operations);
        self.begin(Unfinished { sequence, content, is_fenced: false }).await?;
        self.send(sequence, operations, false, deadline).await
    }

    /// Repeats the unfinished transaction with its own sequence number. If it was committed already, the original receipt
    /// is returned.
    ///
    /// # Errors
    /// [`WriterError::OtherContent`] if the operations differ from the unfinished ones; else as [`Writer::write`].
    pub async fn repeat(&mut self, operations: Vec<Operation>, deadline: Deadline) -> Result<Receipt, WriterError> {
        self.check()?;
        let Some(unfinished) = self.unfinished else { return Err(WriterError::NothingToRepeat) };
        let Unfinished { sequence, content, .. } = unfinished;
        if content != ContentHash::of(&operations) {
            return Err(WriterError::OtherContent { sequence });
        }
        self.begin(unfinished).await?;
        self.send(sequence, operations, true, deadline).await
    }

    /// Finds out whether the unfinished write was committed. If not, a fence makes sure that it never will be.
    ///
    /// # Errors
    /// When no answer came in time. The write stays unfinished.
    pub async fn settle(&mut self, deadline: Deadline) -> Result<Option<Fate>, WriterError> {
        self.check()?;
        let Some(Unfinished { sequence, .. }) = self.unfinished else { return Ok(None) };
        let fate = self.fence(deadline).await?;
        self.mark_known(sequence);
        Ok(Some(fate))
    }

    /// Stores that the caller knows the outcome of every write, so that none is unfinished at the next open.
    ///
    /// # Errors
    /// When a write is unfinished, or the file cannot be written.
    pub async fn close(mut self) -> Result<(), WriterError> {
        self.check()?;
        match self.unfinished {
            Some(Unfinished { sequence, .. }) => Err(WriterError::Unfinished { sequence }),
            None => self.store(None).await,
        }
    }

    fn check(&self) -> Result<(), WriterError> {
        self.conflict.map_or(Ok(()), |conflict| Err(conflict.into()))
    }

    /// Stops the writer for good.
    fn stop(&mut self, conflict: SequenceConflict) -> WriterError {
        self.conflict = Some(conflict);
        conflict.into()
    }

    fn reached(&self, step: Step) {
        if let Some(observer) = &self.observer {
            observer(step);
        }
    }

    /// Stores the write before it is sent. It is unfinished only after that, so a caller that is cancelled during the
    /// store leaves the sequence number free.
    async fn begin(&mut self, unfinished: Unfinished) -> Result<(), WriterError> {
        self.store(Some(unfinished)).await?;
        self.unfinished = Some(unfinished);
        Ok(())
    }

    /// The caller learns the outcome of this sequence number.
    fn mark_known(&mut self, sequence: u64) {
        self.committed = sequence;
        self.unfinished = None;
    }

    /// Stores the last committed sequence and the unfinished write, unless the file has them.
    async fn store(&mut self, unfinished: Option<Unfinished>) -> Result<(), WriterError> {
        let committed = self.committed;
        if self.stored.is_some_and(|stored| (stored.committed, stored.unfinished) == (committed, unfinished)) {
            return Ok(());
        }
        // A store that fails or is cancelled may still replace the file.
        self.stored = None;
        self.stamp += 1;
        let record = Record { committed, unfinished, stamp: self.stamp };
        let (file, observer) = (Arc::clone(&self.file), self.observer.clone());
        let stored = blocking(move || {
            let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
            file.store(record, &|step| {
                if let Some(observer) = &observer {
                    observer(step);
                }
            })
        });
        stored.await??;
        self.stored = Some(record);
        Ok(())
    }
}

/// Runs file operations on the blocking thread pool.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, SequenceFileError> {
    tokio::task::spawn_blocking(work).await.map_err(|_| SequenceFileError::Stopped)
}
