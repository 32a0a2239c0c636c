//! The commit saga: how an entry happens once, or not at all, out of single conditional changes.
//!
//! 1. Insert the record, which is the gate ([`Change::Begin`]). It has the plan and a new reservation id, and for a
//!    sequenced write the claim on its number.
//! 2. Claim accounts and reserve inputs ([`Change::Claim`], [`Change::Reserve`]). All: go on. Some: give up, and plan
//!    again under another id. That the entry exists already is found out with the decision, and ends the same way.
//! 3. Validate: sums before anything is written, an account that closes after it was claimed; the standing of the
//!    others with the decision.
//! 4. Decide ([`Change::Decide`]): the point of no return.
//! 5. Finalize the inputs, create the outputs, change the accounts, write the entries with their sequence.
//! 6. Delete the record.
//!
//! All steps travel in one list, for each has what must have come before it as its condition; only where an account closes
//! there is a look in between. What an error leaves behind is driven to one of its two ends by [`Engine::resolve`], here
//! or by whoever finds the record.

use std::sync::Arc;
use std::time::Duration;

use earmark_core::UnixMs;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, timeout_at};

use crate::gather::is_balanced;
use crate::id::{GateId, OwnerId, ReservationId};
use crate::lanes::{Gates, Lane, Lanes, RecentHolds, Running, Taken};
use crate::ledger::ClientRoom;
use crate::model::{ClaimKind, LeaseKey, Phase, Plan, Record, StoredRecord, Ticket, Turn};
use crate::store::{CHANGES_MAX, Change, Filter, FindRecord, RecordPage, Store, StoreError};
use crate::tend::{StuckSagas, SweptTo};
use crate::time::SharedTime;

/// The first pause after a lost race.
const PAUSE_MS: u64 = 1;
/// The longest.
const PAUSE_MS_MAX: u64 = 100;
/// So often a saga that failed halfway is looked at before that is left to the tender.
const RESOLVE_MAX: usize = 20;
/// So often a saga that closes an account looks whether others still name it.
const CLOSE_LOOKS_MAX: u32 = 8;
/// So many records that name an account are looked at.
const NAMING_MAX: usize = 16;

/// How credit on a store behaves.
#[derive(Clone, Debug)]
pub struct Options {
    /// So long a request tries, before it is answered that the store or others are in the way.
    pub deadline: Duration,
    /// So long one call of the store may take.
    pub call_timeout: Duration,
    /// So often a process says that it lives, and looks after what others left.
    pub beat: Duration,
    /// A process that was not heard of for so long is taken for dead, in milliseconds.
    pub silent_ms: u64,
    /// The most clients of all vaults.
    pub clients_max: u64,
    /// The most requests under way.
    pub in_flight_max: usize,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            deadline: Duration::from_secs(10),
            call_timeout: Duration::from_secs(5),
            beat: Duration::from_secs(1),
            silent_ms: 5_000,
            clients_max: 1 << 20,
            in_flight_max: 16_384,
        }
    }
}

/// Why there is no answer.
#[derive(Clone, Debug)]
pub(crate) enum Trouble {
    /// The store failed.
    Store(StoreError),
    /// Others were in the way until the deadline. Nothing happened.
    Busy,
}

impl From<StoreError> for Trouble {
    fn from(error: StoreError) -> Trouble {
        Trouble::Store(error)
    }
}

/// What a task wants, after a look at the rows.
pub(crate) enum Proposal<A> {
    /// There is nothing to do.
    Answer(A),
    /// This is to happen.
    Commit(Box<Draft>),
    /// Calls of this process are at work on what it needs, of which there is enough. It is the same attempt afterwards.
    Busy(Arc<Lane>),
    /// Somebody is at work on what it needs: another call of this process, or another process.
    Wait(Option<Arc<Lane>>),
}

/// A plan, before it is begun.
pub(crate) struct Draft {
    pub(crate) gate: GateId,
    pub(crate) rid: ReservationId,
    pub(crate) lease: Option<LeaseKey>,
    pub(crate) plan: Plan,
    /// What it keeps other calls of this process from choosing.
    pub(crate) taken: Vec<Taken>,
    /// Its place among those who pay from the same accounts.
    pub(crate) permits: Vec<OwnedSemaphorePermit>,
}

/// Something that is to happen once.
pub(crate) trait Task: Send + Sync {
    /// What its caller is told.
    type Answer: Send;

    /// Calls of this process about the same thing come one after the other.
    fn key(&self) -> GateId;

    /// Looks at the rows and says what to do. The first attempt may hope that nothing has happened yet.
    fn propose(
        &self,
        engine: &Engine,
        attempt: u32,
    ) -> impl Future<Output = Result<Proposal<Self::Answer>, Trouble>> + Send;

    /// The answer, once the plan was carried out.
    fn done(
        &self,
        engine: &Engine,
        gate: GateId,
        plan: &Plan,
    ) -> impl Future<Output = Result<Self::Answer, Trouble>> + Send;
}

/// How an attempt ended.
enum Ending {
    /// All of it happened.
    Committed(Arc<Plan>),
    /// Nothing happened, or somebody else made it happen.
    Lost,
    /// Another saga is in the way: of the same gate, or of the same client.
    Blocked(Option<Turn>),
}

/// What sagas run on.
pub(crate) struct Engine {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) owner: OwnerId,
    pub(crate) time: SharedTime,
    pub(crate) options: Options,
    pub(crate) lanes: Lanes,
    gates: Gates,
    pub(crate) running: Running,
    pub(crate) recent_holds: RecentHolds,
    pub(crate) client_room: ClientRoom,
    pub(crate) stuck: StuckSagas,
    pub(crate) swept: SweptTo,
}

impl Engine {
    pub(crate) fn new(store: Arc<dyn Store>, time: SharedTime, options: Options) -> Engine {
        let owner = OwnerId(ulid::Ulid::generate().0);
        Engine {
            store,
            owner,
            time,
            options,
            lanes: Lanes::default(),
            gates: Gates::default(),
            running: Running::default(),
            recent_holds: RecentHolds::default(),
            client_room: ClientRoom::default(),
            stuck: StuckSagas::default(),
            swept: SweptTo::default(),
        }
    }

    pub(crate) fn new_rid(&self) -> ReservationId {
        ReservationId(ulid::Ulid::generate().0)
    }

    /// Waits for a call of the store, and not for ever.
    pub(crate) async fn call<T>(
        &self,
        call: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        match tokio::time::timeout(self.options.call_timeout, call).await {
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

    /// Makes something happen once, and tells what became of it.
    pub(crate) async fn carry_out<T: Task>(&self, task: &T) -> Result<T::Answer, Trouble> {
        let key = task.key();
        // Whoever waits for a call about the same has begun to wait.
        let deadline = Instant::now().checked_add(self.options.deadline).unwrap_or_else(Instant::now);
        let Ok(_entered) = timeout_at(deadline, self.gates.enter(key)).await else {
            return Err(Trouble::Busy);
        };
        self.attempts(task, deadline).await
    }

    async fn attempts<T: Task>(&self, task: &T, deadline: Instant) -> Result<T::Answer, Trouble> {
        let mut attempt = 1_u32;
        loop {
            match self.attempt(task, attempt, deadline).await {
                Ok(Some(answer)) => return Ok(answer),
                Ok(None) => {}
                Err(Trouble::Store(StoreError::Busy(_))) if Instant::now() < deadline => {
                    self.back_off(attempt).await;
                }
                Err(trouble) => return Err(trouble),
            }
            if Instant::now() >= deadline {
                return Err(Trouble::Busy);
            }
            attempt = attempt.saturating_add(1);
        }
    }

    /// One attempt; no answer if another one is needed.
    async fn attempt<T: Task>(
        &self,
        task: &T,
        attempt: u32,
        deadline: Instant,
    ) -> Result<Option<T::Answer>, Trouble> {
        // It may queue behind others who pay from the same account. Nothing of its own is under way yet. The time of one call
        // it has in any case, so that whoever is in a hurry gets one whole attempt.
        let whole = Instant::now().checked_add(self.options.call_timeout).unwrap_or(deadline);
        let mut rounds = 0;
        let draft = loop {
            let Ok(proposal) = timeout_at(deadline.max(whole), task.propose(self, attempt)).await else {
                return Err(Trouble::Busy);
            };
            match proposal? {
                Proposal::Answer(answer) => return Ok(Some(answer)),
                Proposal::Busy(lane) => {
                    lane.wait().await;
                    // What it let go of itself is no news.
                    if rounds > 0 {
                        self.back_off(1).await;
                    }
                    rounds += 1;
                }
                Proposal::Wait(Some(lane)) => {
                    lane.wait().await;
                    return Ok(None);
                }
                Proposal::Wait(None) => {
                    self.back_off(attempt).await;
                    return Ok(None);
                }
                Proposal::Commit(draft) => break draft,
            }
            if Instant::now() >= deadline {
                return Err(Trouble::Busy);
            }
        };
        let gate = draft.gate;
        match self.commit(*draft).await? {
            Ending::Committed(plan) => return task.done(self, gate, &plan).await.map(Some),
            Ending::Lost => {}
            Ending::Blocked(turn) => drop(self.unblock(gate, turn).await?),
        }
        self.back_off(attempt).await;
        Ok(None)
    }

    /// A pause that grows, and that no two processes take alike.
    async fn back_off(&self, attempt: u32) {
        let longest_ms = PAUSE_MS.checked_shl(attempt.min(16)).unwrap_or(PAUSE_MS_MAX).min(PAUSE_MS_MAX);
        let random = ulid::Ulid::generate().0 as u64;
        let pause_us = longest_ms.saturating_mul(500).saturating_add(random % longest_ms.saturating_mul(500));
        tokio::time::sleep(Duration::from_micros(pause_us)).await;
    }

    /// Steps 1 to 6.
    async fn commit(&self, draft: Draft) -> Result<Ending, Trouble> {
        let Draft { gate, rid, lease, plan, taken, permits } = draft;
        if !is_balanced(&plan) {
            return Err(StoreError::Corrupt(format!("the plan of {gate} does not add up: {plan:?}")).into());
        }
        let (ticket, plan) = (Ticket { gate, rid, owner: self.owner }, Arc::new(plan));
        let record = Record { ticket, lease, begun_at: self.time.now(), plan: Arc::clone(&plan) };
        let running = self.running.begin(rid);
        let mut steps = preparing(record);
        if plan.claims.iter().any(|claim| claim.kind == ClaimKind::Closing)
            && let Some(ending) = self.prepare(ticket, &plan, std::mem::take(&mut steps)).await?
        {
            return Ok(ending);
        }
        let prepared = steps.len();
        steps.push(Change::Decide(ticket, Arc::clone(&plan)));
        steps.extend(finishing(ticket, &plan));
        let ending = match self.write(steps).await {
            Ok(counts) if counts.get(prepared) == Some(&1) => {
                // Whoever took over since has done the rest, or will find it done.
                if counts.get(prepared.saturating_add(1)..) != Some(&finishing_counts(&plan)[..]) {
                    self.resolve(ticket).await?;
                }
                Ending::Committed(plan)
            }
            Ok(counts) if prepared > 0 && counts.first() != Some(&1) => Ending::Blocked(plan.turn.clone()),
            Ok(_) => {
                self.give_up(ticket).await?;
                Ending::Lost
            }
            // Nothing was done, and nothing is there to be looked after.
            Err(error @ (StoreError::Busy(_) | StoreError::Unreachable(_) | StoreError::Refused(_)))
                if prepared > 0 =>
            {
                return Err(error.into());
            }
            Err(error) => match self.resolve(ticket).await {
                Ok(true) => Ending::Committed(plan),
                // What went wrong first says whether it may have happened; what was left is found by the tender.
                Ok(false) | Err(_) => return Err(error.into()),
            },
        };
        if matches!(ending, Ending::Committed(_)) {
            taken.iter().for_each(Taken::spend);
        }
        // An account that nobody else works on then forgets what was consumed.
        drop((running, permits, taken));
        Ok(ending)
    }

    /// Steps 1 to 3 by themselves, for a plan that closes accounts: others must see its record and its claims before it
    /// looks whether they are gone. An ending if it ends here.
    async fn prepare(
        &self,
        ticket: Ticket,
        plan: &Arc<Plan>,
        steps: Vec<Change>,
    ) -> Result<Option<Ending>, Trouble> {
        let counts = match self.write(steps).await {
            Ok(counts) => counts,
            Err(error) => {
                // Nobody knows how far it came, except that it was not decided. What cannot be given up now is
                // given up by the tender.
                let _ = self.give_up(ticket).await;
                return Err(error.into());
            }
        };
        if counts.first() != Some(&1) {
            return Ok(Some(Ending::Blocked(plan.turn.clone())));
        }
        let wanted = [plan.claims.len(), plan.inputs.len()].into_iter().filter(|size| *size > 0);
        let is_ours = counts.into_iter().skip(1).eq(wanted.map(|size| size as u64));
        if !is_ours || !self.can_close(ticket, plan).await? {
            self.give_up(ticket).await?;
            return Ok(Some(Ending::Lost));
        }
        Ok(None)
    }

    /// Whether the accounts that a plan closes, and has claimed, are empty but for what the plan itself takes, and
    /// no other saga names them any more. Whoever begins after the claim cannot decide.
    async fn can_close(&self, ticket: Ticket, plan: &Plan) -> Result<bool, Trouble> {
        for claim in plan.claims.iter().filter(|claim| claim.kind == ClaimKind::Closing) {
            let mut looks = 0;
            while self.is_named(ticket, &claim.account).await? {
                looks += 1;
                if looks > CLOSE_LOOKS_MAX {
                    return Ok(false);
                }
                self.back_off(looks).await;
            }
            let funds = self.call(self.store.funds(claim.account.clone(), self.time.now())).await?;
            for fund in funds {
                let of_account = |posting: &&crate::model::Posting| {
                    posting.account == claim.account && posting.asset == fund.asset && posting.hold.is_none()
                };
                let ours = plan.inputs.iter().filter(of_account);
                let ours = ours.fold(0_i128, |sum, posting| sum.saturating_add(posting.amount));
                if (fund.active, fund.pending, fund.held, fund.due) != (0, ours, 0, 0) {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Whether another saga names an account. One that nobody drives is driven to its end.
    async fn is_named(&self, ticket: Ticket, account: &crate::model::AccountKey) -> Result<bool, Trouble> {
        let page = RecordPage::first(NAMING_MAX);
        let naming = self.call(self.store.records(Filter::Naming(account.clone()), page)).await?;
        // What it would do to the account nobody knows.
        if let Some(unread) = naming.unread.first() {
            return Err(unread.why.clone().into());
        }
        let others = naming.found.iter().filter(|stored| stored.record.ticket.rid != ticket.rid);
        let mut is_named = false;
        for other in others {
            is_named = true;
            self.look_after(other).await?;
        }
        Ok(is_named)
    }

    /// Gives up an attempt that was not decided.
    async fn give_up(&self, ticket: Ticket) -> Result<(), StoreError> {
        let counts = self.write(giving_up(ticket)).await?;
        if counts.first() == Some(&1) {
            return Ok(());
        }
        self.resolve(ticket).await.map(drop)
    }

    /// Drives an attempt of this process to its end; says whether it happened.
    async fn resolve(&self, ticket: Ticket) -> Result<bool, StoreError> {
        let mut happened = false;
        for look in 1..=RESOLVE_MAX {
            let found = self.call(self.store.record(FindRecord::Gate(ticket.gate))).await?;
            match found.filter(|stored| stored.record.ticket.rid == ticket.rid) {
                Some(stored) if stored.record.ticket.owner == self.owner => {
                    happened = stored.phase == Phase::Finalizing;
                    self.drive(&stored).await?;
                }
                Some(_) => self.back_off(u32::try_from(look).unwrap_or(u32::MAX)).await,
                None => {
                    // The record is gone. Without one, nothing that is still reserved will be used.
                    self.write(vec![Change::Release(ticket.rid), Change::Unclaim(ticket.rid)]).await?;
                    return Ok(happened);
                }
            }
        }
        Err(StoreError::Busy("a saga is driven by others"))
    }

    /// Does what the phase of a record says. The record is this process's own.
    pub(crate) async fn drive(&self, stored: &StoredRecord) -> Result<(), StoreError> {
        let ticket = stored.record.ticket;
        let steps = match stored.phase {
            Phase::Reserving => giving_up(ticket),
            Phase::Releasing => {
                vec![Change::Release(ticket.rid), Change::Unclaim(ticket.rid), Change::End(ticket)]
            }
            Phase::Finalizing => finishing(ticket, &stored.record.plan),
        };
        self.write(steps).await.map(drop)
    }

    /// Whether another saga is in the way, of the same gate or of the same client. Looks after it, if nobody else does.
    pub(crate) async fn unblock(&self, gate: GateId, turn: Option<Turn>) -> Result<bool, StoreError> {
        let mut found = self.call(self.store.record(FindRecord::Gate(gate))).await?;
        if let (None, Some(turn)) = (&found, turn) {
            found = self.call(self.store.record(FindRecord::Client(turn.client))).await?;
        }
        match found {
            Some(stored) => self.look_after(&stored).await.map(|()| true),
            None => Ok(false),
        }
    }

    /// Drives a record that no one drives: of this process, or of one that went silent.
    pub(crate) async fn look_after(&self, stored: &StoredRecord) -> Result<(), StoreError> {
        let ticket = stored.record.ticket;
        if self.running.has(ticket.rid) {
            return Ok(());
        }
        if ticket.owner == self.owner {
            return self.drive(stored).await;
        }
        let take = Change::TakeOver { ticket, to: self.owner, silent_since: self.silent_since() };
        if self.write(vec![take]).await? != [1] {
            return Ok(());
        }
        tracing::info!(gate = %ticket.gate, owner = %ticket.owner, "took over a saga of a silent process");
        // Its phase may have changed before it was ours.
        let found = self.call(self.store.record(FindRecord::Gate(ticket.gate))).await?;
        let ours = Ticket { owner: self.owner, ..ticket };
        match found.filter(|found| found.record.ticket == ours) {
            Some(found) => self.drive(&found).await,
            None => Ok(()),
        }
    }

    /// Who was not heard of since then is taken for dead.
    pub(crate) fn silent_since(&self) -> UnixMs {
        UnixMs::new(self.time.now().get().saturating_sub(self.options.silent_ms))
    }
}

fn giving_up(ticket: Ticket) -> Vec<Change> {
    let Ticket { rid, .. } = ticket;
    vec![Change::Abort(ticket), Change::Release(rid), Change::Unclaim(rid), Change::End(ticket)]
}

/// Steps 1 and 2. Those that would change nothing are left out.
fn preparing(record: Record) -> Vec<Change> {
    let (ticket, plan) = (record.ticket, Arc::clone(&record.plan));
    let mut steps = Vec::with_capacity(CHANGES_MAX);
    steps.push(Change::Begin(Arc::new(record)));
    if !plan.claims.is_empty() {
        steps.push(Change::Claim(ticket, Arc::clone(&plan)));
    }
    if !plan.inputs.is_empty() {
        steps.push(Change::Reserve(ticket, plan));
    }
    steps
}

/// Steps 5 and 6. Those that would change nothing are left out.
fn finishing(ticket: Ticket, plan: &Arc<Plan>) -> Vec<Change> {
    let mut steps = Vec::with_capacity(5);
    let plan_of = || Arc::clone(plan);
    if !plan.inputs.is_empty() {
        steps.push(Change::Finalize(ticket, plan_of()));
    }
    if !plan.outputs.is_empty() {
        steps.push(Change::Create(ticket, plan_of()));
    }
    if !plan.claims.is_empty() {
        steps.push(Change::Apply(ticket, plan_of()));
    }
    steps.extend([Change::Record(ticket, plan_of()), Change::End(ticket)]);
    steps
}

/// How many rows each of these steps changes, if nobody else has taken it.
fn finishing_counts(plan: &Plan) -> Vec<u64> {
    let rows = [plan.inputs.len(), plan.outputs.len(), plan.claims.len()];
    let steps = rows.into_iter().filter(|size| *size > 0).chain([plan.entries.len(), 1]);
    steps.map(|size| size as u64).collect()
}
