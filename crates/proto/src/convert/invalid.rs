//! What is wrong with a message.

use std::fmt;
use std::ops::RangeInclusive;

use earmark_core::{DefinitionError, LeaseIdError, NameError};

/// What is wrong with a message: which field, what was found, what is allowed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Invalid(String);

impl Invalid {
    /// A field and what is wrong with it.
    #[must_use]
    pub fn new(field: &str, what: impl fmt::Display) -> Invalid {
        Invalid(format!("{field}: {what}"))
    }

    /// A name that is none.
    #[must_use]
    pub fn name(field: &str, error: &NameError) -> Invalid {
        let NameError { found, bytes_max, alphabet, .. } = error;
        Invalid::new(field, format_args!("found {found}, allowed are 1 to {bytes_max} bytes of {alphabet}"))
    }

    /// A field that was left out.
    #[must_use]
    pub fn missing(field: &str) -> Invalid {
        Invalid::new(field, "found nothing, it must be given")
    }

    /// The message as a whole, or an item of a list, is what is wrong. Where it is, the caller knows.
    pub(super) fn whole(what: impl fmt::Display) -> Invalid {
        Invalid::new("", what)
    }

    /// The same, seen from the message around it, in which it stands in `field`.
    #[must_use]
    pub fn inside(self, field: &str) -> Invalid {
        let dot = if self.0.starts_with(':') { "" } else { "." };
        Invalid(format!("{field}{dot}{}", self.0))
    }

    /// An integer within its bounds.
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

/// Every item of a list that may have so many.
///
/// # Errors
/// The first item that is wrong, else how many there are.
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
        .map(|(place, item)| convert(item).map_err(|error| error.inside(&format!("{field}[{place}]"))))
        .collect();
    let converted = converted?;
    if allowed.contains(&found) {
        return Ok(converted);
    }
    let (min, max) = (allowed.start(), allowed.end());
    Err(Invalid::new(field, format_args!("found {found} items, allowed are {min} to {max}")))
}
