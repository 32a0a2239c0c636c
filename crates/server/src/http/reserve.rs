//! `POST /v1/reserve` and its batch.

use std::io::Write as _;

use axum::body::Bytes;
use axum::http::StatusCode;
use earmark_admission::{BackendError, ReserveAnswer};

use super::parse::{BatchBody, ReserveBody};
use super::reply::{BODY_BYTES_INITIAL, JSON, Reply, Results};
use super::serve::Call;
use crate::answer::{Code, ReserveWire};
use crate::app::App;
use crate::execute;
use crate::metrics::Reserved;

pub(super) async fn one(app: &App, call: Call) -> Reply {
    let body = match ReserveBody::scan(&call.body).map_or_else(|| call.parse(), Ok) {
        Ok(body) => body,
        Err(reply) => {
            app.metrics.reserved(Reserved::InvalidRequest);
            return reply;
        }
    };
    let request = match body.into_request(&call.context.caller.namespace) {
        Ok(request) => request,
        Err(mistake) => {
            app.metrics.reserved(Reserved::InvalidRequest);
            return Reply::invalid(&mistake);
        }
    };
    let answers = execute::reserve(app, &call.context, vec![request]).await;
    if execute::is_unauthenticated(&answers) {
        return Reply::unauthenticated();
    }
    match answers.first().map(ReserveWire::of) {
        Some(wire) => match plain(&wire) {
            Some(body) => Reply::of(StatusCode::OK, JSON, Bytes::from(body)),
            None => Reply::answer(wire.status(), wire.message.as_deref(), &wire),
        },
        None => Reply::ok(&Results { results: wires(&answers) }),
    }
}

pub(super) async fn batch(app: &App, call: Call) -> Reply {
    let body: BatchBody<ReserveBody> = match call.parse() {
        Ok(body) => body,
        Err(reply) => {
            app.metrics.reserved(Reserved::InvalidRequest);
            return reply;
        }
    };
    let own = &call.context.caller.namespace;
    let requests = body.requests.0.into_iter().enumerate();
    let requests =
        requests.map(|(index, body)| body.into_request(own).map_err(|mistake| format!("requests[{index}].{mistake}")));
    let requests: Vec<_> = match requests.collect::<Result<_, _>>() {
        Ok(requests) => requests,
        Err(mistake) => {
            app.metrics.reserved(Reserved::InvalidRequest);
            return Reply::invalid(&mistake);
        }
    };
    let _permit = match call.context.admit(app, requests.len()).await {
        Ok(permit) => permit,
        Err(error) => return Reply::rejected(&error),
    };
    let answers = execute::reserve(app, &call.context, requests).await;
    if execute::is_unauthenticated(&answers) {
        return Reply::unauthenticated();
    }
    Reply::ok(&Results { results: wires(&answers) })
}

/// The JSON of a plain admission, which nearly every reserve gets. Writing it takes a tenth of the instructions of serde.
fn plain(wire: &ReserveWire<'_>) -> Option<Vec<u8>> {
    let ReserveWire { allowed: true, retry_after_ms: 0, error: Code::None, message: None, never: false, .. } = wire
    else {
        return None;
    };
    if !wire.limited_by.is_empty() || !wire.would_deny.is_empty() {
        return None;
    }
    let mut body = Vec::with_capacity(BODY_BYTES_INITIAL);
    body.extend_from_slice(br#"{"allowed":true,"retry_after_ms":0,"reserved_at_unix_ms":"#);
    // Writing to a vector does not fail.
    _ = write!(body, "{}", wire.reserved_at_unix_ms);
    body.extend_from_slice(br#","error":""}"#);
    Some(body)
}

fn wires(answers: &[Result<ReserveAnswer, BackendError>]) -> Vec<ReserveWire<'_>> {
    answers.iter().map(ReserveWire::of).collect()
}

#[cfg(test)]
mod tests {
    use earmark_core::UnixMs;

    use super::*;

    #[test]
    fn a_plain_admission_is_written_as_serde_writes_it() {
        let reserved_at = UnixMs::new(1_700_000_000_123);
        let answer = Ok(ReserveAnswer::Allowed { reserved_at, would_deny: Vec::new(), policy_revision: None });
        let wire = ReserveWire::of(&answer);
        assert_eq!(plain(&wire).unwrap(), serde_json::to_vec(&wire).unwrap());
        for other in [
            ReserveWire { allowed: false, ..ReserveWire::of(&answer) },
            ReserveWire { message: Some("m".into()), ..ReserveWire::of(&answer) },
            ReserveWire { would_deny: &["a".parse().unwrap()], ..ReserveWire::of(&answer) },
        ] {
            assert!(plain(&other).is_none());
        }
    }
}
