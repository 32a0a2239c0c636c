//! Templates: definitions whose key has placeholders, for limits that nobody defines one by one.

use super::definition::{Definition, DefinitionError, Kind};
use crate::id::pattern::{Segment, placeholders, segments};
use crate::id::{AccountName, LimitKey};

/// A valid definition whose key has placeholders: `user:{user}:rpm`. A key that matches it is a limit of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template(Definition);

/// Why a template is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TemplateError {
    /// The key has no placeholder.
    #[error("key: found \"{key}\", a template needs a placeholder such as {{user}}")]
    NoPlaceholder {
        /// The key.
        key: LimitKey,
    },
    /// The account has a placeholder that the key does not have.
    #[error("account: found {{{name}}}, allowed are the placeholders of the key")]
    UnknownPlaceholder {
        /// The name of the placeholder.
        name: String,
    },
    /// Another field is out of its bounds.
    #[error(transparent)]
    Definition(#[from] DefinitionError),
}

impl Template {
    /// A template of a definition whose key, and account for credit, were parsed by [`LimitKey::pattern`] and
    /// [`AccountName::pattern`].
    ///
    /// # Errors
    /// The first field that is not valid.
    pub fn new(definition: Definition) -> Result<Template, TemplateError> {
        let key = definition.key.as_str();
        if placeholders(key).next().is_none() {
            return Err(TemplateError::NoPlaceholder { key: definition.key });
        }
        if let Some(terms) = definition.kind.terms() {
            let is_unknown = |name: &&str| !placeholders(key).any(|known| known == *name);
            if let Some(name) = placeholders(terms.account.as_str()).find(is_unknown) {
                return Err(TemplateError::UnknownPlaceholder { name: name.to_owned() });
            }
        }
        definition.validate_values()?;
        Ok(Template(definition))
    }

    /// The key, with placeholders.
    #[must_use]
    pub const fn key(&self) -> &LimitKey {
        &self.0.key
    }

    /// The definition, with placeholders in its key and account.
    #[must_use]
    pub const fn definition(&self) -> &Definition {
        &self.0
    }

    /// The definition, with placeholders in its key and account.
    #[must_use]
    pub fn into_definition(self) -> Definition {
        self.0
    }

    /// Whether `key` is a limit of this template: as many segments, the same literals, and no empty placeholder.
    #[must_use]
    pub fn matches(&self, key: &LimitKey) -> bool {
        let found = key.as_str().split(':');
        let wanted = segments(self.0.key.as_str());
        let is_match = |(wanted, found): (Segment<'_>, &str)| match wanted {
            Segment::Literal(literal) => literal == found,
            Segment::Placeholder(_) => !found.is_empty(),
        };
        wanted.clone().count() == found.clone().count() && wanted.zip(found).all(is_match)
    }

    /// The definition of the limit `key`, which matches. `None` if its account would be longer than a name may be.
    #[must_use]
    pub fn derive(&self, key: &LimitKey) -> Option<Definition> {
        let mut kind = self.0.kind.clone();
        if let Kind::Credit(terms) = &mut kind {
            terms.account = self.account(key, &terms.account)?;
        }
        Some(Definition { key: key.clone(), kind, ..self.0.clone() })
    }

    /// The account of the limit `key`.
    fn account(&self, key: &LimitKey, account: &AccountName) -> Option<AccountName> {
        let mut name = String::with_capacity(AccountName::BYTES_MAX);
        for (position, segment) in segments(account.as_str()).enumerate() {
            if position > 0 {
                name.push(':');
            }
            name.push_str(match segment {
                Segment::Literal(literal) => literal,
                Segment::Placeholder(placeholder) => self.value(key, placeholder)?,
            });
        }
        AccountName::new(&name).ok()
    }

    /// The segment of `key` that a placeholder stands for.
    fn value<'a>(&self, key: &'a LimitKey, placeholder: &str) -> Option<&'a str> {
        let mut both = segments(self.0.key.as_str()).zip(key.as_str().split(':'));
        both.find(|(segment, _)| *segment == Segment::Placeholder(placeholder)).map(|(_, value)| value)
    }
}

#[cfg(test)]
mod tests;
