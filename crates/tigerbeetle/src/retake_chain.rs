//! The chain that takes reservations again that reached the ledger in a later period than they were sent for.
//!
//! It voids each of them and takes the same amount to the end of the current period, so it fits unless the first
//! reservation has expired meanwhile. A crash before this chain leaves late reservations; the next request about the
//! lease sends it.

use tigerbeetle::{CreateTransferResult, CreateTransferStatus as Status, Transfer};

use crate::lease_record::{Held, LeaseRecord};
use crate::reserve_chain::Taken;
use crate::schema::{CommonAccounts, LeaseName, LimitName, SECOND_NS, link};
use crate::status::{describe, exists, has_ended};

/// The late reservations of a lease, and what takes their place.
#[derive(Clone, Debug)]
pub(crate) struct Retaking {
    name: LeaseName,
    parts: Vec<Part>,
}

#[derive(Clone, Debug)]
struct Part {
    late: Held,
    taken: Taken,
    /// Whether the late reservation has expired, so that nothing is left to void.
    has_expired: bool,
}

/// Outcome of a chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RetakeResult {
    /// The reservations that replace the late ones.
    Done(Vec<Held>),
    /// A late reservation has expired; send the chain again without its void.
    Again,
    /// The limit has no room in the current period.
    Denied(Option<LimitName>),
    /// Another process took them again or ended the lease; read the lease.
    Changed,
    /// An unexpected status.
    Failed(String),
}

/// The whole seconds until a time, at least 1, rounded up.
pub(crate) fn seconds_until(end_ns: u64, now_ns: u64) -> u32 {
    u32::try_from(end_ns.saturating_sub(now_ns).div_ceil(SECOND_NS)).unwrap_or(u32::MAX).max(1)
}

impl Retaking {
    /// `period_end` is the end of the period of a limit that contains a time; `None` if the limit is gone or has no
    /// calendar any more. Then the reservation stays as it is.
    pub(crate) fn new(
        name: &LeaseName,
        record: &LeaseRecord,
        now_ns: u64,
        period_end: impl Fn(&LimitName, u64) -> Option<u64>,
    ) -> Retaking {
        let part = |late: &Held| {
            let limit = late.name.clone()?;
            let now_ns = now_ns.max(late.made_at_ns);
            let end_ns = period_end(&limit, now_ns)?;
            let taken = Taken {
                limit: Some(limit),
                account: late.account,
                amount: late.amount,
                holding: late.holding,
                hold_seconds: seconds_until(end_ns, now_ns),
                ends_at_ns: Some(end_ns),
                would_deny: late.would_deny,
                version: late.version.next_round(),
            };
            Some(Part { late: late.clone(), taken, has_expired: false })
        };
        let late = record.held.iter().filter(|held| held.is_late());
        Retaking { name: name.clone(), parts: late.filter_map(part).collect() }
    }

    /// The transfers; empty if no reservation can be taken again.
    pub(crate) fn chain(&self, common: &CommonAccounts, fingerprint: u64) -> Vec<Transfer> {
        let mut chain = Vec::with_capacity(self.parts.len().saturating_mul(2));
        for Part { late, taken, has_expired } in &self.parts {
            if !has_expired {
                chain.push(late.void(&self.name));
            }
            chain.push(taken.transfer(&self.name, common, fingerprint));
        }
        link(&mut chain);
        chain
    }

    /// Interprets the results of [`chain`](Retaking::chain).
    pub(crate) fn read(&mut self, results: &[CreateTransferResult]) -> RetakeResult {
        let mut held = Vec::with_capacity(self.parts.len());
        let mut results = results.iter();
        for Part { taken, has_expired, .. } in &mut self.parts {
            if !*has_expired {
                match results.next().map(|result| result.status) {
                    Some(Status::Created | Status::LinkedEventFailed) => {}
                    Some(Status::PendingTransferExpired) => {
                        *has_expired = true;
                        return RetakeResult::Again;
                    }
                    Some(status) if has_ended(status) || exists(status) => return RetakeResult::Changed,
                    Some(status) => return RetakeResult::Failed(describe(status)),
                    None => return RetakeResult::Failed("TigerBeetle left out results".into()),
                }
            }
            match results.next().map(|result| (result.status, result.timestamp)) {
                Some((Status::Created, at_ns)) => held.push(taken.held(&self.name, at_ns)),
                Some((Status::LinkedEventFailed, _)) => {}
                Some((Status::ExceedsCredits | Status::IdAlreadyFailed, _)) => {
                    return RetakeResult::Denied(taken.limit.clone());
                }
                Some((status, _)) if exists(status) => return RetakeResult::Changed,
                Some((status, _)) => return RetakeResult::Failed(describe(status)),
                None => return RetakeResult::Failed("TigerBeetle left out results".into()),
            }
        }
        if held.len() == self.parts.len() {
            RetakeResult::Done(held)
        } else {
            RetakeResult::Failed("TigerBeetle rejected a chain without a reason".into())
        }
    }
}

#[cfg(test)]
mod tests;
