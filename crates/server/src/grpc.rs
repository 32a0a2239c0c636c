//! The gRPC API, beside HTTP on one port.
//!
//! Calls are read, limited, counted and logged like HTTP requests; tonic only frames and routes them.
//! `earmark_proto::convert` converts messages, and `execute` executes them as for HTTP.

mod answer;
mod calls;
mod cluster;
mod decisions;
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

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::header::CONTENT_TYPE;
use axum::http::{Method as Verb, Request, Response};
use earmark_core::redact_api_keys;
use earmark_proto::envoy::service::ratelimit::v3::rate_limit_service_server::RateLimitServiceServer;
use earmark_proto::v1::calls_service_server::CallsServiceServer;
use earmark_proto::v1::cluster_service_server::ClusterServiceServer;
use earmark_proto::v1::ledger_service_server::LedgerServiceServer;
use earmark_proto::v1::limits_service_server::LimitsServiceServer;
use earmark_trace::{Span, within};
use tokio::time::Instant;
use tonic::codegen::{BoxFuture, Service};
use tonic::{Code, Status};
use tonic_health::pb::health_server::HealthServer;
use tonic_reflection::server::Builder;

use crate::app::App;
use crate::auth::{CloseAfterReply, Connection, Refusal, RequestHead};
use crate::caller::{Access, AuthError, Caller};
use crate::execute::RequestContext;
use crate::head;
use crate::http::REQUEST_ID;
use crate::log_rate::LineKind;
use crate::trace;
use answer::{Answer, BoundedStream};
use health::Healthy;
use method::{Form, Method, Services};

pub(crate) use answer::Streaming;
pub(crate) use method::METHODS;

/// Any tonic service.
type Serve = Box<dyn Fn(Request<Body>) -> BoxFuture<Response<tonic::body::Body>, Infallible> + Send + Sync>;

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
            rate_limit: boxed(RateLimitServiceServer::new(rate_limit::RateLimits::new(app))),
            health: boxed(HealthServer::new(Healthy(Arc::clone(app)))),
            reflection: boxed(reflection().build_v1()?.max_decoding_message_size(REFLECTION_BYTES_MAX)),
            reflection_alpha: boxed(reflection().build_v1alpha()?.max_decoding_message_size(REFLECTION_BYTES_MAX)),
        };
        Ok(Grpc { app: Arc::clone(app), services: Arc::new(services) })
    }

    /// Serves a call.
    pub(crate) async fn serve(&self, request: Request<Body>) -> Response<Body> {
        let start = Instant::now();
        let app = &self.app;
        let id = app.request_ids.of(request.headers());
        let path = redact_api_keys(request.uri().path()).into_owned();
        let (mut caller, mut connection) = (None, Connection::Stays);
        let client_timeout = timeout::of(request.headers()).ok().flatten();
        let (method_index, answer) = match method::find(&path) {
            Some((index, method)) => {
                let (uri, headers, peer) = (request.uri(), request.headers(), request.extensions().get());
                let head = RequestHead { uri, headers, peer, is_own_gateway: false };
                let answer = match app.auth.admit(&*app.backend, head, method.access).await {
                    Ok(admitted) => {
                        caller = Some(Arc::clone(&admitted));
                        let context = RequestContext {
                            id: id.clone(),
                            deadline: start + app.request_timeout,
                            caller: admitted,
                            peer: request.extensions().get().cloned(),
                        };
                        let mut span = trace::begin(request.headers(), || path.trim_start_matches('/').to_owned());
                        let answer = match &span {
                            None => self.call(method, &context, start, request).await,
                            Some(span) => {
                                Box::pin(within(span.context(), self.call(method, &context, start, request))).await
                            }
                        };
                        if let Some(span) = &mut span {
                            answered(span, &answer);
                        }
                        // A call is executed by the right of the client, so that the state machine rejected the client.
                        let is_rejected = answer.code() == Code::Unauthenticated && context.caller.is_client();
                        match is_rejected && method.access != Access::Settle {
                            true => Answer::of(status::rejected(AuthError::ClientUnauthenticated)),
                            false => answer,
                        }
                    }
                    Err(rejection) => {
                        (caller, connection) = (rejection.caller, rejection.connection);
                        Answer::of(status::rejected(rejection.error))
                    }
                };
                (index, answer)
            }
            None => {
                let message = format!("method {path} not found; reflection lists all methods");
                (METHODS.len(), Answer::of(Status::unimplemented(message)))
            }
        };
        let refusal = match (status::retry_after_ms(&answer), &caller) {
            (Some(ms), Some(caller)) => app.auth.delay_refusal(caller, ms),
            (None, _) | (_, None) => Refusal::Immediate(connection),
        };
        app.metrics.called(method_index, answer.code(), start.elapsed());
        log(app, caller.as_deref(), (id.as_str(), &path), &answer, start);
        let mut response = answer.into_response();
        response.headers_mut().insert(REQUEST_ID, id.into_header());
        match refusal {
            Refusal::Immediate(Connection::Stays) => {}
            Refusal::Immediate(Connection::Closes) => _ = response.extensions_mut().insert(CloseAfterReply),
            // Half of the client's own timeout leaves it time to read the response.
            Refusal::Delayed(delay) => {
                let at_most = client_timeout.map_or(Duration::MAX, |timeout| timeout / 2);
                Box::pin(delay.wait(at_most, app.draining())).await;
            }
        }
        response
    }

    async fn call(
        &self,
        method: &Method,
        context: &RequestContext,
        start: Instant,
        mut request: Request<Body>,
    ) -> Answer {
        if let Some(mistake) = head::mistake(request.uri(), request.headers()) {
            return Answer::of(Status::invalid_argument(mistake));
        }
        let client_timeout = match timeout::of(request.headers()) {
            Ok(timeout) => timeout,
            Err(status) => return Answer::of(status),
        };
        request.extensions_mut().insert(context.clone());
        let serve = method.service.of(&self.services);
        match method.form {
            Form::Unary => {
                let answer = unary::call(&self.app, context, method, serve, request);
                // A client timeout beyond the server's own has no effect.
                match client_timeout.filter(|timeout| *timeout < self.app.request_timeout) {
                    None => answer.await,
                    Some(timeout) => tokio::time::timeout_at(start + timeout, answer).await.unwrap_or_else(|_| {
                        let message = "grpc-timeout: no answer in time; the outcome is unknown, retry the same request";
                        Answer::of(Status::deadline_exceeded(message))
                    }),
                }
            }
            Form::Stream { is_endless } => {
                let deadline = (!is_endless).then_some(context.deadline);
                let request = request.map(|body| Body::new(BoundedStream::new(body, deadline, self.app.draining())));
                let Ok(response) = serve(request).await;
                Answer::streaming(response)
            }
        }
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
fn log(app: &App, caller: Option<&Caller>, (request_id, path): (&str, &str), answer: &Answer, start: Instant) {
    let (code, took) = (answer.code(), start.elapsed());
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
    Box::new(move |request| service.clone().call(request))
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
