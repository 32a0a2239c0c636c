//! Locks between the calls of this process, so that they wait for each other instead of racing.
//!
//! They only avoid attempts that would fail. Safety comes from the rows.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, OwnedMutexGuard, OwnedSemaphorePermit, Semaphore};

use crate::id::{GateId, PostingId, ReservationId};
use crate::model::{AccountKey, LeaseKey};
use crate::task::Part;

/// Concurrent payments from one account. More than that queue in order.
const PAYERS_MAX: usize = 16;
/// Recently consumed postings remembered per account, because an older survey may still show them.
const SPENT_MAX: usize = 512;
/// How long a call waits for a free posting before it reads again; another process may have freed one.
const WAIT: Duration = Duration::from_millis(20);
/// Accounts remembered before idle ones are dropped.
const ACCOUNTS_MAX: usize = 10_000;
/// Fewest small postings merged at a time.
const MERGE_MIN: usize = 32;
/// Most small postings merged at a time.
const MERGE_MAX: usize = 4_096;

/// The slots of all accounts.
#[derive(Default)]
pub(crate) struct SlotTable {
    known: Mutex<KnownAccounts>,
}

/// The accounts that calls of this process use.
#[derive(Default)]
struct KnownAccounts {
    slot_table: HashMap<AccountKey, Arc<AccountSlots>>,
    /// Accounts that were in use at the last cleanup.
    in_use: usize,
}

/// The state that this process keeps of one account.
pub(crate) struct AccountSlots {
    payers: Arc<Semaphore>,
    /// One call at a time merges small postings; several would select the same ones.
    merger: Arc<Semaphore>,
    state: Mutex<AccountSlotsState>,
    freed: Notify,
}

/// Postings that calls of this process have reserved or consumed.
#[derive(Default)]
struct AccountSlotsState {
    busy: HashSet<PostingId>,
    spent: HashSet<PostingId>,
    spent_order: VecDeque<PostingId>,
    /// Deposits until the next merge. The first deposit merges, because other processes may have left small postings.
    until_merge: u64,
    /// Postings beyond the number that deposits are split into, as last counted.
    small: usize,
}

impl SlotTable {
    /// The slots of an account.
    pub(crate) fn of(&self, account: &AccountKey) -> Arc<AccountSlots> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let KnownAccounts { slot_table, in_use } = &mut *known;
        // With many accounts in use, the cleanup waits until the table has doubled.
        if slot_table.len() >= ACCOUNTS_MAX.max(in_use.saturating_mul(2)) {
            slot_table.retain(|_, slots| Arc::strong_count(slots) > 1);
            *in_use = slot_table.len();
        }
        if let Some(slots) = slot_table.get(account) {
            return Arc::clone(slots);
        }
        let slots = AccountSlots {
            payers: Arc::new(Semaphore::new(PAYERS_MAX)),
            merger: Arc::new(Semaphore::new(1)),
            state: Mutex::default(),
            freed: Notify::new(),
        };
        Arc::clone(slot_table.entry(account.clone()).or_insert(Arc::new(slots)))
    }
}

impl AccountSlots {
    fn state(&self) -> std::sync::MutexGuard<'_, AccountSlotsState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether no call of this process pays from or merges this account.
    fn is_idle(&self) -> bool {
        self.payers.available_permits() == PAYERS_MAX && self.merger.available_permits() == 1
    }

    /// Waits for a payer slot.
    pub(crate) async fn pay(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.payers).acquire_owned().await.ok()
    }

    /// Whether a call of this process uses or has consumed a posting.
    pub(crate) fn is_taken(&self, id: PostingId) -> bool {
        let state = self.state();
        state.busy.contains(&id) || state.spent.contains(&id)
    }

    /// Takes postings for a call of this process, all or none.
    pub(crate) fn take(self: &Arc<Self>, ids: Vec<PostingId>) -> Option<TakenPostings> {
        let mut state = self.state();
        if ids.iter().any(|id| state.busy.contains(id) || state.spent.contains(id)) {
            return None;
        }
        state.busy.extend(&ids);
        Some(TakenPostings { slots: Arc::clone(self), ids })
    }

    /// Counts a deposit. If a merge is due, returns its permit and the number of postings to merge.
    pub(crate) fn merge_permit(&self, every: u64) -> Option<(OwnedSemaphorePermit, usize)> {
        let mut state = self.state();
        if state.until_merge > 0 {
            state.until_merge -= 1;
            return None;
        }
        let permit = Arc::clone(&self.merger).try_acquire_owned().ok()?;
        state.until_merge = every.saturating_sub(1);
        Some((permit, state.small.clamp(MERGE_MIN, MERGE_MAX)))
    }

    /// Records how many small postings were found. The next merge takes as many, because that many arrive during a
    /// commit.
    pub(crate) fn found_small(&self, small: usize) {
        self.state().small = small;
    }

    /// Waits until a call of this process frees postings, at most for [`WAIT`].
    pub(crate) async fn wait(&self) {
        // A timeout and a notice mean the same: read again.
        let _ = tokio::time::timeout(WAIT, self.freed.notified()).await;
    }
}

/// Postings that a call of this process uses.
pub(crate) struct TakenPostings {
    slots: Arc<AccountSlots>,
    ids: Vec<PostingId>,
}

impl TakenPostings {
    /// Marks them as consumed.
    pub(crate) fn spend(&self) {
        let mut state = self.slots.state();
        for id in &self.ids {
            if state.spent.insert(*id) {
                state.spent_order.push_back(*id);
            }
        }
        while state.spent_order.len() > SPENT_MAX {
            if let Some(oldest) = state.spent_order.pop_front() {
                state.spent.remove(&oldest);
            }
        }
    }
}

impl Drop for TakenPostings {
    fn drop(&mut self) {
        let mut state = self.slots.state();
        for id in &self.ids {
            state.busy.remove(id);
        }
        // No call is left whose survey could still show the consumed postings.
        if self.slots.is_idle() {
            (state.spent, state.spent_order) = Default::default();
        }
        drop(state);
        self.slots.freed.notify_one();
    }
}

/// Locks by gate: one call of this process at a time works on a gate.
#[derive(Default)]
pub(crate) struct GateLocks {
    gates: Mutex<HashMap<GateId, Arc<tokio::sync::Mutex<()>>>>,
}

impl GateLocks {
    /// Waits until no other call of this process works on the gate.
    pub(crate) async fn enter(&self, gate: GateId) -> GateGuard<'_> {
        let lock = Arc::clone(self.known().entry(gate).or_default());
        // The guard exists before the wait, so that a cancelled wait cleans up.
        let mut entered = GateGuard { gates: self, gate, lock: Arc::clone(&lock), guard: None };
        entered.guard = Some(lock.lock_owned().await);
        entered
    }

    fn known(&self) -> std::sync::MutexGuard<'_, HashMap<GateId, Arc<tokio::sync::Mutex<()>>>> {
        self.gates.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A gate that a call holds or waits for. The last guard removes the gate from the table, also when its call was
/// cancelled.
pub(crate) struct GateGuard<'a> {
    gates: &'a GateLocks,
    gate: GateId,
    lock: Arc<tokio::sync::Mutex<()>>,
    guard: Option<OwnedMutexGuard<()>>,
}

impl Drop for GateGuard<'_> {
    fn drop(&mut self) {
        let mut known = self.gates.known();
        self.guard = None;
        // One reference is in the table, one is here.
        if Arc::strong_count(&self.lock) <= 2 {
            known.remove(&self.gate);
        }
    }
}

/// Leases remembered with their holds.
const HOLDS_MAX: usize = 65_536;

/// The holds that this process made lately. Settling one of them needs no read: the commit detects any change since.
#[derive(Default)]
pub(crate) struct RecentHolds {
    state: Mutex<RecentState>,
}

/// The recent holds, by lease.
#[derive(Default)]
struct RecentState {
    holds: HashMap<LeaseKey, Vec<Part>>,
    /// Oldest first, including leases that were removed.
    order: VecDeque<LeaseKey>,
}

impl RecentHolds {
    pub(crate) fn remember(&self, lease: LeaseKey, parts: Vec<Part>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let RecentState { holds, order } = &mut *state;
        if holds.insert(lease.clone(), parts).is_none() {
            order.push_back(lease);
        }
        while order.len() > HOLDS_MAX {
            if let Some(oldest) = order.pop_front() {
                holds.remove(&oldest);
            }
        }
    }

    /// Removes and returns the holds of a lease.
    pub(crate) fn take(&self, lease: &LeaseKey) -> Option<Vec<Part>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).holds.remove(lease)
    }
}

/// The attempts that calls of this process drive. Any other record of this process is abandoned, and may be recovered.
#[derive(Default)]
pub(crate) struct RunningSagas {
    rids: Mutex<HashSet<ReservationId>>,
}

impl RunningSagas {
    fn rids(&self) -> std::sync::MutexGuard<'_, HashSet<ReservationId>> {
        self.rids.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn begin(&self, rid: ReservationId) -> RunningGuard<'_> {
        self.rids().insert(rid);
        RunningGuard { running: self, rid }
    }

    pub(crate) fn has(&self, rid: ReservationId) -> bool {
        self.rids().contains(&rid)
    }
}

/// Marks a saga of this process as running, until it is dropped.
pub(crate) struct RunningGuard<'a> {
    running: &'a RunningSagas,
    rid: ReservationId,
}

impl Drop for RunningGuard<'_> {
    fn drop(&mut self) {
        self.running.rids().remove(&self.rid);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use super::*;
    use crate::model::VaultKey;

    fn account(name: &str) -> AccountKey {
        let home = VaultKey { namespace: "default".parse().unwrap(), vault: "main".parse().unwrap() };
        AccountKey { home, account: name.parse().unwrap() }
    }

    /// A call that timed out while it released holds left their gates in the table for good. So did a call that
    /// received a gate at the moment it gave up.
    #[tokio::test]
    async fn a_gate_is_forgotten_with_the_last_call_about_it() {
        let (gates, gate) = (GateLocks::default(), GateId(7));
        let first = gates.enter(gate).await;
        let is_waiting = |waiting: std::pin::Pin<&mut _>| {
            let mut context = std::task::Context::from_waker(std::task::Waker::noop());
            Future::poll(waiting, &mut context).is_pending()
        };
        {
            let mut gives_up = pin!(gates.enter(gate));
            assert!(is_waiting(gives_up.as_mut()));
        }
        assert_eq!(gates.known().len(), 1);
        {
            let mut is_handed_it = pin!(gates.enter(gate));
            assert!(is_waiting(is_handed_it.as_mut()));
            drop(first);
            assert_eq!(gates.known().len(), 1, "a call waits for it");
        }
        assert_eq!(gates.known().len(), 0);
        drop(gates.enter(gate).await);
        assert_eq!(gates.known().len(), 0);
    }

    /// Ten thousand accounts each kept five hundred consumed postings, 330 MB in all.
    #[tokio::test]
    async fn an_account_that_nobody_works_on_remembers_nothing_that_was_consumed() {
        let slots = SlotTable::default().of(&account("acme"));
        let spend = |id: u128| {
            let taken = slots.take(vec![PostingId(id)]).unwrap();
            taken.spend();
        };
        let payer = slots.pay().await;
        spend(1);
        assert!(slots.is_taken(PostingId(1)), "an earlier survey may show it");
        drop(payer);
        spend(2);
        let state = slots.state();
        assert_eq!((state.spent.capacity(), state.spent_order.capacity()), (0, 0));
    }

    /// With more accounts in use than the table keeps, every lookup scanned all of them.
    #[test]
    fn going_through_the_accounts_is_put_off_where_many_are_in_use() {
        let slot_table = SlotTable::default();
        let account = |number: usize| account(&format!("a{number}"));
        let in_use: Vec<Arc<AccountSlots>> = (0..ACCOUNTS_MAX).map(|number| slot_table.of(&account(number))).collect();
        let known = || slot_table.known.lock().unwrap().slot_table.len();
        for number in ACCOUNTS_MAX..2 * ACCOUNTS_MAX {
            slot_table.of(&account(number));
        }
        assert_eq!(known(), 2 * ACCOUNTS_MAX, "none was forgotten, for the look was put off");
        slot_table.of(&account(0));
        assert_eq!(known(), ACCOUNTS_MAX, "all in use");
        drop(in_use);
        for number in 0..=ACCOUNTS_MAX {
            slot_table.of(&account(2 * ACCOUNTS_MAX + number));
        }
        assert!(known() < 2 * ACCOUNTS_MAX, "{}", known());
    }
}
