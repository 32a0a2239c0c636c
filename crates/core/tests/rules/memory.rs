//! Resolved leases are remembered for the retention; forgetting them is harmless.

use earmark_core::{
    Command, Complete, CompleteOutcome, Config, LeaseId, LeaseState, Moment, Outcome, Overage, ReserveOutcome,
};

use crate::support::bank::{Bank, credit, issue, open};
use crate::support::step::Step;
use crate::support::test_book::{START, TestBook, concurrency, created, exists, rolling};

fn retention(retention_ms: u64) -> TestBook {
    TestBook::with(Config { retention_ms, ..Config::default() })
}

#[test]
fn a_denial_is_remembered_for_the_retention_and_refused_by_age_after() {
    let mut test = retention(5_000);
    test.put_active(rolling("rpm", 1, 60));
    test.take(&[("rpm", 1)]);
    let (denied, _) = test.denied(&[("rpm", 1)]);
    test.advance(4_999);
    let outcome = test.reserve(denied, &[("rpm", 1)]);
    assert!(matches!(outcome, ReserveOutcome::ExistsDenied(_)), "{outcome:?}");
    test.advance(1);
    assert_eq!(test.info(denied), None, "a read sees it before any command has cleaned it up");
    let too_old = ReserveOutcome::LeaseTooOld { lease_time: denied.time(), forgotten_before: START.plus_ms(1) };
    assert_eq!(test.reserve(denied, &[("rpm", 1)]), too_old);
    assert_eq!(test.complete(denied, &[]), CompleteOutcome::UnknownByAge);
}

#[test]
fn a_completed_lease_is_remembered_from_its_completion_on() {
    let mut test = retention(5_000);
    test.put_active(concurrency("slots", 1, 60));
    let lease = test.take(&[("slots", 1)]);
    test.advance(30_000);
    test.settle(lease, &[]);
    test.advance(4_999);
    assert_eq!(test.complete(lease, &[]), CompleteOutcome::Before);
    assert_eq!(test.reserve(lease, &[("slots", 1)]), ReserveOutcome::LeaseExpired);
    test.advance(1);
    assert_eq!(test.complete(lease, &[]), CompleteOutcome::UnknownByAge);
    assert_eq!(test.book.leases(), 0);
}

#[test]
fn a_lease_made_ahead_of_time_is_remembered_from_its_own_time_on() {
    let mut test = retention(5_000);
    test.put_active(rolling("rpm", 1, 60));
    let ahead = test.lease_from(START.plus_ms(40_000));
    assert_eq!(test.complete(ahead, &[]), CompleteOutcome::Marked);
    test.advance(44_999);
    assert_eq!(test.reserve(ahead, &[("rpm", 1)]), ReserveOutcome::LeaseExpired);
    test.advance(1);
    let lease_time = ahead.time();
    let forgotten_before = lease_time.plus_ms(1);
    let outcome = test.reserve(ahead, &[("rpm", 1)]);
    assert_eq!(outcome, ReserveOutcome::LeaseTooOld { lease_time, forgotten_before });
}

#[test]
fn a_lease_made_ahead_of_time_that_ran_out_is_remembered_from_its_own_time_on_too() {
    let mut test = retention(5_000);
    test.put_active(rolling("rpm", 1, 1));
    let ahead = test.lease_from(START.plus_ms(40_000));
    assert_eq!(test.reserve(ahead, &[("rpm", 1)]), created(START));
    test.advance(44_999);
    test.tick();
    assert_eq!(test.reserve(ahead, &[("rpm", 1)]), ReserveOutcome::LeaseExpired);
    test.advance(1);
    test.tick();
    assert_eq!(test.book.leases(), 0);
}

#[test]
fn a_live_lease_is_never_forgotten_whatever_its_window() {
    let mut test = retention(1_000);
    test.put_active(rolling("day", 10, 86_400));
    let lease = test.take(&[("day", 7)]);
    for _ in 0..23 {
        test.advance(3_600_000);
        test.tick();
        assert_eq!(test.reserve(lease, &[("day", 7)]), exists(START));
    }
    assert_eq!(test.settle(lease, &[("day", 2)]).overages, []);
    assert_eq!(test.reserved("day"), 2);
    // Settled usage lasts to the end of its window, long after the lease is forgotten.
    test.advance(3_500_000);
    test.tick();
    assert_eq!(test.book.leases(), 0);
    assert_eq!(test.reserved("day"), 2);
}

#[test]
fn a_lease_that_ran_out_can_be_completed_for_the_retention_and_up_to_a_second_more() {
    let mut test = retention(5_000);
    test.put_active(concurrency("slots", 1, 10));
    test.advance(300);
    let lease = test.take(&[("slots", 1)]);
    // Its slot ends at 10.3 s and the retention at 15.3 s, so it is forgotten when second 16 begins.
    test.advance(15_699);
    test.tick();
    assert_eq!(test.state(lease), Some(LeaseState::Expired));
    assert_eq!(test.reserve(lease, &[("slots", 1)]), ReserveOutcome::LeaseExpired);
    test.advance(1);
    assert_eq!(test.info(lease), None);
    test.tick();
    assert_eq!(test.book.leases(), 0);
    assert_eq!(test.complete(lease, &[]), CompleteOutcome::UnknownByAge);
}

#[test]
fn forgotten_before_only_moves_forward() {
    let mut test = retention(5_000);
    assert_eq!(test.book.forgotten_before().get(), 0, "before the first command");
    test.put_active(rolling("rpm", 9, 1));
    assert_eq!(test.book.forgotten_before(), START.minus_ms(5_000));
    let newer = test.take(&[("rpm", 1)]);
    test.settle(newer, &[]);
    let older = test.lease_from(START.minus_ms(3_000));
    assert_eq!(test.complete(older, &[]), CompleteOutcome::Marked);
    test.advance(5_000);
    test.tick();
    assert_eq!(test.book.leases(), 0);
    assert_eq!(test.book.forgotten_before(), newer.time().plus_ms(1));
}

#[test]
fn a_book_that_has_forgotten_nothing_refuses_nothing_by_age_but_what_came_before_it() {
    let mut test = retention(5_000);
    test.put_active(rolling("rpm", 9, 1));
    test.advance(3_600_000);
    // The lease is an hour old, but no lease of that hour was ever forgotten.
    let old = test.lease_from(START);
    let reserved_at = test.now();
    assert_eq!(test.reserve(old, &[("rpm", 1)]), created(reserved_at));
}

#[test]
fn a_full_book_refuses_new_leases_and_serves_those_it_knows() {
    let mut test = TestBook::with(Config { leases_max: 3, retention_ms: 5_000, ..Config::default() });
    test.put_active(concurrency("slots", 2, 60));
    let first = test.take(&[("slots", 1)]);
    let second = test.take(&[("slots", 1)]);
    let (denied, _) = test.denied(&[("slots", 1)]);
    assert_eq!(test.book.leases(), 3);
    let refused = test.lease();
    assert_eq!(test.reserve(refused, &[("slots", 1)]), ReserveOutcome::Overloaded);
    assert_eq!(test.complete(refused, &[]), CompleteOutcome::Overloaded);
    assert_eq!(test.info(refused), None);
    // A refusal by key still takes precedence, and known leases are served.
    assert_eq!(test.reserve(refused, &[("no", 1)]), ReserveOutcome::UnknownLimit { requirement: 0 });
    assert_eq!(test.reserve(first, &[("slots", 1)]), exists(START));
    assert_eq!(test.complete(denied, &[]), CompleteOutcome::HeldNothing);
    test.settle(first, &[]);
    test.settle(second, &[]);
    assert_eq!(test.reserve(refused, &[("slots", 1)]), ReserveOutcome::Overloaded, "tombstones count");
    test.advance(5_000);
    test.take(&[("slots", 2)]);
    assert_eq!(test.book.leases(), 1);
}

#[test]
fn a_command_forgets_only_a_few_leases_in_the_order_in_which_they_came() {
    let mut test = retention(1_000);
    test.put_active(rolling("rpm", 1_000, 1));
    let leases: Vec<LeaseId> = (0..100)
        .map(|_| {
            test.advance(1);
            test.take(&[("rpm", 1)])
        })
        .collect();
    for lease in &leases[..50] {
        test.settle(*lease, &[]);
    }
    test.advance(60_000);
    // 50 records and 50 tombstones are due; each command forgets 16 of each.
    for (left, forgotten) in [(68, 66), (36, 82), (4, 98), (0, 100)] {
        test.tick();
        assert_eq!(test.book.leases(), left);
        assert_eq!(test.book.forgotten_before(), leases[forgotten - 1].time().plus_ms(1));
    }
    assert!(leases.iter().all(|lease| test.info(*lease).is_none()));
}

#[test]
fn a_lease_that_is_due_but_not_yet_forgotten_is_still_known_to_commands() {
    let mut test = retention(1_000);
    test.put_active(rolling("rpm", 1_000, 1));
    let leases: Vec<LeaseId> = (0..40).map(|_| test.take(&[("rpm", 1)])).collect();
    for lease in &leases {
        test.settle(*lease, &[]);
    }
    test.advance(60_000);
    let last = leases[39];
    assert_eq!(test.info(last), None);
    assert_eq!(test.complete(last, &[]), CompleteOutcome::Before);
    assert_eq!(test.complete(leases[0], &[]), CompleteOutcome::UnknownByAge);
}

#[test]
fn no_lease_is_ever_allowed_twice() {
    let mut test = retention(2_000);
    test.put_active(rolling("rpm", 1_000, 1));
    let mut leases: Vec<LeaseId> = Vec::new();
    for round in 0_usize..60 {
        leases.push(test.take(&[("rpm", 1)]));
        if round.is_multiple_of(3) {
            test.settle(leases[round], &[]);
        }
        test.advance(250);
        for lease in &leases {
            let outcome = test.reserve(*lease, &[("rpm", 1)]);
            assert!(!matches!(outcome, ReserveOutcome::Created { .. }), "{lease}: {outcome:?}");
        }
    }
}

/// Regression: a complete from a clock one year ahead stayed at the head of the tombstone queue, and nothing behind it
/// was forgotten for a year.
#[test]
fn one_clock_that_is_a_year_ahead_does_not_fill_the_memory_of_all() {
    let mut test = TestBook::with(Config { retention_ms: 5_000, leases_max: 100, ..Config::default() });
    test.put_active(concurrency("slots", 1, 60));
    let a_year = START.plus_ms(365 * 86_400_000);
    let namespace = test.namespace;
    for number in 0..5 {
        let lease = LeaseId::from_parts(a_year, number);
        let (claim, labels) = (earmark_core::LeaseClaim::default(), &earmark_core::SettleLabels::NONE);
        let command = Command::Complete(Complete { namespace, lease, claim, actuals: &[], labels });
        let outcome = test.book.apply(Moment { log: START, wall: a_year }, command);
        assert_eq!(outcome, Outcome::Complete(CompleteOutcome::Marked));
    }
    for _ in 0..1_000 {
        let lease = test.take(&[("slots", 1)]);
        test.settle(lease, &[]);
        test.advance(100);
    }
    assert!(test.book.leases() < 100, "{}", test.book.leases());
    assert!(test.book.forgotten_before() < test.now(), "and nobody else is refused for it");
}

#[test]
fn log_time_moves_forward_only_while_nothing_is_reserved() {
    let mut bank = Bank::new();
    bank.commit(vec![open("acme"), issue("acme", "usd", 100)]);
    bank.test.put_active(credit("usd", "acme", 60, Overage::Debt));
    bank.test.put_active(rolling("rpm", 10, 60));
    let advance = |test: &mut TestBook, by_ms| {
        let to = test.now().plus_ms(by_ms);
        test.apply(&Step::AdvanceTime(to));
        test.book.time() == to
    };
    let rolling = bank.test.take(&[("rpm", 1)]);
    assert!(!advance(&mut bank.test, 3_600_000), "a rolling reservation would expire early");
    bank.test.settle(rolling, &[("rpm", 0)]);
    let held = bank.test.take(&[("usd", 10)]);
    assert!(!advance(&mut bank.test, 3_600_000), "a hold would expire early");
    bank.test.settle(held, &[]);
    assert!(advance(&mut bank.test, 3_600_000));
    assert!(!advance(&mut bank.test, 1_800_000), "it never moves back");
    assert_eq!(bank.test.book.time(), bank.test.now().plus_ms(3_600_000));
}
