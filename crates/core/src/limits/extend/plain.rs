//! Extensions of plain leases: of few limits and no credit, that take more of exactly these limits. They are decided in
//! one pass over the reservations and made in another, without the lists that other extensions need.

use super::super::extended::{Extended, ExtendedPart, extension_fingerprint};
use super::super::reserve::ResolvedPart;
use super::super::{FINGERPRINT_OF_NONE, Limits, State, decided_at, fingerprint_of_part};
use super::parts::latest_end;
use crate::book::{Extend, ExtendOutcome, ExtendStep, Extension};
use crate::limits::lease::{Life, PlainLease, PlainParts, Reservation};
use crate::time::UnixMs;

impl Limits {
    /// Extends a plain lease. `None` if the lease, the limits or the extension are not plain, or something does not fit.
    /// Then nothing has changed, and the other way of [`Limits::extend`] has the answer.
    pub(super) fn extend_plain(&mut self, now: UnixMs, command: &Extend<'_>, slot: u32) -> Option<ExtendOutcome> {
        let is_plain = matches!(command.step, ExtendStep::Whole) && command.used.is_empty();
        let is_open = self.state.pauses.is_empty() && !self.state.external.parts.limits;
        if !is_plain || !is_open || !self.is_followed(&self.resolved) {
            return None;
        }
        let PlainLease { lease, parts, extended } = self.state.leases.plain(slot, self.resolved.len())?;
        let mark = self.mark_of(command.namespace, command.lease, lease.flags);
        let number = extended.map_or(0, |(extended, _)| extended.number);
        if number.checked_add(1) != Some(command.number) || mark.check(command.claim).is_err() {
            return None;
        }
        let (reserved_at, is_first) = (lease.reserved_at, extended.is_none());
        let resolved = &self.resolved;
        let before = match extended {
            Some((_, more)) => {
                let mut more = more.iter();
                life_if_fitting(resolved, reserved_at, parts, |_| more.next().copied())
            }
            None => life_if_fitting(resolved, reserved_at, parts, |part| Some(ExtendedPart::of(part, reserved_at))),
        }?;
        if before.runs_out() <= now {
            return None;
        }
        let Limits { state: State { limits, nodes, leases, config, .. }, resolved, .. } = self;
        let PlainParts { parts, more, extended } = leases.plain_mut(slot);
        // No end moves back, so the last end is at least what it was.
        let mut after = Life { bound: UnixMs::MAX, ..before };
        let (mut original, mut added) = (FINGERPRINT_OF_NONE, FINGERPRINT_OF_NONE);
        let latest = command.renew.then(|| latest_end(reserved_at));
        let (decided, retention_ms) = (decided_at(now), config.retention_ms);
        for ((want, part), more) in resolved.iter().zip(parts).zip(more) {
            let limit = &mut limits[want.limit];
            limit.denials = 0;
            limit.decided = decided;
            if is_first {
                *more = ExtendedPart::of(part, reserved_at);
                original = original.wrapping_add(fingerprint_of_part(limit.key_hash, part.amount));
            }
            added = added.wrapping_add(fingerprint_of_part(limit.key_hash, want.amount));
            limit.add_to_part(nodes, (now, latest, retention_ms), want.amount, (part, more));
            more.grown = want.amount;
            after.add(part, more.ends_at);
        }
        let ends_at = after.bound_end();
        *extended = Extended {
            original: if is_first { original } else { extended.original },
            body: extension_fingerprint(added, std::iter::empty(), command.renew),
            at: ends_at.unwrap_or_default(),
            number: command.number,
            is_made: true,
            ..Extended::default()
        };
        leases.move_end(slot, (before.last, before.runs_out()), (after.last, after.runs_out()));
        Some(ExtendOutcome::Extended(Extension { ends_at, ..Extension::default() }))
    }
}

/// The ends of a plain lease, if `resolved` names exactly its limits and the amounts fit. `next` gives what extensions
/// changed of one reservation after the other.
#[inline(always)]
fn life_if_fitting(
    resolved: &[ResolvedPart],
    reserved_at: UnixMs,
    parts: &[Reservation],
    mut next: impl FnMut(&Reservation) -> Option<ExtendedPart>,
) -> Option<Life> {
    let mut life = Life::new(reserved_at);
    for (want, part) in resolved.iter().zip(parts) {
        // The room is 0 unless the limit is plain, active and of this namespace.
        if want.limit != part.limit || want.amount > want.room || u32::from(want.plain) != part.code() {
            return None;
        }
        life.add_part(part, &next(part)?);
    }
    Some(life)
}
