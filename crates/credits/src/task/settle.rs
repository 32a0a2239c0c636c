//! Settles a lease: its holds pay the cost, the rest is returned, and the owner pays what was not held.

use std::collections::BTreeMap;

use earmark_admission::{Amount, SettleAnswer, SettleRequest};
use earmark_core::{AccountName, AccountStatus, Actor, AssetName, EntryPurpose, LimitKey, Overdraft, VaultName};

use super::hold::need;
use super::{AccountView, LeaseStatus, Part, account_view, entry_gate, lease_gate, lease_key, or_itself, settle_gate};
use crate::coin_selection::{BalanceChange, PostingIds};
use crate::id::GateId;
use crate::model::{
    Account, AccountChange, AccountKey, Entry, EntryBody, LeaseKey, Plan, Posting, PostingState, Settlement, VaultKey,
};
use crate::saga::{Draft, Engine, Proposal, Task, TaskError};
use crate::store::{PostingSet, Survey, Surveyed};

/// Settles the holds of a lease.
pub(crate) struct SettleTask {
    lease: LeaseKey,
    actuals: Vec<Amount>,
    is_release: bool,
    actor: Option<Actor>,
}

/// The cost of one hold and who pays it.
#[derive(Clone, Debug)]
struct Charge {
    owner: AccountKey,
    payee: AccountKey,
    asset: AssetName,
    cost: u64,
    held: u64,
    paid: u64,
    debt: u64,
    uncollected: u64,
}

impl Charge {
    /// The part of the cost that the hold does not cover.
    fn missing(&self) -> u64 {
        self.cost.saturating_sub(self.held)
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

impl SettleTask {
    pub(crate) fn new(request: &SettleRequest, actor: Option<Actor>) -> SettleTask {
        SettleTask {
            lease: lease_key(&request.namespace, request.lease),
            actuals: request.actuals.clone(),
            is_release: request.is_release,
            actor: or_itself(actor),
        }
    }

    fn cost(&self, part: &Part) -> u64 {
        let said = self.actuals.iter().find(|actual| actual.key == part.terms.limit);
        let unsaid = if self.is_release { 0 } else { part.terms.amount };
        said.map_or(unsaid, |actual| actual.amount)
    }

    fn ignored<'a>(&self, held: impl Iterator<Item = &'a LimitKey>) -> Vec<LimitKey> {
        let held: Vec<&LimitKey> = held.collect();
        let keys = self.actuals.iter().map(|actual| &actual.key);
        keys.filter(|key| !held.contains(key)).cloned().collect()
    }

    /// The charges that the holds cover. The owner pays nothing yet.
    fn first_charges(&self, parts: &[Part]) -> Vec<Charge> {
        let charge = |part: &Part| {
            let account = |name: &AccountName| AccountKey { home: part.home.clone(), account: name.clone() };
            let held = if part.posting.is_some() { part.terms.amount } else { 0 };
            let cost = self.cost(part);
            Charge {
                owner: account(&part.terms.account),
                payee: account(&part.terms.revenue),
                asset: part.terms.asset.clone(),
                cost,
                held,
                paid: cost.min(held),
                debt: 0,
                uncollected: 0,
            }
        };
        parts.iter().map(charge).collect()
    }

    /// Charges the owners what their holds did not cover, one hold after the other.
    async fn charge_owners(
        &self,
        engine: &Engine,
        parts: &[Part],
        owners: &[Option<Account>],
        mut charges: Vec<Charge>,
    ) -> Result<Charged, TaskError> {
        // The balance of each owner, including what its holds return.
        let mut balances: BTreeMap<(AccountKey, AssetName), i128> = BTreeMap::new();
        for charge in &charges {
            let balance = balances.entry((charge.owner.clone(), charge.asset.clone())).or_default();
            *balance = balance.saturating_add(charge.returned());
        }
        let mut wanted: BTreeMap<(AccountKey, AssetName), i128> = BTreeMap::new();
        for charge in charges.iter().filter(|charge| charge.missing() > 0) {
            let sum = wanted.entry((charge.owner.clone(), charge.asset.clone())).or_default();
            *sum = sum.saturating_add(charge.missing().into());
        }
        for (key, missing) in wanted {
            let (account, asset) = key.clone();
            let found = engine.call(engine.store.spendable(account.clone(), asset, engine.time.now())).await?;
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
        for ((charge, part), owner) in charges.iter_mut().zip(parts).zip(owners) {
            let missing = charge.missing();
            let key = (charge.owner.clone(), charge.asset.clone());
            let Some(balance) = balances.get_mut(&key) else { continue };
            let has = missing.min(u64::try_from((*balance).max(0)).unwrap_or(u64::MAX));
            let taken = match owner {
                None => 0,
                Some(owner) if owner.standing == AccountStatus::Closed => 0,
                Some(owner) if part.terms.keeps_debt || owner.overdraft == Overdraft::Allow => missing,
                Some(_) => has,
            };
            *balance = balance.saturating_sub(taken.into());
            charge.paid = charge.paid.saturating_add(taken);
            charge.debt = taken.saturating_sub(has);
            charge.uncollected = missing.saturating_sub(taken);
        }
        Ok(Charged::Charges(charges))
    }

    /// Settles the holds. Fresh holds of this process that cover the cost need no read: the commit detects an account
    /// that can no longer be paid.
    async fn settle(
        &self,
        engine: &Engine,
        parts: &[Part],
        attempt: u32,
        is_fresh: bool,
    ) -> Result<Proposal<SettleAnswer>, TaskError> {
        let mut charges = self.first_charges(parts);
        let hoped = moves(&charges, &[]);
        let own = |charge: &Charge| AccountKey {
            home: charge.payee.home.clone(),
            account: AccountName::new(AccountName::REVENUE).unwrap_or_else(|_| charge.payee.account.clone()),
        };
        let accounts: Vec<AccountKey> = (charges.iter().map(|charge| charge.owner.clone()))
            .chain(charges.iter().map(|charge| charge.payee.clone()))
            .chain(charges.iter().map(own))
            .collect();
        let (posting_sets, mut merge_permits) = engine.posting_queries(&hoped, attempt > 1);
        let needs_no_look = is_fresh
            && charges.iter().all(|charge| charge.missing() == 0)
            && posting_sets.iter().all(|posting_set| posting_set.smallest == 0 && posting_set.count_max == 0);
        let mut found = match needs_no_look {
            true => as_usual(accounts.len(), posting_sets.len()),
            false => engine.survey(Survey { accounts, posting_sets, ..Survey::default() }).await?,
        };
        let count = charges.len();
        let mut owners = Vec::with_capacity(count);
        for (place, charge) in charges.iter_mut().enumerate() {
            let at = |place: usize| account_view(found.accounts.get(place).copied().flatten());
            match at(place) {
                AccountView::InDoubt => return Ok(Proposal::Wait(None)),
                AccountView::Missing => owners.push(None),
                AccountView::Present(owner) => owners.push(Some(owner)),
            }
            match at(place.saturating_add(count)) {
                AccountView::InDoubt => return Ok(Proposal::Wait(None)),
                AccountView::Present(payee) if payee.standing != AccountStatus::Closed => {}
                AccountView::Present(_) | AccountView::Missing => charge.payee = own(charge),
            }
        }
        let charges = match self.charge_owners(engine, parts, &owners, charges).await? {
            Charged::Charges(charges) => charges,
            Charged::Wait => return Ok(Proposal::Wait(None)),
        };
        let moves = moves(&charges, &owners);
        let mut permits = engine.queue_payers(&moves).await;
        let is_as_hoped = moves.len() == hoped.len()
            && moves.iter().zip(&hoped).all(|(a, b)| (&a.account, a.change) == (&b.account, b.change));
        if !is_as_hoped {
            let (posting_sets, again) = engine.posting_queries(&moves, attempt > 1);
            merge_permits.extend(again);
            found = engine.call(engine.store.survey(Survey { posting_sets, ..Survey::default() })).await?;
        }
        permits.extend(merge_permits);
        let rid = engine.new_rid();
        let selected = engine.select_postings(&mut PostingIds::new(rid), &moves, &found.posting_sets).await?;
        // On a shortage the owner spent its balance meanwhile, so the rows are read again.
        let selection = match selected.or_propose(|_, _| Proposal::Wait(None)) {
            Ok(selection) => selection,
            Err(proposal) => return Ok(proposal),
        };
        let held = parts.iter().filter_map(|part| part.posting.as_ref());
        let held: Vec<Posting> = held.map(|(posting, _)| posting.clone()).collect();
        let mut plan = Plan {
            inputs: [held, selection.inputs].concat(),
            outputs: selection.outputs,
            entries: entries(engine, self.actor.as_ref(), parts, &charges),
            ..Plan::default()
        };
        for each in &moves {
            need(&mut plan, &each.account, false);
        }
        let Some(first) = parts.first() else { return Ok(Proposal::Answer(SettleAnswer::default())) };
        let (gate, lease) = (settle_gate(&first.home, &first.terms), Some(self.lease.clone()));
        Ok(Proposal::Commit(Box::new(Draft { gate, rid, lease, plan, taken: selection.taken, permits })))
    }

    /// Records that an unknown lease has ended, so that a later hold of it is refused.
    fn mark(&self, engine: &Engine) -> Proposal<SettleAnswer> {
        let Ok(vault) = VaultName::new(VaultName::MAIN) else {
            return Proposal::Answer(SettleAnswer::default());
        };
        let home = VaultKey { namespace: self.lease.namespace.clone(), vault };
        let body = EntryBody::Ended { lease: self.lease.lease };
        let entry = Entry { home, at: engine.time.moment(), body, changes: Vec::new() };
        Proposal::Commit(Box::new(Draft {
            gate: lease_gate(&self.lease),
            rid: engine.new_rid(),
            lease: Some(self.lease.clone()),
            plan: Plan { entries: vec![entry], ..Plan::default() },
            taken: Vec::new(),
            permits: Vec::new(),
        }))
    }
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
    let mut sums: BTreeMap<(&AccountKey, &AssetName), (i128, Overdraft)> = BTreeMap::new();
    for (place, charge) in charges.iter().enumerate() {
        let owner = sums.entry((&charge.owner, &charge.asset)).or_insert((0, Overdraft::Deny));
        owner.0 = owner.0.saturating_add(charge.returned());
        let may_owe = owners.get(place).copied().flatten().map(|owner| owner.overdraft);
        if charge.debt > 0 || may_owe == Some(Overdraft::Allow) {
            owner.1 = Overdraft::Allow;
        }
        let payee = sums.entry((&charge.payee, &charge.asset)).or_insert((0, Overdraft::Deny));
        payee.0 = payee.0.saturating_add(charge.paid.into());
    }
    let changes = sums.into_iter().filter(|(_, (change, _))| *change != 0);
    changes
        .map(|((account, asset), (change, overdraft))| BalanceChange {
            account: account.clone(),
            asset: asset.clone(),
            change,
            overdraft,
            is_deposit: false,
        })
        .collect()
}

fn entries(engine: &Engine, actor: Option<&Actor>, parts: &[Part], charges: &[Charge]) -> Vec<Entry> {
    let at = engine.time.moment();
    let entry = |(part, charge): (&Part, &Charge)| {
        let body = if charge.cost == 0 {
            EntryBody::Release { terms: part.terms.clone(), actor: actor.cloned() }
        } else {
            EntryBody::Settle(Settlement {
                hold: part.terms.clone(),
                held: charge.held,
                revenue: charge.payee.account.clone(),
                paid: charge.paid,
                debt: charge.debt,
                uncollected: charge.uncollected,
                actor: actor.cloned(),
            })
        };
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
        Entry { home: part.home.clone(), at, body, changes: changes.collect() }
    };
    parts.iter().zip(charges).map(entry).collect()
}

impl Task for SettleTask {
    type Answer = SettleAnswer;

    fn key(&self) -> GateId {
        lease_gate(&self.lease)
    }

    async fn propose(&self, engine: &Engine, attempt: u32) -> Result<Proposal<SettleAnswer>, TaskError> {
        let ignored = || self.ignored([].into_iter());
        let now = engine.time.now();
        let recent = engine.recent_holds.take(&self.lease);
        if let Some(parts) = recent.filter(|parts| parts.iter().all(|part| !part.is_over(now))) {
            return self.settle(engine, &parts, attempt, true).await;
        }
        let parts = match engine.lease_status(&self.lease).await? {
            LeaseStatus::Unknown => return Ok(self.mark(engine)),
            LeaseStatus::Marked | LeaseStatus::Refused { .. } => {
                return Ok(Proposal::Answer(SettleAnswer { ignored: ignored(), ..SettleAnswer::default() }));
            }
            LeaseStatus::Settled => {
                return Ok(Proposal::Answer(SettleAnswer { is_known: true, ..SettleAnswer::default() }));
            }
            LeaseStatus::Holds(parts) => parts,
        };
        for part in &parts {
            match &part.posting {
                None if part.is_released => {}
                None => {
                    // The hold is being returned, and its owner's balance is not complete yet.
                    let gate = entry_gate(&part.home, EntryPurpose::Release(part.terms.lease, &part.terms.limit));
                    engine.unblock(gate, None).await?;
                    return Ok(Proposal::Wait(None));
                }
                Some((_, PostingState::Pending(_) | PostingState::Inactive(_))) => {
                    return Ok(Proposal::Wait(None));
                }
                Some((posting, PostingState::Active)) if part.is_over(engine.time.now()) => {
                    engine.release(posting.clone()).await?;
                    return Ok(Proposal::Wait(None));
                }
                Some((_, PostingState::Active)) => {}
            }
        }
        self.settle(engine, &parts, attempt, false).await
    }

    async fn done(&self, _: &Engine, gate: GateId, plan: &Plan) -> Result<SettleAnswer, TaskError> {
        let mut answer = SettleAnswer { is_known: gate != self.key(), ..SettleAnswer::default() };
        let mut limits = Vec::new();
        for entry in &plan.entries {
            match &entry.body {
                EntryBody::Settle(settlement) => {
                    limits.push(&settlement.hold.limit);
                    answer.paid = answer.paid.saturating_add(settlement.paid);
                    answer.debt = answer.debt.saturating_add(settlement.debt);
                    answer.uncollected = answer.uncollected.saturating_add(settlement.uncollected);
                }
                EntryBody::Release { terms, .. } => limits.push(&terms.limit),
                _ => {}
            }
        }
        // Debt is part of what the revenue account received, but the owner did not have it.
        answer.paid = answer.paid.saturating_sub(answer.debt);
        answer.ignored = self.ignored(limits.into_iter());
        Ok(answer)
    }
}
