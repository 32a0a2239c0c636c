//! The byte stream of a connection, which records activity as bytes come and go.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::activity::{Activity, Phase};
use super::body_length::BodyLengths;
use super::frames::Frames;
use super::transport::Transport;
use crate::auth::Hangup;

/// The HTTP/2 connection preface.
pub(super) const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub(super) struct Stream {
    transport: Transport,
    /// The bytes that protocol detection has read; they are read again.
    preamble: Preamble,
    activity: Arc<Activity>,
    inbound: Inbound,
    is_blocked: bool,
}

/// How the bytes of a client are observed.
pub(super) enum Inbound {
    /// HTTP/2: by following its frames.
    Frames(Frames),
    /// HTTP/1: for a hangup, and for ambiguous body lengths.
    Http1(Arc<Hangup>, BodyLengths),
}

/// The preamble bytes of a connection.
#[derive(Default)]
pub(super) struct Preamble {
    bytes: [u8; PREFACE.len()],
    length: usize,
    replayed: usize,
}

impl Preamble {
    /// Reads until it is certain whether the client speaks HTTP/2. `None` if the client hangs up first.
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
    pub(super) fn new(transport: Transport, preamble: Preamble, activity: Arc<Activity>, inbound: Inbound) -> Stream {
        Stream { transport, preamble, activity, inbound, is_blocked: false }
    }

    fn record_read(&mut self, read: &[u8]) {
        let before = self.activity.stamp().phase();
        if let Inbound::Http1(_, lengths) = &mut self.inbound
            && lengths.are_ambiguous(read)
        {
            self.activity.set_ambiguous();
        }
        let Inbound::Frames(frames) = &mut self.inbound else {
            // Bytes on an idle connection belong to the head of a request.
            if before == Phase::Idle {
                self.activity.enter(Phase::Head);
            }
            return;
        };
        let is_whole = frames.follow(read);
        let phase = if frames.is_in_head() { Phase::Head } else { Phase::Idle };
        // Incoming bytes do not reset the timeout of an unread response.
        if !self.is_blocked && (is_whole || phase != before) {
            self.activity.enter(phase);
        }
    }

    /// A blocked write keeps the phase `Writing` until it makes progress.
    fn record_write<T>(&mut self, written: Poll<T>) -> Poll<T> {
        match (written.is_pending(), self.is_blocked) {
            (true, false) => self.activity.enter(Phase::Writing),
            (false, true) => self.activity.enter(self.activity.between_writes()),
            (true, true) | (false, false) => {}
        }
        self.is_blocked = written.is_pending();
        written
    }

    /// Checks for a hangup while a request is queued. Nothing reads the connection meanwhile, but every poll of its task
    /// flushes.
    fn check_hangup(&self, context: &mut Context<'_>) {
        let Inbound::Http1(hangup, _) = &self.inbound else { return };
        if !hangup.is_watched() {
            return;
        }
        // Behind TLS data or a pipelined request the end of input is not visible.
        let mut byte = [0];
        if let Poll::Ready(Ok(0) | Err(_)) = self.transport.tcp().poll_peek(context, &mut ReadBuf::new(&mut byte)) {
            hangup.set();
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
        let Preamble { bytes, length, replayed } = &mut self.preamble;
        if replayed < length {
            let count = (*length - *replayed).min(buffer.remaining());
            buffer.put_slice(&bytes[*replayed..*replayed + count]);
            *replayed += count;
            let from = buffer.filled().len() - count;
            self.record_read(&buffer.filled()[from..]);
            return Poll::Ready(Ok(()));
        }
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.transport).poll_read(context, buffer))?;
        if buffer.filled().len() > before {
            self.record_read(&buffer.filled()[before..]);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.transport).poll_write(context, bytes);
        self.record_write(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.transport).poll_write_vectored(context, slices);
        self.record_write(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.transport.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check_hangup(context);
        Pin::new(&mut self.transport).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.transport).poll_shutdown(context)
    }
}
