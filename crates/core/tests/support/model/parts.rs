//! The limits named by the parts of a command.

use earmark_core::{InvalidParts, LimitId, LimitKey, LimitRef, NamespaceId, NamespaceName, Part};

use super::Model;

const PARTS_MAX: usize = 32;

/// The limit, if it exists or is not freed yet, else the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Named {
    Number(LimitId),
    Unknown(LimitKey),
}

pub enum Refused {
    Invalid(InvalidParts),
    Stale { part: usize },
}

impl Model {
    fn named(&self, namespace: NamespaceId, limit: &LimitRef) -> Named {
        match limit {
            LimitRef::Id(id) => Named::Number(*id),
            LimitRef::Key(key) => self.resolve(namespace, key).map_or(Named::Unknown(key.clone()), Named::Number),
            LimitRef::Foreign(limit) => {
                let name = LimitKey::in_namespace(&limit.namespace, &limit.key);
                let owner = self.namespaces.iter().position(|other| *other == limit.namespace);
                let owner = owner.map(|number| NamespaceId(u16::try_from(number).unwrap()));
                let found = owner.and_then(|owner| self.resolve(owner, &limit.key));
                let own = &self.namespaces[usize::from(namespace.0)];
                found.map_or_else(|| Named::Unknown(name.seen_from(own)), Named::Number)
            }
        }
    }

    pub fn check_parts(&self, namespace: NamespaceId, parts: &[Part], is_reserve: bool) -> Result<Vec<Named>, Refused> {
        let invalid = |why| Err(Refused::Invalid(why));
        if !self.knows(namespace) {
            return invalid(InvalidParts::UnknownNamespace);
        }
        if is_reserve && parts.is_empty() {
            return invalid(InvalidParts::Empty);
        }
        if parts.len() > PARTS_MAX {
            return invalid(InvalidParts::TooMany { found: parts.len() });
        }
        if is_reserve && let Some(part) = parts.iter().position(|p| p.amount == 0) {
            return invalid(InvalidParts::AmountZero { part });
        }
        let is_stale = |part: &Part| matches!(part.limit, LimitRef::Id(id) if self.limits.get(id).is_none());
        if let Some(part) = parts.iter().position(is_stale) {
            return Err(Refused::Stale { part });
        }
        let names: Vec<Named> = parts.iter().map(|p| self.named(namespace, &p.limit)).collect();
        match (0..names.len()).find(|&part| names[..part].contains(&names[part])) {
            Some(part) => invalid(InvalidParts::Duplicate { part }),
            None => Ok(names),
        }
    }

    /// Whether a requirement or actual names this key, as a lease of the namespace `own` names it.
    pub fn is_named(&self, name: &Named, own: NamespaceId, key: &LimitKey) -> bool {
        match name {
            Named::Number(id) => self.qualified(own, *id) == *key,
            Named::Unknown(unknown) => unknown == key,
        }
    }

    /// Whether the limit counts and never denies, by the definition in force.
    pub fn is_shadow(&self, id: LimitId) -> bool {
        self.limits.get(id).is_some_and(|limit| !limit.definition.enforce)
    }

    /// The name of a limit for a lease of the namespace `own`.
    pub fn qualified(&self, own: NamespaceId, id: LimitId) -> LimitKey {
        let limit = &self.limits[id];
        let key = &limit.definition.key;
        if limit.namespace == own {
            return key.clone();
        }
        LimitKey::in_namespace(&self.namespaces[usize::from(limit.namespace.0)], key)
    }
}

/// The order of names: those of the own namespace first, then by namespace.
pub fn order(key: &LimitKey) -> (Option<NamespaceName>, LimitKey) {
    key.foreign().map_or_else(|| (None, key.clone()), |(namespace, key)| (Some(namespace), key))
}
