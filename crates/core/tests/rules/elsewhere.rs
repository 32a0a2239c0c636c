//! Limits or credit that are kept elsewhere: what the Book still decides, and what it leaves alone.

use earmark_core::{
    CompleteOutcome, Elsewhere, Keep, LeaseState, LimitOutcome, LimitStatus, Overage, ReserveOutcome,
    Settlement,
};

use crate::support::bank::{Bank, credit, issue, open};
use crate::support::desk::{Desk, changed, concurrency, rolling};
use crate::support::snapshot::{restore, snapshot};

const CREDIT: Elsewhere = Elsewhere { limits: false, credit: true };
const LIMITS: Elsewhere = Elsewhere { limits: true, credit: false };

fn with_credit_elsewhere() -> Desk {
    let mut desk = Desk::new();
    desk.keep(CREDIT);
    desk.has(rolling("rpm", 10, 60));
    desk.has(concurrency("slots", 2, 60));
    desk.has(credit("usd", "acme", 30, Overage::Debt));
    desk
}

#[test]
fn a_lease_is_registered_with_all_it_asks_for_and_no_credit_is_held_of_it() {
    let mut desk = with_credit_elsewhere();
    // No account was opened here, and none is missed.
    let lease = desk.take(&[("rpm", 1), ("usd", 5)]);
    let info = desk.info(lease).unwrap();
    assert_eq!(info.requirements, [(desk.id("rpm"), 1), (desk.id("usd"), 5)]);
    let reserved_at = desk.now();
    assert_eq!(desk.reserve(lease, &[("usd", 5), ("rpm", 1)]), ReserveOutcome::Exists { reserved_at });
    let other = desk.reserve(lease, &[("usd", 6), ("rpm", 1)]);
    assert_eq!(other, ReserveOutcome::ExistsWithOtherRequirements);
    let only_credit = desk.take(&[("usd", u64::MAX)]);
    assert_eq!(desk.settle(only_credit, &[("usd", 1)]), Settlement::default());
    assert!(desk.book.drain_journal().is_empty());
}

#[test]
fn unknown_and_leaving_limits_are_refused_by_name_whatever_their_kind() {
    let mut desk = with_credit_elsewhere();
    let lease = desk.lease();
    let unknown = desk.reserve(lease, &[("rpm", 1), ("eur", 5)]);
    assert_eq!(unknown, ReserveOutcome::UnknownLimit { requirement: 1 });
    desk.delete("usd");
    let gone = desk.reserve(lease, &[("usd", 1), ("rpm", 1)]);
    assert_eq!(gone, ReserveOutcome::UnknownLimit { requirement: 0 });
    assert_eq!(desk.reserved("rpm"), 0);
}

#[test]
fn a_lease_ends_with_the_first_of_its_parts_also_if_that_is_credit_elsewhere() {
    let mut desk = with_credit_elsewhere();
    let lease = desk.take(&[("rpm", 4), ("usd", 5)]);
    desk.pass(30_000);
    assert_eq!(desk.reserve(lease, &[("rpm", 4), ("usd", 5)]), ReserveOutcome::LeaseExpired);
    assert_eq!(desk.state(lease), Some(LeaseState::Expired));
    desk.settle(lease, &[("rpm", 1)]);
    assert_eq!(desk.reserved("rpm"), 1);
}

#[test]
fn a_released_lease_gives_all_back_and_held_nothing_for_a_complete() {
    let mut desk = with_credit_elsewhere();
    let lease = desk.take(&[("rpm", 4), ("slots", 1), ("usd", 5)]);
    assert_eq!(desk.release(lease), CompleteOutcome::Completed(Settlement::default()));
    assert_eq!((desk.reserved("rpm"), desk.reserved("slots")), (0, 0));
    assert_eq!(desk.release(lease), CompleteOutcome::HeldNothing);
    assert_eq!(desk.complete(lease, &[("rpm", 9)]), CompleteOutcome::HeldNothing);
    assert_eq!(desk.state(lease), Some(LeaseState::Denied));
    let again = desk.reserve(lease, &[("rpm", 4), ("slots", 1), ("usd", 5)]);
    assert_eq!(again, ReserveOutcome::LeaseExpired);
    assert_eq!(desk.reserve(lease, &[("rpm", 4)]), ReserveOutcome::ExistsWithOtherRequirements);
}

#[test]
fn releasing_changes_nothing_of_what_was_completed_and_marks_what_is_unknown() {
    let mut desk = with_credit_elsewhere();
    let completed = desk.take(&[("rpm", 4)]);
    desk.settle(completed, &[("rpm", 3)]);
    assert_eq!(desk.release(completed), CompleteOutcome::Before);
    assert_eq!(desk.reserved("rpm"), 3);
    let unknown = desk.lease();
    assert_eq!(desk.release(unknown), CompleteOutcome::Marked);
    assert_eq!(desk.reserve(unknown, &[("rpm", 1)]), ReserveOutcome::LeaseExpired);
    let old = desk.lease_from(desk.now().minus_ms(3_600_000));
    assert_eq!(desk.release(old), CompleteOutcome::UnknownByAge);
}

#[test]
fn a_hold_from_before_is_released_with_its_lease() {
    let mut bank = Bank::new();
    bank.does(vec![open("acme"), issue("acme", "usd", 90)]);
    bank.desk.has(credit("usd", "acme", 60, Overage::Debt));
    let lease = bank.desk.take(&[("usd", 40)]);
    bank.desk.keep(CREDIT);
    assert!(matches!(bank.desk.release(lease), CompleteOutcome::Completed(_)));
    let usage = bank.desk.usage("usd");
    assert_eq!((usage.available, usage.reserved), (90, 0));
}

#[test]
fn a_limit_that_is_enforced_elsewhere_stays_until_it_is_dropped() {
    let mut desk = Desk::new();
    desk.keep(LIMITS);
    let rpm = desk.has(rolling("rpm", 10, 60));
    let going = LimitStatus::Decreasing { to: 0 };
    assert_eq!(desk.delete("rpm"), changed(rpm, 2, going));
    assert_eq!(desk.delete("rpm"), changed(rpm, 2, going));
    desk.pass(3_600_000);
    desk.tick();
    let bytes = snapshot(&mut desk.book);
    desk.book = restore(&bytes, bytes.len(), 1).unwrap();
    assert_eq!(desk.book.limit(desk.now(), rpm).map(|limit| limit.status), Some(going));
    assert_eq!(desk.drop_limit("rpm", 1), LimitOutcome::RevisionDiffers { revision: 2 });
    assert_eq!(desk.drop_limit("rpm", 2), changed(rpm, 2, LimitStatus::Deleted));
    assert_eq!(desk.book.limit(desk.now(), rpm), None);
    assert_eq!(desk.drop_limit("rpm", 2), LimitOutcome::RevisionDiffers { revision: 0 });
    assert_eq!(desk.drop_limit("tpm", 0), LimitOutcome::NotFound);
    assert_eq!(desk.put(concurrency("rpm", 1, 60)), changed(rpm, 3, LimitStatus::Active));
}

#[test]
fn a_limit_that_was_put_again_is_not_dropped() {
    let mut desk = Desk::new();
    desk.keep(LIMITS);
    let rpm = desk.has(rolling("rpm", 10, 60));
    desk.delete("rpm");
    assert_eq!(desk.put(rolling("rpm", 10, 60)), changed(rpm, 3, LimitStatus::Active));
    assert_eq!(desk.drop_limit("rpm", 2), LimitOutcome::RevisionDiffers { revision: 3 });
    assert_eq!(desk.drop_limit("rpm", 3), LimitOutcome::NotFound);
    assert_eq!(desk.usage("rpm").capacity, 10);
}

#[test]
fn credit_goes_at_once_and_holds_as_before_when_only_limits_are_elsewhere() {
    let mut bank = Bank::new();
    bank.desk.keep(LIMITS);
    bank.does(vec![open("acme"), issue("acme", "usd", 90)]);
    let usd = bank.desk.has(credit("usd", "acme", 60, Overage::Debt));
    let lease = bank.desk.take(&[("usd", 40)]);
    assert_eq!(bank.desk.usage("usd").available, 50);
    assert_eq!(bank.desk.delete("usd"), changed(usd, 2, LimitStatus::Deleted));
    assert_eq!(bank.desk.settle(lease, &[("usd", 7)]).charges.len(), 1);
}

/// A node that was started without `--ledger` went on enforcing the limits in the Book while others enforced them on a
/// ledger, and together they allowed twice as much.
#[test]
fn a_limit_that_is_enforced_elsewhere_is_not_taken_from_here() {
    let mut bank = Bank::new();
    bank.does(vec![open("acme"), issue("acme", "usd", 90)]);
    bank.desk.has(rolling("rpm", 10, 60));
    bank.desk.has(credit("usd", "acme", 60, Overage::Debt));
    let before = bank.desk.take(&[("rpm", 4)]);
    bank.desk.keep(LIMITS);
    let lease = bank.desk.lease();
    for parts in [&[("rpm", 1)][..], &[("rpm", 1), ("usd", 1)], &[("rpm", 11)]] {
        assert_eq!(bank.desk.reserve(lease, parts), ReserveOutcome::LimitsElsewhere, "{parts:?}");
    }
    let unknown = bank.desk.reserve(lease, &[("rpm", 1), ("tpm", 1)]);
    assert_eq!(unknown, ReserveOutcome::UnknownLimit { requirement: 1 });
    assert_eq!((bank.desk.reserved("rpm"), bank.desk.usage("usd").available), (4, 90));
    // What was allowed before is answered as before, and nothing is remembered of what was not.
    assert!(matches!(bank.desk.reserve(before, &[("rpm", 4)]), ReserveOutcome::Exists { .. }));
    assert_eq!(bank.desk.info(lease), None);
    bank.desk.keep(Elsewhere::default());
    assert!(matches!(bank.desk.reserve(lease, &[("rpm", 1)]), ReserveOutcome::Created { .. }));
}

#[test]
fn the_ledger_that_was_named_first_is_the_one_for_as_long_as_limits_are_elsewhere() {
    let mut desk = Desk::new();
    let named = |elsewhere, ledger| Keep { elsewhere, ledger };
    desk.keep(LIMITS);
    assert_eq!(desk.book.kept(), named(LIMITS, None));
    for number in [7, 8] {
        desk.keep(named(LIMITS, Some(number)));
        assert_eq!(desk.book.kept(), named(LIMITS, Some(7)));
    }
    let both = Elsewhere { limits: true, credit: true };
    desk.keep(both);
    let bytes = snapshot(&mut desk.book);
    desk.book = restore(&bytes, bytes.len(), 1).unwrap();
    assert_eq!(desk.book.kept(), named(both, Some(7)));
    desk.keep(named(CREDIT, Some(9)));
    assert_eq!(desk.book.kept(), named(CREDIT, None));
}

#[test]
fn what_was_never_composed_is_written_in_the_first_version_and_the_rest_in_the_second() {
    let version = |desk: &mut Desk| snapshot(&mut desk.book)[8];
    let mut desk = Desk::new();
    desk.keep(Elsewhere::default());
    assert_eq!(version(&mut desk), 1);
    desk.keep(CREDIT);
    assert_eq!(version(&mut desk), 2);
    // Leases may still say that their credit is elsewhere.
    desk.keep(Elsewhere::default());
    assert_eq!(version(&mut desk), 2);
}

#[test]
fn every_change_of_a_limit_shows_in_the_version_of_the_limits() {
    let mut desk = Desk::new();
    desk.keep(LIMITS);
    let mut last = desk.book.limits_version();
    let mut grows = |desk: &Desk, what: &str| {
        assert!(desk.book.limits_version() > last, "{what}");
        last = desk.book.limits_version();
    };
    desk.has(rolling("rpm", 10, 60));
    grows(&desk, "put");
    desk.put(rolling("rpm", 9, 60));
    grows(&desk, "put again");
    desk.delete("rpm");
    grows(&desk, "deleted");
    desk.drop_limit("rpm", 3);
    grows(&desk, "dropped");
    desk.keep(CREDIT);
    grows(&desk, "kept elsewhere");
    let bytes = snapshot(&mut desk.book);
    desk.book = restore(&bytes, bytes.len(), 1).unwrap();
    grows(&desk, "restored");
    let before = desk.book.limits_version();
    desk.tick();
    assert_eq!(desk.book.limits_version(), before);
}
