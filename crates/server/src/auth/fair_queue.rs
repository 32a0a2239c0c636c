//! A fair queue per caller: each caller has a number of concurrent requests, and its further requests wait behind its
//! own in order of arrival. One busy caller does not delay the others.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use earmark_core::LimitKey;
use metrics::{Counter, Gauge};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout_at};

use super::hangup::Hangup;
use crate::caller::AuthError;
use crate::shared_map::SharedMap;

/// Retry hint for a request that finds the queue full.
const RETRY_AFTER_MS: u64 = 1_000;
/// Shortest interval between log lines about one queue.
const LOG_INTERVAL_SECONDS: u64 = 60;
/// Items of a batch that share one permit: together they cost about as much as one request.
const ITEMS_PER_PERMIT: usize = 8;

/// Limits per caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueueLimits {
    /// Concurrent requests. Every eight items of a batch count as one; a larger batch takes all permits.
    pub(crate) concurrent: NonZeroU32,
    /// Waiting requests, a batch as one. More are rejected.
    pub(crate) waiting_max: usize,
}

#[derive(Clone)]
pub(crate) struct QueueMetrics {
    /// Requests that wait now.
    pub(crate) waiting: Gauge,
    /// Requests that have waited since the start.
    pub(crate) waited: Counter,
}

/// The queues of all recent callers.
pub(super) struct FairQueues {
    limits: QueueLimits,
    metrics: QueueMetrics,
    /// A queue lives as long as a [`Caller`](crate::caller::Caller) refers to it.
    queues: SharedMap<LimitKey, CallerQueue>,
}

impl FairQueues {
    pub(super) fn new(limits: QueueLimits, metrics: QueueMetrics) -> FairQueues {
        FairQueues { limits, metrics, queues: SharedMap::default() }
    }

    /// The queue of a caller, shared by all its credentials.
    pub(super) fn get(&self, caller: &LimitKey) -> Arc<CallerQueue> {
        self.queues.get(caller, || CallerQueue::new(self.limits, self.metrics.clone()))
    }
}

/// The events that end a request's wait without a permit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaitBounds<'a> {
    pub(crate) deadline: Instant,
    /// Reports a hangup on HTTP/1; HTTP/2 cancels the request itself.
    pub(crate) hangup: Option<&'a Hangup>,
}

impl WaitBounds<'_> {
    async fn hung_up(self) {
        match self.hangup {
            Some(hangup) => hangup.wait().await,
            None => std::future::pending().await,
        }
    }
}

/// The queue of one caller.
pub(crate) struct CallerQueue {
    limits: QueueLimits,
    permits: Semaphore,
    waiting: AtomicUsize,
    metrics: QueueMetrics,
    started: Instant,
    /// The second of the last log line, counted from 1 at the start; 0 before the first.
    logged_second: AtomicU64,
}

impl CallerQueue {
    fn new(limits: QueueLimits, metrics: QueueMetrics) -> CallerQueue {
        CallerQueue {
            limits,
            permits: Semaphore::new(limits.concurrent.get() as usize),
            waiting: AtomicUsize::new(0),
            metrics,
            started: Instant::now(),
            logged_second: AtomicU64::new(0),
        }
    }

    /// Waits for the permits of a request of `items` items. A request that still waits at the deadline, or whose client
    /// hangs up, is rejected. Calls `log` when a log line about the wait is due.
    pub(crate) async fn acquire(
        &self,
        items: usize,
        bounds: WaitBounds<'_>,
        log: impl FnOnce(),
    ) -> Result<WorkPermit<'_>, AuthError> {
        let count = items.div_ceil(ITEMS_PER_PERMIT);
        let count = u32::try_from(count).unwrap_or(u32::MAX).clamp(1, self.limits.concurrent.get());
        // The semaphore is fair: this fails while others wait, so nothing overtakes them.
        if let Ok(permit) = self.permits.try_acquire_many(count) {
            return Ok(WorkPermit { _permit: Some(permit) });
        }
        let rejected = AuthError::RateLimited { retry_after_ms: RETRY_AFTER_MS };
        let Some(_waiting) = Waiting::begin(self) else { return Err(rejected) };
        if self.is_log_due() {
            log();
        }
        // Few requests wait, so the others have no room for it.
        let permit = Box::pin(timeout_at(bounds.deadline, self.permits.acquire_many(count)));
        tokio::select! {
            biased;
            permit = permit => match permit {
                Ok(Ok(permit)) => Ok(WorkPermit { _permit: Some(permit) }),
                Ok(Err(_)) | Err(_) => Err(rejected),
            },
            () = bounds.hung_up() => Err(rejected),
        }
    }

    fn is_log_due(&self) -> bool {
        let now = self.started.elapsed().as_secs().saturating_add(1);
        let last = self.logged_second.load(Ordering::Relaxed);
        let is_due = last == 0 || now.saturating_sub(last) >= LOG_INTERVAL_SECONDS;
        is_due && self.logged_second.compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

impl std::fmt::Debug for CallerQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CallerQueue").field("waiting", &self.waiting).finish_non_exhaustive()
    }
}

/// Permission to execute a request, returned to the queue on drop.
#[must_use]
pub(crate) struct WorkPermit<'a> {
    _permit: Option<SemaphorePermit<'a>>,
}

impl WorkPermit<'_> {
    /// For a caller without a queue.
    pub(crate) fn unlimited() -> Self {
        WorkPermit { _permit: None }
    }
}

/// Counts a waiting request until it is dropped.
struct Waiting<'a>(&'a CallerQueue);

impl<'a> Waiting<'a> {
    fn begin(queue: &'a CallerQueue) -> Option<Waiting<'a>> {
        let waiting = queue.waiting.fetch_add(1, Ordering::Relaxed);
        if waiting >= queue.limits.waiting_max {
            queue.waiting.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        queue.metrics.waiting.increment(1);
        queue.metrics.waited.increment(1);
        Some(Waiting(queue))
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
        self.0.metrics.waiting.decrement(1);
    }
}

#[cfg(test)]
mod tests;
