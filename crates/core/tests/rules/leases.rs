//! One lease is one attempt, however often it arrives.

use earmark_core::{CompleteOutcome, Config, Denial, JobId, LeaseInfo, LeaseState, ReserveOutcome};

use crate::support::snapshot::{restore, snapshot};
use crate::support::step::{by_id, by_key};
use crate::support::test_book::{START, TestBook, concurrency, created, exists, rolling};

#[test]
fn a_retry_takes_nothing_twice_and_answers_with_the_original_time() {
    let mut test = TestBook::new();
    test.put_active(rolling("rpm", 10, 60));
    let lease = test.take(&[("rpm", 3)]);
    test.advance(5_000);
    for _ in 0..3 {
        assert_eq!(test.reserve(lease, &[("rpm", 3)]), exists(START));
    }
    assert_eq!(test.reserved("rpm"), 3);
}

#[test]
fn a_retry_in_another_order_or_by_number_is_the_same_retry() {
    let mut test = TestBook::new();
    let rpm = test.put_active(rolling("rpm", 10, 60));
    let tpm = test.put_active(rolling("tpm", 10, 60));
    let lease = test.take(&[("rpm", 1), ("tpm", 2)]);
    for parts in [
        vec![by_key("tpm", 2), by_key("rpm", 1)],
        vec![by_id(tpm, 2), by_key("rpm", 1)],
        vec![by_id(rpm, 1), by_id(tpm, 2)],
    ] {
        let outcome = test.reserve_parts(lease, parts.clone());
        assert_eq!(outcome, exists(START), "{parts:?}");
    }
    let expected = LeaseInfo {
        reserved_at: Some(START),
        requirements: vec![(rpm, 1), (tpm, 2)],
        state: LeaseState::Live,
        job: None,
        extensions: 0,
        used: Vec::new(),
        ends_at: None,
        call: None,
        by_gateway: false,
        has_credit: false,
    };
    assert_eq!(test.info(lease), Some(expected));
}

#[test]
fn a_retry_with_another_body_is_refused() {
    let mut test = TestBook::new();
    test.put_active(rolling("rpm", 10, 60));
    test.put_active(rolling("tpm", 10, 60));
    let allowed = test.take(&[("rpm", 1), ("tpm", 2)]);
    let completed = test.take(&[("rpm", 1), ("tpm", 2)]);
    test.settle(completed, &[]);
    let (denied, _) = test.denied(&[("rpm", 1), ("tpm", 20)]);
    for lease in [allowed, completed, denied] {
        for body in [
            &[("rpm", 1)][..],
            &[("rpm", 2), ("tpm", 1)],
            &[("rpm", 1), ("tpm", 3)],
            &[("rpm", 1), ("tpm", 2), ("new", 1)],
            &[("rpm", 1), ("new", 2)],
        ] {
            let outcome = test.reserve(lease, body);
            assert_eq!(outcome, ReserveOutcome::ExistsWithOtherRequirements, "{body:?}");
        }
    }
    assert_eq!((test.reserved("rpm"), test.reserved("tpm")), (2, 4));
}

/// Regression: a resolved lease keeps a hash of its requirements. An early hash mixed limit and amount so that single
/// bits cancelled out: a lease denied for 1 of `a` and 2 of `d` matched a retry for 1 of `b` and 3 of `d`.
#[test]
fn no_two_small_bodies_are_taken_for_one_another() {
    let mut test = TestBook::new();
    let names = ["a", "b", "c", "d", "e", "f"];
    for name in names {
        test.put_active(rolling(name, u64::MAX, 60));
    }
    let one = |name, amount| vec![(name, amount)];
    let mut bodies: Vec<Vec<(&str, u64)>> = Vec::new();
    for (place, first) in names.iter().enumerate() {
        bodies.extend((1..5).map(|amount| one(*first, amount)));
        for second in &names[place + 1..] {
            let amounts = (1..5).flat_map(|a| (1..5).map(move |b| (a, b)));
            bodies.extend(amounts.map(|(a, b)| vec![(*first, a), (*second, b)]));
        }
    }
    for body in &bodies {
        let lease = test.take(body);
        test.settle(lease, &[]);
        for other in &bodies {
            let expected = match other == body {
                true => ReserveOutcome::LeaseExpired,
                false => ReserveOutcome::ExistsWithOtherRequirements,
            };
            assert_eq!(test.reserve(lease, other), expected, "{body:?}, then {other:?}");
        }
    }
}

#[test]
fn a_denied_lease_stays_denied_even_when_it_would_fit() {
    let mut test = TestBook::new();
    test.put_active(rolling("rpm", 1, 60));
    test.take(&[("rpm", 1)]);
    let (denied, denial) = test.denied(&[("rpm", 1)]);
    test.advance(60_000);
    assert_eq!(test.usage("rpm").available, 1);
    let again = Denial { retry_after_ms: 0, ..denial };
    assert_eq!(test.reserve(denied, &[("rpm", 1)]), ReserveOutcome::ExistsDenied(again));
    assert_eq!(test.reserved("rpm"), 0);
    assert_eq!(test.state(denied), Some(LeaseState::Denied));
    test.take(&[("rpm", 1)]);
}

#[test]
fn a_denied_lease_that_asks_again_is_told_the_rest_of_the_wait_and_the_worst_limit() {
    let mut test = TestBook::new();
    test.put_active(concurrency("slots", 1, 30));
    test.put_active(rolling("rpm", 1, 60));
    let taken = test.take(&[("slots", 1), ("rpm", 1)]);
    let (denied, denial) = test.denied(&[("slots", 1), ("rpm", 1)]);
    assert_eq!((denial.retry_after_ms, denial.limited_by.len()), (5_000, 2));
    test.settle(taken, &[]);
    for (passed, retry_after_ms) in [(0, 5_000), (1_500, 3_500), (3_499, 1), (1, 0), (90_000, 0)] {
        test.advance(passed);
        let again = Denial { retry_after_ms, limited_by: vec![0], never: false };
        let outcome = test.reserve(denied, &[("rpm", 1), ("slots", 1)]);
        assert_eq!(outcome, ReserveOutcome::ExistsDenied(again));
    }
}

#[test]
fn a_lease_that_could_never_fit_is_told_so_again() {
    let mut test = TestBook::new();
    test.put_active(rolling("rpm", 5, 60));
    let (lease, denial) = test.denied(&[("rpm", 6)]);
    let never = Denial { retry_after_ms: 60_000, limited_by: vec![0], never: true };
    assert_eq!(denial, never);
    // A larger capacity does not change the decision.
    test.put_active(rolling("rpm", 50, 60));
    assert_eq!(test.reserve(lease, &[("rpm", 6)]), ReserveOutcome::ExistsDenied(never));
}

#[test]
fn a_late_reserve_after_complete_takes_no_slot() {
    let mut test = TestBook::new();
    test.put_active(concurrency("slots", 1, 3_600));
    // The caller completes while its reserve is still in flight.
    let lease = test.lease();
    assert_eq!(test.complete(lease, &[("slots", 1)]), CompleteOutcome::Marked);
    test.advance(200);
    assert_eq!(test.reserve(lease, &[("slots", 1)]), ReserveOutcome::LeaseExpired);
    assert_eq!(test.reserved("slots"), 0);
    assert_eq!(test.complete(lease, &[]), CompleteOutcome::HeldNothing);
    let info = test.info(lease).unwrap();
    assert_eq!((info.state, info.reserved_at), (LeaseState::Completed, None));
    test.take(&[("slots", 1)]);
}

#[test]
fn a_completed_lease_cannot_be_reserved_again() {
    let mut test = TestBook::new();
    test.put_active(concurrency("slots", 1, 30));
    let lease = test.take(&[("slots", 1)]);
    test.settle(lease, &[]);
    assert_eq!(test.reserve(lease, &[("slots", 1)]), ReserveOutcome::LeaseExpired);
    assert_eq!(test.reserved("slots"), 0);
    let info = test.info(lease).unwrap();
    assert_eq!((info.state, info.reserved_at), (LeaseState::Completed, Some(START)));
    assert_eq!(info.requirements, []);
}

#[test]
fn a_lease_of_which_one_part_ran_out_is_expired_and_can_still_settle_the_rest() {
    let mut test = TestBook::new();
    test.put_active(concurrency("slots", 1, 10));
    test.put_active(rolling("tpm", 100, 60));
    let lease = test.take(&[("slots", 1), ("tpm", 50)]);
    test.advance(9_999);
    let asked = [("slots", 1), ("tpm", 50)];
    assert_eq!(test.reserve(lease, &asked), exists(START));
    test.advance(1);
    assert_eq!(test.reserve(lease, &asked), ReserveOutcome::LeaseExpired);
    assert_eq!(test.state(lease), Some(LeaseState::Expired));
    assert_eq!((test.reserved("slots"), test.reserved("tpm")), (0, 50));
    // Another lease has the slot now; the late complete must not free it.
    test.take(&[("slots", 1)]);
    assert_eq!(test.settle(lease, &[("tpm", 20)]).overages, []);
    assert_eq!((test.reserved("slots"), test.reserved("tpm")), (1, 20));
}

#[test]
fn a_retry_still_names_a_limit_that_was_deleted_meanwhile() {
    let mut test = TestBook::new();
    let rpm = test.put_active(rolling("rpm", 1, 60));
    let (denied, _) = test.denied(&[("rpm", 2)]);
    test.delete("rpm");
    assert_eq!(test.book.limit(test.now(), rpm), None);
    let outcome = test.reserve(denied, &[("rpm", 2)]);
    assert!(matches!(outcome, ReserveOutcome::ExistsDenied(_)), "{outcome:?}");
}

#[test]
fn a_lease_from_the_future_is_refused_with_both_times() {
    let mut test = TestBook::new();
    test.put_active(rolling("rpm", 10, 60));
    let wall = test.now();
    let lease_time = wall.plus_ms(60_001);
    let lease = test.lease_from(lease_time);
    let outcome = test.reserve(lease, &[("rpm", 1)]);
    assert_eq!(outcome, ReserveOutcome::LeaseInFuture { lease_time, wall });
    assert_eq!(test.complete(lease, &[]), CompleteOutcome::UnknownByAge);
    assert_eq!(test.book.leases(), 0);
    let lease = test.lease_from(wall.plus_ms(60_000));
    assert_eq!(test.reserve(lease, &[("rpm", 1)]), created(wall));
}

#[test]
fn a_lease_that_may_have_been_forgotten_is_refused_with_both_times() {
    let mut test = TestBook::new();
    test.put_active(rolling("rpm", 10, 60));
    // Leases older than the first command minus the retention are refused.
    let forgotten_before = START.minus_ms(900_000);
    assert_eq!(test.book.forgotten_before(), forgotten_before);
    let lease_time = forgotten_before.minus_ms(1);
    let lease = test.lease_from(lease_time);
    let outcome = test.reserve(lease, &[("rpm", 1)]);
    assert_eq!(outcome, ReserveOutcome::LeaseTooOld { lease_time, forgotten_before });
    assert_eq!(test.complete(lease, &[]), CompleteOutcome::UnknownByAge);
    let lease = test.lease_from(forgotten_before);
    assert_eq!(test.reserve(lease, &[("rpm", 1)]), created(START));
}

#[test]
fn a_lease_keeps_the_job_of_its_first_reserve_until_it_is_forgotten() {
    let mut test = TestBook::with(Config { retention_ms: 5_000, ..Config::default() });
    test.put_active(rolling("rpm", 1, 1));
    let job = |name: &str| Some(JobId::new(name).unwrap());
    test.job = job("first");
    let allowed = test.take(&[("rpm", 1)]);
    let (denied, _) = test.denied(&[("rpm", 1)]);
    test.job = job("other");
    // A retry with another job is the same reserve.
    assert!(matches!(test.reserve(allowed, &[("rpm", 1)]), ReserveOutcome::Exists { .. }));
    assert!(matches!(test.reserve(denied, &[("rpm", 1)]), ReserveOutcome::ExistsDenied(_)));
    test.job = None;
    let without = test.lease();
    test.reserve(without, &[("rpm", 1)]);
    test.complete(allowed, &[]);
    let bytes = snapshot(&mut test.book);
    test.book = restore(&bytes, 11, 7).unwrap();
    let shown = |test: &TestBook, lease| test.info(lease).map(|info| info.job);
    assert_eq!(shown(&test, allowed), Some(job("first")));
    assert_eq!(shown(&test, denied), Some(job("first")));
    assert_eq!(shown(&test, without), Some(None));
    test.advance(60_000);
    test.tick();
    assert_eq!((test.book.leases(), shown(&test, allowed)), (0, None));
    // Nothing of the jobs is left.
    let bytes = snapshot(&mut test.book);
    assert!(!bytes.windows(5).any(|window| window == b"first"));
}
