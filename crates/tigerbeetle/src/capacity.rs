//! Capacity changes, as numbered transfers.
//!
//! The ledger is the record of changes. Each change has the number of the last one plus 1, in `user_data_64` and in its
//! id. Concurrent changes of one limit therefore use the same id, and only one succeeds. A change computed from an
//! outdated capacity is applied once or never, however late it arrives.

use earmark_admission::EnforcedStatus;
use earmark_core::Label;
use tigerbeetle::{CreateTransferResult, CreateTransferStatus as Status, Transfer};

use crate::limit_table::{LimitTotals, TrackedLimit};
use crate::schema::{Code, CommonAccounts, LEDGER, LimitName, link};
use crate::status::{describe, exists};

/// The next action on a limit's capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The capacity in force equals the target.
    Nothing,
    /// Increase. A limit that is put again after deletion starts without debt.
    Up { by: u128, cleared: u128 },
    /// Decrease.
    Down { by: u128 },
    /// The limit must decrease, but too much of it is reserved.
    Wait,
}

/// Outcome of a capacity change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ChangeResult {
    Done,
    /// Another process used this change number first.
    Raced,
    /// This attempt failed earlier; the next one may succeed.
    Spent,
    /// The capacity to remove is no longer free.
    Exceeded,
    /// An unexpected status.
    Failed(String),
}

/// The action that leads from the capacity in force to the target.
pub(crate) fn step(totals: &LimitTotals, target: u128) -> Step {
    match (target.checked_sub(totals.in_force), totals.in_force.checked_sub(target)) {
        (Some(0), _) | (None, None) => Step::Nothing,
        (Some(by), _) => Step::Up { by, cleared: if totals.in_force == 0 { totals.debt } else { 0 } },
        (None, Some(by)) if by <= totals.available() => Step::Down { by },
        (None, Some(_)) => Step::Wait,
    }
}

pub(crate) fn enforced_status(totals: &LimitTotals, target: u128) -> EnforcedStatus {
    if totals.in_force > target {
        EnforcedStatus::Decreasing
    } else if target == 0 {
        EnforcedStatus::Absent
    } else {
        EnforcedStatus::InForce
    }
}

/// Counts a decrease that is possible now as done, because it is applied before anyone needs the capacity. A deletion
/// counts only once it is done.
pub(crate) fn as_if_done(totals: LimitTotals, target: u128) -> LimitTotals {
    match step(&totals, target) {
        Step::Down { .. } if target > 0 => LimitTotals { in_force: target, ..totals },
        Step::Nothing | Step::Up { .. } | Step::Down { .. } | Step::Wait => totals,
    }
}

/// The transfers of one attempt at one change; empty if nothing is to be done.
pub(crate) fn chain(
    tracked: &TrackedLimit,
    common: &CommonAccounts,
    step: Step,
    change: u64,
    attempt: u64,
) -> Vec<Transfer> {
    let TrackedLimit { name: LimitName { namespace, key }, accounts, .. } = tracked;
    let (from, to, amount, cleared) = match step {
        Step::Nothing | Step::Wait => return Vec::new(),
        Step::Up { by, cleared } => (common.operator, accounts.limit, by, cleared),
        Step::Down { by } => (accounts.limit, common.operator, by, 0),
    };
    let capacity = Transfer {
        id: Label::Capacity { namespace, key, change, attempt }.id().to_u128(),
        debit_account_id: from,
        credit_account_id: to,
        amount,
        user_data_64: change,
        ledger: LEDGER,
        code: Code::Capacity as u16,
        ..Transfer::default()
    };
    let mut chain = vec![capacity];
    if cleared > 0 {
        chain.push(Transfer {
            id: Label::Cleared { namespace, key, change, attempt }.id().to_u128(),
            debit_account_id: common.operator,
            credit_account_id: accounts.debt,
            amount: cleared,
            code: Code::Cleared as u16,
            ..capacity
        });
    }
    link(&mut chain);
    chain
}

pub(crate) fn read(results: &[CreateTransferResult]) -> ChangeResult {
    let decisive = results.iter().find(|result| result.status != Status::LinkedEventFailed);
    match decisive.map(|result| result.status) {
        Some(Status::Created) => ChangeResult::Done,
        Some(Status::IdAlreadyFailed) => ChangeResult::Spent,
        Some(Status::ExceedsCredits) => ChangeResult::Exceeded,
        Some(status) if exists(status) => ChangeResult::Raced,
        Some(status) => ChangeResult::Failed(describe(status)),
        None => ChangeResult::Failed("TigerBeetle rejected a capacity change without a reason".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit_table::{LimitTable, UNBOUNDED};
    use crate::schema::has;
    use tigerbeetle::TransferFlags;

    fn totals(in_force: u128, reserved: u64, debt: u128) -> LimitTotals {
        LimitTotals { in_force, reserved, debt }
    }

    #[test]
    fn what_to_do_follows_from_what_is_in_force_and_what_is_to_be() {
        for (totals, target, expected) in [
            (totals(10, 0, 0), 10, Step::Nothing),
            (totals(0, 0, 0), 10, Step::Up { by: 10, cleared: 0 }),
            (totals(0, 0, 7), 10, Step::Up { by: 10, cleared: 7 }),
            (totals(4, 4, 7), 10, Step::Up { by: 6, cleared: 0 }),
            (totals(10, 4, 0), 4, Step::Down { by: 6 }),
            (totals(10, 5, 0), 4, Step::Wait),
            (totals(10, 0, 3), 0, Step::Down { by: 10 }),
            (totals(0, 0, 3), 0, Step::Nothing),
            (totals(0, 0, 0), UNBOUNDED, Step::Up { by: UNBOUNDED, cleared: 0 }),
            (totals(UNBOUNDED, 5, 0), 4, Step::Wait),
            (totals(UNBOUNDED, 4, 0), 4, Step::Down { by: UNBOUNDED - 4 }),
        ] {
            assert_eq!(step(&totals, target), expected, "{totals:?} -> {target}");
        }
    }

    #[test]
    fn a_limit_stands_by_what_is_in_force() {
        assert_eq!(enforced_status(&totals(10, 0, 0), 10), EnforcedStatus::InForce);
        assert_eq!(enforced_status(&totals(10, 10, 0), 4), EnforcedStatus::Decreasing);
        assert_eq!(enforced_status(&totals(1, 1, 0), 0), EnforcedStatus::Decreasing);
        assert_eq!(enforced_status(&totals(0, 0, 0), 0), EnforcedStatus::Absent);
        assert_eq!(as_if_done(totals(10, 4, 0), 4).in_force, 4);
        assert_eq!(as_if_done(totals(10, 5, 0), 4).in_force, 10);
        assert_eq!(as_if_done(totals(10, 5, 0), 40).in_force, 10);
        assert_eq!(as_if_done(totals(10, 0, 0), 0).in_force, 10);
    }

    #[test]
    fn a_change_is_named_by_its_number_and_its_attempt() {
        let table = LimitTable::default();
        let tracked = table.limit(&LimitName::in_default("rpm"), None);
        let common = CommonAccounts::new();
        let up = chain(&tracked, &common, Step::Up { by: 10, cleared: 0 }, 3, 2);
        let [up] = up[..] else { panic!("{up:?}") };
        assert_eq!(up.id, earmark_core::id128("xfer:capacity:rpm:3:2").to_u128());
        assert_eq!((up.debit_account_id, up.credit_account_id), (common.operator, tracked.accounts.limit));
        assert_eq!((up.amount, up.user_data_64), (10, 3));
        let down = chain(&tracked, &common, Step::Down { by: 4 }, 3, 2);
        let [down] = down[..] else { panic!("{down:?}") };
        assert_eq!(down.id, up.id);
        assert_eq!((down.debit_account_id, down.credit_account_id), (tracked.accounts.limit, common.operator));
        assert!(chain(&tracked, &common, Step::Wait, 3, 2).is_empty());
    }

    #[test]
    fn a_limit_that_comes_back_owes_nothing_from_the_same_moment_on() {
        let table = LimitTable::default();
        let tracked = table.limit(&LimitName::in_default("rpm"), None);
        let chain = chain(&tracked, &CommonAccounts::new(), Step::Up { by: 10, cleared: 7 }, 3, 0);
        let [up, cleared] = chain[..] else { panic!("{chain:?}") };
        assert!(has(up.flags, TransferFlags::Linked));
        assert!(!has(cleared.flags, TransferFlags::Linked));
        assert_eq!((cleared.credit_account_id, cleared.amount), (tracked.accounts.debt, 7));
    }

    #[test]
    fn of_those_who_make_the_same_change_one_does() {
        use Status::*;
        let read = |statuses: &[Status]| {
            let result =
                |status: &Status| CreateTransferResult { timestamp: 1, status: *status, reserved: Default::default() };
            super::read(&statuses.iter().map(result).collect::<Vec<_>>())
        };
        assert_eq!(read(&[Created]), ChangeResult::Done);
        assert_eq!(read(&[Exists]), ChangeResult::Raced);
        assert_eq!(read(&[ExistsWithDifferentAmount, LinkedEventFailed]), ChangeResult::Raced);
        assert_eq!(read(&[IdAlreadyFailed]), ChangeResult::Spent);
        assert_eq!(read(&[ExceedsCredits]), ChangeResult::Exceeded);
        assert!(matches!(read(&[CreditAccountNotFound]), ChangeResult::Failed(_)));
        assert!(matches!(read(&[LinkedEventFailed]), ChangeResult::Failed(_)));
    }
}
