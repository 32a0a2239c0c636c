//! The limits named by the parts of a command.

use earmark_core::{InvalidParts, LimitId, LimitKey, LimitRef, NamespaceId, Part};

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

    /// Whether a requirement or actual names this key of the namespace.
    pub fn is_named(&self, name: &Named, namespace: NamespaceId, key: &LimitKey) -> bool {
        match name {
            Named::Number(id) => self.limits[*id].namespace == namespace && self.limits[*id].definition.key == *key,
            Named::Unknown(unknown) => unknown == key,
        }
    }
}
