//! Charges the cost of holds: they pay it, the rest is returned, and the owner pays what was not held.

use std::collections::BTreeMap;

use earmark_core::{AccountName, AccountStatus, Actor, AssetName, GrantTerms, Overdraft, SettleLabels, UnixMs};

use super::hold::need;
use super::{AccountView, Part, account_view, or_itself};
use crate::coin_selection::grants::{plain_share, split_shares};
use crate::coin_selection::{BalanceChange, PostingIds};
use crate::id::GateId;
use crate::model::{
    Account, AccountChange, AccountKey, Entry, EntryBody, EntryReason, GrantShare, LeaseKey, Plan, Posting, Settlement,
};
use crate::saga::{Draft, Engine, Proposal, TaskError};
use crate::store::{PostingSet, Survey, Surveyed};

/// Holds to settle in one plan: all of a lease, or one at its timeout.
pub(super) struct Settling<'a> {
    pub(super) lease: &'a LeaseKey,
    pub(super) parts: &'a [Part],
    /// The whole cost of each part, including what its timeout paid.
    pub(super) costs: Vec<u64>,
    pub(super) gate: GateId,
    /// The caller; `None` for Earmark itself.
    pub(super) actor: Option<&'a Actor>,
    pub(super) is_timeout: bool,
    /// The labels of the entries; none for a timeout.
    pub(super) labels: &'a SettleLabels,
}

/// The cost of one hold and who pays it.
#[derive(Clone, Debug)]
struct Charge {
    owner: AccountKey,
    payee: AccountKey,
    asset: AssetName,
    /// The cost that was not paid before.
    cost: u64,
    held: u64,
    paid: u64,
    debt: u64,
    uncollected: u64,
    /// The plain credit in the hold.
    released: i128,
    /// The shares of the hold that return to the owner.
    returns: Vec<GrantShare>,
}

impl Charge {
    /// The part of the cost that the hold does not cover.
    fn missing(&self) -> u64 {
        self.cost.saturating_sub(self.held)
    }

    /// The part of the hold that returns.
    fn left(&self) -> u64 {
        self.returns.iter().fold(0, |sum, share| sum.saturating_add(share.amount))
    }

    /// Whether a part of the hold returns to a grant.
    fn returns_to_grants(&self) -> bool {
        self.returns.iter().any(|share| share.terms != GrantTerms::PLAIN)
    }

    /// The amount that returns to the owner and has not expired.
    fn usable(&self, expiry: UnixMs) -> i128 {
        let usable = self.returns.iter().filter(|share| !share.terms.is_expired(expiry));
        usable.fold(0, |sum, share| sum.saturating_add(share.amount.into()))
    }

    /// The amount returned to the owner; negative if the owner pays.
    fn returned(&self) -> i128 {
        i128::from(self.held).saturating_sub(self.paid.into())
    }
}

/// The charges, unless another saga must end first.
enum Charged {
    Charges(Vec<Charge>),
    Wait,
}

impl Settling<'_> {
    /// The charges that the holds cover. The owner pays nothing yet.
    fn first_charges(&self) -> Vec<Charge> {
        let charge = |(part, cost): (&Part, &u64)| {
            let account = |name: &AccountName| AccountKey { home: part.home.clone(), account: name.clone() };
            let held = if part.posting.is_some() { part.amount() } else { 0 };
            // The payment at the timeout is neither repeated nor refunded.
            let cost = cost.saturating_sub(part.paid_at_timeout.unwrap_or(0));
            // The credit that is spent first pays.
            let shares = part.held().map_or_else(Vec::new, |(posting, _)| posting.shares());
            let (_, returns) = split_shares(&shares, cost);
            Charge {
                owner: account(&part.terms.account),
                payee: account(&part.terms.revenue),
                asset: part.terms.asset.clone(),
                cost,
                held,
                paid: cost.min(held),
                debt: 0,
                uncollected: 0,
                released: plain_share(&shares),
                returns,
            }
        };
        self.parts.iter().zip(&self.costs).map(charge).collect()
    }

    /// Charges the owners what their holds did not cover, one hold after the other.
    async fn charge_owners(
        &self,
        engine: &Engine,
        owners: &[Option<Account>],
        mut charges: Vec<Charge>,
    ) -> Result<Charged, TaskError> {
        // The balance of each owner, including what its holds return.
        let mut balances: BTreeMap<(AccountKey, AssetName), i128> = BTreeMap::new();
        let as_of = engine.time.as_of();
        for charge in &charges {
            let balance = balances.entry((charge.owner.clone(), charge.asset.clone())).or_default();
            *balance = balance.saturating_add(charge.usable(as_of.expiry));
        }
        let mut wanted: BTreeMap<(AccountKey, AssetName), i128> = BTreeMap::new();
        for charge in charges.iter().filter(|charge| charge.missing() > 0) {
            let sum = wanted.entry((charge.owner.clone(), charge.asset.clone())).or_default();
            *sum = sum.saturating_add(charge.missing().into());
        }
        for (key, missing) in wanted {
            let (account, asset) = key.clone();
            let found = engine.call(engine.store.spendable(account.clone(), asset, as_of)).await?;
            let balance = balances.entry(key).or_default();
            *balance = balance.saturating_add(found.active);
            if *balance < missing && found.due > 0 {
                engine.sweep_account(account).await?;
                return Ok(Charged::Wait);
            }
            // Pending postings may still come back.
            if *balance < missing && found.pending != 0 {
                return Ok(Charged::Wait);
            }
        }
        for ((charge, part), owner) in charges.iter_mut().zip(self.parts).zip(owners) {
            let missing = charge.missing();
            let key = (charge.owner.clone(), charge.asset.clone());
            let Some(balance) = balances.get_mut(&key) else { continue };
            let has = missing.min(u64::try_from((*balance).max(0)).unwrap_or(u64::MAX));
            let taken = match owner {
                None => 0,
                Some(owner) if owner.standing == AccountStatus::Closed => 0,
                Some(owner) if part.terms.keeps_debt || owner.overdraft.settles_below_zero() => missing,
                Some(_) => has,
            };
            *balance = balance.saturating_sub(taken.into());
            charge.paid = charge.paid.saturating_add(taken);
            charge.debt = taken.saturating_sub(has);
            charge.uncollected = missing.saturating_sub(taken);
        }
        Ok(Charged::Charges(charges))
    }

    /// Proposes the settlement. Fresh holds that cover the cost need no read: the commit detects an account that can no
    /// longer be paid. But credit that returns to a grant covers the debt of its owner first, so that is read.
    pub(super) async fn propose<A>(
        &self,
        engine: &Engine,
        attempt: u32,
        is_fresh: bool,
    ) -> Result<Proposal<A>, TaskError> {
        let mut charges = self.first_charges();
        let hoped = moves(&charges, &[]);
        let accounts: Vec<AccountKey> = (charges.iter().map(|charge| charge.owner.clone()))
            .chain(charges.iter().map(|charge| charge.payee.clone()))
            .chain(charges.iter().map(own))
            .collect();
        let (posting_sets, mut merge_permits) = engine.posting_queries(&hoped, attempt > 1);
        let needs_no_look = is_fresh
            && charges.iter().all(|charge| charge.missing() == 0 && !charge.returns_to_grants())
            && posting_sets.iter().all(|posting_set| posting_set.smallest == 0 && posting_set.count_max == 0);
        let mut found = match needs_no_look {
            true => as_usual(accounts.len(), posting_sets.len()),
            false => engine.survey(Survey { accounts, posting_sets, ..Survey::default() }).await?,
        };
        let Some(owners) = find_owners(&mut charges, &found) else { return Ok(Proposal::Wait(None)) };
        let charges = match self.charge_owners(engine, &owners, charges).await? {
            Charged::Charges(charges) => charges,
            Charged::Wait => return Ok(Proposal::Wait(None)),
        };
        let mut moves = moves(&charges, &owners);
        let mut permits = match self.is_timeout {
            // Payers wait for timeouts, so timeouts do not wait for payers.
            true => Vec::new(),
            false => engine.queue_payers(&moves).await,
        };
        let is_as_hoped = moves.len() == hoped.len()
            && moves.iter().zip(&hoped).all(|(a, b)| (&a.account, a.change) == (&b.account, b.change));
        if !is_as_hoped {
            let (posting_sets, again) = engine.posting_queries(&moves, attempt > 1);
            merge_permits.extend(again);
            found = engine.call(engine.store.survey(Survey { posting_sets, ..Survey::default() })).await?;
        }
        permits.extend(merge_permits);
        let rid = engine.new_rid();
        let selected = engine.select(&mut PostingIds::new(rid), &mut moves, &found.posting_sets, &[]).await?;
        // On a shortage the owner spent its balance meanwhile, so the rows are read again.
        let selection = match selected.or_propose(|_, _| Proposal::Wait(None)) {
            Ok(selection) => selection,
            Err(proposal) => return Ok(proposal),
        };
        let held = self.parts.iter().filter_map(|part| part.posting.as_ref());
        let held: Vec<Posting> = held.map(|(posting, _)| posting.clone()).collect();
        let mut plan = Plan {
            inputs: [held, selection.inputs].concat(),
            outputs: selection.outputs,
            entries: self.entries(engine, &charges),
            ..Plan::default()
        };
        for each in &moves {
            need(&mut plan, &each.account, false);
        }
        let (gate, lease) = (self.gate, Some(self.lease.clone()));
        Ok(Proposal::Commit(Box::new(Draft { gate, rid, lease, plan, taken: selection.taken, permits })))
    }

    fn reason(&self, part: &Part) -> EntryReason {
        match (self.is_timeout, part.paid_at_timeout) {
            (true, _) => EntryReason::Timeout,
            (false, Some(_)) => EntryReason::Late,
            (false, None) => EntryReason::Complete,
        }
    }

    fn entries(&self, engine: &Engine, charges: &[Charge]) -> Vec<Entry> {
        let at = engine.time.moment();
        let actor = or_itself(self.actor.cloned());
        let entry = |(part, charge): (&Part, &Charge)| {
            let (terms, reason, actor) = (part.terms.clone(), self.reason(part), actor.clone());
            let body = if charge.cost == 0 {
                EntryBody::Release { terms, reason, actor }
            } else {
                EntryBody::Settle(Settlement {
                    hold: terms,
                    reason,
                    held: charge.held,
                    revenue: charge.payee.account.clone(),
                    paid: charge.paid,
                    debt: charge.debt,
                    uncollected: charge.uncollected,
                    actor,
                    labels: self.labels.clone(),
                })
            };
            Entry { home: part.home.clone(), at, body, changes: changes(charge) }
        };
        self.parts.iter().zip(charges).map(entry).collect()
    }
}

/// The vault's own account, which is paid if the payee is closed.
fn own(charge: &Charge) -> AccountKey {
    AccountKey {
        home: charge.payee.home.clone(),
        account: AccountName::new(AccountName::REVENUE).unwrap_or_else(|_| charge.payee.account.clone()),
    }
}

/// The owners of the charges, and the payees that can be paid. `None` if a saga is closing one of them.
fn find_owners(charges: &mut [Charge], found: &Surveyed) -> Option<Vec<Option<Account>>> {
    let count = charges.len();
    let mut owners = Vec::with_capacity(count);
    for (place, charge) in charges.iter_mut().enumerate() {
        let at = |place: usize| account_view(found.accounts.get(place).copied().flatten());
        match at(place) {
            AccountView::InDoubt => return None,
            AccountView::Missing => owners.push(None),
            AccountView::Present(owner) => owners.push(Some(owner)),
        }
        match at(place.saturating_add(count)) {
            AccountView::InDoubt => return None,
            AccountView::Present(payee) if payee.standing != AccountStatus::Closed => {}
            AccountView::Present(_) | AccountView::Missing => charge.payee = own(charge),
        }
    }
    Some(owners)
}

/// The usual result of a survey: open accounts without debt.
fn as_usual(accounts: usize, posting_sets: usize) -> Surveyed {
    let open = Account { standing: AccountStatus::Open, overdraft: Overdraft::Deny, claim: None };
    Surveyed {
        accounts: vec![Some(open); accounts],
        posting_sets: vec![PostingSet::default(); posting_sets],
        ..Surveyed::default()
    }
}

/// The balance changes of all charges, by account and asset.
fn moves(charges: &[Charge], owners: &[Option<Account>]) -> Vec<BalanceChange> {
    let mut sums: BTreeMap<(&AccountKey, &AssetName), BalanceChange> = BTreeMap::new();
    for (place, charge) in charges.iter().enumerate() {
        let none = |account| BalanceChange::plain(account, &charge.asset, 0, Overdraft::Deny);
        let owner = sums.entry((&charge.owner, &charge.asset)).or_insert_with(|| none(&charge.owner));
        owner.change = owner.change.saturating_add(charge.returned());
        owner.spends |= charge.paid > charge.held.saturating_sub(charge.left());
        owner.released = owner.released.saturating_add(charge.released);
        owner.deposits.extend(charge.returns.iter().map(|share| (share.terms, i128::from(share.amount))));
        let may_owe = owners.get(place).copied().flatten().map(|owner| owner.overdraft);
        if charge.debt > 0 || may_owe.is_some_and(Overdraft::settles_below_zero) {
            owner.overdraft = Overdraft::Allow;
        }
        let payee = sums.entry((&charge.payee, &charge.asset)).or_insert_with(|| none(&charge.payee));
        payee.change = payee.change.saturating_add(charge.paid.into());
        payee.deposits.push((GrantTerms::PLAIN, charge.paid.into()));
    }
    sums.into_values().filter(|each| each.change != 0 || each.spends).collect()
}

/// The effects of a charge on the owner and the payee.
fn changes(charge: &Charge) -> Vec<AccountChange> {
    let mut changes: BTreeMap<&AccountName, (i128, i128)> = BTreeMap::new();
    let owner = changes.entry(&charge.owner.account).or_default();
    *owner = (charge.returned(), i128::from(charge.held).saturating_neg());
    let payee = changes.entry(&charge.payee.account).or_default();
    payee.0 = payee.0.saturating_add(charge.paid.into());
    let changes = changes.into_iter().filter(|(_, change)| *change != (0, 0));
    let changes = changes.map(|(account, (amount, held))| AccountChange {
        account: account.clone(),
        asset: charge.asset.clone(),
        amount,
        held,
    });
    changes.collect()
}
