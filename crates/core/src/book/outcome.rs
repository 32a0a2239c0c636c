//! What the Book answers. A refusal is an answer like any other.

use super::command::{LimitId, NamespaceId};
use super::key::KeyOutcome;
use super::receipt::WriteOutcome;
use crate::limits::DefinitionError;
use crate::time::UnixMs;

/// The answer to one command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// To `OpenNamespace`.
    Namespace(NamespaceOutcome),
    /// To `PutLimit`, `DeleteLimit` and `DropLimit`.
    Limit(LimitOutcome),
    /// To `Reserve`.
    Reserve(ReserveOutcome),
    /// To `Complete` and `Release`.
    Complete(CompleteOutcome),
    /// To `Keep`.
    Kept,
    /// To `Write`.
    Write(WriteOutcome),
    /// To `CreateKey` and `RevokeKey`.
    Key(KeyOutcome),
    /// To any command: whoever it comes from has no right to it, or no longer. Nothing was changed.
    Unauthenticated,
    /// To `Tick`.
    Ticked,
}

/// The answer to `OpenNamespace`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamespaceOutcome {
    /// It is known now, under this number.
    Opened(NamespaceId),
    /// It was known before, under this number.
    Exists(NamespaceId),
    /// The Book holds as many namespaces as it can.
    TooMany,
}

/// The answer to `PutLimit`, `DeleteLimit` and `DropLimit`, in order of precedence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LimitOutcome {
    /// The definition is malformed.
    Invalid(DefinitionError),
    /// No such namespace.
    UnknownNamespace,
    /// `expected_revision` did not hold; the limit has this one, 0 if it does not exist.
    RevisionDiffers {
        /// The revision the limit has.
        revision: u64,
    },
    /// The limit to delete does not exist, or the one to drop was not deleted.
    NotFound,
    /// The limit exists and is of another kind.
    KindDiffers,
    /// The Book holds as many limits as it can, deleted ones included.
    TooMany,
    /// Done, or under way.
    Changed {
        /// Its number.
        limit: LimitId,
        /// Its revision after the change.
        revision: u64,
        /// Where it stands.
        status: LimitStatus,
    },
}

/// Where a limit stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitStatus {
    /// In force.
    Active,
    /// Waiting until so much is free that the capacity can go down; to 0 if the limit is being deleted.
    Decreasing {
        /// The capacity that is waited for.
        to: u64,
    },
    /// Gone.
    Deleted,
}

/// The answer to `Reserve`, in order of precedence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReserveOutcome {
    /// The command is malformed; nothing was looked at.
    Invalid(InvalidParts),
    /// The lease was used before, for something else.
    ExistsWithOtherRequirements,
    /// The lease was allowed before and still holds everything.
    Exists {
        /// When it was allowed.
        reserved_at: UnixMs,
    },
    /// The lease was denied before, and stays denied.
    ExistsDenied(Denial),
    /// The lease was denied for want of credit before, and stays denied.
    ExistsInsufficientCredit(CreditDenial),
    /// The lease was completed, or part of it ran out.
    LeaseExpired,
    /// The lease may have been known once; whatever is as old as this is forgotten.
    LeaseTooOld {
        /// The time in the lease.
        lease_time: UnixMs,
        /// Leases made before this are refused.
        forgotten_before: UnixMs,
    },
    /// The lease says it was made after the command that carries it.
    LeaseInFuture {
        /// The time in the lease.
        lease_time: UnixMs,
        /// The wall time of the command.
        wall: UnixMs,
    },
    /// A requirement names no limit. The lease may try again.
    UnknownLimit {
        /// Its place in the requirements.
        requirement: usize,
    },
    /// A requirement names a limit that is going down. The lease may try again.
    LimitDecreasing {
        /// Its place in the requirements.
        requirement: usize,
        /// When to try again.
        retry_after_ms: u64,
    },
    /// A requirement names a limit that is enforced elsewhere: whoever asked the Book for it does not know. The lease may
    /// try again, there.
    LimitsElsewhere,
    /// The Book holds as many leases as it may. The lease may try again.
    Overloaded,
    /// Something does not fit. Nothing was taken, and the lease is spent.
    Denied(Denial),
    /// All limits have room, and an account has too little. Nothing was taken, and the lease is spent.
    InsufficientCredit(CreditDenial),
    /// Everything was taken.
    Created {
        /// When.
        reserved_at: UnixMs,
    },
}

/// Why something did not fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denial {
    /// When a new lease has a chance; 0 if it has none.
    pub retry_after_ms: u64,
    /// What stood in the way, the one that frees last first. Of a denial from before, only that one.
    pub limited_by: Vec<LimitId>,
    /// An amount exceeds its limit's capacity.
    pub never: bool,
}

/// Why there was no credit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreditDenial {
    /// The limit whose account it was; the first in order of key.
    pub limit: LimitId,
    /// When a new lease has a chance.
    pub retry_after_ms: u64,
    /// What was wrong with the account.
    pub why: CreditShortage,
}

/// What was wrong with an account, in order of precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CreditShortage {
    /// It, its vault, or the account it should pay was never opened.
    UnknownAccount,
    /// It is frozen.
    Frozen,
    /// It is closed, or the account it should pay is.
    Closed,
    /// It has too little.
    NotEnough,
}

/// What is wrong with the requirements or actuals of a command, in order of precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InvalidParts {
    /// No such namespace.
    UnknownNamespace,
    /// A reserve of nothing.
    Empty,
    /// More than 32.
    TooMany {
        /// How many there were.
        found: usize,
    },
    /// A requirement of 0.
    AmountZero {
        /// Its place.
        part: usize,
    },
    /// One limit twice.
    Duplicate {
        /// The place of the second.
        part: usize,
    },
}

/// The answer to `Complete` and `Release`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CompleteOutcome {
    /// The command is malformed; nothing was looked at.
    Invalid(InvalidParts),
    /// The actuals were applied before, and nothing changed now.
    Before,
    /// The lease held nothing: it was denied or released, or completed while unknown. Nothing changed.
    HeldNothing,
    /// The lease is unknown and so old, or so far in the future, that it could not be reserved either.
    UnknownByAge,
    /// The lease is unknown, and the Book holds as many as it may. It may be completed again.
    Overloaded,
    /// The lease was unknown, and is marked: a reserve that arrives late takes nothing.
    Marked,
    /// The actuals were applied; of a release, nothing was used.
    Completed(Settlement),
}

impl CompleteOutcome {
    /// Whether the lease was known and its actuals were applied, now or before.
    #[must_use]
    pub const fn is_reconciled(&self) -> bool {
        match self {
            CompleteOutcome::Completed(_) | CompleteOutcome::Before => true,
            CompleteOutcome::Invalid(_)
            | CompleteOutcome::HeldNothing
            | CompleteOutcome::UnknownByAge
            | CompleteOutcome::Overloaded
            | CompleteOutcome::Marked => false,
        }
    }
}

/// What a complete found besides what it settled.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settlement {
    /// The places of the actuals that named nothing the lease had reserved.
    pub ignored: Vec<usize>,
    /// Usage beyond what was reserved, in order of limit.
    pub overages: Vec<OverageTaken>,
    /// What was charged to accounts, in order of limit.
    pub charges: Vec<Charge>,
}

/// What one hold of credit cost in the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charge {
    /// The limit.
    pub limit: LimitId,
    /// What the lease said, or all that was held.
    pub cost: u64,
    /// What the revenue account got.
    pub paid: u64,
    /// How much of that the owner did not have, and owes.
    pub debt: u64,
    /// What nobody paid: the owner had too little, or its account is closed.
    pub uncollected: u64,
}

/// Usage of one limit beyond what was reserved, and what became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OverageTaken {
    /// The limit.
    pub limit: LimitId,
    /// How much more was used than reserved.
    pub amount: u64,
    /// What became of it.
    pub how: OverageHow,
}

/// What became of usage beyond what was reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OverageHow {
    /// It fitted, and is held like the rest.
    Reserved,
    /// It did not fit, and is debt of the limit.
    Debt,
    /// It did not fit, and the limit keeps no debt; or the limit is gone.
    Dropped,
}
