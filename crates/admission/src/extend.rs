//! Extensions: more amounts, later ends and reported usage for a live lease.

use earmark_core::{LeaseClaim, LeaseId, LimitKey, NamespaceName, REQUIREMENTS_MAX, UnixMs};

use crate::backend::{Amount, Refusal, describe_ignored};

/// Changes a live lease, all or nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExtendRequest {
    /// The namespace of the limits and of the lease.
    pub namespace: NamespaceName,
    /// The lease that was allowed.
    pub lease: LeaseId,
    /// 1 for the first extension, then one more than the last; at most [`EXTENSIONS_MAX`](earmark_core::EXTENSIONS_MAX).
    pub number: u32,
    /// Up to 32 amounts to take, in any order. Keys are unique.
    pub add: Vec<Amount>,
    /// Up to 32 amounts that are used for certain, in any order; 0 is allowed. Keys are unique.
    pub used: Vec<Amount>,
    /// Whether to move the ends of its concurrency and credit reservations.
    pub renew: bool,
    /// The sender, and the call it is for.
    pub claim: LeaseClaim,
}

/// The answer to an extension. A denial is an answer, not an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExtendAnswer {
    /// The lease is extended, by this request or by an earlier one with the same number.
    Extended {
        /// When the first of its concurrency and credit reservations ends, if it has any.
        ends_at: Option<UnixMs>,
        /// Keys of `used` that the lease has not reserved, in request order.
        ignored: Vec<LimitKey>,
        /// Keys of `used` whose amount exceeds the reservation, in request order.
        above: Vec<LimitKey>,
    },
    /// A limit lacks room. Nothing changed, and this number stays denied.
    Denied {
        /// When the next number may succeed; a minute if it never can.
        retry_after_ms: u64,
        /// The limits without room, the one that frees up last first.
        limited_by: Vec<LimitKey>,
        /// Whether an amount exceeds the capacity of its limit.
        never: bool,
    },
    /// The request was refused before room was checked, or credit is missing. Nothing changed.
    Refused(Refusal),
}

impl ExtendAnswer {
    /// A note for the caller: the keys that were ignored or exceed the reservation. `None` without any.
    #[must_use]
    pub fn message(&self) -> Option<String> {
        let ExtendAnswer::Extended { ignored, above, .. } = self else { return None };
        let above = above.iter().map(|key| format!("used exceeds the reservation of {key}; settled as overage"));
        let notes: Vec<String> = describe_ignored(ignored).into_iter().chain(above).collect();
        (!notes.is_empty()).then(|| notes.join("; "))
    }

    /// The refusal of a lease that was never allowed or has ended.
    #[must_use]
    pub const fn expired() -> ExtendAnswer {
        ExtendAnswer::Refused(Refusal::LeaseExpired)
    }

    /// The refusal of a number that was used with another body.
    #[must_use]
    pub fn number_reused(number: u32) -> ExtendAnswer {
        ExtendAnswer::invalid(format!("extension: {number} was used with another body"))
    }

    /// The refusal of a number that is older than the last one, or leaves a gap.
    #[must_use]
    pub fn number_differs(found: u32, expected: u32) -> ExtendAnswer {
        ExtendAnswer::invalid(format!("extension: found {found}, expected {expected}"))
    }

    /// The refusal of a lease with more than 32 limits in the end.
    #[must_use]
    pub fn too_many_limits(found: usize) -> ExtendAnswer {
        ExtendAnswer::invalid(format!("add: the lease would have {found} limits, allowed are up to {REQUIREMENTS_MAX}"))
    }

    /// The refusal of a malformed request.
    #[must_use]
    pub const fn invalid(message: String) -> ExtendAnswer {
        ExtendAnswer::Refused(Refusal::InvalidRequest { message })
    }

    /// The refusal of a backend that cannot extend leases.
    #[must_use]
    pub fn unsupported() -> ExtendAnswer {
        ExtendAnswer::invalid("extension: this server's storage cannot extend leases".into())
    }
}
