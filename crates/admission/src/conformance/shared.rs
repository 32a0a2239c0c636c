//! Limits that leases of other namespaces reserve.

use earmark_core::{Definition, LeaseId, LimitKey, NamespaceName, Principal};

use super::Harness;
use super::driver::{Driver, SLOTS, definition, key, namespace};
use crate::backend::{Amount, CompleteRequest, PutLimitRequest, Refusal, ReserveAnswer, ReserveRequest};

fn team() -> NamespaceName {
    NamespaceName::new("team").expect("a valid name")
}

fn foreign(name: &str) -> LimitKey {
    LimitKey::in_namespace(&namespace(), &key(name))
}

/// Reserves from the namespace `team`.
async fn reserve(harness: &impl Harness, lease: LeaseId, keys: &[LimitKey]) -> ReserveAnswer {
    let requirements = keys.iter().map(|key| Amount { key: key.clone(), amount: 1 }).collect();
    let request = ReserveRequest { namespace: team(), lease, job: None, call: None, by_gateway: false, requirements };
    let answers = harness.backend().reserve(Principal::System, vec![request]).await;
    answers.into_iter().next().expect("an answer to every request").expect("a backend that answers")
}

/// A shared limit is one limit for all namespaces. One that is not shared is unknown to others.
pub async fn a_shared_limit_is_reserved_from_other_namespaces(harness: &impl Harness) {
    let driver = Driver(harness);
    let shared = Definition { shared: true, ..definition("gpt:slots", SLOTS, 2) };
    driver.try_put(shared, None).await.expect("a limit that can be put");
    driver.put("own:slots", SLOTS, 2).await;
    let request =
        PutLimitRequest { namespace: team(), definition: definition("slots", SLOTS, 9), expected_revision: None };
    harness.backend().put_limit(Principal::System, request).await.expect("a limit that can be put");
    let lease = driver.lease();
    for _ in 0..2 {
        let answer = reserve(harness, lease, &[foreign("gpt:slots"), key("slots")]).await;
        assert!(matches!(answer, ReserveAnswer::Allowed { .. }), "{answer:?}");
    }
    assert_eq!(driver.reserved("gpt:slots").await, 1);
    driver.admit(&[("gpt:slots", 1)]).await;
    let answer = reserve(harness, driver.lease(), &[key("slots"), foreign("gpt:slots")]).await;
    let ReserveAnswer::Denied { limited_by, .. } = answer else { panic!("{answer:?}") };
    assert_eq!(limited_by, [foreign("gpt:slots")]);
    for unknown in [foreign("own:slots"), foreign("nobody:put:this")] {
        let answer = reserve(harness, driver.lease(), std::slice::from_ref(&unknown)).await;
        assert_eq!(answer, ReserveAnswer::Refused(Refusal::UnknownLimitKey(unknown)));
    }
    let actuals = vec![Amount { key: foreign("gpt:slots"), amount: 1 }];
    let claim = earmark_core::LeaseClaim::default();
    let request = CompleteRequest {
        namespace: team(),
        lease,
        job: None,
        claim,
        actuals,
        labels: earmark_core::SettleLabels::NONE,
    };
    let answers = harness.backend().complete(Principal::System, vec![request]).await;
    assert!(
        answers.into_iter().all(|answer| answer.is_ok_and(|answer| answer.reconciled && answer.ignored.is_empty()))
    );
    assert_eq!(driver.reserved("gpt:slots").await, 1);
    driver.admit(&[("gpt:slots", 1)]).await;
}
