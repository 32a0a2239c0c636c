//! Extend, in the model.

use earmark_core::{
    AccountStatus, CreditDenial, CreditShortage, Denial, Extend, ExtendOutcome, Extension, InvalidExtend, Kind,
    LimitId, LimitKey, NEVER_RETRY_MS, NamespaceId, Part, QuotaKind, RequirementSet, ReserveOutcome, UnixMs,
};

use super::calendar;
use super::lease::{Fate, Held, Requirements, bound_end, hold_ms, is_alive, requirements};
use super::limit::LimitPhase;
use super::parts::{Named, Refused};
use super::{Model, Reservation};

const NUMBER_MAX: u32 = 10_000;
const LIMITS_MAX: usize = 32;
const RENEW_MS: u64 = 24 * 3_600 * 1_000;

/// The last extension of a lease.
#[derive(Clone, Debug)]
pub struct Extended {
    /// The requirements of the reserve.
    pub original: Requirements,
    pub number: u32,
    /// Whether this extension or an earlier one was made.
    pub is_made: bool,
    body: Body,
    answer: ExtendOutcome,
    /// The keys of `add`, by index.
    added: Vec<LimitKey>,
    /// The keys of `used`, by index.
    reported: Vec<LimitKey>,
    retry_at: UnixMs,
}

type Body = (Requirements, Requirements, bool);

impl Model {
    pub fn extend(&mut self, asked: Extend<'_>) -> ExtendOutcome {
        if asked.number == 0 || asked.number > NUMBER_MAX {
            return ExtendOutcome::Invalid(InvalidExtend::Number { found: asked.number });
        }
        let names = match self.check_parts(asked.namespace, asked.add, !asked.add.is_empty()) {
            Ok(names) => names,
            Err(Refused::Invalid(why)) => return ExtendOutcome::Invalid(InvalidExtend::Add(why)),
            Err(Refused::Stale { .. }) => return ExtendOutcome::StaleLimit,
        };
        match self.check_parts(asked.namespace, asked.used, false) {
            Ok(_) => {}
            Err(Refused::Invalid(why)) => return ExtendOutcome::Invalid(InvalidExtend::Used(why)),
            Err(Refused::Stale { .. }) => return ExtendOutcome::StaleLimit,
        }
        let place = self.remembered(asked.namespace, asked.lease);
        let Some(place) = place.filter(|place| is_alive(self.time(), &self.leases[*place])) else {
            return ExtendOutcome::LeaseExpired;
        };
        let mark = self.leases[place].mark;
        if mark.is_owned(asked.claim.by_gateway) {
            return ExtendOutcome::OwnedByGateway;
        }
        if mark.is_other_call(asked.claim) {
            return ExtendOutcome::OtherCall;
        }
        let last = self.leases[place].extended.as_ref().map_or(0, |extended| extended.number);
        if asked.number == last {
            return self.extend_again(place, &asked);
        }
        if asked.number != last + 1 {
            return ExtendOutcome::NumberDiffers { expected: last + 1 };
        }
        let mut names = names;
        let mut following = self.follow_templates(asked.namespace, &mut names, asked.add);
        let count = following.derived.len();
        let owners: Vec<_> = following.derived.iter().map(|(id, _)| self.limits[*id].namespace).collect();
        following.blocked.extend(self.of_other_kinds(place, &names));
        let outcome = self.judge(place, &asked, &names, &following.blocked, &owners);
        let is_allowed = matches!(outcome, ExtendOutcome::Extended(_));
        if is_allowed {
            self.derived_now = count;
        }
        self.take_back(following, is_allowed, |place| match &outcome {
            ExtendOutcome::Extended(_) | ExtendOutcome::Denied(_) | ExtendOutcome::InsufficientCredit(_) => true,
            ExtendOutcome::LimitDecreasing { part, .. } => *part == place,
            _ => false,
        });
        outcome
    }

    fn parts_of(&self, place: usize) -> &[Held] {
        match &self.leases[place].fate {
            Fate::Held { parts, .. } => parts,
            _ => &[],
        }
    }

    fn body(&self, asked: &Extend<'_>) -> Body {
        let named = |parts: &[Part]| {
            let names = self.check_parts(asked.namespace, parts, false).ok().unwrap();
            let mut all: Requirements =
                self.keys(asked.namespace, &names).into_iter().zip(parts.iter().map(|p| p.amount)).collect();
            all.sort();
            all
        };
        (named(asked.add), named(asked.used), asked.renew)
    }

    fn keys(&self, namespace: NamespaceId, names: &[Named]) -> Vec<LimitKey> {
        let key = |name: &Named| match name {
            Named::Number(id) => self.qualified(namespace, *id),
            Named::Unknown(key) => key.clone(),
        };
        names.iter().map(key).collect()
    }

    fn extend_again(&self, place: usize, asked: &Extend<'_>) -> ExtendOutcome {
        let extended = self.leases[place].extended.as_ref().unwrap();
        if self.body(asked) != extended.body {
            return ExtendOutcome::NumberReused;
        }
        let names = self.check_parts(asked.namespace, asked.add, false).ok().unwrap();
        let keys = self.keys(asked.namespace, &names);
        let moved = |part: usize| keys.iter().position(|key| *key == extended.added[part]).unwrap();
        let retry_after_ms = extended.retry_at.ms_since(self.time());
        match &extended.answer {
            ExtendOutcome::Denied(denial) => ExtendOutcome::Denied(Denial {
                retry_after_ms: if denial.never { NEVER_RETRY_MS } else { retry_after_ms },
                limited_by: vec![moved(denial.limited_by[0])],
                never: denial.never,
            }),
            ExtendOutcome::InsufficientCredit(denial) => {
                let requirement = moved(denial.requirement);
                ExtendOutcome::InsufficientCredit(CreditDenial { requirement, retry_after_ms, ..*denial })
            }
            ExtendOutcome::Extended(extension) => {
                let names = self.check_parts(asked.namespace, asked.used, false).ok().unwrap();
                let keys = self.keys(asked.namespace, &names);
                let moved = |part: usize| keys.iter().position(|key| *key == extended.reported[part]).unwrap();
                let ignored = extension.ignored.iter().map(moved).collect();
                let above = extension.above.iter().map(moved).collect();
                ExtendOutcome::Extended(Extension { ends_at: extension.ends_at, ignored, above })
            }
            other => panic!("{other:?} was remembered"),
        }
    }

    /// The indexes of limits that the lease has from the time when they were of another kind.
    fn of_other_kinds(&self, place: usize, names: &[Named]) -> Vec<usize> {
        let is_other = |name: &Named| {
            let Named::Number(id) = name else { return false };
            let Some(held) = self.parts_of(place).iter().find(|part| part.limit == *id) else { return false };
            let kind = &self.limits[*id].definition.kind;
            let is_credit = matches!(kind, Kind::Credit(_));
            kind.tag() != held.kind.tag() || is_credit && held.is_external != self.external.credit
        };
        (0..names.len()).filter(|part| is_other(&names[*part])).collect()
    }

    fn judge(
        &mut self,
        place: usize,
        asked: &Extend<'_>,
        names: &[Named],
        blocked: &[usize],
        owners: &[NamespaceId],
    ) -> ExtendOutcome {
        match self.refuse_limits(asked.namespace, names, blocked) {
            None => {}
            Some(ReserveOutcome::UnknownLimit { requirement: part }) => return ExtendOutcome::UnknownLimit { part },
            Some(ReserveOutcome::LimitDecreasing { requirement: part, retry_after_ms }) => {
                return ExtendOutcome::LimitDecreasing { part, retry_after_ms };
            }
            Some(ReserveOutcome::LimitPaused { requirement: part, retry_after_ms }) => {
                return ExtendOutcome::LimitPaused { part, retry_after_ms };
            }
            Some(other) => panic!("{other:?} is no refusal by name"),
        }
        let id_of = |name: &Named| match name {
            Named::Number(id) => *id,
            Named::Unknown(_) => unreachable!("refused above"),
        };
        let wanted: Vec<(LimitId, u64)> = names.iter().map(id_of).zip(asked.add.iter().map(|p| p.amount)).collect();
        if !self.external.credit
            && let Some(part) = self.missing_account(asked.namespace, &wanted)
        {
            return ExtendOutcome::AccountNotFound { part, retry_after_ms: 10_000 };
        }
        if self.external.limits && wanted.iter().any(|(limit, _)| self.terms(*limit).is_none()) {
            return ExtendOutcome::LimitsExternal;
        }
        let held = self.parts_of(place);
        let new = wanted.iter().filter(|(limit, _)| held.iter().all(|part| part.limit != *limit)).count();
        if held.len() + new > LIMITS_MAX {
            return ExtendOutcome::TooManyLimits { found: held.len() + new };
        }
        let has_credit = !self.external.credit && wanted.iter().any(|(limit, _)| self.terms(*limit).is_some());
        if has_credit && !self.has_room(asked.namespace, QuotaKind::JournalBytesPerDay) {
            return ExtendOutcome::QuotaExceeded { kind: QuotaKind::JournalBytesPerDay, retry_after_ms: 10_000 };
        }
        if self.is_beyond_derived(owners) {
            return ExtendOutcome::QuotaExceeded { kind: QuotaKind::DerivedLimits, retry_after_ms: 10_000 };
        }
        if wanted.iter().any(|&(limit, amount)| self.is_in_the_way(limit, amount)) {
            let denial = self.denial((asked.namespace, asked.lease), &wanted);
            let retry_at = self.time().plus_ms(denial.retry_after_ms);
            return self.record(place, asked, names, retry_at, ExtendOutcome::Denied(denial));
        }
        if has_credit && let Some(denial) = self.growth_shortage(asked, &wanted) {
            self.note_decided(&wanted);
            let retry_at = self.time().plus_ms(denial.retry_after_ms);
            return self.record(place, asked, names, retry_at, ExtendOutcome::InsufficientCredit(denial));
        }
        let extension = self.apply_extension(place, asked, wanted);
        self.record(place, asked, names, UnixMs::default(), ExtendOutcome::Extended(extension))
    }

    /// Remembers the answer, and moves the lease to the second of its new end.
    fn record(
        &mut self,
        place: usize,
        asked: &Extend<'_>,
        names: &[Named],
        retry_at: UnixMs,
        answer: ExtendOutcome,
    ) -> ExtendOutcome {
        let body = self.body(asked);
        let added = self.keys(asked.namespace, names);
        let reports = self.check_parts(asked.namespace, asked.used, false).ok().unwrap();
        let reported = self.keys(asked.namespace, &reports);
        let before = self.leases[place].extended.take();
        let was_made = before.as_ref().is_some_and(|extended| extended.is_made);
        let is_made = was_made || matches!(answer, ExtendOutcome::Extended(_));
        let original = before.map_or_else(|| self.first_requirements(place), |extended| extended.original);
        let (number, answered) = (asked.number, answer.clone());
        let extended = Extended { original, number, body, answer: answered, added, reported, retry_at, is_made };
        self.leases[place].extended = Some(extended);
        answer
    }

    /// The requirements before the first extension.
    fn first_requirements(&self, place: usize) -> Requirements {
        self.leases[place].first.clone().unwrap_or_else(|| requirements(self.parts_of(place)))
    }

    /// The first limit, by key, whose account cannot hold the sum of all growth on it. An existing hold grows on its own
    /// account.
    fn growth_shortage(&mut self, asked: &Extend<'_>, wanted: &[(LimitId, u64)]) -> Option<CreditDenial> {
        let lease = (asked.namespace, asked.lease);
        let mut growth = Vec::new();
        for (place, &(limit, amount)) in wanted.iter().enumerate() {
            let Some(terms) = self.terms(limit) else { continue };
            let hold = self.holds.iter().find(|hold| hold.lease == lease && hold.limit == limit);
            let (account, revenue, asset) = match hold {
                Some(hold) => (hold.account, hold.revenue, hold.asset.clone()),
                None => {
                    let (account, revenue) = self.payers(asked.namespace, terms).unwrap();
                    (account, revenue, terms.asset.clone())
                }
            };
            growth.push((self.limits[limit].definition.key.clone(), place, account, revenue, asset, amount));
        }
        for (_, _, account, _, asset, _) in &growth {
            self.apply_due(*account, asset);
        }
        let mut short = Vec::new();
        for (key, place, account, revenue, asset, _) in &growth {
            let same = growth.iter().filter(|other| other.2 == *account && other.4 == *asset);
            let sum: i128 = same.map(|other| i128::from(other.5)).sum();
            let why = match (self.account(*account).standing, self.account(*revenue).standing) {
                (AccountStatus::Frozen, _) => Some(CreditShortage::Frozen),
                (AccountStatus::Closed, _) | (_, AccountStatus::Closed) => Some(CreditShortage::Closed),
                (AccountStatus::Open, _) => {
                    let available = self.spendable(self.time(), *account, asset);
                    let floor = self.account(*account).overdraft.floor();
                    let is_there = available.checked_sub(sum).is_some_and(|left| left >= floor);
                    let is_countable = self.held(self.time(), *account, asset) + sum <= i128::from(u64::MAX);
                    (!(is_there && is_countable)).then_some(CreditShortage::NotEnough)
                }
            };
            short.extend(why.map(|why| (key, *place, why)));
        }
        let (_, requirement, why) = short.into_iter().min_by_key(|(key, ..)| *key)?;
        Some(CreditDenial { requirement, retry_after_ms: 10_000, why })
    }

    fn apply_extension(&mut self, place: usize, asked: &Extend<'_>, mut wanted: Vec<(LimitId, u64)>) -> Extension {
        self.leases[place].first = Some(self.first_requirements(place));
        let Fate::Held { reserved_at, ref parts } = self.leases[place].fate else { panic!("it is alive") };
        let mut parts = parts.clone();
        let before = super::lease::end_second(asked.lease, &parts);
        let lease = (asked.namespace, asked.lease);
        self.note_decided(&wanted);
        wanted.sort_by_key(|(limit, _)| *limit);
        for &(limit, _) in &wanted {
            self.limits[limit].denials_in_a_row = 0;
        }
        for &(limit, amount) in &wanted {
            match parts.iter().position(|part| part.limit == limit) {
                Some(found) => self.add_to(lease, &mut parts[found], amount),
                None => {
                    let added = self.add_new(lease, limit, amount);
                    parts.push(added);
                }
            }
        }
        parts.sort_by_key(|part| part.limit);
        if asked.renew {
            parts.iter_mut().for_each(|part| self.renew(lease, reserved_at, part));
        }
        let names = self.check_parts(asked.namespace, asked.used, false).ok().unwrap();
        let (mut ignored, mut above) = (RequirementSet::default(), RequirementSet::default());
        for (index, (name, report)) in names.iter().zip(asked.used).enumerate() {
            let Some(part) = parts.iter_mut().find(|part| *name == Named::Number(part.limit)) else {
                ignored.insert(index);
                continue;
            };
            part.used = part.used.max(report.amount);
            if !matches!(part.kind, Kind::Concurrency { .. }) && report.amount > part.total() {
                above.insert(index);
            }
            let (limit, used) = (part.limit, part.used);
            let hold = self.holds.iter_mut().find(|hold| hold.lease == lease && hold.limit == limit);
            hold.into_iter().for_each(|hold| hold.used = used);
        }
        let ends_at = bound_end(&parts);
        if super::lease::end_second(asked.lease, &parts) != before {
            self.leases[place].queued = self.next_queued();
        }
        self.leases[place].fate = Fate::Held { reserved_at, parts };
        Extension { ends_at, ignored, above }
    }

    fn add_to(&mut self, lease: (NamespaceId, earmark_core::LeaseId), part: &mut Held, amount: u64) {
        let now = self.time();
        let mine = self.reservations.iter().position(|r| r.limit == part.limit && r.unsettled == Some(lease));
        match part.kind {
            Kind::Credit(_) => {
                // Credit elsewhere has no bound here.
                part.amount = part.amount.saturating_add(amount);
                let hold = self.holds.iter().position(|hold| hold.lease == lease && hold.limit == part.limit);
                hold.into_iter().for_each(|hold| self.grow(hold, amount));
            }
            Kind::Concurrency { .. } => {
                part.amount += amount;
                self.reservations[mine.unwrap()].amount = part.amount;
            }
            Kind::Rolling { .. } | Kind::Calendar { .. } => {
                if let Some(mine) = mine {
                    let end = self.settled_end(part);
                    self.reservations[mine] = Reservation { end, unsettled: None, ..self.reservations[mine] };
                }
                part.earlier = part.earlier.saturating_add(part.amount);
                part.earlier_end = part.earlier_end.max(part.end);
                part.kind = self.limits[part.limit].definition.kind.clone();
                (part.amount, part.end) = (amount, calendar::end(&part.kind, now));
                let (limit, end) = (part.limit, part.end);
                self.reservations.push(Reservation { limit, amount, end, unsettled: Some(lease) });
            }
        }
    }

    fn add_new(&mut self, lease: (NamespaceId, earmark_core::LeaseId), limit: LimitId, amount: u64) -> Held {
        let kind = self.limits[limit].definition.kind.clone();
        let end = calendar::end(&kind, self.time());
        let is_external = self.external.credit;
        if matches!(kind, Kind::Credit(_)) {
            if !is_external {
                self.hold(lease, limit, amount, end);
            }
        } else {
            self.reservations.push(Reservation { limit, amount, end, unsettled: Some(lease) });
        }
        let key = self.qualified(lease.0, limit);
        Held {
            limit,
            key,
            amount,
            kind,
            end,
            would_deny: false,
            earlier: 0,
            earlier_end: UnixMs::default(),
            used: 0,
            is_external,
        }
    }

    fn renew(&mut self, lease: (NamespaceId, earmark_core::LeaseId), reserved_at: UnixMs, part: &mut Held) {
        if !matches!(part.kind, Kind::Concurrency { .. } | Kind::Credit(_)) {
            return;
        }
        let limit = &self.limits[part.limit];
        let is_same = limit.standing != LimitPhase::Deleted && limit.definition.kind.tag() == part.kind.tag();
        let timeout = if is_same { hold_ms(&limit.definition.kind) } else { hold_ms(&part.kind) };
        let end = part.end.max(self.time().plus_ms(timeout).min(reserved_at.plus_ms(RENEW_MS)));
        if end == part.end {
            return;
        }
        part.end = end;
        for r in self.reservations.iter_mut().filter(|r| r.limit == part.limit && r.unsettled == Some(lease)) {
            r.end = end;
        }
        let queued = self.next_queued();
        for hold in self.holds.iter_mut().filter(|hold| hold.lease == lease && hold.limit == part.limit) {
            if hold.end.get().div_ceil(1_000) != end.get().div_ceil(1_000) {
                hold.queued = queued;
            }
            hold.end = end;
        }
    }
}
