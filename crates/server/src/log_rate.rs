//! A bound on log lines. A client without credentials must not fill the disk with them.

use std::sync::atomic::{AtomicU64, Ordering};

use metrics::Counter;

/// Lines a second about requests without credentials, by kind. Enough to see what happens.
const ANONYMOUS_LINES_MAX: u64 = 10;
/// Lines a second about requests of known callers, by kind. Their number is bounded by their request rate too.
const CALLER_LINES_MAX: u64 = 100;

/// The kinds of log lines. Each has its own bound, so that one does not hide another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LineKind {
    /// A failed HTTP request without credentials.
    AnonymousHttp = 0,
    /// A failed gRPC call without credentials.
    AnonymousGrpc = 1,
    /// A failed HTTP request of a caller.
    CallerHttp = 2,
    /// A failed gRPC call of a caller.
    CallerGrpc = 3,
}

/// The kinds in order, with their metric label and their lines a second.
pub(crate) const LINE_KINDS: [(LineKind, &str, u64); 4] = [
    (LineKind::AnonymousHttp, "anonymous_http", ANONYMOUS_LINES_MAX),
    (LineKind::AnonymousGrpc, "anonymous_grpc", ANONYMOUS_LINES_MAX),
    (LineKind::CallerHttp, "caller_http", CALLER_LINES_MAX),
    (LineKind::CallerGrpc, "caller_grpc", CALLER_LINES_MAX),
];

/// Counts the lines of the current second.
pub(crate) struct LogRate {
    lines: [AtomicU64; LINE_KINDS.len()],
    dropped: [Counter; LINE_KINDS.len()],
}

impl LogRate {
    pub(crate) fn new(dropped: [Counter; LINE_KINDS.len()]) -> LogRate {
        LogRate { lines: Default::default(), dropped }
    }

    /// Whether a line may be written. Otherwise it is counted.
    pub(crate) fn allows(&self, kind: LineKind) -> bool {
        let (index, (_, _, max)) = (kind as usize, LINE_KINDS[kind as usize]);
        let is_allowed = self.lines[index].fetch_add(1, Ordering::Relaxed) < max;
        if !is_allowed {
            self.dropped[index].increment(1);
        }
        is_allowed
    }

    /// Begins a new second, and logs how many lines the last one dropped.
    pub(crate) fn next_second(&self) {
        for ((_, label, max), lines) in LINE_KINDS.iter().zip(&self.lines) {
            let more = lines.swap(0, Ordering::Relaxed).saturating_sub(*max);
            if more > 0 {
                tracing::warn!(kind = label, "{more} more failed requests in the last second");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_that_is_used_up_hides_no_other_and_starts_again_each_second() {
        let rate = LogRate::new(LINE_KINDS.map(|_| Counter::noop()));
        let written = |kind| (0..1_000).filter(|_| rate.allows(kind)).count() as u64;
        for _ in 0..2 {
            for (kind, _, max) in LINE_KINDS {
                assert_eq!(written(kind), max, "{kind:?}");
                assert_eq!(written(kind), 0, "{kind:?}");
            }
            rate.next_second();
        }
        assert!(LINE_KINDS.iter().enumerate().all(|(index, (kind, _, _))| *kind as usize == index));
    }
}
