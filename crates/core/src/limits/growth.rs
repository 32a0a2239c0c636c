//! Growth of credit that waits until the system that enforces the limits accepts or denies it. The first growth of a
//! lease makes its record here.

use super::extend::{Extending, extended_until};
use super::extended::Extended;
use super::lease::Life;
use super::limit::Flags;
use super::slab::NONE;
use super::{Lease, Limits, PartKind, Reference, fingerprint};
use crate::book::{Extend, ExtendOutcome, ExtendStep, NamespaceId};
use crate::credits::Credits;
use crate::time::UnixMs;

impl Limits {
    /// An unknown lease that another system says is alive. If it has ended meanwhile, and its end is forgotten, that
    /// system refuses the extension, and the growth is returned.
    pub(super) fn beginning(&self, now: UnixMs, command: &Extend<'_>) -> Option<Extending> {
        let ExtendStep::Begin { reserved_at } = command.step else { return None };
        let (namespace, lease) = (command.namespace, command.lease);
        let is_known = self.find(self.index.hash(namespace, lease), namespace, lease).is_some();
        if is_known || !self.state.external.parts.limits || command.add.is_empty() {
            return None;
        }
        let reserved_at = reserved_at.min(now);
        Some(Extending {
            slot: NONE,
            lease: Lease::new(namespace, lease, reserved_at),
            life: Life::of(reserved_at, &[], &[]),
            extended: Extended { original: fingerprint(std::iter::empty()), ..Extended::default() },
            parts: Vec::new(),
            more: Vec::new(),
        })
    }

    /// Records the lease with its first reservations.
    pub(super) fn begin_lease(&mut self, extending: &mut Extending) {
        let Extending { lease, parts, more, .. } = extending;
        let life = Life::of(lease.reserved_at, parts, more);
        let hash = self.index.hash(lease.namespace, lease.id);
        let times = (lease.reserved_at, life.last, life.runs_out());
        extending.slot = self.state.add_lease((lease.namespace, lease.id), times, parts);
        self.index.insert(hash, Reference::record(extending.slot));
        extending.life = life;
    }

    /// Records growth that is to be confirmed or returned.
    pub(super) fn pend(&mut self, command: &Extend<'_>, extending: &mut Extending, body: u64) -> ExtendOutcome {
        let (pending, pending_body) = (command.number, body);
        extending.extended = Extended { pending, pending_body, ..extending.extended };
        let life = extending.ends();
        self.store_extended(extending, life);
        extended_until(life)
    }

    /// Returns the credit of a growth. A limit that only the growth took is no longer one of the lease.
    pub(super) fn give_back(&mut self, now: UnixMs, extending: &mut Extending, credits: &mut Credits) -> ExtendOutcome {
        let mut place = 0;
        while let (Some(part), Some(more)) = (extending.parts.get_mut(place), extending.more.get_mut(place)) {
            let grown = std::mem::take(&mut more.grown);
            let limit = part.limit;
            if grown > 0 && part.kind() == PartKind::Credit {
                *part = part.with(part.amount.saturating_sub(grown), part.hold_seconds());
                credits.shrink(now, (extending.lease.holds, limit), grown, &self.state);
            }
            if part.amount > 0 {
                place = place.saturating_add(1);
                continue;
            }
            let removed = extending.parts.remove(place);
            extending.more.remove(place);
            extending.lease.holds = credits.drop_hold(now, extending.lease.holds, limit);
            _ = self.unlink_parts(now, &[removed]);
        }
        self.state.leases.set_holds(extending.slot, extending.lease.holds);
        (extending.extended.pending, extending.extended.pending_body) = (0, 0);
        let life = extending.ends();
        if extending.parts.is_empty() {
            self.drop_begun(extending);
        } else {
            self.store_extended(extending, life);
        }
        extended_until(life)
    }

    /// Deletes a lease whose first credit was returned, so that it may begin again.
    fn drop_begun(&mut self, extending: &Extending) {
        let Extending { slot, lease, life, .. } = extending;
        self.state.leases.remove(*slot, *life);
        self.remove_from_index(lease.namespace, lease.id, Reference::record(*slot));
    }

    /// Whether another lease may be recorded.
    pub(super) fn has_room_for_lease(&self, namespace: NamespaceId) -> bool {
        let has_room = self.state.remembered() < self.state.config.leases_max as usize;
        has_room && self.state.quotas.has_room_for_lease(namespace)
    }

    /// Gives the holds that the confirmed growth began the terms of their limits: until now a timeout charged nothing.
    pub(super) fn confirm_holds(&self, extending: &Extending, credits: &mut Credits) {
        for (part, more) in extending.parts.iter().zip(&extending.more) {
            let is_begun = part.kind() == PartKind::Credit && more.grown == part.amount;
            let charges =
                self.state.limits.get(part.limit).is_some_and(|limit| limit.flags.has(Flags::CHARGES_TIMEOUT));
            if is_begun && charges {
                credits.set_charged_by_timeout(extending.lease.holds, part.limit);
            }
        }
    }
}
