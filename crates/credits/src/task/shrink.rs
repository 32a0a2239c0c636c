//! Returns the growth of an extension that the limits denied or refused.

use earmark_admission::ShrinkRequest;
use earmark_core::{Actor, EntryPurpose, GrowthAttempt, Overdraft};

use super::grow::confirmed;
use super::hold::need;
use super::lease::{Growths, Life, Part};
use super::{LeaseStatus, entry_gate, lease_gate, lease_key, or_itself};
use crate::coin_selection::grants::{in_grants, plain_share, split_shares};
use crate::coin_selection::{BalanceChange, PostingIds};
use crate::id::GateId;
use crate::model::{AccountChange, Entry, EntryBody, EntryReason, HoldTerms, LeaseKey, Plan};
use crate::saga::{Draft, Engine, Proposal, Task, TaskError};
use crate::store::Survey;

/// Returns what an extension added to the holds of a lease, unless the extension was confirmed.
pub(crate) struct ShrinkTask {
    lease: LeaseKey,
    number: u32,
    actor: Option<Actor>,
}

impl ShrinkTask {
    pub(crate) fn new(request: &ShrinkRequest, actor: Option<Actor>) -> ShrinkTask {
        let lease = lease_key(&request.namespace, request.lease);
        ShrinkTask { lease, number: request.number, actor: or_itself(actor) }
    }

    async fn shrink(
        &self,
        engine: &Engine,
        attempt: u32,
        grown: &[(&Part, u64)],
        returns: u32,
    ) -> Result<Proposal<()>, TaskError> {
        let mut moves = moves(grown);
        let (posting_sets, permits) = engine.posting_queries(&moves, attempt > 1);
        let found = engine.call(engine.store.survey(Survey { posting_sets, ..Survey::default() })).await?;
        let rid = engine.new_rid();
        let mut ids = PostingIds::new(rid);
        let selected = engine.select(&mut ids, &mut moves, &found.posting_sets, &[]).await?;
        let selection = match selected.or_propose(|_, _| Proposal::Wait(None)) {
            Ok(selection) => selection,
            Err(proposal) => return Ok(proposal),
        };
        let (inputs, outputs) = (selection.inputs, selection.outputs);
        let mut plan = Plan { inputs, outputs, ..Plan::default() };
        for (part, amount) in grown {
            self.fill(engine, &mut ids, &mut plan, part, *amount);
        }
        let Some((first, _)) = grown.first() else { return Ok(Proposal::Answer(())) };
        let attempt = GrowthAttempt { number: self.number, attempt: returns };
        let purpose = EntryPurpose::Return(self.lease.lease, attempt, &first.terms.limit);
        let (gate, lease) = (entry_gate(&first.home, purpose), Some(self.lease.clone()));
        Ok(Proposal::Commit(Box::new(Draft { gate, rid, lease, plan, taken: selection.taken, permits })))
    }

    /// Replaces the hold of a part by a smaller one.
    fn fill(&self, engine: &Engine, ids: &mut PostingIds, plan: &mut Plan, part: &Part, amount: u64) {
        let Some((posting, hold)) = part.held() else { return };
        plan.inputs.push(posting.clone());
        let rest = part.amount().saturating_sub(amount);
        if rest > 0 {
            // Usage is reported with the confirmation, so none of it belongs to this growth.
            let mut hold = hold.with(rest, part.terms.charges, 0);
            hold.shares = in_grants(&split_shares(&posting.shares(), rest).0);
            plan.outputs.push(ids.posting((&posting.account, &posting.asset), i128::from(rest), Some(hold)));
        }
        let change = AccountChange {
            account: posting.account.account.clone(),
            asset: posting.asset.clone(),
            amount: i128::from(amount),
            held: i128::from(amount).saturating_neg(),
        };
        let terms = HoldTerms { amount, extension: self.number, ..part.terms.clone() };
        let body = EntryBody::Release { terms, reason: EntryReason::Returned, actor: self.actor.clone() };
        plan.entries.push(Entry { home: part.home.clone(), at: engine.time.moment(), body, changes: vec![change] });
        need(plan, &posting.account, false);
    }
}

/// The parts that an extension added to, with the amounts.
fn grown<'a>(parts: &'a [Part], growths: &Growths, number: u32) -> Vec<(&'a Part, u64)> {
    let grown = growths.of(number);
    let amount = |part: &'a Part| grown.get(&part.terms.limit).map(|amount| (part, (*amount).min(part.amount())));
    parts.iter().filter_map(amount).collect()
}

/// The amounts that return, by account and asset.
fn moves(grown: &[(&Part, u64)]) -> Vec<BalanceChange> {
    let mut moves: Vec<BalanceChange> = Vec::new();
    for (part, amount) in grown {
        let Some((posting, _)) = part.held() else { continue };
        // The credit that is spent last returns first.
        let (_, returned) = split_shares(&posting.shares(), part.amount().saturating_sub(*amount));
        let released = plain_share(&returned);
        let returned = returned.iter().map(|share| (share.terms, i128::from(share.amount)));
        let amount = i128::from(*amount);
        let place = moves.iter().position(|each| each.account == posting.account && each.asset == posting.asset);
        let place = place.unwrap_or_else(|| {
            moves.push(BalanceChange::plain(&posting.account, &posting.asset, 0, Overdraft::Deny));
            moves.len().saturating_sub(1)
        });
        if let Some(each) = moves.get_mut(place) {
            each.change = each.change.saturating_add(amount);
            each.released = each.released.saturating_add(released);
            each.deposits.extend(returned);
        }
    }
    moves
}

impl Task for ShrinkTask {
    type Answer = ();

    fn key(&self) -> GateId {
        lease_gate(&self.lease)
    }

    async fn propose(&self, engine: &Engine, attempt: u32) -> Result<Proposal<()>, TaskError> {
        let LeaseStatus::Holds(parts, growths) = engine.lease_status(&self.lease).await? else {
            return Ok(Proposal::Answer(()));
        };
        // Holds that ended belong to their timeout, or to the complete of the lease.
        match Life::of(&parts, engine.time.now()) {
            Life::Alive => {}
            Life::Over => return Ok(Proposal::Answer(())),
            Life::InDoubt => return Ok(Proposal::Wait(None)),
        }
        let grown = grown(&parts, &growths, self.number);
        if grown.is_empty() || self.number <= confirmed(&parts) {
            return Ok(Proposal::Answer(()));
        }
        self.shrink(engine, attempt, &grown, growths.returns(self.number)).await
    }

    async fn done(&self, engine: &Engine, _: GateId, _: &Plan) -> Result<(), TaskError> {
        drop(engine.recent_holds.take(&self.lease));
        Ok(())
    }
}
