//! `POST /v1/complete` and its batch.

use earmark_admission::{BackendError, CompleteAnswer, CompleteRequest};

use super::answer::{CompleteWire, Results, of_batch};
use super::parse::{BatchBody, CompleteBody};
use super::reply::Reply;
use super::serve::Call;
use super::shape::{COMPLETE, COMPLETE_BATCH};
use crate::app::App;
use crate::metrics::Completed;

pub(super) async fn one(app: &App, call: Call) -> Reply {
    let body: CompleteBody = match call.parse(&COMPLETE) {
        Ok(body) => body,
        Err(reply) => {
            app.metrics.completed(Completed::InvalidRequest);
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
    let body: BatchBody<CompleteBody> = match call.parse(&COMPLETE_BATCH) {
        Ok(body) => body,
        Err(reply) => {
            app.metrics.completed(Completed::InvalidRequest);
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
    requests: Vec<CompleteRequest>,
) -> Vec<Result<CompleteAnswer, BackendError>> {
    for request in &requests {
        let job = request.job.as_ref().map(tracing::field::display);
        tracing::debug!(request_id = call.id(), lease = %request.lease, job, "complete");
    }
    let count = requests.len();
    of_batch(app.by(call.deadline, app.backend.complete(requests)).await, count)
}

fn count<'a>(app: &App, answers: &'a [Result<CompleteAnswer, BackendError>]) -> Vec<CompleteWire<'a>> {
    for answer in answers.iter().flatten() {
        app.metrics.settled(answer);
    }
    let wires: Vec<CompleteWire<'_>> = answers.iter().map(CompleteWire::of).collect();
    for wire in &wires {
        app.metrics.completed(wire.outcome());
    }
    wires
}
