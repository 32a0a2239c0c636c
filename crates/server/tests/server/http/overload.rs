//! Overload and failing backends.

use std::sync::Arc;
use std::time::Duration;

use earmark_admission::{BackendError, LocalBook, LocalOptions, ManualClock};
use earmark_server::ServerOptions;
use serde_json::{Value, json};

use crate::support::{Broken, Gate, START_MS, TestServer, complete, reserve};

#[tokio::test]
async fn a_full_queue_refuses_reserves_at_once_and_still_takes_completes() {
    let server = TestServer::with(|local, _| local.queue_max = 4).await;
    server.put_concurrency("slots", 100, 60).await;
    let leases: Vec<String> = (0..5).map(|_| server.lease()).collect();
    let batch = |of: fn(&str, &[(&str, u64)]) -> Value| {
        let requests: Vec<Value> = leases.iter().map(|lease| of(lease, &[("slots", 1)])).collect();
        json!({"requests": requests})
    };
    let reserves = server.ok("POST", "/v1/reserve/batch", &batch(reserve)).await;
    for result in reserves["results"].as_array().unwrap() {
        assert_eq!((&result["allowed"], &result["error"]), (&json!(false), &json!("overloaded")));
        assert!(result["retry_after_ms"].as_u64().unwrap() > 0);
    }
    assert_eq!(server.reserved("slots").await, 0);
    let completes = server.ok("POST", "/v1/complete/batch", &batch(complete)).await;
    for result in completes["results"].as_array().unwrap() {
        assert_eq!(result["ok"], true);
    }
    assert_eq!(server.metric("earmark_reserves_total{outcome=\"overloaded\"}").await, 5.0);
}

#[tokio::test]
async fn a_single_request_that_is_refused_or_fails_says_so_by_its_status_in_its_usual_shape() {
    for (error, status, code) in [
        (BackendError::Overloaded("the queue is full"), 503, "overloaded"),
        (BackendError::Failed("the ledger broke".into()), 500, "backend_error"),
    ] {
        let server = TestServer::on(ManualClock::at(START_MS), Arc::new(Broken(error)), TestServer::options()).await;
        let answer = server.ask("POST", "/v1/reserve", &reserve(&server.lease(), &[("a", 1)]).to_string()).await;
        let message = answer.problem(status, code);
        assert!(message.ends_with("; retry with the same lease"), "{message}");
        let expected = json!({
            "allowed": false, "retry_after_ms": 100, "reserved_at_unix_ms": 0, "error": code, "message": message,
        });
        assert_eq!(answer.json(), expected);

        let answer = server.ask("POST", "/v1/complete", &complete(&server.lease(), &[]).to_string()).await;
        let message = answer.problem(status, code);
        assert!(message.ends_with("; retry with the same lease"), "{message}");
        let expected = json!({"ok": false, "error": code, "message": message, "reconciled": false});
        assert_eq!(answer.json(), expected);

        let batch = json!({"requests": [reserve(&server.lease(), &[("a", 1)])]});
        let results = server.ok("POST", "/v1/reserve/batch", &batch).await;
        assert_eq!(results["results"][0]["error"], code);
        // A read has no lease to retry with.
        let message = server.ask("GET", "/v1/admin/limits", "").await.problem(status, code);
        assert!(!message.contains("lease"), "{message}");
        server.ask("GET", "/readyz", "").await.problem(503, "not_ready");
        assert_eq!(server.ask("GET", "/healthz", "").await.status, 200);
    }
}

async fn slow(request_timeout: Duration) -> (TestServer, Arc<Gate>) {
    let clock = ManualClock::at(START_MS);
    let local = LocalOptions { clock: Arc::<ManualClock>::clone(&clock), ..LocalOptions::default() };
    let gate = Arc::new(Gate::before(LocalBook::open(local).await.unwrap()));
    let options = ServerOptions { request_timeout, ..TestServer::options() };
    (TestServer::on(clock, Arc::<Gate>::clone(&gate), options).await, gate)
}

#[tokio::test]
async fn a_backend_that_does_not_answer_in_time_leaves_the_outcome_unknown_and_a_retry_tells_it() {
    let (server, gate) = slow(Duration::from_millis(500)).await;
    server.put_rolling("a", 5, 60).await;
    let body = reserve(&server.lease(), &[("a", 1)]);
    let answer = server.ask("POST", "/v1/reserve", &body.to_string()).await;
    let message = answer.problem(500, "backend_error");
    assert!(message.starts_with("no answer within 500ms; the outcome is unknown"), "{message}");
    gate.gate.add_permits(1);
    assert_eq!(server.ok("POST", "/v1/reserve", &body).await["allowed"], true);
    assert_eq!(server.reserved("a").await, 1);
}

#[tokio::test]
async fn a_change_of_a_limit_that_nobody_waits_for_any_longer_is_still_made() {
    let (server, gate) = slow(Duration::from_millis(500)).await;
    let closed = gate.changes.acquire().await.unwrap();
    let limit = json!({"key": "a", "kind": "rolling", "capacity": 1, "window_seconds": 60}).to_string();
    server.ask("PUT", "/v1/admin/limits", &limit).await.problem(500, "backend_error");
    assert_eq!(server.metric("earmark_limits").await, 0.0);
    drop(closed);
    server.until("earmark_limits", 1.0).await;
}
