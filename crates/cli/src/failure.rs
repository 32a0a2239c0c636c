//! Exit codes and error messages of commands.

use std::io;
use std::process::ExitCode;

use earmark_admission::LimitsFileError;
use earmark_core::LeaseId;
use earmark_node::NodeError;
use earmark_server::ServerError;
use serde::Serialize;

/// The result of a command that has already printed its output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Done {
    Ok,
    /// Failure; the command has printed the reason.
    Failed,
    Denied,
    /// The server does not know the lease, so nothing was settled.
    UnknownLease,
    /// The files and the server differ.
    Different,
}

impl From<Done> for ExitCode {
    fn from(done: Done) -> ExitCode {
        ExitCode::from(match done {
            Done::Ok => 0,
            Done::Failed => 1,
            Done::Different => 2,
            Done::Denied => 3,
            Done::UnknownLease => 4,
        })
    }
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The command line, or a file that it names, is invalid.
    #[error("{0}")]
    Usage(String),
    /// The limits file is invalid. The file is not changed.
    #[error("--limits: {0}")]
    LimitsFile(#[from] LimitsFileError),
    /// No TCP connection to the server.
    #[error("cannot reach {url}: {why}{hint}")]
    Unreachable {
        url: String,
        why: String,
        /// Advice for the user; may be empty.
        hint: String,
    },
    /// The connection broke, or the answer timed out.
    #[error("no answer from {url}: {what}")]
    NoAnswer { url: String, what: String },
    /// The server answered with a failure.
    #[error("the server refused ({status} {error}): {message}{}", advice(*.status))]
    Refused { status: u16, error: String, message: String },
    /// The answer is not one of an Earmark server of this version.
    #[error("unexpected answer from {url}: {what}")]
    UnexpectedAnswer { url: String, what: String },
    /// The server has something else than expected, or the files do.
    #[error("{0}")]
    Conflict(String),
    /// The server may or may not have applied the request.
    #[error("{source}; the outcome is unknown, repeat the command with --lease {lease}")]
    OutcomeUnknown { lease: LeaseId, source: Box<Failure> },
    /// The server could not start, or failed.
    #[error("{0}")]
    Server(#[from] ServerError),
    #[error("{0}")]
    Node(#[from] NodeError),
    /// The node stopped because it can no longer write to its disk.
    #[error("node stopped: {0}")]
    NodeStopped(String),
    #[error("bench: {0}")]
    Bench(String),
    /// A system call failed.
    #[error("{what}: {source}")]
    System { what: &'static str, source: io::Error },
}

/// Advice after the message of a refusal.
fn advice(status: u16) -> &'static str {
    match status {
        401 => "; put a key or session token in EARMARK_KEY, or in the file that EARMARK_KEY_FILE names",
        _ => "",
    }
}

/// A failure as JSON, with the same fields as an error answer of the server.
#[derive(Debug, Serialize)]
pub(crate) struct FailureDocument<'a> {
    error: &'a str,
    message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    lease_id: Option<String>,
}

impl Failure {
    /// The exit code: 2 if the command line must be changed, else 1.
    pub(crate) fn exit_code(&self) -> ExitCode {
        ExitCode::from(match self {
            Failure::Usage(_)
            | Failure::LimitsFile(_)
            | Failure::Server(ServerError::NotLoopback { .. } | ServerError::Plaintext { .. })
            | Failure::Node(NodeError::Fault(_) | NodeError::Invalid(_)) => 2,
            Failure::Unreachable { .. }
            | Failure::NoAnswer { .. }
            | Failure::Refused { .. }
            | Failure::Conflict(_)
            | Failure::UnexpectedAnswer { .. }
            | Failure::OutcomeUnknown { .. }
            | Failure::Server(_)
            | Failure::Node(_)
            | Failure::NodeStopped(_)
            | Failure::Bench(_)
            | Failure::System { .. } => 1,
        })
    }

    /// Adds the lease to a failure after which the outcome is unknown, so that the user can repeat the request.
    pub(crate) fn of_lease(self, lease: LeaseId) -> Failure {
        let is_unknown = match &self {
            Failure::NoAnswer { .. } | Failure::UnexpectedAnswer { .. } => true,
            Failure::Refused { status, .. } => *status >= 500,
            _ => false,
        };
        if is_unknown { Failure::OutcomeUnknown { lease, source: Box::new(self) } } else { self }
    }

    pub(crate) fn document(&self) -> FailureDocument<'_> {
        let lease_id = match self {
            Failure::OutcomeUnknown { lease, .. } => Some(lease.to_string()),
            _ => None,
        };
        let message = match self {
            Failure::Refused { message, .. } => message.clone(),
            other => other.to_string(),
        };
        FailureDocument { error: self.word(), message, lease_id }
    }

    fn word(&self) -> &str {
        match self {
            Failure::Usage(_) | Failure::LimitsFile(_) => "usage",
            Failure::Unreachable { .. } => "unreachable",
            Failure::NoAnswer { .. } => "no_answer",
            Failure::Refused { error, .. } => error,
            Failure::Conflict(_) => "conflict",
            Failure::UnexpectedAnswer { .. } => "unexpected_answer",
            Failure::OutcomeUnknown { source, .. } => source.word(),
            Failure::Server(_)
            | Failure::Node(_)
            | Failure::NodeStopped(_)
            | Failure::Bench(_)
            | Failure::System { .. } => "failed",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(status: u16) -> Failure {
        Failure::Refused { status, error: "overloaded".into(), message: "too much".into() }
    }

    #[test]
    fn the_lease_is_named_only_where_the_outcome_is_unknown() {
        let lease = LeaseId::from_u128(1);
        let message = refused(503).of_lease(lease).to_string();
        assert!(
            message.ends_with("the outcome is unknown, repeat the command with --lease 00000000000000000000000001")
        );
        assert!(matches!(refused(400).of_lease(lease), Failure::Refused { status: 400, .. }));
    }

    #[test]
    fn a_json_failure_has_the_error_code_of_the_server() {
        let json = |failure: Failure| serde_json::to_string(&failure.document()).unwrap();
        assert_eq!(json(refused(400)), r#"{"error":"overloaded","message":"too much"}"#);
        let unknown = json(refused(503).of_lease(LeaseId::from_u128(1)));
        assert!(unknown.starts_with(r#"{"error":"overloaded","message":""#), "{unknown}");
        assert!(unknown.ends_with(r#""lease_id":"00000000000000000000000001"}"#), "{unknown}");
    }
}
