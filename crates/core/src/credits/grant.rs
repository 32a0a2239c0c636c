//! Grants: credit with a priority and an expiry.
//!
//! Plain credit, of default priority and without expiry, is the pot of the balance itself, so that an account without
//! grants costs nothing more. All other credit is in a list of grants per balance, in spending order. Credit with equal
//! terms is one grant, which bounds the list and leaves no ties.
//!
//! Expiry decides at once: the free part of an expired grant is not spendable. Its entry is recorded with the next
//! decision about the account, or later with any command, a bounded number each. The held part survives until its hold
//! ends; what returns then expires on return.

use std::collections::BTreeSet;

use super::pot::Pot;
use super::{AccountId, AssetId, Balance, Credits, State};
use crate::book::{ExpireEntry, JournalRecord};
use crate::limits::slab::{NONE, Record};
use crate::time::{Moment, UnixMs};

/// The priority of credit that is issued without one.
pub const PRIORITY_DEFAULT: u8 = 128;
/// The maximum number of grants per account and asset, plain credit not counted. A decision may read all of them.
pub const GRANTS_MAX: usize = 64;
/// The maximum difference between log time and wall time at which credit expires, in milliseconds: 5 minutes. Clocks of
/// a healthy cluster differ by seconds.
pub const EXPIRY_SKEW_MS_MAX: u64 = 5 * 60 * 1_000;
/// Due grants taken from the queue per command.
const CLEAN_GRANTS: usize = 64;

/// The priority and the expiry of credit, ordered as it is spent: the lowest priority number first, then the earliest
/// expiry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GrantTerms {
    priority: u8,
    /// The latest time if it never expires.
    expires_at: UnixMs,
}

impl GrantTerms {
    /// Default priority, no expiry.
    pub const PLAIN: GrantTerms = GrantTerms { priority: PRIORITY_DEFAULT, expires_at: UnixMs::MAX };

    /// The terms of a grant. The latest time means no expiry.
    #[must_use]
    pub const fn new(priority: u8, expires_at: Option<UnixMs>) -> GrantTerms {
        let expires_at = match expires_at {
            Some(expires_at) => expires_at,
            None => UnixMs::MAX,
        };
        GrantTerms { priority, expires_at }
    }

    /// The priority; the lowest number is spent first.
    #[must_use]
    pub const fn priority(self) -> u8 {
        self.priority
    }

    /// When it expires.
    #[must_use]
    pub fn expires_at(self) -> Option<UnixMs> {
        Some(self.expires_at).filter(|at| *at < UnixMs::MAX)
    }

    /// Whether it has expired at `time`.
    #[must_use]
    pub fn is_expired(self, time: UnixMs) -> bool {
        self.expires_at().is_some_and(|at| at <= time)
    }
}

impl Default for GrantTerms {
    fn default() -> GrantTerms {
        GrantTerms::PLAIN
    }
}

/// Credit of one balance with the same terms.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grant {
    pub(crate) pot: Pot,
    pub(crate) terms: GrantTerms,
    /// The number of holds that took from it.
    pub(crate) holds: u32,
    /// Whether it is in the queue of grants to expire.
    pub(crate) is_queued: bool,
    /// The next grant of the same balance, in spending order.
    pub(crate) next: u32,
}

impl Default for Grant {
    fn default() -> Grant {
        Grant { pot: Pot::default(), terms: GrantTerms::PLAIN, holds: 0, is_queued: false, next: NONE }
    }
}

impl Record for Grant {
    fn link(&self) -> u32 {
        self.next
    }
    fn set_link(&mut self, link: u32) {
        self.next = link;
    }
}

/// The slots of a balance and of the account that owns it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Owner {
    pub(crate) account: u32,
    pub(crate) balance: u32,
}

/// A grant in the queue: by expiry, then by account, asset and priority.
pub(crate) type QueuedGrant = (UnixMs, u32, AssetId, u8);

/// The time by which credit expires: log time, as long as it agrees with the leader's wall time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ExpiryClock {
    /// The log time of the last command at which both clocks agreed.
    pub(crate) time: UnixMs,
    /// Whether the clocks differed at the last command.
    pub(crate) is_waiting: bool,
}

impl ExpiryClock {
    /// The time by which credit expires at log time `now`.
    pub(crate) fn at(self, now: UnixMs) -> UnixMs {
        if self.is_waiting { self.time } else { now }
    }

    /// Takes a time to which log time was moved, while both clocks agree.
    pub(crate) fn skip_to(&mut self, time: UnixMs) {
        if !self.is_waiting {
            self.time = time;
        }
    }

    /// Takes the times of a command.
    pub(crate) fn advance(&mut self, at: Moment) {
        self.is_waiting = at.log.get().abs_diff(at.wall.get()) > EXPIRY_SKEW_MS_MAX;
        if !self.is_waiting {
            self.time = self.time.max(at.log);
        }
    }
}

impl State {
    /// The slots of the grants of a balance, in spending order.
    pub(crate) fn grant_slots(&self, balance: &Balance) -> impl Iterator<Item = u32> + '_ {
        let mut slot = balance.grants;
        std::iter::from_fn(move || {
            let found = (slot != NONE).then_some(slot)?;
            slot = self.grants.get(found).next;
            Some(found)
        })
    }

    fn grants_of(&self, balance: &Balance) -> impl Iterator<Item = &Grant> {
        self.grant_slots(balance).map(|slot| self.grants.get(slot))
    }

    /// The grant of a balance with these terms.
    pub(crate) fn grant_of(&self, balance: &Balance, terms: GrantTerms) -> Option<u32> {
        self.grant_slots(balance).find(|slot| self.grants.get(*slot).terms == terms)
    }

    /// The spendable amount of a balance at `now`, its grants included; negative if owed.
    pub(crate) fn available(&self, balance: &Balance, now: UnixMs) -> i128 {
        let time = self.expiry.at(now);
        let live = self.grants_of(balance).filter(|grant| !grant.terms.is_expired(time));
        live.fold(balance.pot.free(&self.nodes, now), |sum, grant| sum.saturating_add(grant.pot.free(&self.nodes, now)))
    }

    /// The amount of a balance that leases hold at `now`, its grants included.
    pub(crate) fn held_at(&self, balance: &Balance, now: UnixMs) -> u64 {
        let held = balance.pot.held_at(&self.nodes, now);
        self.grants_of(balance).fold(held, |sum, grant| sum.saturating_add(grant.pot.held_at(&self.nodes, now)))
    }

    /// The whole amount of a balance: plain credit and all grants, held and expired ones included until that is
    /// recorded.
    pub(crate) fn whole(&self, balance: &Balance) -> i128 {
        self.grants_of(balance).fold(balance.pot.amount, |sum, grant| sum.wrapping_add(grant.pot.amount))
    }
}

impl Credits {
    /// The grants that pay `amount` of a balance, with their shares in spending order. Plain credit pays the rest.
    pub(crate) fn draw(&self, now: UnixMs, balance: u32, amount: u64) -> Vec<(u32, u64)> {
        let state = &self.state;
        let balance = state.balances.get(balance);
        let mut drawn = Vec::new();
        if balance.grants == NONE {
            return drawn;
        }
        let time = state.expiry.at(now);
        let mut left = amount;
        let mut plain_is_left = true;
        for slot in state.grant_slots(balance) {
            let grant = state.grants.get(slot);
            if plain_is_left && grant.terms > GrantTerms::PLAIN {
                plain_is_left = false;
                left = left.saturating_sub(spendable(balance.pot.free(&state.nodes, now)));
            }
            if left == 0 {
                break;
            }
            if grant.terms.is_expired(time) {
                continue;
            }
            let share = left.min(spendable(grant.pot.free(&state.nodes, now)));
            if share > 0 {
                drawn.push((slot, share));
                left = left.saturating_sub(share);
            }
        }
        drawn
    }

    /// Takes `amount` off a balance, in spending order. Plain credit owes the amount that is missing.
    pub(crate) fn take(&mut self, now: UnixMs, balance: u32, amount: u64) {
        let drawn = self.draw(now, balance, amount);
        let mut left = amount;
        for (grant, share) in drawn {
            let pot = &mut self.state.grants.get_mut(grant).pot;
            pot.amount = pot.amount.saturating_sub(share.into());
            left = left.saturating_sub(share);
        }
        let pot = &mut self.state.balances.get_mut(balance).pot;
        pot.amount = pot.amount.saturating_sub(left.into());
    }

    /// Applies what is due on a balance: issues its plan, records the expiry of its grants, forgets empty ones, and
    /// covers debt with those that are left.
    pub(crate) fn apply_due(&mut self, now: UnixMs, owner: Owner) {
        self.apply_plan(now, owner);
        if self.state.balances.get(owner.balance).grants == NONE {
            return;
        }
        self.expire_grants(now, owner);
        if self.state.balances.get(owner.balance).pot.amount < 0 {
            self.cover_debt(now, owner);
        }
    }

    /// Applies what is due on all balances of an account.
    pub(crate) fn apply_due_on(&mut self, now: UnixMs, account: u32) {
        let mut balance = self.state.accounts.get(account).balances;
        while balance != NONE {
            self.apply_due(now, Owner { account, balance });
            balance = self.state.balances.get(balance).next;
        }
    }

    /// Records the expiry of what is free in expired grants, and removes the grants that are empty then.
    fn expire_grants(&mut self, now: UnixMs, owner: Owner) {
        let time = self.state.expiry.at(now);
        let carried = self.carried_terms(now, owner);
        let (mut last, mut slot) = (NONE, self.state.balances.get(owner.balance).grants);
        while slot != NONE {
            let State { grants, nodes, .. } = &mut self.state;
            let grant = grants.get(slot);
            let (terms, next) = (grant.terms, grant.next);
            if terms.is_expired(time) && Some(terms) != carried {
                let free = grant.pot.free(nodes, now);
                if free > 0 {
                    let pot = &mut grants.get_mut(slot).pot;
                    pot.amount = pot.amount.saturating_sub(free);
                    self.record_expiry(now, owner, terms, free);
                }
            }
            let grant = self.state.grants.get(slot);
            if grant.pot.amount == 0 && grant.holds == 0 {
                self.forget_grant(now, owner, (last, slot));
            } else {
                last = slot;
            }
            slot = next;
        }
    }

    /// Removes an empty grant, which follows `last` in the list of its balance.
    fn forget_grant(&mut self, now: UnixMs, owner: Owner, (last, slot): (u32, u32)) {
        let asset = self.state.balances.get(owner.balance).asset;
        let State { balances, grants, nodes, .. } = &mut self.state;
        let grant = grants.get_mut(slot);
        grant.pot.held.expire(nodes, now);
        let Grant { terms, is_queued, next, .. } = *grant;
        if last == NONE {
            balances.get_mut(owner.balance).grants = next;
        } else {
            grants.get_mut(last).next = next;
        }
        grants.remove(slot);
        if is_queued {
            self.grant_queue.remove(&(terms.expires_at, owner.account, asset, terms.priority));
        }
    }

    /// Counts expired credit and adds its entry to the journal.
    fn record_expiry(&mut self, now: UnixMs, owner: Owner, terms: GrantTerms, amount: i128) {
        let at = self.moment(now);
        let asset = self.state.balances.get(owner.balance).asset;
        let vault = self.state.accounts.get(owner.account).vault;
        let Some(vault) = self.state.vaults.get_mut(&vault) else { return };
        if let Some(totals) = vault.assets.get_mut(usize::from(asset.0)) {
            totals.expired = totals.expired.saturating_add(amount);
        }
        let (namespace, account) = (vault.namespace, AccountId(owner.account));
        self.journal.push(JournalRecord::Expire(ExpireEntry { at, namespace, account, asset, amount, terms }));
    }

    /// Moves free credit of grants to plain credit that is owed, in spending order.
    fn cover_debt(&mut self, now: UnixMs, owner: Owner) {
        let owed = self.state.balances.get(owner.balance).pot.amount.saturating_neg();
        let mut covered = 0_i128;
        let time = self.state.expiry.at(now);
        let mut slot = self.state.balances.get(owner.balance).grants;
        while slot != NONE {
            let State { grants, nodes, .. } = &mut self.state;
            let grant = grants.get_mut(slot);
            slot = grant.next;
            if grant.terms.is_expired(time) {
                continue;
            }
            let left = owed.saturating_sub(covered);
            let share = grant.pot.free(nodes, now).clamp(0, left);
            grant.pot.amount = grant.pot.amount.saturating_sub(share);
            covered = covered.saturating_add(share);
        }
        let pot = &mut self.state.balances.get_mut(owner.balance).pot;
        pot.amount = pot.amount.saturating_add(covered);
        if covered > 0 {
            self.expire_grants(now, owner);
        }
    }

    /// Adds `change` to the credit of a balance with these terms.
    pub(crate) fn change_grant(&mut self, owner: Owner, terms: GrantTerms, change: i128) {
        let balance = self.state.balances.get(owner.balance);
        let slot = self.state.grant_of(balance, terms).unwrap_or_else(|| self.add_grant(owner, terms, true));
        let pot = &mut self.state.grants.get_mut(slot).pot;
        pot.amount = pot.amount.saturating_add(change);
    }

    /// Adds an empty grant to the list of its balance, and to the queue if `is_queued` and it expires.
    pub(crate) fn add_grant(&mut self, owner: Owner, terms: GrantTerms, is_queued: bool) -> u32 {
        let balance = self.state.balances.get(owner.balance);
        let asset = balance.asset;
        let before = self.state.grant_slots(balance).take_while(|slot| self.state.grants.get(*slot).terms < terms);
        let last = before.last();
        let next = last.map_or(balance.grants, |last| self.state.grants.get(last).next);
        let is_queued = is_queued && terms.expires_at().is_some();
        let slot = self.state.grants.insert(Grant { terms, is_queued, next, ..Grant::default() });
        match last {
            Some(last) => self.state.grants.get_mut(last).next = slot,
            None => self.state.balances.get_mut(owner.balance).grants = slot,
        }
        if is_queued {
            self.grant_queue.insert((terms.expires_at, owner.account, asset, terms.priority));
        }
        slot
    }

    /// Records the expiry of a bounded number of grants.
    pub(crate) fn advance_grants(&mut self, now: UnixMs) {
        for _ in 0..CLEAN_GRANTS {
            let Some(&(expires_at, account, asset, priority)) = self.grant_queue.first() else { return };
            if expires_at > self.state.expiry.at(now) {
                return;
            }
            self.grant_queue.pop_first();
            let Some(balance) = self.state.balance(account, asset) else { continue };
            let terms = GrantTerms { priority, expires_at };
            if let Some(slot) = self.state.grant_of(self.state.balances.get(balance), terms) {
                self.state.grants.get_mut(slot).is_queued = false;
            }
            self.apply_due(now, Owner { account, balance });
        }
    }

    /// Whether the expiry of a grant is not recorded yet.
    pub(crate) fn is_grant_due(&self, now: UnixMs) -> bool {
        self.grant_queue.first().is_some_and(|(expires_at, ..)| *expires_at <= self.state.expiry.at(now))
    }
}

/// The queue of grants by expiry. A snapshot leaves it out, because every grant knows whether it is queued.
pub(crate) type GrantQueue = BTreeSet<QueuedGrant>;

/// A free amount as the most that one hold or settlement can take of it.
fn spendable(free: i128) -> u64 {
    u64::try_from(free.max(0)).unwrap_or(u64::MAX)
}
