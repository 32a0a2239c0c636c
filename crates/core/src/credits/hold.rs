//! Holds: credit set aside for leases until they settle or expire.
//!
//! A held amount stays part of its account's balance, and a timeline says how much of the balance is held until when.
//! An expired hold is therefore spendable at once, however many expire together. Its release is recorded in the
//! journal later, a bounded number per command.
//!
//! The part that its timeout charges is the exception: usage that was reported, or all of it by `on_timeout`. It is
//! held without an end, so that nobody spends it before the charge is recorded.
//!
//! A hold takes from grants in spending order and gives back to them; `hold_parts` records which.

use super::account::{AccountId, AccountStatus, AssetId};
use super::{Credits, Owner, SettleLabels, State};
use crate::book::{Charge, CreditShortage, HoldEntry, JournalRecord, NamespaceId, SettleEntry, SettleReason};
use crate::id::{AccountName, Actor, LeaseId};
use crate::limits::slab::{NONE, Record};
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
    /// The slot of the first of its parts. Set when it is inserted.
    pub(crate) parts: u32,
    pub(crate) namespace: NamespaceId,
    pub(crate) asset: AssetId,
    /// The reported usage. Once it is released: what it paid at its timeout.
    pub(crate) used: u64,
    pub(crate) keeps_debt: bool,
    /// Whether a timeout charges all of it.
    pub(crate) charges_timeout: bool,
    /// It expired, and its release or settlement is in the journal.
    pub(crate) is_released: bool,
}

impl Hold {
    /// The part that its timeout charges. The rest is spendable when it ends.
    pub(crate) fn due(&self) -> u64 {
        match (self.is_released, self.charges_timeout) {
            (true, _) => 0,
            (false, true) => self.amount,
            (false, false) => self.used.min(self.amount),
        }
    }

    /// The balance that it took from.
    pub(crate) fn owner(&self) -> Owner {
        Owner { account: self.account, balance: self.balance }
    }

    /// The cost of its timeout.
    fn timeout_cost(&self) -> u64 {
        if self.charges_timeout { self.used.max(self.amount) } else { self.used }
    }
}

impl Record for Hold {
    fn link(&self) -> u32 {
        self.next
    }
    fn set_link(&mut self, link: u32) {
        self.next = link;
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
        let room = self.room(now, (payers.account, payers.revenue), balance)?;
        if amount <= u128::from(room) { Ok(()) } else { Err(CreditShortage::NotEnough) }
    }

    /// The largest hold of an account that a reserve would get now, its overdraft included.
    pub(crate) fn room(
        &self,
        now: UnixMs,
        (account, revenue): (u32, u32),
        balance: Option<u32>,
    ) -> Result<u64, CreditShortage> {
        let found = self.state.accounts.get(account);
        match (found.standing, self.state.accounts.get(revenue).standing) {
            (AccountStatus::Frozen, _) => return Err(CreditShortage::Frozen),
            (AccountStatus::Closed, _) | (_, AccountStatus::Closed) => return Err(CreditShortage::Closed),
            (AccountStatus::Open, AccountStatus::Open | AccountStatus::Frozen) => {}
        }
        let (available, held) = balance.map_or((0, 0), |slot| {
            let balance = self.state.balances.get(slot);
            (self.state.available(balance, now), self.state.held_at(balance, now))
        });
        let spendable = available.saturating_sub(found.overdraft.floor()).max(0);
        // The held sum of one balance is a `u64`.
        Ok(u64::try_from(spendable).unwrap_or(u64::MAX).min(u64::MAX.saturating_sub(held)))
    }

    /// Holds credit. `last` is the previous hold of the same lease.
    pub(crate) fn hold(&mut self, now: UnixMs, hold: Hold, limits: &limits::State, last: Option<u32>) -> u32 {
        let entry = hold.entry(self.moment(now), limits, self.actor.clone());
        self.journal.extend(entry.map(JournalRecord::Hold));
        let drawn = self.draw(now, hold.balance, hold.amount);
        let slot = self.insert_hold(now, Hold { sibling: NONE, ..hold }, &drawn);
        if let Some(last) = last {
            self.state.holds.get_mut(last).sibling = slot;
        }
        slot
    }

    /// Adds a hold to the release queue, and to the held sums of its pots until it expires. `drawn` are the grants that
    /// it took from.
    fn insert_hold(&mut self, now: UnixMs, hold: Hold, drawn: &[(u32, u64)]) -> u32 {
        let hold = Hold { prev: NONE, next: NONE, parts: self.add_parts(drawn), ..hold };
        let state = &mut self.state;
        if hold.ends_at > now {
            state.each_piece(&hold, |pot, nodes, piece| pot.hold(nodes, hold.ends_at, piece));
        } else {
            state.each_piece(&hold, |pot, _, piece| pot.due = pot.due.wrapping_add(piece.due));
        }
        let slot = state.holds.insert(hold);
        if hold.is_released {
            state.released = state.released.saturating_add(1);
        } else {
            self.link(slot, hold.ends_at);
        }
        slot
    }

    /// Appends a hold to the release queue.
    fn link(&mut self, slot: u32, ends_at: UnixMs) {
        let state = &mut self.state;
        let second = second(ends_at);
        let prev = state.queue.append(second, slot);
        if prev != NONE {
            state.holds.get_mut(prev).next = slot;
        }
        let hold = state.holds.get_mut(slot);
        (hold.prev, hold.next) = (prev, NONE);
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

    /// Whether the release of an expired hold or the expiry of a grant is not recorded yet, or a plan is due.
    pub(crate) fn is_due(&self, now: UnixMs) -> bool {
        let first = self.state.queue.first();
        first.is_some_and(|(second, _)| second.saturating_mul(1_000) <= now.get())
            || self.is_grant_due(now)
            || self.is_plan_due(now)
    }

    /// Records the release of a bounded number of expired holds.
    pub(crate) fn advance(&mut self, now: UnixMs, limits: &limits::State) {
        self.state.nodes.reclaim(CLEAN_NODES);
        self.advance_plans(now);
        self.advance_grants(now);
        for _ in 0..CLEAN_HOLDS {
            let is_due = |second: u64| second.saturating_mul(1_000) <= now.get();
            let Some(bucket) = self.state.queue.first_due(is_due) else { return };
            self.release(now, limits, bucket.first);
        }
    }

    /// Records the release of an expired hold, or charges what its timeout costs.
    fn release(&mut self, now: UnixMs, limits: &limits::State, slot: u32) {
        self.unlink(slot);
        let hold = *self.state.holds.get(slot);
        self.state.released = self.state.released.saturating_add(1);
        self.state.nodes.count(1);
        self.state.each_piece(&hold, |pot, nodes, piece| pot.lapse(nodes, now, piece));
        // Expiry has no actor, whichever command triggers the record.
        let actor = self.actor.take();
        let paid = if hold.timeout_cost() > 0 {
            self.charge_timeout(now, limits, &hold)
        } else {
            let entry = hold.entry(self.moment(now), limits, None).filter(|entry| entry.amount > 0);
            self.journal.extend(entry.map(JournalRecord::Release));
            0
        };
        self.actor = actor;
        let hold = self.state.holds.get_mut(slot);
        (hold.is_released, hold.used) = (true, paid);
        self.set_parts(slot, &[]);
        self.apply_due(now, self.state.holds.get(slot).owner());
    }

    /// Charges the cost of a timeout: from the hold, and what exceeds it by the rule of its limit. Returns what was
    /// paid.
    fn charge_timeout(&mut self, now: UnixMs, limits: &limits::State, hold: &Hold) -> u64 {
        let limit = limits.limits.id(hold.limit);
        let mut charge = Charge { limit, cost: hold.timeout_cost(), paid: 0, debt: 0, uncollected: 0 };
        charge.paid = self.pay_from_hold(hold, hold.due());
        self.charge_owner(now, hold, &mut charge);
        self.pay(now, limits, (hold, hold.amount, SettleReason::Timeout, &SettleLabels::NONE), &mut charge);
        charge.paid
    }

    /// The hold of a limit among those of a lease.
    pub(crate) fn hold_of(&self, first: u32, limit: LimitSlot) -> Option<u32> {
        self.state.hold_slots(first).find(|slot| self.state.holds.get(*slot).limit == limit)
    }

    /// The accounts and the balance of a hold.
    pub(crate) fn payers_of(&self, slot: u32) -> (Payers, u32) {
        let hold = self.state.holds.get(slot);
        (Payers { account: hold.account, revenue: hold.revenue, asset: hold.asset }, hold.balance)
    }

    /// Takes a part of what is held off its pots, in spending order. Returns what was paid: all or nothing.
    fn pay_from_hold(&mut self, hold: &Hold, cost: u64) -> u64 {
        let plain = self.state.balances.get(hold.balance).pot.amount;
        if plain.checked_sub(cost.into()).is_none() {
            return 0;
        }
        let mut left = cost;
        self.state.each_piece(hold, |pot, _, piece| {
            let share = left.min(piece.amount);
            pot.amount = pot.amount.saturating_sub(share.into());
            left = left.saturating_sub(share);
        });
        cost
    }

    /// Changes a hold that has not ended. Its end may move. `parts` are the grants that it takes from then; `None` if
    /// they stay.
    fn change_hold(&mut self, slot: u32, parts: Option<&[(u32, u64)]>, change: impl FnOnce(&mut Hold)) {
        let before = *self.state.holds.get(slot);
        let mut after = before;
        change(&mut after);
        self.state.each_piece(&before, |pot, nodes, piece| pot.release(nodes, before.ends_at, piece));
        if let Some(parts) = parts {
            self.set_parts(slot, parts);
            after.parts = self.state.holds.get(slot).parts;
        }
        self.state.each_piece(&after, |pot, nodes, piece| pot.hold(nodes, after.ends_at, piece));
        let is_moved = second(before.ends_at) != second(after.ends_at);
        if is_moved {
            self.unlink(slot);
        }
        let Hold { amount, ends_at, used, charges_timeout, .. } = after;
        let hold = self.state.holds.get_mut(slot);
        (hold.amount, hold.ends_at, hold.used, hold.charges_timeout) = (amount, ends_at, used, charges_timeout);
        if is_moved {
            self.link(slot, ends_at);
        }
    }

    /// Holds more for a lease that has a hold of the limit. The amount comes with the number of the extension.
    pub(crate) fn grow(&mut self, now: UnixMs, slot: u32, (amount, extension): (u64, u32), limits: &limits::State) {
        let grown = Hold { amount, ..*self.state.holds.get(slot) };
        let entry = grown.entry(self.moment(now), limits, self.actor.clone());
        self.journal.extend(entry.map(|entry| JournalRecord::Hold(HoldEntry { extension, ..entry })));
        let drawn = self.draw(now, grown.balance, amount);
        let parts = (!drawn.is_empty()).then(|| self.grown_parts(&grown, &drawn));
        self.change_hold(slot, parts.as_deref(), |hold| hold.amount = hold.amount.saturating_add(amount));
    }

    /// Adds a hold to the lease whose first hold is `first`. Returns the first hold then.
    pub(crate) fn hold_more(
        &mut self,
        now: UnixMs,
        hold: Hold,
        limits: &limits::State,
        (first, extension): (u32, u32),
    ) -> u32 {
        let entry = hold.entry(self.moment(now), limits, self.actor.clone());
        self.journal.extend(entry.map(|entry| JournalRecord::Hold(HoldEntry { extension, ..entry })));
        let drawn = self.draw(now, hold.balance, hold.amount);
        self.add_hold(now, first, hold, &drawn)
    }

    /// Inserts a hold into the list of its lease, which begins with `first` and is ordered by limit. Returns the first
    /// hold then.
    pub(crate) fn add_hold(&mut self, now: UnixMs, first: u32, hold: Hold, drawn: &[(u32, u64)]) -> u32 {
        let before = self.hold_before(first, hold.limit);
        let sibling = before.map_or(first, |before| self.state.holds.get(before).sibling);
        let slot = self.insert_hold(now, Hold { sibling, ..hold }, drawn);
        match before {
            Some(before) => self.state.holds.get_mut(before).sibling = slot,
            None => return slot,
        }
        first
    }

    /// The last hold of a lease on a limit before this one.
    fn hold_before(&self, first: u32, limit: LimitSlot) -> Option<u32> {
        let state = &self.state;
        state.hold_slots(first).filter(|slot| state.holds.get(*slot).limit < limit).last()
    }

    /// Removes the hold of a limit, from which everything was returned. Returns the first hold of the lease then.
    pub(crate) fn drop_hold(&mut self, now: UnixMs, first: u32, limit: LimitSlot) -> u32 {
        let Some(slot) = self.hold_of(first, limit) else { return first };
        let hold = *self.state.holds.get(slot);
        let before = self.hold_before(first, limit);
        if !hold.is_released {
            self.state.each_piece(&hold, |pot, nodes, piece| pot.release(nodes, hold.ends_at, piece));
        }
        self.remove(slot);
        self.apply_due(now, hold.owner());
        match before {
            Some(before) => self.state.holds.get_mut(before).sibling = hold.sibling,
            None => return hold.sibling,
        }
        first
    }

    /// Returns a part of the hold of a limit.
    pub(crate) fn shrink(&mut self, now: UnixMs, (first, limit): (u32, LimitSlot), less: u64, limits: &limits::State) {
        let Some(slot) = self.hold_of(first, limit) else { return };
        let returned = Hold { amount: less, ..*self.state.holds.get(slot) };
        let entry = returned.entry(self.moment(now), limits, self.actor.clone());
        self.journal.extend(entry.map(JournalRecord::Release));
        let hold = *self.state.holds.get(slot);
        let parts = (hold.parts != NONE).then(|| self.shrunk_parts(&hold, less));
        self.change_hold(slot, parts.as_deref(), |hold| hold.amount = hold.amount.saturating_sub(less));
        self.apply_due(now, hold.owner());
    }

    /// Moves the end of the hold of a limit.
    pub(crate) fn move_end(&mut self, first: u32, limit: LimitSlot, ends_at: UnixMs) {
        if let Some(slot) = self.hold_of(first, limit) {
            self.change_hold(slot, None, |hold| hold.ends_at = ends_at);
        }
    }

    /// Makes the timeout of the hold of a limit charge all of it.
    pub(crate) fn set_charged_by_timeout(&mut self, first: u32, limit: LimitSlot) {
        if let Some(slot) = self.hold_of(first, limit) {
            self.change_hold(slot, None, |hold| hold.charges_timeout = true);
        }
    }

    /// Sets the reported usage of the hold of a limit. From now on that is charged even if the hold runs out.
    pub(crate) fn report_used(&mut self, first: u32, limit: LimitSlot, used: u64) {
        if let Some(slot) = self.hold_of(first, limit) {
            self.change_hold(slot, None, |hold| hold.used = used);
        }
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
        self.set_parts(slot, &[]);
        self.state.holds.remove(slot);
    }

    /// Charges the cost of a lease, by limit; without an actual the whole hold. First every hold pays what it can and
    /// returns the rest, then the owners pay what is missing. A hold that ran out was settled then: only what exceeds
    /// that payment is charged. The entries get the labels, except those of timeouts.
    pub(crate) fn settle(
        &mut self,
        now: UnixMs,
        (first, labels): (u32, &SettleLabels),
        limits: &limits::State,
        actual: impl Fn(LimitSlot) -> Option<u64>,
    ) -> Vec<Charge> {
        let mut charges = Vec::new();
        let mut slot = first;
        while slot != NONE {
            let hold = *self.state.holds.get(slot);
            self.apply_due(now, hold.owner());
            let cost = actual(hold.limit).unwrap_or(hold.amount);
            charges.push(self.settle_hold(now, limits, slot, cost));
            slot = hold.sibling;
        }
        slot = first;
        for charge in &mut charges {
            let hold = *self.state.holds.get(slot);
            let is_live = hold.ends_at > now;
            let (held, reason) = if is_live { (hold.amount, SettleReason::Complete) } else { (0, SettleReason::Late) };
            self.charge_owner(now, &hold, charge);
            self.pay(now, limits, (&hold, held, reason, labels), charge);
            self.remove(slot);
            self.apply_due(now, hold.owner());
            slot = hold.sibling;
        }
        charges
    }

    /// Pays as much of `cost` from the hold as it covers, and returns the rest.
    fn settle_hold(&mut self, now: UnixMs, limits: &limits::State, slot: u32, cost: u64) -> Charge {
        let hold = *self.state.holds.get(slot);
        let mut charge = Charge { limit: limits.limits.id(hold.limit), cost, paid: 0, debt: 0, uncollected: 0 };
        if hold.ends_at > now {
            self.state.each_piece(&hold, |pot, nodes, piece| pot.release(nodes, hold.ends_at, piece));
            charge.paid = self.pay_from_hold(&hold, cost.min(hold.amount));
            return charge;
        }
        if !hold.is_released {
            self.release(now, limits, slot);
        }
        charge.cost = cost.saturating_sub(self.state.holds.get(slot).used);
        charge
    }

    /// Takes the part that the hold did not cover from its owner: all of it if debt is allowed, else what the owner
    /// has.
    fn charge_owner(&mut self, now: UnixMs, hold: &Hold, charge: &mut Charge) {
        let missing = charge.cost.saturating_sub(charge.paid);
        let account = self.state.accounts.get(hold.account);
        let (standing, overdraft) = (account.standing, account.overdraft);
        let balance = self.state.balances.get(hold.balance);
        let held = self.state.held_at(balance, now);
        let available = self.state.available(balance, now).max(0);
        let has = missing.min(u64::try_from(available).unwrap_or(u64::MAX));
        let taken = match standing {
            AccountStatus::Closed => 0,
            AccountStatus::Open | AccountStatus::Frozen => {
                if hold.keeps_debt || overdraft.settles_below_zero() {
                    missing
                } else {
                    has
                }
            }
        };
        // The remaining holds still have to be paid, so their sum must not overflow either.
        let after = balance.pot.amount.checked_sub(taken.into());
        if after.and_then(|after| after.checked_sub(held.into())).is_none() {
            return charge.uncollected = missing;
        }
        self.take(now, hold.balance, taken);
        charge.paid = charge.paid.saturating_add(taken);
        charge.debt = taken.saturating_sub(has);
        charge.uncollected = missing.saturating_sub(taken);
    }

    /// Pays the revenue account and records the settlement.
    fn pay(
        &mut self,
        now: UnixMs,
        limits: &limits::State,
        (hold, held, reason, labels): (&Hold, u64, SettleReason, &SettleLabels),
        charge: &mut Charge,
    ) {
        let revenue = self.payee(hold);
        let paid = i128::from(charge.paid);
        let income = self.balance_mut(revenue, hold.asset);
        match income.pot.amount.checked_add(paid) {
            Some(amount) => income.pot.amount = amount,
            None => {
                let pot = &mut self.state.balances.get_mut(hold.balance).pot;
                pot.amount = pot.amount.saturating_add(paid);
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
                reason,
                labels: labels.clone(),
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
            extension: 0,
            actor,
        })
    }
}

/// The second in which the release of a hold may be recorded.
pub(crate) fn second(ends_at: UnixMs) -> u64 {
    ends_at.get().div_ceil(1_000)
}
