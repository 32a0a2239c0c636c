//! Reads request bodies within limits of size, memory and time.

use std::sync::Arc;

use axum::body::{Body, Bytes, HttpBody as _};
use http_body_util::BodyExt as _;
use tokio::time::Instant;

use crate::budget::Budget;

/// Largest request body, in bytes.
pub const BODY_BYTES_MAX: usize = 1 << 20;

/// Bytes of a rejected body that are read and discarded. A client that sends its whole body before it reads the response
/// would otherwise see a connection reset instead.
const DISCARD_BYTES_MAX: u64 = 16 << 20;

/// A body that was not read to its end.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct BodyError {
    pub(crate) kind: BodyErrorKind,
    /// The rest was read and discarded, so that another request can follow on the connection.
    pub(crate) is_drained: bool,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum BodyErrorKind {
    TooLarge,
    NoMemory,
    TooSlow,
    Incomplete(String),
}

impl BodyError {
    pub(crate) fn message(&self) -> String {
        match &self.kind {
            BodyErrorKind::TooLarge => {
                format!("body: found more than {BODY_BYTES_MAX} bytes, allowed are at most {BODY_BYTES_MAX}")
            }
            BodyErrorKind::NoMemory => {
                "body: the server receives too many large bodies at once; nothing happened, retry later".into()
            }
            BodyErrorKind::TooSlow => "body: it did not arrive in time; send it at once".into(),
            BodyErrorKind::Incomplete(error) => format!("body: it ended early ({error}); send it whole"),
        }
    }
}

/// Reads a whole body.
pub(crate) async fn read(body: Body, deadline: Instant, budget: &Arc<Budget>) -> Result<Bytes, BodyError> {
    match tokio::time::timeout_at(deadline, collect(body, budget)).await {
        Ok(read) => read,
        Err(_) => Err(BodyError { kind: BodyErrorKind::TooSlow, is_drained: false }),
    }
}

/// Discards a body that the route does not use. Returns whether all of it was read in time.
pub(crate) async fn discard(body: Body, deadline: Instant) -> bool {
    body.is_end_stream() || tokio::time::timeout_at(deadline, drain(body)).await.unwrap_or(false)
}

async fn collect(mut body: Body, budget: &Arc<Budget>) -> Result<Bytes, BodyError> {
    if body.size_hint().lower() > BODY_BYTES_MAX as u64 {
        return Err(drained(BodyErrorKind::TooLarge, body).await);
    }
    let Some(first) = next(&mut body).await? else { return Ok(Bytes::new()) };
    // Nearly every body arrives in one piece. It is not copied, and not charged: the backend's queue bounds it.
    if body.is_end_stream() && first.len() <= BODY_BYTES_MAX {
        return Ok(first);
    }
    let mut share = budget.empty_share();
    let mut whole = Vec::from(first);
    loop {
        if whole.len() > BODY_BYTES_MAX {
            drop((whole, share));
            return Err(drained(BodyErrorKind::TooLarge, body).await);
        }
        if !share.grow_to(whole.capacity()) {
            drop((whole, share));
            return Err(drained(BodyErrorKind::NoMemory, body).await);
        }
        let Some(piece) = next(&mut body).await? else { return Ok(share.attach(whole)) };
        whole.extend_from_slice(&piece);
    }
}

/// The next piece of data; `None` at the end. Trailers are ignored.
async fn next(body: &mut Body) -> Result<Option<Bytes>, BodyError> {
    loop {
        match body.frame().await {
            None => return Ok(None),
            Some(Ok(frame)) => {
                if let Ok(data) = frame.into_data() {
                    return Ok(Some(data));
                }
            }
            Some(Err(error)) => {
                return Err(BodyError { kind: BodyErrorKind::Incomplete(error.to_string()), is_drained: false });
            }
        }
    }
}

/// Drains the body first, so that the client reads the error.
async fn drained(kind: BodyErrorKind, body: Body) -> BodyError {
    BodyError { kind, is_drained: drain(body).await }
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
    use std::pin::Pin;
    use std::task::{Context, Poll};
    use std::time::Duration;

    use axum::body::HttpBody;
    use hyper::body::Frame;

    use super::*;

    const PIECE: usize = 1 << 16;

    /// A body in pieces. It never ends if it stalls.
    struct Pieces {
        left: VecDeque<Bytes>,
        stalls: bool,
    }

    impl HttpBody for Pieces {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
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
    async fn bodies_in_transit_share_one_budget_and_return_it() {
        let budget = Budget::new(10 * PIECE);
        let stalled = tokio::spawn({
            let budget = Arc::clone(&budget);
            async move { read(body(6, true), soon(), &budget).await.map(|_| ()).is_ok() }
        });
        tokio::task::yield_now().await;
        let refused = read(body(6, false), soon(), &budget).await.err().unwrap();
        assert_eq!(refused.kind, BodyErrorKind::NoMemory);
        assert!(refused.is_drained, "what was left of it was read");
        // A body in one piece is not charged.
        assert!(read(Body::from(vec![b' '; PIECE]), soon(), &Budget::new(0)).await.is_ok());

        stalled.abort();
        assert!(stalled.await.unwrap_err().is_cancelled());
        let whole = read(body(6, false), soon(), &budget).await.ok().unwrap();
        assert_eq!(whole.len(), 6 * PIECE);
        assert!(read(body(6, false), soon(), &budget).await.is_err(), "it is held while it is handled");
        drop(whole);
        assert!(read(body(6, false), soon(), &budget).await.is_ok());
    }
}
