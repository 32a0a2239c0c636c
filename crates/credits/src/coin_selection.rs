//! Coin selection: which postings a plan consumes and which it creates.

pub(crate) mod grants;

use std::collections::BTreeMap;
use std::sync::Arc;

use earmark_core::credits::plan::{self, PlanError, SWEEP_MAX};
use earmark_core::{AssetName, EntryPurpose, GrantTerms, Label, Operation, Overdraft};
use tokio::sync::OwnedSemaphorePermit;

use crate::id::{PostingId, ReservationId};
use crate::local_locks::{AccountSlots, TakenPostings};
use crate::model::{AccountKey, AccountPlan, LivePosting, Plan, Posting, PostingHold, TotalsChange, VaultKey};
use crate::saga::{Engine, Proposal, TaskError};
use crate::store::{Change, PostingQuery, PostingSet};
use grants::{TermChanges, choose_grant};

/// Postings that a deposit is split into, so that as many calls can pay from the account at once.
pub(crate) const SPLIT: usize = 16;
/// Smallest part of a split deposit.
const PIECE_MIN: i128 = 64;
/// Deposits of this process into an account between two merges.
const MERGE_EVERY: u64 = 16;
/// Postings from which a merge consolidates the smallest. It leaves those that calls pay from.
const MERGE_AT: usize = 48;
/// Largest postings read at first.
const LOOK: usize = 2 * SPLIT;
/// Largest postings read when those do not suffice, or when the account may go below zero.
const LOOK_MAX: usize = 4_096;

/// The change of one account's balance of one asset.
#[derive(Clone, Debug)]
pub(crate) struct BalanceChange {
    pub(crate) account: AccountKey,
    pub(crate) asset: AssetName,
    /// Zero only if it also spends.
    pub(crate) change: i128,
    /// Whether the account may go below zero.
    pub(crate) overdraft: Overdraft,
    /// Whether a positive change is split into several postings.
    pub(crate) is_deposit: bool,
    /// Whether something is taken from it, also if more is added.
    pub(crate) spends: bool,
    /// The amounts that are added, by terms. The difference to the change is taken. Empty if all of it is plain.
    pub(crate) deposits: Vec<(GrantTerms, i128)>,
    /// The plain credit in the holds that end with this change, whether it returns or pays.
    pub(crate) released: i128,
    /// The change by terms, once it is known that grants are involved.
    pub(crate) by_terms: Option<TermChanges>,
}

impl BalanceChange {
    /// A change of plain credit.
    pub(crate) fn plain(account: &AccountKey, asset: &AssetName, change: i128, overdraft: Overdraft) -> BalanceChange {
        let (account, asset, spends) = (account.clone(), asset.clone(), change < 0);
        let (is_deposit, deposits, released, by_terms) = (false, Vec::new(), 0, None);
        BalanceChange { account, asset, change, overdraft, is_deposit, spends, deposits, released, by_terms }
    }

    /// The amounts that it took from grants, in spending order.
    pub(crate) fn taken(&self) -> &[(GrantTerms, i128)] {
        self.by_terms.as_ref().map_or(&[], |by_terms| &by_terms.taken)
    }
}

/// Why a change is impossible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Misfit {
    /// The account is short.
    Short,
    /// Its balance would leave 128 bits.
    OutOfRange,
    /// It would have too many grants.
    TooManyGrants,
}

/// The outcome of a selection.
pub(crate) enum SelectionOutcome {
    /// The selected postings.
    Postings(Selection),
    /// There is enough, but calls of this process use it.
    Busy(Arc<AccountSlots>),
    /// Another call or process uses the postings.
    Wait(Option<Arc<AccountSlots>>),
    /// The account of this change is short.
    Short(usize),
    /// The balance of this change's account would leave 128 bits.
    OutOfRange(usize),
    /// The account of this change would have too many grants.
    TooManyGrants(usize),
}

impl SelectionOutcome {
    /// The selection, or the proposal to make instead. `refuse` gets the index of the change that failed, and why.
    pub(crate) fn or_propose<A>(
        self,
        refuse: impl FnOnce(usize, Misfit) -> Proposal<A>,
    ) -> Result<Selection, Proposal<A>> {
        match self {
            SelectionOutcome::Postings(selection) => Ok(selection),
            SelectionOutcome::Busy(slots) => Err(Proposal::Busy(slots)),
            SelectionOutcome::Wait(slots) => Err(Proposal::Wait(slots)),
            SelectionOutcome::Short(place) => Err(refuse(place, Misfit::Short)),
            SelectionOutcome::OutOfRange(place) => Err(refuse(place, Misfit::OutOfRange)),
            SelectionOutcome::TooManyGrants(place) => Err(refuse(place, Misfit::TooManyGrants)),
        }
    }
}

/// Postings to consume and to create.
#[derive(Default)]
pub(crate) struct Selection {
    pub(crate) inputs: Vec<Posting>,
    pub(crate) outputs: Vec<Posting>,
    pub(crate) taken: Vec<TakenPostings>,
}

impl Selection {
    /// Adds inputs, unless another call of this process uses one.
    fn consume(&mut self, each: &BalanceChange, inputs: &[LivePosting], slots: &Arc<AccountSlots>) -> bool {
        let consumed: Vec<PostingId> = inputs.iter().map(|input| input.id).collect();
        if !consumed.is_empty() {
            match slots.take(consumed) {
                Some(taken) => self.taken.push(taken),
                None => return false,
            }
        }
        self.inputs.extend(inputs.iter().map(|input| Posting {
            id: input.id,
            account: each.account.clone(),
            asset: each.asset.clone(),
            amount: input.amount,
            terms: input.terms,
            hold: None,
            plan: None,
        }));
        true
    }
}

/// Assigns the posting ids of one attempt.
pub(crate) struct PostingIds {
    rid: ReservationId,
    next: u16,
}

impl PostingIds {
    pub(crate) fn new(rid: ReservationId) -> PostingIds {
        PostingIds { rid, next: 0 }
    }

    pub(crate) fn posting(
        &mut self,
        (account, asset): (&AccountKey, &AssetName),
        amount: i128,
        hold: Option<PostingHold>,
    ) -> Posting {
        let id = self.rid.posting(self.next);
        self.next = self.next.saturating_add(1);
        let (account, asset, terms) = (account.clone(), asset.clone(), GrantTerms::PLAIN);
        Posting { id, account, asset, amount, terms, hold, plan: None }
    }

    pub(crate) fn grant(&mut self, owner: (&AccountKey, &AssetName), terms: GrantTerms, amount: i128) -> Posting {
        Posting { terms, ..self.posting(owner, amount, None) }
    }

    /// The plan mark of an account that follows `mark`.
    pub(crate) fn plan_mark(&mut self, mark: &Posting, asset: &AssetName, plan: AccountPlan) -> Posting {
        let (terms, plan) = (plan.mark_terms(), Some(Box::new(plan)));
        Posting { terms, plan, ..self.posting((&mark.account, asset), 0, None) }
    }
}

impl Engine {
    /// Waits for a payer slot on every account that the changes spend from.
    pub(crate) async fn queue_payers(&self, moves: &[BalanceChange]) -> Vec<OwnedSemaphorePermit> {
        let mut payers: Vec<&AccountKey> =
            moves.iter().filter(|each| each.change < 0).map(|each| &each.account).collect();
        // All calls queue in the same order, so that they cannot deadlock.
        payers.sort_unstable();
        payers.dedup();
        let mut permits = Vec::with_capacity(payers.len());
        for account in payers {
            permits.extend(self.slot_table.of(account).pay().await);
        }
        permits
    }

    /// The queries for the postings behind some changes, and the merge permits, which last as long as the attempt.
    pub(crate) fn posting_queries(
        &self,
        moves: &[BalanceChange],
        is_again: bool,
    ) -> (Vec<PostingQuery>, Vec<OwnedSemaphorePermit>) {
        let mut permits = Vec::new();
        let question = |each: &BalanceChange| {
            let is_payer = each.spends;
            let looks_far = is_again || each.overdraft != Overdraft::Deny;
            let permit = match is_payer || is_again {
                true => None,
                false => self.slot_table.of(&each.account).merge_permit(MERGE_EVERY),
            };
            let (largest, smallest, count_max) = match permit {
                // Counting twice as many shows how much faster postings arrive.
                Some((permit, small)) => {
                    permits.push(permit);
                    (0, small, small.saturating_mul(2).saturating_add(SPLIT))
                }
                // Counting one more than are read shows whether there are more.
                None if is_payer && looks_far => (LOOK_MAX, SWEEP_MAX, LOOK_MAX.saturating_add(1)),
                None if is_payer => (LOOK, SWEEP_MAX, LOOK.saturating_add(1)),
                None if each.is_deposit => (0, 0, SPLIT),
                None => (0, 0, 0),
            };
            let (account, asset) = (each.account.clone(), each.asset.clone());
            PostingQuery { account, asset, largest, smallest, count_max }
        };
        (moves.iter().map(question).collect(), permits)
    }

    /// Selects postings for all changes, those of grants included. `operations` are those of a transaction.
    pub(crate) async fn select(
        &self,
        ids: &mut PostingIds,
        moves: &mut [BalanceChange],
        posting_sets: &[PostingSet],
        operations: &[Operation],
    ) -> Result<SelectionOutcome, TaskError> {
        match self.spread_over_grants(moves, posting_sets, operations).await? {
            Some(outcome) => Ok(outcome),
            None => self.select_postings(ids, moves, posting_sets).await,
        }
    }

    /// Selects postings for all changes.
    async fn select_postings(
        &self,
        ids: &mut PostingIds,
        moves: &[BalanceChange],
        posting_sets: &[PostingSet],
    ) -> Result<SelectionOutcome, TaskError> {
        let mut selection = Selection::default();
        for (place, (each, posting_set)) in moves.iter().zip(posting_sets).enumerate() {
            let slots = self.slot_table.of(&each.account);
            if let Some(by_terms) = &each.by_terms
                && let Some(outcome) = self.select_grants(ids, (each, by_terms), posting_set, &mut selection)
            {
                return Ok(outcome);
            }
            // Of the rest, a wallet has checked the balance.
            let rest = each
                .by_terms
                .as_ref()
                .map(|by_terms| BalanceChange::plain(&each.account, &each.asset, by_terms.plain, each.overdraft));
            let each = rest.as_ref().unwrap_or(each);
            if each.change == 0 {
                continue;
            }
            let is_in_work = |debt: &LivePosting| debt.reserved_by.is_some() || slots.is_taken(debt.id);
            if posting_set.owed.iter().any(is_in_work) {
                return Ok(SelectionOutcome::Wait(Some(slots)));
            }
            let chosen = match choose(each, posting_set, &slots, ids.rid) {
                Ok(chosen) => chosen,
                Err(PlanError::OutOfRange) => return Ok(SelectionOutcome::OutOfRange(place)),
                Err(PlanError::Insufficient { .. }) if has_enough(each, posting_set) => {
                    return Ok(SelectionOutcome::Busy(slots));
                }
                Err(PlanError::Insufficient { .. }) => {
                    return self.classify_shortage(place, each, slots).await;
                }
            };
            let Chosen { mut inputs, output, pieces } = chosen;
            let needs_mark = each.change < 0 && output < 0 && matches!(each.overdraft, Overdraft::Limit(_));
            if needs_mark {
                let Some(mark) = &posting_set.mark else {
                    self.write(vec![Change::Mark(Box::new(overdraft_mark(each)))]).await?;
                    return Ok(SelectionOutcome::Wait(None));
                };
                if is_in_work(mark) {
                    return Ok(SelectionOutcome::Wait(Some(slots)));
                }
                inputs.push(mark.clone());
            }
            if !selection.consume(each, &inputs, &slots) {
                return Ok(SelectionOutcome::Wait(None));
            }
            let owner = (&each.account, &each.asset);
            let parts = split(output, pieces).map(|amount| ids.posting(owner, amount, None));
            selection.outputs.extend(parts);
            if needs_mark {
                selection.outputs.push(ids.posting(owner, 0, None));
            }
        }
        Ok(SelectionOutcome::Postings(selection))
    }

    /// Selects the postings of grants for one change. Returns an outcome if the selection ends here.
    fn select_grants(
        &self,
        ids: &mut PostingIds,
        (each, by_terms): (&BalanceChange, &TermChanges),
        posting_set: &PostingSet,
        selection: &mut Selection,
    ) -> Option<SelectionOutcome> {
        let slots = self.slot_table.of(&each.account);
        for (terms, change) in &by_terms.grants {
            let chosen = choose_grant(posting_set, (*terms, *change), by_terms.is_crowded, &slots, ids.rid);
            let Some(Chosen { inputs, output, pieces }) = chosen else { return Some(SelectionOutcome::Busy(slots)) };
            if !selection.consume(each, &inputs, &slots) {
                return Some(SelectionOutcome::Wait(None));
            }
            let pieces = if each.is_deposit { pieces } else { 1 };
            let owner = (&each.account, &each.asset);
            selection.outputs.extend(split(output, pieces).map(|amount| ids.grant(owner, *terms, amount)));
        }
        None
    }

    /// Finds out whether an account is short or busy.
    async fn classify_shortage(
        &self,
        place: usize,
        each: &BalanceChange,
        slots: Arc<AccountSlots>,
    ) -> Result<SelectionOutcome, TaskError> {
        let spendable = self.store.spendable(each.account.clone(), each.asset.clone(), self.time.as_of());
        let found = self.call(spendable).await?;
        // Pending postings are consumed or come back. Only a deposit can raise the balance above this.
        let most = [found.pending, found.due].iter().fold(found.active, |sum, part| sum.saturating_add(*part));
        if most.saturating_add(each.change) < each.overdraft.floor() {
            return Ok(SelectionOutcome::Short(place));
        }
        if found.due > 0 {
            self.sweep_account(each.account.clone()).await?;
            return Ok(SelectionOutcome::Wait(None));
        }
        Ok(SelectionOutcome::Wait(Some(slots)))
    }
}

/// The first overdraft mark of an account and an asset. Its id depends on nothing else, so that there is only one.
fn overdraft_mark(each: &BalanceChange) -> Posting {
    let BalanceChange { account, asset, .. } = each;
    let purpose = EntryPurpose::OverdraftMark(&account.account, asset);
    let id = Label::Entry(&account.home.namespace, &account.home.vault, purpose).id();
    let id = PostingId(id.to_u128());
    let (account, asset, terms) = (account.clone(), asset.clone(), GrantTerms::PLAIN);
    Posting { id, account, asset, amount: 0, terms, hold: None, plan: None }
}

/// The first plan mark of an account, without a plan. Its id depends on nothing else, so that there is only one.
pub(crate) fn first_plan_mark(account: &AccountKey, asset: &AssetName) -> Posting {
    let purpose = EntryPurpose::PlanMark(&account.account);
    let id = PostingId(Label::Entry(&account.home.namespace, &account.home.vault, purpose).id().to_u128());
    let (account, asset, plan) = (account.clone(), asset.clone(), Box::<AccountPlan>::default());
    Posting { id, account, asset, amount: 0, terms: plan.mark_terms(), hold: None, plan: Some(plan) }
}

/// Whether the postings read cover a change, if those of other calls are included. Only valid when all postings were
/// read.
fn has_enough(each: &BalanceChange, posting_set: &PostingSet) -> bool {
    let seen = posting_set.owed.iter().chain(&posting_set.large);
    let sum = seen.fold(each.change, |sum, posting| sum.saturating_add(posting.amount));
    sum >= 0 && posting_set.large.len() >= posting_set.active
}

/// The postings selected for one change.
struct Chosen {
    inputs: Vec<LivePosting>,
    output: i128,
    pieces: usize,
}

fn choose(
    each: &BalanceChange,
    posting_set: &PostingSet,
    slots: &AccountSlots,
    rid: ReservationId,
) -> Result<Chosen, PlanError> {
    let free = |posting: &&LivePosting| !slots.is_taken(posting.id);
    let mut candidates: Vec<&LivePosting> = posting_set.owed.iter().collect();
    let mut output = each.change;
    let owed = posting_set.owed.iter().try_fold(0_i128, |sum, debt| sum.checked_add(debt.amount));
    let after = owed.and_then(|owed| owed.checked_add(each.change)).ok_or(PlanError::OutOfRange)?;
    if each.change > 0 {
        let gathers = posting_set.active >= MERGE_AT;
        let beyond = posting_set.active.saturating_sub(SPLIT);
        if !posting_set.small.is_empty() {
            slots.found_small(beyond);
        }
        let mut inputs: Vec<LivePosting> = posting_set.owed.clone();
        inputs.extend(posting_set.small.iter().take(if gathers { beyond } else { 0 }).filter(free).cloned());
        for input in &inputs {
            output = output.checked_add(input.amount).ok_or(PlanError::OutOfRange)?;
        }
        let is_split = each.is_deposit && !gathers;
        let pieces = if is_split { SPLIT.saturating_sub(posting_set.active).max(1) } else { 1 };
        return Ok(Chosen { inputs, output, pieces });
    }
    let large: Vec<&LivePosting> = posting_set.large.iter().filter(free).collect();
    let enough: Vec<&&LivePosting> = large.iter().filter(|posting| after.saturating_add(posting.amount) >= 0).collect();
    if after < 0 && !enough.is_empty() {
        // A random choice seldom meets that of another process.
        let place = (rid.0 as usize) % enough.len();
        candidates.push(enough[place]);
        // The account must keep as many postings as deposits are split into.
        let beyond = posting_set.active.saturating_sub(SPLIT);
        let small = posting_set.small.iter().take(beyond).filter(free).filter(|small| small.id != enough[place].id);
        candidates.extend(small);
    } else if after < 0 {
        candidates.extend(&large);
    }
    let is_all = large.len() >= posting_set.active.min(LOOK_MAX);
    let postings: Vec<plan::Posting<PostingId>> =
        candidates.iter().map(|each| plan::Posting { id: each.id, amount: each.amount }).collect();
    let choice = plan::choose(&postings, each.change, each.overdraft)?;
    let output = choice.output.unwrap_or(0);
    if output < 0 && !is_all {
        return Err(PlanError::Insufficient { missing: output.unsigned_abs() });
    }
    let is_chosen = |posting: &&&LivePosting| choice.inputs.contains(&posting.id);
    let inputs = candidates.iter().filter(is_chosen).map(|posting| (*posting).clone()).collect();
    Ok(Chosen { inputs, output, pieces: 1 })
}

/// Splits an amount into at most `pieces` parts of at least [`PIECE_MIN`]; no part for zero.
fn split(amount: i128, pieces: usize) -> impl Iterator<Item = i128> {
    let most = i128::try_from(pieces).unwrap_or(1).max(1);
    let count = (amount / PIECE_MIN).clamp(1, most);
    let part = amount / count;
    let first = amount - part * (count - 1);
    let count = if amount == 0 { 0 } else { count };
    (0..count).map(move |place| if place == 0 { first } else { part })
}

/// Whether the inputs and outputs of a plan balance for every asset, with what it issues and retires. The sums wrap, so
/// that their order does not matter.
pub(crate) fn is_balanced(plan: &Plan) -> bool {
    let mut sums: BTreeMap<(&VaultKey, &AssetName), i128> = BTreeMap::new();
    let mut add = |home, asset, amount: i128| {
        let sum = sums.entry((home, asset)).or_default();
        *sum = sum.wrapping_add(amount);
    };
    for posting in &plan.outputs {
        add(&posting.account.home, &posting.asset, posting.amount);
    }
    for posting in &plan.inputs {
        add(&posting.account.home, &posting.asset, posting.amount.wrapping_neg());
    }
    for totals in &plan.totals {
        let TotalsChange { asset, issued, retired, expired } = totals;
        add(&asset.home, &asset.asset, retired.wrapping_add(*expired).wrapping_sub(*issued));
    }
    // A mark replaces the overdraft mark of the same account and asset, or the plan mark of the same account.
    let is_replaced = |mark: &Posting| {
        let is_same = |input: &&Posting| match (&input.plan, &mark.plan) {
            (Some(_), Some(_)) => input.account == mark.account,
            (None, None) => (&input.account, &input.asset) == (&mark.account, &mark.asset),
            _ => false,
        };
        plan.inputs.iter().filter(|input| input.amount == 0).any(|input| is_same(&input))
    };
    let has_zero = plan.outputs.iter().filter(|posting| posting.amount == 0).any(|posting| !is_replaced(posting));
    !has_zero && sums.values().all(|sum| *sum == 0)
}

#[cfg(test)]
mod tests;
