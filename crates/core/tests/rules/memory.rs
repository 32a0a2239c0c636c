//! What is resolved is remembered for the retention, and what is forgotten can do no harm.

use earmark_core::{
    Command, Complete, CompleteOutcome, Config, LeaseId, LeaseState, Outcome, ReserveOutcome,
};

use crate::support::desk::{Desk, START, concurrency, rolling};

fn retention(retention_ms: u64) -> Desk {
    Desk::with(Config { retention_ms, ..Config::default() })
}

#[test]
fn a_denial_is_remembered_for_the_retention_and_refused_by_age_after() {
    let mut desk = retention(5_000);
    desk.has(rolling("rpm", 1, 60));
    desk.take(&[("rpm", 1)]);
    let (denied, _) = desk.denied(&[("rpm", 1)]);
    desk.pass(4_999);
    let outcome = desk.reserve(denied, &[("rpm", 1)]);
    assert!(matches!(outcome, ReserveOutcome::ExistsDenied(_)), "{outcome:?}");
    desk.pass(1);
    assert_eq!(desk.info(denied), None, "a read sees it before any command has cleaned it up");
    let too_old =
        ReserveOutcome::LeaseTooOld { lease_time: denied.time(), forgotten_before: START.plus_ms(1) };
    assert_eq!(desk.reserve(denied, &[("rpm", 1)]), too_old);
    assert_eq!(desk.complete(denied, &[]), CompleteOutcome::UnknownByAge);
}

#[test]
fn a_completed_lease_is_remembered_from_its_completion_on() {
    let mut desk = retention(5_000);
    desk.has(concurrency("slots", 1, 60));
    let lease = desk.take(&[("slots", 1)]);
    desk.pass(30_000);
    desk.settle(lease, &[]);
    desk.pass(4_999);
    assert_eq!(desk.complete(lease, &[]), CompleteOutcome::Before);
    assert_eq!(desk.reserve(lease, &[("slots", 1)]), ReserveOutcome::LeaseExpired);
    desk.pass(1);
    assert_eq!(desk.complete(lease, &[]), CompleteOutcome::UnknownByAge);
    assert_eq!(desk.book.leases(), 0);
}

#[test]
fn a_lease_made_ahead_of_time_is_remembered_from_its_own_time_on() {
    let mut desk = retention(5_000);
    desk.has(rolling("rpm", 1, 60));
    let ahead = desk.lease_from(START.plus_ms(40_000));
    assert_eq!(desk.complete(ahead, &[]), CompleteOutcome::Marked);
    desk.pass(44_999);
    assert_eq!(desk.reserve(ahead, &[("rpm", 1)]), ReserveOutcome::LeaseExpired);
    desk.pass(1);
    let lease_time = ahead.time();
    let forgotten_before = lease_time.plus_ms(1);
    let outcome = desk.reserve(ahead, &[("rpm", 1)]);
    assert_eq!(outcome, ReserveOutcome::LeaseTooOld { lease_time, forgotten_before });
}

#[test]
fn a_lease_made_ahead_of_time_that_ran_out_is_remembered_from_its_own_time_on_too() {
    let mut desk = retention(5_000);
    desk.has(rolling("rpm", 1, 1));
    let ahead = desk.lease_from(START.plus_ms(40_000));
    assert_eq!(desk.reserve(ahead, &[("rpm", 1)]), ReserveOutcome::Created { reserved_at: START });
    desk.pass(44_999);
    desk.tick();
    assert_eq!(desk.reserve(ahead, &[("rpm", 1)]), ReserveOutcome::LeaseExpired);
    desk.pass(1);
    desk.tick();
    assert_eq!(desk.book.leases(), 0);
}

#[test]
fn a_live_lease_is_never_forgotten_whatever_its_window() {
    let mut desk = retention(1_000);
    desk.has(rolling("day", 10, 86_400));
    let lease = desk.take(&[("day", 7)]);
    for _ in 0..23 {
        desk.pass(3_600_000);
        desk.tick();
        assert_eq!(desk.reserve(lease, &[("day", 7)]), ReserveOutcome::Exists { reserved_at: START });
    }
    assert_eq!(desk.settle(lease, &[("day", 2)]).overages, []);
    assert_eq!(desk.reserved("day"), 2);
    // What it settled goes on to the end of its window, long after the lease itself is forgotten.
    desk.pass(3_500_000);
    desk.tick();
    assert_eq!(desk.book.leases(), 0);
    assert_eq!(desk.reserved("day"), 2);
}

#[test]
fn a_lease_that_ran_out_can_be_completed_for_the_retention_and_up_to_a_second_more() {
    let mut desk = retention(5_000);
    desk.has(concurrency("slots", 1, 10));
    desk.pass(300);
    let lease = desk.take(&[("slots", 1)]);
    // Its slot ends at 10.3 s, and the retention at 15.3 s: it is forgotten as second 16 begins.
    desk.pass(15_699);
    desk.tick();
    assert_eq!(desk.state(lease), Some(LeaseState::Expired));
    assert_eq!(desk.reserve(lease, &[("slots", 1)]), ReserveOutcome::LeaseExpired);
    desk.pass(1);
    assert_eq!(desk.info(lease), None);
    desk.tick();
    assert_eq!(desk.book.leases(), 0);
    assert_eq!(desk.complete(lease, &[]), CompleteOutcome::UnknownByAge);
}

#[test]
fn forgotten_before_only_moves_forward() {
    let mut desk = retention(5_000);
    assert_eq!(desk.book.forgotten_before().get(), 0, "before the first command");
    desk.has(rolling("rpm", 9, 1));
    assert_eq!(desk.book.forgotten_before(), START.minus_ms(5_000));
    let newer = desk.take(&[("rpm", 1)]);
    desk.settle(newer, &[]);
    let older = desk.lease_from(START.minus_ms(3_000));
    assert_eq!(desk.complete(older, &[]), CompleteOutcome::Marked);
    desk.pass(5_000);
    desk.tick();
    assert_eq!(desk.book.leases(), 0);
    assert_eq!(desk.book.forgotten_before(), newer.time().plus_ms(1));
}

#[test]
fn a_book_that_has_forgotten_nothing_refuses_nothing_by_age_but_what_came_before_it() {
    let mut desk = retention(5_000);
    desk.has(rolling("rpm", 9, 1));
    desk.pass(3_600_000);
    // An hour old, but nothing from that hour was ever forgotten.
    let old = desk.lease_from(START);
    let reserved_at = desk.now();
    assert_eq!(desk.reserve(old, &[("rpm", 1)]), ReserveOutcome::Created { reserved_at });
}

#[test]
fn a_full_book_refuses_new_leases_and_serves_those_it_knows() {
    let mut desk = Desk::with(Config { leases_max: 3, retention_ms: 5_000, ..Config::default() });
    desk.has(concurrency("slots", 2, 60));
    let first = desk.take(&[("slots", 1)]);
    let second = desk.take(&[("slots", 1)]);
    let (denied, _) = desk.denied(&[("slots", 1)]);
    assert_eq!(desk.book.leases(), 3);
    let refused = desk.lease();
    assert_eq!(desk.reserve(refused, &[("slots", 1)]), ReserveOutcome::Overloaded);
    assert_eq!(desk.complete(refused, &[]), CompleteOutcome::Overloaded);
    assert_eq!(desk.info(refused), None);
    // A refusal by name still comes first, and the leases it knows are served.
    assert_eq!(desk.reserve(refused, &[("no", 1)]), ReserveOutcome::UnknownLimit { requirement: 0 });
    assert_eq!(desk.reserve(first, &[("slots", 1)]), ReserveOutcome::Exists { reserved_at: START });
    assert_eq!(desk.complete(denied, &[]), CompleteOutcome::HeldNothing);
    desk.settle(first, &[]);
    desk.settle(second, &[]);
    assert_eq!(desk.reserve(refused, &[("slots", 1)]), ReserveOutcome::Overloaded, "tombstones count");
    desk.pass(5_000);
    desk.take(&[("slots", 2)]);
    assert_eq!(desk.book.leases(), 1);
}

#[test]
fn a_command_forgets_only_a_few_leases_in_the_order_in_which_they_came() {
    let mut desk = retention(1_000);
    desk.has(rolling("rpm", 1_000, 1));
    let leases: Vec<LeaseId> = (0..100)
        .map(|_| {
            desk.pass(1);
            desk.take(&[("rpm", 1)])
        })
        .collect();
    for lease in &leases[..50] {
        desk.settle(*lease, &[]);
    }
    desk.pass(60_000);
    // 50 records and 50 tombstones are due; every command forgets 16 of each.
    for (left, forgotten) in [(68, 66), (36, 82), (4, 98), (0, 100)] {
        desk.tick();
        assert_eq!(desk.book.leases(), left);
        assert_eq!(desk.book.forgotten_before(), leases[forgotten - 1].time().plus_ms(1));
    }
    assert!(leases.iter().all(|lease| desk.info(*lease).is_none()));
}

#[test]
fn a_lease_that_is_due_but_not_yet_forgotten_is_still_known_to_commands() {
    let mut desk = retention(1_000);
    desk.has(rolling("rpm", 1_000, 1));
    let leases: Vec<LeaseId> = (0..40).map(|_| desk.take(&[("rpm", 1)])).collect();
    for lease in &leases {
        desk.settle(*lease, &[]);
    }
    desk.pass(60_000);
    let last = leases[39];
    assert_eq!(desk.info(last), None);
    assert_eq!(desk.complete(last, &[]), CompleteOutcome::Before);
    assert_eq!(desk.complete(leases[0], &[]), CompleteOutcome::UnknownByAge);
}

#[test]
fn no_lease_is_ever_allowed_twice() {
    let mut desk = retention(2_000);
    desk.has(rolling("rpm", 1_000, 1));
    let mut leases: Vec<LeaseId> = Vec::new();
    for round in 0_usize..60 {
        leases.push(desk.take(&[("rpm", 1)]));
        if round.is_multiple_of(3) {
            desk.settle(leases[round], &[]);
        }
        desk.pass(250);
        for lease in &leases {
            let outcome = desk.reserve(*lease, &[("rpm", 1)]);
            assert!(!matches!(outcome, ReserveOutcome::Created { .. }), "{lease}: {outcome:?}");
        }
    }
}

/// A single complete that came with a clock a year ahead stood at the head of the queue of tombstones, and none
/// behind it was forgotten for a year.
#[test]
fn one_clock_that_is_a_year_ahead_does_not_fill_the_memory_of_all() {
    let mut desk = Desk::with(Config { retention_ms: 5_000, leases_max: 100, ..Config::default() });
    desk.has(concurrency("slots", 1, 60));
    let a_year = START.plus_ms(365 * 86_400_000);
    let namespace = desk.namespace;
    for number in 0..5 {
        let lease = LeaseId::from_parts(a_year, number);
        let command = Command::Complete(Complete { namespace, lease, wall: a_year, actuals: &[] });
        let outcome = desk.book.apply(START, command);
        assert_eq!(outcome, Outcome::Complete(CompleteOutcome::Marked));
    }
    for _ in 0..1_000 {
        let lease = desk.take(&[("slots", 1)]);
        desk.settle(lease, &[]);
        desk.pass(100);
    }
    assert!(desk.book.leases() < 100, "{}", desk.book.leases());
    assert!(desk.book.forgotten_before() < desk.now(), "and nobody else is refused for it");
}
