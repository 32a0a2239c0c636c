//! A denial says when to retry and which limits are in the way.

use earmark_core::{Config, Denial, Hints, LeaseId, ReserveOutcome};

use crate::support::test_book::{TestBook, concurrency, rolling};

#[test]
fn a_denial_says_when_to_come_back_and_which_limit_was_hit() {
    let mut test = TestBook::new();
    test.put_active(rolling("rpm", 100, 60));
    test.put_active(rolling("tpm", 1_000, 60));
    let lease = test.take(&[("rpm", 1), ("tpm", 800)]);
    test.settle(lease, &[("tpm", 700)]);
    test.advance(20_000);
    let (_, denial) = test.denied(&[("rpm", 1), ("tpm", 400)]);
    assert_eq!(denial, Denial { retry_after_ms: 40_000, limited_by: vec![1], never: false });
    // A caller succeeds exactly at the hinted time.
    test.advance(39_999);
    test.denied(&[("rpm", 1), ("tpm", 400)]);
    test.advance(1);
    test.take(&[("rpm", 1), ("tpm", 400)]);
}

#[test]
fn the_hint_is_the_end_of_just_as_many_reservations_as_are_in_the_way() {
    let mut test = TestBook::new();
    test.put_active(rolling("tpm", 100, 60));
    for _ in 0..10 {
        let lease = test.take(&[("tpm", 10)]);
        test.settle(lease, &[]);
        test.advance(1_000);
    }
    for (amount, retry_after_ms) in [(1, 50_000), (10, 50_000), (11, 51_000), (55, 55_000), (100, 59_000)] {
        let (_, denial) = test.denied(&[("tpm", amount)]);
        assert_eq!(denial.retry_after_ms, retry_after_ms, "for {amount}");
    }
}

#[test]
fn while_unsettled_leases_are_in_the_way_the_hint_is_a_backoff_that_grows_by_half() {
    let mut test = TestBook::new();
    test.put_active(rolling("tpm", 10, 20));
    test.take(&[("tpm", 10)]);
    for expected in [2_000, 3_000, 4_500, 5_000, 5_000] {
        assert_eq!(test.denied(&[("tpm", 1)]).1.retry_after_ms, expected);
    }
    // The hint is never later than the time at which the amount fits for certain.
    test.advance(18_500);
    assert_eq!(test.denied(&[("tpm", 1)]).1.retry_after_ms, 1_500);
}

#[test]
fn a_backoff_of_a_short_window_starts_at_a_tenth_of_a_second() {
    let mut test = TestBook::new();
    test.put_active(rolling("rps", 1, 1));
    test.take(&[("rps", 1)]);
    for expected in [100, 150, 225, 337, 505, 757, 1_000] {
        assert_eq!(test.denied(&[("rps", 1)]).1.retry_after_ms, expected);
    }
}

#[test]
fn one_unsettled_lease_is_enough_to_make_the_hint_a_guess() {
    let mut test = TestBook::new();
    test.put_active(rolling("tpm", 10, 60));
    let settled = test.take(&[("tpm", 9)]);
    test.settle(settled, &[]);
    let unsettled = test.take(&[("tpm", 1)]);
    assert_eq!(test.denied(&[("tpm", 1)]).1.retry_after_ms, 5_000);
    test.settle(unsettled, &[]);
    assert_eq!(test.denied(&[("tpm", 1)]).1.retry_after_ms, 60_000);
}

#[test]
fn what_has_ended_unsettled_does_not_make_the_hint_a_guess() {
    let mut test = TestBook::new();
    test.put_active(rolling("tpm", 10, 60));
    test.take(&[("tpm", 10)]);
    test.advance(60_000);
    let settled = test.take(&[("tpm", 10)]);
    test.settle(settled, &[]);
    assert_eq!(test.denied(&[("tpm", 1)]).1.retry_after_ms, 60_000);
}

#[test]
fn the_hint_of_a_concurrency_limit_doubles_up_to_two_seconds() {
    let mut test = TestBook::new();
    test.put_active(concurrency("slots", 1, 30));
    test.take(&[("slots", 1)]);
    for expected in [50, 100, 200, 400, 800, 1_600, 2_000, 2_000] {
        assert_eq!(test.denied(&[("slots", 1)]).1.retry_after_ms, expected);
    }
    test.advance(29_990);
    assert_eq!(test.denied(&[("slots", 1)]).1.retry_after_ms, 10, "at most until the next timeout");
}

#[test]
fn a_run_of_a_thousand_denials_does_not_overflow_its_hint() {
    let mut test = TestBook::with(Config {
        hints: Hints { concurrency_max_ms: u64::MAX, rolling_max_ms: u64::MAX, ..Hints::default() },
        ..Config::default()
    });
    test.put_active(concurrency("slots", 1, 3_600));
    test.put_active(rolling("tpm", 1, 3_600));
    test.take(&[("slots", 1), ("tpm", 1)]);
    for _ in 0..1_000 {
        test.denied(&[("slots", 1), ("tpm", 1)]);
    }
    assert_eq!(test.denied(&[("slots", 1)]).1.retry_after_ms, 3_600_000);
    assert_eq!(test.denied(&[("tpm", 1)]).1.retry_after_ms, 3_600_000);
}

#[test]
fn a_run_of_denials_ends_with_the_first_lease_that_is_allowed() {
    let mut test = TestBook::new();
    test.put_active(concurrency("slots", 2, 30));
    test.take(&[("slots", 1)]);
    for expected in [50, 100, 200] {
        assert_eq!(test.denied(&[("slots", 2)]).1.retry_after_ms, expected);
    }
    test.take(&[("slots", 1)]);
    assert_eq!(test.denied(&[("slots", 1)]).1.retry_after_ms, 50);
}

#[test]
fn only_the_limits_in_the_way_count_a_denial() {
    let mut test = TestBook::new();
    test.put_active(concurrency("full", 1, 30));
    test.put_active(concurrency("free", 1, 30));
    test.take(&[("full", 1)]);
    for _ in 0..3 {
        test.denied(&[("full", 1), ("free", 1)]);
    }
    test.take(&[("free", 1)]);
    assert_eq!(test.denied(&[("free", 1)]).1.retry_after_ms, 50);
    assert_eq!(test.denied(&[("full", 1)]).1.retry_after_ms, 400);
}

#[test]
fn a_denied_lease_that_asks_again_does_not_make_the_wait_longer_for_others() {
    let mut test = TestBook::new();
    test.put_active(concurrency("slots", 1, 30));
    test.take(&[("slots", 1)]);
    let (denied, _) = test.denied(&[("slots", 1)]);
    for _ in 0..20 {
        test.reserve(denied, &[("slots", 1)]);
    }
    assert_eq!(test.denied(&[("slots", 1)]).1.retry_after_ms, 100);
}

#[test]
fn more_than_the_capacity_is_denied_for_ever_and_counts_as_no_denial() {
    let mut test = TestBook::new();
    test.put_active(concurrency("slots", 2, 30));
    let never = Denial { retry_after_ms: 60_000, limited_by: vec![0], never: true };
    assert_eq!(test.denied(&[("slots", 3)]).1, never);
    assert_eq!(test.denied(&[("slots", u64::MAX)]).1, never);
    test.take(&[("slots", 2)]);
    assert_eq!(test.denied(&[("slots", 3)]).1, never);
    assert_eq!(test.denied(&[("slots", 2)]).1.retry_after_ms, 50);
}

#[test]
fn of_several_limits_in_the_way_the_longest_wait_counts_and_comes_first() {
    let mut test = TestBook::new();
    test.put_active(concurrency("slots", 1, 30));
    test.put_active(rolling("minute", 1, 60));
    test.put_active(rolling("ten", 1, 10));
    test.put_active(rolling("free", 9, 10));
    let [free, slots, ten, minute] = [0, 1, 2, 3];
    let lease = test.take(&[("minute", 1), ("ten", 1), ("free", 1)]);
    test.settle(lease, &[]);
    test.take(&[("slots", 1)]);
    let all = [("free", 1), ("slots", 1), ("ten", 1), ("minute", 1)];
    let (_, denial) = test.denied(&all);
    let limited_by = vec![minute, ten, slots];
    assert_eq!(denial, Denial { retry_after_ms: 60_000, limited_by, never: false });
    // Limits with too small a capacity come before limits with a long wait.
    let (_, denial) = test.denied(&[("free", 10), ("slots", 1), ("ten", 2), ("minute", 1)]);
    let limited_by = vec![free, ten, minute, slots];
    assert_eq!(denial, Denial { retry_after_ms: 60_000, limited_by, never: true });
}

#[test]
fn limits_with_the_same_wait_are_named_in_key_order() {
    let mut test = TestBook::new();
    test.put_active(concurrency("z", 1, 30));
    test.put_active(concurrency("a", 1, 30));
    test.take(&[("a", 1), ("z", 1)]);
    let (_, denial) = test.denied(&[("z", 1), ("a", 1)]);
    assert_eq!(denial.limited_by, [1, 0]);
}

#[test]
fn callers_that_were_denied_together_do_not_come_back_together() {
    for (random, retry_after_ms) in
        [(0, 2_000), (0x8000, 1_800), (0xffff, 1_601), (0x1_0000, 2_000), (0xffff_4000, 1_900)]
    {
        let mut test = TestBook::new();
        test.put_active(rolling("tpm", 1, 20));
        test.take(&[("tpm", 1)]);
        let lease = LeaseId::from_parts(test.now(), (1 << 64) | random);
        let denial = test.denial(lease, &[("tpm", 1)]);
        assert_eq!(denial.retry_after_ms, retry_after_ms, "for random bits {random:#x}");
    }
}

#[test]
fn jitter_does_not_shorten_a_wait_that_is_known_exactly() {
    let mut test = TestBook::new();
    test.put_active(rolling("tpm", 1, 20));
    let lease = test.take(&[("tpm", 1)]);
    test.settle(lease, &[]);
    let lease = LeaseId::from_parts(test.now(), 0xffff_ffff);
    assert_eq!(test.denial(lease, &[("tpm", 1)]).retry_after_ms, 20_000);
}

#[test]
fn a_hint_is_at_least_a_millisecond_whatever_is_configured() {
    let hints = Hints {
        concurrency_base_ms: 0,
        rolling_base_ms: 0,
        rolling_window_part: 0,
        rolling_max_ms: 0,
        jitter_percent: u64::MAX,
        ..Hints::default()
    };
    let mut test = TestBook::with(Config { hints, ..Config::default() });
    test.put_active(rolling("tpm", 1, 20));
    test.put_active(concurrency("slots", 1, 20));
    test.take(&[("tpm", 1), ("slots", 1)]);
    let lease = LeaseId::from_parts(test.now(), 0xffff_ffff);
    assert_eq!(test.denial(lease, &[("tpm", 1), ("slots", 1)]).retry_after_ms, 1);
}

#[test]
fn hints_are_as_configured() {
    let hints = Hints {
        concurrency_base_ms: 7,
        concurrency_max_ms: 20,
        rolling_base_ms: 10,
        rolling_window_part: 4,
        rolling_max_ms: 6_000,
        jitter_percent: 0,
        decreasing_ms: 123,
    };
    let mut test = TestBook::with(Config { hints, ..Config::default() });
    test.put_active(rolling("tpm", 2, 20));
    test.put_active(concurrency("slots", 1, 20));
    test.take(&[("tpm", 2), ("slots", 1)]);
    for (tpm, slots) in [(5_000, 7), (6_000, 14), (6_000, 20)] {
        assert_eq!(test.denied(&[("tpm", 1)]).1.retry_after_ms, tpm);
        assert_eq!(test.denied(&[("slots", 1)]).1.retry_after_ms, slots);
    }
    test.put(rolling("tpm", 1, 20));
    let lease = test.lease();
    let outcome = test.reserve(lease, &[("tpm", 1)]);
    assert_eq!(outcome, ReserveOutcome::LimitDecreasing { requirement: 0, retry_after_ms: 123 });
}

#[test]
fn a_backoff_goes_by_the_window_of_today() {
    let mut test = TestBook::new();
    test.put_active(rolling("tpm", 1, 30));
    test.take(&[("tpm", 1)]);
    test.put_active(rolling("tpm", 1, 10));
    assert_eq!(test.denied(&[("tpm", 1)]).1.retry_after_ms, 1_000);
}
