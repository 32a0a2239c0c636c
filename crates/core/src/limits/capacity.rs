//! Put, redefine and delete limits.

use std::sync::Arc;

use super::derive::DERIVED_REFUSED;
use super::{Definition, Flags, Limit, LimitSlot, Limits, OnTimeout, Overage, PackedKind, Phase, TemplateId, Text};
use crate::book::{DeleteLimit, DropLimit, LimitOutcome, LimitStatus, NamespaceId, PutLimit};
use crate::id::LimitKey;
use crate::quota::QuotaKind;
use crate::time::UnixMs;

impl Limits {
    pub(crate) fn put_limit(&mut self, now: UnixMs, command: &PutLimit<'_>) -> LimitOutcome {
        if let Err(error) = command.definition.validate() {
            return LimitOutcome::Invalid(error);
        }
        if !self.has_namespace(command.namespace) {
            return LimitOutcome::UnknownNamespace;
        }
        let found = self.lookup(now, command.namespace, &command.definition.key);
        let exists = found.filter(|slot| self.is_defined(*slot));
        if let Some(refusal) = self.check_revision(exists, command.expected_revision) {
            return refusal;
        }
        if let Some(slot) = found.filter(|slot| self.state.limits[*slot].template().is_some()) {
            return self.override_derived(slot, command.definition);
        }
        match (exists, found) {
            (Some(slot), _) => self.redefine(slot, command.definition),
            (None, Some(slot)) => self.recreate(slot, command.definition),
            (None, None) if self.state.limits.len() >= self.state.config.limits_max => {
                self.derived_now = DERIVED_REFUSED;
                LimitOutcome::TooMany
            }
            (None, None) if self.limits_of(command.namespace) >= self.quota(command.namespace, QuotaKind::Limits) => {
                LimitOutcome::QuotaExceeded(QuotaKind::Limits)
            }
            (None, None) => {
                let revision = self.state.next_revision();
                let limit = Limit { namespace: command.namespace, revision, ..Limit::of(command.definition) };
                let slot = self.add_limit(limit, Text::of(command.definition));
                self.changed(slot, false)
            }
        }
    }

    pub(crate) fn delete_limit(&mut self, now: UnixMs, command: &DeleteLimit<'_>) -> LimitOutcome {
        if !self.has_namespace(command.namespace) {
            return LimitOutcome::UnknownNamespace;
        }
        let found = self.lookup(now, command.namespace, command.key);
        let exists = found.filter(|slot| self.is_defined(*slot));
        if let Some(refusal) = self.check_revision(exists, command.expected_revision) {
            return refusal;
        }
        let Some(slot) = exists else { return self.clear_derived(found) };
        if !self.state.external.parts.limits && self.follow_instead(now, slot) {
            let revision = self.state.next_revision();
            self.version = self.version.wrapping_add(1);
            let limit = self.state.limits.id(slot);
            return LimitOutcome::Changed { limit, revision, status: LimitStatus::Deleted };
        }
        let was_reclaimable = self.state.limits[slot].is_reclaimable();
        let is_external = self.state.external.parts.limits;
        if !matches!(self.state.limits[slot].phase, Phase::Deleting | Phase::AwaitingDrop) {
            self.state.limits[slot].revision = self.state.next_revision();
        }
        let limit = &mut self.state.limits[slot];
        limit.phase = if is_external && !limit.is_credit() { Phase::AwaitingDrop } else { Phase::Deleting };
        self.state.advance_limit(slot, now);
        self.freeable.push(slot);
        self.changed(slot, was_reclaimable)
    }

    /// Clears the debt of a derived limit that holds nothing, and lets it be freed: nothing else would end its debt.
    fn clear_derived(&mut self, found: Option<LimitSlot>) -> LimitOutcome {
        let is_clearable = |limit: &Limit| limit.template().is_some() && !limit.is_credit() && limit.reserved() == 0;
        let is_here = !self.state.external.parts.limits;
        let Some(slot) = found.filter(|slot| is_here && is_clearable(&self.state.limits[*slot])) else {
            return LimitOutcome::NotFound;
        };
        self.state.set_debt(slot, 0);
        // As if its last decision were long ago.
        self.state.limits[slot].decided = 0;
        self.freeable.push(slot);
        self.version = self.version.wrapping_add(1);
        let (limit, revision) = (self.state.limits.id(slot), self.state.next_revision());
        LimitOutcome::Changed { limit, revision, status: LimitStatus::Deleted }
    }

    /// Deletes a limit after the system that enforced it reported that nothing is held.
    pub(crate) fn drop_limit(&mut self, now: UnixMs, command: &DropLimit<'_>) -> LimitOutcome {
        if !self.has_namespace(command.namespace) {
            return LimitOutcome::UnknownNamespace;
        }
        let found = self.lookup(now, command.namespace, command.key);
        let exists = found.filter(|slot| self.is_defined(*slot));
        if let Some(refusal) = self.check_revision(exists, Some(command.revision)) {
            return refusal;
        }
        let Some(slot) = exists.filter(|slot| self.state.limits[*slot].phase == Phase::AwaitingDrop) else {
            return LimitOutcome::NotFound;
        };
        let was_reclaimable = self.state.limits[slot].is_reclaimable();
        let limit = &mut self.state.limits[slot];
        limit.phase = Phase::Deleting;
        self.state.advance_limit(slot, now);
        self.freeable.push(slot);
        self.changed(slot, was_reclaimable)
    }

    /// The limit with this key, live or deleted, advanced to `now`.
    pub(super) fn lookup(&mut self, now: UnixMs, namespace: NamespaceId, key: &LimitKey) -> Option<LimitSlot> {
        let slot = self.resolve(namespace, key)?;
        self.advanced(namespace, slot, now);
        Some(slot)
    }

    fn check_revision(&self, exists: Option<LimitSlot>, expected: Option<u64>) -> Option<LimitOutcome> {
        let revision = exists.map_or(0, |slot| self.state.limits[slot].revision);
        (expected.unwrap_or(revision) != revision).then_some(LimitOutcome::RevisionDiffers { revision })
    }

    fn redefine(&mut self, slot: LimitSlot, definition: &Definition) -> LimitOutcome {
        let limit = &self.state.limits[slot];
        if !limit.is_of_kind(&definition.kind) {
            return LimitOutcome::KindDiffers;
        }
        let was_reclaimable = limit.is_reclaimable();
        let is_deleting = matches!(limit.phase, Phase::Deleting | Phase::AwaitingDrop);
        if !is_deleting && self.state.definition(slot).as_ref() == Some(definition) {
            return self.changed(slot, was_reclaimable);
        }
        let revision = self.state.next_revision();
        let limit = &mut self.state.limits[slot];
        limit.revision = revision;
        limit.define(definition);
        self.state.set_text(slot, Arc::new(Text::of(definition)));
        self.changed(slot, was_reclaimable)
    }

    /// Whether a slot has a limit that was put and not deleted.
    fn is_defined(&self, slot: LimitSlot) -> bool {
        let limit = &self.state.limits[slot];
        limit.phase != Phase::Deleted && limit.template().is_none()
    }

    /// Puts a limit in place of a derived one. It keeps what is reserved and owed if it is of the same kind.
    fn override_derived(&mut self, slot: LimitSlot, definition: &Definition) -> LimitOutcome {
        let limit = self.state.limits[slot];
        let is_same_kind = limit.is_of_kind(&definition.kind);
        if !is_same_kind && (limit.reserved() > 0 || self.state.debt(slot) > 0) {
            return LimitOutcome::KindDiffers;
        }
        if self.limits_of(limit.namespace) >= self.quota(limit.namespace, QuotaKind::Limits) {
            return LimitOutcome::QuotaExceeded(QuotaKind::Limits);
        }
        self.count_reclaimable(slot, false);
        self.state.set_target(slot, None);
        self.retext(slot, TemplateId::NONE, Some(Arc::new(Text::of(definition))));
        if !is_same_kind {
            return self.recreate(slot, definition);
        }
        let revision = self.state.next_revision();
        let limit = &mut self.state.limits[slot];
        limit.revision = revision;
        limit.define(definition);
        self.changed(slot, false)
    }

    /// Recreates a deleted limit that was not freed. It keeps its slot, which always meant this key.
    fn recreate(&mut self, slot: LimitSlot, definition: &Definition) -> LimitOutcome {
        let revision = self.state.next_revision();
        let limit = &mut self.state.limits[slot];
        let was_reclaimable = limit.is_reclaimable();
        let Limit { namespace, key_hash, text, generation, leases, .. } = *limit;
        *limit = Limit { revision, namespace, key_hash, text, generation, leases, ..Limit::of(definition) };
        self.state.set_text(slot, Arc::new(Text::of(definition)));
        self.changed(slot, was_reclaimable)
    }

    fn changed(&mut self, slot: LimitSlot, was_reclaimable: bool) -> LimitOutcome {
        self.version = self.version.wrapping_add(1);
        self.state.note_limit(slot);
        let others = self.state.reclaimable.saturating_sub(was_reclaimable.into());
        self.state.reclaimable = others.saturating_add(self.state.limits[slot].is_reclaimable().into());
        let (revision, status) = (self.state.limits[slot].revision, self.state.status(slot));
        LimitOutcome::Changed { limit: self.state.limits.id(slot), revision, status }
    }
}

impl Text {
    pub(crate) fn of(definition: &Definition) -> Text {
        Text {
            key: definition.key.clone(),
            capacity: definition.capacity,
            unit: definition.unit.clone(),
            description: definition.description.clone(),
            credit: definition.kind.terms().cloned(),
        }
    }
}

impl Limit {
    pub(crate) fn of(definition: &Definition) -> Limit {
        let kind = PackedKind::of(&definition.kind);
        let mut limit = Limit { phase: Phase::Active, kind, ..Limit::default() };
        limit.define(definition);
        limit
    }

    /// Applies a definition. A capacity below what is reserved waits in the phase `Decreasing`.
    pub(super) fn define(&mut self, definition: &Definition) {
        self.kind = PackedKind::of(&definition.kind);
        self.set_payers(None);
        self.flags.set(Flags::SHARED, definition.shared);
        self.flags.set(Flags::SHADOW, !definition.enforce);
        self.flags.set(Flags::KEEPS_DEBT, definition.overage == Overage::Debt);
        let on_timeout = definition.kind.terms().map_or(OnTimeout::Release, |terms| terms.on_timeout);
        self.flags.set(Flags::CHARGES_TIMEOUT, on_timeout == OnTimeout::Charge);
        // The amount that a shadow limit let in above its capacity was in force.
        let in_force = self.capacity.max(self.reserved());
        if self.is_shadow() || definition.capacity >= in_force || definition.capacity >= self.reserved() {
            self.capacity = definition.capacity;
            self.phase = Phase::Active;
        } else {
            self.capacity = in_force;
            self.phase = Phase::Decreasing;
        }
    }
}
