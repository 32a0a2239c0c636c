//! The routes of calls.

use super::{CallBody, CompleteCallBody, ExplainBody, ExtendCallBody};
use crate::caller::{Access, QueueCost};
use crate::http::parse::BatchBody;
use crate::http::route::{Documented, EXTEND_ANSWER, FAILED, OVERLOADED, Route, answer, post};
use crate::http::shape::{self, Described as _};

const COMPLETE_CALL_ANSWER: &[&str] = &["CompleteCallAnswer"];
const CALL_ANSWERS: &[Documented] = &[
    answer(200, &["CallAnswer"], "Allowed, denied or refused. With `status=true` only allowed."),
    answer(
        400,
        &["Problem", "CallAnswer"],
        "Malformed. With `status=true` also: an amount exceeds a capacity, a limit is unknown, or the lease was used.",
    ),
    answer(402, &["CallAnswer"], "With `status=true`: an account has too little credit, or does not exist."),
    answer(
        403,
        &["Problem", "CallAnswer"],
        "`forbidden`: the caller lacks a role or may not set an attribute. With `status=true` also: the policy refuses it.",
    ),
    answer(
        429,
        &["Problem", "CallAnswer"],
        "`rate_limited`: too many requests. With `status=true` also: denied; see the headers `retry-after-ms` and \
         `retry-after`.",
    ),
    answer(500, &["CallAnswer"], "`backend_error`: the outcome is unknown. Retry with the same lease."),
    answer(503, &["CallAnswer", "Problem"], "`overloaded`: nothing happened. Retry with the same lease."),
];

pub(in crate::http) const CALL: Route = Route {
    body: Some(&CallBody::SHAPE),
    query: shape::CALL_QUERY,
    operation: "call",
    about: "Reserves the limits that the policy names for a call: all, or none.",
    answers: CALL_ANSWERS,
    ..post("/v1/calls", Access::Call, |app, call| Box::pin(super::one(app, call)))
};

pub(in crate::http) const CALL_BATCH: Route = Route {
    body: Some(&BatchBody::<CallBody>::SHAPE),
    queue_cost: QueueCost::PerItem,
    operation: "call_batch",
    about: "Executes up to 256 independent calls of one caller; the results have the same order.",
    answers: &[answer(200, &["CallResults"], "A result for each, failures included.")],
    ..post("/v1/calls/batch", Access::Call, |app, call| Box::pin(super::batch(app, call)))
};

pub(in crate::http) const COMPLETE_BATCH: Route = Route {
    body: Some(&BatchBody::<CompleteCallBody>::SHAPE),
    queue_cost: QueueCost::PerItem,
    operation: "complete_call_batch",
    about: "Settles up to 256 independent calls; the results have the same order.",
    answers: &[answer(200, &["CompleteCallResults"], "A result for each, failures included.")],
    ..post("/v1/calls/complete/batch", Access::Settle, |app, call| Box::pin(super::complete_batch(app, call)))
};

pub(in crate::http) const EXTEND: Route = Route {
    body: Some(&ExtendCallBody::SHAPE),
    operation: "extend_call",
    about: "Takes more output tokens for a call, all or nothing, renews its lease, and reports its usage so far.",
    answers: &[
        answer(
            200,
            EXTEND_ANSWER,
            "Extended, denied, or refused for an ended lease, other attributes, a number out of order, an unknown \
             limit, or missing credit.",
        ),
        answer(500, EXTEND_ANSWER, "`backend_error`: the outcome is unknown. Retry with the same number."),
        answer(503, &["ExtendAnswer", "Problem"], "`overloaded`: nothing happened. Retry with the same number."),
    ],
    ..post("/v1/calls/extend", Access::Settle, |app, call| Box::pin(super::extend(app, call)))
};

pub(in crate::http) const COMPLETE: Route = Route {
    body: Some(&CompleteCallBody::SHAPE),
    operation: "complete_call",
    about: "Settles a call by its usage; the rest is freed at once.",
    answers: &[
        answer(200, COMPLETE_CALL_ANSWER, "Completed, now or before; or the lease is unknown."),
        answer(
            400,
            &["Problem", "CompleteCallAnswer"],
            "Malformed, or not the attributes of the call; nothing was done.",
        ),
        answer(500, COMPLETE_CALL_ANSWER, "`backend_error`: the outcome is unknown. Complete again."),
        answer(503, &["CompleteCallAnswer", "Problem"], "`overloaded`: nothing happened. Complete again."),
    ],
    ..post("/v1/calls/complete", Access::Settle, |app, call| Box::pin(super::complete(app, call)))
};

pub(in crate::http) const EXPLAIN: Route = Route {
    body: Some(&ExplainBody::SHAPE),
    query: shape::EXPLAIN_QUERY,
    operation: "explain_call",
    about: "Explains what the answer to a call would be: the rules that match, the limits, and how full they are. \
            Takes nothing.",
    answers: &[answer(200, &["Explanation"], "The explanation."), FAILED, OVERLOADED],
    ..post("/v1/calls/explain", Access::Explain, |app, call| Box::pin(super::explain(app, call)))
};
