//! Reads request bodies within limits of size, memory and time.

use std::fmt::Display;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use axum::body::{Bytes, HttpBody};
use http_body_util::BodyExt as _;
use tokio::time::Instant;

use crate::budget::{Budget, BudgetShare, Holders, LARGE_BYTES, NoRoom};

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
    NoMemory(NoRoom),
    TooSlow,
    Incomplete(String),
}

impl BodyError {
    pub(crate) fn message(&self) -> String {
        match &self.kind {
            BodyErrorKind::TooLarge => {
                format!("body: found more than {BODY_BYTES_MAX} bytes, allowed are at most {BODY_BYTES_MAX}")
            }
            BodyErrorKind::NoMemory(who) => {
                format!("body: too many large bodies of {who} arrive at once; nothing happened, retry later")
            }
            BodyErrorKind::TooSlow => "body: it did not arrive in time; send it at once".into(),
            BodyErrorKind::Incomplete(error) => format!("body: it ended early ({error}); send it whole"),
        }
    }
}

/// The bounds of one body.
#[derive(Clone, Copy)]
pub(crate) struct BodyBounds<'a> {
    /// When the whole body must have arrived.
    pub(crate) deadline: Instant,
    /// Timeout between two pieces.
    pub(crate) stall_timeout: Duration,
    pub(crate) budget: &'a Arc<Budget>,
    pub(crate) holders: Holders<'a>,
}

/// A body as hyper or axum hands it over.
pub(crate) trait Readable: HttpBody<Data = Bytes, Error: Display> + Unpin {}

impl<B: HttpBody<Data = Bytes, Error: Display> + Unpin> Readable for B {}

/// Reads a whole body.
pub(crate) async fn read<B: Readable>(body: B, bounds: BodyBounds<'_>) -> Result<Bytes, BodyError> {
    let mut reading = pin!(collect(body, bounds));
    if let Poll::Ready(read) = poll_once(reading.as_mut()).await {
        return read;
    }
    // Boxed, as below: a future has room for its timers even if it needs none.
    match Box::pin(tokio::time::timeout_at(bounds.deadline, reading)).await {
        Ok(read) => read,
        Err(_) => Err(TOO_SLOW),
    }
}

/// Polls a future once. Nearly every body has arrived together with its head, and then needs no timers.
async fn poll_once<F: Future>(mut future: Pin<&mut F>) -> Poll<F::Output> {
    poll_fn(|context| Poll::Ready(future.as_mut().poll(context))).await
}

const TOO_SLOW: BodyError = BodyError { kind: BodyErrorKind::TooSlow, is_drained: false };

/// Discards a body that the route does not use. Returns whether all of it was read in time.
pub(crate) async fn discard<B: Readable>(body: B, deadline: Instant) -> bool {
    body.is_end_stream() || tokio::time::timeout_at(deadline, drain(body, Duration::MAX)).await.unwrap_or(false)
}

async fn collect<B: Readable>(mut body: B, bounds: BodyBounds<'_>) -> Result<Bytes, BodyError> {
    let announced = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    if announced > BODY_BYTES_MAX {
        return Err(Box::pin(drained(BodyErrorKind::TooLarge, body, bounds.stall_timeout)).await);
    }
    let mut share = None;
    if announced >= LARGE_BYTES {
        // The memory is taken before the body is read, so that unfinished bodies cannot take that of others.
        let mut whole = bounds.budget.empty_share(bounds.holders);
        if let Err(who) = whole.grow_to(announced) {
            return Err(Box::pin(drained(BodyErrorKind::NoMemory(who), body, bounds.stall_timeout)).await);
        }
        share = Some(whole);
    }
    let Some(first) = next(&mut body, bounds.stall_timeout).await? else { return Ok(Bytes::new()) };
    // Nearly every body is small and arrives in one piece. It is not copied, and not charged: the backend's queue bounds
    // it.
    if body.is_end_stream() && first.len() <= BODY_BYTES_MAX {
        return Ok(match share {
            None => first,
            Some(share) => share.attach(first),
        });
    }
    Box::pin(collect_rest(body, announced, first, share, bounds)).await
}

/// Reads the rest of a body that arrives in pieces.
async fn collect_rest<B: Readable>(
    mut body: B,
    announced: usize,
    first: Bytes,
    share: Option<BudgetShare>,
    bounds: BodyBounds<'_>,
) -> Result<Bytes, BodyError> {
    let mut share = share.unwrap_or_else(|| bounds.budget.empty_share(bounds.holders));
    let mut whole = Vec::with_capacity(announced.max(first.len()));
    whole.extend_from_slice(&first);
    drop(first);
    loop {
        if whole.len() > BODY_BYTES_MAX {
            drop((whole, share));
            return Err(drained(BodyErrorKind::TooLarge, body, bounds.stall_timeout).await);
        }
        if let Err(who) = share.grow_to(whole.capacity()) {
            drop((whole, share));
            return Err(drained(BodyErrorKind::NoMemory(who), body, bounds.stall_timeout).await);
        }
        let Some(piece) = next(&mut body, bounds.stall_timeout).await? else { return Ok(share.attach(whole)) };
        whole.extend_from_slice(&piece);
    }
}

/// The next piece of data; `None` at the end. Trailers are ignored.
async fn next<B: Readable>(body: &mut B, stall_timeout: Duration) -> Result<Option<Bytes>, BodyError> {
    loop {
        let mut frame = pin!(body.frame());
        let frame = match poll_once(frame.as_mut()).await {
            Poll::Ready(frame) => frame,
            Poll::Pending => Box::pin(tokio::time::timeout(stall_timeout, frame)).await.map_err(|_| TOO_SLOW)?,
        };
        match frame {
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
async fn drained<B: Readable>(kind: BodyErrorKind, body: B, stall_timeout: Duration) -> BodyError {
    BodyError { kind, is_drained: drain(body, stall_timeout).await }
}

async fn drain<B: Readable>(mut body: B, stall_timeout: Duration) -> bool {
    let mut left = DISCARD_BYTES_MAX;
    if body.size_hint().lower() > left {
        return false;
    }
    loop {
        match next(&mut body, stall_timeout).await {
            Ok(None) => return true,
            Ok(Some(piece)) if piece.len() as u64 <= left => left -= piece.len() as u64,
            Ok(Some(_)) | Err(_) => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use hyper::body::Frame;
    use std::collections::VecDeque;
    use std::convert::Infallible;
    use std::task::Context;

    use super::*;
    use crate::budget::Purpose;
    use crate::caller::CallerShares;

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

    /// Bounds of a client that is not in a hurry.
    fn bounds<'a>(budget: &'a Arc<Budget>, holders: Holders<'a>) -> BodyBounds<'a> {
        let deadline = Instant::now() + Duration::from_secs(20);
        BodyBounds { deadline, stall_timeout: Duration::from_secs(5), budget, holders }
    }

    fn bodies(bytes: usize) -> Arc<Budget> {
        Budget::new(Purpose::Bodies, bytes)
    }

    #[tokio::test]
    async fn bodies_in_transit_share_one_budget_and_return_it() {
        let (budget, none) = (bodies(10 * PIECE), Holders::default());
        let stalled = tokio::spawn({
            let budget = Arc::clone(&budget);
            async move { read(body(6, true), bounds(&budget, none)).await.map(|_| ()).is_ok() }
        });
        tokio::task::yield_now().await;
        let refused = read(body(6, false), bounds(&budget, none)).await.err().unwrap();
        assert_eq!(refused.kind, BodyErrorKind::NoMemory(NoRoom::Server));
        assert!(refused.is_drained, "what was left of it was read");

        stalled.abort();
        assert!(stalled.await.unwrap_err().is_cancelled());
        let whole = read(body(6, false), bounds(&budget, none)).await.ok().unwrap();
        assert_eq!(whole.len(), 6 * PIECE);
        assert!(read(body(6, false), bounds(&budget, none)).await.is_err(), "it is held while it is handled");
        drop(whole);
        assert!(read(body(6, false), bounds(&budget, none)).await.is_ok());
    }

    /// A body was charged as its pieces came. Many clients began one each, and all of them failed half way.
    #[tokio::test]
    async fn the_memory_of_an_announced_body_is_taken_before_it_is_read() {
        let (budget, none) = (bodies(10 * PIECE), Holders::default());
        let announced = |pieces: usize| Body::from(vec![b' '; pieces * PIECE]);
        let first = read(announced(6), bounds(&budget, none)).await.unwrap();
        let refused = read(announced(6), bounds(&budget, none)).await.err().unwrap();
        assert_eq!(refused.kind, BodyErrorKind::NoMemory(NoRoom::Server));
        drop(first);
        assert!(read(announced(6), bounds(&budget, none)).await.is_ok());
        // A small body is not charged.
        assert!(read(Body::from("{}"), bounds(&bodies(0), none)).await.is_ok());
    }

    /// The unfinished bodies of one caller used up the memory of all others.
    #[tokio::test]
    async fn the_unfinished_bodies_of_one_caller_leave_room_for_those_of_others() {
        let budget = bodies(256 * PIECE);
        let (noisy, quiet) = (Arc::<CallerShares>::default(), Arc::<CallerShares>::default());
        let mut unfinished = tokio::task::JoinSet::new();
        for _ in 0..100 {
            let (budget, noisy) = (Arc::clone(&budget), Arc::clone(&noisy));
            unfinished.spawn(async move {
                let holders = Holders { connection: None, caller: Some(&noisy) };
                read(body(4, true), bounds(&budget, holders)).await.map(|_| ())
            });
        }
        tokio::task::yield_now().await;
        let holders = Holders { connection: None, caller: Some(&noisy) };
        let refused = read(body(4, false), bounds(&budget, holders)).await.err().unwrap();
        assert_eq!(refused.kind, BodyErrorKind::NoMemory(NoRoom::Caller));
        let holders = Holders { connection: None, caller: Some(&quiet) };
        assert!(read(body(4, false), bounds(&budget, holders)).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_stalls_is_given_up_long_before_its_deadline() {
        let start = Instant::now();
        let stalled = read(body(2, true), bounds(&bodies(10 * PIECE), Holders::default())).await.err().unwrap();
        assert_eq!(stalled.kind, BodyErrorKind::TooSlow);
        assert_eq!(start.elapsed(), Duration::from_secs(5));
    }
}
