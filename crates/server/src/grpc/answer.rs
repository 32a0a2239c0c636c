//! What a call is answered, before it is an HTTP response.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use axum::http::response::Parts;
use axum::http::{HeaderMap, Response};
use hyper::body::Frame;
use tokio::time::{Instant, sleep_until};
use tonic::{Code, Status};

use crate::answer::TOO_MANY_LARGE;
use crate::budget::{Budget, LARGE_BYTES};

/// Marks a response that may go on for long, and not because its client does not take it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Streaming;

/// What a call is answered.
pub(super) enum Answer {
    /// A status and no message.
    Status(Status),
    /// A message and, at the end, a status.
    Whole { head: Parts, message: Bytes, trailers: HeaderMap },
    /// Messages that are still to come.
    Streaming(Response<Body>),
}

impl Answer {
    pub(super) fn of(status: Status) -> Answer {
        Answer::Status(status)
    }

    /// An answer that is there already, if there is room for it until its client has taken it.
    pub(super) async fn whole(response: Response<tonic::body::Body>, budget: &Arc<Budget>) -> Answer {
        let (head, body) = response.into_parts();
        if let Some(status) = Status::from_header_map(&head.headers) {
            return Answer::Status(status);
        }
        let (message, trailers) = match collect(body).await {
            Ok(collected) => collected,
            Err(status) => return Answer::Status(status),
        };
        if message.len() < LARGE_BYTES {
            return Answer::Whole { head, message: message.into(), trailers };
        }
        let mut held = budget.nothing();
        if held.grow_to(message.len()) {
            return Answer::Whole { head, message: held.with(message), trailers };
        }
        Answer::Status(Status::unavailable(TOO_MANY_LARGE))
    }

    /// An answer that goes on.
    pub(super) fn streaming(response: Response<tonic::body::Body>) -> Answer {
        match Status::from_header_map(response.headers()) {
            Some(status) => Answer::Status(status),
            None => Answer::Streaming(response.map(Body::new)),
        }
    }

    /// How it came out; of a stream, so far.
    pub(super) fn code(&self) -> Code {
        match self {
            Answer::Status(status) => status.code(),
            Answer::Whole { trailers, .. } => {
                Status::from_header_map(trailers).map_or(Code::Unknown, |status| status.code())
            }
            Answer::Streaming(_) => Code::Ok,
        }
    }

    /// What is wrong, for the logs.
    pub(super) fn message(&self) -> &str {
        match self {
            Answer::Status(status) => status.message(),
            Answer::Whole { .. } | Answer::Streaming(_) => "",
        }
    }

    pub(super) fn into_response(self) -> Response<Body> {
        match self {
            Answer::Status(status) => status.into_http(),
            Answer::Whole { head, message, trailers } => {
                let body = Collected { message: Some(message), trailers: Some(trailers) };
                Response::from_parts(head, Body::new(body))
            }
            Answer::Streaming(mut response) => {
                response.extensions_mut().insert(Streaming);
                response
            }
        }
    }
}

/// All of a body that does not wait for anything.
async fn collect(mut body: tonic::body::Body) -> Result<(Vec<u8>, HeaderMap), Status> {
    let (mut message, mut trailers) = (Vec::new(), HeaderMap::new());
    while let Some(frame) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
        match frame?.into_data() {
            Ok(data) if message.is_empty() => message = Vec::from(data),
            Ok(data) => message.extend_from_slice(&data),
            Err(frame) => trailers.extend(frame.into_trailers().unwrap_or_default()),
        }
    }
    Ok((message, trailers))
}

/// A message and what comes after it.
struct Collected {
    message: Option<Bytes>,
    trailers: Option<HeaderMap>,
}

impl HttpBody for Collected {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let message = self.message.take().map(Frame::data);
        let next = message.or_else(|| self.trailers.take().map(Frame::trailers));
        Poll::Ready(next.map(Ok))
    }
}

/// The messages of a client, up to the end of its time or of the server's.
pub(super) struct Bounded {
    body: Body,
    end: Pin<Box<dyn Future<Output = ()> + Send>>,
    is_over: bool,
}

impl Bounded {
    pub(super) fn new(
        body: Body,
        deadline: Option<Instant>,
        draining: impl Future<Output = ()> + Send + 'static,
    ) -> Bounded {
        let end = async move {
            match deadline {
                None => draining.await,
                Some(deadline) => tokio::select! {
                    () = sleep_until(deadline) => {}
                    () = draining => {}
                },
            }
        };
        Bounded { body, end: Box::pin(end), is_over: false }
    }
}

impl HttpBody for Bounded {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let this = &mut *self;
        this.is_over |= this.end.as_mut().poll(context).is_ready();
        if this.is_over {
            return Poll::Ready(None);
        }
        Pin::new(&mut this.body).poll_frame(context)
    }
}
