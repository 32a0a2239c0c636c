//! Delays refusals with 429. A caller that exceeds its request rate and repeats at once would otherwise use the CPU that
//! others need.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::Connection;
use crate::caller::CallerShares;

/// Longest delay. A connection then gets at most four refusals a second, and no client timeout is that short.
const DELAY_MAX: Duration = Duration::from_millis(250);
/// Further delay for each refusal of the same caller that waits already. Otherwise a caller with many connections and a
/// high rate, whose hint is a millisecond, would get thousands of refusals a second.
const SPACING: Duration = Duration::from_millis(5);
/// Delayed refusals of all callers. Each holds the head of its request, so this bounds their memory.
const DELAYED_MAX: usize = 8_192;
/// Delayed refusals of one caller: an eighth, as for other shares.
const DELAYED_PER_CALLER_MAX: usize = DELAYED_MAX / 8;

/// The delays of all refusals.
pub(super) struct RefusalDelays(Arc<Semaphore>);

impl Default for RefusalDelays {
    fn default() -> RefusalDelays {
        RefusalDelays(Arc::new(Semaphore::new(DELAYED_MAX)))
    }
}

impl RefusalDelays {
    /// Begins the delay of a refusal. When too many are delayed, the response is immediate, and its connection closes.
    pub(super) fn begin(&self, caller: &Arc<CallerShares>, retry_after: Duration) -> Refusal {
        let Ok(permit) = Arc::clone(&self.0).try_acquire_owned() else { return Refusal::Immediate(Connection::Closes) };
        let waiting = caller.delayed_refusals.fetch_add(1, Ordering::Relaxed);
        let spacing = SPACING.saturating_mul(u32::try_from(waiting).unwrap_or(u32::MAX));
        let time = retry_after.saturating_add(spacing).min(DELAY_MAX);
        // The count of a refused delay is taken back by its drop.
        let delay = RefusalDelay { time, caller: Arc::clone(caller), _permit: permit };
        match waiting {
            0..DELAYED_PER_CALLER_MAX => Refusal::Delayed(delay),
            _ => Refusal::Immediate(Connection::Closes),
        }
    }
}

/// When a refusal is sent.
#[must_use]
pub(crate) enum Refusal {
    Immediate(Connection),
    Delayed(RefusalDelay),
}

/// The delay of one refusal. It counts until it is dropped.
pub(crate) struct RefusalDelay {
    time: Duration,
    caller: Arc<CallerShares>,
    _permit: OwnedSemaphorePermit,
}

impl RefusalDelay {
    /// Waits until the refusal may be sent: its time has passed, or the server drains.
    pub(crate) async fn wait(self, at_most: Duration, draining: impl Future<Output = ()>) {
        tokio::select! {
            () = tokio::time::sleep(self.time.min(at_most)) => {}
            () = draining => {}
        }
    }
}

impl Drop for RefusalDelay {
    fn drop(&mut self) {
        self.caller.delayed_refusals.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use tokio::time::Instant;

    use super::*;

    fn delayed(refusal: Refusal) -> Option<RefusalDelay> {
        match refusal {
            Refusal::Delayed(delay) => Some(delay),
            Refusal::Immediate(connection) => {
                assert_eq!(connection, Connection::Closes);
                None
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_waits_for_its_hint_but_not_long_and_not_while_the_server_drains() {
        let (delays, caller) = (RefusalDelays::default(), Arc::new(CallerShares::default()));
        for (hint_ms, waited_ms) in [(1, 1), (249, 249), (60_000, 250)] {
            let start = Instant::now();
            let delay = delayed(delays.begin(&caller, Duration::from_millis(hint_ms))).unwrap();
            delay.wait(Duration::MAX, pending()).await;
            assert_eq!(start.elapsed(), Duration::from_millis(waited_ms));
        }
        let start = Instant::now();
        let delay = || delayed(delays.begin(&caller, DELAY_MAX)).unwrap();
        delay().wait(Duration::MAX, std::future::ready(())).await;
        assert_eq!(start.elapsed(), Duration::ZERO);
        delay().wait(Duration::from_millis(10), pending()).await;
        assert_eq!(start.elapsed(), Duration::from_millis(10));
    }

    /// Regression: a caller with 200 connections got 13,900 refusals a second, because the hint of each was a
    /// millisecond, and its neighbours waited for the processor.
    #[tokio::test(start_paused = true)]
    async fn each_refusal_of_a_caller_that_waits_delays_the_next_one_and_no_other_caller() {
        let (delays, caller, other) =
            (RefusalDelays::default(), Arc::new(CallerShares::default()), Arc::new(CallerShares::default()));
        let hint = Duration::from_millis(1);
        let waiting: Vec<_> = (0..100).map(|_| delayed(delays.begin(&caller, hint)).unwrap()).collect();
        let expected = (0..100).map(|place| Duration::from_millis((1 + 5 * place).min(250)));
        assert!(waiting.iter().map(|delay| delay.time).eq(expected));
        assert_eq!(delayed(delays.begin(&other, hint)).unwrap().time, hint);
        drop(waiting);
        assert_eq!(delayed(delays.begin(&caller, hint)).unwrap().time, hint);
    }

    #[test]
    fn delayed_refusals_are_bounded_per_caller_and_in_all_and_every_place_is_returned() {
        let delays = RefusalDelays::default();
        let callers: Vec<_> = (0..9).map(|_| Arc::new(CallerShares::default())).collect();
        let fill = |caller| {
            let all = (0..2 * DELAYED_PER_CALLER_MAX).map(|_| delayed(delays.begin(caller, DELAY_MAX)));
            all.flatten().collect::<Vec<_>>()
        };
        let waiting: Vec<_> = callers.iter().map(fill).collect();
        let counts: Vec<_> = waiting.iter().map(Vec::len).collect();
        assert_eq!(counts, [vec![DELAYED_PER_CALLER_MAX; 8], vec![0]].concat());
        drop(waiting);
        assert_eq!(delays.0.available_permits(), DELAYED_MAX);
        assert!(callers.iter().all(|caller| caller.delayed_refusals.load(Ordering::Relaxed) == 0));
    }
}
