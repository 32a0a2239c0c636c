//! Reserve: take all requirements or none.

use std::borrow::Cow;

use super::derive::{DERIVED_REFUSED, decided_at};
use super::hint::NEVER_RETRY_MS;
use super::lease::Life;
use super::slab::NONE;
use super::{
    Ending, Extended, Found, Hash, Limit, LimitSlot, Limits, Nodes, PartKind, Phase, Reference, Reservation, State,
    Sums, Tombstone, fingerprint, key_hash,
};
use crate::book::{
    Denial, ForeignLimit, InvalidParts, LimitRef, NamespaceId, Part, REQUIREMENTS_MAX, RequirementSet, Reserve,
    ReserveOutcome,
};
use crate::credits::Credits;
use crate::id::{LeaseId, NamespaceName};
use crate::quota::{QUOTA_RETRY_MS, QuotaKind};
use crate::time::{Moment, UnixMs};

/// A resolved requirement or actual. Sorted by limit, so that equal commands compare equal whatever their order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ResolvedPart {
    pub(crate) limit: LimitSlot,
    pub(crate) amount: u64,
    pub(crate) position: usize,
    /// The limit still has reservations of another kind than its template. No room is noted for it.
    pub(crate) is_blocked: bool,
    /// The room of a plain limit when the part was resolved, else 0; see [`Limit::plain_room`].
    pub(crate) room: u64,
    /// The code of the [`PartKind`] of a plain limit that is to be taken, else 0.
    pub(crate) plain: u8,
}

/// Whether requirements that nothing refuses by name fit.
pub(super) struct Fit {
    pub(super) fits: bool,
    /// Whether credit that this Book holds is among them.
    pub(super) has_credit: bool,
}

/// Stands for every key that names no limit. No limit has this slot.
pub(super) const UNKNOWN: LimitSlot = LimitSlot(u32::MAX);

/// Why requirements or actuals are refused before anything else is looked at.
pub(super) enum RefusedParts {
    Invalid(InvalidParts),
    /// The id of a limit that was freed. The sender resolves the key again.
    Stale {
        part: usize,
    },
}

/// The namespace of a limit if it is not that of the lease, and the key.
type PartName<'a> = (Option<&'a NamespaceName>, Cow<'a, str>);

/// Why the ULID time of an unknown lease is refused.
pub(super) enum Age {
    TooOld,
    InFuture,
}

impl Limits {
    pub(crate) fn reserve(&mut self, at: Moment, command: &Reserve<'_>, credits: &mut Credits) -> ReserveOutcome {
        let hash = self.index.hash(command.namespace, command.lease);
        self.prefetch_lease(hash);
        let mut resolved = std::mem::take(&mut self.resolved);
        let outcome = match self.resolve_parts(at.log, command, &mut resolved) {
            Err(RefusedParts::Invalid(invalid)) => ReserveOutcome::Invalid(invalid),
            Err(RefusedParts::Stale { part }) => ReserveOutcome::StaleLimit { requirement: part },
            Ok(()) => self.reserve_resolved(at, command, hash, &mut resolved, credits),
        };
        self.resolved = resolved;
        let is_allowed = matches!(outcome, ReserveOutcome::Created { .. });
        self.end_derivation(is_allowed, |position| is_decision(&outcome, position));
        outcome
    }

    /// Checks the requirements of a reserve and sorts them into `resolved`.
    fn resolve_parts(
        &self,
        now: UnixMs,
        command: &Reserve<'_>,
        resolved: &mut Vec<ResolvedPart>,
    ) -> Result<(), RefusedParts> {
        let (namespace, parts) = (command.namespace, command.requirements);
        if parts.is_empty() && self.has_namespace(namespace) {
            return Err(RefusedParts::Invalid(InvalidParts::Empty));
        }
        self.sort_parts((namespace, Some(now)), parts, 1, resolved)
    }

    pub(super) fn check_namespace(&self, namespace: NamespaceId) -> Result<(), InvalidParts> {
        if self.has_namespace(namespace) { Ok(()) } else { Err(InvalidParts::UnknownNamespace) }
    }

    /// Resolves `parts`, each at least `amount_min`, and sorts them into `resolved`. Notes the room at a time if they are
    /// to be taken.
    pub(super) fn sort_parts(
        &self,
        (namespace, taken_at): (NamespaceId, Option<UnixMs>),
        parts: &[Part],
        amount_min: u64,
        resolved: &mut Vec<ResolvedPart>,
    ) -> Result<(), RefusedParts> {
        self.check_namespace(namespace).map_err(RefusedParts::Invalid)?;
        if parts.len() > REQUIREMENTS_MAX {
            return Err(RefusedParts::Invalid(InvalidParts::TooMany { found: parts.len() }));
        }
        resolved.clear();
        let (mut is_in_order, mut next) = (true, LimitSlot(0));
        resolved.extend(parts.iter().enumerate().map(|(position, part)| {
            let (limit, found) = match &part.limit {
                LimitRef::Id(id) => (LimitSlot(id.slot), self.state.limits.by_id(*id)),
                LimitRef::Key(_) | LimitRef::Foreign(_) => {
                    let limit = self.resolve_name(namespace, part);
                    (limit, self.state.limits.get(limit))
                }
            };
            let limit = if found.is_some() { limit } else { UNKNOWN };
            is_in_order &= found.is_some() && limit >= next && part.amount >= amount_min;
            next = LimitSlot(limit.0.wrapping_add(1));
            let (room, plain) = match (taken_at, found) {
                (Some(now), Some(found)) if found.is_plain() => (found.plain_room(now, namespace), found.kind_code()),
                _ => (0, 0),
            };
            ResolvedPart { limit, amount: part.amount, position, is_blocked: false, plain, room }
        }));
        if is_in_order { Ok(()) } else { self.sort_resolved(namespace, parts, amount_min, resolved) }
    }

    /// The limit of a part that does not name it by id.
    #[inline(never)]
    fn resolve_name(&self, namespace: NamespaceId, part: &Part) -> LimitSlot {
        let found = match &part.limit {
            LimitRef::Id(id) => self.state.limits.slot(*id),
            LimitRef::Key(key) => self.resolve(namespace, key),
            LimitRef::Foreign(limit) => self.resolve_foreign(limit),
        };
        found.unwrap_or(UNKNOWN)
    }

    /// Sorts resolved parts by limit. Refuses an amount that is too small, else a stale id, else a limit that is named
    /// twice.
    #[inline(never)]
    fn sort_resolved(
        &self,
        namespace: NamespaceId,
        parts: &[Part],
        amount_min: u64,
        resolved: &mut [ResolvedPart],
    ) -> Result<(), RefusedParts> {
        if let Some(part) = parts.iter().position(|part| part.amount < amount_min) {
            return Err(RefusedParts::Invalid(InvalidParts::AmountZero { part }));
        }
        let is_stale = |part: &Part| matches!(part.limit, LimitRef::Id(id) if self.state.limits.slot(id).is_none());
        if let Some(part) = parts.iter().position(is_stale) {
            return Err(RefusedParts::Stale { part });
        }
        resolved.sort_unstable_by_key(|part| (part.limit, part.position));
        let is_twice = |pair: &[ResolvedPart]| match pair {
            [first, second] if first.limit == second.limit => {
                second.limit != UNKNOWN || self.is_named_before(namespace, parts, second.position)
            }
            _ => false,
        };
        let twice = resolved.windows(2).filter(|pair| is_twice(pair)).filter_map(<[_]>::last);
        match twice.map(|part| part.position).min() {
            Some(part) => Err(RefusedParts::Invalid(InvalidParts::Duplicate { part })),
            None => Ok(()),
        }
    }

    fn reserve_resolved(
        &mut self,
        Moment { log: now, wall }: Moment,
        command: &Reserve<'_>,
        hash: Hash,
        resolved: &mut [ResolvedPart],
        credits: &mut Credits,
    ) -> ReserveOutcome {
        let (namespace, lease) = (command.namespace, command.lease);
        if let Some((_, found)) = self.find(hash, namespace, lease) {
            return self.reserve_known(now, found, command, resolved);
        }
        match self.state.age(lease, wall) {
            Some(Age::TooOld) => {
                let forgotten_before = self.state.forgotten_before;
                return ReserveOutcome::LeaseTooOld { lease_time: lease.time(), forgotten_before };
            }
            Some(Age::InFuture) => {
                return ReserveOutcome::LeaseInFuture { lease_time: lease.time(), wall };
            }
            None => {}
        }
        self.follow_templates(now, command, resolved);
        self.decide(now, command, hash, resolved, credits)
    }

    /// Decides about a new lease whose limits are known.
    fn decide(
        &mut self,
        now: UnixMs,
        command: &Reserve<'_>,
        hash: Hash,
        resolved: &[ResolvedPart],
        credits: &mut Credits,
    ) -> ReserveOutcome {
        let Fit { fits, has_credit } = match self.refusal(now, command, resolved, credits) {
            Ok(fit) => fit,
            Err(refusal) => return refusal,
        };
        let namespace = command.namespace;
        if self.state.remembered() >= self.state.config.leases_max as usize {
            return ReserveOutcome::Overloaded;
        }
        if let Some(kind) = self.full_quota(now, namespace, has_credit) {
            if kind == QuotaKind::DerivedLimits {
                self.derived_now = DERIVED_REFUSED;
            }
            return ReserveOutcome::QuotaExceeded { kind, retry_after_ms: QUOTA_RETRY_MS };
        }
        if !fits {
            return ReserveOutcome::Denied(self.deny(now, command, resolved));
        }
        if has_credit && let Err(short) = self.plan_credit(now, command, resolved, NONE, credits) {
            return ReserveOutcome::InsufficientCredit(self.deny_credit(now, command, resolved, short));
        }
        let (slot, would_deny) = self.take(now, command, hash, resolved);
        if has_credit {
            self.take_credit(now, command, slot, credits);
        }
        ReserveOutcome::Created { reserved_at: now, would_deny }
    }

    /// Refuses what is refused by name, without a record. Else tells whether the amounts fit.
    #[inline]
    pub(super) fn refusal(
        &mut self,
        now: UnixMs,
        command: &Reserve<'_>,
        resolved: &[ResolvedPart],
        credits: &Credits,
    ) -> Result<Fit, ReserveOutcome> {
        let is_open = self.state.pauses.is_empty() && !self.state.external.parts.limits;
        // Nothing has changed since the parts were resolved, and a limit that may refuse by name has no room noted.
        if is_open && resolved.iter().all(|part| part.amount <= part.room) {
            return Ok(Fit { fits: true, has_credit: false });
        }
        self.refusal_of_any(now, command, resolved, credits)
    }

    /// [`Limits::refusal`] for limits of any kind and phase.
    #[inline(never)]
    fn refusal_of_any(
        &mut self,
        now: UnixMs,
        command: &Reserve<'_>,
        resolved: &[ResolvedPart],
        credits: &Credits,
    ) -> Result<Fit, ReserveOutcome> {
        let namespace = command.namespace;
        let is_here = !self.state.external.parts.credit;
        let mut is_refused = false;
        let (mut fits, mut has_credit) = (true, false);
        for part in resolved {
            is_refused |= part.is_blocked;
            let Some(limit) = self.state.limit(namespace, part.limit) else {
                is_refused = true;
                continue;
            };
            let limit = if limit.is_due(now) { self.state.advance_limit(part.limit, now) } else { limit };
            match limit.phase {
                Phase::Active if limit.is_credit() => has_credit = is_here,
                Phase::Active => fits &= part.amount <= limit.room(),
                Phase::Decreasing | Phase::Deleting | Phase::Deleted | Phase::AwaitingDrop | Phase::Free => {
                    is_refused = true;
                }
            }
        }
        is_refused |=
            !self.state.pauses.is_empty() && resolved.iter().any(|part| self.state.is_paused(part.limit, now));
        if is_refused {
            return Err(self.refuse_by_name(now, command, resolved));
        }
        if has_credit && let Some(refusal) = self.missing_account(command, resolved, credits) {
            return Err(refusal);
        }
        // Not remembered, so that the same lease can be sent to the system that enforces the limits.
        if self.state.external.parts.limits && resolved.iter().any(|part| !self.state.limits[part.limit].is_credit()) {
            return Err(ReserveOutcome::LimitsExternal);
        }
        Ok(Fit { fits, has_credit })
    }

    /// The quota that leaves no room for another lease. A hold of credit is recorded in the journal.
    fn full_quota(&self, now: UnixMs, namespace: NamespaceId, has_credit: bool) -> Option<QuotaKind> {
        let quotas = &self.state.quotas;
        if !quotas.has_room_for_lease(namespace) {
            return Some(QuotaKind::Leases);
        }
        if has_credit && !quotas.has_room_in_journal(namespace, now) {
            return Some(QuotaKind::JournalBytesPerDay);
        }
        (!self.has_room_for_derived()).then_some(QuotaKind::DerivedLimits)
    }

    /// The answer for a known lease. Its requirements are compared first, then its state.
    fn reserve_known(
        &mut self,
        now: UnixMs,
        found: Found,
        command: &Reserve<'_>,
        resolved: &[ResolvedPart],
    ) -> ReserveOutcome {
        let mark = self.mark_of_found(command.namespace, command.lease, &found);
        if mark.by_gateway && !command.by_gateway {
            return ReserveOutcome::OwnedByGateway;
        }
        let policy_revision = mark.policy_revision();
        match found {
            Found::Record(slot) => {
                let mut parts = std::mem::take(&mut self.parts);
                let mut more = std::mem::take(&mut self.extended_parts);
                let leases = &self.state.leases;
                let lease = leases.get(slot);
                leases.parts(lease, &mut parts);
                leases.extended_parts(lease, &mut more);
                let reserved_at = lease.reserved_at;
                let extended = leases.extended(lease);
                let is_same = mark.is_same_call(command).unwrap_or_else(|| match extended {
                    Some(extended) => extended.original == self.fingerprint_of(command),
                    None => is_same(&parts, resolved),
                });
                let would_deny = would_deny(&parts, resolved);
                let until = until(extended, Life::of(reserved_at, &parts, &more));
                (self.parts, self.extended_parts) = (parts, more);
                if !is_same {
                    ReserveOutcome::ExistsWithOtherRequirements
                } else if until <= now {
                    ReserveOutcome::LeaseExpired
                } else {
                    ReserveOutcome::Exists { reserved_at, would_deny, policy_revision }
                }
            }
            Found::Tombstone(number) => {
                let tombstone = self.state.tombstones.get(number);
                let is_other =
                    mark.is_same_call(command) == Some(false) || tombstone.fingerprint != self.fingerprint_of(command);
                let limited_by = self.state.position_of_rank(command, tombstone.limited_by);
                let asked = command.call.map(|call| call.policy_revision);
                let other_revision = policy_revision.filter(|_| policy_revision != asked);
                match (tombstone.ending, other_revision) {
                    (Ending::Marked, _) => ReserveOutcome::LeaseExpired,
                    _ if is_other => ReserveOutcome::ExistsWithOtherRequirements,
                    (Ending::Completed | Ending::Released, _) => ReserveOutcome::LeaseExpired,
                    (_, Some(policy_revision)) => ReserveOutcome::ExistsDeniedByPolicy { policy_revision },
                    (Ending::NoCredit | Ending::AccountFrozen | Ending::AccountClosed, None) => {
                        ReserveOutcome::ExistsInsufficientCredit(tombstone.credit_denial(now, limited_by))
                    }
                    (ending @ (Ending::Denied | Ending::DeniedNever), None) => {
                        let never = ending == Ending::DeniedNever;
                        let retry_after_ms = if never { NEVER_RETRY_MS } else { tombstone.at.ms_since(now) };
                        ReserveOutcome::ExistsDenied(Denial { retry_after_ms, limited_by: vec![limited_by], never })
                    }
                }
            }
        }
    }

    /// Refuses by the first offending key in key order, so that the order of requirements does not matter. Not
    /// remembered: the same lease may try again.
    fn refuse_by_name(&self, now: UnixMs, command: &Reserve<'_>, resolved: &[ResolvedPart]) -> ReserveOutcome {
        let limit_of = |part: &ResolvedPart| {
            self.state.limit(command.namespace, part.limit).filter(|limit| limit.phase != Phase::Deleted)
        };
        let name_of =
            |part: &ResolvedPart| self.state.part_name(command.namespace, &command.requirements[part.position]);
        let pause_of = |part: &ResolvedPart| limit_of(part).and_then(|_| self.state.pauses.get(part.limit, now));
        let is_offender = |part: &&ResolvedPart| {
            part.is_blocked
                || limit_of(part).is_none_or(|limit| limit.phase != Phase::Active)
                || pause_of(part).is_some()
        };
        let offenders = resolved.iter().filter(is_offender);
        let first = offenders.min_by_key(|part| (name_of(part), part.position));
        if let Some((part, pause)) = first.and_then(|part| Some((part, pause_of(part)?))) {
            let retry_after_ms = pause.until.ms_since(now);
            return ReserveOutcome::LimitPaused { requirement: part.position, retry_after_ms };
        }
        match first {
            Some(part) if limit_of(part).is_some() => ReserveOutcome::LimitDecreasing {
                requirement: part.position,
                retry_after_ms: self.state.config.hints.decreasing_ms,
            },
            Some(part) => ReserveOutcome::UnknownLimit { requirement: part.position },
            None => ReserveOutcome::Overloaded,
        }
    }

    /// Takes everything. Returns the slot of the lease and the requirements that a shadow limit would have denied.
    fn take(
        &mut self,
        now: UnixMs,
        command: &Reserve<'_>,
        hash: Hash,
        resolved: &[ResolvedPart],
    ) -> (u32, RequirementSet) {
        let (mut last, mut bound, mut would_deny) = (now, UnixMs::MAX, RequirementSet::default());
        let decided = decided_at(now);
        let State { limits, nodes, external, .. } = &mut self.state;
        self.parts.clear();
        self.parts.extend(resolved.iter().map(|part| {
            let limit = &mut limits[part.limit];
            limit.denials = 0;
            limit.decided = decided;
            limit.leases = limit.leases.saturating_add(1);
            let (hold, ends_at) = if part.plain == 0 {
                take_any(now, part, limit, nodes, (external.parts.credit, &mut would_deny))
            } else {
                let (hold, ends_at) = limit.plain_hold(now);
                limit.add(nodes, ends_at, Sums::unsettled(part.amount));
                (hold, ends_at)
            };
            let reservation = Reservation::held(part.limit, hold, part.amount);
            last = last.max(ends_at);
            bound = if reservation.is_bound() { bound.min(ends_at) } else { bound };
            reservation
        }));
        let until = if bound == UnixMs::MAX { last } else { bound };
        let slot = self.state.add_lease((command.namespace, command.lease), (now, last, until), &self.parts);
        self.index.insert(hash, Reference::record(slot));
        let flags = self.keep_extras(command);
        if !flags.is_empty() {
            self.state.leases.add_flags(slot, flags);
        }
        (slot, would_deny)
    }

    /// Records the denial: the lease stays denied even when it would fit later.
    fn deny(&mut self, now: UnixMs, command: &Reserve<'_>, resolved: &[ResolvedPart]) -> Denial {
        let denial = self.state.denial(now, command, resolved, &mut self.obstacles);
        let ending = if denial.never { Ending::DeniedNever } else { Ending::Denied };
        self.note_decision(now, resolved);
        let flags = self.keep_extras(command);
        self.add_tombstone(Tombstone {
            fingerprint: self.state.fingerprint_of_new(command, resolved),
            at: now.plus_ms(denial.retry_after_ms),
            limited_by: self.state.rank(command, denial.limited_by.first().copied().unwrap_or_default()),
            flags,
            ..Tombstone::new(command.namespace, command.lease, ending, now)
        });
        denial
    }
}

/// Takes the amount of a limit of any kind, and returns its packed hold and its end. Credit is only noted. `would_deny`
/// gets a shadow limit that is exceeded.
#[inline(never)]
fn take_any(
    now: UnixMs,
    part: &ResolvedPart,
    limit: &mut Limit,
    nodes: &mut Nodes,
    (is_external, would_deny): (bool, &mut RequirementSet),
) -> (u32, UnixMs) {
    if limit.is_credit() {
        let kind = if is_external { PartKind::CreditExternal } else { PartKind::Credit };
        let reservation = Reservation::new(part.limit, kind, limit.hold_seconds(), part.amount);
        return (reservation.hold(), now.plus_ms(limit.hold_ms()));
    }
    let is_above = limit.is_shadow() && part.amount > limit.available();
    if is_above {
        would_deny.insert(part.position);
    }
    let (hold, ends_at) = limit.hold(now);
    limit.add(nodes, ends_at, Sums::unsettled(part.amount));
    (Reservation::held(part.limit, hold, part.amount).with_would_deny(is_above).hold(), ends_at)
}

impl State {
    /// Whether an unknown lease is refused because of its ULID time.
    pub(super) fn age(&self, lease: LeaseId, wall: UnixMs) -> Option<Age> {
        if lease.time() < self.forgotten_before {
            return Some(Age::TooOld);
        }
        (lease.time() > wall.plus_ms(self.config.lease_ahead_ms)).then_some(Age::InFuture)
    }

    /// The name of a limit in the order of names: its namespace if that is not `own`, then its key. Keys of the own
    /// namespace come first.
    pub(super) fn part_name<'a>(&'a self, own: NamespaceId, part: &'a Part) -> PartName<'a> {
        let name = |namespace: NamespaceId| self.namespaces.get(usize::from(namespace.0));
        match &part.limit {
            LimitRef::Key(key) => (None, Cow::Borrowed(key.as_str())),
            LimitRef::Foreign(limit) => {
                let namespace = Some(&limit.namespace).filter(|namespace| name(own) != Some(namespace));
                (namespace, Cow::Borrowed(limit.key.as_str()))
            }
            LimitRef::Id(id) => {
                let slot = LimitSlot(id.slot);
                let Some(limit) = self.limits.get(slot) else { return (None, Cow::Borrowed("")) };
                let key = match self.text_of(limit) {
                    Some(text) => Cow::Borrowed(text.key.as_str()),
                    None => self.key(slot).map_or(Cow::Borrowed(""), |key| Cow::Owned(key.to_string())),
                };
                (if limit.namespace == own { None } else { name(limit.namespace) }, key)
            }
        }
    }

    /// The fingerprint of a lease that is decided about: that of its call, or without one that of its requirements,
    /// whose limits exist.
    pub(super) fn fingerprint_of_new(&self, command: &Reserve<'_>, resolved: &[ResolvedPart]) -> u64 {
        if let Some(call) = command.call {
            return call.fingerprint();
        }
        fingerprint(resolved.iter().map(|part| (self.limits[part.limit].key_hash, part.amount)))
    }

    /// The rank of a requirement, ordered by name.
    pub(super) fn rank(&self, command: &Reserve<'_>, position: usize) -> u8 {
        let Some(part) = command.requirements.get(position) else { return 0 };
        let name_of = |part| self.part_name(command.namespace, part);
        let name = name_of(part);
        let others = command.requirements.iter().zip(0..).filter(|(_, other)| *other != position);
        let rank = others.filter(|(other, _)| name_of(other) < name).count();
        u8::try_from(rank).unwrap_or(u8::MAX)
    }

    /// The index of the requirement with this rank.
    pub(super) fn position_of_rank(&self, command: &Reserve<'_>, rank: u8) -> usize {
        let mut positions = 0..command.requirements.len();
        positions.find(|position| self.rank(command, *position) == rank).unwrap_or_default()
    }
}

impl Limits {
    /// The fingerprint of a command: that of its call, or without one that of its requirements, whose ids are not stale.
    pub(super) fn fingerprint_of(&self, command: &Reserve<'_>) -> u64 {
        if let Some(call) = command.call {
            return call.fingerprint();
        }
        fingerprint(command.requirements.iter().map(|part| (self.hash_of(command.namespace, part), part.amount)))
    }

    /// The hash of the name of a limit; 0 if an id is stale or a namespace does not exist, so that no lease has it.
    pub(super) fn hash_of(&self, own: NamespaceId, part: &Part) -> u32 {
        match &part.limit {
            LimitRef::Id(id) => self.state.limits.by_id(*id).map_or(0, |limit| limit.key_hash),
            LimitRef::Key(key) => key_hash(own, key),
            LimitRef::Foreign(limit) => self.namespace(&limit.namespace).map_or(0, |owner| key_hash(owner, &limit.key)),
        }
    }

    /// Whether an earlier part names the same unknown key as the one at `position`.
    fn is_named_before(&self, own: NamespaceId, parts: &[Part], position: usize) -> bool {
        let name_of = |part| self.state.part_name(own, part);
        parts[..position].iter().any(|part| name_of(part) == name_of(&parts[position]))
    }

    /// The slot of a limit that a part names by its namespace. The limit may not be shared.
    pub(super) fn resolve_foreign(&self, limit: &ForeignLimit) -> Option<LimitSlot> {
        self.resolve(self.namespace(&limit.namespace)?, &limit.key)
    }
}

/// Whether a reserve with this outcome decided about the limit of a requirement.
fn is_decision(outcome: &ReserveOutcome, position: usize) -> bool {
    match outcome {
        ReserveOutcome::Created { .. } | ReserveOutcome::Denied(_) | ReserveOutcome::InsufficientCredit(_) => true,
        ReserveOutcome::LimitDecreasing { requirement, .. } => *requirement == position,
        _ => false,
    }
}

/// When a repeated reserve finds its lease expired: with the first end of a reservation, but if an extension was made,
/// once it can no longer be extended.
fn until(extended: Option<&Extended>, life: Life) -> UnixMs {
    if extended.is_some_and(|extended| extended.is_made) { life.runs_out() } else { life.first }
}

/// Whether a lease holds exactly `resolved`. Both are ordered by limit.
fn is_same(parts: &[Reservation], resolved: &[ResolvedPart]) -> bool {
    parts.len() == resolved.len()
        && parts.iter().zip(resolved).all(|(part, want)| part.limit == want.limit && part.amount == want.amount)
}

/// The requirements of a lease that a shadow limit would have denied.
fn would_deny(parts: &[Reservation], resolved: &[ResolvedPart]) -> RequirementSet {
    let mut set = RequirementSet::default();
    for part in parts.iter().filter(|part| part.would_deny()) {
        // An extended lease has more limits than its reserve.
        if let Some(want) = resolved.iter().find(|want| want.limit == part.limit) {
            set.insert(want.position);
        }
    }
    set
}
