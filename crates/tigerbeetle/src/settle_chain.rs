//! The chain that ends a lease. Retries leave out parts that failed.
//!
//! The chain begins with the end transfer, whose id exists once. So a complete happens as a whole or not at all, and
//! the first one wins.

use earmark_admission::{Amount, LimitOverage};
use earmark_core::{LimitKey, Overage};
use tigerbeetle::{CreateTransferResult, CreateTransferStatus as Status, Transfer, TransferFlags};

use crate::lease_record::{Held, LeaseRecord};
use crate::retake_chain::seconds_until;
use crate::schema::{Code, CommonAccounts, Ending, Holding, LEDGER, LeaseName, LimitAccounts, LimitName, link};
use crate::status::{describe, exists, has_ended};

/// A lease being settled.
#[derive(Clone, Debug)]
pub(crate) struct Settling {
    name: LeaseName,
    /// The number of the newest anchor, which the end voids.
    newest: u32,
    ending: Ending,
    parts: Vec<Part>,
    /// Keys in the actuals that the lease did not reserve.
    pub(crate) ignored: Vec<LimitKey>,
    /// Keys in the actuals below the usage that extensions reported.
    pub(crate) below_used: Vec<LimitKey>,
}

/// A reservation, and what to do with it.
#[derive(Clone, Debug)]
struct Part {
    held: Held,
    action: SettleAction,
}

/// The action on one reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SettleAction {
    /// Keep it, or it has expired.
    Nothing,
    Void,
    /// Void it and reserve the actual amount in the same chain.
    Shrink {
        actual: u64,
    },
    /// Reserve the excess in addition.
    Grow {
        excess: u64,
    },
    /// The excess did not fit; record it as debt.
    Debt {
        excess: u64,
    },
    /// The excess did not fit and is not recorded.
    Dropped {
        excess: u64,
    },
}

/// Role of a transfer in the chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    End,
    Void(usize),
    Rereserve(usize),
    Debt(usize),
}

/// A chain and the role of each transfer.
#[derive(Clone, Debug)]
pub(crate) struct SettleChain {
    pub(crate) transfers: Vec<Transfer>,
    roles: Vec<Role>,
}

/// Outcome of a settle chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SettleResult {
    Done,
    /// The lease had ended earlier.
    Before,
    /// An extension came first; read the lease again.
    Changed,
    /// A part failed; send the chain again without it. `now_ns` is the ledger's time.
    Again {
        now_ns: u64,
    },
    /// An unexpected status.
    Failed(String),
}

/// Usage beyond the reservations, by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Overages {
    pub(crate) reserved: u64,
    pub(crate) debt: u64,
    pub(crate) dropped: u64,
}

impl Settling {
    /// Settles a lease with its actual usage.
    pub(crate) fn complete(name: LeaseName, record: &LeaseRecord, actuals: &[Amount]) -> Settling {
        let accounts: Vec<u128> =
            actuals.iter().map(|actual| LimitAccounts::of(&LimitName::of(&name.namespace, actual)).limit).collect();
        let parts = record.held.iter().map(|held| {
            let actual = accounts.iter().position(|account| *account == held.account);
            let actual = actual.and_then(|index| actuals.get(index));
            let action = SettleAction::of(held, actual.map(|actual| actual.amount));
            // The registry may have lost the limit; the caller names it.
            let limit = held.name.clone().or_else(|| actual.map(|actual| LimitName::of(&name.namespace, actual)));
            Part { held: Held { name: limit, ..held.clone() }, action }
        });
        let parts: Vec<Part> = parts.collect();
        let is_held = |account: &u128| parts.iter().any(|part| part.held.account == *account);
        let ignored = actuals.iter().zip(&accounts).filter(|(_, account)| !is_held(account));
        let ignored = ignored.map(|(actual, _)| actual.key.clone()).collect();
        let is_below = |(actual, account): &(&Amount, &u128)| {
            parts.iter().any(|part| part.held.account == **account && part.held.used > actual.amount)
        };
        let below_used = actuals.iter().zip(&accounts).filter(is_below).map(|(actual, _)| actual.key.clone()).collect();
        let newest = record.newest.number;
        Settling { name, newest, ending: Ending::Completed, parts, ignored, below_used }
    }

    /// Voids everything that a lease holds.
    pub(crate) fn release(name: LeaseName, record: &LeaseRecord) -> Settling {
        let parts = record.held.iter().map(|held| Part { held: held.clone(), action: SettleAction::Void });
        Settling {
            name,
            newest: record.newest.number,
            ending: Ending::Released,
            parts: parts.collect(),
            ignored: Vec::new(),
            below_used: Vec::new(),
        }
    }

    /// The chain to send at this ledger time. `period_end` is the end of the period of a limit that contains a time;
    /// `None` without a calendar.
    pub(crate) fn chain(
        &self,
        common: &CommonAccounts,
        now_ns: u64,
        period_end: impl Fn(&LimitName, u64) -> Option<u64>,
    ) -> SettleChain {
        let mut transfers = vec![self.name.end(self.newest, self.ending)];
        let mut roles = vec![Role::End];
        for (index, Part { held, action }) in self.parts.iter().enumerate() {
            let has_ended = held.ends_at_ns <= now_ns;
            match *action {
                SettleAction::Nothing | SettleAction::Dropped { .. } => {}
                SettleAction::Void | SettleAction::Shrink { .. } if has_ended => {}
                SettleAction::Void => {
                    transfers.push(held.void(&self.name));
                    roles.push(Role::Void(index));
                }
                SettleAction::Shrink { actual } => {
                    let timeout = seconds_until(held.ends_at_ns, now_ns);
                    transfers.extend([held.void(&self.name), self.rereserve(common, held, actual, timeout)]);
                    roles.extend([Role::Void(index), Role::Rereserve(index)]);
                }
                SettleAction::Grow { excess } => {
                    // Overage of an earlier period counts in the current one.
                    let current = held.name.as_ref().filter(|_| has_ended && held.holding == Holding::Calendar);
                    let ends_at_ns = current.and_then(|limit| period_end(limit, now_ns)).unwrap_or(held.ends_at_ns);
                    transfers.push(self.rereserve(common, held, excess, seconds_until(ends_at_ns, now_ns)));
                    roles.push(Role::Rereserve(index));
                }
                SettleAction::Debt { excess } => {
                    transfers.extend(self.debt(common, held, excess));
                    roles.push(Role::Debt(index));
                }
            }
        }
        link(&mut transfers);
        SettleChain { transfers, roles }
    }

    /// The new reservation expires with the old one, rounded up to whole seconds. Overage on a rolling reservation that
    /// has expired is held for one second.
    fn rereserve(&self, common: &CommonAccounts, held: &Held, amount: u64, timeout: u32) -> Transfer {
        Transfer {
            id: held.name.as_ref().map_or(0, |limit| self.name.rereserve_id(limit)),
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
        let limit = held.name.as_ref()?;
        Some(Transfer {
            id: self.name.debt_id(limit),
            debit_account_id: LimitAccounts::of(limit).debt,
            credit_account_id: common.operator,
            amount: u128::from(excess),
            user_data_128: self.name.id,
            user_data_32: held.holding as u32,
            ledger: LEDGER,
            code: Code::Debt as u16,
            ..Transfer::default()
        })
    }

    /// Interprets the results of a chain. `overage` is the rule of a limit; `None` if it does not exist.
    pub(crate) fn read(
        &mut self,
        chain: &SettleChain,
        results: &[CreateTransferResult],
        overage: impl Fn(&LimitName) -> Option<Overage>,
    ) -> SettleResult {
        if results.len() != chain.roles.len() {
            let (found, expected) = (results.len(), chain.roles.len());
            return SettleResult::Failed(format!("{found} results came for {expected} transfers"));
        }
        let decisive = results.iter().zip(&chain.roles).find(|(r, _)| r.status != Status::LinkedEventFailed);
        let Some((result, role)) = decisive else {
            return SettleResult::Failed("TigerBeetle rejected a chain without a reason".into());
        };
        // `Exists` carries an earlier timestamp than all other results.
        let now_ns = results.iter().map(|result| result.timestamp).max().unwrap_or_default();
        match (*role, result.status) {
            (Role::End, Status::Created) => return SettleResult::Done,
            (Role::End, status) if exists(status) => return SettleResult::Before,
            (Role::End, status) if has_ended(status) => return SettleResult::Changed,
            (Role::Void(index), status) if has_ended(status) || exists(status) => {
                self.change_action(index, |_| SettleAction::Nothing);
            }
            (Role::Rereserve(index), Status::ExceedsCredits | Status::IdAlreadyFailed) => {
                let kept = self.parts.get(index).and_then(|part| overage(part.held.name.as_ref()?));
                self.change_action(index, |action| action.exceeded(kept));
            }
            (Role::Rereserve(index) | Role::Debt(index), status) if exists(status) => {
                self.change_action(index, |_| SettleAction::Nothing);
            }
            (Role::End | Role::Void(_) | Role::Rereserve(_) | Role::Debt(_), status) => {
                return SettleResult::Failed(describe(status));
            }
        }
        SettleResult::Again { now_ns }
    }

    pub(crate) fn is_extended(&self) -> bool {
        self.newest > 0
    }

    /// The limits with usage above the reservation.
    pub(crate) fn growing(&self) -> impl Iterator<Item = &LimitName> {
        let grows = |part: &&Part| matches!(part.action, SettleAction::Grow { .. });
        self.parts.iter().filter(grows).filter_map(|part| part.held.name.as_ref())
    }

    fn change_action(&mut self, index: usize, change: impl FnOnce(SettleAction) -> SettleAction) {
        if let Some(part) = self.parts.get_mut(index) {
            part.action = change(part.action);
        }
    }

    /// Sums of the excess, valid once the chain succeeded.
    pub(crate) fn overages(&self) -> Overages {
        let mut sums = Overages::default();
        for part in &self.parts {
            match part.action {
                SettleAction::Nothing | SettleAction::Void | SettleAction::Shrink { .. } => {}
                SettleAction::Grow { excess } => sums.reserved = sums.reserved.saturating_add(excess),
                SettleAction::Debt { excess } => sums.debt = sums.debt.saturating_add(excess),
                SettleAction::Dropped { excess } => sums.dropped = sums.dropped.saturating_add(excess),
            }
        }
        sums
    }
}

impl Settling {
    /// The excess by limit, ordered by key, valid once the chain succeeded.
    pub(crate) fn limit_overages(&self) -> Vec<LimitOverage> {
        let excess = |part: &Part| {
            let (amount, is_debt) = match part.action {
                SettleAction::Nothing | SettleAction::Void | SettleAction::Shrink { .. } => return None,
                SettleAction::Grow { excess } | SettleAction::Dropped { excess } => (excess, false),
                SettleAction::Debt { excess } => (excess, true),
            };
            Some(LimitOverage { key: part.held.name.as_ref()?.seen_from(&self.name.namespace), amount, is_debt })
        };
        let mut overages: Vec<LimitOverage> = self.parts.iter().filter_map(excess).collect();
        overages.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        overages
    }
}

impl SettleAction {
    fn of(held: &Held, actual: Option<u64>) -> SettleAction {
        if held.holding == Holding::Concurrency {
            return SettleAction::Void;
        }
        let actual = actual.unwrap_or_else(|| held.total()).max(held.used);
        match actual.checked_sub(held.total()) {
            Some(0) => SettleAction::Nothing,
            Some(excess) => SettleAction::Grow { excess },
            // Earlier reservations are settled, so only the newest one shrinks.
            None => match actual.saturating_sub(held.earlier) {
                0 => SettleAction::Void,
                actual => SettleAction::Shrink { actual },
            },
        }
    }

    /// The action after a refusal for lack of capacity. A shrink always fits unless an earlier attempt spent its id;
    /// then the reservation stays as it is, which counts too much rather than too little.
    fn exceeded(self, overage: Option<Overage>) -> SettleAction {
        match (self, overage) {
            (SettleAction::Grow { excess }, Some(Overage::Debt)) => SettleAction::Debt { excess },
            (SettleAction::Grow { excess }, Some(Overage::Deny) | None) => SettleAction::Dropped { excess },
            (
                SettleAction::Nothing
                | SettleAction::Void
                | SettleAction::Shrink { .. }
                | SettleAction::Debt { .. }
                | SettleAction::Dropped { .. },
                _,
            ) => SettleAction::Nothing,
        }
    }
}

#[cfg(test)]
mod tests;
