//! Serves HTTP requests: authentication, body, handler and response, the same way for every route.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{FromRequestParts, RawPathParams, Request};
use axum::http::header::{CACHE_CONTROL, CONNECTION, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::request::Parts;
use axum::http::{HeaderName, HeaderValue, Method, StatusCode, Version};
use axum::response::Response;
use axum::routing::on;
use earmark_admission::BackendError;
use earmark_core::{IdempotencyKey, NamespaceName, redact_api_keys};
use earmark_trace::{Span, within};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use serde::Deserialize;
use tokio::time::Instant;
use tonic::codegen::Service as _;

use super::parse::Object;
use super::reply::{METHOD_NOT_ALLOWED, Reply, Streamed};
use super::request_id::{REQUEST_ID, RequestId};
use super::route::{ROUTES, Route, UNMATCHED, Verb};
use super::shape::Described;
use super::write_id::header_key;
use super::{console, events, limits, query};
use crate::answer::{no_room_for_change, no_room_for_read};
use crate::app::App;
use crate::auth::{CloseAfterReply, Connection, Credentials, Peer, Refusal, Rejection, RequestHead};
use crate::body::{self, Readable};
use crate::budget::{AnswerRoom, Budget, Holders};
use crate::caller::{Access, AuthError, Caller, QueueCost};
use crate::execute::RequestContext;
use crate::grpc::Streaming;
use crate::head;
use crate::in_process::ByOwnGateway;
use crate::log_rate::LineKind;
use crate::trace;

const CLOSE: HeaderValue = HeaderValue::from_static("close");
const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");
const BEARER: HeaderValue = HeaderValue::from_static("Bearer");

/// A request with its body, path and query.
pub(super) struct Call {
    pub(super) context: RequestContext,
    pub(super) body: Bytes,
    /// The key in the header of a write.
    pub(super) idempotency_key: Option<IdempotencyKey>,
    names: Vec<String>,
    query: Vec<(String, String)>,
}

impl Call {
    /// The namespace of the caller.
    pub(super) fn namespace(&self) -> NamespaceName {
        self.context.caller.namespace.clone()
    }

    /// The namespace in the query, if the caller may read and change its limits; without one, the caller's.
    pub(super) fn named_namespace(&self) -> Result<NamespaceName, AuthError> {
        self.namespace_that(Caller::check_limits_of)
    }

    /// The namespace in the query, if the caller may read its credit; without one, the caller's.
    pub(super) fn credit_namespace(&self) -> Result<NamespaceName, AuthError> {
        self.namespace_that(Caller::check_namespace)
    }

    fn namespace_that(
        &self,
        check: fn(&Caller, &NamespaceName) -> Result<(), AuthError>,
    ) -> Result<NamespaceName, AuthError> {
        // The query is already validated.
        let Some(namespace) = self.query("namespace").and_then(|name| NamespaceName::new(name).ok()) else {
            return Ok(self.namespace());
        };
        check(&self.context.caller, &namespace)?;
        Ok(namespace)
    }

    /// The first name or id in the path; empty where the route has none.
    pub(super) fn name(&self) -> &str {
        self.nth_name(0)
    }

    /// The nth name or id in the path; empty where the route has none.
    pub(super) fn nth_name(&self, index: usize) -> &str {
        self.names.get(index).map(String::as_str).unwrap_or_default()
    }

    /// A query parameter, if it is present.
    pub(super) fn query(&self, name: &str) -> Option<&str> {
        self.query.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }

    /// Parses the body. The error names the field, the value found and the values allowed.
    pub(super) fn parse<'a, T: Deserialize<'a> + Described>(&'a self) -> Result<T, Reply> {
        match serde_json::from_slice::<Object<T>>(&self.body) {
            Ok(Object(parsed)) => Ok(parsed),
            Err(error) => {
                let wrong = T::SHAPE.explain(&self.body).unwrap_or_else(|| format!("body: {}", bare(&error)));
                Err(Reply::invalid(&wrong))
            }
        }
    }
}

/// Builds a long reply away from the threads of the runtime, where it would delay other requests.
pub(super) async fn off_runtime(build: impl FnOnce() -> Reply + Send + 'static) -> Reply {
    let built = tokio::task::spawn_blocking(build).await;
    built.unwrap_or_else(|error| limits::failed(&BackendError::Failed(error.to_string())))
}

/// The message of a JSON error without line and column, which do not help with a one-line body.
pub(super) fn bare(error: &serde_json::Error) -> String {
    let message = error.to_string();
    let position = format!(" at line {} column {}", error.line(), error.column());
    message.strip_suffix(&position).unwrap_or(&message).to_owned()
}

/// The response to come.
type ResponseFuture = Pin<Box<dyn Future<Output = Response> + Send>>;

/// All routes of the table. The posts without path parameters, such as reserve and complete, are found by comparing
/// paths, which costs a fraction of axum's router; that one serves the others.
#[derive(Clone)]
pub(crate) struct Routes {
    app: Arc<App>,
    /// The index, path and row of each post without parameters, in the order of the table.
    posts: Arc<[(usize, &'static Route)]>,
    router: Router,
}

impl Routes {
    pub(crate) fn new(app: &Arc<App>) -> Routes {
        let is_plain_post = |route: &Route| route.verb == Verb::Post && route.parameters().next().is_none();
        let posts = ROUTES.iter().enumerate().filter(|(_, route)| is_plain_post(route)).collect();
        Routes { app: Arc::clone(app), posts, router: router(app) }
    }

    /// Serves a request of this client.
    pub(crate) fn serve(&self, mut request: hyper::Request<Incoming>, peer: &Peer) -> ResponseFuture {
        if let Some((index, route)) = self.post(&request) {
            return Box::pin(serve(Arc::clone(&self.app), index, route, Some(peer.clone()), request));
        }
        request.extensions_mut().insert(peer.clone());
        let mut router = self.router.clone();
        Box::pin(async move {
            let Ok(response) = router.call(request.map(Body::new)).await;
            response
        })
    }

    /// The row of a post without path parameters, and its index.
    fn post<B>(&self, request: &hyper::Request<B>) -> Option<(usize, &'static Route)> {
        let path = request.uri().path();
        self.posts.iter().find(|(_, route)| route.path == path && request.method() == Method::POST).copied()
    }

    /// Serves a request of the gateway in this process.
    pub(crate) async fn serve_in_process(&self, request: hyper::Request<Bytes>) -> hyper::Response<Bytes> {
        let response = match self.post(&request) {
            Some((index, route)) => serve(Arc::clone(&self.app), index, route, None, request.map(Full::new)).await,
            None => {
                let Ok(response) = self.router.clone().call(request.map(Body::from)).await;
                response
            }
        };
        let (parts, body) = response.into_parts();
        // A body of this server is in memory, and cannot fail.
        let bytes = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
        hyper::Response::from_parts(parts, bytes)
    }
}

/// The router for all routes of the table, with replies for unknown paths and methods.
fn router(app: &Arc<App>) -> Router {
    let mut router = Router::new();
    for (index, route) in ROUTES.iter().enumerate() {
        let app = Arc::clone(app);
        let handle = move |request: Request| {
            let peer = request.extensions().get().cloned();
            serve(Arc::clone(&app), index, route, peer, request)
        };
        router = router.route(route.path, on(route.verb.filter(), handle));
    }
    if app.console.is_some() {
        router = console::add_to(router, app);
    }
    let (no_path, no_method) = (Arc::clone(app), Arc::clone(app));
    router
        .fallback(move |request: Request| unmatched(Arc::clone(&no_path), request, StatusCode::NOT_FOUND))
        .method_not_allowed_fallback(move |request: Request| {
            unmatched(Arc::clone(&no_method), request, StatusCode::METHOD_NOT_ALLOWED)
        })
}

async fn serve<B: Readable>(
    app: Arc<App>,
    index: usize,
    route: &'static Route,
    peer: Option<Peer>,
    request: hyper::Request<B>,
) -> Response {
    let start = Instant::now();
    let (mut parts, body) = request.into_parts();
    let id = app.request_ids.of(&parts.headers);
    let deadline = start + app.request_timeout;
    let is_own_gateway = parts.extensions.get::<ByOwnGateway>().is_some();
    let head = RequestHead { uri: &parts.uri, headers: &parts.headers, peer: peer.as_ref(), is_own_gateway };
    let caller = match app.auth.admit(&*app.backend, head, route.access).await {
        Ok(caller) => caller,
        Err(Rejection { error, caller, connection }) => {
            let is_read = Box::pin(body::discard(body, deadline)).await;
            let reply = Reply::rejected(&error);
            let reply = if is_read { reply } else { reply.closing() };
            let request = Served { index, parts: &parts, id, start, caller: caller.as_deref() };
            return Box::pin(refuse(&app, request, reply, connection)).await;
        }
    };
    let mut span = trace::begin(&parts.headers, || format!("{} {}", parts.method, route.path));
    let context = RequestContext { id: id.clone(), deadline, caller: Arc::clone(&caller), peer };
    let mut is_read = true;
    let read = if route.body.is_some() {
        body::read(body, app.body_bounds(&context)).await.map_err(|error| Reply::body_error(&error))
    } else {
        is_read = Box::pin(body::discard(body, deadline)).await;
        Ok(Bytes::new())
    };
    let reply = match call(route, &mut parts, read, context).await {
        Ok(call) => match &span {
            None => execute(&app, route, &caller, call).await,
            Some(span) => Box::pin(within(span.context(), execute(&app, route, &caller, call))).await,
        },
        Err(reply) => reply,
    };
    // A call is executed by the right of the client, so that the state machine rejected the client.
    let reply = match reply.status {
        StatusCode::UNAUTHORIZED if caller.is_client() && route.access != Access::Settle => {
            Reply::rejected(&AuthError::ClientUnauthenticated)
        }
        _ => reply,
    };
    let reply = if is_read { reply } else { reply.closing() };
    if let Some(span) = &mut span {
        answered(span, route, &reply);
    }
    let request = Served { index, parts: &parts, id, start, caller: Some(&caller) };
    match reply.retry_after_ms {
        None => finish(&app, request, reply),
        Some(_) => Box::pin(refuse(&app, request, reply, Connection::Stays)).await,
    }
}

/// Adds the answer to the span of its request.
fn answered(span: &mut Span, route: &Route, reply: &Reply) {
    span.set("http.route", route.path);
    span.set("http.response.status_code", u64::from(reply.status.as_u16()));
    if reply.status.is_server_error() {
        span.fail(reply.status.to_string());
    }
}

/// Sends a refusal, delayed if its caller exceeded its rate.
async fn refuse(app: &Arc<App>, request: Served<'_>, reply: Reply, connection: Connection) -> Response {
    let refusal = match (reply.retry_after_ms, request.caller) {
        (Some(ms), Some(caller)) => app.auth.delay_refusal(caller, ms),
        (None, _) | (_, None) => Refusal::Immediate(connection),
    };
    let closes = matches!(refusal, Refusal::Immediate(Connection::Closes));
    let mut response = finish(app, request, if closes { reply.closing() } else { reply });
    closes.then(|| response.extensions_mut().insert(CloseAfterReply));
    if let Refusal::Delayed(delay) = refusal {
        delay.wait(Duration::MAX, app.draining()).await;
    }
    response
}

/// Executes a request in its turn, once there is room for its answer.
async fn execute(app: &App, route: &'static Route, caller: &Caller, call: Call) -> Reply {
    let connection = call.context.peer.as_ref().map(|peer| Arc::clone(&peer.connection));
    let holders = Holders { connection: connection.as_ref(), caller: caller.shares.as_ref() };
    let _permit = match route.queue_cost {
        QueueCost::One => match caller.acquire(1, call.context.wait_bounds()).await {
            Ok(permit) => Some(permit),
            Err(error) => return Reply::rejected(&error),
        },
        // The batch handler takes its permits.
        QueueCost::PerItem => None,
    };
    let room = match route.verb {
        Verb::Get => Ok(AnswerRoom::of_read()),
        Verb::Post | Verb::Put | Verb::Delete => AnswerRoom::of_change(&app.responses, holders, call.body.len()),
    };
    match room {
        Ok(room) => {
            let reply = (route.handler)(app, call).await.unwrap_or_else(|refusal| refusal);
            charged(&app.responses, holders, room, reply)
        }
        Err(who) => Reply::overloaded(&no_room_for_change(who)),
    }
}

async fn call(
    route: &Route,
    parts: &mut Parts,
    body: Result<Bytes, Reply>,
    context: RequestContext,
) -> Result<Call, Reply> {
    if let Some(mistake) = head::mistake(&parts.uri, &parts.headers) {
        return Err(Reply::invalid(&mistake));
    }
    let has_names = route.parameters().next().is_some();
    let names = if has_names { Box::pin(names(parts)).await? } else { Vec::new() };
    // Health probes may add a parameter to bypass caches. Elsewhere an ignored parameter would look like an obeyed one.
    let is_probe = !route.path.starts_with("/v1/");
    let query = if is_probe { Vec::new() } else { query::read(parts.uri.query(), route.query)? };
    let idempotency_key = match route.takes_idempotency_key() {
        true => header_key(&parts.headers).map_err(|mistake| Reply::invalid(&mistake))?,
        false => None,
    };
    Ok(Call { context, body: body?, idempotency_key, names, query })
}

/// The decoded path parameters.
async fn names(parts: &mut Parts) -> Result<Vec<String>, Reply> {
    let parameters = RawPathParams::from_request_parts(parts, &())
        .await
        .map_err(|_| Reply::invalid("path: percent-encoded bytes are not UTF-8"))?;
    Ok(parameters.iter().map(|(_, value)| value.to_owned()).collect())
}

async fn unmatched(app: Arc<App>, request: Request, status: StatusCode) -> Response {
    let start = Instant::now();
    let (parts, body) = request.into_parts();
    let is_read = body::discard(body, start + app.request_timeout).await;
    let id = app.request_ids.of(&parts.headers);
    let reply = match (head::mistake(&parts.uri, &parts.headers), status) {
        (Some(mistake), _) => Reply::invalid(&mistake),
        (None, StatusCode::METHOD_NOT_ALLOWED) => {
            let message = format!("method {} not allowed; see the header allow", parts.method);
            Reply::problem(status, METHOD_NOT_ALLOWED, &message)
        }
        (None, _) => Reply::not_found("path not found; see /openapi.json"),
    };
    let reply = if is_read { reply } else { reply.closing() };
    finish(&app, Served { index: UNMATCHED, parts: &parts, id, start, caller: None }, reply)
}

/// Charges a large reply to the budget until its client has read it. Without room a read becomes 503.
fn charged(budget: &Arc<Budget>, holders: Holders<'_>, room: AnswerRoom, reply: Reply) -> Reply {
    if reply.is_shared {
        return reply;
    }
    match room.charge(budget, holders, reply.body) {
        Ok(body) => Reply { body, ..reply },
        Err(who) => Reply { closes: reply.closes, ..Reply::overloaded(&no_room_for_read(who)) },
    }
}

/// A request that has its reply.
pub(super) struct Served<'a> {
    /// The index of its route, for the metrics.
    pub(super) index: usize,
    pub(super) parts: &'a Parts,
    pub(super) id: RequestId,
    pub(super) start: Instant,
    pub(super) caller: Option<&'a Caller>,
}

pub(super) fn finish(app: &Arc<App>, request: Served<'_>, reply: Reply) -> Response {
    let Served { index, parts, id, start, caller } = request;
    let took = start.elapsed();
    let Reply { status, content_type, body, closes, retry_after_ms, is_secret, stream, headers: more, .. } = reply;
    let actor = caller.map_or("-", |caller| caller.actor.as_str());
    app.metrics.served(index, status, took);
    let (method, path) = (&parts.method, parts.uri.path());
    let path = || redact_api_keys(path);
    if status.is_server_error() {
        let is_anonymous = caller.is_none_or(|caller| caller.is_anonymous);
        if app.log_rate.allows(if is_anonymous { LineKind::AnonymousHttp } else { LineKind::CallerHttp }) {
            let answer = String::from_utf8_lossy(&body);
            tracing::warn!(request_id = id.as_str(), actor, %method, path = %path(), status = status.as_u16(), ?took, %answer, "answered");
        }
    } else {
        tracing::debug!(request_id = id.as_str(), actor, %method, path = %path(), status = status.as_u16(), ?took, "answered");
    }
    let (is_live, body) = match stream.map(|stream| *stream) {
        Some(Streamed::Events(subscription)) => {
            let credentials = Credentials::new(parts.headers.clone(), parts.extensions.get());
            (true, events::body(Arc::clone(app), subscription, credentials))
        }
        Some(Streamed::Archive(archive)) => (false, archive.into_body()),
        None => (false, Body::from(body)),
    };
    let mut response = Response::new(body);
    *response.status_mut() = status;
    is_live.then(|| response.extensions_mut().insert(Streaming));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, content_type);
    headers.insert(REQUEST_ID, id.into_header());
    if status == StatusCode::UNAUTHORIZED {
        headers.insert(WWW_AUTHENTICATE, BEARER);
    }
    if let Some(ms) = retry_after_ms {
        headers.insert(RETRY_AFTER, HeaderValue::from(ms.div_ceil(1_000).max(1)));
    }
    for (name, value) in more {
        // A value has visible ASCII characters only.
        HeaderValue::try_from(value).ok().map(|value| headers.insert(HeaderName::from_static(name), value));
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
    use crate::budget::{LARGE_BYTES, Purpose};

    #[test]
    fn large_unread_replies_share_one_budget_and_public_ones_do_not_count() {
        let budget = Budget::new(Purpose::Answers, LARGE_BYTES);
        let charge = |reply| charged(&budget, Holders::default(), AnswerRoom::of_read(), reply);
        let large = || Reply { body: Bytes::from(vec![b' '; LARGE_BYTES]), ..Reply::not_found("") };
        let first = charge(large());
        assert_eq!((first.status, first.body.len()), (StatusCode::NOT_FOUND, LARGE_BYTES));
        let second = charge(large());
        assert_eq!(second.status, StatusCode::SERVICE_UNAVAILABLE);
        assert!(second.body.starts_with(br#"{"error":"overloaded","message":"response: "#));
        assert_eq!(charge(Reply::not_found("")).status, StatusCode::NOT_FOUND);
        assert_eq!(charge(Reply { is_shared: true, ..large() }).status, StatusCode::NOT_FOUND);
        drop(first);
        assert_eq!(charge(large()).status, StatusCode::NOT_FOUND);
    }
}
