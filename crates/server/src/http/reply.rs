//! The reply of a handler, before it becomes an HTTP response.

use axum::body::Bytes;
use axum::http::{HeaderValue, StatusCode};
use earmark_admission::{BackendError, CreditReadError};
use earmark_core::redact_api_keys;
use serde::Serialize;

use super::archive::Archive;
use super::{limits, vaults};
use crate::answer::{BACKEND_ERROR, INVALID_REQUEST, OVERLOADED};
use crate::body::{BodyError, BodyErrorKind};
use crate::caller::AuthError;
use crate::events::Subscription;

pub(super) const JSON: HeaderValue = HeaderValue::from_static("application/json");
/// The Prometheus text format.
pub(super) const PROMETHEUS: HeaderValue = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");

pub(super) const EVENT_STREAM: HeaderValue = HeaderValue::from_static("text/event-stream");

/// Initial buffer for a JSON body, in bytes; most are shorter.
pub(super) const BODY_BYTES_INITIAL: usize = 128;

pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(super) content_type: HeaderValue,
    pub(crate) body: Bytes,
    /// The connection closes, because the rest of the request was not read.
    pub(super) closes: bool,
    /// The request exceeded the rate of its caller, who may retry after this time.
    pub(super) retry_after_ms: Option<u64>,
    /// The body has a secret, which caches must not store.
    pub(super) is_secret: bool,
    /// All replies share the memory of the body, so it is not charged to a budget.
    pub(super) is_shared: bool,
    /// The body is this stream.
    pub(super) stream: Option<Box<Streamed>>,
    /// More headers.
    pub(super) headers: Box<[(&'static str, String)]>,
}

/// A body that is made while it is sent.
pub(super) enum Streamed {
    Archive(Archive),
    Events(Subscription),
}

/// The error body of every route.
///
/// Two errors have none, because hyper sends them before there is a request: 400 for malformed HTTP, and 431 for an
/// oversized head. Both close the connection and are not counted.
#[derive(Serialize)]
struct Problem<'a> {
    error: &'a str,
    message: &'a str,
}

/// The reply of a handler. A refusal is an error, which handlers pass on.
pub(super) type Handled = Result<Reply, Reply>;

impl From<AuthError> for Reply {
    fn from(error: AuthError) -> Reply {
        Reply::rejected(&error)
    }
}

impl From<BackendError> for Reply {
    fn from(error: BackendError) -> Reply {
        limits::failed(&error)
    }
}

impl From<CreditReadError> for Reply {
    fn from(error: CreditReadError) -> Reply {
        vaults::failed(&error)
    }
}

/// The answers to a batch, in order.
#[derive(Serialize)]
pub(super) struct Results<T> {
    pub(super) results: Vec<T>,
}

impl Reply {
    pub(super) fn of(status: StatusCode, content_type: HeaderValue, body: Bytes) -> Reply {
        let (closes, retry_after_ms, is_secret, is_shared) = (false, None, false, false);
        let (stream, headers) = (None, Box::default());
        Reply { status, content_type, body, closes, retry_after_ms, is_secret, is_shared, stream, headers }
    }

    /// The reply to a rejected request.
    pub(super) fn rejected(error: &AuthError) -> Reply {
        let (status, code) = match error {
            AuthError::Unauthenticated | AuthError::ClientUnauthenticated | AuthError::Certificate(_) => {
                (StatusCode::UNAUTHORIZED, UNAUTHENTICATED)
            }
            AuthError::Forbidden(_) | AuthError::NotLocal => (StatusCode::FORBIDDEN, FORBIDDEN),
            AuthError::RateLimited { .. } => (StatusCode::TOO_MANY_REQUESTS, RATE_LIMITED),
        };
        let retry_after_ms = match error {
            AuthError::RateLimited { retry_after_ms } => Some(*retry_after_ms),
            AuthError::Unauthenticated
            | AuthError::ClientUnauthenticated
            | AuthError::Certificate(_)
            | AuthError::Forbidden(_)
            | AuthError::NotLocal => None,
        };
        Reply { retry_after_ms, ..Reply::problem(status, code, &error.message()) }
    }

    /// A file that is sent while it is read. Proxies must not store it.
    pub(super) fn archive(content_type: HeaderValue, archive: Archive) -> Reply {
        let stream = Some(Box::new(Streamed::Archive(archive)));
        Reply { is_secret: true, stream, ..Reply::of(StatusCode::OK, content_type, Bytes::new()) }
    }

    pub(super) fn unauthenticated() -> Reply {
        Reply::rejected(&AuthError::Unauthenticated)
    }

    /// A stream of events. Proxies must neither store nor collect it.
    pub(super) fn events(subscription: Subscription) -> Reply {
        Reply {
            is_secret: true,
            stream: Some(Box::new(Streamed::Events(subscription))),
            headers: Box::new([("x-accel-buffering", "no".to_owned())]),
            ..Reply::of(StatusCode::OK, EVENT_STREAM, Bytes::new())
        }
    }

    /// The answer to a request about a lease. A lease that belongs to a gateway is a problem, like a missing permission.
    pub(super) fn answer(status: StatusCode, message: Option<&str>, answer: &impl Serialize) -> Reply {
        match status {
            StatusCode::FORBIDDEN => Reply::problem(status, FORBIDDEN, message.unwrap_or_default()),
            _ => Reply::json(status, answer),
        }
    }

    pub(super) fn json(status: StatusCode, answer: &impl Serialize) -> Reply {
        let mut body = Vec::with_capacity(BODY_BYTES_INITIAL);
        match serde_json::to_writer(&mut body, answer) {
            Ok(()) => Reply::of(status, JSON, Bytes::from(body)),
            // Serializing an answer does not fail; if it did, the client must still get a response.
            Err(error) => Reply::problem(StatusCode::INTERNAL_SERVER_ERROR, BACKEND_ERROR, &error.to_string()),
        }
    }

    pub(super) fn ok(answer: &impl Serialize) -> Reply {
        Reply::json(StatusCode::OK, answer)
    }

    pub(super) fn problem(status: StatusCode, error: &str, message: &str) -> Reply {
        // The message may quote a key that was sent in a wrong field.
        let message = &*redact_api_keys(message);
        let body = serde_json::to_vec(&Problem { error, message }).unwrap_or_default();
        Reply::of(status, JSON, Bytes::from(body))
    }

    /// A malformed head, body, path or query.
    pub(crate) fn invalid(message: &str) -> Reply {
        Reply::problem(StatusCode::BAD_REQUEST, INVALID_REQUEST, message)
    }

    pub(super) fn not_found(message: &str) -> Reply {
        Reply::problem(StatusCode::NOT_FOUND, NOT_FOUND, message)
    }

    /// A request that did not arrive in time.
    pub(crate) fn too_slow(message: &str) -> Reply {
        Reply::problem(StatusCode::REQUEST_TIMEOUT, REQUEST_TIMEOUT, message)
    }

    pub(crate) fn overloaded(message: &str) -> Reply {
        Reply::problem(StatusCode::SERVICE_UNAVAILABLE, OVERLOADED, message)
    }

    pub(crate) fn not_ready(why: &str) -> Reply {
        Reply::problem(StatusCode::SERVICE_UNAVAILABLE, NOT_READY, why)
    }

    /// The reply to a body that could not be read.
    pub(super) fn body_error(error: &BodyError) -> Reply {
        let message = error.message();
        let reply = match error.kind {
            BodyErrorKind::TooLarge => Reply::problem(StatusCode::PAYLOAD_TOO_LARGE, INVALID_REQUEST, &message),
            BodyErrorKind::NoMemory(_) => Reply::overloaded(&message),
            BodyErrorKind::TooSlow => Reply::too_slow(&message),
            BodyErrorKind::Incomplete(_) => Reply::invalid(&message),
        };
        if error.is_drained { reply } else { reply.closing() }
    }

    pub(super) fn secret(self) -> Reply {
        Reply { is_secret: true, ..self }
    }

    pub(super) fn closing(self) -> Reply {
        Reply { closes: true, ..self }
    }
}

// Values of the field `error`, besides those of reserve and complete.
pub(super) const NOT_FOUND: &str = "not_found";
pub(super) const NOT_READY: &str = "not_ready";
pub(super) const METHOD_NOT_ALLOWED: &str = "method_not_allowed";
pub(super) const REQUEST_TIMEOUT: &str = "request_timeout";
pub(super) const CONFLICT: &str = "conflict";
pub(super) const UNAVAILABLE: &str = "unavailable";
pub(super) const UNAUTHENTICATED: &str = "unauthenticated";
pub(super) const FORBIDDEN: &str = "forbidden";
pub(super) const RATE_LIMITED: &str = "rate_limited";
