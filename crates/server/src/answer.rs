//! The answers to reserve, extend and complete, for HTTP and gRPC alike.

use std::borrow::Cow;
use std::fmt;

use axum::http::StatusCode;
use earmark_admission::{
    BackendError, CompleteAnswer, ExtendAnswer, OWNED_BY_GATEWAY, Refusal, ReserveAnswer, describe_credit_shortage,
    describe_quota, quota_code,
};
use earmark_core::{CreditShortage, LimitKey, QuotaKind, UnixMs};
use earmark_policy::Refusal as PolicyRefusal;
use serde::{Serialize, Serializer};

use crate::budget::NoRoom;
use crate::decisions::Outcome;
use crate::metrics::{Completed, Reason, Reserved};

/// Retry hint after `overloaded` or `backend_error`, with the same lease.
const RETRY_SAME_LEASE_MS: u64 = 100;

// Values of the field `error`.
pub(crate) const INVALID_REQUEST: &str = "invalid_request";
pub(crate) const LEASE_EXPIRED: &str = "lease_expired";
pub(crate) const OVERLOADED: &str = "overloaded";
pub(crate) const BACKEND_ERROR: &str = "backend_error";

// Values of the field `error` that are followed by a colon and a limit key.
pub(crate) const UNKNOWN_LIMIT_KEY: &str = "unknown_limit_key";
pub(crate) const LIMIT_DECREASING: &str = "limit_decreasing";
pub(crate) const LIMIT_PAUSED: &str = "limit_paused";
pub(crate) const INSUFFICIENT_CREDIT: &str = "insufficient_credit";
pub(crate) const ACCOUNT_NOT_FOUND: &str = "account_not_found";
pub(crate) const EXCEEDS_CAPACITY: &str = "exceeds_capacity";

/// The message to a change whose answer has no room.
pub(crate) fn no_room_for_change(who: NoRoom) -> String {
    format!(
        "response: too many large responses of {who} wait to be read; nothing happened, retry the same request later"
    )
}

/// The message to a read whose answer has no room.
pub(crate) fn no_room_for_read(who: NoRoom) -> String {
    format!("response: too many large responses of {who} wait to be read; retry later")
}

/// Write code: no answer in time.
pub(crate) const UNAVAILABLE: &str = "UNAVAILABLE";
/// Write code: malformed.
pub(crate) const INVALID: &str = "INVALID";

/// The codes of uncommitted writes.
pub(crate) const WRITE_CODES: [&str; 17] = [
    "SEQUENCE_GAP",
    "ALREADY_COMMITTED",
    "SEQUENCE_REUSED",
    "CONDITION_FAILED",
    "INSUFFICIENT_CREDIT",
    "ACCOUNT_NOT_FOUND",
    "ACCOUNT_CLOSED",
    "ACCOUNT_FROZEN",
    "CONFLICT",
    "VAULT_NOT_FOUND",
    "TOO_MANY_CLIENTS",
    "KEY_REUSED",
    "TOO_MANY_KEYS",
    "QUOTA_EXCEEDED",
    "WRONG_SCOPE",
    INVALID,
    UNAVAILABLE,
];

/// The field `error`.
#[derive(Clone, Copy, Default)]
pub(crate) enum Code<'a> {
    /// No error: allowed, or plainly denied.
    #[default]
    None,
    InvalidRequest,
    UnknownLimitKey(&'a LimitKey),
    LimitDecreasing(&'a LimitKey),
    LimitPaused(&'a LimitKey),
    InsufficientCredit(&'a LimitKey),
    AccountNotFound(&'a LimitKey),
    ExceedsCapacity(&'a LimitKey),
    LeaseExpired,
    QuotaExceeded(QuotaKind),
    Overloaded,
    BackendError,
    /// The policy refuses the call.
    ByPolicy(&'a PolicyRefusal),
    /// The lease belongs to a gateway. A single request is a problem with status 403.
    Forbidden,
}

impl fmt::Display for Code<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Code::None => Ok(()),
            Code::InvalidRequest | Code::Forbidden => f.write_str(INVALID_REQUEST),
            Code::UnknownLimitKey(key) => write!(f, "{UNKNOWN_LIMIT_KEY}:{key}"),
            Code::LimitDecreasing(key) => write!(f, "{LIMIT_DECREASING}:{key}"),
            Code::LimitPaused(key) => write!(f, "{LIMIT_PAUSED}:{key}"),
            Code::InsufficientCredit(key) => write!(f, "{INSUFFICIENT_CREDIT}:{key}"),
            Code::AccountNotFound(key) => write!(f, "{ACCOUNT_NOT_FOUND}:{key}"),
            Code::ExceedsCapacity(key) => write!(f, "{EXCEEDS_CAPACITY}:{key}"),
            Code::LeaseExpired => f.write_str(LEASE_EXPIRED),
            Code::QuotaExceeded(kind) => f.write_str(&quota_code(*kind)),
            Code::Overloaded => f.write_str(OVERLOADED),
            Code::BackendError => f.write_str(BACKEND_ERROR),
            Code::ByPolicy(refusal) => f.write_str(&refusal.error()),
        }
    }
}

impl Code<'_> {
    /// The HTTP status of a reserve or an extension.
    fn status(self) -> StatusCode {
        match self {
            Code::None
            | Code::InvalidRequest
            | Code::UnknownLimitKey(_)
            | Code::LimitDecreasing(_)
            | Code::LimitPaused(_)
            | Code::InsufficientCredit(_)
            | Code::AccountNotFound(_)
            | Code::ExceedsCapacity(_)
            | Code::QuotaExceeded(_)
            | Code::ByPolicy(_)
            | Code::LeaseExpired => StatusCode::OK,
            Code::Overloaded => StatusCode::SERVICE_UNAVAILABLE,
            Code::BackendError => StatusCode::INTERNAL_SERVER_ERROR,
            Code::Forbidden => StatusCode::FORBIDDEN,
        }
    }

    /// The outcome of a reserve or an extension, for metrics.
    fn outcome(self, is_allowed: bool) -> Reserved {
        match self {
            Code::None if is_allowed => Reserved::Allowed,
            Code::None | Code::ExceedsCapacity(_) => Reserved::Denied,
            Code::InvalidRequest | Code::Forbidden => Reserved::InvalidRequest,
            Code::UnknownLimitKey(_) => Reserved::UnknownLimitKey,
            Code::LimitDecreasing(_) => Reserved::LimitDecreasing,
            Code::LimitPaused(_) => Reserved::LimitPaused,
            Code::InsufficientCredit(_) => Reserved::InsufficientCredit,
            Code::AccountNotFound(_) => Reserved::AccountNotFound,
            Code::LeaseExpired => Reserved::LeaseExpired,
            Code::QuotaExceeded(_) => Reserved::QuotaExceeded,
            Code::Overloaded => Reserved::Overloaded,
            Code::BackendError => Reserved::BackendError,
            Code::ByPolicy(_) => Reserved::RefusedByPolicy,
        }
    }

    /// Those of the limits in the way that denied the request, and the reason.
    fn denied_by(self, limited_by: &[LimitKey]) -> (&[LimitKey], Reason) {
        match self {
            Code::InsufficientCredit(_) => (limited_by, Reason::Credit),
            Code::None | Code::ExceedsCapacity(_) => (limited_by, Reason::Capacity),
            // Not a denial. An unknown key must not become a metric series either.
            _ => (&[], Reason::Capacity),
        }
    }
}

impl Code<'_> {
    /// The outcome in the decision log. Malformed requests, used leases and failures are no decisions about limits.
    pub(crate) fn decision(self, is_allowed: bool) -> Option<Outcome> {
        match self {
            Code::None if is_allowed => None,
            Code::None | Code::ExceedsCapacity(_) | Code::InsufficientCredit(_) => Some(Outcome::Denied),
            Code::UnknownLimitKey(_)
            | Code::LimitDecreasing(_)
            | Code::LimitPaused(_)
            | Code::AccountNotFound(_)
            | Code::QuotaExceeded(_) => Some(Outcome::Refused),
            _ => None,
        }
    }
}

impl Serialize for Code<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Code::None => serializer.serialize_str(""),
            other => serializer.collect_str(other),
        }
    }
}

/// The answer to a reserve.
#[derive(Serialize)]
pub(crate) struct ReserveWire<'a> {
    pub(crate) allowed: bool,
    pub(crate) retry_after_ms: u64,
    pub(crate) reserved_at_unix_ms: u64,
    pub(crate) error: Code<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) message: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "<[_]>::is_empty", serialize_with = "keys")]
    pub(crate) limited_by: &'a [LimitKey],
    #[serde(skip_serializing_if = "is_false")]
    pub(crate) never: bool,
    #[serde(skip_serializing_if = "<[_]>::is_empty", serialize_with = "keys")]
    pub(crate) would_deny: &'a [LimitKey],
}

fn keys<S: Serializer>(keys: &[LimitKey], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(keys.iter().map(LimitKey::as_str))
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes fields by reference")]
fn is_false(value: &bool) -> bool {
    !value
}

const NOT_ALLOWED: ReserveWire<'_> = ReserveWire {
    allowed: false,
    retry_after_ms: 0,
    reserved_at_unix_ms: 0,
    error: Code::None,
    message: None,
    limited_by: &[],
    never: false,
    would_deny: &[],
};

impl<'a> ReserveWire<'a> {
    pub(crate) fn of(answer: &'a Result<ReserveAnswer, BackendError>) -> ReserveWire<'a> {
        match answer {
            Ok(ReserveAnswer::Allowed { reserved_at, would_deny, .. }) => {
                ReserveWire { allowed: true, reserved_at_unix_ms: reserved_at.get(), would_deny, ..NOT_ALLOWED }
            }
            Ok(ReserveAnswer::Denied { retry_after_ms, limited_by, never }) => {
                ReserveWire::denied(*retry_after_ms, limited_by, *never)
            }
            Ok(ReserveAnswer::Refused(refusal)) => ReserveWire::refused(refusal),
            Err(error) => ReserveWire {
                retry_after_ms: RETRY_SAME_LEASE_MS,
                error: code(error),
                message: Some(retry(error).into()),
                ..NOT_ALLOWED
            },
        }
    }

    /// The answer to a call that the policy refuses.
    pub(crate) fn by_policy(refusal: &'a PolicyRefusal) -> ReserveWire<'a> {
        ReserveWire { error: Code::ByPolicy(refusal), message: Some(refusal.message().into()), ..NOT_ALLOWED }
    }

    /// The answer to a call that needs no limits.
    pub(crate) fn free() -> ReserveWire<'a> {
        ReserveWire { allowed: true, ..NOT_ALLOWED }
    }

    fn denied(retry_after_ms: u64, limited_by: &'a [LimitKey], never: bool) -> ReserveWire<'a> {
        let error = match limited_by.first() {
            Some(key) if never => Code::ExceedsCapacity(key),
            Some(_) | None => Code::None,
        };
        ReserveWire { retry_after_ms, error, limited_by, never, ..NOT_ALLOWED }
    }

    fn refused(refusal: &'a Refusal) -> ReserveWire<'a> {
        match refusal {
            Refusal::InvalidRequest { message } => {
                let message = Some(message.into());
                ReserveWire { error: Code::InvalidRequest, message, ..NOT_ALLOWED }
            }
            Refusal::OwnedByGateway => {
                let message = Some(OWNED_BY_GATEWAY.into());
                ReserveWire { error: Code::Forbidden, message, ..NOT_ALLOWED }
            }
            Refusal::UnknownLimitKey(key) => {
                ReserveWire { error: Code::UnknownLimitKey(key), limited_by: std::slice::from_ref(key), ..NOT_ALLOWED }
            }
            Refusal::AccountNotFound { key, retry_after_ms } => ReserveWire {
                error: Code::AccountNotFound(key),
                retry_after_ms: *retry_after_ms,
                message: describe_credit_shortage(CreditShortage::UnknownAccount).map(Cow::Borrowed),
                limited_by: std::slice::from_ref(key),
                ..NOT_ALLOWED
            },
            Refusal::LimitDecreasing { key, retry_after_ms } => ReserveWire {
                error: Code::LimitDecreasing(key),
                retry_after_ms: *retry_after_ms,
                limited_by: std::slice::from_ref(key),
                ..NOT_ALLOWED
            },
            Refusal::LimitPaused { key, retry_after_ms } => ReserveWire {
                error: Code::LimitPaused(key),
                retry_after_ms: *retry_after_ms,
                limited_by: std::slice::from_ref(key),
                ..NOT_ALLOWED
            },
            Refusal::InsufficientCredit { key, retry_after_ms, why } => ReserveWire {
                error: Code::InsufficientCredit(key),
                retry_after_ms: *retry_after_ms,
                message: describe_credit_shortage(*why).map(Cow::Borrowed),
                limited_by: std::slice::from_ref(key),
                ..NOT_ALLOWED
            },
            Refusal::QuotaExceeded { kind, retry_after_ms } => ReserveWire {
                error: Code::QuotaExceeded(*kind),
                retry_after_ms: *retry_after_ms,
                message: Some(describe_quota(*kind).into()),
                ..NOT_ALLOWED
            },
            Refusal::LeaseExpired => {
                let message = "lease_id: the lease was completed, released or timed out; reserve with a new lease id";
                ReserveWire { error: Code::LeaseExpired, message: Some(message.into()), ..NOT_ALLOWED }
            }
            Refusal::DeniedByPolicy { policy_revision } => {
                let message = format!(
                    "lease_id: the call was denied by revision {policy_revision} of the policy, which is no longer \
                     kept, so its limits are unknown; call with a new lease id"
                );
                ReserveWire { error: Code::LeaseExpired, message: Some(message.into()), ..NOT_ALLOWED }
            }
        }
    }

    /// The HTTP status. Denials and refusals are 200.
    pub(crate) fn status(&self) -> StatusCode {
        self.error.status()
    }

    pub(crate) fn outcome(&self) -> Reserved {
        self.error.outcome(self.allowed)
    }

    /// The limits that denied the request, and the reason.
    pub(crate) fn limited_by(&self) -> (&'a [LimitKey], Reason) {
        self.error.denied_by(self.limited_by)
    }
}

/// The answer to an extension.
#[derive(Serialize)]
pub(crate) struct ExtendWire<'a> {
    pub(crate) allowed: bool,
    pub(crate) retry_after_ms: u64,
    pub(crate) error: Code<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) message: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "<[_]>::is_empty", serialize_with = "keys")]
    pub(crate) limited_by: &'a [LimitKey],
    #[serde(skip_serializing_if = "is_false")]
    pub(crate) never: bool,
    pub(crate) ends_at_unix_ms: u64,
}

impl<'a> ExtendWire<'a> {
    pub(crate) fn of(answer: &'a Result<ExtendAnswer, BackendError>) -> ExtendWire<'a> {
        match answer {
            Ok(extended @ ExtendAnswer::Extended { ends_at, .. }) => ExtendWire {
                allowed: true,
                message: extended.message().map(Cow::Owned),
                ends_at_unix_ms: ends_at.map_or(0, UnixMs::get),
                ..ExtendWire::like(NOT_ALLOWED)
            },
            Ok(ExtendAnswer::Denied { retry_after_ms, limited_by, never }) => {
                ExtendWire::like(ReserveWire::denied(*retry_after_ms, limited_by, *never))
            }
            Ok(ExtendAnswer::Refused(Refusal::LeaseExpired)) => ExtendWire {
                error: Code::LeaseExpired,
                message: Some(
                    "lease_id: the lease was never allowed, or was completed, released or timed out; reserve with a new \
                     lease id"
                        .into(),
                ),
                ..ExtendWire::like(NOT_ALLOWED)
            },
            Ok(ExtendAnswer::Refused(refusal)) => ExtendWire::like(ReserveWire::refused(refusal)),
            Err(error) => ExtendWire {
                retry_after_ms: RETRY_SAME_LEASE_MS,
                error: code(error),
                message: Some(format!("{error}; retry with the same lease and number").into()),
                ..ExtendWire::like(NOT_ALLOWED)
            },
        }
    }

    /// The same denial or refusal of an extension.
    fn like(wire: ReserveWire<'a>) -> ExtendWire<'a> {
        let ReserveWire { retry_after_ms, error, message, limited_by, never, .. } = wire;
        ExtendWire { allowed: false, retry_after_ms, error, message, limited_by, never, ends_at_unix_ms: 0 }
    }

    /// The HTTP status. Denials and refusals are 200.
    pub(crate) fn status(&self) -> StatusCode {
        self.error.status()
    }

    pub(crate) fn outcome(&self) -> Reserved {
        self.error.outcome(self.allowed)
    }

    /// The limits that denied the request, and the reason.
    pub(crate) fn limited_by(&self) -> (&'a [LimitKey], Reason) {
        self.error.denied_by(self.limited_by)
    }
}

/// The answer to a complete.
#[derive(Serialize)]
pub(crate) struct CompleteWire<'a> {
    pub(crate) ok: bool,
    pub(crate) error: Code<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) message: Option<Cow<'a, str>>,
    pub(crate) reconciled: bool,
}

impl<'a> CompleteWire<'a> {
    pub(crate) fn of(answer: &'a Result<CompleteAnswer, BackendError>) -> CompleteWire<'a> {
        match answer {
            Ok(CompleteAnswer { reconciled, message, is_invalid, owned_by_gateway, exceeded, .. }) => CompleteWire {
                ok: !is_invalid && !owned_by_gateway && exceeded.is_none(),
                error: match exceeded {
                    Some(kind) => Code::QuotaExceeded(*kind),
                    None if *owned_by_gateway => Code::Forbidden,
                    None if *is_invalid => Code::InvalidRequest,
                    None => Code::None,
                },
                message: message.as_deref().map(Cow::Borrowed),
                reconciled: *reconciled,
            },
            Err(error) => {
                CompleteWire { ok: false, error: code(error), message: Some(retry(error).into()), reconciled: false }
            }
        }
    }

    pub(crate) fn status(&self) -> StatusCode {
        match self.outcome() {
            Completed::InvalidRequest if matches!(self.error, Code::Forbidden) => StatusCode::FORBIDDEN,
            Completed::Reconciled | Completed::Unknown | Completed::QuotaExceeded => StatusCode::OK,
            Completed::InvalidRequest => StatusCode::BAD_REQUEST,
            Completed::Overloaded => StatusCode::SERVICE_UNAVAILABLE,
            Completed::BackendError => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    pub(crate) fn outcome(&self) -> Completed {
        match self.error {
            Code::None if self.reconciled => Completed::Reconciled,
            Code::None => Completed::Unknown,
            Code::QuotaExceeded(_) => Completed::QuotaExceeded,
            Code::Overloaded => Completed::Overloaded,
            Code::BackendError => Completed::BackendError,
            Code::InvalidRequest
            | Code::Forbidden
            | Code::UnknownLimitKey(_)
            | Code::LimitDecreasing(_)
            | Code::LimitPaused(_)
            | Code::InsufficientCredit(_)
            | Code::AccountNotFound(_)
            | Code::ExceedsCapacity(_)
            | Code::ByPolicy(_)
            | Code::LeaseExpired => Completed::InvalidRequest,
        }
    }
}

fn code(error: &BackendError) -> Code<'static> {
    match error {
        BackendError::Overloaded(_) => Code::Overloaded,
        _ => Code::BackendError,
    }
}

/// A failure with advice. A retry with the same lease cannot take twice.
fn retry(error: &BackendError) -> String {
    format!("{error}; retry with the same lease")
}
