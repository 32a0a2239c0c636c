//! Unary calls: the request is read whole, the response sent whole.

use axum::body::Body;
use axum::http::Request;
use tonic::Status;

use super::Serve;
use super::answer::Answer;
use super::method::Method;
use super::status::{body_error, rejected};
use crate::answer::no_room_for_change;
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
    request: Request<Body>,
) -> Answer {
    let (parts, body) = request.into_parts();
    let message = match body::read(body, app.body_bounds(context)).await {
        Ok(message) => message,
        Err(error) => return Answer::of(body_error(&error)),
    };
    let _permit = match method.queue_cost {
        QueueCost::One => match context.acquire(1).await {
            Ok(place) => Some(place),
            Err(error) => return Answer::of(rejected(error)),
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
    let Ok(response) = serve(Request::from_parts(parts, Body::from(message))).await;
    Answer::whole(response, |message| room.charge(&app.responses, context.holders(), message)).await
}
