//! Limits that are paused.

use earmark_core::Principal;

use super::Harness;
use super::driver::{Driver, MINUTE, key, namespace};
use crate::backend::{Refusal, ReserveAnswer};
use crate::pauses::PauseLimitRequest;

/// A paused limit refuses without trace until it is resumed. A lease that is known keeps its answer.
pub async fn a_paused_limit_refuses_until_it_is_resumed(harness: &impl Harness) {
    let driver = Driver(harness);
    driver.put("rpm", MINUTE, 10).await;
    let known = driver.admit(&[("rpm", 1)]).await;
    let pause = async |for_ms| {
        let request = PauseLimitRequest {
            namespace: namespace(),
            key: key("rpm"),
            for_ms,
            reason: "429".into(),
            only_lengthen: false,
        };
        harness.backend().pause_limit(Principal::System, request).await.expect("a limit that can be paused")
    };
    assert!(pause(60_000).await.is_some());
    let lease = driver.lease();
    let answer = driver.reserve(lease, &[("rpm", 1)]).await;
    let ReserveAnswer::Refused(Refusal::LimitPaused { key: limit, retry_after_ms }) = answer else {
        panic!("{answer:?}")
    };
    assert_eq!(limit, key("rpm"));
    assert!((1..=60_000).contains(&retry_after_ms), "{retry_after_ms}");
    let answer = driver.reserve(known, &[("rpm", 1)]).await;
    assert!(matches!(answer, ReserveAnswer::Allowed { .. }), "{answer:?}");
    assert_eq!(pause(0).await, None);
    let answer = driver.reserve(lease, &[("rpm", 1)]).await;
    assert!(matches!(answer, ReserveAnswer::Allowed { .. }), "{answer:?}");
    assert_eq!(driver.reserved("rpm").await, 2);
}
