//! Extensions: a lease lives as long as its stream, takes more, and reports its usage.

use earmark_core::{
    CompleteOutcome, Config, Definition, EXTENSIONS_MAX, ExtendOutcome, Extension, InvalidExtend, InvalidParts,
    LeaseState, Outcome, OverageHow, Period, QuotaKind, RequirementSet, ReserveOutcome, SetQuotas, Setting,
    SettingChange,
};

use super::templates::put;
use crate::support::bank::{Bank, credit, issue, open};
use crate::support::snapshot::{restored, snapshot};
use crate::support::step::Step;
use crate::support::test_book::{
    Asked, START, TestBook, add, calendar, concurrency, created, exists, renew, rolling, used,
};

fn expired() -> ExtendOutcome {
    ExtendOutcome::LeaseExpired
}

/// A Book with a rolling limit `tpm` of 100 a minute and 2 slots `calls` with a timeout of 10 seconds.
fn book() -> TestBook {
    let mut test = TestBook::new();
    test.put_active(rolling("tpm", 100, 60));
    test.put_active(concurrency("calls", 2, 10));
    test
}

/// A snapshot of the Book must restore to the same bytes.
fn assert_snapshot_keeps(test: &mut TestBook) {
    let bytes = snapshot(&mut test.book);
    test.book = restored(&mut test.book);
    assert_eq!(snapshot(&mut test.book), bytes);
}

#[test]
fn a_stream_longer_than_its_timeout_keeps_its_slot_as_long_as_it_renews() {
    let mut test = book();
    let stream = test.take(&[("calls", 2), ("tpm", 10)]);
    for number in 1..=30 {
        test.advance(9_000);
        assert_eq!(test.extended(stream, number, renew()), 10_000);
        assert_eq!(test.reserved("calls"), 2, "{number}");
        test.denied(&[("calls", 1)]);
    }
    assert_snapshot_keeps(&mut test);
    test.advance(9_999);
    assert_eq!(test.reserved("calls"), 2);
    assert_eq!(test.state(stream), Some(LeaseState::Live));
    test.advance(1);
    assert_eq!(test.reserved("calls"), 0);
    assert_eq!(test.state(stream), Some(LeaseState::Expired));
    assert_eq!(test.extend(stream, 31, renew()), expired());
    // Even the last number is not answered any more.
    assert_eq!(test.extend(stream, 30, renew()), expired());
}

#[test]
fn a_lease_can_be_renewed_for_a_day_and_is_allowed_at_the_cap_with_its_end_unmoved() {
    let mut test = TestBook::new();
    test.put_active(concurrency("calls", 1, 3_600));
    let stream = test.take(&[("calls", 1)]);
    let day = START.plus_ms(24 * 3_600 * 1_000);
    let mut ends = Vec::new();
    for number in 1..=47 {
        test.advance(1_800_000);
        match test.extend(stream, number, renew()) {
            ExtendOutcome::Extended(extension) => ends.push(extension.ends_at.unwrap()),
            other => panic!("{number}: {other:?}"),
        }
    }
    assert_eq!(ends[44], START.plus_ms(45 * 1_800_000 + 3_600_000));
    assert_eq!(ends[45..], [day, day]);
    test.advance(1_800_000);
    assert_eq!(test.extend(stream, 48, renew()), expired());
}

#[test]
fn a_renewal_never_moves_an_end_back() {
    let mut test = book();
    let stream = test.take(&[("calls", 1)]);
    test.put_active(concurrency("calls", 2, 3));
    test.advance(1_000);
    assert_eq!(test.extended(stream, 1, renew()), 9_000);
    test.advance(7_000);
    assert_eq!(test.extended(stream, 2, renew()), 3_000);
    // A deleted limit has no timeout any more, so that of the reservation counts.
    test.delete("calls");
    assert_eq!(test.extended(stream, 3, renew()), 3_000);
}

#[test]
fn more_of_a_window_is_a_part_of_its_own_and_only_the_newest_can_shrink() {
    // (actual in all) -> (reserved after it, overage)
    for (actual, left, overage) in [
        (0, 30, None),
        (30, 30, None),
        (35, 35, None),
        (50, 50, None),
        (60, 60, Some((10, OverageHow::Reserved))),
        (200, 50, Some((150, OverageHow::Debt))),
    ] {
        let mut test = book();
        let lease = test.take(&[("tpm", 30)]);
        test.advance(1_000);
        assert_eq!(test.extended(lease, 1, add(&[("tpm", 20)])), 0);
        assert_eq!(test.reserved("tpm"), 50);
        assert_snapshot_keeps(&mut test);
        let settlement = test.settle(lease, &[("tpm", actual)]);
        assert_eq!(test.reserved("tpm"), left, "{actual}");
        assert_eq!(settlement.overages.first().map(|over| (over.amount, over.how)), overage, "{actual}");
        // The first part ends with its own window.
        test.advance(59_000);
        test.tick();
        assert_eq!(test.reserved("tpm"), left - 30, "{actual}");
        test.advance(1_000);
        test.tick();
        assert_eq!(test.reserved("tpm"), 0, "{actual}");
    }
}

#[test]
fn a_lease_on_windows_only_lives_with_its_newest_part() {
    let mut test = book();
    let lease = test.take(&[("tpm", 30)]);
    test.advance(50_000);
    test.extended(lease, 1, add(&[("tpm", 20)]));
    test.advance(20_000);
    assert_eq!(test.reserved("tpm"), 20);
    assert_eq!(test.reserve(lease, &[("tpm", 30)]), exists(START));
    test.extended(lease, 2, add(&[("tpm", 5)]));
    assert_eq!(test.settle(lease, &[("tpm", 52)]).overages, []);
    assert_eq!(test.reserved("tpm"), 22);
}

#[test]
fn more_slots_grow_the_reservation_and_end_with_the_lease() {
    let mut test = book();
    let lease = test.take(&[("calls", 1)]);
    test.advance(4_000);
    assert_eq!(test.extended(lease, 1, add(&[("calls", 1)])), 6_000);
    assert_eq!(test.reserved("calls"), 2);
    assert_snapshot_keeps(&mut test);
    test.advance(6_000);
    assert_eq!(test.reserved("calls"), 0);
    let lease = test.take(&[("calls", 1)]);
    test.extended(lease, 1, Asked { renew: true, ..add(&[("calls", 1)]) });
    test.settle(lease, &[]);
    assert_eq!(test.reserved("calls"), 0);
}

#[test]
fn a_limit_that_is_added_is_taken_as_by_a_reserve() {
    let mut test = book();
    test.put_active(calendar("day", 50, Period::Day, 0));
    let lease = test.take(&[("tpm", 10)]);
    assert_eq!(test.extended(lease, 1, add(&[("day", 5), ("calls", 2)])), 10_000);
    assert_eq!((test.reserved("day"), test.reserved("calls")), (5, 2));
    // The end is that of its slots now.
    test.advance(10_000);
    assert_eq!(test.extend(lease, 2, renew()), expired());
    assert_snapshot_keeps(&mut test);
    test.settle(lease, &[("day", 3)]);
    assert_eq!((test.reserved("day"), test.reserved("tpm")), (3, 10));
}

#[test]
fn an_extension_takes_all_or_nothing_and_stays_denied() {
    let mut test = book();
    let lease = test.take(&[("calls", 1), ("tpm", 10)]);
    let asked = Asked { renew: true, used: &[("tpm", 5)], ..add(&[("tpm", 91), ("calls", 1)]) };
    test.advance(1_000);
    let ExtendOutcome::Denied(denial) = test.extend(lease, 1, asked) else { panic!("it fitted") };
    assert_eq!((denial.limited_by.as_slice(), denial.never), (&[0][..], false));
    assert_eq!((test.reserved("tpm"), test.reserved("calls")), (10, 1));
    let info = test.info(lease).unwrap();
    assert_eq!((info.extensions, info.used.len(), info.ends_at), (1, 0, Some(START.plus_ms(10_000))));
    assert_snapshot_keeps(&mut test);
    // There is room now, and the number stays denied.
    test.put_active(rolling("tpm", 1_000, 60));
    let wait = denial.retry_after_ms;
    test.advance(wait / 2);
    let ExtendOutcome::Denied(again) = test.extend(lease, 1, asked) else { panic!("it was denied") };
    assert_eq!((again.limited_by, again.retry_after_ms), (vec![0], wait - wait / 2));
    let other = Asked { renew: false, ..asked };
    assert_eq!(test.extend(lease, 1, other), ExtendOutcome::NumberReused);
    test.extended(lease, 2, asked);
    assert_eq!((test.reserved("tpm"), test.reserved("calls")), (101, 2));
}

#[test]
fn an_amount_above_the_capacity_never_fits() {
    let mut test = book();
    let lease = test.take(&[("tpm", 10)]);
    for _ in 0..2 {
        let ExtendOutcome::Denied(denial) = test.extend(lease, 1, add(&[("tpm", 101)])) else { panic!("it fitted") };
        assert_eq!((denial.never, denial.retry_after_ms), (true, 60_000));
    }
}

#[test]
fn the_last_number_repeats_its_answer_and_takes_nothing_twice() {
    let mut test = book();
    let lease = test.take(&[("calls", 1), ("tpm", 10)]);
    let asked = Asked { renew: true, used: &[("tpm", 15), ("other", 1)], ..add(&[("tpm", 3)]) };
    let first = test.extend(lease, 1, asked);
    let above = RequirementSet::from_iter([0]);
    let ignored = RequirementSet::from_iter([1]);
    let ends_at = Some(START.plus_ms(10_000));
    assert_eq!(first, ExtendOutcome::Extended(Extension { ends_at, ignored, above }));
    test.advance(5_000);
    for _ in 0..2 {
        assert_eq!(test.extend(lease, 1, asked), first);
        assert_snapshot_keeps(&mut test);
    }
    // In another order it is the same body.
    let turned = Asked { used: &[("other", 1), ("tpm", 15)], ..asked };
    let extension = Extension { ends_at, ignored: above, above: ignored };
    assert_eq!(test.extend(lease, 1, turned), ExtendOutcome::Extended(extension));
    assert_eq!(test.reserved("tpm"), 13);
    for other in [
        Asked { renew: false, ..asked },
        Asked { used: &[("tpm", 15)], ..asked },
        Asked { add: &[("tpm", 4)], ..asked },
        Asked { add: &[], ..asked },
        Asked { add: &[("tpm", 15), ("other", 1)], used: &[("tpm", 3)], ..asked },
    ] {
        assert_eq!(test.extend(lease, 1, other), ExtendOutcome::NumberReused, "{other:?}");
    }
    test.extended(lease, 2, add(&[]));
    assert_eq!(test.extend(lease, 1, asked), ExtendOutcome::NumberDiffers { expected: 3 });
    assert_eq!(test.extend(lease, 4, asked), ExtendOutcome::NumberDiffers { expected: 3 });
    assert_eq!(test.reserved("tpm"), 13);
}

#[test]
fn refusals_by_name_leave_the_number_free_and_change_nothing() {
    let mut test = book();
    test.put_active(rolling("down", 10, 60));
    test.take(&[("down", 8)]);
    test.put(rolling("down", 5, 60));
    test.put_active(rolling("stop", 10, 60));
    test.pause("stop", 5_000);
    let lease = test.take(&[("tpm", 10)]);
    let expected = [
        ("nobody", ExtendOutcome::UnknownLimit { part: 1 }),
        ("down", ExtendOutcome::LimitDecreasing { part: 1, retry_after_ms: 10_000 }),
        ("stop", ExtendOutcome::LimitPaused { part: 1, retry_after_ms: 5_000 }),
    ];
    for (name, outcome) in expected {
        for _ in 0..2 {
            let wanted = [("tpm", 5), (name, 1)];
            let asked = Asked { used: &[("tpm", 9)], ..add(&wanted) };
            assert_eq!(test.extend(lease, 1, asked), outcome, "{name}");
        }
    }
    assert_eq!(test.reserved("tpm"), 10);
    assert_eq!(test.info(lease).unwrap().extensions, 0);
    test.extended(lease, 1, add(&[("tpm", 5)]));
}

#[test]
fn a_lease_has_at_most_32_limits_in_the_end() {
    let mut test = TestBook::new();
    let names: Vec<String> = (0..33).map(|number| format!("k{number:02}")).collect();
    for name in &names {
        test.put_active(rolling(name, 10, 60));
    }
    let all: Vec<(&str, u64)> = names.iter().map(|name| (name.as_str(), 1)).collect();
    let lease = test.take(&all[..20]);
    assert_eq!(test.extend(lease, 1, add(&all[10..])), ExtendOutcome::TooManyLimits { found: 33 });
    test.extended(lease, 1, add(&all[..32]));
    assert_snapshot_keeps(&mut test);
    assert_eq!(test.info(lease).unwrap().requirements.len(), 32);
    let amounts = names[..32].iter().map(|name| test.reserved(name)).collect::<Vec<_>>();
    assert_eq!(amounts, [vec![2; 20], vec![1; 12]].concat());
    assert_eq!(test.extend(lease, 2, add(&all[32..])), ExtendOutcome::TooManyLimits { found: 33 });
    let actuals: Vec<(&str, u64)> = all[..32].iter().map(|(name, _)| (*name, 0)).collect();
    test.settle(lease, &actuals);
    let amounts = names[..32].iter().map(|name| test.reserved(name)).collect::<Vec<_>>();
    assert_eq!(amounts, [vec![1; 20], vec![0; 12]].concat());
}

#[test]
fn malformed_extensions_are_refused_by_field() {
    let mut test = book();
    let lease = test.take(&[("tpm", 10)]);
    let invalid = ExtendOutcome::Invalid;
    for number in [0, EXTENSIONS_MAX + 1, u32::MAX] {
        assert_eq!(test.extend(lease, number, renew()), invalid(InvalidExtend::Number { found: number }));
    }
    let twice = [("tpm", 1), ("tpm", 2)];
    assert_eq!(test.extend(lease, 1, add(&twice)), invalid(InvalidExtend::Add(InvalidParts::Duplicate { part: 1 })));
    assert_eq!(test.extend(lease, 1, used(&twice)), invalid(InvalidExtend::Used(InvalidParts::Duplicate { part: 1 })));
    assert_eq!(
        test.extend(lease, 1, add(&[("tpm", 0)])),
        invalid(InvalidExtend::Add(InvalidParts::AmountZero { part: 0 }))
    );
    assert_eq!(
        test.extend(lease, 1, add(&[("tpm", 1); 33])),
        invalid(InvalidExtend::Add(InvalidParts::TooMany { found: 33 }))
    );
    assert_eq!(test.extended(lease, 1, used(&[("tpm", 0)])), 0);
}

#[test]
fn a_lease_that_was_never_allowed_or_has_ended_cannot_be_extended() {
    let mut test = book();
    let unknown = test.lease();
    let (denied, _) = test.denied(&[("tpm", 101)]);
    let marked = test.lease();
    assert_eq!(test.complete(marked, &[]), CompleteOutcome::Marked);
    let completed = test.take(&[("tpm", 1)]);
    test.extended(completed, 1, renew());
    test.settle(completed, &[]);
    let released = test.take(&[("tpm", 1)]);
    test.extended(released, 1, renew());
    assert!(matches!(test.release(released), CompleteOutcome::Completed(_)));
    for lease in [unknown, denied, marked, completed, released] {
        for number in [1, 2] {
            assert_eq!(test.extend(lease, number, renew()), expired());
        }
    }
    // An unknown lease was not marked by that.
    assert_eq!(test.reserve(unknown, &[("tpm", 1)]), created(START));
    assert_eq!(test.reserve(completed, &[("tpm", 1)]), ReserveOutcome::LeaseExpired);
}

#[test]
fn a_repeated_reserve_is_judged_by_its_first_body() {
    let mut test = book();
    test.put_active(Definition { enforce: false, ..rolling("shadow", 1, 60) });
    let lease = test.lease();
    let body = [("shadow", 5), ("calls", 1)];
    let ReserveOutcome::Created { would_deny, .. } = test.reserve(lease, &body) else { panic!("it was denied") };
    test.extended(lease, 1, add(&[("calls", 1), ("tpm", 3), ("shadow", 2)]));
    assert_snapshot_keeps(&mut test);
    let again = ReserveOutcome::Exists { reserved_at: START, would_deny, policy_revision: None };
    assert_eq!(test.reserve(lease, &body), again);
    for other in [&[("shadow", 2), ("calls", 2), ("tpm", 3)][..], &[("shadow", 7), ("calls", 2), ("tpm", 3)]] {
        assert_eq!(test.reserve(lease, other), ReserveOutcome::ExistsWithOtherRequirements);
    }
    test.settle(lease, &[]);
    assert_eq!(test.reserve(lease, &body), ReserveOutcome::LeaseExpired);
    assert_eq!(test.reserve(lease, &[("calls", 2)]), ReserveOutcome::ExistsWithOtherRequirements);
}

#[test]
fn reported_usage_is_a_floor_for_complete() {
    let mut test = book();
    let lease = test.take(&[("tpm", 50), ("calls", 1)]);
    test.extended(lease, 1, used(&[("tpm", 20)]));
    test.extended(lease, 2, used(&[("tpm", 10)]));
    let info = test.info(lease).unwrap();
    assert_eq!((info.extensions, info.used.clone()), (2, vec![(test.id("tpm"), 20)]));
    assert_snapshot_keeps(&mut test);
    assert_eq!(test.info(lease), Some(info));
    let settlement = test.settle(lease, &[("calls", 1), ("tpm", 5)]);
    assert_eq!(settlement.raised, [1]);
    assert_eq!(test.reserved("tpm"), 20);
    // Without an actual all that is reserved counts, and the report if it is higher.
    for (reported, counted) in [(20, 30), (35, 35)] {
        let mut test = book();
        let lease = test.take(&[("tpm", 30)]);
        test.extended(lease, 1, used(&[("tpm", reported)]));
        assert_eq!(test.settle(lease, &[]).raised, Vec::<usize>::new());
        assert_eq!(test.reserved("tpm"), counted);
    }
}

#[test]
fn limits_are_derived_by_an_extension_only_if_it_is_allowed() {
    let mut test = book();
    put(&mut test, "user:{user}:tpm", 10);
    let lease = test.take(&[("tpm", 10)]);
    for refused in [&[("user:u1:tpm", 11)][..], &[("user:u1:tpm", 1), ("nobody", 1)]] {
        let outcome = test.extend(lease, 1, add(refused));
        assert!(!matches!(outcome, ExtendOutcome::Extended(_)));
        assert_eq!(test.book.limit_count(), 2, "{outcome:?}");
    }
    let asked = Asked { used: &[("user:u1:tpm", 3)], ..add(&[("user:u1:tpm", 4)]) };
    assert_eq!(test.extend(lease, 2, asked), ExtendOutcome::Extended(Extension::default()));
    assert_eq!((test.book.limit_count(), test.reserved("user:u1:tpm")), (3, 4));
    let info = test.info(lease).unwrap();
    assert_eq!(info.used, [(test.id("user:u1:tpm"), 3)]);
    assert_snapshot_keeps(&mut test);
    // The lease keeps the derived limit, until it is forgotten.
    test.settle(lease, &[("user:u1:tpm", 0)]);
    assert_eq!(test.reserved("user:u1:tpm"), 3);
}

#[test]
fn a_quota_that_is_used_up_refuses_an_extension_and_leaves_its_number_free() {
    let mut test = book();
    put(&mut test, "user:{user}:tpm", 10);
    let lease = test.take(&[("tpm", 10), ("user:u1:tpm", 1)]);
    let quotas = [(QuotaKind::DerivedLimits, 1)].into_iter().collect();
    let step = Step::SetQuotas(SetQuotas { namespace: "default".parse().unwrap(), quotas });
    assert!(matches!(test.apply(&step), Outcome::Quotas(_)));
    let refused = ExtendOutcome::QuotaExceeded { kind: QuotaKind::DerivedLimits, retry_after_ms: 10_000 };
    for _ in 0..2 {
        assert_eq!(test.extend(lease, 1, add(&[("user:u2:tpm", 1)])), refused);
    }
    test.extended(lease, 1, add(&[("user:u1:tpm", 1)]));
    let quotas = [(QuotaKind::JournalBytesPerDay, 0)].into_iter().collect();
    let mut bank = Bank::new();
    bank.commit(vec![open("acme"), issue("acme", "usd", 100)]);
    bank.test.put_active(credit("usd", "acme", 60, earmark_core::Overage::Debt));
    let lease = bank.test.take(&[("usd", 40)]);
    let step = Step::SetQuotas(SetQuotas { namespace: "default".parse().unwrap(), quotas });
    assert!(matches!(bank.test.apply(&step), Outcome::Quotas(_)));
    let refused = ExtendOutcome::QuotaExceeded { kind: QuotaKind::JournalBytesPerDay, retry_after_ms: 10_000 };
    assert_eq!(bank.test.extend(lease, 1, add(&[("usd", 1)])), refused);
    assert_eq!(bank.test.extended(lease, 1, renew()), 60_000);
}

#[test]
fn the_records_of_extended_leases_are_deleted_one_retention_after_their_new_end() {
    let mut test = TestBook::with(Config { retention_ms: 5_000, ..Config::default() });
    test.put_active(concurrency("calls", 10, 10));
    test.put_active(rolling("tpm", 100, 1));
    let first = test.take(&[("calls", 1), ("tpm", 1)]);
    let second = test.take(&[("calls", 1)]);
    test.advance(8_000);
    test.extended(first, 1, Asked { renew: true, ..add(&[("tpm", 1)]) });
    assert_eq!(test.book.live_leases(test.now()), 2);
    test.advance(7_000);
    test.tick();
    assert_eq!((test.book.leases(), test.book.live_leases(test.now())), (1, 1));
    assert_eq!((test.info(second), test.state(first)), (None, Some(LeaseState::Live)));
    test.advance(3_000);
    assert_eq!((test.book.leases(), test.book.live_leases(test.now())), (1, 0));
    assert_snapshot_keeps(&mut test);
    test.advance(5_000);
    test.tick();
    assert_eq!(test.book.leases(), 0);
}

#[test]
fn live_leases_are_those_that_have_not_ended() {
    let mut test = book();
    let leases: Vec<_> = (0..2).map(|_| test.take(&[("calls", 1), ("tpm", 1)])).collect();
    assert_eq!(test.book.live_leases(test.now()), 2);
    test.settle(leases[0], &[]);
    assert_eq!(test.book.live_leases(test.now()), 1);
    test.advance(10_000);
    assert_eq!(test.book.live_leases(test.now()), 0);
    assert_eq!(test.book.leases(), 2);
}

#[test]
fn a_shorter_window_does_not_end_a_lease_before_its_earlier_part() {
    let mut test = book();
    let lease = test.take(&[("tpm", 30)]);
    test.put_active(rolling("tpm", 100, 5));
    test.extended(lease, 1, add(&[("tpm", 20)]));
    test.advance(5_000);
    assert_eq!(test.reserved("tpm"), 30);
    test.extended(lease, 2, add(&[("tpm", 1)]));
    test.advance(55_000);
    assert_eq!(test.extend(lease, 3, renew()), expired());
    let step = Step::Configure(vec![SettingChange { setting: Setting::LeasesMax, value: 100 }]);
    assert!(matches!(test.apply(&step), Outcome::Configure(_)));
}

#[test]
fn an_extension_of_credit_grows_the_hold_and_takes_no_more_than_there_is() {
    let mut bank = Bank::new();
    bank.commit(vec![open("acme"), issue("acme", "usd", 100)]);
    bank.test.put_active(credit("usd", "acme", 60, earmark_core::Overage::Debt));
    bank.test.put_active(credit("more", "acme", 30, earmark_core::Overage::Debt));
    let lease = bank.test.take(&[("usd", 40)]);
    bank.test.advance(20_000);
    assert_eq!(bank.test.extended(lease, 1, add(&[("usd", 10)])), 40_000);
    assert_eq!(bank.available("acme", "usd"), 50);
    let asked = add(&[("usd", 30), ("more", 21)]);
    for _ in 0..2 {
        let outcome = bank.test.extend(lease, 2, asked);
        let ExtendOutcome::InsufficientCredit(denial) = outcome else { panic!("{outcome:?}") };
        assert_eq!(denial.requirement, 1);
    }
    assert_eq!(bank.available("acme", "usd"), 50);
    assert_eq!(bank.test.extended(lease, 3, add(&[("usd", 30), ("more", 20)])), 30_000);
    assert_eq!(bank.available("acme", "usd"), 0);
    assert_snapshot_keeps(&mut bank.test);
    let settlement = bank.test.settle(lease, &[("usd", 70), ("more", 5)]);
    let charged: Vec<(u64, u64)> = settlement.charges.iter().map(|charge| (charge.cost, charge.paid)).collect();
    assert_eq!(charged, [(70, 70), (5, 5)]);
    assert_eq!((bank.available("acme", "usd"), bank.available("revenue", "usd")), (25, 75));
    bank.assert_balanced();
}

/// A denied extension changes nothing, so it must not make the lease live longer either.
#[test]
fn a_denied_extension_does_not_change_when_a_repeated_reserve_expires() {
    for (amount, state) in [(1, LeaseState::Live), (1_000, LeaseState::Expired)] {
        let mut test = TestBook::new();
        test.put_active(rolling("rps", 100, 1));
        test.put_active(concurrency("calls", 2, 10));
        let lease = test.take(&[("calls", 1), ("rps", 1)]);
        let outcome = test.extend(lease, 1, add(&[("rps", amount)]));
        assert_eq!(matches!(outcome, ExtendOutcome::Denied(_)), state == LeaseState::Expired, "{outcome:?}");
        test.advance(1_000);
        let again = test.reserve(lease, &[("calls", 1), ("rps", 1)]);
        let is_expired = again == ReserveOutcome::LeaseExpired;
        assert_eq!((test.state(lease), is_expired), (Some(state), state == LeaseState::Expired), "{again:?}");
        // It can still be extended: its slot is alive.
        test.extended(lease, 2, renew());
        assert_eq!(test.state(lease), Some(LeaseState::Live));
    }
}
