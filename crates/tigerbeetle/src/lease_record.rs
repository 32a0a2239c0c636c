//! A lease, read from its transfers.

use earmark_core::{LeaseState, LimitKey, NamespaceName, UnixMs};
use tigerbeetle::{Transfer, TransferFlags};

use crate::schema::{
    Anchor, Code, Decision, EXACT_END, Ending, Holding, LEDGER, LeaseName, LimitName, PartVersion, ROUNDS_MAX,
    ReserveBody, SECOND_NS, WOULD_DENY, has, used_key,
};

/// A lease as its transfers in the ledger show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LeaseRecord {
    /// Its first anchor: the reserve, or the complete of an unknown lease.
    pub(crate) first: Anchor,
    /// Its newest anchor: the first one, or its last extension.
    pub(crate) newest: Anchor,
    /// Its newest reservation on each limit, sorted by name.
    pub(crate) held: Vec<Held>,
    pub(crate) ending: Option<Ending>,
    /// Whether an extension was made. A denied one changes nothing.
    pub(crate) is_extended: bool,
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
    /// The sum of earlier reservations of a rolling or calendar limit, which are settled and keep their ends.
    pub(crate) earlier: u64,
    /// The usage that extensions reported.
    pub(crate) used: u64,
    pub(crate) holding: Holding,
    /// When it ends; for a calendar limit the end of its period. The transfer expires less than a second later.
    pub(crate) ends_at_ns: u64,
    /// Timestamp of its transfer, by the ledger's clock.
    pub(crate) made_at_ns: u64,
    /// Whether the limit is not enforced and would have denied it.
    pub(crate) would_deny: bool,
    pub(crate) version: PartVersion,
}

/// The answer to a reserve of a lease that exists. Other requirements take precedence over its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Retry {
    Ended,
    OwnedByGateway,
    OtherRequirements,
    /// The lease holds all its reservations.
    Holds {
        reserved_at: UnixMs,
    },
}

impl LeaseRecord {
    /// Reads the transfers of one lease; `None` without an anchor.
    pub(crate) fn read(
        name: &LeaseName,
        transfers: &[Transfer],
        name_of: impl Fn(u128) -> Option<LimitName>,
    ) -> Option<LeaseRecord> {
        let anchors = || transfers.iter().filter_map(Anchor::read);
        let first = anchors().find(|anchor| anchor.number == 0)?;
        let newest = anchors().max_by_key(|anchor| anchor.number)?;
        let end = transfers.iter().find(|transfer| transfer.id == name.end_id());
        let ending = end
            .map(|end| if end.user_data_32 == Ending::Released as u32 { Ending::Released } else { Ending::Completed });
        let of_code = |code: Code| transfers.iter().filter(move |transfer| transfer.code == code as u16);
        let parts = of_code(Code::Reserve).chain(of_code(Code::Retake));
        let parts = parts.filter(|transfer| has(transfer.flags, TransferFlags::Pending));
        let mut held = newest_parts(parts.filter_map(|transfer| Held::read(transfer, &name_of)).collect());
        for report in of_code(Code::Used) {
            let used = u64::try_from(report.amount).unwrap_or(u64::MAX);
            if let Some(held) = held.iter_mut().find(|held| used_key(held.account) == report.user_data_64) {
                held.used = held.used.max(used);
            }
        }
        held.sort_by(|a, b| a.name.cmp(&b.name));
        let is_extended = anchors().any(|anchor| anchor.decision == Decision::Extended);
        Some(LeaseRecord { first, newest, held, ending, is_extended })
    }

    pub(crate) fn reserved_at(&self) -> UnixMs {
        to_ms(self.first.made_at_ns)
    }

    /// The limits that are not enforced and would have denied it, ordered by key.
    pub(crate) fn would_deny(&self, own: &NamespaceName) -> Vec<LimitKey> {
        let above = self.held.iter().filter(|held| held.would_deny);
        let mut keys: Vec<LimitKey> = above.filter_map(|held| Some(held.name.as_ref()?.seen_from(own))).collect();
        keys.sort_unstable();
        keys
    }

    /// Whether any reservation has expired. An extended lease has expired once it cannot be extended any more.
    pub(crate) fn has_expired(&self, now_ns: u64) -> bool {
        if self.is_extended {
            return !self.is_alive(now_ns);
        }
        self.held.iter().any(|held| held.ends_at_ns <= now_ns)
    }

    /// Whether it can be extended: all its concurrency reservations are alive, and of those of a lease with neither
    /// concurrency nor credit the last one is. Its credit is judged where it is kept.
    pub(crate) fn is_alive(&self, now_ns: u64) -> bool {
        if self.first.decision != Decision::Reserved || self.ending.is_some() {
            return false;
        }
        let mut slots = self.slots().peekable();
        if slots.peek().is_some() {
            slots.all(|held| held.ends_at_ns > now_ns)
        } else {
            self.newest.has_credit || self.held.iter().any(|held| held.ends_at_ns > now_ns)
        }
    }

    fn slots(&self) -> impl Iterator<Item = &Held> {
        self.held.iter().filter(|held| held.holding == Holding::Concurrency)
    }

    /// When the first of its concurrency reservations ends; `None` without any.
    pub(crate) fn ends_at(&self) -> Option<UnixMs> {
        self.slots().map(|held| held.ends_at_ns).min().map(to_ms)
    }

    /// Whether a reservation reached the ledger after the period that it was sent for, and must be taken again.
    pub(crate) fn is_late(&self) -> bool {
        self.first.decision == Decision::Reserved && self.ending.is_none() && self.held.iter().any(Held::is_late)
    }

    /// The answer to a reserve with this body.
    pub(crate) fn retry(&self, body: &ReserveBody, now_ns: u64) -> Retry {
        if self.first.decision == Decision::Marked {
            Retry::Ended
        } else if self.first.by_gateway && !body.by_gateway {
            Retry::OwnedByGateway
        } else if !self.first.body().is_same(body) {
            Retry::OtherRequirements
        } else if self.ending.is_some() || self.has_expired(now_ns) {
            Retry::Ended
        } else {
            Retry::Holds { reserved_at: self.reserved_at() }
        }
    }

    pub(crate) fn state(&self, now_ns: u64) -> LeaseState {
        match self.ending {
            _ if self.first.decision == Decision::Marked => LeaseState::Completed,
            Some(Ending::Completed) => LeaseState::Completed,
            Some(Ending::Released) => LeaseState::Denied,
            None if self.has_expired(now_ns) => LeaseState::Expired,
            None => LeaseState::Live,
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
            earlier: 0,
            used: 0,
            holding,
            ends_at_ns: match transfer.user_data_32 & EXACT_END {
                0 => end_ns(transfer.timestamp, transfer.timeout),
                _ => transfer.user_data_64,
            },
            made_at_ns: transfer.timestamp,
            would_deny: transfer.user_data_32 & WOULD_DENY != 0,
            version: PartVersion::from_bits(transfer.user_data_32),
        })
    }

    /// The transfer that ends it early.
    pub(crate) fn void(&self, lease: &LeaseName) -> Transfer {
        Transfer {
            id: lease.void_id(self.name.as_ref(), self.account, self.version),
            pending_id: self.transfer,
            user_data_128: lease.id,
            ledger: LEDGER,
            code: if self.version.round == 0 { Code::Reserve } else { Code::Retake } as u16,
            flags: TransferFlags::VoidPendingTransfer,
            ..Transfer::default()
        }
    }

    /// All that is reserved on its limit.
    pub(crate) fn total(&self) -> u64 {
        self.earlier.saturating_add(self.amount)
    }

    /// Whether its period ended before the ledger made it.
    pub(crate) fn is_late(&self) -> bool {
        self.holding == Holding::Calendar && self.ends_at_ns <= self.made_at_ns && self.version.round < ROUNDS_MAX
    }
}

/// The newest reservation on each account, with the sum of the earlier ones. A reservation that was taken again in a
/// later period replaces the one before; one of a concurrency limit replaces all before.
fn newest_parts(mut parts: Vec<Held>) -> Vec<Held> {
    parts.sort_by_key(|held| (held.account, std::cmp::Reverse(held.version)));
    parts.dedup_by_key(|held| (held.account, held.version.extension));
    let mut newest: Vec<Held> = Vec::with_capacity(parts.len());
    for part in parts {
        match newest.last_mut().filter(|last| last.account == part.account) {
            Some(last) if last.holding == Holding::Concurrency => {}
            Some(last) => last.earlier = last.earlier.saturating_add(part.amount),
            None => newest.push(part),
        }
    }
    newest
}

pub(crate) fn end_ns(made_at_ns: u64, timeout_seconds: u32) -> u64 {
    made_at_ns.saturating_add(u64::from(timeout_seconds).saturating_mul(SECOND_NS))
}

pub(crate) fn to_ms(ns: u64) -> UnixMs {
    UnixMs::new(ns / 1_000_000)
}

#[cfg(test)]
mod tests;
