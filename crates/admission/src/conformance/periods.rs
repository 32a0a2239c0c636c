//! Calendar limits, and limits that are not enforced.

use earmark_core::{Definition, Kind, LimitStatus, Period, UnixMs};

use super::Harness;
use super::driver::{Driver, MINUTE, definition, key};
use crate::backend::{Refusal, ReserveAnswer};

/// The hours that end with the next minute which is at least 5 seconds away, and the time until that end.
fn hours_that_end_soon(now_ms: u64) -> (Kind, u64) {
    let minute = now_ms.saturating_add(5_000).div_ceil(60_000);
    let utc_offset_minutes = i16::try_from((60 - minute % 60) % 60).expect("less than an hour");
    let kind = Kind::Calendar { period: Period::Hour, utc_offset_minutes };
    let end = kind.period_end(UnixMs::new(now_ms)).expect("a calendar limit");
    (kind, end.get().saturating_sub(now_ms))
}

/// Usage of a calendar limit is gone with its period. A lease that settles afterwards adds only its overage.
pub async fn usage_of_a_calendar_limit_ends_with_its_period(harness: &impl Harness) {
    let driver = Driver(harness);
    let (kind, left_ms) = hours_that_end_soon(harness.now_ms());
    driver.put("tph", kind, 100).await;
    let settled = driver.admit(&[("tph", 40)]).await;
    let late = driver.admit(&[("tph", 50)]).await;
    assert!(driver.complete(settled, &[("tph", 30)]).await.reconciled);
    assert_eq!(driver.reserved("tph").await, 80);
    let answer = driver.reserve(driver.lease(), &[("tph", 30)]).await;
    let ReserveAnswer::Denied { retry_after_ms, .. } = answer else { panic!("{answer:?}") };
    assert!(retry_after_ms > 0 && retry_after_ms <= left_ms.saturating_add(1_000), "{retry_after_ms} of {left_ms}");
    let again = driver.reserve(driver.lease(), &[("tph", 20)]).await;
    assert!(matches!(again, ReserveAnswer::Allowed { .. }), "{again:?}");
    // A ledger rounds up to whole seconds.
    harness.advance_ms(left_ms.saturating_add(1_100)).await;
    assert_eq!(driver.reserved("tph").await, 0);
    let answer = driver.complete(late, &[("tph", 65)]).await;
    assert_eq!((answer.reconciled, answer.overage_reserved), (true, 15));
    harness.advance_ms(2_000).await;
    assert_eq!(driver.reserved("tph").await, 15);
    driver.admit(&[("tph", 85)]).await;
    driver.deny(&[("tph", 1)]).await;
}

/// A limit with `enforce: false` counts and never denies; the answer and its retry say that it would.
pub async fn a_limit_that_is_not_enforced_counts_and_never_denies(harness: &impl Harness) {
    let driver = Driver(harness);
    let shadow = |enforce| Definition { enforce, ..definition("rpm", MINUTE, 10) };
    driver.try_put(shadow(false), None).await.expect("a limit that can be put");
    driver.put("tpm", MINUTE, 100).await;
    let would_deny = async |lease, parts: &[(&str, u64)]| match driver.reserve(lease, parts).await {
        ReserveAnswer::Allowed { would_deny, .. } => would_deny,
        other => panic!("{other:?}"),
    };
    assert!(would_deny(driver.lease(), &[("rpm", 8)]).await.is_empty());
    let lease = driver.lease();
    for _ in 0..2 {
        assert_eq!(would_deny(lease, &[("rpm", 5), ("tpm", 1)]).await, [key("rpm")]);
    }
    assert_eq!(driver.reserved("rpm").await, 13);
    assert_eq!(driver.usage("rpm").await.capacity, 10);
    let put = driver.try_put(shadow(true), None).await.expect("a limit that can be put");
    assert_eq!(put.status, LimitStatus::Decreasing { to: 10 });
    let answer = driver.reserve(driver.lease(), &[("rpm", 1)]).await;
    let is_decreasing = |answer: &ReserveAnswer| matches!(answer, ReserveAnswer::Refused(Refusal::LimitDecreasing { key: limit, .. }) if *limit == key("rpm"));
    assert!(is_decreasing(&answer), "{answer:?}");
    assert!(driver.complete(lease, &[("rpm", 1)]).await.reconciled);
    driver.admit(&[("rpm", 1)]).await;
    driver.deny(&[("rpm", 1)]).await;
}
