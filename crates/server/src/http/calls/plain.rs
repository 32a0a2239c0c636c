//! The JSON of the usual answers, as serde writes it, in a fraction of its instructions.

use axum::body::Bytes;
use axum::http::StatusCode;
use serde::Serialize;

use super::super::lease_requests::{open_plain, put_number};
use super::super::reply::{JSON, Reply, Results};
use crate::answer::{Code, CompleteWire};
use crate::calls::{CallWire, CompleteCallWire};

/// Initial buffer for each answer, in bytes: one with four limits fits.
const ANSWER_BYTES_INITIAL: usize = 384;

/// An answer that is usually plain.
pub(super) trait Plain: Serialize {
    /// Appends the answer, if it is plain.
    fn put(&self, body: &mut Vec<u8>) -> Option<()>;
}

/// The JSON of a plain answer.
pub(super) fn plain(answer: &impl Plain) -> Option<Vec<u8>> {
    let mut body = Vec::with_capacity(ANSWER_BYTES_INITIAL);
    answer.put(&mut body)?;
    Some(body)
}

/// The reply to a batch, in order.
pub(super) fn results(answers: Vec<impl Plain>) -> Reply {
    let mut body = Vec::with_capacity(ANSWER_BYTES_INITIAL * answers.len());
    body.extend_from_slice(br#"{"results":["#);
    for (place, answer) in answers.iter().enumerate() {
        if place > 0 {
            body.push(b',');
        }
        if answer.put(&mut body).is_none() {
            return Reply::ok(&Results { results: answers });
        }
    }
    body.extend_from_slice(b"]}");
    Reply::of(StatusCode::OK, JSON, Bytes::from(body))
}

/// Appends a list of limits with their amounts. JSON escapes no character of a key or a namespace.
fn put_amounts<'a>(body: &mut Vec<u8>, name: &str, amounts: impl Iterator<Item = (&'a str, u64, Option<&'a str>)>) {
    body.push(b'[');
    for (place, (key, amount, namespace)) in amounts.enumerate() {
        body.extend_from_slice(if place == 0 { br#"{"key":""# } else { br#",{"key":""# });
        body.extend_from_slice(key.as_bytes());
        body.extend_from_slice(br#"",""#);
        body.extend_from_slice(name.as_bytes());
        body.extend_from_slice(br#"":"#);
        put_number(body, amount);
        if let Some(namespace) = namespace {
            body.extend_from_slice(br#","namespace":""#);
            body.extend_from_slice(namespace.as_bytes());
            body.push(b'"');
        }
        body.push(b'}');
    }
    body.push(b']');
}

impl Plain for CallWire<'_> {
    fn put(&self, body: &mut Vec<u8>) -> Option<()> {
        open_plain(&self.reserve, body)?;
        body.extend_from_slice(br#","requirements":"#);
        put_amounts(body, "amount", self.requirements.iter().map(|part| (part.key, part.amount, part.namespace)));
        if let Some(revision) = self.policy_revision {
            body.extend_from_slice(br#","policy_revision":"#);
            put_number(body, revision);
        }
        body.push(b'}');
        Some(())
    }
}

impl Plain for CompleteCallWire<'_> {
    fn put(&self, body: &mut Vec<u8>) -> Option<()> {
        let CompleteWire { ok: true, error: Code::None, message: None, reconciled } = self.complete else {
            return None;
        };
        body.extend_from_slice(br#"{"ok":true,"error":"","reconciled":"#);
        body.extend_from_slice(if reconciled { b"true" } else { b"false" });
        body.extend_from_slice(br#","actuals":"#);
        put_amounts(
            body,
            "actual_amount",
            self.actuals.iter().map(|part| (part.key, part.actual_amount, part.namespace)),
        );
        body.extend_from_slice(br#","cost":"#);
        match self.cost {
            Some(cost) => {
                body.push(b'"');
                put_number(body, cost);
                body.push(b'"');
            }
            None => body.extend_from_slice(b"null"),
        }
        body.push(b'}');
        Some(())
    }
}
