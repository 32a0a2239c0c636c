//! The answers to calls, for HTTP and gRPC alike.

use axum::http::StatusCode;
use earmark_admission::Amount;
use earmark_core::LimitKey;
use earmark_policy::{DecisionHeaders, LimitState, Refusal};
use serde::{Serialize, Serializer};

use super::settle::CompletedCall;
use super::{Called, Decision};
use crate::answer::{Code, CompleteWire, ReserveWire};

/// The answer to a call.
#[derive(Serialize)]
pub(crate) struct CallWire<'a> {
    #[serde(flatten)]
    pub(crate) reserve: ReserveWire<'a>,
    pub(crate) requirements: Vec<RequirementWire<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) policy_revision: Option<u64>,
}

/// The answer to the end of a call.
#[derive(Serialize)]
pub(crate) struct CompleteCallWire<'a> {
    #[serde(flatten)]
    pub(crate) complete: CompleteWire<'a>,
    pub(crate) actuals: Vec<ActualWire<'a>>,
    /// `None` if it is not known.
    #[serde(serialize_with = "decimal")]
    pub(crate) cost: Option<u64>,
}

/// A requirement, as a reserve takes it.
#[derive(Serialize)]
pub(crate) struct RequirementWire<'a> {
    pub(crate) key: &'a str,
    pub(crate) amount: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) namespace: Option<&'a str>,
}

/// An actual amount, as a complete takes it.
#[derive(Serialize)]
pub(crate) struct ActualWire<'a> {
    pub(crate) key: &'a str,
    pub(crate) actual_amount: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) namespace: Option<&'a str>,
}

/// A cost as text, so that no client rounds it.
#[allow(clippy::ref_option, reason = "serde passes fields by reference")]
pub(crate) fn decimal<S: Serializer>(cost: &Option<u64>, serializer: S) -> Result<S::Ok, S::Error> {
    match cost {
        Some(cost) => serializer.collect_str(cost),
        None => serializer.serialize_none(),
    }
}

/// The namespace of a limit of another one, and the key without it.
fn split(key: &LimitKey) -> (Option<&str>, &str) {
    let text = key.as_str();
    text.strip_prefix('!').and_then(|rest| rest.split_once(':')).map_or((None, text), |(of, key)| (Some(of), key))
}

impl<'a> CallWire<'a> {
    pub(crate) fn of(called: &'a Called) -> CallWire<'a> {
        let reserve = match &called.decision {
            Decision::Refused(refusal) => ReserveWire::by_policy(refusal),
            Decision::Free => ReserveWire::free(),
            Decision::Limits(answer) => ReserveWire::of(answer),
        };
        let requirement = |part: &'a Amount| {
            let (namespace, key) = split(&part.key);
            RequirementWire { key, amount: part.amount, namespace }
        };
        let requirements = called.requirements.iter().map(requirement).collect();
        CallWire { reserve, requirements, policy_revision: called.policy_revision }
    }

    /// The headers of the decision.
    pub(crate) fn headers(&self, limits: &[LimitState<'_>]) -> Vec<(&'static str, String)> {
        let ReserveWire { allowed, retry_after_ms, .. } = self.reserve;
        let status = strict_status(&self.reserve);
        let is_final = !allowed && status != StatusCode::TOO_MANY_REQUESTS && !status.is_server_error();
        earmark_policy::headers(&DecisionHeaders { is_allowed: allowed, retry_after_ms, is_final, limits })
    }
}

/// The HTTP status of a decision for clients that read no bodies.
pub(crate) fn strict_status(wire: &ReserveWire<'_>) -> StatusCode {
    match wire.error {
        Code::None if wire.allowed => StatusCode::OK,
        Code::None | Code::LimitDecreasing(_) | Code::LimitPaused(_) | Code::QuotaExceeded(_) => {
            StatusCode::TOO_MANY_REQUESTS
        }
        Code::InsufficientCredit(_) | Code::AccountNotFound(_) => StatusCode::PAYMENT_REQUIRED,
        Code::ByPolicy(
            Refusal::DeniedByRule { .. }
            | Refusal::MissingAttribute(_)
            | Refusal::NoPrice(_)
            | Refusal::NoRule
            | Refusal::NoPolicy,
        )
        | Code::Forbidden => StatusCode::FORBIDDEN,
        Code::ByPolicy(Refusal::InvalidKey(_) | Refusal::TooManyLimits | Refusal::OtherAsset { .. })
        | Code::InvalidRequest
        | Code::UnknownLimitKey(_)
        | Code::ExceedsCapacity(_)
        | Code::LeaseExpired => StatusCode::BAD_REQUEST,
        Code::Overloaded => StatusCode::SERVICE_UNAVAILABLE,
        Code::BackendError => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

impl<'a> CompleteCallWire<'a> {
    pub(crate) fn of(completed: &'a CompletedCall) -> CompleteCallWire<'a> {
        let actual = |part: &'a Amount| {
            let (namespace, key) = split(&part.key);
            ActualWire { key, actual_amount: part.amount, namespace }
        };
        CompleteCallWire {
            complete: CompleteWire::of(&completed.answer),
            actuals: completed.actuals.iter().map(actual).collect(),
            cost: completed.cost,
        }
    }
}
