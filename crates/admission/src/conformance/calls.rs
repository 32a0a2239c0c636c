//! Calls and owners: a lease remembers its call, and a gateway's lease is the gateway's.

use earmark_core::{CallMark, LeaseClaim, LeaseId, LeaseState, Principal};

use super::Harness;
use super::driver::{Driver, MINUTE, SLOTS, amounts, namespace};
use crate::backend::{CompleteAnswer, CompleteRequest, Refusal, ReserveAnswer, ReserveRequest};
use crate::extend::{ExtendAnswer, ExtendRequest};

const CALL: CallMark = CallMark { attributes: 0x8000_0007, bounds: 8, policy_revision: 3 };
const GATEWAY: LeaseClaim = LeaseClaim { attributes: None, by_gateway: true };
const ANYONE: LeaseClaim = LeaseClaim { attributes: None, by_gateway: false };

fn claim(attributes: u32) -> LeaseClaim {
    LeaseClaim { attributes: Some(attributes), by_gateway: false }
}

type Parts<'a> = &'a [(&'a str, u64)];

impl<H: Harness> Driver<'_, H> {
    pub(super) async fn call(&self, lease: LeaseId, call: Option<CallMark>, parts: Parts<'_>) -> ReserveAnswer {
        self.send(ReserveRequest { call, ..self.request(lease, parts) }).await
    }

    async fn send(&self, request: ReserveRequest) -> ReserveAnswer {
        let answers = self.0.backend().reserve(Principal::System, vec![request]).await;
        answers.into_iter().next().expect("an answer to every request").expect("a backend that answers")
    }

    pub(super) async fn complete_as(&self, lease: LeaseId, claim: LeaseClaim, parts: Parts<'_>) -> CompleteAnswer {
        let (namespace, actuals) = (namespace(), amounts(parts));
        let request =
            CompleteRequest { namespace, lease, job: None, claim, actuals, labels: earmark_core::SettleLabels::NONE };
        let answers = self.0.backend().complete(Principal::System, vec![request]).await;
        answers.into_iter().next().expect("an answer to every request").expect("a backend that answers")
    }

    pub(super) async fn extend_as(
        &self,
        lease: LeaseId,
        number: u32,
        claim: LeaseClaim,
        add: Parts<'_>,
    ) -> ExtendAnswer {
        let (namespace, add, used) = (namespace(), amounts(add), Vec::new());
        let request = ExtendRequest { namespace, lease, number, add, used, renew: true, claim };
        let answers = self.0.backend().extend(Principal::System, vec![request]).await;
        answers.into_iter().next().expect("an answer to every request").expect("a backend that answers")
    }
}

fn revision(answer: &ReserveAnswer) -> Option<u64> {
    match answer {
        ReserveAnswer::Allowed { policy_revision, .. } => *policy_revision,
        other => panic!("{other:?}"),
    }
}

fn is_other_call(answer: &ReserveAnswer) -> bool {
    matches!(answer, ReserveAnswer::Refused(Refusal::InvalidRequest { .. }))
}

/// The policy changed between a call and its retry.
pub async fn a_retried_call_with_a_newer_policy_gets_its_first_answer(harness: &impl Harness) {
    let driver = Driver(harness);
    driver.put("tpm", MINUTE, 100).await;
    driver.put("rpm", MINUTE, 100).await;
    let lease = driver.lease();
    let first = driver.call(lease, Some(CALL), &[("tpm", 10)]).await;
    assert_eq!(revision(&first), Some(3));
    let newer = Some(CallMark { policy_revision: 4, ..CALL });
    for _ in 0..2 {
        assert_eq!(driver.call(lease, newer, &[("rpm", 1), ("tpm", 70)]).await, first);
        assert_eq!((driver.reserved("tpm").await, driver.reserved("rpm").await), (10, 0));
    }
    let others = [CallMark { attributes: 7, ..CALL }, CallMark { bounds: 9, ..CALL }].map(Some);
    for call in others.into_iter().chain([None]) {
        assert!(is_other_call(&driver.call(lease, call, &[("tpm", 10)]).await), "{call:?}");
    }
    let raw = driver.admit(&[("tpm", 10)]).await;
    assert!(is_other_call(&driver.call(raw, Some(CALL), &[("tpm", 10)]).await));
    let view = driver.0.backend().lease(namespace(), lease).await.expect("a readable lease").expect("a lease");
    let seen = (view.policy_revision, view.call_fingerprint, view.by_gateway, view.state);
    assert_eq!(seen, (Some(3), Some(CALL.fingerprint()), false, LeaseState::Live));
    assert!(driver.complete_as(lease, claim(CALL.attributes), &[("tpm", 4)]).await.reconciled);
    let ended = driver.call(lease, newer, &[("rpm", 1)]).await;
    assert_eq!(ended, ReserveAnswer::Refused(Refusal::LeaseExpired));
    // A denied call stays denied.
    let lease = driver.lease();
    let denied = driver.call(lease, Some(CALL), &[("tpm", 99)]).await;
    assert!(matches!(denied, ReserveAnswer::Denied { .. }), "{denied:?}");
    let again = driver.call(lease, newer, &[("tpm", 98)]).await;
    // A ledger does not know by which revision it denied a call.
    let by_first = ReserveAnswer::Refused(Refusal::DeniedByPolicy { policy_revision: CALL.policy_revision });
    assert!(again == by_first || matches!(again, ReserveAnswer::Denied { .. }), "{again:?}");
    assert!(is_other_call(&driver.call(lease, None, &[("tpm", 1)]).await));
}

/// Extend and complete of a call need its attributes, if they claim any.
pub async fn a_claim_for_another_call_changes_nothing(harness: &impl Harness) {
    let driver = Driver(harness);
    driver.put("tpm", MINUTE, 100).await;
    driver.put("slots", SLOTS, 4).await;
    let (lease, raw) = (driver.lease(), driver.admit(&[("tpm", 10)]).await);
    driver.call(lease, Some(CALL), &[("tpm", 10), ("slots", 1)]).await;
    for (lease, attributes) in [(lease, 7), (raw, CALL.attributes)] {
        let extended = driver.extend_as(lease, 1, claim(attributes), &[("tpm", 5)]).await;
        assert!(matches!(extended, ExtendAnswer::Refused(Refusal::InvalidRequest { .. })), "{extended:?}");
        let completed = driver.complete_as(lease, claim(attributes), &[("tpm", 1)]).await;
        assert!(completed.is_invalid && !completed.reconciled, "{completed:?}");
    }
    assert_eq!((driver.reserved("tpm").await, driver.reserved("slots").await), (20, 1));
    let extended = driver.extend_as(lease, 1, claim(CALL.attributes), &[("tpm", 5)]).await;
    assert!(matches!(extended, ExtendAnswer::Extended { .. }), "{extended:?}");
    // A caller that names limits itself completes the lease of a call.
    assert!(driver.complete_as(lease, ANYONE, &[("tpm", 12)]).await.reconciled);
    assert!(driver.complete_as(lease, claim(7), &[("tpm", 12)]).await.is_invalid);
    assert_eq!((driver.reserved("tpm").await, driver.reserved("slots").await), (22, 0));
}

/// The lease of a gateway is refused to all others.
pub async fn the_lease_of_a_gateway_is_refused_to_others(harness: &impl Harness) {
    let driver = Driver(harness);
    driver.put("tpm", MINUTE, 100).await;
    driver.put("slots", SLOTS, 4).await;
    let (lease, other) = (driver.lease(), driver.admit(&[("tpm", 1)]).await);
    let request = ReserveRequest { by_gateway: true, ..driver.request(lease, &[("tpm", 10), ("slots", 1)]) };
    let first = driver.send(request.clone()).await;
    assert!(matches!(first, ReserveAnswer::Allowed { .. }), "{first:?}");
    let owned = ReserveAnswer::Refused(Refusal::OwnedByGateway);
    assert_eq!(driver.reserve(lease, &[("tpm", 10), ("slots", 1)]).await, owned);
    let extended = driver.extend_as(lease, 1, ANYONE, &[("tpm", 5)]).await;
    assert_eq!(extended, ExtendAnswer::Refused(Refusal::OwnedByGateway));
    let completed = driver.complete_as(lease, ANYONE, &[("tpm", 1)]).await;
    assert!(completed.owned_by_gateway && !completed.reconciled && !completed.is_invalid, "{completed:?}");
    assert_eq!((driver.reserved("tpm").await, driver.reserved("slots").await), (11, 1));
    assert_eq!(driver.send(request).await, first);
    let view = driver.0.backend().lease(namespace(), lease).await.expect("a readable lease").expect("a lease");
    assert!(view.by_gateway && view.call_fingerprint.is_none() && view.policy_revision.is_none(), "{view:?}");
    let extended = driver.extend_as(lease, 1, GATEWAY, &[("tpm", 5)]).await;
    assert!(matches!(extended, ExtendAnswer::Extended { .. }), "{extended:?}");
    assert!(driver.complete_as(lease, GATEWAY, &[("tpm", 12)]).await.reconciled);
    assert!(driver.complete_as(lease, ANYONE, &[("tpm", 12)]).await.owned_by_gateway);
    assert!(driver.complete_as(other, GATEWAY, &[("tpm", 0)]).await.reconciled);
    assert_eq!((driver.reserved("tpm").await, driver.reserved("slots").await), (12, 0));
}
