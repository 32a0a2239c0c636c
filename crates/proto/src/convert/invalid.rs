//! Validation errors.

use std::fmt;
use std::ops::RangeInclusive;

use earmark_core::{
    DefinitionError, LOOKS_LIKE_API_KEY, LeaseIdError, NameError, TemplateError, contains_api_key, redact_api_keys,
};

/// A validation error: the field, what was found, what is allowed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Invalid(String);

impl Invalid {
    /// An error about one field.
    #[must_use]
    pub fn new(field: &str, what: impl fmt::Display) -> Invalid {
        Invalid(format!("{field}: {what}"))
    }

    /// An invalid name.
    #[must_use]
    pub fn name(field: &str, error: &NameError) -> Invalid {
        Invalid::new(field, &error.mistake)
    }

    /// Refuses a free text that contains an API key.
    ///
    /// # Errors
    /// The text contains one.
    pub fn unless_free_of_keys(field: &str, text: &str) -> Result<(), Invalid> {
        if contains_api_key(text) { Err(Invalid::new(field, LOOKS_LIKE_API_KEY)) } else { Ok(()) }
    }

    /// A missing field.
    #[must_use]
    pub fn missing(field: &str) -> Invalid {
        Invalid(format!("{field} is required"))
    }

    /// A field that is missing from a limit of this kind.
    pub(super) fn required_for(field: &str, kind: &str) -> Invalid {
        Invalid(format!("{field} is required for a {kind} limit"))
    }

    /// An error about the whole message or list item; the caller prepends the path.
    pub(super) fn whole(what: impl fmt::Display) -> Invalid {
        Invalid::new("", what)
    }

    /// Prepends the name of the enclosing field.
    #[must_use]
    pub fn inside(self, field: &str) -> Invalid {
        let dot = if self.0.starts_with(':') { "" } else { "." };
        Invalid(format!("{field}{dot}{}", self.0))
    }

    /// Checks that an integer is in range.
    ///
    /// # Errors
    /// When it is not.
    pub fn unless_within<T: PartialOrd + fmt::Display>(
        field: &str,
        found: T,
        allowed: &RangeInclusive<T>,
    ) -> Result<T, Invalid> {
        if allowed.contains(&found) {
            return Ok(found);
        }
        let (min, max) = (allowed.start(), allowed.end());
        Err(Invalid::new(field, format_args!("found {found}, allowed are integers from {min} to {max}")))
    }
}

/// The message may quote a key that was sent in a wrong field.
impl From<Invalid> for tonic::Status {
    fn from(error: Invalid) -> tonic::Status {
        tonic::Status::invalid_argument(redact_api_keys(&error.0))
    }
}

impl From<LeaseIdError> for Invalid {
    fn from(error: LeaseIdError) -> Invalid {
        Invalid(error.to_string())
    }
}

impl From<DefinitionError> for Invalid {
    fn from(error: DefinitionError) -> Invalid {
        Invalid(error.to_string())
    }
}

impl From<TemplateError> for Invalid {
    fn from(error: TemplateError) -> Invalid {
        Invalid(error.to_string())
    }
}

/// Converts every item of a list and checks its length.
///
/// # Errors
/// The first invalid item, else the length.
pub fn each<M, T>(
    field: &str,
    items: Vec<M>,
    allowed: &RangeInclusive<usize>,
    convert: impl Fn(M) -> Result<T, Invalid>,
) -> Result<Vec<T>, Invalid> {
    let found = items.len();
    let converted: Result<Vec<T>, Invalid> = items
        .into_iter()
        .take(*allowed.end())
        .enumerate()
        .map(|(index, item)| convert(item).map_err(|error| error.inside(&format!("{field}[{index}]"))))
        .collect();
    let converted = converted?;
    if allowed.contains(&found) {
        return Ok(converted);
    }
    let (min, max) = (allowed.start(), allowed.end());
    Err(Invalid::new(field, format_args!("found {found} items, allowed are {min} to {max}")))
}
