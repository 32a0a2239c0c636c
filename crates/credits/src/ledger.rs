//! [`SagaCredits`]: credit on a store, as the rest of Earmark asks for it.

mod log;
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
use crate::saga::{Engine, Options, Task, Trouble};
use crate::store::{Change, Store, StoreError};
use crate::task::{HoldTask, LeaseStory, SettleTask, TransactionTask};
use crate::time::SharedTime;

/// How many new clients may come before they are counted again.
const CLIENTS_STEP: u64 = 1_000;
/// So long there is taken to be room for none after there was none: clients stay for ever, but somebody may remove some by hand.
const FULL_FOR: Duration = Duration::from_secs(10);

/// So many read for people at a time. A page of a history takes a connection for as long as many payments do, and whoever pays looks
/// at the rows by the same ones.
const READS_MAX: usize = 2;

/// Credit on a store.
pub struct SagaCredits {
    engine: Arc<Engine>,
    health: Arc<Health>,
    in_flight: Arc<Semaphore>,
    /// Turns of those who read balances, histories and changes.
    reading: Semaphore,
    /// An audit has a connection for as long as it takes. Several at once could leave none for those who pay.
    audits: tokio::sync::Mutex<()>,
    tender: Mutex<Option<JoinHandle<()>>>,
}

/// What was last heard of the store.
#[derive(Default)]
struct Health {
    /// Why it cannot serve, if it cannot.
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
    /// Looks after what an earlier process left, and starts to serve. Whatever is silent but not for long enough yet is
    /// looked after later.
    ///
    /// # Errors
    /// When the store does not answer.
    pub async fn start(
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        options: Options,
    ) -> Result<SagaCredits, StoreError> {
        let in_flight = Arc::new(Semaphore::new(options.in_flight_max));
        let beat = options.beat;
        let engine = Arc::new(Engine::new(store, SharedTime::new(clock), options));
        engine.beat().await?;
        alive(&engine, engine.recover()).await?;
        let health = Arc::new(Health::default());
        let (tended, watched) = (Arc::downgrade(&engine), Arc::clone(&health));
        let tender = tokio::spawn(async move {
            let mut ticks = tokio::time::interval_at(tokio::time::Instant::now() + beat, beat);
            ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            loop {
                ticks.tick().await;
                let Some(engine) = tended.upgrade() else { return };
                watched.set(tend(&engine).await.err());
            }
        });
        let (audits, tender) = (tokio::sync::Mutex::new(()), Mutex::new(Some(tender)));
        let reading = Semaphore::new(READS_MAX);
        Ok(SagaCredits { engine, health, in_flight, reading, audits, tender })
    }

    /// One round of what is done in the background: a sign of life, recovery, and holds whose time is over.
    ///
    /// # Errors
    /// What is wrong with the store, for an operator.
    pub async fn tend(&self) -> Result<(), String> {
        let result = tend(&self.engine).await;
        self.health.set(result.clone().err());
        result
    }

    /// By what other processes know this one.
    #[must_use]
    pub fn owner(&self) -> OwnerId {
        self.engine.owner
    }

    /// Stops without a word, as a process does that is killed: what is under way is left to others.
    pub fn abandon(&self) {
        self.health.is_closed.store(true, Ordering::SeqCst);
        let tender = self.tender.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(tender) = tender {
            tender.abort();
        }
    }

    /// Carries tasks out, each to its end, whether or not anybody still waits for the answer.
    async fn each<T, R>(
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

    /// Reads when it is its turn.
    async fn in_turn<T, E: From<BackendError>>(
        &self,
        read: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let turn = tokio::time::timeout(self.engine.options.deadline, self.reading.acquire());
        let Ok(Ok(_turn)) = turn.await else {
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
            let answer = engine.carry_out(&task).await.map_err(describe);
            drop(permit);
            answer
        }))
    }
}

fn stopped() -> BackendError {
    BackendError::Failed("credit is shut down".into())
}

async fn tend(engine: &Engine) -> Result<(), String> {
    engine.beat().await.map_err(|error| error.to_string())?;
    alive(engine, tidy(engine)).await
}

/// Gives signs of life while it works.
async fn alive<T>(engine: &Engine, work: impl Future<Output = T>) -> T {
    let mut work = std::pin::pin!(work);
    loop {
        match tokio::time::timeout(engine.options.beat, work.as_mut()).await {
            Ok(done) => return done,
            // It may take long, and whoever is not heard of meanwhile is taken for dead.
            Err(_) => {
                if let Err(error) = engine.beat().await {
                    tracing::warn!(%error, "the store was not told that this process lives");
                }
            }
        }
    }
}

async fn tidy(engine: &Engine) -> Result<(), String> {
    engine.recover().await.map_err(|error| error.to_string())?;
    engine.forget_the_gone().await.map_err(|error| error.to_string())?;
    match engine.sweep().await {
        // Somebody is at work on an account whose hold is over. That is nothing wrong with the store, and has another turn.
        Ok(()) | Err(Trouble::Busy) => Ok(()),
        Err(trouble) => Err(describe(trouble).to_string()),
    }
}

/// What a caller is told who gets no answer.
pub(crate) fn describe(trouble: Trouble) -> BackendError {
    match trouble {
        Trouble::Busy => BackendError::Overloaded("others are at work on the same accounts"),
        Trouble::Store(StoreError::Busy(why)) => BackendError::Overloaded(why),
        Trouble::Store(error) => BackendError::Failed(error.to_string()),
    }
}

impl Engine {
    /// Whether one more client may come. One call at a time counts those that there are, which may be a million.
    pub(crate) async fn has_room_for_client(&self) -> Result<bool, Trouble> {
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
    /// When there was found to be room for none.
    full_at: tokio::sync::Mutex<Option<Instant>>,
}

impl Credits for SagaCredits {
    fn hold_by(
        &self,
        actor: Option<Actor>,
        requests: Vec<HoldRequest>,
    ) -> Answer<'_, Vec<Result<HoldAnswer, BackendError>>> {
        Box::pin(self.each(requests, move |request| HoldTask::new(request, actor.clone())))
    }

    fn settle_by(
        &self,
        actor: Option<Actor>,
        requests: Vec<SettleRequest>,
    ) -> Answer<'_, Vec<Result<SettleAnswer, BackendError>>> {
        Box::pin(self.each(requests, move |request| Some(SettleTask::new(request, actor.clone()))))
    }

    fn holds(&self, namespace: NamespaceName, lease: LeaseId) -> Answer<'_, Result<HoldState, BackendError>> {
        Box::pin(async move {
            let story = self.engine.story(&LeaseKey { namespace, lease }).await.map_err(describe)?;
            Ok(match story {
                LeaseStory::Unknown => HoldState::Unknown,
                LeaseStory::Refused { limit, why } => HoldState::Refused { key: limit, why },
                LeaseStory::Marked | LeaseStory::Settled => HoldState::Ended,
                LeaseStory::Holds(_) if story.is_live(self.engine.time.now()) => HoldState::Held,
                LeaseStory::Holds(_) => HoldState::Ended,
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
        Box::pin(self.in_turn(self.read_balances(account)))
    }

    fn usage(
        &self,
        namespace: NamespaceName,
        limit: Arc<Definition>,
    ) -> Answer<'_, Result<Usage, BackendError>> {
        Box::pin(self.in_turn(self.read_usage(namespace, limit)))
    }

    fn entries(
        &self,
        account: AccountPath,
        after: u64,
        page_size: usize,
    ) -> Answer<'_, Result<EntryPage, CreditReadError>> {
        Box::pin(self.in_turn(self.read_entries(account, after, page_size)))
    }

    fn changes(
        &self,
        namespace: Option<NamespaceName>,
        after: CreditCursor,
        page_size: usize,
    ) -> Answer<'_, Result<ChangePage, BackendError>> {
        Box::pin(self.in_turn(self.read_changes(namespace, after, page_size)))
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
            // Every request has its deadline, so this ends.
            let _ = self.in_flight.acquire_many(everything).await;
            if let Err(error) = self.engine.write(vec![Change::Leave(self.engine.owner)]).await {
                tracing::warn!(%error, "the store was not told that this process ends");
            }
            self.engine.store.close().await;
        })
    }
}
