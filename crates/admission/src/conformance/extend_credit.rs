//! Extensions of credit holds.

use earmark_core::{AccountName, CallMark, CreditShortage, Definition, Kind, LeaseClaim, LeaseId, Principal};

use super::Harness;
use super::credit_driver::{MAIN, credit, issue, open};
use super::driver::{Driver, MINUTE, SLOTS, key};
use super::extend::{Asked, RENEW, add, used};
use crate::backend::{Refusal, ReserveRequest, describe_raised};
use crate::extend::ExtendAnswer;

impl<H: Harness> Driver<'_, H> {
    /// Opens account `acme` with 100 usd and a credit limit `usd` on it.
    async fn fund(&self, timeout_seconds: u32) {
        self.does(MAIN, vec![open("acme"), issue("acme", 100)]).await;
        let limit: Definition = credit("usd", "main", "acme", timeout_seconds);
        self.try_put(limit, None).await.expect("a limit that can be put");
    }

    /// Available and held credit of `acme`, and the balance of `revenue`.
    async fn funds(&self) -> (i128, i128, i128) {
        let (available, held) = self.purse("main", "acme").await;
        (available, held, self.usd_of("main", AccountName::REVENUE).await)
    }

    async fn is_short(&self, lease: LeaseId, number: u32, asked: Asked<'_>) {
        match self.extend(lease, number, asked).await {
            ExtendAnswer::Refused(Refusal::InsufficientCredit { key: limit, why, retry_after_ms }) => {
                assert_eq!((limit, why), (key("usd"), CreditShortage::NotEnough));
                assert!(retry_after_ms <= 10_000, "{retry_after_ms}");
            }
            other => panic!("{other:?}"),
        }
    }
}

/// An extension takes credit and limits together, or nothing. Its denial is remembered with its number.
pub async fn an_extension_holds_credit_with_its_limits_or_not_at_all(harness: &impl Harness) {
    let driver = Driver(harness);
    driver.fund(60).await;
    driver.put("rpm", MINUTE, 5).await;
    let lease = driver.admit(&[("rpm", 1), ("usd", 30)]).await;
    for _ in 0..2 {
        driver.extends(lease, 1, add(&[("rpm", 1), ("usd", 20)])).await;
        assert_eq!((driver.reserved("rpm").await, driver.funds().await), (2, (50, 50, 0)));
    }
    driver.is_short(lease, 2, add(&[("rpm", 1), ("usd", 51)])).await;
    driver.does(MAIN, vec![issue("acme", 10)]).await;
    driver.is_short(lease, 2, add(&[("rpm", 1), ("usd", 51)])).await;
    for _ in 0..2 {
        let denied = driver.extend(lease, 3, add(&[("rpm", 4), ("usd", 20)])).await;
        assert!(matches!(denied, ExtendAnswer::Denied { .. }), "{denied:?}");
    }
    let unknown = driver.extend(lease, 4, add(&[("nothing", 1), ("usd", 20)])).await;
    assert_eq!(unknown, ExtendAnswer::Refused(Refusal::UnknownLimitKey(key("nothing"))));
    assert_eq!((driver.reserved("rpm").await, driver.funds().await), (2, (60, 50, 0)));
    let gap = driver.extend(lease, 9, add(&[("usd", 5)])).await;
    assert!(matches!(gap, ExtendAnswer::Refused(Refusal::InvalidRequest { .. })), "{gap:?}");
    let (_, message) = driver.extends(lease, 4, Asked { used: &[("usd", 90)], ..add(&[("usd", 20)]) }).await;
    assert!(message.contains("usd"), "{message}");
    assert_eq!(driver.funds().await, (40, 70, 0));
    let never = driver.extend(driver.lease(), 1, add(&[("usd", 5)])).await;
    assert_eq!(never, ExtendAnswer::expired());
    // The reported usage is the least that a complete costs, and the answer says so.
    let answer = driver.complete(lease, &[("usd", 60), ("rpm", 2)]).await;
    assert!(answer.reconciled, "{answer:?}");
    assert_eq!((&answer.raised, answer.message.clone()), (&vec![key("usd")], describe_raised(&[key("usd")])));
    assert_eq!(driver.funds().await, (20, 0, 90));
    assert_eq!(driver.extend(lease, 5, add(&[("usd", 5)])).await, ExtendAnswer::expired());
    assert_eq!(driver.funds().await, (20, 0, 90));
}

/// A hold lives as long as it is renewed. When it runs out, the reported usage is not spendable.
pub async fn a_renewed_hold_runs_out_and_keeps_what_was_used(harness: &impl Harness) {
    let driver = Driver(harness);
    driver.fund(3).await;
    driver.put("slots", Kind::Concurrency { timeout_seconds: 9 }, 2).await;
    let lease = driver.admit(&[("slots", 1), ("usd", 30)]).await;
    for number in 1..=3 {
        harness.advance_ms(1_500).await;
        assert!(driver.extends(lease, number, RENEW).await.0.is_some());
    }
    assert_eq!(driver.funds().await, (70, 30, 0));
    driver.extends(lease, 4, used(&[("usd", 12)])).await;
    harness.advance_ms(4_200).await;
    assert_eq!(driver.extend(lease, 5, RENEW).await, ExtendAnswer::expired());
    let (available, ..) = driver.funds().await;
    assert_eq!(available, 88);
    let answer = driver.complete(lease, &[("usd", 15)]).await;
    assert!(answer.reconciled, "{answer:?}");
    assert_eq!(driver.funds().await, (85, 0, 15));
}

/// A lease that reserved no credit may get its first hold by an extension. Its complete charges it.
pub async fn the_first_credit_of_a_lease_may_come_with_an_extension(harness: &impl Harness) {
    let driver = Driver(harness);
    driver.fund(60).await;
    driver.put("slots", SLOTS, 2).await;
    let lease = driver.admit(&[("slots", 1)]).await;
    driver.extends(lease, 1, RENEW).await;
    driver.extends(lease, 2, add(&[("usd", 40)])).await;
    assert_eq!(driver.funds().await, (60, 40, 0));
    for _ in 0..2 {
        assert!(driver.complete(lease, &[("usd", 25)]).await.reconciled);
        assert_eq!((driver.reserved("slots").await, driver.funds().await), (0, (75, 0, 25)));
    }
}

/// The limits judge a claim before credit grows or is settled.
pub async fn credit_is_not_touched_for_a_claim_that_is_refused(harness: &impl Harness) {
    let driver = Driver(harness);
    driver.fund(60).await;
    driver.put("rpm", MINUTE, 5).await;
    let call = CallMark { attributes: 7, bounds: 8, policy_revision: 3 };
    let (lease, owned) = (driver.lease(), driver.lease());
    driver.call(lease, Some(call), &[("rpm", 1), ("usd", 30)]).await;
    let request = ReserveRequest { by_gateway: true, ..driver.request(owned, &[("rpm", 1), ("usd", 20)]) };
    driver.0.backend().reserve(Principal::System, vec![request]).await;
    assert_eq!(driver.funds().await, (50, 50, 0));
    let other = LeaseClaim { attributes: Some(9), by_gateway: false };
    for (lease, claim) in [(lease, other), (owned, LeaseClaim::default())] {
        let extended = driver.extend_as(lease, 1, claim, &[("usd", 10)]).await;
        assert!(matches!(extended, ExtendAnswer::Refused(_)), "{extended:?}");
        let completed = driver.complete_as(lease, claim, &[("usd", 5)]).await;
        assert!(completed.is_invalid || completed.owned_by_gateway, "{completed:?}");
        assert_eq!(driver.funds().await, (50, 50, 0));
    }
    // A retry with the requirements of a newer policy holds no other credit.
    let newer = CallMark { policy_revision: 4, ..call };
    driver.call(lease, Some(newer), &[("rpm", 1), ("usd", 45)]).await;
    assert_eq!(driver.funds().await, (50, 50, 0));
    let mine = LeaseClaim { attributes: Some(7), by_gateway: false };
    driver.extend_as(lease, 1, mine, &[("usd", 10)]).await;
    assert_eq!(driver.funds().await, (40, 60, 0));
    assert!(driver.complete_as(lease, mine, &[("usd", 35)]).await.reconciled);
    let gateway = LeaseClaim { attributes: None, by_gateway: true };
    assert!(driver.complete_as(owned, gateway, &[("usd", 5)]).await.reconciled);
    assert_eq!(driver.funds().await, (60, 0, 40));
}
