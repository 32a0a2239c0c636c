//! The stream of a connection, which leaves marks as bytes come and go.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::frames::Frames;
use super::pulse::{Phase, Pulse};
use super::transport::Transport;
use crate::door::Presence;

/// What a client that speaks HTTP/2 from the start sends first.
pub(super) const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The stream of a connection.
pub(super) struct Stream {
    transport: Transport,
    /// What was read to tell the protocol, and is to be read again.
    first: First,
    pulse: Arc<Pulse>,
    heard: Heard,
    is_blocked: bool,
}

/// What is made of the bytes that a client sends.
pub(super) enum Heard {
    /// HTTP/2: what is known of the frames.
    Frames(Frames),
    /// HTTP/1: whether there is an end of them.
    Presence(Arc<Presence>),
}

/// The first bytes of a connection.
#[derive(Default)]
pub(super) struct First {
    bytes: [u8; PREFACE.len()],
    length: usize,
    taken: usize,
}

impl First {
    /// Reads until it is certain whether the client speaks HTTP/2. `None` if it hangs up before.
    pub(super) async fn read(&mut self, tcp: &TcpStream) -> io::Result<Option<bool>> {
        loop {
            tcp.readable().await?;
            match tcp.try_read(&mut self.bytes[self.length..]) {
                Ok(0) if self.length == 0 => return Ok(None),
                Ok(0) => return Ok(Some(false)),
                Ok(count) => self.length += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                Err(error) => return Err(error),
            }
            if !PREFACE.starts_with(&self.bytes[..self.length]) {
                return Ok(Some(false));
            }
            if self.length == PREFACE.len() {
                return Ok(Some(true));
            }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.length == 0
    }
}

impl Stream {
    pub(super) fn new(transport: Transport, first: First, pulse: Arc<Pulse>, heard: Heard) -> Stream {
        Stream { transport, first, pulse, heard, is_blocked: false }
    }

    fn mark_read(&mut self, read: &[u8]) {
        let before = self.pulse.look().phase();
        let Heard::Frames(frames) = &mut self.heard else {
            // Whatever comes while nothing is asked is the head of a request.
            if before == Phase::Idle {
                self.pulse.enter(Phase::Head);
            }
            return;
        };
        let is_whole = frames.follow(read);
        let phase = if frames.is_in_head() { Phase::Head } else { Phase::Idle };
        // Reading does not excuse a client from taking what is sent to it.
        if !self.is_blocked && (is_whole || phase != before) {
            self.pulse.enter(phase);
        }
    }

    /// A write that could not be done stays marked from its beginning; any progress ends that.
    fn mark_write<T>(&mut self, written: Poll<T>) -> Poll<T> {
        match (written.is_pending(), self.is_blocked) {
            (true, false) => self.pulse.enter(Phase::Writing),
            (false, true) => self.pulse.enter(Phase::Idle),
            (true, true) | (false, false) => {}
        }
        self.is_blocked = written.is_pending();
        written
    }

    /// Sees whether the client has hung up, for a request that waits. Nothing else reads while a request is handled; but
    /// every turn of its task comes by here.
    fn look_for_client(&self, context: &mut Context<'_>) {
        let Heard::Presence(presence) = &self.heard else { return };
        if !presence.is_asked_for() {
            return;
        }
        // Behind TLS, or a further request, the end is not seen until that was read.
        let mut byte = [0];
        if let Poll::Ready(Ok(0) | Err(_)) =
            self.transport.tcp().poll_peek(context, &mut ReadBuf::new(&mut byte))
        {
            presence.leave();
            context.waker().wake_by_ref();
        }
    }

    pub(super) fn into_transport(self) -> Transport {
        self.transport
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let First { bytes, length, taken } = &mut self.first;
        if taken < length {
            let count = (*length - *taken).min(buffer.remaining());
            buffer.put_slice(&bytes[*taken..*taken + count]);
            *taken += count;
            let from = buffer.filled().len() - count;
            self.mark_read(&buffer.filled()[from..]);
            return Poll::Ready(Ok(()));
        }
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.transport).poll_read(context, buffer))?;
        if buffer.filled().len() > before {
            self.mark_read(&buffer.filled()[before..]);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.transport).poll_write(context, bytes);
        self.mark_write(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.transport).poll_write_vectored(context, slices);
        self.mark_write(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.transport.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.look_for_client(context);
        Pin::new(&mut self.transport).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.transport).poll_shutdown(context)
    }
}
