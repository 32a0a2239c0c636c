//! `POST /v1/reserve` and its batch.

use earmark_admission::{BackendError, ReserveAnswer};

use super::parse::{BatchBody, ReserveBody};
use super::reply::{Reply, Results};
use super::serve::Call;
use super::shape::{RESERVE, RESERVE_BATCH};
use crate::answer::ReserveWire;
use crate::app::App;
use crate::caller::Refused;
use crate::carry_out;
use crate::metrics::Reserved;

pub(super) async fn one(app: &App, call: Call) -> Reply {
    let body: ReserveBody = match call.parse(&RESERVE) {
        Ok(body) => body,
        Err(reply) => {
            app.metrics.reserved(Reserved::InvalidRequest);
            return reply;
        }
    };
    let answers =
        carry_out::reserve(app, &call.ticket, vec![body.into_request(&call.ticket.caller.namespace)]).await;
    if carry_out::is_turned_away(&answers) {
        return Reply::refused(Refused::Unauthenticated);
    }
    let wires = wires(&answers);
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
    let requests: Vec<_> =
        body.requests.0.into_iter().map(|body| body.into_request(&call.ticket.caller.namespace)).collect();
    if let Err(refused) = app.door.charge_batch(&call.ticket.caller, requests.len()) {
        return Reply::refused(refused);
    }
    let _place = match call.ticket.turn(requests.len()).await {
        Ok(place) => place,
        Err(refused) => return Reply::refused(refused),
    };
    let answers = carry_out::reserve(app, &call.ticket, requests).await;
    if carry_out::is_turned_away(&answers) {
        return Reply::refused(Refused::Unauthenticated);
    }
    Reply::ok(&Results { results: wires(&answers) })
}

fn wires(answers: &[Result<ReserveAnswer, BackendError>]) -> Vec<ReserveWire<'_>> {
    answers.iter().map(ReserveWire::of).collect()
}
