//! Sequenced writes: every one exactly once, also by a process that is killed in between.
//!
//! A number is on disk before it is sent, together with the hash of what is sent under it. A number whose outcome is
//! unknown is used for the same content again, or for a *fence*: a transaction without operations, which takes the
//! number away from any copy that is still under way. Only then does the next number come.

mod content;
mod file;
mod recover;
mod send;

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use earmark_core::{ClientId, Operation};

use crate::ask::{Receipt, Scope, WriteRefusal};
use crate::client::Client;
use crate::deadline::Deadline;
use crate::failure::Failure;

pub use content::ContentHash;
use file::{Record, SequenceFile};
pub use file::{SequenceFileError, Step};

/// Where a writer keeps its numbers, and who it is.
#[derive(Clone)]
pub struct WriterOptions {
    /// The file that keeps the last used number. Beside it stands one with `.lock` behind its name.
    pub path: PathBuf,
    /// Where its writes belong.
    pub scope: Scope,
    /// Who counts. Nobody else may write under this name in this scope.
    pub client_id: ClientId,
    /// Told of every step, before the next one: for logs, and for tests that end the process there.
    pub observer: Option<Arc<dyn Fn(Step) + Send + Sync>>,
}

impl WriterOptions {
    /// A writer of this name with this file.
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

/// A write that was begun and whose end its caller has not seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unfinished {
    /// Its number.
    pub sequence: u64,
    /// The hash of its operations.
    pub content: ContentHash,
    /// Whether a fence was sent under the same number.
    is_fenced: bool,
}

/// What became of a write that was unfinished. It is certain, and stays so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It was committed.
    Committed,
    /// It was not, and never will be.
    NeverHappened,
}

/// Why a write was not committed, or the writer cannot go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriterError {
    /// The server refused it. Nothing was changed, and no copy can change anything later.
    #[error("the write was refused: {0}")]
    Refused(#[source] WriteRefusal),
    /// The request was refused before it was looked at. Nothing was changed.
    #[error(transparent)]
    NotSent(Failure),
    /// Whether it is committed is not known. The writer remembers it as unfinished.
    #[error("the outcome of number {sequence} is unknown, repeat or settle it: {source}")]
    OutcomeUnknown {
        /// Its number.
        sequence: u64,
        /// Why it is not known.
        source: Failure,
    },
    /// A write before this one is unfinished, and must be repeated or settled first.
    #[error("number {sequence} is unfinished; repeat or settle it first")]
    Unfinished {
        /// Its number.
        sequence: u64,
    },
    /// What is to be repeated is not what was begun.
    #[error("number {sequence} was begun with other operations; repeat those, or settle it")]
    OtherContent {
        /// Its number.
        sequence: u64,
    },
    /// What is to be repeated has been fenced off: it did not happen and never will.
    #[error("number {sequence} was given up; its write never happened, and can be written anew")]
    Fenced {
        /// Its number.
        sequence: u64,
    },
    /// There is nothing to repeat.
    #[error("no write is unfinished")]
    NothingToRepeat,
    /// Going on could lose or repeat a write.
    #[error("it is not safe to go on: {0}")]
    Unsafe(#[from] Danger),
    /// The file cannot be used.
    #[error(transparent)]
    File(#[from] SequenceFileError),
    /// The server could not be asked how far this client has counted.
    #[error("how far this client has counted is not known: {0}")]
    State(#[source] Failure),
    /// All numbers are used up.
    #[error("client {client_id} has used all its numbers; use a new client_id")]
    Exhausted {
        /// Who counts.
        client_id: ClientId,
    },
}

/// Why it is not safe to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Danger {
    /// The server has numbers that this writer never used.
    #[error(
        "the server has committed number {server} of this client, and the file knows only of {file}: another writer \
         uses the same client_id, or the file is an old copy. Stop the other writer; if there is none, remove the \
         file, and check what the numbers in between did before writing them again"
    )]
    ServerAhead {
        /// The last number that the server has.
        server: u64,
        /// The last number that the file has.
        file: u64,
    },
    /// The server has lost numbers that it had acknowledged.
    #[error(
        "number {file} of this client was acknowledged, and the server has only {server}: it lost its data, was \
         restored from an older backup, or is another server. If the loss is accepted, remove the file and write \
         what is missing again"
    )]
    ServerBehind {
        /// The last number that the server has.
        server: u64,
        /// The last number that was acknowledged.
        file: u64,
    },
    /// The number was taken by something that this writer did not send.
    #[error(
        "number {sequence} of this client was committed with other content: another writer uses the same client_id. \
         Give each writer its own"
    )]
    NumberTaken {
        /// The number.
        sequence: u64,
    },
}

/// Writes transactions, each exactly once. One at a time: a number is used only when the one before it is known.
///
/// ```no_run
/// use std::time::Duration;
/// use earmark_client::{Client, ClientOptions, Deadline, Scope, Writer, WriterOptions};
/// use earmark_client::core::Operation;
///
/// # async fn write() -> Result<(), Box<dyn std::error::Error>> {
/// let client = Client::new(ClientOptions::of(&["http://127.0.0.1:7878"])?)?;
/// let scope = Scope { namespace: "default".parse()?, vault: Some("main".parse()?) };
/// let options = WriterOptions::new("billing.sequence", scope, "billing".parse()?);
/// let within = || Deadline::after(Duration::from_secs(30));
///
/// let mut writer = Writer::open(&client, options, within()).await?;
/// // The process was killed in the middle of a write: find out what became of it.
/// if writer.unfinished().is_some() {
///     println!("the last write: {:?}", writer.settle(within()).await?);
/// }
/// let issue = Operation::Issue {
///     account: "acme".parse()?, asset: "usd".parse()?, amount: 5_000_000, memo: "order 17".into(),
/// };
/// println!("committed as number {}", writer.write(vec![issue], within()).await?.sequence);
/// # Ok(())
/// # }
/// ```
pub struct Writer {
    client: Client,
    scope: Scope,
    client_id: ClientId,
    file: Arc<Mutex<SequenceFile>>,
    observer: Option<Arc<dyn Fn(Step) + Send + Sync>>,
    /// The last number that is known to be committed.
    committed: u64,
    unfinished: Option<Unfinished>,
    /// What the file says for certain; none while a record was begun and not seen to be there.
    stored: Option<Record>,
    /// Counts what is written to the file, so that an older record never replaces a newer one.
    stamp: u64,
    danger: Option<Danger>,
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
    /// Opens the file, and compares it with what the server has.
    ///
    /// A writer that was not closed may come back with a write that is [`unfinished`](Writer::unfinished): committed
    /// or not, its caller has not heard of it for sure. It must be repeated or settled before anything else.
    ///
    /// Without a file the numbers of the server are taken up, behind a fence: once this returns, nothing that was sent
    /// before can still happen.
    ///
    /// # Errors
    /// When the file is damaged, of another writer or in use; when the server and the file do not go together; when
    /// there was no answer in time.
    pub async fn open(
        client: &Client,
        options: WriterOptions,
        deadline: Deadline,
    ) -> Result<Writer, WriterError> {
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
            danger: None,
        };
        match record {
            Some(record) => writer.go_on(record, deadline).await?,
            None => writer.start_over(deadline).await?,
        }
        Ok(writer)
    }

    /// A write that was begun and whose end its caller has not seen.
    #[must_use]
    pub const fn unfinished(&self) -> Option<Unfinished> {
        self.unfinished
    }

    /// The last number that is known to be committed.
    #[must_use]
    pub const fn committed(&self) -> u64 {
        self.committed
    }

    /// Writes a transaction under the next number.
    ///
    /// # Errors
    /// If it is [`unfinished`](Writer::unfinished) after it, as with [`WriterError::OutcomeUnknown`], nobody knows. Else
    /// nothing happened, and never will.
    pub async fn write(
        &mut self,
        operations: Vec<Operation>,
        deadline: Deadline,
    ) -> Result<Receipt, WriterError> {
        self.check()?;
        if let Some(Unfinished { sequence, .. }) = self.unfinished {
            return Err(WriterError::Unfinished { sequence });
        }
        // The server keeps the last number for nobody, for none could follow it.
        let next = self.committed.checked_add(1).filter(|next| *next < u64::MAX);
        let sequence = next.ok_or_else(|| WriterError::Exhausted { client_id: self.client_id.clone() })?;
        let content = ContentHash::of(&operations);
        self.begin(Unfinished { sequence, content, is_fenced: false }).await?;
        self.send(sequence, operations, false, deadline).await
    }

    /// Writes the unfinished transaction again, under its own number. If it was committed already, this is the
    /// receipt of then.
    ///
    /// # Errors
    /// [`WriterError::OtherContent`] if the operations are not the ones that were begun; else as for
    /// [`Writer::write`].
    pub async fn repeat(
        &mut self,
        operations: Vec<Operation>,
        deadline: Deadline,
    ) -> Result<Receipt, WriterError> {
        self.check()?;
        let Some(unfinished) = self.unfinished else { return Err(WriterError::NothingToRepeat) };
        let Unfinished { sequence, content, .. } = unfinished;
        if content != ContentHash::of(&operations) {
            return Err(WriterError::OtherContent { sequence });
        }
        self.begin(unfinished).await?;
        self.send(sequence, operations, true, deadline).await
    }

    /// Finds out what became of the unfinished write, if there is one, and makes sure that it stays so: what has not
    /// been committed is fenced off.
    ///
    /// # Errors
    /// When there was no answer in time, which leaves it unfinished.
    pub async fn settle(&mut self, deadline: Deadline) -> Result<Option<Fate>, WriterError> {
        self.check()?;
        let Some(Unfinished { sequence, .. }) = self.unfinished else { return Ok(None) };
        let fate = self.fence(deadline).await?;
        self.ended(sequence);
        Ok(Some(fate))
    }

    /// Notes that the caller knows the outcome of every write so far, so that none is unfinished when the file is
    /// opened again.
    ///
    /// # Errors
    /// When one is unfinished, or the file cannot be written.
    pub async fn close(mut self) -> Result<(), WriterError> {
        self.check()?;
        match self.unfinished {
            Some(Unfinished { sequence, .. }) => Err(WriterError::Unfinished { sequence }),
            None => self.store(None).await,
        }
    }

    fn check(&self) -> Result<(), WriterError> {
        self.danger.map_or(Ok(()), |danger| Err(danger.into()))
    }

    /// Nothing more is written after this.
    fn stop(&mut self, danger: Danger) -> WriterError {
        self.danger = Some(danger);
        danger.into()
    }

    fn reached(&self, step: Step) {
        if let Some(observer) = &self.observer {
            observer(step);
        }
    }

    /// Makes sure that the file says what is about to be sent. Only then is it unfinished: while it is not there nothing
    /// is sent, so a caller that goes away meanwhile leaves the number free.
    async fn begin(&mut self, unfinished: Unfinished) -> Result<(), WriterError> {
        self.store(Some(unfinished)).await?;
        self.unfinished = Some(unfinished);
        Ok(())
    }

    /// The fate of a number is known, and so is its caller's.
    fn ended(&mut self, sequence: u64) {
        self.committed = sequence;
        self.unfinished = None;
    }

    /// Puts on disk how far this writer has counted and what is under way, unless that is there.
    async fn store(&mut self, unfinished: Option<Unfinished>) -> Result<(), WriterError> {
        let committed = self.committed;
        if self.stored.is_some_and(|stored| (stored.committed, stored.unfinished) == (committed, unfinished))
        {
            return Ok(());
        }
        // A store that fails, or that nobody waits for any more, may still have replaced the file.
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

/// Work on files, where it holds up no other task.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, SequenceFileError> {
    tokio::task::spawn_blocking(work).await.map_err(|_| SequenceFileError::Stopped)
}
