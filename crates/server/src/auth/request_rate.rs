//! Requests per second for each caller, as a token bucket per caller.

use std::num::NonZeroU32;
use std::time::Duration;

use earmark_core::LimitKey;
use governor::clock::{Clock, DefaultClock};
use governor::middleware::NoOpMiddleware;
use governor::state::keyed::HashMapStateStore;
use governor::{Quota, RateLimiter};

use crate::caller::AuthError;

/// Tracked callers at which idle ones are forgotten.
const CALLERS_MAX: usize = 50_000;
/// Highest rate: the replenishing interval has a resolution of a nanosecond.
const RATE_MAX: u64 = 1_000_000_000;

/// The request rates of all callers.
pub(super) struct RequestRate<C: Clock = DefaultClock> {
    per_second: NonZeroU32,
    limiter: RateLimiter<LimitKey, HashMapStateStore<LimitKey>, C, NoOpMiddleware<C::Instant>>,
    clock: C,
}

impl RequestRate {
    pub(super) fn new(requests_per_second: u64) -> RequestRate {
        RequestRate::with_clock(requests_per_second, DefaultClock::default())
    }
}

impl<C: Clock + Clone> RequestRate<C> {
    fn with_clock(requests_per_second: u64, clock: C) -> RequestRate<C> {
        let per_second = u32::try_from(requests_per_second.min(RATE_MAX)).unwrap_or(u32::MAX);
        let per_second = NonZeroU32::new(per_second).unwrap_or(NonZeroU32::MIN);
        let limiter = RateLimiter::hashmap_with_clock(Quota::per_second(per_second), clock.clone());
        RequestRate { per_second, limiter, clock }
    }

    /// Takes `count` requests from a caller's bucket. A batch larger than the bucket takes all of it.
    pub(super) fn take(&self, key: &LimitKey, count: u64) -> Result<(), AuthError> {
        if self.limiter.len() >= CALLERS_MAX {
            self.limiter.retain_recent();
        }
        let count = u32::try_from(count).ok().and_then(NonZeroU32::new).unwrap_or(NonZeroU32::MAX);
        match self.limiter.check_key_n(key, count.min(self.per_second)) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(denied)) => {
                let wait = denied.wait_time_from(self.clock.now()).max(Duration::from_millis(1));
                let retry_after_ms = u64::try_from(wait.as_micros().div_ceil(1_000)).unwrap_or(u64::MAX);
                Err(AuthError::RateLimited { retry_after_ms })
            }
            // The count never exceeds the bucket.
            Err(_) => Ok(()),
        }
    }

    /// Takes the further cost of a request whose first item was already taken.
    pub(super) fn take_more(&self, key: &LimitKey, more: u64) -> Result<(), AuthError> {
        match more.min(u64::from(self.per_second.get()) - 1) {
            0 => Ok(()),
            more => self.take(key, more),
        }
    }
}

#[cfg(test)]
mod tests {
    use governor::clock::FakeRelativeClock;

    use super::*;

    #[test]
    fn a_noisy_caller_is_told_when_to_come_back_and_takes_nothing_from_the_others() {
        let clock = FakeRelativeClock::default();
        let rate = RequestRate::with_clock(3, clock.clone());
        let (noisy, quiet) = (LimitKey::new("key:1").unwrap(), LimitKey::new("team:user:quiet").unwrap());
        for _ in 0..3 {
            assert_eq!(rate.take(&noisy, 1), Ok(()));
        }
        let Err(AuthError::RateLimited { retry_after_ms }) = rate.take(&noisy, 1) else {
            panic!("a fourth request was allowed")
        };
        assert!((1..=1_000).contains(&retry_after_ms), "{retry_after_ms}");
        assert_eq!(rate.take(&quiet, 1), Ok(()));
        clock.advance(Duration::from_secs(1));
        assert_eq!(rate.take(&noisy, 1), Ok(()));
        assert!(rate.take(&noisy, 256).is_err());
        clock.advance(Duration::from_secs(1));
        assert_eq!(rate.take(&noisy, 256), Ok(()));
        assert!(rate.take(&noisy, 1).is_err());
    }

    #[test]
    fn idle_callers_are_forgotten() {
        let clock = FakeRelativeClock::default();
        let rate = RequestRate::with_clock(u64::MAX, clock.clone());
        for number in 0..2 * CALLERS_MAX {
            assert_eq!(rate.take(&LimitKey::new(&format!("key:{number}")).unwrap(), 1), Ok(()));
            clock.advance(Duration::from_millis(1));
        }
        assert!(rate.limiter.len() <= CALLERS_MAX, "{}", rate.limiter.len());
    }
}
