//! The connections to one server, one for every request in flight.

use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::Request;
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderName, HeaderValue};
use hyper_util::rt::TokioIo;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::{HttpDownload, HttpRequest, HttpResponse};
use crate::connect::Connector;
use crate::deadline::Deadline;
use crate::failure::Failure;
use crate::in_process::SharedServer;
use crate::options::ClientOptions;

/// The header with the key of the client that a gateway calls for.
const CLIENT_KEY: HeaderName = HeaderName::from_static("x-earmark-client-key");
/// Idle time in seconds after which a connection is not reused: the server may be about to close it.
const IDLE_MAX: Duration = Duration::from_secs(5);

/// The connections to one server.
pub(crate) struct ConnectionPool {
    name: String,
    connector: Connector,
    key: Option<HeaderValue>,
    answer_bytes_max: usize,
    idle: Mutex<Vec<Idle>>,
    slots: Semaphore,
    in_process: Option<SharedServer>,
}

/// An open connection without a request.
struct Idle {
    sender: SendRequest<Full<Bytes>>,
    since: Instant,
}

/// Whether a connection took a request.
enum Sent {
    /// The connection took the request.
    Yes(Result<HttpResponse, Failure>),
    /// The connection was closed before it took any byte of the request.
    No(hyper::Error),
}

impl ConnectionPool {
    pub(crate) fn new(connector: Connector, options: &ClientOptions) -> ConnectionPool {
        ConnectionPool {
            name: connector.address().to_string(),
            key: options.key.as_ref().map(|key| key.header().clone()),
            connector,
            answer_bytes_max: options.answer_bytes_max,
            idle: Mutex::new(Vec::new()),
            slots: Semaphore::new(options.connections_max.clamp(1, Semaphore::MAX_PERMITS)),
            in_process: options.in_process.clone(),
        }
    }

    /// The address of the server.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Sends one request and returns its response, or fails at the deadline.
    pub(crate) async fn send_by(&self, request: &HttpRequest, by: Deadline) -> Result<HttpResponse, Failure> {
        by.bound(self.send(request)).await.unwrap_or_else(|| Err(self.no_answer("no response in time")))
    }

    /// Sends one request and returns its response. It is sent at most once, because the caller must know of every copy
    /// that may still arrive. A new connection is used only when an idle one was closed before it took the request.
    async fn send(&self, request: &HttpRequest) -> Result<HttpResponse, Failure> {
        if let Some(SharedServer(server)) = &self.in_process {
            let (head, body) = server.serve(self.request(request)?).await.into_parts();
            return Ok(HttpResponse { status: head.status, headers: head.headers, body });
        }
        // The semaphore is never closed.
        let _slot = self.slots.acquire().await.map_err(|error| self.no_answer(error))?;
        if let Some(sender) = self.take_idle()
            && let Sent::Yes(response) = self.send_on(sender, request).await
        {
            return response;
        }
        let sender = self.connect().await?;
        match self.send_on(sender, request).await {
            Sent::Yes(response) => response,
            Sent::No(error) => Err(self.unreachable(error)),
        }
    }

    /// Sends one request on a connection of its own and returns the head of its response.
    pub(crate) async fn download_by(&self, request: &HttpRequest, by: Deadline) -> Result<HttpDownload, Failure> {
        let opened = async {
            let mut sender = self.connect().await?;
            let request = self.request(request)?.map(Full::new);
            let answer = sender.send_request(request).await.map_err(|error| self.no_answer(error))?;
            let (head, body) = answer.into_parts();
            Ok(HttpDownload { status: head.status, headers: head.headers, server: self.name.clone(), body })
        };
        by.bound(opened).await.unwrap_or_else(|| Err(self.no_answer("no response in time")))
    }

    async fn connect(&self) -> Result<SendRequest<Full<Bytes>>, Failure> {
        let stream = self.connector.connect().await.map_err(|error| error.failure(&self.name))?;
        let connected = handshake(TokioIo::new(stream)).await;
        let (sender, connection) = connected.map_err(|error| self.unreachable(error))?;
        // The caller that waits for the response sees an error of the connection.
        tokio::spawn(connection);
        Ok(sender)
    }

    fn no_answer(&self, why: impl ToString) -> Failure {
        Failure::NoAnswer { server: self.name.clone(), why: why.to_string() }
    }

    fn unreachable(&self, why: impl ToString) -> Failure {
        let kind = io::ErrorKind::ConnectionAborted;
        Failure::Unreachable { server: self.name.clone(), why: why.to_string(), kind }
    }

    fn unexpected(&self, what: impl ToString) -> Failure {
        Failure::Unexpected { server: self.name.clone(), what: what.to_string() }
    }

    fn take_idle(&self) -> Option<SendRequest<Full<Bytes>>> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        // The first one is idle for the longest time.
        let old = idle.partition_point(|one| one.since.elapsed() > IDLE_MAX);
        drop(idle.drain(..old));
        while let Some(last) = idle.pop() {
            if last.sender.is_ready() {
                return Some(last.sender);
            }
        }
        None
    }

    async fn send_on(&self, mut sender: SendRequest<Full<Bytes>>, request: &HttpRequest) -> Sent {
        let request = match self.request(request) {
            Ok(request) => request.map(Full::new),
            Err(failure) => return Sent::Yes(Err(failure)),
        };
        let answer = match sender.try_send_request(request).await {
            Ok(answer) => answer,
            Err(error) if error.message().is_some() => return Sent::No(error.into_error()),
            Err(error) => {
                let error = error.into_error();
                return Sent::Yes(Err(match error.is_parse() {
                    true => self.unexpected(format!("{error}; a server with TLS needs a URL with https://")),
                    false => self.no_answer(error),
                }));
            }
        };
        let (head, body) = answer.into_parts();
        let body = match self.collect(body).await {
            Ok(body) => body,
            Err(failure) => return Sent::Yes(Err(failure)),
        };
        if sender.ready().await.is_ok() {
            let since = Instant::now();
            self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(Idle { sender, since });
        }
        Sent::Yes(Ok(HttpResponse { status: head.status, headers: head.headers, body }))
    }

    fn request(&self, call: &HttpRequest) -> Result<Request<Bytes>, Failure> {
        let mut request = Request::builder().method(&call.method).uri(&call.path);
        request = request.header(HOST, self.connector.address().authority());
        if call.body.is_some() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        if let Some(key) = &self.key {
            request = request.header(AUTHORIZATION, key);
        }
        if let Some(client_key) = &call.client_key {
            request = request.header(CLIENT_KEY, client_key.header());
        }
        if let Some(context) = earmark_trace::current() {
            request = request.header(earmark_trace::TRACEPARENT, context.header());
        }
        request
            .body(call.body.clone().unwrap_or_default())
            .map_err(|error| Failure::Invalid { message: format!("{}: {error}", call.path) })
    }

    async fn collect(&self, body: Incoming) -> Result<Bytes, Failure> {
        match Limited::new(body, self.answer_bytes_max).collect().await {
            Ok(collected) => Ok(collected.to_bytes()),
            Err(error) if error.is::<LengthLimitError>() => {
                let max = self.answer_bytes_max;
                Err(self.unexpected(format!("the body is larger than {max} bytes (answer_bytes_max)")))
            }
            Err(error) => Err(self.no_answer(error)),
        }
    }
}
