//! Extensions of leases.

use serde_json::{Value, json};

use crate::support::{START_MS, TestServer};

#[tokio::test]
async fn a_malformed_extension_is_refused_by_field_and_changes_nothing() {
    let server = TestServer::open().await;
    server.put_concurrency("slots", 2, 60).await;
    let lease = server.lease();
    server.reserve(&lease, &[("slots", 1)]).await;
    let many: Vec<Value> = (0..33).map(|number| json!({"key": format!("k{number}"), "amount": 1})).collect();
    let twice = json!([{"key": "slots", "amount": 1}, {"key": "slots", "amount": 1}]);
    let qualified =
        json!([{"key": "slots", "actual_amount": 1}, {"key": "slots", "actual_amount": 1, "namespace": "default"}]);
    let numbers = "allowed are integers from 1 to 10000";
    for (field, value, message) in [
        ("extension", json!(0), format!("extension: found 0, {numbers}")),
        ("extension", json!(10_001), format!("extension: found 10001, {numbers}")),
        ("extension", json!("1"), format!("extension: found \"1\", {numbers}")),
        ("extension", Value::Null, format!("extension: found null, {numbers}")),
        ("add", json!(many), "add: found 33 items, allowed are 0 to 32".into()),
        ("add", twice, "add[1].key: found \"slots\" as in item 0, allowed is each key once".into()),
        (
            "add",
            json!([{"key": "slots", "amount": 0}]),
            "add[0].amount: found 0, allowed are integers from 1 to".into(),
        ),
        ("add", json!([{"key": "slots"}]), "add[0].amount is required".into()),
        ("add", json!({}), "add: found {}, allowed is a list".into()),
        ("used", qualified, "used[1].key: found \"slots\" as in item 0, allowed is each key once".into()),
        ("used", json!([{"key": "slots", "amount": 1}]), "used[0].amount: found an unknown field".into()),
        ("renew", json!("yes"), "renew: found \"yes\", allowed are true and false".into()),
        ("lease_id", json!("x"), "lease_id: ".into()),
        (
            "job_id",
            json!("j"),
            "job_id: found an unknown field, allowed are lease_id, extension, add, used, renew".into(),
        ),
    ] {
        let mut body = json!({"lease_id": lease, "extension": 1});
        body[field] = value;
        let found = server.ask("POST", "/v1/extend", &body.to_string()).await.problem(400, "invalid_request");
        assert!(found.starts_with(&message), "{found}");
        let batch = json!({"requests": [{"lease_id": lease, "extension": 1}, body]}).to_string();
        let found = server.ask("POST", "/v1/extend/batch", &batch).await.problem(400, "invalid_request");
        assert!(found.starts_with(&format!("requests[1].{message}")), "{found}");
    }
    let missing = json!({"lease_id": lease}).to_string();
    let found = server.ask("POST", "/v1/extend", &missing).await.problem(400, "invalid_request");
    assert_eq!(found, "extension is required");
    assert_eq!(server.reserved("slots").await, 1);
}

async fn extend(server: &TestServer, lease: &str, extension: u32, more: &Value) -> Value {
    let mut body = json!({"lease_id": lease, "extension": extension});
    for (name, value) in more.as_object().unwrap() {
        body[name] = value.clone();
    }
    server.ok("POST", "/v1/extend", &body).await
}

fn extended(ends_at: u64) -> Value {
    json!({"allowed": true, "retry_after_ms": 0, "error": "", "ends_at_unix_ms": ends_at})
}

fn add(key: &str, amount: u64) -> Value {
    json!({"add": [{"key": key, "amount": amount}]})
}

fn used(key: &str, amount: u64) -> Value {
    json!({"used": [{"key": key, "actual_amount": amount}]})
}

/// Asserts a refusal, and returns its message.
fn refused(answer: &Value, error: &str) -> String {
    assert_eq!((&answer["allowed"], &answer["error"]), (&json!(false), &json!(error)), "{answer}");
    assert_eq!(answer["ends_at_unix_ms"], 0, "{answer}");
    answer["message"].as_str().unwrap_or_default().to_owned()
}

#[tokio::test]
async fn an_extension_takes_more_and_moves_the_end_all_or_nothing() {
    let server = TestServer::open().await;
    server.put_rolling("tokens", 10, 3_600).await;
    server.put_concurrency("slots", 2, 60).await;
    let lease = server.lease();
    server.reserve(&lease, &[("tokens", 4), ("slots", 1)]).await;
    server.clock.advance_ms(40_000);
    let answer = extend(&server, &lease, 1, &add("tokens", 3)).await;
    assert_eq!(answer, extended(START_MS + 100_000));
    assert_eq!((server.reserved("tokens").await, server.reserved("slots").await), (7, 1));
    // Its first end has passed, and the slot is still its own.
    server.clock.advance_ms(30_000);
    assert_eq!(server.reserved("slots").await, 1);
    assert_eq!(extend(&server, &lease, 1, &add("tokens", 3)).await, answer, "the same answer, nothing twice");
    assert_eq!(server.reserved("tokens").await, 7);

    let both = json!({"add": [{"key": "tokens", "amount": 4}, {"key": "slots", "amount": 1}]});
    let denied = extend(&server, &lease, 2, &both).await;
    refused(&denied, "");
    assert_eq!(denied["limited_by"], json!(["tokens"]));
    assert!(denied["retry_after_ms"].as_u64().unwrap() > 0);
    assert_eq!(server.reserved("slots").await, 1, "all or nothing");
    let never = extend(&server, &lease, 3, &add("slots", 3)).await;
    refused(&never, "exceeds_capacity:slots");
    assert_eq!((&never["never"], &never["retry_after_ms"]), (&json!(true), &json!(60_000)));
    let stays = extend(&server, &lease, 4, &json!({"renew": false})).await;
    assert_eq!(stays, extended(START_MS + 100_000), "a denial and an extension without renewal move no end");
    assert_eq!(extend(&server, &lease, 5, &json!({})).await, extended(START_MS + 130_000));

    let view = server.ok("GET", &format!("/v1/leases/{lease}"), &Value::Null).await["lease"].clone();
    assert_eq!((&view["extensions"], &view["ends_at_unix_ms"]), (&json!(5), &json!(START_MS + 130_000)), "{view}");
    assert_eq!(view["requirements"], json!([{"key": "slots", "amount": 1}, {"key": "tokens", "amount": 7}]));
    assert_eq!(server.complete(&lease, &[("tokens", 5)]).await["reconciled"], true);
    assert_eq!((server.reserved("tokens").await, server.reserved("slots").await), (5, 0));
    for (outcome, count) in [("allowed", 4.0), ("denied", 2.0)] {
        assert_eq!(server.metric(&format!("earmark_extensions_total{{outcome=\"{outcome}\"}}")).await, count);
    }
}

#[tokio::test]
async fn a_number_out_of_order_or_with_another_body_changes_nothing() {
    let server = TestServer::open().await;
    server.put_concurrency("slots", 9, 60).await;
    let lease = server.lease();
    server.reserve(&lease, &[("slots", 1)]).await;
    for number in [1, 2] {
        assert_eq!(extend(&server, &lease, number, &add("slots", 1)).await["allowed"], true);
    }
    for (number, more, says) in [
        (1, add("slots", 1), "expected 3"),
        (1, add("slots", 2), "expected 3"),
        (2, add("slots", 2), "another body"),
        (2, json!({}), "another body"),
        (2, json!({"add": [{"key": "slots", "amount": 1}], "renew": false}), "another body"),
        (4, add("slots", 1), "expected 3"),
        (10_000, json!({}), "expected 3"),
    ] {
        let message = refused(&extend(&server, &lease, number, &more).await, "invalid_request");
        assert!(message.starts_with("extension: ") && message.contains(says), "{number}: {message}");
    }
    assert_eq!(server.reserved("slots").await, 3);
    assert_eq!(extend(&server, &lease, 3, &json!({})).await["allowed"], true);
}

#[tokio::test]
async fn a_lease_that_is_not_alive_cannot_be_extended() {
    let server = TestServer::open().await;
    server.put_concurrency("slots", 1, 60).await;
    let (held, denied, unknown) = (server.lease(), server.lease(), server.lease());
    server.reserve(&held, &[("slots", 1)]).await;
    server.reserve(&denied, &[("slots", 1)]).await;
    let is_expired = async |lease: &str, number: u32| {
        let message = refused(&extend(&server, lease, number, &json!({})).await, "lease_expired");
        assert!(message.starts_with("lease_id: the lease was never allowed"), "{message}");
    };
    is_expired(&denied, 1).await;
    is_expired(&unknown, 1).await;
    assert_eq!(extend(&server, &held, 1, &json!({})).await["allowed"], true);
    server.complete(&held, &[]).await;
    is_expired(&held, 1).await;
    is_expired(&held, 2).await;
    let ran_out = server.lease();
    server.reserve(&ran_out, &[("slots", 1)]).await;
    extend(&server, &ran_out, 1, &json!({})).await;
    server.clock.advance_ms(60_000);
    is_expired(&ran_out, 1).await;
    is_expired(&ran_out, 2).await;
    assert_eq!(server.reserved("slots").await, 0);
}

#[tokio::test]
async fn a_refusal_by_name_leaves_the_number_free() {
    let server = TestServer::open().await;
    server.put_concurrency("slots", 9, 60).await;
    server.put_rolling("tokens", 9, 60).await;
    let many: Vec<String> = (0..32).map(|number| format!("k{number}")).collect();
    for key in &many {
        server.put_rolling(key, 9, 60).await;
    }
    let lease = server.lease();
    server.reserve(&lease, &[("slots", 1)]).await;
    refused(&extend(&server, &lease, 1, &add("nothing", 1)).await, "unknown_limit_key:nothing");
    server.ok("POST", "/v1/admin/limits/tokens/pause", &json!({"for_ms": 1_000})).await;
    let paused = extend(&server, &lease, 1, &add("tokens", 1)).await;
    refused(&paused, "limit_paused:tokens");
    assert_eq!((&paused["limited_by"], &paused["retry_after_ms"]), (&json!(["tokens"]), &json!(1_000)));
    let many: Vec<Value> = many.iter().map(|key| json!({"key": key, "amount": 1})).collect();
    let message = refused(&extend(&server, &lease, 1, &json!({"add": many})).await, "invalid_request");
    assert_eq!(message, "add: the lease would have 33 limits, allowed are up to 32");
    assert_eq!(server.reserved("k0").await, 0);
    assert_eq!(extend(&server, &lease, 1, &json!({"add": many[1..]})).await["allowed"], true);
    assert_eq!(server.reserved("k1").await, 1);
    assert_eq!(server.metric("earmark_extensions_total{outcome=\"limit_paused\"}").await, 1.0);
}

#[tokio::test]
async fn reported_usage_is_a_floor_and_the_answers_say_so() {
    let server = TestServer::open().await;
    server.put_concurrency("slots", 9, 60).await;
    server.put_rolling("tokens", 20, 60).await;
    let lease = server.lease();
    server.reserve(&lease, &[("slots", 1), ("tokens", 10)]).await;
    assert_eq!(extend(&server, &lease, 1, &used("tokens", 6)).await.get("message"), None);
    let other = extend(&server, &lease, 2, &used("other", 6)).await;
    assert_eq!(other["allowed"], true);
    assert_eq!(other["message"], "ignored, since the lease had not reserved them: other");
    let above = extend(&server, &lease, 3, &used("tokens", 12)).await;
    assert_eq!(above["allowed"], true);
    assert_eq!(above["message"], "used exceeds the reservation of tokens; settled as overage");
    extend(&server, &lease, 4, &used("tokens", 3)).await;
    let view = server.ok("GET", &format!("/v1/leases/{lease}"), &Value::Null).await["lease"].clone();
    assert_eq!(view["used"], json!([{"key": "tokens", "actual_amount": 12}]), "the largest report counts");
    let done = server.complete(&lease, &[("tokens", 1)]).await;
    assert_eq!(done["reconciled"], true);
    assert!(done["message"].as_str().unwrap().contains("tokens"), "{done}");
    assert_eq!(server.reserved("tokens").await, 12);
}

/// A caller that died mid-call got its inference for free, because its hold was released in full.
#[tokio::test]
async fn a_lease_that_runs_out_pays_what_it_reported_and_the_metrics_say_what_became_of_its_credit() {
    let server = TestServer::open().await;
    let operations = json!([
        {"open_account": {"account": "acme", "overdraft": "deny"}},
        {"issue": {"account": "acme", "asset": "usd", "amount": "1000"}},
    ]);
    let write =
        json!({"namespace": "default", "vault": "main", "client_id": "c", "sequence": 1, "operations": operations});
    server.ok("POST", "/v1/write", &write).await;
    for (key, on_timeout) in [("usd", "release"), ("all", "charge")] {
        let limit = json!({"key": key, "kind": "credit", "timeout_seconds": 60, "vault": "main", "account": "acme",
                           "asset": "usd", "on_timeout": on_timeout});
        server.ok("PUT", "/v1/admin/limits", &limit).await;
    }
    // The first request for metrics installs the recorder.
    server.ask("GET", "/metrics", "").await;
    let (reported, silent, charged) = (server.lease(), server.lease(), server.lease());
    for (lease, key) in [(&reported, "usd"), (&silent, "usd"), (&charged, "all")] {
        assert_eq!(server.reserve(lease, &[(key, 100)]).await["allowed"], true);
    }
    let answer = extend(&server, &reported, 1, &used("usd", 30)).await;
    assert_eq!(answer, extended(START_MS + 60_000));
    server.clock.advance_ms(60_000);
    for (credit, count) in [("used", 1.0), ("returned", 1.0), ("charged", 1.0)] {
        server.until(&format!("earmark_expired_holds_total{{credit=\"{credit}\"}}"), count).await;
    }
    assert_eq!(server.metric("earmark_live_leases").await, 0.0);
    let balances = server.ok("GET", "/v1/vaults/main/accounts/acme/balances", &Value::Null).await;
    assert_eq!((&balances["balances"][0]["available"], &balances["balances"][0]["held"]), (&json!("870"), &json!("0")));
    let entries = server.ok("GET", "/v1/vaults/main/accounts/acme/entries", &Value::Null).await;
    let settled: Vec<(&Value, &Value, &Value)> = entries["entries"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|entry| entry["kind"] == "settle")
        .map(|entry| (&entry["lease_id"], &entry["paid"], &entry["reason"]))
        .collect();
    let timeout = json!("timeout");
    assert_eq!(settled.len(), 2, "{entries}");
    for (lease, paid) in [(&reported, "30"), (&charged, "100")] {
        assert!(settled.contains(&(&json!(lease), &json!(paid), &timeout)), "{entries}");
    }
    assert_eq!(server.complete(&reported, &[("usd", 45)]).await["reconciled"], true);
    let balances = server.ok("GET", "/v1/vaults/main/accounts/acme/balances", &Value::Null).await;
    assert_eq!(balances["balances"][0]["available"], "855", "a late complete charges only what exceeds the payment");
}
