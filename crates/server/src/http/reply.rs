//! What a handler answers, before it is an HTTP response.

use axum::body::Bytes;
use axum::http::{HeaderValue, StatusCode};
use earmark_admission::Token;
use serde::Serialize;

use crate::answer::{BACKEND_ERROR, INVALID_REQUEST, OVERLOADED};
use crate::body::{Unread, Why};
use crate::caller::Refused;

pub(super) const JSON: HeaderValue = HeaderValue::from_static("application/json");
/// The text format of Prometheus.
pub(super) const PROMETHEUS: HeaderValue =
    HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");

/// Most answers are shorter.
const BYTES_USUAL: usize = 128;

/// What a handler answers.
pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(super) content_type: HeaderValue,
    pub(crate) body: Bytes,
    /// What is left of the request was not read, so nothing can follow it on its connection.
    pub(super) closes: bool,
    /// When to come back.
    pub(super) retry_after_seconds: Option<u64>,
    /// It has a secret in it, which nobody on the way may keep.
    pub(super) is_secret: bool,
}

/// What is wrong, in the form that every endpoint shares.
///
/// Two refusals do not have it, for hyper makes them before there is a request: 400 for what is no HTTP, and
/// 431 for a head that is too large. Both have no body, close the connection, and are not counted.
#[derive(Serialize)]
struct Problem<'a> {
    error: &'a str,
    message: &'a str,
}

/// A batch: each answer on its own.
#[derive(Serialize)]
pub(super) struct Results<T> {
    pub(super) results: Vec<T>,
}

impl Reply {
    pub(super) fn of(status: StatusCode, content_type: HeaderValue, body: Bytes) -> Reply {
        Reply { status, content_type, body, closes: false, retry_after_seconds: None, is_secret: false }
    }

    /// Whoever asks is not let in.
    pub(super) fn refused(refused: Refused) -> Reply {
        let (status, code) = match refused {
            Refused::Unauthenticated => (StatusCode::UNAUTHORIZED, UNAUTHENTICATED),
            Refused::Forbidden | Refused::NotFromHere => (StatusCode::FORBIDDEN, FORBIDDEN),
            Refused::TooMany { .. } => (StatusCode::TOO_MANY_REQUESTS, RATE_LIMITED),
        };
        let retry_after_seconds = match refused {
            Refused::TooMany { retry_after_ms } => Some(retry_after_ms.div_ceil(1_000).max(1)),
            Refused::Unauthenticated | Refused::Forbidden | Refused::NotFromHere => None,
        };
        Reply { retry_after_seconds, ..Reply::problem(status, code, refused.message()) }
    }

    pub(super) fn json(status: StatusCode, answer: &impl Serialize) -> Reply {
        let mut body = Vec::with_capacity(BYTES_USUAL);
        match serde_json::to_writer(&mut body, answer) {
            Ok(()) => Reply::of(status, JSON, Bytes::from(body)),
            // None of the answers can fail to be written; a client should still hear if one does.
            Err(error) => {
                Reply::problem(StatusCode::INTERNAL_SERVER_ERROR, BACKEND_ERROR, &error.to_string())
            }
        }
    }

    pub(super) fn ok(answer: &impl Serialize) -> Reply {
        Reply::json(StatusCode::OK, answer)
    }

    pub(super) fn problem(status: StatusCode, error: &str, message: &str) -> Reply {
        // What was found in the wrong place may be a key.
        let message = &*Token::redact(message);
        let body = serde_json::to_vec(&Problem { error, message }).unwrap_or_default();
        Reply::of(status, JSON, Bytes::from(body))
    }

    /// A body or a path that is not what the contract says.
    pub(super) fn invalid(message: &str) -> Reply {
        Reply::problem(StatusCode::BAD_REQUEST, INVALID_REQUEST, message)
    }

    pub(super) fn not_found(message: &str) -> Reply {
        Reply::problem(StatusCode::NOT_FOUND, NOT_FOUND, message)
    }

    /// What it wants did not come in time.
    pub(crate) fn too_slow(message: &str) -> Reply {
        Reply::problem(StatusCode::REQUEST_TIMEOUT, REQUEST_TIMEOUT, message)
    }

    pub(crate) fn overloaded(message: &str) -> Reply {
        Reply::problem(StatusCode::SERVICE_UNAVAILABLE, OVERLOADED, message)
    }

    pub(crate) fn not_ready(why: &str) -> Reply {
        Reply::problem(StatusCode::SERVICE_UNAVAILABLE, NOT_READY, why)
    }

    /// Why there is no body to answer to.
    pub(super) fn unread(unread: &Unread) -> Reply {
        let message = unread.message();
        let reply = match unread.why {
            Why::TooLarge => Reply::problem(StatusCode::PAYLOAD_TOO_LARGE, INVALID_REQUEST, &message),
            Why::NoRoom => Reply::overloaded(&message),
            Why::TooSlow => Reply::too_slow(&message),
            Why::CutShort(_) => Reply::invalid(&message),
        };
        if unread.is_drained { reply } else { reply.closing() }
    }

    pub(super) fn secret(self) -> Reply {
        Reply { is_secret: true, ..self }
    }

    pub(super) fn closing(self) -> Reply {
        Reply { closes: true, ..self }
    }
}

// Further codes, besides those of reserves and completes, that stand alone in the field `error`.
pub(super) const NOT_FOUND: &str = "not_found";
pub(super) const NOT_READY: &str = "not_ready";
pub(super) const METHOD_NOT_ALLOWED: &str = "method_not_allowed";
pub(super) const REQUEST_TIMEOUT: &str = "request_timeout";
pub(super) const CONFLICT: &str = "conflict";
pub(super) const UNAVAILABLE: &str = "unavailable";
pub(super) const UNAUTHENTICATED: &str = "unauthenticated";
pub(super) const FORBIDDEN: &str = "forbidden";
pub(super) const RATE_LIMITED: &str = "rate_limited";
