//! The limits named by the parts of a command.

use earmark_core::{InvalidParts, LimitId, LimitKey, LimitRef, NamespaceId, Part};

use super::Model;

const PARTS_MAX: usize = 32;

/// The limit, if it ever existed, else the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Named {
    Number(LimitId),
    NeverPut(LimitKey),
}

impl Model {
    fn named(&self, namespace: NamespaceId, limit: &LimitRef) -> Named {
        match limit {
            LimitRef::Id(id) => Named::Number(*id),
            LimitRef::Key(key) => self.resolve(namespace, key).map_or(Named::NeverPut(key.clone()), Named::Number),
        }
    }

    pub fn check_parts(
        &self,
        namespace: NamespaceId,
        parts: &[Part],
        is_reserve: bool,
    ) -> Result<Vec<Named>, InvalidParts> {
        if !self.knows(namespace) {
            return Err(InvalidParts::UnknownNamespace);
        }
        if is_reserve && parts.is_empty() {
            return Err(InvalidParts::Empty);
        }
        if parts.len() > PARTS_MAX {
            return Err(InvalidParts::TooMany { found: parts.len() });
        }
        if is_reserve && let Some(part) = parts.iter().position(|p| p.amount == 0) {
            return Err(InvalidParts::AmountZero { part });
        }
        let names: Vec<Named> = parts.iter().map(|p| self.named(namespace, &p.limit)).collect();
        match (0..names.len()).find(|&part| names[..part].contains(&names[part])) {
            Some(part) => Err(InvalidParts::Duplicate { part }),
            None => Ok(names),
        }
    }
}
