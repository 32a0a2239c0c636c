//! The work of one command is bounded, however much expires at once.

use earmark_core::{Config, LeaseId, ReserveOutcome};

use crate::support::test_book::{TestBook, concurrency, rolling};

const RESERVATIONS: u64 = 1_000_000;
/// Enough for a few tree walks, far below a scan of all reservations.
const STEPS_MAX: u64 = 256;

fn crowded() -> (TestBook, Vec<LeaseId>) {
    let mut test = TestBook::with(Config { retention_ms: 1_000, ..Config::default() });
    test.put_active(rolling("rpm", RESERVATIONS, 3_600));
    test.put_active(concurrency("slots", RESERVATIONS, 3_600));
    // All expiry times differ, so nothing can be summed by slot.
    let leases = (0..RESERVATIONS)
        .map(|_| {
            test.advance(1);
            test.take(&[("rpm", 1), ("slots", 1)])
        })
        .collect();
    (test, leases)
}

fn bounded<T>(test: &mut TestBook, what: &str, call: impl FnOnce(&mut TestBook) -> T) -> T {
    let before = test.book.steps();
    let answer = call(test);
    let steps = test.book.steps() - before;
    assert!(steps <= STEPS_MAX, "{what} took {steps} steps, allowed are {STEPS_MAX}");
    answer
}

#[test]
fn a_crowd_that_falls_due_at_once_stalls_no_call() {
    let (mut test, leases) = crowded();
    test.advance(2 * 3_600_000);
    let all = [("rpm", RESERVATIONS), ("slots", RESERVATIONS)];
    bounded(&mut test, "the next reserve", |test| test.take(&all));
    bounded(&mut test, "a denial", |test| test.denied(&[("rpm", 1)]));
    let late = leases[leases.len() - 1];
    bounded(&mut test, "a late complete", |test| test.settle(late, &[]));
    let mut ticks = 0;
    // The reserve, the denial and the late complete remain.
    while test.book.leases() > 3 {
        bounded(&mut test, "a tick", TestBook::tick);
        ticks += 1;
        assert!(ticks < RESERVATIONS, "cleaning up comes to an end");
    }
}

#[test]
fn a_crowd_that_falls_due_half_at_a_time_stalls_no_call() {
    let (mut test, _) = crowded();
    test.advance(3_600_000 - RESERVATIONS / 2);
    let half = RESERVATIONS / 2;
    assert_eq!(test.reserved("rpm"), half);
    bounded(&mut test, "a denial", |test| test.denied(&[("rpm", half + 1), ("slots", half + 1)]));
    bounded(&mut test, "a reserve", |test| test.take(&[("rpm", half), ("slots", half)]));
    bounded(&mut test, "a put", |test| test.put(rolling("rpm", half, 3_600)));
    bounded(&mut test, "a delete", |test| test.delete("slots"));
    assert_eq!(test.reserved("slots"), RESERVATIONS);
}

#[test]
fn a_denial_costs_no_walk_over_all_reservations() {
    let (mut test, _) = crowded();
    // This includes the hint that is the expiry of the last reservation.
    for amount in [1, 2, RESERVATIONS / 2, RESERVATIONS] {
        bounded(&mut test, "a denial", |test| test.denied(&[("rpm", amount), ("slots", amount)]));
    }
}

#[test]
fn completes_from_the_middle_and_from_both_ends_are_bounded() {
    let (mut test, leases) = crowded();
    let middle = leases.len() / 2;
    for place in [0, middle, leases.len() - 1, 1, middle + 1, leases.len() - 2] {
        let before = test.book.steps();
        bounded(&mut test, "a complete", |test| test.settle(leases[place], &[("rpm", 0)]));
        assert!(test.book.steps() - before >= 2, "the way to two cells is counted");
    }
}

#[test]
fn thirty_two_crowded_limits_in_one_reserve_are_bounded() {
    let mut test = TestBook::new();
    let names: Vec<String> = (0..32).map(|n| format!("limit:{n}")).collect();
    for name in &names {
        test.put_active(rolling(name, 5_000, 60));
    }
    let asked: Vec<(&str, u64)> = names.iter().map(|name| (name.as_str(), 1)).collect();
    for _ in 0..5_000 {
        test.advance(1);
        test.take(&asked);
    }
    let lease = test.lease();
    let before = test.book.steps();
    assert!(matches!(test.reserve(lease, &asked), ReserveOutcome::Denied(_)));
    test.advance(120_000);
    test.take(&asked);
    assert!(test.book.steps() - before <= STEPS_MAX * 8);
}
