//! Plans: recurring grants. A plan issues its amount once per calendar period.
//!
//! The credit of a period is one grant that expires at the end of the period. At the end, a plan with carry-over moves
//! the free part of the grant, up to the cap, into that of the next period; the rest expires. The end of the last period
//! that was issued is state, so that no period is issued twice.

use std::collections::BTreeSet;

use super::grant::{GRANTS_MAX, GrantTerms, PRIORITY_DEFAULT};
use super::{AccountId, AccountStatus, AssetId, Balance, Credits, Owner, State};
use crate::book::{InvalidOperation, JournalRecord, Operation, PlanEntry, VaultId};
use crate::id::AssetName;
use crate::limits::calendar::Calendar;
use crate::limits::slab::{NONE, Record};
use crate::limits::{Period, UTC_OFFSET_MINUTES};
use crate::time::UnixMs;

/// Due plans taken from the queue per command.
const CLEAN_PLANS: usize = 64;
/// How long a plan waits when its account has no room for another grant, in milliseconds: 1 minute.
const PLAN_RETRY_MS: u64 = 60_000;

/// A recurring grant of an account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The asset.
    pub asset: AssetName,
    /// The amount per period in minor units; at least 1.
    pub amount: u64,
    /// The calendar period.
    pub period: Period,
    /// The local time of the periods, in minutes ahead of UTC.
    pub utc_offset_minutes: i16,
    /// The unused credit that the next period keeps.
    pub carry_over: CarryOver,
}

/// How much unused credit of a plan the next period keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CarryOver {
    /// Nothing.
    #[default]
    None,
    /// At most this amount; at least 1.
    Max(u64),
}

impl CarryOver {
    /// The cap; 0 for none.
    #[must_use]
    pub const fn max(self) -> u64 {
        match self {
            CarryOver::None => 0,
            CarryOver::Max(max) => max,
        }
    }
}

impl Plan {
    /// Checks the bounds of the fields.
    ///
    /// # Errors
    /// The amount or the cap is 0, or the offset is out of range.
    pub fn check(&self) -> Result<(), InvalidOperation> {
        if self.amount == 0 {
            return Err(InvalidOperation::AmountZero);
        }
        if self.carry_over == CarryOver::Max(0) {
            return Err(InvalidOperation::CarryOverZero);
        }
        let found = self.utc_offset_minutes;
        if !UTC_OFFSET_MINUTES.contains(&found) {
            return Err(InvalidOperation::PlanUtcOffset { found });
        }
        Ok(())
    }
}

impl Plan {
    /// The credit of the period that contains `time`, for a plan that has issued up to `issued_until` and of which
    /// `unused` credit is left from its last period.
    #[must_use]
    pub fn issue_at(&self, time: UnixMs, issued_until: Option<UnixMs>, unused: i128) -> PlanPeriod {
        let calendar = Calendar { period: self.period, utc_offset_minutes: self.utc_offset_minutes };
        let (asset, amount, carry_over) = (AssetId::default(), self.amount, self.carry_over);
        PlanTerms { asset, amount, calendar, carry_over }.period(time, issued_until, unused)
    }
}

/// A plan as an account shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanInfo {
    /// The plan.
    pub plan: Plan,
    /// When it issues next; `None` while its first period waits for the clocks to agree.
    pub next_at: Option<UnixMs>,
}

/// The terms of a plan, with the id of its asset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PlanTerms {
    pub(crate) asset: AssetId,
    pub(crate) amount: u64,
    pub(crate) calendar: Calendar,
    pub(crate) carry_over: CarryOver,
}

/// The plan of an account.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlanState {
    pub(crate) account: u32,
    /// `None` once it is removed. The record stays until the issued period ends, so that a plan that is removed and set
    /// again does not issue the same period twice.
    pub(crate) terms: Option<PlanTerms>,
    /// The end of the last issued period; `None` before the first.
    pub(crate) issued_until: Option<UnixMs>,
    /// When the queue looks at it next. Later than `issued_until` while the account has no room for another grant.
    pub(crate) next_try: UnixMs,
    /// The next free record.
    pub(crate) next: u32,
}

impl Default for PlanState {
    fn default() -> PlanState {
        PlanState { account: NONE, terms: None, issued_until: None, next_try: UnixMs::default(), next: NONE }
    }
}

impl Record for PlanState {
    fn link(&self) -> u32 {
        self.next
    }
    fn set_link(&mut self, link: u32) {
        self.next = link;
    }
}

/// The queue of plans by the time to look at them, then by account. A snapshot leaves it out, because every plan is
/// queued.
pub(crate) type PlanQueue = BTreeSet<(UnixMs, u32)>;

/// The credit of a new period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanPeriod {
    /// Unused credit that is kept.
    pub carried: i128,
    /// New credit: the amount of the period, and of missed periods as far as the cap allows.
    pub issued: i128,
    /// When it ends; [`UnixMs::MAX`] if that is too late for an expiry.
    pub ends_at: UnixMs,
}

impl PlanTerms {
    /// The start of the first period after `until`. New terms may move the boundaries of periods: the rest of one that is
    /// shorter than half a period joins the next, so that moving them back and forth issues no extra period.
    fn start_after(self, until: UnixMs) -> UnixMs {
        let end = self.calendar.end(until);
        if end.ms_since(until) < self.calendar.period.half_ms() { end } else { until }
    }

    /// The credit of the period that contains `time`, with `unused` credit of the last issued period. Missed periods
    /// count as if they had been issued and carried over.
    fn period(self, time: UnixMs, issued_until: Option<UnixMs>, unused: i128) -> PlanPeriod {
        let start = issued_until.map(|until| self.start_after(until));
        let time = start.map_or(time, |start| start.max(time));
        let missed = start.map_or(0, |start| self.calendar.periods_between(start, time));
        let (max, amount) = (i128::from(self.carry_over.max()), i128::from(self.amount));
        let carried = unused.clamp(0, max);
        let kept = carried.saturating_add(amount.saturating_mul(missed.into())).min(max);
        let issued = kept.saturating_sub(carried).saturating_add(amount);
        PlanPeriod { carried, issued, ends_at: self.calendar.end(time) }
    }
}

impl State {
    /// The plan of an account, as it shows it.
    pub(crate) fn plan_info(&self, account: u32) -> Option<PlanInfo> {
        let found = self.accounts.get(account);
        let state = (found.plan != NONE).then(|| self.plans.get(found.plan))?;
        let terms = state.terms?;
        let vault = self.vaults.get(&found.vault)?;
        let plan = Plan {
            asset: vault.assets.get(usize::from(terms.asset.0))?.name.clone(),
            amount: terms.amount,
            period: terms.calendar.period,
            utc_offset_minutes: terms.calendar.utc_offset_minutes,
            carry_over: terms.carry_over,
        };
        Some(PlanInfo { plan, next_at: state.issued_until })
    }
}

impl Credits {
    /// Changes the plans of accounts as a committed transaction says. A first plan issues at once; an account with a plan
    /// gets the new terms from its next period on.
    pub(crate) fn change_plans(&mut self, now: UnixMs, vault: VaultId, operations: &[Operation]) {
        for (name, plan) in Operation::plan_changes(operations) {
            let Some(account) = self.account(vault, name) else { continue };
            self.apply_due_on(now, account);
            let is_closed = self.state.accounts.get(account).standing == AccountStatus::Closed;
            match plan.filter(|_| !is_closed).and_then(|plan| self.plan_terms(vault, plan)) {
                Some(terms) => self.set_plan(account, terms),
                None => self.remove_plan(account, is_closed),
            }
            self.apply_due_on(now, account);
        }
    }

    fn plan_terms(&self, vault: VaultId, plan: &Plan) -> Option<PlanTerms> {
        let asset = self.state.asset(vault, &plan.asset)?;
        let calendar = Calendar { period: plan.period, utc_offset_minutes: plan.utc_offset_minutes };
        Some(PlanTerms { asset, amount: plan.amount, calendar, carry_over: plan.carry_over })
    }

    fn set_plan(&mut self, account: u32, terms: PlanTerms) {
        self.balance_slot(account, terms.asset);
        match self.state.accounts.get(account).plan {
            NONE => self.add_plan(PlanState { account, terms: Some(terms), ..PlanState::default() }),
            slot => self.state.plans.get_mut(slot).terms = Some(terms),
        }
    }

    /// Adds the plan of an account that has none.
    pub(crate) fn add_plan(&mut self, plan: PlanState) {
        self.plan_queue.insert((plan.next_try, plan.account));
        let slot = self.state.plans.insert(plan);
        self.state.accounts.get_mut(plan.account).plan = slot;
    }

    /// Removes the plan of an account. Its credit stays until the end of the period.
    fn remove_plan(&mut self, account: u32, is_closed: bool) {
        let slot = self.state.accounts.get(account).plan;
        if slot == NONE {
            return;
        }
        self.state.plans.get_mut(slot).terms = None;
        if is_closed || self.state.plans.get(slot).issued_until.is_none() {
            self.forget_plan(slot);
        }
    }

    fn forget_plan(&mut self, slot: u32) {
        let PlanState { account, next_try, .. } = *self.state.plans.get(slot);
        self.plan_queue.remove(&(next_try, account));
        self.state.accounts.get_mut(account).plan = NONE;
        self.state.plans.remove(slot);
    }

    /// Issues the current period of the plan of a balance, unless that is done or the clocks differ.
    pub(crate) fn apply_plan(&mut self, now: UnixMs, owner: Owner) {
        let slot = self.state.accounts.get(owner.account).plan;
        if slot == NONE || self.state.expiry.is_waiting {
            return;
        }
        let PlanState { terms, issued_until, .. } = *self.state.plans.get(slot);
        if issued_until.is_some_and(|until| until > now) {
            return;
        }
        let Some(terms) = terms else { return self.forget_plan(slot) };
        let balance = self.state.balances.get(owner.balance);
        if terms.asset != balance.asset {
            return;
        }
        let last = issued_until.map(|until| GrantTerms::new(PRIORITY_DEFAULT, Some(until)));
        let last = last.and_then(|last| self.state.grant_of(balance, last));
        let unused = last.map_or(0, |last| self.state.grants.get(last).pot.free(&self.state.nodes, now));
        let period = terms.period(now, issued_until, unused);
        if period.ends_at == UnixMs::MAX {
            return self.forget_plan(slot);
        }
        let grant = GrantTerms::new(PRIORITY_DEFAULT, Some(period.ends_at));
        if self.state.grant_of(balance, grant).is_none() && self.is_full_of_grants(now, balance) {
            return self.requeue_plan(slot, now.plus_ms(PLAN_RETRY_MS));
        }
        self.state.plans.get_mut(slot).issued_until = Some(period.ends_at);
        self.requeue_plan(slot, period.ends_at);
        self.issue_period(now, owner, (grant, period), last);
    }

    /// The terms of the expired grant of a balance whose free part a plan will carry over, once it can issue its next
    /// period. That grant does not expire before.
    pub(crate) fn carried_terms(&self, now: UnixMs, owner: Owner) -> Option<GrantTerms> {
        let slot = self.state.accounts.get(owner.account).plan;
        if slot == NONE {
            return None;
        }
        let PlanState { terms, issued_until, .. } = *self.state.plans.get(slot);
        let (terms, until) = (terms?, issued_until?);
        let asset = self.state.balances.get(owner.balance).asset;
        let is_meant = terms.asset == asset && terms.carry_over.max() > 0 && until <= self.state.expiry.at(now);
        is_meant.then(|| GrantTerms::new(PRIORITY_DEFAULT, Some(until)))
    }

    /// Whether a balance has no room for another grant once its expired grants are removed.
    fn is_full_of_grants(&self, now: UnixMs, balance: &Balance) -> bool {
        let grants = self.state.grant_slots(balance).map(|slot| self.state.grants.get(slot));
        grants.filter(|grant| grant.holds > 0 || !grant.terms.is_expired(now)).count() >= GRANTS_MAX
    }

    fn requeue_plan(&mut self, slot: u32, next_try: UnixMs) {
        let plan = self.state.plans.get_mut(slot);
        let last = std::mem::replace(&mut plan.next_try, next_try);
        let account = plan.account;
        self.plan_queue.remove(&(last, account));
        self.plan_queue.insert((next_try, account));
    }

    /// Moves carried credit of the grant `last` and new credit into the grant of a period. A period whose amount would
    /// overflow a balance or a total issues nothing.
    fn issue_period(
        &mut self,
        now: UnixMs,
        owner: Owner,
        (terms, period): (GrantTerms, PlanPeriod),
        last: Option<u32>,
    ) {
        let at = self.moment(now);
        let balance = self.state.balances.get(owner.balance);
        let asset = balance.asset;
        let has_room = self.state.whole(balance).checked_add(period.issued).is_some();
        let vault = self.state.accounts.get(owner.account).vault;
        let Some(vault) = self.state.vaults.get_mut(&vault) else { return };
        let namespace = vault.namespace;
        let Some(totals) = vault.assets.get_mut(usize::from(asset.0)) else { return };
        let Some(issued) = totals.issued.checked_add(period.issued).filter(|_| has_room) else { return };
        totals.issued = issued;
        if let Some(last) = last.filter(|_| period.carried > 0) {
            let pot = &mut self.state.grants.get_mut(last).pot;
            pot.amount = pot.amount.saturating_sub(period.carried);
        }
        self.change_grant(owner, terms, period.carried.saturating_add(period.issued));
        self.journal.push(JournalRecord::Plan(PlanEntry {
            at,
            namespace,
            account: AccountId(owner.account),
            asset,
            amount: period.issued,
            carried: period.carried,
            terms,
        }));
    }

    /// Issues a bounded number of due plans.
    pub(crate) fn advance_plans(&mut self, now: UnixMs) {
        for _ in 0..CLEAN_PLANS {
            let Some(&(next_try, account)) = self.plan_queue.first() else { return };
            if next_try > now || self.state.expiry.is_waiting {
                return;
            }
            let slot = self.state.accounts.get(account).plan;
            let Some(terms) = self.state.plans.get(slot).terms else {
                self.forget_plan(slot);
                continue;
            };
            let balance = self.balance_slot(account, terms.asset);
            self.apply_due(now, Owner { account, balance });
        }
    }

    /// Whether a plan is due.
    pub(crate) fn is_plan_due(&self, now: UnixMs) -> bool {
        !self.state.expiry.is_waiting && self.plan_queue.first().is_some_and(|(next_try, _)| *next_try <= now)
    }
}
