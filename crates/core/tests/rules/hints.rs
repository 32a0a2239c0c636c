//! A denial says when to come back, and what stood in the way.

use earmark_core::{Config, Denial, Hints, LeaseId, ReserveOutcome};

use crate::support::desk::{Desk, concurrency, rolling};

#[test]
fn a_denial_says_when_to_come_back_and_which_limit_was_hit() {
    let mut desk = Desk::new();
    desk.has(rolling("rpm", 100, 60));
    let tpm = desk.has(rolling("tpm", 1_000, 60));
    let lease = desk.take(&[("rpm", 1), ("tpm", 800)]);
    desk.settle(lease, &[("tpm", 700)]);
    desk.pass(20_000);
    let (_, denial) = desk.denied(&[("rpm", 1), ("tpm", 400)]);
    assert_eq!(denial, Denial { retry_after_ms: 40_000, limited_by: vec![tpm], never: false });
    // Whoever comes back then and no earlier gets it.
    desk.pass(39_999);
    desk.denied(&[("rpm", 1), ("tpm", 400)]);
    desk.pass(1);
    desk.take(&[("rpm", 1), ("tpm", 400)]);
}

#[test]
fn the_hint_is_the_end_of_just_as_many_reservations_as_are_in_the_way() {
    let mut desk = Desk::new();
    desk.has(rolling("tpm", 100, 60));
    for _ in 0..10 {
        let lease = desk.take(&[("tpm", 10)]);
        desk.settle(lease, &[]);
        desk.pass(1_000);
    }
    for (amount, retry_after_ms) in [(1, 50_000), (10, 50_000), (11, 51_000), (55, 55_000), (100, 59_000)] {
        let (_, denial) = desk.denied(&[("tpm", amount)]);
        assert_eq!(denial.retry_after_ms, retry_after_ms, "for {amount}");
    }
}

#[test]
fn while_unsettled_leases_are_in_the_way_the_hint_is_a_backoff_that_grows_by_half() {
    let mut desk = Desk::new();
    desk.has(rolling("tpm", 10, 20));
    desk.take(&[("tpm", 10)]);
    for expected in [2_000, 3_000, 4_500, 5_000, 5_000] {
        assert_eq!(desk.denied(&[("tpm", 1)]).1.retry_after_ms, expected);
    }
    // Never later than the time at which it fits for certain.
    desk.pass(18_500);
    assert_eq!(desk.denied(&[("tpm", 1)]).1.retry_after_ms, 1_500);
}

#[test]
fn a_backoff_of_a_short_window_starts_at_a_tenth_of_a_second() {
    let mut desk = Desk::new();
    desk.has(rolling("rps", 1, 1));
    desk.take(&[("rps", 1)]);
    for expected in [100, 150, 225, 337, 505, 757, 1_000] {
        assert_eq!(desk.denied(&[("rps", 1)]).1.retry_after_ms, expected);
    }
}

#[test]
fn one_unsettled_lease_is_enough_to_make_the_hint_a_guess() {
    let mut desk = Desk::new();
    desk.has(rolling("tpm", 10, 60));
    let settled = desk.take(&[("tpm", 9)]);
    desk.settle(settled, &[]);
    let unsettled = desk.take(&[("tpm", 1)]);
    assert_eq!(desk.denied(&[("tpm", 1)]).1.retry_after_ms, 5_000);
    desk.settle(unsettled, &[]);
    assert_eq!(desk.denied(&[("tpm", 1)]).1.retry_after_ms, 60_000);
}

#[test]
fn what_has_ended_unsettled_does_not_make_the_hint_a_guess() {
    let mut desk = Desk::new();
    desk.has(rolling("tpm", 10, 60));
    desk.take(&[("tpm", 10)]);
    desk.pass(60_000);
    let settled = desk.take(&[("tpm", 10)]);
    desk.settle(settled, &[]);
    assert_eq!(desk.denied(&[("tpm", 1)]).1.retry_after_ms, 60_000);
}

#[test]
fn the_hint_of_a_concurrency_limit_doubles_up_to_two_seconds() {
    let mut desk = Desk::new();
    desk.has(concurrency("slots", 1, 30));
    desk.take(&[("slots", 1)]);
    for expected in [50, 100, 200, 400, 800, 1_600, 2_000, 2_000] {
        assert_eq!(desk.denied(&[("slots", 1)]).1.retry_after_ms, expected);
    }
    desk.pass(29_990);
    assert_eq!(desk.denied(&[("slots", 1)]).1.retry_after_ms, 10, "at most until the next timeout");
}

#[test]
fn a_run_of_a_thousand_denials_does_not_overflow_its_hint() {
    let mut desk = Desk::with(Config {
        hints: Hints { concurrency_max_ms: u64::MAX, rolling_max_ms: u64::MAX, ..Hints::default() },
        ..Config::default()
    });
    desk.has(concurrency("slots", 1, 3_600));
    desk.has(rolling("tpm", 1, 3_600));
    desk.take(&[("slots", 1), ("tpm", 1)]);
    for _ in 0..1_000 {
        desk.denied(&[("slots", 1), ("tpm", 1)]);
    }
    assert_eq!(desk.denied(&[("slots", 1)]).1.retry_after_ms, 3_600_000);
    assert_eq!(desk.denied(&[("tpm", 1)]).1.retry_after_ms, 3_600_000);
}

#[test]
fn a_run_of_denials_ends_with_the_first_lease_that_is_allowed() {
    let mut desk = Desk::new();
    desk.has(concurrency("slots", 2, 30));
    desk.take(&[("slots", 1)]);
    for expected in [50, 100, 200] {
        assert_eq!(desk.denied(&[("slots", 2)]).1.retry_after_ms, expected);
    }
    desk.take(&[("slots", 1)]);
    assert_eq!(desk.denied(&[("slots", 1)]).1.retry_after_ms, 50);
}

#[test]
fn only_the_limits_in_the_way_count_a_denial() {
    let mut desk = Desk::new();
    desk.has(concurrency("full", 1, 30));
    desk.has(concurrency("free", 1, 30));
    desk.take(&[("full", 1)]);
    for _ in 0..3 {
        desk.denied(&[("full", 1), ("free", 1)]);
    }
    desk.take(&[("free", 1)]);
    assert_eq!(desk.denied(&[("free", 1)]).1.retry_after_ms, 50);
    assert_eq!(desk.denied(&[("full", 1)]).1.retry_after_ms, 400);
}

#[test]
fn a_denied_lease_that_asks_again_does_not_make_the_wait_longer_for_others() {
    let mut desk = Desk::new();
    desk.has(concurrency("slots", 1, 30));
    desk.take(&[("slots", 1)]);
    let (denied, _) = desk.denied(&[("slots", 1)]);
    for _ in 0..20 {
        desk.reserve(denied, &[("slots", 1)]);
    }
    assert_eq!(desk.denied(&[("slots", 1)]).1.retry_after_ms, 100);
}

#[test]
fn more_than_the_capacity_is_denied_for_ever_and_counts_as_no_denial() {
    let mut desk = Desk::new();
    let slots = desk.has(concurrency("slots", 2, 30));
    let never = Denial { retry_after_ms: 0, limited_by: vec![slots], never: true };
    assert_eq!(desk.denied(&[("slots", 3)]).1, never);
    assert_eq!(desk.denied(&[("slots", u64::MAX)]).1, never);
    desk.take(&[("slots", 2)]);
    assert_eq!(desk.denied(&[("slots", 3)]).1, never);
    assert_eq!(desk.denied(&[("slots", 2)]).1.retry_after_ms, 50);
}

#[test]
fn of_several_limits_in_the_way_the_longest_wait_counts_and_comes_first() {
    let mut desk = Desk::new();
    let slots = desk.has(concurrency("slots", 1, 30));
    let minute = desk.has(rolling("minute", 1, 60));
    let ten = desk.has(rolling("ten", 1, 10));
    let free = desk.has(rolling("free", 9, 10));
    let lease = desk.take(&[("minute", 1), ("ten", 1), ("free", 1)]);
    desk.settle(lease, &[]);
    desk.take(&[("slots", 1)]);
    let all = [("free", 1), ("slots", 1), ("ten", 1), ("minute", 1)];
    let (_, denial) = desk.denied(&all);
    let limited_by = vec![minute, ten, slots];
    assert_eq!(denial, Denial { retry_after_ms: 60_000, limited_by, never: false });
    // What can never be is named before what only takes long.
    let (_, denial) = desk.denied(&[("free", 10), ("slots", 1), ("ten", 2), ("minute", 1)]);
    let limited_by = vec![ten, free, minute, slots];
    assert_eq!(denial, Denial { retry_after_ms: 0, limited_by, never: true });
}

#[test]
fn limits_with_the_same_wait_are_named_in_the_order_in_which_they_were_first_put() {
    let mut desk = Desk::new();
    let z = desk.has(concurrency("z", 1, 30));
    let a = desk.has(concurrency("a", 1, 30));
    desk.take(&[("a", 1), ("z", 1)]);
    let (_, denial) = desk.denied(&[("a", 1), ("z", 1)]);
    assert_eq!(denial.limited_by, [z, a]);
}

#[test]
fn callers_that_were_denied_together_do_not_come_back_together() {
    for (random, retry_after_ms) in
        [(0, 2_000), (0x8000, 1_800), (0xffff, 1_601), (0x1_0000, 2_000), (0xffff_4000, 1_900)]
    {
        let mut desk = Desk::new();
        desk.has(rolling("tpm", 1, 20));
        desk.take(&[("tpm", 1)]);
        let lease = LeaseId::from_parts(desk.now(), (1 << 64) | random);
        let denial = desk.denial(lease, &[("tpm", 1)]);
        assert_eq!(denial.retry_after_ms, retry_after_ms, "for random bits {random:#x}");
    }
}

#[test]
fn jitter_does_not_shorten_a_wait_that_is_known_exactly() {
    let mut desk = Desk::new();
    desk.has(rolling("tpm", 1, 20));
    let lease = desk.take(&[("tpm", 1)]);
    desk.settle(lease, &[]);
    let lease = LeaseId::from_parts(desk.now(), 0xffff_ffff);
    assert_eq!(desk.denial(lease, &[("tpm", 1)]).retry_after_ms, 20_000);
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
    let mut desk = Desk::with(Config { hints, ..Config::default() });
    desk.has(rolling("tpm", 1, 20));
    desk.has(concurrency("slots", 1, 20));
    desk.take(&[("tpm", 1), ("slots", 1)]);
    let lease = LeaseId::from_parts(desk.now(), 0xffff_ffff);
    assert_eq!(desk.denial(lease, &[("tpm", 1), ("slots", 1)]).retry_after_ms, 1);
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
    let mut desk = Desk::with(Config { hints, ..Config::default() });
    desk.has(rolling("tpm", 2, 20));
    desk.has(concurrency("slots", 1, 20));
    desk.take(&[("tpm", 2), ("slots", 1)]);
    for (tpm, slots) in [(5_000, 7), (6_000, 14), (6_000, 20)] {
        assert_eq!(desk.denied(&[("tpm", 1)]).1.retry_after_ms, tpm);
        assert_eq!(desk.denied(&[("slots", 1)]).1.retry_after_ms, slots);
    }
    desk.put(rolling("tpm", 1, 20));
    let lease = desk.lease();
    let outcome = desk.reserve(lease, &[("tpm", 1)]);
    assert_eq!(outcome, ReserveOutcome::LimitDecreasing { requirement: 0, retry_after_ms: 123 });
}

#[test]
fn a_backoff_goes_by_the_window_of_today() {
    let mut desk = Desk::new();
    desk.has(rolling("tpm", 1, 30));
    desk.take(&[("tpm", 1)]);
    desk.has(rolling("tpm", 1, 10));
    assert_eq!(desk.denied(&[("tpm", 1)]).1.retry_after_ms, 1_000);
}
