//! Cache of leases. The transfers are the record.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use earmark_core::{JobId, LimitKey, UnixMs};
use tokio::sync::Notify;

use crate::clock::lock;
use crate::lease_record::LeaseRecord;
use crate::schema::ReserveBody;

/// Maximum leases in each of the two generations.
const GENERATION_MAX: usize = 1 << 18;

/// The answer that this process gave to a lease.
#[derive(Clone, Debug)]
pub(crate) enum CachedLease {
    /// Allowed by this process.
    Allowed(Arc<LeaseRecord>),
    /// Denied by this process.
    Denied(Arc<Denied>),
}

/// A denial. The ledger recognises it only for the requirements that were denied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Denied {
    pub(crate) body: ReserveBody,
    pub(crate) limited_by: LimitKey,
    pub(crate) never: bool,
    /// Earliest time at which a new lease may succeed.
    pub(crate) retry_at: UnixMs,
}

/// Two generations of leases by ledger id. When the young one is full or older than the retention, it replaces the old
/// one.
pub(crate) struct LeaseCache {
    generations: Mutex<Generations<CachedLease>>,
    /// The ledger does not store job ids.
    jobs: Mutex<Generations<JobId>>,
    in_flight: Mutex<HashMap<u128, Flight>>,
    retention_ms: AtomicU64,
}

/// Two generations of records by lease. After the retention the old one is dropped.
struct Generations<T> {
    young: HashMap<u128, T>,
    old: HashMap<u128, T>,
    since: Instant,
}

impl<T: Clone> Generations<T> {
    fn new() -> Generations<T> {
        Generations { young: HashMap::new(), old: HashMap::new(), since: Instant::now() }
    }

    fn get(&self, lease: u128) -> Option<T> {
        self.young.get(&lease).or_else(|| self.old.get(&lease)).cloned()
    }

    fn put(&mut self, lease: u128, value: T, retention: Duration) {
        if self.young.len() >= GENERATION_MAX || self.since.elapsed() >= retention {
            self.old = std::mem::take(&mut self.young);
            self.since = Instant::now();
        }
        self.young.insert(lease, value);
    }
}

/// Reserves of one lease in flight.
struct Flight {
    count: usize,
    landed: Arc<Notify>,
}

impl LeaseCache {
    pub(crate) fn new(retention_ms: u64) -> LeaseCache {
        LeaseCache {
            generations: Mutex::new(Generations::new()),
            jobs: Mutex::new(Generations::new()),
            in_flight: Mutex::default(),
            retention_ms: AtomicU64::new(retention_ms),
        }
    }

    pub(crate) fn set_retention(&self, retention_ms: u64) {
        self.retention_ms.store(retention_ms, Ordering::Relaxed);
    }

    pub(crate) fn get(&self, lease: u128) -> Option<CachedLease> {
        lock(&self.generations).get(lease)
    }

    pub(crate) fn put(&self, lease: u128, memory: CachedLease) {
        lock(&self.generations).put(lease, memory, self.retention());
    }

    fn retention(&self) -> Duration {
        Duration::from_millis(self.retention_ms.load(Ordering::Relaxed))
    }

    /// Remembers the job of a lease, unless it has one.
    pub(crate) fn put_job(&self, lease: u128, job: JobId) {
        let mut jobs = lock(&self.jobs);
        if jobs.get(lease).is_none() {
            jobs.put(lease, job, self.retention());
        }
    }

    pub(crate) fn job(&self, lease: u128) -> Option<JobId> {
        lock(&self.jobs).get(lease)
    }

    pub(crate) fn forget(&self, lease: u128) {
        let mut generations = lock(&self.generations);
        generations.young.remove(&lease);
        generations.old.remove(&lease);
    }

    pub(crate) fn len(&self) -> usize {
        let generations = lock(&self.generations);
        generations.young.len().saturating_add(generations.old.len())
    }

    /// Registers a reserve of a lease until the guard is dropped.
    pub(crate) fn begin(self: &Arc<LeaseCache>, lease: u128) -> InFlight {
        let mut flights = lock(&self.in_flight);
        let flight = flights.entry(lease).or_insert_with(|| Flight { count: 0, landed: Arc::default() });
        flight.count = flight.count.saturating_add(1);
        InFlight { leases: Arc::clone(self), lease }
    }

    /// Waits until no reserve of a lease is in flight in this process.
    pub(crate) async fn landed(&self, lease: u128) {
        loop {
            let landed = lock(&self.in_flight).get(&lease).map(|flight| Arc::clone(&flight.landed));
            let Some(landed) = landed else { return };
            let mut notified = std::pin::pin!(landed.notified());
            // Register before checking again, or a notification in between is missed.
            notified.as_mut().enable();
            if !self.is_in_flight(lease) {
                return;
            }
            notified.await;
        }
    }

    pub(crate) fn is_in_flight(&self, lease: u128) -> bool {
        lock(&self.in_flight).contains_key(&lease)
    }
}

/// Guard of a reserve in flight.
pub(crate) struct InFlight {
    leases: Arc<LeaseCache>,
    lease: u128,
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let mut flights = lock(&self.leases.in_flight);
        if let Some(flight) = flights.get_mut(&self.lease) {
            flight.count = flight.count.saturating_sub(1);
            if flight.count == 0
                && let Some(flight) = flights.remove(&self.lease)
            {
                flight.landed.notify_waiters();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn denied(fingerprint: u64) -> CachedLease {
        let body = ReserveBody { fingerprint, ..ReserveBody::default() };
        let limited_by = "rpm".parse().unwrap();
        CachedLease::Denied(Arc::new(Denied { body, limited_by, never: false, retry_at: UnixMs::new(0) }))
    }

    #[test]
    fn what_was_put_is_remembered_until_two_generations_have_passed() {
        let leases = LeaseCache::new(0);
        leases.put(1, denied(1));
        leases.put(2, denied(2));
        assert!(leases.get(1).is_some());
        assert!(leases.get(2).is_some());
        leases.put(3, denied(3));
        assert!(leases.get(1).is_none());
        assert_eq!(leases.len(), 2);
        leases.forget(2);
        leases.forget(3);
        assert_eq!(leases.len(), 0);
    }

    #[tokio::test]
    async fn whoever_waits_for_a_reserve_goes_on_when_the_last_of_them_has_landed() {
        let leases = Arc::new(LeaseCache::new(60_000));
        leases.landed(7).await;
        let (first, second) = (leases.begin(7), leases.begin(7));
        let waiting = tokio::spawn({
            let leases = Arc::clone(&leases);
            async move { leases.landed(7).await }
        });
        drop(first);
        tokio::time::sleep(Duration::from_millis(5)).await;
        assert!(!waiting.is_finished());
        drop(second);
        waiting.await.unwrap();
        assert!(!leases.is_in_flight(7));
    }
}
