//! Ids of limits are reused, and nothing that named the first owner ever means the second.

use earmark_core::{
    CompleteOutcome, Config, LimitId, LimitOutcome, OverageHow, QuotaKind, ReserveOutcome, Setting, SettingChange,
};

use crate::support::snapshot::{restore, snapshot};
use crate::support::step::{Step, by_id, by_key, key};
use crate::support::test_book::{TestBook, concurrency, rolling};

fn again(test: &mut TestBook) {
    let bytes = snapshot(&mut test.book);
    test.book = restore(&bytes, 1_000, 3).unwrap();
    assert_eq!(snapshot(&mut test.book), bytes);
}

#[test]
fn a_deleted_limit_gives_back_its_slot_and_its_id_stays_stale() {
    let mut test = TestBook::new();
    let first = test.put_active(rolling("a", 5, 60));
    test.put_active(rolling("b", 5, 60));
    test.delete("a");
    assert_eq!((test.book.limit_count(), test.book.key(first)), (1, None));
    let second = test.put_active(rolling("c", 5, 60));
    assert_eq!(second, LimitId { slot: first.slot, generation: 1 });
    for _ in 0..2 {
        let lease = test.lease();
        let outcome = test.reserve_parts(lease, vec![by_key("b", 1), by_id(first, 1)]);
        assert_eq!(outcome, ReserveOutcome::StaleLimit { requirement: 1 });
        assert_eq!(test.info(lease), None, "a stale id leaves no trace of the lease");
        let lease = test.take(&[("b", 1)]);
        let outcome = test.complete_parts(lease, vec![by_id(first, 9)]);
        assert_eq!(outcome, CompleteOutcome::StaleLimit { actual: 0 });
        assert_eq!(test.book.usage(test.now(), second).map(|usage| usage.reserved), Some(0));
        test.settle(lease, &[("b", 0)]);
        again(&mut test);
    }
    assert_eq!(test.book.resolve(test.namespace, &key("c")), Some(second));
}

#[test]
fn the_lowest_free_slot_is_given_out_first_also_after_a_restore() {
    let mut test = TestBook::new();
    for name in ["a", "b", "c", "d"] {
        test.put_active(rolling(name, 5, 60));
    }
    for name in ["d", "b", "c"] {
        test.delete(name);
    }
    again(&mut test);
    let slots = ["x", "y", "z", "new"].map(|name| test.put_active(rolling(name, 5, 60)));
    assert_eq!(slots.map(|id| (id.slot, id.generation)), [(1, 1), (2, 1), (3, 1), (4, 0)]);
}

/// The sequence of the design: a lease holds a short rolling part and a long slot. Its rolling limit is deleted, and
/// others are put. The lease then completes with overage, which must not reach any of the others.
#[test]
fn a_lease_keeps_the_slot_of_a_deleted_limit_until_it_completes_with_overage() {
    for is_restored in [false, true] {
        let mut test = TestBook::new();
        let tpm = test.put_active(rolling("tpm", 10, 60));
        test.put_active(concurrency("slots", 1, 3_600));
        let lease = test.take(&[("tpm", 5), ("slots", 1)]);
        test.delete("tpm");
        test.advance(60_000);
        test.tick();
        let other = test.put_active(rolling("other", 10, 60));
        assert_ne!(other.slot, tpm.slot, "the lease record still names the slot");
        if is_restored {
            again(&mut test);
        }
        let settlement = test.settle(lease, &[("tpm", 9)]);
        assert_eq!((settlement.overages[0].limit, settlement.overages[0].how), (tpm, OverageHow::Dropped));
        assert_eq!((test.reserved("other"), test.usage("other").debt), (0, 0));
        // The lease has ended, so the slot is free, and a retry of the reserve is still known by its keys.
        let third = test.put_active(rolling("third", 10, 60));
        assert_eq!(third, LimitId { slot: tpm.slot, generation: 1 });
        assert_eq!(test.reserve(lease, &[("tpm", 5), ("slots", 1)]), ReserveOutcome::LeaseExpired);
        let swapped = test.reserve(lease, &[("third", 5), ("slots", 1)]);
        assert_eq!(swapped, ReserveOutcome::ExistsWithOtherRequirements);
        assert_eq!(test.complete(lease, &[("tpm", 9)]), CompleteOutcome::Before);
    }
}

#[test]
fn a_key_that_is_put_again_under_a_lease_keeps_its_id() {
    let mut test = TestBook::new();
    let tpm = test.put_active(rolling("tpm", 10, 60));
    test.put_active(concurrency("slots", 2, 3_600));
    let lease = test.take(&[("tpm", 5), ("slots", 1)]);
    test.delete("tpm");
    test.advance(60_000);
    assert_eq!(test.put_active(concurrency("tpm", 1, 60)), tpm);
    test.settle(lease, &[]);
    test.delete("tpm");
    assert_eq!(test.put_active(rolling("tpm", 1, 60)), LimitId { generation: 1, ..tpm });
}

#[test]
fn a_denial_is_repeated_with_the_same_limit_after_its_slot_has_another_owner() {
    let mut test = TestBook::new();
    test.put_active(rolling("rpm", 10, 60));
    test.put_active(rolling("tpm", 1, 60));
    let (lease, denial) = test.denied(&[("tpm", 2), ("rpm", 1)]);
    assert_eq!((denial.never, denial.limited_by), (true, vec![0]));
    test.delete("tpm");
    test.put_active(rolling("aaa", 10, 60));
    for (parts, place) in [([("tpm", 2), ("rpm", 1)], 0), ([("rpm", 1), ("tpm", 2)], 1)] {
        let ReserveOutcome::ExistsDenied(denial) = test.reserve(lease, &parts) else { panic!("not denied again") };
        assert_eq!(denial.limited_by, [place]);
    }
    let outcome = test.reserve(lease, &[("aaa", 2), ("rpm", 1)]);
    assert_eq!(outcome, ReserveOutcome::ExistsWithOtherRequirements);
}

#[test]
fn a_limit_that_runs_empty_by_itself_is_freed_by_the_sweep() {
    let mut test = TestBook::new();
    for number in 0..50 {
        test.put_active(rolling(&format!("k{number}"), 5, 60));
    }
    let lease = test.take(&[("k7", 2)]);
    test.settle(lease, &[("k7", 1)]);
    test.delete("k7");
    test.advance(60_000);
    assert_eq!(test.book.limit_count(), 50);
    test.tick();
    assert_eq!(test.book.limit_count(), 49);
    assert_eq!(test.put_active(rolling("new", 5, 60)), LimitId { slot: 7, generation: 1 });
}

#[test]
fn the_bound_counts_live_limits_and_can_be_changed() {
    let mut test = TestBook::with(Config { limits_max: 3, ..Config::default() });
    for round in 0..20 {
        for place in 0..3 {
            test.put_active(rolling(&format!("k{round}:{place}"), 5, 60));
        }
        assert_eq!(test.put(rolling("more", 5, 60)), LimitOutcome::TooMany);
        for place in 0..3 {
            test.delete(&format!("k{round}:{place}"));
        }
    }
    let change = SettingChange { setting: Setting::LimitsMax, value: 4 };
    test.apply(&Step::Configure(vec![change]));
    for name in ["a", "b", "c", "d"] {
        test.put_active(rolling(name, 5, 60));
    }
    assert_eq!(test.put(rolling("more", 5, 60)), LimitOutcome::TooMany);
    let used = |test: &TestBook| {
        let quotas = test.book.quotas(test.now(), test.namespace);
        quotas.into_iter().find(|usage| usage.kind == QuotaKind::Limits).map(|usage| (usage.quota, usage.used))
    };
    assert_eq!(used(&test), Some((4, 4)));
    test.delete("d");
    assert_eq!(used(&test), Some((4, 3)));
}

#[test]
fn an_old_revision_never_matches_a_key_that_was_deleted_and_put_again() {
    let mut test = TestBook::new();
    test.put_active(rolling("a", 5, 60));
    for _ in 0..3 {
        test.delete("a");
        test.put_active(rolling("other", 5, 60));
        test.delete("other");
        test.put_active(rolling("a", 5, 60));
        again(&mut test);
    }
    let LimitOutcome::RevisionDiffers { revision } = test.delete_if("a", Some(1)) else { panic!("it matched") };
    assert_eq!(revision, 13);
}

#[test]
fn a_tick_frees_a_bounded_number_of_limits() {
    let mut test = TestBook::new();
    for number in 0..200 {
        let name = format!("k{number}");
        test.put_active(rolling(&name, 5, 60));
        let lease = test.take(&[(&name, 2)]);
        test.settle(lease, &[(&name, 1)]);
        test.delete(&name);
    }
    test.advance(60_000);
    let mut counts = vec![test.book.limit_count()];
    for _ in 0..4 {
        test.tick();
        counts.push(test.book.limit_count());
    }
    assert_eq!(counts, [200, 136, 72, 8, 0]);
}
