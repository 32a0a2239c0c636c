//! Limits that templates derive.

use earmark_core::{
    AccountName, CreditShortage, CreditTerms, Definition, Kind, LimitKey, LimitStatus, Principal, Template,
};

use super::Harness;
use super::credit_driver::{MAIN, account, issue, open, usd, vault};
use super::driver::{Driver, MINUTE, SLOTS, definition, key, namespace};
use crate::backend::{LimitError, Refusal, ReserveAnswer};
use crate::templates::{DeleteTemplateRequest, PutTemplateRequest};

fn template_key(pattern: &str) -> LimitKey {
    LimitKey::pattern(pattern).expect("a case uses valid templates")
}

fn template(pattern: &str, kind: Kind, capacity: u64) -> Template {
    Template::new(Definition::new(template_key(pattern), kind, capacity)).expect("a case uses valid templates")
}

impl<H: Harness> Driver<'_, H> {
    async fn put_template(&self, pattern: &str, kind: Kind, capacity: u64) {
        let template = template(pattern, kind, capacity);
        let request = PutTemplateRequest { namespace: namespace(), template, expected_revision: None };
        self.0.backend().put_template(Principal::System, request).await.expect("a template that can be put");
    }

    async fn delete_template(&self, pattern: &str) {
        let key = template_key(pattern);
        let request = DeleteTemplateRequest { namespace: namespace(), key, expected_revision: None };
        self.0.backend().delete_template(Principal::System, request).await.expect("a template that can be deleted");
    }
}

fn is_decreasing(answer: &ReserveAnswer, name: &str) -> bool {
    matches!(answer, ReserveAnswer::Refused(Refusal::LimitDecreasing { key: limit, .. }) if *limit == key(name))
}

/// One template makes every matching key a limit of its own; a key that was never used is unused.
pub async fn every_key_of_a_template_is_a_limit_of_its_own(harness: &impl Harness) {
    let driver = Driver(harness);
    driver.put_template("user:{user}:slots", SLOTS, 2).await;
    let lease = driver.admit(&[("user:a:slots", 2)]).await;
    driver.deny(&[("user:a:slots", 1)]).await;
    driver.admit(&[("user:b:slots", 1)]).await;
    let unused = driver.usage("user:c:slots").await;
    assert_eq!((unused.capacity, unused.reserved, unused.available), (2, 0, 2));
    assert_eq!((driver.reserved("user:a:slots").await, driver.reserved("user:b:slots").await), (2, 1));
    let info = harness.backend().limit(namespace(), key("user:a:slots")).await.expect("a backend that answers");
    assert_eq!(info.and_then(|info| info.template), Some(template_key("user:{user}:slots")));
    for other in ["user:a:b:slots", "user::slots", "user:a:tokens"] {
        let answer = driver.reserve(driver.lease(), &[(other, 1)]).await;
        assert_eq!(answer, ReserveAnswer::Refused(Refusal::UnknownLimitKey(key(other))), "{other}");
    }
    driver.complete(lease, &[]).await;
    driver.admit(&[("user:a:slots", 2)]).await;
}

/// A larger capacity counts from the next decision. A smaller one refuses, without trace, until what is reserved fits.
pub async fn a_changed_template_counts_from_the_next_decision(harness: &impl Harness) {
    let driver = Driver(harness);
    driver.put_template("{tenant}:slots", SLOTS, 2).await;
    let first = driver.admit(&[("acme:slots", 2)]).await;
    driver.put_template("{tenant}:slots", SLOTS, 3).await;
    driver.admit(&[("acme:slots", 1)]).await;
    driver.put_template("{tenant}:slots", SLOTS, 2).await;
    let lease = driver.lease();
    let answer = driver.reserve(lease, &[("acme:slots", 1)]).await;
    assert!(is_decreasing(&answer, "acme:slots"), "{answer:?}");
    driver.complete(first, &[]).await;
    let answer = driver.reserve(lease, &[("acme:slots", 1)]).await;
    assert!(matches!(answer, ReserveAnswer::Allowed { .. }), "{answer:?}");
    driver.deny(&[("acme:slots", 1)]).await;
    driver.admit(&[("other:slots", 2)]).await;
}

/// A definition of the same key takes the place of the template and keeps what is reserved. Without it the key follows
/// the template again, at once.
pub async fn a_definition_overrides_its_template_and_keeps_what_is_reserved(harness: &impl Harness) {
    let driver = Driver(harness);
    driver.put_template("{tenant}:slots", SLOTS, 2).await;
    driver.admit(&[("acme:slots", 2)]).await;
    driver.put("acme:slots", SLOTS, 5).await;
    assert_eq!(driver.reserved("acme:slots").await, 2);
    let lease = driver.admit(&[("acme:slots", 3)]).await;
    driver.deny(&[("acme:slots", 1)]).await;
    // The template does not change what overrides it.
    driver.put_template("{tenant}:slots", SLOTS, 4).await;
    driver.deny(&[("acme:slots", 1)]).await;
    let change = driver.delete("acme:slots").await.expect("a limit that can be deleted");
    assert_eq!(change.status, LimitStatus::Deleted);
    let retried = driver.lease();
    let answer = driver.reserve(retried, &[("acme:slots", 1)]).await;
    assert!(is_decreasing(&answer, "acme:slots"), "{answer:?}");
    driver.complete(lease, &[]).await;
    let answer = driver.reserve(retried, &[("acme:slots", 2)]).await;
    assert!(matches!(answer, ReserveAnswer::Allowed { .. }), "{answer:?}");
    driver.deny(&[("acme:slots", 1)]).await;
    assert_eq!(driver.delete("acme:slots").await, Err(LimitError::NotFound));
}

/// A definition of another kind waits until nothing of the derived limit is in use.
pub async fn a_definition_of_another_kind_waits_for_the_derived_limit(harness: &impl Harness) {
    let driver = Driver(harness);
    driver.put_template("{tenant}:work", SLOTS, 2).await;
    let lease = driver.admit(&[("acme:work", 1)]).await;
    let put = driver.try_put(definition("acme:work", MINUTE, 5), None).await;
    assert_eq!(put, Err(LimitError::KindDiffers));
    driver.complete(lease, &[]).await;
    driver.try_put(definition("acme:work", MINUTE, 5), None).await.expect("a limit that can be put");
    driver.admit(&[("acme:work", 5)]).await;
}

/// The keys of a deleted template are unknown at once; what is reserved settles as usual.
pub async fn the_keys_of_a_deleted_template_are_unknown_at_once(harness: &impl Harness) {
    let driver = Driver(harness);
    driver.put_template("{tenant}:tpm", MINUTE, 100).await;
    let lease = driver.admit(&[("acme:tpm", 60)]).await;
    driver.delete_template("{tenant}:tpm").await;
    let answer = driver.reserve(driver.lease(), &[("acme:tpm", 1)]).await;
    assert_eq!(answer, ReserveAnswer::Refused(Refusal::UnknownLimitKey(key("acme:tpm"))));
    assert!(driver.complete(lease, &[("acme:tpm", 10)]).await.reconciled);
    driver.put_template("{tenant}:tpm", MINUTE, 100).await;
    assert_eq!(driver.reserved("acme:tpm").await, 10);
    driver.admit(&[("acme:tpm", 90)]).await;
    driver.deny(&[("acme:tpm", 1)]).await;
}

/// Two templates match; the leftmost literal wins.
pub async fn of_two_templates_the_leftmost_literal_wins(harness: &impl Harness) {
    let driver = Driver(harness);
    driver.put_template("{tenant}:{user}:slots", SLOTS, 1).await;
    driver.put_template("acme:{user}:slots", SLOTS, 2).await;
    driver.put_template("{tenant}:root:slots", SLOTS, 3).await;
    driver.admit(&[("acme:root:slots", 2)]).await;
    driver.deny(&[("acme:root:slots", 1)]).await;
    driver.admit(&[("other:root:slots", 3)]).await;
    driver.admit(&[("other:ann:slots", 1)]).await;
    driver.deny(&[("other:ann:slots", 1)]).await;
}

/// The account of a credit template has the placeholders of its key.
pub async fn a_credit_template_pays_from_the_account_of_its_key(harness: &impl Harness) {
    let driver = Driver(harness);
    driver.does(MAIN, vec![open("acme"), issue("acme", 100), open("other")]).await;
    let terms = CreditTerms {
        timeout_seconds: 60,
        vault: vault("main"),
        account: AccountName::pattern("{tenant}").expect("a valid pattern"),
        asset: usd(),
        revenue: account(AccountName::REVENUE),
        on_timeout: Default::default(),
    };
    driver.put_template("{tenant}:usd", Kind::Credit(terms), 0).await;
    driver.put_template("{tenant}:slots", SLOTS, 5).await;
    let lease = driver.admit(&[("acme:usd", 60), ("acme:slots", 1)]).await;
    assert_eq!(driver.purse("main", "acme").await, (40, 60));
    for short in ["acme:usd", "other:usd"] {
        let answer = driver.reserve(driver.lease(), &[(short, 50), ("acme:slots", 1)]).await;
        let ReserveAnswer::Refused(Refusal::InsufficientCredit { key: limit, why, .. }) = answer else {
            panic!("{answer:?}")
        };
        assert_eq!((limit, why), (key(short), CreditShortage::NotEnough));
    }
    let answer = driver.reserve(driver.lease(), &[("nobody:usd", 1)]).await;
    assert!(
        matches!(&answer, ReserveAnswer::Refused(Refusal::AccountNotFound { key: limit, .. })
            if *limit == key("nobody:usd")),
        "{answer:?}"
    );
    assert_eq!(driver.reserved("acme:slots").await, 1);
    let answer = driver.complete(lease, &[("acme:usd", 25)]).await;
    assert_eq!((answer.reconciled, answer.credit_paid), (true, 25));
    assert_eq!(driver.purse("main", "acme").await, (75, 0));
}
