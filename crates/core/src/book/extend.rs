//! Extend: take more for a live lease, move its end, and report its usage.

use super::call::LeaseClaim;
use super::command::{NamespaceId, Part};
use super::outcome::{CreditDenial, CreditShortage, Denial, InvalidParts, RequirementSet};
use crate::id::LeaseId;
use crate::quota::QuotaKind;
use crate::time::UnixMs;

/// The highest number of an extension. A stream of a day that extends its lease every nine seconds stays below it.
pub const EXTENSIONS_MAX: u32 = 10_000;

/// Changes a live lease, all or nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extend<'a> {
    /// The namespace of the lease, and of the limits that name no other.
    pub namespace: NamespaceId,
    /// The lease.
    pub lease: LeaseId,
    /// 1 for the first extension, then one more than the last; at most [`EXTENSIONS_MAX`].
    pub number: u32,
    /// Up to [`REQUIREMENTS_MAX`](super::REQUIREMENTS_MAX) amounts to take, each at least 1, no limit twice.
    pub add: &'a [Part],
    /// Up to [`REQUIREMENTS_MAX`](super::REQUIREMENTS_MAX) amounts that are used for certain, no limit twice.
    pub used: &'a [Part],
    /// Whether to move the ends of its concurrency and credit reservations.
    pub renew: bool,
    /// The whole extension, or one step of it.
    pub step: ExtendStep,
    /// The sender, and the call it is for.
    pub claim: LeaseClaim,
}

/// The steps of an extension whose limits another system enforces: that system decides about the number after the credit
/// has grown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExtendStep {
    /// Everything at once. Numbers follow each other without a gap.
    #[default]
    Whole,
    /// Only takes `add`, until `Renew` confirms it or `Return` returns it. A refusal is not remembered.
    Grow,
    /// Returns what `Grow` took under this number, which is free again.
    Return,
    /// Confirms what `Grow` took, which `add` repeats; moves the ends and reports `used`.
    Renew,
    /// Changes nothing. Answers what comes before room, else that it was extended.
    Judge,
    /// Another system has too little credit for the first amount of `add`: unless a limit has no room, the number is
    /// denied for that, and nothing is taken.
    Deny,
    /// Like `Deny`: that account is frozen.
    DenyFrozen,
    /// Like `Deny`: that account is closed.
    DenyClosed,
    /// Like `Grow`, for a lease without credit: these are its first holds. Another system says that it is alive. After
    /// `Return` the Book does not know the lease.
    Begin {
        /// When that system reserved the lease, from which its latest end is counted.
        reserved_at: UnixMs,
    },
}

impl ExtendStep {
    /// Whether it decides about the whole extension, of which credit may be kept elsewhere.
    pub(crate) const fn is_whole(self) -> bool {
        match self {
            ExtendStep::Whole
            | ExtendStep::Judge
            | ExtendStep::Deny
            | ExtendStep::DenyFrozen
            | ExtendStep::DenyClosed => true,
            ExtendStep::Grow | ExtendStep::Begin { .. } | ExtendStep::Return | ExtendStep::Renew => false,
        }
    }

    /// Whether it only takes credit, which is to be confirmed or returned.
    pub(crate) const fn is_growth(self) -> bool {
        matches!(self, ExtendStep::Grow | ExtendStep::Begin { .. })
    }

    /// Why another system has no credit.
    pub(crate) const fn shortage(self) -> Option<CreditShortage> {
        match self {
            ExtendStep::Deny => Some(CreditShortage::NotEnough),
            ExtendStep::DenyFrozen => Some(CreditShortage::Frozen),
            ExtendStep::DenyClosed => Some(CreditShortage::Closed),
            ExtendStep::Whole | ExtendStep::Judge | ExtendStep::Grow | ExtendStep::Begin { .. } => None,
            ExtendStep::Return | ExtendStep::Renew => None,
        }
    }
}

/// The outcome of `Extend`, in order of precedence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExtendOutcome {
    /// The command is malformed.
    Invalid(InvalidExtend),
    /// `add` or `used` has the id of a limit that was freed. The sender resolves the keys again; no caller sees this.
    StaleLimit,
    /// The lease was never allowed, was completed or released, or a reservation of it ended.
    LeaseExpired,
    /// A gateway made the lease, and another caller extends it.
    OwnedByGateway,
    /// The lease is not that of a call with the attributes of the claim.
    OtherCall,
    /// The last extension has this number and another body.
    NumberReused,
    /// The number is older than the last one, or leaves a gap.
    NumberDiffers {
        /// The next number.
        expected: u32,
    },
    /// `add` names no limit. The number stays free.
    UnknownLimit {
        /// The index in `add`.
        part: usize,
    },
    /// `add` names a limit that is decreasing. The number stays free.
    LimitDecreasing {
        /// The index in `add`.
        part: usize,
        /// Retry hint.
        retry_after_ms: u64,
    },
    /// `add` names a limit that is paused. The number stays free.
    LimitPaused {
        /// The index in `add`.
        part: usize,
        /// The rest of the pause.
        retry_after_ms: u64,
    },
    /// The vault or an account of an added credit limit does not exist. The number stays free.
    AccountNotFound {
        /// The index in `add` of the first such limit in key order.
        part: usize,
        /// Retry hint.
        retry_after_ms: u64,
    },
    /// Another system enforces a limit of the lease. The number stays free.
    LimitsExternal,
    /// The lease would have more than [`REQUIREMENTS_MAX`](super::REQUIREMENTS_MAX) limits. The number stays free.
    TooManyLimits {
        /// The number of limits.
        found: usize,
    },
    /// The namespace has used up a quota. The number stays free.
    QuotaExceeded {
        /// The quota.
        kind: QuotaKind,
        /// Retry hint.
        retry_after_ms: u64,
    },
    /// An amount does not fit. Nothing changed, and the number stays denied.
    Denied(Denial),
    /// All limits have room but an account does not. Nothing changed, and the number stays denied.
    InsufficientCredit(CreditDenial),
    /// Extended, now or before.
    Extended(Extension),
}

/// An extension that was applied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extension {
    /// When the first of its concurrency and credit reservations ends, if it has any.
    pub ends_at: Option<UnixMs>,
    /// The indexes in `used` whose limit the lease has not reserved.
    pub ignored: RequirementSet,
    /// The indexes in `used` whose amount exceeds the reservation.
    pub above: RequirementSet,
}

/// Why an extension is malformed, in order of precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InvalidExtend {
    /// The number is 0, or above [`EXTENSIONS_MAX`].
    Number {
        /// The number.
        found: u32,
    },
    /// `add` is malformed.
    Add(InvalidParts),
    /// `used` is malformed.
    Used(InvalidParts),
}
