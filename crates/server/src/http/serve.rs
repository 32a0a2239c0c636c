//! From an HTTP request to an HTTP response, the same way for every route.

use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{FromRequestParts, RawPathParams, Request};
use axum::http::header::{CACHE_CONTROL, CONNECTION, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::request::Parts;
use axum::http::{HeaderValue, StatusCode, Version};
use axum::response::Response;
use axum::routing::on;
use earmark_admission::Token;
use earmark_core::NamespaceName;
use serde::Deserialize;
use tokio::time::Instant;

use super::parse::Object;
use super::query;
use super::reply::{METHOD_NOT_ALLOWED, Reply};
use super::request_id::REQUEST_ID;
use super::route::{ROUTES, Route, UNMATCHED};
use super::shape::Shape;
use crate::answer::TOO_MANY_LARGE;
use crate::app::App;
use crate::body;
use crate::budget::{Budget, LARGE_BYTES};
use crate::caller::{Caller, Takes};
use crate::carry_out::Ticket;
use crate::door::{After, Head, Parting, Peer, TurnedAway};

const CLOSE: HeaderValue = HeaderValue::from_static("close");
const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");
const BEARER: HeaderValue = HeaderValue::from_static("Bearer");

/// A request whose body and path were read.
pub(super) struct Call {
    pub(super) ticket: Ticket,
    pub(super) body: Bytes,
    names: Vec<String>,
    query: Vec<(String, String)>,
}

impl Call {
    /// Where everything happens that its caller does.
    pub(super) fn namespace(&self) -> NamespaceName {
        self.ticket.caller.namespace.clone()
    }

    /// The first name or id in the path; empty where the route has none.
    pub(super) fn name(&self) -> &str {
        self.nth_name(0)
    }

    /// A name or id in the path, by its place; empty where the route has none.
    pub(super) fn nth_name(&self, place: usize) -> &str {
        self.names.get(place).map(String::as_str).unwrap_or_default()
    }

    /// A parameter of the query, if it is there.
    pub(super) fn query(&self, name: &str) -> Option<&str> {
        self.query.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }

    /// The body, or the answer that says what is wrong with it.
    pub(super) fn parse<'a, T: Deserialize<'a>>(&'a self, shape: &Shape) -> Result<T, Reply> {
        match serde_json::from_slice::<Object<T>>(&self.body) {
            Ok(Object(parsed)) => Ok(parsed),
            Err(error) => {
                let wrong = shape.explain(&self.body).unwrap_or_else(|| format!("body: {}", bare(&error)));
                Err(Reply::invalid(&wrong))
            }
        }
    }
}

/// What is wrong, without where: the line of a body tells nobody anything.
pub(super) fn bare(error: &serde_json::Error) -> String {
    let message = error.to_string();
    let position = format!(" at line {} column {}", error.line(), error.column());
    message.strip_suffix(&position).unwrap_or(&message).to_owned()
}

/// An id as a text, which every id is that was found fit.
fn text(id: &HeaderValue) -> &str {
    id.to_str().unwrap_or_default()
}

/// Everything in the table, and answers for everything else.
pub(crate) fn router(app: &Arc<App>) -> Router {
    let mut router = Router::new();
    for (place, route) in ROUTES.iter().enumerate() {
        let app = Arc::clone(app);
        let handle = move |request: Request| serve(Arc::clone(&app), place, route, request);
        router = router.route(route.path, on(route.verb.filter(), handle));
    }
    let (no_path, no_method) = (Arc::clone(app), Arc::clone(app));
    router
        .fallback(move |request: Request| unmatched(Arc::clone(&no_path), request, StatusCode::NOT_FOUND))
        .method_not_allowed_fallback(move |request: Request| {
            unmatched(Arc::clone(&no_method), request, StatusCode::METHOD_NOT_ALLOWED)
        })
}

async fn serve(app: Arc<App>, place: usize, route: &'static Route, request: Request) -> Response {
    let start = Instant::now();
    let (mut parts, body) = request.into_parts();
    let id = app.request_ids.of(&parts.headers);
    let deadline = start + app.request_timeout;
    let head = Head { uri: &parts.uri, headers: &parts.headers, extensions: &parts.extensions };
    let caller = match app.door.admit(&*app.backend, head, route.access).await {
        Ok(caller) => caller,
        Err(TurnedAway { why, caller, after }) => {
            let is_read = body::discard(body, deadline).await;
            let (reply, is_parting) = (Reply::refused(why), after == After::Ends);
            let reply = if is_read && !is_parting { reply } else { reply.closing() };
            let mut response = finish(&app, place, &parts, id, start, reply, caller.as_deref());
            is_parting.then(|| response.extensions_mut().insert(Parting));
            return response;
        }
    };
    let mut is_read = true;
    let read = if route.body.is_some() {
        body::read(body, deadline, &app.bodies).await.map_err(|unread| Reply::unread(&unread))
    } else {
        is_read = body::discard(body, deadline).await;
        Ok(Bytes::new())
    };
    let presence = parts.extensions.get().and_then(|peer: &Peer| peer.presence.clone());
    let ticket = Ticket { id: id.clone(), deadline, caller: Arc::clone(&caller), presence };
    let reply = match call(route, &mut parts, read, ticket).await {
        Ok(call) => match route.takes {
            Takes::One => match caller.turn(1, call.ticket.patience()).await {
                Ok(_place) => (route.handler)(&app, call).await,
                Err(refused) => Reply::refused(refused),
            },
            Takes::Items => (route.handler)(&app, call).await,
        },
        Err(reply) => reply,
    };
    let reply = if is_read { reply } else { reply.closing() };
    finish(&app, place, &parts, id, start, reply, Some(&caller))
}

async fn call(
    route: &Route,
    parts: &mut Parts,
    body: Result<Bytes, Reply>,
    ticket: Ticket,
) -> Result<Call, Reply> {
    let names = if route.parameters().next().is_some() { names(parts).await? } else { Vec::new() };
    // Whoever asks whether the server lives may add what keeps caches away; elsewhere a parameter that is ignored
    // would be taken for one that was followed.
    let is_probe = !route.path.starts_with("/v1/");
    let query = if is_probe { Vec::new() } else { query::read(parts.uri.query(), route.query)? };
    Ok(Call { ticket, body: body?, names, query })
}

/// The parameters of the path, decoded.
async fn names(parts: &mut Parts) -> Result<Vec<String>, Reply> {
    let parameters = RawPathParams::from_request_parts(parts, &()).await.map_err(|_| {
        Reply::invalid("path: found percent-encoded bytes that are no UTF-8, allowed is UTF-8")
    })?;
    Ok(parameters.iter().map(|(_, value)| value.to_owned()).collect())
}

async fn unmatched(app: Arc<App>, request: Request, status: StatusCode) -> Response {
    let start = Instant::now();
    let (parts, body) = request.into_parts();
    let is_read = body::discard(body, start + app.request_timeout).await;
    let id = app.request_ids.of(&parts.headers);
    let reply = match status {
        StatusCode::METHOD_NOT_ALLOWED => {
            let message = format!("method: found {}, the header allow has those for this path", parts.method);
            Reply::problem(status, METHOD_NOT_ALLOWED, &message)
        }
        _ => Reply::not_found("path: found none of this server's, /openapi.json has them all"),
    };
    let reply = if is_read { reply } else { reply.closing() };
    finish(&app, UNMATCHED, &parts, id, start, reply, None)
}

/// The answer, if there is room for it until its client has taken it.
fn within(budget: &Arc<Budget>, reply: Reply) -> Reply {
    if reply.body.len() < LARGE_BYTES {
        return reply;
    }
    let mut held = budget.nothing();
    if held.grow_to(reply.body.len()) {
        return Reply { body: held.with(reply.body), ..reply };
    }
    Reply { closes: reply.closes, ..Reply::overloaded(TOO_MANY_LARGE) }
}

fn finish(
    app: &App,
    place: usize,
    parts: &Parts,
    id: HeaderValue,
    start: Instant,
    reply: Reply,
    caller: Option<&Caller>,
) -> Response {
    let took = start.elapsed();
    let Reply { status, content_type, body, closes, retry_after_seconds, is_secret } =
        within(&app.answers, reply);
    let actor = caller.map_or("-", |caller| caller.actor.as_str());
    app.metrics.served(place, status, took);
    let (method, path) = (&parts.method, parts.uri.path());
    let path = || Token::redact(path);
    if status.is_server_error() {
        let answer = String::from_utf8_lossy(&body);
        tracing::warn!(request_id = text(&id), actor, %method, path = %path(), status = status.as_u16(), ?took, %answer, "answered");
    } else {
        tracing::debug!(request_id = text(&id), actor, %method, path = %path(), status = status.as_u16(), ?took, "answered");
    }
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, content_type);
    headers.insert(REQUEST_ID, id);
    if status == StatusCode::UNAUTHORIZED {
        headers.insert(WWW_AUTHENTICATE, BEARER);
    }
    if let Some(seconds) = retry_after_seconds {
        headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    if is_secret {
        headers.insert(CACHE_CONTROL, NO_STORE);
    }
    if closes && parts.version < Version::HTTP_2 {
        headers.insert(CONNECTION, CLOSE);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_answers_that_nobody_takes_share_one_budget() {
        let budget = Budget::of(LARGE_BYTES);
        let large = || Reply { body: Bytes::from(vec![b' '; LARGE_BYTES]), ..Reply::not_found("") };
        let first = within(&budget, large());
        assert_eq!((first.status, first.body.len()), (StatusCode::NOT_FOUND, LARGE_BYTES));
        let second = within(&budget, large());
        assert_eq!(second.status, StatusCode::SERVICE_UNAVAILABLE);
        assert!(second.body.starts_with(br#"{"error":"overloaded","message":"answer: "#));
        assert_eq!(within(&budget, Reply::not_found("")).status, StatusCode::NOT_FOUND);
        drop(first);
        assert_eq!(within(&budget, large()).status, StatusCode::NOT_FOUND);
    }
}
