//! Metrics.

use serde_json::{Value, json};

use crate::support::{TestServer, Wire};

#[tokio::test]
async fn what_happens_is_counted() {
    let server = TestServer::open().await;
    server.put_rolling("rpm", 2, 60).await;
    server.put_concurrency("slots", 1, 60).await;
    let lease = server.lease();
    server.reserve(&lease, &[("rpm", 1), ("slots", 1)]).await;
    server.reserve(&server.lease(), &[("rpm", 2), ("slots", 1)]).await;
    server.reserve(&server.lease(), &[("nope", 1)]).await;
    server.complete(&lease, &[("rpm", 5)]).await;
    server.complete(&server.lease(), &[]).await;
    server.ask("GET", "/nope", "").await;
    for path in ["/v1/reserve", "/v1/reserve/batch", "/v1/extend", "/v1/complete", "/v1/complete/batch"] {
        server.ask("POST", path, "{}").await.problem(400, "invalid_request");
    }
    for (name, value) in [
        ("earmark_reserves_total{outcome=\"allowed\"}", 1.0),
        ("earmark_reserves_total{outcome=\"denied\"}", 1.0),
        ("earmark_reserves_total{outcome=\"unknown_limit_key\"}", 1.0),
        ("earmark_reserves_total{outcome=\"invalid_request\"}", 2.0),
        ("earmark_extensions_total{outcome=\"invalid_request\"}", 1.0),
        ("earmark_completes_total{outcome=\"invalid_request\"}", 2.0),
        ("earmark_denials_total{namespace=\"default\",key=\"rpm\",reason=\"capacity\"}", 1.0),
        ("earmark_denials_total{namespace=\"default\",key=\"slots\",reason=\"capacity\"}", 1.0),
        ("earmark_completes_total{outcome=\"reconciled\"}", 1.0),
        ("earmark_completes_total{outcome=\"unknown\"}", 1.0),
        ("earmark_overage_total{how=\"debt\"}", 4.0),
        ("earmark_overage_total{how=\"reserved\"}", 0.0),
        ("earmark_http_requests_total{route=\"reserve\",status=\"200\"}", 3.0),
        ("earmark_http_requests_total{route=\"unmatched\",status=\"404\"}", 1.0),
        ("earmark_http_request_seconds_count{route=\"reserve\"}", 4.0),
        ("earmark_http_request_seconds_bucket{route=\"reserve\",le=\"+Inf\"}", 4.0),
        ("earmark_limits", 2.0),
        ("earmark_decreasing_limits", 0.0),
        ("earmark_debt", 4.0),
        ("earmark_live_leases", 0.0),
        ("earmark_remembered_leases", 3.0),
        ("earmark_queue_depth", 0.0),
    ] {
        assert_eq!(server.metric(name).await, value, "{name}");
    }
}

#[tokio::test]
async fn a_busy_template_never_hides_the_series_of_a_defined_limit() {
    let server = TestServer::open().await;
    server.put_rolling("gpt-4o:rpm", 40, 60).await;
    let template = json!({"key": "user:{user}:rpm", "kind": "rolling", "capacity": 1, "window_seconds": 60});
    server.ok("PUT", "/v1/admin/templates", &template).await;
    for user in 0..20 {
        let key = format!("user:{user}:rpm");
        assert_eq!(server.reserve(&server.lease(), &[("gpt-4o:rpm", 1), (&key, 1)]).await["allowed"], true);
        assert_eq!(server.reserve(&server.lease(), &[("gpt-4o:rpm", 1), (&key, 1)]).await["allowed"], false);
    }
    server.reserve(&server.lease(), &[("gpt-4o:rpm", 30)]).await;
    let text = server.ask("GET", "/metrics", "").await.text;
    let mut labels: Vec<&str> = text.lines().filter(|line| line.contains("namespace=\"default\",key=")).collect();
    labels.sort_unstable();
    assert_eq!(
        labels,
        [
            "earmark_denials_total{namespace=\"default\",key=\"gpt-4o:rpm\",reason=\"capacity\"} 1",
            "earmark_denials_total{namespace=\"default\",key=\"user:{user}:rpm\",reason=\"capacity\"} 20",
            "earmark_limit_capacity{namespace=\"default\",key=\"gpt-4o:rpm\",kind=\"rolling\"} 40",
            "earmark_limit_fullness{namespace=\"default\",key=\"gpt-4o:rpm\",kind=\"rolling\"} 0.5",
        ]
    );
}

#[tokio::test]
async fn leases_that_run_out_are_counted() {
    let server = TestServer::open().await;
    server.put_concurrency("slots", 2, 60).await;
    let done = server.lease();
    for lease in [&server.lease(), &done] {
        assert_eq!(server.reserve(lease, &[("slots", 1)]).await["allowed"], true);
    }
    server.complete(&done, &[]).await;
    for (wait_ms, expired) in [(0, 0.0), (61_000, 1.0), (61_000, 1.0)] {
        server.clock.advance_ms(wait_ms);
        // A read of the decision log looks for leases that ran out first.
        server.ok("GET", "/v1/decisions", &Value::Null).await;
        assert_eq!(server.metric("earmark_expired_leases_total").await, expired);
    }
}

#[tokio::test]
async fn writes_are_counted_by_code_and_by_status() {
    let server = TestServer::open().await;
    let write = async |sequence: u64, operations: Value| {
        let body = json!({
            "namespace": "default", "vault": "main", "client_id": "c", "sequence": sequence,
            "operations": operations,
        });
        server.ask("POST", "/v1/write", &body.to_string()).await.status
    };
    let retire = json!([{"retire": {"account": "revenue", "asset": "usd", "amount": 1}}]);
    assert_eq!(write(1, json!([])).await, 200);
    assert_eq!(write(1, json!([])).await, 200);
    assert_eq!(write(9, json!([])).await, 409);
    assert_eq!(write(2, retire).await, 402);
    assert_eq!(write(0, json!([])).await, 400);
    for (name, value) in [
        ("earmark_writes_total{code=\"success\"}", 2.0),
        ("earmark_writes_total{code=\"SEQUENCE_GAP\"}", 1.0),
        ("earmark_writes_total{code=\"INSUFFICIENT_CREDIT\"}", 1.0),
        ("earmark_writes_total{code=\"INVALID\"}", 1.0),
        ("earmark_writes_total{code=\"UNAVAILABLE\"}", 0.0),
        ("earmark_http_requests_total{route=\"write\",status=\"402\"}", 1.0),
        ("earmark_http_requests_total{route=\"write\",status=\"409\"}", 1.0),
    ] {
        assert_eq!(server.metric(name).await, value, "{name}");
    }
}

#[tokio::test]
async fn batch_sizes_are_shown_besides_what_the_server_counts_itself() {
    let server = TestServer::open().await;
    let lease = server.lease();
    server.reserve(&lease, &[("nope", 1)]).await;
    // A backend opened before the first server of the process has no recorder.
    let second = TestServer::open().await;
    second.reserve(&lease, &[("nope", 1)]).await;
    let answer = second.ask("GET", "/metrics", "").await;
    assert_eq!(answer.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    assert!(answer.text.contains("# TYPE earmark_batch_size histogram\n"), "{}", answer.text);
    assert!(answer.text.contains("earmark_batch_size_bucket{le=\"1\"} "), "{}", answer.text);
}

#[tokio::test]
async fn open_connections_are_shown() {
    let server = TestServer::open().await;
    let mut wires = Vec::new();
    for _ in 0..5 {
        let mut wire = Wire::to(server.address).await;
        wire.ask("GET", "/healthz", "").await;
        wires.push(wire);
    }
    // Five, and the connection of this request.
    server.until("earmark_connections", 6.0).await;
    drop(wires);
    server.until("earmark_connections", 1.0).await;
}

#[tokio::test]
async fn every_answer_carries_the_id_of_its_request() {
    let server = TestServer::open().await;
    let mut wire = Wire::to(server.address).await;
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(wire.ask("GET", "/nope", "").await.header("x-request-id").unwrap().to_owned());
    }
    ids.dedup();
    assert_eq!(ids.len(), 3);
    for (id, is_kept) in [("mine-1", true), ("a b", false), (&"x".repeat(129), false)] {
        wire.send(&format!("GET /healthz HTTP/1.1\r\nhost: localhost\r\nx-request-id: {id}\r\n\r\n")).await;
        let answer = wire.answer().await;
        assert_eq!(answer.header("x-request-id") == Some(id), is_kept, "{id}");
    }
}

#[tokio::test]
async fn a_server_that_lives_and_can_serve_says_so() {
    let server = TestServer::open().await;
    assert_eq!(server.ok("GET", "/healthz", &Value::Null).await["status"], "ok");
    assert_eq!(server.ok("GET", "/readyz", &Value::Null).await["status"], "ready");
}
