//! The ledger's clock, and the health of the sessions.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Waiting time after which the cluster is reported as not answering.
const SILENT: Duration = Duration::from_millis(1_500);

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The ledger's clock, which decides when reservations expire: the last timestamp received plus the time since.
#[derive(Debug, Default)]
pub(crate) struct LedgerClock {
    last: Mutex<Option<(u64, Instant)>>,
}

impl LedgerClock {
    pub(crate) fn observe(&self, now_ns: u64) {
        if now_ns > 0 {
            *lock(&self.last) = Some((now_ns, Instant::now()));
        }
    }

    /// 0 before the first timestamp.
    pub(crate) fn now_ns(&self) -> u64 {
        lock(&self.last).map_or(0, |(last_ns, at)| {
            last_ns.saturating_add(u64::try_from(at.elapsed().as_nanos()).unwrap_or(u64::MAX))
        })
    }
}

/// Health of the cluster as the sessions observe it.
#[derive(Debug)]
pub(crate) struct Health {
    start: Instant,
    /// Per session: start of the request in flight, in milliseconds since `start`; 0 when idle.
    waiting: Vec<AtomicU64>,
    problem: Mutex<Option<String>>,
    is_stopped: AtomicBool,
}

impl Health {
    pub(crate) fn new(sessions: usize) -> Health {
        Health {
            start: Instant::now(),
            waiting: std::iter::repeat_with(AtomicU64::default).take(sessions).collect(),
            problem: Mutex::new(None),
            is_stopped: AtomicBool::new(false),
        }
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX).max(1)
    }

    pub(crate) fn request_started(&self, session: usize) {
        if let Some(since) = self.waiting.get(session) {
            since.store(self.now_ms(), Ordering::Relaxed);
        }
    }

    pub(crate) fn request_finished(&self, session: usize) {
        if let Some(since) = self.waiting.get(session) {
            since.store(0, Ordering::Relaxed);
        }
    }

    /// The longest wait of any request in flight, if it exceeds `SILENT`.
    pub(crate) fn silent_for(&self) -> Option<Duration> {
        let waiting = self.waiting.iter().map(|since| since.load(Ordering::Relaxed));
        let since = waiting.filter(|since| *since > 0).min()?;
        let silent = Duration::from_millis(self.now_ms().saturating_sub(since));
        (silent >= SILENT).then_some(silent)
    }

    /// Sets the current problem; `None` clears it.
    pub(crate) fn set_problem(&self, problem: Option<String>) {
        let mut known = lock(&self.problem);
        if let Some(problem) = &problem
            && known.as_ref() != Some(problem)
        {
            tracing::warn!("{problem}");
        }
        *known = problem;
    }

    pub(crate) fn problem(&self) -> Option<String> {
        lock(&self.problem).clone()
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
        clock.observe(5_000);
        let first = clock.now_ns();
        std::thread::sleep(Duration::from_millis(2));
        assert!(first >= 5_000);
        assert!(clock.now_ns() >= first + 2_000_000);
    }

    #[test]
    fn a_session_that_waits_is_noticed_and_forgiven() {
        let health = Health { start: Instant::now() - Duration::from_secs(60), ..Health::new(2) };
        health.request_started(0);
        assert_eq!(health.silent_for(), None);
        health.waiting[1].store(1_000, Ordering::Relaxed);
        assert!(health.silent_for().is_some_and(|silent| silent >= Duration::from_secs(58)));
        health.request_finished(1);
        assert_eq!(health.silent_for(), None);
    }
}
