//! Settles a lease: its holds pay the cost, and the rest is returned.

use earmark_admission::{Amount, SettleAnswer, SettleRequest};
use earmark_core::{Actor, EntryPurpose, LimitKey, SettleLabels, VaultName};

use super::charge::Settling;
use super::{LeaseStatus, Part, entry_gate, first_gate, lease_gate, lease_key, or_itself, settle_gate};
use crate::id::GateId;
use crate::model::{Entry, EntryBody, EntryReason, LeaseKey, Plan, PostingState, Settlement, VaultKey};
use crate::saga::{Draft, Engine, Proposal, Task, TaskError};

/// Settles the holds of a lease.
pub(crate) struct SettleTask {
    lease: LeaseKey,
    actuals: Vec<Amount>,
    is_release: bool,
    actor: Option<Actor>,
    labels: SettleLabels,
}

impl SettleTask {
    pub(crate) fn new(request: &SettleRequest, actor: Option<Actor>) -> SettleTask {
        SettleTask {
            lease: lease_key(&request.namespace, request.lease),
            actuals: request.actuals.clone(),
            is_release: request.is_release,
            actor: or_itself(actor),
            labels: request.labels.clone(),
        }
    }

    /// The cost of a hold: what the caller says, but at least the usage that it reported before.
    fn cost(&self, part: &Part) -> u64 {
        let said = self.actuals.iter().find(|actual| actual.key == part.terms.limit);
        let unsaid = if self.is_release { 0 } else { part.amount() };
        let used = part.held().map_or(0, |(_, hold)| hold.used);
        said.map_or(unsaid, |actual| actual.amount).max(used)
    }

    fn ignored<'a>(&self, held: impl Iterator<Item = &'a LimitKey>) -> Vec<LimitKey> {
        let held: Vec<&LimitKey> = held.collect();
        let keys = self.actuals.iter().map(|actual| &actual.key);
        keys.filter(|key| !held.contains(key)).cloned().collect()
    }

    /// Whether a settlement costs more than the caller says, because extensions reported more. A late one costs only what
    /// exceeds the payment at the timeout.
    fn is_raised(&self, settlement: &Settlement) -> bool {
        let cost = settlement.paid.saturating_add(settlement.uncollected);
        let said = self.actuals.iter().find(|actual| actual.key == settlement.hold.limit);
        settlement.reason != EntryReason::Late && said.is_some_and(|said| said.amount < cost)
    }

    async fn settle(
        &self,
        engine: &Engine,
        parts: &[Part],
        attempt: u32,
        is_fresh: bool,
    ) -> Result<Proposal<SettleAnswer>, TaskError> {
        let Some(first) = parts.first() else { return Ok(Proposal::Answer(SettleAnswer::default())) };
        let settling = Settling {
            lease: &self.lease,
            parts,
            costs: parts.iter().map(|part| self.cost(part)).collect(),
            gate: settle_gate(first),
            actor: self.actor.as_ref(),
            is_timeout: false,
            labels: &self.labels,
        };
        settling.propose(engine, attempt, is_fresh).await
    }

    /// Records that an unknown lease has ended, so that a later hold of it is refused.
    fn mark(&self, engine: &Engine, returned: u32) -> Proposal<SettleAnswer> {
        let Ok(vault) = VaultName::new(VaultName::MAIN) else {
            return Proposal::Answer(SettleAnswer::default());
        };
        let home = VaultKey { namespace: self.lease.namespace.clone(), vault };
        let body = EntryBody::Ended { lease: self.lease.lease };
        let entry = Entry { home, at: engine.time.moment(), body, changes: Vec::new() };
        Proposal::Commit(Box::new(Draft {
            gate: first_gate(&self.lease, returned),
            rid: engine.new_rid(),
            lease: Some(self.lease.clone()),
            plan: Plan { entries: vec![entry], ..Plan::default() },
            taken: Vec::new(),
            permits: Vec::new(),
        }))
    }
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
            LeaseStatus::Unknown { returned } => return Ok(self.mark(engine, returned)),
            LeaseStatus::Marked | LeaseStatus::Refused { .. } => {
                return Ok(Proposal::Answer(SettleAnswer { ignored: ignored(), ..SettleAnswer::default() }));
            }
            LeaseStatus::Settled => {
                return Ok(Proposal::Answer(SettleAnswer { is_known: true, ..SettleAnswer::default() }));
            }
            LeaseStatus::Holds(parts, _) => parts,
        };
        for part in &parts {
            match &part.posting {
                None if part.paid_at_timeout.is_some() => {}
                None => {
                    // The hold is being settled at its timeout, and its owner's balance is not complete yet.
                    let gate = entry_gate(&part.home, EntryPurpose::Release(part.terms.lease, &part.terms.limit));
                    engine.unblock(gate, None).await?;
                    return Ok(Proposal::Wait(None));
                }
                Some((_, PostingState::Pending(_) | PostingState::Inactive(_))) => {
                    return Ok(Proposal::Wait(None));
                }
                Some((posting, PostingState::Active)) if part.is_over(engine.time.now()) => {
                    engine.time_out(posting.clone()).await?;
                    return Ok(Proposal::Wait(None));
                }
                Some((_, PostingState::Active)) => {}
            }
        }
        // The holds were read just now, and the commit detects whatever has changed since.
        self.settle(engine, &parts, attempt, attempt == 1).await
    }

    async fn done(&self, _: &Engine, _: GateId, plan: &Plan) -> Result<SettleAnswer, TaskError> {
        let is_marked = plan.entries.iter().any(|entry| matches!(entry.body, EntryBody::Ended { .. }));
        let mut answer = SettleAnswer { is_known: !is_marked, ..SettleAnswer::default() };
        let mut limits = Vec::new();
        for entry in &plan.entries {
            match &entry.body {
                EntryBody::Settle(settlement) => {
                    limits.push(&settlement.hold.limit);
                    if self.is_raised(settlement) {
                        answer.raised.push(settlement.hold.limit.clone());
                    }
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
