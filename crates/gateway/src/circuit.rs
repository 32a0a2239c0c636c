//! Passive health of an upstream: repeated failures open its circuit, so that calls go to the next target at once.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// The circuit of one upstream.
#[derive(Debug)]
pub(crate) struct Circuit {
    failures_max: u32,
    pause: Duration,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Consecutive failures.
    failures: u32,
    /// The end of the pause while the circuit is open.
    open_until: Option<Instant>,
}

impl Circuit {
    pub(crate) fn new(failures_max: u32, pause: Duration) -> Circuit {
        Circuit { failures_max, pause, state: Mutex::default() }
    }

    /// Whether a call may try the upstream. After the pause one call may, and the circuit stays open for the others until
    /// that call has an answer or another pause is over.
    pub(crate) fn admits(&self, now: Instant) -> bool {
        let mut state = self.lock();
        match state.open_until {
            None => true,
            Some(until) if now < until => false,
            Some(_) => {
                state.open_until = Some(now + self.pause);
                true
            }
        }
    }

    /// Whether the circuit is open.
    pub(crate) fn is_open(&self) -> bool {
        self.lock().open_until.is_some()
    }

    /// The upstream answered.
    pub(crate) fn succeeded(&self) {
        *self.lock() = State::default();
    }

    /// The upstream failed. Returns whether that opened the circuit.
    pub(crate) fn failed(&self, now: Instant) -> bool {
        let mut state = self.lock();
        state.failures = state.failures.saturating_add(1);
        let was_open = state.open_until.is_some();
        if state.failures >= self.failures_max {
            state.open_until = Some(now + self.pause);
        }
        !was_open && state.open_until.is_some()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn repeated_failures_open_it_and_one_success_closes_it() {
        let circuit = Circuit::new(3, Duration::from_secs(10));
        let now = Instant::now();
        assert!(!circuit.failed(now) && !circuit.failed(now));
        circuit.succeeded();
        assert!(!circuit.failed(now) && !circuit.failed(now));
        assert!(circuit.admits(now));
        assert!(circuit.failed(now), "the third in a row");
        assert!(!circuit.admits(now + Duration::from_secs(9)));
        let later = now + Duration::from_secs(10);
        assert!(circuit.admits(later), "one call probes it");
        assert!(!circuit.admits(later), "and only one");
        assert!(!circuit.failed(later));
        assert!(!circuit.admits(later + Duration::from_secs(9)));
        assert!(circuit.admits(later + Duration::from_secs(10)));
        circuit.succeeded();
        assert!(circuit.admits(later) && !circuit.is_open());
    }
}
