//! A lease as the ledger has it: the transfers under its name, read.

use earmark_core::{LeaseState, LimitKey, UnixMs};
use tigerbeetle::{Transfer, TransferFlags};

use crate::chart::{Code, Ending, Holding, Origin, SECOND_NS, has};

/// What is known of a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LeaseRecord {
    /// What it asked for, hashed.
    pub(crate) fingerprint: u64,
    /// When its anchor was made, by the ledger's clock.
    pub(crate) made_at_ns: u64,
    pub(crate) origin: Origin,
    /// What it took, in order of key where keys are known.
    pub(crate) held: Vec<Held>,
    pub(crate) ending: Option<Ending>,
}

/// One reservation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    /// The account of the limit.
    pub(crate) account: u128,
    /// The limit; none if the registry no longer has it.
    pub(crate) key: Option<LimitKey>,
    pub(crate) transfer: u128,
    pub(crate) amount: u64,
    pub(crate) holding: Holding,
    pub(crate) ends_at_ns: u64,
}

/// What a reserve is told of a lease that is there already. Its body is judged first, then what became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Retry {
    /// A complete came first, whatever was asked for.
    Ended,
    /// It was used for something else.
    OtherRequirements,
    /// It holds all that it took.
    Holds { reserved_at: UnixMs },
}

impl LeaseRecord {
    /// Reads the transfers of one lease. Nothing is known of it without its anchor.
    pub(crate) fn read(
        transfers: &[Transfer],
        key_of: impl Fn(u128) -> Option<LimitKey>,
    ) -> Option<LeaseRecord> {
        let of_code = |code: Code| transfers.iter().filter(move |transfer| transfer.code == code as u16);
        let anchor = of_code(Code::Anchor).next()?;
        let is_marked = anchor.user_data_32 == Origin::Marked as u32;
        let ending = of_code(Code::End).next().map(|end| {
            if end.user_data_32 == Ending::Released as u32 { Ending::Released } else { Ending::Completed }
        });
        let mut held: Vec<Held> = of_code(Code::Reserve)
            .filter(|transfer| has(transfer.flags, TransferFlags::Pending))
            .filter_map(|transfer| Held::read(transfer, &key_of))
            .collect();
        held.sort_by(|a, b| a.key.cmp(&b.key));
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

    /// Whether anything of it has ended by time.
    pub(crate) fn has_expired(&self, now_ns: u64) -> bool {
        self.held.iter().any(|held| held.ends_at_ns <= now_ns)
    }

    /// What a reserve with this fingerprint is told.
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
    fn read(transfer: &Transfer, key_of: &impl Fn(u128) -> Option<LimitKey>) -> Option<Held> {
        Some(Held {
            account: transfer.debit_account_id,
            key: key_of(transfer.debit_account_id),
            transfer: transfer.id,
            amount: u64::try_from(transfer.amount).unwrap_or(u64::MAX),
            holding: Holding::from_code(transfer.user_data_32)?,
            ends_at_ns: end_ns(transfer.timestamp, transfer.timeout),
        })
    }
}

/// When what was made at a time ends.
pub(crate) fn end_ns(made_at_ns: u64, timeout_seconds: u32) -> u64 {
    made_at_ns.saturating_add(u64::from(timeout_seconds).saturating_mul(SECOND_NS))
}

pub(crate) fn to_ms(ns: u64) -> UnixMs {
    UnixMs::new(ns / 1_000_000)
}

#[cfg(test)]
mod tests;
