//! Extensions that are cut off between any two steps, and their retries.

use earmark_admission::{BackendError, ExtendAnswer, Refusal};
use earmark_core::CreditShortage;

use super::faults::{faults, is_allowed, pairs};
use super::support::counter::{Sums, key};
use super::support::flaky::{Fault, How, Step, When};

type Answered = Option<Result<ExtendAnswer, BackendError>>;
type Asked<'a> = [&'a [(&'a str, u64)]; 2];

const TAKEN: Sums = Sums { rpm: 1, slots: 1, usd: 70, held: 30, paid: 0 };
const EXTENDED: Sums = Sums { rpm: 3, slots: 1, usd: 50, held: 50, paid: 0 };

const LEASE: &[(&str, u64)] = &[("rpm", 1), ("slots", 1), ("usd", 30)];
/// Fits; has too little room; has too little credit.
const MORE: Asked<'_> = [&[("rpm", 2), ("usd", 20)], &[("usd", 12), ("rpm", 1)]];
const TOO_FULL: Asked<'_> = [&[("rpm", 10), ("usd", 20)], &[]];
const TOO_DEAR: Asked<'_> = [&[("rpm", 2), ("usd", 71)], &[]];

fn is_extended(answer: &Answered) -> bool {
    matches!(answer, Some(Ok(ExtendAnswer::Extended { ends_at: Some(_), .. })))
}

fn is_denied(answer: &Answered) -> bool {
    matches!(answer, Some(Ok(ExtendAnswer::Denied { limited_by, .. })) if *limited_by == [key("rpm")])
}

fn is_short(answer: &Answered) -> bool {
    let (limit, shortage) = (key("usd"), CreditShortage::NotEnough);
    matches!(answer, Some(Ok(ExtendAnswer::Refused(Refusal::InsufficientCredit { key, why, .. })))
        if *key == limit && *why == shortage)
}

fn has_expired(answer: &Answered) -> bool {
    *answer == Some(Ok(ExtendAnswer::expired()))
}

#[tokio::test]
async fn an_extension_that_was_cut_off_at_any_step_is_finished_by_its_retry() {
    let mut met = 0;
    for fault in faults(&[Step::Grow, Step::Extend, Step::Renew]) {
        for mut pair in pairs().await {
            let lease = pair.lease(1);
            assert!(is_allowed(pair.reserve(lease, LEASE).await));
            pair.faults.plan(fault);
            let first = pair.extend(lease, 1, MORE).await;
            assert!(first.is_none_or(|first| first.is_err()), "{fault:?}");
            assert!(pair.faults.has_happened(), "{fault:?}");
            met += 1;
            pair.start_again();
            let again = pair.extend(lease, 1, MORE).await;
            assert!(is_extended(&again), "{fault:?}: {again:?}");
            assert_eq!(pair.sums().await, EXTENDED, "{fault:?}");
            assert_eq!(pair.extend(lease, 1, MORE).await, again, "{fault:?}");
            // The first process was slow, not dead. Its late steps change nothing.
            pair.settle_down().await;
            assert_eq!(pair.sums().await, EXTENDED, "{fault:?}");
            assert!(is_extended(&pair.extend(lease, 2, [&[], &[]]).await), "{fault:?}");
            assert!(pair.complete(lease, &[("rpm", 2), ("usd", 5)]).await.unwrap().unwrap().reconciled);
            // Reported usage is a floor.
            assert_eq!(pair.sums().await, Sums { rpm: 2, slots: 0, usd: 88, held: 0, paid: 12 }, "{fault:?}");
        }
    }
    assert_eq!(met, 24);
}

#[tokio::test]
async fn an_extension_that_is_denied_returns_its_growth_wherever_it_was_cut_off() {
    for (asked, is_right) in [(TOO_FULL, is_denied as fn(&Answered) -> bool), (TOO_DEAR, is_short)] {
        let steps: &[Step] =
            if asked == TOO_DEAR { &[Step::Grow, Step::Extend] } else { &[Step::Grow, Step::Extend, Step::Shrink] };
        for fault in faults(steps) {
            for mut pair in pairs().await {
                let lease = pair.lease(1);
                assert!(is_allowed(pair.reserve(lease, LEASE).await));
                pair.faults.plan(fault);
                let first = pair.extend(lease, 1, asked).await;
                assert!(first.is_none_or(|first| first.is_err()), "{fault:?}");
                assert!(pair.faults.has_happened(), "{fault:?}");
                pair.start_again();
                for _ in 0..2 {
                    let again = pair.extend(lease, 1, asked).await;
                    assert!(is_right(&again), "{fault:?}: {again:?}");
                    assert_eq!(pair.sums().await, TAKEN, "{fault:?}");
                }
                pair.settle_down().await;
                // A repeat holds nothing for a moment, which would be two entries in the history of the account.
                pair.faults.calls(Step::Grow);
                assert!(is_right(&pair.extend(lease, 1, asked).await), "{fault:?}");
                assert_eq!((pair.faults.calls(Step::Grow), pair.sums().await), (0, TAKEN), "{fault:?}");
                // The next number may fit.
                assert!(is_extended(&pair.extend(lease, 2, MORE).await), "{fault:?}");
                assert_eq!(pair.sums().await, EXTENDED, "{fault:?}");
            }
        }
    }
}

/// The first credit of a lease comes with an extension, which is cut off anywhere, accepted or denied.
#[tokio::test]
async fn the_first_credit_of_a_lease_is_held_once_or_returned_wherever_it_was_cut_off() {
    let bare = Sums { rpm: 1, slots: 1, usd: 100, held: 0, paid: 0 };
    let first = Sums { rpm: 3, slots: 1, usd: 80, held: 20, paid: 0 };
    for (asked, last, sums) in [(MORE, Step::Renew, first), (TOO_FULL, Step::Shrink, bare)] {
        let is_right = if asked == MORE { is_extended } else { is_denied };
        for fault in faults(&[Step::Grow, Step::Extend, last]) {
            for mut pair in pairs().await {
                let lease = pair.lease(1);
                assert!(is_allowed(pair.reserve(lease, &[("rpm", 1), ("slots", 1)]).await));
                pair.faults.plan(fault);
                let cut_off = pair.extend(lease, 1, asked).await;
                assert!(cut_off.is_none_or(|answer| answer.is_err()), "{fault:?}");
                assert!(pair.faults.has_happened(), "{fault:?}");
                pair.start_again();
                for _ in 0..2 {
                    let again = pair.extend(lease, 1, asked).await;
                    assert!(is_right(&again), "{fault:?}: {again:?}");
                    assert_eq!(pair.sums().await, sums, "{fault:?}");
                }
                pair.settle_down().await;
                assert_eq!(pair.sums().await, sums, "{fault:?}");
                assert!(is_extended(&pair.extend(lease, 2, [&[("usd", 10)], &[]]).await), "{fault:?}");
                assert_eq!(pair.sums().await.held, sums.held + 10, "{fault:?}");
                assert!(pair.complete(lease, &[("usd", 15)]).await.unwrap().unwrap().reconciled);
                let done = pair.sums().await;
                assert_eq!((done.slots, done.held, done.paid, done.usd), (0, 0, 15, 85), "{fault:?}");
                assert!(has_expired(&pair.extend(lease, 3, [&[("usd", 10)], &[]]).await), "{fault:?}");
                assert_eq!(pair.sums().await, done, "{fault:?}");
            }
        }
    }
}

/// A complete overtakes an extension between two of its steps: nothing is left of the extension.
#[tokio::test]
async fn a_complete_between_two_steps_of_an_extension_ends_the_lease() {
    for fault in faults(&[Step::Grow, Step::Extend, Step::Renew]) {
        if fault.how == How::Fails {
            continue;
        }
        for pair in pairs().await {
            let lease = pair.lease(1);
            assert!(is_allowed(pair.reserve(lease, LEASE).await));
            pair.faults.plan(fault);
            assert_eq!(pair.extend(lease, 1, MORE).await, None, "{fault:?}");
            assert!(pair.complete(lease, &[("rpm", 1), ("usd", 20)]).await.unwrap().unwrap().reconciled);
            let settled = pair.sums().await;
            assert_eq!((settled.slots, settled.held, settled.usd, settled.paid), (0, 0, 80, 20), "{fault:?}");
            pair.settle_down().await;
            assert_eq!(pair.sums().await, settled, "{fault:?}");
            for number in [1, 2] {
                let late = pair.extend(lease, number, MORE).await;
                assert!(has_expired(&late), "{fault:?}: {late:?}");
            }
            assert_eq!(pair.sums().await, settled, "{fault:?}");
        }
    }
}

/// The limits refuse by name after the credit has grown: the growth is returned, and the number stays free.
#[tokio::test]
async fn a_number_that_the_limits_leave_free_can_grow_again() {
    for pair in pairs().await {
        let lease = pair.lease(1);
        assert!(is_allowed(pair.reserve(lease, LEASE).await));
        let busy = pair.lease(2);
        assert!(is_allowed(pair.reserve(busy, &[("rpm", 8)]).await));
        let window = earmark_core::Kind::Rolling { window_seconds: 60 };
        pair.put("rpm", window, 5).await;
        for _ in 0..3 {
            let refused = pair.extend(lease, 1, MORE).await;
            let is_named = matches!(&refused, Some(Ok(ExtendAnswer::Refused(Refusal::LimitDecreasing { key: limit, .. })))
                if *limit == key("rpm"));
            assert!(is_named, "{refused:?}");
            assert_eq!(pair.sums().await, Sums { rpm: 9, ..TAKEN });
        }
        assert!(pair.complete(busy, &[("rpm", 0)]).await.unwrap().unwrap().reconciled);
        assert!(is_extended(&pair.extend(lease, 1, MORE).await));
        assert_eq!(pair.sums().await, EXTENDED);
        for unknown in ["nothing", "nowhere"] {
            let asked: Asked<'_> = [&[("usd", 1), (unknown, 1)], &[]];
            let refused = pair.extend(lease, 2, asked).await;
            assert_eq!(refused, Some(Ok(ExtendAnswer::Refused(Refusal::UnknownLimitKey(key(unknown))))));
        }
        // Nothing was held for a key that is unknown here.
        assert_eq!((pair.faults.calls(Step::Shrink) > 0, pair.sums().await), (true, EXTENDED));
    }
}

/// The lease ran out between the growth and the last step.
#[tokio::test]
async fn an_extension_of_a_lease_that_ran_out_between_its_steps_is_expired() {
    for pair in pairs().await {
        let lease = pair.lease(1);
        assert!(is_allowed(pair.reserve(lease, LEASE).await));
        pair.faults.plan(Fault { step: Step::Extend, when: When::Before, how: How::Stops });
        assert_eq!(pair.extend(lease, 1, MORE).await, None);
        pair.clock.advance_ms(41_000);
        pair.settle_down().await;
        assert!(has_expired(&pair.extend(lease, 1, MORE).await));
        let sums = pair.sums().await;
        assert_eq!((sums.slots, sums.usd, sums.held), (0, 100, 0));
    }
}

/// A slot and a hold live as long as they are renewed.
#[tokio::test]
async fn renewals_move_the_ends_of_both_parts() {
    for pair in pairs().await {
        let lease = pair.lease(1);
        assert!(is_allowed(pair.reserve(lease, LEASE).await));
        for number in 1..=5 {
            pair.clock.advance_ms(25_000);
            let answer = pair.extend(lease, number, [&[], &[]]).await;
            let Some(Ok(ExtendAnswer::Extended { ends_at: Some(ends_at), .. })) = answer else { panic!("{answer:?}") };
            // The slot ends first.
            assert_eq!(ends_at.get() - 1_700_000_000_000, u64::from(number) * 25_000 + 30_000);
            let sums = pair.sums().await;
            assert_eq!((sums.slots, sums.usd, sums.held), (1, 70, 30));
        }
        pair.clock.advance_ms(41_000);
        assert!(has_expired(&pair.extend(lease, 6, [&[], &[]]).await));
        let sums = pair.sums().await;
        assert_eq!((sums.slots, sums.usd, sums.held), (0, 100, 0));
    }
}
