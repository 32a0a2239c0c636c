//! The gRPC API, beside HTTP on one port.
//!
//! Calls are read, limited, counted and logged like HTTP requests; tonic only frames and routes them.
//! `earmark_proto::convert` converts messages, and `execute` executes them as for HTTP.

mod answer;
mod calls;
mod cluster;
mod decisions;
mod frame;
mod health;
mod leases;
mod ledger;
mod limits;
mod method;
mod policies;
mod quotas;
mod rate_limit;
mod status;
mod templates;
mod timeout;
mod unary;

use std::borrow::Cow;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::header::CONTENT_TYPE;
use axum::http::{Method as Verb, Request, Response};
use earmark_core::redact_api_keys;
use earmark_proto::v1::calls_service_server::CallsServiceServer;
use earmark_proto::v1::cluster_service_server::ClusterServiceServer;
use earmark_proto::v1::ledger_service_server::LedgerServiceServer;
use earmark_proto::v1::limits_service_server::LimitsServiceServer;
use earmark_trace::{Span, within};
use hyper::body::Incoming;
use tokio::time::Instant;
use tonic::codegen::{BoxFuture, Service};
use tonic::{Code, Status};
use tonic_health::pb::health_server::HealthServer;
use tonic_reflection::server::Builder;

use crate::app::App;
use crate::auth::{CloseAfterReply, Connection, Peer, Refusal, Rejection, RequestHead};
use crate::caller::{Access, AuthError, Caller};
use crate::execute::RequestContext;
use crate::head;
use crate::http::{REQUEST_ID, RequestId};
use crate::log_rate::LineKind;
use crate::trace;
use answer::{Answer, BoundedStream};
use health::Healthy;
use method::{Form, Method, Services};
use rate_limit::RateLimits;

pub(crate) use answer::Streaming;
pub(crate) use method::METHODS;

/// Serves the calls of a service.
enum Serve {
    /// By tonic.
    Tonic(Tonic),
    /// Envoy asks before each request that it forwards. Tonic would take half of the time of its calls.
    RateLimit(RateLimits),
}

/// The response of a unary method.
type RpcResult<T> = Result<tonic::Response<T>, Status>;

/// Any tonic service.
type Tonic = Box<dyn Fn(Request<Body>) -> BoxFuture<Response<tonic::body::Body>, Infallible> + Send + Sync>;

/// Bytes of a reflection request. Its answer repeats it, and needs neither credentials nor a share of memory.
const REFLECTION_BYTES_MAX: usize = 4 << 10;

/// All gRPC services.
#[derive(Clone)]
pub(crate) struct Grpc {
    app: Arc<App>,
    services: Arc<Services<Serve>>,
}

impl Grpc {
    /// # Errors
    /// A bug: the compiled-in descriptors are invalid.
    pub(crate) fn new(app: &Arc<App>) -> Result<Grpc, tonic_reflection::server::Error> {
        let services = Services {
            limits: boxed(LimitsServiceServer::new(limits::Limits(Arc::clone(app)))),
            leases: boxed(
                LimitsServiceServer::new(limits::Limits(Arc::clone(app)))
                    .max_decoding_message_size(leases::REQUEST_BYTES_MAX),
            ),
            calls: boxed(CallsServiceServer::new(calls::Calls(Arc::clone(app)))),
            ledger: boxed(LedgerServiceServer::new(ledger::Ledger(Arc::clone(app)))),
            cluster: boxed(ClusterServiceServer::new(cluster::ClusterAdmin(Arc::clone(app)))),
            rate_limit: Serve::RateLimit(RateLimits::new(app)),
            health: boxed(HealthServer::new(Healthy(Arc::clone(app)))),
            reflection: boxed(reflection().build_v1()?.max_decoding_message_size(REFLECTION_BYTES_MAX)),
            reflection_alpha: boxed(reflection().build_v1alpha()?.max_decoding_message_size(REFLECTION_BYTES_MAX)),
        };
        Ok(Grpc { app: Arc::clone(app), services: Arc::new(services) })
    }

    /// Serves a call.
    pub(crate) async fn serve(&self, request: Request<Incoming>, peer: Peer) -> Response<Body> {
        let start = Instant::now();
        let app = &self.app;
        let id = app.request_ids.of(request.headers());
        let client_timeout = timeout::of(request.headers());
        // Half of the client's own timeout leaves it time to read a delayed response.
        let delay_max = client_timeout.as_ref().ok().copied().flatten().map_or(Duration::MAX, |timeout| timeout / 2);
        let (index, path, served) = match method::find(request.uri().path()) {
            Some((index, method)) => {
                let call = Call { id: id.clone(), start, peer, client_timeout };
                (index, Cow::Borrowed(method.path), self.admit(method, call, request).await)
            }
            None => {
                let path = redact_api_keys(request.uri().path()).into_owned();
                let status = Status::unimplemented(format!("method {path} not found; reflection lists all methods"));
                (METHODS.len(), Cow::Owned(path), Served::of(status, None, Connection::Stays))
            }
        };
        let Served { answer, caller, connection } = served;
        let refusal = match (status::retry_after_ms(&answer), &caller) {
            (Some(ms), Some(caller)) => app.auth.delay_refusal(caller, ms),
            (None, _) | (_, None) => Refusal::Immediate(connection),
        };
        let took = start.elapsed();
        app.metrics.called(index, answer.code(), took);
        log(app, caller.as_deref(), (id.as_str(), &path), &answer, took);
        let mut response = answer.into_response();
        response.headers_mut().insert(REQUEST_ID, id.into_header());
        match refusal {
            Refusal::Immediate(Connection::Stays) => {}
            Refusal::Immediate(Connection::Closes) => _ = response.extensions_mut().insert(CloseAfterReply),
            Refusal::Delayed(delay) => Box::pin(delay.wait(delay_max, app.draining())).await,
        }
        response
    }

    /// Serves a call if its sender may make it.
    async fn admit(&self, method: &'static Method, call: Call, request: Request<Incoming>) -> Served {
        let app = &self.app;
        let (uri, headers) = (request.uri(), request.headers());
        let head = RequestHead { uri, headers, peer: Some(&call.peer), is_own_gateway: false };
        let caller = match app.auth.admit(&*app.backend, head, method.access).await {
            Ok(caller) => caller,
            Err(Rejection { error, caller, connection }) => {
                return Served::of(Status::from(error), caller, connection);
            }
        };
        let Call { id, start, peer, client_timeout } = call;
        let deadline = start + app.request_timeout;
        let context = RequestContext { id, deadline, caller: Arc::clone(&caller), peer: Some(peer) };
        let mut span = trace::begin(headers, || method.path.trim_start_matches('/').to_owned());
        // Once for each case: a future in a variable is moved, and this one is large.
        let since = (start, client_timeout);
        let answer = match &span {
            None => self.call(method, &context, since, request).await,
            Some(span) => Box::pin(within(span.context(), self.call(method, &context, since, request))).await,
        };
        if let Some(span) = &mut span {
            answered(span, &answer);
        }
        // A call is executed by the right of the client, so that the state machine rejected the client.
        let is_rejected = caller.is_client() && answer.code() == Code::Unauthenticated;
        let answer = match is_rejected && method.access != Access::Settle {
            true => Answer::of(AuthError::ClientUnauthenticated.into()),
            false => answer,
        };
        Served { answer, caller: Some(caller), connection: Connection::Stays }
    }

    async fn call(
        &self,
        method: &Method,
        context: &RequestContext,
        (start, client_timeout): (Instant, Result<Option<Duration>, Status>),
        request: Request<Incoming>,
    ) -> Answer {
        if let Some(mistake) = head::mistake(request.uri(), request.headers()) {
            return Answer::of(Status::invalid_argument(mistake));
        }
        let client_timeout = match client_timeout {
            Ok(timeout) => timeout,
            Err(status) => return Answer::of(status),
        };
        let serve = method.service.of(&self.services);
        match (method.form, serve) {
            (Form::Unary, _) => {
                let answer = || unary::call(&self.app, context, method, serve, request.into_parts());
                // A client timeout beyond the server's own has no effect.
                match client_timeout.filter(|timeout| *timeout < self.app.request_timeout) {
                    None => answer().await,
                    Some(timeout) => {
                        let answer = Box::pin(tokio::time::timeout_at(start + timeout, answer())).await;
                        let message = "grpc-timeout: no answer in time; the outcome is unknown, retry the same request";
                        answer.unwrap_or_else(|_| Answer::of(Status::deadline_exceeded(message)))
                    }
                }
            }
            (Form::Stream { is_endless }, Serve::Tonic(serve)) => {
                let deadline = (!is_endless).then_some(context.deadline);
                let mut request =
                    request.map(|body| Body::new(BoundedStream::new(body, deadline, self.app.draining())));
                request.extensions_mut().insert(context.clone());
                let Ok(response) = serve(request).await;
                Answer::streaming(response)
            }
            (Form::Stream { .. }, Serve::RateLimit(_)) => Answer::of(Status::unimplemented("it has no streams")),
        }
    }
}

/// A call that is not served yet.
struct Call {
    id: RequestId,
    start: Instant,
    peer: Peer,
    client_timeout: Result<Option<Duration>, Status>,
}

/// A call that has its answer.
struct Served {
    answer: Answer,
    /// The caller, if its credentials were valid.
    caller: Option<Arc<Caller>>,
    connection: Connection,
}

impl Served {
    fn of(status: Status, caller: Option<Arc<Caller>>, connection: Connection) -> Served {
        Served { answer: Answer::of(status), caller, connection }
    }
}

/// Adds the answer to the span of its call.
fn answered(span: &mut Span, answer: &Answer) {
    span.set("rpc.system", "grpc");
    span.set("rpc.grpc.status_code", answer.code() as u64);
    if answer.code() != Code::Ok {
        span.fail(format!("{:?}", answer.code()));
    }
}

/// Logs an answer. A failure of the server is a warning.
fn log(app: &App, caller: Option<&Caller>, (request_id, path): (&str, &str), answer: &Answer, took: Duration) {
    let code = answer.code();
    let actor = caller.map_or("-", |caller| caller.actor.as_str());
    if matches!(code, Code::Internal | Code::Unavailable | Code::Unknown) {
        let is_anonymous = caller.is_none_or(|caller| caller.is_anonymous);
        let kind = if is_anonymous { LineKind::AnonymousGrpc } else { LineKind::CallerGrpc };
        if app.log_rate.allows(kind) {
            let answer = answer.message();
            tracing::warn!(request_id, actor, path, ?code, ?took, %answer, "answered");
        }
    } else {
        tracing::debug!(request_id, actor, path, ?code, ?took, "answered");
    }
}

/// Whether a request is a gRPC call. Others, gRPC-Web included, are served as HTTP.
pub(crate) fn is_call<B>(request: &Request<B>) -> bool {
    let content_type = request.headers().get(CONTENT_TYPE).map(|value| value.as_bytes());
    let is_grpc = |value: &[u8]| matches!(value, b"application/grpc" | b"application/grpc+proto");
    *request.method() == Verb::POST && content_type.is_some_and(is_grpc)
}

fn boxed<S>(service: S) -> Serve
where
    S: Service<
            Request<Body>,
            Response = Response<tonic::body::Body>,
            Error = Infallible,
            Future = BoxFuture<Response<tonic::body::Body>, Infallible>,
        > + Clone
        + Send
        + Sync
        + 'static,
{
    Serve::Tonic(Box::new(move |request| service.clone().call(request)))
}

/// The descriptors for both versions of reflection.
fn reflection<'a>() -> Builder<'a> {
    Builder::configure()
        .include_reflection_service(false)
        .register_encoded_file_descriptor_set(earmark_proto::FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(earmark_proto::ENVOY_FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(tonic_reflection::pb::v1::FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(tonic_reflection::pb::v1alpha::FILE_DESCRIPTOR_SET)
}
