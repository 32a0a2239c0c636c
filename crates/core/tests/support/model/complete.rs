//! Complete, in the model.

use earmark_core::{
    Complete, CompleteOutcome, Kind, LeaseClaim, LeaseId, LimitKey, LimitRef, NamespaceId, Overage, OverageHow,
    OverageTaken, Part, QuotaKind, Release, Settlement, UnixMs,
};

use super::calendar;
use super::lease::{Fate, Held, Lease, Mark, hold_ms, requirements};
use super::limit::LimitPhase;
use super::parts::{Named, Refused};
use super::{Model, Reservation};

const OVERAGE_OF_ENDED_MS: u64 = 1_000;
const SLOTS_PER_WINDOW: u64 = 4_096;

impl Model {
    pub fn complete(&mut self, said: Complete<'_>) -> CompleteOutcome {
        self.end(said, false)
    }

    fn end(&mut self, said: Complete<'_>, is_release: bool) -> CompleteOutcome {
        let names = match self.check_parts(said.namespace, said.actuals, false) {
            Ok(names) => names,
            Err(Refused::Invalid(why)) => return CompleteOutcome::Invalid(why),
            Err(Refused::Stale { part }) => return CompleteOutcome::StaleLimit { actual: part },
        };
        let resolved_at = self.time();
        let Some(place) = self.remembered(said.namespace, said.lease) else {
            if said.lease.time() < self.forgotten_before || self.is_from_future(said.lease) {
                return CompleteOutcome::UnknownByAge;
            }
            if self.leases.len() >= self.config.leases_max as usize {
                return CompleteOutcome::Overloaded;
            }
            if !self.has_room(said.namespace, QuotaKind::Leases) {
                return CompleteOutcome::LeasesQuotaExceeded;
            }
            let fate = Fate::Marked { resolved_at };
            self.remember_lease(said.namespace, said.lease, (None, Mark::default()), fate);
            return CompleteOutcome::Marked;
        };
        let lease = &self.leases[place];
        if !matches!(lease.fate, Fate::Marked { .. }) && !is_release {
            if lease.mark.is_owned(said.claim.by_gateway) {
                return CompleteOutcome::OwnedByGateway;
            }
            if lease.mark.is_other_call(said.claim) {
                return CompleteOutcome::OtherCall;
            }
        }
        let (reserved_at, parts) = match lease.fate {
            Fate::Held { reserved_at, ref parts } => (reserved_at, parts.clone()),
            Fate::Completed { .. } => return CompleteOutcome::Before,
            Fate::Denied { .. } | Fate::NoCredit { .. } | Fate::Marked { .. } | Fate::Released { .. } => {
                return CompleteOutcome::HeldNothing;
            }
        };
        self.look_at_all(&parts);
        let lease = self.leases.remove(place);
        let requirements = lease.requirements().unwrap();
        let is_extended = lease.extended.is_some();
        let fate = Fate::Completed { reserved_at, requirements, resolved_at };
        self.remember_lease(said.namespace, said.lease, (lease.job, lease.mark), fate);

        let is_held = |name: &Named| parts.iter().any(|p| *name == Named::Number(p.limit));
        let ignored = (0..names.len()).filter(|&place| !is_held(&names[place])).collect();
        let mut overages = Vec::new();
        for part in parts.iter().filter(|part| !matches!(part.kind, Kind::Credit(_))) {
            let place = names.iter().position(|name| *name == Named::Number(part.limit));
            let actual = place.map_or(part.total(), |place| said.actuals[place].amount).max(part.used);
            let of_newest = actual.saturating_sub(part.earlier);
            overages.extend(self.settle((said.namespace, said.lease), part, of_newest));
        }
        let charges = self.charge((said.namespace, said.lease), |limit| {
            let place = names.iter().position(|name| *name == Named::Number(limit));
            let part = parts.iter().find(|part| part.limit == limit).unwrap();
            Some(place.map_or(part.amount, |place| said.actuals[place].amount).max(part.used))
        });
        let used = |name: &Named| parts.iter().find(|p| *name == Named::Number(p.limit)).map_or(0, |p| p.used);
        let raised = (0..names.len()).filter(|&place| said.actuals[place].amount < used(&names[place])).collect();
        CompleteOutcome::Completed(Settlement { ignored, raised, overages, charges, is_extended })
    }

    /// A complete with zero usage that leaves a different trace.
    pub fn release(&mut self, said: Release) -> CompleteOutcome {
        let Release { namespace, lease } = said;
        let held = self.remembered(namespace, lease).map(|place| self.leases[place].clone());
        let held = held.filter(Lease::is_held);
        let first = held.as_ref().and_then(Lease::requirements).unwrap_or_default();
        let held = match held.map(|lease| lease.fate) {
            Some(Fate::Held { parts, .. }) => requirements(&parts),
            _ => Vec::new(),
        };
        let nothing = |(key, _): &(LimitKey, u64)| Part { limit: LimitRef::from(key.clone()), amount: 0 };
        let actuals: Vec<Part> = held.iter().map(nothing).collect();
        let (claim, labels) = (LeaseClaim::default(), &earmark_core::SettleLabels::NONE);
        let outcome = self.end(Complete { namespace, lease, claim, actuals: &actuals, labels }, true);
        if matches!(outcome, CompleteOutcome::Completed(_)) {
            let place = self.remembered(namespace, lease).unwrap();
            self.leases[place].fate = Fate::Released { requirements: first, resolved_at: self.time() };
        }
        match outcome {
            // Nothing was reported with a release.
            CompleteOutcome::Completed(settlement) => {
                CompleteOutcome::Completed(Settlement { raised: Vec::new(), ..settlement })
            }
            other => other,
        }
    }

    fn settle(&mut self, lease: (NamespaceId, LeaseId), part: &Held, actual: u64) -> Option<OverageTaken> {
        let now = self.time();
        let place = self.reservations.iter().position(|r| r.limit == part.limit && r.unsettled == Some(lease));
        if matches!(part.kind, Kind::Concurrency { .. }) {
            // It is missing if it has expired.
            place.map(|place| self.reservations.remove(place));
            return None;
        }
        let over = actual.saturating_sub(part.amount);
        let limit = &self.limits[part.limit];
        // A key that was put again as credit cannot take usage of another kind.
        let is_credit = matches!(limit.definition.kind, Kind::Credit(_));
        let exists = limit.standing != LimitPhase::Deleted && !is_credit;
        let overage = limit.definition.overage;
        let how = if exists && over <= self.room(part.limit) {
            OverageHow::Reserved
        } else if exists && overage == Overage::Debt {
            self.limits[part.limit].debt += u128::from(over);
            OverageHow::Debt
        } else {
            OverageHow::Dropped
        };
        let grown = if how == OverageHow::Reserved { over } else { 0 };
        let (amount, end) = match place {
            Some(place) => {
                self.reservations.remove(place);
                (actual.min(part.amount) + grown, self.settled_end(part))
            }
            None => match &self.limits[part.limit].definition.kind {
                kind @ Kind::Calendar { .. } => (grown, calendar::end(kind, now)),
                _ => (grown, now.plus_ms(OVERAGE_OF_ENDED_MS)),
            },
        };
        if amount > 0 {
            self.reservations.push(Reservation { limit: part.limit, amount, end, unsettled: None });
        }
        (over > 0).then_some(OverageTaken { limit: part.limit, amount: over, how })
    }

    /// Settled usage of a window longer than the retention expires with its slot.
    pub fn settled_end(&self, part: &Held) -> UnixMs {
        let window = hold_ms(&part.kind);
        if window <= self.config.retention_ms || matches!(part.kind, Kind::Calendar { .. }) {
            return part.end;
        }
        let slot = (window / SLOTS_PER_WINDOW).max(1);
        UnixMs::new(part.end.get().div_ceil(slot) * slot)
    }
}
