//! Why a call came to nothing.

use std::fmt;
use std::io;

/// Why a call has no answer, or a bad one.
///
/// Nothing here decides what to do about it: [`Failure::certainty`] says whether the request may have been carried
/// out, and [`Failure::is_transient`] whether asking again may help.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// There is no connection, so nothing was sent.
    #[error("{server} cannot be reached: {why}")]
    Unreachable {
        /// The server.
        server: String,
        /// The error message of the system.
        why: String,
        /// The kind of error: refused, timed out, a certificate that is not trusted (`InvalidData`).
        kind: io::ErrorKind,
    },
    /// Too much waits in this process already; nothing was sent.
    #[error("too much waits to be sent already, at most {waiting_max} may")]
    Busy {
        /// How much may wait.
        waiting_max: usize,
    },
    /// The connection broke, or no answer came in time.
    #[error("{server} gave no answer: {why}")]
    NoAnswer {
        /// The server.
        server: String,
        /// What happened.
        why: String,
    },
    /// The server says that it cannot, or does not know whether it has.
    #[error("{server} is unavailable: {message}")]
    Unavailable {
        /// The server.
        server: String,
        /// What it said.
        message: String,
    },
    /// Something answered that is no Earmark server, or one of another version.
    #[error("{server} gave an answer that this version does not understand: {what}")]
    Strange {
        /// The server.
        server: String,
        /// What is strange.
        what: String,
    },
    /// The request is malformed, and nothing was done.
    #[error("the request was refused: {message}")]
    Invalid {
        /// Which field, what was found, what is allowed.
        message: String,
    },
    /// The key was not accepted, and nothing was done.
    #[error("the caller was refused: {message}; check the key")]
    Unauthorized {
        /// What the server said.
        message: String,
    },
    /// The caller asks more often than it may, and nothing was done.
    #[error("{server} has heard too often from this caller: {message}")]
    TooMany {
        /// The server.
        server: String,
        /// What it said.
        message: String,
    },
    /// There is nothing of that name.
    #[error("{message}")]
    NotFound {
        /// What there is none of.
        message: String,
    },
    /// An attempt got no answer, and the next was refused: what the first came to is unknown.
    #[error("an attempt got no answer, and when it was made again: {refusal}")]
    RefusedLater {
        /// Why the last attempt was refused.
        refusal: Box<Failure>,
    },
    /// The deadline of the caller passed.
    #[error("no answer came before the deadline{}", Last(.last))]
    DeadlinePassed {
        /// What the last attempt came to, if there was time for one.
        last: Option<Box<Failure>>,
    },
}

/// The last attempt, behind a sentence about all of them.
struct Last<'a>(&'a Option<Box<Failure>>);

impl fmt::Display for Last<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(last) => write!(f, "; the last attempt: {last}"),
            None => Ok(()),
        }
    }
}

/// What is known of a request that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Certainty {
    /// It was not carried out.
    NothingHappened,
    /// It may have been carried out, or may still be.
    Unknown,
}

impl Certainty {
    /// What is known of several attempts together.
    pub(crate) const fn or(self, other: Certainty) -> Certainty {
        match self {
            Certainty::NothingHappened => other,
            Certainty::Unknown => Certainty::Unknown,
        }
    }
}

impl Failure {
    /// Whether the request may have been carried out.
    #[must_use]
    pub const fn certainty(&self) -> Certainty {
        match self {
            Failure::Unreachable { .. }
            | Failure::Busy { .. }
            | Failure::Invalid { .. }
            | Failure::Unauthorized { .. }
            | Failure::TooMany { .. }
            | Failure::NotFound { .. } => Certainty::NothingHappened,
            Failure::NoAnswer { .. }
            | Failure::Unavailable { .. }
            | Failure::Strange { .. }
            | Failure::RefusedLater { .. }
            | Failure::DeadlinePassed { .. } => Certainty::Unknown,
        }
    }

    /// Whether the same request may be answered when it is sent again.
    #[must_use]
    pub const fn is_transient(&self) -> bool {
        match self {
            Failure::Unreachable { .. }
            | Failure::Busy { .. }
            | Failure::TooMany { .. }
            | Failure::NoAnswer { .. }
            | Failure::Unavailable { .. }
            | Failure::Strange { .. } => true,
            Failure::Invalid { .. }
            | Failure::Unauthorized { .. }
            | Failure::NotFound { .. }
            | Failure::RefusedLater { .. }
            | Failure::DeadlinePassed { .. } => false,
        }
    }

    /// The last failure of several attempts, of which an earlier one may have been carried out.
    pub(crate) fn after(self, earlier: Certainty) -> Failure {
        match self {
            // There is none: where it was to be deleted, it is.
            Failure::NotFound { .. } => self,
            _ if earlier == Certainty::Unknown && self.certainty() == Certainty::NothingHappened => {
                Failure::RefusedLater { refusal: Box::new(self) }
            }
            _ => self,
        }
    }

    /// Whether another server may do better.
    pub(crate) const fn blames_server(&self) -> bool {
        match self {
            Failure::Unreachable { .. }
            | Failure::NoAnswer { .. }
            | Failure::Unavailable { .. }
            | Failure::Strange { .. } => true,
            // Every server counts for itself, but whoever goes from one to the next is no better for it.
            Failure::TooMany { .. }
            | Failure::Busy { .. }
            | Failure::Invalid { .. }
            | Failure::Unauthorized { .. }
            | Failure::NotFound { .. }
            | Failure::RefusedLater { .. }
            | Failure::DeadlinePassed { .. } => false,
        }
    }
}
