//! The open connections to an upstream.
//!
//! A connection of HTTP/1 carries one request at a time: it leaves the pool with a request, and returns when the answer is
//! read. One of HTTP/2 carries many, and stays.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::body::{Frame, Incoming};
use hyper::client::conn::{TrySendError, http1, http2};
use hyper::header::HOST;
use hyper::http::uri::{Authority, Parts};
use hyper::{Request, Response, Uri};
use tokio::time::Instant;

use super::{Connections, RequestBody};
use crate::config::TargetUrl;

/// Connections that are kept. Beyond it those of HTTP/1 are closed after their answer.
const KEPT_MAX: usize = 256;
/// How long an idle connection is kept. Providers close theirs after a minute or more.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// The connections that can take a request now or soon, in the order of their last use.
#[derive(Default)]
pub(super) struct Pool(Mutex<Vec<Kept>>);

struct Kept {
    authority: Authority,
    sender: Sender,
    since: Instant,
}

/// Sends requests on a connection.
pub(super) enum Sender {
    Http1(http1::SendRequest<RequestBody>),
    Http2(http2::SendRequest<RequestBody>),
}

/// Why a request has no answer, and the request if none of its bytes was sent.
type NotAnswered = TrySendError<Request<RequestBody>>;

impl Sender {
    /// Sends a request, whose path is that of its URL.
    pub(super) async fn send(
        &mut self,
        url: &TargetUrl,
        mut request: Request<RequestBody>,
    ) -> Result<Response<Incoming>, NotAnswered> {
        let path_and_query = request.uri().path_and_query().cloned();
        match self {
            Sender::Http1(sender) => {
                *request.uri_mut() = path_and_query.map(Uri::from).unwrap_or_default();
                request.headers_mut().insert(HOST, url.host.clone());
                sender.try_send_request(request).await
            }
            Sender::Http2(sender) => {
                let mut parts = Parts::default();
                (parts.scheme, parts.authority) = (Some(url.scheme.clone()), Some(url.authority.clone()));
                parts.path_and_query = path_and_query;
                // A URL that has all of its parts is valid.
                *request.uri_mut() = Uri::from_parts(parts).unwrap_or_default();
                sender.try_send_request(request).await
            }
        }
    }

    fn is_ready(&self) -> bool {
        match self {
            Sender::Http1(sender) => sender.is_ready(),
            Sender::Http2(sender) => sender.is_ready(),
        }
    }

    fn is_closed(&self) -> bool {
        match self {
            Sender::Http1(sender) => sender.is_closed(),
            Sender::Http2(sender) => sender.is_closed(),
        }
    }
}

impl Pool {
    /// The connection to an authority that was used last. One whose upstream has not read the last request, or not sent
    /// the last answer, is not ready.
    pub(super) fn take(&self, authority: &Authority) -> Option<Sender> {
        let now = Instant::now();
        let mut kept = self.lock();
        let can_take = |one: &Kept| one.sender.is_ready() && one.is_alive(now) && one.authority == *authority;
        let place = kept.iter().rposition(can_take)?;
        let one = kept.get_mut(place)?;
        if let Sender::Http2(sender) = &one.sender {
            one.since = now;
            return Some(Sender::Http2(sender.clone()));
        }
        Some(kept.remove(place).sender)
    }

    /// Keeps a connection for further requests.
    pub(super) fn keep(&self, authority: Authority, sender: Sender) {
        let now = Instant::now();
        let mut kept = self.lock();
        if kept.len() >= KEPT_MAX {
            kept.retain(|one| one.is_alive(now));
        }
        if kept.len() < KEPT_MAX {
            kept.push(Kept { authority, sender, since: now });
        }
    }

    /// Closes the connections that nobody used for a while, and forgets those that the upstream closed.
    pub(super) fn close_idle(&self) {
        let now = Instant::now();
        self.lock().retain(|one| one.is_alive(now));
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Kept>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    fn is_alive(&self, now: Instant) -> bool {
        now < self.since + IDLE_TIMEOUT && !self.sender.is_closed()
    }
}

/// The body of an answer. Its connection returns to the pool with the end of the body, or when the body is dropped.
pub(crate) struct AnswerBody {
    body: Incoming,
    connection: Option<Used>,
}

/// A connection of HTTP/1 whose answer is being read.
struct Used {
    sender: Option<Sender>,
    authority: Authority,
    upstream: Arc<Connections>,
}

impl AnswerBody {
    pub(super) fn new(body: Incoming, sender: Sender, upstream: &Arc<Connections>, url: &TargetUrl) -> AnswerBody {
        let connection = match sender {
            Sender::Http1(_) => {
                Some(Used { sender: Some(sender), authority: url.authority.clone(), upstream: Arc::clone(upstream) })
            }
            Sender::Http2(_) => None,
        };
        AnswerBody { body, connection }
    }

    /// The next part of the body; `None` at its end.
    pub(crate) async fn frame(&mut self) -> Option<hyper::Result<Frame<Bytes>>> {
        let frame = self.body.frame().await;
        if frame.is_none() {
            self.connection = None;
        }
        frame
    }
}

impl Drop for Used {
    fn drop(&mut self) {
        if let Some(sender) = self.sender.take().filter(|sender| !sender.is_closed()) {
            self.upstream.pool.keep(self.authority.clone(), sender);
        }
    }
}
