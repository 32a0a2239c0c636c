//! `POST /v1/reserve`, `/v1/extend` and `/v1/complete`, and their batches.

use axum::body::Bytes;
use axum::http::StatusCode;
use earmark_admission::BackendError;
use serde::Serialize;

use super::parse::{BatchBody, CompleteBody, ExtendBody, LeaseBody, ReserveBody};
use super::reply::{BODY_BYTES_INITIAL, Handled, JSON, Reply, Results};
use super::serve::Call;
use crate::answer::{Code, CompleteWire, ExtendWire, ReserveWire};
use crate::app::App;
use crate::execute;
use crate::metrics::{Completed, Reserved};

/// The answer about one lease.
type Answer<T> = Result<T, BackendError>;

pub(super) async fn reserve(app: &App, call: Call) -> Handled {
    let request = request(&call, ReserveBody::scan(&call.body))
        .inspect_err(|_| app.metrics.reserved(Reserved::InvalidRequest))?;
    let answers = execute::reserve(app, &call.context, vec![request]).await;
    single(&answers, |answer| {
        let wire = ReserveWire::of(answer);
        match plain(&wire) {
            Some(body) => Reply::of(StatusCode::OK, JSON, Bytes::from(body)),
            None => Reply::answer(wire.status(), wire.message.as_deref(), &wire),
        }
    })
}

pub(super) async fn reserve_batch(app: &App, call: Call) -> Handled {
    let requests = requests::<ReserveBody>(&call).inspect_err(|_| app.metrics.reserved(Reserved::InvalidRequest))?;
    let _permit = call.context.admit(app, requests.len()).await?;
    let answers = execute::reserve(app, &call.context, requests).await;
    results(&answers, ReserveWire::of)
}

pub(super) async fn extend(app: &App, call: Call) -> Handled {
    let request = request(&call, None::<ExtendBody>).inspect_err(|_| app.metrics.extended(Reserved::InvalidRequest))?;
    let answers = execute::extend(app, &call.context, vec![request]).await;
    single(&answers, |answer| {
        let wire = ExtendWire::of(answer);
        Reply::answer(wire.status(), wire.message.as_deref(), &wire)
    })
}

pub(super) async fn extend_batch(app: &App, call: Call) -> Handled {
    let requests = requests::<ExtendBody>(&call).inspect_err(|_| app.metrics.extended(Reserved::InvalidRequest))?;
    let _permit = call.context.admit(app, requests.len()).await?;
    let answers = execute::extend(app, &call.context, requests).await;
    results(&answers, ExtendWire::of)
}

pub(super) async fn complete(app: &App, call: Call) -> Handled {
    let request = request(&call, CompleteBody::scan(&call.body))
        .inspect_err(|_| app.metrics.completed(Completed::InvalidRequest))?;
    let answers = execute::complete(app, &call.context, vec![request]).await;
    single(&answers, |answer| {
        let wire = CompleteWire::of(answer);
        Reply::answer(wire.status(), wire.message.as_deref(), &wire)
    })
}

pub(super) async fn complete_batch(app: &App, call: Call) -> Handled {
    let requests = requests::<CompleteBody>(&call).inspect_err(|_| app.metrics.completed(Completed::InvalidRequest))?;
    let _permit = call.context.admit(app, requests.len()).await?;
    let answers = execute::complete(app, &call.context, requests).await;
    results(&answers, CompleteWire::of)
}

/// The request in the body, which serde parses if it is not `scanned`.
fn request<B: LeaseBody>(call: &Call, scanned: Option<B>) -> Result<B::Request, Reply> {
    let body = scanned.map_or_else(|| call.parse(), Ok)?;
    body.into_request(&call.context.caller.namespace).map_err(|mistake| Reply::invalid(&mistake))
}

/// The requests of a batch.
fn requests<B: LeaseBody>(call: &Call) -> Result<Vec<B::Request>, Reply> {
    let body: BatchBody<B> = call.parse()?;
    let own = &call.context.caller.namespace;
    let named = |(index, body): (usize, B)| {
        body.into_request(own).map_err(|mistake| Reply::invalid(&format!("requests[{index}].{mistake}")))
    };
    body.requests.0.into_iter().enumerate().map(named).collect()
}

/// The reply to a single request.
fn single<T>(answers: &[Answer<T>], reply: impl Fn(&Answer<T>) -> Reply) -> Handled {
    match answers.first() {
        Some(Err(BackendError::Unauthenticated)) => Err(Reply::unauthenticated()),
        Some(answer) => Ok(reply(answer)),
        None => Err(BackendError::Failed("no answer".into()).into()),
    }
}

/// The reply to a batch.
fn results<'a, T, W: Serialize>(answers: &'a [Answer<T>], wire: impl Fn(&'a Answer<T>) -> W) -> Handled {
    if execute::is_unauthenticated(answers) {
        return Err(Reply::unauthenticated());
    }
    Ok(Reply::ok(&Results { results: answers.iter().map(wire).collect() }))
}

/// The JSON of a plain admission, which nearly every reserve gets.
fn plain(wire: &ReserveWire<'_>) -> Option<Vec<u8>> {
    let mut body = Vec::with_capacity(BODY_BYTES_INITIAL);
    open_plain(wire, &mut body)?;
    body.push(b'}');
    Some(body)
}

/// Writes the JSON of a plain admission without its closing brace. It takes a tenth of the instructions of serde.
pub(super) fn open_plain(wire: &ReserveWire<'_>, body: &mut Vec<u8>) -> Option<()> {
    let ReserveWire { allowed: true, retry_after_ms: 0, error: Code::None, message: None, never: false, .. } = wire
    else {
        return None;
    };
    if !wire.limited_by.is_empty() || !wire.would_deny.is_empty() {
        return None;
    }
    body.extend_from_slice(br#"{"allowed":true,"retry_after_ms":0,"reserved_at_unix_ms":"#);
    put_number(body, wire.reserved_at_unix_ms);
    body.extend_from_slice(br#","error":"""#);
    Some(())
}

/// Appends a number. A formatter takes three times the instructions.
pub(super) fn put_number(body: &mut Vec<u8>, mut number: u64) {
    let mut digits = [0; 20];
    let mut first = digits.len();
    loop {
        first -= 1;
        digits[first] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    body.extend_from_slice(&digits[first..]);
}

#[cfg(test)]
mod tests {
    use earmark_admission::ReserveAnswer;
    use earmark_core::UnixMs;

    use super::*;

    #[test]
    fn a_plain_admission_is_written_as_serde_writes_it() {
        let reserved_at = UnixMs::new(1_700_000_000_123);
        let answer = Ok(ReserveAnswer::Allowed { reserved_at, would_deny: Vec::new(), policy_revision: None });
        let wire = ReserveWire::of(&answer);
        assert_eq!(plain(&wire).unwrap(), serde_json::to_vec(&wire).unwrap());
        for reserved_at_unix_ms in [0, 9, 10, u64::MAX] {
            let wire = ReserveWire { reserved_at_unix_ms, ..ReserveWire::of(&answer) };
            assert_eq!(plain(&wire).unwrap(), serde_json::to_vec(&wire).unwrap());
        }
        for other in [
            ReserveWire { allowed: false, ..ReserveWire::of(&answer) },
            ReserveWire { message: Some("m".into()), ..ReserveWire::of(&answer) },
            ReserveWire { would_deny: &["a".parse().unwrap()], ..ReserveWire::of(&answer) },
        ] {
            assert!(plain(&other).is_none());
        }
    }
}
