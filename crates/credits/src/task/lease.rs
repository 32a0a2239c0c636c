//! What is known of a lease.

use earmark_core::{CreditShortage, LimitKey, UnixMs};

use super::{lease_gate, settle_gate};
use crate::id::GateId;
use crate::model::{EntryBody, HoldTerms, LeaseKey, Posting, PostingState, StoredEntry, VaultKey};
use crate::saga::{Engine, Trouble};

/// So often a lease is looked at whose rows were changed between two reads.
const LOOKS_MAX: u32 = 3;

/// What became of a lease so far.
#[derive(Debug)]
pub(crate) enum LeaseStory {
    /// Nothing is known of it.
    Unknown,
    /// It ended before it held anything.
    Marked,
    /// Its holds were refused.
    Refused {
        /// The limit on the account that had too little.
        limit: LimitKey,
        /// What was wrong with the account.
        why: CreditShortage,
    },
    /// It was settled.
    Settled,
    /// It holds, or held until its time was over.
    Holds(Vec<Part>),
}

/// One hold of a lease that was not settled.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) home: VaultKey,
    pub(crate) terms: HoldTerms,
    /// The posting, unless it went back.
    pub(crate) posting: Option<(Posting, PostingState)>,
    /// Whether an entry says that it went back.
    pub(crate) is_released: bool,
}

impl Part {
    pub(crate) fn is_over(&self, now: UnixMs) -> bool {
        self.posting.is_none() || self.terms.ends_at <= now
    }
}

impl LeaseStory {
    /// Whether everything that it asked for is still held.
    pub(crate) fn is_live(&self, now: UnixMs) -> bool {
        matches!(self, LeaseStory::Holds(parts) if parts.iter().all(|part| !part.is_over(now)))
    }
}

impl Engine {
    /// Reads what is known of a lease.
    pub(crate) async fn story(&self, lease: &LeaseKey) -> Result<LeaseStory, Trouble> {
        let mut looks = 1;
        loop {
            let story = self.look_at(lease).await?;
            let is_torn = matches!(&story, LeaseStory::Holds(parts)
                if parts.iter().any(|part| part.posting.is_none() && !part.is_released));
            // It was settled or went back between the two reads, and the entry that says so is there by now; or whoever
            // is at it has not written it down yet.
            if !is_torn || looks == LOOKS_MAX {
                return Ok(story);
            }
            looks += 1;
        }
    }

    async fn look_at(&self, lease: &LeaseKey) -> Result<LeaseStory, Trouble> {
        // Entries first: a posting that an entry tells of was created before.
        let entries = self.call(self.store.lease(lease.clone())).await?;
        let first = entries.iter().find(|stored| stored.gate == lease_gate(lease));
        match first.map(|stored| &stored.entry.body) {
            None => return Ok(LeaseStory::Unknown),
            Some(EntryBody::Refused { limit, why, .. }) => {
                return Ok(LeaseStory::Refused { limit: limit.clone(), why: *why });
            }
            Some(EntryBody::Hold { .. }) => {}
            Some(_) => return Ok(LeaseStory::Marked),
        }
        let mut parts: Vec<Part> = entries.iter().filter_map(hold_of).collect();
        parts.sort_by(|a, b| a.terms.limit.cmp(&b.terms.limit));
        let gate: Option<GateId> = parts.first().map(|part| settle_gate(&part.home, &part.terms));
        if entries.iter().any(|stored| Some(stored.gate) == gate) {
            return Ok(LeaseStory::Settled);
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
        Ok(LeaseStory::Holds(parts))
    }
}

fn hold_of(stored: &StoredEntry) -> Option<Part> {
    match &stored.entry.body {
        EntryBody::Hold { terms, .. } => Some(Part {
            home: stored.entry.home.clone(),
            terms: terms.clone(),
            posting: None,
            is_released: false,
        }),
        EntryBody::Transaction(_)
        | EntryBody::Settle(_)
        | EntryBody::Release { .. }
        | EntryBody::Refused { .. }
        | EntryBody::Ended { .. } => None,
    }
}
