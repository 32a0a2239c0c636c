//! Shadow limits (`enforce: false`) count and never deny.

use earmark_core::{Definition, LimitStatus, OverageHow, RequirementSet, ReserveOutcome};

use crate::support::snapshot::restored;
use crate::support::test_book::{START, TestBook, concurrency, rolling};

fn shadow(definition: Definition) -> Definition {
    Definition { enforce: false, ..definition }
}

/// Allowed at [`START`], and these requirements are above their limits.
fn above(places: &[usize]) -> ReserveOutcome {
    ReserveOutcome::Created { reserved_at: START, would_deny: places.iter().copied().collect() }
}

#[test]
fn a_shadow_limit_lets_everything_in_and_names_itself_and_a_retry_repeats_it() {
    let mut test = TestBook::new();
    test.put_active(rolling("a", 100, 60));
    test.put_active(shadow(rolling("s", 10, 60)));
    test.put_active(shadow(concurrency("z", 1, 60)));
    test.take(&[("s", 10), ("z", 1)]);
    let lease = test.lease();
    let asked = [("z", 1), ("a", 5), ("s", 3)];
    assert_eq!(test.reserve(lease, &asked), above(&[0, 2]));
    assert_eq!((test.reserved("s"), test.usage("s").available, test.reserved("a")), (13, 0, 5));
    // Room that appears later does not change the answer, and the order of requirements only moves the positions.
    test.put_active(shadow(rolling("s", 1_000, 60)));
    let again = |places: &[usize]| {
        let would_deny: RequirementSet = places.iter().copied().collect();
        ReserveOutcome::Exists { reserved_at: START, would_deny, policy_revision: None }
    };
    assert_eq!(test.reserve(lease, &asked), again(&[0, 2]));
    assert_eq!(test.reserve(lease, &[("s", 3), ("a", 5), ("z", 1)]), again(&[0, 2]));
    assert_eq!(test.reserve(lease, &[("a", 5), ("s", 3), ("z", 1)]), again(&[1, 2]));
}

#[test]
fn a_denial_by_another_limit_neither_counts_nor_names_the_shadow_limit() {
    let mut test = TestBook::new();
    test.put_active(rolling("full", 1, 60));
    test.put_active(shadow(rolling("s", 1, 60)));
    let (_, denial) = test.denied(&[("full", 2), ("s", 5)]);
    assert_eq!((denial.limited_by, denial.never), (vec![0], true));
    assert_eq!(test.reserved("s"), 0);
}

#[test]
fn settling_and_expiry_of_a_shadow_limit_are_as_usual_and_overage_counts() {
    let mut test = TestBook::new();
    test.put_active(shadow(rolling("s", 10, 60)));
    let lease = test.lease();
    assert_eq!(test.reserve(lease, &[("s", 15)]), above(&[0]));
    let settlement = test.settle(lease, &[("s", 18)]);
    assert_eq!((settlement.overages[0].amount, settlement.overages[0].how), (3, OverageHow::Reserved));
    assert_eq!((test.reserved("s"), test.usage("s").debt), (18, 0));
    test.advance(60_000);
    assert_eq!(test.reserved("s"), 0);
}

#[test]
fn enforcement_decreases_first_and_then_denies() {
    let mut test = TestBook::new();
    test.put_active(shadow(rolling("s", 10, 60)));
    let lease = test.lease();
    test.reserve(lease, &[("s", 25)]);
    test.put(rolling("s", 10, 60));
    let usage = test.usage("s");
    assert_eq!(usage.status, LimitStatus::Decreasing { to: 10 });
    assert_eq!((usage.capacity, usage.reserved, usage.available), (25, 25, 0));
    let other = test.lease();
    let refused = test.reserve(other, &[("s", 1)]);
    assert!(matches!(refused, ReserveOutcome::LimitDecreasing { requirement: 0, .. }), "{refused:?}");
    test.settle(lease, &[("s", 10)]);
    assert_eq!((test.usage("s").status, test.usage("s").capacity), (LimitStatus::Active, 10));
    test.denied(&[("s", 1)]);
}

#[test]
fn a_limit_that_stops_enforcing_is_active_at_once_even_while_it_decreases() {
    let mut test = TestBook::new();
    test.put_active(rolling("s", 10, 60));
    test.take(&[("s", 10)]);
    test.put(rolling("s", 5, 60));
    assert_eq!(test.usage("s").status, LimitStatus::Decreasing { to: 5 });
    test.put_active(shadow(rolling("s", 5, 60)));
    assert_eq!((test.usage("s").capacity, test.usage("s").available), (5, 0));
    let lease = test.lease();
    assert_eq!(test.reserve(lease, &[("s", 100)]), above(&[0]));
}

#[test]
fn a_shadow_limit_counts_up_to_the_largest_amount_and_stays_exact() {
    let mut test = TestBook::new();
    test.put_active(shadow(rolling("s", 1, 60)));
    let lease = test.lease();
    assert_eq!(test.reserve(lease, &[("s", u64::MAX)]), above(&[0]));
    let (_, denial) = test.denied(&[("s", 1)]);
    assert!(!denial.never, "{denial:?}");
    test.settle(lease, &[("s", 7)]);
    assert_eq!(test.reserved("s"), 7);
}

#[test]
fn a_snapshot_keeps_what_is_above_the_capacity_and_what_a_retry_is_told() {
    let mut test = TestBook::new();
    test.put_active(shadow(rolling("s", 10, 60)));
    test.put_active(rolling("on", 10, 60));
    let settled = test.lease();
    test.reserve(settled, &[("s", 50)]);
    test.settle(settled, &[("s", 40)]);
    let lease = test.lease();
    assert_eq!(test.reserve(lease, &[("on", 1), ("s", 2)]), above(&[1]));
    test.book = restored(&mut test.book);
    assert_eq!(test.reserved("s"), 42);
    let would_deny = [1].into_iter().collect();
    assert_eq!(
        test.reserve(lease, &[("on", 1), ("s", 2)]),
        ReserveOutcome::Exists { reserved_at: START, would_deny, policy_revision: None }
    );
    // Enforced while 42 are reserved: the snapshot of a limit that decreases from above its capacity is accepted too.
    test.put(rolling("s", 10, 60));
    test.book = restored(&mut test.book);
    assert_eq!((test.usage("s").capacity, test.usage("s").status), (42, LimitStatus::Decreasing { to: 10 }));
}
