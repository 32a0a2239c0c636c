//! The status of a lease.

use earmark_core::{CreditShortage, LimitKey, UnixMs};

use super::{lease_gate, settle_gate};
use crate::id::GateId;
use crate::model::{EntryBody, HoldTerms, LeaseKey, Posting, PostingState, StoredEntry, VaultKey};
use crate::saga::{Engine, TaskError};

/// Reads of a lease whose rows changed between two queries.
const LOOKS_MAX: u32 = 3;

/// The status of a lease.
#[derive(Debug)]
pub(crate) enum LeaseStatus {
    /// Unknown.
    Unknown,
    /// It ended before it held anything.
    Marked,
    /// Its holds were refused.
    Refused {
        /// The limit on the account that was short.
        limit: LimitKey,
        /// Why the account could not pay.
        why: CreditShortage,
    },
    /// It was settled.
    Settled,
    /// It holds credit, or did until its timeout.
    Holds(Vec<Part>),
}

/// One unsettled hold of a lease.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) home: VaultKey,
    pub(crate) terms: HoldTerms,
    /// The posting, unless it was returned.
    pub(crate) posting: Option<(Posting, PostingState)>,
    /// Whether an entry records its return.
    pub(crate) is_released: bool,
}

impl Part {
    pub(crate) fn is_over(&self, now: UnixMs) -> bool {
        self.posting.is_none() || self.terms.ends_at <= now
    }
}

impl LeaseStatus {
    /// Whether everything that it asked for is still held.
    pub(crate) fn is_live(&self, now: UnixMs) -> bool {
        matches!(self, LeaseStatus::Holds(parts) if parts.iter().all(|part| !part.is_over(now)))
    }
}

impl Engine {
    /// Reads the status of a lease.
    pub(crate) async fn lease_status(&self, lease: &LeaseKey) -> Result<LeaseStatus, TaskError> {
        let mut looks = 1;
        loop {
            let status = self.look_at(lease).await?;
            let is_torn = matches!(&status, LeaseStatus::Holds(parts)
                if parts.iter().any(|part| part.posting.is_none() && !part.is_released));
            // The hold was settled or returned between the two queries, and its entry exists by now or is about to be
            // written.
            if !is_torn || looks == LOOKS_MAX {
                return Ok(status);
            }
            looks += 1;
        }
    }

    async fn look_at(&self, lease: &LeaseKey) -> Result<LeaseStatus, TaskError> {
        // Entries first: the posting of a visible entry exists.
        let entries = self.call(self.store.lease(lease.clone())).await?;
        let first = entries.iter().find(|stored| stored.gate == lease_gate(lease));
        match first.map(|stored| &stored.entry.body) {
            None => return Ok(LeaseStatus::Unknown),
            Some(EntryBody::Refused { limit, why, .. }) => {
                return Ok(LeaseStatus::Refused { limit: limit.clone(), why: *why });
            }
            Some(EntryBody::Hold { .. }) => {}
            Some(_) => return Ok(LeaseStatus::Marked),
        }
        let mut parts: Vec<Part> = entries.iter().filter_map(hold_of).collect();
        parts.sort_by(|a, b| a.terms.limit.cmp(&b.terms.limit));
        let gate: Option<GateId> = parts.first().map(|part| settle_gate(&part.home, &part.terms));
        if entries.iter().any(|stored| Some(stored.gate) == gate) {
            return Ok(LeaseStatus::Settled);
        }
        let mut held = self.call(self.store.held(lease.clone())).await?;
        for part in &mut parts {
            let is_meant = |(posting, _): &(Posting, PostingState)| {
                let limit = posting.hold.as_ref().map(|hold| &hold.limit);
                posting.account.home == part.home && limit == Some(&part.terms.limit)
            };
            let is_release = |stored: &StoredEntry| {
                matches!(&stored.entry.body, EntryBody::Release { terms, .. }
                    if terms.limit == part.terms.limit && stored.entry.home == part.home)
            };
            part.is_released = entries.iter().any(is_release);
            part.posting = held.iter().position(is_meant).map(|place| held.swap_remove(place));
        }
        Ok(LeaseStatus::Holds(parts))
    }
}

fn hold_of(stored: &StoredEntry) -> Option<Part> {
    match &stored.entry.body {
        EntryBody::Hold { terms, .. } => {
            Some(Part { home: stored.entry.home.clone(), terms: terms.clone(), posting: None, is_released: false })
        }
        EntryBody::Transaction(_)
        | EntryBody::Settle(_)
        | EntryBody::Release { .. }
        | EntryBody::Refused { .. }
        | EntryBody::Ended { .. } => None,
    }
}
