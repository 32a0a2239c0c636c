//! Limits of the model, and the commands that change them.

use earmark_core::{
    Definition, DeleteLimit, DropLimit, LimitId, LimitOutcome, LimitRef, LimitStatus, NamespaceId, NamespaceName,
    NamespaceOutcome, Part, Pause, PauseLimit, PauseOutcome, PutLimit, QuotaKind, UnixMs,
};

use super::Model;
use super::parts::Named;

#[derive(Clone, Debug)]
pub struct Limit {
    pub namespace: NamespaceId,
    /// The last definition, with the target capacity.
    pub definition: Definition,
    /// The capacity in force.
    pub capacity: u64,
    pub standing: LimitPhase,
    pub revision: u64,
    pub debt: u128,
    pub denials_in_a_row: u32,
    pub pause: Option<Pause>,
    /// The template that it is derived from.
    pub derived: Option<Derived>,
    /// The second of its last decision.
    pub decided: u64,
}

/// The number of a template, and the last change of the namespace's templates that the limit has seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Derived {
    pub template: u64,
    pub epoch: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitPhase {
    Active,
    Decreasing,
    Deleting,
    /// Deleted, but still enforced elsewhere.
    Leaving,
    Deleted,
}

impl Model {
    pub fn open_namespace(&mut self, name: &NamespaceName) -> NamespaceOutcome {
        if let Some(place) = self.namespaces.iter().position(|n| n == name) {
            return NamespaceOutcome::Exists(NamespaceId(u16::try_from(place).unwrap()));
        }
        let Ok(number) = u16::try_from(self.namespaces.len()) else { return NamespaceOutcome::TooMany };
        self.namespaces.push(name.clone());
        NamespaceOutcome::Opened(NamespaceId(number))
    }

    pub fn knows(&self, namespace: NamespaceId) -> bool {
        usize::from(namespace.0) < self.namespaces.len()
    }

    pub fn put(&mut self, put: PutLimit<'_>) -> LimitOutcome {
        if let Err(error) = put.definition.validate() {
            return LimitOutcome::Invalid(error);
        }
        if !self.knows(put.namespace) {
            return LimitOutcome::UnknownNamespace;
        }
        let found = self.resolve(put.namespace, &put.definition.key);
        let revision = found.map_or(0, |id| self.limits[id].visible_revision());
        if put.expected_revision.is_some_and(|expected| expected != revision) {
            return LimitOutcome::RevisionDiffers { revision };
        }
        if let Some(id) = found.filter(|id| self.limits[*id].derived.is_some()) {
            return self.override_derived(id, put.definition);
        }
        let id = match found {
            Some(id) => {
                let reserved = self.reserved(self.time(), id);
                let limit = &mut self.limits[id];
                let exists = limit.standing != LimitPhase::Deleted;
                if exists && !limit.definition.kind.is_same_kind(&put.definition.kind) {
                    return LimitOutcome::KindDiffers;
                }
                if limit.redefine(put.definition, reserved) {
                    self.revise(id);
                }
                id
            }
            None if self.limits.iter().count() >= self.config.limits_max as usize => {
                self.derived_now = 64;
                return LimitOutcome::TooMany;
            }
            None if !self.has_room(put.namespace, QuotaKind::Limits) => {
                return LimitOutcome::QuotaExceeded(QuotaKind::Limits);
            }
            None => {
                let id = self.limits.add(Limit::new(put.namespace, put.definition));
                self.revise(id);
                id
            }
        };
        self.changed(id)
    }

    pub fn delete(&mut self, delete: DeleteLimit<'_>) -> LimitOutcome {
        if !self.knows(delete.namespace) {
            return LimitOutcome::UnknownNamespace;
        }
        let found = self.resolve(delete.namespace, delete.key);
        let revision = found.map_or(0, |id| self.limits[id].visible_revision());
        if delete.expected_revision.is_some_and(|expected| expected != revision) {
            return LimitOutcome::RevisionDiffers { revision };
        }
        let is_there = |limit: &Limit| limit.standing != LimitPhase::Deleted && limit.derived.is_none();
        let Some(id) = found.filter(|id| is_there(&self.limits[*id])) else {
            return found.map_or(LimitOutcome::NotFound, |id| self.clear_derived(id));
        };
        if !self.external.limits && self.follow_instead(id) {
            self.revision += 1;
            self.finish_decreases();
            return LimitOutcome::Changed { limit: id, revision: self.revision, status: LimitStatus::Deleted };
        }
        if !matches!(self.limits[id].standing, LimitPhase::Deleting | LimitPhase::Leaving) {
            self.revise(id);
        }
        self.look_at(id);
        let limit = &mut self.limits[id];
        let is_kept = self.external.limits && limit.definition.kind.terms().is_none();
        limit.standing = if is_kept { LimitPhase::Leaving } else { LimitPhase::Deleting };
        self.changed(id)
    }

    /// Deletes a derived limit that holds nothing: its debt ends, and it is evicted.
    fn clear_derived(&mut self, id: LimitId) -> LimitOutcome {
        let is_credit = self.limits[id].definition.kind.terms().is_some();
        let is_derived = self.limits[id].derived.is_some() && !is_credit && !self.external.limits;
        if !is_derived || self.reserved(self.time(), id) > 0 {
            return LimitOutcome::NotFound;
        }
        (self.limits[id].debt, self.limits[id].decided) = (0, 0);
        self.cleared.push(id);
        self.revision += 1;
        self.finish_decreases();
        LimitOutcome::Changed { limit: id, revision: self.revision, status: LimitStatus::Deleted }
    }

    pub fn pause(&mut self, pause: PauseLimit<'_>) -> PauseOutcome {
        if pause.for_ms > 3_600_000 {
            return PauseOutcome::TooLong { found: pause.for_ms };
        }
        if pause.reason.len() > 256 {
            return PauseOutcome::ReasonTooLong { found: pause.reason.len() };
        }
        let (now, namespace) = (self.time(), pause.namespace);
        let part = Part { limit: LimitRef::Key(pause.key.clone()), amount: 1 };
        let name = self.resolve(namespace, pause.key);
        let mut names = [name.map_or_else(|| Named::Unknown(pause.key.clone()), Named::Number)];
        let following = self.follow_templates(namespace, &mut names, &[part]);
        let count = following.derived.len();
        let outcome = match names[0] {
            Named::Number(id) => self.pause_limit(id, now, &pause, count > 0),
            Named::Unknown(_) => PauseOutcome::NotFound,
        };
        let is_paused = matches!(outcome, PauseOutcome::Paused { .. });
        if is_paused {
            self.derived_now = count;
        }
        self.take_back(following, is_paused, |_| is_paused);
        outcome
    }

    fn pause_limit(&mut self, id: LimitId, now: UnixMs, pause: &PauseLimit<'_>, is_derived: bool) -> PauseOutcome {
        let until = now.plus_ms(pause.for_ms);
        let found = self.limits.get(id).filter(|limit| limit.standing != LimitPhase::Deleted);
        let Some(limit) = found.filter(|limit| limit.namespace == pause.namespace) else {
            return PauseOutcome::NotFound;
        };
        let before = limit.pause_at(now).map(|pause| pause.until);
        let is_full = self.limits.iter().count() > self.config.limits_max as usize
            || self.used(now, pause.namespace, QuotaKind::DerivedLimits)
                > self.quota(pause.namespace, QuotaKind::DerivedLimits);
        match before {
            Some(before) if pause.only_lengthen && before >= until => PauseOutcome::Paused { until: before },
            _ if pause.for_ms == 0 => {
                self.limits[id].pause = None;
                PauseOutcome::Resumed
            }
            _ if is_derived && is_full => PauseOutcome::QuotaExceeded(QuotaKind::DerivedLimits),
            _ => {
                self.limits[id].pause = Some(Pause { until, reason: pause.reason.into() });
                PauseOutcome::Paused { until }
            }
        }
    }

    pub fn drop_limit(&mut self, gone: DropLimit<'_>) -> LimitOutcome {
        if !self.knows(gone.namespace) {
            return LimitOutcome::UnknownNamespace;
        }
        let found = self.resolve(gone.namespace, gone.key);
        let revision = found.map_or(0, |id| self.limits[id].visible_revision());
        if gone.revision != revision {
            return LimitOutcome::RevisionDiffers { revision };
        }
        let Some(id) = found.filter(|id| self.limits[*id].standing == LimitPhase::Leaving) else {
            return LimitOutcome::NotFound;
        };
        self.limits[id].standing = LimitPhase::Deleting;
        self.look_at(id);
        self.changed(id)
    }

    fn override_derived(&mut self, id: LimitId, definition: &Definition) -> LimitOutcome {
        let is_empty = self.reserved(self.time(), id) == 0 && self.limits[id].debt == 0;
        let is_same_kind = self.limits[id].definition.kind.is_same_kind(&definition.kind);
        if !is_same_kind && !is_empty {
            return LimitOutcome::KindDiffers;
        }
        let namespace = self.limits[id].namespace;
        if !self.has_room(namespace, QuotaKind::Limits) {
            return LimitOutcome::QuotaExceeded(QuotaKind::Limits);
        }
        if is_same_kind {
            self.limits[id].derived = None;
            let reserved = self.reserved(self.time(), id);
            self.limits[id].define(definition, reserved);
        } else {
            let pause = self.limits[id].pause.clone();
            self.limits[id] = Limit { pause, ..Limit::new(namespace, definition) };
        }
        self.revise(id);
        self.changed(id)
    }

    /// Gives a limit the next revision of the Book.
    fn revise(&mut self, id: LimitId) {
        self.revision += 1;
        self.limits[id].revision = self.revision;
    }

    fn changed(&mut self, id: LimitId) -> LimitOutcome {
        self.finish_decreases();
        let limit = &self.limits[id];
        LimitOutcome::Changed { limit: id, revision: limit.revision, status: limit.status() }
    }
}

impl Limit {
    pub fn new(namespace: NamespaceId, definition: &Definition) -> Limit {
        Limit {
            namespace,
            definition: definition.clone(),
            capacity: definition.capacity,
            standing: LimitPhase::Active,
            revision: 0,
            debt: 0,
            denials_in_a_row: 0,
            derived: None,
            decided: 0,
            pause: None,
        }
    }

    /// Whether it changed.
    fn redefine(&mut self, definition: &Definition, reserved: u64) -> bool {
        match self.standing {
            LimitPhase::Deleted => {
                *self = Limit { pause: self.pause.take(), ..Limit::new(self.namespace, definition) };
            }
            LimitPhase::Active | LimitPhase::Decreasing if self.definition == *definition => return false,
            LimitPhase::Active | LimitPhase::Decreasing | LimitPhase::Deleting | LimitPhase::Leaving => {
                self.define(definition, reserved);
            }
        }
        true
    }

    /// Applies a definition while this much is reserved.
    pub fn define(&mut self, definition: &Definition, reserved: u64) {
        // The amount that a shadow limit let in is in force when it is enforced.
        self.capacity = self.capacity.max(reserved);
        self.definition = definition.clone();
        self.standing = LimitPhase::Decreasing;
        if definition.capacity >= self.capacity || !definition.enforce {
            self.capacity = definition.capacity;
            self.standing = LimitPhase::Active;
        }
    }

    /// Its pause, while it lasts.
    pub fn pause_at(&self, now: UnixMs) -> Option<&Pause> {
        self.pause.as_ref().filter(|pause| pause.until > now)
    }

    pub fn finish_decrease(&mut self, reserved: u64) {
        match self.standing {
            LimitPhase::Decreasing if reserved <= self.definition.capacity => {
                self.capacity = self.definition.capacity;
                self.standing = LimitPhase::Active;
            }
            LimitPhase::Deleting if reserved == 0 => self.standing = LimitPhase::Deleted,
            LimitPhase::Active
            | LimitPhase::Decreasing
            | LimitPhase::Deleting
            | LimitPhase::Leaving
            | LimitPhase::Deleted => {}
        }
    }

    pub fn status(&self) -> LimitStatus {
        match self.standing {
            LimitPhase::Active => LimitStatus::Active,
            LimitPhase::Decreasing => LimitStatus::Decreasing { to: self.definition.capacity },
            LimitPhase::Deleting | LimitPhase::Leaving => LimitStatus::Decreasing { to: 0 },
            LimitPhase::Deleted => LimitStatus::Deleted,
        }
    }

    /// The revision that callers see.
    fn visible_revision(&self) -> u64 {
        if self.standing == LimitPhase::Deleted || self.derived.is_some() { 0 } else { self.revision }
    }
}
