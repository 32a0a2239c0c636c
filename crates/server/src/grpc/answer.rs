//! The response of a gRPC call, before it becomes an HTTP response.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use axum::http::header::CONTENT_TYPE;
use axum::http::response::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Frame, Incoming};
use tokio::time::{Instant, sleep_until};
use tonic::{Code, Status};

use crate::answer::no_room_for_read;
use crate::budget::NoRoom;

/// Response extension: a stream, which may last long although its client reads it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Streaming;

const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");
const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_OK: HeaderValue = HeaderValue::from_static("0");

pub(super) enum Answer {
    /// A status without a message.
    Status(Status),
    /// The message of a call that succeeded, in its frame.
    Message(Bytes),
    /// A message of tonic, and the status in its trailers.
    Whole { head: Parts, message: Bytes, trailers: HeaderMap },
    /// A stream of messages.
    Streaming(Response<Body>),
}

impl Answer {
    pub(super) fn of(status: Status) -> Answer {
        Answer::Status(status)
    }

    /// A unary response. It becomes `UNAVAILABLE` if the memory for large responses is used up.
    pub(super) async fn whole(
        response: Response<tonic::body::Body>,
        charge: impl FnOnce(Bytes) -> Result<Bytes, NoRoom>,
    ) -> Answer {
        let (head, body) = response.into_parts();
        if let Some(status) = Status::from_header_map(&head.headers) {
            return Answer::Status(status);
        }
        let collected = match body.collect().await {
            Ok(collected) => collected,
            Err(status) => return Answer::Status(status),
        };
        let trailers = collected.trailers().cloned().unwrap_or_default();
        match charge(collected.to_bytes()) {
            Ok(message) => Answer::Whole { head, message, trailers },
            Err(who) => Answer::Status(Status::unavailable(no_room_for_read(who))),
        }
    }

    /// A streaming response.
    pub(super) fn streaming(response: Response<tonic::body::Body>) -> Answer {
        match Status::from_header_map(response.headers()) {
            Some(status) => Answer::Status(status),
            None => Answer::Streaming(response.map(Body::new)),
        }
    }

    /// The status code; of a stream, so far.
    pub(super) fn code(&self) -> Code {
        match self {
            Answer::Status(status) => status.code(),
            Answer::Whole { trailers, .. } => {
                Status::from_header_map(trailers).map_or(Code::Unknown, |status| status.code())
            }
            Answer::Message(_) | Answer::Streaming(_) => Code::Ok,
        }
    }

    /// The error message, for the log.
    pub(super) fn message(&self) -> &str {
        match self {
            Answer::Status(status) => status.message(),
            Answer::Message(_) | Answer::Whole { .. } | Answer::Streaming(_) => "",
        }
    }

    pub(super) fn into_response(self) -> Response<Body> {
        match self {
            Answer::Status(status) => status.into_http(),
            Answer::Message(message) => {
                let mut response = Response::new(Body::new(MessageBody::Message(message)));
                response.headers_mut().insert(CONTENT_TYPE, GRPC);
                response
            }
            Answer::Whole { head, message, trailers } => {
                let body = Full::new(message).with_trailers(std::future::ready(Some(Ok(trailers))));
                Response::from_parts(head, Body::new(body))
            }
            Answer::Streaming(mut response) => {
                response.extensions_mut().insert(Streaming);
                response
            }
        }
    }
}

/// One message, and the trailers of a call that succeeded.
enum MessageBody {
    Message(Bytes),
    Trailers,
    End,
}

impl HttpBody for MessageBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(match std::mem::replace(&mut *self, MessageBody::End) {
            MessageBody::Message(message) => {
                *self = MessageBody::Trailers;
                Some(Ok(Frame::data(message)))
            }
            MessageBody::Trailers => {
                let mut trailers = HeaderMap::with_capacity(1);
                trailers.insert(GRPC_STATUS, GRPC_OK);
                Some(Ok(Frame::trailers(trailers)))
            }
            MessageBody::End => None,
        })
    }
}

/// The request stream of a client. It ends at the deadline, or when the server drains.
pub(super) struct BoundedStream {
    body: Incoming,
    end: Pin<Box<dyn Future<Output = ()> + Send>>,
    is_over: bool,
}

impl BoundedStream {
    pub(super) fn new(
        body: Incoming,
        deadline: Option<Instant>,
        draining: impl Future<Output = ()> + Send + 'static,
    ) -> BoundedStream {
        let end = async move {
            match deadline {
                None => draining.await,
                Some(deadline) => tokio::select! {
                    () = sleep_until(deadline) => {}
                    () = draining => {}
                },
            }
        };
        BoundedStream { body, end: Box::pin(end), is_over: false }
    }
}

impl HttpBody for BoundedStream {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let this = &mut *self;
        this.is_over |= this.end.as_mut().poll(context).is_ready();
        if this.is_over {
            return Poll::Ready(None);
        }
        Pin::new(&mut this.body).poll_frame(context)
    }
}
