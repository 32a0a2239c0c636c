//! Calls and owners: a lease remembers the call it was reserved for, and a gateway's lease is the gateway's.

use earmark_core::{
    CallMark, CompleteOutcome, ExtendOutcome, ExtendStep, LeaseClaim, LeaseId, LimitRef, Outcome, Part, RequirementSet,
    ReserveOutcome, SettleLabels,
};

use crate::support::snapshot::{restored, snapshot};
use crate::support::step::Step;
use crate::support::test_book::{START, TestBook, concurrency, created, renew, rolling};

const CALL: CallMark = CallMark { attributes: 7, bounds: 8, policy_revision: 3 };
const GATEWAY: LeaseClaim = LeaseClaim { attributes: None, by_gateway: true };

fn claim(attributes: u32) -> LeaseClaim {
    LeaseClaim { attributes: Some(attributes), by_gateway: false }
}

fn book() -> TestBook {
    let mut test = TestBook::new();
    test.put_active(rolling("tpm", 100, 60));
    test.put_active(rolling("rpm", 100, 60));
    test.put_active(concurrency("calls", 2, 10));
    test
}

fn part(name: &str, amount: u64) -> Part {
    Part { limit: LimitRef::Key(name.parse().unwrap()), amount }
}

fn reserve(
    test: &mut TestBook,
    lease: LeaseId,
    (call, by_gateway): (Option<CallMark>, bool),
    requirements: Vec<Part>,
) -> ReserveOutcome {
    let namespace = test.namespace;
    match test.apply(&Step::Reserve { namespace, lease, job: None, call, by_gateway, requirements }) {
        Outcome::Reserve(outcome) => outcome,
        other => panic!("{other:?}"),
    }
}

fn complete(test: &mut TestBook, lease: LeaseId, claim: LeaseClaim, amount: u64) -> CompleteOutcome {
    let (namespace, actuals) = (test.namespace, vec![part("tpm", amount)]);
    match test.apply(&Step::Complete { namespace, lease, claim, actuals, labels: SettleLabels::NONE }) {
        Outcome::Complete(outcome) => outcome,
        other => panic!("{other:?}"),
    }
}

fn extend(test: &mut TestBook, lease: LeaseId, number: u32, claim: LeaseClaim) -> ExtendOutcome {
    let (namespace, step) = (test.namespace, ExtendStep::Whole);
    let (add, used) = (vec![part("tpm", 1)], Vec::new());
    match test.apply(&Step::Extend { namespace, lease, number, add, used, renew: true, step, claim }) {
        Outcome::Extend(outcome) => outcome,
        other => panic!("{other:?}"),
    }
}

fn first_answer(policy_revision: u64) -> ReserveOutcome {
    let would_deny = RequirementSet::default();
    ReserveOutcome::Exists { reserved_at: START, would_deny, policy_revision: Some(policy_revision) }
}

/// A policy that changes between a call and its retry must not take twice, nor refuse the retry.
#[test]
fn a_retried_call_with_a_newer_policy_gets_its_first_answer_and_revision() {
    let mut test = book();
    let lease = test.lease();
    assert_eq!(reserve(&mut test, lease, (Some(CALL), false), vec![part("tpm", 10)]), created(START));
    let newer = CallMark { policy_revision: 4, ..CALL };
    for _ in 0..2 {
        let again = reserve(&mut test, lease, (Some(newer), false), vec![part("rpm", 1), part("tpm", 99)]);
        assert_eq!(again, first_answer(3));
        assert_eq!((test.reserved("tpm"), test.reserved("rpm")), (10, 0));
        test.book = restored(&mut test.book);
    }
    assert!(matches!(extend(&mut test, lease, 1, claim(7)), ExtendOutcome::Extended(_)));
    assert_eq!(reserve(&mut test, lease, (Some(newer), false), vec![part("rpm", 1)]), first_answer(3));
    assert!(matches!(complete(&mut test, lease, claim(7), 2), CompleteOutcome::Completed(_)));
    assert_eq!(reserve(&mut test, lease, (Some(newer), false), vec![part("rpm", 1)]), ReserveOutcome::LeaseExpired);
    assert_eq!(test.info(lease).unwrap().call, Some(CALL));
}

#[test]
fn a_lease_of_a_call_is_refused_to_other_calls_and_to_callers_that_name_limits() {
    let mut test = book();
    let (lease, raw) = (test.lease(), test.lease());
    let parts = || vec![part("tpm", 10)];
    assert_eq!(reserve(&mut test, lease, (Some(CALL), false), parts()), created(START));
    assert_eq!(reserve(&mut test, raw, (None, false), parts()), created(START));
    let denied = test.lease();
    let too_much = || vec![part("tpm", 90)];
    assert!(matches!(reserve(&mut test, denied, (Some(CALL), false), too_much()), ReserveOutcome::Denied(_)));
    let other = ReserveOutcome::ExistsWithOtherRequirements;
    for call in [None, Some(CallMark { attributes: 6, ..CALL }), Some(CallMark { bounds: 9, ..CALL })] {
        assert_eq!(reserve(&mut test, lease, (call, false), parts()), other, "{call:?}");
        assert_eq!(reserve(&mut test, denied, (call, false), too_much()), other, "{call:?}");
    }
    assert_eq!(reserve(&mut test, raw, (Some(CALL), false), parts()), other);
    let newer = Some(CallMark { policy_revision: 9, ..CALL });
    // The limit in the way is one of the first requirements, so another revision must not name it.
    let by_first = ReserveOutcome::ExistsDeniedByPolicy { policy_revision: CALL.policy_revision };
    assert_eq!(reserve(&mut test, denied, (newer, false), parts()), by_first);
    assert!(matches!(reserve(&mut test, denied, (Some(CALL), false), too_much()), ReserveOutcome::ExistsDenied(_)));
}

#[test]
fn a_claim_for_other_attributes_changes_nothing_and_a_caller_that_names_limits_completes_a_call() {
    let mut test = book();
    let (lease, raw) = (test.lease(), test.lease());
    reserve(&mut test, lease, (Some(CALL), false), vec![part("tpm", 10), part("calls", 1)]);
    reserve(&mut test, raw, (None, false), vec![part("tpm", 10)]);
    let before = snapshot(&mut test.book);
    assert_eq!(extend(&mut test, lease, 1, claim(8)), ExtendOutcome::OtherCall);
    assert_eq!(complete(&mut test, lease, claim(8), 1), CompleteOutcome::OtherCall);
    assert_eq!(extend(&mut test, raw, 1, claim(7)), ExtendOutcome::OtherCall);
    assert_eq!(complete(&mut test, raw, claim(7), 1), CompleteOutcome::OtherCall);
    assert_eq!(snapshot(&mut test.book), before);
    assert!(matches!(test.extend(lease, 1, renew()), ExtendOutcome::Extended(_)));
    assert!(matches!(test.complete(lease, &[("tpm", 1)]), CompleteOutcome::Completed(_)));
    // The end of a call is remembered as that of a call.
    assert_eq!(complete(&mut test, lease, claim(8), 1), CompleteOutcome::OtherCall);
    assert_eq!(complete(&mut test, lease, claim(7), 1), CompleteOutcome::Before);
    // A complete that comes before its reserve claims what it wants; there is nothing to compare.
    let early = test.lease();
    assert_eq!(complete(&mut test, early, claim(7), 1), CompleteOutcome::Marked);
    assert_eq!(complete(&mut test, early, claim(9), 1), CompleteOutcome::HeldNothing);
}

#[test]
fn the_lease_of_a_gateway_is_refused_to_all_others_even_after_a_restore_and_its_end() {
    let mut test = book();
    let lease = test.lease();
    let parts = || vec![part("tpm", 10), part("calls", 1)];
    assert_eq!(reserve(&mut test, lease, (None, true), parts()), created(START));
    test.book = restored(&mut test.book);
    let before = snapshot(&mut test.book);
    assert_eq!(reserve(&mut test, lease, (None, false), parts()), ReserveOutcome::OwnedByGateway);
    assert_eq!(test.extend(lease, 1, renew()), ExtendOutcome::OwnedByGateway);
    assert_eq!(test.complete(lease, &[]), CompleteOutcome::OwnedByGateway);
    assert_eq!(snapshot(&mut test.book), before);
    assert!(test.info(lease).unwrap().by_gateway);
    assert!(matches!(extend(&mut test, lease, 1, GATEWAY), ExtendOutcome::Extended(_)));
    assert!(matches!(complete(&mut test, lease, GATEWAY, 5), CompleteOutcome::Completed(_)));
    test.book = restored(&mut test.book);
    assert_eq!(test.complete(lease, &[]), CompleteOutcome::OwnedByGateway);
    assert_eq!(complete(&mut test, lease, GATEWAY, 5), CompleteOutcome::Before);
    // A gateway completes leases that no gateway made.
    let other = test.take(&[("tpm", 1)]);
    assert!(matches!(complete(&mut test, other, GATEWAY, 1), CompleteOutcome::Completed(_)));
}

/// Marks go with their leases, or they would fill the memory.
#[test]
fn a_forgotten_lease_takes_its_mark_with_it() {
    let mut test = book();
    let empty = snapshot(&mut test.book).len();
    let (live, ended) = (test.lease(), test.lease());
    for lease in [live, ended] {
        reserve(&mut test, lease, (Some(CALL), true), vec![part("tpm", 10)]);
    }
    complete(&mut test, ended, GATEWAY, 1);
    test.advance(40 * 24 * 3_600 * 1_000);
    test.apply(&Step::Tick);
    test.apply(&Step::Tick);
    assert_eq!((test.info(live), test.info(ended)), (None, None));
    assert_eq!(snapshot(&mut test.book).len(), empty);
}
