//! The clock that processes on the same store share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

use earmark_admission::Clock;
use earmark_core::{EXPIRY_SKEW_MS_MAX, Moment, UnixMs};

use crate::store::AsOf;

/// How far the store's clock may jump back while this process waits for it to catch up, in milliseconds. After a larger
/// jump this process follows it: standing still for longer would stop timeouts and recovery.
const STANDS_MS_MAX: u64 = 10_000;

/// The time of this process, adjusted to the store's clock if it has one. It never runs backwards, except after the
/// store's clock was far ahead and was corrected.
pub(crate) struct SharedTime {
    clock: Arc<dyn Clock>,
    /// Offset of the store's clock from this process's clock, in milliseconds.
    ahead_ms: AtomicI64,
    /// Whether the store has a clock, which has been read.
    is_learned: AtomicBool,
    latest_ms: AtomicU64,
    /// The latest time at which all clocks agreed, by which credit expires.
    agreed_ms: AtomicU64,
    is_waiting: AtomicBool,
}

impl SharedTime {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> SharedTime {
        let (ahead_ms, is_learned) = (AtomicI64::new(0), AtomicBool::new(false));
        let (latest_ms, agreed_ms, is_waiting) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
        SharedTime { clock, ahead_ms, is_learned, latest_ms, agreed_ms, is_waiting }
    }

    pub(crate) fn now(&self) -> UnixMs {
        let own_ms = self.clock.now().log.get();
        let now_ms = own_ms.saturating_add_signed(self.ahead_ms.load(Ordering::Relaxed));
        let before_ms = self.latest_ms.fetch_max(now_ms, Ordering::Relaxed);
        if before_ms.saturating_sub(now_ms) <= STANDS_MS_MAX {
            return UnixMs::new(now_ms.max(before_ms));
        }
        // The store corrected its clock. If another call advanced the time meanwhile, that time stays.
        let _ = self.latest_ms.compare_exchange(before_ms, now_ms, Ordering::Relaxed, Ordering::Relaxed);
        UnixMs::new(now_ms)
    }

    /// The time of a record. Its log time is [`now`](SharedTime::now). Its wall time is that of the store's clock, which
    /// this process follows in both directions, or that of this process if the store has no clock.
    pub(crate) fn moment(&self) -> Moment {
        let own = self.clock.now();
        let wall_ms = match self.is_learned.load(Ordering::Relaxed) {
            true => own.log.get().saturating_add_signed(self.ahead_ms.load(Ordering::Relaxed)),
            false => own.wall.get(),
        };
        Moment { log: self.now(), wall: UnixMs::new(wall_ms) }
    }

    /// The time, and the time by which credit expires. That stands still while the shared time differs from a clock of
    /// this process by more than [`EXPIRY_SKEW_MS_MAX`]: one of them is wrong.
    pub(crate) fn as_of(&self) -> AsOf {
        let (own, now) = (self.clock.now(), self.now());
        let differs = |clock: UnixMs| clock.get().abs_diff(now.get()) > EXPIRY_SKEW_MS_MAX;
        let is_waiting = differs(own.log) || differs(own.wall);
        if self.is_waiting.swap(is_waiting, Ordering::Relaxed) != is_waiting {
            note_waiting(is_waiting);
        }
        if is_waiting {
            return AsOf { now, expiry: UnixMs::new(self.agreed_ms.load(Ordering::Relaxed)) };
        }
        let before_ms = self.agreed_ms.fetch_max(now.get(), Ordering::Relaxed);
        AsOf { now, expiry: UnixMs::new(before_ms.max(now.get())) }
    }

    /// Whether credit does not expire, because the clocks differ.
    pub(crate) fn is_expiry_waiting(&self) -> bool {
        self.as_of();
        self.is_waiting.load(Ordering::Relaxed)
    }

    /// Sets the offset from a store time that was read between two local times.
    pub(crate) fn learn(&self, asked_at: UnixMs, store_time: UnixMs, answered_at: UnixMs) {
        let middle_ms = asked_at.get().midpoint(answered_at.get());
        let ahead_ms = i128::from(store_time.get()) - i128::from(middle_ms);
        self.ahead_ms.store(i64::try_from(ahead_ms).unwrap_or(0), Ordering::Relaxed);
        self.is_learned.store(true, Ordering::Relaxed);
    }

    /// The time of this process alone.
    pub(crate) fn own(&self) -> UnixMs {
        self.clock.now().log
    }
}

fn note_waiting(is_waiting: bool) {
    match is_waiting {
        true => tracing::warn!(
            "credit in the database does not expire: the clock of the database and those of this process differ by more \
             than {} minutes; check the clocks, then restart the process",
            EXPIRY_SKEW_MS_MAX / 60_000
        ),
        false => tracing::info!("credit in the database expires again: the clocks agree"),
    }
}

#[cfg(test)]
mod tests {
    use earmark_admission::ManualClock;

    use super::*;

    /// A database clock was a year ahead for a moment. Every process that read it then stayed a year ahead: no hold
    /// timed out, and no dead process was detected.
    #[test]
    fn a_clock_that_was_far_ahead_and_was_set_right_is_followed_back() {
        let clock = ManualClock::at(1_000_000);
        let time = SharedTime::new(Arc::clone(&clock) as Arc<dyn Clock>);
        let own = UnixMs::new(1_000_000);
        time.learn(own, UnixMs::new(31_536_001_000_000), own);
        assert_eq!(time.now(), UnixMs::new(31_536_001_000_000));
        time.learn(own, UnixMs::new(1_000_500), own);
        assert_eq!(time.now(), UnixMs::new(1_000_500));
        clock.advance_ms(10);
        assert_eq!(time.now(), UnixMs::new(1_000_510));
        // A jump of a few seconds is waited for.
        time.learn(UnixMs::new(1_000_010), UnixMs::new(999_000), UnixMs::new(1_000_010));
        assert_eq!(time.now(), UnixMs::new(1_000_510));
        clock.advance_ms(2_000);
        assert_eq!(time.now(), UnixMs::new(1_001_000));
    }

    /// Entries had log time only, and a process that started with a wrong clock stamped them wrongly for months.
    #[test]
    fn wall_time_follows_the_clock_of_the_store_or_of_the_process() {
        let clock = ManualClock::at(1_000_000);
        let time = SharedTime::new(Arc::clone(&clock) as Arc<dyn Clock>);
        clock.set_wall(400_000);
        let at = |log, wall| Moment { log: UnixMs::new(log), wall: UnixMs::new(wall) };
        assert_eq!(time.moment(), at(1_000_000, 400_000), "without a clock in the store");
        time.learn(time.own(), UnixMs::new(2_000_000), time.own());
        assert_eq!(time.moment(), at(2_000_000, 2_000_000));
        time.learn(time.own(), UnixMs::new(1_999_000), time.own());
        assert_eq!(time.moment(), at(2_000_000, 1_999_000), "only log time waits");
    }

    /// A wall clock that is ten years ahead must not expire anything, whichever clock it is.
    #[test]
    fn credit_does_not_expire_while_a_clock_is_wrong() {
        let years_ms = 10 * 365 * 86_400_000;
        let clock = ManualClock::at(1_000_000);
        let time = SharedTime::new(Arc::clone(&clock) as Arc<dyn Clock>);
        let at = |now, expiry| AsOf { now: UnixMs::new(now), expiry: UnixMs::new(expiry) };
        assert_eq!((time.as_of(), time.is_expiry_waiting()), (at(1_000_000, 1_000_000), false));
        clock.set_wall(1_000_000 + years_ms);
        assert_eq!((time.as_of(), time.is_expiry_waiting()), (at(1_000_000, 1_000_000), true), "this process's");
        clock.set_wall(1_000_000);
        time.learn(time.own(), UnixMs::new(1_000_000 + years_ms), time.own());
        assert_eq!(
            (time.as_of(), time.is_expiry_waiting()),
            (at(1_000_000 + years_ms, 1_000_000), true),
            "the store's"
        );
        clock.set_wall(1_000_000 + years_ms);
        assert!(time.is_expiry_waiting(), "both, but not the steady clock");
        time.learn(time.own(), UnixMs::new(1_000_500), time.own());
        clock.set_wall(1_000_700);
        assert_eq!((time.as_of(), time.is_expiry_waiting()), (at(1_000_500, 1_000_500), false));
    }

    #[test]
    fn a_process_whose_clock_is_wrong_goes_by_the_store_and_never_back() {
        let clock = ManualClock::at(1_000_000);
        let time = SharedTime::new(Arc::clone(&clock) as Arc<dyn Clock>);
        assert_eq!(time.now(), UnixMs::new(1_000_000));
        time.learn(UnixMs::new(1_000_000), UnixMs::new(1_060_002), UnixMs::new(1_000_004));
        assert_eq!(time.now(), UnixMs::new(1_060_000));
        clock.advance_ms(10);
        assert_eq!(time.now(), UnixMs::new(1_060_010));
        time.learn(UnixMs::new(1_000_010), UnixMs::new(1_055_000), UnixMs::new(1_000_010));
        assert_eq!(time.now(), UnixMs::new(1_060_010));
    }
}
