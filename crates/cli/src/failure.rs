//! How a command ends, and how it says so.

use std::io;
use std::process::ExitCode;

use earmark_admission::LimitsFileError;
use earmark_core::LeaseId;
use earmark_node::NodeError;
use earmark_server::ServerError;
use serde::Serialize;

/// How a command ended that has said all there is to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Done {
    /// All is well.
    Ok,
    /// It failed, and has shown why.
    Failed,
    /// The reserve was denied: an answer, not a failure.
    Denied,
}

impl From<Done> for ExitCode {
    fn from(done: Done) -> ExitCode {
        ExitCode::from(match done {
            Done::Ok => 0,
            Done::Failed => 1,
            Done::Denied => 3,
        })
    }
}

/// Why a command did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The command line, or a file it names, asks for something that cannot be.
    #[error("{0}")]
    Usage(String),
    /// The limits file cannot be used. It is left as it is.
    #[error("--limits: {0}")]
    LimitsFile(#[from] LimitsFileError),
    /// Nobody answers at the address of the server.
    #[error("cannot reach {url}: {why}{hint}")]
    Unreachable {
        /// The server.
        url: String,
        /// The error message of the system.
        why: String,
        /// What to do about it, where that is known.
        hint: String,
    },
    /// The connection broke, or no answer came in time.
    #[error("{url} gave no answer: {what}")]
    NoAnswer {
        /// The server.
        url: String,
        /// What happened.
        what: String,
    },
    /// The server answered with a failure.
    #[error("the server refused ({status} {error}): {message}")]
    Refused {
        /// The HTTP status.
        status: u16,
        /// The word for machines.
        error: String,
        /// The sentence for people.
        message: String,
    },
    /// Something answered that is no Earmark server, or one of another version.
    #[error("{url} gave an answer that this version does not understand: {what}")]
    StrangeAnswer {
        /// The server.
        url: String,
        /// What is strange.
        what: String,
    },
    /// Whether the lease was reserved or completed is not known.
    #[error("{source}; the outcome is unknown, to repeat it: --lease {lease}")]
    OutcomeUnknown {
        /// What to repeat it with.
        lease: LeaseId,
        /// Why it is not known.
        source: Box<Failure>,
    },
    /// The server could not start, or broke.
    #[error("{0}")]
    Server(#[from] ServerError),
    /// The node could not start.
    #[error("{0}")]
    Node(#[from] NodeError),
    /// The node had to stop: it can no longer keep what it acknowledges.
    #[error("this node has stopped: {0}")]
    NodeStopped(String),
    /// The benchmark could not run.
    #[error("bench: {0}")]
    Bench(String),
    /// The operating system refused something that everything needs.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

/// A failure for programs, in the words of the server's answers.
#[derive(Debug, Serialize)]
pub(crate) struct FailureDocument<'a> {
    error: &'a str,
    message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    lease_id: Option<String>,
}

impl Failure {
    /// What the process ends with: 2 if another command line would help, else 1.
    pub(crate) fn exit_code(&self) -> ExitCode {
        ExitCode::from(match self {
            Failure::Usage(_)
            | Failure::LimitsFile(_)
            | Failure::Server(ServerError::NotLoopback { .. } | ServerError::Plaintext { .. })
            | Failure::Node(NodeError::Fault(_) | NodeError::Invalid(_)) => 2,
            Failure::Unreachable { .. }
            | Failure::NoAnswer { .. }
            | Failure::Refused { .. }
            | Failure::StrangeAnswer { .. }
            | Failure::OutcomeUnknown { .. }
            | Failure::Server(_)
            | Failure::Node(_)
            | Failure::NodeStopped(_)
            | Failure::Bench(_)
            | Failure::System { .. } => 1,
        })
    }

    /// The failure of a request that names a lease. Where the server may have carried it out, the lease is
    /// what the request can be repeated with.
    pub(crate) fn of_lease(self, lease: LeaseId) -> Failure {
        let is_unknown = match &self {
            Failure::NoAnswer { .. } | Failure::StrangeAnswer { .. } => true,
            Failure::Refused { status, .. } => *status >= 500,
            _ => false,
        };
        if is_unknown { Failure::OutcomeUnknown { lease, source: Box::new(self) } } else { self }
    }

    /// The failure for programs.
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
            Failure::StrangeAnswer { .. } => "strange_answer",
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
            message.ends_with("the outcome is unknown, to repeat it: --lease 00000000000000000000000001")
        );
        assert!(matches!(refused(400).of_lease(lease), Failure::Refused { status: 400, .. }));
    }

    #[test]
    fn a_failure_for_programs_has_the_word_of_the_server() {
        let json = |failure: Failure| serde_json::to_string(&failure.document()).unwrap();
        assert_eq!(json(refused(400)), r#"{"error":"overloaded","message":"too much"}"#);
        let unknown = json(refused(503).of_lease(LeaseId::from_u128(1)));
        assert!(unknown.starts_with(r#"{"error":"overloaded","message":""#), "{unknown}");
        assert!(unknown.ends_with(r#""lease_id":"00000000000000000000000001"}"#), "{unknown}");
    }
}
