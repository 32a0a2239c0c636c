//! Processes on one Book with different placements.

use std::sync::Arc;

use earmark_admission::{
    Amount, Backend, BookCredits, BookLimits, Clock, CompleteRequest, Composed, Limits, LimitsReserve, LocalBook,
    LocalOptions, PlacementError, PutLimitRequest, ReserveRequest, SystemClock,
};
use earmark_core::{Definition, ExternalParts, ExternalSetup, Kind, LeaseId, Principal};

use super::support::counter::{key, namespace};

fn lease(number: u128) -> LeaseId {
    LeaseId::from_parts(SystemClock::new().now().wall, number)
}

fn one_slot() -> Vec<Amount> {
    vec![Amount { key: key("slots"), amount: 1 }]
}

fn slots() -> Definition {
    Definition::new(key("slots"), Kind::Concurrency { timeout_seconds: 60 }, 3)
}

/// The answers of a process about `slots`, one word each.
async fn asked(backend: &dyn Backend, lease: LeaseId) -> Vec<String> {
    let (namespace, requirements) = (namespace(), one_slot());
    let request =
        ReserveRequest { namespace: namespace.clone(), lease, job: None, call: None, by_gateway: false, requirements };
    let complete = CompleteRequest {
        namespace: namespace.clone(),
        lease,
        job: None,
        claim: earmark_core::LeaseClaim::default(),
        actuals: Vec::new(),
        labels: earmark_core::SettleLabels::NONE,
    };
    vec![
        format!("{:?}", backend.reserve(Principal::System, vec![request]).await.remove(0)),
        format!("{:?}", backend.complete(Principal::System, vec![complete]).await.remove(0)),
        format!("{:?}", backend.usage(namespace.clone(), key("slots")).await),
        format!("{:?}", backend.lease(namespace, lease).await),
        format!("{:?}", backend.ready()),
    ]
}

/// A node checked the placement at its start only. A node without `--ledger` kept enforcing limits in the Book after
/// another node was started with it; a node without `--credits` allowed calls without charging them.
#[tokio::test]
async fn who_was_started_otherwise_than_the_rest_decides_nothing_any_more() {
    let registry = LocalBook::open(LocalOptions::default()).await.unwrap();
    let composed = |external| {
        let limits = Arc::new(BookLimits::new(registry.clone()));
        let credits = Arc::new(BookCredits::new(registry.clone()));
        Composed::new(registry.clone(), limits, credits, external)
    };
    let alone = registry.with_placement(ExternalParts::default());
    alone.record_placement(ExternalParts::default()).await.unwrap();
    let (of, definition) = (namespace(), slots());
    let request = PutLimitRequest { namespace: of, definition, expected_revision: None };
    alone.put_limit(Principal::System, request).await.unwrap();
    for answer in asked(&alone, lease(1)).await {
        assert!(answer.starts_with("Ok("), "{answer}");
    }
    let first = composed(ExternalParts { limits: false, credit: true });
    first.start().await.unwrap();
    for answer in asked(&alone, lease(2)).await {
        assert!(answer.contains("a database keeps the credit of this server: name it with --credits"), "{answer}");
    }
    for answer in asked(&first, lease(3)).await {
        assert!(answer.starts_with("Ok("), "{answer}");
    }
    composed(ExternalParts { limits: true, credit: true }).start().await.unwrap();
    for backend in [&alone as &dyn Backend, &first] {
        for answer in asked(backend, lease(4)).await {
            assert!(
                answer.contains("TigerBeetle enforces the limits of this server: name its cluster with --ledger"),
                "{answer}"
            );
        }
    }
    // The Book itself refuses a process that has not checked.
    let unaware = BookLimits::new(registry.clone());
    let (namespace, requirements) = (namespace(), one_slot());
    let request = LimitsReserve { namespace, lease: lease(5), job: None, call: None, by_gateway: false, requirements };
    let answer = unaware.reserve(vec![request]).await.remove(0);
    assert_eq!(answer, Err(PlacementError::LimitsExternal.into()));
}

#[tokio::test]
async fn who_names_another_ledger_than_the_first_is_refused_and_told_which_it_is() {
    let registry = LocalBook::open(LocalOptions::default()).await.unwrap();
    let on = |ledger| ExternalSetup { parts: ExternalParts { limits: true, credit: false }, ledger };
    // A process without a cluster id leaves it open.
    registry.record_placement(on(None)).await.unwrap();
    for _ in 0..2 {
        registry.record_placement(on(Some(7))).await.unwrap();
        registry.record_placement(on(None)).await.unwrap();
    }
    let error = PlacementError::OtherLedger { found: 7, named: 8 };
    assert_eq!(registry.record_placement(on(Some(8))).await, Err(error));
    let other = registry.with_placement(on(Some(8)));
    for answer in asked(&other, lease(1)).await {
        assert!(
            answer.contains("cluster 7 enforces the limits of this server, but --ledger names cluster 8"),
            "{answer}"
        );
    }
    assert_eq!(registry.with_placement(on(Some(7))).ready(), Ok(()));
}
