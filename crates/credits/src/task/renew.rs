//! Moves the ends of the holds of a lease and records its usage: the last step of an extension.

use std::collections::BTreeMap;

use earmark_admission::{RenewAnswer, RenewRequest};
use earmark_core::{LimitKey, UnixMs};

use super::grow::{amounts, confirmed};
use super::lease::{Life, Part};
use super::{LeaseStatus, lease_gate, lease_key};
use crate::id::GateId;
use crate::model::{LeaseKey, Plan};
use crate::saga::{Engine, Proposal, Task, TaskError};
use crate::store::{Change, Renewal};

/// How long extensions keep a lease alive, from its reserve, in milliseconds: 24 hours.
const LIFETIME_MS_MAX: u64 = 24 * 60 * 60 * 1_000;

/// Confirms an extension by one conditional update, without an entry.
pub(crate) struct RenewTask {
    lease: LeaseKey,
    growth: BTreeMap<LimitKey, u64>,
    request: RenewRequest,
}

/// The outcome of a confirmation.
#[derive(Debug)]
pub(crate) enum Renewed {
    Answer(RenewAnswer),
    /// The lease does not hold what the extension adds. It has to be held first.
    NotGrown,
}

impl RenewTask {
    pub(crate) fn new(request: RenewRequest) -> RenewTask {
        let lease = lease_key(&request.namespace, request.lease);
        RenewTask { lease, growth: amounts(&request.holds), request }
    }

    fn used(&self, limit: &LimitKey) -> u64 {
        self.request.used.iter().find(|used| used.key == *limit).map_or(0, |used| used.amount)
    }

    /// The answer with the ends of some holds.
    fn alive(&self, parts: &[Part], ends: impl Iterator<Item = UnixMs>) -> Renewed {
        let of = |key: &LimitKey| parts.iter().find(|part| part.terms.limit == *key);
        let used = || self.request.used.iter();
        let ignored = used().filter(|used| of(&used.key).is_none());
        let above = used().filter(|used| of(&used.key).is_some_and(|part| used.amount > part.amount()));
        Renewed::Answer(RenewAnswer::Alive {
            ends_at: ends.min(),
            ignored: ignored.map(|used| used.key.clone()).collect(),
            above: above.map(|used| used.key.clone()).collect(),
        })
    }

    /// The holds after the extension.
    fn renewals(&self, parts: &[Part], now: UnixMs) -> Vec<Renewal> {
        let last_end = self.request.reserved_at.plus_ms(LIFETIME_MS_MAX);
        let renewal = |part: &Part| {
            let (posting, hold) = part.held()?;
            let timeout_ms = self.request.timeouts.seconds(&part.terms.limit);
            let timeout_ms = timeout_ms.map_or(part.timeout_ms, |seconds| u64::from(seconds).saturating_mul(1_000));
            let mut new = hold.with(part.amount(), part.terms.charges, self.used(&part.terms.limit));
            if self.request.renew {
                new.ends_at = hold.ends_at.max(now.plus_ms(timeout_ms).min(last_end));
            }
            new.extension = self.request.number;
            Some(Renewal { id: posting.id, read: hold.extension, hold: new })
        };
        parts.iter().filter_map(renewal).collect()
    }
}

impl Task for RenewTask {
    type Answer = Renewed;

    fn key(&self) -> GateId {
        lease_gate(&self.lease)
    }

    async fn propose(&self, engine: &Engine, _: u32) -> Result<Proposal<Renewed>, TaskError> {
        let (parts, growths) = match engine.lease_status(&self.lease).await? {
            LeaseStatus::Refused { .. } | LeaseStatus::Marked | LeaseStatus::Settled => {
                return Ok(Proposal::Answer(Renewed::Answer(RenewAnswer::Ended)));
            }
            LeaseStatus::Unknown { .. } if self.growth.is_empty() => {
                return Ok(Proposal::Answer(self.alive(&[], std::iter::empty())));
            }
            LeaseStatus::Unknown { .. } => return Ok(Proposal::Answer(Renewed::NotGrown)),
            LeaseStatus::Holds(parts, growths) => (parts, growths),
        };
        let now = engine.time.now();
        match Life::of(&parts, now) {
            Life::Alive => {}
            Life::Over => return Ok(Proposal::Answer(Renewed::Answer(RenewAnswer::Ended))),
            Life::InDoubt => return Ok(Proposal::Wait(None)),
        }
        let is_repeated = self.request.number <= confirmed(&parts);
        let growth = growths.of(self.request.number);
        if !is_repeated && growth != self.growth {
            return Ok(Proposal::Answer(Renewed::NotGrown));
        }
        let is_idle = !self.request.renew && self.request.used.is_empty() && growth.is_empty();
        if is_repeated || is_idle {
            let ends = parts.iter().filter_map(Part::held).map(|(_, hold)| hold.ends_at);
            return Ok(Proposal::Answer(self.alive(&parts, ends)));
        }
        let renewals = self.renewals(&parts, now);
        let answer = self.alive(&parts, renewals.iter().map(|renewal| renewal.hold.ends_at));
        // The holds that this process remembers have another end.
        drop(engine.recent_holds.take(&self.lease));
        Ok(Proposal::Change(Change::Renew(renewals), answer))
    }

    async fn done(&self, _: &Engine, _: GateId, _: &Plan) -> Result<Renewed, TaskError> {
        // A renewal commits no plan.
        Ok(Renewed::Answer(RenewAnswer::Ended))
    }
}
