//! Why a request has no answer.

use std::io;

/// Why a request has no answer, or one that cannot be used.
///
/// [`Failure::certainty`] tells whether the server may have executed the request, and [`Failure::is_transient`] whether a
/// retry may help.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// No connection could be made, so nothing was sent.
    #[error("{server} cannot be reached: {why}")]
    Unreachable {
        /// The server.
        server: String,
        /// The error message of the system.
        why: String,
        /// The kind of error: refused, timed out, a certificate that is not trusted (`InvalidData`).
        kind: io::ErrorKind,
    },
    /// The queue of the batcher is full; nothing was sent.
    #[error("{waiting_max} requests wait to be sent already; retry later, or raise BatchOptions::waiting_max")]
    Busy {
        /// The capacity of the queue.
        waiting_max: usize,
    },
    /// The connection broke, or no response came in time.
    #[error("{server} gave no answer: {why}")]
    NoAnswer {
        /// The server.
        server: String,
        /// The reason.
        why: String,
    },
    /// The server could not execute the request, or does not know whether it did.
    #[error("{server} is unavailable: {message}")]
    Unavailable {
        /// The server.
        server: String,
        /// Its message.
        message: String,
    },
    /// The response is not one of an Earmark server of this version.
    #[error("{server} gave an answer that this version does not understand: {what}")]
    Unexpected {
        /// The server.
        server: String,
        /// The part that cannot be understood.
        what: String,
    },
    /// The request is malformed, and was not executed.
    #[error("the request was refused: {message}")]
    Invalid {
        /// The field, what was found, and what is allowed.
        message: String,
    },
    /// The key was not accepted, and the request was not executed.
    #[error("the caller was refused: {message}; check the key")]
    Unauthorized {
        /// The message of the server.
        message: String,
    },
    /// The key was accepted, but may not do this. The request was not executed.
    #[error("the caller may not do this: {message}")]
    Forbidden {
        /// The message of the server.
        message: String,
    },
    /// The key exceeds its request rate, and the request was not executed.
    #[error("{server} limits the request rate of this key: {message}")]
    RateLimited {
        /// The server.
        server: String,
        /// Its message.
        message: String,
    },
    /// The named thing does not exist.
    #[error("{message}")]
    NotFound {
        /// Its kind.
        message: String,
    },
    /// One attempt got no answer and a later one was refused: the first may have been executed.
    #[error("one attempt got no answer and may have been executed; the next one was refused: {refusal}")]
    UnknownThenRefused {
        /// Why the last attempt was refused.
        refusal: Box<Failure>,
    },
    /// The deadline of the caller passed.
    #[error("no answer came before the deadline{}", last_attempt(.last.as_deref()))]
    DeadlinePassed {
        /// The failure of the last attempt, if there was one.
        last: Option<Box<Failure>>,
    },
}

/// The failure of the last attempt, as the end of a message.
fn last_attempt(last: Option<&Failure>) -> String {
    last.map(|last| format!("; the last attempt: {last}")).unwrap_or_default()
}

/// Whether a failed request may have been executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Certainty {
    /// It was not executed.
    NothingHappened,
    /// It may have been executed, or may still be.
    Unknown,
}

impl Certainty {
    /// The certainty of two attempts together.
    pub(crate) const fn or(self, other: Certainty) -> Certainty {
        match self {
            Certainty::NothingHappened => other,
            Certainty::Unknown => Certainty::Unknown,
        }
    }
}

impl Failure {
    /// Whether the server may have executed the request.
    pub const fn certainty(&self) -> Certainty {
        match self {
            Failure::Unreachable { .. }
            | Failure::Busy { .. }
            | Failure::Invalid { .. }
            | Failure::Unauthorized { .. }
            | Failure::Forbidden { .. }
            | Failure::RateLimited { .. }
            | Failure::NotFound { .. } => Certainty::NothingHappened,
            Failure::NoAnswer { .. }
            | Failure::Unavailable { .. }
            | Failure::Unexpected { .. }
            | Failure::UnknownThenRefused { .. }
            | Failure::DeadlinePassed { .. } => Certainty::Unknown,
        }
    }

    /// Whether the same request may succeed when it is sent again.
    pub const fn is_transient(&self) -> bool {
        match self {
            Failure::Unreachable { .. }
            | Failure::Busy { .. }
            | Failure::RateLimited { .. }
            | Failure::NoAnswer { .. }
            | Failure::Unavailable { .. }
            | Failure::Unexpected { .. } => true,
            Failure::Invalid { .. }
            | Failure::Unauthorized { .. }
            | Failure::Forbidden { .. }
            | Failure::NotFound { .. }
            | Failure::UnknownThenRefused { .. }
            | Failure::DeadlinePassed { .. } => false,
        }
    }

    /// The failure of several attempts; `earlier` tells whether one before the last may have been executed.
    pub(crate) fn after(self, earlier: Certainty) -> Failure {
        match self {
            // If an earlier attempt deleted it, that is the goal.
            Failure::NotFound { .. } => self,
            _ if earlier == Certainty::Unknown && self.certainty() == Certainty::NothingHappened => {
                Failure::UnknownThenRefused { refusal: Box::new(self) }
            }
            _ => self,
        }
    }

    /// Whether another server may answer.
    pub(crate) const fn blames_server(&self) -> bool {
        match self {
            Failure::Unreachable { .. }
            | Failure::NoAnswer { .. }
            | Failure::Unavailable { .. }
            | Failure::Unexpected { .. } => true,
            // Each server counts for itself, but going from one to the next would defeat the limit.
            Failure::RateLimited { .. }
            | Failure::Busy { .. }
            | Failure::Invalid { .. }
            | Failure::Unauthorized { .. }
            | Failure::Forbidden { .. }
            | Failure::NotFound { .. }
            | Failure::UnknownThenRefused { .. }
            | Failure::DeadlinePassed { .. } => false,
        }
    }
}
