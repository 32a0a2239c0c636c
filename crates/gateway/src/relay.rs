//! The way of an answer from the upstream to the client, with backpressure and without trust in either of them.

use std::pin::pin;
use std::sync::Arc;

use bytes::Bytes;
use hyper::{Request, Response};
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};
use tokio::time::{Instant, timeout, timeout_at};

use crate::buffers::Buffers;
use crate::config::{Disconnect, Target};
use crate::reply::{Piece, Reply};
use crate::upstream::{AnswerBody, Connections, NoAnswer, RequestBody, chain};

/// Pieces up to this size are copied, in bytes. Chunks of a stream have some hundred.
const COPIED_BYTES_MAX: usize = 1 << 10;

/// The client of a call.
pub(crate) enum Client {
    /// It waits for the head of its answer.
    Waiting(oneshot::Sender<Reply>),
    /// It takes the pieces of its answer.
    Taking(mpsc::Sender<Piece>),
    /// It has its whole answer, or has gone.
    Done,
}

impl Client {
    /// Whether nobody waits for an answer any more.
    pub(crate) fn has_gone(&self) -> bool {
        match self {
            Client::Waiting(reply) => reply.is_closed(),
            Client::Taking(pieces) => pieces.is_closed(),
            Client::Done => true,
        }
    }

    /// Waits until it has gone. Never returns if it is done.
    pub(crate) async fn gone(&mut self) {
        match self {
            Client::Waiting(reply) => reply.closed().await,
            Client::Taking(pieces) => pieces.closed().await,
            Client::Done => std::future::pending().await,
        }
    }

    /// Sends the head of the answer, and the pieces that follow it to `next`.
    pub(crate) fn reply(&mut self, reply: Reply, next: Client) {
        if let Client::Waiting(sender) = std::mem::replace(self, next) {
            // A client that has just gone is noticed with the next piece.
            _ = sender.send(reply);
        }
    }
}

/// The next event from an upstream.
pub(crate) enum Next {
    /// Bytes of the answer.
    Bytes(Bytes),
    /// The clean end.
    End,
    /// The answer broke off, for this reason.
    Broken(String),
    /// The client has gone, and nobody reads on for it.
    Cancelled,
}

/// One answer on its way.
pub(crate) struct Relay {
    pub(crate) client: Client,
    upstream: Arc<Connections>,
    buffers: Buffers,
    /// The end of the attempt.
    deadline: Instant,
    /// The answer is read for a client that has gone.
    drain: Option<OwnedSemaphorePermit>,
}

impl Relay {
    /// The relay of an attempt that begins now.
    pub(crate) fn new(client: Client, upstream: Arc<Connections>, buffers: Buffers) -> Relay {
        let deadline = Instant::now() + upstream.config.timeouts.total;
        Relay { client, upstream, buffers, deadline, drain: None }
    }

    /// The client, for the next attempt.
    pub(crate) fn into_client(self) -> Client {
        self.client
    }

    /// Whether the answer is read for a client that has gone.
    pub(crate) fn is_draining(&self) -> bool {
        self.drain.is_some()
    }

    /// Reads on for a client that has gone, if the upstream's configuration says so and there is room.
    fn drain(&mut self) -> bool {
        self.client = Client::Done;
        if self.upstream.config.disconnect == Disconnect::Cancel {
            return false;
        }
        let Ok(permit) = Arc::clone(&self.upstream.drains).try_acquire_owned() else { return false };
        self.drain = Some(permit);
        self.deadline = self.deadline.min(Instant::now() + self.upstream.config.drain_timeout);
        true
    }

    /// Sends a request, and waits for the head of the answer. `None` if the deadline passes, or the client goes and nobody
    /// reads on for it.
    pub(crate) async fn send(
        &mut self,
        target: &Target,
        request: Request<RequestBody>,
    ) -> Option<Result<Response<AnswerBody>, NoAnswer>> {
        let upstream = Arc::clone(&self.upstream);
        let first_byte = upstream.config.timeouts.first_byte;
        let late = Instant::now() + first_byte;
        let mut sending = pin!(upstream.send(&target.url, request));
        loop {
            // One timer for both ends: most calls need none of them.
            let limit = self.deadline.min(late);
            tokio::select! {
                biased;
                answer = timeout_at(limit, &mut sending) => return match answer {
                    Ok(answer) => Some(answer),
                    Err(_) if limit == late => Some(Err(NoAnswer::TimedOut(first_byte))),
                    Err(_) => None,
                },
                () = self.client.gone() => if !self.drain() {
                    return None;
                },
            }
        }
    }

    /// The next piece of the answer.
    pub(crate) async fn next(&mut self, body: &mut AnswerBody) -> Next {
        let idle = self.upstream.config.timeouts.idle;
        loop {
            let limit = self.deadline.min(Instant::now() + idle);
            let frame = tokio::select! {
                biased;
                frame = timeout_at(limit, body.frame()) => frame,
                () = self.client.gone() => match self.drain() {
                    true => continue,
                    false => return Next::Cancelled,
                },
            };
            match frame {
                Err(_) => return Next::Broken("the upstream sent nothing in time".into()),
                Ok(None) => return Next::End,
                Ok(Some(Err(error))) => return Next::Broken(chain(&error)),
                // Trailers say nothing about the answer, and clients of these APIs do not read them.
                Ok(Some(Ok(frame))) => {
                    if let Ok(bytes) = frame.into_data() {
                        return Next::Bytes(bytes);
                    }
                }
            }
        }
    }

    /// Hands bytes to the client, and waits until it has room. Returns false if it has gone and nobody reads on for it.
    pub(crate) async fn write(&mut self, bytes: Bytes) -> bool {
        let Client::Taking(pieces) = &self.client else { return true };
        let idle = self.upstream.config.timeouts.idle;
        let handing = async {
            let share = self.buffers.take(bytes.len()).await?;
            // A small piece would keep the whole buffer that it was read into, and hyper would need another one.
            let bytes = if bytes.len() <= COPIED_BYTES_MAX { Bytes::copy_from_slice(&bytes) } else { bytes };
            pieces.send(Piece::Bytes(Box::new(share.hold(bytes)))).await.ok()
        };
        match timeout(idle, handing).await {
            Ok(Some(())) => true,
            // It has gone, or takes nothing: then its connection is closed.
            Ok(None) | Err(_) => self.drain(),
        }
    }

    /// Ends the client's answer cleanly.
    pub(crate) async fn end(&mut self) {
        if let Client::Taking(pieces) = std::mem::replace(&mut self.client, Client::Done) {
            let idle = self.upstream.config.timeouts.idle;
            _ = timeout(idle, pieces.send(Piece::End)).await;
        }
    }

    /// Cuts the client's answer off.
    pub(crate) fn cut_off(&mut self) {
        self.client = Client::Done;
    }
}
