//! A Book in memory, behind the submitter.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use earmark_core::{
    AccountId, AccountName, Book, By, Command, Config, Definition, LeaseId, NamespaceId, NamespaceName,
    Outcome, PutLimit, TxId, UnixMs, VaultId, WriteOutcome,
};

use crate::answer;
use crate::backend::{BackendError, Stats};
use crate::book_host::{BookBackend, BookHost};
use crate::callers::ChangePage;
use crate::clock::{Clock, Moment, SystemClock};
use crate::history::History;
use crate::limits_file::{LimitsFile, LimitsFileError};
use crate::submitter::{BatchTarget, Direction, Submitter};
use crate::work::{Asked, Done, Work};
use crate::writes::{Audit, EntryPage};

/// Settings of a [`LocalBook`].
pub struct LocalOptions {
    /// The settings of the Book.
    pub config: Config,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// The limits file: read at the start, written when a limit changes. Without it, limits are lost at exit.
    pub limits_file: Option<PathBuf>,
    /// Most reserves in the queue. Completes may exceed it by a quarter.
    pub queue_max: usize,
}

impl Default for LocalOptions {
    fn default() -> LocalOptions {
        LocalOptions {
            config: Config::default(),
            clock: Arc::new(SystemClock::new()),
            limits_file: None,
            queue_max: 65_536,
        }
    }
}

/// A Book in memory. Its state is lost when it stops, except for the limits file.
pub type LocalBook = BookBackend<Local>;

/// Hosts a Book in memory.
pub struct Local {
    shelf: Arc<Mutex<Shelf>>,
    clock: Arc<dyn Clock>,
    submitter: Submitter<BookTarget>,
    limits_file: Option<LimitsFile>,
    is_stopped: AtomicBool,
    /// A copy of the Book's version that is read without the lock.
    limits_version: Arc<AtomicU64>,
}

/// The Book and its journal.
struct Shelf {
    book: Book,
    history: History,
}

fn lock(shelf: &Mutex<Shelf>) -> MutexGuard<'_, Shelf> {
    shelf.lock().unwrap_or_else(PoisonError::into_inner)
}

impl LocalBook {
    /// Reads the limits file, if one is set, and starts. Needs a tokio runtime.
    ///
    /// # Errors
    /// When the limits file cannot be used.
    pub async fn open(options: LocalOptions) -> Result<LocalBook, LimitsFileError> {
        let (limits_file, wanted) = match &options.limits_file {
            Some(path) => LimitsFile::open(path).map(|(file, wanted)| (Some(file), wanted))?,
            None => (None, Vec::new()),
        };
        let mut book = Book::new(options.config, RandomState::new().hash_one(0));
        let now = options.clock.now().log;
        for definition in &wanted {
            let namespace = NamespaceId::DEFAULT;
            let put = Command::PutLimit(PutLimit { namespace, definition, expected_revision: None });
            if let Outcome::Limit(outcome) = book.apply(now, put) {
                answer::limit(outcome).map_err(|source| LimitsFileError::Refused {
                    path: limits_file.as_ref().map(|file| file.path().to_owned()).unwrap_or_default(),
                    key: definition.key.clone(),
                    source,
                })?;
            }
        }
        let limits_version = Arc::new(AtomicU64::new(book.limits_version()));
        let shelf = Arc::new(Mutex::new(Shelf { book, history: History::default() }));
        let ledger = BookTarget {
            shelf: Arc::clone(&shelf),
            clock: Arc::clone(&options.clock),
            log_index: 0,
            limits_version: Arc::clone(&limits_version),
        };
        Ok(BookBackend::new(Arc::new(Local {
            shelf,
            clock: options.clock,
            submitter: Submitter::start(ledger, options.queue_max),
            limits_file,
            is_stopped: AtomicBool::new(false),
            limits_version,
        })))
    }
}

impl Local {
    /// Whether the last write of the limits file failed.
    fn is_behind(&self) -> bool {
        self.limits_file.as_ref().is_some_and(|file| file.behind().is_some())
    }

    /// Writes the Book's limits to the limits file, if one is set. After an error the change stays in force until exit,
    /// and the next change writes the file again.
    async fn write_limits(self: Arc<Local>) -> Result<(), BackendError> {
        if self.limits_file.is_none() {
            return Ok(());
        }
        let failed = |error: String| {
            BackendError::Failed(format!(
                "the change is in force, but was not saved and would not survive a restart: {error}"
            ))
        };
        let written = tokio::task::spawn_blocking(move || {
            let now = self.clock.now().log;
            let limits = lock(&self.shelf).book.limits(now, NamespaceId::DEFAULT);
            let wanted: Vec<Definition> = limits
                .into_iter()
                .filter(|limit| !answer::is_deleting(limit.status))
                .map(|limit| limit.definition)
                .collect();
            self.limits_file.as_ref().map_or(Ok(()), |file| file.write(&wanted))
        });
        written.await.map_err(|error| failed(error.to_string()))?.map_err(|error| failed(error.to_string()))
    }
}

impl BookHost for Local {
    async fn submit(&self, work: Vec<Asked>, direction: Direction) -> Result<Vec<Done>, BackendError> {
        let events = work.len();
        self.submitter.submit(work, events, direction).await
    }

    async fn fresh(&self) -> Result<UnixMs, BackendError> {
        Ok(self.clock.now().log)
    }

    fn now(&self) -> UnixMs {
        self.clock.now().log
    }

    fn look<T>(&self, look: impl FnOnce(&Book) -> T) -> T {
        look(&lock(&self.shelf).book)
    }

    async fn entries(
        &self,
        (id, name): (AccountId, AccountName),
        after: u64,
        page_size: usize,
    ) -> Result<EntryPage, BackendError> {
        let shelf = lock(&self.shelf);
        Ok(shelf.history.entries(&shelf.book, (id, &name), after, page_size))
    }

    async fn audit(&self, vault: VaultId, at: UnixMs) -> Result<Audit, BackendError> {
        let shelf = lock(&self.shelf);
        Ok(shelf.history.audit(&shelf.book, vault, at))
    }

    async fn log(
        &self,
        namespace: Option<NamespaceName>,
        after: u64,
        page_size: usize,
    ) -> Result<ChangePage, BackendError> {
        let shelf = lock(&self.shelf);
        Ok(shelf.history.log(&shelf.book, namespace.as_ref(), after, page_size))
    }

    async fn limits_changed(
        self: &Arc<Self>,
        namespace: &NamespaceName,
        is_changed: bool,
    ) -> Result<(), BackendError> {
        match self.is_behind() || is_changed && namespace.is_default() {
            true => Arc::clone(self).write_limits().await,
            false => Ok(()),
        }
    }

    fn limits_version(&self) -> u64 {
        self.limits_version.load(Ordering::Acquire)
    }

    fn stats(&self) -> Stats {
        let now = self.clock.now().log;
        Stats::of(&lock(&self.shelf).book, now, self.submitter.depth())
    }

    fn ready(&self) -> Result<(), String> {
        if self.is_stopped.load(Ordering::Relaxed) {
            return Err("the server is shutting down".into());
        }
        if self.submitter.is_stopped() {
            return Err("the Book has stopped; restart the server and report the errors in its log".into());
        }
        let behind = self.limits_file.as_ref().and_then(LimitsFile::behind);
        behind.map_or(Ok(()), |error| Err(format!("the limits file is out of date: {error}")))
    }

    /// Executes queued requests, and retries a failed write of the limits file.
    async fn shut_down(self: &Arc<Self>) {
        self.is_stopped.store(true, Ordering::Relaxed);
        self.submitter.stop().await;
        if self.is_behind() {
            _ = Arc::clone(self).write_limits().await;
        }
    }
}

/// Executes batches from the queue on the Book.
struct BookTarget {
    shelf: Arc<Mutex<Shelf>>,
    clock: Arc<dyn Clock>,
    /// Committed writes so far, which is the log index of the latest.
    log_index: u64,
    limits_version: Arc<AtomicU64>,
}

impl BookTarget {
    /// Executes requests in order. Retries and refused writes get no log index, and only the Book can tell. So each
    /// write ends a run, and the next run is numbered after it.
    fn carry_out(&mut self, book: &mut Book, moment: Moment, work: &mut [Asked]) -> Vec<Done> {
        let mut done = Vec::with_capacity(work.len());
        for run in work.chunk_by_mut(|item, _| !matches!(item.work, Work::Write(_))) {
            let log_index = self.log_index.saturating_add(1);
            if let Some(Asked { work: Work::Write(write), .. }) = run.last_mut() {
                write.log_index = log_index;
                write.tx_id = tx_id(moment.log, log_index);
            }
            let commands: Vec<Command<'_>> = run.iter().map(|item| item.command(moment.wall)).collect();
            let mut outcomes = Vec::with_capacity(commands.len());
            let rights: Vec<By> = run.iter().map(|item| item.by.clone()).collect();
            book.apply_all_by(moment.log, &rights, &commands, &mut outcomes);
            if let Some(Outcome::Write(WriteOutcome::Committed(_))) = outcomes.last() {
                self.log_index = log_index;
            }
            let answers = run.iter().zip(outcomes);
            done.extend(answers.map(|(item, outcome)| item.answer(book, moment.wall, outcome)));
        }
        done
    }
}

/// A ULID for a write.
fn tx_id(now: UnixMs, log_index: u64) -> TxId {
    let random = RandomState::new().hash_one(log_index);
    let low = (u128::from(random) << 16) | u128::from(log_index & 0xffff);
    TxId(LeaseId::from_parts(now, low).to_u128())
}

impl BatchTarget for BookTarget {
    /// The requests of one caller, which stay together.
    type Item = Vec<Asked>;
    type Outcome = Vec<Done>;

    /// Most commands in one batch. This many hold the lock, which reads need, for less than a millisecond.
    const BATCH_EVENTS_MAX: usize = 2_048;

    async fn submit(&mut self, batch: Vec<Vec<Asked>>) -> Vec<Vec<Done>> {
        let moment = self.clock.now();
        let lens: Vec<usize> = batch.iter().map(Vec::len).collect();
        let mut work: Vec<Asked> = batch.into_iter().flatten().collect();
        let shelf = Arc::clone(&self.shelf);
        let mut done = {
            let mut shelf = lock(&shelf);
            let done = self.carry_out(&mut shelf.book, moment, &mut work);
            self.limits_version.store(shelf.book.limits_version(), Ordering::Release);
            let records = shelf.book.drain_journal();
            shelf.history.extend(records);
            done.into_iter()
        };
        lens.into_iter().map(|len| done.by_ref().take(len).collect()).collect()
    }

    async fn idle(&mut self) {
        let now = self.clock.now().log;
        let mut shelf = lock(&self.shelf);
        shelf.book.apply(now, Command::Tick);
        let records = shelf.book.drain_journal();
        shelf.history.extend(records);
    }
}
