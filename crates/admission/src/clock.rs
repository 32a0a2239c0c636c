//! Clocks: wall time, and log time, which follows the monotonic clock and drifts towards wall time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use earmark_core::{Moment, UnixMs};

/// A time in UTC for people: `2026-11-15T09:30:00Z`.
#[must_use]
pub fn utc(time: UnixMs) -> String {
    let seconds = time.get() / 1_000;
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = date(days);
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// A time in UTC with its distance from `now`: `2026-11-15T09:30:00Z (3 min ago)`.
#[must_use]
pub fn utc_from(time: UnixMs, now: UnixMs) -> String {
    let seconds = now.get().abs_diff(time.get()) / 1_000;
    let units = [(86_400, "d"), (3_600, "h"), (60, "min"), (1, "s")];
    let (size, unit) = units.into_iter().find(|(size, _)| seconds >= 2 * size).unwrap_or((1, "s"));
    let length = seconds / size;
    let distance = if time > now { format!("in {length} {unit}") } else { format!("{length} {unit} ago") };
    format!("{} ({distance})", utc(time))
}

/// Year, month and day of a day count since 1970-01-01. The calculation starts years in March, so that a leap day is
/// the last day of its year.
fn date(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

/// Gives log time and wall time.
pub trait Clock: Send + Sync + 'static {
    /// The current times.
    fn now(&self) -> Moment;
}

/// The raw clocks of a machine.
pub trait TimeSource: Send + Sync + 'static {
    /// Monotonic microseconds since an arbitrary start.
    fn steady_us(&self) -> u64;

    /// Wall-clock microseconds since 1970.
    fn wall_us(&self) -> u64;
}

/// The clocks of this machine.
pub struct SystemTimeSource {
    start: Instant,
}

impl SystemTimeSource {
    /// Monotonic time starts at 0.
    #[must_use]
    pub fn new() -> SystemTimeSource {
        SystemTimeSource { start: Instant::now() }
    }
}

impl Default for SystemTimeSource {
    fn default() -> SystemTimeSource {
        SystemTimeSource::new()
    }
}

impl TimeSource for SystemTimeSource {
    fn steady_us(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    fn wall_us(&self) -> u64 {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since_epoch.as_micros()).unwrap_or(u64::MAX)
    }
}

/// Divisor of the greatest speed-up of log time behind the wall clock: 0.1 percent.
const CATCH_UP_PART: u64 = 1_000;
/// Divisor of the greatest slow-down of log time ahead of the wall clock: half speed. Windows then last longer, which
/// is the safe direction.
const SLOW_DOWN_PART: u64 = 2;

/// The clock of this machine. Log time starts at wall time and advances with monotonic time. After the wall clock is
/// set, log time follows: forward at most 0.1 percent faster, back at half speed.
pub struct SystemClock {
    source: SystemTimeSource,
    log: Mutex<LogTime>,
}

impl SystemClock {
    /// Starts at wall time.
    #[must_use]
    pub fn new() -> SystemClock {
        let source = SystemTimeSource::new();
        let log = Mutex::new(LogTime::starting_at(source.wall_us(), source.steady_us()));
        SystemClock { source, log }
    }
}

impl Default for SystemClock {
    fn default() -> SystemClock {
        SystemClock::new()
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Moment {
        self.log.lock().unwrap_or_else(PoisonError::into_inner).now(&self.source)
    }
}

/// Log time in microseconds. It advances with monotonic time and drifts towards wall time.
#[derive(Clone, Copy, Debug)]
pub struct LogTime {
    log_us: u64,
    steady_us: u64,
    /// Elapsed time that has not yet earned a microsecond of drift.
    rest: u64,
}

impl LogTime {
    /// Log time `log_us` at monotonic time `steady_us`.
    #[must_use]
    pub const fn starting_at(log_us: u64, steady_us: u64) -> LogTime {
        LogTime { log_us, steady_us, rest: 0 }
    }

    /// The current time.
    pub fn now(&mut self, source: &dyn TimeSource) -> Moment {
        let wall_us = source.wall_us();
        let log_us = self.advance(source.steady_us(), wall_us);
        Moment { log: UnixMs::new(log_us / 1_000), wall: UnixMs::new(wall_us / 1_000) }
    }

    /// Advances log time by the elapsed monotonic time, a little faster if it is behind the wall clock, and at half
    /// speed if it is ahead.
    fn advance(&mut self, steady_us: u64, wall_us: u64) -> u64 {
        let passed = steady_us.saturating_sub(self.steady_us);
        self.steady_us = self.steady_us.max(steady_us);
        let budget = passed.saturating_add(self.rest);
        let step_max = budget / CATCH_UP_PART;
        self.rest = budget % CATCH_UP_PART;
        let expected = self.log_us.saturating_add(passed);
        self.log_us = if wall_us >= expected {
            expected.saturating_add((wall_us - expected).min(step_max))
        } else {
            expected.saturating_sub((expected - wall_us).min(passed / SLOW_DOWN_PART))
        };
        self.log_us
    }
}

/// A clock that only moves when told to, for tests.
pub struct ManualClock {
    log_ms: AtomicU64,
    wall_ms: AtomicU64,
}

impl ManualClock {
    /// Both times start at `ms`.
    #[must_use]
    pub fn at(ms: u64) -> Arc<ManualClock> {
        Arc::new(ManualClock { log_ms: AtomicU64::new(ms), wall_ms: AtomicU64::new(ms) })
    }

    /// Advances both times.
    pub fn advance_ms(&self, ms: u64) {
        self.log_ms.fetch_add(ms, Ordering::SeqCst);
        self.wall_ms.fetch_add(ms, Ordering::SeqCst);
    }

    /// Sets wall time only.
    pub fn set_wall(&self, ms: u64) {
        self.wall_ms.store(ms, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Moment {
        Moment {
            log: UnixMs::new(self.log_ms.load(Ordering::SeqCst)),
            wall: UnixMs::new(self.wall_ms.load(Ordering::SeqCst)),
        }
    }
}

impl TimeSource for ManualClock {
    fn steady_us(&self) -> u64 {
        self.log_ms.load(Ordering::SeqCst).saturating_mul(1_000)
    }

    fn wall_us(&self) -> u64 {
        self.wall_ms.load(Ordering::SeqCst).saturating_mul(1_000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR_US: u64 = 3_600_000_000;

    #[test]
    fn a_time_is_shown_with_its_distance_from_now() {
        for (now, time, expected) in [
            (5_000, 5_999, "1970-01-01T00:00:05Z (in 0 s)"),
            (95_000, 5_000, "1970-01-01T00:00:05Z (90 s ago)"),
            (5_000, 125_000, "1970-01-01T00:02:05Z (in 2 min)"),
            (10_000_000, 0, "1970-01-01T00:00:00Z (2 h ago)"),
            (0, 90 * 86_400_000, "1970-04-01T00:00:00Z (in 90 d)"),
        ] {
            assert_eq!(utc_from(UnixMs::new(time), UnixMs::new(now)), expected);
        }
    }

    #[test]
    fn a_wall_clock_set_back_an_hour_does_not_take_log_time_back() {
        let mut log = LogTime::starting_at(10 * HOUR_US, 0);
        let mut last = log.log_us;
        for second in 1..=3_600 {
            let now = log.advance(second * 1_000_000, 9 * HOUR_US + second * 1_000_000);
            assert!(now > last);
            last = now;
        }
        // In one hour at half speed it lost half of the difference.
        assert_eq!(last, 10 * HOUR_US + HOUR_US / 2);
        assert_eq!(log.advance(3 * HOUR_US, 12 * HOUR_US), 12 * HOUR_US, "the clocks agree again");
    }

    #[test]
    fn a_wall_clock_set_forward_an_hour_does_not_make_log_time_leap() {
        let mut log = LogTime::starting_at(10 * HOUR_US, 0);
        assert_eq!(log.advance(1_000_000, 11 * HOUR_US), 10 * HOUR_US + 1_001_000);
    }

    #[test]
    fn log_time_follows_a_wall_clock_that_runs_a_little_fast() {
        let mut log = LogTime::starting_at(0, 0);
        // Each step of 10 microseconds may drift by a hundredth of a microsecond.
        for step in 1..=1_000_000_u64 {
            log.advance(step * 10, step * 10 + step / 1_000);
        }
        assert_eq!(log.log_us, 10_001_000);
    }

    #[test]
    fn time_that_stands_still_gives_the_same_time() {
        let mut log = LogTime::starting_at(5, 0);
        assert_eq!(log.advance(0, 5), 5);
        assert_eq!(log.advance(0, 900), 5);
        assert_eq!(log.advance(7, 12), 12);
    }
}
