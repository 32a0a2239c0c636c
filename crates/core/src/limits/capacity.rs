//! Put, redefine and delete limits.

use std::sync::Arc;

use super::calendar::Calendar;
use super::{Definition, Kind, LIMITS_MAX, Limit, Limits, Overage, Phase, Text};
use crate::book::{DeleteLimit, DropLimit, LimitId, LimitOutcome, NamespaceId, PutLimit};
use crate::id::LimitKey;
use crate::quota::QuotaKind;
use crate::time::UnixMs;

impl Limits {
    pub(crate) fn put_limit(&mut self, now: UnixMs, command: &PutLimit<'_>) -> LimitOutcome {
        if let Err(error) = command.definition.validate() {
            return LimitOutcome::Invalid(error);
        }
        if self.state.external.parts.limits
            && let Err(error) = command.definition.validate_for_ledger()
        {
            return LimitOutcome::Invalid(error);
        }
        if !self.has_namespace(command.namespace) {
            return LimitOutcome::UnknownNamespace;
        }
        let found = self.lookup(now, command.namespace, &command.definition.key);
        let exists = found.filter(|id| self.state.limits[*id].phase != Phase::Deleted);
        if let Some(refusal) = self.check_revision(exists, command.expected_revision) {
            return refusal;
        }
        match (exists, found) {
            (Some(id), _) => self.redefine(id, command.definition),
            (None, Some(id)) => self.recreate(id, command.definition),
            (None, None) if self.state.limits.len() >= LIMITS_MAX => LimitOutcome::TooMany,
            (None, None) if self.limits_of(command.namespace) >= self.quota(command.namespace, QuotaKind::Limits) => {
                LimitOutcome::QuotaExceeded(QuotaKind::Limits)
            }
            (None, None) => {
                let limit = Limit { namespace: command.namespace, ..Limit::of(command.definition) };
                let id = self.add_limit(limit, Text::of(command.definition));
                self.changed(id)
            }
        }
    }

    pub(crate) fn delete_limit(&mut self, now: UnixMs, command: &DeleteLimit<'_>) -> LimitOutcome {
        if !self.has_namespace(command.namespace) {
            return LimitOutcome::UnknownNamespace;
        }
        let found = self.lookup(now, command.namespace, command.key);
        let exists = found.filter(|id| self.state.limits[*id].phase != Phase::Deleted);
        if let Some(refusal) = self.check_revision(exists, command.expected_revision) {
            return refusal;
        }
        let Some(id) = exists else { return LimitOutcome::NotFound };
        let is_external = self.state.external.parts.limits;
        let limit = &mut self.state.limits[id];
        if !matches!(limit.phase, Phase::Deleting | Phase::AwaitingDrop) {
            limit.revision = limit.revision.saturating_add(1);
        }
        limit.phase = if is_external && !limit.is_credit { Phase::AwaitingDrop } else { Phase::Deleting };
        limit.advance(&mut self.state.nodes, now);
        self.changed(id)
    }

    /// Deletes a limit after the system that enforced it reported that nothing is held.
    pub(crate) fn drop_limit(&mut self, now: UnixMs, command: &DropLimit<'_>) -> LimitOutcome {
        if !self.has_namespace(command.namespace) {
            return LimitOutcome::UnknownNamespace;
        }
        let found = self.lookup(now, command.namespace, command.key);
        let exists = found.filter(|id| self.state.limits[*id].phase != Phase::Deleted);
        if let Some(refusal) = self.check_revision(exists, Some(command.revision)) {
            return refusal;
        }
        let Some(id) = exists.filter(|id| self.state.limits[*id].phase == Phase::AwaitingDrop) else {
            return LimitOutcome::NotFound;
        };
        let limit = &mut self.state.limits[id];
        limit.phase = Phase::Deleting;
        limit.advance(&mut self.state.nodes, now);
        self.changed(id)
    }

    /// The limit with this key, live or deleted, advanced to `now`.
    fn lookup(&mut self, now: UnixMs, namespace: NamespaceId, key: &LimitKey) -> Option<LimitId> {
        let id = self.resolve(namespace, key)?;
        self.advanced(namespace, id, now);
        Some(id)
    }

    fn check_revision(&self, exists: Option<LimitId>, expected: Option<u64>) -> Option<LimitOutcome> {
        let revision = exists.map_or(0, |id| self.state.limits[id].revision);
        (expected.unwrap_or(revision) != revision).then_some(LimitOutcome::RevisionDiffers { revision })
    }

    fn redefine(&mut self, id: LimitId, definition: &Definition) -> LimitOutcome {
        let limit = &self.state.limits[id];
        if !limit.is_of_kind(&definition.kind) {
            return LimitOutcome::KindDiffers;
        }
        let is_deleting = matches!(limit.phase, Phase::Deleting | Phase::AwaitingDrop);
        if !is_deleting && self.state.definition(id).as_ref() == Some(definition) {
            return self.changed(id);
        }
        let limit = &mut self.state.limits[id];
        limit.revision = limit.revision.saturating_add(1);
        limit.define(definition);
        self.state.texts[id.0 as usize] = Arc::new(Text::of(definition));
        self.changed(id)
    }

    /// Recreates a deleted limit. Its revision continues, so that an old `expected_revision` cannot match.
    fn recreate(&mut self, id: LimitId, definition: &Definition) -> LimitOutcome {
        let limit = &mut self.state.limits[id];
        let revision = limit.revision.saturating_add(1);
        *limit = Limit { revision, namespace: limit.namespace, ..Limit::of(definition) };
        self.state.texts[id.0 as usize] = Arc::new(Text::of(definition));
        self.changed(id)
    }

    fn changed(&mut self, id: LimitId) -> LimitOutcome {
        self.version = self.version.wrapping_add(1);
        let limit = &self.state.limits[id];
        LimitOutcome::Changed { limit: id, revision: limit.revision, status: limit.status() }
    }
}

impl Text {
    pub(crate) fn of(definition: &Definition) -> Text {
        Text {
            key: definition.key.clone(),
            unit: definition.unit.clone(),
            description: definition.description.clone(),
            credit: definition.kind.terms().cloned(),
        }
    }
}

impl Limit {
    pub(crate) fn of(definition: &Definition) -> Limit {
        let mut limit = Limit {
            revision: 1,
            phase: Phase::Active,
            is_rolling: definition.kind.is_rolling(),
            is_credit: definition.kind.is_credit(),
            ..Limit::default()
        };
        limit.define(definition);
        limit
    }

    /// Applies a definition. A capacity below what is reserved waits in the phase `Decreasing`.
    fn define(&mut self, definition: &Definition) {
        self.hold_seconds = definition.kind.hold_seconds();
        self.payers = None;
        self.calendar = match definition.kind {
            Kind::Calendar { period, utc_offset_minutes } => Some(Calendar { period, utc_offset_minutes }),
            Kind::Rolling { .. } | Kind::Concurrency { .. } | Kind::Credit(_) => None,
        };
        self.is_shared = definition.shared;
        self.is_shadow = !definition.enforce;
        self.keeps_debt = definition.overage == Overage::Debt;
        self.defined = definition.capacity;
        if definition.capacity >= self.capacity || definition.capacity >= self.reserved() {
            self.capacity = definition.capacity;
            self.phase = Phase::Active;
        } else {
            self.phase = Phase::Decreasing;
        }
    }
}
