//! The callers that wait for a limit, so that a release wakes one caller that it may help.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use earmark_core::LimitKey;
use tokio::sync::Notify;

use crate::job::Job;

/// Hash slots for unclaimed releases. Two limits in one slot may cost each other an attempt; 256 slots make that rare.
const SLOTS: usize = 256;

/// The callers that wait for each limit.
pub(super) struct WaitQueues {
    releases: AtomicU64,
    hasher: RandomState,
    state: Mutex<State>,
}

/// The callers that wait for a release, and releases that nobody has used yet.
struct State {
    /// The waiting callers of each limit, in the order of their arrival.
    queues: HashMap<LimitKey, BTreeMap<u64, Arc<Notify>>>,
    arrivals: u64,
    /// For each slot, the number of the last release that found no waiting caller; 0 once a caller has used it.
    unclaimed: Box<[u64]>,
}

/// The number of releases before an attempt began.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReleaseCount(u64);

impl WaitQueues {
    pub(super) fn new() -> WaitQueues {
        let state = State { queues: HashMap::new(), arrivals: 0, unclaimed: vec![0; SLOTS].into() };
        WaitQueues { releases: AtomicU64::new(0), hasher: RandomState::new(), state: Mutex::new(state) }
    }

    /// The number of releases. Read it before an attempt, so that no release during the attempt is missed.
    pub(super) fn releases(&self) -> ReleaseCount {
        ReleaseCount(self.releases.load(Ordering::SeqCst))
    }

    /// Wakes the longest waiting caller of each limit that `job` held.
    pub(super) fn release(&self, job: &Job) {
        let release = self.releases.fetch_add(1, Ordering::SeqCst) + 1;
        let mut state = self.lock();
        for (key, _) in job.requirements() {
            self.wake_one(&mut state, key, release);
        }
    }

    /// Puts a caller into the queues of these limits. Returns `None` when one of them was released since the attempt
    /// began and no other caller has used that release.
    pub(super) fn wait_for<'a>(&'a self, keys: &'a [LimitKey], before: ReleaseCount) -> Option<Waiter<'a>> {
        let mut state = self.lock();
        for key in keys {
            let slot = self.slot(key);
            if state.unclaimed[slot] > before.0 {
                state.unclaimed[slot] = 0;
                return None;
            }
        }
        state.arrivals += 1;
        let (arrival, notify) = (state.arrivals, Arc::new(Notify::new()));
        for key in keys {
            state.queues.entry(key.clone()).or_default().insert(arrival, Arc::clone(&notify));
        }
        Some(Waiter { queues: self, keys, arrival, notify, retries: false })
    }

    fn slot(&self, key: &LimitKey) -> usize {
        // The remainder is less than SLOTS.
        usize::try_from(self.hasher.hash_one(key) % SLOTS as u64).unwrap_or(0)
    }

    fn wake_one(&self, state: &mut State, key: &LimitKey, release: u64) {
        let Some(queue) = state.queues.get_mut(key) else {
            state.unclaimed[self.slot(key)] = release;
            return;
        };
        if let Some((_, first)) = queue.pop_first() {
            first.notify_one();
        }
        if queue.is_empty() {
            state.queues.remove(key);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A caller in the queues of some limits. Dropping it removes the caller.
pub(super) struct Waiter<'a> {
    queues: &'a WaitQueues,
    keys: &'a [LimitKey],
    arrival: u64,
    notify: Arc<Notify>,
    retries: bool,
}

impl Waiter<'_> {
    /// Waits until a release wakes this caller.
    pub(super) async fn woken(&self) {
        self.notify.notified().await;
    }

    /// The caller makes another attempt, woken or not.
    pub(super) fn retries(mut self) {
        self.retries = true;
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        let mut state = self.queues.lock();
        for key in self.keys {
            let queue = state.queues.get_mut(key);
            let was_waiting = queue.is_some_and(|queue| queue.remove(&self.arrival).is_some());
            if state.queues.get(key).is_some_and(BTreeMap::is_empty) {
                state.queues.remove(key);
            }
            // The caller was woken and makes no attempt: the release is for the next one.
            if !was_waiting && !self.retries {
                let release = self.queues.releases.load(Ordering::SeqCst);
                self.queues.wake_one(&mut state, key, release);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(names: &[&str]) -> Job {
        Job::new(names.iter().map(|name| (name.parse().unwrap(), 1))).unwrap()
    }

    fn keys(names: &[&str]) -> Vec<LimitKey> {
        names.iter().map(|name| name.parse().unwrap()).collect()
    }

    async fn is_woken(waiter: &Waiter<'_>) -> bool {
        tokio::time::timeout(std::time::Duration::from_millis(1), waiter.woken()).await.is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn a_release_wakes_the_longest_waiting_caller_of_each_limit_only() {
        let queues = WaitQueues::new();
        let (a, b, both) = (keys(&["a"]), keys(&["b"]), keys(&["a", "b"]));
        let first = queues.wait_for(&a, queues.releases()).unwrap();
        let second = queues.wait_for(&both, queues.releases()).unwrap();
        let third = queues.wait_for(&b, queues.releases()).unwrap();
        queues.release(&job(&["c"]));
        assert!(!is_woken(&first).await && !is_woken(&second).await && !is_woken(&third).await);
        queues.release(&job(&["a", "c"]));
        assert!(is_woken(&first).await && !is_woken(&second).await && !is_woken(&third).await);
        first.retries();
        queues.release(&job(&["b"]));
        assert!(is_woken(&second).await && !is_woken(&third).await);
        second.retries();
        drop(third);
        assert!(queues.lock().queues.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn the_release_of_a_caller_that_gave_up_wakes_the_next() {
        let queues = WaitQueues::new();
        let a = keys(&["a"]);
        let first = queues.wait_for(&a, queues.releases()).unwrap();
        let second = queues.wait_for(&a, queues.releases()).unwrap();
        queues.release(&job(&["a"]));
        assert!(!is_woken(&second).await);
        drop(first);
        assert!(is_woken(&second).await);
    }

    #[test]
    fn a_release_during_an_attempt_is_used_by_one_caller_after_it() {
        let queues = WaitQueues::new();
        let a = keys(&["a"]);
        let before = queues.releases();
        queues.release(&job(&["a"]));
        assert!(queues.wait_for(&a, queues.releases()).is_some(), "the attempt began after the release");
        assert!(queues.wait_for(&a, before).is_none());
        assert!(queues.wait_for(&a, before).is_some(), "one caller has used the release");
    }
}
