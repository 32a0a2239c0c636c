//! Settles a hold that timed out: the reported usage is charged, or the whole hold, and the rest is returned.

use earmark_admission::count_expired_hold;
use earmark_core::EntryPurpose;

use super::charge::Settling;
use super::lease::{Part, read_entries};
use super::{entry_gate, lease_key};
use crate::id::GateId;
use crate::model::{EntryBody, LeaseKey, Plan, Posting, PostingState, StoredEntry, VaultKey};
use crate::saga::{Engine, Proposal, Task, TaskError};

/// Settles one held posting at its timeout.
pub(crate) struct TimeoutTask {
    posting: Posting,
    gate: GateId,
    lease: LeaseKey,
}

/// Whether the hold on a posting covers the usage that was reported, so that its timeout costs its owner nothing more.
pub(crate) fn is_covered(posting: &Posting) -> bool {
    posting.hold.as_ref().is_none_or(|hold| i128::from(hold.used) <= posting.amount)
}

impl TimeoutTask {
    /// `None` if no lease holds the posting.
    pub(crate) fn new(posting: Posting) -> Option<TimeoutTask> {
        let hold = posting.hold.as_ref()?;
        let home: &VaultKey = &posting.account.home;
        let gate = entry_gate(home, EntryPurpose::Release(hold.lease, &hold.limit));
        let lease = lease_key(&home.namespace, hold.lease);
        Some(TimeoutTask { posting, gate, lease })
    }

    /// The posting as it is now; `None` if the hold was settled, or its end was moved.
    async fn read(&self, engine: &Engine) -> Result<Option<Posting>, TaskError> {
        let held = engine.call(engine.store.held(self.lease.clone())).await?;
        let found = held.into_iter().find(|(posting, _)| posting.id == self.posting.id);
        let now = engine.time.now();
        let is_due = |posting: &Posting| posting.hold.as_ref().is_some_and(|hold| hold.ends_at <= now);
        Ok(found.map(|(posting, _)| posting).filter(is_due))
    }
}

impl Task for TimeoutTask {
    /// Whether this task settled it.
    type Answer = bool;

    fn key(&self) -> GateId {
        self.gate
    }

    async fn propose(&self, engine: &Engine, attempt: u32) -> Result<Proposal<bool>, TaskError> {
        let posting = match attempt {
            1 => self.posting.clone(),
            _ => match self.read(engine).await? {
                Some(posting) => posting,
                None => return Ok(Proposal::Answer(false)),
            },
        };
        let entries = engine.call(engine.store.lease(self.lease.clone())).await?;
        // Without an entry nothing was held. The audit reports the posting.
        let Some(part) = part_of(entries, posting) else { return Ok(Proposal::Answer(false)) };
        let used = part.held().map_or(0, |(_, hold)| hold.used);
        let cost = if part.terms.charges { used.max(part.amount()) } else { used };
        let parts = [part];
        let settling = Settling {
            lease: &self.lease,
            parts: &parts,
            costs: vec![cost],
            gate: self.gate,
            actor: None,
            is_timeout: true,
            labels: &earmark_core::SettleLabels::NONE,
        };
        // The commit detects whatever changed since the hold was listed.
        settling.propose(engine, attempt, attempt == 1).await
    }

    async fn done(&self, _: &Engine, _: GateId, plan: &Plan) -> Result<bool, TaskError> {
        for entry in &plan.entries {
            match &entry.body {
                EntryBody::Settle(settlement) => {
                    count_expired_hold(settlement.held, settlement.paid.saturating_add(settlement.uncollected));
                }
                EntryBody::Release { terms, .. } => count_expired_hold(terms.amount, 0),
                EntryBody::Transaction(_)
                | EntryBody::Hold { .. }
                | EntryBody::Refused { .. }
                | EntryBody::Expire(_)
                | EntryBody::Plan(_)
                | EntryBody::Ended { .. } => {}
            }
        }
        Ok(true)
    }
}

/// The hold on a posting; `None` if its lease has ended.
fn part_of(entries: Vec<StoredEntry>, posting: Posting) -> Option<Part> {
    let limit = posting.hold.as_ref()?.limit.clone();
    let mut part = read_entries(entries).ok()?.parts.remove(&limit)?;
    part.terms.amount = u64::try_from(posting.amount).ok()?;
    part.posting = Some((posting, PostingState::Active));
    Some(part)
}
