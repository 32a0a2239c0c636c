//! What this process itself is at work on, so that its own calls wait for each other instead of racing.
//!
//! Nothing here is needed for safety: the rows decide who gets what. It saves attempts that are known to fail.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, OwnedMutexGuard, OwnedSemaphorePermit, Semaphore};

use crate::id::{GateId, PostingId, ReservationId};
use crate::model::{AccountKey, LeaseKey};
use crate::task::Part;

/// So many calls work on what one account pays at a time; the others queue, first come first served.
const PAYERS_MAX: usize = 16;
/// So many postings that were consumed a moment ago are remembered per account: a survey may have seen them before.
const SPENT_MAX: usize = 512;
/// A call that waits for a posting looks again after so long, for others may have freed one.
const WAIT: Duration = Duration::from_millis(20);
/// Accounts that nobody works on are forgotten when there are so many.
const LANES_MAX: usize = 10_000;
/// So many small postings are gathered at a time, if there are no more,
const MERGE_MIN: usize = 32;
/// and so many at most.
const MERGE_MAX: usize = 4_096;

/// The lanes of all accounts.
#[derive(Default)]
pub(crate) struct Lanes {
    known: Mutex<KnownLanes>,
}

#[derive(Default)]
struct KnownLanes {
    lanes: HashMap<AccountKey, Arc<Lane>>,
    /// How many somebody worked on when the others were forgotten.
    in_use: usize,
}

/// What this process does with one account.
pub(crate) struct Lane {
    payers: Arc<Semaphore>,
    /// One call at a time gathers small postings: several would want the same ones.
    merger: Arc<Semaphore>,
    state: Mutex<LaneState>,
    freed: Notify,
}

#[derive(Default)]
struct LaneState {
    busy: HashSet<PostingId>,
    spent: HashSet<PostingId>,
    spent_order: VecDeque<PostingId>,
    /// So many deposits pass before small postings are looked for. Who comes first looks, for nobody knows what others left.
    until_merge: u64,
    /// How many postings were found beyond those that calls pay from, the last time.
    small: usize,
}

impl Lanes {
    /// The lane of an account.
    pub(crate) fn of(&self, account: &AccountKey) -> Arc<Lane> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let KnownLanes { lanes, in_use } = &mut *known;
        // Where more are in use than that, going through them is put off until there are twice as many.
        if lanes.len() >= LANES_MAX.max(in_use.saturating_mul(2)) {
            lanes.retain(|_, lane| Arc::strong_count(lane) > 1);
            *in_use = lanes.len();
        }
        if let Some(lane) = lanes.get(account) {
            return Arc::clone(lane);
        }
        let lane = Lane {
            payers: Arc::new(Semaphore::new(PAYERS_MAX)),
            merger: Arc::new(Semaphore::new(1)),
            state: Mutex::default(),
            freed: Notify::new(),
        };
        Arc::clone(lanes.entry(account.clone()).or_insert(Arc::new(lane)))
    }
}

impl Lane {
    fn state(&self) -> std::sync::MutexGuard<'_, LaneState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether no call of this process pays from this account, or gathers what is small.
    fn is_idle(&self) -> bool {
        self.payers.available_permits() == PAYERS_MAX && self.merger.available_permits() == 1
    }

    /// Waits for a turn to pay from this account.
    pub(crate) async fn pay(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.payers).acquire_owned().await.ok()
    }

    /// Whether a call of this process uses a posting, or has consumed it.
    pub(crate) fn is_taken(&self, id: PostingId) -> bool {
        let state = self.state();
        state.busy.contains(&id) || state.spent.contains(&id)
    }

    /// Takes postings for a call of this process, all or none.
    pub(crate) fn take(self: &Arc<Self>, ids: Vec<PostingId>) -> Option<Taken> {
        let mut state = self.state();
        if ids.iter().any(|id| state.busy.contains(id) || state.spent.contains(id)) {
            return None;
        }
        state.busy.extend(&ids);
        Some(Taken { lane: Arc::clone(self), ids })
    }

    /// Counts a deposit. If it is its turn to gather small postings, says how many, and keeps others from it.
    pub(crate) fn turn_to_merge(&self, every: u64) -> Option<(OwnedSemaphorePermit, usize)> {
        let mut state = self.state();
        if state.until_merge > 0 {
            state.until_merge -= 1;
            return None;
        }
        let turn = Arc::clone(&self.merger).try_acquire_owned().ok()?;
        state.until_merge = every.saturating_sub(1);
        Some((turn, state.small.clamp(MERGE_MIN, MERGE_MAX)))
    }

    /// Whoever had the turn found so many. The next one gathers as many: while it waits for its commit as many come again.
    pub(crate) fn found_small(&self, small: usize) {
        self.state().small = small;
    }

    /// Waits until a call of this process lets go of something, or a little while.
    pub(crate) async fn wait(&self) {
        // An elapsed wait is as good as a notice: either way it is time to look again.
        let _ = tokio::time::timeout(WAIT, self.freed.notified()).await;
    }
}

/// Postings that a call of this process uses.
pub(crate) struct Taken {
    lane: Arc<Lane>,
    ids: Vec<PostingId>,
}

impl Taken {
    /// They are consumed.
    pub(crate) fn spend(&self) {
        let mut state = self.lane.state();
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

impl Drop for Taken {
    fn drop(&mut self) {
        let mut state = self.lane.state();
        for id in &self.ids {
            state.busy.remove(id);
        }
        // Nobody has looked at the account who could still choose what is consumed by now.
        if self.lane.is_idle() {
            (state.spent, state.spent_order) = Default::default();
        }
        drop(state);
        self.lane.freed.notify_one();
    }
}

/// What happens once happens in one call of this process at a time.
#[derive(Default)]
pub(crate) struct Gates {
    gates: Mutex<HashMap<GateId, Arc<tokio::sync::Mutex<()>>>>,
}

impl Gates {
    /// Waits until no other call of this process works on the same.
    pub(crate) async fn enter(&self, gate: GateId) -> Entered<'_> {
        let lock = Arc::clone(self.known().entry(gate).or_default());
        // Whoever goes away while it waits is cleaned up after, too.
        let mut entered = Entered { gates: self, gate, lock: Arc::clone(&lock), guard: None };
        entered.guard = Some(lock.lock_owned().await);
        entered
    }

    fn known(&self) -> std::sync::MutexGuard<'_, HashMap<GateId, Arc<tokio::sync::Mutex<()>>>> {
        self.gates.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A gate that a call of this process has, or waits for. It is forgotten with the last of them, also where a call was dropped
/// because its time was over.
pub(crate) struct Entered<'a> {
    gates: &'a Gates,
    gate: GateId,
    lock: Arc<tokio::sync::Mutex<()>>,
    guard: Option<OwnedMutexGuard<()>>,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        let mut known = self.gates.known();
        self.guard = None;
        // One is in the map, and one here.
        if Arc::strong_count(&self.lock) <= 2 {
            known.remove(&self.gate);
        }
    }
}

/// So many leases that this process has held for are remembered.
const HOLDS_MAX: usize = 65_536;

/// What this process has held for leases lately. Whoever settles one of them need not look first: if something has
/// happened to it since, the saga finds out.
#[derive(Default)]
pub(crate) struct RecentHolds {
    state: Mutex<RecentState>,
}

#[derive(Default)]
struct RecentState {
    holds: HashMap<LeaseKey, Vec<Part>>,
    /// Oldest first, those that were taken included.
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

    /// What was held for a lease, once.
    pub(crate) fn take(&self, lease: &LeaseKey) -> Option<Vec<Part>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).holds.remove(lease)
    }
}

/// The attempts that a call of this process drives right now. A record of this process that is not among them was
/// given up on, and anybody here may look after it.
#[derive(Default)]
pub(crate) struct Running {
    rids: Mutex<HashSet<ReservationId>>,
}

impl Running {
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

pub(crate) struct RunningGuard<'a> {
    running: &'a Running,
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

    /// A call whose time was over while it gave back the holds of an account left the gate of each in the map for ever, and so
    /// did one that was handed a gate in the moment in which it gave up.
    #[tokio::test]
    async fn a_gate_is_forgotten_with_the_last_call_about_it() {
        let (gates, gate) = (Gates::default(), GateId(7));
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
            assert_eq!(gates.known().len(), 1, "somebody waits for it");
        }
        assert_eq!(gates.known().len(), 0);
        drop(gates.enter(gate).await);
        assert_eq!(gates.known().len(), 0);
    }

    /// Up to ten thousand accounts kept the last five hundred that each had consumed, which came to 330 MB.
    #[tokio::test]
    async fn an_account_that_nobody_works_on_remembers_nothing_that_was_consumed() {
        let home = crate::model::VaultKey {
            namespace: earmark_core::NamespaceName::new("default").unwrap(),
            vault: earmark_core::VaultName::new("main").unwrap(),
        };
        let account = earmark_core::AccountName::new("acme").unwrap();
        let lane = Lanes::default().of(&AccountKey { home, account });
        let spend = |id: u128| {
            let taken = lane.take(vec![PostingId(id)]).unwrap();
            taken.spend();
        };
        let payer = lane.pay().await;
        spend(1);
        assert!(lane.is_taken(PostingId(1)), "whoever pays may have seen it before");
        drop(payer);
        spend(2);
        let state = lane.state();
        assert_eq!((state.spent.capacity(), state.spent_order.capacity()), (0, 0));
    }

    /// With more accounts in use than are remembered, every look at one went through all of them.
    #[test]
    fn going_through_the_accounts_is_put_off_where_many_are_in_use() {
        let lanes = Lanes::default();
        let home = crate::model::VaultKey {
            namespace: earmark_core::NamespaceName::new("default").unwrap(),
            vault: earmark_core::VaultName::new("main").unwrap(),
        };
        let account = |number: usize| AccountKey {
            home: home.clone(),
            account: earmark_core::AccountName::new(&format!("a{number}")).unwrap(),
        };
        let in_use: Vec<Arc<Lane>> = (0..LANES_MAX).map(|number| lanes.of(&account(number))).collect();
        let known = || lanes.known.lock().unwrap().lanes.len();
        for number in LANES_MAX..2 * LANES_MAX {
            lanes.of(&account(number));
        }
        assert_eq!(known(), 2 * LANES_MAX, "none was forgotten, for the look was put off");
        lanes.of(&account(0));
        assert_eq!(known(), LANES_MAX, "all in use");
        drop(in_use);
        for number in 0..=LANES_MAX {
            lanes.of(&account(2 * LANES_MAX + number));
        }
        assert!(known() < 2 * LANES_MAX, "{}", known());
    }
}
