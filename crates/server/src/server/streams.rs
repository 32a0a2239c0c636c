//! Tracks the requests and unread responses of an HTTP/2 connection.
//!
//! An HTTP/2 client may keep a connection busy and yet read no response, by opening no flow-control window. So progress
//! means requests and responses, not bytes. A response is pending until its last byte was written to the socket, which
//! is when hyper drops its memory.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Frame, SizeHint};
use tokio::time::Instant;

use super::activity::{Activity, Phase};

/// The request counts of one connection.
#[derive(Debug, Default)]
pub(super) struct Streams {
    requests: AtomicU64,
    handling: AtomicUsize,
    /// Pending responses, in two generations. Generations need no list of ages.
    pending: [AtomicUsize; 2],
    /// The generation of new responses.
    current: AtomicUsize,
    /// The connection closes after a response.
    must_close: AtomicBool,
}

impl Streams {
    /// Counts a new request.
    pub(super) fn begin_request(self: &Arc<Streams>) -> RequestGuard {
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.handling.fetch_add(1, Ordering::Relaxed);
        RequestGuard(Arc::clone(self))
    }

    /// Whether the connection must close. Reports it once.
    pub(super) fn take_close_request(&self) -> bool {
        self.must_close.swap(false, Ordering::Relaxed)
    }

    fn is_busy(&self) -> bool {
        let counts = [&self.handling, &self.pending[0], &self.pending[1]];
        counts.iter().any(|count| count.load(Ordering::Relaxed) > 0)
    }
}

/// Counts a request until it is handled.
pub(super) struct RequestGuard(Arc<Streams>);

impl RequestGuard {
    /// Closes the connection after the response.
    pub(super) fn close_connection(&self) {
        self.0.must_close.store(true, Ordering::Relaxed);
    }

    /// A streaming response. The request counts as being handled while it lasts, and each unread piece is pending.
    pub(super) fn stream(self, body: Body) -> TrackedBody {
        TrackedBody { body, tracking: Tracking::Each(self) }
    }

    /// A complete response, pending from now on.
    pub(super) fn answer(self, body: Body) -> TrackedBody {
        TrackedBody { body, tracking: Tracking::Whole(PendingBody::new(&self.0)) }
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        self.0.handling.fetch_sub(1, Ordering::Relaxed);
    }
}

struct PendingBody {
    streams: Arc<Streams>,
    generation: usize,
}

impl PendingBody {
    fn new(streams: &Arc<Streams>) -> Arc<PendingBody> {
        let generation = streams.current.load(Ordering::Relaxed) & 1;
        streams.pending[generation].fetch_add(1, Ordering::Relaxed);
        Arc::new(PendingBody { streams: Arc::clone(streams), generation })
    }
}

impl Drop for PendingBody {
    fn drop(&mut self) {
        self.streams.pending[self.generation].fetch_sub(1, Ordering::Relaxed);
    }
}

/// A response body that is pending while any of its bytes is in memory.
pub(super) struct TrackedBody {
    body: Body,
    tracking: Tracking,
}

enum Tracking {
    /// Pending from the first to the last byte.
    Whole(Arc<PendingBody>),
    /// Each piece is pending on its own.
    Each(RequestGuard),
}

impl Tracking {
    fn pending_body(&self) -> Arc<PendingBody> {
        match self {
            Tracking::Whole(pending) => Arc::clone(pending),
            Tracking::Each(request) => PendingBody::new(&request.0),
        }
    }
}

impl HttpBody for TrackedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(context);
        let track = |bytes| Bytes::from_owner(TrackedBytes { bytes, _pending: self.tracking.pending_body() });
        frame.map(|frame| frame.map(|frame| frame.map(|frame| frame.map_data(track))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

struct TrackedBytes {
    bytes: Bytes,
    _pending: Arc<PendingBody>,
}

impl AsRef<[u8]> for TrackedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// The body of a streaming response over HTTP/1. The connection counts as busy until it is dropped.
pub(super) struct StreamingBody {
    body: Body,
    activity: Arc<Activity>,
}

impl StreamingBody {
    pub(super) fn new(body: Body, activity: Arc<Activity>) -> StreamingBody {
        activity.set_streaming(true);
        StreamingBody { body, activity }
    }
}

impl HttpBody for StreamingBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }
}

impl Drop for StreamingBody {
    fn drop(&mut self) {
        self.activity.set_streaming(false);
    }
}

/// Detects idle connections and unread responses by periodic checks.
pub(super) struct StreamTimer {
    requests: u64,
    idle_since: Instant,
    /// When the generations were last swapped.
    swapped: Instant,
}

impl StreamTimer {
    pub(super) fn new(now: Instant) -> StreamTimer {
        StreamTimer { requests: 0, idle_since: now, swapped: now }
    }

    /// The phase that has timed out: `Writing` for a response unread for `unread_max` to twice that, `Idle` for a
    /// connection without requests for `idle_max`.
    pub(super) fn check(
        &mut self,
        streams: &Streams,
        now: Instant,
        unread_max: Duration,
        idle_max: Duration,
    ) -> Option<Phase> {
        let old = 1 - (streams.current.load(Ordering::Relaxed) & 1);
        if streams.pending[old].load(Ordering::Relaxed) == 0 {
            streams.current.store(old, Ordering::Relaxed);
            self.swapped = now;
        } else if now - self.swapped >= unread_max {
            return Some(Phase::Writing);
        }
        let requests = streams.requests.load(Ordering::Relaxed);
        if requests != self.requests || streams.is_busy() {
            self.requests = requests;
            self.idle_since = now;
        }
        (now - self.idle_since >= idle_max).then_some(Phase::Idle)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNREAD_MAX: Duration = Duration::from_secs(30);
    const IDLE_MAX: Duration = Duration::from_secs(300);

    struct Checks {
        streams: Arc<Streams>,
        timer: StreamTimer,
        start: Instant,
    }

    impl Checks {
        fn begin() -> Checks {
            let start = Instant::now();
            Checks { streams: Arc::default(), timer: StreamTimer::new(start), start }
        }

        fn at(&mut self, second: u64) -> Option<Phase> {
            self.timer.check(&self.streams, self.start + Duration::from_secs(second), UNREAD_MAX, IDLE_MAX)
        }

        /// The second of the first timeout.
        fn stuck_after(&mut self, from: u64) -> Option<(u64, Phase)> {
            (from..1_000).find_map(|second| Some((second, self.at(second)?)))
        }
    }

    #[test]
    fn a_connection_on_which_nothing_is_asked_is_idle_from_the_last_request_on() {
        let mut checks = Checks::begin();
        assert_eq!(checks.at(100), None);
        drop(checks.streams.begin_request());
        assert_eq!(checks.at(200), None);
        assert_eq!(checks.stuck_after(201), Some((500, Phase::Idle)));
    }

    #[test]
    fn a_request_that_is_handled_is_neither_idle_nor_stuck() {
        let mut checks = Checks::begin();
        let handling = checks.streams.begin_request();
        assert_eq!(checks.stuck_after(0), None);
        drop(handling);
        assert!(checks.stuck_after(1_000 - 1).is_none());
    }

    #[tokio::test]
    async fn a_response_is_pending_until_its_bytes_are_dropped() {
        let mut checks = Checks::begin();
        let mut body = checks.streams.begin_request().answer(Body::from("abc"));
        let frame = std::future::poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await;
        drop(body);
        let bytes = frame.unwrap().unwrap().into_data().unwrap();
        assert_eq!(bytes, "abc");
        assert_eq!(checks.at(0), None);
        assert_eq!(checks.at(29), None);
        assert_eq!(checks.at(30), Some(Phase::Writing));
        drop(bytes);
        assert_eq!(checks.at(31), None);
    }

    #[test]
    fn an_unread_response_times_out_within_twice_the_limit_also_among_read_ones() {
        for sent in 0..100 {
            let mut checks = Checks::begin();
            let mut others = std::collections::VecDeque::new();
            let mut kept = None;
            let stuck = (0..1_000).find(|second| {
                others.push_back(checks.streams.begin_request().answer(Body::empty()));
                if others.len() > 20 {
                    others.pop_front();
                }
                if *second == sent {
                    kept = Some(checks.streams.begin_request().answer(Body::empty()));
                }
                checks.at(*second).is_some()
            });
            let age = stuck.unwrap() - sent;
            assert!((30..=61).contains(&age), "{sent}: {age}");
        }
    }
}
