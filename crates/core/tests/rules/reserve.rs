//! Reserve takes everything or nothing, and frees it at the exact time.

use earmark_core::{InvalidParts, LeaseState, ReserveOutcome, TIME_MAX};

use crate::support::desk::{Desk, concurrency, rolling};
use crate::support::step::{by_id, by_key};

#[test]
fn a_denied_reserve_burns_nothing() {
    let mut desk = Desk::new();
    desk.has(rolling("rpm", 10, 60));
    desk.has(rolling("tpm", 100, 60));
    desk.has(concurrency("slots", 5, 30));
    desk.take(&[("rpm", 1), ("tpm", 60), ("slots", 1)]);
    let (_, denial) = desk.denied(&[("rpm", 1), ("tpm", 60), ("slots", 1)]);
    assert_eq!(denial.limited_by, [desk.id("tpm")]);
    assert_eq!((desk.reserved("rpm"), desk.reserved("tpm"), desk.reserved("slots")), (1, 60, 1));
}

#[test]
fn concurrent_requests_cannot_slip_past_a_token_limit() {
    let mut desk = Desk::new();
    desk.has(rolling("tpm", 1_000, 60));
    // All of one instant, none of them settled yet: what counts is what was asked for, not what was used.
    let allowed = (0..100)
        .filter(|_| {
            let lease = desk.lease();
            matches!(desk.reserve(lease, &[("tpm", 30)]), ReserveOutcome::Created { .. })
        })
        .count();
    assert_eq!(allowed, 33);
    assert_eq!(desk.reserved("tpm"), 990);
    desk.take(&[("tpm", 10)]);
    desk.denied(&[("tpm", 1)]);
}

#[test]
fn a_rolling_window_gives_back_at_its_very_end_and_not_a_millisecond_before() {
    let mut desk = Desk::new();
    desk.has(rolling("rpm", 2, 60));
    desk.take(&[("rpm", 1)]);
    desk.pass(10_000);
    desk.take(&[("rpm", 1)]);
    desk.pass(49_999);
    desk.denied(&[("rpm", 1)]);
    desk.pass(1);
    assert_eq!(desk.reserved("rpm"), 1);
    desk.take(&[("rpm", 1)]);
    // No burst at a window's edge: the second of the first two is still there.
    desk.denied(&[("rpm", 1)]);
    desk.pass(10_000);
    desk.take(&[("rpm", 1)]);
}

#[test]
fn a_slot_of_a_crashed_caller_comes_back_after_its_timeout() {
    let mut desk = Desk::new();
    desk.has(concurrency("slots", 1, 30));
    let crashed = desk.take(&[("slots", 1)]);
    desk.pass(29_999);
    desk.denied(&[("slots", 1)]);
    assert_eq!(desk.state(crashed), Some(LeaseState::Live));
    desk.pass(1);
    assert_eq!(desk.state(crashed), Some(LeaseState::Expired));
    desk.take(&[("slots", 1)]);
}

#[test]
fn amounts_count_for_concurrency_too() {
    let mut desk = Desk::new();
    desk.has(concurrency("gpus", 8, 30));
    desk.take(&[("gpus", 5)]);
    desk.denied(&[("gpus", 4)]);
    let lease = desk.take(&[("gpus", 3)]);
    desk.settle(lease, &[]);
    assert_eq!(desk.usage("gpus").available, 3);
}

#[test]
fn what_is_due_counts_as_free_though_nobody_asked_for_hours() {
    let mut desk = Desk::new();
    desk.has(rolling("rpm", 500, 60));
    for _ in 0..500 {
        desk.take(&[("rpm", 1)]);
    }
    desk.pass(60_000);
    desk.take(&[("rpm", 500)]);
    desk.denied(&[("rpm", 1)]);
}

#[test]
fn time_that_goes_back_is_taken_as_standing_still() {
    let mut desk = Desk::new();
    desk.has(rolling("rpm", 1, 60));
    desk.has(concurrency("slots", 1, 30));
    desk.take(&[("rpm", 1)]);
    let latest = desk.now();
    desk.turn_back(600_000);
    desk.denied(&[("rpm", 1)]);
    desk.take(&[("slots", 1)]);
    assert_eq!(desk.book.time(), latest);
    // Reads see the latest time too, and the slot ends 30 s after it.
    assert_eq!(desk.reserved("rpm"), 1);
    assert_eq!(desk.book.usage(latest.plus_ms(29_999), desk.id("slots")).unwrap().reserved, 1);
    assert_eq!(desk.book.usage(latest.plus_ms(30_000), desk.id("slots")).unwrap().reserved, 0);
}

#[test]
fn time_that_stands_still_frees_nothing() {
    let mut desk = Desk::new();
    desk.has(rolling("rpm", 3, 1));
    for _ in 0..3 {
        desk.take(&[("rpm", 1)]);
    }
    for _ in 0..100 {
        desk.denied(&[("rpm", 1)]);
    }
    assert_eq!(desk.reserved("rpm"), 3);
}

#[test]
fn a_read_changes_nothing_however_far_ahead_it_looks() {
    let mut desk = Desk::new();
    let rpm = desk.has(rolling("rpm", 1, 60));
    let lease = desk.take(&[("rpm", 1)]);
    let later = desk.now().plus_ms(400 * 24 * 3_600_000);
    assert_eq!(desk.book.usage(later, rpm).unwrap().reserved, 0);
    assert_eq!(desk.book.lease(later, desk.namespace, lease), None);
    assert_eq!(desk.reserved("rpm"), 1);
    assert_eq!(desk.state(lease), Some(LeaseState::Live));
    desk.denied(&[("rpm", 1)]);
}

#[test]
fn a_window_redefined_while_reservations_live_applies_to_later_ones() {
    let mut desk = Desk::new();
    desk.has(rolling("rpm", 2, 60));
    desk.take(&[("rpm", 1)]);
    desk.has(rolling("rpm", 2, 10));
    desk.take(&[("rpm", 1)]);
    desk.pass(10_000);
    assert_eq!(desk.reserved("rpm"), 1, "the later one, of the shorter window, ends first");
    desk.has(rolling("rpm", 2, 3_600));
    desk.take(&[("rpm", 1)]);
    desk.pass(50_000);
    assert_eq!(desk.reserved("rpm"), 1, "the first one still ends when it was to");
}

#[test]
fn amounts_near_the_largest_number_neither_wrap_nor_vanish() {
    let mut desk = Desk::new();
    desk.has(rolling("big", u64::MAX, 60));
    desk.take(&[("big", u64::MAX - 1)]);
    desk.denied(&[("big", u64::MAX)]);
    desk.denied(&[("big", 2)]);
    desk.take(&[("big", 1)]);
    let usage = desk.usage("big");
    assert_eq!((usage.reserved, usage.available), (u64::MAX, 0));
    desk.denied(&[("big", 1)]);
    desk.pass(60_000);
    desk.take(&[("big", u64::MAX)]);
}

#[test]
fn thirty_two_requirements_are_taken_together_and_thirty_three_are_refused() {
    let mut desk = Desk::new();
    let names: Vec<String> = (0..33).map(|n| format!("limit:{n}")).collect();
    for name in &names {
        desk.has(rolling(name, 2, 60));
    }
    let asked: Vec<(&str, u64)> = names.iter().map(|name| (name.as_str(), 1)).collect();
    let lease = desk.lease();
    let refusal = ReserveOutcome::Invalid(InvalidParts::TooMany { found: 33 });
    assert_eq!(desk.reserve(lease, &asked), refusal);
    let reserved_at = desk.now();
    assert_eq!(desk.reserve(lease, &asked[..32]), ReserveOutcome::Created { reserved_at });
    assert_eq!(desk.info(lease).unwrap().requirements.len(), 32);
    // The last of 32 is enough to deny them all.
    desk.take(&[("limit:31", 1)]);
    let (_, denial) = desk.denied(&asked[..32]);
    assert_eq!(denial.limited_by, [desk.id("limit:31")]);
    assert_eq!(desk.reserved("limit:0"), 1);
    desk.settle(lease, &asked[..32]);
}

#[test]
fn a_malformed_reserve_is_refused_by_what_is_wrong_with_it() {
    let mut desk = Desk::new();
    let rpm = desk.has(rolling("rpm", 10, 60));
    let lease = desk.lease();
    for (parts, invalid) in [
        (vec![], InvalidParts::Empty),
        (vec![by_key("rpm", 0); 33], InvalidParts::TooMany { found: 33 }),
        (vec![by_key("rpm", 1), by_key("no", 0), by_key("rpm", 0)], InvalidParts::AmountZero { part: 1 }),
        (vec![by_key("rpm", 1), by_key("no", 1), by_key("rpm", 2)], InvalidParts::Duplicate { part: 2 }),
        (vec![by_key("rpm", 1), by_id(rpm.0, 1)], InvalidParts::Duplicate { part: 1 }),
        (vec![by_key("no", 1), by_key("no", 1)], InvalidParts::Duplicate { part: 1 }),
        (
            vec![by_key("a", 1), by_key("rpm", 1), by_id(rpm.0, 1), by_key("a", 1)],
            InvalidParts::Duplicate { part: 2 },
        ),
    ] {
        let outcome = desk.reserve_parts(lease, parts.clone());
        assert_eq!(outcome, ReserveOutcome::Invalid(invalid), "{parts:?}");
    }
    assert_eq!(desk.info(lease), None, "none of them used the lease");
    assert_eq!(desk.reserved("rpm"), 0);
}

#[test]
fn a_reserve_that_names_an_unknown_limit_leaves_no_trace() {
    let mut desk = Desk::new();
    desk.has(rolling("rpm", 10, 60));
    let lease = desk.lease();
    let outcome = desk.reserve(lease, &[("rpm", 1), ("tpm", 1)]);
    assert_eq!(outcome, ReserveOutcome::UnknownLimit { requirement: 1 });
    assert_eq!(desk.reserved("rpm"), 0);
    assert_eq!(desk.book.leases(), 0);
    desk.has(rolling("tpm", 10, 60));
    let reserved_at = desk.now();
    let outcome = desk.reserve(lease, &[("rpm", 1), ("tpm", 1)]);
    assert_eq!(outcome, ReserveOutcome::Created { reserved_at });
}

#[test]
fn of_several_unknown_limits_the_first_by_name_is_reported_in_whatever_order_they_come() {
    let mut desk = Desk::new();
    desk.has(rolling("m", 10, 60));
    desk.has(rolling("down", 10, 60));
    desk.take(&[("down", 10)]);
    desk.put(rolling("down", 5, 60));
    let lease = desk.lease();
    for (parts, requirement) in [
        (vec![by_key("x", 1), by_key("m", 1), by_key("b", 1)], 2),
        (vec![by_key("b", 1), by_key("x", 1), by_key("m", 1)], 0),
        // A number that no limit has comes before all names.
        (vec![by_key("a", 1), by_id(77, 1)], 1),
        (vec![by_key("down", 1), by_key("b", 1)], 1),
    ] {
        let outcome = desk.reserve_parts(lease, parts.clone());
        assert_eq!(outcome, ReserveOutcome::UnknownLimit { requirement }, "{parts:?}");
    }
    let outcome = desk.reserve(lease, &[("x", 1), ("down", 1)]);
    assert_eq!(outcome, ReserveOutcome::LimitDecreasing { requirement: 1, retry_after_ms: 10_000 });
}

#[test]
fn a_refusal_by_name_comes_before_a_denial() {
    let mut desk = Desk::new();
    desk.has(rolling("rpm", 1, 60));
    desk.take(&[("rpm", 1)]);
    let lease = desk.lease();
    let outcome = desk.reserve(lease, &[("rpm", 1), ("unknown", 1)]);
    assert_eq!(outcome, ReserveOutcome::UnknownLimit { requirement: 1 });
    assert_eq!(desk.info(lease), None, "the lease is not spent");
}

/// Ends were cut at the latest time there is, so at that time everything ended when it was taken, and a single
/// slot was given to everybody.
#[test]
fn at_the_end_of_time_a_limit_still_holds() {
    let mut desk = Desk::new();
    desk.has(concurrency("slots", 1, 31_622_400));
    desk.pass(u64::MAX);
    let first = desk.lease();
    let created = ReserveOutcome::Created { reserved_at: TIME_MAX };
    assert_eq!(desk.reserve(first, &[("slots", 1)]), created);
    for _ in 0..3 {
        desk.pass(u64::MAX);
        desk.denied(&[("slots", 1)]);
    }
    assert_eq!(desk.reserved("slots"), 1);
}

/// A lease of 12 to 31 requirements that did not fill its last record came back with gaps in the middle and
/// without its end, and completing it freed the wrong limits.
#[test]
fn a_lease_of_any_number_of_requirements_holds_just_these() {
    let names: Vec<String> = (0..32).map(|n| format!("limit:{n:02}")).collect();
    for count in 1..=32_u64 {
        let mut desk = Desk::new();
        let asked: Vec<(&str, u64)> = names.iter().map(String::as_str).zip(1..=count).collect();
        for (name, amount) in &asked {
            desk.has(concurrency(name, *amount, 60));
        }
        let lease = desk.take(&asked);
        let held: Vec<u64> =
            desk.info(lease).unwrap().requirements.iter().map(|(_, amount)| *amount).collect();
        assert_eq!(held, (1..=count).collect::<Vec<_>>());
        let retry = desk.reserve(lease, &asked);
        assert!(matches!(retry, ReserveOutcome::Exists { .. }), "{count}: {retry:?}");
        desk.settle(lease, &[]);
        assert!(names[..asked.len()].iter().all(|name| desk.reserved(name) == 0), "{count}");
    }
}
