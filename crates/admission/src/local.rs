//! A Book in memory, behind the submitter.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use earmark_core::{
    Book, Command, Complete, Config, Definition, DeleteLimit, LeaseId, LimitInfo, LimitKey, NamespaceId,
    NamespaceName, Outcome, Part, PutLimit, Reserve, UnixMs, Usage,
};

use crate::answer;
use crate::backend::{
    Amount, Answer, Backend, BackendError, CompleteAnswer, CompleteRequest, DeleteLimitRequest, LeaseView,
    LimitChange, LimitError, PutLimitRequest, ReserveAnswer, ReserveRequest, Stats,
};
use crate::clock::{Clock, Moment, SystemClock};
use crate::limits_file::{LimitsFile, LimitsFileError};
use crate::names::Names;
use crate::submitter::{Direction, Ledger, Submitter};

/// How a [`LocalBook`] is set up.
pub struct LocalOptions {
    /// The settings of the Book.
    pub config: Config,
    /// Where time comes from.
    pub clock: Arc<dyn Clock>,
    /// The wanted limits: read at the start, written when they change. Without it nothing is kept.
    pub limits_file: Option<PathBuf>,
    /// The most reserves that wait. For completes a quarter more may.
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

/// A Book in memory. What it holds is gone when it stops, except for the limits file.
pub struct LocalBook(Arc<Inner>);

struct Inner {
    book: Arc<Mutex<Book>>,
    names: Names,
    clock: Arc<dyn Clock>,
    submitter: Submitter<BookLedger>,
    limits_file: Option<LimitsFile>,
    /// One change of limits at a time: the file is to hold what the Book holds.
    changing: tokio::sync::Mutex<()>,
    is_stopped: AtomicBool,
}

fn lock(book: &Mutex<Book>) -> MutexGuard<'_, Book> {
    book.lock().unwrap_or_else(PoisonError::into_inner)
}

impl LocalBook {
    /// Reads the limits file, if there is one, and starts. Needs a tokio runtime.
    ///
    /// # Errors
    /// When the limits file cannot be used.
    pub async fn open(options: LocalOptions) -> Result<LocalBook, LimitsFileError> {
        let (limits_file, wanted) = match &options.limits_file {
            Some(path) => LimitsFile::open(path).map(|(file, wanted)| (Some(file), wanted))?,
            None => (None, Vec::new()),
        };
        let seed = std::hash::BuildHasher::hash_one(&std::collections::hash_map::RandomState::new(), 0);
        let mut book = Book::new(options.config, seed);
        let names = Names::default();
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
            if let Some(name) = book.namespace_name(namespace) {
                names.learn(&book, name, &definition.key);
            }
        }
        let book = Arc::new(Mutex::new(book));
        let ledger = BookLedger { book: Arc::clone(&book), clock: Arc::clone(&options.clock) };
        Ok(LocalBook(Arc::new(Inner {
            book,
            names,
            clock: options.clock,
            submitter: Submitter::start(ledger, options.queue_max),
            limits_file,
            changing: tokio::sync::Mutex::new(()),
            is_stopped: AtomicBool::new(false),
        })))
    }

    /// Changes a limit in a task of its own: what is in force is to be in the file too, even if the caller goes
    /// away in between.
    async fn change(
        &self,
        namespace: NamespaceName,
        change: Change,
        expected_revision: Option<u64>,
    ) -> Result<LimitChange, LimitError> {
        let task = tokio::spawn(Arc::clone(&self.0).change(namespace, change, expected_revision));
        task.await.map_err(|error| BackendError::Failed(error.to_string()))?
    }
}

impl Inner {
    fn parts(&self, namespace: &NamespaceName, amounts: &[Amount]) -> Vec<Part> {
        self.names.with(namespace, |resolve| {
            amounts.iter().map(|part| Part { limit: resolve(&part.key), amount: part.amount }).collect()
        })
    }

    /// Hands a list of work to the Book. The answers come in order; if there are none, each is the error.
    async fn submit<T>(
        &self,
        work: Vec<Work>,
        direction: Direction,
        answer: impl Fn(Done) -> Result<T, BackendError>,
    ) -> Vec<Result<T, BackendError>> {
        let events = work.len();
        match self.submitter.submit(work, events, direction).await {
            Ok(done) => done.into_iter().map(answer).collect(),
            Err(error) => std::iter::repeat_with(|| Err(error.clone())).take(events).collect(),
        }
    }

    /// Changes a limit and writes the file. A file that cannot be written is an error of the backend, though
    /// the change is in force until the next start; the next change writes it again.
    async fn change(
        self: Arc<Inner>,
        namespace: NamespaceName,
        change: Change,
        expected_revision: Option<u64>,
    ) -> Result<LimitChange, LimitError> {
        let _one_at_a_time = self.changing.lock().await;
        let key = change.key().clone();
        let work = Work::Change { namespace: namespace.clone(), change, expected_revision };
        let done = self.submitter.submit(vec![work], 1, Direction::GivesBack).await?;
        let changed = match done.into_iter().next() {
            Some(Done::Limit(changed)) => changed,
            _ => return Err(BackendError::Failed("the Book gave no answer".into()).into()),
        };
        self.names.learn(&lock(&self.book), &namespace, &key);
        let is_behind = self.limits_file.as_ref().is_some_and(|file| file.behind().is_some());
        if is_behind || changed.is_ok() && namespace.is_default() {
            Arc::clone(&self).write_limits().await?;
        }
        changed
    }

    /// Writes what the Book holds to the limits file, if there is one.
    async fn write_limits(self: Arc<Inner>) -> Result<(), BackendError> {
        if self.limits_file.is_none() {
            return Ok(());
        }
        let failed = |error: String| {
            BackendError::Failed(format!("the change is in force, but would not survive a restart: {error}"))
        };
        let written = tokio::task::spawn_blocking(move || {
            let limits = self.read(|book, now| book.limits(now, NamespaceId::DEFAULT));
            let wanted: Vec<Definition> = limits
                .into_iter()
                .filter(|limit| !answer::is_deleting(limit.status))
                .map(|limit| limit.definition)
                .collect();
            self.limits_file.as_ref().map_or(Ok(()), |file| file.write(&wanted))
        });
        written.await.map_err(|error| failed(error.to_string()))?.map_err(|error| failed(error.to_string()))
    }

    /// Carries out what waits, and tries once more to write a file that is behind.
    async fn stop(self: Arc<Inner>) {
        self.submitter.stop().await;
        if self.limits_file.as_ref().is_some_and(|file| file.behind().is_some()) {
            _ = self.write_limits().await;
        }
    }

    fn read<T>(&self, read: impl FnOnce(&Book, UnixMs) -> T) -> T {
        let now = self.clock.now().log;
        read(&lock(&self.book), now)
    }
}

impl Backend for LocalBook {
    fn reserve(&self, requests: Vec<ReserveRequest>) -> Answer<'_, Vec<Result<ReserveAnswer, BackendError>>> {
        let work = requests.into_iter().map(|request| {
            let namespace = self.0.names.namespace(&request.namespace);
            let parts = self.0.parts(&request.namespace, &request.requirements);
            Work::Reserve { namespace, lease: request.lease, parts, requirements: request.requirements }
        });
        let work = work.collect();
        Box::pin(self.0.submit(work, Direction::Takes, |done| match done {
            Done::Reserve(answer) => answer,
            Done::Complete(_) | Done::Limit(_) => Err(BackendError::Failed("answers got mixed up".into())),
        }))
    }

    fn complete(
        &self,
        requests: Vec<CompleteRequest>,
    ) -> Answer<'_, Vec<Result<CompleteAnswer, BackendError>>> {
        let work = requests.into_iter().map(|request| {
            let namespace = self.0.names.namespace(&request.namespace);
            let parts = self.0.parts(&request.namespace, &request.actuals);
            Work::Complete { namespace, lease: request.lease, parts, actuals: request.actuals }
        });
        let work = work.collect();
        Box::pin(self.0.submit(work, Direction::GivesBack, |done| match done {
            Done::Complete(answer) => answer,
            Done::Reserve(_) | Done::Limit(_) => Err(BackendError::Failed("answers got mixed up".into())),
        }))
    }

    fn put_limit(&self, request: PutLimitRequest) -> Answer<'_, Result<LimitChange, LimitError>> {
        let change = Change::Put(request.definition);
        Box::pin(self.change(request.namespace, change, request.expected_revision))
    }

    fn delete_limit(&self, request: DeleteLimitRequest) -> Answer<'_, Result<LimitChange, LimitError>> {
        let change = Change::Delete(request.key);
        Box::pin(self.change(request.namespace, change, request.expected_revision))
    }

    fn limits(&self, namespace: NamespaceName) -> Answer<'_, Result<Vec<LimitInfo>, BackendError>> {
        let limits = self.0.read(|book, now| match book.namespace(&namespace) {
            Some(namespace) => book.limits(now, namespace),
            None => Vec::new(),
        });
        Box::pin(async { Ok(limits) })
    }

    fn limit(
        &self,
        namespace: NamespaceName,
        key: LimitKey,
    ) -> Answer<'_, Result<Option<LimitInfo>, BackendError>> {
        let limit = self.0.read(|book, now| {
            let limit = book.resolve(book.namespace(&namespace)?, &key)?;
            book.limit(now, limit)
        });
        Box::pin(async { Ok(limit) })
    }

    fn usage(
        &self,
        namespace: NamespaceName,
        key: LimitKey,
    ) -> Answer<'_, Result<Option<Usage>, BackendError>> {
        let usage = self.0.read(|book, now| {
            let limit = book.resolve(book.namespace(&namespace)?, &key)?;
            book.usage(now, limit)
        });
        Box::pin(async move { Ok(usage) })
    }

    fn lease(
        &self,
        namespace: NamespaceName,
        lease: LeaseId,
    ) -> Answer<'_, Result<Option<LeaseView>, BackendError>> {
        let view = self.0.read(|book, now| {
            let info = book.lease(now, book.namespace(&namespace)?, lease)?;
            let named =
                |(limit, amount): &(_, u64)| Some(Amount { key: book.key(*limit)?.clone(), amount: *amount });
            let mut requirements: Vec<Amount> = info.requirements.iter().filter_map(named).collect();
            requirements.sort_unstable_by(|a, b| a.key.cmp(&b.key));
            Some(LeaseView { reserved_at: info.reserved_at, requirements, state: info.state })
        });
        Box::pin(async { Ok(view) })
    }

    fn stats(&self) -> Stats {
        self.0.read(|book, now| {
            let totals = book.totals(now);
            Stats {
                live_leases: book.live_leases(),
                remembered_leases: book.leases(),
                limits: totals.limits,
                decreasing_limits: totals.decreasing,
                debt: totals.debt,
                queue_depth: self.0.submitter.depth(),
            }
        })
    }

    fn ready(&self) -> Result<(), String> {
        if self.0.is_stopped.load(Ordering::Relaxed) {
            return Err("it is shutting down".into());
        }
        if self.0.submitter.is_stopped() {
            return Err("the Book has stopped; restart the server and report what its log says".into());
        }
        let behind = self.0.limits_file.as_ref().and_then(LimitsFile::behind);
        behind.map_or(Ok(()), |error| Err(format!("the limits file is behind: {error}")))
    }

    fn shut_down(&self) -> Answer<'_, ()> {
        self.0.is_stopped.store(true, Ordering::Relaxed);
        Box::pin(Arc::clone(&self.0).stop())
    }
}

/// One command, with what its answer is put together from.
enum Work {
    Reserve { namespace: Option<NamespaceId>, lease: LeaseId, parts: Vec<Part>, requirements: Vec<Amount> },
    Complete { namespace: Option<NamespaceId>, lease: LeaseId, parts: Vec<Part>, actuals: Vec<Amount> },
    Change { namespace: NamespaceName, change: Change, expected_revision: Option<u64> },
}

enum Change {
    Put(Definition),
    Delete(LimitKey),
}

impl Change {
    fn key(&self) -> &LimitKey {
        match self {
            Change::Put(definition) => &definition.key,
            Change::Delete(key) => key,
        }
    }
}

/// The answer to one command.
enum Done {
    Reserve(Result<ReserveAnswer, BackendError>),
    Complete(Result<CompleteAnswer, BackendError>),
    Limit(Result<LimitChange, LimitError>),
}

struct BookLedger {
    book: Arc<Mutex<Book>>,
    clock: Arc<dyn Clock>,
}

impl Ledger for BookLedger {
    /// What one caller sends together.
    type Item = Vec<Work>;
    type Outcome = Vec<Done>;

    /// So many commands keep the lock, which reads wait for, for less than a millisecond.
    const BATCH_EVENTS_MAX: usize = 2_048;

    async fn submit(&mut self, batch: Vec<Vec<Work>>) -> Vec<Vec<Done>> {
        let moment = self.clock.now();
        let lens: Vec<usize> = batch.iter().map(Vec::len).collect();
        let work: Vec<Work> = batch.into_iter().flatten().collect();
        let mut done = carry_out(&mut lock(&self.book), moment, &work).into_iter();
        lens.into_iter().map(|len| done.by_ref().take(len).collect()).collect()
    }

    async fn idle(&mut self) {
        let now = self.clock.now().log;
        lock(&self.book).apply(now, Command::Tick);
    }
}

fn carry_out(book: &mut Book, moment: Moment, work: &[Work]) -> Vec<Done> {
    let (now, wall) = (moment.log, moment.wall);
    for item in work {
        if let Work::Change { namespace, .. } = item
            && book.namespace(namespace).is_none()
        {
            book.apply(now, Command::OpenNamespace(namespace));
        }
    }
    // A namespace that nobody has opened has no limits; its place in the outcomes is kept by a tick.
    let commands: Vec<Command<'_>> = work
        .iter()
        .map(|item| match item {
            Work::Reserve { namespace: Some(namespace), lease, parts, .. } => {
                Command::Reserve(Reserve { namespace: *namespace, lease: *lease, wall, requirements: parts })
            }
            Work::Complete { namespace: Some(namespace), lease, parts, .. } => {
                Command::Complete(Complete { namespace: *namespace, lease: *lease, wall, actuals: parts })
            }
            Work::Change { namespace, change, expected_revision } => {
                let namespace = book.namespace(namespace).unwrap_or(NamespaceId(u16::MAX));
                let expected_revision = *expected_revision;
                match change {
                    Change::Put(definition) => {
                        Command::PutLimit(PutLimit { namespace, definition, expected_revision })
                    }
                    Change::Delete(key) => {
                        Command::DeleteLimit(DeleteLimit { namespace, key, expected_revision })
                    }
                }
            }
            Work::Reserve { namespace: None, .. } | Work::Complete { namespace: None, .. } => Command::Tick,
        })
        .collect();
    let mut outcomes = Vec::with_capacity(commands.len());
    book.apply_all(now, &commands, &mut outcomes);
    work.iter().zip(outcomes).map(|(item, outcome)| done(book, wall, item, outcome)).collect()
}

fn done(book: &Book, wall: UnixMs, work: &Work, outcome: Outcome) -> Done {
    match (work, outcome) {
        (Work::Reserve { requirements, .. }, Outcome::Reserve(outcome)) => {
            Done::Reserve(answer::reserve(book, wall, requirements, outcome))
        }
        (Work::Reserve { requirements, .. }, _) => Done::Reserve(Ok(answer::unknown_namespace(requirements))),
        (Work::Complete { actuals, .. }, Outcome::Complete(outcome)) => {
            Done::Complete(answer::complete(actuals, outcome))
        }
        (Work::Complete { .. }, _) => Done::Complete(Ok(CompleteAnswer {
            message: Some("namespace: no such namespace".into()),
            ..CompleteAnswer::default()
        })),
        (Work::Change { .. }, Outcome::Limit(outcome)) => Done::Limit(answer::limit(outcome)),
        (Work::Change { .. }, _) => {
            Done::Limit(Err(BackendError::Failed("the Book gave no answer".into()).into()))
        }
    }
}
