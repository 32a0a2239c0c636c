//! Capacity increases at once and decreases when enough is free. Limits are deleted and put again under live leases.

use earmark_core::{
    CompleteOutcome, Definition, DefinitionError, HoldField, LimitId, LimitOutcome, LimitStatus, Overage, OverageHow,
    ReserveOutcome,
};

use crate::support::test_book::{TestBook, changed, concurrency, created, rolling};

const ACTIVE: LimitStatus = LimitStatus::Active;
const DELETED: LimitStatus = LimitStatus::Deleted;

fn down_to(to: u64) -> LimitStatus {
    LimitStatus::Decreasing { to }
}

#[test]
fn more_capacity_counts_at_once() {
    let mut test = TestBook::new();
    let rpm = test.put_active(rolling("rpm", 1, 60));
    test.take(&[("rpm", 1)]);
    test.denied(&[("rpm", 1)]);
    assert_eq!(test.put(rolling("rpm", 2, 60)), changed(rpm, 2, ACTIVE));
    test.take(&[("rpm", 1)]);
}

#[test]
fn less_capacity_counts_at_once_where_enough_is_free() {
    let mut test = TestBook::new();
    let rpm = test.put_active(rolling("rpm", 10, 60));
    test.take(&[("rpm", 4)]);
    assert_eq!(test.put(rolling("rpm", 4, 60)), changed(rpm, 2, ACTIVE));
    let usage = test.usage("rpm");
    assert_eq!((usage.capacity, usage.available), (4, 0));
}

#[test]
fn a_decreasing_limit_shows_the_capacity_in_force_and_nothing_available() {
    let mut test = TestBook::new();
    let rpm = test.put_active(rolling("rpm", 10, 60));
    test.take(&[("rpm", 6)]);
    test.put(rolling("rpm", 4, 60));
    let status = LimitStatus::Decreasing { to: 4 };
    let usage = test.usage("rpm");
    assert_eq!((usage.capacity, usage.available, usage.status), (10, 0, status));
    let info = test.book.limit(test.book.time(), rpm).unwrap();
    assert_eq!((info.capacity, info.status), (10, status));
}

#[test]
fn a_limit_that_is_going_down_refuses_reserves_by_name_and_spends_no_lease() {
    let mut test = TestBook::new();
    let rpm = test.put_active(rolling("rpm", 10, 60));
    test.take(&[("rpm", 8)]);
    assert_eq!(test.put(rolling("rpm", 5, 60)), changed(rpm, 2, down_to(5)));
    let usage = test.usage("rpm");
    assert_eq!((usage.capacity, usage.reserved, usage.status), (10, 8, down_to(5)));
    let lease = test.lease();
    let outcome = test.reserve(lease, &[("rpm", 1)]);
    assert_eq!(outcome, ReserveOutcome::LimitDecreasing { requirement: 0, retry_after_ms: 10_000 });
    assert_eq!(test.info(lease), None);
    test.advance(60_000);
    let reserved_at = test.now();
    assert_eq!(test.reserve(lease, &[("rpm", 5)]), created(reserved_at));
    assert_eq!(test.usage("rpm").capacity, 5);
}

#[test]
fn a_decrease_applies_the_moment_there_is_room_though_no_command_comes() {
    let mut test = TestBook::new();
    let rpm = test.put_active(rolling("rpm", 10, 60));
    test.take(&[("rpm", 4)]);
    test.advance(10_000);
    test.take(&[("rpm", 5)]);
    test.put(rolling("rpm", 5, 60));
    test.advance(49_999);
    assert_eq!(test.usage("rpm").status, down_to(5));
    test.advance(1);
    let usage = test.usage("rpm");
    assert_eq!((usage.capacity, usage.reserved, usage.status), (5, 5, ACTIVE));
    assert_eq!(test.book.limit(test.now(), rpm).unwrap().status, ACTIVE);
}

#[test]
fn a_complete_that_makes_room_finishes_the_decrease() {
    let mut test = TestBook::new();
    test.put_active(concurrency("slots", 10, 60));
    let lease = test.take(&[("slots", 4)]);
    test.take(&[("slots", 4)]);
    test.put(concurrency("slots", 5, 60));
    test.settle(lease, &[]);
    let usage = test.usage("slots");
    assert_eq!((usage.capacity, usage.reserved, usage.status), (5, 4, ACTIVE));
    test.take(&[("slots", 1)]);
    test.denied(&[("slots", 1)]);
}

#[test]
fn a_second_change_replaces_the_target_and_one_above_cancels_it() {
    let mut test = TestBook::new();
    let rpm = test.put_active(rolling("rpm", 10, 60));
    test.take(&[("rpm", 8)]);
    assert_eq!(test.put(rolling("rpm", 5, 60)), changed(rpm, 2, down_to(5)));
    assert_eq!(test.put(rolling("rpm", 3, 60)), changed(rpm, 3, down_to(3)));
    assert_eq!(test.put(rolling("rpm", 7, 60)), changed(rpm, 4, down_to(7)));
    assert_eq!(test.book.limit(test.now(), rpm).unwrap().definition.capacity, 7);
    assert_eq!(test.put(rolling("rpm", 8, 60)), changed(rpm, 5, ACTIVE), "it fits at once");
    test.put(rolling("rpm", 5, 60));
    assert_eq!(test.put(rolling("rpm", 8, 60)), changed(rpm, 7, ACTIVE), "it is what is in force");
    test.put(rolling("rpm", 5, 60));
    assert_eq!(test.put(rolling("rpm", 20, 60)), changed(rpm, 9, ACTIVE));
    test.take(&[("rpm", 12)]);
}

#[test]
fn everything_but_the_capacity_changes_at_once_even_while_it_goes_down() {
    let mut test = TestBook::new();
    let rpm = test.put_active(rolling("rpm", 10, 60));
    test.take(&[("rpm", 8)]);
    let wanted = Definition { overage: Overage::Deny, ..rolling("rpm", 5, 7) };
    assert_eq!(test.put(wanted.clone()), changed(rpm, 2, down_to(5)));
    assert_eq!(test.book.limit(test.now(), rpm).unwrap().definition, wanted);
}

#[test]
fn usage_may_still_grow_into_what_is_free_while_the_capacity_goes_down() {
    let mut test = TestBook::new();
    test.put_active(rolling("tpm", 100, 60));
    let lease = test.take(&[("tpm", 80)]);
    let other = test.take(&[("tpm", 5)]);
    test.put(rolling("tpm", 10, 60));
    assert_eq!(test.settle(lease, &[("tpm", 95)]).overages[0].how, OverageHow::Reserved);
    assert_eq!(test.settle(other, &[("tpm", 6)]).overages[0].how, OverageHow::Debt);
    let usage = test.usage("tpm");
    assert_eq!((usage.capacity, usage.reserved, usage.debt), (100, 100, 1));
}

#[test]
fn usage_no_longer_grows_into_a_capacity_that_has_just_gone_down() {
    let mut test = TestBook::new();
    test.put_active(rolling("tpm", 100, 60));
    let big = test.take(&[("tpm", 60)]);
    let small = test.take(&[("tpm", 30)]);
    test.put(rolling("tpm", 50, 60));
    test.settle(big, &[("tpm", 0)]);
    // All at one instant: the capacity freed by the first complete has finished the decrease.
    assert_eq!(test.settle(small, &[("tpm", 60)]).overages[0].how, OverageHow::Debt);
    let usage = test.usage("tpm");
    assert_eq!((usage.capacity, usage.reserved, usage.debt), (50, 30, 30));
}

#[test]
fn capacities_near_the_largest_number_go_up_and_down() {
    let mut test = TestBook::new();
    let big = test.put_active(rolling("big", u64::MAX - 1, 60));
    test.take(&[("big", u64::MAX - 1)]);
    assert_eq!(test.put(rolling("big", u64::MAX, 60)), changed(big, 2, ACTIVE));
    test.take(&[("big", 1)]);
    assert_eq!(test.put(rolling("big", 1, 60)), changed(big, 3, down_to(1)));
    test.advance(60_000);
    assert_eq!(test.usage("big").capacity, 1);
}

#[test]
fn deleting_an_idle_limit_is_done_at_once_and_revisions_go_on() {
    let mut test = TestBook::new();
    let rpm = test.put_active(rolling("rpm", 10, 60));
    assert_eq!(test.delete("rpm"), changed(rpm, 2, DELETED));
    assert_eq!(test.book.limit(test.now(), rpm), None);
    assert_eq!(test.book.usage(test.now(), rpm), None);
    assert_eq!(test.delete("rpm"), LimitOutcome::NotFound);
    let lease = test.lease();
    assert_eq!(test.reserve(lease, &[("rpm", 1)]), ReserveOutcome::UnknownLimit { requirement: 0 });
    let again = LimitId { generation: 1, ..rpm };
    assert_eq!(test.put(rolling("rpm", 3, 60)), changed(again, 3, ACTIVE));
}

#[test]
fn a_limit_in_use_is_deleted_when_it_has_run_empty() {
    let mut test = TestBook::new();
    let rpm = test.put_active(rolling("rpm", 10, 60));
    test.take(&[("rpm", 1)]);
    assert_eq!(test.delete("rpm"), changed(rpm, 2, down_to(0)));
    assert_eq!(test.delete("rpm"), changed(rpm, 2, down_to(0)), "deleting twice changes nothing");
    let lease = test.lease();
    let outcome = test.reserve(lease, &[("rpm", 1)]);
    assert_eq!(outcome, ReserveOutcome::LimitDecreasing { requirement: 0, retry_after_ms: 10_000 });
    test.advance(59_999);
    assert_eq!((test.usage("rpm").status, test.usage("rpm").capacity), (down_to(0), 10));
    test.advance(1);
    assert_eq!(test.book.usage(test.now(), rpm), None);
    assert_eq!(test.book.limits(test.now(), test.namespace), []);
    assert_eq!(test.reserve(lease, &[("rpm", 1)]), ReserveOutcome::UnknownLimit { requirement: 0 });
}

#[test]
fn a_put_takes_a_delete_back() {
    let mut test = TestBook::new();
    let rpm = test.put_active(rolling("rpm", 10, 60));
    test.take(&[("rpm", 6)]);
    test.delete("rpm");
    assert_eq!(test.put(rolling("rpm", 10, 60)), changed(rpm, 3, ACTIVE), "though it asks for the same");
    test.delete("rpm");
    assert_eq!(test.put(rolling("rpm", 5, 60)), changed(rpm, 5, down_to(5)));
    assert_eq!(test.delete("rpm"), changed(rpm, 6, down_to(0)), "and a delete takes a decrease back");
    assert_eq!(test.put(rolling("rpm", 5, 60)), changed(rpm, 7, down_to(5)));
    assert_eq!(test.usage("rpm").reserved, 6);
    test.advance(60_000);
    assert_eq!(test.usage("rpm").capacity, 5);
}

#[test]
fn a_limit_put_again_after_its_deletion_is_new() {
    let mut test = TestBook::new();
    let tpm = test.put_active(rolling("tpm", 10, 60));
    let lease = test.take(&[("tpm", 10)]);
    test.settle(lease, &[("tpm", 15)]);
    assert_eq!(test.denied(&[("tpm", 1)]).1.retry_after_ms, 60_000);
    assert_eq!(test.usage("tpm").debt, 5);
    test.delete("tpm");
    test.advance(60_000);
    // The kind may change, since nothing of the old limit is left.
    assert_eq!(test.put(concurrency("tpm", 3, 60)), changed(tpm, 3, ACTIVE));
    let usage = test.usage("tpm");
    assert_eq!((usage.capacity, usage.reserved, usage.debt), (3, 0, 0));
    test.take(&[("tpm", 3)]);
    assert_eq!(test.denied(&[("tpm", 1)]).1.retry_after_ms, 50, "its run of denials starts anew");
}

#[test]
fn a_lease_outlives_a_limit_that_was_deleted_under_it() {
    let mut test = TestBook::new();
    let tpm = test.put_active(rolling("tpm", 10, 60));
    test.put_active(concurrency("slots", 1, 3_600));
    let lease = test.take(&[("tpm", 5), ("slots", 1)]);
    test.delete("tpm");
    test.advance(60_000);
    assert_eq!(test.book.limit(test.now(), tpm), None);
    let settlement = test.settle(lease, &[("tpm", 9)]);
    assert_eq!(settlement.ignored, Vec::<usize>::new());
    assert_eq!((settlement.overages[0].amount, settlement.overages[0].how), (4, OverageHow::Dropped));
    assert_eq!(test.reserved("slots"), 0, "the rest of the lease is settled as ever");
}

#[test]
fn a_complete_that_empties_a_limit_finishes_its_deletion() {
    let mut test = TestBook::new();
    let tpm = test.put_active(rolling("tpm", 10, 60));
    let lease = test.take(&[("tpm", 5)]);
    test.delete("tpm");
    assert_eq!(test.settle(lease, &[("tpm", 0)]).overages, []);
    assert_eq!(test.book.limit(test.now(), tpm), None);
    assert_eq!(test.complete(lease, &[]), CompleteOutcome::Before);
    let id = LimitId { generation: 1, ..tpm };
    assert_eq!(test.put(rolling("tpm", 1, 60)), changed(id, 3, ACTIVE));
}

#[test]
fn usage_of_a_lease_from_before_a_deletion_counts_against_the_limit_of_today() {
    let mut test = TestBook::new();
    let tpm = test.put_active(rolling("tpm", 10, 60));
    let lease = test.take(&[("tpm", 5)]);
    test.delete("tpm");
    test.advance(60_000);
    test.put_active(rolling("tpm", 10, 60));
    let settlement = test.settle(lease, &[("tpm", 9)]);
    assert_eq!((settlement.overages[0].limit, settlement.overages[0].how), (tpm, OverageHow::Reserved));
    assert_eq!(test.reserved("tpm"), 4);
    test.advance(1_000);
    assert_eq!(test.reserved("tpm"), 0);
}

#[test]
fn a_change_made_for_another_revision_is_refused() {
    let mut test = TestBook::new();
    let differs = |revision| LimitOutcome::RevisionDiffers { revision };
    assert_eq!(test.put_if(rolling("rpm", 1, 60), Some(1)), differs(0));
    assert_eq!(test.delete_if("rpm", Some(5)), differs(0));
    assert_eq!(test.delete_if("rpm", Some(0)), LimitOutcome::NotFound);
    let LimitOutcome::Changed { limit, .. } = test.put_if(rolling("rpm", 1, 60), Some(0)) else {
        panic!("it must not exist, and did not");
    };
    assert_eq!(test.put_if(rolling("rpm", 2, 60), Some(0)), differs(1));
    assert_eq!(test.put_if(rolling("rpm", 2, 60), Some(1)), changed(limit, 2, ACTIVE));
    assert_eq!(test.put_if(concurrency("rpm", 2, 60), Some(1)), differs(2), "before the kind is looked at");
    assert_eq!(test.delete_if("rpm", Some(1)), differs(2));
    assert_eq!(test.delete_if("rpm", Some(2)), changed(limit, 3, DELETED));
    assert_eq!(test.put_if(rolling("rpm", 2, 60), Some(3)), differs(0));
    let again = LimitId { generation: 1, ..limit };
    assert_eq!(test.put_if(rolling("rpm", 2, 60), Some(0)), changed(again, 4, ACTIVE));
}

#[test]
fn a_put_of_what_is_already_wanted_changes_nothing() {
    let mut test = TestBook::new();
    let rpm = test.put_active(rolling("rpm", 10, 60));
    test.take(&[("rpm", 8)]);
    assert_eq!(test.put(rolling("rpm", 10, 60)), changed(rpm, 1, ACTIVE));
    test.put(rolling("rpm", 5, 60));
    assert_eq!(test.put(rolling("rpm", 5, 60)), changed(rpm, 2, down_to(5)));
    let described = Definition { description: "for people".into(), ..rolling("rpm", 5, 60) };
    assert_eq!(test.put(described.clone()), changed(rpm, 3, down_to(5)));
    assert_eq!(test.book.limit(test.now(), rpm).unwrap().definition, described);
}

#[test]
fn a_limit_keeps_its_kind_for_as_long_as_it_exists() {
    let mut test = TestBook::new();
    let rpm = test.put_active(rolling("rpm", 10, 60));
    assert_eq!(test.put(concurrency("rpm", 10, 60)), LimitOutcome::KindDiffers);
    test.take(&[("rpm", 1)]);
    test.delete("rpm");
    assert_eq!(test.put(concurrency("rpm", 10, 60)), LimitOutcome::KindDiffers);
    assert_eq!(test.usage("rpm").status, down_to(0), "a refused put does not take the delete back");
    test.advance(60_000);
    assert_eq!(test.put(concurrency("rpm", 10, 60)), changed(rpm, 3, ACTIVE));
}

#[test]
fn a_malformed_definition_is_refused_by_the_field_that_is_wrong() {
    let mut test = TestBook::new();
    let hold = |field, found| DefinitionError::HoldSeconds { field, found };
    for (definition, error) in [
        (rolling("x", 0, 0), DefinitionError::CapacityZero),
        (rolling("x", 1, 0), hold(HoldField::WindowSeconds, 0)),
        (concurrency("x", 1, 366 * 86_400 + 1), hold(HoldField::TimeoutSeconds, 366 * 86_400 + 1)),
        (Definition { unit: "u".repeat(65), ..rolling("x", 1, 1) }, DefinitionError::UnitTooLong { found: 65 }),
        (
            Definition { description: "d".repeat(1_025), ..rolling("x", 1, 1) },
            DefinitionError::DescriptionTooLong { found: 1_025 },
        ),
    ] {
        assert_eq!(test.put(definition), LimitOutcome::Invalid(error));
    }
    assert_eq!(test.book.limits(test.now(), test.namespace), []);
    test.put_active(concurrency("x", u64::MAX, 366 * 86_400));
}
