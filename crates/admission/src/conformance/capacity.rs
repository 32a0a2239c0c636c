//! Changes of limits under traffic.

use earmark_core::{Kind, LimitStatus, Principal, QuotaKind, SetQuotas, UsageSort};

use super::Harness;
use super::driver::{Driver, MINUTE, SLOTS, definition, key, namespace};
use crate::backend::{LimitError, LimitQuery, PutLimitRequest, Refusal, ReserveAnswer};
use crate::usage::{UsageError, UsageQuery};

/// A limit can be listed, read and deleted.
pub async fn limits_can_be_listed_read_and_deleted(harness: &impl Harness) {
    let driver = Driver(harness);
    driver.put("tpm", MINUTE, 100).await;
    driver.put("rpm", MINUTE, 10).await;
    let names = async || {
        let page = harness.backend().limits(namespace(), LimitQuery::default()).await.expect("a backend that answers");
        page.limits.into_iter().map(|limit| limit.definition.key.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(names().await, ["rpm", "tpm"]);
    let page = |query| async { harness.backend().limits(namespace(), query).await.expect("a backend that answers") };
    let first = page(LimitQuery { page_size: 1, ..LimitQuery::default() }).await;
    assert_eq!((first.limits.len(), &first.limits[0].definition.key), (1, &key("rpm")));
    let second = page(LimitQuery { page_size: 1, after: first.next, ..LimitQuery::default() }).await;
    assert_eq!((&second.limits[0].definition.key, second.next), (&key("tpm"), None));
    let some = page(LimitQuery { prefix: Some(key("t")), ..LimitQuery::default() }).await;
    assert_eq!((some.limits.len(), &some.limits[0].definition.key, some.next), (1, &key("tpm"), None));
    let limit = harness.backend().limit(namespace(), key("tpm")).await.expect("a backend that answers");
    let limit = limit.expect("a limit that exists");
    assert_eq!(limit.definition, definition("tpm", MINUTE, 100));
    assert_eq!((limit.status, limit.revision), (LimitStatus::Active, 1));
    let change = driver.delete("tpm").await.expect("a limit that can be deleted");
    assert_eq!(change.status, LimitStatus::Deleted);
    assert_eq!(names().await, ["rpm"]);
    assert_eq!(driver.delete("tpm").await, Err(LimitError::NotFound));
    let answer = driver.reserve(driver.lease(), &[("tpm", 1)]).await;
    assert_eq!(answer, ReserveAnswer::Refused(Refusal::UnknownLimitKey(key("tpm"))));
}

/// Lists show the usage that each limit has, in the order that was asked for.
pub async fn usage_is_listed_by_key_and_by_what_is_used(harness: &impl Harness) {
    let driver = Driver(harness);
    driver.put("tpm", MINUTE, 100).await;
    driver.put("rpm", MINUTE, 10).await;
    driver.put("slots", SLOTS, 3).await;
    let lease = driver.admit(&[("tpm", 30), ("rpm", 1), ("slots", 3)]).await;
    driver.admit(&[("tpm", 60)]).await;
    driver.complete(lease, &[("tpm", 200), ("rpm", 1), ("slots", 1)]).await;
    driver.admit(&[("slots", 2)]).await;
    let list = |prefix: &str, sort, page_size| UsageQuery {
        prefix: (!prefix.is_empty()).then(|| key(prefix)),
        sort,
        after: None,
        page_size,
    };
    for (query, expected) in [
        (list("", UsageSort::Key, 9), vec!["rpm", "slots", "tpm"]),
        (list("", UsageSort::Fullness, 9), vec!["tpm", "slots", "rpm"]),
        (list("", UsageSort::Fullness, 1), vec!["tpm"]),
        (list("", UsageSort::Debt, 2), vec!["tpm", "rpm"]),
        (list("s", UsageSort::Debt, 9), vec!["slots"]),
        (list("nothing", UsageSort::Key, 9), vec![]),
    ] {
        let listed = driver.listed(query).await;
        let keys: Vec<&str> = listed.usage.iter().map(|limit| limit.key.as_str()).collect();
        assert_eq!((keys, listed.next), (expected, None));
    }
    let first = driver.listed(list("", UsageSort::Key, 2)).await;
    assert_eq!((first.usage.len(), &first.next), (2, &Some(key("slots"))));
    let rest = driver.listed(UsageQuery { after: first.next, ..UsageQuery::default() }).await;
    assert_eq!((rest.usage.len(), rest.next), (1, None));
    let sorted = UsageQuery { after: Some(key("a")), sort: UsageSort::Debt, ..UsageQuery::default() };
    let refused = harness.backend().usage_page(namespace(), sorted).await;
    assert!(matches!(refused, Err(UsageError::AfterSorted { .. })), "{refused:?}");
}

/// An increase of capacity applies at once.
pub async fn more_capacity_counts_at_once(harness: &impl Harness) {
    let driver = Driver(harness);
    driver.put("slots", SLOTS, 1).await;
    driver.admit(&[("slots", 1)]).await;
    driver.deny(&[("slots", 1)]).await;
    let change = driver.put("slots", SLOTS, 2).await;
    assert_eq!((change.status, change.revision), (LimitStatus::Active, 2));
    driver.admit(&[("slots", 1)]).await;
}

/// A decrease waits until enough is free, because a reservation is never revoked.
pub async fn less_capacity_waits_until_it_is_free(harness: &impl Harness) {
    let driver = Driver(harness);
    driver.put("slots", SLOTS, 3).await;
    let leases = [driver.admit(&[("slots", 1)]).await, driver.admit(&[("slots", 1)]).await];
    assert_eq!(driver.put("slots", SLOTS, 1).await.status, LimitStatus::Decreasing { to: 1 });
    let lease = driver.lease();
    let answer = driver.reserve(lease, &[("slots", 1)]).await;
    assert!(
        matches!(&answer, ReserveAnswer::Refused(Refusal::LimitDecreasing { key: limit, .. })
            if *limit == key("slots")),
        "{answer:?}"
    );
    assert_eq!(driver.usage("slots").await.capacity, 3);
    driver.complete(leases[0], &[]).await;
    harness.advance_ms(2_000).await;
    assert_eq!(driver.status("slots").await, Some(LimitStatus::Active));
    assert_eq!((driver.usage("slots").await.capacity, driver.reserved("slots").await), (1, 1));
    driver.deny(&[("slots", 1)]).await;
    driver.complete(leases[1], &[]).await;
    // The refusal left no trace, so the same lease may try again.
    let answer = driver.reserve(lease, &[("slots", 1)]).await;
    assert!(matches!(answer, ReserveAnswer::Allowed { .. }), "{answer:?}");
}

/// A limit in use is deleted when its last lease ends.
pub async fn a_limit_in_use_is_deleted_when_it_is_free(harness: &impl Harness) {
    let driver = Driver(harness);
    driver.put("slots", SLOTS, 3).await;
    let lease = driver.admit(&[("slots", 1)]).await;
    let change = driver.delete("slots").await.expect("a limit that can be deleted");
    assert_eq!(change.status, LimitStatus::Decreasing { to: 0 });
    assert!(driver.complete(lease, &[]).await.reconciled);
    harness.advance_ms(2_000).await;
    assert_eq!(driver.status("slots").await, None);
}

/// The kind of a limit cannot be changed.
pub async fn a_limit_keeps_its_kind(harness: &impl Harness) {
    let driver = Driver(harness);
    driver.put("slots", SLOTS, 3).await;
    let other = definition("slots", Kind::Rolling { window_seconds: 1 }, 3);
    assert_eq!(driver.try_put(other, None).await, Err(LimitError::KindDiffers));
    assert_eq!(driver.status("slots").await, Some(LimitStatus::Active));
}

/// Two operators cannot overwrite each other.
pub async fn a_change_for_another_revision_is_refused(harness: &impl Harness) {
    let driver = Driver(harness);
    let rpm = |capacity| definition("rpm", MINUTE, capacity);
    assert_eq!(driver.try_put(rpm(1), Some(1)).await, Err(LimitError::RevisionDiffers { revision: 0 }));
    assert_eq!(driver.try_put(rpm(1), Some(0)).await.map(|change| change.revision), Ok(1));
    assert_eq!(driver.try_put(rpm(2), Some(1)).await.map(|change| change.revision), Ok(2));
    assert_eq!(driver.try_put(rpm(3), Some(1)).await, Err(LimitError::RevisionDiffers { revision: 2 }));
    assert_eq!(driver.usage("rpm").await.capacity, 2);
}

/// A namespace gets no limits beyond its quota, and those that it has go on.
pub async fn a_namespace_gets_no_limits_beyond_its_quota(harness: &impl Harness) {
    let (driver, backend) = (Driver(harness), harness.backend());
    driver.put("rpm", MINUTE, 10).await;
    let set = async |limits| {
        let command = SetQuotas { namespace: namespace(), quotas: [(QuotaKind::Limits, limits)].into() };
        backend.set_quotas(Principal::System, command).await.expect("quotas that can be set");
    };
    let put = async |name| {
        let definition = definition(name, MINUTE, 5);
        let request = PutLimitRequest { namespace: namespace(), definition, expected_revision: None };
        backend.put_limit(Principal::System, request).await.map(|change| change.revision)
    };
    set(1).await;
    assert_eq!(put("tpm").await, Err(LimitError::QuotaExceeded(QuotaKind::Limits)));
    assert_eq!(put("rpm").await, Ok(2));
    driver.admit(&[("rpm", 1)]).await;
    let quotas = backend.quotas(namespace()).await.expect("a backend that answers").expect("a namespace");
    let limits = quotas.iter().find(|usage| usage.kind == QuotaKind::Limits).expect("a quota of limits");
    assert_eq!((limits.quota, limits.used), (1, 1));
    set(2).await;
    assert_eq!(put("tpm").await, Ok(3));
}
