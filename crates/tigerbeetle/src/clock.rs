//! What time it is in the ledger, and whether the ledger answers.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A request that waits for so long is news for an operator.
const SILENT: Duration = Duration::from_millis(1_500);

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The ledger's clock, which decides when a reservation ends: the last time it told, and what has passed since.
#[derive(Debug, Default)]
pub(crate) struct LedgerClock {
    told: Mutex<Option<(u64, Instant)>>,
}

impl LedgerClock {
    /// The ledger said this.
    pub(crate) fn tell(&self, now_ns: u64) {
        if now_ns > 0 {
            *lock(&self.told) = Some((now_ns, Instant::now()));
        }
    }

    /// What time it is; 0 before the ledger ever told.
    pub(crate) fn now_ns(&self) -> u64 {
        lock(&self.told).map_or(0, |(told_ns, at)| {
            told_ns.saturating_add(u64::try_from(at.elapsed().as_nanos()).unwrap_or(u64::MAX))
        })
    }
}

/// How the ledger is doing, as far as the sessions can tell.
#[derive(Debug)]
pub(crate) struct Health {
    start: Instant,
    /// For each session, since when its request has been waiting, in milliseconds from the start; 0 if none is.
    waiting: Vec<AtomicU64>,
    trouble: Mutex<Option<String>>,
    is_stopped: AtomicBool,
}

impl Health {
    pub(crate) fn new(sessions: usize) -> Health {
        Health {
            start: Instant::now(),
            waiting: std::iter::repeat_with(AtomicU64::default).take(sessions).collect(),
            trouble: Mutex::new(None),
            is_stopped: AtomicBool::new(false),
        }
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX).max(1)
    }

    pub(crate) fn asks(&self, session: usize) {
        if let Some(since) = self.waiting.get(session) {
            since.store(self.now_ms(), Ordering::Relaxed);
        }
    }

    pub(crate) fn answered(&self, session: usize) {
        if let Some(since) = self.waiting.get(session) {
            since.store(0, Ordering::Relaxed);
        }
    }

    /// For how long some request has been waiting, if that is worth mentioning.
    pub(crate) fn silent_for(&self) -> Option<Duration> {
        let waiting = self.waiting.iter().map(|since| since.load(Ordering::Relaxed));
        let since = waiting.filter(|since| *since > 0).min()?;
        let silent = Duration::from_millis(self.now_ms().saturating_sub(since));
        (silent >= SILENT).then_some(silent)
    }

    /// What is wrong, until something answers again.
    pub(crate) fn set_trouble(&self, trouble: Option<String>) {
        let mut known = lock(&self.trouble);
        if let Some(trouble) = &trouble
            && known.as_ref() != Some(trouble)
        {
            tracing::warn!("{trouble}");
        }
        *known = trouble;
    }

    pub(crate) fn trouble(&self) -> Option<String> {
        lock(&self.trouble).clone()
    }

    pub(crate) fn stop(&self) {
        self.is_stopped.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ledgers_clock_goes_on_by_itself() {
        let clock = LedgerClock::default();
        assert_eq!(clock.now_ns(), 0);
        clock.tell(5_000);
        let first = clock.now_ns();
        std::thread::sleep(Duration::from_millis(2));
        assert!(first >= 5_000);
        assert!(clock.now_ns() >= first + 2_000_000);
    }

    #[test]
    fn a_session_that_waits_is_noticed_and_forgiven() {
        let health = Health { start: Instant::now() - Duration::from_secs(60), ..Health::new(2) };
        health.asks(0);
        assert_eq!(health.silent_for(), None);
        health.waiting[1].store(1_000, Ordering::Relaxed);
        assert!(health.silent_for().is_some_and(|silent| silent >= Duration::from_secs(58)));
        health.answered(1);
        assert_eq!(health.silent_for(), None);
    }
}
