//! Holds credit for a lease: everything it asks for, or nothing. The answer is final.

use earmark_admission::{HoldAnswer, HoldRequest};
use earmark_core::{AccountStatus, Actor, AssetName, CreditShortage, LimitKey, Overage, Overdraft};

use super::{AccountView, LeaseStatus, Part, account_view, lease_gate, lease_key, or_itself};
use crate::coin_selection::{BalanceChange, PostingIds};
use crate::id::GateId;
use crate::model::{
    AccountChange, AccountKey, Entry, EntryBody, HoldTerms, LeaseKey, Need, Plan, Posting, PostingHold, PostingState,
    VaultKey,
};
use crate::saga::{Draft, Engine, Proposal, Task, TaskError};
use crate::store::{Survey, Surveyed};

/// Only amounts this large can bring the holds of one account above 64 bits.
const LARGE: i128 = 1 << 62;

/// Holds credit for a lease.
pub(crate) struct HoldTask {
    lease: LeaseKey,
    wanted: Vec<Wanted>,
    actor: Option<Actor>,
}

/// One hold that a lease requests.
struct Wanted {
    limit: LimitKey,
    payer: AccountKey,
    revenue: AccountKey,
    asset: AssetName,
    amount: u64,
    timeout_ms: u64,
    keeps_debt: bool,
}

impl HoldTask {
    /// `None` if a limit is not of kind `credit`.
    pub(crate) fn new(request: &HoldRequest, actor: Option<Actor>) -> Option<HoldTask> {
        let wanted = request.holds.iter().map(|part| {
            let terms = part.limit.kind.terms()?;
            let home = VaultKey { namespace: request.namespace.clone(), vault: terms.vault.clone() };
            let account = |name: &earmark_core::AccountName| AccountKey { home: home.clone(), account: name.clone() };
            Some(Wanted {
                limit: part.limit.key.clone(),
                payer: account(&terms.account),
                revenue: account(&terms.revenue),
                asset: terms.asset.clone(),
                amount: part.amount,
                timeout_ms: u64::from(terms.timeout_seconds).saturating_mul(1_000),
                keeps_debt: part.limit.overage == Overage::Debt,
            })
        });
        let mut wanted = wanted.collect::<Option<Vec<Wanted>>>()?;
        wanted.sort_by(|a, b| a.limit.cmp(&b.limit));
        Some(HoldTask { lease: lease_key(&request.namespace, request.lease), wanted, actor: or_itself(actor) })
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
                None => moves.push(BalanceChange {
                    account: part.payer.clone(),
                    asset: part.asset.clone(),
                    change: amount.saturating_neg(),
                    overdraft,
                    is_deposit: false,
                }),
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

    fn refuse(&self, engine: &Engine, place: usize, why: CreditShortage) -> Proposal<HoldAnswer> {
        let Some(part) = self.wanted.get(place) else { return Proposal::Wait(None) };
        let body = EntryBody::Refused { lease: self.lease.lease, limit: part.limit.clone(), why };
        let entry = Entry { home: part.payer.home.clone(), at: engine.time.moment(), body, changes: Vec::new() };
        self.draft(engine, Plan { entries: vec![entry], ..Plan::default() })
    }

    fn draft(&self, engine: &Engine, plan: Plan) -> Proposal<HoldAnswer> {
        Proposal::Commit(Box::new(Draft {
            gate: lease_gate(&self.lease),
            rid: engine.new_rid(),
            lease: Some(self.lease.clone()),
            plan,
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
            let funds = engine.call(engine.store.funds(each.account.clone(), engine.time.now())).await?;
            let held = funds.iter().find(|funds| funds.asset == each.asset).map_or(0, |funds| funds.held);
            if held.saturating_sub(each.change) > i128::from(u64::MAX) {
                return Ok(Some(place));
            }
        }
        Ok(None)
    }

    /// Adds the held postings and the entries to a plan.
    fn fill(&self, engine: &Engine, ids: &mut PostingIds, plan: &mut Plan) {
        let now = engine.time.moment();
        for part in &self.wanted {
            let (lease, limit) = (self.lease.lease, part.limit.clone());
            let ends_at = now.log.plus_ms(part.timeout_ms);
            let amount = i128::from(part.amount);
            let hold = PostingHold { lease, limit: limit.clone(), ends_at };
            plan.outputs.push(ids.posting((&part.payer, &part.asset), amount, Some(hold)));
            let terms = HoldTerms {
                lease,
                limit,
                account: part.payer.account.clone(),
                asset: part.asset.clone(),
                amount: part.amount,
                revenue: part.revenue.account.clone(),
                keeps_debt: part.keeps_debt,
                ends_at,
            };
            let change = AccountChange {
                account: part.payer.account.clone(),
                asset: part.asset.clone(),
                amount: amount.saturating_neg(),
                held: amount,
            };
            let home = part.payer.home.clone();
            let body = EntryBody::Hold { terms, actor: self.actor.clone() };
            plan.entries.push(Entry { home, at: now, body, changes: vec![change] });
            need(plan, &part.payer, true);
            need(plan, &part.revenue, false);
        }
    }

    async fn known(&self, engine: &Engine) -> Result<Option<HoldAnswer>, TaskError> {
        let status = engine.lease_status(&self.lease).await?;
        Ok(match status {
            LeaseStatus::Unknown => None,
            LeaseStatus::Refused { limit, why } => Some(HoldAnswer::Refused { key: limit, why }),
            LeaseStatus::Marked | LeaseStatus::Settled => Some(HoldAnswer::Ended),
            LeaseStatus::Holds(_) if status.is_live(engine.time.now()) => Some(HoldAnswer::Held),
            LeaseStatus::Holds(_) => Some(HoldAnswer::Ended),
        })
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
        if attempt > 1
            && let Some(answer) = self.known(engine).await?
        {
            return Ok(Proposal::Answer(answer));
        }
        let permits = engine.queue_payers(&self.moves(None)).await;
        let payers = self.wanted.iter().map(|part| part.payer.clone());
        let accounts = payers.chain(self.wanted.iter().map(|part| part.revenue.clone())).collect();
        // A hold only spends, so it never merges postings.
        let (posting_sets, _) = engine.posting_queries(&self.moves(None), attempt > 1);
        let found = engine.survey(Survey { accounts, posting_sets, ..Survey::default() }).await?;
        match self.blame(&found) {
            Ok(None) => {}
            Ok(Some((place, why))) => return Ok(self.refuse(engine, place, why)),
            Err(()) => return Ok(Proposal::Wait(None)),
        }
        let moves = self.moves(Some(&found));
        let rid = engine.new_rid();
        let mut ids = PostingIds::new(rid);
        let first_of = |place: usize| {
            let short = moves.get(place);
            let is_meant =
                |part: &Wanted| short.is_some_and(|each| each.account == part.payer && each.asset == part.asset);
            self.wanted.iter().position(is_meant).unwrap_or(0)
        };
        let selected = engine.select_postings(&mut ids, &moves, &found.posting_sets).await?;
        let refuse = |place, _| self.refuse(engine, first_of(place), CreditShortage::NotEnough);
        let selection = match selected.or_propose(refuse) {
            Ok(selection) => selection,
            Err(proposal) => return Ok(proposal),
        };
        let (inputs, outputs) = (selection.inputs, selection.outputs);
        let mut plan = Plan { inputs, outputs, ..Plan::default() };
        if let Some(place) = self.is_too_much(engine, &moves, &plan).await? {
            return Ok(self.refuse(engine, first_of(place), CreditShortage::NotEnough));
        }
        self.fill(engine, &mut ids, &mut plan);
        let (gate, lease) = (lease_gate(&self.lease), Some(self.lease.clone()));
        Ok(Proposal::Commit(Box::new(Draft { gate, rid, lease, plan, taken: selection.taken, permits })))
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
        let posting = Some((posting, PostingState::Active));
        Some(Part { home: entry.home.clone(), terms: terms.clone(), posting, is_released: false })
    };
    plan.entries.iter().filter_map(part).collect()
}
