//! Unary calls: the request is read whole, the response sent whole.

use axum::body::Body;
use axum::http::Request;
use axum::http::request::Parts;
use hyper::body::Incoming;
use tonic::Status;

use super::Serve;
use super::answer::Answer;
use super::method::Method;
use super::status::body_error;
use crate::answer::{no_room_for_change, no_room_for_read};
use crate::app::App;
use crate::body;
use crate::budget::AnswerRoom;
use crate::caller::{Access, QueueCost};
use crate::execute::RequestContext;

pub(super) async fn call(
    app: &App,
    context: &RequestContext,
    method: &Method,
    serve: &Serve,
    (parts, body): (Parts, Incoming),
) -> Answer {
    let message = match body::read(body, app.body_bounds(context)).await {
        Ok(message) => message,
        Err(error) => return Answer::of(body_error(&error)),
    };
    let _permit = match method.queue_cost {
        QueueCost::One => match context.acquire(1).await {
            Ok(place) => Some(place),
            Err(error) => return Answer::of(error.into()),
        },
        // The batch handler takes its permits.
        QueueCost::PerItem => None,
    };
    let room = match method.access {
        Access::Public | Access::Read | Access::ReadLimits | Access::Explain | Access::Identify => {
            Ok(AnswerRoom::of_read())
        }
        Access::Call
        | Access::Settle
        | Access::Proxy
        | Access::Pause
        | Access::Write
        | Access::Manage
        | Access::Operate => AnswerRoom::of_change(&app.responses, context.holders(), message.len()),
    };
    let room = match room {
        Ok(room) => room,
        Err(who) => return Answer::of(Status::unavailable(no_room_for_change(who))),
    };
    let charge = |message| room.charge(&app.responses, context.holders(), message);
    match serve {
        Serve::Tonic(serve) => {
            Box::pin(async {
                let mut request = Request::from_parts(parts, Body::from(message));
                request.extensions_mut().insert(context.clone());
                let Ok(response) = serve(request).await;
                Answer::whole(response, charge).await
            })
            .await
        }
        Serve::RateLimit(service) => match service.serve(context, &message).await.map(charge) {
            Ok(Ok(message)) => Answer::Message(message),
            Ok(Err(who)) => Answer::of(Status::unavailable(no_room_for_read(who))),
            Err(status) => Answer::of(status),
        },
    }
}
