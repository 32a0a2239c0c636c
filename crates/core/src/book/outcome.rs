//! The outcomes of commands. A refusal is an outcome, not an error.

use super::command::{LimitId, NamespaceId, REQUIREMENTS_MAX};
use super::extend::ExtendOutcome;
use super::key::KeyOutcome;
use super::receipt::WriteOutcome;
use crate::id::LimitKey;
use crate::limits::{DefinitionError, SettingChange};
use crate::policies::PolicyOutcome;
use crate::quota::{QuotaKind, QuotasOutcome};
use crate::time::UnixMs;

/// The outcome of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Of `OpenNamespace`.
    Namespace(NamespaceOutcome),
    /// Of `PutLimit`, `DeleteLimit` and `DropLimit`.
    Limit(LimitOutcome),
    /// Of `PutTemplate` and `DeleteTemplate`.
    Template(TemplateOutcome),
    /// Of `PauseLimit`.
    Pause(PauseOutcome),
    /// Of `Reserve`.
    Reserve(ReserveOutcome),
    /// Of `Extend`.
    Extend(ExtendOutcome),
    /// Of `Complete` and `Release`.
    Complete(CompleteOutcome),
    /// Of `SetExternal`.
    ExternalSet,
    /// Of `Configure`.
    Configure(ConfigureOutcome),
    /// Of `Write`.
    Write(WriteOutcome),
    /// Of `CreateKey` and `RevokeKey`.
    Key(KeyOutcome),
    /// Of `SetQuotas`.
    Quotas(QuotasOutcome),
    /// Of `PutPolicy`.
    Policy(PolicyOutcome),
    /// Of any command: the right it was sent with is not valid. Nothing changed.
    Unauthenticated,
    /// Of `Tick`.
    Ticked,
}

/// The outcome of `OpenNamespace`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamespaceOutcome {
    /// Opened, with this id.
    Opened(NamespaceId),
    /// It exists, with this id.
    Exists(NamespaceId),
    /// The maximum number of namespaces is reached.
    TooMany,
}

/// The outcome of `Configure`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfigureOutcome {
    /// This value is not allowed. Nothing changed.
    Invalid(SettingChange),
    /// The settings have the new values.
    Configured,
}

/// The outcome of `PutLimit`, `DeleteLimit` and `DropLimit`, in order of precedence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LimitOutcome {
    /// The definition is invalid.
    Invalid(DefinitionError),
    /// The namespace does not exist.
    UnknownNamespace,
    /// The limit does not have the `expected_revision`.
    RevisionDiffers {
        /// The revision it has; 0 if it does not exist.
        revision: u64,
    },
    /// The limit to delete does not exist, or the limit to drop is not deleted.
    NotFound,
    /// The limit exists with another kind.
    KindDiffers,
    /// The vault of a credit limit does not exist.
    VaultNotFound,
    /// The maximum number of limits is reached.
    TooMany,
    /// The namespace has used up a quota.
    QuotaExceeded(QuotaKind),
    /// Changed, or decreasing towards the change.
    Changed {
        /// The id.
        limit: LimitId,
        /// The revision after the change.
        revision: u64,
        /// The status after the change.
        status: LimitStatus,
    },
}

/// The outcome of `PutTemplate` and `DeleteTemplate`, in order of precedence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TemplateOutcome {
    /// The namespace does not exist.
    UnknownNamespace,
    /// Another template differs from it in the names of placeholders only.
    DiffersInNamesOnly {
        /// The key of the other.
        key: LimitKey,
    },
    /// The template does not have the `expected_revision`.
    RevisionDiffers {
        /// The revision it has; 0 if it does not exist.
        revision: u64,
    },
    /// The template to delete does not exist.
    NotFound,
    /// The template exists with another kind.
    KindDiffers,
    /// The vault of a credit template does not exist.
    VaultNotFound,
    /// The namespace has used up a quota.
    QuotaExceeded(QuotaKind),
    /// Changed.
    Changed {
        /// The revision after the change.
        revision: u64,
    },
}

/// The status of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitStatus {
    /// In force.
    Active,
    /// Waiting until the reserved amount is at most the target; 0 while it is being deleted.
    Decreasing {
        /// The target capacity.
        to: u64,
    },
    /// Deleted.
    Deleted,
}

/// The outcome of `PauseLimit`, in order of precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PauseOutcome {
    /// The pause is longer than [`PAUSE_MS_MAX`](crate::PAUSE_MS_MAX).
    TooLong {
        /// Its length in milliseconds.
        found: u64,
    },
    /// The reason is longer than [`PAUSE_REASON_BYTES_MAX`](crate::PAUSE_REASON_BYTES_MAX).
    ReasonTooLong {
        /// Its length in bytes.
        found: usize,
    },
    /// The limit or its namespace does not exist.
    NotFound,
    /// The maximum number of paused limits of the namespace is reached.
    TooManyInNamespace,
    /// The maximum number of paused limits is reached.
    TooMany,
    /// The namespace has used up a quota.
    QuotaExceeded(QuotaKind),
    /// Paused.
    Paused {
        /// When the pause ends.
        until: UnixMs,
    },
    /// Resumed, or not paused before.
    Resumed,
}

/// The outcome of `Reserve`, in order of precedence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReserveOutcome {
    /// The command is malformed.
    Invalid(InvalidParts),
    /// A requirement has the id of a limit that was freed. The sender resolves the key again; no caller sees this.
    StaleLimit {
        /// The index of the requirement.
        requirement: usize,
    },
    /// A gateway made the lease, and another caller repeats its reserve.
    OwnedByGateway,
    /// The lease was used with other requirements, or for another call.
    ExistsWithOtherRequirements,
    /// The lease was allowed before and still holds everything.
    Exists {
        /// When it was allowed.
        reserved_at: UnixMs,
        /// The requirements that a shadow limit would have denied.
        would_deny: RequirementSet,
        /// The revision of the policy that its first reserve named, if it was for a call.
        policy_revision: Option<u64>,
    },
    /// The call was denied before, by the requirements of another revision of the policy, and stays denied.
    ExistsDeniedByPolicy {
        /// The revision.
        policy_revision: u64,
    },
    /// The lease was denied before and stays denied.
    ExistsDenied(Denial),
    /// The lease was denied credit before and stays denied.
    ExistsInsufficientCredit(CreditDenial),
    /// The lease was completed or released, or a reservation of it expired.
    LeaseExpired,
    /// The ULID time of the lease is so old that its record may have been deleted.
    LeaseTooOld {
        /// The ULID time of the lease.
        lease_time: UnixMs,
        /// Older leases are refused.
        forgotten_before: UnixMs,
    },
    /// The ULID time of the lease is too far ahead of the command.
    LeaseInFuture {
        /// The ULID time of the lease.
        lease_time: UnixMs,
        /// The wall time of the command.
        wall: UnixMs,
    },
    /// A requirement names no limit. The same lease may try again.
    UnknownLimit {
        /// The index of the requirement.
        requirement: usize,
    },
    /// A requirement names a limit that is decreasing. The same lease may try again.
    LimitDecreasing {
        /// The index of the requirement.
        requirement: usize,
        /// Retry hint.
        retry_after_ms: u64,
    },
    /// A requirement names a limit that is paused. The same lease may try again.
    LimitPaused {
        /// The index of the requirement.
        requirement: usize,
        /// The rest of the pause.
        retry_after_ms: u64,
    },
    /// The vault or an account of a required credit limit does not exist. The same lease may try again.
    AccountNotFound {
        /// The index of the first such requirement in key order.
        requirement: usize,
        /// Retry hint.
        retry_after_ms: u64,
    },
    /// Another system enforces a required limit. The same lease may try again there.
    LimitsExternal,
    /// The maximum number of lease records is reached. The same lease may try again.
    Overloaded,
    /// The namespace has used up a quota. The same lease may try again.
    QuotaExceeded {
        /// The quota.
        kind: QuotaKind,
        /// Retry hint.
        retry_after_ms: u64,
    },
    /// A requirement does not fit. Nothing was reserved, and the lease stays denied.
    Denied(Denial),
    /// All limits have room but an account does not. Nothing was reserved, and the lease stays denied.
    InsufficientCredit(CreditDenial),
    /// Everything was reserved.
    Created {
        /// The time of the reservation.
        reserved_at: UnixMs,
        /// The requirements that a shadow limit would have denied.
        would_deny: RequirementSet,
    },
}

/// A set of requirements by index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequirementSet(u32);

impl RequirementSet {
    /// Adds the requirement at `index`, which is less than [`REQUIREMENTS_MAX`].
    pub fn insert(&mut self, index: usize) {
        debug_assert!(index < REQUIREMENTS_MAX);
        self.0 |= 1_u32.checked_shl(index as u32).unwrap_or(0);
    }

    /// Whether it has none.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The indexes, in ascending order.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            let lowest = rest.trailing_zeros();
            rest &= rest.wrapping_sub(1);
            (lowest < u32::BITS).then_some(lowest as usize)
        })
    }

    pub(crate) const fn bits(self) -> u32 {
        self.0
    }

    pub(crate) const fn from_bits(bits: u32) -> RequirementSet {
        RequirementSet(bits)
    }
}

impl FromIterator<usize> for RequirementSet {
    fn from_iter<I: IntoIterator<Item = usize>>(indexes: I) -> RequirementSet {
        let mut set = RequirementSet::default();
        indexes.into_iter().for_each(|index| set.insert(index));
        set
    }
}

/// Why a requirement did not fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denial {
    /// Retry hint for a new lease.
    pub retry_after_ms: u64,
    /// The indexes of the requirements in the way, the one that frees last first. A repeated denial has only that one.
    pub limited_by: Vec<usize>,
    /// An amount exceeds the capacity of its limit.
    pub never: bool,
}

/// Why credit was denied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreditDenial {
    /// The index of the first requirement in key order whose account cannot pay.
    pub requirement: usize,
    /// Retry hint for a new lease.
    pub retry_after_ms: u64,
    /// The reason.
    pub why: CreditShortage,
}

/// Why an account cannot pay, in order of precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CreditShortage {
    /// The account, its vault or the revenue account does not exist.
    UnknownAccount,
    /// The account is frozen.
    Frozen,
    /// The account or the revenue account is closed.
    Closed,
    /// The balance is too low.
    NotEnough,
}

/// Why the requirements or actuals of a command are invalid, in order of precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InvalidParts {
    /// The namespace does not exist.
    UnknownNamespace,
    /// A reserve without requirements.
    Empty,
    /// More than [`REQUIREMENTS_MAX`](super::REQUIREMENTS_MAX).
    TooMany {
        /// The number found.
        found: usize,
    },
    /// A requirement with amount 0.
    AmountZero {
        /// Its index.
        part: usize,
    },
    /// A limit appears twice.
    Duplicate {
        /// The index of the second.
        part: usize,
    },
}

/// The outcome of `Complete` and `Release`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CompleteOutcome {
    /// The command is malformed.
    Invalid(InvalidParts),
    /// An actual has the id of a limit that was freed. The sender resolves the key again; no caller sees this.
    StaleLimit {
        /// The index of the actual.
        actual: usize,
    },
    /// A gateway made the lease, and another caller completes it. Nothing changed.
    OwnedByGateway,
    /// The lease is not that of a call with the attributes of the claim. Nothing changed.
    OtherCall,
    /// Completed before. Nothing changed.
    Before,
    /// The lease held nothing: it was denied, released, or completed while unknown. Nothing changed.
    HeldNothing,
    /// The lease is unknown, and its ULID time is too old or too far ahead to be reserved either.
    UnknownByAge,
    /// The lease is unknown and the maximum number of lease records is reached. It may be completed again.
    Overloaded,
    /// The lease is unknown, and the namespace has as many lease records as its quota allows. It may be completed
    /// again.
    LeasesQuotaExceeded,
    /// The lease was unknown. It is marked as completed, so that a late reserve takes nothing.
    Marked,
    /// Settled. After a release: nothing was used.
    Completed(Settlement),
}

impl CompleteOutcome {
    /// Whether the lease was known and its actuals were applied, now or before.
    #[must_use]
    pub const fn is_reconciled(&self) -> bool {
        match self {
            CompleteOutcome::Completed(_) | CompleteOutcome::Before => true,
            CompleteOutcome::Invalid(_)
            | CompleteOutcome::StaleLimit { .. }
            | CompleteOutcome::OwnedByGateway
            | CompleteOutcome::OtherCall
            | CompleteOutcome::HeldNothing
            | CompleteOutcome::UnknownByAge
            | CompleteOutcome::Overloaded
            | CompleteOutcome::LeasesQuotaExceeded
            | CompleteOutcome::Marked => false,
        }
    }
}

/// The result of settling a lease.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settlement {
    /// The indexes of actuals whose limit the lease had not reserved.
    pub ignored: Vec<usize>,
    /// The indexes of actuals below what extensions reported as used, which counts instead.
    pub raised: Vec<usize>,
    /// Usage beyond the reservations, ordered by slot.
    pub overages: Vec<OverageTaken>,
    /// The charges of its credit holds, ordered by slot.
    pub charges: Vec<Charge>,
    /// Whether the lease was extended, so that it may have limits that its reserve did not name.
    pub is_extended: bool,
}

/// The charge of one credit hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charge {
    /// The limit.
    pub limit: LimitId,
    /// The reported cost, or the whole hold if none was reported. After its timeout only what exceeds the payment then.
    pub cost: u64,
    /// The amount that the revenue account got.
    pub paid: u64,
    /// The part of `paid` that the owner did not have and owes.
    pub debt: u64,
    /// The part of the cost that nobody paid: the owner had too little, or its account is closed.
    pub uncollected: u64,
}

/// Usage of one limit beyond its reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OverageTaken {
    /// The limit.
    pub limit: LimitId,
    /// The excess.
    pub amount: u64,
    /// How it was accounted for.
    pub how: OverageHow,
}

/// How usage beyond the reservation was accounted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OverageHow {
    /// It fitted and is reserved.
    Reserved,
    /// It did not fit and is debt of the limit.
    Debt,
    /// It did not fit and the limit keeps no debt, or the limit is deleted.
    Dropped,
}
