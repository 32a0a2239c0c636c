//! Grants: the order of spending, expiry, and caps on overdraft.

use earmark_core::{
    CompleteOutcome, CreditShortage, EXPIRY_SKEW_MS_MAX, ExpireEntry, ExtendOutcome, GRANTS_MAX, GrantTerms,
    InvalidOperation, InvalidWrite, JournalRecord, LeaseId, Operation, Overage, Overdraft, UnixMs, VaultId, WriteError,
};

use crate::support::bank::{Bank, account, close, credit, grant, issue, open, retire, transfer};
use crate::support::snapshot::{restore, snapshot};
use crate::support::test_book::{START, add, renew, used};

const HOUR_MS: u64 = 3_600_000;

/// Terms with an expiry this long after the start.
fn terms(priority: u8, after_ms: u64) -> GrantTerms {
    GrantTerms::new(priority, Some(START.plus_ms(after_ms)))
}

/// An open account `acme` with a credit limit `usd` whose holds last 60 seconds.
fn bank(operations: Vec<Operation>) -> Bank {
    let mut bank = Bank::new();
    bank.commit([vec![open("acme"), open("other")], operations].concat());
    bank.test.put_active(credit("usd", "acme", 60, Overage::Debt));
    _ = bank.test.book.drain_journal();
    bank
}

/// Priority, milliseconds from the start to the expiry, remaining and held amount of every grant in `usd`.
fn grants(bank: &Bank, name: &str) -> Vec<(u8, Option<u64>, i128, i128)> {
    bank.assert_balanced();
    let id = bank.test.book.account(VaultId::MAIN, &account(name)).unwrap().id;
    let infos = bank.test.book.grants(bank.test.now(), id);
    let after = |at: UnixMs| at.ms_since(START);
    infos
        .iter()
        .map(|info| (info.terms.priority(), info.terms.expires_at().map(after), info.remaining, info.held))
        .collect()
}

fn expired(bank: &mut Bank) -> Vec<i128> {
    let records = bank.test.book.drain_journal();
    let amount = |record: &JournalRecord| match record {
        JournalRecord::Expire(ExpireEntry { amount, .. }) => Some(*amount),
        _ => None,
    };
    records.iter().filter_map(amount).collect()
}

fn expired_total(bank: &Bank) -> i128 {
    bank.test.book.audit(VaultId::MAIN).iter().map(|totals| totals.expired).sum()
}

/// Restores the Book from its snapshot, which must encode to the same bytes.
fn restart(bank: &mut Bank) {
    let bytes = snapshot(&mut bank.test.book);
    bank.test.book = restore(&bytes, bytes.len(), 7).unwrap();
    assert_eq!(snapshot(&mut bank.test.book), bytes);
}

#[test]
fn the_lowest_priority_is_spent_first_then_the_earliest_expiry_and_plain_credit_is_one_grant() {
    let mut bank = bank(vec![
        issue("acme", "usd", 10),
        grant("acme", "usd", 20, terms(200, 5_000)),
        grant("acme", "usd", 30, terms(128, 9_000)),
        issue("acme", "usd", 1),
        grant("acme", "usd", 40, GrantTerms::new(0, None)),
        grant("acme", "usd", 5, terms(128, 9_000)),
    ]);
    let all = [(0, None, 40, 0), (128, Some(9_000), 35, 0), (128, None, 11, 0), (200, Some(5_000), 20, 0)];
    assert_eq!(grants(&bank, "acme"), all);
    bank.commit(vec![retire("acme", "usd", 76)]);
    assert_eq!(grants(&bank, "acme"), [(128, None, 10, 0), (200, Some(5_000), 20, 0)]);
    bank.commit(vec![retire("acme", "usd", 30)]);
    assert_eq!(grants(&bank, "acme"), []);
}

#[test]
fn an_expired_grant_is_not_spendable_from_that_millisecond_on() {
    let mut bank = bank(vec![issue("acme", "usd", 10), grant("acme", "usd", 90, terms(1, 5_000))]);
    bank.test.advance(4_999);
    assert_eq!(bank.available("acme", "usd"), 100);
    bank.test.advance(1);
    assert_eq!(bank.available("acme", "usd"), 10, "before any command");
    assert_eq!(bank.refuse(vec![retire("acme", "usd", 11)]), WriteError::InsufficientCredit { operation: 0 });
    assert_eq!(bank.deny_credit(&[("usd", 11)]).why, CreditShortage::NotEnough);
    assert_eq!(expired(&mut bank), [90], "one entry");
    assert_eq!(expired_total(&bank), 90);
    bank.commit(vec![transfer("acme", "other", "usd", 10)]);
}

#[test]
fn a_tick_is_due_for_expiry_and_records_a_bounded_number() {
    let mut bank = Bank::new();
    let names: Vec<String> = (0..100).map(|number| format!("a{number}")).collect();
    for name in &names {
        bank.commit(vec![open(name), grant(name, "usd", 1, terms(1, 5_000))]);
    }
    _ = expired(&mut bank);
    assert!(!bank.test.book.is_due(bank.test.now()));
    bank.test.advance(5_000);
    assert!(bank.test.book.is_due(bank.test.now()));
    bank.test.tick();
    let first = expired(&mut bank).len();
    assert!((1..100).contains(&first), "{first}");
    bank.test.tick();
    assert_eq!(first + expired(&mut bank).len(), 100);
    assert!(!bank.test.book.is_due(bank.test.now()));
    assert_eq!(expired_total(&bank), 100);
}

#[test]
fn a_hold_returns_to_the_grants_it_took_from() {
    let mut bank = bank(vec![
        issue("acme", "usd", 10),
        grant("acme", "usd", 20, terms(1, HOUR_MS)),
        grant("acme", "usd", 30, terms(200, HOUR_MS)),
    ]);
    let before = grants(&bank, "acme");
    let lease = bank.test.take(&[("usd", 45)]);
    let held = [(1, Some(HOUR_MS), 0, 20), (128, None, 0, 10), (200, Some(HOUR_MS), 15, 15)];
    assert_eq!(grants(&bank, "acme"), held);
    restart(&mut bank);
    assert_eq!(grants(&bank, "acme"), held, "after a snapshot");
    bank.test.settle(lease, &[("usd", 0)]);
    assert_eq!(grants(&bank, "acme"), before);
    let lease = bank.test.take(&[("usd", 45)]);
    bank.test.settle(lease, &[("usd", 25)]);
    assert_eq!(grants(&bank, "acme"), [(128, None, 5, 0), (200, Some(HOUR_MS), 30, 0)], "the first spent pays");
    bank.test.take(&[("usd", 35)]);
    bank.test.advance(60_000);
    assert_eq!(grants(&bank, "acme"), [(128, None, 5, 0), (200, Some(HOUR_MS), 30, 0)], "a hold that ran out");
    bank.test.tick();
    assert_eq!(grants(&bank, "acme"), [(128, None, 5, 0), (200, Some(HOUR_MS), 30, 0)], "its release");
}

#[test]
fn what_is_held_survives_expiry_and_expires_when_it_returns() {
    for ending in 0..4 {
        let mut bank = bank(vec![issue("acme", "usd", 10), grant("acme", "usd", 90, terms(1, 30_000))]);
        let lease = bank.test.take(&[("usd", 60)]);
        bank.test.advance(30_000);
        bank.test.tick();
        assert_eq!(expired(&mut bank), [30]);
        assert_eq!(grants(&bank, "acme"), [(1, Some(30_000), 0, 60), (128, None, 10, 0)]);
        restart(&mut bank);
        let (cost, expires) = match ending {
            0 => (60, 0),
            1 => (25, 35),
            2 => (0, 60),
            _ => (0, 60),
        };
        if ending == 3 {
            bank.test.advance(30_000);
            bank.test.tick();
        } else {
            bank.test.settle(lease, &[("usd", cost)]);
        }
        assert_eq!(expired(&mut bank).iter().sum::<i128>(), expires, "{ending}");
        assert_eq!(grants(&bank, "acme"), [(128, None, 10, 0)], "{ending}");
        assert_eq!(expired_total(&bank), 30 + expires, "{ending}");
    }
}

/// The charge of a late complete comes after the grant has expired: plain credit pays it.
#[test]
fn a_late_complete_is_charged_to_what_has_not_expired() {
    let mut bank = bank(vec![issue("acme", "usd", 10), grant("acme", "usd", 90, terms(1, 30_000))]);
    let lease = bank.test.take(&[("usd", 60)]);
    bank.test.advance(61_000);
    let charge = bank.test.settle(lease, &[("usd", 40)]).charges[0];
    assert_eq!((charge.paid, charge.debt), (40, 30));
    assert_eq!(grants(&bank, "acme"), [(128, None, -30, 0)]);
}

#[test]
fn an_extension_grows_in_spending_order_and_shrinks_in_reverse() {
    let mut bank = bank(vec![issue("acme", "usd", 10), grant("acme", "usd", 20, terms(1, HOUR_MS))]);
    let lease = bank.test.take(&[("usd", 15)]);
    bank.test.extended(lease, 1, add(&[("usd", 10)]));
    assert_eq!(grants(&bank, "acme"), [(1, Some(HOUR_MS), 0, 20), (128, None, 5, 5)]);
    bank.test.extended(lease, 2, renew());
    bank.test.extended(lease, 3, used(&[("usd", 22)]));
    restart(&mut bank);
    assert_eq!(grants(&bank, "acme"), [(1, Some(HOUR_MS), 0, 20), (128, None, 5, 5)]);
    bank.test.advance(61_000);
    assert_eq!(grants(&bank, "acme"), [(1, Some(HOUR_MS), 0, 20), (128, None, 8, 2)], "its usage stays held");
    bank.test.tick();
    assert_eq!(grants(&bank, "acme"), [(128, None, 8, 0)], "its timeout charges what was used");
    let other = bank.test.extend(lease, 4, add(&[("usd", 1)]));
    assert!(matches!(other, ExtendOutcome::LeaseExpired), "{other:?}");
}

#[test]
fn a_transfer_carries_expiry_and_priority() {
    let mut bank = bank(vec![
        issue("acme", "usd", 10),
        grant("acme", "usd", 20, terms(1, 30_000)),
        grant("other", "usd", 5, terms(1, 30_000)),
    ]);
    bank.commit(vec![transfer("acme", "other", "usd", 25)]);
    assert_eq!(grants(&bank, "acme"), [(128, None, 5, 0)]);
    assert_eq!(grants(&bank, "other"), [(1, Some(30_000), 25, 0), (128, None, 5, 0)]);
    bank.test.advance(30_000);
    assert_eq!(bank.available("other", "usd"), 5);
    bank.commit(vec![transfer("other", "acme", "usd", 5), close("other")]);
}

#[test]
fn a_transaction_spends_the_grant_of_a_later_operation() {
    let mut bank = bank(vec![]);
    bank.commit(vec![transfer("acme", "other", "usd", 7), grant("acme", "usd", 9, terms(3, 30_000))]);
    assert_eq!(grants(&bank, "acme"), [(3, Some(30_000), 2, 0)]);
    assert_eq!(grants(&bank, "other"), [(3, Some(30_000), 7, 0)]);
}

#[test]
fn revenue_is_plain_credit_whatever_paid_it() {
    let mut bank = bank(vec![grant("acme", "usd", 90, terms(1, 30_000))]);
    let lease = bank.test.take(&[("usd", 60)]);
    bank.test.settle(lease, &[("usd", 60)]);
    bank.test.advance(30_000);
    assert_eq!(grants(&bank, "revenue"), [(128, None, 60, 0)]);
}

#[test]
fn a_deposit_covers_debt_first_also_debt_that_a_settlement_makes_later() {
    let mut bank = bank(vec![issue("acme", "usd", 10)]);
    let lease = bank.test.take(&[("usd", 10)]);
    bank.commit(vec![grant("acme", "usd", 50, terms(1, 30_000))]);
    bank.test.settle(lease, &[("usd", 30)]);
    assert_eq!(grants(&bank, "acme"), [(1, Some(30_000), 30, 0)]);
    let lease = bank.test.take(&[("usd", 30)]);
    bank.test.settle(lease, &[("usd", 70)]);
    assert_eq!(grants(&bank, "acme"), [(128, None, -40, 0)]);
    bank.commit(vec![grant("acme", "usd", 55, terms(1, 30_000))]);
    assert_eq!(grants(&bank, "acme"), [(1, Some(30_000), 15, 0)]);
}

#[test]
fn an_account_has_a_bounded_number_of_grants_and_a_transfer_respects_it() {
    let mut bank = bank(vec![]);
    for number in 0..GRANTS_MAX as u64 {
        bank.commit(vec![grant("acme", "usd", 1, terms(1, 30_000 + number))]);
    }
    let too_many =
        |operation| WriteError::Invalid(InvalidWrite::Operation { operation, why: InvalidOperation::TooManyGrants });
    assert_eq!(bank.refuse(vec![grant("acme", "usd", 1, terms(2, 30_000))]), too_many(0));
    bank.commit(vec![grant("acme", "usd", 1, terms(1, 30_000)), issue("acme", "usd", 1)]);
    bank.commit(vec![grant("other", "usd", 1, terms(7, 30_000))]);
    assert_eq!(bank.refuse(vec![transfer("other", "acme", "usd", 1)]), too_many(0));
    assert_eq!(bank.available("other", "usd"), 1, "a refused transaction moves nothing");
}

#[test]
fn an_expiry_that_is_not_in_the_future_is_refused() {
    let mut bank = bank(vec![]);
    for after_ms in [0, 1_000] {
        bank.test.advance(after_ms);
        let past = GrantTerms::new(1, Some(bank.test.now()));
        let why = InvalidOperation::ExpiryPast;
        let refused = bank.refuse(vec![issue("acme", "usd", 1), grant("acme", "usd", 1, past)]);
        assert_eq!(refused, WriteError::Invalid(InvalidWrite::Operation { operation: 1, why }));
    }
}

#[test]
fn an_account_whose_grants_have_expired_can_be_closed() {
    let mut bank = bank(vec![grant("acme", "usd", 90, terms(1, 30_000))]);
    assert_eq!(bank.refuse(vec![close("acme")]), WriteError::Conflict { operation: 0 });
    bank.test.advance(30_000);
    bank.commit(vec![close("acme")]);
    assert_eq!(expired(&mut bank), [90]);
}

/// A wall clock that is ten years ahead must not expire anything.
#[test]
fn expiry_waits_while_log_time_and_wall_time_differ_by_more_than_five_minutes() {
    const YEARS_MS: u64 = 10 * 366 * 24 * HOUR_MS;
    let mut bank = bank(vec![grant("acme", "usd", 90, terms(1, 30_000))]);
    bank.test.wall_ahead_ms = YEARS_MS;
    bank.test.tick();
    assert!(bank.test.book.is_expiry_waiting());
    bank.test.advance(40_000);
    bank.test.tick();
    assert_eq!((bank.available("acme", "usd"), expired(&mut bank)), (90, vec![]));
    restart(&mut bank);
    assert!(bank.test.book.is_expiry_waiting());
    let lease = bank.test.take(&[("usd", 50)]);
    bank.test.settle(lease, &[("usd", 20)]);
    assert_eq!(grants(&bank, "acme"), [(1, Some(30_000), 70, 0)]);
    bank.test.wall_ahead_ms = EXPIRY_SKEW_MS_MAX + 1;
    bank.test.tick();
    assert_eq!(bank.available("acme", "usd"), 70);
    bank.test.wall_ahead_ms = EXPIRY_SKEW_MS_MAX;
    bank.test.tick();
    assert!(!bank.test.book.is_expiry_waiting());
    assert_eq!((bank.available("acme", "usd"), expired(&mut bank)), (0, vec![70]));
}

#[test]
fn a_cap_bounds_reserves_and_transfers_and_not_settlements() {
    let mut bank = Bank::new();
    let capped = Operation::OpenAccount { account: account("acme"), overdraft: Overdraft::Limit(100), plan: None };
    bank.commit(vec![capped, open("other"), issue("acme", "usd", 20)]);
    bank.test.put_active(credit("usd", "acme", 60, Overage::Deny));
    restart(&mut bank);
    assert_eq!(bank.deny_credit(&[("usd", 121)]).why, CreditShortage::NotEnough);
    assert_eq!(
        bank.refuse(vec![transfer("acme", "other", "usd", 121)]),
        WriteError::InsufficientCredit { operation: 0 }
    );
    let lease: LeaseId = bank.test.take(&[("usd", 90)]);
    assert_eq!(bank.deny_credit(&[("usd", 31)]).why, CreditShortage::NotEnough);
    bank.commit(vec![transfer("acme", "other", "usd", 30)]);
    assert_eq!(bank.available("acme", "usd"), -100);
    let charge = bank.test.settle(lease, &[("usd", 500)]).charges[0];
    assert_eq!((charge.paid, charge.uncollected), (500, 0));
    assert_eq!(bank.available("acme", "usd"), -510);
    assert_eq!(bank.deny_credit(&[("usd", 1)]).why, CreditShortage::NotEnough);
    bank.commit(vec![issue("acme", "usd", 411)]);
    bank.test.take(&[("usd", 1)]);
    assert_eq!(bank.test.complete(lease, &[]), CompleteOutcome::Before);
}
