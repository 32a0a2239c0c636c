//! The end of a lease: one linked chain, tried again without what turned out not to be possible.
//!
//! The chain begins with the end of the lease, which exists once. So a complete happens as a whole or not at
//! all, whoever repeats it and however often, and what came first stands.

use earmark_admission::Amount;
use earmark_core::{LimitKey, Overage};
use tigerbeetle::{CreateTransferResult, CreateTransferStatus as Status, Transfer, TransferFlags};

use crate::chart::{
    Code, CommonAccounts, Ending, Holding, LEDGER, LeaseName, LimitAccounts, SECOND_NS, link,
};
use crate::lease::{Held, LeaseRecord};
use crate::status::{describe, exists, has_ended};

/// How long overage is held when what it exceeds has ended already.
const LATE_OVERAGE_SECONDS: u32 = 1;

/// The end of one lease, on its way.
#[derive(Clone, Debug)]
pub(crate) struct Settling {
    name: LeaseName,
    ending: Ending,
    parts: Vec<Part>,
    /// What was said about keys that the lease does not have.
    pub(crate) ignored: Vec<LimitKey>,
}

#[derive(Clone, Debug)]
struct Part {
    held: Held,
    wish: Wish,
}

/// What is to become of a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wish {
    /// It stays as it is, or has ended.
    Nothing,
    /// It ends.
    Void,
    /// It shrinks: what was used is taken again in the same step.
    Shrink { actual: u64 },
    /// So much more was used than reserved.
    Grow { excess: u64 },
    /// So much more was used, and did not fit.
    Debt { excess: u64 },
    /// So much more was used, did not fit, and is kept nowhere.
    Dropped { excess: u64 },
}

/// Which transfer of a chain it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    End,
    Void(usize),
    Rereserve(usize),
    Debt(usize),
}

/// A chain as it is sent, and what each of its transfers is for.
#[derive(Clone, Debug)]
pub(crate) struct SettleChain {
    pub(crate) transfers: Vec<Transfer>,
    roles: Vec<Role>,
}

/// What the ledger said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SettleRead {
    /// It happened.
    Done,
    /// The lease had ended before.
    Before,
    /// Something turned out not to be possible; the rest is to be tried again. The time is the ledger's.
    Again { now_ns: u64 },
    /// Nothing that should be.
    Failed(String),
}

/// Usage beyond what was reserved, and what became of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Overages {
    pub(crate) reserved: u64,
    pub(crate) debt: u64,
    pub(crate) dropped: u64,
}

impl Settling {
    /// A lease says what it used.
    pub(crate) fn complete(name: LeaseName, record: &LeaseRecord, actuals: &[Amount]) -> Settling {
        let accounts: Vec<u128> =
            actuals.iter().map(|actual| LimitAccounts::of(&name.namespace, &actual.key).limit).collect();
        let parts = record.held.iter().map(|held| {
            let actual = accounts.iter().position(|account| *account == held.account);
            let actual = actual.and_then(|place| actuals.get(place));
            let wish = Wish::of(held, actual.map(|actual| actual.amount));
            // Who says what was used says the key too, which the registry may no longer know.
            let key = held.key.clone().or_else(|| actual.map(|actual| actual.key.clone()));
            Part { held: Held { key, ..held.clone() }, wish }
        });
        let parts: Vec<Part> = parts.collect();
        let is_held = |account: &u128| parts.iter().any(|part| part.held.account == *account);
        let ignored = actuals.iter().zip(&accounts).filter(|(_, account)| !is_held(account));
        let ignored = ignored.map(|(actual, _)| actual.key.clone()).collect();
        Settling { name, ending: Ending::Completed, parts, ignored }
    }

    /// A lease gives back all that it took.
    pub(crate) fn release(name: LeaseName, record: &LeaseRecord) -> Settling {
        let parts = record.held.iter().map(|held| Part { held: held.clone(), wish: Wish::Void });
        Settling { name, ending: Ending::Released, parts: parts.collect(), ignored: Vec::new() }
    }

    /// The chain, as of a time of the ledger.
    pub(crate) fn chain(&self, common: &CommonAccounts, now_ns: u64) -> SettleChain {
        let mut transfers = vec![self.name.end(common, self.ending)];
        let mut roles = vec![Role::End];
        for (place, Part { held, wish }) in self.parts.iter().enumerate() {
            let has_ended = held.ends_at_ns <= now_ns;
            match *wish {
                Wish::Nothing | Wish::Dropped { .. } => {}
                Wish::Void | Wish::Shrink { .. } if has_ended => {}
                Wish::Void => {
                    transfers.push(self.void(held));
                    roles.push(Role::Void(place));
                }
                Wish::Shrink { actual } => {
                    transfers.extend([self.void(held), self.rereserve(common, held, actual, now_ns)]);
                    roles.extend([Role::Void(place), Role::Rereserve(place)]);
                }
                Wish::Grow { excess } => {
                    transfers.push(self.rereserve(common, held, excess, now_ns));
                    roles.push(Role::Rereserve(place));
                }
                Wish::Debt { excess } => {
                    transfers.extend(self.debt(common, held, excess));
                    roles.push(Role::Debt(place));
                }
            }
        }
        link(&mut transfers);
        SettleChain { transfers, roles }
    }

    fn void(&self, held: &Held) -> Transfer {
        Transfer {
            id: self.name.void_id(held.key.as_ref(), held.account),
            pending_id: held.transfer,
            user_data_128: self.name.id,
            ledger: LEDGER,
            code: Code::Reserve as u16,
            flags: TransferFlags::VoidPendingTransfer,
            ..Transfer::default()
        }
    }

    /// What is taken again ends when the reservation would have, rounded up to seconds.
    fn rereserve(&self, common: &CommonAccounts, held: &Held, amount: u64, now_ns: u64) -> Transfer {
        let left = held.ends_at_ns.saturating_sub(now_ns).div_ceil(SECOND_NS);
        let timeout = u32::try_from(left).unwrap_or(u32::MAX).max(LATE_OVERAGE_SECONDS);
        Transfer {
            id: held.key.as_ref().map_or(0, |key| self.name.rereserve_id(key)),
            debit_account_id: held.account,
            credit_account_id: common.operator,
            amount: u128::from(amount),
            user_data_128: self.name.id,
            user_data_32: held.holding as u32,
            timeout,
            ledger: LEDGER,
            code: Code::Rereserve as u16,
            flags: TransferFlags::Pending,
            ..Transfer::default()
        }
    }

    fn debt(&self, common: &CommonAccounts, held: &Held, excess: u64) -> Option<Transfer> {
        let key = held.key.as_ref()?;
        Some(Transfer {
            id: self.name.debt_id(key),
            debit_account_id: LimitAccounts::of(&self.name.namespace, key).debt,
            credit_account_id: common.operator,
            amount: u128::from(excess),
            user_data_128: self.name.id,
            user_data_32: held.holding as u32,
            ledger: LEDGER,
            code: Code::Debt as u16,
            ..Transfer::default()
        })
    }

    /// Takes the results of a chain. `overage` says what becomes of what does not fit, for the limits that there
    /// are.
    pub(crate) fn read(
        &mut self,
        chain: &SettleChain,
        results: &[CreateTransferResult],
        overage: impl Fn(&LimitKey) -> Option<Overage>,
    ) -> SettleRead {
        if results.len() != chain.roles.len() {
            let (found, expected) = (results.len(), chain.roles.len());
            return SettleRead::Failed(format!("{found} results came for {expected} transfers"));
        }
        let told = results.iter().zip(&chain.roles).find(|(r, _)| r.status != Status::LinkedEventFailed);
        let Some((result, role)) = told else {
            return SettleRead::Failed("a chain failed and no transfer of it says why".into());
        };
        // What exists has the time at which it was made, which is earlier than that of all others.
        let now_ns = results.iter().map(|result| result.timestamp).max().unwrap_or_default();
        match (*role, result.status) {
            (Role::End, Status::Created) => return SettleRead::Done,
            (Role::End, status) if exists(status) => return SettleRead::Before,
            (Role::Void(place), status) if has_ended(status) || exists(status) => {
                self.wish(place, |_| Wish::Nothing);
            }
            (Role::Rereserve(place), Status::ExceedsCredits | Status::IdAlreadyFailed) => {
                let kept = self.parts.get(place).and_then(|part| overage(part.held.key.as_ref()?));
                self.wish(place, |wish| wish.exceeded(kept));
            }
            (Role::Rereserve(place) | Role::Debt(place), status) if exists(status) => {
                self.wish(place, |_| Wish::Nothing);
            }
            (Role::End | Role::Void(_) | Role::Rereserve(_) | Role::Debt(_), status) => {
                return SettleRead::Failed(describe(status));
            }
        }
        SettleRead::Again { now_ns }
    }

    /// The limits of which more was used than reserved: what they have decides what becomes of it.
    pub(crate) fn growing(&self) -> impl Iterator<Item = &LimitKey> {
        let grows = |part: &&Part| matches!(part.wish, Wish::Grow { .. });
        self.parts.iter().filter(grows).filter_map(|part| part.held.key.as_ref())
    }

    fn wish(&mut self, place: usize, change: impl FnOnce(Wish) -> Wish) {
        if let Some(part) = self.parts.get_mut(place) {
            part.wish = change(part.wish);
        }
    }

    /// What became of usage beyond what was reserved, once it is done.
    pub(crate) fn overages(&self) -> Overages {
        let mut sums = Overages::default();
        for part in &self.parts {
            match part.wish {
                Wish::Nothing | Wish::Void | Wish::Shrink { .. } => {}
                Wish::Grow { excess } => sums.reserved = sums.reserved.saturating_add(excess),
                Wish::Debt { excess } => sums.debt = sums.debt.saturating_add(excess),
                Wish::Dropped { excess } => sums.dropped = sums.dropped.saturating_add(excess),
            }
        }
        sums
    }
}

impl Wish {
    fn of(held: &Held, actual: Option<u64>) -> Wish {
        match (held.holding, actual) {
            (Holding::Concurrency, _) | (Holding::Rolling, Some(0)) => Wish::Void,
            (Holding::Rolling, None) => Wish::Nothing,
            (Holding::Rolling, Some(actual)) => match actual.checked_sub(held.amount) {
                Some(0) => Wish::Nothing,
                Some(excess) => Wish::Grow { excess },
                None => Wish::Shrink { actual },
            },
        }
    }

    /// It does not fit. What was to shrink always fits, unless an attempt of this complete said otherwise before:
    /// then it stays as it is, which is too much rather than too little.
    fn exceeded(self, overage: Option<Overage>) -> Wish {
        match (self, overage) {
            (Wish::Grow { excess }, Some(Overage::Debt)) => Wish::Debt { excess },
            (Wish::Grow { excess }, Some(Overage::Deny) | None) => Wish::Dropped { excess },
            (
                Wish::Nothing | Wish::Void | Wish::Shrink { .. } | Wish::Debt { .. } | Wish::Dropped { .. },
                _,
            ) => Wish::Nothing,
        }
    }
}

#[cfg(test)]
mod tests;
