//! Incremental cleanup: every command deletes a bounded number of due records.

use super::lease::Life;
use super::{LimitSlot, Limits, Reference, TIME_MAX, Tombstone};
use crate::book::NamespaceId;
use crate::credits::Credits;
use crate::id::LeaseId;
use crate::time::UnixMs;

/// Leases deleted per command. A command adds one lease, so the backlog shrinks.
const CLEAN_RECORDS: usize = 16;
/// Tombstones deleted per command. A command adds one, so the backlog shrinks.
const CLEAN_TOMBSTONES: usize = 16;
/// Timeline nodes freed per command. A reserve of 32 limits adds fewer.
const CLEAN_NODES: usize = 64;
/// Slots of limits that the sweep looks at per command.
const SWEEP_LIMITS: u32 = 2;
/// Further slots that the sweep looks at for each limit that the command derived, so that the table does not outgrow it.
const SWEEP_LIMITS_DERIVED: u32 = 4;
/// Slots of limits that the sweep looks at per tick. An idle Book of ten million limits needs 10,000 ticks.
const SWEEP_LIMITS_TICK: u32 = 1_024;
/// Limits that the sweep frees per command. Freeing one costs a few microseconds, looking at one a few nanoseconds.
const SWEEP_FREES: u32 = 64;

impl Limits {
    /// Advances the clock to `now`, cleans up a bounded number of records, and returns the time to use.
    pub(crate) fn advance(&mut self, now: UnixMs, credits: &mut Credits) -> UnixMs {
        let now = now.min(TIME_MAX);
        let now = match self.state.time {
            Some(time) => now.max(time),
            None => {
                self.state.forgotten_before = now.minus_ms(self.state.config.retention_ms);
                now
            }
        };
        self.state.time = Some(now);
        self.forget_leases(now, credits);
        self.forget_tombstones(now);
        self.state.forget_pauses(now);
        self.state.nodes.reclaim(CLEAN_NODES);
        now
    }

    /// Whether a lease record, a tombstone or a limit may be due for deletion.
    pub(crate) fn is_due(&self, now: UnixMs) -> bool {
        let retention_ms = self.state.config.retention_ms;
        let is_over = |tombstone: &Tombstone| tombstone.resolved_at.plus_ms(retention_ms) <= now;
        // A tick sweeps, so that limits are freed without other commands. Half a retention lies between two sweeps.
        let is_swept =
            self.state.reclaimable == 0 || self.swept_at.is_some_and(|at| at.plus_ms(retention_ms / 2) > now);
        !is_swept
            || self.state.leases.has_due(retention_ms, now)
            || self.state.tombstones.first().is_some_and(|(_, tombstone)| is_over(tombstone))
    }

    fn forget_leases(&mut self, now: UnixMs, credits: &mut Credits) {
        for _ in 0..CLEAN_RECORDS {
            let retention_ms = self.state.config.retention_ms;
            let Some(slot) = self.state.leases.first_due(retention_ms, now) else { return };
            let lease = *self.state.leases.get(slot);
            let mut parts = std::mem::take(&mut self.parts);
            self.state.leases.parts(&lease, &mut parts);
            self.state.leases.extended_parts(&lease, &mut self.extended_parts);
            let life = Life::of(lease.reserved_at, &parts, &self.extended_parts);
            credits.forget_holds(now, lease.holds, &self.state);
            self.unlink_parts(now, &parts);
            self.parts = parts;
            self.state.leases.remove(slot, life);
            self.forget(lease.namespace, lease.id, Reference::record(slot));
            self.forget_extras(lease.namespace, lease.id, lease.flags);
        }
    }

    fn forget_tombstones(&mut self, now: UnixMs) {
        for _ in 0..CLEAN_TOMBSTONES {
            let Some((number, &tombstone)) = self.state.tombstones.first() else { return };
            let retention_ms = self.state.config.retention_ms;
            if tombstone.resolved_at.plus_ms(retention_ms) > now {
                return;
            }
            self.state.tombstones.pop();
            let reference = Reference::tombstone(number);
            if tombstone.is_forgotten(retention_ms, now) {
                self.forget(tombstone.namespace, tombstone.id, reference);
                self.forget_extras(tombstone.namespace, tombstone.id, tombstone.flags);
            } else {
                self.requeue(tombstone, reference);
            }
        }
    }

    /// Moves a tombstone whose ULID time is ahead to the back of the queue. Otherwise one caller whose clock is a
    /// year ahead would keep every later tombstone in memory.
    fn requeue(&mut self, tombstone: Tombstone, reference: Reference) {
        self.state.nodes.count(1);
        let hash = self.index.hash(tombstone.namespace, tombstone.id);
        let number = self.state.tombstones.push(tombstone);
        if let Some((position, _)) = self.index.find(hash, |found| found == reference) {
            self.index.replace(position, Reference::tombstone(number));
        }
    }

    /// Deletes a lease from the index. From now on leases up to its ULID time are refused, since they cannot be told
    /// from deleted ones.
    fn forget(&mut self, namespace: NamespaceId, lease: LeaseId, reference: Reference) {
        self.remove_from_index(namespace, lease, reference);
        self.state.forgotten_before = self.state.forgotten_before.max(lease.time().plus_ms(1));
    }

    /// Removes a lease from the index, as if it had never been reserved.
    pub(super) fn remove_from_index(&mut self, namespace: NamespaceId, lease: LeaseId, reference: Reference) {
        self.state.nodes.count(1);
        let hash = self.index.hash(namespace, lease);
        if let Some((position, _)) = self.index.find(hash, |found| found == reference) {
            self.index.remove(position);
        }
        self.state.quotas.remove_lease(namespace);
    }

    /// Frees the limits that a command left deleted and without leases, and looks at the next few limits, so that those
    /// without traffic are freed too. Runs after each command. It frees by the state at `now` alone, never by when a
    /// limit was last looked at.
    pub(crate) fn sweep(&mut self, is_tick: bool) {
        let now = self.state.now();
        while let Some(slot) = self.freeable.pop() {
            self.free_if_gone(now, slot);
        }
        let derived = std::mem::take(&mut self.derived_now);
        if self.state.reclaimable == 0 {
            return self.free_expired(now);
        }
        let used = self.state.limits.used();
        let more = derived.saturating_mul(SWEEP_LIMITS_DERIVED);
        let count = if is_tick { SWEEP_LIMITS_TICK } else { SWEEP_LIMITS.saturating_add(more) };
        let mut freed = 0_u32;
        for _ in 0..count.min(used) {
            if freed == SWEEP_FREES {
                return;
            }
            if self.state.sweep.0 >= used {
                self.state.sweep = LimitSlot::default();
                self.swept_at = Some(now);
            }
            let slot = self.state.sweep;
            self.state.sweep = LimitSlot(slot.0.saturating_add(1));
            let Some(limit) = self.state.limits.get(slot) else { continue };
            if limit.is_due(now) {
                self.state.advance_limit(slot, now);
            }
            let before = self.state.limits.len();
            self.free_if_gone(now, slot);
            freed = freed.saturating_add(before.saturating_sub(self.state.limits.len()));
        }
    }

    /// Advances one limit per command, so that limits without traffic also free their memory.
    fn free_expired(&mut self, now: UnixMs) {
        if self.idle.0 >= self.state.limits.used() {
            self.idle = LimitSlot::default();
        }
        if let Some(limit) = self.state.limits.get(self.idle)
            && limit.is_due(now)
        {
            self.state.advance_limit(self.idle, now);
        }
        self.idle = LimitSlot(self.idle.0.saturating_add(1));
    }
}
