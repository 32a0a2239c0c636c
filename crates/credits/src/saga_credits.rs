//! [`SagaCredits`]: the `Credits` interface on a store.

mod change_log;
mod extend;
mod read;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use earmark_admission::{
    AccountPage, AccountPath, AccountQuery, Answer, Answers, Audit, BackendError, ChangePage, ChangeQuery, Clock,
    CreditCounts, CreditReadError, CreditRoom, Credits, EntryPage, EntryQuery, GrowAnswer, GrowRequest, HoldAnswer,
    HoldRequest, HoldState, RenewAnswer, RenewRequest, SettleAnswer, SettleRequest, ShrinkRequest, WriteAnswer,
    WriteRequest, Writer,
};
use earmark_core::{
    Actor, BalanceInfo, ClientId, CreditTerms, Definition, GrantInfo, InvalidWrite, LeaseId, NamespaceName,
    OPERATIONS_MAX, Usage, VaultName, WriteError,
};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use crate::id::OwnerId;
use crate::model::{LeaseKey, VaultKey};
use crate::saga::{Engine, Options, Task, TaskError};
use crate::store::{Change, Store, StoreError};
use crate::task::{GrowTask, HoldTask, LeaseStatus, SettleTask, ShrinkTask, TransactionTask};
use crate::time::SharedTime;

/// Concurrent reads of balances, histories and changes. A page of history occupies a connection as long as many
/// payments do.
const READS_MAX: usize = 2;

/// First pause before a store that did not answer at the start is tried again.
const RETRY: Duration = Duration::from_millis(100);
/// Longest pause between two tries.
const RETRY_MAX: Duration = Duration::from_secs(5);

/// Opens a store. It is called until it succeeds.
pub type OpenStore = Box<dyn Fn() -> Answer<'static, Result<Arc<dyn Store>, StoreError>> + Send + Sync>;

/// Credit on a store.
pub struct SagaCredits {
    shared: Arc<Shared>,
    in_flight: Arc<Semaphore>,
    in_flight_max: u32,
    /// Slots for reads of balances, histories and changes.
    read_slots: Semaphore,
    /// An audit occupies a connection for a long time. Several at once could leave none for payments.
    audits: tokio::sync::Mutex<()>,
    background: Mutex<Option<JoinHandle<()>>>,
}

/// The part that the background task shares.
#[derive(Default)]
struct Shared {
    /// Empty until the store has answered for the first time.
    engine: OnceLock<Arc<Engine>>,
    /// Why the store cannot serve, if it cannot.
    trouble: Mutex<Option<String>>,
    is_closed: AtomicBool,
}

impl Shared {
    fn engine(&self) -> Result<&Arc<Engine>, BackendError> {
        self.engine.get().ok_or_else(|| BackendError::Failed(self.ready().err().unwrap_or_default()))
    }

    fn ready(&self) -> Result<(), String> {
        if self.is_closed.load(Ordering::SeqCst) {
            return Err("credit is shut down".to_owned());
        }
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone().map_or(Ok(()), Err)
    }

    fn set_trouble(&self, trouble: Option<String>) {
        let mut known = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        match (known.as_ref(), trouble.as_ref()) {
            (None, Some(trouble)) => tracing::error!(%trouble, "the credit store fails"),
            (Some(_), None) => tracing::info!("the credit store answers again"),
            (Some(old), Some(trouble)) if old != trouble => {
                tracing::warn!(%trouble, "the credit store still fails")
            }
            (None, None) | (Some(_), Some(_)) => {}
        }
        *known = trouble;
    }

    /// Serves on an opened store after recovery. A store that fails is closed again.
    async fn serve(&self, store: Arc<dyn Store>, clock: &Arc<dyn Clock>, options: &Options) -> Result<(), StoreError> {
        let time = SharedTime::new(Arc::clone(clock));
        let engine = Arc::new(Engine::new(Arc::clone(&store), time, options.clone()));
        let recovered = match engine.heartbeat().await {
            Ok(()) => with_heartbeats(&engine, engine.recover()).await,
            Err(error) => Err(error),
        };
        if recovered.is_err() {
            store.close().await;
        }
        recovered.map(|()| drop(self.engine.set(engine)))
    }
}

impl SagaCredits {
    /// Finishes the sagas of dead processes and starts to serve. Sagas of processes that are not dead yet are recovered
    /// later.
    ///
    /// # Errors
    /// When the store does not answer.
    pub async fn start(
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        options: Options,
    ) -> Result<SagaCredits, StoreError> {
        let shared = Arc::new(Shared::default());
        shared.serve(store, &clock, &options).await?;
        let background = earmark_admission::spawn(maintenance(Arc::downgrade(&shared), options.heartbeat));
        Ok(SagaCredits::new(shared, &options, background))
    }

    /// Opens a store and starts to serve. If the store is down, it is tried again in the background, and until it
    /// answers every call fails without effect.
    ///
    /// # Errors
    /// When the store refuses, or a later version wrote it: waiting would not help.
    pub fn open(
        open: OpenStore,
        clock: Arc<dyn Clock>,
        options: Options,
    ) -> Answer<'static, Result<SagaCredits, StoreError>> {
        Box::pin(SagaCredits::open_or_retry(open, clock, options))
    }

    async fn open_or_retry(
        open: OpenStore,
        clock: Arc<dyn Clock>,
        options: Options,
    ) -> Result<SagaCredits, StoreError> {
        let shared = Arc::new(Shared::default());
        let opened = match open().await {
            Ok(store) => shared.serve(store, &clock, &options).await,
            Err(error) => Err(error),
        };
        match opened {
            Err(error) if !error.is_transient() => return Err(error),
            Err(error) => shared.set_trouble(Some(not_open(&error))),
            Ok(()) => {}
        }
        let (weak, heartbeat, settings) = (Arc::downgrade(&shared), options.heartbeat, options.clone());
        let background = earmark_admission::spawn(async move {
            open_again(&weak, &open, &clock, &settings).await;
            maintenance(weak, heartbeat).await;
        });
        Ok(SagaCredits::new(shared, &options, background))
    }

    fn new(shared: Arc<Shared>, options: &Options, background: JoinHandle<()>) -> SagaCredits {
        SagaCredits {
            shared,
            in_flight: Arc::new(Semaphore::new(options.in_flight_max)),
            in_flight_max: u32::try_from(options.in_flight_max).unwrap_or(u32::MAX),
            read_slots: Semaphore::new(READS_MAX),
            audits: tokio::sync::Mutex::new(()),
            background: Mutex::new(Some(background)),
        }
    }

    fn engine(&self) -> Result<&Arc<Engine>, BackendError> {
        self.shared.engine()
    }

    /// Runs one round of maintenance: heartbeat, recovery, and release of holds that timed out.
    ///
    /// # Errors
    /// The error of the store, for an operator.
    pub async fn maintain(&self) -> Result<(), String> {
        let engine = self.engine().map_err(|error| error.to_string())?;
        let result = maintain(engine).await;
        self.shared.set_trouble(result.clone().err());
        result
    }

    /// The id by which other processes know this one.
    #[must_use]
    pub fn owner(&self) -> OwnerId {
        self.shared.engine.get().map_or(OwnerId::default(), |engine| engine.owner)
    }

    /// Stops at once, like a killed process. Other processes recover its sagas.
    pub fn abandon(&self) {
        drop(self.stop_background());
    }

    fn stop_background(&self) -> Option<JoinHandle<()>> {
        self.shared.is_closed.store(true, Ordering::SeqCst);
        let background = self.background.lock().unwrap_or_else(PoisonError::into_inner).take();
        background.inspect(JoinHandle::abort)
    }

    /// Executes each task to its end, even if the caller stops waiting.
    async fn execute_all<T, R>(
        &self,
        requests: Vec<R>,
        task: impl Fn(&R) -> Option<T>,
    ) -> Vec<Result<T::Answer, BackendError>>
    where
        T: Task + 'static,
        T::Answer: 'static,
    {
        let mut running = Vec::with_capacity(requests.len());
        for request in &requests {
            running.push(self.spawn(task(request)));
        }
        answers(running).await
    }

    /// Waits for a read slot, then reads.
    async fn with_read_slot<T, E: From<BackendError>>(&self, read: impl Future<Output = Result<T, E>>) -> Result<T, E> {
        let slot = tokio::time::timeout(self.engine()?.options.deadline, self.read_slots.acquire());
        let Ok(Ok(_slot)) = slot.await else {
            return Err(BackendError::Overloaded("too many reads of credit are waiting").into());
        };
        read.await
    }

    fn spawn<T>(&self, task: Option<T>) -> Result<JoinHandle<Result<T::Answer, BackendError>>, BackendError>
    where
        T: Task + 'static,
        T::Answer: 'static,
    {
        let Some(task) = task else { return Err(not_credit()) };
        self.spawn_work(|engine| async move { engine.execute(&task).await.map_err(backend_error) })
    }

    /// Starts some work on the store, which goes on even if the caller stops waiting.
    fn spawn_work<A: Send + 'static, F>(
        &self,
        work: impl FnOnce(Arc<Engine>) -> F,
    ) -> Result<JoinHandle<Result<A, BackendError>>, BackendError>
    where
        F: Future<Output = Result<A, BackendError>> + Send + 'static,
    {
        if self.shared.is_closed.load(Ordering::SeqCst) {
            return Err(stopped());
        }
        let engine = Arc::clone(self.engine()?);
        let full = |_| BackendError::Overloaded("too many credit requests are waiting");
        let permit = Arc::clone(&self.in_flight).try_acquire_owned().map_err(full)?;
        let work = work(engine);
        Ok(earmark_admission::spawn(async move {
            let answer = work.await;
            drop(permit);
            answer
        }))
    }
}

fn not_credit() -> BackendError {
    BackendError::Failed("cannot hold credit: the limit is not of kind credit".into())
}

/// The answers of running work, in order.
async fn answers<A>(
    running: Vec<Result<JoinHandle<Result<A, BackendError>>, BackendError>>,
) -> Vec<Result<A, BackendError>> {
    let mut answers = Vec::with_capacity(running.len());
    for work in running {
        answers.push(match work {
            Ok(work) => work.await.unwrap_or_else(|_| Err(stopped())),
            Err(error) => Err(error),
        });
    }
    answers
}

fn stopped() -> BackendError {
    BackendError::Failed("credit is shut down".into())
}

/// The trouble while the store has not been opened.
fn not_open(error: &StoreError) -> String {
    format!("the store has not answered since the start: {error}")
}

/// Opens the store until it answers. A store that refuses may have been corrected by the next try.
async fn open_again(shared: &Weak<Shared>, open: &OpenStore, clock: &Arc<dyn Clock>, options: &Options) {
    let mut pause = RETRY;
    while shared.upgrade().is_some_and(|shared| shared.engine.get().is_none()) {
        tokio::time::sleep(pause).await;
        pause = pause.saturating_mul(2).min(RETRY_MAX);
        let opened = open().await;
        let Some(shared) = shared.upgrade() else { return };
        let served = match opened {
            Ok(store) => shared.serve(store, clock, options).await,
            Err(error) => Err(error),
        };
        shared.set_trouble(served.err().as_ref().map(not_open));
    }
}

/// Runs maintenance at every heartbeat until the credits are dropped.
async fn maintenance(shared: Weak<Shared>, heartbeat: Duration) {
    let mut ticks = tokio::time::interval_at(tokio::time::Instant::now() + heartbeat, heartbeat);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let Some(shared) = shared.upgrade() else { return };
        if let Some(engine) = shared.engine.get() {
            shared.set_trouble(maintain(engine).await.err());
        }
    }
}

async fn maintain(engine: &Engine) -> Result<(), String> {
    engine.heartbeat().await.map_err(|error| error.to_string())?;
    with_heartbeats(engine, maintenance_round(engine)).await
}

/// Sends heartbeats while some work runs.
async fn with_heartbeats<T>(engine: &Engine, work: impl Future<Output = T>) -> T {
    let mut work = std::pin::pin!(work);
    loop {
        match tokio::time::timeout(engine.options.heartbeat, work.as_mut()).await {
            Ok(done) => return done,
            // The work may take long, and a process without heartbeats counts as dead.
            Err(_) => {
                if let Err(error) = engine.heartbeat().await {
                    tracing::warn!(%error, "cannot write the heartbeat of this process");
                }
            }
        }
    }
}

async fn maintenance_round(engine: &Engine) -> Result<(), String> {
    engine.recover().await.map_err(|error| error.to_string())?;
    engine.delete_stale_owners().await.map_err(|error| error.to_string())?;
    let expired = engine.sweep_grants().await;
    for swept in [expired, engine.sweep().await] {
        match swept {
            // Another saga uses the account of a timed-out hold. The store is fine; the next round tries again.
            Ok(()) | Err(TaskError::Busy) => {}
            Err(trouble) => return Err(backend_error(trouble).to_string()),
        }
    }
    Ok(())
}

/// The error for a caller that gets no answer.
pub(crate) fn backend_error(trouble: TaskError) -> BackendError {
    match trouble {
        TaskError::Busy => BackendError::Overloaded("other requests use the same accounts"),
        TaskError::Store(StoreError::Busy(why)) => BackendError::Overloaded(why),
        TaskError::Store(error) => BackendError::Failed(error.to_string()),
    }
}

impl Credits for SagaCredits {
    fn hold(&self, actor: Option<Actor>, requests: Vec<HoldRequest>) -> Answers<'_, HoldAnswer> {
        Box::pin(self.execute_all(requests, move |request| HoldTask::new(request, actor.clone())))
    }

    fn grow(&self, actor: Option<Actor>, requests: Vec<GrowRequest>) -> Answers<'_, GrowAnswer> {
        Box::pin(self.execute_all(requests, move |request| GrowTask::new(request, actor.clone())))
    }

    fn shrink(&self, actor: Option<Actor>, request: ShrinkRequest) -> Answer<'_, Result<(), BackendError>> {
        Box::pin(async move {
            let work = self.spawn(Some(ShrinkTask::new(&request, actor)))?;
            work.await.unwrap_or_else(|_| Err(stopped()))
        })
    }

    fn renew(&self, actor: Option<Actor>, requests: Vec<RenewRequest>) -> Answers<'_, RenewAnswer> {
        Box::pin(self.renew_all(actor, requests))
    }

    fn settle(&self, actor: Option<Actor>, requests: Vec<SettleRequest>) -> Answers<'_, SettleAnswer> {
        Box::pin(self.execute_all(requests, move |request| Some(SettleTask::new(request, actor.clone()))))
    }

    fn holds(
        &self,
        namespace: NamespaceName,
        lease: LeaseId,
        _: Vec<earmark_admission::Amount>,
    ) -> Answer<'_, Result<HoldState, BackendError>> {
        Box::pin(async move {
            let engine = self.engine()?;
            let status = engine.lease_status(&LeaseKey { namespace, lease }).await.map_err(backend_error)?;
            Ok(match status {
                LeaseStatus::Unknown { .. } => HoldState::Unknown,
                LeaseStatus::Refused { limit, why } => HoldState::Refused { key: limit, why },
                LeaseStatus::Marked | LeaseStatus::Settled => HoldState::Ended,
                LeaseStatus::Holds(..) if status.is_live(engine.time.now()) => HoldState::Held,
                LeaseStatus::Holds(..) => HoldState::Ended,
            })
        })
    }

    fn write(&self, writer: Writer, request: WriteRequest) -> Answer<'_, Result<WriteAnswer, BackendError>> {
        Box::pin(async move {
            let found = request.operations.len();
            if found > OPERATIONS_MAX {
                let why = InvalidWrite::TooManyOperations { found };
                return Ok(WriteAnswer::Refused(WriteError::Invalid(why)));
            }
            let Some(vault) = request.vault.clone() else {
                return Ok(WriteAnswer::Refused(WriteError::VaultNotFound { operation: None }));
            };
            let home = VaultKey { namespace: request.namespace.clone(), vault };
            let work = self.spawn(Some(TransactionTask::new(home, writer, request)))?;
            work.await.unwrap_or_else(|_| Err(stopped()))
        })
    }

    fn client_state(
        &self,
        namespace: NamespaceName,
        vault: VaultName,
        client: ClientId,
    ) -> Answer<'_, Result<u64, CreditReadError>> {
        Box::pin(self.read_client(VaultKey { namespace, vault }, client))
    }

    fn grants(&self, account: AccountPath) -> Answer<'_, Result<Vec<GrantInfo>, CreditReadError>> {
        Box::pin(self.with_read_slot(self.read_grants(account)))
    }

    fn balances(&self, account: AccountPath) -> Answer<'_, Result<Vec<BalanceInfo>, CreditReadError>> {
        Box::pin(self.with_read_slot(self.read_balances(account)))
    }

    fn usage(&self, namespace: NamespaceName, limit: Arc<Definition>) -> Answer<'_, Result<Usage, BackendError>> {
        Box::pin(self.with_read_slot(self.read_usage(namespace, limit)))
    }

    fn room(&self, namespace: NamespaceName, terms: CreditTerms) -> Answer<'_, Result<CreditRoom, BackendError>> {
        Box::pin(self.with_read_slot(self.read_room(namespace, terms)))
    }

    fn accounts(
        &self,
        namespace: NamespaceName,
        vault: VaultName,
        query: AccountQuery,
    ) -> Answer<'_, Result<AccountPage, CreditReadError>> {
        Box::pin(self.with_read_slot(self.read_accounts(VaultKey { namespace, vault }, query)))
    }

    fn entries(&self, account: AccountPath, query: EntryQuery) -> Answer<'_, Result<EntryPage, CreditReadError>> {
        Box::pin(self.with_read_slot(self.read_entries(account, query)))
    }

    fn changes(&self, query: ChangeQuery) -> Answer<'_, Result<ChangePage, BackendError>> {
        Box::pin(self.with_read_slot(self.read_changes(query)))
    }

    fn audit(&self, namespace: NamespaceName, vault: VaultName) -> Answer<'_, Result<Audit, CreditReadError>> {
        Box::pin(self.read_audit(VaultKey { namespace, vault }))
    }

    fn counts(&self, namespaces: Vec<NamespaceName>) -> Answer<'_, Result<Vec<CreditCounts>, BackendError>> {
        Box::pin(self.read_counts(namespaces))
    }

    fn is_expiry_waiting(&self) -> bool {
        self.shared.engine.get().is_some_and(|engine| engine.time.is_expiry_waiting())
    }

    fn ready(&self) -> Result<(), String> {
        self.shared.ready()
    }

    fn shut_down(&self) -> Answer<'_, ()> {
        Box::pin(async move {
            if let Some(background) = self.stop_background() {
                // It may be opening the store.
                let _ = background.await;
            }
            // Every request has a deadline, so this ends.
            let _ = self.in_flight.acquire_many(self.in_flight_max).await;
            let Ok(engine) = self.engine() else { return };
            if let Err(error) = engine.write(vec![Change::Leave(engine.owner)]).await {
                tracing::warn!(%error, "cannot remove the heartbeat of this process");
            }
            engine.store.close().await;
        })
    }
}
