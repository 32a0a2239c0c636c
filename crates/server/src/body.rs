//! Reading a request's body: in full, but not too much of it, and not for too long.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;

use axum::body::{Body, Bytes, HttpBody};
use tokio::time::Instant;

use crate::budget::Budget;

/// The largest body that is read.
pub const BODY_BYTES_MAX: usize = 1 << 20;

/// So much of a body that is not wanted is read and thrown away. A client that sends it all before it reads
/// the answer would otherwise see its connection reset, and never the answer.
const DISCARD_BYTES_MAX: u64 = 16 << 20;

/// A body that was not read, or not to its end.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Unread {
    pub(crate) why: Why,
    /// What was left of it was thrown away, so that another request can follow on its connection.
    pub(crate) is_drained: bool,
}

/// Why a body was not read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Why {
    TooLarge,
    NoRoom,
    TooSlow,
    CutShort(String),
}

impl Unread {
    /// What is wrong, for a client.
    pub(crate) fn message(&self) -> String {
        match &self.why {
            Why::TooLarge => {
                format!("body: found more than {BODY_BYTES_MAX} bytes, allowed are at most {BODY_BYTES_MAX}")
            }
            Why::NoRoom => {
                "body: too many large ones are being sent at once, and nothing happened; retry later".into()
            }
            Why::TooSlow => "body: found only a part of it in time, allowed is to send it at once".into(),
            Why::CutShort(error) => format!("body: found it cut short ({error}), allowed is a whole one"),
        }
    }
}

/// The whole body, or why not.
pub(crate) async fn read(body: Body, deadline: Instant, budget: &Arc<Budget>) -> Result<Bytes, Unread> {
    match tokio::time::timeout_at(deadline, collect(body, budget)).await {
        Ok(read) => read,
        Err(_) => Err(Unread { why: Why::TooSlow, is_drained: false }),
    }
}

/// Throws a body away that nobody asked for, unless it is too long or too slow. Whether it was all read.
pub(crate) async fn discard(body: Body, deadline: Instant) -> bool {
    body.is_end_stream() || tokio::time::timeout_at(deadline, drain(body)).await.unwrap_or(false)
}

async fn collect(mut body: Body, budget: &Arc<Budget>) -> Result<Bytes, Unread> {
    if body.size_hint().lower() > BODY_BYTES_MAX as u64 {
        return Err(refused(Why::TooLarge, body).await);
    }
    let Some(first) = next(&mut body).await? else { return Ok(Bytes::new()) };
    // Nearly every body comes in one piece, which then need not be copied. Nor is it waited for, so that
    // the backend's own bound on what it takes on is one on these as well.
    if body.is_end_stream() && first.len() <= BODY_BYTES_MAX {
        return Ok(first);
    }
    let mut held = budget.nothing();
    let mut whole = Vec::from(first);
    loop {
        if whole.len() > BODY_BYTES_MAX {
            drop((whole, held));
            return Err(refused(Why::TooLarge, body).await);
        }
        if !held.grow_to(whole.capacity()) {
            drop((whole, held));
            return Err(refused(Why::NoRoom, body).await);
        }
        let Some(piece) = next(&mut body).await? else { return Ok(held.with(whole)) };
        whole.extend_from_slice(&piece);
    }
}

/// The next piece of data; `None` at the end.
async fn next(body: &mut Body) -> Result<Option<Bytes>, Unread> {
    loop {
        match poll_fn(|context| Pin::new(&mut *body).poll_frame(context)).await {
            None => return Ok(None),
            Some(Ok(frame)) => {
                // Trailers say nothing here.
                if let Ok(data) = frame.into_data() {
                    return Ok(Some(data));
                }
            }
            Some(Err(error)) => {
                return Err(Unread { why: Why::CutShort(error.to_string()), is_drained: false });
            }
        }
    }
}

/// The refusal of a request, once its client has sent what is left of it and can hear.
async fn refused(why: Why, body: Body) -> Unread {
    Unread { why, is_drained: drain(body).await }
}

async fn drain(mut body: Body) -> bool {
    let mut left = DISCARD_BYTES_MAX;
    if body.size_hint().lower() > left {
        return false;
    }
    loop {
        match next(&mut body).await {
            Ok(None) => return true,
            Ok(Some(piece)) if piece.len() as u64 <= left => left -= piece.len() as u64,
            Ok(Some(_)) | Err(_) => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::convert::Infallible;
    use std::task::{Context, Poll};
    use std::time::Duration;

    use hyper::body::Frame;

    use super::*;

    const PIECE: usize = 1 << 16;

    /// A body in pieces, which never ends if it is to stall.
    struct Pieces {
        left: VecDeque<Bytes>,
        stalls: bool,
    }

    impl HttpBody for Pieces {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            match self.left.pop_front() {
                Some(piece) => Poll::Ready(Some(Ok(Frame::data(piece)))),
                None if self.stalls => Poll::Pending,
                None => Poll::Ready(None),
            }
        }
    }

    fn body(pieces: usize, stalls: bool) -> Body {
        let left = (0..pieces).map(|_| Bytes::from(vec![b' '; PIECE])).collect();
        Body::new(Pieces { left, stalls })
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(20)
    }

    #[tokio::test]
    async fn bodies_that_are_still_coming_share_one_budget_and_give_it_back() {
        let budget = Budget::of(10 * PIECE);
        let stalled = tokio::spawn({
            let budget = Arc::clone(&budget);
            async move { read(body(6, true), soon(), &budget).await.map(|_| ()).is_ok() }
        });
        tokio::task::yield_now().await;
        let refused = read(body(6, false), soon(), &budget).await.err().unwrap();
        assert_eq!(refused.why, Why::NoRoom);
        assert!(refused.is_drained, "what was left of it was read");
        // One in a single piece is not waited for, and finds room.
        assert!(read(Body::from(vec![b' '; PIECE]), soon(), &Budget::of(0)).await.is_ok());

        stalled.abort();
        assert!(stalled.await.unwrap_err().is_cancelled());
        let whole = read(body(6, false), soon(), &budget).await.ok().unwrap();
        assert_eq!(whole.len(), 6 * PIECE);
        assert!(read(body(6, false), soon(), &budget).await.is_err(), "it is held while it is handled");
        drop(whole);
        assert!(read(body(6, false), soon(), &budget).await.is_ok());
    }
}
