//! The limits themselves: what they share, how they start, and how they end.

use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use earmark_admission::{BackendError, BatchTarget, Direction, Registry, Stats, Submitter};
use earmark_core::LimitKey;
use tigerbeetle::{CreateAccountStatus, Transfer};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use crate::batch::Chains;
use crate::chart::{CommonAccounts, LeaseName};
use crate::clock::{Health, LedgerClock, lock};
use crate::lease::LeaseRecord;
use crate::leases::Leases;
use crate::options::TigerBeetleOptions;
use crate::requests::{Ask, Created, Reads, Told, Writes};
use crate::session::{Session, Shared};
use crate::table::{Table, Turn};

/// The least that a session has room for: what one caller sends together at most, 256 completes of 32 limits. Otherwise
/// it would be refused even where nothing waits.
const QUEUE_MIN: usize = 256 * (1 + 2 * 32);

/// Rolling and concurrency limits on a cluster of TigerBeetle.
///
/// Each limit is an account, a reserve a chain of pending transfers, and a lease what its transfers say. The
/// registry says which limits there are to be; what is in force is what the accounts have.
pub struct TigerBeetleLimits {
    pub(crate) inner: Arc<Inner>,
    background: JoinHandle<()>,
}

/// Why there are no limits on a cluster.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// An account of the cluster is not what it should be.
    #[error("{0}")]
    Account(String),
}

pub(crate) struct Inner {
    pub(crate) options: TigerBeetleOptions,
    pub(crate) registry: Arc<dyn Registry>,
    pub(crate) common: CommonAccounts,
    pub(crate) table: Table,
    pub(crate) leases: Arc<Leases>,
    pub(crate) shared: Arc<Shared>,
    writes: Vec<Submitter<Writes>>,
    reads: Submitter<Reads>,
    pub(crate) setup: watch::Sender<Setup>,
    /// Held by all that is under way; there is none once it has stopped.
    tasks: Mutex<Option<mpsc::Sender<()>>>,
    ended: tokio::sync::Mutex<mpsc::Receiver<()>>,
    pub(crate) decreasing: std::sync::atomic::AtomicUsize,
    /// How often anybody has looked at limits in the ledger.
    turn: Mutex<Turn>,
    /// The version of the registry whose limits were all met, and one more; 0 before the first.
    pub(crate) met: std::sync::atomic::AtomicU64,
}

/// Whether the accounts that everything stands on are there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Setup {
    Pending,
    Ready,
    Failed(String),
}

impl TigerBeetleLimits {
    /// Connects, creates the accounts that are missing, and brings the limits of the registry in line. A cluster that
    /// does not answer is waited for in the background. Needs a tokio runtime.
    ///
    /// # Errors
    /// When an account exists that is not what it should be.
    pub async fn open(
        options: TigerBeetleOptions,
        registry: Arc<dyn Registry>,
    ) -> Result<TigerBeetleLimits, OpenError> {
        let deadline = options.deadline;
        let inner = Inner::start(options, registry);
        let background = tokio::spawn(Arc::clone(&inner).run());
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
        // Whatever is under way has its say, but a cluster that does not answer keeps nobody.
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
            health: Health::new(sessions.saturating_add(1)),
            clock: LedgerClock::default(),
        });
        let session = |number| Session::new(Arc::clone(&shared), number);
        let queue_max = options.queue_max.checked_div(sessions).unwrap_or(1).max(QUEUE_MIN);
        let writes =
            (0..sessions).map(|number| Submitter::start(Writes::new(session(number)), queue_max)).collect();
        let reads = Submitter::start(Reads::new(session(sessions)), queue_max);
        let (sender, receiver) = mpsc::channel(1);
        let retention = Duration::from_millis(options.config.retention_ms);
        Arc::new(Inner {
            options,
            registry,
            common: CommonAccounts::new(),
            table: Table::default(),
            leases: Arc::new(Leases::new(retention)),
            shared,
            writes,
            reads,
            setup: watch::channel(Setup::Pending).0,
            tasks: Mutex::new(Some(sender)),
            ended: tokio::sync::Mutex::new(receiver),
            decreasing: std::sync::atomic::AtomicUsize::new(0),
            turn: Mutex::default(),
            met: std::sync::atomic::AtomicU64::new(0),
        })
    }

    /// Carries something out whether or not its answer is waited for, and answers within the deadline.
    pub(crate) async fn within_deadline<T: Send + 'static>(
        self: &Arc<Inner>,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, BackendError> {
        let Some(held) = lock(&self.tasks).clone() else {
            return Err(BackendError::Overloaded("it has stopped"));
        };
        let task = tokio::spawn(async move {
            let done = work.await;
            drop(held);
            done
        });
        match tokio::time::timeout(self.options.deadline, task).await {
            Ok(Ok(done)) => Ok(done),
            Ok(Err(error)) => Err(BackendError::Failed(error.to_string())),
            Err(_) => Err(BackendError::Failed(self.silence())),
        }
    }

    pub(crate) fn silence(&self) -> String {
        let (url, seconds) = (&self.shared.url, self.options.deadline.as_secs_f32());
        let trouble = self.shared.health.trouble().map(|trouble| format!(" ({trouble})")).unwrap_or_default();
        format!("{url} has not answered within {seconds} s{trouble}; what was asked for may still happen")
    }

    /// Waits until the accounts that everything stands on are there. Nobody waits for longer than a caller does: what
    /// was given up would pile up for as long as the cluster is away.
    pub(crate) async fn set_up(&self) -> Result<(), BackendError> {
        let mut setup = self.setup.subscribe();
        let known = setup.wait_for(|setup| *setup != Setup::Pending);
        let Ok(known) = tokio::time::timeout(self.options.deadline, known).await else {
            return Err(BackendError::Failed(self.silence()));
        };
        match known.as_deref() {
            Ok(Setup::Ready) => Ok(()),
            Ok(Setup::Failed(message)) => Err(BackendError::Failed(message.clone())),
            Ok(Setup::Pending) | Err(_) => Err(BackendError::Overloaded("it has stopped")),
        }
    }

    /// Creates chains of transfers: the results of each. They are in the queue when this returns.
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
                None => Err(BackendError::Overloaded("there is no session")),
            }
        }
    }

    /// Creates one chain of transfers.
    pub(crate) async fn create_one(&self, chain: Vec<Transfer>, direction: Direction) -> Created {
        let created = self.create(Chains::one(chain), direction).await?;
        created.into_iter().next().unwrap_or_else(|| Err(mixed_up()))
    }

    pub(crate) async fn ask(&self, ask: Ask) -> Result<Told, BackendError> {
        self.reads.submit(ask, 1, Direction::GivesBack).await?
    }

    /// Asks, and says which look at the ledger this is: of two, the one with the higher number was answered later,
    /// whoever hears of it first.
    pub(crate) async fn look_in_turn(&self, ask: Ask) -> Result<(Turn, Told), BackendError> {
        let (turn, asked) = {
            let mut turn = lock(&self.turn);
            *turn = turn.next();
            // In the queue when this returns.
            (*turn, self.reads.submit(ask, 1, Direction::GivesBack))
        };
        Ok((turn, asked.await??))
    }

    /// The number of something that is known without another look.
    pub(crate) fn next_turn(&self) -> Turn {
        let mut turn = lock(&self.turn);
        *turn = turn.next();
        *turn
    }

    /// What the ledger has of a lease.
    pub(crate) async fn look(&self, name: &LeaseName) -> Result<Option<LeaseRecord>, BackendError> {
        match self.ask(Ask::Lease(name.id)).await? {
            Told::Transfers(transfers) => {
                let read = || LeaseRecord::read(&transfers, |account| self.table.key_of(account));
                let record = read();
                // Another process may have put and used a limit that this one has not come across yet.
                let is_unnamed = record.iter().flat_map(|record| &record.held).any(|held| held.key.is_none());
                if !is_unnamed {
                    return Ok(record);
                }
                // If nobody can tell what there is, what is known here has to do.
                _ = self.registry.refresh().await;
                self.meet_limits();
                Ok(read())
            }
            Told::CreatedAccounts(_) | Told::Accounts(_) | Told::Refused(_) => Err(mixed_up()),
        }
    }

    pub(crate) fn stats(&self) -> Stats {
        let queue_depth = self.writes.iter().map(Submitter::depth).sum();
        let debt = self.table.all().into_iter().filter_map(|cell| cell.seen()).map(|seen| seen.debt);
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
            return Err("it is shutting down".into());
        }
        if let Some(trouble) = self.shared.health.trouble() {
            return Err(trouble);
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

/// The one that has the least to do, what it is doing included. One that has stopped does nothing, and is no choice.
fn least_busy<L: BatchTarget>(sessions: &[Submitter<L>]) -> Option<&Submitter<L>> {
    sessions.iter().filter(|session| !session.is_stopped()).min_by_key(|session| session.load())
}

/// What is wrong with an account that exists and is not what it should be; nothing if all is well.
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
        "TigerBeetle has an account of the id that {what} has here, with another {field}: it is not one of \
         Earmark's, and is left alone; use another cluster, or another key"
    ))
}

pub(crate) fn describe_limit(key: &LimitKey) -> String {
    format!("the limit {key}")
}

pub(crate) fn mixed_up() -> BackendError {
    BackendError::Failed("answers got mixed up".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::Semaphore;

    /// Carries out one batch for each permit.
    struct Gated(Arc<Semaphore>);

    impl BatchTarget for Gated {
        type Item = ();
        type Outcome = ();

        const BATCH_EVENTS_MAX: usize = 100;

        async fn submit(&mut self, batch: Vec<()>) -> Vec<()> {
            self.0.acquire().await.unwrap().forget();
            batch
        }

        async fn idle(&mut self) {}
    }

    /// What a session was doing did not count, so that a caller was put behind a full batch while another session stood
    /// idle. And one that had stopped had nothing to do ever after, was chosen always, and refused everything.
    #[tokio::test]
    async fn work_goes_to_the_session_that_has_the_least_to_do_and_has_not_stopped() {
        let gate = Arc::new(Semaphore::new(0));
        let sessions: Vec<_> = (0..3).map(|_| Submitter::start(Gated(Arc::clone(&gate)), 100)).collect();
        let place = || least_busy(&sessions).map(|one| sessions.iter().position(|s| std::ptr::eq(s, one)));
        let _first = sessions[0].submit((), 50, Direction::Takes);
        while sessions[0].depth() > 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(place(), Some(Some(1)));
        let _second = sessions[1].submit((), 20, Direction::Takes);
        assert_eq!(place(), Some(Some(2)));
        sessions[2].stop().await;
        assert_eq!(place(), Some(Some(1)));
        gate.add_permits(9);
        for session in &sessions {
            session.stop().await;
            assert_eq!(session.load(), 0);
        }
        assert_eq!(place(), None);
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
