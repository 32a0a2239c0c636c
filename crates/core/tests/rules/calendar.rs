//! Calendar limits: a reservation ends with its hour, day, week or month.

use earmark_core::{Denial, Kind, LimitOutcome, OverageHow, Period, ReserveOutcome, UnixMs};

use crate::support::snapshot::restored;
use crate::support::test_book::{START, TestBook, calendar, concurrency, exists, rolling};

/// From [`START`], Sunday 2025-06-15 at 15:06:40 UTC, to the next midnight.
const TO_MIDNIGHT_MS: u64 = 32_000_000;

#[test]
fn each_period_frees_everything_at_its_end_and_not_a_millisecond_earlier() {
    for (period, utc_offset_minutes, left_ms) in [
        (Period::Hour, 0, 3_200_000),
        (Period::Hour, 30, 1_400_000),
        (Period::Day, 0, TO_MIDNIGHT_MS),
        // In India it is 20:36:40, and in Honolulu 05:06:40.
        (Period::Day, 330, TO_MIDNIGHT_MS - 330 * 60_000),
        (Period::Day, -600, TO_MIDNIGHT_MS + 600 * 60_000),
        // In Tokyo it is Monday already.
        (Period::Day, 540, TO_MIDNIGHT_MS + 86_400_000 - 540 * 60_000),
        (Period::Week, 0, TO_MIDNIGHT_MS),
        (Period::Week, 540, TO_MIDNIGHT_MS + 7 * 86_400_000 - 540 * 60_000),
        (Period::Month, 0, TO_MIDNIGHT_MS + 15 * 86_400_000),
        (Period::Month, -720, TO_MIDNIGHT_MS + 15 * 86_400_000 + 720 * 60_000),
    ] {
        let mut test = TestBook::new();
        test.put_active(calendar("c", 10, period, utc_offset_minutes));
        // The reserve is within a second; the period ends with one.
        test.advance(1_234);
        let lease = test.take(&[("c", 10)]);
        test.settle(lease, &[("c", 10)]);
        let retry_after_ms = left_ms - 1_234;
        let (_, denial) = test.denied(&[("c", 1)]);
        assert_eq!(denial, Denial { retry_after_ms, limited_by: vec![0], never: false }, "{period}");
        test.advance(retry_after_ms - 1);
        assert_eq!(test.denied(&[("c", 1)]).1.retry_after_ms, 1);
        test.advance(1);
        assert_eq!(test.reserved("c"), 0);
        test.take(&[("c", 10)]);
    }
}

#[test]
fn two_reserves_of_one_period_end_together_whenever_they_were_made() {
    let mut test = TestBook::new();
    test.put_active(calendar("day", 10, Period::Day, 0));
    for ms in [0, 1, 999, 5_000_000] {
        test.advance(ms);
        let lease = test.take(&[("day", 2)]);
        test.settle(lease, &[("day", 2)]);
    }
    let left = TO_MIDNIGHT_MS - 5_001_000;
    assert_eq!(test.denied(&[("day", 3)]).1.retry_after_ms, left);
    test.advance(left);
    assert_eq!(test.reserved("day"), 0);
}

#[test]
fn unused_amounts_return_to_their_period_and_unsettled_ones_give_a_backoff() {
    let mut test = TestBook::new();
    test.put_active(calendar("day", 10, Period::Day, 0));
    let lease = test.take(&[("day", 10)]);
    assert_eq!(test.denied(&[("day", 1)]).1.retry_after_ms, 5_000, "an unsettled lease may free capacity earlier");
    test.settle(lease, &[("day", 4)]);
    assert_eq!(test.usage("day").available, 6);
}

#[test]
fn a_lease_that_settles_after_its_period_adds_only_its_overage_to_the_current_one() {
    let mut test = TestBook::new();
    let day = test.put_active(calendar("day", 100, Period::Day, 0));
    let (within, over) = (test.take(&[("day", 40)]), test.take(&[("day", 40)]));
    test.advance(TO_MIDNIGHT_MS + 500);
    assert_eq!(test.reserved("day"), 0, "the lease no longer counts");
    assert_eq!(test.settle(within, &[("day", 40)]).overages, []);
    assert_eq!(test.reserved("day"), 0);
    let settlement = test.settle(over, &[("day", 55)]);
    assert_eq!((settlement.overages[0].limit, settlement.overages[0].amount), (day, 15));
    assert_eq!(settlement.overages[0].how, OverageHow::Reserved);
    assert_eq!(test.reserved("day"), 15);
    test.advance(86_400_000 - 501);
    assert_eq!(test.reserved("day"), 15, "it counts until the end of the current period");
    test.advance(1);
    assert_eq!(test.reserved("day"), 0);
}

#[test]
fn a_late_overage_that_does_not_fit_the_current_period_is_debt() {
    let mut test = TestBook::new();
    test.put_active(calendar("day", 100, Period::Day, 0));
    let lease = test.take(&[("day", 100)]);
    test.advance(TO_MIDNIGHT_MS);
    test.take(&[("day", 95)]);
    assert_eq!(test.settle(lease, &[("day", 110)]).overages[0].how, OverageHow::Debt);
    assert_eq!((test.reserved("day"), test.usage("day").debt), (95, 10));
}

#[test]
fn a_lease_over_the_boundary_keeps_its_slot_and_is_expired_because_its_day_ended() {
    let mut test = TestBook::new();
    test.put_active(calendar("day", 10, Period::Day, 0));
    test.put_active(concurrency("slots", 1, 86_400));
    let lease = test.take(&[("day", 10), ("slots", 1)]);
    test.advance(TO_MIDNIGHT_MS);
    assert_eq!((test.reserved("day"), test.reserved("slots")), (0, 1));
    assert_eq!(test.reserve(lease, &[("day", 10), ("slots", 1)]), ReserveOutcome::LeaseExpired);
    test.settle(lease, &[("day", 7)]);
    assert_eq!((test.reserved("day"), test.reserved("slots")), (0, 0));
}

#[test]
fn a_log_time_that_stands_still_at_the_boundary_stays_on_its_side() {
    let mut test = TestBook::new();
    test.put_active(calendar("hour", 10, Period::Hour, 0));
    test.advance(3_199_999);
    let before = test.take(&[("hour", 10)]);
    for _ in 0..3 {
        test.denied(&[("hour", 1)]);
    }
    test.advance(1);
    let after = test.take(&[("hour", 10)]);
    // The clock of the next leader is behind; log time stands still at the boundary.
    test.set_clock_back(60_000);
    test.denied(&[("hour", 1)]);
    assert_eq!(test.reserve(before, &[("hour", 10)]), ReserveOutcome::LeaseExpired);
    let reserved_at = START.plus_ms(3_200_000);
    assert_eq!(test.reserve(after, &[("hour", 10)]), exists(reserved_at));
    test.settle(after, &[("hour", 4)]);
    assert_eq!(test.reserved("hour"), 4);
}

#[test]
fn a_changed_period_or_offset_moves_no_reservation_and_counts_for_the_next() {
    let mut test = TestBook::new();
    test.put_active(calendar("c", 10, Period::Day, 0));
    let lease = test.take(&[("c", 6)]);
    test.settle(lease, &[]);
    test.put_active(calendar("c", 10, Period::Hour, 0));
    let lease = test.take(&[("c", 4)]);
    test.settle(lease, &[]);
    test.advance(3_200_000);
    assert_eq!(test.reserved("c"), 6, "the hour is over, the day is not");
    test.advance(TO_MIDNIGHT_MS - 3_200_000);
    assert_eq!(test.reserved("c"), 0);
}

#[test]
fn a_calendar_limit_cannot_become_another_kind_nor_another_kind_a_calendar_limit() {
    let mut test = TestBook::new();
    test.put_active(calendar("c", 10, Period::Day, 0));
    assert_eq!(test.put(rolling("c", 10, 60)), LimitOutcome::KindDiffers);
    assert_eq!(test.put(concurrency("c", 10, 60)), LimitOutcome::KindDiffers);
    test.put_active(rolling("r", 10, 60));
    assert_eq!(test.put(calendar("r", 10, Period::Day, 0)), LimitOutcome::KindDiffers);
}

#[test]
fn a_restored_book_ends_the_periods_at_the_same_times() {
    let mut test = TestBook::new();
    test.put_active(calendar("day", 100, Period::Day, -90));
    test.put_active(calendar("month", 100, Period::Month, 840));
    test.advance(777);
    test.take(&[("day", 20), ("month", 20)]);
    let settled = test.take(&[("day", 30), ("month", 30)]);
    test.settle(settled, &[("day", 25)]);
    let book = restored(&mut test.book);
    for ms in [0, TO_MIDNIGHT_MS, TO_MIDNIGHT_MS + 90 * 60_000 - 778, TO_MIDNIGHT_MS + 90 * 60_000 - 777] {
        let at = test.now().plus_ms(ms);
        for name in ["day", "month"] {
            let id = test.id(name);
            assert_eq!(book.usage(at, id), test.book.usage(at, id), "{name} at {at}");
        }
    }
    let day = test.book.usage(UnixMs::new(START.get() + TO_MIDNIGHT_MS + 90 * 60_000), test.id("day"));
    assert_eq!(day.unwrap().reserved, 0);
}

#[test]
fn the_definition_of_a_calendar_limit_is_read_as_it_was_put() {
    let mut test = TestBook::new();
    let definition =
        earmark_core::Definition { shared: true, enforce: false, ..calendar("month", 5, Period::Month, -720) };
    let id = test.put_active(definition.clone());
    let read = test.book.limit(test.now(), id).unwrap().definition;
    assert_eq!(read, definition);
    assert_eq!(read.kind, Kind::Calendar { period: Period::Month, utc_offset_minutes: -720 });
}
