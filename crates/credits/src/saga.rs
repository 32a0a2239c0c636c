//! Commits: how a plan takes effect once or not at all.
//!
//! A plan that opens, changes or closes no account goes to [`Store::commit`] as a whole. Every other plan is a saga of
//! single conditional changes:
//!
//! 1. Insert the saga record ([`Change::Begin`]). It contains the plan and, for a sequenced write, claims the sequence.
//! 2. Claim accounts and reserve inputs ([`Change::Claim`], [`Change::Reserve`]). If some are taken, abort and plan
//!    again.
//! 3. Before closing an account, check that it is empty and that no other saga names it.
//! 4. Decide ([`Change::Decide`]), the point of no return. It checks every condition again.
//! 5. Consume the inputs, create the outputs, change the accounts, write the entries and the sequence.
//! 6. Delete the record.
//!
//! The steps travel in one list, because each has the steps before it as its condition. Only closing an account needs a
//! check in between. After a failure [`Engine::resolve`], here or in another process, drives the saga to one of its two
//! ends.

use std::sync::Arc;
use std::time::Duration;

use earmark_core::UnixMs;
use earmark_trace::step;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, timeout_at};

use crate::coin_selection::is_balanced;
use crate::id::{GateId, OwnerId, ReservationId};
use crate::local_locks::{AccountSlots, GateLocks, RecentHolds, RunningSagas, SlotTable, TakenPostings};
use crate::maintenance::{StuckSagas, SweepCursor};
use crate::model::{ClaimKind, LeaseKey, Phase, Plan, Record, SagaToken, SequenceClaim, StoredRecord};
use crate::store::{CHANGES_MAX, Change, Filter, FindRecord, RecordPage, Store, StoreError};
use crate::time::SharedTime;

/// First backoff after a lost race, in milliseconds.
const PAUSE_MS: u64 = 1;
/// Longest backoff, in milliseconds.
const PAUSE_MS_MAX: u64 = 100;
/// Attempts to drive a failed saga to its end before maintenance takes over.
const RESOLVE_MAX: usize = 20;
/// Checks for other sagas that name an account before closing it fails.
const CLOSE_LOOKS_MAX: u32 = 8;
/// Saga records read per check for sagas that name an account.
const NAMING_MAX: usize = 16;

/// Settings of credit on a store.
#[derive(Clone, Debug)]
pub struct Options {
    /// How long a request tries before it fails as overloaded.
    pub deadline: Duration,
    /// Timeout of one store call.
    pub call_timeout: Duration,
    /// Interval of heartbeats and maintenance.
    pub heartbeat: Duration,
    /// A process without a heartbeat for this long counts as dead, in milliseconds.
    pub owner_timeout_ms: u64,
    /// Clients in all vaults.
    pub clients_max: u64,
    /// Requests in progress.
    pub in_flight_max: usize,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            deadline: Duration::from_secs(10),
            call_timeout: Duration::from_secs(5),
            heartbeat: Duration::from_secs(1),
            owner_timeout_ms: 5_000,
            clients_max: 1 << 20,
            in_flight_max: 16_384,
        }
    }
}

/// Why a task has no answer.
#[derive(Clone, Debug)]
pub(crate) enum TaskError {
    /// A store call failed.
    Store(StoreError),
    /// Other sagas held the rows until the deadline. Nothing happened.
    Busy,
}

impl From<StoreError> for TaskError {
    fn from(error: StoreError) -> TaskError {
        TaskError::Store(error)
    }
}

/// A task's decision after reading the rows.
pub(crate) enum Proposal<A> {
    /// Nothing needs to be written.
    Answer(A),
    /// This plan is to be committed.
    Commit(Box<Draft>),
    /// This change is to be made. The answer holds if it changes a row.
    Change(Change, A),
    /// Calls of this process hold the postings it needs, and there are enough. Waiting does not count as an attempt.
    Busy(Arc<AccountSlots>),
    /// Another call or process holds the rows it needs.
    Wait(Option<Arc<AccountSlots>>),
}

/// A plan that was not started yet.
pub(crate) struct Draft {
    pub(crate) gate: GateId,
    pub(crate) rid: ReservationId,
    pub(crate) lease: Option<LeaseKey>,
    pub(crate) plan: Plan,
    /// The postings that other calls of this process must not select.
    pub(crate) taken: Vec<TakenPostings>,
    /// Its payer slots on the accounts it spends from.
    pub(crate) permits: Vec<OwnedSemaphorePermit>,
}

/// Work that must happen exactly once.
pub(crate) trait Task: Send + Sync {
    /// The answer to the caller.
    type Answer: Send;

    /// Calls of this process with the same key run one after the other.
    fn key(&self) -> GateId;

    /// Reads the rows and proposes a plan. The first attempt may skip the check for an earlier success.
    fn propose(
        &self,
        engine: &Engine,
        attempt: u32,
    ) -> impl Future<Output = Result<Proposal<Self::Answer>, TaskError>> + Send;

    /// The answer after the plan was committed.
    fn done(
        &self,
        engine: &Engine,
        gate: GateId,
        plan: &Plan,
    ) -> impl Future<Output = Result<Self::Answer, TaskError>> + Send;
}

/// How an attempt ended.
enum AttemptOutcome {
    /// The plan took effect.
    Committed(Arc<Plan>),
    /// Nothing happened, or another process committed it.
    Lost,
    /// The plan cannot commit now: another saga of its gate or client is in progress, or its rows have changed.
    Blocked(Option<SequenceClaim>),
}

/// Everything that tasks and sagas run on.
pub(crate) struct Engine {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) owner: OwnerId,
    pub(crate) time: SharedTime,
    pub(crate) options: Options,
    pub(crate) slot_table: SlotTable,
    gates: GateLocks,
    pub(crate) running: RunningSagas,
    pub(crate) recent_holds: RecentHolds,
    pub(crate) stuck: StuckSagas,
    pub(crate) swept: SweepCursor,
}

impl Engine {
    pub(crate) fn new(store: Arc<dyn Store>, time: SharedTime, options: Options) -> Engine {
        let owner = OwnerId(ulid::Ulid::generate().0);
        Engine {
            store,
            owner,
            time,
            options,
            slot_table: SlotTable::default(),
            gates: GateLocks::default(),
            running: RunningSagas::default(),
            recent_holds: RecentHolds::default(),
            stuck: StuckSagas::default(),
            swept: SweepCursor::default(),
        }
    }

    pub(crate) fn new_rid(&self) -> ReservationId {
        ReservationId(ulid::Ulid::generate().0)
    }

    /// Waits for a store call with a timeout. It has a span in the trace of its request.
    pub(crate) async fn call<T>(&self, call: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
        match step("database", tokio::time::timeout(self.options.call_timeout, call)).await {
            Ok(answer) => answer,
            Err(_) => {
                let seconds = self.options.call_timeout.as_secs();
                Err(StoreError::Unavailable(format!("no answer within {seconds} s")))
            }
        }
    }

    pub(crate) async fn write(&self, changes: Vec<Change>) -> Result<Vec<u64>, StoreError> {
        let asked = changes.len();
        let counts = self.call(self.store.write(changes)).await?;
        if counts.len() == asked {
            return Ok(counts);
        }
        Err(StoreError::Corrupt(format!("{asked} changes were answered by {} counts", counts.len())))
    }

    /// Executes a task exactly once and returns its answer.
    pub(crate) async fn execute<T: Task>(&self, task: &T) -> Result<T::Answer, TaskError> {
        let key = task.key();
        // The deadline includes the wait for a call with the same key.
        let deadline = Instant::now().checked_add(self.options.deadline).unwrap_or_else(Instant::now);
        let Ok(_entered) = timeout_at(deadline, self.gates.enter(key)).await else {
            return Err(TaskError::Busy);
        };
        self.attempts(task, deadline).await
    }

    async fn attempts<T: Task>(&self, task: &T, deadline: Instant) -> Result<T::Answer, TaskError> {
        let mut attempt = 1_u32;
        loop {
            match self.attempt(task, attempt, deadline).await {
                Ok(Some(answer)) => return Ok(answer),
                Ok(None) => {}
                Err(TaskError::Store(StoreError::Busy(_))) if Instant::now() < deadline => {
                    self.back_off(attempt).await;
                }
                Err(trouble) => return Err(trouble),
            }
            if Instant::now() >= deadline {
                return Err(TaskError::Busy);
            }
            attempt = attempt.saturating_add(1);
        }
    }

    /// Makes one attempt; `None` if another one is needed.
    async fn attempt<T: Task>(
        &self,
        task: &T,
        attempt: u32,
        deadline: Instant,
    ) -> Result<Option<T::Answer>, TaskError> {
        // The task may queue for a payer slot. It always gets the time of one store call, so that a short deadline
        // still allows one whole attempt.
        let whole = Instant::now().checked_add(self.options.call_timeout).unwrap_or(deadline);
        let mut rounds = 0;
        let draft = loop {
            let Ok(proposal) = timeout_at(deadline.max(whole), task.propose(self, attempt)).await else {
                return Err(TaskError::Busy);
            };
            match proposal? {
                Proposal::Answer(answer) => return Ok(Some(answer)),
                Proposal::Busy(slots) => {
                    slots.wait().await;
                    // The notice may come from this call's own postings.
                    if rounds > 0 {
                        self.back_off(1).await;
                    }
                    rounds += 1;
                }
                Proposal::Wait(Some(slots)) => {
                    slots.wait().await;
                    return Ok(None);
                }
                Proposal::Wait(None) => {
                    self.back_off(attempt).await;
                    return Ok(None);
                }
                Proposal::Change(change, answer) => {
                    if self.write(vec![change]).await?.iter().any(|count| *count > 0) {
                        return Ok(Some(answer));
                    }
                    self.back_off(attempt).await;
                    return Ok(None);
                }
                Proposal::Commit(draft) => break draft,
            }
            if Instant::now() >= deadline {
                return Err(TaskError::Busy);
            }
        };
        let gate = draft.gate;
        match self.commit(*draft).await? {
            AttemptOutcome::Committed(plan) => {
                self.apply_due_outputs(&plan).await;
                return task.done(self, gate, &plan).await.map(Some);
            }
            AttemptOutcome::Lost => {}
            AttemptOutcome::Blocked(sequence_claim) => drop(self.unblock(gate, sequence_claim).await?),
        }
        self.back_off(attempt).await;
        Ok(None)
    }

    /// Sleeps for a random, exponentially growing time.
    async fn back_off(&self, attempt: u32) {
        let longest_ms = PAUSE_MS.checked_shl(attempt.min(16)).unwrap_or(PAUSE_MS_MAX).min(PAUSE_MS_MAX);
        let random = ulid::Ulid::generate().0 as u64;
        let pause_us = longest_ms.saturating_mul(500).saturating_add(random % longest_ms.saturating_mul(500));
        tokio::time::sleep(Duration::from_micros(pause_us)).await;
    }

    /// Commits a plan, as a whole or by saga.
    async fn commit(&self, draft: Draft) -> Result<AttemptOutcome, TaskError> {
        let Draft { gate, rid, lease, plan, taken, permits } = draft;
        if !is_balanced(&plan) {
            return Err(StoreError::Corrupt(format!("the plan of {gate} does not balance: {plan:?}")).into());
        }
        let token = SagaToken { gate, rid, owner: self.owner };
        let record = Arc::new(Record { token, lease, begun_at: self.time.now(), plan: Arc::new(plan) });
        let running = self.running.begin(rid);
        let outcome = match record.plan.claims.is_empty() {
            true => self.commit_whole(record).await?,
            false => self.commit_by_saga(record).await?,
        };
        if matches!(outcome, AttemptOutcome::Committed(_)) {
            taken.iter().for_each(TakenPostings::spend);
        }
        // An idle account then forgets its consumed postings.
        drop((running, permits, taken));
        Ok(outcome)
    }

    async fn commit_whole(&self, record: Arc<Record>) -> Result<AttemptOutcome, TaskError> {
        let plan = Arc::clone(&record.plan);
        Ok(match self.call(self.store.commit(record)).await? {
            true => AttemptOutcome::Committed(plan),
            false => AttemptOutcome::Blocked(plan.sequence_claim.clone()),
        })
    }

    async fn commit_by_saga(&self, record: Arc<Record>) -> Result<AttemptOutcome, TaskError> {
        let (token, plan) = (record.token, Arc::clone(&record.plan));
        let mut steps = prepare_steps(record);
        if plan.claims.iter().any(|claim| claim.kind == ClaimKind::Closing)
            && let Some(outcome) = self.prepare(token, &plan, std::mem::take(&mut steps)).await?
        {
            return Ok(outcome);
        }
        let prepared = steps.len();
        steps.push(Change::Decide(token, Arc::clone(&plan)));
        steps.extend(finish_steps(token, &plan));
        match self.write(steps).await {
            Ok(counts) if counts.get(prepared) == Some(&1) => {
                // A process that took over since has finished the rest, or will.
                if counts.get(prepared.saturating_add(1)..) != Some(&finish_counts(&plan)[..]) {
                    self.resolve(token).await?;
                }
                Ok(AttemptOutcome::Committed(plan))
            }
            Ok(counts) if prepared > 0 && counts.first() != Some(&1) => {
                Ok(AttemptOutcome::Blocked(plan.sequence_claim.clone()))
            }
            Ok(_) => {
                self.abort(token).await?;
                Ok(AttemptOutcome::Lost)
            }
            // Nothing was done, so there is nothing to clean up.
            Err(error @ (StoreError::Busy(_) | StoreError::Unreachable(_) | StoreError::Refused(_)))
                if prepared > 0 =>
            {
                Err(error.into())
            }
            Err(error) => match self.resolve(token).await {
                Ok(true) => Ok(AttemptOutcome::Committed(plan)),
                // The first error says whether the plan may have taken effect. Maintenance cleans up.
                Ok(false) | Err(_) => Err(error.into()),
            },
        }
    }

    /// Runs steps 1 to 3 separately, for a plan that closes accounts: other processes must see the claims before this
    /// one checks that they are gone. Returns an outcome if the attempt ends here.
    async fn prepare(
        &self,
        token: SagaToken,
        plan: &Arc<Plan>,
        steps: Vec<Change>,
    ) -> Result<Option<AttemptOutcome>, TaskError> {
        let counts = match self.write(steps).await {
            Ok(counts) => counts,
            Err(error) => {
                // The saga was not decided. If aborting fails now, maintenance does it.
                let _ = self.abort(token).await;
                return Err(error.into());
            }
        };
        if counts.first() != Some(&1) {
            return Ok(Some(AttemptOutcome::Blocked(plan.sequence_claim.clone())));
        }
        let wanted = [plan.claims.len(), plan.inputs.len()].into_iter().filter(|size| *size > 0);
        let is_ours = counts.into_iter().skip(1).eq(wanted.map(|size| size as u64));
        if !is_ours || !self.can_close(token, plan).await? {
            self.abort(token).await?;
            return Ok(Some(AttemptOutcome::Lost));
        }
        Ok(None)
    }

    /// Whether the accounts to close hold nothing but the plan's own inputs, and no other saga names them. A saga that
    /// begins after the claim cannot decide.
    async fn can_close(&self, token: SagaToken, plan: &Plan) -> Result<bool, TaskError> {
        for claim in plan.claims.iter().filter(|claim| claim.kind == ClaimKind::Closing) {
            let mut looks = 0;
            while self.is_named(token, &claim.account).await? {
                looks += 1;
                if looks > CLOSE_LOOKS_MAX {
                    return Ok(false);
                }
                self.back_off(looks).await;
            }
            let funds = self.call(self.store.funds(claim.account.clone(), self.time.as_of())).await?;
            for fund in funds {
                let of_account = |posting: &&crate::model::Posting| {
                    posting.account == claim.account && posting.asset == fund.asset && posting.hold.is_none()
                };
                let ours = plan.inputs.iter().filter(of_account);
                let ours = ours.fold(0_i128, |sum, posting| sum.saturating_add(posting.amount));
                if (fund.active, fund.expired, fund.pending, fund.held, fund.due) != (0, 0, ours, 0, 0) {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Whether another saga names an account. An abandoned one is driven to its end.
    async fn is_named(&self, token: SagaToken, account: &crate::model::AccountKey) -> Result<bool, TaskError> {
        let page = RecordPage::first(NAMING_MAX);
        let naming = self.call(self.store.records(Filter::Touching(account.clone()), page)).await?;
        // An unreadable saga may do anything to the account.
        if let Some(unread) = naming.unread.first() {
            return Err(unread.why.clone().into());
        }
        let others = naming.found.iter().filter(|stored| stored.record.token.rid != token.rid);
        let mut is_named = false;
        for other in others {
            is_named = true;
            self.recover_saga(other).await?;
        }
        Ok(is_named)
    }

    /// Aborts an attempt that was not decided.
    async fn abort(&self, token: SagaToken) -> Result<(), StoreError> {
        let counts = self.write(abort_steps(token)).await?;
        if counts.first() == Some(&1) {
            return Ok(());
        }
        self.resolve(token).await.map(drop)
    }

    /// Drives a saga of this process to its end; returns whether it committed.
    async fn resolve(&self, token: SagaToken) -> Result<bool, StoreError> {
        let mut happened = false;
        for look in 1..=RESOLVE_MAX {
            let found = self.call(self.store.record(FindRecord::Gate(token.gate))).await?;
            match found.filter(|stored| stored.record.token.rid == token.rid) {
                Some(stored) if stored.record.token.owner == self.owner => {
                    happened = stored.phase == Phase::Finalizing;
                    self.drive(&stored).await?;
                }
                Some(_) => self.back_off(u32::try_from(look).unwrap_or(u32::MAX)).await,
                None => {
                    // Without a record, nothing will use what is still reserved.
                    self.write(vec![Change::Release(token.rid), Change::Unclaim(token.rid)]).await?;
                    return Ok(happened);
                }
            }
        }
        Err(StoreError::Busy("another process drives the saga"))
    }

    /// Makes the steps that the phase of a record allows. This process owns the record.
    pub(crate) async fn drive(&self, stored: &StoredRecord) -> Result<(), StoreError> {
        let token = stored.record.token;
        let steps = match stored.phase {
            Phase::Reserving => abort_steps(token),
            Phase::Releasing => {
                vec![Change::Release(token.rid), Change::Unclaim(token.rid), Change::End(token)]
            }
            Phase::Finalizing => finish_steps(token, &stored.record.plan),
        };
        self.write(steps).await.map(drop)
    }

    /// Whether another saga of the same gate or client is in progress. Recovers it if it is abandoned.
    pub(crate) async fn unblock(
        &self,
        gate: GateId,
        sequence_claim: Option<SequenceClaim>,
    ) -> Result<bool, StoreError> {
        let mut found = self.call(self.store.record(FindRecord::Gate(gate))).await?;
        if let (None, Some(sequence_claim)) = (&found, sequence_claim) {
            found = self.call(self.store.record(FindRecord::Client(sequence_claim.client))).await?;
        }
        match found {
            Some(stored) => self.recover_saga(&stored).await.map(|()| true),
            None => Ok(false),
        }
    }

    /// Drives an abandoned saga to its end: one of this process, or of a dead process.
    pub(crate) async fn recover_saga(&self, stored: &StoredRecord) -> Result<(), StoreError> {
        let token = stored.record.token;
        if self.running.has(token.rid) {
            return Ok(());
        }
        if token.owner == self.owner {
            return self.drive(stored).await;
        }
        let take = Change::TakeOver { token, to: self.owner, expired_since: self.expired_since() };
        if self.write(vec![take]).await? != [1] {
            return Ok(());
        }
        tracing::info!(gate = %token.gate, owner = %token.owner, "took over a saga of a dead process");
        // The phase may have changed before the takeover.
        let found = self.call(self.store.record(FindRecord::Gate(token.gate))).await?;
        let ours = SagaToken { owner: self.owner, ..token };
        match found.filter(|found| found.record.token == ours) {
            Some(found) => self.drive(&found).await,
            None => Ok(()),
        }
    }

    /// Owners without a heartbeat since this time count as dead.
    pub(crate) fn expired_since(&self) -> UnixMs {
        UnixMs::new(self.time.now().get().saturating_sub(self.options.owner_timeout_ms))
    }
}

pub(crate) fn abort_steps(token: SagaToken) -> Vec<Change> {
    let SagaToken { rid, .. } = token;
    vec![Change::Abort(token), Change::Release(rid), Change::Unclaim(rid), Change::End(token)]
}

/// Steps 1 and 2, without those that would change nothing.
pub(crate) fn prepare_steps(record: Arc<Record>) -> Vec<Change> {
    let (token, plan) = (record.token, Arc::clone(&record.plan));
    let mut steps = Vec::with_capacity(CHANGES_MAX);
    steps.push(Change::Begin(record));
    if !plan.claims.is_empty() {
        steps.push(Change::Claim(token, Arc::clone(&plan)));
    }
    if !plan.inputs.is_empty() {
        steps.push(Change::Reserve(token, plan));
    }
    steps
}

/// Steps 5 and 6, without those that would change nothing.
pub(crate) fn finish_steps(token: SagaToken, plan: &Arc<Plan>) -> Vec<Change> {
    let mut steps = Vec::with_capacity(5);
    let plan_of = || Arc::clone(plan);
    if !plan.inputs.is_empty() {
        steps.push(Change::Finalize(token, plan_of()));
    }
    if !plan.outputs.is_empty() {
        steps.push(Change::Create(token, plan_of()));
    }
    if !plan.claims.is_empty() {
        steps.push(Change::Apply(token, plan_of()));
    }
    steps.extend([Change::Record(token, plan_of()), Change::End(token)]);
    steps
}

/// The rows that each of these steps changes unless another process made it.
fn finish_counts(plan: &Plan) -> Vec<u64> {
    let rows = [plan.inputs.len(), plan.outputs.len(), plan.claims.len()];
    let steps = rows.into_iter().filter(|size| *size > 0).chain([plan.entries.len(), 1]);
    steps.map(|size| size as u64).collect()
}
