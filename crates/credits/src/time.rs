//! What time it is for those who share the rows.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use earmark_admission::Clock;
use earmark_core::UnixMs;

/// The time of this process, set by the time of the store where the store has one. It never runs backwards.
pub(crate) struct SharedTime {
    clock: Arc<dyn Clock>,
    /// How far the store is ahead of this process, in milliseconds.
    ahead_ms: AtomicI64,
    latest_ms: AtomicU64,
}

impl SharedTime {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> SharedTime {
        SharedTime { clock, ahead_ms: AtomicI64::new(0), latest_ms: AtomicU64::new(0) }
    }

    pub(crate) fn now(&self) -> UnixMs {
        let own_ms = self.clock.now().log.get();
        let now_ms = own_ms.saturating_add_signed(self.ahead_ms.load(Ordering::Relaxed));
        let before_ms = self.latest_ms.fetch_max(now_ms, Ordering::Relaxed);
        UnixMs::new(now_ms.max(before_ms))
    }

    /// The store said what time it was, somewhen between two moments of this process.
    pub(crate) fn learn(&self, asked_at: UnixMs, told: UnixMs, answered_at: UnixMs) {
        let middle_ms = asked_at.get().midpoint(answered_at.get());
        let ahead_ms = i128::from(told.get()) - i128::from(middle_ms);
        self.ahead_ms.store(i64::try_from(ahead_ms).unwrap_or(0), Ordering::Relaxed);
    }

    /// What this process alone thinks.
    pub(crate) fn own(&self) -> UnixMs {
        self.clock.now().log
    }
}

#[cfg(test)]
mod tests {
    use earmark_admission::ManualClock;

    use super::*;

    #[test]
    fn a_process_whose_clock_is_wrong_goes_by_the_store_and_never_back() {
        let clock = ManualClock::at(1_000_000);
        let time = SharedTime::new(Arc::clone(&clock) as Arc<dyn Clock>);
        assert_eq!(time.now(), UnixMs::new(1_000_000));
        time.learn(UnixMs::new(1_000_000), UnixMs::new(1_060_002), UnixMs::new(1_000_004));
        assert_eq!(time.now(), UnixMs::new(1_060_000));
        clock.advance_ms(10);
        assert_eq!(time.now(), UnixMs::new(1_060_010));
        time.learn(UnixMs::new(1_000_010), UnixMs::new(900_000), UnixMs::new(1_000_010));
        assert_eq!(time.now(), UnixMs::new(1_060_010));
    }
}
