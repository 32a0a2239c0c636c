//! What the requests on a connection of HTTP/2 are at.
//!
//! There, a client may keep a connection busy and yet take no answer: it opens no window for them. So what
//! counts is not whether bytes move but whether requests come and answers leave. An answer is owed until
//! its last byte was written to the socket, which is when hyper drops the memory that it is in.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Frame, SizeHint};
use tokio::time::Instant;

use super::pulse::Phase;

/// Where requests leave their marks.
#[derive(Debug, Default)]
pub(super) struct Streams {
    asked: AtomicU64,
    handling: AtomicUsize,
    /// Answers that are owed, of two generations: a count for each answer's age would be a list to keep.
    owed: [AtomicUsize; 2],
    /// The generation that answers are born into.
    young: AtomicUsize,
    /// An answer has left that the connection is to end with.
    is_parting: AtomicBool,
}

impl Streams {
    /// A request has come.
    pub(super) fn ask(self: &Arc<Streams>) -> Handling {
        self.asked.fetch_add(1, Ordering::Relaxed);
        self.handling.fetch_add(1, Ordering::Relaxed);
        Handling(Arc::clone(self))
    }

    /// Whether the connection is to end, as far as was not heard before.
    pub(super) fn is_parting(&self) -> bool {
        self.is_parting.swap(false, Ordering::Relaxed)
    }

    fn is_busy(&self) -> bool {
        let counts = [&self.handling, &self.owed[0], &self.owed[1]];
        counts.iter().any(|count| count.load(Ordering::Relaxed) > 0)
    }
}

/// A request that is being handled.
pub(super) struct Handling(Arc<Streams>);

impl Handling {
    /// The connection is to end once this was answered.
    pub(super) fn part(&self) {
        self.0.is_parting.store(true, Ordering::Relaxed);
    }

    /// The request was handled as far as its answer began, which may go on for long: it stays a request that is
    /// being handled, and only what of it waits to be taken is owed.
    pub(super) fn stream(self, body: Body) -> Owed {
        Owed { body, owing: Owing::Each(self) }
    }

    /// The request was handled; its answer is owed from now on.
    pub(super) fn answer(self, body: Body) -> Owed {
        Owed { body, owing: Owing::Whole(Debt::new(&self.0)) }
    }
}

impl Drop for Handling {
    fn drop(&mut self) {
        self.0.handling.fetch_sub(1, Ordering::Relaxed);
    }
}

struct Debt {
    streams: Arc<Streams>,
    generation: usize,
}

impl Debt {
    fn new(streams: &Arc<Streams>) -> Arc<Debt> {
        let generation = streams.young.load(Ordering::Relaxed) & 1;
        streams.owed[generation].fetch_add(1, Ordering::Relaxed);
        Arc::new(Debt { streams: Arc::clone(streams), generation })
    }
}

impl Drop for Debt {
    fn drop(&mut self) {
        self.streams.owed[self.generation].fetch_sub(1, Ordering::Relaxed);
    }
}

/// The body of an answer that is owed for as long as any of its bytes is in memory.
pub(super) struct Owed {
    body: Body,
    owing: Owing,
}

enum Owing {
    /// It is owed from its first to its last byte.
    Whole(Arc<Debt>),
    /// Each piece is owed by itself.
    Each(Handling),
}

impl Owing {
    fn debt(&self) -> Arc<Debt> {
        match self {
            Owing::Whole(debt) => Arc::clone(debt),
            Owing::Each(handling) => Debt::new(&handling.0),
        }
    }
}

impl HttpBody for Owed {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(context);
        let lend = |bytes| Bytes::from_owner(Lent { bytes, _debt: self.owing.debt() });
        frame.map(|frame| frame.map(|frame| frame.map(|frame| frame.map_data(lend))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

struct Lent {
    bytes: Bytes,
    _debt: Arc<Debt>,
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// What was seen of the streams, and when.
pub(super) struct Watch {
    asked: u64,
    idle_since: Instant,
    /// When the young generation last became the old one.
    turned: Instant,
}

impl Watch {
    pub(super) fn since(now: Instant) -> Watch {
        Watch { asked: 0, idle_since: now, turned: now }
    }

    /// What has lasted too long, if something has: an answer that was not taken for between once and twice
    /// `owed_max`, or that nothing was asked.
    pub(super) fn again(
        &mut self,
        streams: &Streams,
        now: Instant,
        owed_max: Duration,
        idle_max: Duration,
    ) -> Option<Phase> {
        let old = 1 - (streams.young.load(Ordering::Relaxed) & 1);
        if streams.owed[old].load(Ordering::Relaxed) == 0 {
            streams.young.store(old, Ordering::Relaxed);
            self.turned = now;
        } else if now - self.turned >= owed_max {
            return Some(Phase::Writing);
        }
        let asked = streams.asked.load(Ordering::Relaxed);
        if asked != self.asked || streams.is_busy() {
            self.asked = asked;
            self.idle_since = now;
        }
        (now - self.idle_since >= idle_max).then_some(Phase::Idle)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWED_MAX: Duration = Duration::from_secs(30);
    const IDLE_MAX: Duration = Duration::from_secs(300);

    struct Looks {
        streams: Arc<Streams>,
        watch: Watch,
        start: Instant,
    }

    impl Looks {
        fn begin() -> Looks {
            let start = Instant::now();
            Looks { streams: Arc::default(), watch: Watch::since(start), start }
        }

        fn at(&mut self, second: u64) -> Option<Phase> {
            self.watch.again(&self.streams, self.start + Duration::from_secs(second), OWED_MAX, IDLE_MAX)
        }

        /// The second at which something had lasted too long.
        fn stuck_after(&mut self, from: u64) -> Option<(u64, Phase)> {
            (from..1_000).find_map(|second| Some((second, self.at(second)?)))
        }
    }

    #[test]
    fn a_connection_on_which_nothing_is_asked_is_idle_from_the_last_request_on() {
        let mut looks = Looks::begin();
        assert_eq!(looks.at(100), None);
        drop(looks.streams.ask());
        assert_eq!(looks.at(200), None);
        assert_eq!(looks.stuck_after(201), Some((500, Phase::Idle)));
    }

    #[test]
    fn a_request_that_is_handled_is_neither_idle_nor_stuck() {
        let mut looks = Looks::begin();
        let handling = looks.streams.ask();
        assert_eq!(looks.stuck_after(0), None);
        drop(handling);
        assert!(looks.stuck_after(1_000 - 1).is_none());
    }

    #[tokio::test]
    async fn an_answer_is_owed_until_its_bytes_are_dropped() {
        let mut looks = Looks::begin();
        let mut body = looks.streams.ask().answer(Body::from("abc"));
        let frame = std::future::poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await;
        drop(body);
        let bytes = frame.unwrap().unwrap().into_data().unwrap();
        assert_eq!(bytes, "abc");
        assert_eq!(looks.at(0), None);
        assert_eq!(looks.at(29), None);
        assert_eq!(looks.at(30), Some(Phase::Writing));
        drop(bytes);
        assert_eq!(looks.at(31), None);
    }

    #[test]
    fn an_answer_has_its_time_and_at_most_twice_that_also_among_others_that_are_taken() {
        for born in 0..100 {
            let mut looks = Looks::begin();
            let mut others = std::collections::VecDeque::new();
            let mut kept = None;
            let stuck = (0..1_000).find(|second| {
                others.push_back(looks.streams.ask().answer(Body::empty()));
                if others.len() > 20 {
                    others.pop_front();
                }
                if *second == born {
                    kept = Some(looks.streams.ask().answer(Body::empty()));
                }
                looks.at(*second).is_some()
            });
            let age = stuck.unwrap() - born;
            assert!((30..=61).contains(&age), "{born}: {age}");
        }
    }
}
