//! `POST /v1/extend` and its batch.

use earmark_admission::{BackendError, ExtendAnswer};

use super::parse::{BatchBody, ExtendBody};
use super::reply::{Reply, Results};
use super::serve::Call;
use crate::answer::ExtendWire;
use crate::app::App;
use crate::execute;
use crate::metrics::Reserved;

pub(super) async fn one(app: &App, call: Call) -> Reply {
    let body: ExtendBody = match call.parse() {
        Ok(body) => body,
        Err(reply) => {
            app.metrics.extended(Reserved::InvalidRequest);
            return reply;
        }
    };
    let request = match body.into_request(&call.context.caller.namespace) {
        Ok(request) => request,
        Err(mistake) => {
            app.metrics.extended(Reserved::InvalidRequest);
            return Reply::invalid(&mistake);
        }
    };
    let answers = execute::extend(app, &call.context, vec![request]).await;
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
    let body: BatchBody<ExtendBody> = match call.parse() {
        Ok(body) => body,
        Err(reply) => {
            app.metrics.extended(Reserved::InvalidRequest);
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
            app.metrics.extended(Reserved::InvalidRequest);
            return Reply::invalid(&mistake);
        }
    };
    let _permit = match call.context.admit(app, requests.len()).await {
        Ok(permit) => permit,
        Err(error) => return Reply::rejected(&error),
    };
    let answers = execute::extend(app, &call.context, requests).await;
    if execute::is_unauthenticated(&answers) {
        return Reply::unauthenticated();
    }
    Reply::ok(&Results { results: wires(&answers) })
}

fn wires(answers: &[Result<ExtendAnswer, BackendError>]) -> Vec<ExtendWire<'_>> {
    answers.iter().map(ExtendWire::of).collect()
}
