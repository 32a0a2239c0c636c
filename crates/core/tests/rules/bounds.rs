//! No call does more than a bounded amount of work, however much falls due at once.

use earmark_core::{Config, LeaseId, ReserveOutcome};

use crate::support::desk::{Desk, concurrency, rolling};

const RESERVATIONS: u64 = 1_000_000;
/// Generous for a walk down a few trees, and far from a walk over all reservations.
const STEPS_MAX: u64 = 256;

fn crowded() -> (Desk, Vec<LeaseId>) {
    let mut desk = Desk::with(Config { retention_ms: 1_000, ..Config::default() });
    desk.has(rolling("rpm", RESERVATIONS, 3_600));
    desk.has(concurrency("slots", RESERVATIONS, 3_600));
    // No two end together, so that nothing can be summed up by its end.
    let leases = (0..RESERVATIONS)
        .map(|_| {
            desk.pass(1);
            desk.take(&[("rpm", 1), ("slots", 1)])
        })
        .collect();
    (desk, leases)
}

fn bounded<T>(desk: &mut Desk, what: &str, call: impl FnOnce(&mut Desk) -> T) -> T {
    let before = desk.book.steps();
    let answer = call(desk);
    let steps = desk.book.steps() - before;
    assert!(steps <= STEPS_MAX, "{what} took {steps} steps, allowed are {STEPS_MAX}");
    answer
}

#[test]
fn a_crowd_that_falls_due_at_once_stalls_no_call() {
    let (mut desk, leases) = crowded();
    desk.pass(2 * 3_600_000);
    let all = [("rpm", RESERVATIONS), ("slots", RESERVATIONS)];
    bounded(&mut desk, "the next reserve", |desk| desk.take(&all));
    bounded(&mut desk, "a denial", |desk| desk.denied(&[("rpm", 1)]));
    let late = leases[leases.len() - 1];
    bounded(&mut desk, "a late complete", |desk| desk.settle(late, &[]));
    let mut ticks = 0;
    // What stays is the reserve, the denial and the late complete.
    while desk.book.leases() > 3 {
        bounded(&mut desk, "a tick", Desk::tick);
        ticks += 1;
        assert!(ticks < RESERVATIONS, "cleaning up comes to an end");
    }
}

#[test]
fn a_crowd_that_falls_due_half_at_a_time_stalls_no_call() {
    let (mut desk, _) = crowded();
    desk.pass(3_600_000 - RESERVATIONS / 2);
    let half = RESERVATIONS / 2;
    assert_eq!(desk.reserved("rpm"), half);
    bounded(&mut desk, "a denial", |desk| desk.denied(&[("rpm", half + 1), ("slots", half + 1)]));
    bounded(&mut desk, "a reserve", |desk| desk.take(&[("rpm", half), ("slots", half)]));
    bounded(&mut desk, "a put", |desk| desk.put(rolling("rpm", half, 3_600)));
    bounded(&mut desk, "a delete", |desk| desk.delete("slots"));
    assert_eq!(desk.reserved("slots"), RESERVATIONS);
}

#[test]
fn a_denial_costs_no_walk_over_all_reservations() {
    let (mut desk, _) = crowded();
    // Even the hint that is the end of the very last of them.
    for amount in [1, 2, RESERVATIONS / 2, RESERVATIONS] {
        bounded(&mut desk, "a denial", |desk| desk.denied(&[("rpm", amount), ("slots", amount)]));
    }
}

#[test]
fn completes_from_the_middle_and_from_both_ends_are_bounded() {
    let (mut desk, leases) = crowded();
    let middle = leases.len() / 2;
    for place in [0, middle, leases.len() - 1, 1, middle + 1, leases.len() - 2] {
        let before = desk.book.steps();
        bounded(&mut desk, "a complete", |desk| desk.settle(leases[place], &[("rpm", 0)]));
        assert!(desk.book.steps() - before >= 2, "the way to two cells is counted");
    }
}

#[test]
fn thirty_two_crowded_limits_in_one_reserve_are_bounded() {
    let mut desk = Desk::new();
    let names: Vec<String> = (0..32).map(|n| format!("limit:{n}")).collect();
    for name in &names {
        desk.has(rolling(name, 5_000, 60));
    }
    let asked: Vec<(&str, u64)> = names.iter().map(|name| (name.as_str(), 1)).collect();
    for _ in 0..5_000 {
        desk.pass(1);
        desk.take(&asked);
    }
    let lease = desk.lease();
    let before = desk.book.steps();
    assert!(matches!(desk.reserve(lease, &asked), ReserveOutcome::Denied(_)));
    desk.pass(120_000);
    desk.take(&asked);
    assert!(desk.book.steps() - before <= STEPS_MAX * 8);
}
