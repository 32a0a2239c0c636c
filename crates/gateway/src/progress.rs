//! The progress of a client's connection: its first bytes, and what it takes of its answers.
//!
//! hyper has a timeout for the head of an HTTP/1 request only. An answer that nobody reads would keep its share of the
//! memory for buffers for as long as its client likes.

use std::collections::BTreeMap;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
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
    /// Since when the client has not asked for more of an answer, by the number of the answer.
    untaken_since: BTreeMap<u64, Instant>,
    answers: u64,
}

impl Progress {
    /// Whether the client has taken nothing during the timeout, so that its connection must be closed.
    pub(crate) fn is_stalled(&self, now: Instant, take_timeout: Duration) -> bool {
        let state = self.lock();
        let mut untaken = state.blocked_since.iter().chain(state.untaken_since.values());
        untaken.any(|since| now >= *since + take_timeout)
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

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncWriteExt as _, duplex};

    use super::*;

    /// The first bytes of a client that sends these parts, and whether they are HTTP/2.
    async fn first_of(parts: &'static [&[u8]]) -> (Bytes, bool) {
        let (mut client, mut stream) = duplex(1);
        tokio::spawn(async move {
            for part in parts {
                client.write_all(part).await.unwrap();
            }
        });
        first_bytes(&mut stream).await.unwrap()
    }

    #[tokio::test]
    async fn the_first_bytes_tell_http_2_from_http_1_however_they_arrive() {
        assert_eq!(first_of(&[PREFACE]).await, (Bytes::from_static(PREFACE), true));
        assert_eq!(first_of(&[b"PRI * HTTP/2.0\r\n", b"\r\nSM\r\n\r\n"]).await, (Bytes::from_static(PREFACE), true));
        // One byte is enough to see that it is no preface.
        assert_eq!(first_of(&[b"GET"]).await, (Bytes::from_static(b"G"), false));
        assert_eq!(first_of(&[b"POST / HTTP/1.1"]).await, (Bytes::from_static(b"PO"), false));
        assert_eq!(first_of(&[b"PRI"]).await, (Bytes::from_static(b"PRI"), false));
        assert_eq!(first_of(&[]).await, (Bytes::new(), false));
    }

    /// hyper doubled its buffer for each connection, because it got the head in two parts.
    #[tokio::test]
    async fn a_head_is_read_as_a_whole() {
        let (mut client, mut stream) = duplex(4_096);
        let head = b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n";
        client.write_all(head).await.unwrap();
        let (first, _) = first_bytes(&mut stream).await.unwrap();
        assert_eq!(first, &head[..]);
        let mut watched = Watched::new(stream, first, &Arc::default());
        client.write_all(b"more").await.unwrap();
        let mut read = Vec::new();
        watched.read_buf(&mut read).await.unwrap();
        assert_eq!(read, head);
        watched.read_buf(&mut read).await.unwrap();
        assert!(read.ends_with(b"more"));
    }
}
