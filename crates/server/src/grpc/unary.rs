//! Calls with one message there and one back: read in full before, answered in full after.

use axum::body::Body;
use axum::http::Request;

use super::Serve;
use super::answer::Answer;
use super::status::{refused, unread};
use crate::app::App;
use crate::body;
use crate::caller::Takes;
use crate::carry_out::Ticket;

pub(super) async fn call(
    app: &App,
    ticket: &Ticket,
    takes: Takes,
    serve: &Serve,
    request: Request<Body>,
) -> Answer {
    let (parts, body) = request.into_parts();
    let message = match body::read(body, ticket.deadline, &app.bodies).await {
        Ok(message) => message,
        Err(why) => return Answer::of(unread(&why)),
    };
    let _place = match takes {
        Takes::One => match ticket.turn(1).await {
            Ok(place) => Some(place),
            Err(why) => return Answer::of(refused(why)),
        },
        // Whoever counts them takes their places.
        Takes::Items => None,
    };
    let Ok(response) = serve(Request::from_parts(parts, Body::from(message))).await;
    Answer::whole(response, &app.answers).await
}
