//! Complete reports the actual usage, once.

use earmark_core::{CompleteOutcome, Definition, InvalidParts, LimitId, Overage, OverageHow, OverageTaken, Settlement};

use crate::support::step::{by_id, by_key};
use crate::support::test_book::{START, TestBook, concurrency, rolling};

fn over(limit: LimitId, amount: u64, how: OverageHow) -> Settlement {
    Settlement { overages: vec![OverageTaken { limit, amount, how }], ..Settlement::default() }
}

#[test]
fn tokens_that_were_not_used_come_back_at_once_and_the_rest_when_it_was_to() {
    let mut test = TestBook::new();
    test.put_active(rolling("tpm", 100, 60));
    let lease = test.take(&[("tpm", 80)]);
    test.advance(20_000);
    assert_eq!(test.settle(lease, &[("tpm", 30)]), Settlement::default());
    assert_eq!(test.reserved("tpm"), 30);
    test.advance(39_999);
    assert_eq!(test.reserved("tpm"), 30);
    test.advance(1);
    assert_eq!(test.reserved("tpm"), 0);
}

#[test]
fn using_nothing_leaves_nothing() {
    let mut test = TestBook::new();
    test.put_active(rolling("tpm", 100, 60));
    let lease = test.take(&[("tpm", 100)]);
    test.settle(lease, &[("tpm", 0)]);
    assert_eq!(test.reserved("tpm"), 0);
    test.take(&[("tpm", 100)]);
}

#[test]
fn without_an_actual_a_rolling_limit_keeps_what_was_reserved() {
    let mut test = TestBook::new();
    test.put_active(rolling("tpm", 100, 60));
    test.put_active(rolling("rpm", 10, 60));
    let lease = test.take(&[("tpm", 80), ("rpm", 1)]);
    test.settle(lease, &[("tpm", 10)]);
    assert_eq!((test.reserved("tpm"), test.reserved("rpm")), (10, 1));
}

#[test]
fn a_slot_is_free_when_its_caller_is_done_whatever_it_says_was_used() {
    for actuals in [&[][..], &[("slots", 0)], &[("slots", 2)], &[("slots", u64::MAX)]] {
        let mut test = TestBook::new();
        test.put_active(concurrency("slots", 2, 30));
        let lease = test.take(&[("slots", 2)]);
        assert_eq!(test.settle(lease, actuals), Settlement::default(), "{actuals:?}");
        assert_eq!(test.reserved("slots"), 0);
        test.take(&[("slots", 2)]);
    }
}

#[test]
fn usage_beyond_what_was_reserved_is_held_too_where_it_fits() {
    let mut test = TestBook::new();
    let tpm = test.put_active(rolling("tpm", 100, 60));
    let lease = test.take(&[("tpm", 40)]);
    test.advance(10_000);
    assert_eq!(test.settle(lease, &[("tpm", 100)]), over(tpm, 60, OverageHow::Reserved));
    assert_eq!(test.reserved("tpm"), 100);
    assert_eq!(test.usage("tpm").debt, 0);
    test.advance(50_000);
    assert_eq!(test.reserved("tpm"), 0, "all of it ends with the reservation");
}

#[test]
fn usage_that_no_longer_fits_is_debt_as_a_whole() {
    let mut test = TestBook::new();
    let tpm = test.put_active(rolling("tpm", 100, 60));
    let lease = test.take(&[("tpm", 40)]);
    assert_eq!(test.settle(lease, &[("tpm", 101)]), over(tpm, 61, OverageHow::Debt));
    let usage = test.usage("tpm");
    assert_eq!((usage.reserved, usage.debt), (40, 61));
    // Debt takes no capacity and adds up.
    let lease = test.take(&[("tpm", 60)]);
    assert_eq!(test.settle(lease, &[("tpm", 61)]), over(tpm, 1, OverageHow::Debt));
    assert_eq!(test.usage("tpm").debt, 62);
}

#[test]
fn usage_that_no_longer_fits_is_only_reported_where_debt_is_not_kept() {
    let mut test = TestBook::new();
    let tpm = test.put_active(Definition { overage: Overage::Deny, ..rolling("tpm", 100, 60) });
    let lease = test.take(&[("tpm", 40)]);
    assert_eq!(test.settle(lease, &[("tpm", 101)]), over(tpm, 61, OverageHow::Dropped));
    let usage = test.usage("tpm");
    assert_eq!((usage.reserved, usage.debt), (40, 0));
}

#[test]
fn nothing_about_a_lease_changes_after_its_first_complete() {
    let mut test = TestBook::new();
    test.put_active(rolling("tpm", 100, 60));
    test.put_active(concurrency("slots", 1, 30));
    let lease = test.take(&[("tpm", 40), ("slots", 1)]);
    test.settle(lease, &[("tpm", 20)]);
    test.take(&[("slots", 1)]);
    for actuals in [&[("tpm", 5)][..], &[("tpm", 90)], &[], &[("slots", 1)]] {
        assert_eq!(test.complete(lease, actuals), CompleteOutcome::Before, "{actuals:?}");
    }
    assert_eq!((test.reserved("tpm"), test.reserved("slots")), (20, 1));
    assert!(CompleteOutcome::Before.is_reconciled());
}

#[test]
fn actuals_for_keys_that_were_never_reserved_are_ignored_by_their_places() {
    let mut test = TestBook::new();
    test.put_active(rolling("tpm", 100, 60));
    test.put_active(rolling("rpm", 10, 60));
    let lease = test.take(&[("tpm", 40)]);
    let actuals = [("never:put", 7), ("tpm", 30), ("rpm", 5)];
    let ignored = vec![0, 2];
    assert_eq!(test.settle(lease, &actuals), Settlement { ignored, ..Settlement::default() });
    assert_eq!((test.reserved("tpm"), test.reserved("rpm")), (30, 0));
}

#[test]
fn completing_a_denied_lease_gives_nothing_back() {
    let mut test = TestBook::new();
    test.put_active(rolling("tpm", 100, 60));
    test.take(&[("tpm", 70)]);
    let (denied, _) = test.denied(&[("tpm", 70)]);
    assert_eq!(test.complete(denied, &[("tpm", 10)]), CompleteOutcome::HeldNothing);
    assert_eq!(test.reserved("tpm"), 70);
    assert!(!CompleteOutcome::HeldNothing.is_reconciled());
}

#[test]
fn usage_beyond_a_reservation_that_has_ended_is_held_for_one_second() {
    let mut test = TestBook::new();
    let tpm = test.put_active(rolling("tpm", 100, 60));
    let late = test.take(&[("tpm", 40)]);
    test.advance(60_500);
    assert_eq!(test.settle(late, &[("tpm", 100)]), over(tpm, 60, OverageHow::Reserved));
    assert_eq!(test.reserved("tpm"), 60);
    test.advance(999);
    assert_eq!(test.reserved("tpm"), 60);
    test.advance(1);
    assert_eq!(test.reserved("tpm"), 0);
}

#[test]
fn a_late_complete_gives_back_nothing_that_has_come_back_already() {
    let mut test = TestBook::new();
    let tpm = test.put_active(rolling("tpm", 100, 60));
    let late = test.take(&[("tpm", 40)]);
    let later = test.take(&[("tpm", 40)]);
    test.advance(60_000);
    test.take(&[("tpm", 90)]);
    assert_eq!(test.settle(late, &[("tpm", 0)]), Settlement::default());
    assert_eq!(test.reserved("tpm"), 90);
    assert_eq!(test.settle(later, &[("tpm", 51)]), over(tpm, 11, OverageHow::Debt));
    assert_eq!(test.reserved("tpm"), 90);
}

#[test]
fn actual_usage_near_the_largest_number_neither_wraps_nor_is_lost() {
    let mut test = TestBook::new();
    let big = test.put_active(rolling("big", u64::MAX, 60));
    let grown = test.take(&[("big", 1)]);
    assert_eq!(test.settle(grown, &[("big", u64::MAX)]), over(big, u64::MAX - 1, OverageHow::Reserved));
    assert_eq!(test.reserved("big"), u64::MAX);
    let small = test.put_active(rolling("small", 3, 60));
    for _ in 0..3 {
        let lease = test.take(&[("small", 1)]);
        assert_eq!(test.settle(lease, &[("small", u64::MAX)]), over(small, u64::MAX - 1, OverageHow::Debt));
    }
    assert_eq!(test.usage("small").debt, 3 * u128::from(u64::MAX - 1));
}

#[test]
fn overages_come_in_order_of_limit_and_each_by_itself() {
    let mut test = TestBook::new();
    let a = test.put_active(rolling("a", 10, 60));
    let b = test.put_active(rolling("b", 10, 60));
    let c = test.put_active(Definition { overage: Overage::Deny, ..rolling("c", 10, 60) });
    let lease = test.take(&[("c", 1), ("b", 1), ("a", 1)]);
    let settlement = test.settle(lease, &[("c", 99), ("a", 5), ("b", 12)]);
    let taken = |limit, amount, how| OverageTaken { limit, amount, how };
    assert_eq!(
        settlement.overages,
        [taken(a, 4, OverageHow::Reserved), taken(b, 11, OverageHow::Debt), taken(c, 98, OverageHow::Dropped)]
    );
    assert_eq!((test.reserved("a"), test.reserved("b"), test.reserved("c")), (5, 1, 1));
}

#[test]
fn a_malformed_complete_is_refused_and_may_be_sent_again() {
    let mut test = TestBook::new();
    let tpm = test.put_active(rolling("tpm", 100, 60));
    let lease = test.take(&[("tpm", 40)]);
    let many: Vec<_> = (0..33).map(|number| by_key(&format!("k{number}"), 1)).collect();
    for (actuals, invalid) in [
        (many, InvalidParts::TooMany { found: 33 }),
        (vec![by_key("tpm", 1), by_id(tpm, 1)], InvalidParts::Duplicate { part: 1 }),
        (vec![by_key("x", 1), by_key("tpm", 1), by_key("x", 0)], InvalidParts::Duplicate { part: 2 }),
    ] {
        let outcome = test.complete_parts(lease, actuals.clone());
        assert_eq!(outcome, CompleteOutcome::Invalid(invalid), "{actuals:?}");
    }
    assert_eq!(test.reserved("tpm"), 40);
    test.settle(lease, &[("tpm", 10)]);
}

#[test]
fn thirty_two_actuals_are_all_settled() {
    let mut test = TestBook::new();
    let names: Vec<String> = (0..32).map(|n| format!("limit:{n}")).collect();
    for name in &names {
        test.put_active(rolling(name, 10, 60));
    }
    let asked: Vec<(&str, u64)> = names.iter().map(|name| (name.as_str(), 5)).collect();
    let lease = test.take(&asked);
    let used: Vec<(&str, u64)> = names.iter().rev().map(|name| (name.as_str(), 2)).collect();
    assert_eq!(test.settle(lease, &used), Settlement::default());
    assert!(names.iter().all(|name| test.reserved(name) == 2));
}

#[test]
fn a_settled_reservation_within_the_retention_keeps_its_exact_end() {
    let mut test = TestBook::new();
    test.put_active(rolling("quarter", 10, 900));
    test.advance(123);
    let lease = test.take(&[("quarter", 4)]);
    test.settle(lease, &[("quarter", 3)]);
    test.advance(899_999);
    assert_eq!(test.reserved("quarter"), 3);
    test.advance(1);
    assert_eq!(test.reserved("quarter"), 0);
}

#[test]
fn a_settled_reservation_of_a_long_window_ends_with_its_slot() {
    let mut test = TestBook::new();
    let day = test.put_active(rolling("day", 10, 86_400));
    let slot_ms = 86_400_000 / 4_096;
    test.advance(777);
    let settled = test.take(&[("day", 4)]);
    let unsettled = test.take(&[("day", 5)]);
    test.settle(settled, &[("day", 3)]);
    let exact = test.now().plus_ms(86_400_000);
    let slot_end = exact.plus_ms(slot_ms - exact.get() % slot_ms);
    let reserved = |test: &TestBook, at| test.book.usage(at, day).unwrap().reserved;
    assert_eq!(reserved(&test, exact.minus_ms(1)), 8);
    assert_eq!(reserved(&test, exact), 3, "what nobody settled ends exactly");
    assert_eq!(reserved(&test, slot_end.minus_ms(1)), 3);
    assert_eq!(reserved(&test, slot_end), 0);
    test.settle(unsettled, &[]);
    assert_eq!(reserved(&test, slot_end.minus_ms(1)), 8);
    assert_eq!(reserved(&test, slot_end), 0);
}

#[test]
fn a_window_redefined_under_a_lease_does_not_move_the_end_of_what_it_settles() {
    let mut test = TestBook::new();
    test.put_active(rolling("tpm", 100, 60));
    let lease = test.take(&[("tpm", 40)]);
    test.put_active(rolling("tpm", 100, 5));
    test.settle(lease, &[("tpm", 70)]);
    let usage_at = |ms| test.book.usage(START.plus_ms(ms), test.id("tpm")).unwrap().reserved;
    assert_eq!((usage_at(5_000), usage_at(59_999), usage_at(60_000)), (70, 70, 0));
}
