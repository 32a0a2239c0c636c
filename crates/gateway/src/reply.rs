//! Answers to clients: whole ones, and ones that arrive in pieces.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::Response;
use hyper::body::{Body, Frame, SizeHint};
use tokio::sync::mpsc;

/// Pieces that wait for a slow client. A full queue stops the reading from the upstream.
const PIECES_MAX: usize = 4;

/// An answer to a client.
pub(crate) type Reply = Response<ReplyBody>;

/// The body of an answer.
pub(crate) enum ReplyBody {
    /// The whole body; empty once it is handed over.
    Whole(Bytes),
    /// A body in pieces. It ends cleanly only with [`Piece::End`].
    Pieces(mpsc::Receiver<Piece>),
}

/// A piece of a body.
pub(crate) enum Piece {
    /// Bytes. They are boxed, because the queue has memory for 32 pieces or more.
    Bytes(Box<Bytes>),
    /// The clean end.
    End,
}

/// The body was cut off, and the client must see that.
#[derive(Debug, thiserror::Error)]
#[error("the answer of the upstream was cut off")]
pub(crate) struct CutOff;

impl ReplyBody {
    pub(crate) fn whole(bytes: impl Into<Bytes>) -> ReplyBody {
        ReplyBody::Whole(bytes.into())
    }

    /// A body in pieces, and the sender of its pieces.
    pub(crate) fn pieces() -> (mpsc::Sender<Piece>, ReplyBody) {
        let (sender, receiver) = mpsc::channel(PIECES_MAX);
        (sender, ReplyBody::Pieces(receiver))
    }
}

impl Body for ReplyBody {
    type Data = Bytes;
    type Error = CutOff;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, CutOff>>> {
        match &mut *self {
            ReplyBody::Whole(bytes) => {
                let body = std::mem::take(bytes);
                Poll::Ready((!body.is_empty()).then(|| Ok(Frame::data(body))))
            }
            ReplyBody::Pieces(pieces) => pieces.poll_recv(context).map(|piece| match piece {
                Some(Piece::Bytes(bytes)) => Some(Ok(Frame::data(*bytes))),
                Some(Piece::End) => None,
                None => Some(Err(CutOff)),
            }),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, ReplyBody::Whole(bytes) if bytes.is_empty())
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            ReplyBody::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            ReplyBody::Pieces(_) => SizeHint::default(),
        }
    }
}
