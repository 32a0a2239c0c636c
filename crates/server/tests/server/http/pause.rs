//! Pauses, calendar limits and limits that only count, over HTTP.

use serde_json::{Value, json};

use crate::support::TestServer;

#[tokio::test]
async fn a_paused_limit_refuses_by_name_with_the_rest_of_the_pause_until_it_is_resumed() {
    let server = TestServer::open().await;
    server.put_concurrency("slots", 10, 60).await;
    let path = "/v1/admin/limits/slots/pause";
    let paused = server.ok("POST", path, &json!({"for_ms": 60_000, "reason": "429"})).await;
    let until = paused["paused_until_unix_ms"].as_u64().unwrap();
    assert_eq!(paused, json!({"ok": true, "paused_until_unix_ms": until}));
    let lease = server.lease();
    let answer = server.reserve(&lease, &[("slots", 1)]).await;
    assert_eq!((&answer["allowed"], &answer["error"]), (&json!(false), &json!("limit_paused:slots")));
    assert_eq!(answer["limited_by"], json!(["slots"]));
    assert!((1..=60_000).contains(&answer["retry_after_ms"].as_u64().unwrap()), "{answer}");
    let info = server.ok("GET", "/v1/admin/limits/slots", &Value::Null).await;
    assert_eq!(info["limit"]["paused_until_unix_ms"], until);
    assert_eq!(info["limit"]["pause_reason"], "429");
    assert_eq!(server.usage("slots").await["paused_until_unix_ms"], until);
    assert_eq!(server.metric("earmark_paused_limits").await, 1.0);
    let resumed = server.ok("POST", path, &json!({"for_ms": 0})).await;
    assert_eq!(resumed, json!({"ok": true, "paused_until_unix_ms": 0}));
    assert_eq!(server.reserve(&lease, &[("slots", 1)]).await["allowed"], true);
    let changes = server.ok("GET", "/v1/audit", &Value::Null).await;
    assert_eq!(changes["entries"][0]["summary"], "resume_limit slots");
    assert_eq!((&changes["entries"][1]["kind"], &changes["entries"][1]["reason"]), (&json!("pause"), &json!("429")));
}

#[tokio::test]
async fn a_pause_is_refused_by_field() {
    let server = TestServer::open().await;
    server.put_concurrency("slots", 10, 60).await;
    for (body, message) in [
        (r#"{"for_ms":3600001}"#.to_owned(), "for_ms: found 3600001, allowed are integers from 0 to 3600000"),
        (r#"{"for_ms":-1}"#.to_owned(), "for_ms: found -1, allowed are integers from 0 to 3600000"),
        ("{}".to_owned(), "for_ms is required"),
        (format!(r#"{{"for_ms":1,"reason":"{}"}}"#, "r".repeat(257)), "reason: found 257 bytes, allowed are up to 256"),
        (r#"{"for_ms":1,"until":2}"#.to_owned(), "until: found an unknown field, allowed are for_ms, reason"),
    ] {
        let answer = server.ask("POST", "/v1/admin/limits/slots/pause", &body).await;
        assert_eq!(answer.problem(400, "invalid_request"), message);
    }
    server.ask("POST", "/v1/admin/limits/nothing/pause", r#"{"for_ms":1}"#).await.problem(404, "not_found");
}

#[tokio::test]
async fn a_limit_that_is_not_enforced_is_named_and_a_retry_repeats_it() {
    let server = TestServer::open().await;
    let shadow = json!({"key": "day", "kind": "calendar", "capacity": 1, "period": "day", "enforce": false});
    server.ok("PUT", "/v1/admin/limits", &shadow).await;
    let lease = server.lease();
    for _ in 0..2 {
        let answer = server.reserve(&lease, &[("day", 5)]).await;
        assert_eq!((&answer["allowed"], &answer["would_deny"]), (&json!(true), &json!(["day"])));
    }
    let usage = server.usage("day").await;
    assert_eq!((&usage["capacity"], &usage["reserved"], &usage["available"]), (&json!(1), &json!(5), &json!(0)));
    let line = r#"earmark_would_deny_total{namespace="default",key="day"}"#;
    assert_eq!(server.metric(line).await, 2.0);
    let without = json!({"key": "x", "kind": "calendar", "capacity": 1}).to_string();
    let answer = server.ask("PUT", "/v1/admin/limits", &without).await;
    assert_eq!(answer.problem(400, "invalid_request"), "period is required for a calendar limit");
}
