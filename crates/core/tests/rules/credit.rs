//! Accounts and credit: operations and error codes.

use earmark_core::{
    AccountStatus, GrantTerms, InvalidOperation, InvalidWrite, JournalRecord, MEMO_BYTES_MAX, Operation, Overdraft,
    VaultId, WriteError,
};

use crate::support::bank::{
    Bank, account, asset, close, freeze, issue, open, open_overdraft, retire, transfer, unfreeze,
};
use crate::support::snapshot::{restore, snapshot};

fn invalid(operation: usize, why: InvalidOperation) -> WriteError {
    WriteError::Invalid(InvalidWrite::Operation { operation, why })
}

#[test]
fn credit_is_issued_moved_and_retired_and_every_unit_is_counted() {
    let mut bank = Bank::new();
    bank.commit(vec![open("acme"), open("bob"), issue("acme", "usd", 100)]);
    bank.commit(vec![transfer("acme", "bob", "usd", 30)]);
    bank.commit(vec![retire("bob", "usd", 10), issue("bob", "eur", 5)]);
    assert_eq!(
        (bank.available("acme", "usd"), bank.available("bob", "usd"), bank.available("bob", "eur")),
        (70, 20, 5)
    );
    let totals = bank.test.book.audit(VaultId::MAIN);
    let usd = totals.iter().find(|total| total.asset == asset("usd")).unwrap();
    assert_eq!((usd.issued, usd.retired, usd.live), (100, 10, 90));
}

#[test]
fn all_credit_operations_of_a_transaction_are_one_entry() {
    let mut bank = Bank::new();
    // The first operation spends the credit that the second one issues.
    bank.commit(vec![open("a"), open("b"), transfer("b", "a", "usd", 50), issue("b", "usd", 50)]);
    assert_eq!((bank.available("a", "usd"), bank.available("b", "usd")), (50, 0));
    let journal = bank.test.book.drain_journal();
    let Some(JournalRecord::Transaction(written)) = journal.last() else { panic!("{journal:?}") };
    // An account whose movements add up to zero has the entry too.
    let amounts: Vec<i128> = written.changes.iter().map(|change| change.amount).collect();
    assert_eq!(amounts, [50, 0]);
    assert_eq!(written.changes[0].amount, 50);
}

#[test]
fn every_refusal_has_its_code_and_its_operation_and_changes_nothing() {
    let mut bank = Bank::new();
    bank.commit(vec![open("rich"), open("poor"), open("frozen"), open("closed"), issue("rich", "usd", 100)]);
    bank.commit(vec![issue("frozen", "usd", 10), freeze("frozen"), close("closed")]);
    let before = snapshot(&mut bank.test.book);
    let at = |operation| operation;
    for (operation, error) in [
        (transfer("poor", "rich", "usd", 1), WriteError::InsufficientCredit { operation: at(1) }),
        (transfer("rich", "poor", "never_seen", 1), WriteError::InsufficientCredit { operation: at(1) }),
        (retire("rich", "usd", 101), WriteError::InsufficientCredit { operation: at(1) }),
        (transfer("rich", "nobody", "usd", 1), WriteError::AccountNotFound { operation: at(1) }),
        (transfer("nobody", "rich", "usd", 1), WriteError::AccountNotFound { operation: at(1) }),
        (issue("nobody", "usd", 1), WriteError::AccountNotFound { operation: at(1) }),
        (freeze("nobody"), WriteError::AccountNotFound { operation: at(1) }),
        (issue("closed", "usd", 1), WriteError::AccountClosed { operation: at(1) }),
        (transfer("rich", "closed", "usd", 1), WriteError::AccountClosed { operation: at(1) }),
        (transfer("closed", "rich", "usd", 1), WriteError::AccountClosed { operation: at(1) }),
        (close("closed"), WriteError::AccountClosed { operation: at(1) }),
        (unfreeze("closed"), WriteError::AccountClosed { operation: at(1) }),
        (transfer("frozen", "rich", "usd", 1), WriteError::AccountFrozen { operation: at(1) }),
        (retire("frozen", "usd", 1), WriteError::AccountFrozen { operation: at(1) }),
        (open("rich"), WriteError::Conflict { operation: at(1) }),
        (close("rich"), WriteError::Conflict { operation: at(1) }),
        (close("revenue"), WriteError::Conflict { operation: at(1) }),
        (transfer("rich", "rich", "usd", 1), invalid(1, InvalidOperation::ToItself)),
        (issue("rich", "usd", 0), invalid(1, InvalidOperation::AmountZero)),
        (issue("rich", "usd", i128::MAX as u128), invalid(1, InvalidOperation::OutOfRange)),
        (issue("rich", "usd", u128::MAX), invalid(1, InvalidOperation::OutOfRange)),
    ] {
        let (name, opened) = (format!("{operation:?}"), open("new"));
        assert_eq!(bank.refuse(vec![opened, operation, unfreeze("rich")]), error, "{name}");
        assert_eq!(snapshot(&mut bank.test.book), before, "{name}");
    }
    let memo = "m".repeat(MEMO_BYTES_MAX + 1);
    let long =
        Operation::Issue { account: account("rich"), asset: asset("usd"), amount: 1, memo, terms: GrantTerms::PLAIN };
    let found = MEMO_BYTES_MAX + 1;
    assert_eq!(bank.refuse(vec![long]), invalid(0, InvalidOperation::MemoTooLong { found }));
    assert_eq!(bank.standing("rich"), AccountStatus::Open);
    let memo = "m".repeat(MEMO_BYTES_MAX);
    bank.commit(vec![Operation::Issue {
        account: account("rich"),
        asset: asset("usd"),
        amount: 1,
        memo,
        terms: GrantTerms::PLAIN,
    }]);
}

#[test]
fn a_frozen_account_takes_deposits_and_gives_nothing_until_it_is_unfrozen() {
    let mut bank = Bank::new();
    bank.commit(vec![open("a"), open("b"), issue("a", "usd", 10), freeze("a"), freeze("a")]);
    bank.commit(vec![issue("a", "usd", 5)]);
    bank.refuse(vec![transfer("a", "b", "usd", 1)]);
    bank.commit(vec![unfreeze("a"), transfer("a", "b", "usd", 15), close("a")]);
    assert_eq!(bank.standing("a"), AccountStatus::Closed);
}

#[test]
fn an_account_goes_below_zero_only_if_it_was_opened_so() {
    let mut bank = Bank::new();
    bank.commit(vec![open_overdraft("bank"), open("a")]);
    bank.commit(vec![transfer("bank", "a", "usd", 40)]);
    assert_eq!((bank.available("bank", "usd"), bank.available("a", "usd")), (-40, 40));
    bank.refuse(vec![close("bank")]);
    bank.refuse(vec![transfer("a", "bank", "usd", 41)]);
    bank.commit(vec![transfer("a", "bank", "usd", 40)]);
    bank.commit(vec![close("bank")]);
    let info = bank.test.book.account(VaultId::MAIN, &account("bank")).unwrap();
    assert_eq!((info.standing, info.overdraft), (AccountStatus::Closed, Overdraft::Allow));
}

#[test]
fn the_ends_of_the_range_are_reached_and_not_passed() {
    let mut bank = Bank::new();
    let most = i128::MAX as u128;
    bank.commit(vec![open("a"), open_overdraft("b"), issue("a", "usd", most)]);
    assert_eq!(bank.refuse(vec![issue("a", "usd", 1)]), invalid(0, InvalidOperation::OutOfRange));
    assert_eq!(bank.refuse(vec![issue("b", "usd", 1)]), invalid(0, InvalidOperation::OutOfRange));
    bank.commit(vec![transfer("a", "b", "usd", most), transfer("b", "a", "usd", most)]);
    assert_eq!(bank.refuse(vec![transfer("b", "a", "usd", 1)]), invalid(0, InvalidOperation::OutOfRange));
    bank.commit(vec![retire("a", "usd", most)]);
    assert_eq!(bank.refuse(vec![issue("a", "usd", 1)]), invalid(0, InvalidOperation::OutOfRange));
    assert_eq!(bank.available("a", "usd"), 0);
}

#[test]
fn accounts_and_balances_go_through_a_snapshot() {
    let mut bank = Bank::new();
    bank.commit(vec![open("a"), open_overdraft("b"), issue("a", "usd", 7), transfer("b", "a", "eur", 9), freeze("a")]);
    let bytes = snapshot(&mut bank.test.book);
    bank.test.book = restore(&bytes, 33, 8).unwrap();
    assert_eq!(snapshot(&mut bank.test.book), bytes);
    assert_eq!((bank.available("a", "usd"), bank.available("a", "eur"), bank.available("b", "eur")), (7, 9, -9));
    assert_eq!(bank.standing("a"), AccountStatus::Frozen);
    assert!(bank.refuse(vec![open("a")]) == WriteError::Conflict { operation: 0 });
}

/// Regression: insufficient credit was blamed on the last operation on the account, even a deposit; a total out of
/// range was blamed on the first operation.
#[test]
fn the_operation_to_blame_is_one_that_takes_what_is_not_there() {
    let mut bank = Bank::new();
    bank.commit(vec![open("a"), open("b"), issue("a", "usd", 5)]);
    for (place, operations) in [
        (0, vec![transfer("a", "b", "usd", 9), issue("a", "usd", 1)]),
        (1, vec![transfer("a", "b", "usd", 3), retire("a", "usd", 4), transfer("b", "a", "usd", 1)]),
        (1, vec![retire("a", "usd", 2), transfer("a", "b", "usd", 9), retire("a", "eur", 1)]),
        (2, vec![issue("b", "eur", 2), retire("a", "usd", 1), transfer("a", "b", "eur", 1)]),
    ] {
        let said = format!("{operations:?}");
        assert_eq!(bank.refuse(operations), WriteError::InsufficientCredit { operation: place }, "{said}");
    }
    let most = i128::MAX as u128;
    bank.commit(vec![retire("a", "usd", 5), open_overdraft("bank")]);
    let too_much = vec![open("c"), transfer("bank", "b", "usd", 1), issue("b", "usd", most)];
    assert_eq!(bank.refuse(too_much), invalid(2, InvalidOperation::OutOfRange));
    let too_much = vec![open("c"), issue("bank", "usd", most), transfer("bank", "b", "usd", 1)];
    assert_eq!(bank.refuse(too_much), invalid(1, InvalidOperation::OutOfRange));
    let too_much = vec![freeze("b"), retire("bank", "usd", most), issue("bank", "usd", 9)];
    assert_eq!(bank.refuse(too_much), invalid(1, InvalidOperation::OutOfRange));
}

#[test]
fn an_account_is_closed_with_what_the_same_transaction_did_to_it_before() {
    let mut bank = Bank::new();
    bank.commit(vec![open("a"), open("b"), issue("a", "usd", 5)]);
    for operations in [
        // The deposit is of a new asset, of a known asset, or precedes the withdrawal.
        vec![issue("b", "usd", 1), close("b")],
        vec![issue("b", "gold", 1), close("b")],
        vec![transfer("a", "b", "usd", 5), close("b")],
        vec![transfer("a", "b", "usd", 4), close("a")],
    ] {
        let said = format!("{operations:?}");
        assert_eq!(bank.refuse(operations), WriteError::Conflict { operation: 1 }, "{said}");
    }
    // No operation may follow the close, not even one that empties the account.
    let late = vec![close("b"), transfer("a", "b", "usd", 5)];
    assert_eq!(bank.refuse(late), WriteError::AccountClosed { operation: 1 });
    bank.commit(vec![issue("b", "gold", 1), retire("b", "gold", 1), close("b")]);
    bank.commit(vec![open("c"), transfer("a", "c", "usd", 5), close("a")]);
    let bytes = snapshot(&mut bank.test.book);
    assert_eq!(snapshot(&mut restore(&bytes, bytes.len(), 1).unwrap()), bytes);
    assert_eq!((bank.standing("a"), bank.standing("b")), (AccountStatus::Closed, AccountStatus::Closed));
}

#[test]
fn a_refused_transaction_puts_every_account_back_to_where_it_stood() {
    let mut bank = Bank::new();
    bank.commit(vec![open("a"), open("b"), freeze("b")]);
    let before = snapshot(&mut bank.test.book);
    let there_and_back = [freeze("a"), unfreeze("a"), freeze("a"), unfreeze("b"), close("b"), open("c")];
    let too_much = retire("revenue", "usd", 1);
    bank.refuse([&there_and_back[..], &[too_much]].concat());
    bank.refuse([&there_and_back[..], &[open("a")]].concat());
    assert_eq!((bank.standing("a"), bank.standing("b")), (AccountStatus::Open, AccountStatus::Frozen));
    assert_eq!(snapshot(&mut bank.test.book), before);
}
