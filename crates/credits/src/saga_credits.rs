//! [`SagaCredits`]: the `Credits` interface on a store.

mod change_log;
mod read;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use earmark_admission::{
    AccountPath, Answer, Audit, BackendError, ChangePage, Clock, CreditCursor, CreditReadError, Credits,
    EntryPage, HoldAnswer, HoldRequest, HoldState, SettleAnswer, SettleRequest, WriteAnswer, WriteRequest,
};
use earmark_core::{
    Actor, BalanceInfo, ClientId, Definition, InvalidWrite, LeaseId, NamespaceName, OPERATIONS_MAX, Usage,
    VaultName, WriteError,
};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use crate::id::OwnerId;
use crate::model::{LeaseKey, VaultKey};
use crate::saga::{Engine, Options, Task, TaskError};
use crate::store::{Change, Store, StoreError};
use crate::task::{HoldTask, LeaseStatus, SettleTask, TransactionTask};
use crate::time::SharedTime;

/// New clients admitted before the clients are counted again.
const CLIENTS_STEP: u64 = 1_000;
/// How long to answer "too many clients" without counting again. Clients stay for good, but an operator may delete
/// some.
const FULL_FOR: Duration = Duration::from_secs(10);

/// Concurrent reads of balances, histories and changes. A page of history occupies a connection as long as many
/// payments do.
const READS_MAX: usize = 2;

/// Credit on a store.
pub struct SagaCredits {
    engine: Arc<Engine>,
    health: Arc<Health>,
    in_flight: Arc<Semaphore>,
    /// Slots for reads of balances, histories and changes.
    read_slots: Semaphore,
    /// An audit occupies a connection for a long time. Several at once could leave none for payments.
    audits: tokio::sync::Mutex<()>,
    maintenance: Mutex<Option<JoinHandle<()>>>,
}

/// The health of the store, as last seen.
#[derive(Default)]
struct Health {
    /// Why the store cannot serve, if it cannot.
    trouble: Mutex<Option<String>>,
    is_closed: AtomicBool,
}

impl Health {
    fn set(&self, trouble: Option<String>) {
        let mut known = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        match (known.as_ref(), trouble.as_ref()) {
            (None, Some(trouble)) => tracing::error!(%trouble, "the store of credit fails"),
            (Some(_), None) => tracing::info!("the store of credit answers again"),
            (None, None) | (Some(_), Some(_)) => {}
        }
        *known = trouble;
    }
}

impl SagaCredits {
    /// Finishes the sagas of dead processes and starts to serve. Sagas of processes that are not dead yet are recovered
    /// later.
    ///
    /// # Errors When the store does not answer.
    pub async fn start(
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        options: Options,
    ) -> Result<SagaCredits, StoreError> {
        let in_flight = Arc::new(Semaphore::new(options.in_flight_max));
        let heartbeat = options.heartbeat;
        let engine = Arc::new(Engine::new(store, SharedTime::new(clock), options));
        engine.heartbeat().await?;
        with_heartbeats(&engine, engine.recover()).await?;
        let health = Arc::new(Health::default());
        let (tended, watched) = (Arc::downgrade(&engine), Arc::clone(&health));
        let maintenance = tokio::spawn(async move {
            let mut ticks = tokio::time::interval_at(tokio::time::Instant::now() + heartbeat, heartbeat);
            ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            loop {
                ticks.tick().await;
                let Some(engine) = tended.upgrade() else { return };
                watched.set(maintain(&engine).await.err());
            }
        });
        let (audits, maintenance) = (tokio::sync::Mutex::new(()), Mutex::new(Some(maintenance)));
        let read_slots = Semaphore::new(READS_MAX);
        Ok(SagaCredits { engine, health, in_flight, read_slots, audits, maintenance })
    }

    /// Runs one round of maintenance: heartbeat, recovery, and release of holds that timed out.
    ///
    /// # Errors What is wrong with the store, for an operator.
    pub async fn maintain(&self) -> Result<(), String> {
        let result = maintain(&self.engine).await;
        self.health.set(result.clone().err());
        result
    }

    /// The id by which other processes know this one.
    #[must_use]
    pub fn owner(&self) -> OwnerId {
        self.engine.owner
    }

    /// Stops at once, like a killed process. Other processes recover its sagas.
    pub fn abandon(&self) {
        self.health.is_closed.store(true, Ordering::SeqCst);
        let maintenance = self.maintenance.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(maintenance) = maintenance {
            maintenance.abort();
        }
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
        let mut answers = Vec::with_capacity(running.len());
        for work in running {
            answers.push(match work {
                Ok(work) => work.await.unwrap_or_else(|_| Err(stopped())),
                Err(error) => Err(error),
            });
        }
        answers
    }

    /// Waits for a read slot, then reads.
    async fn with_read_slot<T, E: From<BackendError>>(
        &self,
        read: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let slot = tokio::time::timeout(self.engine.options.deadline, self.read_slots.acquire());
        let Ok(Ok(_slot)) = slot.await else {
            return Err(BackendError::Overloaded("too many read the store of credit").into());
        };
        read.await
    }

    fn spawn<T>(&self, task: Option<T>) -> Result<JoinHandle<Result<T::Answer, BackendError>>, BackendError>
    where
        T: Task + 'static,
        T::Answer: 'static,
    {
        if self.health.is_closed.load(Ordering::SeqCst) {
            return Err(stopped());
        }
        let Some(task) = task else {
            return Err(BackendError::Failed(
                "a limit whose credit is to be held is not of kind credit".into(),
            ));
        };
        let full = |_| BackendError::Overloaded("too many requests wait for the store of credit");
        let permit = Arc::clone(&self.in_flight).try_acquire_owned().map_err(full)?;
        let engine = Arc::clone(&self.engine);
        Ok(tokio::spawn(async move {
            let answer = engine.execute(&task).await.map_err(backend_error);
            drop(permit);
            answer
        }))
    }
}

fn stopped() -> BackendError {
    BackendError::Failed("credit is shut down".into())
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
                    tracing::warn!(%error, "the store was not told that this process lives");
                }
            }
        }
    }
}

async fn maintenance_round(engine: &Engine) -> Result<(), String> {
    engine.recover().await.map_err(|error| error.to_string())?;
    engine.delete_stale_owners().await.map_err(|error| error.to_string())?;
    match engine.sweep().await {
        // Another saga uses the account of a timed-out hold. The store is fine; the next round tries again.
        Ok(()) | Err(TaskError::Busy) => Ok(()),
        Err(trouble) => Err(backend_error(trouble).to_string()),
    }
}

/// The error for a caller that gets no answer.
pub(crate) fn backend_error(trouble: TaskError) -> BackendError {
    match trouble {
        TaskError::Busy => BackendError::Overloaded("others are at work on the same accounts"),
        TaskError::Store(StoreError::Busy(why)) => BackendError::Overloaded(why),
        TaskError::Store(error) => BackendError::Failed(error.to_string()),
    }
}

impl Engine {
    /// Whether one more client is allowed. One call at a time counts the clients, which may be a million rows.
    pub(crate) async fn has_room_for_client(&self) -> Result<bool, TaskError> {
        let ClientRoom { room, full_at } = &self.client_room;
        let takes = || {
            let one_less = |room: u64| room.checked_sub(1);
            room.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_ok()
        };
        if takes() {
            return Ok(true);
        }
        let mut full_at = full_at.lock().await;
        if takes() {
            return Ok(true);
        }
        if full_at.is_some_and(|since| since.elapsed() < FULL_FOR) {
            return Ok(false);
        }
        let count = self.call(self.store.clients()).await?;
        let left = self.options.clients_max.saturating_sub(count);
        *full_at = (left == 0).then(Instant::now);
        room.store(left.saturating_sub(1).min(CLIENTS_STEP), Ordering::Relaxed);
        Ok(left > 0)
    }
}

/// How many new clients may come before they are counted.
#[derive(Default)]
pub(crate) struct ClientRoom {
    room: AtomicU64,
    /// When the limit was found to be reached.
    full_at: tokio::sync::Mutex<Option<Instant>>,
}

impl Credits for SagaCredits {
    fn hold(
        &self,
        actor: Option<Actor>,
        requests: Vec<HoldRequest>,
    ) -> Answer<'_, Vec<Result<HoldAnswer, BackendError>>> {
        Box::pin(self.execute_all(requests, move |request| HoldTask::new(request, actor.clone())))
    }

    fn settle(
        &self,
        actor: Option<Actor>,
        requests: Vec<SettleRequest>,
    ) -> Answer<'_, Vec<Result<SettleAnswer, BackendError>>> {
        Box::pin(self.execute_all(requests, move |request| Some(SettleTask::new(request, actor.clone()))))
    }

    fn holds(&self, namespace: NamespaceName, lease: LeaseId) -> Answer<'_, Result<HoldState, BackendError>> {
        Box::pin(async move {
            let status =
                self.engine.lease_status(&LeaseKey { namespace, lease }).await.map_err(backend_error)?;
            Ok(match status {
                LeaseStatus::Unknown => HoldState::Unknown,
                LeaseStatus::Refused { limit, why } => HoldState::Refused { key: limit, why },
                LeaseStatus::Marked | LeaseStatus::Settled => HoldState::Ended,
                LeaseStatus::Holds(_) if status.is_live(self.engine.time.now()) => HoldState::Held,
                LeaseStatus::Holds(_) => HoldState::Ended,
            })
        })
    }

    fn write(&self, request: WriteRequest) -> Answer<'_, Result<WriteAnswer, BackendError>> {
        Box::pin(async move {
            let found = request.operations.len();
            if found > OPERATIONS_MAX {
                let why = InvalidWrite::TooManyOperations { found };
                return Ok(WriteAnswer::Refused(WriteError::Invalid(why)));
            }
            let Some(vault) = request.vault.clone() else {
                return Ok(WriteAnswer::Refused(WriteError::VaultNotFound));
            };
            let home = VaultKey { namespace: request.namespace.clone(), vault };
            let work = self.spawn(Some(TransactionTask::new(home, request)))?;
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

    fn balances(&self, account: AccountPath) -> Answer<'_, Result<Vec<BalanceInfo>, CreditReadError>> {
        Box::pin(self.with_read_slot(self.read_balances(account)))
    }

    fn usage(
        &self,
        namespace: NamespaceName,
        limit: Arc<Definition>,
    ) -> Answer<'_, Result<Usage, BackendError>> {
        Box::pin(self.with_read_slot(self.read_usage(namespace, limit)))
    }

    fn entries(
        &self,
        account: AccountPath,
        after: u64,
        page_size: usize,
    ) -> Answer<'_, Result<EntryPage, CreditReadError>> {
        Box::pin(self.with_read_slot(self.read_entries(account, after, page_size)))
    }

    fn changes(
        &self,
        namespace: Option<NamespaceName>,
        after: CreditCursor,
        page_size: usize,
    ) -> Answer<'_, Result<ChangePage, BackendError>> {
        Box::pin(self.with_read_slot(self.read_changes(namespace, after, page_size)))
    }

    fn audit(
        &self,
        namespace: NamespaceName,
        vault: VaultName,
    ) -> Answer<'_, Result<Audit, CreditReadError>> {
        Box::pin(self.read_audit(VaultKey { namespace, vault }))
    }

    fn ready(&self) -> Result<(), String> {
        if self.health.is_closed.load(Ordering::SeqCst) {
            return Err("credit is shut down".into());
        }
        let trouble = self.health.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        trouble.clone().map_or(Ok(()), Err)
    }

    fn shut_down(&self) -> Answer<'_, ()> {
        Box::pin(async move {
            self.abandon();
            let everything = u32::try_from(self.engine.options.in_flight_max).unwrap_or(u32::MAX);
            // Every request has a deadline, so this ends.
            let _ = self.in_flight.acquire_many(everything).await;
            if let Err(error) = self.engine.write(vec![Change::Leave(self.engine.owner)]).await {
                tracing::warn!(%error, "the store was not told that this process ends");
            }
            self.engine.store.close().await;
        })
    }
}
