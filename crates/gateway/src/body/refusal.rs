//! The reasons to refuse a request's body.

use crate::json::Malformed;

/// Why a body is refused. All are 400; nothing was reserved or sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BodyRefusal {
    /// The body is not JSON that every parser reads alike.
    #[error("body: {0}")]
    Malformed(#[from] Malformed),
    /// A required field is missing.
    #[error("{field} is required")]
    Missing {
        /// The field.
        field: &'static str,
    },
    /// A field that the gateway reads has another type than it must have.
    #[error("{field}: found {found}, allowed is {allowed}")]
    Invalid {
        /// The field.
        field: String,
        /// The value's kind, or the value.
        found: String,
        /// The allowed values.
        allowed: &'static str,
    },
    /// The call would cost without a bound, or reach the state of other tenants.
    #[error(
        "{field} is not allowed through this gateway: it has no bound or refers to stored state; an operator may \
         allow {name:?} for this model"
    )]
    NotAllowed {
        /// The field.
        field: String,
        /// The name to allow it by.
        name: String,
    },
    /// The call has media, and the model has no maximum for them.
    #[error("{field}: this model takes no images or files; an operator may set its max_media_tokens")]
    Media {
        /// The field.
        field: String,
    },
    /// Neither the call nor the configuration bounds the output.
    #[error("{field} is required: this model has no configured maximum")]
    NoCap {
        /// The field that would bound it.
        field: &'static str,
    },
    /// The call's output exceeds what can be counted.
    #[error("{field}: found more than {max} output tokens in all, allowed are at most {max}", max = u32::MAX)]
    TooMuchOutput {
        /// The field that bounds it.
        field: &'static str,
    },
}

impl BodyRefusal {
    /// The field that is refused, for the `param` of OpenAI's errors.
    #[must_use]
    pub fn field(&self) -> Option<&str> {
        match self {
            BodyRefusal::Malformed(_) => None,
            BodyRefusal::Missing { field } | BodyRefusal::NoCap { field } | BodyRefusal::TooMuchOutput { field } => {
                Some(field)
            }
            BodyRefusal::Invalid { field, .. }
            | BodyRefusal::NotAllowed { field, .. }
            | BodyRefusal::Media { field } => Some(field),
        }
    }
}
