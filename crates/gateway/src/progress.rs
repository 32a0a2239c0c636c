//! The progress of a client's connection: its first bytes, and what it takes of its answers.
//!
//! hyper has a timeout for the head of an HTTP/1 request only. A connection that says nothing would stay for as long as
//! its client likes, and an answer that nobody reads would keep its share of the memory for buffers.

use std::collections::BTreeMap;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

use crate::reply::{CutOff, ReplyBody};

/// The bytes that every client sends at least: the preface of HTTP/2. A request of HTTP/1.1 with a host is longer.
const FIRST_BYTES: usize = 24;

/// The progress of one connection.
pub(crate) struct Progress {
    started: Instant,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Whether the first bytes came.
    has_begun: bool,
    /// Since when the connection takes no bytes.
    blocked_since: Option<Instant>,
    /// Since when the client has not asked for more of an answer, by the number of the answer.
    untaken_since: BTreeMap<u64, Instant>,
    answers: u64,
}

impl Progress {
    /// The progress of a connection that begins now.
    pub(crate) fn new() -> Arc<Progress> {
        Arc::new(Progress { started: Instant::now(), state: Mutex::default() })
    }

    /// Why the connection must be closed.
    pub(crate) fn stalled(&self, now: Instant, head_timeout: Duration, take_timeout: Duration) -> Option<&'static str> {
        let state = self.lock();
        let mut untaken = state.blocked_since.iter().chain(state.untaken_since.values());
        if !state.has_begun && now >= self.started + head_timeout {
            Some("its client sends nothing")
        } else if untaken.any(|since| now >= *since + take_timeout) {
            Some("its client takes nothing")
        } else {
            None
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection whose progress is known.
pub(crate) struct Watched<S> {
    stream: S,
    progress: Arc<Progress>,
    /// Bytes that were read, until they are enough.
    read: usize,
    is_blocked: bool,
}

impl<S> Watched<S> {
    pub(crate) fn new(stream: S, progress: &Arc<Progress>) -> Watched<S> {
        Watched { stream, progress: Arc::clone(progress), read: 0, is_blocked: false }
    }

    /// Notes whether a write or a flush waits. Only a change needs the lock.
    fn wrote<T>(&mut self, written: Poll<T>) -> Poll<T> {
        if self.is_blocked != written.is_pending() {
            self.is_blocked = written.is_pending();
            self.progress.lock().blocked_since = self.is_blocked.then(Instant::now);
        }
        written
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if self.read < FIRST_BYTES {
            self.read += buffer.filled().len() - before;
            if self.read >= FIRST_BYTES {
                self.progress.lock().has_begun = true;
            }
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.wrote(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.wrote(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.wrote(flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// An answer. Over HTTP/2 a client may open no window for it while its connection goes on, so its own progress is noted:
/// hyper asks for the next piece once the client has room for it.
pub(crate) struct Answer {
    body: ReplyBody,
    /// The connection and the number of the answer, over HTTP/2.
    noted: Option<(Arc<Progress>, u64)>,
}

impl Answer {
    pub(crate) fn new(body: ReplyBody, progress: Option<Arc<Progress>>) -> Answer {
        let noted = progress.map(|progress| {
            let mut state = progress.lock();
            state.answers += 1;
            let number = state.answers;
            state.untaken_since.insert(number, Instant::now());
            drop(state);
            (progress, number)
        });
        Answer { body, noted }
    }
}

impl Body for Answer {
    type Data = Bytes;
    type Error = CutOff;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, CutOff>>> {
        let frame = Pin::new(&mut self.body).poll_frame(context);
        if let Some((progress, number)) = &self.noted {
            let mut state = progress.lock();
            match &frame {
                Poll::Ready(Some(_)) => drop(state.untaken_since.insert(*number, Instant::now())),
                // The client waits for the upstream, or has all.
                Poll::Ready(None) | Poll::Pending => drop(state.untaken_since.remove(number)),
            }
        }
        frame
    }

    /// An answer that is noted ends with an empty frame. Else hyper would forget it with its last piece, which the client
    /// has not taken then.
    fn is_end_stream(&self) -> bool {
        self.noted.is_none() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        if let Some((progress, number)) = &self.noted {
            progress.lock().untaken_since.remove(number);
        }
    }
}
