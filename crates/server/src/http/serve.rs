//! From an HTTP request to an HTTP response, the same way for every route.

use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{FromRequestParts, RawPathParams, Request};
use axum::http::header::{CONNECTION, CONTENT_TYPE};
use axum::http::request::Parts;
use axum::http::{HeaderValue, StatusCode, Version};
use axum::response::Response;
use axum::routing::on;
use serde::Deserialize;
use tokio::time::Instant;

use super::body;
use super::parse::Object;
use super::reply::{METHOD_NOT_ALLOWED, Reply};
use super::request_id::REQUEST_ID;
use super::route::{ROUTES, Route, UNMATCHED};
use super::shape::Shape;
use crate::app::App;

const CLOSE: HeaderValue = HeaderValue::from_static("close");

/// A request whose body and path were read.
pub(super) struct Call {
    id: HeaderValue,
    pub(super) deadline: Instant,
    pub(super) body: Bytes,
    name: String,
}

impl Call {
    /// The name of the request in the logs.
    pub(super) fn id(&self) -> &str {
        text(&self.id)
    }

    /// The name or id in the path; empty where the route has none.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The body, or the answer that says what is wrong with it.
    pub(super) fn parse<'a, T: Deserialize<'a>>(&'a self, shape: &Shape) -> Result<T, Reply> {
        match serde_json::from_slice::<Object<T>>(&self.body) {
            Ok(Object(parsed)) => Ok(parsed),
            Err(error) => {
                let wrong = shape.explain(&self.body).unwrap_or_else(|| format!("body: {error}"));
                Err(Reply::invalid(&wrong))
            }
        }
    }
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
    let reply = match read(route, &mut parts, body, id.clone(), deadline).await {
        Ok(call) => (route.handler)(&app, call).await,
        Err(reply) => reply,
    };
    finish(&app, place, &parts, id, start, reply)
}

async fn read(
    route: &Route,
    parts: &mut Parts,
    body: Body,
    id: HeaderValue,
    deadline: Instant,
) -> Result<Call, Reply> {
    let name = if route.parameter().is_some() { name(parts).await? } else { String::new() };
    let body = if route.body.is_some() { body::read(body, deadline).await? } else { Bytes::new() };
    Ok(Call { id, deadline, body, name })
}

/// The one parameter of the path, decoded.
async fn name(parts: &mut Parts) -> Result<String, Reply> {
    let parameters = RawPathParams::from_request_parts(parts, &()).await.map_err(|_| {
        Reply::invalid("path: found percent-encoded bytes that are no UTF-8, allowed is UTF-8")
    })?;
    Ok(parameters.iter().next().map(|(_, value)| value.to_owned()).unwrap_or_default())
}

async fn unmatched(app: Arc<App>, request: Request, status: StatusCode) -> Response {
    let start = Instant::now();
    let (parts, _) = request.into_parts();
    let id = app.request_ids.of(&parts.headers);
    let reply = match status {
        StatusCode::METHOD_NOT_ALLOWED => {
            let message = format!("method: found {}, the header allow has those for this path", parts.method);
            Reply::problem(status, METHOD_NOT_ALLOWED, &message)
        }
        _ => Reply::not_found("path: found none of this server's, /openapi.json has them all"),
    };
    finish(&app, UNMATCHED, &parts, id, start, reply)
}

fn finish(app: &App, place: usize, parts: &Parts, id: HeaderValue, start: Instant, reply: Reply) -> Response {
    let took = start.elapsed();
    let Reply { status, content_type, body, closes } = reply;
    app.metrics.served(place, status, took);
    let (method, path) = (&parts.method, parts.uri.path());
    if status.is_server_error() {
        let answer = String::from_utf8_lossy(&body);
        tracing::warn!(request_id = text(&id), %method, path, status = status.as_u16(), ?took, %answer, "answered");
    } else {
        tracing::debug!(request_id = text(&id), %method, path, status = status.as_u16(), ?took, "answered");
    }
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, content_type);
    headers.insert(REQUEST_ID, id);
    if closes && parts.version < Version::HTTP_2 {
        headers.insert(CONNECTION, CLOSE);
    }
    response
}
