//! What a Book is asked, and what it answered, in the words of those who ask.

use earmark_core::{
    Book, Command, Complete, Definition, DeleteLimit, LeaseId, LimitKey, NamespaceId, NamespaceName,
    NamespaceOutcome, Outcome, Part, PutLimit, Reserve, UnixMs, Write, WriteOutcome,
};

use crate::answer;
use crate::backend::{Amount, BackendError, CompleteAnswer, LimitChange, LimitError, ReserveAnswer};
use crate::ledger::WriteAnswer;

/// One command, with what its answer is put together from.
#[derive(Clone, Debug)]
pub enum Work {
    /// Takes all requirements, or none.
    Reserve {
        /// Where the lease lives; none if nobody has opened that namespace.
        namespace: Option<NamespaceId>,
        /// The attempt.
        lease: LeaseId,
        /// What the Book is told.
        parts: Vec<Part>,
        /// What the caller said.
        requirements: Vec<Amount>,
    },
    /// Says what a lease really used.
    Complete {
        /// Where the lease lives; none if nobody has opened that namespace.
        namespace: Option<NamespaceId>,
        /// The attempt.
        lease: LeaseId,
        /// What the Book is told.
        parts: Vec<Part>,
        /// What the caller said.
        actuals: Vec<Amount>,
    },
    /// Makes a namespace known.
    Open(NamespaceName),
    /// Changes a limit.
    Change {
        /// Where it lives.
        namespace: NamespaceId,
        /// To what.
        change: Change,
        /// The revision it must have now.
        expected_revision: Option<u64>,
    },
    /// A transaction. Its id and its place in the log are filled in by whoever orders the commands.
    Write(Write),
}

/// What becomes of a limit.
#[derive(Clone, Debug)]
pub enum Change {
    /// It is to be this.
    Put(Definition),
    /// It is to go.
    Delete(LimitKey),
}

impl Change {
    pub(crate) fn key(&self) -> &LimitKey {
        match self {
            Change::Put(definition) => &definition.key,
            Change::Delete(key) => key,
        }
    }
}

impl Work {
    /// What the Book is told. A namespace that nobody has opened has no limits; its place among the outcomes is
    /// kept by a tick.
    #[must_use]
    pub fn command(&self, wall: UnixMs) -> Command<'_> {
        match self {
            Work::Reserve { namespace: Some(namespace), lease, parts, .. } => {
                Command::Reserve(Reserve { namespace: *namespace, lease: *lease, wall, requirements: parts })
            }
            Work::Complete { namespace: Some(namespace), lease, parts, .. } => {
                Command::Complete(Complete { namespace: *namespace, lease: *lease, wall, actuals: parts })
            }
            Work::Reserve { namespace: None, .. } | Work::Complete { namespace: None, .. } => Command::Tick,
            Work::Open(name) => Command::OpenNamespace(name),
            Work::Change { namespace, change, expected_revision } => {
                let (namespace, expected_revision) = (*namespace, *expected_revision);
                match change {
                    Change::Put(definition) => {
                        Command::PutLimit(PutLimit { namespace, definition, expected_revision })
                    }
                    Change::Delete(key) => {
                        Command::DeleteLimit(DeleteLimit { namespace, key, expected_revision })
                    }
                }
            }
            Work::Write(write) => Command::Write(write),
        }
    }

    /// What the caller is told.
    #[must_use]
    pub fn answer(&self, book: &Book, wall: UnixMs, outcome: Outcome) -> Done {
        match (self, outcome) {
            (Work::Reserve { requirements, .. }, Outcome::Reserve(outcome)) => {
                Done::Reserve(answer::reserve(book, wall, requirements, outcome))
            }
            (Work::Reserve { requirements, .. }, _) => {
                Done::Reserve(Ok(answer::unknown_namespace(requirements)))
            }
            (Work::Complete { actuals, .. }, Outcome::Complete(outcome)) => {
                Done::Complete(answer::complete(actuals, outcome))
            }
            (Work::Complete { .. }, _) => Done::Complete(Ok(CompleteAnswer {
                message: Some("namespace: no such namespace".into()),
                ..CompleteAnswer::default()
            })),
            (Work::Open(_), Outcome::Namespace(outcome)) => Done::Namespace(match outcome {
                NamespaceOutcome::Exists(id) | NamespaceOutcome::Opened(id) => Some(id),
                NamespaceOutcome::TooMany => None,
            }),
            (Work::Change { .. }, Outcome::Limit(outcome)) => Done::Limit(answer::limit(outcome)),
            (Work::Write(_), Outcome::Write(outcome)) => Done::Write(match outcome {
                WriteOutcome::Committed(receipt) | WriteOutcome::Exists(receipt) => {
                    WriteAnswer::Committed(receipt)
                }
                WriteOutcome::Refused(error) => WriteAnswer::Refused(error),
            }),
            (Work::Open(_) | Work::Change { .. } | Work::Write(_), _) => Done::Limit(Err(mixed_up().into())),
        }
    }
}

/// The answer to one command.
#[derive(Clone, Debug)]
pub enum Done {
    /// To a reserve.
    Reserve(Result<ReserveAnswer, BackendError>),
    /// To a complete.
    Complete(Result<CompleteAnswer, BackendError>),
    /// The number of a namespace; none if there are as many as there can be.
    Namespace(Option<NamespaceId>),
    /// To a change of a limit.
    Limit(Result<LimitChange, LimitError>),
    /// To a transaction.
    Write(WriteAnswer),
}

pub(crate) fn mixed_up() -> BackendError {
    BackendError::Failed("answers got mixed up".into())
}
