//! Holds more credit for a lease: the first step of an extension.

use std::collections::BTreeMap;

use earmark_admission::{GrowAnswer, GrowRequest, HoldPart};
use earmark_core::{Actor, EntryPurpose, GrowthAttempt, LimitKey};

use super::hold::{Base, HoldTask};
use super::lease::{Growths, Life, Part};
use super::{LeaseStatus, entry_gate, first_gate, lease_gate, lease_key};
use crate::id::GateId;
use crate::model::{LeaseKey, Plan};
use crate::saga::{Engine, Proposal, Task, TaskError};

/// Adds the holds of an extension. A refusal is not recorded, because the limits remember it.
pub(crate) struct GrowTask {
    hold: HoldTask,
    number: u32,
}

/// The last extension that moved the ends or recorded usage.
pub(super) fn confirmed(parts: &[Part]) -> u32 {
    parts.iter().filter_map(Part::held).map(|(_, hold)| hold.extension).max().unwrap_or(0)
}

/// The amounts that an extension adds, by limit.
pub(super) fn amounts(holds: &[HoldPart]) -> BTreeMap<LimitKey, u64> {
    holds.iter().map(|part| (part.limit.key.clone(), part.amount)).collect()
}

impl GrowTask {
    /// `None` if a limit is not of kind `credit`.
    pub(crate) fn new(request: &GrowRequest, actor: Option<Actor>) -> Option<GrowTask> {
        let lease = lease_key(&request.namespace, request.lease);
        let hold = HoldTask::of(lease, &request.holds, request.number, actor)?;
        Some(GrowTask { hold, number: request.number })
    }

    fn lease(&self) -> &LeaseKey {
        &self.hold.lease
    }

    /// The answer without a change, if there is one.
    fn known(&self, parts: &[Part], growths: &Growths) -> Option<GrowAnswer> {
        let confirmed = confirmed(parts);
        let wanted = self.hold.wanted.iter().map(|part| (part.limit.clone(), part.amount)).collect();
        let held = growths.of(self.number);
        match self.number < confirmed || held == wanted {
            true => Some(GrowAnswer::Held),
            false if self.number == confirmed || !held.is_empty() => Some(GrowAnswer::Differs),
            false => None,
        }
    }

    /// Holds everything under a gate. The refusal of a copy that was just held would be wrong, so it is tried again.
    async fn grow(&self, engine: &Engine, attempt: u32, base: Base<'_>) -> Result<Proposal<GrowAnswer>, TaskError> {
        let (gate, hold) = (base.gate, self.hold.on_terms_of(base.parts));
        let refuse = |place: usize, why| match hold.wanted.get(place) {
            Some(part) => Proposal::Answer(GrowAnswer::Refused { key: part.limit.clone(), why }),
            None => Proposal::Wait(None),
        };
        let proposal = hold.draft(engine, attempt, base, refuse).await?;
        if !matches!(proposal, Proposal::Answer(_)) {
            return Ok(proposal);
        }
        let is_under_way = engine.unblock(gate, None).await?;
        let is_done = !engine.call(engine.store.entries(gate)).await?.is_empty();
        Ok(if is_under_way || is_done { Proposal::Wait(None) } else { proposal })
    }
}

impl Task for GrowTask {
    type Answer = GrowAnswer;

    fn key(&self) -> GateId {
        lease_gate(self.lease())
    }

    async fn propose(&self, engine: &Engine, attempt: u32) -> Result<Proposal<GrowAnswer>, TaskError> {
        let status = engine.lease_status(self.lease()).await?;
        let (parts, growths) = match status {
            LeaseStatus::Refused { .. } | LeaseStatus::Marked | LeaseStatus::Settled => {
                return Ok(Proposal::Answer(GrowAnswer::Ended));
            }
            LeaseStatus::Unknown { .. } if self.hold.wanted.is_empty() => {
                return Ok(Proposal::Answer(GrowAnswer::Held));
            }
            LeaseStatus::Unknown { returned } => {
                let gate = first_gate(self.lease(), returned);
                return self.grow(engine, attempt, Base { gate, parts: &[] }).await;
            }
            LeaseStatus::Holds(parts, growths) => (parts, growths),
        };
        match Life::of(&parts, engine.time.now()) {
            Life::Alive => {}
            Life::Over => return Ok(Proposal::Answer(GrowAnswer::Ended)),
            Life::InDoubt => return Ok(Proposal::Wait(None)),
        }
        if let Some(answer) = self.known(&parts, &growths) {
            return Ok(Proposal::Answer(answer));
        }
        let Some((first, held)) = self.hold.wanted.first().zip(parts.first()) else {
            return Ok(Proposal::Answer(GrowAnswer::Held));
        };
        let attempt_of = GrowthAttempt { number: self.number, attempt: growths.returns(self.number) };
        let purpose = EntryPurpose::Extend(self.lease().lease, attempt_of, &first.limit);
        let gate = entry_gate(&held.home, purpose);
        self.grow(engine, attempt, Base { gate, parts: &parts }).await
    }

    async fn done(&self, engine: &Engine, _: GateId, _: &Plan) -> Result<GrowAnswer, TaskError> {
        drop(engine.recent_holds.take(self.lease()));
        Ok(GrowAnswer::Held)
    }
}
