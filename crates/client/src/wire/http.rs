//! A server over HTTP.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use hyper::body::{Body, Incoming};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::ANSWER_BYTES_MAX;
use super::connect::Connector;
use super::json;
use super::read::Reader;
use crate::ask::{Answer, Ask};
use crate::failure::Failure;
use crate::key::ApiKey;

/// A connection that was not used for so long is not used again: the server may be about to close it.
const IDLE_MAX: Duration = Duration::from_secs(5);

/// A server over HTTP, with a connection for every request in flight.
pub(crate) struct Http {
    name: String,
    connector: Connector,
    key: Option<HeaderValue>,
    idle: Mutex<Vec<Idle>>,
    slots: Semaphore,
}

struct Idle {
    sender: SendRequest<String>,
    since: Instant,
}

/// What is sent.
pub(super) struct Call {
    pub(super) method: Method,
    pub(super) path: String,
    pub(super) body: Option<String>,
}

/// What came back.
pub(super) struct Reply {
    pub(super) status: StatusCode,
    pub(super) body: Vec<u8>,
}

/// Whether a request left, and what came of it.
enum Sent {
    Yes(Result<Reply, Failure>),
    No(hyper::Error),
}

impl Http {
    pub(crate) fn new(connector: Connector, key: Option<&ApiKey>, connections_max: usize) -> Http {
        Http {
            name: connector.address().to_string(),
            key: key.map(|key| key.header().clone()),
            connector,
            idle: Mutex::new(Vec::new()),
            slots: Semaphore::new(connections_max.clamp(1, Semaphore::MAX_PERMITS)),
        }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) async fn ask(&self, ask: &Ask) -> Result<Answer, Failure> {
        let call = json::call(ask).map_err(|error| Failure::Invalid { message: error.to_string() })?;
        let reply = self.exchange(&call).await?;
        json::answer(Reader(&self.name), ask, &reply)
    }

    fn no_answer(&self, why: impl ToString) -> Failure {
        Failure::NoAnswer { server: self.name.clone(), why: why.to_string() }
    }

    /// Sends one request and reads its answer. It is sent once: whoever asks must know of every copy that may be
    /// under way. Only what an idle connection, closed meanwhile, did not even take is sent on a new one.
    async fn exchange(&self, call: &Call) -> Result<Reply, Failure> {
        // The semaphore is never closed.
        let _slot = self.slots.acquire().await.map_err(|error| self.no_answer(error))?;
        if let Some(sender) = self.take_idle()
            && let Sent::Yes(reply) = self.send(sender, call).await
        {
            return reply;
        }
        let stream = self.connector.connect().await.map_err(|error| self.unreachable(error))?;
        let (sender, connection) =
            handshake(TokioIo::new(stream)).await.map_err(|error| self.unreachable(error))?;
        // What goes wrong with the connection is seen by whoever waits for an answer.
        tokio::spawn(connection);
        match self.send(sender, call).await {
            Sent::Yes(reply) => reply,
            Sent::No(error) => Err(self.unreachable(error)),
        }
    }

    fn unreachable(&self, why: impl ToString) -> Failure {
        Failure::Unreachable { server: self.name.clone(), why: why.to_string() }
    }

    fn take_idle(&self) -> Option<SendRequest<String>> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(last) = idle.pop() {
            if last.since.elapsed() > IDLE_MAX {
                // The others are older.
                idle.clear();
                return None;
            }
            if last.sender.is_ready() {
                return Some(last.sender);
            }
        }
        None
    }

    async fn send(&self, mut sender: SendRequest<String>, call: &Call) -> Sent {
        let request = match self.request(call) {
            Ok(request) => request,
            Err(failure) => return Sent::Yes(Err(failure)),
        };
        let answer = match sender.try_send_request(request).await {
            Ok(answer) => answer,
            Err(error) if error.message().is_some() => return Sent::No(error.into_error()),
            Err(error) => return Sent::Yes(Err(self.no_answer(error.into_error()))),
        };
        let status = answer.status();
        let body = match self.collect(answer.into_body()).await {
            Ok(body) => body,
            Err(failure) => return Sent::Yes(Err(failure)),
        };
        if sender.ready().await.is_ok() {
            let since = Instant::now();
            self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(Idle { sender, since });
        }
        Sent::Yes(Ok(Reply { status, body }))
    }

    fn request(&self, call: &Call) -> Result<Request<String>, Failure> {
        let mut request = Request::builder().method(&call.method).uri(&call.path);
        request = request.header(HOST, self.connector.address().authority());
        if call.body.is_some() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        if let Some(key) = &self.key {
            request = request.header(AUTHORIZATION, key);
        }
        request
            .body(call.body.clone().unwrap_or_default())
            .map_err(|error| Failure::Invalid { message: format!("{}: {error}", call.path) })
    }

    async fn collect(&self, mut body: Incoming) -> Result<Vec<u8>, Failure> {
        let mut bytes = Vec::new();
        while let Some(frame) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
            let frame = frame.map_err(|error| self.no_answer(error))?;
            if let Some(data) = frame.data_ref() {
                bytes.extend_from_slice(data);
            }
            if bytes.len() > ANSWER_BYTES_MAX {
                return Err(Reader(&self.name).strange("it is larger than any answer should be"));
            }
        }
        Ok(bytes)
    }
}
