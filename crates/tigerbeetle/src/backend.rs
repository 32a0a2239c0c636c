//! The backend: shared state, start and shutdown.

use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use earmark_admission::{Answer, BackendError, BatchTarget, Direction, Registry, Stats, Submitter};
use earmark_core::{Config, LimitInfo};
use tigerbeetle::{CreateAccountStatus, Transfer};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use crate::batch::Chains;
use crate::clock::{Health, LedgerClock, lock};
use crate::lease_cache::LeaseCache;
use crate::lease_record::LeaseRecord;
use crate::limit_table::{LimitTable, LookupNumber};
use crate::options::TigerBeetleOptions;
use crate::reads::{LEASE_PAGES_MAX, QueuedRead, Read, Reads, TransfersOfLease};
use crate::requests::{Created, Writes};
use crate::schema::{CommonAccounts, LeaseName, LimitName};
use crate::session::{Session, Shared};

/// Minimum queue capacity of a session, in transfers: one full batch of 256 completes on 32 limits each. With less, an
/// idle session would refuse such a batch.
const QUEUE_MIN: usize = 256 * (1 + 2 * 32);

/// Rolling and concurrency limits on a TigerBeetle cluster.
///
/// The registry holds the definitions; the accounts hold the capacity in force.
pub struct TigerBeetleLimits {
    pub(crate) inner: Arc<Inner>,
    background: JoinHandle<()>,
}

/// Why the limits cannot be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// An account of the cluster has unexpected properties.
    #[error("{0}")]
    Account(String),
}

/// The state that all requests and the background task share.
pub(crate) struct Inner {
    pub(crate) options: TigerBeetleOptions,
    pub(crate) registry: Arc<dyn Registry>,
    pub(crate) common: CommonAccounts,
    pub(crate) table: LimitTable,
    pub(crate) leases: Arc<LeaseCache>,
    /// The registry's settings, and its version when they were read.
    config: Mutex<(u64, Config)>,
    pub(crate) shared: Arc<Shared>,
    writes: Vec<Submitter<Writes>>,
    reads: Submitter<Reads>,
    pub(crate) setup: watch::Sender<Setup>,
    /// Cloned by every task in progress; `None` after shutdown.
    tasks: Mutex<Option<mpsc::Sender<()>>>,
    ended: tokio::sync::Mutex<mpsc::Receiver<()>>,
    pub(crate) decreasing: std::sync::atomic::AtomicUsize,
    /// Number of the last account lookup.
    number: Mutex<LookupNumber>,
    /// Registry version whose limits are all in the table, plus one; 0 before the first load.
    pub(crate) loaded_version: std::sync::atomic::AtomicU64,
}

/// Whether the operator and lease accounts exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Setup {
    Pending,
    Ready,
    Failed(String),
}

impl TigerBeetleLimits {
    /// Connects, creates missing accounts, and applies the capacities of the registry. If the cluster does not answer
    /// within the deadline, setup goes on in the background. Needs a tokio runtime.
    ///
    /// # Errors
    /// When an account with one of these ids exists and is not Earmark's.
    pub fn open(
        options: TigerBeetleOptions,
        registry: Arc<dyn Registry>,
    ) -> Answer<'static, Result<TigerBeetleLimits, OpenError>> {
        Box::pin(TigerBeetleLimits::start(options, registry))
    }

    async fn start(options: TigerBeetleOptions, registry: Arc<dyn Registry>) -> Result<TigerBeetleLimits, OpenError> {
        let deadline = options.deadline;
        let inner = Inner::start(options, registry);
        let background = earmark_admission::spawn(Arc::clone(&inner).run());
        let mut setup = inner.setup.subscribe();
        let known = tokio::time::timeout(deadline, setup.wait_for(|setup| *setup != Setup::Pending)).await;
        if let Ok(Ok(setup)) = known
            && let Setup::Failed(message) = &*setup
        {
            background.abort();
            inner.shared.health.stop();
            return Err(OpenError::Account(message.clone()));
        }
        Ok(TigerBeetleLimits { inner, background })
    }

    pub(crate) async fn stop(&self) {
        lock(&self.inner.tasks).take();
        let deadline = self.inner.options.deadline;
        // Work in progress may finish; a silent cluster does not delay shutdown beyond the deadline.
        _ = tokio::time::timeout(deadline, async { self.inner.ended.lock().await.recv().await }).await;
        self.background.abort();
        self.inner.shared.health.stop();
        let stopping = async {
            for writes in &self.inner.writes {
                writes.stop().await;
            }
            self.inner.reads.stop().await;
        };
        _ = tokio::time::timeout(Duration::from_secs(1), stopping).await;
    }
}

impl Drop for TigerBeetleLimits {
    fn drop(&mut self) {
        self.background.abort();
        self.inner.shared.health.stop();
    }
}

impl Inner {
    fn start(options: TigerBeetleOptions, registry: Arc<dyn Registry>) -> Arc<Inner> {
        let sessions = options.sessions.max(1);
        let shared = Arc::new(Shared {
            url: options.url.clone(),
            connect: Arc::clone(&options.connect),
            health: Health::new(sessions.saturating_add(1)),
            clock: LedgerClock::default(),
        });
        let session = |number| Session::new(Arc::clone(&shared), number);
        let queue_max = options.queue_max.checked_div(sessions).unwrap_or(1).max(QUEUE_MIN);
        let writes = (0..sessions).map(|number| Submitter::start(Writes::new(session(number)), queue_max)).collect();
        let reads = Submitter::start(Reads::new(session(sessions)), queue_max);
        let (sender, receiver) = mpsc::channel(1);
        let (version, config) = (registry.version(), registry.config());
        Arc::new(Inner {
            options,
            registry,
            common: CommonAccounts::new(),
            table: LimitTable::default(),
            leases: Arc::new(LeaseCache::new(config.retention_ms)),
            config: Mutex::new((version, config)),
            shared,
            writes,
            reads,
            setup: watch::channel(Setup::Pending).0,
            tasks: Mutex::new(Some(sender)),
            ended: tokio::sync::Mutex::new(receiver),
            decreasing: std::sync::atomic::AtomicUsize::new(0),
            number: Mutex::default(),
            loaded_version: std::sync::atomic::AtomicU64::new(0),
        })
    }

    /// The settings in force, as this process knows them. Reads the registry only when its version has changed.
    pub(crate) fn config(&self) -> Config {
        let version = self.registry.version();
        let mut cached = lock(&self.config);
        if cached.0 != version {
            *cached = (version, self.registry.config());
            self.leases.set_retention(cached.1.retention_ms);
        }
        cached.1
    }

    /// A limit as this process knows it.
    pub(crate) fn info(&self, name: &LimitName) -> Option<Arc<LimitInfo>> {
        self.registry.limit(&name.namespace, &name.key)
    }

    /// Runs `work` to its end even if the caller goes away, and answers within the deadline.
    pub(crate) async fn within_deadline<T: Send + 'static>(
        self: &Arc<Inner>,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, BackendError> {
        let Some(held) = lock(&self.tasks).clone() else {
            return Err(BackendError::Overloaded("limits on TigerBeetle have been shut down"));
        };
        let task = earmark_admission::spawn(async move {
            let done = work.await;
            drop(held);
            done
        });
        match tokio::time::timeout(self.options.deadline, task).await {
            Ok(Ok(done)) => Ok(done),
            Ok(Err(error)) => Err(BackendError::Failed(error.to_string())),
            Err(_) => Err(BackendError::Failed(self.timeout_message())),
        }
    }

    pub(crate) fn timeout_message(&self) -> String {
        let (url, seconds) = (&self.shared.url, self.options.deadline.as_secs_f32());
        let problem = self.shared.health.problem().map(|problem| format!(" ({problem})")).unwrap_or_default();
        format!("{url} has not answered within {seconds} s{problem}; the request may still take effect")
    }

    /// Waits until the operator and lease accounts exist, at most for the deadline: otherwise abandoned tasks would
    /// pile up while the cluster is down.
    pub(crate) async fn wait_for_setup(&self) -> Result<(), BackendError> {
        let mut setup = self.setup.subscribe();
        let known = setup.wait_for(|setup| *setup != Setup::Pending);
        let Ok(known) = tokio::time::timeout(self.options.deadline, known).await else {
            return Err(BackendError::Failed(self.timeout_message()));
        };
        match known.as_deref() {
            Ok(Setup::Ready) => Ok(()),
            Ok(Setup::Failed(message)) => Err(BackendError::Failed(message.clone())),
            Ok(Setup::Pending) | Err(_) => Err(BackendError::Overloaded("limits on TigerBeetle have been shut down")),
        }
    }

    /// Creates chains of transfers and returns the results of each. The chains are queued before this function returns.
    pub(crate) fn create(
        &self,
        chains: Chains,
        direction: Direction,
    ) -> impl Future<Output = Result<Vec<Created>, BackendError>> + Send + use<> {
        let events = chains.transfers.len();
        let queued = least_busy(&self.writes).map(|writes| writes.submit(chains, events, direction));
        async move {
            match queued {
                Some(created) => created.await,
                None => Err(BackendError::Overloaded("no session with TigerBeetle is running")),
            }
        }
    }

    /// Creates one chain of transfers.
    pub(crate) async fn create_one(&self, chain: Vec<Transfer>, direction: Direction) -> Created {
        let created = self.create(Chains::one(chain), direction).await?;
        created.into_iter().next().unwrap_or_else(|| Err(missing_result()))
    }

    /// Sends a read, which is queued before this function returns.
    pub(crate) fn read<R: Read>(
        &self,
        request: R,
    ) -> impl Future<Output = Result<R::Reply, BackendError>> + Send + use<R> {
        let (read, reply) = QueuedRead::new(request);
        let queued = self.reads.enqueue(read, 1, Direction::GivesBack);
        earmark_trace::step("ledger", async move {
            queued?;
            let stopped = |_| BackendError::Failed("the server stopped before it answered".into());
            reply.await.map_err(stopped)?
        })
    }

    /// Sends a read and returns its number. Of two reads, the one with the higher number was answered later.
    pub(crate) async fn read_numbered<R: Read>(&self, request: R) -> Result<(LookupNumber, R::Reply), BackendError> {
        let (number, reply) = {
            let mut number = lock(&self.number);
            *number = number.next();
            // `read` queues at once, so numbers follow the queue order.
            (*number, self.read(request))
        };
        Ok((number, reply.await?))
    }

    /// A number for state that is known without a lookup.
    pub(crate) fn next_lookup_number(&self) -> LookupNumber {
        let mut number = lock(&self.number);
        *number = number.next();
        *number
    }

    /// Reads a lease from the ledger.
    pub(crate) async fn read_lease(&self, name: &LeaseName) -> Result<Option<LeaseRecord>, BackendError> {
        let transfers = self.read_transfers(name).await?;
        let read = || LeaseRecord::read(name, &transfers, |account| self.table.name_of(account));
        let record = read();
        // Another process may have put a limit that this one has not loaded yet.
        let is_unnamed = record.iter().flat_map(|record| &record.held).any(|held| held.name.is_none());
        if !is_unnamed {
            return Ok(record);
        }
        // If the refresh fails, use the limits that are loaded.
        _ = self.registry.refresh().await;
        self.load_limits();
        Ok(read())
    }

    /// Reads the transfers of a lease backwards, page by page, up to its first anchor.
    async fn read_transfers(&self, name: &LeaseName) -> Result<Vec<Transfer>, BackendError> {
        let first_id = name.anchor_id(0);
        let (mut transfers, mut newest_ns) = (Vec::new(), 0);
        for _ in 0..LEASE_PAGES_MAX {
            let page = self.read(TransfersOfLease { lease: name.id, newest_ns }).await?;
            let Some(oldest) = page.last() else { return Ok(transfers) };
            newest_ns = oldest.timestamp.saturating_sub(1);
            let is_first = oldest.id == first_id;
            transfers.extend(page);
            if is_first {
                return Ok(transfers);
            }
        }
        Err(BackendError::Failed("TigerBeetle has more transfers of this lease than its extensions can make".into()))
    }

    pub(crate) fn stats(&self) -> Stats {
        let queue_depth = self.writes.iter().map(Submitter::depth).sum();
        let debt = self.table.all().into_iter().filter_map(|tracked| tracked.totals()).map(|totals| totals.debt);
        let remembered_leases = self.leases.len();
        Stats {
            remembered_leases,
            debt: debt.fold(0, u128::saturating_add),
            decreasing_limits: self.decreasing.load(std::sync::atomic::Ordering::Relaxed),
            queue_depth,
            ..Stats::default()
        }
    }

    pub(crate) fn ready(&self) -> Result<(), String> {
        let url = &self.shared.url;
        if lock(&self.tasks).is_none() {
            return Err("limits on TigerBeetle are shutting down".into());
        }
        if let Some(problem) = self.shared.health.problem() {
            return Err(problem);
        }
        if let Some(silent) = self.shared.health.silent_for() {
            return Err(format!("{url} has not answered for {} s", silent.as_secs()));
        }
        match &*self.setup.borrow() {
            Setup::Ready => Ok(()),
            Setup::Pending => Err(format!("{url} has not answered yet")),
            Setup::Failed(message) => Err(message.clone()),
        }
    }
}

/// The session with the smallest load, queued and in flight. A stopped session is skipped: its load is always 0.
fn least_busy<L: BatchTarget>(sessions: &[Submitter<L>]) -> Option<&Submitter<L>> {
    sessions.iter().filter(|session| !session.is_stopped()).min_by_key(|session| session.load())
}

/// Rejects an account that exists with properties other than Earmark's.
pub(crate) fn check_account(status: CreateAccountStatus, what: &str) -> Result<(), String> {
    let field = match status {
        CreateAccountStatus::Created | CreateAccountStatus::Exists => return Ok(()),
        CreateAccountStatus::ExistsWithDifferentFlags => "flags",
        CreateAccountStatus::ExistsWithDifferentLedger => "ledger",
        CreateAccountStatus::ExistsWithDifferentCode => "code",
        CreateAccountStatus::ExistsWithDifferentUserData128
        | CreateAccountStatus::ExistsWithDifferentUserData64
        | CreateAccountStatus::ExistsWithDifferentUserData32 => "user data",
        other => return Err(format!("TigerBeetle refused the account of {what}: {other}")),
    };
    Err(format!(
        "TigerBeetle has an account with the id of {what} and another {field}: it is not one of Earmark's; \
         use another cluster or another key"
    ))
}

pub(crate) fn describe_limit(name: &LimitName) -> String {
    format!("the limit {}", name.key)
}

pub(crate) fn missing_result() -> BackendError {
    BackendError::Failed("the TigerBeetle client returned too few results".into())
}

/// An answer, or the task that finds it.
pub(crate) enum PendingAnswer<T> {
    Ready(Result<T, BackendError>),
    Task(JoinHandle<Result<T, BackendError>>),
}

impl<T> PendingAnswer<T> {
    /// Waits for all answers. They are in order.
    pub(crate) async fn wait(pending: Vec<PendingAnswer<T>>) -> Vec<Result<T, BackendError>> {
        let mut answers = Vec::with_capacity(pending.len());
        for answer in pending {
            answers.push(match answer {
                PendingAnswer::Ready(answer) => answer,
                PendingAnswer::Task(task) => {
                    task.await.unwrap_or_else(|error| Err(BackendError::Failed(error.to_string())))
                }
            });
        }
        answers
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use earmark_admission::PendingItem;
    use tokio::sync::Semaphore;

    /// Completes one batch per permit.
    struct Gated(Arc<Semaphore>);

    impl BatchTarget for Gated {
        type Item = PendingItem<(), ()>;

        const BATCH_EVENTS_MAX: usize = 100;

        async fn submit(&mut self, batch: Vec<PendingItem<(), ()>>) {
            self.0.acquire().await.unwrap().forget();
            batch.into_iter().for_each(|pending| pending.reply(()));
        }

        async fn idle(&mut self) {}
    }

    /// Regression: work in flight did not count as load, so a caller queued behind a full batch while another session
    /// was idle. A stopped session had load 0, was always chosen, and refused everything.
    #[tokio::test]
    async fn work_goes_to_the_session_that_has_the_least_to_do_and_has_not_stopped() {
        let gate = Arc::new(Semaphore::new(0));
        let sessions: Vec<_> = (0..3).map(|_| Submitter::start(Gated(Arc::clone(&gate)), 100)).collect();
        let index = || least_busy(&sessions).map(|one| sessions.iter().position(|s| std::ptr::eq(s, one)));
        let _first = sessions[0].submit((), 50, Direction::Takes);
        while sessions[0].depth() > 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(index(), Some(Some(1)));
        let _second = sessions[1].submit((), 20, Direction::Takes);
        assert_eq!(index(), Some(Some(2)));
        sessions[2].stop().await;
        assert_eq!(index(), Some(Some(1)));
        gate.add_permits(9);
        for session in &sessions {
            session.stop().await;
            assert_eq!(session.load(), 0);
        }
        assert_eq!(index(), None);
    }

    #[test]
    fn an_account_that_is_not_ours_is_never_used() {
        use CreateAccountStatus::*;
        for status in [Created, Exists] {
            assert_eq!(check_account(status, "the operator"), Ok(()));
        }
        for (status, field) in [
            (ExistsWithDifferentFlags, "flags"),
            (ExistsWithDifferentLedger, "ledger"),
            (ExistsWithDifferentCode, "code"),
            (ExistsWithDifferentUserData64, "user data"),
        ] {
            let message = check_account(status, "the limit rpm").unwrap_err();
            assert!(message.contains(field), "{message}");
            assert!(message.contains("the limit rpm"), "{message}");
        }
        assert!(check_account(LedgerMustNotBeZero, "the operator").is_err());
    }
}
