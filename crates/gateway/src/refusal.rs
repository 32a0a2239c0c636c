//! Answers that the gateway gives itself.

use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::{Response, StatusCode};

use crate::api::Api;
use crate::error::{ApiError, ErrorKind};
use crate::reply::{Reply, ReplyBody};

/// The wait that a client should keep before it tries a busy or unreachable server again, in milliseconds.
const RETRY_AFTER_MS: u64 = 1_000;

/// A request that is malformed.
pub(crate) fn invalid(why: &impl ToString) -> ApiError {
    ApiError::new(ErrorKind::Invalid, why.to_string())
}

/// Earmark is out of reach.
pub(crate) fn unavailable(message: &str) -> ApiError {
    ApiError { retry_after_ms: RETRY_AFTER_MS, ..ApiError::new(ErrorKind::Unavailable, message) }
}

/// A bound of the gateway is reached.
pub(crate) fn busy(what: &str) -> ApiError {
    let message = format!("this gateway has too many {what}; nothing was sent, retry later");
    ApiError { retry_after_ms: RETRY_AFTER_MS, ..ApiError::new(ErrorKind::Overloaded, message) }
}

/// The answer that refuses a request.
pub(crate) fn reply(api: Api, error: &ApiError, request_id: &str) -> Reply {
    let mut reply = Response::new(ReplyBody::whole(error.body(api, Some(request_id))));
    *reply.status_mut() = StatusCode::from_u16(error.status(api)).unwrap_or(StatusCode::BAD_GATEWAY);
    let headers = reply.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    // The SDK of Anthropic shows this header with an error.
    if api == Api::Anthropic
        && let Ok(value) = HeaderValue::from_str(request_id)
    {
        headers.insert(HeaderName::from_static("request-id"), value);
    }
    for (name, value) in error.headers() {
        if let Ok(value) = HeaderValue::from_str(&value) {
            headers.insert(HeaderName::from_static(name), value);
        }
    }
    reply
}
