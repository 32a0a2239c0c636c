//! Reserve, in the model.

use earmark_core::{
    CreditDenial, Denial, JobId, Kind, LeaseId, LimitId, LimitKey, NEVER_RETRY_MS, NamespaceId, QuotaKind,
    RequirementSet, Reserve, ReserveOutcome, UnixMs,
};

use super::calendar;
use super::hints::{backoff_ms, jittered_ms};
use super::lease::{Fate, Held, Lease, Mark, Requirements, is_live};
use super::limit::LimitPhase;
use super::parts::{Named, Refused, order};
use super::{Model, Reservation};

impl Model {
    pub fn reserve(&mut self, asked: Reserve<'_>) -> ReserveOutcome {
        let names = match self.check_parts(asked.namespace, asked.requirements, true) {
            Ok(names) => names,
            Err(Refused::Invalid(why)) => return ReserveOutcome::Invalid(why),
            Err(Refused::Stale { part }) => return ReserveOutcome::StaleLimit { requirement: part },
        };
        if let Some(place) = self.remembered(asked.namespace, asked.lease) {
            return self.reserve_again(place, &names, &asked);
        }
        let lease_time = asked.lease.time();
        if lease_time < self.forgotten_before {
            return ReserveOutcome::LeaseTooOld { lease_time, forgotten_before: self.forgotten_before };
        }
        if self.is_from_future(asked.lease) {
            return ReserveOutcome::LeaseInFuture { lease_time, wall: self.wall };
        }
        let mut names = names;
        let following = self.follow_templates(asked.namespace, &mut names, asked.requirements);
        let count = following.derived.len();
        let owners: Vec<_> = following.derived.iter().map(|(id, _)| self.limits[*id].namespace).collect();
        let outcome = self.decide(&asked, &names, &following.blocked, &owners);
        let is_allowed = matches!(outcome, ReserveOutcome::Created { .. });
        if is_allowed {
            self.derived_now = count;
        }
        self.take_back(following, is_allowed, |place| is_decision(&outcome, place));
        outcome
    }

    fn decide(
        &mut self,
        asked: &Reserve<'_>,
        names: &[Named],
        blocked: &[usize],
        owners: &[NamespaceId],
    ) -> ReserveOutcome {
        if let Some(refusal) = self.refuse_limits(asked.namespace, names, blocked) {
            return refusal;
        }
        let wanted: Vec<(LimitId, u64)> = names
            .iter()
            .zip(asked.requirements)
            .map(|(name, part)| match name {
                Named::Number(id) => (*id, part.amount),
                Named::Unknown(_) => unreachable!("refused above"),
            })
            .collect();
        if !self.external.credit
            && let Some(requirement) = self.missing_account(asked.namespace, &wanted)
        {
            return ReserveOutcome::AccountNotFound { requirement, retry_after_ms: 10_000 };
        }
        let is_limit = |name: &Named| match name {
            Named::Number(id) => self.limits.get(*id).is_some_and(|limit| limit.definition.kind.terms().is_none()),
            Named::Unknown(_) => false,
        };
        if self.external.limits && names.iter().any(is_limit) {
            return ReserveOutcome::LimitsExternal;
        }
        if self.leases.len() >= self.config.leases_max as usize {
            return ReserveOutcome::Overloaded;
        }
        if !self.has_room(asked.namespace, QuotaKind::Leases) {
            return ReserveOutcome::QuotaExceeded { kind: QuotaKind::Leases, retry_after_ms: 10_000 };
        }
        let has_credit = !self.external.credit && !names.iter().all(is_limit);
        if has_credit && !self.has_room(asked.namespace, QuotaKind::JournalBytesPerDay) {
            return ReserveOutcome::QuotaExceeded { kind: QuotaKind::JournalBytesPerDay, retry_after_ms: 10_000 };
        }
        if self.is_beyond_derived(owners) {
            return ReserveOutcome::QuotaExceeded { kind: QuotaKind::DerivedLimits, retry_after_ms: 10_000 };
        }
        if wanted.iter().any(|&(limit, amount)| self.is_in_the_way(limit, amount)) {
            return self.deny(asked, &wanted);
        }
        let shortage = if self.external.credit { None } else { self.shortage(asked.namespace, &wanted) };
        match shortage {
            None => self.take(asked, &wanted),
            Some(denial) => {
                let (namespace, id, resolved_at) = (asked.namespace, asked.lease, self.time());
                let decided = self.decided();
                wanted.iter().for_each(|(limit, _)| self.limits[*limit].decided = decided);
                let requirements = self.by_key(namespace, &wanted);
                let fate = Fate::NoCredit { requirements, resolved_at, denial };
                self.remember_lease(namespace, id, (asked.job.cloned(), Mark::of(asked)), fate);
                ReserveOutcome::InsufficientCredit(denial)
            }
        }
    }

    /// Whether the limits that a command derived are one too many.
    pub fn is_beyond_derived(&mut self, owners: &[NamespaceId]) -> bool {
        let is_full = self.limits.iter().count() > self.config.limits_max as usize
            || owners.iter().any(|owner| {
                self.used(self.time(), *owner, QuotaKind::DerivedLimits) > self.quota(*owner, QuotaKind::DerivedLimits)
            });
        let is_beyond = !owners.is_empty() && is_full;
        if is_beyond {
            self.derived_now = 64;
        }
        is_beyond
    }

    /// Notes that limits were decided about.
    pub fn note_decided(&mut self, wanted: &[(LimitId, u64)]) {
        let decided = self.decided();
        wanted.iter().for_each(|(limit, _)| self.limits[*limit].decided = decided);
    }

    pub fn remember_lease(
        &mut self,
        namespace: NamespaceId,
        id: LeaseId,
        (job, mark): (Option<JobId>, Mark),
        fate: Fate,
    ) {
        let queued = self.next_queued();
        self.leases.push(Lease { namespace, id, job, mark, fate, queued, extended: None, first: None });
    }

    pub fn is_in_the_way(&self, limit: LimitId, amount: u64) -> bool {
        self.terms(limit).is_none() && amount > self.room(limit)
    }

    pub fn is_from_future(&self, lease: LeaseId) -> bool {
        lease.time().get() > self.wall.get().saturating_add(self.config.lease_ahead_ms)
    }

    fn reserve_again(&self, place: usize, names: &[Named], asked: &Reserve<'_>) -> ReserveOutcome {
        let now = self.time();
        let (lease, parts) = (&self.leases[place], asked.requirements);
        if lease.mark.is_owned(asked.by_gateway) {
            return ReserveOutcome::OwnedByGateway;
        }
        let Some(before) = lease.requirements() else { return ReserveOutcome::LeaseExpired };
        let is_same_body = before.len() == parts.len()
            && before.iter().all(|(key, amount)| {
                let is_it = |name| self.is_named(name, lease.namespace, key);
                names.iter().zip(parts).any(|(name, p)| is_it(name) && p.amount == *amount)
            });
        let is_same = match (lease.mark.call, asked.call) {
            (None, None) => is_same_body,
            (Some(first), Some(second)) => first.fingerprint() == second.fingerprint(),
            _ => false,
        };
        // The position of what was in the way may be another one in this command. With other requirements of the same
        // call, the rank by name tells.
        let rank = |place: usize| before.iter().filter(|(key, _)| order(key) < order(&before[place].0)).count();
        let key_of = |name: &Named| match name {
            Named::Unknown(key) => key.clone(),
            Named::Number(id) => self.qualified(lease.namespace, *id),
        };
        let keys: Vec<LimitKey> = names.iter().map(key_of).collect();
        let rank_in = |key: &LimitKey| keys.iter().filter(|other| order(other) < order(key)).count();
        let moved = |place: usize| keys.iter().position(|key| rank_in(key) == rank(place)).unwrap_or(0);
        if !is_same {
            return ReserveOutcome::ExistsWithOtherRequirements;
        }
        let revision = lease.mark.call.map(|call| call.policy_revision);
        let is_denied = matches!(lease.fate, Fate::Denied { .. } | Fate::NoCredit { .. });
        if let Some(policy_revision) =
            revision.filter(|revision| is_denied && asked.call.is_none_or(|call| call.policy_revision != *revision))
        {
            return ReserveOutcome::ExistsDeniedByPolicy { policy_revision };
        }
        match lease.fate {
            Fate::Held { reserved_at, parts: ref held } if is_live(now, lease) => {
                let is_above = |name: &Named| held.iter().any(|p| p.would_deny && *name == Named::Number(p.limit));
                let would_deny = (0..names.len()).filter(|&place| is_above(&names[place])).collect();
                let policy_revision = lease.mark.call.map(|call| call.policy_revision);
                ReserveOutcome::Exists { reserved_at, would_deny, policy_revision }
            }
            Fate::Held { .. } | Fate::Completed { .. } | Fate::Marked { .. } | Fate::Released { .. } => {
                ReserveOutcome::LeaseExpired
            }
            Fate::Denied { retry_at, ref denial, .. } => ReserveOutcome::ExistsDenied(Denial {
                retry_after_ms: if denial.never { NEVER_RETRY_MS } else { retry_at.ms_since(now) },
                limited_by: vec![moved(denial.limited_by[0])],
                never: denial.never,
            }),
            Fate::NoCredit { resolved_at, denial, .. } => {
                let retry_at = resolved_at.plus_ms(denial.retry_after_ms);
                let retry_after_ms = retry_at.ms_since(now);
                let requirement = moved(denial.requirement);
                ReserveOutcome::ExistsInsufficientCredit(CreditDenial { requirement, retry_after_ms, ..denial })
            }
        }
    }

    /// The first limit, by key, that is unknown or decreasing.
    pub fn refuse_limits(&self, namespace: NamespaceId, names: &[Named], blocked: &[usize]) -> Option<ReserveOutcome> {
        let mut refusals: Vec<(LimitKey, usize, ReserveOutcome)> = Vec::new();
        for (requirement, name) in names.iter().enumerate() {
            let (key, limit) = match name {
                Named::Unknown(key) => (key.clone(), None),
                Named::Number(id) => (self.qualified(namespace, *id), self.limits.get(*id)),
            };
            let standing = limit.filter(|l| l.namespace == namespace || l.definition.shared).map(|l| l.standing);
            let pause = limit.and_then(|l| l.pause_at(self.time()));
            let refusal = match standing {
                Some(standing) if standing != LimitPhase::Deleted && pause.is_some() => {
                    let retry_after_ms = pause.unwrap().until.ms_since(self.time());
                    ReserveOutcome::LimitPaused { requirement, retry_after_ms }
                }
                Some(LimitPhase::Active) if !blocked.contains(&requirement) => continue,
                Some(LimitPhase::Active | LimitPhase::Decreasing | LimitPhase::Deleting | LimitPhase::Leaving) => {
                    ReserveOutcome::LimitDecreasing { requirement, retry_after_ms: self.config.hints.decreasing_ms }
                }
                Some(LimitPhase::Deleted) | None => ReserveOutcome::UnknownLimit { requirement },
            };
            refusals.push((key, requirement, refusal));
        }
        refusals.sort_by_key(|(key, requirement, _)| (order(key), *requirement));
        refusals.into_iter().next().map(|(_, _, refusal)| refusal)
    }

    fn take(&mut self, asked: &Reserve<'_>, wanted: &[(LimitId, u64)]) -> ReserveOutcome {
        let (namespace, id) = (asked.namespace, asked.lease);
        let now = self.time();
        let mut parts = Vec::new();
        let mut would_deny = RequirementSet::default();
        let decided = self.decided();
        for (place, &(limit, amount)) in wanted.iter().enumerate() {
            let is_above = !self.limits[limit].definition.enforce && amount > self.available(limit);
            if is_above {
                would_deny.insert(place);
            }
            let definition = &mut self.limits[limit];
            definition.denials_in_a_row = 0;
            definition.decided = decided;
            let kind = definition.definition.kind.clone();
            let end = calendar::end(&kind, now);
            let is_credit = matches!(kind, Kind::Credit(_));
            if !is_credit {
                self.reservations.push(Reservation { limit, amount, end, unsettled: Some((namespace, id)) });
            }
            let key = self.qualified(namespace, limit);
            let (earlier_end, is_external) = (UnixMs::default(), self.external.credit);
            let (earlier, used, would_deny) = (0, 0, is_above);
            parts.push(Held { limit, key, amount, kind, end, would_deny, earlier, earlier_end, used, is_external });
        }
        parts.sort_by_key(|p| p.limit);
        for part in parts.iter().filter(|part| !part.is_external && matches!(part.kind, Kind::Credit(_))) {
            self.hold((namespace, id), part.limit, part.amount, part.end);
        }
        let extras = (asked.job.cloned(), Mark::of(asked));
        self.remember_lease(namespace, id, extras, Fate::Held { reserved_at: now, parts });
        ReserveOutcome::Created { reserved_at: now, would_deny }
    }

    fn deny(&mut self, asked: &Reserve<'_>, wanted: &[(LimitId, u64)]) -> ReserveOutcome {
        let (namespace, id, now) = (asked.namespace, asked.lease, self.time());
        let denial = self.denial((namespace, id), wanted);
        let retry_at = now.plus_ms(denial.retry_after_ms);
        let requirements = self.by_key(namespace, wanted);
        let fate = Fate::Denied { requirements, resolved_at: now, retry_at, denial: denial.clone() };
        self.remember_lease(namespace, id, (asked.job.cloned(), Mark::of(asked)), fate);
        ReserveOutcome::Denied(denial)
    }

    /// Counts a denial for every limit in the way.
    pub fn denial(&mut self, (namespace, id): (NamespaceId, LeaseId), wanted: &[(LimitId, u64)]) -> Denial {
        self.note_decided(wanted);
        // Limits in the way: whether the capacity is too small, and the wait.
        let mut in_the_way: Vec<(bool, u64, usize)> = Vec::new();
        for (place, &(limit, amount)) in wanted.iter().enumerate() {
            if !self.is_in_the_way(limit, amount) {
                continue;
            }
            let definition = &self.limits[limit];
            if definition.definition.enforce && amount > definition.capacity {
                in_the_way.push((true, 0, place));
                continue;
            }
            in_the_way.push((false, self.wait_ms(id, limit, amount), place));
            let run = &mut self.limits[limit].denials_in_a_row;
            *run = run.saturating_add(1);
        }
        let requirements = self.by_key(namespace, wanted);
        in_the_way.sort_by_key(|&(never, wait, place)| (!never, u64::MAX - wait, order(&requirements[place].0)));
        let never = in_the_way.iter().any(|&(never, _, _)| never);
        let longest = in_the_way.iter().map(|&(_, wait, _)| wait).max().unwrap();
        Denial {
            retry_after_ms: if never { NEVER_RETRY_MS } else { longest },
            limited_by: in_the_way.iter().map(|&(_, _, place)| place).collect(),
            never,
        }
    }

    fn by_key(&self, own: NamespaceId, wanted: &[(LimitId, u64)]) -> Requirements {
        wanted.iter().map(|(limit, amount)| (self.qualified(own, *limit), *amount)).collect()
    }

    fn wait_ms(&self, lease: LeaseId, limit: LimitId, amount: u64) -> u64 {
        let now = self.time();
        let definition = &self.limits[limit];
        let hints = &self.config.hints;
        let backoff = backoff_ms(hints, &definition.definition.kind, definition.denials_in_a_row);
        let backoff = jittered_ms(hints, lease, backoff);
        let mut held: Vec<&Reservation> = self.reservations.iter().filter(|r| r.limit == limit).collect();
        held.sort_by_key(|r| r.end);
        match definition.definition.kind {
            Kind::Credit(_) => panic!("credit is no limit that can be in the way"),
            Kind::Concurrency { .. } => backoff.min(held[0].end.ms_since(now)),
            Kind::Rolling { .. } | Kind::Calendar { .. } => {
                let mut free = u128::from(self.room(limit));
                let last = held.iter().find(|r| {
                    free += u128::from(r.amount);
                    free >= u128::from(amount)
                });
                let exact = last.unwrap().end.ms_since(now);
                if held.iter().any(|r| r.unsettled.is_some()) { exact.min(backoff) } else { exact }
            }
        }
    }
}

/// Whether a reserve with this outcome decided about the limit of a requirement.
fn is_decision(outcome: &ReserveOutcome, place: usize) -> bool {
    match outcome {
        ReserveOutcome::Created { .. } | ReserveOutcome::Denied(_) | ReserveOutcome::InsufficientCredit(_) => true,
        ReserveOutcome::LimitDecreasing { requirement, .. } => *requirement == place,
        _ => false,
    }
}
