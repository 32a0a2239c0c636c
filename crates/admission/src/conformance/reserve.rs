//! Reserving: all requirements or none, exactly once.

use earmark_core::{JobId, Kind, LeaseState, Principal, UnixMs};

use super::Harness;
use super::driver::{Driver, MINUTE, SLOTS, key, namespace};
use crate::backend::{Amount, Refusal, ReserveAnswer};
use crate::clock::utc;

/// One reserve takes from all its limits.
pub async fn everything_is_taken_together(harness: &impl Harness) {
    let driver = Driver(harness);
    driver.put("rpm", MINUTE, 10).await;
    driver.put("tpm", MINUTE, 1_000).await;
    driver.put("slots", SLOTS, 5).await;
    driver.admit(&[("rpm", 1), ("tpm", 400), ("slots", 2)]).await;
    assert_eq!(
        [driver.reserved("rpm").await, driver.reserved("tpm").await, driver.reserved("slots").await],
        [1, 400, 2]
    );
    let usage = driver.usage("tpm").await;
    assert_eq!((usage.capacity, usage.available, usage.debt), (1_000, 600, 0));
}

/// A denied reserve takes nothing from the limits that had room.
pub async fn a_denied_reserve_burns_nothing(harness: &impl Harness) {
    let driver = Driver(harness);
    driver.put("rpm", MINUTE, 10).await;
    driver.put("tpm", MINUTE, 100).await;
    driver.deny(&[("rpm", 1), ("tpm", 101)]).await;
    driver.admit(&[("tpm", 60)]).await;
    driver.deny(&[("rpm", 1), ("tpm", 60)]).await;
    assert_eq!((driver.reserved("rpm").await, driver.reserved("tpm").await), (0, 60));
}

/// A denial names the limit and when to retry.
pub async fn a_denial_says_when_to_come_back_and_which_limit_was_hit(harness: &impl Harness) {
    let driver = Driver(harness);
    driver.put("rpm", MINUTE, 10).await;
    driver.put("tpm", MINUTE, 100).await;
    driver.admit(&[("rpm", 1), ("tpm", 100)]).await;
    match driver.reserve(driver.lease(), &[("rpm", 1), ("tpm", 1)]).await {
        ReserveAnswer::Denied { retry_after_ms, limited_by, never } => {
            assert!((1..=60_000).contains(&retry_after_ms), "{retry_after_ms}");
            assert_eq!((limited_by, never), (vec![key("tpm")], false));
        }
        other => panic!("{other:?}"),
    }
}

/// A denial is final for its lease: a retry cannot succeed later.
pub async fn a_denied_lease_stays_denied_even_when_it_would_fit(harness: &impl Harness) {
    let driver = Driver(harness);
    driver.put("slots", SLOTS, 1).await;
    let first = driver.admit(&[("slots", 1)]).await;
    let denied = driver.deny(&[("slots", 1)]).await;
    driver.complete(first, &[]).await;
    assert_eq!(driver.reserved("slots").await, 0);
    let again = driver.reserve(denied, &[("slots", 1)]).await;
    assert!(matches!(again, ReserveAnswer::Denied { .. }), "{again:?}");
    assert_eq!(driver.reserved("slots").await, 0);
    driver.admit(&[("slots", 1)]).await;
}

/// An amount above the capacity is denied with `never`.
pub async fn more_than_there_is_never_fits(harness: &impl Harness) {
    let driver = Driver(harness);
    driver.put("tpm", MINUTE, 100).await;
    let answer = driver.reserve(driver.lease(), &[("tpm", 101)]).await;
    let limited_by = vec![key("tpm")];
    assert_eq!(answer, ReserveAnswer::Denied { retry_after_ms: 60_000, limited_by, never: true });
}

/// A retry gets the answer that was lost.
pub async fn a_retry_gets_the_first_answer_and_takes_nothing_more(harness: &impl Harness) {
    let driver = Driver(harness);
    driver.put("tpm", MINUTE, 100).await;
    let lease = driver.lease();
    let first = driver.reserve(lease, &[("tpm", 60)]).await;
    harness.advance_ms(1_000).await;
    assert_eq!(driver.reserve(lease, &[("tpm", 60)]).await, first);
    assert_eq!(driver.reserved("tpm").await, 60);
}

/// The order of requirements does not matter.
pub async fn a_retry_in_another_order_is_the_same_retry(harness: &impl Harness) {
    let driver = Driver(harness);
    driver.put("rpm", MINUTE, 10).await;
    driver.put("tpm", MINUTE, 100).await;
    let lease = driver.lease();
    let first = driver.reserve(lease, &[("rpm", 1), ("tpm", 60)]).await;
    assert_eq!(driver.reserve(lease, &[("tpm", 60), ("rpm", 1)]).await, first);
    assert_eq!((driver.reserved("rpm").await, driver.reserved("tpm").await), (1, 60));
}

/// A lease belongs to one set of requirements.
pub async fn a_retry_with_another_body_is_refused(harness: &impl Harness) {
    let driver = Driver(harness);
    driver.put("rpm", MINUTE, 10).await;
    driver.put("tpm", MINUTE, 100).await;
    let lease = driver.admit(&[("tpm", 60)]).await;
    for other in [&[("tpm", 61)][..], &[("rpm", 60)], &[("rpm", 1), ("tpm", 60)]] {
        let answer = driver.reserve(lease, other).await;
        assert!(matches!(answer, ReserveAnswer::Refused(Refusal::InvalidRequest { .. })), "{other:?}: {answer:?}");
    }
    assert_eq!((driver.reserved("rpm").await, driver.reserved("tpm").await), (0, 60));
}

/// A rolling window frees its amount one window later.
pub async fn a_window_gives_back_what_it_took(harness: &impl Harness) {
    let driver = Driver(harness);
    driver.put("tps", Kind::Rolling { window_seconds: 2 }, 100).await;
    let lease = driver.admit(&[("tps", 100)]).await;
    driver.deny(&[("tps", 1)]).await;
    harness.advance_ms(3_000).await;
    assert_eq!(driver.reserved("tps").await, 0);
    let retry = driver.reserve(lease, &[("tps", 100)]).await;
    assert_eq!(retry, ReserveAnswer::Refused(Refusal::LeaseExpired));
    driver.admit(&[("tps", 100)]).await;
}

/// The slot of a crashed caller is free after its timeout.
pub async fn a_slot_of_a_crashed_caller_comes_back_after_its_timeout(harness: &impl Harness) {
    let driver = Driver(harness);
    driver.put("slots", Kind::Concurrency { timeout_seconds: 2 }, 1).await;
    driver.admit(&[("slots", 1)]).await;
    driver.deny(&[("slots", 1)]).await;
    harness.advance_ms(3_000).await;
    driver.admit(&[("slots", 1)]).await;
}

/// An unknown key is not a denial: once the limit exists, the same lease may succeed.
pub async fn an_unknown_limit_is_refused_by_name_and_leaves_no_trace(harness: &impl Harness) {
    let driver = Driver(harness);
    driver.put("rpm", MINUTE, 10).await;
    let lease = driver.lease();
    for _ in 0..2 {
        let answer = driver.reserve(lease, &[("rpm", 1), ("nothing", 1)]).await;
        assert_eq!(answer, ReserveAnswer::Refused(Refusal::UnknownLimitKey(key("nothing"))));
    }
    assert_eq!(driver.reserved("rpm").await, 0);
    driver.put("nothing", MINUTE, 10).await;
    let answer = driver.reserve(lease, &[("rpm", 1), ("nothing", 1)]).await;
    assert!(matches!(answer, ReserveAnswer::Allowed { .. }), "{answer:?}");
}

/// A lease that may be forgotten, or that lies in the future, is refused.
pub async fn a_lease_from_the_past_or_the_future_is_refused(harness: &impl Harness) {
    let driver = Driver(harness);
    driver.put("rpm", MINUTE, 10).await;
    let now = harness.now_ms();
    for made_at in [now - 3_600_000, now + 3_600_000] {
        let lease = driver.lease_made_at(made_at);
        let answer = driver.reserve(lease, &[("rpm", 1)]).await;
        assert!(
            matches!(&answer, ReserveAnswer::Refused(Refusal::InvalidRequest { message })
                if message.contains(&utc(UnixMs::new(made_at)))),
            "{answer:?}"
        );
    }
    assert_eq!(driver.reserved("rpm").await, 0);
}

/// Requests of a batch are decided on their own.
pub async fn the_items_of_a_batch_are_answered_each_on_its_own(harness: &impl Harness) {
    let driver = Driver(harness);
    driver.put("tpm", MINUTE, 100).await;
    let requests = [60, 60, 40].map(|amount| driver.request(driver.lease(), &[("tpm", amount)]));
    let answers = harness.backend().reserve(Principal::System, requests.to_vec()).await;
    let allowed: Vec<bool> = answers.iter().map(|answer| matches!(answer, Ok(ReserveAnswer::Allowed { .. }))).collect();
    assert_eq!(allowed, [true, false, true]);
    assert_eq!(driver.reserved("tpm").await, 100);
}

/// A lease shows its reservations.
pub async fn a_lease_can_be_read(harness: &impl Harness) {
    let driver = Driver(harness);
    driver.put("tpm", MINUTE, 100).await;
    driver.put("rpm", MINUTE, 100).await;
    let read = async |lease| harness.backend().lease(namespace(), lease).await.expect("a backend that answers");
    assert_eq!(read(driver.lease()).await, None);
    let lease = driver.admit(&[("tpm", 60), ("rpm", 1)]).await;
    let view = read(lease).await.expect("a lease that is live");
    assert_eq!(view.state, LeaseState::Live);
    assert!(view.reserved_at.is_some());
    let held = [("rpm", 1), ("tpm", 60)].map(|(name, amount)| Amount { key: key(name), amount });
    assert_eq!(view.requirements, held);
    driver.complete(lease, &[]).await;
    let state = read(lease).await.map(|view| view.state);
    assert_eq!(state, Some(LeaseState::Completed));
}

/// A lease shows the job of its first reserve, allowed or denied, before and after its complete.
pub async fn a_lease_keeps_the_job_of_its_first_reserve(harness: &impl Harness) {
    let driver = Driver(harness);
    driver.put("rpm", MINUTE, 2).await;
    let job = |name: &str| Some(JobId::new(name).expect("a valid name"));
    let (allowed, denied, without) = (driver.lease(), driver.lease(), driver.lease());
    for (lease, amount, name) in [(allowed, 1, "first"), (denied, 2, "first"), (allowed, 1, "second")] {
        let mut request = driver.request(lease, &[("rpm", amount)]);
        request.job = job(name);
        let answer = harness.backend().reserve(Principal::System, vec![request]).await.remove(0);
        let is_allowed = matches!(answer, Ok(ReserveAnswer::Allowed { .. }));
        assert_eq!(is_allowed, lease == allowed, "{answer:?}");
    }
    driver.reserve(without, &[("rpm", 1)]).await;
    driver.complete(allowed, &[]).await;
    for (lease, expected) in [(allowed, job("first")), (denied, job("first")), (without, None)] {
        let view = harness.backend().lease(namespace(), lease).await.expect("a backend that answers");
        assert_eq!(view.map(|view| view.job), Some(expected));
    }
}

/// Concurrent reserves never exceed the capacity.
pub async fn concurrent_requests_cannot_slip_past_a_token_limit(harness: &impl Harness) {
    let driver = Driver(harness);
    driver.put("tpm", MINUTE, 1_000).await;
    let requests: Vec<_> = (0..64).map(|_| vec![driver.request(driver.lease(), &[("tpm", 100)])]).collect();
    let mut waiting: Vec<_> =
        requests.into_iter().map(|request| harness.backend().reserve(Principal::System, request)).collect();
    let mut allowed = 0;
    let mut answered = 0;
    std::future::poll_fn(|context| {
        waiting.retain_mut(|answer| match answer.as_mut().poll(context) {
            std::task::Poll::Pending => true,
            std::task::Poll::Ready(answers) => {
                answered += 1;
                allowed += usize::from(matches!(answers[..], [Ok(ReserveAnswer::Allowed { .. })]));
                false
            }
        });
        if waiting.is_empty() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
    assert_eq!((answered, allowed), (64, 10));
    assert_eq!(driver.reserved("tpm").await, 1_000);
}
