//! A lease, read from its transfers.

use earmark_core::{LeaseState, LimitKey, NamespaceName, UnixMs};
use tigerbeetle::{Transfer, TransferFlags};

use crate::schema::{
    Code, Ending, Holding, LEDGER, LeaseName, LimitName, Origin, ROUND_SHIFT, ROUNDS_MAX, SECOND_NS, WOULD_DENY, has,
};

/// A lease as its transfers in the ledger show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LeaseRecord {
    /// Hash of its requirements.
    pub(crate) fingerprint: u64,
    /// Timestamp of its anchor, by the ledger's clock.
    pub(crate) made_at_ns: u64,
    pub(crate) origin: Origin,
    /// Its reservations, sorted by name.
    pub(crate) held: Vec<Held>,
    pub(crate) ending: Option<Ending>,
}

/// A reservation of a lease on one limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    /// Account of the limit.
    pub(crate) account: u128,
    /// `None` if the registry no longer has the limit.
    pub(crate) name: Option<LimitName>,
    pub(crate) transfer: u128,
    pub(crate) amount: u64,
    pub(crate) holding: Holding,
    /// When it ends; for a calendar limit the end of its period. The transfer expires less than a second later.
    pub(crate) ends_at_ns: u64,
    /// Timestamp of its transfer, by the ledger's clock.
    pub(crate) made_at_ns: u64,
    /// Whether the limit is not enforced and would have denied it.
    pub(crate) would_deny: bool,
    /// How often it was taken before, in earlier periods.
    pub(crate) round: u16,
}

/// The answer to a reserve of a lease that exists. Other requirements take precedence over its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Retry {
    Ended,
    OtherRequirements,
    /// The lease holds all its reservations.
    Holds {
        reserved_at: UnixMs,
    },
}

impl LeaseRecord {
    /// Reads the transfers of one lease; `None` without an anchor.
    pub(crate) fn read(transfers: &[Transfer], name_of: impl Fn(u128) -> Option<LimitName>) -> Option<LeaseRecord> {
        let of_code = |code: Code| transfers.iter().filter(move |transfer| transfer.code == code as u16);
        let anchor = of_code(Code::Anchor).next()?;
        let is_marked = anchor.user_data_32 == Origin::Marked as u32;
        let ending = of_code(Code::End)
            .next()
            .map(|end| if end.user_data_32 == Ending::Released as u32 { Ending::Released } else { Ending::Completed });
        let mut held: Vec<Held> = of_code(Code::Reserve)
            .chain(of_code(Code::Retake))
            .filter(|transfer| has(transfer.flags, TransferFlags::Pending))
            .filter_map(|transfer| Held::read(transfer, &name_of))
            .collect();
        // A reservation that was taken again replaces the one before.
        held.sort_by_key(|held| (held.account, std::cmp::Reverse(held.round)));
        held.dedup_by_key(|held| held.account);
        held.sort_by(|a, b| a.name.cmp(&b.name));
        Some(LeaseRecord {
            fingerprint: anchor.user_data_64,
            made_at_ns: anchor.timestamp,
            origin: if is_marked { Origin::Marked } else { Origin::Reserved },
            held,
            ending,
        })
    }

    pub(crate) fn reserved_at(&self) -> UnixMs {
        to_ms(self.made_at_ns)
    }

    /// The limits that are not enforced and would have denied it, ordered by key.
    pub(crate) fn would_deny(&self, own: &NamespaceName) -> Vec<LimitKey> {
        let above = self.held.iter().filter(|held| held.would_deny);
        let mut keys: Vec<LimitKey> = above.filter_map(|held| Some(held.name.as_ref()?.seen_from(own))).collect();
        keys.sort_unstable();
        keys
    }

    /// Whether any reservation has expired.
    pub(crate) fn has_expired(&self, now_ns: u64) -> bool {
        self.held.iter().any(|held| held.ends_at_ns <= now_ns)
    }

    /// Whether a reservation reached the ledger after the period that it was sent for, and must be taken again.
    pub(crate) fn is_late(&self) -> bool {
        self.origin == Origin::Reserved && self.ending.is_none() && self.held.iter().any(Held::is_late)
    }

    /// The answer to a reserve with this fingerprint.
    pub(crate) fn retry(&self, fingerprint: u64, now_ns: u64) -> Retry {
        if self.origin == Origin::Marked {
            Retry::Ended
        } else if self.fingerprint != fingerprint {
            Retry::OtherRequirements
        } else if self.ending.is_some() || self.has_expired(now_ns) {
            Retry::Ended
        } else {
            Retry::Holds { reserved_at: self.reserved_at() }
        }
    }

    pub(crate) fn state(&self, now_ns: u64) -> LeaseState {
        match (self.origin, self.ending) {
            (Origin::Marked, _) | (Origin::Reserved, Some(Ending::Completed)) => LeaseState::Completed,
            (Origin::Reserved, Some(Ending::Released)) => LeaseState::Denied,
            (Origin::Reserved, None) if self.has_expired(now_ns) => LeaseState::Expired,
            (Origin::Reserved, None) => LeaseState::Live,
        }
    }
}

impl Held {
    fn read(transfer: &Transfer, name_of: &impl Fn(u128) -> Option<LimitName>) -> Option<Held> {
        let holding = Holding::from_code(transfer.user_data_32)?;
        Some(Held {
            account: transfer.debit_account_id,
            name: name_of(transfer.debit_account_id),
            transfer: transfer.id,
            amount: u64::try_from(transfer.amount).unwrap_or(u64::MAX),
            holding,
            ends_at_ns: match holding {
                Holding::Calendar => transfer.user_data_64,
                Holding::Rolling | Holding::Concurrency => end_ns(transfer.timestamp, transfer.timeout),
            },
            made_at_ns: transfer.timestamp,
            would_deny: transfer.user_data_32 & WOULD_DENY != 0,
            round: u16::try_from(transfer.user_data_32 >> ROUND_SHIFT).unwrap_or(u16::MAX),
        })
    }

    /// The transfer that ends it early.
    pub(crate) fn void(&self, lease: &LeaseName) -> Transfer {
        Transfer {
            id: lease.void_id(self.name.as_ref(), self.account, self.round),
            pending_id: self.transfer,
            user_data_128: lease.id,
            ledger: LEDGER,
            code: if self.round == 0 { Code::Reserve } else { Code::Retake } as u16,
            flags: TransferFlags::VoidPendingTransfer,
            ..Transfer::default()
        }
    }

    /// Whether its period ended before the ledger made it.
    pub(crate) fn is_late(&self) -> bool {
        self.holding == Holding::Calendar && self.ends_at_ns <= self.made_at_ns && self.round < ROUNDS_MAX
    }
}

pub(crate) fn end_ns(made_at_ns: u64, timeout_seconds: u32) -> u64 {
    made_at_ns.saturating_add(u64::from(timeout_seconds).saturating_mul(SECOND_NS))
}

pub(crate) fn to_ms(ns: u64) -> UnixMs {
    UnixMs::new(ns / 1_000_000)
}

#[cfg(test)]
mod tests;
