//! `POST /v1/complete` and its batch.

use earmark_admission::{BackendError, CompleteAnswer};

use super::parse::{BatchBody, CompleteBody};
use super::reply::{Reply, Results};
use super::serve::Call;
use crate::answer::CompleteWire;
use crate::app::App;
use crate::execute;
use crate::metrics::Completed;

pub(super) async fn one(app: &App, call: Call) -> Reply {
    let body = match CompleteBody::scan(&call.body).map_or_else(|| call.parse(), Ok) {
        Ok(body) => body,
        Err(reply) => {
            app.metrics.completed(Completed::InvalidRequest);
            return reply;
        }
    };
    let request = match body.into_request(&call.context.caller.namespace) {
        Ok(request) => request,
        Err(mistake) => {
            app.metrics.completed(Completed::InvalidRequest);
            return Reply::invalid(&mistake);
        }
    };
    let answers = execute::complete(app, &call.context, vec![request]).await;
    if execute::is_unauthenticated(&answers) {
        return Reply::unauthenticated();
    }
    let wires = wires(&answers);
    match wires.first() {
        Some(wire) => Reply::answer(wire.status(), wire.message.as_deref(), wire),
        None => Reply::ok(&Results { results: wires }),
    }
}

pub(super) async fn batch(app: &App, call: Call) -> Reply {
    let body: BatchBody<CompleteBody> = match call.parse() {
        Ok(body) => body,
        Err(reply) => {
            app.metrics.completed(Completed::InvalidRequest);
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
            app.metrics.completed(Completed::InvalidRequest);
            return Reply::invalid(&mistake);
        }
    };
    let _permit = match call.context.admit(app, requests.len()).await {
        Ok(permit) => permit,
        Err(error) => return Reply::rejected(&error),
    };
    let answers = execute::complete(app, &call.context, requests).await;
    if execute::is_unauthenticated(&answers) {
        return Reply::unauthenticated();
    }
    Reply::ok(&Results { results: wires(&answers) })
}

fn wires(answers: &[Result<CompleteAnswer, BackendError>]) -> Vec<CompleteWire<'_>> {
    answers.iter().map(CompleteWire::of).collect()
}
