//! Extend: take more for a live lease, move its end, and report its usage.

mod parts;
mod plain;

use parts::{latest_end, renewed_end};

use super::derive::{DERIVED_REFUSED, decided_at};
use super::extended::{Extended, ExtendedPart, ExtensionAnswer, extension_fingerprint};
use super::hint::NEVER_RETRY_MS;
use super::lease::Life;
use super::mark::ClaimRefusal;
use super::reserve::{RefusedParts, ResolvedPart};
use super::slab::NONE;
use super::{
    FINGERPRINT_OF_NONE, Found, Lease, LimitSlot, Limits, PartKind, Reservation, State, Sums, fingerprint,
    fingerprint_of_part,
};
use crate::book::{
    CreditDenial, CreditShortage, Denial, EXTENSIONS_MAX, Extend, ExtendOutcome, ExtendStep, Extension, InvalidExtend,
    InvalidParts, Part, REQUIREMENTS_MAX, RequirementSet, Reserve, ReserveOutcome,
};
use crate::credits::Credits;
use crate::quota::{QUOTA_RETRY_MS, QuotaKind};
use crate::time::UnixMs;

/// A live lease while it is extended.
pub(super) struct Extending {
    /// The slot of its record; [`NONE`] if this extension begins it.
    pub(super) slot: u32,
    pub(super) lease: Lease,
    /// Its ends before the extension.
    pub(super) life: Life,
    pub(super) extended: Extended,
    /// Ordered by limit.
    pub(super) parts: Vec<Reservation>,
    /// Parallel to `parts`.
    pub(super) more: Vec<ExtendedPart>,
}

impl Extending {
    /// The place of a limit. Most extensions add to all limits of the lease, so it is probably that in `add`.
    fn place(&self, limit: LimitSlot, likely: usize) -> Result<usize, usize> {
        if self.parts.get(likely).is_some_and(|part| part.limit == limit) {
            return Ok(likely);
        }
        self.parts.binary_search_by_key(&limit, |part| part.limit)
    }

    /// Its ends now.
    pub(super) fn ends(&self) -> Life {
        Life::of(self.lease.reserved_at, &self.parts, &self.more)
    }
}

impl Limits {
    pub(crate) fn extend(&mut self, now: UnixMs, command: &Extend<'_>, credits: &mut Credits) -> ExtendOutcome {
        if let Err(outcome) = self.check_extend(now, command) {
            return outcome;
        }
        let found = self.find(self.index.hash(command.namespace, command.lease), command.namespace, command.lease);
        let slot = match found {
            Some((_, Found::Record(slot))) => Some(slot),
            Some((_, Found::Tombstone(_))) | None => None,
        };
        if let Some(outcome) = slot.and_then(|slot| self.extend_plain(now, command, slot)) {
            return outcome;
        }
        self.extend_any(now, command, slot, credits)
    }

    /// Extends a lease that is not plain, or whose extension is not. `slot` is that of its record, if it has one.
    #[inline(never)]
    fn extend_any(
        &mut self,
        now: UnixMs,
        command: &Extend<'_>,
        slot: Option<u32>,
        credits: &mut Credits,
    ) -> ExtendOutcome {
        let found = slot.and_then(|slot| self.extending(now, slot)).or_else(|| self.beginning(now, command));
        let Some(mut extending) = found else { return ExtendOutcome::LeaseExpired };
        let mark = self.mark_of(command.namespace, command.lease, extending.lease.flags);
        let known = match mark.check(command.claim) {
            Err(ClaimRefusal::OwnedByGateway) => Some(ExtendOutcome::OwnedByGateway),
            Err(ClaimRefusal::OtherCall) => Some(ExtendOutcome::OtherCall),
            Ok(()) => self.known_number(now, command, &extending),
        };
        let outcome = match known {
            Some(outcome) => outcome,
            None => match command.step {
                step if step.is_whole() || step.is_growth() => self.extend_live(now, command, &mut extending, credits),
                ExtendStep::Return => self.give_back(now, &mut extending, credits),
                _ => self.stretch(now, (command, self.body_of(command)), &mut extending, credits),
            },
        };
        (self.parts, self.extended_parts) = (extending.parts, extending.more);
        outcome
    }

    fn check_extend(&mut self, now: UnixMs, command: &Extend<'_>) -> Result<(), ExtendOutcome> {
        if command.number == 0 || command.number > EXTENSIONS_MAX {
            return Err(ExtendOutcome::Invalid(InvalidExtend::Number { found: command.number }));
        }
        let mut checked = Ok(());
        if !command.used.is_empty() {
            let mut resolved = std::mem::take(&mut self.resolved_used);
            checked = self.resolve_extend((command, None), command.used, 0, InvalidExtend::Used, &mut resolved);
            self.resolved_used = resolved;
        }
        let mut resolved = std::mem::take(&mut self.resolved);
        let added = self.resolve_extend((command, Some(now)), command.add, 1, InvalidExtend::Add, &mut resolved);
        self.resolved = resolved;
        added.and(checked)
    }

    fn resolve_extend(
        &self,
        (command, taken_at): (&Extend<'_>, Option<UnixMs>),
        parts: &[Part],
        amount_min: u64,
        invalid: impl Fn(InvalidParts) -> InvalidExtend,
        resolved: &mut Vec<ResolvedPart>,
    ) -> Result<(), ExtendOutcome> {
        let checked = self.sort_parts((command.namespace, taken_at), parts, amount_min, resolved);
        checked.map_err(|refused| match refused {
            RefusedParts::Invalid(why) => ExtendOutcome::Invalid(invalid(why)),
            RefusedParts::Stale { .. } => ExtendOutcome::StaleLimit,
        })
    }

    /// The lease with its reservations, if it is alive.
    fn extending(&mut self, now: UnixMs, slot: u32) -> Option<Extending> {
        let mut parts = std::mem::take(&mut self.parts);
        let mut more = std::mem::take(&mut self.extended_parts);
        let leases = &self.state.leases;
        let lease = *leases.get(slot);
        let reserved_at = lease.reserved_at;
        leases.parts(&lease, &mut parts);
        leases.extended_parts(&lease, &mut more);
        let extended = leases.extended(&lease).copied();
        if more.is_empty() {
            more.extend(parts.iter().map(|part| ExtendedPart::of(part, reserved_at)));
        }
        let life = Life::of(reserved_at, &parts, &more);
        if life.runs_out() <= now {
            (self.parts, self.extended_parts) = (parts, more);
            return None;
        }
        let extended = extended.unwrap_or_else(|| {
            let hash_of = |part: &Reservation| (self.state.limits[part.limit].key_hash, part.amount);
            Extended { original: fingerprint(parts.iter().map(hash_of)), ..Extended::default() }
        });
        Some(Extending { slot, lease, life, extended, parts, more })
    }

    /// The fingerprint of the body of an extension. The steps of one have fewer fields.
    fn body_of(&self, command: &Extend<'_>) -> u64 {
        let hashed = |part: &Part| (self.hash_of(command.namespace, part), part.amount);
        self.body_with(command, fingerprint(command.add.iter().map(hashed)))
    }

    /// [`Limits::body_of`] with the fingerprint of what it adds.
    fn body_with(&self, command: &Extend<'_>, added: u64) -> u64 {
        let is_whole = command.step.is_whole();
        let used = if is_whole { command.used } else { &[] };
        let hashed = |part: &Part| (self.hash_of(command.namespace, part), part.amount);
        extension_fingerprint(added, used.iter().map(hashed), is_whole && command.renew)
    }

    /// The outcome of a number that was used, is too old or leaves a gap. `None` if the command is to be executed.
    fn known_number(&self, now: UnixMs, command: &Extend<'_>, extending: &Extending) -> Option<ExtendOutcome> {
        let Extended { number: last, body, pending, pending_body, .. } = extending.extended;
        let is_pending = pending == command.number;
        if command.step == ExtendStep::Return {
            return (!is_pending).then(|| ExtendOutcome::Extended(Extension::default()));
        }
        let expected = last.saturating_add(1);
        if command.number < last || command.step.is_whole() && command.number > expected {
            return Some(ExtendOutcome::NumberDiffers { expected });
        }
        if command.number == last {
            return Some(if self.body_of(command) == body {
                self.repeated(now, command, extending)
            } else {
                ExtendOutcome::NumberReused
            });
        }
        match command.step {
            ExtendStep::Grow | ExtendStep::Begin { .. } | ExtendStep::Renew
                if is_pending && self.body_of(command) != pending_body =>
            {
                Some(ExtendOutcome::NumberReused)
            }
            ExtendStep::Grow | ExtendStep::Begin { .. } if is_pending => Some(extended_until(extending.ends())),
            // The growth that it confirms was returned.
            ExtendStep::Renew if !is_pending && !command.add.is_empty() => {
                Some(ExtendOutcome::NumberDiffers { expected })
            }
            _ => None,
        }
    }

    /// The answer to the last number, again.
    fn repeated(&self, now: UnixMs, command: &Extend<'_>, extending: &Extending) -> ExtendOutcome {
        let Extended { at, ignored, above, limited_by, answer, .. } = extending.extended;
        let part = self.state.position_of_rank(&wanted(command), limited_by);
        let denied = |retry_after_ms, never| Denial { retry_after_ms, limited_by: vec![part], never };
        let short = |why| CreditDenial { requirement: part, retry_after_ms: at.ms_since(now), why };
        match answer {
            ExtensionAnswer::Extended => {
                let ends_at = (at != UnixMs::default()).then_some(at);
                let reported = reported(command);
                let of_rank = |rank: usize| self.state.position_of_rank(&reported, u8::try_from(rank).unwrap_or(0));
                let (ignored, above) = (ignored.iter().map(of_rank).collect(), above.iter().map(of_rank).collect());
                ExtendOutcome::Extended(Extension { ends_at, ignored, above })
            }
            ExtensionAnswer::Denied => ExtendOutcome::Denied(denied(at.ms_since(now), false)),
            ExtensionAnswer::DeniedNever => ExtendOutcome::Denied(denied(NEVER_RETRY_MS, true)),
            ExtensionAnswer::NoCredit => ExtendOutcome::InsufficientCredit(short(CreditShortage::NotEnough)),
            ExtensionAnswer::AccountFrozen => ExtendOutcome::InsufficientCredit(short(CreditShortage::Frozen)),
            ExtensionAnswer::AccountClosed => ExtendOutcome::InsufficientCredit(short(CreditShortage::Closed)),
        }
    }

    fn extend_live(
        &mut self,
        now: UnixMs,
        command: &Extend<'_>,
        extending: &mut Extending,
        credits: &mut Credits,
    ) -> ExtendOutcome {
        let mut resolved = std::mem::take(&mut self.resolved);
        self.follow_templates(now, &wanted(command), &mut resolved);
        for (likely, part) in resolved.iter_mut().enumerate() {
            if self.is_of_other_kind(extending, part.limit, likely) {
                (part.is_blocked, part.room) = (true, 0);
            }
        }
        let outcome = match self.judge(now, command, extending, &resolved, credits) {
            Err(refused) => refused,
            Ok(has_credit) => {
                extending.more.iter_mut().for_each(|more| more.grown = 0);
                let renews = command.renew && !command.step.is_growth();
                let added = self.add_parts(now, &resolved, extending, renews);
                let body = self.body_with(command, added);
                if extending.slot == NONE {
                    self.begin_lease(extending);
                }
                if has_credit {
                    self.grow_credit(now, command, extending, credits);
                }
                if command.step.is_growth() {
                    self.pend(command, extending, body)
                } else {
                    self.stretch(now, (command, body), extending, credits)
                }
            }
        };
        self.resolved = resolved;
        let is_judged = command.step == ExtendStep::Judge;
        let is_allowed = !is_judged && matches!(outcome, ExtendOutcome::Extended(_));
        self.end_derivation(is_allowed, |position| !is_judged && is_decision(&outcome, position));
        outcome
    }

    /// Whether the lease has a reservation of this limit from the time when the limit was of another kind.
    fn is_of_other_kind(&self, extending: &Extending, limit: LimitSlot, likely: usize) -> bool {
        let Ok(place) = extending.place(limit, likely) else { return false };
        let Some(found) = self.state.limits.get(limit) else { return false };
        let kind = match found.part_kind() {
            PartKind::Credit if self.state.external.parts.credit => PartKind::CreditExternal,
            kind => kind,
        };
        extending.parts[place].kind() != kind
    }

    /// Decides about what is added. Returns whether credit of this Book is.
    fn judge(
        &mut self,
        now: UnixMs,
        command: &Extend<'_>,
        extending: &mut Extending,
        resolved: &[ResolvedPart],
        credits: &mut Credits,
    ) -> Result<bool, ExtendOutcome> {
        let wanted = wanted(command);
        let found = self.refusal(now, &wanted, resolved, credits).map_err(refused)?;
        let new =
            resolved.iter().zip(0..).filter(|(part, likely)| extending.place(part.limit, *likely).is_err()).count();
        let found_limits = extending.parts.len().saturating_add(new);
        if found_limits > REQUIREMENTS_MAX {
            return Err(ExtendOutcome::TooManyLimits { found: found_limits });
        }
        if let Some(kind) = self.full_quota_of_extension(now, command, extending, found.has_credit) {
            return Err(ExtendOutcome::QuotaExceeded { kind, retry_after_ms: QUOTA_RETRY_MS });
        }
        if command.step == ExtendStep::Judge {
            return Err(ExtendOutcome::Extended(Extension::default()));
        }
        if !found.fits {
            let denial = self.state.denial(now, &wanted, resolved, &mut self.obstacles);
            let answer = if denial.never { ExtensionAnswer::DeniedNever } else { ExtensionAnswer::Denied };
            let first = denial.limited_by.first().copied().unwrap_or_default();
            self.deny_extension(now, command, extending, resolved, (answer, first, denial.retry_after_ms));
            return Err(ExtendOutcome::Denied(denial));
        }
        if let Some(why) = command.step.shortage() {
            return Err(self.deny_for_credit(now, command, extending, resolved, (0, why)));
        }
        if !found.has_credit {
            return Ok(false);
        }
        match self.plan_credit(now, &wanted, resolved, extending.lease.holds, credits) {
            Ok(()) => Ok(true),
            Err(short) => Err(self.deny_for_credit(now, command, extending, resolved, short)),
        }
    }

    /// Records a denial for lack of credit, unless it is that of a growth.
    fn deny_for_credit(
        &mut self,
        now: UnixMs,
        command: &Extend<'_>,
        extending: &mut Extending,
        resolved: &[ResolvedPart],
        (part, why): (usize, CreditShortage),
    ) -> ExtendOutcome {
        let denial = CreditDenial { requirement: part, retry_after_ms: super::credit::CREDIT_RETRY_MS, why };
        if command.step.is_growth() {
            // The system that enforces the limits decides whether the number stays denied.
            return ExtendOutcome::InsufficientCredit(denial);
        }
        let answer = match why {
            CreditShortage::Frozen => ExtensionAnswer::AccountFrozen,
            CreditShortage::Closed => ExtensionAnswer::AccountClosed,
            CreditShortage::UnknownAccount | CreditShortage::NotEnough => ExtensionAnswer::NoCredit,
        };
        self.deny_extension(now, command, extending, resolved, (answer, part, denial.retry_after_ms));
        ExtendOutcome::InsufficientCredit(denial)
    }

    /// The quota that leaves no room for an extension. The growth of a hold is recorded in the journal.
    fn full_quota_of_extension(
        &mut self,
        now: UnixMs,
        command: &Extend<'_>,
        extending: &Extending,
        has_credit: bool,
    ) -> Option<QuotaKind> {
        if extending.slot == NONE && !self.has_room_for_lease(command.namespace) {
            return Some(QuotaKind::Leases);
        }
        if has_credit && !self.state.quotas.has_room_in_journal(command.namespace, now) {
            return Some(QuotaKind::JournalBytesPerDay);
        }
        if self.has_room_for_derived() {
            return None;
        }
        self.derived_now = DERIVED_REFUSED;
        Some(QuotaKind::DerivedLimits)
    }

    /// Records a denial: the number stays denied even when it would fit later.
    fn deny_extension(
        &mut self,
        now: UnixMs,
        command: &Extend<'_>,
        extending: &mut Extending,
        resolved: &[ResolvedPart],
        (answer, part, retry_after_ms): (ExtensionAnswer, usize, u64),
    ) {
        self.note_decision(now, resolved);
        extending.more.iter_mut().for_each(|more| more.grown = 0);
        extending.extended = Extended {
            body: self.body_of(command),
            at: now.plus_ms(retry_after_ms),
            number: command.number,
            ignored: RequirementSet::default(),
            above: RequirementSet::default(),
            limited_by: self.state.rank(&wanted(command), part),
            answer,
            ..extending.extended
        };
        self.store_extended(extending, extending.ends());
    }

    /// Stores the extended lease, which has these ends now.
    pub(super) fn store_extended(&mut self, extending: &Extending, life: Life) {
        let parts = (&extending.parts[..], &extending.more[..]);
        self.state.leases.extend(extending.slot, (extending.life, life), extending.extended, parts);
    }

    /// Takes what is added of each limit, and returns its fingerprint. Credit is only noted here. With `renews` slots are
    /// taken until the end that [`Limits::renew`] gives them, so that they are not moved twice.
    fn add_parts(&mut self, now: UnixMs, resolved: &[ResolvedPart], extending: &mut Extending, renews: bool) -> u64 {
        let decided = decided_at(now);
        let latest = renews.then(|| latest_end(extending.lease.reserved_at));
        let mut added = FINGERPRINT_OF_NONE;
        for (likely, part) in resolved.iter().enumerate() {
            let State { limits, nodes, config, external, .. } = &mut self.state;
            let limit = &mut limits[part.limit];
            limit.denials = 0;
            limit.decided = decided;
            added = added.wrapping_add(fingerprint_of_part(limit.key_hash, part.amount));
            let place = match extending.place(part.limit, likely) {
                Ok(place) => {
                    let reserved = (&mut extending.parts[place], &mut extending.more[place]);
                    limit.add_to_part(nodes, (now, latest, config.retention_ms), part.amount, reserved);
                    place
                }
                Err(place) => {
                    let (reservation, more) = limit.add_part(nodes, now, part, external.parts.credit);
                    extending.parts.insert(place, reservation);
                    extending.more.insert(place, more);
                    place
                }
            };
            extending.more[place].grown = part.amount;
        }
        added
    }

    /// Moves the ends, reports the usage and records the extension with the fingerprint of its body.
    fn stretch(
        &mut self,
        now: UnixMs,
        (command, body): (&Extend<'_>, u64),
        extending: &mut Extending,
        credits: &mut Credits,
    ) -> ExtendOutcome {
        if extending.extended.pending == command.number {
            self.confirm_holds(extending, credits);
        }
        if command.renew {
            self.renew(now, extending, credits);
        }
        let (ignored, above) = self.report(command, extending, credits);
        let life = extending.ends();
        let ends_at = life.bound_end();
        let reported = reported(command);
        let rank_of = |position: usize| usize::from(self.state.rank(&reported, position));
        extending.extended = Extended {
            original: extending.extended.original,
            body,
            at: ends_at.unwrap_or_default(),
            number: command.number,
            ignored: ignored.iter().map(rank_of).collect(),
            above: above.iter().map(rank_of).collect(),
            is_made: true,
            ..Extended::default()
        };
        self.store_extended(extending, life);
        ExtendOutcome::Extended(Extension { ends_at, ignored, above })
    }

    /// Moves the end of each concurrency and credit reservation to one timeout from now, at most to
    /// [`RENEW_MS_MAX`] after the reserve, and never back.
    fn renew(&mut self, now: UnixMs, extending: &mut Extending, credits: &mut Credits) {
        let Extending { lease, parts, more, .. } = extending;
        let latest = latest_end(lease.reserved_at);
        for (part, more) in parts.iter().zip(more).filter(|(part, _)| part.is_bound()) {
            let limit = &mut self.state.limits[part.limit];
            let ends_at = renewed_end(limit, part, more, (now, latest));
            if ends_at == more.ends_at {
                continue;
            }
            match part.kind() {
                PartKind::Credit => credits.move_end(lease.holds, part.limit, ends_at),
                PartKind::Concurrency => {
                    let sums = Sums::unsettled(part.amount);
                    limit.replace(&mut self.state.nodes, (more.ends_at, sums), (ends_at, sums));
                }
                PartKind::CreditExternal | PartKind::Rolling | PartKind::Calendar => {}
            }
            more.ends_at = ends_at;
        }
    }

    /// Reports the usage. Returns the reports of limits that the lease has not reserved, and those above what it has.
    fn report(
        &mut self,
        command: &Extend<'_>,
        extending: &mut Extending,
        credits: &mut Credits,
    ) -> (RequirementSet, RequirementSet) {
        let (mut ignored, mut above) = (RequirementSet::default(), RequirementSet::default());
        if command.used.is_empty() {
            return (ignored, above);
        }
        let mut used = std::mem::take(&mut self.resolved_used);
        // Again, because the extension may have derived limits. It was checked before, so it cannot fail.
        _ = self.sort_parts((command.namespace, None), command.used, 0, &mut used);
        for (likely, report) in used.iter().enumerate() {
            let Ok(place) = extending.place(report.limit, likely) else {
                ignored.insert(report.position);
                continue;
            };
            let (part, more) = (&extending.parts[place], &mut extending.more[place]);
            more.used = more.used.max(report.amount);
            // A concurrency limit has no usage beyond its slots.
            if part.kind() != PartKind::Concurrency && report.amount > more.total(part) {
                above.insert(report.position);
            }
            if part.kind() == PartKind::Credit {
                credits.report_used(extending.lease.holds, part.limit, more.used);
            }
        }
        self.resolved_used = used;
        (ignored, above)
    }

    /// Holds the planned credit: existing holds grow, and others are added to the lease.
    fn grow_credit(&mut self, now: UnixMs, command: &Extend<'_>, extending: &mut Extending, credits: &mut Credits) {
        for part in &self.planned {
            if part.hold != NONE {
                credits.grow(now, part.hold, (part.amount, command.number), &self.state);
                continue;
            }
            let mut hold = self.new_hold(now, (command.namespace, command.lease), part, credits);
            // A timeout charges no growth that the limits have not accepted.
            hold.charges_timeout &= !command.step.is_growth();
            extending.lease.holds = credits.hold_more(now, hold, &self.state, (extending.lease.holds, command.number));
        }
        self.state.leases.set_holds(extending.slot, extending.lease.holds);
    }
}

/// An extension after which the lease has these ends.
pub(super) fn extended_until(life: Life) -> ExtendOutcome {
    ExtendOutcome::Extended(Extension { ends_at: life.bound_end(), ..Extension::default() })
}

/// The amounts that an extension adds, as the requirements of a reserve, which the same rules decide about.
fn wanted<'a>(command: &Extend<'a>) -> Reserve<'a> {
    Reserve {
        namespace: command.namespace,
        lease: command.lease,
        job: None,
        call: None,
        by_gateway: false,
        requirements: command.add,
    }
}

/// The usage that an extension reports, as the requirements of a reserve, to rank them by name.
fn reported<'a>(command: &Extend<'a>) -> Reserve<'a> {
    Reserve { requirements: command.used, ..wanted(command) }
}

/// Whether an extension with this outcome decided about the limit of `add` at `position`.
fn is_decision(outcome: &ExtendOutcome, position: usize) -> bool {
    match outcome {
        ExtendOutcome::Extended(_) | ExtendOutcome::Denied(_) | ExtendOutcome::InsufficientCredit(_) => true,
        ExtendOutcome::LimitDecreasing { part, .. } => *part == position,
        _ => false,
    }
}

/// A refusal by name of the same requirements.
fn refused(refusal: ReserveOutcome) -> ExtendOutcome {
    match refusal {
        ReserveOutcome::UnknownLimit { requirement: part } => ExtendOutcome::UnknownLimit { part },
        ReserveOutcome::LimitDecreasing { requirement: part, retry_after_ms } => {
            ExtendOutcome::LimitDecreasing { part, retry_after_ms }
        }
        ReserveOutcome::LimitPaused { requirement: part, retry_after_ms } => {
            ExtendOutcome::LimitPaused { part, retry_after_ms }
        }
        ReserveOutcome::AccountNotFound { requirement: part, retry_after_ms } => {
            ExtendOutcome::AccountNotFound { part, retry_after_ms }
        }
        _ => ExtendOutcome::LimitsExternal,
    }
}
