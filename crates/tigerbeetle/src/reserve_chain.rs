//! The chain of a reserve, and its results.

use tigerbeetle::{CreateTransferResult, CreateTransferStatus as Status, Transfer, TransferFlags};

use crate::lease_record::{Held, LeaseRecord, end_ns};
use crate::schema::{Code, CommonAccounts, Holding, LEDGER, LeaseName, LimitName, Origin, link};
use crate::status::{describe, exists};

/// The reservations of one lease, sorted by name.
#[derive(Clone, Debug)]
pub(crate) struct ReservePlan {
    pub(crate) name: LeaseName,
    pub(crate) fingerprint: u64,
    pub(crate) taken: Vec<Taken>,
}

/// The reservation on one limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) limit: LimitName,
    pub(crate) account: u128,
    pub(crate) amount: u64,
    pub(crate) holding: Holding,
    pub(crate) hold_seconds: u32,
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
        chain.push(self.name.anchor(common, Origin::Reserved, self.fingerprint));
        chain.extend(self.taken.iter().map(|taken| Transfer {
            id: self.name.reserve_id(&taken.limit),
            debit_account_id: taken.account,
            credit_account_id: common.operator,
            amount: u128::from(taken.amount),
            user_data_128: self.name.id,
            user_data_64: self.fingerprint,
            user_data_32: taken.holding as u32,
            timeout: taken.hold_seconds,
            ledger: LEDGER,
            code: Code::Reserve as u16,
            flags: TransferFlags::Pending,
            ..Transfer::default()
        }));
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
                ReserveResult::Created(self.record(chain, results))
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

    fn record(&self, chain: &[Transfer], results: &[CreateTransferResult]) -> LeaseRecord {
        let made_at = |index: usize| results.get(index).map_or(0, |result| result.timestamp);
        let held = self.taken.iter().zip(chain.iter().zip(results).skip(1)).map(|(taken, (transfer, result))| Held {
            account: taken.account,
            name: Some(taken.limit.clone()),
            transfer: transfer.id,
            amount: taken.amount,
            holding: taken.holding,
            ends_at_ns: end_ns(result.timestamp, taken.hold_seconds),
        });
        LeaseRecord {
            fingerprint: self.fingerprint,
            made_at_ns: made_at(0),
            origin: Origin::Reserved,
            held: held.collect(),
            ending: None,
        }
    }
}

#[cfg(test)]
mod tests;
