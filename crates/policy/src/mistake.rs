//! Mistakes in a policy document.

use std::fmt;

pub(crate) use earmark_core::quoted;

/// A mistake in a policy document: where it is, what was found and what is allowed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {field}{}{what}", if field.is_empty() { "" } else { ": " })]
pub struct Mistake {
    /// The line of the document; the first is 1.
    pub line: usize,
    /// The path of the field, for example `rules[2].limits[0].key`. Empty if the text is not TOML.
    pub field: String,
    /// The mistake: what was found and what is allowed.
    pub what: String,
}

impl Mistake {
    /// A mistake in a field.
    #[must_use]
    pub fn new(line: usize, field: impl fmt::Display, what: impl fmt::Display) -> Mistake {
        Mistake { line, field: field.to_string(), what: what.to_string() }
    }
}
