//! Writes with idempotency keys over HTTP.

use earmark_core::KEY_RESULTS_MS;
use serde_json::{Value, json};

use crate::support::{Answer, TestServer, Wire};

fn body(operations: Value) -> Value {
    json!({"namespace": "default", "vault": "main", "operations": operations})
}

fn keyed(key: &str, operations: Value) -> Value {
    let mut body = body(operations);
    body["idempotency_key"] = json!(key);
    body
}

fn open(name: &str) -> Value {
    json!([{"open_account": {"account": name, "overdraft": "deny"}}])
}

fn issue(amount: &str) -> Value {
    json!([{"issue": {"account": "acme", "asset": "usd", "amount": amount}}])
}

/// Sends a write with a header `Idempotency-Key`.
async fn with_header(server: &TestServer, key: &str, body: &Value) -> Answer {
    let text = body.to_string();
    let mut client = Wire::to(server.address).await;
    let head = format!("POST /v1/write HTTP/1.1\r\nhost: localhost\r\nidempotency-key: {key}\r\n");
    client.send(&format!("{head}content-length: {}\r\n\r\n{text}", text.len())).await;
    client.answer().await
}

async fn write(server: &TestServer, body: &Value) -> Answer {
    server.ask("POST", "/v1/write", &body.to_string()).await
}

#[tokio::test]
async fn a_webhook_delivered_again_after_25_hours_has_one_effect() {
    let server = TestServer::open().await;
    assert_eq!(write(&server, &keyed("evt_0", open("acme"))).await.status, 200);
    let paid = keyed("evt_1", issue("5"));
    let first = write(&server, &paid).await;
    assert_eq!(first.status, 200, "{first:?}");
    assert!(first.json()["success"].get("sequence").is_none(), "{first:?}");
    assert_eq!(write(&server, &paid).await.json(), first.json());
    assert_eq!(with_header(&server, "\"evt_1\"", &body(issue("5"))).await.json(), first.json());
    assert_eq!(with_header(&server, "evt_1", &paid).await.json(), first.json());
    server.clock.advance_ms(KEY_RESULTS_MS + 60 * 60 * 1_000);
    let late = write(&server, &paid).await;
    assert_eq!((late.status, &late.json()["error"]["code"]), (409, &json!("ALREADY_COMMITTED")));
    let balances = server.ok("GET", "/v1/vaults/main/accounts/acme/balances", &Value::Null).await;
    assert_eq!(balances["balances"][0]["available"], "5");
    let entries = server.ok("GET", "/v1/vaults/main/accounts/acme/entries", &Value::Null).await;
    assert_eq!(entries["entries"][0]["idempotency_key"], "evt_1");
    let changes = server.ok("GET", "/v1/audit", &Value::Null).await;
    assert_eq!(changes["entries"][0]["idempotency_key"], "evt_1");
}

#[tokio::test]
async fn a_key_with_other_content_is_refused_and_a_batch_has_a_key_too() {
    let server = TestServer::open().await;
    assert_eq!(write(&server, &keyed("evt_1", open("acme"))).await.status, 200);
    let other = write(&server, &keyed("evt_1", open("bob"))).await;
    assert_eq!((other.status, &other.json()["error"]["code"]), (409, &json!("KEY_REUSED")));
    assert!(other.json()["error"].get("last_committed_sequence").is_none());
    let batch = json!({"namespace": "default", "vault": "main", "idempotency_key": "evt_2",
        "writes": [{"operations": open("bob")}, {"operations": open("eve")}]});
    let first = server.ok("POST", "/v1/write/batch", &batch).await;
    assert_eq!(server.ok("POST", "/v1/write/batch", &batch).await, first);
    server.ok("PUT", "/v1/admin/quotas/default", &json!({"idempotency_keys": 2})).await;
    let full = write(&server, &keyed("evt_3", json!([]))).await;
    assert_eq!((full.status, &full.json()["error"]["code"]), (409, &json!("TOO_MANY_KEYS")));
    let quotas = server.ok("GET", "/v1/admin/quotas/default", &Value::Null).await;
    assert_eq!(quotas["quotas"]["idempotency_keys"], json!({"quota": 2, "used": 2}));
}

#[tokio::test]
async fn a_malformed_identity_is_named_and_changes_nothing() {
    let server = TestServer::open().await;
    let mixed = |field: &str, value: Value| {
        let mut body = keyed("evt_1", json!([]));
        body[field] = value;
        body
    };
    for (body, message) in [
        (body(json!([])), "client_id is required"),
        (mixed("client_id", json!("billing")), "client_id: not allowed with idempotency_key"),
        (mixed("sequence", json!(1)), "sequence: not allowed with idempotency_key"),
        (keyed("", json!([])), "idempotency_key: found"),
        (keyed("a b", json!([])), "idempotency_key: found"),
        (keyed(&"k".repeat(256), json!([])), "idempotency_key: found"),
    ] {
        let answer = write(&server, &body).await;
        let text = answer.json().to_string();
        assert_eq!(answer.status, 400, "{body}: {text}");
        assert!(text.contains(message), "{body}: {text}");
    }
    let differs = with_header(&server, "evt_2", &keyed("evt_1", json!([]))).await;
    assert_eq!(differs.status, 400);
    assert!(differs.json().to_string().contains("differs from the header Idempotency-Key"));
    let used = server.ok("GET", "/v1/admin/quotas/default", &Value::Null).await;
    assert_eq!(used["quotas"]["idempotency_keys"]["used"], 0);
}
