//! Complete: settle the actual usage of a lease.

use super::lease::Life;
use super::mark::ClaimRefusal;
use super::reserve::{RefusedParts, ResolvedPart};
use super::{
    Ending, ExtendedPart, Flags, Found, Lease, LeaseFlags, Limit, LimitSlot, Limits, Nodes, PartKind, Phase, Reference,
    Reservation, State, Sums, Tombstone,
};
use crate::book::{
    CallMark, Complete, CompleteOutcome, LeaseClaim, NamespaceId, OverageHow, OverageTaken, Release, Settlement,
};
use crate::credits::{Credits, SettleLabels};
use crate::id::LeaseId;
use crate::limits::slab::NONE;
use crate::time::{Moment, UnixMs};

/// How long overage is held when its reservation has already expired, unless the limit has a calendar: 1 second, as in the TigerBeetle backend, whose
/// timeouts have that resolution.
const LATE_OVERAGE_MS: u64 = 1_000;
/// Slots per window in which settled reservations of a long window are merged, so that memory does not grow with
/// traffic.
const SLOTS: u64 = 4_096;

impl Limits {
    pub(crate) fn complete(&mut self, at: Moment, command: &Complete<'_>, credits: &mut Credits) -> CompleteOutcome {
        let mut resolved = std::mem::take(&mut self.resolved);
        let outcome = match self.sort_parts((command.namespace, None), command.actuals, 0, &mut resolved) {
            Err(RefusedParts::Invalid(invalid)) => CompleteOutcome::Invalid(invalid),
            Err(RefusedParts::Stale { part }) => CompleteOutcome::StaleLimit { actual: part },
            Ok(()) => {
                let lease = (command.namespace, command.lease);
                self.end_lease(at, lease, Some((&resolved, command)), credits)
            }
        };
        self.resolved = resolved;
        outcome
    }

    pub(crate) fn release(&mut self, at: Moment, command: &Release, credits: &mut Credits) -> CompleteOutcome {
        let Release { namespace, lease } = *command;
        match self.check_namespace(namespace) {
            Err(invalid) => CompleteOutcome::Invalid(invalid),
            Ok(()) => self.end_lease(at, (namespace, lease), None, credits),
        }
    }

    /// Refuses a claim that does not fit a lease. A lease that was completed before its reserve fits any.
    #[inline]
    fn check_claim(
        &self,
        (namespace, lease): (NamespaceId, LeaseId),
        found: &Found,
        claim: LeaseClaim,
    ) -> Result<(), CompleteOutcome> {
        if let Found::Tombstone(number) = found
            && self.state.tombstones.get(*number).ending == Ending::Marked
        {
            return Ok(());
        }
        self.mark_of_found(namespace, lease, found).check(claim).map_err(|refusal| match refusal {
            ClaimRefusal::OwnedByGateway => CompleteOutcome::OwnedByGateway,
            ClaimRefusal::OtherCall => CompleteOutcome::OtherCall,
        })
    }

    /// Ends a lease with its actuals, and the command with their claim and labels. `None` releases it: nothing was used.
    fn end_lease(
        &mut self,
        at: Moment,
        (namespace, lease): (NamespaceId, LeaseId),
        actuals: Option<(&[ResolvedPart], &Complete<'_>)>,
        credits: &mut Credits,
    ) -> CompleteOutcome {
        let now = at.log;
        let found = self.find(self.index.hash(namespace, lease), namespace, lease);
        if let (Some((_, found)), Some((_, command))) = (&found, actuals)
            && let Err(refused) = self.check_claim((namespace, lease), found, command.claim)
        {
            return refused;
        }
        let labels = actuals.map_or(&SettleLabels::NONE, |(_, command)| command.labels);
        let actuals = actuals.map(|(actuals, _)| actuals);
        match found {
            Some((position, Found::Record(slot))) => {
                let settlement = self.end_record(now, slot, (actuals, labels), credits);
                let ending = if actuals.is_some() { Ending::Completed } else { Ending::Released };
                let Ended { settlement, fingerprint, reserved_at, flags } = settlement;
                let call = self.mark_of(namespace, lease, flags).call;
                let number = self.state.tombstones.push(Tombstone {
                    fingerprint: call.map_or(fingerprint, CallMark::fingerprint),
                    at: reserved_at,
                    flags,
                    ..Tombstone::new(namespace, lease, ending, now)
                });
                self.index.replace(position, Reference::tombstone(number));
                CompleteOutcome::Completed(settlement)
            }
            Some((_, Found::Tombstone(number))) => match self.state.tombstones.get(number).ending {
                Ending::Completed => CompleteOutcome::Before,
                Ending::Denied
                | Ending::DeniedNever
                | Ending::Marked
                | Ending::NoCredit
                | Ending::AccountFrozen
                | Ending::AccountClosed
                | Ending::Released => CompleteOutcome::HeldNothing,
            },
            None if self.state.age(lease, at.wall).is_some() => CompleteOutcome::UnknownByAge,
            None if self.state.remembered() >= self.state.config.leases_max as usize => CompleteOutcome::Overloaded,
            None if !self.state.quotas.has_room_for_lease(namespace) => CompleteOutcome::LeasesQuotaExceeded,
            None => {
                self.add_tombstone(Tombstone::new(namespace, lease, Ending::Marked, now));
                CompleteOutcome::Marked
            }
        }
    }
}

/// A lease that was settled and removed.
struct Ended {
    settlement: Settlement,
    /// The fingerprint of its reserve.
    fingerprint: u64,
    reserved_at: UnixMs,
    flags: LeaseFlags,
}

impl Limits {
    /// Settles a lease record and removes it.
    fn end_record(
        &mut self,
        now: UnixMs,
        slot: u32,
        (actuals, labels): (Option<&[ResolvedPart]>, &SettleLabels),
        credits: &mut Credits,
    ) -> Ended {
        let record = *self.state.leases.get(slot);
        let Lease { reserved_at, holds, flags, .. } = record;
        let mut parts = std::mem::take(&mut self.parts);
        let mut more = std::mem::take(&mut self.extended_parts);
        self.state.leases.parts(&record, &mut parts);
        self.state.leases.extended_parts(&record, &mut more);
        let original = self.state.leases.extended(&record).map(|extended| extended.original);
        let mut raised = Vec::new();
        let counted: Vec<ResolvedPart> = match actuals {
            Some(_) if more.is_empty() => Vec::new(),
            _ => counted_actuals(&parts, &more, actuals, &mut raised),
        };
        let actuals = actuals.filter(|_| more.is_empty()).unwrap_or(&counted);
        let mut settlement = self.state.settle(now, reserved_at, (&parts, &more), actuals);
        settlement.raised = raised;
        settlement.is_extended = original.is_some();
        if holds != NONE {
            let actual = |limit| actuals.iter().find(|part| part.limit == limit).map(|part| part.amount);
            settlement.charges = credits.settle(now, (holds, labels), &self.state, actual);
        }
        self.state.leases.remove(slot, Life::of(reserved_at, &parts, &more));
        let fingerprint = self.unlink_parts(now, &parts);
        (self.parts, self.extended_parts) = (parts, more);
        Ended { settlement, fingerprint: original.unwrap_or(fingerprint), reserved_at, flags }
    }
}

/// The actuals of a released or extended lease, and those that no limit of the lease has, ordered by limit. Nothing is
/// used of a released one. The reported usage is a floor; `raised` gets the indexes of lower actuals.
fn counted_actuals(
    parts: &[Reservation],
    more: &[ExtendedPart],
    actuals: Option<&[ResolvedPart]>,
    raised: &mut Vec<usize>,
) -> Vec<ResolvedPart> {
    let mut counted: Vec<ResolvedPart> = actuals.unwrap_or_default().to_vec();
    for (place, part) in parts.iter().enumerate() {
        let more = more.get(place);
        let used = more.map_or(0, |more| more.used);
        match counted.iter_mut().find(|actual| actual.limit == part.limit) {
            Some(actual) if actual.amount < used => {
                raised.push(actual.position);
                actual.amount = used;
            }
            Some(_) => {}
            None => {
                let reserved = more.map_or(part.amount, |more| more.total(part));
                let amount = if actuals.is_some() { reserved.max(used) } else { used };
                counted.push(ResolvedPart {
                    limit: part.limit,
                    amount,
                    position: usize::MAX,
                    is_blocked: false,
                    plain: 0,
                    room: 0,
                });
            }
        }
    }
    raised.sort_unstable();
    counted.sort_unstable_by_key(|actual| actual.limit);
    counted
}

impl State {
    /// Settles every reservation of a lease. The slices are ordered by limit.
    fn settle(
        &mut self,
        now: UnixMs,
        reserved_at: UnixMs,
        (parts, more): (&[Reservation], &[ExtendedPart]),
        actuals: &[ResolvedPart],
    ) -> Settlement {
        let mut settlement = Settlement::default();
        let mut actuals = actuals;
        for (place, part) in parts.iter().enumerate() {
            while let [other, rest @ ..] = actuals
                && other.limit < part.limit
            {
                settlement.ignored.push(other.position);
                actuals = rest;
            }
            let mut actual = None;
            if let [first, rest @ ..] = actuals
                && first.limit == part.limit
            {
                (actual, actuals) = (Some(first.amount), rest);
            }
            let (ends_at, earlier) = match more.get(place) {
                Some(more) => (more.ends_at, more.earlier),
                None => (part.ends_at(reserved_at), 0),
            };
            match part.kind() {
                PartKind::Credit | PartKind::CreditExternal => {}
                PartKind::Concurrency => self.free(now, ends_at, part),
                PartKind::Rolling | PartKind::Calendar => {
                    // Earlier parts are settled already, so only the newest can shrink.
                    let actual = actual.map(|actual| actual.saturating_sub(earlier));
                    if let Some(overage) = self.settle_usage(now, ends_at, part, actual) {
                        settlement.overages.push(overage);
                    }
                }
            }
        }
        settlement.ignored.extend(actuals.iter().map(|other| other.position));
        settlement.ignored.sort_unstable();
        settlement
    }

    fn free(&mut self, now: UnixMs, ends_at: UnixMs, part: &Reservation) {
        if ends_at > now {
            let limit = &mut self.limits[part.limit];
            limit.change(&mut self.nodes, ends_at, Sums::unsettled(part.amount).negated());
        }
    }

    /// Settles a reservation whose usage counts until its end.
    fn settle_usage(
        &mut self,
        now: UnixMs,
        ends_at: UnixMs,
        part: &Reservation,
        actual: Option<u64>,
    ) -> Option<OverageTaken> {
        let has_ended = ends_at <= now;
        let actual = actual.unwrap_or(part.amount);
        let excess = actual.saturating_sub(part.amount);
        if has_ended && excess == 0 {
            return None;
        }
        let how = (excess > 0).then(|| self.account_overage(now, part.limit, excess));
        let fitted = if how == Some(OverageHow::Reserved) { excess } else { 0 };
        if has_ended {
            let limit = &mut self.limits[part.limit];
            let ends_at = limit.calendar().map_or(now.plus_ms(LATE_OVERAGE_MS), |calendar| calendar.end(now));
            limit.add(&mut self.nodes, ends_at, Sums::settled(fitted));
        } else {
            let settled = actual.min(part.amount).saturating_add(fitted);
            let State { limits, nodes, config, .. } = self;
            limits[part.limit].settle_part(nodes, part, ends_at, (settled, config.retention_ms));
        }
        how.map(|how| OverageTaken { limit: self.limits.id(part.limit), amount: excess, how })
    }

    /// Decides whether overage is reserved, becomes debt or is dropped, and records debt.
    fn account_overage(&mut self, now: UnixMs, slot: LimitSlot, excess: u64) -> OverageHow {
        if self.limits[slot].is_due(now) {
            self.advance_limit(slot, now);
        }
        let limit = &self.limits[slot];
        if limit.phase == Phase::Deleted || limit.is_credit() {
            OverageHow::Dropped
        } else if excess <= limit.room() {
            OverageHow::Reserved
        } else if limit.flags.has(Flags::KEEPS_DEBT) {
            self.set_debt(slot, self.debt(slot).saturating_add(u128::from(excess)));
            OverageHow::Debt
        } else {
            OverageHow::Dropped
        }
    }
}

impl Limit {
    /// Settles the newest part of a reservation that has not ended, with this amount.
    fn settle_part(
        &mut self,
        nodes: &mut Nodes,
        part: &Reservation,
        ends_at: UnixMs,
        (settled, retention_ms): (u64, u64),
    ) {
        let (less, settled) = (Sums::unsettled(part.amount), Sums::settled(settled));
        self.replace(nodes, (ends_at, less), (settled_end(part, ends_at, retention_ms), settled));
    }
}

/// When a settled reservation expires. A window longer than the retention rounds it up to its slot. All reservations of a
/// calendar period end together already.
#[inline]
pub(super) fn settled_end(part: &Reservation, ends_at: UnixMs, retention_ms: u64) -> UnixMs {
    let hold_ms = part.hold_ms();
    if hold_ms <= retention_ms || part.kind() == PartKind::Calendar {
        return ends_at;
    }
    let slot_ms = (hold_ms / SLOTS).max(1);
    UnixMs::new(ends_at.get().div_ceil(slot_ms).saturating_mul(slot_ms))
}
