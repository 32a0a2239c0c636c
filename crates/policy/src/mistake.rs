//! Mistakes in a policy document.

use std::fmt;

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
    pub(crate) fn new(line: usize, field: impl fmt::Display, what: impl fmt::Display) -> Mistake {
        Mistake { line, field: field.to_string(), what: what.to_string() }
    }
}

/// A text as it is quoted in a mistake: short, and without a text that looks like an API key.
pub(crate) fn quoted(text: &str) -> String {
    const CHARACTERS_MAX: usize = 60;
    let shown = earmark_core::redact_api_keys(text);
    match shown.char_indices().nth(CHARACTERS_MAX) {
        Some((end, _)) => format!("{:?}...", shown.get(..end).unwrap_or_default()),
        None => format!("{shown:?}"),
    }
}
