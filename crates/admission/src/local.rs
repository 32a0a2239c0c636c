//! A Book in memory, behind the submitter.

mod work;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use earmark_core::{
    AccountId, BalanceInfo, Book, ClientId, Command, Config, Definition, LeaseId, LimitInfo, LimitKey,
    NamespaceId, NamespaceName, Operation, Outcome, Part, PutLimit, TxId, UnixMs, Usage, VaultId, VaultName,
    Write,
};

use crate::answer;
use crate::backend::{
    AccountPath, Amount, Answer, Backend, BackendError, CompleteAnswer, CompleteRequest, DeleteLimitRequest,
    LeaseView, LimitChange, LimitError, PutLimitRequest, ReserveAnswer, ReserveRequest, Stats,
};
use crate::clock::{Clock, SystemClock};
use crate::history::History;
use crate::ledger::{Audit, EntryPage, LedgerError, PAGE_MAX, WriteAnswer, WriteRequest};
use crate::limits_file::{LimitsFile, LimitsFileError};
use crate::names::Names;
use crate::submitter::{Direction, Submitter};
use work::{BookLedger, Change, Done, Work, mixed_up};

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
    shelf: Arc<Mutex<Shelf>>,
    names: Names,
    clock: Arc<dyn Clock>,
    submitter: Submitter<BookLedger>,
    limits_file: Option<LimitsFile>,
    /// One change of limits at a time: the file is to hold what the Book holds.
    changing: tokio::sync::Mutex<()>,
    is_stopped: AtomicBool,
}

/// The Book and what it said happened.
struct Shelf {
    book: Book,
    history: History,
}

fn lock(shelf: &Mutex<Shelf>) -> MutexGuard<'_, Shelf> {
    shelf.lock().unwrap_or_else(PoisonError::into_inner)
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
        let shelf = Arc::new(Mutex::new(Shelf { book, history: History::default() }));
        let ledger =
            BookLedger { shelf: Arc::clone(&shelf), clock: Arc::clone(&options.clock), log_index: 0 };
        Ok(LocalBook(Arc::new(Inner {
            shelf,
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
        self.learn(&namespace, [&key]);
        if self.is_behind() || changed.is_ok() && namespace.is_default() {
            Arc::clone(&self).write_limits().await?;
        }
        changed
    }

    /// Applies a transaction. One that changes limits writes their file, as any change of them does.
    async fn write(
        self: Arc<Inner>,
        work: Work,
        namespace: NamespaceName,
    ) -> Result<WriteAnswer, BackendError> {
        let keys = match &work {
            Work::Write(write) => limit_keys(&write.operations),
            Work::Reserve { .. } | Work::Complete { .. } | Work::Change { .. } => Vec::new(),
        };
        let _one_at_a_time = match keys.is_empty() {
            true => None,
            false => Some(self.changing.lock().await),
        };
        let done = self.submitter.submit(vec![work], 1, Direction::GivesBack).await?;
        let answer = match done.into_iter().next() {
            Some(Done::Write(answer)) => answer,
            _ => return Err(BackendError::Failed("the Book gave no answer".into())),
        };
        // A retry writes the file too, in case the first attempt could not.
        if matches!(answer, WriteAnswer::Committed(_)) && !keys.is_empty() {
            self.learn(&namespace, &keys);
            if namespace.is_default() {
                Arc::clone(&self).write_limits().await?;
            }
        }
        Ok(answer)
    }

    fn learn<'a>(&self, namespace: &NamespaceName, keys: impl IntoIterator<Item = &'a LimitKey>) {
        let shelf = lock(&self.shelf);
        keys.into_iter().for_each(|key| self.names.learn(&shelf.book, namespace, key));
    }

    /// Whether the limits file does not hold what the Book holds.
    fn is_behind(&self) -> bool {
        self.limits_file.as_ref().is_some_and(|file| file.behind().is_some())
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
        if self.is_behind() {
            _ = self.write_limits().await;
        }
    }

    fn read<T>(&self, read: impl FnOnce(&Book, UnixMs) -> T) -> T {
        let now = self.clock.now().log;
        read(&lock(&self.shelf).book, now)
    }

    /// Reads an account, with its history.
    fn of_account<T>(
        &self,
        path: &AccountPath,
        read: impl FnOnce(&Shelf, AccountId) -> T,
    ) -> Result<T, LedgerError> {
        let shelf = lock(&self.shelf);
        let vault = vault(&shelf.book, &path.namespace, &path.vault)?;
        let account = shelf.book.account(vault, &path.account).ok_or(LedgerError::AccountNotFound)?;
        Ok(read(&shelf, account.id))
    }
}

fn vault(book: &Book, namespace: &NamespaceName, vault: &VaultName) -> Result<VaultId, LedgerError> {
    let namespace = book.namespace(namespace).ok_or(LedgerError::NamespaceNotFound)?;
    book.vault(namespace, vault).ok_or(LedgerError::VaultNotFound)
}

/// The limits that operations change.
fn limit_keys(operations: &[Operation]) -> Vec<LimitKey> {
    let key = |operation: &Operation| match operation {
        Operation::PutLimit { definition, .. } => Some(definition.key.clone()),
        Operation::DeleteLimit { key, .. } => Some(key.clone()),
        Operation::OpenVault { .. }
        | Operation::OpenAccount { .. }
        | Operation::FreezeAccount { .. }
        | Operation::UnfreezeAccount { .. }
        | Operation::CloseAccount { .. }
        | Operation::Issue { .. }
        | Operation::Transfer { .. }
        | Operation::Retire { .. } => None,
    };
    operations.iter().filter_map(key).collect()
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
            Done::Complete(_) | Done::Limit(_) | Done::Write(_) => Err(mixed_up()),
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
            Done::Reserve(_) | Done::Limit(_) | Done::Write(_) => Err(mixed_up()),
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

    fn write(&self, request: WriteRequest) -> Answer<'_, Result<WriteAnswer, BackendError>> {
        let WriteRequest { namespace: name, vault, client, sequence, operations, actor } = request;
        // No namespace has the last number, so that one which nobody opened is refused by the Book.
        let namespace = self.0.names.namespace(&name).unwrap_or(NamespaceId(u16::MAX));
        let (tx_id, log_index) = (TxId::default(), 0);
        let write = Write { namespace, vault, client, sequence, operations, tx_id, log_index, actor };
        // In a task of its own, for the same reason as a change of limits.
        let inner = Arc::clone(&self.0);
        let task = tokio::spawn(async move { inner.write(Work::Write(write), name).await });
        Box::pin(async { task.await.map_err(|error| BackendError::Failed(error.to_string()))? })
    }

    fn client_state(
        &self,
        namespace: NamespaceName,
        vault: Option<VaultName>,
        client: ClientId,
    ) -> Answer<'_, Result<u64, LedgerError>> {
        let last = self.0.read(|book, _| {
            let id = book.namespace(&namespace).ok_or(LedgerError::NamespaceNotFound)?;
            let vault = match &vault {
                Some(name) => Some(book.vault(id, name).ok_or(LedgerError::VaultNotFound)?),
                None => None,
            };
            Ok(book.last_committed(id, vault, &client))
        });
        Box::pin(async { last })
    }

    fn balances(&self, account: AccountPath) -> Answer<'_, Result<Vec<BalanceInfo>, LedgerError>> {
        let now = self.0.clock.now().log;
        let balances = self.0.of_account(&account, |shelf, id| shelf.book.balances(now, id));
        Box::pin(async { balances })
    }

    fn entries(
        &self,
        account: AccountPath,
        after: u64,
        page_size: usize,
    ) -> Answer<'_, Result<EntryPage, LedgerError>> {
        let page_size = page_size.clamp(1, PAGE_MAX);
        let page = self.0.of_account(&account, |shelf, id| {
            shelf.history.entries(&shelf.book, (id, &account.account), after, page_size)
        });
        Box::pin(async { page })
    }

    fn audit(&self, namespace: NamespaceName, name: VaultName) -> Answer<'_, Result<Audit, LedgerError>> {
        let now = self.0.clock.now().log;
        let shelf = lock(&self.0.shelf);
        let audit = vault(&shelf.book, &namespace, &name).map(|id| shelf.history.audit(&shelf.book, id, now));
        drop(shelf);
        Box::pin(async { audit })
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
