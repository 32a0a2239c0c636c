//! Extend: take more for a live lease, move its end, and report its usage.

use super::lease::alive_until;
use super::reserve::RefusedParts;
use super::{Found, Limits};
use crate::book::{EXTENSIONS_MAX, Extend, ExtendOutcome, InvalidExtend, InvalidParts, Part};
use crate::credits::Credits;
use crate::time::UnixMs;

impl Limits {
    pub(crate) fn extend(&mut self, now: UnixMs, command: &Extend<'_>, _credits: &mut Credits) -> ExtendOutcome {
        if let Err(outcome) = self.check_extend(command) {
            return outcome;
        }
        let hash = self.index.hash(command.namespace, command.lease);
        let found = self.find(hash, command.namespace, command.lease);
        let Some((_, Found::Record(slot))) = found else { return ExtendOutcome::LeaseExpired };
        let lease = *self.state.leases.get(slot);
        let mut parts = std::mem::take(&mut self.parts);
        self.state.leases.parts(&lease, &mut parts);
        let is_alive = alive_until(lease.reserved_at, &parts) > now;
        self.parts = parts;
        if !is_alive {
            return ExtendOutcome::LeaseExpired;
        }
        ExtendOutcome::LimitsExternal
    }

    fn check_extend(&mut self, command: &Extend<'_>) -> Result<(), ExtendOutcome> {
        if command.number == 0 || command.number > EXTENSIONS_MAX {
            return Err(ExtendOutcome::Invalid(InvalidExtend::Number { found: command.number }));
        }
        self.check_parts(command, command.add, 1, InvalidExtend::Add)?;
        self.check_parts(command, command.used, 0, InvalidExtend::Used)
    }

    fn check_parts(
        &mut self,
        command: &Extend<'_>,
        parts: &[Part],
        amount_min: u64,
        invalid: impl Fn(InvalidParts) -> InvalidExtend,
    ) -> Result<(), ExtendOutcome> {
        let mut resolved = std::mem::take(&mut self.resolved);
        let checked = self.sort_parts(command.namespace, parts, amount_min, &mut resolved);
        self.resolved = resolved;
        checked.map_err(|refused| match refused {
            RefusedParts::Invalid(why) => ExtendOutcome::Invalid(invalid(why)),
            RefusedParts::Stale { .. } => ExtendOutcome::StaleLimit,
        })
    }
}
