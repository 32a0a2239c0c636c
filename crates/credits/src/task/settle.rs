//! A lease says what it cost: its holds pay, the rest goes back, and the owner pays what was not held.

use std::collections::BTreeMap;

use earmark_admission::{Amount, SettleAnswer, SettleRequest};
use earmark_core::{AccountName, Actor, AssetName, LimitKey, Overdraft, Standing, VaultName, What};

use super::hold::need;
use super::{LeaseStory, Part, Seen, entry_gate, lease_gate, lease_key, or_itself, seen, settle_gate};
use crate::gather::{Gathered, Move, Namer};
use crate::id::GateId;
use crate::model::{
    Account, AccountChange, AccountKey, Entry, EntryBody, LeaseKey, Plan, Posting, PostingState, Settlement,
    VaultKey,
};
use crate::saga::{Draft, Engine, Proposal, Task, Trouble};
use crate::store::{Purse, Survey, Surveyed};

/// Settles the holds of a lease.
pub(crate) struct SettleTask {
    lease: LeaseKey,
    actuals: Vec<Amount>,
    is_release: bool,
    actor: Option<Actor>,
}

/// What one hold costs, and who pays how much of it.
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
    /// What the hold did not cover.
    fn missing(&self) -> u64 {
        self.cost.saturating_sub(self.held)
    }

    /// What the owner gets back, or gives if below zero.
    fn returned(&self) -> i128 {
        i128::from(self.held).saturating_sub(self.paid.into())
    }
}

/// What a settlement can go on with.
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

    /// What every hold pays by itself. The owner has not paid anything yet.
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

    /// Lets the owners pay what their holds did not cover, one hold after the other.
    async fn charge_owners(
        &self,
        engine: &Engine,
        parts: &[Part],
        owners: &[Option<Account>],
        mut charges: Vec<Charge>,
    ) -> Result<Charged, Trouble> {
        // What each owner can spend, with what comes back from its holds.
        let mut purses: BTreeMap<(AccountKey, AssetName), i128> = BTreeMap::new();
        for charge in &charges {
            let purse = purses.entry((charge.owner.clone(), charge.asset.clone())).or_default();
            *purse = purse.saturating_add(charge.returned());
        }
        let mut wanted: BTreeMap<(AccountKey, AssetName), i128> = BTreeMap::new();
        for charge in charges.iter().filter(|charge| charge.missing() > 0) {
            let sum = wanted.entry((charge.owner.clone(), charge.asset.clone())).or_default();
            *sum = sum.saturating_add(charge.missing().into());
        }
        for (key, missing) in wanted {
            let (account, asset) = key.clone();
            let found = engine.call(engine.store.reach(account.clone(), asset, engine.time.now())).await?;
            let purse = purses.entry(key).or_default();
            *purse = purse.saturating_add(found.active);
            if *purse < missing && found.due > 0 {
                engine.sweep_account(account).await?;
                return Ok(Charged::Wait);
            }
            // What others are about to spend may still come back.
            if *purse < missing && found.pending != 0 {
                return Ok(Charged::Wait);
            }
        }
        for ((charge, part), owner) in charges.iter_mut().zip(parts).zip(owners) {
            let missing = charge.missing();
            let Some(purse) = purses.get_mut(&(charge.owner.clone(), charge.asset.clone())) else { continue };
            let has = missing.min(u64::try_from((*purse).max(0)).unwrap_or(u64::MAX));
            let taken = match owner {
                None => 0,
                Some(owner) if owner.standing == Standing::Closed => 0,
                Some(owner) if part.terms.keeps_debt || owner.overdraft == Overdraft::Allow => missing,
                Some(_) => has,
            };
            *purse = purse.saturating_sub(taken.into());
            charge.paid = charge.paid.saturating_add(taken);
            charge.debt = taken.saturating_sub(has);
            charge.uncollected = missing.saturating_sub(taken);
        }
        Ok(Charged::Charges(charges))
    }

    /// Settles what is held. If it was held here a moment ago, and covers what it cost, nobody need look first: an account that
    /// cannot be paid any more is found out with the decision.
    async fn settle(
        &self,
        engine: &Engine,
        parts: &[Part],
        attempt: u32,
        is_fresh: bool,
    ) -> Result<Proposal<SettleAnswer>, Trouble> {
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
        let (purses, mut turns) = engine.questions(&hoped, attempt > 1);
        let needs_no_look = is_fresh
            && charges.iter().all(|charge| charge.missing() == 0)
            && purses.iter().all(|purse| purse.smallest == 0 && purse.count_max == 0);
        let mut found = match needs_no_look {
            true => as_usual(accounts.len(), purses.len()),
            false => engine.survey(Survey { accounts, purses, ..Survey::default() }).await?,
        };
        let count = charges.len();
        let mut owners = Vec::with_capacity(count);
        for (place, charge) in charges.iter_mut().enumerate() {
            let at = |place: usize| seen(found.accounts.get(place).copied().flatten());
            match at(place) {
                Seen::InDoubt => return Ok(Proposal::Wait(None)),
                Seen::Missing => owners.push(None),
                Seen::There(owner) => owners.push(Some(owner)),
            }
            match at(place.saturating_add(count)) {
                Seen::InDoubt => return Ok(Proposal::Wait(None)),
                Seen::There(payee) if payee.standing != Standing::Closed => {}
                Seen::There(_) | Seen::Missing => charge.payee = own(charge),
            }
        }
        let charges = match self.charge_owners(engine, parts, &owners, charges).await? {
            Charged::Charges(charges) => charges,
            Charged::Wait => return Ok(Proposal::Wait(None)),
        };
        let moves = moves(&charges, &owners);
        let mut permits = engine.queue(&moves).await;
        let is_as_hoped = moves.len() == hoped.len()
            && moves.iter().zip(&hoped).all(|(a, b)| (&a.account, a.change) == (&b.account, b.change));
        if !is_as_hoped {
            let (purses, again) = engine.questions(&moves, attempt > 1);
            turns.extend(again);
            found = engine.call(engine.store.survey(Survey { purses, ..Survey::default() })).await?;
        }
        permits.extend(turns);
        let rid = engine.new_rid();
        let gathering = match engine.gather(&mut Namer::new(rid), &moves, &found.purses).await? {
            Gathered::Postings(gathering) => gathering,
            Gathered::Busy(lane) => return Ok(Proposal::Busy(lane)),
            Gathered::Wait(lane) => return Ok(Proposal::Wait(lane)),
            // What an owner had is gone since, or what it has cannot be counted: look again.
            Gathered::Short(_) | Gathered::OutOfRange(_) => return Ok(Proposal::Wait(None)),
        };
        let held = parts.iter().filter_map(|part| part.posting.as_ref());
        let held: Vec<Posting> = held.map(|(posting, _)| posting.clone()).collect();
        let mut plan = Plan {
            inputs: [held, gathering.inputs].concat(),
            outputs: gathering.outputs,
            entries: entries(engine, self.actor.as_ref(), parts, &charges),
            ..Plan::default()
        };
        for each in &moves {
            need(&mut plan, &each.account, false);
        }
        let Some(first) = parts.first() else { return Ok(Proposal::Answer(SettleAnswer::default())) };
        let (gate, lease) = (settle_gate(&first.home, &first.terms), Some(self.lease.clone()));
        Ok(Proposal::Commit(Box::new(Draft { gate, rid, lease, plan, taken: gathering.taken, permits })))
    }

    /// A lease that nobody knows has ended: a hold of it that comes later finds that.
    fn mark(&self, engine: &Engine) -> Proposal<SettleAnswer> {
        let Ok(vault) = VaultName::new(VaultName::MAIN) else {
            return Proposal::Answer(SettleAnswer::default());
        };
        let home = VaultKey { namespace: self.lease.namespace.clone(), vault };
        let body = EntryBody::Ended { lease: self.lease.lease };
        let entry = Entry { home, at: engine.time.now(), body, changes: Vec::new() };
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

/// What a look would find where nothing is unusual: accounts that are open, and that owe nothing.
fn as_usual(accounts: usize, purses: usize) -> Surveyed {
    let open = Account { standing: Standing::Open, overdraft: Overdraft::Deny, claim: None };
    Surveyed {
        accounts: vec![Some(open); accounts],
        purses: vec![Purse::default(); purses],
        ..Surveyed::default()
    }
}

/// What all charges together change, by account and asset.
fn moves(charges: &[Charge], owners: &[Option<Account>]) -> Vec<Move> {
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
        .map(|((account, asset), (change, overdraft))| Move {
            account: account.clone(),
            asset: asset.clone(),
            change,
            overdraft,
            is_deposit: false,
        })
        .collect()
}

fn entries(engine: &Engine, actor: Option<&Actor>, parts: &[Part], charges: &[Charge]) -> Vec<Entry> {
    let at = engine.time.now();
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

    async fn propose(&self, engine: &Engine, attempt: u32) -> Result<Proposal<SettleAnswer>, Trouble> {
        let ignored = || self.ignored([].into_iter());
        let now = engine.time.now();
        let recent = engine.recent_holds.take(&self.lease);
        if let Some(parts) = recent.filter(|parts| parts.iter().all(|part| !part.is_over(now))) {
            return self.settle(engine, &parts, attempt, true).await;
        }
        let parts = match engine.story(&self.lease).await? {
            LeaseStory::Unknown => return Ok(self.mark(engine)),
            LeaseStory::Marked | LeaseStory::Refused { .. } => {
                return Ok(Proposal::Answer(SettleAnswer { ignored: ignored(), ..SettleAnswer::default() }));
            }
            LeaseStory::Settled => {
                return Ok(Proposal::Answer(SettleAnswer { is_known: true, ..SettleAnswer::default() }));
            }
            LeaseStory::Holds(parts) => parts,
        };
        for part in &parts {
            match &part.posting {
                None if part.is_released => {}
                None => {
                    // It is on its way back, and what its owner has is not all there yet.
                    let gate = entry_gate(&part.home, What::Release(part.terms.lease, &part.terms.limit));
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

    async fn done(&self, _: &Engine, gate: GateId, plan: &Plan) -> Result<SettleAnswer, Trouble> {
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
        // Debt is part of what the revenue account got, and no part of what the owner had.
        answer.paid = answer.paid.saturating_sub(answer.debt);
        answer.ignored = self.ignored(limits.into_iter());
        Ok(answer)
    }
}
