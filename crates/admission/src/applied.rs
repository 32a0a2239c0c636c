//! Reads of what this process has applied, and usage beyond reservations by limit, for the decision log.

use earmark_core::{Book, JobId, LeaseId, LimitKey, NamespaceName, TimedOut};

use crate::backend::{Amount, BackendError};
use crate::book_host::{BookBackend, BookHost};

/// The usage of a limit as one process has applied it. An amount is `None` where another system keeps it, and for the
/// limits of other namespaces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AppliedUsage {
    /// The amount that could be reserved.
    pub available: Option<u64>,
    /// The capacity in force; of a credit limit, the balance of its account.
    pub capacity: Option<u64>,
}

/// Usage of one limit beyond its reservation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitOverage {
    /// The limit.
    pub key: LimitKey,
    /// The excess. For credit, the part of the cost that the account did not have.
    pub amount: u64,
    /// Whether it was recorded as debt. Otherwise it was reserved after all, or is only counted.
    pub is_debt: bool,
}

/// A lease that ran out before it was completed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimedOutLease {
    /// The namespace of the lease.
    pub namespace: NamespaceName,
    /// The lease.
    pub lease: LeaseId,
    /// The job of its reserve.
    pub job: Option<JobId>,
    /// The concurrency and credit reservations that ran out.
    pub limits: Vec<Amount>,
}

impl TimedOutLease {
    fn of(book: &Book, found: TimedOut) -> Option<TimedOutLease> {
        let TimedOut { namespace: own, lease, job, limits } = found;
        let named = |(limit, amount): (_, u64)| Some(Amount { key: book.key_seen_from(own, limit)?, amount });
        let limits = limits.into_iter().filter_map(named).collect();
        Some(TimedOutLease { namespace: book.namespace_name(own)?.clone(), lease, job, limits })
    }
}

impl<H: BookHost> BookBackend<H> {
    /// The usage of limits as this process has applied it.
    pub(crate) fn book_usage(&self, namespace: &NamespaceName, keys: &[&LimitKey]) -> Vec<AppliedUsage> {
        let now = self.0.host.now();
        self.0.host.with_book(|book| {
            let own = book.namespace(namespace);
            let usage = |key: &&LimitKey| {
                let found = own.filter(|_| !key.is_foreign()).and_then(|own| book.find_usage(now, own, key));
                found.map_or_else(AppliedUsage::default, |usage| AppliedUsage {
                    available: Some(usage.available),
                    capacity: Some(usage.capacity),
                })
            };
            keys.iter().map(usage).collect()
        })
    }

    /// The leases that ran out since the last call.
    pub(crate) async fn timed_out_leases(&self) -> Result<Vec<TimedOutLease>, BackendError> {
        // After the barrier every complete before this time is applied, so that none is taken for a timeout.
        let now = self.0.host.read_barrier().await?;
        let mut scan = self.0.timeouts.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let found = |book: &Book| {
            let found = book.timed_out(now, &mut scan);
            found.into_iter().filter_map(|found| TimedOutLease::of(book, found)).collect()
        };
        Ok(self.0.host.with_book(found))
    }
}
