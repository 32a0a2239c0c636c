//! The decision log: recent denials, refusals, timeouts and overages of this node.
//!
//! `record` never waits for the disk. It encodes a record into a bounded queue, and a thread writes the queue. Beyond the
//! bound records are dropped and counted. Of one key and outcome at most ten records a second are kept in full; the rest
//! are counted in the last of them.

mod query;
mod queue;
mod record;
mod writer;

use std::hash::BuildHasher as _;
use std::hash::RandomState;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use earmark_admission::{Backend, RecordStore, TimedOutLease};
use earmark_core::{Actor, JobId, LeaseId, LimitKey, NamespaceName, UnixMs};
use earmark_policy::Attributes;
use metrics::Counter;
use tokio::sync::{Mutex, MutexGuard, Semaphore};

pub(crate) use query::{DecisionPage, DecisionQuery};
pub(crate) use record::{LoggedDecision, LoggedLimit, Outcome};

pub(crate) use queue::Unhashed;
use queue::{Admitted, Queue};
use record::{Record, decode, encode};

use crate::events::Feeds;

/// The answer to a read of a log that is off.
pub(crate) const DECISIONS_OFF: &str = "the decision log of this server is off (--decisions-bytes 0)";
/// Reads of the log at once. Each may have a segment in memory.
const READS_AT_ONCE: usize = 2;

/// A decision to record.
pub(crate) struct Decision<'a> {
    pub(crate) outcome: Outcome,
    pub(crate) namespace: &'a NamespaceName,
    pub(crate) actor: &'a Actor,
    pub(crate) lease: LeaseId,
    pub(crate) job: Option<&'a JobId>,
    pub(crate) attributes: Option<&'a Attributes>,
    /// The limits in the way with the amounts asked for, the one that frees last first. Empty if a policy refused.
    pub(crate) limits: &'a [(&'a LimitKey, u64)],
}

/// The decision log of a server.
pub(crate) struct DecisionLog {
    /// `None` if the log is off. Then it only counts the leases that ran out.
    log: Option<Arc<Shared>>,
    backend: Arc<dyn Backend>,
    counters: DecisionCounters,
    /// Held while timeouts are read and recorded, so that a reader sees them all.
    timeouts: Mutex<()>,
}

/// The counters of the decision log.
#[derive(Clone)]
pub(crate) struct DecisionCounters {
    /// Decisions that were dropped.
    pub(crate) dropped: Counter,
    /// Leases that ran out before they were completed.
    pub(crate) expired_leases: Counter,
}

struct Shared {
    backend: Arc<dyn Backend>,
    store: Arc<dyn RecordStore>,
    queue: Queue,
    hasher: RandomState,
    /// Streams that show decisions as they are made.
    feeds: Arc<Feeds>,
    dropped: Counter,
    /// The actor of timeouts: Earmark itself.
    itself: Actor,
    reads: Semaphore,
}

/// The wall time, which an operator compares with other logs.
pub(crate) fn now() -> UnixMs {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    UnixMs::new(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

impl DecisionLog {
    /// Starts the writer thread. Without a store the log is off.
    pub(crate) fn start(
        store: Option<Arc<dyn RecordStore>>,
        backend: &Arc<dyn Backend>,
        feeds: Arc<Feeds>,
        counters: DecisionCounters,
    ) -> Result<DecisionLog, earmark_core::NameError> {
        let log = match store {
            Some(store) => DecisionLog::write_to(store, backend, feeds, counters.dropped.clone())?,
            None => None,
        };
        Ok(DecisionLog { log, backend: Arc::clone(backend), counters, timeouts: Mutex::new(()) })
    }

    fn write_to(
        store: Arc<dyn RecordStore>,
        backend: &Arc<dyn Backend>,
        feeds: Arc<Feeds>,
        dropped: Counter,
    ) -> Result<Option<Arc<Shared>>, earmark_core::NameError> {
        let shared = Arc::new(Shared {
            backend: Arc::clone(backend),
            queue: Queue::new(store.next_number(), store.bounds().segment_bytes()),
            store,
            hasher: RandomState::new(),
            feeds,
            dropped,
            itself: Actor::new(Actor::ITSELF)?,
            reads: Semaphore::new(READS_AT_ONCE),
        });
        let writing = Arc::clone(&shared);
        let started = std::thread::Builder::new().name("decisions".into()).spawn(move || writing.write_until_stopped());
        if let Err(error) = started {
            tracing::error!(%error, "cannot start the writer of the decision log; the log is off");
            return Ok(None);
        }
        Ok(Some(shared))
    }

    /// Whether decisions are recorded.
    pub(crate) fn is_on(&self) -> bool {
        self.log.is_some()
    }

    /// Records a decision. Never waits for the disk.
    pub(crate) fn record(&self, decision: &Decision<'_>) {
        let Some(shared) = &self.log else { return };
        let first = decision.limits.first().map(|(key, _)| *key);
        let identity = shared.hasher.hash_one((decision.namespace, first, decision.outcome as u8));
        match shared.queue.admit(identity, now()) {
            Admitted::InFull => {}
            Admitted::Repeated => return,
            Admitted::Dropped => return shared.dropped.increment(1),
        }
        let keys: Vec<&LimitKey> = decision.limits.iter().map(|(key, _)| *key).collect();
        let usages = shared.backend.applied_usage(decision.namespace, &keys);
        let payload = encode(decision, &usages);
        shared.feeds.publish(decision.namespace, || match decode(now(), &payload) {
            Some(Record::Decision(decision)) => Some(*decision),
            Some(Record::Repeats { .. }) | None => None,
        });
        if !shared.queue.push(identity, payload, now) {
            shared.dropped.increment(1);
        }
    }

    /// Records and counts the leases that ran out since the last call, unless that is under way already.
    pub(crate) async fn record_new_timeouts(&self) {
        if let Ok(turn) = self.timeouts.try_lock() {
            self.record_timeouts(&turn).await;
        }
    }

    async fn record_timeouts(&self, _: &MutexGuard<'_, ()>) {
        let found = match self.backend.timed_out().await {
            Ok(found) => found,
            // Without a leader nothing times out either; the next call finds it.
            Err(error) => return tracing::debug!(%error, "cannot read the leases that ran out"),
        };
        self.counters.expired_leases.increment(found.len() as u64);
        let Some(shared) = &self.log else { return };
        for TimedOutLease { namespace, lease, job, limits } in &found {
            let limits: Vec<(&LimitKey, u64)> = limits.iter().map(|limit| (&limit.key, limit.amount)).collect();
            self.record(&Decision {
                outcome: Outcome::Timeout,
                namespace,
                actor: &shared.itself,
                lease: *lease,
                job: job.as_ref(),
                attributes: None,
                limits: &limits,
            });
        }
    }

    /// Writes what is queued, and ends the writer thread.
    pub(crate) async fn stop(&self) {
        if let Some(stopped) = self.log.as_ref().and_then(|shared| shared.queue.stop()) {
            _ = stopped.await;
        }
    }
}

impl Drop for DecisionLog {
    fn drop(&mut self) {
        // Ends the thread of a server that was not shut down.
        _ = self.log.as_ref().and_then(|shared| shared.queue.stop());
    }
}

#[cfg(test)]
mod tests;
