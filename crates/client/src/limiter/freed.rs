//! Who waits for which limit, so that what is given back wakes one whom it may help, and nobody else.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use earmark_core::LimitKey;
use tokio::sync::Notify;

use crate::job::Job;

/// Limits that share a place may cost each other an attempt; so many places make that rare.
const PLACES: usize = 256;

/// What is given back here, and who waits for it.
pub(super) struct Freed {
    /// Counts what was given back.
    count: AtomicU64,
    hasher: RandomState,
    state: Mutex<State>,
}

struct State {
    /// Those that wait for a limit, in the order in which they came.
    queues: HashMap<LimitKey, BTreeMap<u64, Arc<Notify>>>,
    tickets: u64,
    /// The count at which a limit was given back last while nobody waited for it; 0 once somebody has made use of it.
    missed: Box<[u64]>,
}

/// How much had been given back when an attempt began.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen(u64);

impl Freed {
    pub(super) fn new() -> Freed {
        let state = State { queues: HashMap::new(), tickets: 0, missed: vec![0; PLACES].into() };
        Freed { count: AtomicU64::new(0), hasher: RandomState::new(), state: Mutex::new(state) }
    }

    /// To be called before an attempt, so that nothing is missed that is given back during it.
    pub(super) fn seen(&self) -> Seen {
        Seen(self.count.load(Ordering::SeqCst))
    }

    /// What a job held was given back: for each of its limits, who has waited the longest tries again.
    pub(super) fn give_back(&self, job: &Job) {
        let count = self.count.fetch_add(1, Ordering::SeqCst) + 1;
        let mut state = self.lock();
        for (key, _) in job.requirements() {
            self.wake_one(&mut state, key, count);
        }
    }

    /// Puts a caller into the queues of the limits that stand in its way; none if one of them was given back since its
    /// attempt began, and nobody else has made use of that.
    pub(super) fn wait_for<'a>(&'a self, keys: &'a [LimitKey], seen: Seen) -> Option<Waiter<'a>> {
        let mut state = self.lock();
        for key in keys {
            let place = self.place(key);
            if state.missed[place] > seen.0 {
                state.missed[place] = 0;
                return None;
            }
        }
        state.tickets += 1;
        let (ticket, notify) = (state.tickets, Arc::new(Notify::new()));
        for key in keys {
            state.queues.entry(key.clone()).or_default().insert(ticket, Arc::clone(&notify));
        }
        Some(Waiter { freed: self, keys, ticket, notify, tries_again: false })
    }

    fn place(&self, key: &LimitKey) -> usize {
        // The remainder is less than PLACES.
        usize::try_from(self.hasher.hash_one(key) % PLACES as u64).unwrap_or(0)
    }

    fn wake_one(&self, state: &mut State, key: &LimitKey, count: u64) {
        let Some(queue) = state.queues.get_mut(key) else {
            state.missed[self.place(key)] = count;
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

/// A caller in the queues of some limits. It leaves them when it is dropped.
pub(super) struct Waiter<'a> {
    freed: &'a Freed,
    keys: &'a [LimitKey],
    ticket: u64,
    notify: Arc<Notify>,
    tries_again: bool,
}

impl Waiter<'_> {
    /// Until one of the limits is given back to this caller.
    pub(super) async fn woken(&self) {
        self.notify.notified().await;
    }

    /// The caller makes another attempt, whether it was woken or not.
    pub(super) fn tries_again(mut self) {
        self.tries_again = true;
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        let mut state = self.freed.lock();
        for key in self.keys {
            let queue = state.queues.get_mut(key);
            let was_waiting = queue.is_some_and(|queue| queue.remove(&self.ticket).is_some());
            if state.queues.get(key).is_some_and(BTreeMap::is_empty) {
                state.queues.remove(key);
            }
            // It was woken and went away: the next in line has its chance.
            if !was_waiting && !self.tries_again {
                let count = self.freed.count.load(Ordering::SeqCst);
                self.freed.wake_one(&mut state, key, count);
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
    async fn the_longest_waiter_of_each_limit_is_woken_and_nobody_else() {
        let freed = Freed::new();
        let (a, b, both) = (keys(&["a"]), keys(&["b"]), keys(&["a", "b"]));
        let first = freed.wait_for(&a, freed.seen()).unwrap();
        let second = freed.wait_for(&both, freed.seen()).unwrap();
        let third = freed.wait_for(&b, freed.seen()).unwrap();
        freed.give_back(&job(&["c"]));
        assert!(!is_woken(&first).await && !is_woken(&second).await && !is_woken(&third).await);
        freed.give_back(&job(&["a", "c"]));
        assert!(is_woken(&first).await && !is_woken(&second).await && !is_woken(&third).await);
        first.tries_again();
        freed.give_back(&job(&["b"]));
        assert!(is_woken(&second).await && !is_woken(&third).await);
        second.tries_again();
        drop(third);
        assert!(freed.lock().queues.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn what_wakes_a_caller_that_went_away_wakes_the_next() {
        let freed = Freed::new();
        let a = keys(&["a"]);
        let first = freed.wait_for(&a, freed.seen()).unwrap();
        let second = freed.wait_for(&a, freed.seen()).unwrap();
        freed.give_back(&job(&["a"]));
        assert!(!is_woken(&second).await);
        drop(first);
        assert!(is_woken(&second).await);
    }

    #[test]
    fn what_is_given_back_during_an_attempt_is_found_after_it_by_one_caller() {
        let freed = Freed::new();
        let a = keys(&["a"]);
        let before = freed.seen();
        freed.give_back(&job(&["a"]));
        assert!(freed.wait_for(&a, freed.seen()).is_some(), "its attempt began later, and saw what was free");
        assert!(freed.wait_for(&a, before).is_none());
        assert!(freed.wait_for(&a, before).is_some(), "one has made use of it");
    }
}
