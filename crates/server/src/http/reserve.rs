//! `POST /v1/reserve` and its batch.

use earmark_admission::{BackendError, ReserveAnswer, ReserveRequest};

use super::answer::{ReserveWire, Results, of_batch};
use super::parse::{BatchBody, ReserveBody};
use super::reply::Reply;
use super::serve::Call;
use super::shape::{RESERVE, RESERVE_BATCH};
use crate::app::App;
use crate::metrics::Reserved;

pub(super) async fn one(app: &App, call: Call) -> Reply {
    let body: ReserveBody = match call.parse(&RESERVE) {
        Ok(body) => body,
        Err(reply) => {
            app.metrics.reserved(Reserved::InvalidRequest);
            return reply;
        }
    };
    let answers = carry_out(app, &call, vec![body.into_request(&app.namespace)]).await;
    let wires = count(app, &answers);
    match wires.first() {
        Some(wire) => Reply::json(wire.status(), wire),
        None => Reply::ok(&Results { results: wires }),
    }
}

pub(super) async fn batch(app: &App, call: Call) -> Reply {
    let body: BatchBody<ReserveBody> = match call.parse(&RESERVE_BATCH) {
        Ok(body) => body,
        Err(reply) => {
            app.metrics.reserved(Reserved::InvalidRequest);
            return reply;
        }
    };
    let requests = body.requests.0.into_iter().map(|body| body.into_request(&app.namespace)).collect();
    let answers = carry_out(app, &call, requests).await;
    Reply::ok(&Results { results: count(app, &answers) })
}

async fn carry_out(
    app: &App,
    call: &Call,
    requests: Vec<ReserveRequest>,
) -> Vec<Result<ReserveAnswer, BackendError>> {
    for request in &requests {
        let job = request.job.as_ref().map(tracing::field::display);
        tracing::debug!(request_id = call.id(), lease = %request.lease, job, "reserve");
    }
    let count = requests.len();
    of_batch(app.by(call.deadline, app.backend.reserve(requests)).await, count)
}

fn count<'a>(app: &App, answers: &'a [Result<ReserveAnswer, BackendError>]) -> Vec<ReserveWire<'a>> {
    let wires: Vec<ReserveWire<'_>> = answers.iter().map(ReserveWire::of).collect();
    for wire in &wires {
        app.metrics.reserved(wire.outcome());
        let (keys, reason) = wire.limited_by();
        app.metrics.denied_by(keys, reason);
    }
    wires
}
