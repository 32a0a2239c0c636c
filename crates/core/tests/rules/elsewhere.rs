//! Limits or credit kept elsewhere: the decisions that remain in the Book.

use earmark_core::{
    CompleteOutcome, ExternalParts, ExternalSetup, LeaseState, LimitId, LimitOutcome, LimitStatus, Overage,
    ReserveOutcome, Settlement,
};

use crate::support::bank::{Bank, credit, issue, open};
use crate::support::snapshot::{restore, snapshot};
use crate::support::test_book::{TestBook, changed, concurrency, exists, rolling};

const CREDIT: ExternalParts = ExternalParts { limits: false, credit: true };
const LIMITS: ExternalParts = ExternalParts { limits: true, credit: false };

fn with_credit_elsewhere() -> TestBook {
    let mut test = TestBook::new();
    test.set_external(CREDIT);
    test.put_active(rolling("rpm", 10, 60));
    test.put_active(concurrency("slots", 2, 60));
    test.put_active(credit("usd", "acme", 30, Overage::Debt));
    test
}

#[test]
fn a_lease_is_registered_with_all_it_asks_for_and_no_credit_is_held_of_it() {
    let mut test = with_credit_elsewhere();
    // Credit is elsewhere, so no account is needed here.
    let lease = test.take(&[("rpm", 1), ("usd", 5)]);
    let info = test.info(lease).unwrap();
    assert_eq!(info.requirements, [(test.id("rpm"), 1), (test.id("usd"), 5)]);
    let reserved_at = test.now();
    assert_eq!(test.reserve(lease, &[("usd", 5), ("rpm", 1)]), exists(reserved_at));
    let other = test.reserve(lease, &[("usd", 6), ("rpm", 1)]);
    assert_eq!(other, ReserveOutcome::ExistsWithOtherRequirements);
    let only_credit = test.take(&[("usd", u64::MAX)]);
    assert_eq!(test.settle(only_credit, &[("usd", 1)]), Settlement::default());
    assert!(test.book.drain_journal().is_empty());
}

#[test]
fn unknown_and_leaving_limits_are_refused_by_name_whatever_their_kind() {
    let mut test = with_credit_elsewhere();
    let lease = test.lease();
    let unknown = test.reserve(lease, &[("rpm", 1), ("eur", 5)]);
    assert_eq!(unknown, ReserveOutcome::UnknownLimit { requirement: 1 });
    test.delete("usd");
    let gone = test.reserve(lease, &[("usd", 1), ("rpm", 1)]);
    assert_eq!(gone, ReserveOutcome::UnknownLimit { requirement: 0 });
    assert_eq!(test.reserved("rpm"), 0);
}

#[test]
fn a_lease_ends_with_the_first_of_its_parts_also_if_that_is_credit_elsewhere() {
    let mut test = with_credit_elsewhere();
    let lease = test.take(&[("rpm", 4), ("usd", 5)]);
    test.advance(30_000);
    assert_eq!(test.reserve(lease, &[("rpm", 4), ("usd", 5)]), ReserveOutcome::LeaseExpired);
    assert_eq!(test.state(lease), Some(LeaseState::Expired));
    test.settle(lease, &[("rpm", 1)]);
    assert_eq!(test.reserved("rpm"), 1);
}

#[test]
fn a_released_lease_gives_all_back_and_held_nothing_for_a_complete() {
    let mut test = with_credit_elsewhere();
    let lease = test.take(&[("rpm", 4), ("slots", 1), ("usd", 5)]);
    assert_eq!(test.release(lease), CompleteOutcome::Completed(Settlement::default()));
    assert_eq!((test.reserved("rpm"), test.reserved("slots")), (0, 0));
    assert_eq!(test.release(lease), CompleteOutcome::HeldNothing);
    assert_eq!(test.complete(lease, &[("rpm", 9)]), CompleteOutcome::HeldNothing);
    assert_eq!(test.state(lease), Some(LeaseState::Denied));
    let again = test.reserve(lease, &[("rpm", 4), ("slots", 1), ("usd", 5)]);
    assert_eq!(again, ReserveOutcome::LeaseExpired);
    assert_eq!(test.reserve(lease, &[("rpm", 4)]), ReserveOutcome::ExistsWithOtherRequirements);
}

#[test]
fn releasing_changes_nothing_of_what_was_completed_and_marks_what_is_unknown() {
    let mut test = with_credit_elsewhere();
    let completed = test.take(&[("rpm", 4)]);
    test.settle(completed, &[("rpm", 3)]);
    assert_eq!(test.release(completed), CompleteOutcome::Before);
    assert_eq!(test.reserved("rpm"), 3);
    let unknown = test.lease();
    assert_eq!(test.release(unknown), CompleteOutcome::Marked);
    assert_eq!(test.reserve(unknown, &[("rpm", 1)]), ReserveOutcome::LeaseExpired);
    let old = test.lease_from(test.now().minus_ms(3_600_000));
    assert_eq!(test.release(old), CompleteOutcome::UnknownByAge);
}

#[test]
fn a_hold_from_before_is_released_with_its_lease() {
    let mut bank = Bank::new();
    bank.commit(vec![open("acme"), issue("acme", "usd", 90)]);
    bank.test.put_active(credit("usd", "acme", 60, Overage::Debt));
    let lease = bank.test.take(&[("usd", 40)]);
    bank.test.set_external(CREDIT);
    assert!(matches!(bank.test.release(lease), CompleteOutcome::Completed(_)));
    let usage = bank.test.usage("usd");
    assert_eq!((usage.available, usage.reserved), (90, 0));
}

#[test]
fn a_limit_that_is_enforced_elsewhere_stays_until_it_is_dropped() {
    let mut test = TestBook::new();
    test.set_external(LIMITS);
    let rpm = test.put_active(rolling("rpm", 10, 60));
    let going = LimitStatus::Decreasing { to: 0 };
    assert_eq!(test.delete("rpm"), changed(rpm, 2, going));
    assert_eq!(test.delete("rpm"), changed(rpm, 2, going));
    test.advance(3_600_000);
    test.tick();
    let bytes = snapshot(&mut test.book);
    test.book = restore(&bytes, bytes.len(), 1).unwrap();
    assert_eq!(test.book.limit(test.now(), rpm).map(|limit| limit.status), Some(going));
    assert_eq!(test.drop_limit("rpm", 1), LimitOutcome::RevisionDiffers { revision: 2 });
    assert_eq!(test.drop_limit("rpm", 2), changed(rpm, 2, LimitStatus::Deleted));
    assert_eq!(test.book.limit(test.now(), rpm), None);
    assert_eq!(test.drop_limit("rpm", 2), LimitOutcome::RevisionDiffers { revision: 0 });
    assert_eq!(test.drop_limit("tpm", 0), LimitOutcome::NotFound);
    let again = LimitId { generation: 1, ..rpm };
    assert_eq!(test.put(concurrency("rpm", 1, 60)), changed(again, 3, LimitStatus::Active));
}

#[test]
fn a_limit_that_was_put_again_is_not_dropped() {
    let mut test = TestBook::new();
    test.set_external(LIMITS);
    let rpm = test.put_active(rolling("rpm", 10, 60));
    test.delete("rpm");
    assert_eq!(test.put(rolling("rpm", 10, 60)), changed(rpm, 3, LimitStatus::Active));
    assert_eq!(test.drop_limit("rpm", 2), LimitOutcome::RevisionDiffers { revision: 3 });
    assert_eq!(test.drop_limit("rpm", 3), LimitOutcome::NotFound);
    assert_eq!(test.usage("rpm").capacity, 10);
}

#[test]
fn credit_goes_at_once_and_holds_as_before_when_only_limits_are_elsewhere() {
    let mut bank = Bank::new();
    bank.test.set_external(LIMITS);
    bank.commit(vec![open("acme"), issue("acme", "usd", 90)]);
    let usd = bank.test.put_active(credit("usd", "acme", 60, Overage::Debt));
    let lease = bank.test.take(&[("usd", 40)]);
    assert_eq!(bank.test.usage("usd").available, 50);
    assert_eq!(bank.test.delete("usd"), changed(usd, 2, LimitStatus::Deleted));
    assert_eq!(bank.test.settle(lease, &[("usd", 7)]).charges.len(), 1);
}

/// Regression: a node without `--ledger` enforced limits in the Book while other nodes enforced them on a ledger.
/// Together they allowed twice the capacity.
#[test]
fn a_limit_that_is_enforced_elsewhere_is_not_taken_from_here() {
    let mut bank = Bank::new();
    bank.commit(vec![open("acme"), issue("acme", "usd", 90)]);
    bank.test.put_active(rolling("rpm", 10, 60));
    bank.test.put_active(credit("usd", "acme", 60, Overage::Debt));
    let before = bank.test.take(&[("rpm", 4)]);
    bank.test.set_external(LIMITS);
    let lease = bank.test.lease();
    for parts in [&[("rpm", 1)][..], &[("rpm", 1), ("usd", 1)], &[("rpm", 11)]] {
        assert_eq!(bank.test.reserve(lease, parts), ReserveOutcome::LimitsExternal, "{parts:?}");
    }
    let unknown = bank.test.reserve(lease, &[("rpm", 1), ("tpm", 1)]);
    assert_eq!(unknown, ReserveOutcome::UnknownLimit { requirement: 1 });
    assert_eq!((bank.test.reserved("rpm"), bank.test.usage("usd").available), (4, 90));
    // Earlier leases keep their answers; refused ones leave no trace.
    assert!(matches!(bank.test.reserve(before, &[("rpm", 4)]), ReserveOutcome::Exists { .. }));
    assert_eq!(bank.test.info(lease), None);
    bank.test.set_external(ExternalParts::default());
    assert!(matches!(bank.test.reserve(lease, &[("rpm", 1)]), ReserveOutcome::Created { .. }));
}

#[test]
fn the_ledger_that_was_named_first_is_the_one_for_as_long_as_limits_are_elsewhere() {
    let mut test = TestBook::new();
    let named = |external, ledger| ExternalSetup { parts: external, ledger };
    test.set_external(LIMITS);
    assert_eq!(test.book.external_setup(), named(LIMITS, None));
    for number in [7, 8] {
        test.set_external(named(LIMITS, Some(number)));
        assert_eq!(test.book.external_setup(), named(LIMITS, Some(7)));
    }
    let both = ExternalParts { limits: true, credit: true };
    test.set_external(both);
    let bytes = snapshot(&mut test.book);
    test.book = restore(&bytes, bytes.len(), 1).unwrap();
    assert_eq!(test.book.external_setup(), named(both, Some(7)));
    test.set_external(named(CREDIT, Some(9)));
    assert_eq!(test.book.external_setup(), named(CREDIT, None));
}

#[test]
fn every_change_of_a_limit_shows_in_the_version_of_the_limits() {
    let mut test = TestBook::new();
    test.set_external(LIMITS);
    let mut last = test.book.limits_version();
    let mut grows = |test: &TestBook, what: &str| {
        assert!(test.book.limits_version() > last, "{what}");
        last = test.book.limits_version();
    };
    test.put_active(rolling("rpm", 10, 60));
    grows(&test, "put");
    test.put(rolling("rpm", 9, 60));
    grows(&test, "put again");
    test.delete("rpm");
    grows(&test, "deleted");
    test.drop_limit("rpm", 3);
    grows(&test, "dropped");
    test.set_external(CREDIT);
    grows(&test, "kept elsewhere");
    let bytes = snapshot(&mut test.book);
    test.book = restore(&bytes, bytes.len(), 1).unwrap();
    grows(&test, "restored");
    let before = test.book.limits_version();
    test.tick();
    assert_eq!(test.book.limits_version(), before);
}
