//! Extensions of leases.

use serde_json::{Value, json};

use crate::support::TestServer;

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
