//! Which requests go to which part, and in which batches.

use std::sync::Arc;

use earmark_admission::{
    Amount, Backend, BookCredits, BookLimits, CompleteRequest, Composed, LocalBook, LocalOptions, PlacementError,
    ReserveAnswer, ReserveRequest,
};
use earmark_core::{ExternalParts, Kind, LimitStatus, Principal, QuotaKind, SetQuotas};

use super::support::counter::{key, namespace};
use super::support::flaky::Step;
use super::support::{Pair, credit_elsewhere, limits_elsewhere};

fn request(pair: &Pair, number: u128, parts: &[(&str, u64)]) -> ReserveRequest {
    let requirements = parts.iter().map(|(name, amount)| Amount { key: key(name), amount: *amount }).collect();
    ReserveRequest {
        namespace: namespace(),
        lease: pair.lease(number),
        job: None,
        call: None,
        by_gateway: false,
        requirements,
    }
}

#[tokio::test]
async fn a_batch_stays_a_batch_for_each_part() {
    for pair in [limits_elsewhere().await, credit_elsewhere().await] {
        pair.furnish().await;
        let requests = vec![
            request(&pair, 1, &[("rpm", 1), ("usd", 30)]),
            request(&pair, 2, &[("rpm", 1)]),
            request(&pair, 3, &[("usd", 101)]),
            request(&pair, 4, &[("rpm", 99), ("usd", 1)]),
            request(&pair, 5, &[("usd", 1)]),
            request(&pair, 6, &[("rpm", 98), ("usd", 1)]),
        ];
        let answers = pair.backend.reserve(Principal::System, requests.clone()).await;
        let allowed: Vec<bool> =
            answers.iter().map(|answer| matches!(answer, Ok(ReserveAnswer::Allowed { .. }))).collect();
        assert_eq!(allowed, [true, true, false, false, true, false]);
        let calls = [Step::Reserve, Step::Hold, Step::Release].map(|step| pair.faults.calls(step));
        assert_eq!(calls, [1, 1, 1]);
        let completes = requests.into_iter().map(|request| {
            let ReserveRequest { namespace, lease, .. } = request;
            CompleteRequest {
                namespace,
                lease,
                job: None,
                claim: earmark_core::LeaseClaim::default(),
                actuals: Vec::new(),
                labels: earmark_core::SettleLabels::NONE,
            }
        });
        let answers = pair.backend.complete(Principal::System, completes.collect()).await;
        let reconciled: Vec<bool> =
            answers.into_iter().map(|answer| answer.is_ok_and(|answer| answer.reconciled)).collect();
        assert_eq!(reconciled, [true, true, false, false, true, false]);
        // This process does not know who owns a lease that the limits denied. The limits judge it first, and credit follows in one
        // further batch.
        assert_eq!([Step::Complete, Step::Settle].map(|step| pair.faults.calls(step)), [1, 2]);
        let sums = pair.sums().await;
        assert_eq!((sums.rpm, sums.usd, sums.held, sums.paid), (2, 69, 0, 31));
    }
}

/// A quota that nothing counts could be set, and was shown as if it were in force.
#[tokio::test]
async fn a_quota_of_what_another_system_keeps_is_refused_by_name_and_not_shown() {
    let unenforced = [QuotaKind::DerivedLimits, QuotaKind::Leases];
    for (pair, unenforced) in [(limits_elsewhere().await, &unenforced[..]), (credit_elsewhere().await, &[])] {
        for kind in QuotaKind::ALL {
            let quotas = [(QuotaKind::Vaults, 7), (kind, 7)].into();
            let command = SetQuotas { namespace: namespace(), quotas };
            match pair.backend.set_quotas(Principal::System, command).await {
                Ok(()) => assert!(!unenforced.contains(&kind), "{kind}"),
                Err(error) => {
                    assert!(unenforced.contains(&kind), "{error}");
                    let start = format!("{kind}: this quota is not enforced, because limits are enforced");
                    assert!(error.to_string().starts_with(&start), "{error}");
                }
            }
        }
        let shown = pair.backend.quotas(namespace()).await.unwrap().unwrap();
        let gauges = pair.backend.quota_gauges().await;
        for usages in [&shown, &gauges[0].1] {
            let kinds: Vec<QuotaKind> = usages.iter().map(|usage| usage.kind).collect();
            assert!(kinds.iter().eq(QuotaKind::ALL.iter().filter(|kind| !unenforced.contains(kind))), "{kinds:?}");
        }
    }
}

#[tokio::test]
async fn a_lease_that_asks_for_no_credit_asks_nobody_about_it() {
    for mut pair in [limits_elsewhere().await, credit_elsewhere().await] {
        pair.furnish().await;
        let lease = pair.lease(1);
        pair.reserve(lease, &[("rpm", 1)]).await.unwrap().unwrap();
        let answer = pair.complete(lease, &[("rpm", 1), ("usd", 5), ("eur", 1)]).await.unwrap().unwrap();
        assert!(answer.reconciled);
        let message = "ignored, since the lease had not reserved them: usd, eur";
        assert_eq!(answer.message.as_deref(), Some(message));
        assert_eq!([Step::Hold, Step::Settle].map(|step| pair.faults.calls(step)), [0, 0]);
        // A new process has to ask.
        pair.start_again();
        assert!(pair.complete(lease, &[("usd", 5)]).await.unwrap().unwrap().reconciled);
        assert_eq!(pair.faults.calls(Step::Settle), 1);
    }
}

#[tokio::test]
async fn keys_that_were_ignored_are_named_in_the_order_of_the_request_whoever_ignored_them() {
    for pair in [limits_elsewhere().await, credit_elsewhere().await] {
        pair.furnish().await;
        let lease = pair.lease(1);
        pair.reserve(lease, &[("rpm", 1), ("usd", 5)]).await.unwrap().unwrap();
        let actuals = [("nothing", 1), ("slots", 1), ("usd", 2), ("more", 3), ("rpm", 1)];
        let answer = pair.complete(lease, &actuals).await.unwrap().unwrap();
        let message = "ignored, since the lease had not reserved them: nothing, slots, more";
        assert_eq!(answer.message.as_deref(), Some(message));
        assert_eq!(answer.ignored, [key("nothing"), key("slots"), key("more")]);
        assert_eq!(answer.credit_paid, 2);
    }
}

#[tokio::test]
async fn a_limit_that_is_deleted_while_it_is_held_goes_from_the_registry_when_it_is_gone_elsewhere() {
    let mut pair = limits_elsewhere().await;
    pair.furnish().await;
    let lease = pair.lease(1);
    pair.reserve(lease, &[("slots", 1)]).await.unwrap().unwrap();
    pair.delete("slots").await;
    let of_registry = async |pair: &Pair| {
        let limit = Backend::limit(pair.registry(), namespace(), key("slots")).await.unwrap();
        limit.map(|limit| limit.status)
    };
    // The next process or leader still finds it.
    pair.start_again();
    assert_eq!(of_registry(&pair).await, Some(LimitStatus::Decreasing { to: 0 }));
    assert!(pair.backend.usage(namespace(), key("slots")).await.unwrap().is_some());
    pair.complete(lease, &[]).await.unwrap().unwrap();
    assert_eq!(pair.backend.usage(namespace(), key("slots")).await, Ok(None));
    assert_eq!(of_registry(&pair).await, None);
    // With another kind, it is another limit.
    pair.put("slots", Kind::Rolling { window_seconds: 60 }, 3).await;
    pair.reserve(pair.lease(2), &[("slots", 3)]).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_deleted_limit_that_nobody_asks_for_is_dropped_all_the_same() {
    let pair = limits_elsewhere().await;
    pair.furnish().await;
    let lease = pair.lease(1);
    pair.reserve(lease, &[("slots", 1)]).await.unwrap().unwrap();
    pair.delete("slots").await;
    pair.complete(lease, &[]).await.unwrap().unwrap();
    let start = std::time::Instant::now();
    while Backend::limit(pair.registry(), namespace(), key("slots")).await.unwrap().is_some() {
        assert!(start.elapsed() < std::time::Duration::from_secs(10), "it is still there");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn a_registry_of_other_parts_is_refused_and_nothing_is_served_from_it() {
    let registry = LocalBook::open(LocalOptions::default()).await.unwrap();
    let composed = |external| {
        let limits = Arc::new(BookLimits::new(registry.clone()));
        let credits = Arc::new(BookCredits::new(registry.clone()));
        Composed::new(registry.clone(), limits, credits, external)
    };
    let both = composed(ExternalParts { limits: true, credit: true });
    assert!(both.ready().unwrap_err().contains("is not recorded yet"));
    both.start().await.unwrap();
    assert_eq!(both.ready(), Ok(()));
    for (external, flag) in [
        (ExternalParts { limits: true, credit: false }, "--credits"),
        (ExternalParts { limits: false, credit: true }, "--ledger"),
    ] {
        let error = composed(external).start().await.unwrap_err().to_string();
        assert!(error.contains(flag), "{error}");
    }
    assert_eq!(registry.external(), ExternalParts { limits: true, credit: true });
    let error = registry.record_placement(ExternalParts::default()).await.unwrap_err();
    assert_eq!(error, PlacementError::LimitsExternal);
}

/// Moving credit to SQL must fail while the Book has credit, which would be lost.
#[tokio::test]
async fn a_book_that_has_credit_does_not_leave_it_to_others() {
    let pair = limits_elsewhere().await;
    pair.furnish().await;
    let error = pair.registry().record_placement(ExternalParts { limits: true, credit: true }).await.unwrap_err();
    assert_eq!(error, PlacementError::CreditInBook);
}
