//! After a fault between two steps, a retry ends as if nothing had happened, and nothing leaks.

use std::collections::BTreeSet;

use earmark_admission::{Backend, BackendError, LimitQuery, Refusal, ReserveAnswer};
use earmark_core::{CreditShortage, NamespaceName};

use super::support::counter::{Sums, key};
use super::support::flaky::{Fault, How, Step, When};
use super::support::{Pair, credit_elsewhere, limits_elsewhere};

const NOTHING: Sums = Sums { rpm: 0, slots: 0, usd: 100, held: 0, paid: 0 };
const TAKEN: Sums = Sums { rpm: 1, slots: 1, usd: 70, held: 30, paid: 0 };
const DONE: Sums = Sums { rpm: 1, slots: 0, usd: 80, held: 0, paid: 20 };

/// Requirements that fit, and requirements beyond the credit.
const ENOUGH: &[(&str, u64)] = &[("rpm", 1), ("slots", 1), ("usd", 30)];
const TOO_MUCH: &[(&str, u64)] = &[("rpm", 1), ("slots", 1), ("usd", 101)];
const USED: &[(&str, u64)] = &[("rpm", 1), ("usd", 20)];

pub(super) async fn pairs() -> [Pair; 2] {
    let pairs = [limits_elsewhere().await, credit_elsewhere().await];
    for pair in &pairs {
        pair.furnish().await;
    }
    pairs
}

pub(super) fn faults(steps: &[Step]) -> Vec<Fault> {
    let mut faults = Vec::new();
    for step in steps.iter().copied() {
        for when in [When::Before, When::After] {
            faults.extend([How::Fails, How::Stops].map(|how| Fault { step, when, how }));
        }
    }
    faults
}

pub(super) fn is_allowed(answer: Option<Result<ReserveAnswer, BackendError>>) -> bool {
    matches!(answer, Some(Ok(ReserveAnswer::Allowed { .. })))
}

fn is_short(answer: Option<Result<ReserveAnswer, BackendError>>) -> bool {
    let why = CreditShortage::NotEnough;
    let short = Refusal::InsufficientCredit { key: key("usd"), retry_after_ms: 10_000, why };
    answer == Some(Ok(ReserveAnswer::Refused(short)))
}

fn has_expired(answer: Option<Result<ReserveAnswer, BackendError>>) -> bool {
    answer == Some(Ok(ReserveAnswer::Refused(Refusal::LeaseExpired)))
}

#[tokio::test]
async fn a_reserve_that_was_cut_off_at_any_step_is_allowed_when_it_is_asked_again() {
    let mut met = BTreeSet::new();
    for fault in faults(&[Step::Reserve, Step::Hold]) {
        for mut pair in pairs().await {
            let lease = pair.lease(1);
            pair.faults.plan(fault);
            let first = pair.reserve(lease, ENOUGH).await;
            assert_eq!(first.is_none(), fault.how == How::Stops, "{fault:?}: {first:?}");
            assert!(first.is_none_or(|first| first.is_err()), "{fault:?}");
            assert!(pair.faults.has_happened(), "{fault:?}");
            met.insert((fault.step, fault.how == How::Stops, fault.when == When::After));
            pair.start_again();
            for _ in 0..2 {
                assert!(is_allowed(pair.reserve(lease, ENOUGH).await), "{fault:?}");
                assert_eq!(pair.sums().await, TAKEN, "{fault:?}");
            }
            // The first process was slow, not dead. Its late steps change nothing.
            pair.settle_down().await;
            assert_eq!(pair.sums().await, TAKEN, "{fault:?}");
            assert!(pair.complete(lease, USED).await.unwrap().unwrap().reconciled);
            assert_eq!(pair.sums().await, DONE, "{fault:?}");
        }
    }
    assert_eq!(met.len(), 8);
}

#[tokio::test]
async fn a_reserve_without_credit_is_denied_again_wherever_it_was_cut_off_and_takes_nothing() {
    let mut met = 0;
    for fault in faults(&[Step::Reserve, Step::Hold, Step::Release]) {
        for mut pair in pairs().await {
            let lease = pair.lease(1);
            pair.faults.plan(fault);
            let first = pair.reserve(lease, TOO_MUCH).await;
            assert!(first.is_none_or(|first| first.is_err()), "{fault:?}");
            assert!(pair.faults.has_happened(), "{fault:?}");
            met += 1;
            pair.start_again();
            for _ in 0..2 {
                assert!(is_short(pair.reserve(lease, TOO_MUCH).await), "{fault:?}");
                assert_eq!(pair.sums().await, NOTHING, "{fault:?}");
            }
            pair.settle_down().await;
            assert_eq!(pair.sums().await, NOTHING, "{fault:?}");
            assert!(!pair.complete(lease, USED).await.unwrap().unwrap().reconciled);
            assert_eq!(pair.sums().await, NOTHING, "{fault:?}");
        }
    }
    assert_eq!(met, 24);
}

/// The retry of a denied lease looks up its credit, which may fail too.
#[tokio::test]
async fn a_denial_that_cannot_be_looked_up_is_no_answer_and_is_given_again_later() {
    for fault in faults(&[Step::Holds]) {
        for mut pair in pairs().await {
            let lease = pair.lease(1);
            assert!(is_short(pair.reserve(lease, TOO_MUCH).await));
            pair.faults.plan(fault);
            let again = pair.reserve(lease, TOO_MUCH).await;
            assert!(again.is_none_or(|again| again.is_err()), "{fault:?}");
            pair.start_again();
            assert!(is_short(pair.reserve(lease, TOO_MUCH).await), "{fault:?}");
            assert_eq!(pair.sums().await, NOTHING, "{fault:?}");
        }
    }
}

#[tokio::test]
async fn what_nobody_asks_for_again_is_free_when_its_time_is_over() {
    for requirements in [ENOUGH, TOO_MUCH] {
        for fault in faults(&[Step::Reserve, Step::Hold, Step::Release]) {
            for pair in pairs().await {
                pair.faults.plan(fault);
                _ = pair.reserve(pair.lease(1), requirements).await;
                pair.faults.forget();
                pair.clock.advance_ms(61_000);
                assert_eq!(pair.sums().await, NOTHING, "{fault:?}");
                pair.settle_down().await;
                let sums = pair.sums().await;
                // A step that runs a minute late may still reserve. It is free again after its own timeout.
                pair.clock.advance_ms(61_000);
                assert_eq!(pair.sums().await, NOTHING, "{fault:?}: {sums:?}");
            }
        }
    }
}

#[tokio::test]
async fn a_complete_that_was_cut_off_has_one_effect_and_its_retry_finishes_it() {
    let mut met = 0;
    for fault in faults(&[Step::Complete, Step::Settle]) {
        for mut pair in pairs().await {
            let lease = pair.lease(1);
            assert!(is_allowed(pair.reserve(lease, ENOUGH).await));
            pair.faults.plan(fault);
            let first = pair.complete(lease, USED).await;
            assert!(first.is_none_or(|first| first.is_err()), "{fault:?}");
            assert!(pair.faults.has_happened(), "{fault:?}");
            met += 1;
            pair.start_again();
            for _ in 0..2 {
                assert!(pair.complete(lease, USED).await.unwrap().unwrap().reconciled, "{fault:?}");
                assert_eq!(pair.sums().await, DONE, "{fault:?}");
            }
            pair.settle_down().await;
            assert_eq!(pair.sums().await, DONE, "{fault:?}");
            assert!(has_expired(pair.reserve(lease, ENOUGH).await));
        }
    }
    assert_eq!(met, 16);
}

/// An outage of one part does not keep slots reserved, or credit held, in the other.
#[tokio::test]
async fn while_one_half_is_down_the_other_is_completed_all_the_same() {
    let limits_only = Sums { slots: 0, ..TAKEN };
    let credit_only = Sums { slots: 1, ..DONE };
    for (step, expected) in [(Step::Settle, limits_only), (Step::Complete, credit_only)] {
        for pair in pairs().await {
            let lease = pair.lease(1);
            assert!(is_allowed(pair.reserve(lease, ENOUGH).await));
            for _ in 0..3 {
                pair.faults.plan(Fault { step, when: When::Before, how: How::Fails });
                assert!(pair.complete(lease, USED).await.unwrap().is_err());
                assert_eq!(pair.sums().await, expected, "{step:?}");
            }
            assert!(pair.complete(lease, USED).await.unwrap().unwrap().reconciled);
            assert_eq!(pair.sums().await, DONE, "{step:?}");
        }
    }
}

/// The complete of a caller that gave up overtakes its own reserve between two steps.
#[tokio::test]
async fn a_lease_that_is_completed_between_its_limits_and_its_hold_holds_nothing() {
    for step in [Step::Hold, Step::Reserve] {
        for pair in pairs().await {
            let when = if step == Step::Hold { When::Before } else { When::After };
            pair.faults.plan(Fault { step, when, how: How::Stops });
            let lease = pair.lease(1);
            let without_credit = Sums { rpm: 1, ..NOTHING };
            let (late, ()) = tokio::join!(pair.reserve_patiently(lease, ENOUGH), async {
                while !pair.faults.has_happened() {
                    tokio::task::yield_now().await;
                }
                let completed = pair.complete(lease, USED).await.unwrap().unwrap();
                assert!(completed.reconciled);
                assert_eq!(pair.sums().await, without_credit);
                pair.faults.go_on();
            });
            assert!(has_expired(Some(late)), "{step:?}");
            assert_eq!(pair.sums().await, without_credit, "{step:?}");
            assert!(has_expired(pair.reserve(lease, ENOUGH).await));
            assert_eq!(pair.sums().await, without_credit, "{step:?}");
        }
    }
}

/// The same for a lease whose credit was refused, before its limits are returned.
#[tokio::test]
async fn a_refused_lease_that_is_completed_before_it_is_released_keeps_no_slot() {
    for pair in pairs().await {
        pair.faults.plan(Fault { step: Step::Release, when: When::Before, how: How::Stops });
        let lease = pair.lease(1);
        assert_eq!(pair.reserve(lease, TOO_MUCH).await, None);
        pair.complete(lease, &[("rpm", 0), ("usd", 5)]).await.unwrap().unwrap();
        assert_eq!(pair.sums().await, NOTHING);
        pair.settle_down().await;
        assert_eq!(pair.sums().await, NOTHING);
        assert!(is_short(pair.reserve(lease, TOO_MUCH).await));
    }
}

#[tokio::test]
async fn copies_of_a_reserve_of_which_one_is_cut_off_get_the_same_answer() {
    for (requirements, sums) in [(ENOUGH, TAKEN), (TOO_MUCH, NOTHING)] {
        for fault in faults(&[Step::Hold, Step::Release]) {
            for pair in pairs().await {
                if requirements == ENOUGH && fault.step == Step::Release {
                    continue;
                }
                pair.faults.plan(fault);
                let lease = pair.lease(1);
                let (a, b, c) = tokio::join!(
                    pair.reserve(lease, requirements),
                    pair.reserve(lease, requirements),
                    pair.reserve(lease, requirements)
                );
                let is_right = if requirements == ENOUGH { is_allowed } else { is_short };
                let right = [a, b, c].into_iter().filter(|answer| is_right(answer.clone())).count();
                assert_eq!(right, 2, "{fault:?}");
                pair.settle_down().await;
                assert!(is_right(pair.reserve(lease, requirements).await), "{fault:?}");
                assert_eq!(pair.sums().await, sums, "{fault:?}");
            }
        }
    }
}

/// A process died after it had reserved the limits, and the credit limit was deleted before the retry.
#[tokio::test]
async fn a_lease_whose_limit_was_deleted_before_its_hold_is_given_back() {
    for mut pair in pairs().await {
        pair.faults.plan(Fault { step: Step::Hold, when: When::Before, how: How::Stops });
        let lease = pair.lease(1);
        assert_eq!(pair.reserve(lease, ENOUGH).await, None);
        pair.delete("usd").await;
        pair.start_again();
        let unknown = Some(Ok(ReserveAnswer::Refused(Refusal::UnknownLimitKey(key("usd")))));
        assert_eq!(pair.reserve(lease, ENOUGH).await, unknown);
        assert_eq!(pair.sums().await, NOTHING);
        // The first process was slow, not dead.
        pair.settle_down().await;
        assert_eq!(pair.sums().await, NOTHING);
        pair.put_credit().await;
        assert!(has_expired(pair.reserve(lease, ENOUGH).await));
        assert!(is_allowed(pair.reserve(pair.lease(2), ENOUGH).await));
    }
}

/// The same after the hold: the lease keeps its reservations and settles normally.
#[tokio::test]
async fn a_lease_whose_limit_was_deleted_after_its_hold_is_still_allowed() {
    for mut pair in pairs().await {
        pair.faults.plan(Fault { step: Step::Hold, when: When::After, how: How::Stops });
        let lease = pair.lease(1);
        assert_eq!(pair.reserve(lease, ENOUGH).await, None);
        pair.delete("usd").await;
        pair.start_again();
        assert!(is_allowed(pair.reserve(lease, ENOUGH).await));
        assert_eq!(pair.sums().await, TAKEN);
        assert!(pair.complete(lease, USED).await.unwrap().unwrap().reconciled);
        assert_eq!(pair.sums().await, DONE);
    }
}

#[tokio::test]
async fn whoever_hangs_up_in_the_middle_leaves_nothing_half_done() {
    for (requirements, sums) in [(ENOUGH, TAKEN), (TOO_MUCH, NOTHING)] {
        for pair in pairs().await {
            pair.faults.plan(Fault { step: Step::Hold, when: When::After, how: How::Stops });
            // The caller disconnects here.
            assert_eq!(pair.reserve(pair.lease(1), requirements).await, None);
            pair.settle_down().await;
            assert_eq!(pair.sums().await, sums);
        }
    }
}

/// The limits refused such a complete while credit was settled for good; or credit refused it unnoticed, and the hold
/// was released unpaid.
#[tokio::test]
async fn a_complete_that_names_a_key_twice_does_nothing_anywhere() {
    for pair in pairs().await {
        let lease = pair.lease(1);
        assert!(is_allowed(pair.reserve(lease, ENOUGH).await));
        for twice in [&[("rpm", 1), ("usd", 5), ("rpm", 2)], &[("usd", 5), ("rpm", 1), ("usd", 6)]] {
            let answer = pair.complete(lease, twice).await.unwrap().unwrap();
            assert!(answer.is_invalid && !answer.reconciled, "{answer:?}");
            assert_eq!(pair.sums().await, TAKEN);
        }
        assert!(pair.complete(lease, USED).await.unwrap().unwrap().reconciled);
        assert_eq!(pair.sums().await, DONE);
    }
}

/// Regression: while TigerBeetle was down, limits could not be listed or read, although their definitions are local.
#[tokio::test]
async fn definitions_are_read_while_the_system_that_enforces_them_is_down() {
    let pair = limits_elsewhere().await;
    pair.furnish().await;
    let namespace = NamespaceName::new(NamespaceName::DEFAULT).unwrap();
    let all = pair.backend.limits(namespace.clone(), LimitQuery::default()).await.unwrap();
    assert!(!all.limits.is_empty());
    let fault = Fault { step: Step::Standing, when: When::Before, how: How::Fails };
    pair.faults.plan(fault);
    assert_eq!(pair.backend.limits(namespace.clone(), LimitQuery::default()).await, Ok(all.clone()));
    for limit in all.limits {
        pair.faults.plan(fault);
        let key = limit.definition.key.clone();
        assert_eq!(pair.backend.limit(namespace.clone(), key).await, Ok(Some(limit)));
    }
}
