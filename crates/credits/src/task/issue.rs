//! Issues plans: the credit of a period, once.

use earmark_core::{
    AccountStatus, AssetName, EntryPurpose, GrantTerms, Operation, Overdraft, PRIORITY_DEFAULT, PlanPeriod, UnixMs,
};

use super::hold::need;
use super::{AccountView, account_view, entry_gate};
use crate::coin_selection::{BalanceChange, PostingIds, Selection, SelectionOutcome};
use crate::id::GateId;
use crate::model::{
    AccountChange, AccountKey, AccountPlan, AssetKey, Entry, EntryBody, LivePosting, Plan, PlanIssue, Posting,
    PostingState, TotalsChange,
};
use crate::saga::{Draft, Engine, Proposal, Task, TaskError};
use crate::store::{AssetSums, PostingSet, Survey};

/// Issues the current period of the plan of an account.
///
/// It consumes the plan mark and creates the next. So each period is issued once, however many processes try.
pub(crate) struct IssueTask {
    account: AccountKey,
    gate: GateId,
}

impl IssueTask {
    /// The task of a plan mark.
    pub(crate) fn new(mark: &Posting) -> IssueTask {
        let gate = entry_gate(&mark.account.home, EntryPurpose::Issue(mark.id.0));
        IssueTask { account: mark.account.clone(), gate }
    }
}

/// A plan that is due.
struct Due<'a> {
    mark: &'a Posting,
    plan: &'a AccountPlan,
    terms: &'a earmark_core::Plan,
    now: UnixMs,
    /// The free postings of the grant of the last period.
    last: Vec<LivePosting>,
}

impl Due<'_> {
    fn unused(&self) -> i128 {
        self.last.iter().fold(0, |sum, posting| sum.saturating_add(posting.amount))
    }

    fn asset(&self) -> &AssetName {
        &self.terms.asset
    }

    /// The plan after a period was issued, without terms if it was the last.
    fn next(&self, period: Option<&PlanPeriod>) -> AccountPlan {
        match period {
            Some(period) => AccountPlan { terms: Some(self.terms.clone()), issued_until: Some(period.ends_at) },
            None => AccountPlan { terms: None, issued_until: self.plan.issued_until },
        }
    }

    /// Adds the credit of a period to a selection of postings that receive it: the mark, what is carried over from the
    /// last grant, and the entry.
    fn plan(
        &self,
        engine: &Engine,
        ids: &mut PostingIds,
        (selection, period): (Option<&Selection>, Option<&PlanPeriod>),
    ) -> Plan {
        let (account, asset) = (&self.mark.account, self.asset());
        let received = |of: fn(&Selection) -> &Vec<Posting>| selection.map(of).cloned().unwrap_or_default();
        let (inputs, outputs) = (received(|selection| &selection.inputs), received(|selection| &selection.outputs));
        let mut plan = Plan { inputs, outputs, ..Plan::default() };
        // Without a selection the credit would exceed a bound, and nothing is issued.
        let period_issued = period.filter(|_| selection.is_some());
        let (issued, carried) = period_issued.map_or((0, 0), |period| (period.issued, period.carried));
        plan.inputs.push(self.mark.clone());
        plan.outputs.push(ids.plan_mark(self.mark, asset, self.next(period)));
        if let Some(last) = self.plan.last_grant().filter(|_| carried > 0) {
            plan.inputs.extend(self.last.iter().map(|posting| Posting {
                id: posting.id,
                amount: posting.amount,
                terms: last,
                ..ids.posting((account, asset), 0, None)
            }));
            let rest = self.unused().saturating_sub(carried);
            plan.outputs.extend((rest > 0).then(|| ids.grant((account, asset), last, rest)));
        }
        let ends_at = period.map(|period| period.ends_at);
        let terms = GrantTerms::new(PRIORITY_DEFAULT, ends_at);
        let (name, asset) = (account.account.clone(), asset.clone());
        let change = AccountChange { account: name.clone(), asset: asset.clone(), amount: issued, held: 0 };
        let changes = if issued == 0 { Vec::new() } else { vec![change] };
        let body = EntryBody::Plan(PlanIssue { account: name, asset: asset.clone(), amount: issued, carried, terms });
        plan.entries.push(Entry { home: account.home.clone(), at: engine.time.moment(), body, changes });
        let asset = AssetKey { home: account.home.clone(), asset };
        plan.totals.push(TotalsChange { asset, issued, retired: 0, expired: 0 });
        plan
    }
}

impl Task for IssueTask {
    /// Whether the plan is not due any more.
    type Answer = bool;

    fn key(&self) -> GateId {
        self.gate
    }

    async fn propose(&self, engine: &Engine, _: u32) -> Result<Proposal<bool>, TaskError> {
        let now = engine.time.as_of().expiry;
        let found = engine.call(engine.store.plan_mark(self.account.clone())).await?;
        let Some((mark, state)) = found.filter(|(mark, _)| mark.terms.is_expired(now)) else {
            return Ok(Proposal::Answer(true));
        };
        if engine.time.is_expiry_waiting() {
            return Ok(Proposal::Answer(false));
        }
        let slots = engine.slot_table.of(&self.account);
        if state != PostingState::Active {
            return Ok(Proposal::Wait(Some(slots)));
        }
        let Some((plan, terms)) = mark.plan.as_deref().and_then(|plan| Some((plan, plan.terms.as_ref()?))) else {
            return Ok(Proposal::Answer(false));
        };
        let deposit = |amount: i128| BalanceChange {
            is_deposit: true,
            ..BalanceChange::plain(&self.account, &terms.asset, amount, Overdraft::Deny)
        };
        let (posting_sets, permits) = engine.posting_queries(&[deposit(1)], false);
        let asset = AssetKey { home: self.account.home.clone(), asset: terms.asset.clone() };
        let survey =
            Survey { accounts: vec![self.account.clone()], posting_sets, assets: vec![asset], ..Survey::default() };
        let found = engine.survey(survey).await?;
        let standing = match account_view(found.accounts.first().copied().flatten()) {
            AccountView::Present(account) => account.standing,
            // The saga that opens or closes it decides.
            AccountView::Missing | AccountView::InDoubt => return Ok(Proposal::Answer(false)),
        };
        let mut set = found.posting_sets.into_iter().next().unwrap_or_default();
        let last = take_last(&mut set, plan, now);
        if last.iter().any(|posting| posting.reserved_by.is_some()) {
            return Ok(Proposal::Wait(Some(slots)));
        }
        let due = Due { mark: &mark, plan, terms, now, last };
        let rid = engine.new_rid();
        let ids = &mut PostingIds::new(rid);
        let period = due.terms.issue_at(due.now, plan.issued_until, due.unused());
        let is_over = standing == AccountStatus::Closed || period.ends_at == UnixMs::MAX;
        let period = Some(&period).filter(|_| !is_over);
        let mut selection = None;
        if let Some(period) = period.filter(|period| has_room(found.assets.first().copied().flatten(), period)) {
            let total = period.issued.saturating_add(period.carried);
            match self.receive(engine, ids, &due, (deposit(total), set, period)).await? {
                SelectionOutcome::Postings(postings) => selection = Some(postings),
                SelectionOutcome::OutOfRange(_) | SelectionOutcome::Short(_) => {}
                SelectionOutcome::TooManyGrants(_) => return Ok(Proposal::Answer(false)),
                SelectionOutcome::Busy(slots) => return Ok(Proposal::Busy(slots)),
                SelectionOutcome::Wait(slots) => return Ok(Proposal::Wait(slots)),
            }
        }
        let mut plan = due.plan(engine, ids, (selection.as_ref(), period));
        if standing != AccountStatus::Closed {
            need(&mut plan, &self.account, false);
        }
        let received = selection.as_ref().map_or(0, |selection| selection.inputs.len());
        let own = plan.inputs.iter().skip(received).map(|input| input.id).collect();
        let Some(own) = slots.take(own) else { return Ok(Proposal::Wait(Some(slots))) };
        let mut taken = selection.map_or_else(Vec::new, |selection| selection.taken);
        taken.push(own);
        let gate = entry_gate(&self.account.home, EntryPurpose::Issue(mark.id.0));
        Ok(Proposal::Commit(Box::new(Draft { gate, rid, lease: None, plan, taken, permits })))
    }

    async fn done(&self, _: &Engine, _: GateId, _: &Plan) -> Result<bool, TaskError> {
        Ok(true)
    }
}

impl IssueTask {
    /// The postings that receive the credit of a period, as a deposit.
    async fn receive(
        &self,
        engine: &Engine,
        ids: &mut PostingIds,
        due: &Due<'_>,
        (deposit, set, period): (BalanceChange, PostingSet, &PlanPeriod),
    ) -> Result<SelectionOutcome, TaskError> {
        let terms = GrantTerms::new(PRIORITY_DEFAULT, Some(period.ends_at));
        let issue = Operation::Issue {
            account: self.account.account.clone(),
            asset: due.asset().clone(),
            amount: deposit.change.unsigned_abs(),
            memo: String::new(),
            terms,
        };
        let deposits = vec![(terms, deposit.change)];
        engine.select(ids, &mut [BalanceChange { deposits, ..deposit }], &[set], &[issue]).await
    }
}

/// Removes the grants that have expired and the mark from a posting set; returns the postings of the last period.
fn take_last(set: &mut PostingSet, plan: &AccountPlan, now: UnixMs) -> Vec<LivePosting> {
    set.plan_mark = None;
    let (expired, grants) = std::mem::take(&mut set.grants).into_iter().partition(|grant| grant.terms.is_expired(now));
    set.grants = grants;
    let mut last: Vec<LivePosting> = expired;
    last.retain(|posting| Some(posting.terms) == plan.last_grant());
    last
}

/// Whether the total of an asset stays within its bound.
fn has_room(sums: Option<AssetSums>, period: &PlanPeriod) -> bool {
    sums.unwrap_or_default().issued.checked_add(period.issued).is_some()
}
