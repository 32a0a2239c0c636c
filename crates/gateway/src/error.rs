//! Errors in the shape that each API's SDK expects.
//!
//! A status decides what an SDK raises and whether it retries: 408, 409, 429 and 5xx are retried, unless the answer has
//! `x-should-retry: false`.

use bytes::Bytes;
use earmark_client::{CallDecision, Denial, PolicyRefusal, ReserveAnswer};
use earmark_core::LimitKey;
use earmark_policy::DecisionHeaders;
use serde_json::json;

use crate::api::Api;
use crate::body::BodyRefusal;

/// The header that names the limits in the way.
pub const LIMITED_BY: &str = "x-earmark-limited-by";
/// The longest list of limits in [`LIMITED_BY`], in bytes.
const LIMITED_BY_BYTES_MAX: usize = 4_096;

/// The kind of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The request is malformed, or asks for what has no bound.
    Invalid,
    /// The call needs more than a limit's capacity. Waiting does not help.
    ExceedsCapacity,
    /// The key is missing or not valid.
    Unauthenticated,
    /// The policy, the role of the key or its labels refuse the call.
    Forbidden,
    /// The configuration has no model of this name.
    UnknownModel,
    /// The path is no endpoint.
    NotFound,
    /// The body is too large.
    TooLarge,
    /// The client took too long to send its body.
    ClientTimeout,
    /// A limit has no room now.
    RateLimited,
    /// The credit does not suffice. Waiting does not help.
    InsufficientCredit,
    /// The gateway has as many calls as it takes.
    Overloaded,
    /// Earmark is out of reach, so nothing may pass.
    Unavailable,
    /// The upstream failed, or refused the gateway's own key.
    UpstreamFailed,
    /// The upstream did not answer in time.
    UpstreamTimeout,
}

impl ErrorKind {
    /// Every kind, for tables and metrics.
    pub const ALL: [ErrorKind; 14] = [
        ErrorKind::Invalid,
        ErrorKind::ExceedsCapacity,
        ErrorKind::Unauthenticated,
        ErrorKind::Forbidden,
        ErrorKind::UnknownModel,
        ErrorKind::NotFound,
        ErrorKind::TooLarge,
        ErrorKind::ClientTimeout,
        ErrorKind::RateLimited,
        ErrorKind::InsufficientCredit,
        ErrorKind::Overloaded,
        ErrorKind::Unavailable,
        ErrorKind::UpstreamFailed,
        ErrorKind::UpstreamTimeout,
    ];

    /// The HTTP status in an API.
    #[must_use]
    pub const fn status(self, api: Api) -> u16 {
        match (self, api) {
            (ErrorKind::Invalid | ErrorKind::ExceedsCapacity, _) => 400,
            (ErrorKind::Unauthenticated, _) => 401,
            (ErrorKind::InsufficientCredit, Api::Anthropic) => 402,
            (ErrorKind::Forbidden, _) => 403,
            (ErrorKind::UnknownModel | ErrorKind::NotFound, _) => 404,
            (ErrorKind::ClientTimeout, _) => 408,
            (ErrorKind::TooLarge, _) => 413,
            (ErrorKind::RateLimited, _) | (ErrorKind::InsufficientCredit, Api::OpenAi) => 429,
            (ErrorKind::UpstreamFailed, _) => 502,
            (ErrorKind::Overloaded | ErrorKind::Unavailable, _) => 503,
            (ErrorKind::UpstreamTimeout, _) => 504,
        }
    }

    /// The `type` of an error in OpenAI's shape.
    const fn openai_type(self) -> &'static str {
        match self {
            ErrorKind::Invalid
            | ErrorKind::ExceedsCapacity
            | ErrorKind::Unauthenticated
            | ErrorKind::Forbidden
            | ErrorKind::UnknownModel
            | ErrorKind::NotFound
            | ErrorKind::TooLarge
            | ErrorKind::ClientTimeout => "invalid_request_error",
            ErrorKind::RateLimited => "rate_limit_error",
            ErrorKind::InsufficientCredit => "insufficient_quota",
            ErrorKind::Overloaded | ErrorKind::Unavailable | ErrorKind::UpstreamFailed | ErrorKind::UpstreamTimeout => {
                "server_error"
            }
        }
    }

    /// The `code` of an error in OpenAI's shape.
    const fn openai_code(self) -> Option<&'static str> {
        match self {
            ErrorKind::Invalid => None,
            ErrorKind::ExceedsCapacity => Some("exceeds_capacity"),
            ErrorKind::Unauthenticated => Some("invalid_api_key"),
            ErrorKind::Forbidden => Some("permission_denied"),
            ErrorKind::UnknownModel => Some("model_not_found"),
            ErrorKind::NotFound => Some("unknown_url"),
            ErrorKind::TooLarge => Some("request_too_large"),
            ErrorKind::ClientTimeout => Some("request_timeout"),
            ErrorKind::RateLimited => Some("rate_limit_exceeded"),
            ErrorKind::InsufficientCredit => Some("insufficient_quota"),
            ErrorKind::Overloaded => Some("overloaded"),
            ErrorKind::Unavailable => Some("service_unavailable"),
            ErrorKind::UpstreamFailed => Some("upstream_failed"),
            ErrorKind::UpstreamTimeout => Some("upstream_timeout"),
        }
    }

    /// The `type` of an error in Anthropic's shape.
    const fn anthropic_type(self) -> &'static str {
        match self {
            ErrorKind::Invalid | ErrorKind::ExceedsCapacity => "invalid_request_error",
            ErrorKind::Unauthenticated => "authentication_error",
            ErrorKind::Forbidden => "permission_error",
            ErrorKind::UnknownModel | ErrorKind::NotFound => "not_found_error",
            ErrorKind::TooLarge => "request_too_large",
            ErrorKind::RateLimited => "rate_limit_error",
            ErrorKind::InsufficientCredit => "billing_error",
            ErrorKind::Overloaded => "overloaded_error",
            ErrorKind::ClientTimeout | ErrorKind::UpstreamTimeout => "timeout_error",
            ErrorKind::Unavailable | ErrorKind::UpstreamFailed => "api_error",
        }
    }

    /// Whether another attempt with the same request must fail too.
    #[must_use]
    pub const fn is_final(self) -> bool {
        match self {
            ErrorKind::Invalid
            | ErrorKind::ExceedsCapacity
            | ErrorKind::Unauthenticated
            | ErrorKind::Forbidden
            | ErrorKind::UnknownModel
            | ErrorKind::NotFound
            | ErrorKind::TooLarge
            | ErrorKind::InsufficientCredit => true,
            ErrorKind::ClientTimeout
            | ErrorKind::RateLimited
            | ErrorKind::Overloaded
            | ErrorKind::Unavailable
            | ErrorKind::UpstreamFailed
            | ErrorKind::UpstreamTimeout => false,
        }
    }
}

/// An error of the gateway itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiError {
    /// The kind, which decides status and type.
    pub kind: ErrorKind,
    /// The reason in words.
    pub message: String,
    /// The field of the request that is wrong.
    pub param: Option<String>,
    /// Milliseconds until another attempt may succeed, if that is known.
    pub retry_after_ms: u64,
    /// The limits in the way.
    pub limited_by: Vec<String>,
}

impl ApiError {
    /// An error of a kind, with a reason.
    #[must_use]
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> ApiError {
        ApiError { kind, message: message.into(), param: None, retry_after_ms: 0, limited_by: Vec::new() }
    }

    /// An unknown path.
    #[must_use]
    pub fn unknown_path() -> ApiError {
        let message = "this gateway has no such endpoint; it has /v1/chat/completions, /v1/completions, /v1/embeddings, \
                       /v1/responses, /v1/messages, /v1/messages/count_tokens, GET /v1/models and configured routes";
        ApiError::new(ErrorKind::NotFound, message)
    }

    /// A model that the configuration does not have.
    #[must_use]
    pub fn unknown_model(model: &str) -> ApiError {
        let message = format!("the model {model:?} does not exist; GET /v1/models lists those that do");
        ApiError { param: Some("model".to_owned()), ..ApiError::new(ErrorKind::UnknownModel, message) }
    }

    /// The error of a decision. `None` if the call is allowed.
    #[must_use]
    pub fn of(decision: &CallDecision) -> Option<ApiError> {
        match decision {
            CallDecision::Limits(answer) => of_limits(answer),
            CallDecision::Refused(PolicyRefusal { error, message }) => {
                let message = if message.is_empty() { error } else { message };
                Some(ApiError::new(ErrorKind::Forbidden, message))
            }
        }
    }

    /// The HTTP status.
    #[must_use]
    pub const fn status(&self, api: Api) -> u16 {
        self.kind.status(api)
    }

    /// The headers, but for `content-type`.
    #[must_use]
    pub fn headers(&self) -> Vec<(&'static str, String)> {
        let is_final = self.kind.is_final();
        let decision = DecisionHeaders { retry_after_ms: self.retry_after_ms, is_final, ..DecisionHeaders::default() };
        let mut headers = earmark_policy::headers(&decision);
        let mut keys = String::new();
        for key in &self.limited_by {
            if keys.len().saturating_add(key.len()) < LIMITED_BY_BYTES_MAX {
                keys.push_str(if keys.is_empty() { "" } else { ", " });
                keys.push_str(key);
            }
        }
        if !keys.is_empty() {
            headers.push((LIMITED_BY, keys));
        }
        headers
    }

    /// The JSON body.
    #[must_use]
    pub fn body(&self, api: Api, request_id: Option<&str>) -> Bytes {
        let body = match api {
            Api::OpenAi => json!({"error": {
                "message": self.message,
                "type": self.kind.openai_type(),
                "param": self.param,
                "code": self.kind.openai_code(),
            }}),
            Api::Anthropic => json!({
                "type": "error",
                "error": {"type": self.kind.anthropic_type(), "message": self.message},
                "request_id": request_id,
            }),
        };
        Bytes::from(body.to_string())
    }
}

impl From<BodyRefusal> for ApiError {
    fn from(refusal: BodyRefusal) -> ApiError {
        let param = refusal.field().map(str::to_owned);
        ApiError { param, ..ApiError::new(ErrorKind::Invalid, refusal.to_string()) }
    }
}

fn of_limits(answer: &ReserveAnswer) -> Option<ApiError> {
    let error = match answer {
        ReserveAnswer::Allowed { .. } => return None,
        ReserveAnswer::Denied(denial) => wait("rate limit reached", denial),
        ReserveAnswer::LimitDecreasing(denial) => wait("a limit is being decreased", denial),
        ReserveAnswer::LimitPaused(denial) => wait("a limit is paused", denial),
        ReserveAnswer::QuotaExceeded { retry_after, message } => {
            wait(message, &Denial { retry_after: *retry_after, limited_by: Vec::new() })
        }
        ReserveAnswer::Never { limited_by } => named(
            ErrorKind::ExceedsCapacity,
            &format!(
                "this call needs more than{} ever has; send a smaller request or a lower output cap",
                names(limited_by).unwrap_or_else(|| " a limit".to_owned())
            ),
            limited_by,
        ),
        ReserveAnswer::InsufficientCredit { key, message } => {
            let message = message.as_deref().unwrap_or("not enough credit for the most that this call may cost");
            named(ErrorKind::InsufficientCredit, message, std::slice::from_ref(key))
        }
        ReserveAnswer::AccountNotFound(key) => {
            let message = format!("the account of limit {key} does not exist; an operator must open it");
            named(ErrorKind::Forbidden, &message, std::slice::from_ref(key))
        }
        ReserveAnswer::UnknownLimitKey(key) => {
            let message = format!("the limit {key}, which the policy names, does not exist; an operator must put it");
            named(ErrorKind::Forbidden, &message, std::slice::from_ref(key))
        }
        // The lease is the gateway's own, and the next attempt has another.
        _ => ApiError::new(ErrorKind::Unavailable, "the call could not be admitted; try again"),
    };
    Some(error)
}

fn wait(reason: &str, denial: &Denial) -> ApiError {
    let retry_after_ms = u64::try_from(denial.retry_after.as_millis()).unwrap_or(u64::MAX);
    let keys = names(&denial.limited_by).map(|keys| format!(":{keys}")).unwrap_or_default();
    let message = match retry_after_ms {
        0 => format!("{reason}{keys}; try again later"),
        wait_ms => format!("{reason}{keys}; try again in {} s", wait_ms.div_ceil(1_000)),
    };
    ApiError { retry_after_ms, ..named(ErrorKind::RateLimited, &message, &denial.limited_by) }
}

/// The first limits in the way, each after a space.
fn names(limited_by: &[LimitKey]) -> Option<String> {
    let (first, more) = limited_by.split_first()?;
    Some(match more {
        [] => format!(" {first}"),
        [second] => format!(" {first} and {second}"),
        _ => format!(" {first} and {} more limits", more.len()),
    })
}

fn named(kind: ErrorKind, message: &str, limited_by: &[LimitKey]) -> ApiError {
    ApiError { limited_by: limited_by.iter().map(ToString::to_string).collect(), ..ApiError::new(kind, message) }
}

#[cfg(test)]
mod tests;
