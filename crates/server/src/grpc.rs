//! The same API as gRPC, beside HTTP on one port: what its clients send and get.
//!
//! A call is read, bounded, counted and logged as a request of HTTP is; tonic only frames and routes it. What is
//! in a message becomes what the backend takes in `earmark_proto::convert`, and what is done with it is the same as
//! for HTTP, in `carry_out`.

mod answer;
mod health;
mod ledger;
mod limits;
mod method;
mod status;
mod timeout;
mod unary;

use std::convert::Infallible;
use std::sync::Arc;

use axum::body::Body;
use axum::http::header::CONTENT_TYPE;
use axum::http::{Method as Verb, Request, Response};
use earmark_admission::Token;
use earmark_proto::v1::ledger_service_server::LedgerServiceServer;
use earmark_proto::v1::limits_service_server::LimitsServiceServer;
use tokio::time::Instant;
use tonic::codegen::{BoxFuture, Service};
use tonic::{Code, Status};
use tonic_health::pb::health_server::HealthServer;
use tonic_reflection::server::Builder;

use crate::app::App;
use crate::body::BODY_BYTES_MAX;
use crate::carry_out::Ticket;
use crate::door::{After, Head, Parting, TurnedAway};
use crate::http::REQUEST_ID;
use answer::{Answer, Bounded};
use health::Healthy;
use method::{Form, Method, Services};

pub(crate) use answer::Streaming;
pub(crate) use method::METHODS;

/// A service of tonic, whichever it is.
type Serve = Box<dyn Fn(Request<Body>) -> BoxFuture<Response<tonic::body::Body>, Infallible> + Send + Sync>;

/// Everything that is served as gRPC.
#[derive(Clone)]
pub(crate) struct Grpc {
    app: Arc<App>,
    services: Arc<Services<Serve>>,
}

impl Grpc {
    /// All services.
    ///
    /// # Errors
    /// A bug: the descriptors that were compiled in are none.
    pub(crate) fn new(app: &Arc<App>) -> Result<Grpc, tonic_reflection::server::Error> {
        let services = Services {
            limits: boxed(LimitsServiceServer::new(limits::Limits(Arc::clone(app)))),
            ledger: boxed(LedgerServiceServer::new(ledger::Ledger(Arc::clone(app)))),
            health: boxed(HealthServer::new(Healthy(Arc::clone(app)))),
            reflection: boxed(described().build_v1()?.max_decoding_message_size(BODY_BYTES_MAX)),
            reflection_alpha: boxed(described().build_v1alpha()?.max_decoding_message_size(BODY_BYTES_MAX)),
        };
        Ok(Grpc { app: Arc::clone(app), services: Arc::new(services) })
    }

    /// Answers a call.
    pub(crate) async fn serve(&self, request: Request<Body>) -> Response<Body> {
        let start = Instant::now();
        let app = &self.app;
        let id = app.request_ids.of(request.headers());
        let path = Token::redact(request.uri().path()).into_owned();
        let (mut actor, mut is_parting) = (None, false);
        let (place, answer) = match method::find(&path) {
            Some((place, method)) => {
                let head =
                    Head { uri: request.uri(), headers: request.headers(), extensions: request.extensions() };
                let answer = match app.door.admit(&*app.backend, head, method.access).await {
                    Ok(caller) => {
                        actor = Some(caller.actor.clone());
                        let ticket = Ticket {
                            id: id.clone(),
                            deadline: start + app.request_timeout,
                            caller,
                            presence: None,
                        };
                        self.call(method, &ticket, start, request).await
                    }
                    Err(TurnedAway { why, caller, after }) => {
                        is_parting = after == After::Ends;
                        actor = caller.map(|caller| caller.actor.clone());
                        Answer::of(status::refused(why))
                    }
                };
                (place, answer)
            }
            None => {
                let message = format!("path: found {path}, which is no method; reflection lists them all");
                (METHODS.len(), Answer::of(Status::unimplemented(message)))
            }
        };
        let took = start.elapsed();
        let code = answer.code();
        let actor = actor.as_ref().map_or("-", |actor| actor.as_str());
        let request_id = id.to_str().unwrap_or_default();
        app.metrics.called(place, code, took);
        if matches!(code, Code::Internal | Code::Unavailable | Code::Unknown) {
            let answer = answer.message();
            tracing::warn!(request_id, actor, path, ?code, ?took, %answer, "answered");
        } else {
            tracing::debug!(request_id, actor, path, ?code, ?took, "answered");
        }
        let mut response = answer.into_response();
        response.headers_mut().insert(REQUEST_ID, id);
        is_parting.then(|| response.extensions_mut().insert(Parting));
        response
    }

    async fn call(
        &self,
        method: &Method,
        ticket: &Ticket,
        start: Instant,
        mut request: Request<Body>,
    ) -> Answer {
        let patience = match timeout::of(request.headers()) {
            Ok(patience) => patience,
            Err(status) => return Answer::of(status),
        };
        request.extensions_mut().insert(ticket.clone());
        let serve = method.service.of(&self.services);
        match method.form {
            Form::Unary => {
                let answer = unary::call(&self.app, ticket, method.takes, serve, request);
                // Beyond the server's own, a client's patience makes no difference.
                match patience.filter(|patience| *patience < self.app.request_timeout) {
                    None => answer.await,
                    Some(patience) => {
                        tokio::time::timeout_at(start + patience, answer).await.unwrap_or_else(|_| {
                            let message =
                                "grpc-timeout: no answer within it; the outcome is unknown, retry the same";
                            Answer::of(Status::deadline_exceeded(message))
                        })
                    }
                }
            }
            Form::Stream { is_endless } => {
                let deadline = (!is_endless).then_some(ticket.deadline);
                let request =
                    request.map(|body| Body::new(Bounded::new(body, deadline, self.app.draining())));
                let Ok(response) = serve(request).await;
                Answer::streaming(response)
            }
        }
    }
}

/// Whether a request is a call. What only resembles one, such as gRPC for browsers, is answered as HTTP.
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

/// What both versions of reflection describe.
fn described<'a>() -> Builder<'a> {
    Builder::configure()
        .include_reflection_service(false)
        .register_encoded_file_descriptor_set(earmark_proto::FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(tonic_reflection::pb::v1::FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(tonic_reflection::pb::v1alpha::FILE_DESCRIPTOR_SET)
}
