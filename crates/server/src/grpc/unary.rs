//! Unary calls: the request is read whole, the response sent whole.

use axum::body::Body;
use axum::http::Request;

use super::Serve;
use super::answer::Answer;
use super::status::{body_error, rejected};
use crate::app::App;
use crate::body;
use crate::caller::QueueCost;
use crate::execute::RequestContext;

pub(super) async fn call(
    app: &App,
    context: &RequestContext,
    queue_cost: QueueCost,
    serve: &Serve,
    request: Request<Body>,
) -> Answer {
    let (parts, body) = request.into_parts();
    let message = match body::read(body, context.deadline, &app.bodies).await {
        Ok(message) => message,
        Err(error) => return Answer::of(body_error(&error)),
    };
    let _permit = match queue_cost {
        QueueCost::One => match context.acquire(1).await {
            Ok(place) => Some(place),
            Err(error) => return Answer::of(rejected(error)),
        },
        // The batch handler takes its permits.
        QueueCost::PerItem => None,
    };
    let Ok(response) = serve(Request::from_parts(parts, Body::from(message))).await;
    Answer::whole(response, &app.responses).await
}
