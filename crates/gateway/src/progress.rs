//! The progress of a client's connection: its first bytes, and what it takes of its answers.
//!
//! hyper has a timeout for the head of an HTTP/1 request only. An answer that nobody reads would keep its share of the
//! memory for buffers for as long as its client likes.

use std::collections::BTreeMap;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};
use tokio::time::Instant;

use crate::reply::{CutOff, ReplyBody};

/// The first bytes of every HTTP/2 connection.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The most that is read before the protocol is known, in bytes: the initial buffer of hyper.
const FIRST_BYTES_MAX: usize = 8 << 10;
/// The largest part of an answer over HTTP/2, so that a client that takes it slowly is seen to take it.
const PART_BYTES_MAX: usize = 64 << 10;

/// Reads the first bytes of a connection, until they tell HTTP/2 from HTTP/1. Returns whether it is HTTP/2. The bytes are
/// empty if the client said nothing.
///
/// They are all that came, and not only the preface: hyper doubles its buffer when a head comes in parts, and keeps it for
/// as long as the connection.
pub(crate) async fn first_bytes(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<(Bytes, bool)> {
    let mut bytes = Vec::with_capacity(FIRST_BYTES_MAX);
    while PREFACE.starts_with(&bytes) && bytes.len() < PREFACE.len() {
        if stream.read_buf(&mut bytes).await? == 0 {
            break;
        }
    }
    let is_http2 = bytes.starts_with(PREFACE);
    Ok((Bytes::from(bytes), is_http2))
}

/// The progress of one connection.
#[derive(Default)]
pub(crate) struct Progress(Mutex<State>);

#[derive(Default)]
struct State {
    /// Since when the connection takes no bytes.
    blocked_since: Option<Instant>,
    /// By the number of the answer.
    untaken: BTreeMap<u64, Untaken>,
    answers: u64,
}

/// The parts of one answer that the connection has not taken.
struct Untaken {
    parts: u32,
    /// When it took one, or was given one while it had none.
    since: Instant,
}

impl Progress {
    /// Whether the client has taken nothing during the timeout, so that its connection must be closed.
    pub(crate) fn is_stalled(&self, now: Instant, take_timeout: Duration) -> bool {
        let state = self.lock();
        let mut since = state.blocked_since.into_iter().chain(state.untaken.values().map(|untaken| untaken.since));
        since.any(|since| now >= since + take_timeout)
    }

    fn gave(&self, answer: u64) {
        let mut state = self.lock();
        state.untaken.entry(answer).or_insert_with(|| Untaken { parts: 0, since: Instant::now() }).parts += 1;
    }

    fn took(&self, answer: u64) {
        let mut state = self.lock();
        let Some(untaken) = state.untaken.get_mut(&answer) else { return };
        untaken.parts -= 1;
        untaken.since = Instant::now();
        if untaken.parts == 0 {
            state.untaken.remove(&answer);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection whose progress is known.
pub(crate) struct Watched<S> {
    stream: S,
    progress: Arc<Progress>,
    /// The bytes that were read before.
    first: Bytes,
    is_blocked: bool,
}

impl<S> Watched<S> {
    pub(crate) fn new(stream: S, first: Bytes, progress: &Arc<Progress>) -> Watched<S> {
        Watched { stream, progress: Arc::clone(progress), first, is_blocked: false }
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
        if self.first.is_empty() {
            return Pin::new(&mut self.stream).poll_read(context, buffer);
        }
        let length = self.first.len().min(buffer.remaining());
        buffer.put_slice(&self.first.split_to(length));
        Poll::Ready(Ok(()))
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

/// An answer. Over HTTP/2 a client may open no window for it while its connection goes on, so its own progress is noted.
/// hyper hands over a part before the client has room for it, so only the end of a part shows that it was taken.
pub(crate) struct Answer {
    body: ReplyBody,
    /// The connection and the number of the answer, over HTTP/2.
    noted: Option<(Arc<Progress>, u64)>,
    /// The rest of a piece that is handed over in parts.
    rest: Bytes,
}

impl Answer {
    pub(crate) fn new(body: ReplyBody, progress: Option<Arc<Progress>>) -> Answer {
        let noted = progress.map(|progress| {
            let mut state = progress.lock();
            state.answers += 1;
            let number = state.answers;
            drop(state);
            (progress, number)
        });
        Answer { body, noted, rest: Bytes::new() }
    }
}

impl Body for Answer {
    type Data = Bytes;
    type Error = CutOff;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, CutOff>>> {
        if self.noted.is_some() && self.rest.is_empty() {
            match ready!(Pin::new(&mut self.body).poll_frame(context)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(piece) => self.rest = piece,
                    Err(frame) => return Poll::Ready(Some(Ok(frame))),
                },
                end => return Poll::Ready(end),
            }
        }
        let Answer { body, noted, rest } = &mut *self;
        let Some((progress, number)) = noted else { return Pin::new(body).poll_frame(context) };
        let bytes = rest.split_to(rest.len().min(PART_BYTES_MAX));
        progress.gave(*number);
        let part = Part { bytes, progress: Arc::clone(progress), answer: *number };
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_owner(part)))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let rest = self.rest.len() as u64;
        self.body.size_hint().exact().map_or_else(SizeHint::default, |left| SizeHint::with_exact(left + rest))
    }
}

/// A part of an answer, which the connection drops once it has taken it.
struct Part {
    bytes: Bytes,
    progress: Arc<Progress>,
    answer: u64,
}

impl AsRef<[u8]> for Part {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.progress.took(self.answer);
    }
}
