//! Limits of the model, and the commands that change them.

use earmark_core::{
    Definition, DeleteLimit, DropLimit, LimitId, LimitOutcome, LimitStatus, NamespaceId, NamespaceName,
    NamespaceOutcome, PutLimit, QuotaKind,
};

use super::Model;

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
        if self.external.limits
            && let Err(error) = put.definition.validate_for_ledger()
        {
            return LimitOutcome::Invalid(error);
        }
        if !self.knows(put.namespace) {
            return LimitOutcome::UnknownNamespace;
        }
        let found = self.resolve(put.namespace, &put.definition.key);
        let revision = found.map_or(0, |id| self.limits[id.0 as usize].visible_revision());
        if put.expected_revision.is_some_and(|expected| expected != revision) {
            return LimitOutcome::RevisionDiffers { revision };
        }
        let id = match found {
            Some(id) => {
                let limit = &mut self.limits[id.0 as usize];
                let exists = limit.standing != LimitPhase::Deleted;
                if exists && !limit.definition.kind.is_same_kind(&put.definition.kind) {
                    return LimitOutcome::KindDiffers;
                }
                limit.redefine(put.definition);
                id
            }
            None if !self.has_room(put.namespace, QuotaKind::Limits) => {
                return LimitOutcome::QuotaExceeded(QuotaKind::Limits);
            }
            None => {
                self.limits.push(Limit::new(put.namespace, put.definition));
                LimitId(u32::try_from(self.limits.len() - 1).unwrap())
            }
        };
        self.changed(id)
    }

    pub fn delete(&mut self, delete: DeleteLimit<'_>) -> LimitOutcome {
        if !self.knows(delete.namespace) {
            return LimitOutcome::UnknownNamespace;
        }
        let found = self.resolve(delete.namespace, delete.key);
        let revision = found.map_or(0, |id| self.limits[id.0 as usize].visible_revision());
        if delete.expected_revision.is_some_and(|expected| expected != revision) {
            return LimitOutcome::RevisionDiffers { revision };
        }
        let Some(id) = found.filter(|id| self.limits[id.0 as usize].standing != LimitPhase::Deleted) else {
            return LimitOutcome::NotFound;
        };
        let limit = &mut self.limits[id.0 as usize];
        if !matches!(limit.standing, LimitPhase::Deleting | LimitPhase::Leaving) {
            limit.revision += 1;
        }
        let is_kept = self.external.limits && limit.definition.kind.terms().is_none();
        limit.standing = if is_kept { LimitPhase::Leaving } else { LimitPhase::Deleting };
        self.changed(id)
    }

    pub fn drop_limit(&mut self, gone: DropLimit<'_>) -> LimitOutcome {
        if !self.knows(gone.namespace) {
            return LimitOutcome::UnknownNamespace;
        }
        let found = self.resolve(gone.namespace, gone.key);
        let revision = found.map_or(0, |id| self.limits[id.0 as usize].visible_revision());
        if gone.revision != revision {
            return LimitOutcome::RevisionDiffers { revision };
        }
        let Some(id) = found.filter(|id| self.limits[id.0 as usize].standing == LimitPhase::Leaving) else {
            return LimitOutcome::NotFound;
        };
        self.limits[id.0 as usize].standing = LimitPhase::Deleting;
        self.changed(id)
    }

    fn changed(&mut self, id: LimitId) -> LimitOutcome {
        self.finish_decreases();
        let limit = &self.limits[id.0 as usize];
        LimitOutcome::Changed { limit: id, revision: limit.revision, status: limit.status() }
    }
}

impl Limit {
    fn new(namespace: NamespaceId, definition: &Definition) -> Limit {
        Limit {
            namespace,
            definition: definition.clone(),
            capacity: definition.capacity,
            standing: LimitPhase::Active,
            revision: 1,
            debt: 0,
            denials_in_a_row: 0,
        }
    }

    fn redefine(&mut self, definition: &Definition) {
        match self.standing {
            LimitPhase::Deleted => {
                let revision = self.revision + 1;
                *self = Limit { revision, ..Limit::new(self.namespace, definition) };
            }
            LimitPhase::Active | LimitPhase::Decreasing if self.definition == *definition => {}
            LimitPhase::Active | LimitPhase::Decreasing | LimitPhase::Deleting | LimitPhase::Leaving => {
                self.revision += 1;
                self.definition = definition.clone();
                self.standing = LimitPhase::Decreasing;
                if definition.capacity >= self.capacity {
                    self.capacity = definition.capacity;
                    self.standing = LimitPhase::Active;
                }
            }
        }
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
        if self.standing == LimitPhase::Deleted { 0 } else { self.revision }
    }
}
