//! The recorder of the process: the sampling decision, and the bounded queue of finished spans.

use std::cell::Cell;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::OnceLock;

use tokio::sync::mpsc;

use crate::context::TraceContext;
use crate::span::SpanRecord;

/// Finished spans that wait for the exporter. Beyond this they are dropped. It holds a second of a busy server with every
/// request sampled.
pub const QUEUE_MAX: usize = 16_384;
/// Sampled requests of one batch that get spans for its steps. A batch has at most a few thousand requests, of which few
/// are sampled.
pub const TRACES_MAX: usize = 16;

/// Counter of spans that were dropped because the queue was full.
pub const DROPPED: &str = "earmark_trace_spans_dropped_total";
/// Counter of spans that the collector has taken.
pub const EXPORTED: &str = "earmark_trace_spans_exported_total";
/// Counter of spans that were lost because the collector did not take them.
pub const FAILED: &str = "earmark_trace_spans_failed_total";

struct Recorder {
    /// A trace that begins here is sampled if a random number is at most this; none is with 0.
    threshold: u64,
    queue: mpsc::Sender<SpanRecord>,
}

static RECORDER: OnceLock<Recorder> = OnceLock::new();

/// The finished spans, for the exporter.
pub type SpanQueue = mpsc::Receiver<SpanRecord>;

/// Turns tracing on for this process. `ratio` is the share of requests without a context of their own that are sampled.
/// Returns the queue of finished spans; `None` if tracing is on already.
pub fn install(ratio: f64) -> Option<SpanQueue> {
    let (queue, receiver) = mpsc::channel(QUEUE_MAX);
    // A product above the range becomes its end, so that 1 samples all.
    let threshold = (ratio.clamp(0.0, 1.0) * u64::MAX as f64) as u64;
    RECORDER.set(Recorder { threshold, queue }).ok()?;
    for counter in [DROPPED, EXPORTED, FAILED] {
        metrics::counter!(counter).increment(0);
    }
    Some(receiver)
}

/// Whether tracing is on.
#[must_use]
pub fn is_on() -> bool {
    RECORDER.get().is_some()
}

/// Whether a request is sampled: as its parent says, or by the ratio.
pub(crate) fn is_sampled(parent: Option<&TraceContext>) -> bool {
    let Some(recorder) = RECORDER.get() else { return false };
    match parent {
        Some(parent) => parent.is_sampled,
        None => random() <= recorder.threshold && recorder.threshold > 0,
    }
}

/// The context of a new span below `parent`, or of a new trace. `None` if tracing is off. It may be unsampled: such a
/// context tells the next process not to sample either.
#[must_use]
pub fn next_context(parent: Option<TraceContext>) -> Option<TraceContext> {
    is_on().then(|| child(parent, is_sampled(parent.as_ref())))
}

/// A context with an id of its own.
pub(crate) fn child(parent: Option<TraceContext>, is_sampled: bool) -> TraceContext {
    let trace = parent.map_or_else(|| rand::random::<u128>().max(1), |parent| parent.trace);
    TraceContext { trace, span: rand::random::<u64>().max(1), is_sampled }
}

/// Queues a finished span, or drops it.
pub(crate) fn record(span: SpanRecord) {
    let Some(recorder) = RECORDER.get() else { return };
    if recorder.queue.try_send(span).is_err() {
        metrics::counter!(DROPPED).increment(1);
    }
}

/// A random number for the sampling decision: splitmix64, which is cheap enough for every request. Ids come from a better
/// generator.
fn random() -> u64 {
    thread_local! {
        static STATE: Cell<u64> = Cell::new(RandomState::new().hash_one(0));
    }
    let state = STATE.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
    STATE.set(state);
    let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Kind, Span};

    /// Every test of the recorder: it is one for the process.
    #[test]
    fn a_parent_decides_else_the_ratio_and_a_full_queue_drops() {
        assert!(!is_on());
        assert!(Span::of_request("early", Kind::Server, None).is_none());
        let mut queue = install(0.25).unwrap();
        assert!(is_on() && install(1.0).is_none());
        let roots = (0..40_000).filter(|_| is_sampled(None)).count();
        assert!((8_000..12_000).contains(&roots), "{roots} of 40,000");
        let parent = |is_sampled| Some(TraceContext { trace: 5, span: 6, is_sampled });
        assert!(Span::of_request("unsampled", Kind::Server, parent(false)).is_none());
        assert_eq!(next_context(parent(false)).map(|context| (context.trace, context.is_sampled)), Some((5, false)));
        let span = Span::of_request("sampled", Kind::Server, parent(true)).unwrap();
        let context = span.context();
        assert_eq!((context.trace, context.is_sampled), (5, true));
        drop(span);
        let found = queue.try_recv().unwrap();
        assert_eq!((found.context, found.parent), (context, Some(6)));
        for _ in 0..QUEUE_MAX + 7 {
            drop(Span::of_request("many", Kind::Server, parent(true)));
        }
        assert_eq!(std::iter::from_fn(|| queue.try_recv().ok()).count(), QUEUE_MAX);
    }
}
