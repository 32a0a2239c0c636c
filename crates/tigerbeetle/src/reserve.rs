//! A reserve: one linked chain, and what the ledger says to it.

use earmark_core::LimitKey;
use tigerbeetle::{CreateTransferResult, CreateTransferStatus as Status, Transfer, TransferFlags};

use crate::chart::{Code, CommonAccounts, Holding, LEDGER, LeaseName, Origin, link};
use crate::lease::{Held, LeaseRecord, end_ns};
use crate::status::{describe, exists};

/// What one lease is to take, in order of key.
#[derive(Clone, Debug)]
pub(crate) struct ReservePlan {
    pub(crate) name: LeaseName,
    pub(crate) fingerprint: u64,
    pub(crate) taken: Vec<Taken>,
}

/// What it is to take of one limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) key: LimitKey,
    pub(crate) account: u128,
    pub(crate) amount: u64,
    pub(crate) holding: Holding,
    pub(crate) hold_seconds: u32,
}

/// What the ledger said to a reserve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ReserveRead {
    /// All of it was taken.
    Created(LeaseRecord),
    /// The limit at this place has too little, now or at the first attempt.
    Denied { place: usize },
    /// The lease is there already; what became of it has to be looked up. The time is the ledger's, if it told.
    Known { now_ns: Option<u64> },
    /// Nothing that should be.
    Failed(String),
}

impl ReservePlan {
    /// The chain: the anchor, then what is to be taken of each limit.
    pub(crate) fn chain(&self, common: &CommonAccounts) -> Vec<Transfer> {
        let mut chain = Vec::with_capacity(self.taken.len().saturating_add(1));
        chain.push(self.name.anchor(common, Origin::Reserved, self.fingerprint));
        chain.extend(self.taken.iter().map(|taken| Transfer {
            id: self.name.reserve_id(&taken.key),
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

    /// What the results of that chain mean.
    pub(crate) fn read(&self, chain: &[Transfer], results: &[CreateTransferResult]) -> ReserveRead {
        if results.len() != chain.len() {
            return ReserveRead::Failed(format!(
                "{} results came for {} transfers",
                results.len(),
                chain.len()
            ));
        }
        let told = results.iter().position(|result| result.status != Status::LinkedEventFailed);
        let Some((place, result)) = told.and_then(|place| Some((place, results.get(place)?))) else {
            return ReserveRead::Failed("a chain failed and no transfer of it says why".into());
        };
        match result.status {
            Status::Created if place == 0 && results.iter().all(|r| r.status == Status::Created) => {
                ReserveRead::Created(self.record(chain, results))
            }
            status if exists(status) => {
                // Only what exists unchanged has its own time; all others have the time at which they were judged.
                let now = results.iter().find(|result| result.status != Status::Exists);
                ReserveRead::Known { now_ns: now.map(|result| result.timestamp) }
            }
            Status::ExceedsCredits | Status::IdAlreadyFailed if place > 0 => {
                ReserveRead::Denied { place: place.saturating_sub(1) }
            }
            status => ReserveRead::Failed(describe(status)),
        }
    }

    fn record(&self, chain: &[Transfer], results: &[CreateTransferResult]) -> LeaseRecord {
        let made_at = |place: usize| results.get(place).map_or(0, |result| result.timestamp);
        let held =
            self.taken.iter().zip(chain.iter().zip(results).skip(1)).map(|(taken, (transfer, result))| {
                Held {
                    account: taken.account,
                    key: Some(taken.key.clone()),
                    transfer: transfer.id,
                    amount: taken.amount,
                    holding: taken.holding,
                    ends_at_ns: end_ns(result.timestamp, taken.hold_seconds),
                }
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
