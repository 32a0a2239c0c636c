//! A Book in memory, behind the submitter.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use earmark_core::{
    AccountId, AccountName, Book, Command, Config, Definition, LeaseId, LimitInfo, Moment, NamespaceId, NamespaceName,
    Outcome, Principal, PutLimit, PutTemplate, Template, TxId, UnixMs, VaultId, WriteOutcome,
};
use earmark_trace::{TraceContext, record_each};

use crate::answer;
use crate::backend::{BackendError, LimitError, Stats};
use crate::book_host::{BookBackend, BookHost};
use crate::book_request::{Answered, Applied, BookRequest, Submission};
use crate::callers::{ChangePage, ChangeQuery};
use crate::clock::{Clock, SystemClock};
use crate::credit_lists::EntryQuery;
use crate::expired::{count_expired, watch_expiry};
use crate::history::History;
use crate::limits_file::{LimitsFile, LimitsFileError, NamespacedLimits};
use crate::submitter::{BatchTarget, Direction, Submitter};
use crate::templates;
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
    state: Arc<Mutex<LocalState>>,
    clock: Arc<dyn Clock>,
    submitter: Submitter<BookTarget>,
    limits_file: Option<LimitsFile>,
    is_stopped: AtomicBool,
    /// A copy of the Book's version that is read without the lock.
    limits_version: Arc<AtomicU64>,
}

/// The Book and its journal.
struct LocalState {
    book: Book,
    history: History,
}

fn lock(state: &Mutex<LocalState>) -> MutexGuard<'_, LocalState> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
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
        for (name, definition) in &wanted {
            put_limit(&mut book, now, name, definition).map_err(|source| LimitsFileError::Refused {
                path: limits_file.as_ref().map(|file| file.path().to_owned()).unwrap_or_default(),
                key: definition.key.clone(),
                source,
            })?;
        }
        let limits_version = Arc::new(AtomicU64::new(book.limits_version()));
        let state = Arc::new(Mutex::new(LocalState { book, history: History::default() }));
        let ledger = BookTarget {
            state: Arc::clone(&state),
            clock: Arc::clone(&options.clock),
            log_index: 0,
            limits_version: Arc::clone(&limits_version),
        };
        Ok(BookBackend::new(Arc::new(Local {
            state,
            clock: options.clock,
            submitter: Submitter::start(ledger, options.queue_max),
            limits_file,
            is_stopped: AtomicBool::new(false),
            limits_version,
        })))
    }
}

/// Puts a limit or template of the limits file, and creates its namespace.
fn put_limit(book: &mut Book, now: UnixMs, name: &NamespaceName, definition: &Definition) -> Result<(), LimitError> {
    book.apply(now, Command::OpenNamespace(name));
    let namespace = book.namespace(name).ok_or(LimitError::TooMany)?;
    if definition.key.has_placeholders() {
        let template = Template::new(definition.clone())?;
        let put = Command::PutTemplate(PutTemplate { namespace, template: &template, expected_revision: None });
        let outcome = book.apply(now, put);
        return if let Outcome::Template(outcome) = outcome { templates::answer(outcome).map(drop) } else { Ok(()) };
    }
    let put = Command::PutLimit(PutLimit { namespace, definition, expected_revision: None });
    if let Outcome::Limit(outcome) = book.apply(now, put) { answer::limit(outcome).map(drop) } else { Ok(()) }
}

/// The limits and templates of the limits file, ordered by namespace.
fn wanted(book: &Book, now: UnixMs) -> NamespacedLimits {
    let mut wanted = NamespacedLimits::new();
    for (id, name) in (0..=u16::MAX).map(NamespaceId).map_while(|id| Some((id, book.namespace_name(id)?))) {
        let is_wanted = |limit: &LimitInfo| !answer::is_deleting(limit.status);
        let limits = book.defined_limits(now, id).into_iter().filter(is_wanted);
        wanted.extend(limits.map(|limit| (name.clone(), limit.definition)));
        wanted.extend(book.templates(id).into_iter().map(|template| (name.clone(), template.definition)));
    }
    wanted
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
            let wanted = wanted(&lock(&self.state).book, now);
            self.limits_file.as_ref().map_or(Ok(()), |file| file.write(&wanted))
        });
        written.await.map_err(|error| failed(error.to_string()))?.map_err(|error| failed(error.to_string()))
    }
}

impl BookHost for Local {
    async fn submit<R: BookRequest>(&self, by: Principal, requests: Vec<R>, direction: Direction) -> Vec<Answered<R>> {
        let events = requests.len();
        Submission::run(by, requests, |item| self.submitter.enqueue(item, events, direction)).await
    }

    async fn read_barrier(&self) -> Result<UnixMs, BackendError> {
        Ok(self.clock.now().log)
    }

    fn now(&self) -> UnixMs {
        self.clock.now().log
    }

    fn with_book<T>(&self, read: impl FnOnce(&Book) -> T) -> T {
        read(&lock(&self.state).book)
    }

    async fn entries(
        &self,
        (id, name): (AccountId, AccountName),
        query: EntryQuery,
    ) -> Result<EntryPage, BackendError> {
        let state = lock(&self.state);
        Ok(state.history.entries(&state.book, (id, &name), query))
    }

    async fn audit(&self, vault: VaultId, at: UnixMs) -> Result<Audit, BackendError> {
        let state = lock(&self.state);
        Ok(state.history.audit(&state.book, vault, at))
    }

    async fn log(&self, query: ChangeQuery) -> Result<ChangePage, BackendError> {
        let state = lock(&self.state);
        Ok(state.history.log(&state.book, &query))
    }

    async fn limits_changed(self: &Arc<Self>, _: &NamespaceName, is_changed: bool) -> Result<(), BackendError> {
        match self.is_behind() || is_changed {
            true => Arc::clone(self).write_limits().await,
            false => Ok(()),
        }
    }

    fn limits_version(&self) -> u64 {
        self.limits_version.load(Ordering::Acquire)
    }

    fn stats(&self) -> Stats {
        let now = self.clock.now().log;
        Stats::of(&lock(&self.state).book, now, self.submitter.depth())
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
    state: Arc<Mutex<LocalState>>,
    clock: Arc<dyn Clock>,
    /// Committed writes so far, which is the log index of the latest.
    log_index: u64,
    limits_version: Arc<AtomicU64>,
}

impl BookTarget {
    /// Executes requests in order. Retries and refused writes get no log index, and only the Book can tell. So each
    /// write ends a run, and the next run is numbered after it.
    fn execute(&mut self, book: &mut Book, moment: Moment, batch: &mut [Submission]) {
        let mut rest = batch;
        while !rest.is_empty() {
            let log_index = self.log_index.saturating_add(1);
            let mut count = 0_usize;
            for submission in rest.iter_mut() {
                count = count.saturating_add(1);
                if let Some(write) = submission.write_mut() {
                    write.log_index = log_index;
                    write.tx_id = tx_id(moment.log, log_index);
                    break;
                }
            }
            let (run, after) = rest.split_at_mut(count);
            rest = after;
            let (mut rights, mut commands) = (Vec::new(), Vec::new());
            for submission in run.iter() {
                submission.each_command(&mut |by, command| {
                    rights.push(by.clone());
                    commands.push(command);
                });
            }
            let mut outcomes = Vec::with_capacity(commands.len());
            book.apply_all_as(moment, &rights, &commands, &mut outcomes);
            if let Some(Outcome::Write(WriteOutcome::Committed(_))) = outcomes.last() {
                self.log_index = log_index;
            }
            let applied = Applied { book, wall: moment.wall, is_repeated: false };
            let mut outcomes = outcomes.into_iter();
            run.iter_mut().for_each(|submission| submission.answer(&applied, &mut outcomes));
        }
    }
}

/// A ULID for a write.
fn tx_id(now: UnixMs, log_index: u64) -> TxId {
    let random = RandomState::new().hash_one(log_index);
    let low = (u128::from(random) << 16) | u128::from(log_index & 0xffff);
    TxId(LeaseId::from_parts(now, low).to_u128())
}

impl BatchTarget for BookTarget {
    type Item = Submission;

    /// Most commands in one batch. This many hold the lock, which reads need, for less than a millisecond.
    const BATCH_EVENTS_MAX: usize = 2_048;

    async fn submit(&mut self, mut batch: Vec<Submission>) {
        let moment = self.clock.now();
        let traced: Vec<TraceContext> = batch.iter().filter_map(Submission::trace).collect();
        batch.iter().for_each(Submission::dequeued);
        let since = (!traced.is_empty()).then(SystemTime::now);
        let state = Arc::clone(&self.state);
        {
            let mut state = lock(&state);
            self.execute(&mut state.book, moment, &mut batch);
            self.limits_version.store(state.book.limits_version(), Ordering::Release);
            let records = state.book.drain_journal();
            count_expired(&records);
            watch_expiry(&state.book);
            state.history.extend(records);
        }
        if let Some(since) = since {
            record_each("apply", traced, since, &[("earmark.batch_size", batch.len() as u64)]);
        }
        batch.into_iter().for_each(Submission::send);
    }

    async fn idle(&mut self) {
        let now = self.clock.now();
        let mut state = lock(&self.state);
        state.book.apply(now, Command::Tick);
        let records = state.book.drain_journal();
        count_expired(&records);
        watch_expiry(&state.book);
        state.history.extend(records);
    }
}
