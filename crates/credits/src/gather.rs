//! Which postings a plan consumes, and which it creates.

use std::collections::BTreeMap;
use std::sync::Arc;

use earmark_core::credits::plan::{self, PlanError, SWEEP_MAX};
use earmark_core::{AssetName, Overdraft};
use tokio::sync::OwnedSemaphorePermit;

use crate::id::{PostingId, ReservationId};
use crate::lanes::{Lane, Taken};
use crate::model::{AccountKey, LivePosting, Plan, Posting, PostingHold, TotalsChange, VaultKey};
use crate::saga::{Engine, Trouble};
use crate::store::{Purse, PurseQuery};

/// A deposit is split so that an account has about so many postings, and as many calls can pay from it at once.
pub(crate) const SPLIT: usize = 16;
/// No part of a deposit is smaller.
const PIECE_MIN: i128 = 64;
/// Every so many deposits of this process into an account,
const MERGE_EVERY: u64 = 16;
/// one that finds at least so many postings gathers the smallest, and leaves those that calls pay from.
const MERGE_AT: usize = 48;
/// So many of the largest postings are looked at first.
const LOOK: usize = 2 * SPLIT;
/// So many are looked at when those are not enough, and when an account may go below zero.
const LOOK_MAX: usize = 4_096;

/// What an entry adds to one asset of an account, or takes from it.
#[derive(Clone, Debug)]
pub(crate) struct Move {
    pub(crate) account: AccountKey,
    pub(crate) asset: AssetName,
    /// Not zero.
    pub(crate) change: i128,
    /// Whether the account may go below zero by it.
    pub(crate) overdraft: Overdraft,
    /// Whether what it adds is a deposit that is split.
    pub(crate) is_deposit: bool,
}

/// What the moves of a plan come to.
pub(crate) enum Gathered {
    /// These postings.
    Postings(Gathering),
    /// There is enough, but calls of this process are at work on it.
    Busy(Arc<Lane>),
    /// Somebody is at work on what is needed.
    Wait(Option<Arc<Lane>>),
    /// The account of this move has too little.
    Short(usize),
    /// What the account of this move has cannot be counted.
    OutOfRange(usize),
}

/// Postings that go and postings that come.
#[derive(Default)]
pub(crate) struct Gathering {
    pub(crate) inputs: Vec<Posting>,
    pub(crate) outputs: Vec<Posting>,
    pub(crate) taken: Vec<Taken>,
}

/// Names the postings of one attempt.
pub(crate) struct Namer {
    rid: ReservationId,
    next: u16,
}

impl Namer {
    pub(crate) fn new(rid: ReservationId) -> Namer {
        Namer { rid, next: 0 }
    }

    pub(crate) fn posting(
        &mut self,
        (account, asset): (&AccountKey, &AssetName),
        amount: i128,
        hold: Option<PostingHold>,
    ) -> Posting {
        let id = self.rid.posting(self.next);
        self.next = self.next.saturating_add(1);
        Posting { id, account: account.clone(), asset: asset.clone(), amount, hold }
    }
}

impl Engine {
    /// Queues where other calls of this process pay from the same accounts.
    pub(crate) async fn queue(&self, moves: &[Move]) -> Vec<OwnedSemaphorePermit> {
        let mut payers: Vec<&AccountKey> =
            moves.iter().filter(|each| each.change < 0).map(|each| &each.account).collect();
        // Everybody queues in the same order, so that nobody waits in a circle.
        payers.sort_unstable();
        payers.dedup();
        let mut permits = Vec::with_capacity(payers.len());
        for account in payers {
            permits.extend(self.lanes.of(account).pay().await);
        }
        permits
    }

    /// What to ask about the postings behind some moves, and the turns to gather small ones, which last as long as the
    /// attempt does.
    pub(crate) fn questions(
        &self,
        moves: &[Move],
        is_again: bool,
    ) -> (Vec<PurseQuery>, Vec<OwnedSemaphorePermit>) {
        let mut turns = Vec::new();
        let question = |each: &Move| {
            let is_payer = each.change < 0;
            let looks_far = is_again || each.overdraft == Overdraft::Allow;
            let turn = match is_payer || is_again {
                true => None,
                false => self.lanes.of(&each.account).turn_to_merge(MERGE_EVERY),
            };
            let (largest, smallest, count_max) = match turn {
                // Twice as many are counted, so that it shows how much faster they come.
                Some((turn, small)) => {
                    turns.push(turn);
                    (0, small, small.saturating_mul(2).saturating_add(SPLIT))
                }
                // One more is counted than looked at, so that it shows whether there are more.
                None if is_payer && looks_far => (LOOK_MAX, SWEEP_MAX, LOOK_MAX.saturating_add(1)),
                None if is_payer => (LOOK, SWEEP_MAX, LOOK.saturating_add(1)),
                None if each.is_deposit => (0, 0, SPLIT),
                None => (0, 0, 0),
            };
            let (account, asset) = (each.account.clone(), each.asset.clone());
            PurseQuery { account, asset, largest, smallest, count_max }
        };
        (moves.iter().map(question).collect(), turns)
    }

    /// Chooses postings for all moves, from what was found of each.
    pub(crate) async fn gather(
        &self,
        namer: &mut Namer,
        moves: &[Move],
        purses: &[Purse],
    ) -> Result<Gathered, Trouble> {
        let mut gathering = Gathering::default();
        for (place, (each, purse)) in moves.iter().zip(purses).enumerate() {
            let lane = self.lanes.of(&each.account);
            let is_in_work = |debt: &LivePosting| debt.reserved_by.is_some() || lane.is_taken(debt.id);
            if purse.owed.iter().any(is_in_work) {
                return Ok(Gathered::Wait(Some(lane)));
            }
            let chosen = match choose(each, purse, &lane, namer.rid) {
                Ok(chosen) => chosen,
                Err(PlanError::OutOfRange) => return Ok(Gathered::OutOfRange(place)),
                Err(PlanError::Insufficient { .. }) if has_enough(each, purse) => {
                    return Ok(Gathered::Busy(lane));
                }
                Err(PlanError::Insufficient { .. }) => return self.explain(place, each, lane).await,
            };
            let Chosen { inputs, output, pieces } = chosen;
            let ids: Vec<PostingId> = inputs.iter().map(|input| input.id).collect();
            if !ids.is_empty() {
                match lane.take(ids) {
                    Some(taken) => gathering.taken.push(taken),
                    None => return Ok(Gathered::Wait(None)),
                }
            }
            let owner = (&each.account, &each.asset);
            gathering.inputs.extend(inputs.iter().map(|input| Posting {
                id: input.id,
                account: each.account.clone(),
                asset: each.asset.clone(),
                amount: input.amount,
                hold: None,
            }));
            let parts = split(output, pieces).map(|amount| namer.posting(owner, amount, None));
            gathering.outputs.extend(parts);
        }
        Ok(Gathered::Postings(gathering))
    }

    /// Why an account has not what is to be taken of it: it has too little, or somebody is at work on it.
    async fn explain(&self, place: usize, each: &Move, lane: Arc<Lane>) -> Result<Gathered, Trouble> {
        let reach = self.store.reach(each.account.clone(), each.asset.clone(), self.time.now());
        let found = self.call(reach).await?;
        // What is pending is spent or comes back; more than this there will not be without a deposit.
        let most =
            [found.pending, found.due].iter().fold(found.active, |sum, part| sum.saturating_add(*part));
        if each.overdraft == Overdraft::Deny && most.saturating_add(each.change) < 0 {
            return Ok(Gathered::Short(place));
        }
        if found.due > 0 {
            self.sweep_account(each.account.clone()).await?;
            return Ok(Gathered::Wait(None));
        }
        Ok(Gathered::Wait(Some(lane)))
    }
}

/// Whether an account of which everything was seen has as much as a move takes, taken or not. Where there is more, a further look
/// may find what nobody has taken.
fn has_enough(each: &Move, purse: &Purse) -> bool {
    let seen = purse.owed.iter().chain(&purse.large);
    let sum = seen.fold(each.change, |sum, posting| sum.saturating_add(posting.amount));
    sum >= 0 && purse.large.len() >= purse.active
}

/// What becomes of the postings of one move.
struct Chosen {
    inputs: Vec<LivePosting>,
    output: i128,
    pieces: usize,
}

fn choose(each: &Move, purse: &Purse, lane: &Lane, rid: ReservationId) -> Result<Chosen, PlanError> {
    let free = |posting: &&LivePosting| !lane.is_taken(posting.id);
    let mut candidates: Vec<&LivePosting> = purse.owed.iter().collect();
    let mut output = each.change;
    let owed = purse.owed.iter().try_fold(0_i128, |sum, debt| sum.checked_add(debt.amount));
    let after = owed.and_then(|owed| owed.checked_add(each.change)).ok_or(PlanError::OutOfRange)?;
    if each.change > 0 {
        let gathers = purse.active >= MERGE_AT;
        let beyond = purse.active.saturating_sub(SPLIT);
        if !purse.small.is_empty() {
            lane.found_small(beyond);
        }
        let mut inputs: Vec<LivePosting> = purse.owed.clone();
        inputs.extend(purse.small.iter().take(if gathers { beyond } else { 0 }).filter(free).cloned());
        for input in &inputs {
            output = output.checked_add(input.amount).ok_or(PlanError::OutOfRange)?;
        }
        let is_split = each.is_deposit && !gathers;
        let pieces = if is_split { SPLIT.saturating_sub(purse.active).max(1) } else { 1 };
        return Ok(Chosen { inputs, output, pieces });
    }
    let large: Vec<&LivePosting> = purse.large.iter().filter(free).collect();
    let enough: Vec<&&LivePosting> =
        large.iter().filter(|posting| after.saturating_add(posting.amount) >= 0).collect();
    if after < 0 && !enough.is_empty() {
        // Whoever picks at random seldom picks what another process picks.
        let place = (rid.0 as usize) % enough.len();
        candidates.push(enough[place]);
        // Those that calls pay from must stay as many as they are.
        let beyond = purse.active.saturating_sub(SPLIT);
        let small = purse.small.iter().take(beyond).filter(free).filter(|small| small.id != enough[place].id);
        candidates.extend(small);
    } else if after < 0 {
        candidates.extend(&large);
    }
    let is_all = large.len() >= purse.active.min(LOOK_MAX);
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

/// An amount in so many parts, none of them tiny; nothing for zero.
fn split(amount: i128, pieces: usize) -> impl Iterator<Item = i128> {
    let most = i128::try_from(pieces).unwrap_or(1).max(1);
    let count = (amount / PIECE_MIN).clamp(1, most);
    let part = amount / count;
    let first = amount - part * (count - 1);
    let count = if amount == 0 { 0 } else { count };
    (0..count).map(move |place| if place == 0 { first } else { part })
}

/// Whether a plan takes as much as it gives, of every asset, but for what it issues and retires. The sums wrap, so that
/// the order of their parts does not matter.
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
        let TotalsChange { asset, issued, retired } = totals;
        add(&asset.home, &asset.asset, retired.wrapping_sub(*issued));
    }
    let has_zero = plan.outputs.iter().any(|posting| posting.amount == 0);
    !has_zero && sums.values().all(|sum| *sum == 0)
}

#[cfg(test)]
mod tests;
