//! What a Book is asked, and what it answered, in the words of those who ask.

use std::sync::Arc;

use earmark_core::{
    Book, By, Command, Complete, CreateKey, Definition, DeleteLimit, DropLimit, Keep, KeyInfo, LeaseId,
    LimitKey, NamespaceId, NamespaceName, NamespaceOutcome, Outcome, Part, PutLimit, Release, Reserve,
    RevokeKey, UnixMs, Write, WriteOutcome,
};

use crate::answer;
use crate::backend::{Amount, BackendError, CompleteAnswer, LimitChange, LimitError, ReserveAnswer};
use crate::callers::KeyError;
use crate::writes::WriteAnswer;

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
    /// Gives back all that a lease has taken.
    Release {
        /// Where the lease lives; none if nobody has opened that namespace.
        namespace: Option<NamespaceId>,
        /// The attempt.
        lease: LeaseId,
    },
    /// Forgets a deleted limit that is gone from where it was enforced.
    Drop {
        /// Where it lives.
        namespace: NamespaceId,
        /// Its name.
        key: LimitKey,
        /// The revision it got when it was deleted.
        revision: u64,
    },
    /// Says what is kept elsewhere.
    Keep(Keep),
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
    /// Makes a key.
    CreateKey(CreateKey),
    /// Ends a key.
    RevokeKey(RevokeKey),
}

/// Work, and the right that it is asked by.
#[derive(Clone, Debug)]
pub struct Asked {
    /// The right.
    pub by: By,
    /// The work.
    pub work: Work,
}

impl Asked {
    /// Work of Earmark itself.
    #[must_use]
    pub fn own(work: Work) -> Asked {
        Asked { by: By::Itself, work }
    }

    /// What the Book is told.
    #[must_use]
    pub fn command(&self, wall: UnixMs) -> Command<'_> {
        self.work.command(wall)
    }

    /// What the caller is told.
    #[must_use]
    pub fn answer(&self, book: &Book, wall: UnixMs, outcome: Outcome) -> Done {
        match outcome {
            Outcome::Unauthenticated => Done::Unauthenticated,
            outcome => self.work.answer(book, wall, outcome),
        }
    }
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
            Work::Release { namespace: Some(namespace), lease } => {
                Command::Release(Release { namespace: *namespace, lease: *lease, wall })
            }
            Work::Reserve { namespace: None, .. }
            | Work::Complete { namespace: None, .. }
            | Work::Release { namespace: None, .. } => Command::Tick,
            Work::Drop { namespace, key, revision } => {
                Command::DropLimit(DropLimit { namespace: *namespace, key, revision: *revision })
            }
            Work::Keep(keep) => Command::Keep(*keep),
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
            Work::CreateKey(create) => Command::CreateKey(create),
            Work::RevokeKey(revoke) => Command::RevokeKey(revoke),
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
            (Work::Release { .. }, Outcome::Complete(outcome)) => {
                Done::Complete(answer::complete(&[], outcome))
            }
            (Work::Complete { .. } | Work::Release { .. }, _) => Done::Complete(Ok(CompleteAnswer {
                message: Some("namespace: no such namespace".into()),
                ..CompleteAnswer::default()
            })),
            (Work::Open(_), Outcome::Namespace(outcome)) => Done::Namespace(match outcome {
                NamespaceOutcome::Exists(id) | NamespaceOutcome::Opened(id) => Some(id),
                NamespaceOutcome::TooMany => None,
            }),
            (Work::Keep(_), Outcome::Kept) => Done::Kept,
            (Work::Change { .. } | Work::Drop { .. }, Outcome::Limit(outcome)) => {
                Done::Limit(answer::limit(outcome))
            }
            (Work::Write(_), Outcome::Write(outcome)) => Done::Write(match outcome {
                WriteOutcome::Committed(receipt) | WriteOutcome::Exists(receipt) => {
                    WriteAnswer::Committed(receipt)
                }
                WriteOutcome::Refused(error) => WriteAnswer::Refused(error),
            }),
            (Work::CreateKey(_) | Work::RevokeKey(_), Outcome::Key(outcome)) => {
                Done::Key(answer::key(book, outcome))
            }
            (
                Work::Open(_)
                | Work::Change { .. }
                | Work::Drop { .. }
                | Work::Keep(_)
                | Work::Write(_)
                | Work::CreateKey(_)
                | Work::RevokeKey(_),
                _,
            ) => Done::Limit(Err(mixed_up().into())),
        }
    }
}

/// The answer to one command.
#[derive(Clone, Debug)]
pub enum Done {
    /// What is kept elsewhere is noted.
    Kept,
    /// To a reserve.
    Reserve(Result<ReserveAnswer, BackendError>),
    /// To a complete or a release.
    Complete(Result<CompleteAnswer, BackendError>),
    /// The number of a namespace; none if there are as many as there can be.
    Namespace(Option<NamespaceId>),
    /// To a change of a limit, or to its end.
    Limit(Result<LimitChange, LimitError>),
    /// To a transaction.
    Write(WriteAnswer),
    /// To what is done to a key.
    Key(Result<Arc<KeyInfo>, KeyError>),
    /// To anything: the right that it was asked by is none.
    Unauthenticated,
    /// To anything: the right that it was asked by is none any more; but it was tried before, when it may still have been one,
    /// and nobody knows what came of that.
    Unsure,
}

impl Done {
    /// The answer to what was tried before, with a result that nobody heard.
    #[must_use]
    pub fn after_unknown(self) -> Done {
        match self {
            Done::Unauthenticated => Done::Unsure,
            // Whatever was answered before is answered again.
            done => done,
        }
    }

    pub(crate) fn into_reserve(self) -> Result<ReserveAnswer, BackendError> {
        if let Done::Reserve(answer) = self { answer } else { Err(mixed_up()) }
    }

    pub(crate) fn into_complete(self) -> Result<CompleteAnswer, BackendError> {
        if let Done::Complete(answer) = self { answer } else { Err(mixed_up()) }
    }

    pub(crate) fn into_limit(self) -> Result<LimitChange, LimitError> {
        if let Done::Limit(answer) = self { answer } else { Err(mixed_up().into()) }
    }

    pub(crate) fn into_key(self) -> Result<Arc<KeyInfo>, KeyError> {
        if let Done::Key(answer) = self { answer } else { Err(mixed_up().into()) }
    }

    pub(crate) fn into_write(self) -> Result<WriteAnswer, BackendError> {
        if let Done::Write(answer) = self { Ok(answer) } else { Err(mixed_up()) }
    }
}

pub(crate) fn mixed_up() -> BackendError {
    BackendError::Failed("answers got mixed up".into())
}
