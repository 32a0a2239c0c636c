//! The view of a lease.

use earmark_core::{Book, CallMark, JobId, LeaseClaim, LeaseId, LeaseState, NamespaceName, UnixMs};

use crate::backend::Amount;

/// A lease, as far as it is remembered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseView {
    /// When it was allowed, if it was.
    pub reserved_at: Option<UnixMs>,
    /// The reserved amounts, ordered by key. Empty for a denied or completed lease.
    pub requirements: Vec<Amount>,
    /// The state of the lease.
    pub state: LeaseState,
    /// The job of its first reserve, if it is known. TigerBeetle does not store it: only the process that took the
    /// reserve knows it, for a while.
    pub job: Option<JobId>,
    /// The number of its last extension; 0 without one.
    pub extensions: u32,
    /// The usage that its extensions reported, ordered by key.
    pub used: Vec<Amount>,
    /// When the first of its concurrency and credit reservations ends. `None` without any, or if it is not live.
    pub ends_at: Option<UnixMs>,
    /// The policy revision of its call, if it is that of a call and was allowed.
    pub policy_revision: Option<u64>,
    /// [`CallMark::fingerprint`] of its call.
    pub call_fingerprint: Option<u64>,
    /// Whether a gateway made it.
    pub by_gateway: bool,
    /// Whether its reserve or an extension took credit. Unknown, so false, unless it is live or expired.
    pub has_credit: bool,
}

impl LeaseView {
    /// Whether a claim does not fit the lease: a gateway made it, or it is not that of the call.
    pub(crate) fn refuses(&self, claim: LeaseClaim) -> bool {
        let attributes = self.call_fingerprint.map(|fingerprint| fingerprint >> 32);
        let is_other_call = claim.attributes.is_some_and(|claimed| attributes != Some(u64::from(claimed)));
        self.by_gateway && !claim.by_gateway || is_other_call
    }

    /// A lease of a Book.
    pub(crate) fn of(book: &Book, now: UnixMs, namespace: &NamespaceName, lease: LeaseId) -> Option<LeaseView> {
        let own = book.namespace(namespace)?;
        let info = book.lease(now, own, lease)?;
        let named =
            |(limit, amount): &(_, u64)| Some(Amount { key: book.key_seen_from(own, *limit)?, amount: *amount });
        let mut requirements: Vec<Amount> = info.requirements.iter().filter_map(named).collect();
        requirements.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        let mut used: Vec<Amount> = info.used.iter().filter_map(named).collect();
        used.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        Some(LeaseView {
            reserved_at: info.reserved_at,
            requirements,
            state: info.state,
            job: info.job,
            extensions: info.extensions,
            used,
            ends_at: info.ends_at.filter(|end| *end > now),
            policy_revision: info.call.map(|call| call.policy_revision),
            call_fingerprint: info.call.map(CallMark::fingerprint),
            by_gateway: info.by_gateway,
            has_credit: info.has_credit,
        })
    }

    /// A denied lease, about which nothing more is known.
    pub const DENIED: LeaseView = LeaseView {
        reserved_at: None,
        requirements: Vec::new(),
        state: LeaseState::Denied,
        job: None,
        extensions: 0,
        used: Vec::new(),
        ends_at: None,
        policy_revision: None,
        call_fingerprint: None,
        by_gateway: false,
        has_credit: false,
    };
}
