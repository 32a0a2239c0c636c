//! Reserve takes all or nothing and frees at the exact time.

use earmark_core::{InvalidParts, LeaseState, ReserveOutcome, TIME_MAX};

use crate::support::step::{by_id, by_key};
use crate::support::test_book::{TestBook, concurrency, created, rolling};

#[test]
fn a_denied_reserve_burns_nothing() {
    let mut test = TestBook::new();
    test.put_active(rolling("rpm", 10, 60));
    test.put_active(rolling("tpm", 100, 60));
    test.put_active(concurrency("slots", 5, 30));
    test.take(&[("rpm", 1), ("tpm", 60), ("slots", 1)]);
    let (_, denial) = test.denied(&[("rpm", 1), ("tpm", 60), ("slots", 1)]);
    assert_eq!(denial.limited_by, [1]);
    assert_eq!((test.reserved("rpm"), test.reserved("tpm"), test.reserved("slots")), (1, 60, 1));
}

#[test]
fn concurrent_requests_cannot_slip_past_a_token_limit() {
    let mut test = TestBook::new();
    test.put_active(rolling("tpm", 1_000, 60));
    // All at one instant, none settled: the requested amounts count, not the usage.
    let allowed = (0..100)
        .filter(|_| {
            let lease = test.lease();
            matches!(test.reserve(lease, &[("tpm", 30)]), ReserveOutcome::Created { .. })
        })
        .count();
    assert_eq!(allowed, 33);
    assert_eq!(test.reserved("tpm"), 990);
    test.take(&[("tpm", 10)]);
    test.denied(&[("tpm", 1)]);
}

#[test]
fn a_rolling_window_gives_back_at_its_very_end_and_not_a_millisecond_before() {
    let mut test = TestBook::new();
    test.put_active(rolling("rpm", 2, 60));
    test.take(&[("rpm", 1)]);
    test.advance(10_000);
    test.take(&[("rpm", 1)]);
    test.advance(49_999);
    test.denied(&[("rpm", 1)]);
    test.advance(1);
    assert_eq!(test.reserved("rpm"), 1);
    test.take(&[("rpm", 1)]);
    // No burst at the window edge: the second reservation still counts.
    test.denied(&[("rpm", 1)]);
    test.advance(10_000);
    test.take(&[("rpm", 1)]);
}

#[test]
fn a_slot_of_a_crashed_caller_comes_back_after_its_timeout() {
    let mut test = TestBook::new();
    test.put_active(concurrency("slots", 1, 30));
    let crashed = test.take(&[("slots", 1)]);
    test.advance(29_999);
    test.denied(&[("slots", 1)]);
    assert_eq!(test.state(crashed), Some(LeaseState::Live));
    test.advance(1);
    assert_eq!(test.state(crashed), Some(LeaseState::Expired));
    test.take(&[("slots", 1)]);
}

#[test]
fn amounts_count_for_concurrency_too() {
    let mut test = TestBook::new();
    test.put_active(concurrency("gpus", 8, 30));
    test.take(&[("gpus", 5)]);
    test.denied(&[("gpus", 4)]);
    let lease = test.take(&[("gpus", 3)]);
    test.settle(lease, &[]);
    assert_eq!(test.usage("gpus").available, 3);
}

#[test]
fn what_is_due_counts_as_free_though_nobody_asked_for_hours() {
    let mut test = TestBook::new();
    test.put_active(rolling("rpm", 500, 60));
    for _ in 0..500 {
        test.take(&[("rpm", 1)]);
    }
    test.advance(60_000);
    test.take(&[("rpm", 500)]);
    test.denied(&[("rpm", 1)]);
}

#[test]
fn time_that_goes_back_is_taken_as_standing_still() {
    let mut test = TestBook::new();
    test.put_active(rolling("rpm", 1, 60));
    test.put_active(concurrency("slots", 1, 30));
    test.take(&[("rpm", 1)]);
    let latest = test.now();
    test.set_clock_back(600_000);
    test.denied(&[("rpm", 1)]);
    test.take(&[("slots", 1)]);
    assert_eq!(test.book.time(), latest);
    // Reads also use the latest time; the slot expires 30 s after it.
    assert_eq!(test.reserved("rpm"), 1);
    assert_eq!(test.book.usage(latest.plus_ms(29_999), test.id("slots")).unwrap().reserved, 1);
    assert_eq!(test.book.usage(latest.plus_ms(30_000), test.id("slots")).unwrap().reserved, 0);
}

#[test]
fn time_that_stands_still_frees_nothing() {
    let mut test = TestBook::new();
    test.put_active(rolling("rpm", 3, 1));
    for _ in 0..3 {
        test.take(&[("rpm", 1)]);
    }
    for _ in 0..100 {
        test.denied(&[("rpm", 1)]);
    }
    assert_eq!(test.reserved("rpm"), 3);
}

#[test]
fn a_read_changes_nothing_however_far_ahead_it_looks() {
    let mut test = TestBook::new();
    let rpm = test.put_active(rolling("rpm", 1, 60));
    let lease = test.take(&[("rpm", 1)]);
    let later = test.now().plus_ms(400 * 24 * 3_600_000);
    assert_eq!(test.book.usage(later, rpm).unwrap().reserved, 0);
    assert_eq!(test.book.lease(later, test.namespace, lease), None);
    assert_eq!(test.reserved("rpm"), 1);
    assert_eq!(test.state(lease), Some(LeaseState::Live));
    test.denied(&[("rpm", 1)]);
}

#[test]
fn a_window_redefined_while_reservations_live_applies_to_later_ones() {
    let mut test = TestBook::new();
    test.put_active(rolling("rpm", 2, 60));
    test.take(&[("rpm", 1)]);
    test.put_active(rolling("rpm", 2, 10));
    test.take(&[("rpm", 1)]);
    test.advance(10_000);
    assert_eq!(test.reserved("rpm"), 1, "the later one, of the shorter window, ends first");
    test.put_active(rolling("rpm", 2, 3_600));
    test.take(&[("rpm", 1)]);
    test.advance(50_000);
    assert_eq!(test.reserved("rpm"), 1, "the first one still ends when it was to");
}

#[test]
fn amounts_near_the_largest_number_neither_wrap_nor_vanish() {
    let mut test = TestBook::new();
    test.put_active(rolling("big", u64::MAX, 60));
    test.take(&[("big", u64::MAX - 1)]);
    test.denied(&[("big", u64::MAX)]);
    test.denied(&[("big", 2)]);
    test.take(&[("big", 1)]);
    let usage = test.usage("big");
    assert_eq!((usage.reserved, usage.available), (u64::MAX, 0));
    test.denied(&[("big", 1)]);
    test.advance(60_000);
    test.take(&[("big", u64::MAX)]);
}

#[test]
fn thirty_two_requirements_are_taken_together_and_thirty_three_are_refused() {
    let mut test = TestBook::new();
    let names: Vec<String> = (0..33).map(|n| format!("limit:{n}")).collect();
    for name in &names {
        test.put_active(rolling(name, 2, 60));
    }
    let asked: Vec<(&str, u64)> = names.iter().map(|name| (name.as_str(), 1)).collect();
    let lease = test.lease();
    let refusal = ReserveOutcome::Invalid(InvalidParts::TooMany { found: 33 });
    assert_eq!(test.reserve(lease, &asked), refusal);
    let reserved_at = test.now();
    assert_eq!(test.reserve(lease, &asked[..32]), created(reserved_at));
    assert_eq!(test.info(lease).unwrap().requirements.len(), 32);
    // The last of 32 limits is enough for a denial.
    test.take(&[("limit:31", 1)]);
    let (_, denial) = test.denied(&asked[..32]);
    assert_eq!(denial.limited_by, [31]);
    assert_eq!(test.reserved("limit:0"), 1);
    test.settle(lease, &asked[..32]);
}

#[test]
fn a_malformed_reserve_is_refused_by_what_is_wrong_with_it() {
    let mut test = TestBook::new();
    let rpm = test.put_active(rolling("rpm", 10, 60));
    let lease = test.lease();
    for (parts, invalid) in [
        (vec![], InvalidParts::Empty),
        (vec![by_key("rpm", 0); 33], InvalidParts::TooMany { found: 33 }),
        (vec![by_key("rpm", 1), by_key("no", 0), by_key("rpm", 0)], InvalidParts::AmountZero { part: 1 }),
        (vec![by_key("rpm", 1), by_key("no", 1), by_key("rpm", 2)], InvalidParts::Duplicate { part: 2 }),
        (vec![by_key("rpm", 1), by_id(rpm, 1)], InvalidParts::Duplicate { part: 1 }),
        (vec![by_key("no", 1), by_key("no", 1)], InvalidParts::Duplicate { part: 1 }),
        (vec![by_key("a", 1), by_key("rpm", 1), by_id(rpm, 1), by_key("a", 1)], InvalidParts::Duplicate { part: 2 }),
    ] {
        let outcome = test.reserve_parts(lease, parts.clone());
        assert_eq!(outcome, ReserveOutcome::Invalid(invalid), "{parts:?}");
    }
    assert_eq!(test.info(lease), None, "none of them used the lease");
    assert_eq!(test.reserved("rpm"), 0);
}

#[test]
fn a_reserve_that_names_an_unknown_limit_leaves_no_trace() {
    let mut test = TestBook::new();
    test.put_active(rolling("rpm", 10, 60));
    let lease = test.lease();
    let outcome = test.reserve(lease, &[("rpm", 1), ("tpm", 1)]);
    assert_eq!(outcome, ReserveOutcome::UnknownLimit { requirement: 1 });
    assert_eq!(test.reserved("rpm"), 0);
    assert_eq!(test.book.leases(), 0);
    test.put_active(rolling("tpm", 10, 60));
    let reserved_at = test.now();
    let outcome = test.reserve(lease, &[("rpm", 1), ("tpm", 1)]);
    assert_eq!(outcome, created(reserved_at));
}

#[test]
fn of_several_unknown_limits_the_first_by_name_is_reported_in_whatever_order_they_come() {
    let mut test = TestBook::new();
    test.put_active(rolling("m", 10, 60));
    test.put_active(rolling("down", 10, 60));
    test.take(&[("down", 10)]);
    test.put(rolling("down", 5, 60));
    let lease = test.lease();
    for (parts, requirement) in [
        (vec![by_key("x", 1), by_key("m", 1), by_key("b", 1)], 2),
        (vec![by_key("b", 1), by_key("x", 1), by_key("m", 1)], 0),
        (vec![by_key("down", 1), by_key("b", 1)], 1),
    ] {
        let outcome = test.reserve_parts(lease, parts.clone());
        assert_eq!(outcome, ReserveOutcome::UnknownLimit { requirement }, "{parts:?}");
    }
    let outcome = test.reserve(lease, &[("x", 1), ("down", 1)]);
    assert_eq!(outcome, ReserveOutcome::LimitDecreasing { requirement: 1, retry_after_ms: 10_000 });
}

#[test]
fn a_refusal_by_name_comes_before_a_denial() {
    let mut test = TestBook::new();
    test.put_active(rolling("rpm", 1, 60));
    test.take(&[("rpm", 1)]);
    let lease = test.lease();
    let outcome = test.reserve(lease, &[("rpm", 1), ("unknown", 1)]);
    assert_eq!(outcome, ReserveOutcome::UnknownLimit { requirement: 1 });
    assert_eq!(test.info(lease), None, "the lease is not spent");
}

/// Regression: expiry times were capped at the maximum time. At that time every reservation expired at once, and one
/// slot was given to everyone.
#[test]
fn at_the_end_of_time_a_limit_still_holds() {
    let mut test = TestBook::new();
    test.put_active(concurrency("slots", 1, 31_622_400));
    test.advance(u64::MAX);
    let first = test.lease();
    let created = created(TIME_MAX);
    assert_eq!(test.reserve(first, &[("slots", 1)]), created);
    for _ in 0..3 {
        test.advance(u64::MAX);
        test.denied(&[("slots", 1)]);
    }
    assert_eq!(test.reserved("slots"), 1);
}

/// Regression: a lease of 12 to 31 requirements with a partly filled last record was read back with gaps, and
/// completing it freed the wrong limits.
#[test]
fn a_lease_of_any_number_of_requirements_holds_just_these() {
    let names: Vec<String> = (0..32).map(|n| format!("limit:{n:02}")).collect();
    for count in 1..=32_u64 {
        let mut test = TestBook::new();
        let asked: Vec<(&str, u64)> = names.iter().map(String::as_str).zip(1..=count).collect();
        for (name, amount) in &asked {
            test.put_active(concurrency(name, *amount, 60));
        }
        let lease = test.take(&asked);
        let held: Vec<u64> = test.info(lease).unwrap().requirements.iter().map(|(_, amount)| *amount).collect();
        assert_eq!(held, (1..=count).collect::<Vec<_>>());
        let retry = test.reserve(lease, &asked);
        assert!(matches!(retry, ReserveOutcome::Exists { .. }), "{count}: {retry:?}");
        test.settle(lease, &[]);
        assert!(names[..asked.len()].iter().all(|name| test.reserved(name) == 0), "{count}");
    }
}
