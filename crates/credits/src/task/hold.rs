//! Holds credit for a lease: everything it asks for, or nothing. The answer is final.

use earmark_admission::{HoldAnswer, HoldPart, HoldRequest};
use earmark_core::{
    AccountName, AccountStatus, Actor, AssetName, CreditShortage, GrantTerms, LimitKey, OnTimeout, Overage, Overdraft,
};

use super::{AccountView, LeaseStatus, Part, account_view, first_gate, lease_gate, lease_key, or_itself};
use crate::coin_selection::grants::{in_grants, join_shares, split_shares};
use crate::coin_selection::{BalanceChange, PostingIds};
use crate::id::GateId;
use crate::model::{
    AccountChange, AccountKey, Entry, EntryBody, GrantShare, HoldTerms, LeaseKey, Need, Plan, Posting, PostingHold,
    VaultKey,
};
use crate::saga::{Draft, Engine, Proposal, Task, TaskError};
use crate::store::{Survey, Surveyed};

/// Only amounts this large can bring the holds of one account above 64 bits.
const LARGE: i128 = 1 << 62;

/// Holds credit for a lease.
#[derive(Clone)]
pub(crate) struct HoldTask {
    pub(super) lease: LeaseKey,
    pub(super) wanted: Vec<Wanted>,
    actor: Option<Actor>,
    /// The number of the extension; 0 for the reserve.
    extension: u32,
}

/// One hold that a lease requests.
#[derive(Clone)]
pub(super) struct Wanted {
    pub(super) limit: LimitKey,
    payer: AccountKey,
    revenue: AccountKey,
    asset: AssetName,
    pub(super) amount: u64,
    timeout_ms: u64,
    keeps_debt: bool,
    charges: bool,
}

/// The inputs of a plan of holds.
pub(super) struct Base<'a> {
    pub(super) gate: GateId,
    /// The holds that the lease has, all of them active.
    pub(super) parts: &'a [Part],
}

impl HoldTask {
    /// `None` if a limit is not of kind `credit`.
    pub(crate) fn new(request: &HoldRequest, actor: Option<Actor>) -> Option<HoldTask> {
        HoldTask::of(lease_key(&request.namespace, request.lease), &request.holds, 0, actor)
    }

    /// `None` if a limit is not of kind `credit`.
    pub(super) fn of(lease: LeaseKey, holds: &[HoldPart], extension: u32, actor: Option<Actor>) -> Option<HoldTask> {
        let wanted = holds.iter().map(|part| {
            let terms = part.limit.kind.terms()?;
            let home = VaultKey { namespace: lease.namespace.clone(), vault: terms.vault.clone() };
            let account = |name: &AccountName| AccountKey { home: home.clone(), account: name.clone() };
            Some(Wanted {
                limit: part.limit.key.clone(),
                payer: account(&terms.account),
                revenue: account(&terms.revenue),
                asset: terms.asset.clone(),
                amount: part.amount,
                timeout_ms: u64::from(terms.timeout_seconds).saturating_mul(1_000),
                keeps_debt: part.limit.overage == Overage::Debt,
                charges: terms.on_timeout == OnTimeout::Charge,
            })
        });
        let mut wanted = wanted.collect::<Option<Vec<Wanted>>>()?;
        wanted.sort_by(|a, b| a.limit.cmp(&b.limit));
        Some(HoldTask { lease, wanted, actor: or_itself(actor), extension })
    }

    /// The same request by the terms of the holds that it adds to: their limits may have changed since.
    pub(super) fn on_terms_of(&self, parts: &[Part]) -> HoldTask {
        let mut task = self.clone();
        for part in &mut task.wanted {
            let Some(held) = parts.iter().find(|held| held.terms.limit == part.limit) else { continue };
            let account = |name: &AccountName| AccountKey { home: held.home.clone(), account: name.clone() };
            (part.payer, part.revenue) = (account(&held.terms.account), account(&held.terms.revenue));
            (part.asset, part.keeps_debt) = (held.terms.asset.clone(), held.terms.keeps_debt);
            part.charges = held.terms.charges;
        }
        task
    }

    /// The sum of all holds per account and asset.
    fn moves(&self, found: Option<&Surveyed>) -> Vec<BalanceChange> {
        let mut moves: Vec<BalanceChange> = Vec::new();
        for (place, part) in self.wanted.iter().enumerate() {
            let account = found.and_then(|found| found.accounts.get(place).copied().flatten());
            let overdraft = account.map_or(Overdraft::Deny, |account| account.overdraft);
            let amount = i128::from(part.amount);
            match moves.iter_mut().find(|each| each.account == part.payer && each.asset == part.asset) {
                Some(each) => each.change = each.change.saturating_sub(amount),
                None => {
                    moves.push(BalanceChange::plain(&part.payer, &part.asset, amount.saturating_neg(), overdraft));
                }
            }
        }
        moves
    }

    /// The first hold whose account cannot pay, whatever its balance. `Err` if a saga that is closing the account is
    /// still open.
    fn blame(&self, found: &Surveyed) -> Result<Option<(usize, CreditShortage)>, ()> {
        let revenues = found.accounts.iter().skip(self.wanted.len());
        for (place, (payer, revenue)) in found.accounts.iter().zip(revenues).enumerate() {
            let why = match (account_view(*payer), account_view(*revenue)) {
                (AccountView::Missing, _) | (_, AccountView::Missing) => CreditShortage::UnknownAccount,
                (AccountView::InDoubt, _) | (_, AccountView::InDoubt) => return Err(()),
                (AccountView::Present(payer), AccountView::Present(revenue)) => {
                    match (payer.standing, revenue.standing) {
                        (AccountStatus::Frozen, _) => CreditShortage::Frozen,
                        (AccountStatus::Closed, _) | (_, AccountStatus::Closed) => CreditShortage::Closed,
                        (AccountStatus::Open, AccountStatus::Open | AccountStatus::Frozen) => continue,
                    }
                }
            };
            return Ok(Some((place, why)));
        }
        Ok(None)
    }

    /// Records the refusal with the lease.
    fn refuse(&self, engine: &Engine, gate: GateId, place: usize, why: CreditShortage) -> Proposal<HoldAnswer> {
        let Some(part) = self.wanted.get(place) else { return Proposal::Wait(None) };
        let body = EntryBody::Refused { lease: self.lease.lease, limit: part.limit.clone(), why };
        let entry = Entry { home: part.payer.home.clone(), at: engine.time.moment(), body, changes: Vec::new() };
        Proposal::Commit(Box::new(Draft {
            gate,
            rid: engine.new_rid(),
            lease: Some(self.lease.clone()),
            plan: Plan { entries: vec![entry], ..Plan::default() },
            taken: Vec::new(),
            permits: Vec::new(),
        }))
    }

    /// The first change that would bring the holds of its account above 64 bits.
    async fn is_too_much(
        &self,
        engine: &Engine,
        moves: &[BalanceChange],
        inputs: &Plan,
    ) -> Result<Option<usize>, TaskError> {
        let is_large = inputs.inputs.iter().any(|input| input.amount >= LARGE);
        for (place, each) in moves.iter().enumerate() {
            if !is_large && each.change > -LARGE && each.overdraft == Overdraft::Deny {
                continue;
            }
            let funds = engine.call(engine.store.funds(each.account.clone(), engine.time.as_of())).await?;
            let held = funds.iter().find(|funds| funds.asset == each.asset).map_or(0, |funds| funds.held);
            if held.saturating_sub(each.change) > i128::from(u64::MAX) {
                return Ok(Some(place));
            }
        }
        Ok(None)
    }

    /// Adds the held postings and the entries to a plan. A hold that grows is replaced by a larger one.
    fn fill(
        &self,
        engine: &Engine,
        ids: &mut PostingIds,
        plan: &mut Plan,
        (parts, moves): (&[Part], &[BalanceChange]),
    ) {
        let mut taken = Taken::by(moves);
        let now = engine.time.moment();
        let mut is_fenced = parts.is_empty();
        for part in &self.wanted {
            let before = parts.iter().find(|held| held.terms.limit == part.limit).and_then(Part::held);
            let held = before.map_or(0, |(posting, _)| u64::try_from(posting.amount).unwrap_or(0));
            let total = held.saturating_add(part.amount);
            let shares = taken.split_off(part);
            let mut hold = match before {
                Some((posting, hold)) => {
                    plan.inputs.push(posting.clone());
                    is_fenced = true;
                    hold.with(total, part.charges, 0)
                }
                None => {
                    let ends_at = now.log.plus_ms(part.timeout_ms);
                    PostingHold::new(self.lease.lease, part.limit.clone(), ends_at, (total, part.charges))
                }
            };
            hold.shares = join_shares(&hold.shares, &shares);
            let terms = HoldTerms {
                lease: self.lease.lease,
                limit: part.limit.clone(),
                account: part.payer.account.clone(),
                asset: part.asset.clone(),
                amount: part.amount,
                revenue: part.revenue.account.clone(),
                keeps_debt: part.keeps_debt,
                ends_at: hold.ends_at,
                charges: part.charges,
                extension: self.extension,
            };
            plan.outputs.push(ids.posting((&part.payer, &part.asset), i128::from(total), Some(hold)));
            let change = AccountChange {
                account: part.payer.account.clone(),
                asset: part.asset.clone(),
                amount: i128::from(part.amount).saturating_neg(),
                held: i128::from(part.amount),
            };
            let home = part.payer.home.clone();
            let body = EntryBody::Hold { terms, actor: self.actor.clone() };
            plan.entries.push(Entry { home, at: now, body, changes: vec![change] });
            need(plan, &part.payer, true);
            need(plan, &part.revenue, false);
        }
        // A settlement at the same time must not miss the new holds, so both consume a hold that the lease had before.
        if let (false, Some((posting, hold))) = (is_fenced, parts.first().and_then(Part::held)) {
            plan.inputs.push(posting.clone());
            let owner = (&posting.account, &posting.asset);
            plan.outputs.push(ids.posting(owner, posting.amount, Some(hold.clone())));
        }
    }

    /// The first hold that would exceed 64 bits together with what the lease holds of its limit.
    fn overflowing(&self, parts: &[Part]) -> Option<usize> {
        let held = |limit: &LimitKey| parts.iter().find(|held| held.terms.limit == *limit).map_or(0, Part::amount);
        self.wanted.iter().position(|part| held(&part.limit).checked_add(part.amount).is_none())
    }

    /// The plan that holds everything. `refuse` gets the index of the hold that cannot be paid.
    pub(super) async fn draft<A>(
        &self,
        engine: &Engine,
        attempt: u32,
        base: Base<'_>,
        refuse: impl Fn(usize, CreditShortage) -> Proposal<A> + Send,
    ) -> Result<Proposal<A>, TaskError> {
        let permits = engine.queue_payers(&self.moves(None)).await;
        let payers = self.wanted.iter().map(|part| part.payer.clone());
        let accounts = payers.chain(self.wanted.iter().map(|part| part.revenue.clone())).collect();
        // A hold only spends, so it never merges postings.
        let (posting_sets, _) = engine.posting_queries(&self.moves(None), attempt > 1);
        let found = engine.survey(Survey { accounts, posting_sets, ..Survey::default() }).await?;
        match self.blame(&found) {
            Ok(None) => {}
            Ok(Some((place, why))) => return Ok(refuse(place, why)),
            Err(()) => return Ok(Proposal::Wait(None)),
        }
        if let Some(place) = self.overflowing(base.parts) {
            return Ok(refuse(place, CreditShortage::NotEnough));
        }
        let mut moves = self.moves(Some(&found));
        let rid = engine.new_rid();
        let mut ids = PostingIds::new(rid);
        let selected = engine.select(&mut ids, &mut moves, &found.posting_sets, &[]).await?;
        let first_of = |place: usize| {
            let short = moves.get(place);
            let is_meant =
                |part: &Wanted| short.is_some_and(|each| each.account == part.payer && each.asset == part.asset);
            self.wanted.iter().position(is_meant).unwrap_or(0)
        };
        let selection = match selected.or_propose(|place, _| refuse(first_of(place), CreditShortage::NotEnough)) {
            Ok(selection) => selection,
            Err(proposal) => return Ok(proposal),
        };
        let (inputs, outputs) = (selection.inputs, selection.outputs);
        let mut plan = Plan { inputs, outputs, ..Plan::default() };
        if let Some(place) = self.is_too_much(engine, &moves, &plan).await? {
            return Ok(refuse(first_of(place), CreditShortage::NotEnough));
        }
        self.fill(engine, &mut ids, &mut plan, (base.parts, &moves));
        let (gate, lease) = (base.gate, Some(self.lease.clone()));
        Ok(Proposal::Commit(Box::new(Draft { gate, rid, lease, plan, taken: selection.taken, permits })))
    }

    /// The answer of an earlier attempt, or the gate of the next one.
    async fn known(&self, engine: &Engine) -> Result<Result<HoldAnswer, GateId>, TaskError> {
        let status = engine.lease_status(&self.lease).await?;
        Ok(match status {
            LeaseStatus::Unknown { returned } => Err(first_gate(&self.lease, returned)),
            LeaseStatus::Refused { limit, why } => Ok(HoldAnswer::Refused { key: limit, why }),
            LeaseStatus::Marked | LeaseStatus::Settled => Ok(HoldAnswer::Ended),
            LeaseStatus::Holds(..) if status.is_live(engine.time.now()) => Ok(HoldAnswer::Held),
            LeaseStatus::Holds(..) => Ok(HoldAnswer::Ended),
        })
    }
}

/// The amounts that the holds of a plan took from grants, and no hold has yet.
struct Taken<'a>(Vec<(&'a BalanceChange, Vec<GrantShare>)>);

impl<'a> Taken<'a> {
    fn by(moves: &'a [BalanceChange]) -> Taken<'a> {
        let share = |(terms, amount): &(GrantTerms, i128)| GrantShare {
            terms: *terms,
            amount: u64::try_from(*amount).unwrap_or(u64::MAX),
        };
        Taken(moves.iter().map(|each| (each, each.taken().iter().map(share).collect())).collect())
    }

    /// The shares of grants in one hold. The first hold takes what is spent first.
    fn split_off(&mut self, part: &Wanted) -> Vec<GrantShare> {
        let is_meant = |each: &BalanceChange| each.account == part.payer && each.asset == part.asset;
        let Some((_, left)) = self.0.iter_mut().find(|(each, _)| is_meant(each)) else { return Vec::new() };
        let (first, rest) = split_shares(left, part.amount);
        *left = rest;
        in_grants(&first)
    }
}

/// Adds a need, or widens an existing one.
pub(super) fn need(plan: &mut Plan, account: &AccountKey, spends: bool) {
    match plan.needs.iter_mut().find(|need| need.account == *account) {
        Some(need) => need.spends |= spends,
        None => plan.needs.push(Need { account: account.clone(), spends }),
    }
}

impl Task for HoldTask {
    type Answer = HoldAnswer;

    fn key(&self) -> GateId {
        lease_gate(&self.lease)
    }

    async fn propose(&self, engine: &Engine, attempt: u32) -> Result<Proposal<HoldAnswer>, TaskError> {
        let gate = match attempt {
            1 => lease_gate(&self.lease),
            _ => match self.known(engine).await? {
                Ok(answer) => return Ok(Proposal::Answer(answer)),
                Err(gate) => gate,
            },
        };
        let refuse = |place, why| self.refuse(engine, gate, place, why);
        self.draft(engine, attempt, Base { gate, parts: &[] }, refuse).await
    }

    async fn done(&self, engine: &Engine, _: GateId, plan: &Plan) -> Result<HoldAnswer, TaskError> {
        if let Some(EntryBody::Refused { limit, why, .. }) = plan.entries.first().map(|entry| &entry.body) {
            return Ok(HoldAnswer::Refused { key: limit.clone(), why: *why });
        }
        engine.recent_holds.remember(self.lease.clone(), parts_of(plan));
        Ok(HoldAnswer::Held)
    }
}

/// The holds of a committed plan.
fn parts_of(plan: &Plan) -> Vec<Part> {
    let part = |entry: &Entry| {
        let EntryBody::Hold { terms, .. } = &entry.body else { return None };
        let is_meant = |posting: &&Posting| {
            let limit = posting.hold.as_ref().map(|hold| &hold.limit);
            limit == Some(&terms.limit) && posting.account.home == entry.home
        };
        let posting = plan.outputs.iter().find(is_meant)?.clone();
        Some(Part::held_now(entry, terms, posting))
    };
    plan.entries.iter().filter_map(part).collect()
}
