//! The chain of a reserve, and its results.

use tigerbeetle::{CreateTransferResult, CreateTransferStatus as Status, Transfer, TransferFlags};

use crate::lease_record::{Held, LeaseRecord, end_ns};
use crate::schema::{
    Anchor, Code, CommonAccounts, EXACT_END, Holding, LEDGER, LeaseName, LimitName, PartVersion, ReserveBody,
    WOULD_DENY, link,
};
use crate::status::{describe, exists};

/// The reservations of one lease, sorted by name.
#[derive(Clone, Debug)]
pub(crate) struct ReservePlan {
    pub(crate) name: LeaseName,
    pub(crate) body: ReserveBody,
    /// Whether the lease has credit limits, which the ledger does not hold.
    pub(crate) has_credit: bool,
    pub(crate) taken: Vec<Taken>,
}

/// The reservation on one limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Taken {
    /// `None` if the registry no longer has the limit.
    pub(crate) limit: Option<LimitName>,
    pub(crate) account: u128,
    pub(crate) amount: u64,
    pub(crate) holding: Holding,
    pub(crate) hold_seconds: u32,
    /// The end by the ledger's clock, such as that of a period; `None` if it ends with its transfer.
    pub(crate) ends_at_ns: Option<u64>,
    /// Whether the limit is not enforced and would have denied it.
    pub(crate) would_deny: bool,
    pub(crate) version: PartVersion,
}

impl Taken {
    /// The pending transfer. A timeout to a given end is rounded up, so it expires less than a second after its end.
    pub(crate) fn transfer(&self, name: &LeaseName, common: &CommonAccounts, fingerprint: u64) -> Transfer {
        let would_deny = if self.would_deny { WOULD_DENY } else { 0 };
        let exact_end = if self.ends_at_ns.is_some() { EXACT_END } else { 0 };
        let code = if self.version.round == 0 { Code::Reserve } else { Code::Retake };
        Transfer {
            id: self.id(name),
            debit_account_id: self.account,
            credit_account_id: common.operator,
            amount: u128::from(self.amount),
            user_data_128: name.id,
            user_data_64: self.ends_at_ns.unwrap_or(fingerprint),
            user_data_32: self.holding as u32 | would_deny | exact_end | self.version.bits(),
            timeout: self.hold_seconds,
            ledger: LEDGER,
            code: code as u16,
            flags: TransferFlags::Pending,
            ..Transfer::default()
        }
    }

    fn id(&self, name: &LeaseName) -> u128 {
        name.reserve_id(self.limit.as_ref(), self.account, self.version)
    }

    /// The reservation, once the ledger has made it.
    pub(crate) fn held(&self, name: &LeaseName, made_at_ns: u64) -> Held {
        Held {
            account: self.account,
            name: self.limit.clone(),
            transfer: self.id(name),
            amount: self.amount,
            earlier: 0,
            used: 0,
            holding: self.holding,
            ends_at_ns: self.ends_at_ns.unwrap_or_else(|| end_ns(made_at_ns, self.hold_seconds)),
            made_at_ns,
            would_deny: self.would_deny,
            version: self.version,
        }
    }
}

/// Outcome of a reserve chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ReserveResult {
    Created(LeaseRecord),
    /// The limit at this index has too little, now or at the first attempt.
    Denied {
        index: usize,
    },
    /// The lease exists and must be looked up. `now_ns` is the ledger's time, if known.
    Known {
        now_ns: Option<u64>,
    },
    /// An unexpected status.
    Failed(String),
}

impl ReservePlan {
    /// The anchor, then one pending transfer per limit.
    pub(crate) fn chain(&self, common: &CommonAccounts) -> Vec<Transfer> {
        let mut chain = Vec::with_capacity(self.taken.len().saturating_add(1));
        chain.push(self.name.anchor(common, &Anchor::reserved(&self.body, self.has_credit)));
        chain.extend(self.taken.iter().map(|taken| taken.transfer(&self.name, common, self.body.fingerprint)));
        link(&mut chain);
        chain
    }

    pub(crate) fn read(&self, chain: &[Transfer], results: &[CreateTransferResult]) -> ReserveResult {
        if results.len() != chain.len() {
            return ReserveResult::Failed(format!("{} results came for {} transfers", results.len(), chain.len()));
        }
        let decisive = results.iter().position(|result| result.status != Status::LinkedEventFailed);
        let Some((index, result)) = decisive.and_then(|index| Some((index, results.get(index)?))) else {
            return ReserveResult::Failed("TigerBeetle rejected a chain without a reason".into());
        };
        match result.status {
            Status::Created if index == 0 && results.iter().all(|r| r.status == Status::Created) => {
                ReserveResult::Created(self.record(results))
            }
            status if exists(status) => {
                // `Exists` carries the time of the original transfer; other results carry the current time.
                let now = results.iter().find(|result| result.status != Status::Exists);
                ReserveResult::Known { now_ns: now.map(|result| result.timestamp) }
            }
            Status::ExceedsCredits | Status::IdAlreadyFailed if index > 0 => {
                ReserveResult::Denied { index: index.saturating_sub(1) }
            }
            status => ReserveResult::Failed(describe(status)),
        }
    }

    fn record(&self, results: &[CreateTransferResult]) -> LeaseRecord {
        let made_at = |index: usize| results.get(index).map_or(0, |result| result.timestamp);
        let parts = self.taken.iter().zip(results.iter().skip(1));
        let held = parts.map(|(taken, result)| taken.held(&self.name, result.timestamp));
        let first = Anchor { made_at_ns: made_at(0), ..Anchor::reserved(&self.body, self.has_credit) };
        LeaseRecord { first, newest: first, held: held.collect(), ending: None, is_extended: false }
    }
}

#[cfg(test)]
mod tests;
