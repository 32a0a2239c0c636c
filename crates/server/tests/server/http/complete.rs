//! Complete: repeated, late, without usage, with overage.

use serde_json::json;

use crate::support::TestServer;

fn reconciled() -> serde_json::Value {
    json!({"ok": true, "error": "", "reconciled": true})
}

#[tokio::test]
async fn a_complete_frees_concurrency_and_what_was_not_used() {
    let server = TestServer::open().await;
    server.put_rolling("tpm", 100, 60).await;
    server.put_concurrency("slots", 1, 60).await;
    let lease = server.lease();
    server.reserve(&lease, &[("tpm", 100), ("slots", 1)]).await;
    assert_eq!(server.complete(&lease, &[("tpm", 30)]).await, reconciled());
    assert_eq!((server.reserved("tpm").await, server.reserved("slots").await), (30, 0));
}

#[tokio::test]
async fn completing_twice_changes_nothing_the_second_time() {
    let server = TestServer::open().await;
    server.put_rolling("tpm", 100, 60).await;
    let lease = server.lease();
    server.reserve(&lease, &[("tpm", 50)]).await;
    server.complete(&lease, &[("tpm", 30)]).await;
    for actual in [30, 0, 100] {
        let again = server.complete(&lease, &[("tpm", actual)]).await;
        assert_eq!((&again["ok"], &again["reconciled"]), (&json!(true), &json!(true)));
        assert_eq!(server.reserved("tpm").await, 30);
    }
}

#[tokio::test]
async fn completing_after_expiry_still_settles() {
    let server = TestServer::open().await;
    server.put_concurrency("slots", 1, 10).await;
    server.put_rolling("tpm", 100, 60).await;
    let lease = server.lease();
    server.reserve(&lease, &[("slots", 1), ("tpm", 50)]).await;
    server.clock.advance_ms(10_000);
    assert_eq!(server.complete(&lease, &[("tpm", 20)]).await["reconciled"], true);
    assert_eq!((server.reserved("slots").await, server.reserved("tpm").await), (0, 20));
}

#[tokio::test]
async fn completing_an_unknown_lease_is_ok_and_stops_a_reserve_that_comes_late() {
    let server = TestServer::open().await;
    server.put_concurrency("slots", 1, 60).await;
    let lease = server.lease();
    let answer = server.complete(&lease, &[("slots", 1)]).await;
    assert_eq!((&answer["ok"], &answer["reconciled"]), (&json!(true), &json!(false)));
    assert_eq!(server.reserve(&lease, &[("slots", 1)]).await["error"], "lease_expired");
    assert_eq!(server.reserved("slots").await, 0);
}

#[tokio::test]
async fn keys_that_were_not_reserved_are_ignored_with_a_message() {
    let server = TestServer::open().await;
    server.put_rolling("tpm", 100, 60).await;
    server.put_rolling("rpm", 100, 60).await;
    let lease = server.lease();
    server.reserve(&lease, &[("tpm", 50)]).await;
    let answer = server.complete(&lease, &[("tpm", 20), ("rpm", 9), ("unheard:of", 1)]).await;
    assert_eq!((&answer["ok"], &answer["reconciled"]), (&json!(true), &json!(true)));
    let message = answer["message"].as_str().unwrap();
    assert!(message.contains("rpm"), "{message}");
    assert!(message.contains("unheard:of"), "{message}");
    assert_eq!((server.reserved("tpm").await, server.reserved("rpm").await), (20, 0));
}

#[tokio::test]
async fn an_actual_above_the_capacity_becomes_debt_or_is_only_counted() {
    let server = TestServer::open().await;
    server.put_rolling("debt", 10, 60).await;
    let deny = json!({"key": "deny", "kind": "rolling", "capacity": 10, "window_seconds": 60, "overage": "deny"});
    server.ok("PUT", "/v1/admin/limits", &deny).await;
    let lease = server.lease();
    server.reserve(&lease, &[("debt", 10), ("deny", 10)]).await;
    assert_eq!(server.complete(&lease, &[("debt", u64::MAX), ("deny", 25)]).await["reconciled"], true);
    assert_eq!(server.usage("debt").await["debt"], u64::MAX - 10);
    assert_eq!(server.usage("deny").await["debt"], 0);
    assert_eq!((server.reserved("debt").await, server.reserved("deny").await), (10, 10));
    assert_eq!(server.metric("earmark_overage_total{how=\"dropped\"}").await, 15.0);
}

#[tokio::test]
async fn empty_actuals_leave_rolling_reservations_as_they_are() {
    let server = TestServer::open().await;
    server.put_rolling("tpm", 100, 60).await;
    server.put_concurrency("slots", 1, 60).await;
    let lease = server.lease();
    server.reserve(&lease, &[("tpm", 50), ("slots", 1)]).await;
    assert_eq!(server.complete(&lease, &[]).await, reconciled());
    assert_eq!((server.reserved("tpm").await, server.reserved("slots").await), (50, 0));
}

#[tokio::test]
async fn an_actual_of_nothing_frees_everything() {
    let server = TestServer::open().await;
    server.put_rolling("tpm", 100, 60).await;
    let lease = server.lease();
    server.reserve(&lease, &[("tpm", 50)]).await;
    server.complete(&lease, &[("tpm", 0)]).await;
    assert_eq!(server.reserved("tpm").await, 0);
}

#[tokio::test]
async fn a_batch_of_completes_answers_each_on_its_own_and_in_order() {
    let server = TestServer::open().await;
    server.put_concurrency("slots", 2, 60).await;
    let leases = [server.lease(), server.lease()];
    server.reserve(&leases[1], &[("slots", 1)]).await;
    let requests: Vec<_> = leases.iter().map(|lease| crate::support::complete(lease, &[])).collect();
    let answer = server.ok("POST", "/v1/complete/batch", &json!({"requests": requests})).await;
    assert_eq!(answer["results"][0]["reconciled"], false);
    assert_eq!(answer["results"][1], reconciled());
}
