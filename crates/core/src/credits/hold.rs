//! Holds: credit set aside for leases until they settle or expire.
//!
//! A held amount stays part of its account's balance, and a timeline says how much of the balance is held until when.
//! An expired hold is therefore spendable at once, however many expire together. Its release is recorded in the
//! journal later, a bounded number per command.

use super::account::{AccountId, AccountStatus, AssetId, Balance};
use super::plan::Overdraft;
use super::{Credits, State};
use crate::book::{Charge, CreditShortage, HoldEntry, JournalRecord, NamespaceId, SettleEntry};
use crate::id::{AccountName, Actor, LeaseId};
use crate::limits::buckets::Bucket;
use crate::limits::slab::{NONE, Record};
use crate::limits::timeline::{Nodes, Sums};
use crate::limits::{self, LimitSlot, Payers};
use crate::time::{Moment, UnixMs};

/// Expired holds released in the journal per command. A reserve creates at most 32.
const CLEAN_HOLDS: usize = 64;
/// Timeline nodes freed per command.
const CLEAN_NODES: usize = 64;

/// Credit held for one requirement of a lease. It has everything needed to settle it, whatever happens to the limit.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Hold {
    pub(crate) lease: LeaseId,
    pub(crate) amount: u64,
    pub(crate) ends_at: UnixMs,
    pub(crate) limit: LimitSlot,
    pub(crate) account: u32,
    pub(crate) balance: u32,
    pub(crate) revenue: u32,
    /// The next hold of the same lease, ordered by limit.
    pub(crate) sibling: u32,
    pub(crate) prev: u32,
    pub(crate) next: u32,
    pub(crate) namespace: NamespaceId,
    pub(crate) asset: AssetId,
    pub(crate) keeps_debt: bool,
    /// It expired, and its release is in the journal.
    pub(crate) is_released: bool,
}

impl Record for Hold {
    fn link(&self) -> u32 {
        self.next
    }
    fn set_link(&mut self, link: u32) {
        self.next = link;
    }
}

impl Balance {
    /// The spendable amount at `now`; negative if owed.
    pub(crate) fn available(&self, nodes: &Nodes, now: UnixMs) -> i128 {
        self.amount.saturating_sub(i128::from(self.held_at(nodes, now)))
    }

    pub(crate) fn held_at(&self, nodes: &Nodes, now: UnixMs) -> u64 {
        self.held.sums().minus(self.held.due(nodes, now)).total()
    }
}

impl State {
    /// The slots of a lease's holds.
    pub(crate) fn hold_slots(&self, first: u32) -> impl Iterator<Item = u32> + '_ {
        let mut slot = first;
        std::iter::from_fn(move || {
            let found = (slot != NONE).then_some(slot)?;
            slot = self.holds.get(found).sibling;
            Some(found)
        })
    }

    /// The holds without a recorded release, in order of release.
    pub(crate) fn queue(&self) -> impl Iterator<Item = &Hold> {
        self.queue.iter().flat_map(move |bucket| {
            let mut slot = bucket.first;
            std::iter::from_fn(move || {
                let hold = (slot != NONE).then(|| self.holds.get(slot))?;
                slot = hold.next;
                Some(hold)
            })
        })
    }
}

impl Credits {
    /// Whether an account can hold `amount` at `now`. An account without a balance never had the asset.
    pub(crate) fn can_hold(
        &self,
        now: UnixMs,
        payers: Payers,
        balance: Option<u32>,
        amount: u128,
    ) -> Result<(), CreditShortage> {
        let found = self.state.accounts.get(payers.account);
        match (found.standing, self.state.accounts.get(payers.revenue).standing) {
            (AccountStatus::Frozen, _) => return Err(CreditShortage::Frozen),
            (AccountStatus::Closed, _) | (_, AccountStatus::Closed) => return Err(CreditShortage::Closed),
            (AccountStatus::Open, AccountStatus::Open | AccountStatus::Frozen) => {}
        }
        let (has, held) = balance.map_or((0, 0), |slot| {
            let balance = self.state.balances.get(slot);
            (balance.amount, balance.held_at(&self.state.nodes, now))
        });
        // The held sum of one balance is a `u64`.
        let room = u128::from(u64::MAX.saturating_sub(held));
        let available = has.saturating_sub(held.into());
        let is_there = match found.overdraft {
            Overdraft::Allow => i128::try_from(amount).is_ok_and(|amount| available.checked_sub(amount).is_some()),
            Overdraft::Deny => u128::try_from(available).is_ok_and(|available| amount <= available),
        };
        if is_there && amount <= room { Ok(()) } else { Err(CreditShortage::NotEnough) }
    }

    /// Holds credit. `last` is the previous hold of the same lease.
    pub(crate) fn hold(&mut self, now: UnixMs, hold: Hold, limits: &limits::State, last: Option<u32>) -> u32 {
        let entry = hold.entry(self.moment(now), limits, self.actor.clone());
        self.journal.extend(entry.map(JournalRecord::Hold));
        let slot = self.insert_hold(now, Hold { sibling: NONE, ..hold });
        if let Some(last) = last {
            self.state.holds.get_mut(last).sibling = slot;
        }
        slot
    }

    /// Adds a hold to the release queue, and to the held sum of its balance until it expires.
    pub(crate) fn insert_hold(&mut self, now: UnixMs, mut hold: Hold) -> u32 {
        let state = &mut self.state;
        if hold.ends_at > now {
            let balance = state.balances.get_mut(hold.balance);
            // Expired amounts still in the sum may make it wrap. It is correct again once they are removed.
            balance.held.add(&mut state.nodes, hold.ends_at, Sums::unsettled(hold.amount));
        }
        (hold.prev, hold.next) = (NONE, NONE);
        if hold.is_released {
            state.released = state.released.saturating_add(1);
            return state.holds.insert(hold);
        }
        let second = second(hold.ends_at);
        match state.queue.get_mut(second) {
            Some(bucket) => {
                hold.prev = bucket.last;
                let slot = state.holds.insert(hold);
                state.holds.get_mut(bucket.last).next = slot;
                bucket.last = slot;
                slot
            }
            None => {
                let slot = state.holds.insert(hold);
                state.queue.insert(second, Bucket { first: slot, last: slot });
                slot
            }
        }
    }

    fn unlink(&mut self, slot: u32) {
        let state = &mut self.state;
        let &Hold { prev, next, ends_at, .. } = state.holds.get(slot);
        if prev != NONE {
            state.holds.get_mut(prev).next = next;
        }
        if next != NONE {
            state.holds.get_mut(next).prev = prev;
        }
        let second = second(ends_at);
        if prev == NONE && next == NONE {
            state.queue.remove(second);
        } else if (prev == NONE || next == NONE)
            && let Some(bucket) = state.queue.get_mut(second)
        {
            if prev == NONE {
                bucket.first = next;
            } else {
                bucket.last = prev;
            }
        }
    }

    /// Whether no hold is live at `now`.
    pub(crate) fn holds_nothing(&self, now: UnixMs) -> bool {
        self.state.queue().all(|hold| hold.ends_at <= now)
    }

    /// Whether the release of an expired hold is not recorded yet.
    pub(crate) fn is_due(&self, now: UnixMs) -> bool {
        self.state.queue.first().is_some_and(|(second, _)| second.saturating_mul(1_000) <= now.get())
    }

    /// Records the release of a bounded number of expired holds.
    pub(crate) fn advance(&mut self, now: UnixMs, limits: &limits::State) {
        self.state.nodes.reclaim(CLEAN_NODES);
        for _ in 0..CLEAN_HOLDS {
            let Some((second, bucket)) = self.state.queue.first() else { return };
            if second.saturating_mul(1_000) > now.get() {
                return;
            }
            self.release(now, limits, bucket.first);
        }
    }

    /// Records the release of an expired hold.
    fn release(&mut self, now: UnixMs, limits: &limits::State, slot: u32) {
        self.unlink(slot);
        let hold = self.state.holds.get_mut(slot);
        hold.is_released = true;
        let hold = *hold;
        self.state.released = self.state.released.saturating_add(1);
        let State { balances, nodes, .. } = &mut self.state;
        nodes.count(1);
        balances.get_mut(hold.balance).held.expire(nodes, now);
        // Expiry has no actor, whichever command triggers the record.
        let entry = hold.entry(self.moment(now), limits, None);
        self.journal.extend(entry.map(JournalRecord::Release));
    }

    /// Removes the expired holds of a lease whose record is deleted.
    pub(crate) fn forget_holds(&mut self, now: UnixMs, first: u32, limits: &limits::State) {
        let mut slot = first;
        while slot != NONE {
            if !self.state.holds.get(slot).is_released {
                self.release(now, limits, slot);
            }
            let sibling = self.state.holds.get(slot).sibling;
            self.remove(slot);
            slot = sibling;
        }
    }

    fn remove(&mut self, slot: u32) {
        if self.state.holds.get(slot).is_released {
            self.state.released = self.state.released.saturating_sub(1);
        } else {
            self.unlink(slot);
        }
        self.state.holds.remove(slot);
    }

    /// Charges the cost of a lease, by limit; without an actual the whole hold. First every hold pays what it can and
    /// returns the rest, then the owners pay what is missing.
    pub(crate) fn settle(
        &mut self,
        now: UnixMs,
        first: u32,
        limits: &limits::State,
        actual: impl Fn(LimitSlot) -> Option<u64>,
    ) -> Vec<Charge> {
        let mut charges = Vec::new();
        let mut slot = first;
        while slot != NONE {
            let hold = *self.state.holds.get(slot);
            let cost = actual(hold.limit).unwrap_or(hold.amount);
            charges.push(self.settle_hold(now, limits, slot, cost));
            slot = hold.sibling;
        }
        slot = first;
        for charge in &mut charges {
            let hold = *self.state.holds.get(slot);
            let held = if hold.ends_at > now { hold.amount } else { 0 };
            self.charge_owner(now, &hold, charge);
            self.pay(now, limits, (&hold, held), charge);
            self.remove(slot);
            slot = hold.sibling;
        }
        charges
    }

    /// Pays as much of `cost` from the hold as it covers, and returns the rest.
    fn settle_hold(&mut self, now: UnixMs, limits: &limits::State, slot: u32, cost: u64) -> Charge {
        let hold = *self.state.holds.get(slot);
        let mut paid = 0;
        if hold.ends_at > now {
            let State { balances, nodes, .. } = &mut self.state;
            let balance = balances.get_mut(hold.balance);
            balance.held.change(nodes, hold.ends_at, Sums::unsettled(hold.amount), Sums::ZERO);
            if let Some(amount) = balance.amount.checked_sub(cost.min(hold.amount).into()) {
                balance.amount = amount;
                paid = cost.min(hold.amount);
            }
        } else if !hold.is_released {
            self.release(now, limits, slot);
        }
        Charge { limit: limits.limits.id(hold.limit), cost, paid, debt: 0, uncollected: 0 }
    }

    /// Takes the part that the hold did not cover from its owner: all of it if debt is allowed, else what the owner
    /// has.
    fn charge_owner(&mut self, now: UnixMs, hold: &Hold, charge: &mut Charge) {
        let missing = charge.cost.saturating_sub(charge.paid);
        let account = self.state.accounts.get(hold.account);
        let (standing, overdraft) = (account.standing, account.overdraft);
        let State { balances, nodes, .. } = &mut self.state;
        let balance = balances.get_mut(hold.balance);
        let held = balance.held_at(nodes, now);
        let available = balance.available(nodes, now).max(0);
        let has = missing.min(u64::try_from(available).unwrap_or(u64::MAX));
        let taken = match standing {
            AccountStatus::Closed => 0,
            AccountStatus::Open | AccountStatus::Frozen => {
                if hold.keeps_debt || overdraft == Overdraft::Allow {
                    missing
                } else {
                    has
                }
            }
        };
        // The remaining holds still have to be paid, so their sum must not overflow either.
        let after = balance.amount.checked_sub(taken.into());
        match after.filter(|after| after.checked_sub(held.into()).is_some()) {
            Some(amount) => balance.amount = amount,
            None => return charge.uncollected = missing,
        }
        charge.paid = charge.paid.saturating_add(taken);
        charge.debt = taken.saturating_sub(has);
        charge.uncollected = missing.saturating_sub(taken);
    }

    /// Pays the revenue account and records the settlement.
    fn pay(&mut self, now: UnixMs, limits: &limits::State, (hold, held): (&Hold, u64), charge: &mut Charge) {
        let revenue = self.payee(hold);
        let paid = i128::from(charge.paid);
        let income = self.balance_mut(revenue, hold.asset);
        match income.amount.checked_add(paid) {
            Some(amount) => income.amount = amount,
            None => {
                let balance = self.state.balances.get_mut(hold.balance);
                balance.amount = balance.amount.saturating_add(paid);
                (charge.paid, charge.debt, charge.uncollected) = (0, 0, charge.cost);
            }
        }
        let Some(entry) = hold.entry(self.moment(now), limits, self.actor.clone()) else { return };
        if charge.cost == 0 && held > 0 {
            self.journal.push(JournalRecord::Release(entry));
        } else if charge.cost > 0 {
            self.journal.push(JournalRecord::Settle(SettleEntry {
                hold: entry,
                held,
                revenue: AccountId(revenue),
                paid: charge.paid,
                debt: charge.debt,
                uncollected: charge.uncollected,
            }));
        }
    }

    /// The account to pay: the limit's revenue account, or the vault's own if that is closed.
    fn payee(&self, hold: &Hold) -> u32 {
        let account = self.state.accounts.get(hold.revenue);
        if account.standing != AccountStatus::Closed {
            return hold.revenue;
        }
        let own = AccountName::new(AccountName::REVENUE).ok();
        own.and_then(|name| self.account(account.vault, &name)).unwrap_or(hold.revenue)
    }
}

impl Hold {
    /// The journal entry of a hold. Its limit exists, because the lease record of the hold keeps it.
    fn entry(&self, at: Moment, limits: &limits::State, actor: Option<Actor>) -> Option<HoldEntry> {
        Some(HoldEntry {
            at,
            namespace: self.namespace,
            lease: self.lease,
            limit: limits.key(self.limit)?,
            account: AccountId(self.account),
            asset: self.asset,
            amount: self.amount,
            actor,
        })
    }
}

/// The second in which the release of a hold may be recorded.
pub(crate) fn second(ends_at: UnixMs) -> u64 {
    ends_at.get().div_ceil(1_000)
}
