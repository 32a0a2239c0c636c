//! Changes of a limit's capacity, as transfers that follow one another.
//!
//! The ledger itself is the record of what was changed. Every change has the number after that of the last one that
//! stands, in `user_data_64` and in its id; whoever changes a limit at the same time must use the same id, and only
//! one of them can. What is in force differs only after a change, so a change that was worked out from what was in
//! force before it is applied once or never, however late it arrives and whoever sent it.

use earmark_admission::LimitStanding;
use earmark_core::Label;
use tigerbeetle::{CreateTransferResult, CreateTransferStatus as Status, Transfer};

use crate::chart::{Code, CommonAccounts, LEDGER, link};
use crate::status::{describe, exists};
use crate::table::{Cell, Seen};

/// What there is to do about a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// It has what it is to have.
    Nothing,
    /// It gets more. A limit that comes back owes nothing, whatever its debt was when it went.
    Up { by: u64, cleared: u128 },
    /// It gets less.
    Down { by: u64 },
    /// It has too much, and too little of that is free.
    Wait,
}

/// What the ledger said to a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ChangeRead {
    /// It is in force.
    Done,
    /// Someone else made this change first, the same or another.
    Raced,
    /// This attempt failed before; the next one may do.
    Spent,
    /// What was free is no longer.
    Exceeded,
    /// Nothing that should be.
    Failed(String),
}

/// What to do, from what is in force to what is to be.
pub(crate) fn step(seen: &Seen, target: u64) -> Step {
    match (target.checked_sub(seen.in_force), seen.in_force.checked_sub(target)) {
        (Some(0), _) | (None, None) => Step::Nothing,
        (Some(by), _) => Step::Up { by, cleared: if seen.in_force == 0 { seen.debt } else { 0 } },
        (None, Some(by)) if by <= seen.available() => Step::Down { by },
        (None, Some(_)) => Step::Wait,
    }
}

/// How a limit stands that has been seen like this and is to have `target`.
pub(crate) fn standing(seen: &Seen, target: u64) -> LimitStanding {
    if seen.in_force > target {
        LimitStanding::Decreasing
    } else if target == 0 {
        LimitStanding::Gone
    } else {
        LimitStanding::InForce
    }
}

/// How a limit is about to stand: a decrease that can be done counts as done, for it is when anybody needs it. What
/// is to be gone, though, is gone only when it is.
pub(crate) fn as_if_done(seen: Seen, target: u64) -> Seen {
    match step(&seen, target) {
        Step::Down { .. } if target > 0 => Seen { in_force: target, ..seen },
        Step::Nothing | Step::Up { .. } | Step::Down { .. } | Step::Wait => seen,
    }
}

/// One attempt at one change: nothing if there is nothing to do.
pub(crate) fn chain(
    cell: &Cell,
    common: &CommonAccounts,
    step: Step,
    change: u64,
    attempt: u64,
) -> Vec<Transfer> {
    let Cell { namespace, key, accounts, .. } = cell;
    let (from, to, amount, cleared) = match step {
        Step::Nothing | Step::Wait => return Vec::new(),
        Step::Up { by, cleared } => (common.operator, accounts.limit, by, cleared),
        Step::Down { by } => (accounts.limit, common.operator, by, 0),
    };
    let capacity = Transfer {
        id: Label::Capacity { namespace, key, change, attempt }.id().to_u128(),
        debit_account_id: from,
        credit_account_id: to,
        amount: u128::from(amount),
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

/// What the results of that chain mean.
pub(crate) fn read(results: &[CreateTransferResult]) -> ChangeRead {
    let told = results.iter().find(|result| result.status != Status::LinkedEventFailed);
    match told.map(|result| result.status) {
        Some(Status::Created) => ChangeRead::Done,
        Some(Status::IdAlreadyFailed) => ChangeRead::Spent,
        Some(Status::ExceedsCredits) => ChangeRead::Exceeded,
        Some(status) if exists(status) => ChangeRead::Raced,
        Some(status) => ChangeRead::Failed(describe(status)),
        None => ChangeRead::Failed("a change of capacity failed and nothing says why".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chart::has;
    use crate::table::Table;
    use tigerbeetle::TransferFlags;

    fn seen(in_force: u64, reserved: u64, debt: u128) -> Seen {
        Seen { in_force, reserved, debt }
    }

    #[test]
    fn what_to_do_follows_from_what_is_in_force_and_what_is_to_be() {
        for (seen, target, expected) in [
            (seen(10, 0, 0), 10, Step::Nothing),
            (seen(0, 0, 0), 10, Step::Up { by: 10, cleared: 0 }),
            (seen(0, 0, 7), 10, Step::Up { by: 10, cleared: 7 }),
            (seen(4, 4, 7), 10, Step::Up { by: 6, cleared: 0 }),
            (seen(10, 4, 0), 4, Step::Down { by: 6 }),
            (seen(10, 5, 0), 4, Step::Wait),
            (seen(10, 0, 3), 0, Step::Down { by: 10 }),
            (seen(0, 0, 3), 0, Step::Nothing),
            (seen(0, 0, 0), u64::MAX, Step::Up { by: u64::MAX, cleared: 0 }),
        ] {
            assert_eq!(step(&seen, target), expected, "{seen:?} -> {target}");
        }
    }

    #[test]
    fn a_limit_stands_by_what_is_in_force() {
        assert_eq!(standing(&seen(10, 0, 0), 10), LimitStanding::InForce);
        assert_eq!(standing(&seen(10, 10, 0), 4), LimitStanding::Decreasing);
        assert_eq!(standing(&seen(1, 1, 0), 0), LimitStanding::Decreasing);
        assert_eq!(standing(&seen(0, 0, 0), 0), LimitStanding::Gone);
        assert_eq!(as_if_done(seen(10, 4, 0), 4).in_force, 4);
        assert_eq!(as_if_done(seen(10, 5, 0), 4).in_force, 10);
        assert_eq!(as_if_done(seen(10, 5, 0), 40).in_force, 10);
        assert_eq!(as_if_done(seen(10, 0, 0), 0).in_force, 10);
    }

    #[test]
    fn a_change_is_named_by_its_number_and_its_attempt() {
        let table = Table::default();
        let cell = table.cell(&"default".parse().unwrap(), &"rpm".parse().unwrap());
        let common = CommonAccounts::new();
        let up = chain(&cell, &common, Step::Up { by: 10, cleared: 0 }, 3, 2);
        let [up] = up[..] else { panic!("{up:?}") };
        assert_eq!(up.id, earmark_core::id128("xfer:capacity:rpm:3:2").to_u128());
        assert_eq!((up.debit_account_id, up.credit_account_id), (common.operator, cell.accounts.limit));
        assert_eq!((up.amount, up.user_data_64), (10, 3));
        let down = chain(&cell, &common, Step::Down { by: 4 }, 3, 2);
        let [down] = down[..] else { panic!("{down:?}") };
        assert_eq!(down.id, up.id);
        assert_eq!((down.debit_account_id, down.credit_account_id), (cell.accounts.limit, common.operator));
        assert!(chain(&cell, &common, Step::Wait, 3, 2).is_empty());
    }

    #[test]
    fn a_limit_that_comes_back_owes_nothing_from_the_same_moment_on() {
        let table = Table::default();
        let cell = table.cell(&"default".parse().unwrap(), &"rpm".parse().unwrap());
        let chain = chain(&cell, &CommonAccounts::new(), Step::Up { by: 10, cleared: 7 }, 3, 0);
        let [up, cleared] = chain[..] else { panic!("{chain:?}") };
        assert!(has(up.flags, TransferFlags::Linked));
        assert!(!has(cleared.flags, TransferFlags::Linked));
        assert_eq!((cleared.credit_account_id, cleared.amount), (cell.accounts.debt, 7));
    }

    #[test]
    fn of_those_who_make_the_same_change_one_does() {
        use Status::*;
        let read = |statuses: &[Status]| {
            let result = |status: &Status| CreateTransferResult {
                timestamp: 1,
                status: *status,
                reserved: Default::default(),
            };
            super::read(&statuses.iter().map(result).collect::<Vec<_>>())
        };
        assert_eq!(read(&[Created]), ChangeRead::Done);
        assert_eq!(read(&[Exists]), ChangeRead::Raced);
        assert_eq!(read(&[ExistsWithDifferentAmount, LinkedEventFailed]), ChangeRead::Raced);
        assert_eq!(read(&[IdAlreadyFailed]), ChangeRead::Spent);
        assert_eq!(read(&[ExceedsCredits]), ChangeRead::Exceeded);
        assert!(matches!(read(&[CreditAccountNotFound]), ChangeRead::Failed(_)));
        assert!(matches!(read(&[LinkedEventFailed]), ChangeRead::Failed(_)));
    }
}
