//! The status of a lease.

use std::collections::{BTreeMap, BTreeSet};

use earmark_core::{CreditShortage, LimitKey, UnixMs};

use super::first_gate;
use crate::id::GateId;
use crate::model::{
    Entry, EntryBody, EntryReason, HoldTerms, LeaseKey, Posting, PostingHold, PostingState, StoredEntry, VaultKey,
};
use crate::saga::{Engine, TaskError};

/// Reads of a lease whose rows changed between two queries.
const LOOKS_MAX: u32 = 3;

/// The status of a lease.
#[derive(Debug)]
pub(crate) enum LeaseStatus {
    /// It holds nothing.
    Unknown {
        /// How often all that it held was returned. This selects the gate of its next hold.
        returned: u32,
    },
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
    Holds(Vec<Part>, Growths),
}

/// One unsettled hold of a lease.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) home: VaultKey,
    /// The terms of the first hold of this limit. The amount includes what extensions added.
    pub(crate) terms: HoldTerms,
    /// How long the hold lasts unless its limit says otherwise.
    pub(crate) timeout_ms: u64,
    /// The posting, unless the hold timed out and was settled.
    pub(crate) posting: Option<(Posting, PostingState)>,
    /// The amount paid at its timeout, if an entry records that.
    pub(crate) paid_at_timeout: Option<u64>,
}

impl Part {
    fn new(entry: &Entry, terms: &HoldTerms) -> Part {
        let timeout_ms = terms.ends_at.get().saturating_sub(entry.at.log.get());
        let (home, terms) = (entry.home.clone(), terms.clone());
        Part { home, terms, timeout_ms, posting: None, paid_at_timeout: None }
    }

    /// A hold that was made just now.
    pub(super) fn held_now(entry: &Entry, terms: &HoldTerms, posting: Posting) -> Part {
        Part { posting: Some((posting, PostingState::Active)), ..Part::new(entry, terms) }
    }

    /// The posting and its hold, while it exists.
    pub(crate) fn held(&self) -> Option<(&Posting, &PostingHold)> {
        let (posting, _) = self.posting.as_ref()?;
        Some((posting, posting.hold.as_ref()?))
    }

    /// The amount that is held now, or was until the timeout.
    pub(crate) fn amount(&self) -> u64 {
        let held = self.held().and_then(|(posting, _)| u64::try_from(posting.amount).ok());
        held.unwrap_or(self.terms.amount)
    }

    pub(crate) fn is_over(&self, now: UnixMs) -> bool {
        self.held().is_none_or(|(_, hold)| hold.ends_at <= now)
    }

    /// Whether its rows changed between two reads, or a saga is changing them.
    fn is_in_doubt(&self) -> bool {
        match &self.posting {
            None => self.paid_at_timeout.is_none(),
            Some((_, state)) => *state != PostingState::Active,
        }
    }

    fn is_torn(&self) -> bool {
        match self.held() {
            None => self.paid_at_timeout.is_none(),
            Some((posting, _)) => posting.amount != i128::from(self.terms.amount),
        }
    }
}

/// Whether the holds of a lease can be extended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Life {
    /// All of them are alive.
    Alive,
    /// One has ended.
    Over,
    /// A saga is changing one.
    InDoubt,
}

impl Life {
    pub(super) fn of(parts: &[Part], now: UnixMs) -> Life {
        let is_over = |part: &Part| part.paid_at_timeout.is_some() || (part.posting.is_some() && part.is_over(now));
        match parts.iter().any(is_over) {
            true => Life::Over,
            false if parts.iter().any(Part::is_in_doubt) => Life::InDoubt,
            false => Life::Alive,
        }
    }
}

/// The amounts that extensions added to the holds of a lease, and the amounts returned.
#[derive(Debug, Default)]
pub(crate) struct Growths {
    held: BTreeMap<u32, BTreeMap<LimitKey, u64>>,
    returns: BTreeMap<u32, BTreeSet<GateId>>,
}

impl Growths {
    fn add(&mut self, terms: &HoldTerms) {
        if terms.extension > 0 {
            let held = self.held.entry(terms.extension).or_default().entry(terms.limit.clone()).or_default();
            *held = held.saturating_add(terms.amount);
        }
    }

    fn remove(&mut self, terms: &HoldTerms, gate: GateId) {
        let held = self.held.entry(terms.extension).or_default();
        if let Some(amount) = held.get_mut(&terms.limit) {
            *amount = amount.saturating_sub(terms.amount);
        }
        held.retain(|_, amount| *amount > 0);
        self.returns.entry(terms.extension).or_default().insert(gate);
    }

    /// The amounts that an extension added, by limit.
    pub(crate) fn of(&self, number: u32) -> BTreeMap<LimitKey, u64> {
        self.held.get(&number).cloned().unwrap_or_default()
    }

    /// How often the growth of an extension was returned.
    pub(crate) fn returns(&self, number: u32) -> u32 {
        let returns = self.returns.get(&number).map_or(0, BTreeSet::len);
        u32::try_from(returns).unwrap_or(u32::MAX)
    }
}

impl LeaseStatus {
    /// Whether everything that it asked for is still held.
    pub(crate) fn is_live(&self, now: UnixMs) -> bool {
        matches!(self, LeaseStatus::Holds(parts, _) if parts.iter().all(|part| !part.is_over(now)))
    }
}

impl Engine {
    /// Reads the status of a lease.
    pub(crate) async fn lease_status(&self, lease: &LeaseKey) -> Result<LeaseStatus, TaskError> {
        let mut looks = 1;
        loop {
            let status = self.look_at(lease).await?;
            let is_torn = matches!(&status, LeaseStatus::Holds(parts, _) if parts.iter().any(Part::is_torn));
            // The hold was changed, settled or returned between the two queries, and its entry exists by now or is
            // about to be written.
            if !is_torn || looks == LOOKS_MAX {
                return Ok(status);
            }
            looks += 1;
        }
    }

    async fn look_at(&self, lease: &LeaseKey) -> Result<LeaseStatus, TaskError> {
        // Entries first: the posting of a visible entry exists.
        let entries = self.call(self.store.lease(lease.clone())).await?;
        let HeldParts { parts, growths, gates } = match read_entries(entries) {
            Ok(held) => held,
            Err(end) => return Ok(end),
        };
        let mut parts: Vec<Part> = parts.into_values().filter(|part| part.terms.amount > 0).collect();
        if parts.is_empty() {
            let returned = (0..u32::MAX).find(|returned| !gates.contains(&first_gate(lease, *returned)));
            return Ok(LeaseStatus::Unknown { returned: returned.unwrap_or(u32::MAX) });
        }
        let mut held = self.call(self.store.held(lease.clone())).await?;
        for part in &mut parts {
            let is_meant = |(posting, _): &(Posting, PostingState)| {
                let limit = posting.hold.as_ref().map(|hold| &hold.limit);
                posting.account.home == part.home && limit == Some(&part.terms.limit)
            };
            part.posting = held.iter().position(is_meant).map(|place| held.swap_remove(place));
        }
        Ok(LeaseStatus::Holds(parts, growths))
    }
}

/// The holds of a lease, from its entries.
#[derive(Default)]
pub(super) struct HeldParts {
    pub(super) parts: BTreeMap<LimitKey, Part>,
    growths: Growths,
    gates: BTreeSet<GateId>,
}

/// Reads the holds of a lease from its entries. `Err` if the lease has ended.
pub(super) fn read_entries(mut entries: Vec<StoredEntry>) -> Result<HeldParts, LeaseStatus> {
    // A limit belongs to one vault, whose numbers order its entries.
    entries.sort_by_key(|stored| stored.number);
    let mut held = HeldParts::default();
    for stored in &entries {
        held.gates.insert(stored.gate);
        if let Some(end) = note(stored, &mut held.parts, &mut held.growths) {
            return Err(end);
        }
    }
    Ok(held)
}

/// Adds an entry of a lease, in order of its vault. Returns the status if the entry ended the lease.
fn note(stored: &StoredEntry, parts: &mut BTreeMap<LimitKey, Part>, growths: &mut Growths) -> Option<LeaseStatus> {
    match &stored.entry.body {
        EntryBody::Transaction(_) | EntryBody::Expire(_) | EntryBody::Plan(_) => {}
        EntryBody::Refused { limit, why, .. } => {
            return Some(LeaseStatus::Refused { limit: limit.clone(), why: *why });
        }
        EntryBody::Ended { .. } => return Some(LeaseStatus::Marked),
        EntryBody::Hold { terms, .. } => {
            growths.add(terms);
            match parts.get_mut(&terms.limit).filter(|part| part.terms.amount > 0) {
                Some(part) => part.terms.amount = part.terms.amount.saturating_add(terms.amount),
                None => drop(parts.insert(terms.limit.clone(), Part::new(&stored.entry, terms))),
            }
        }
        EntryBody::Release { terms, reason: EntryReason::Returned, .. } => {
            growths.remove(terms, stored.gate);
            if let Some(part) = parts.get_mut(&terms.limit) {
                part.terms.amount = part.terms.amount.saturating_sub(terms.amount);
            }
        }
        EntryBody::Release { terms, reason, .. } => return settled(parts, terms, *reason, 0),
        EntryBody::Settle(settlement) => return settled(parts, &settlement.hold, settlement.reason, settlement.paid),
    }
    None
}

/// A settlement ends the lease, unless it is that of one hold at its timeout.
fn settled(
    parts: &mut BTreeMap<LimitKey, Part>,
    terms: &HoldTerms,
    reason: EntryReason,
    paid: u64,
) -> Option<LeaseStatus> {
    if reason != EntryReason::Timeout {
        return Some(LeaseStatus::Settled);
    }
    if let Some(part) = parts.get_mut(&terms.limit) {
        part.paid_at_timeout = Some(paid);
    }
    None
}
