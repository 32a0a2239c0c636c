//! Extensions of plain leases: of few limits and no credit, that take more of exactly these limits. They are decided in
//! one pass over the limits and made in another, without the lists that other extensions need.

use super::super::extended::{Extended, ExtendedPart, extension_fingerprint};
use super::super::{FINGERPRINT_OF_NONE, Limits, State, decided_at, fingerprint_of_part};
use super::parts::latest_end;
use crate::book::{Extend, ExtendOutcome, ExtendStep, Extension};
use crate::limits::lease::Life;
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
        let mut plain = self.state.leases.plain(slot, self.resolved.len())?;
        let mark = self.mark_of(command.namespace, command.lease, plain.flags);
        let is_next = plain.number.checked_add(1) == Some(command.number);
        if !is_next || mark.check(command.claim).is_err() {
            return None;
        }
        let (reserved_at, is_first) = (plain.reserved_at, plain.original.is_none());
        let Limits { state: State { limits, nodes, leases, config, .. }, resolved, .. } = self;
        let (mut before, mut after) = (Life::new(reserved_at), Life::new(reserved_at));
        let (mut original, mut added) = (FINGERPRINT_OF_NONE, FINGERPRINT_OF_NONE);
        for ((want, part), more) in resolved.iter().zip(&plain.parts).zip(&mut plain.more) {
            // The room is 0 unless the limit is plain, active and of this namespace.
            let limit = limits.get(want.limit).filter(|limit| limit.is_kind_of(part))?;
            if want.limit != part.limit || want.amount > want.room {
                return None;
            }
            if is_first {
                *more = ExtendedPart::of(part, reserved_at);
                original = original.wrapping_add(fingerprint_of_part(limit.key_hash, part.amount));
            }
            added = added.wrapping_add(fingerprint_of_part(limit.key_hash, want.amount));
            before.add_part(part, more);
        }
        if before.runs_out() <= now {
            return None;
        }
        let latest = command.renew.then(|| latest_end(reserved_at));
        let (decided, retention_ms) = (decided_at(now), config.retention_ms);
        for ((want, part), more) in resolved.iter().zip(&mut plain.parts).zip(&mut plain.more) {
            let limit = &mut limits[want.limit];
            limit.denials = 0;
            limit.decided = decided;
            limit.add_to_part(nodes, (now, latest, retention_ms), want.amount, (part, more));
            more.grown = want.amount;
            after.add_part(part, more);
        }
        let ends_at = after.bound_end();
        let extended = Extended {
            original: plain.original.unwrap_or(original),
            body: extension_fingerprint(added, std::iter::empty(), command.renew),
            at: ends_at.unwrap_or_default(),
            number: command.number,
            is_made: true,
            ..Extended::default()
        };
        leases.extend_plain(slot, (before, after), extended, &plain);
        Some(ExtendOutcome::Extended(Extension { ends_at, ..Extension::default() }))
    }
}
