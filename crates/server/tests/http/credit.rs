//! Limits of kind `credit` over HTTP: what they are, and what their leases hold and pay.

use serde_json::{Value, json};

use crate::support::Desk;

/// A desk whose account `acme` has so many usd, with a limit `acme:usd` on it that holds for a minute.
async fn desk(amount: u64) -> Desk {
    let desk = Desk::open().await;
    let operations = json!([
        {"open_account": {"account": "acme", "overdraft": "deny"}},
        {"issue": {"account": "acme", "asset": "usd", "amount": amount}},
    ]);
    write(&desk, 1, operations).await;
    desk.ok("PUT", "/v1/admin/limits", &limit()).await;
    desk
}

fn limit() -> Value {
    json!({
        "key": "acme:usd", "kind": "credit", "timeout_seconds": 60, "vault": "main", "account": "acme",
        "asset": "usd", "revenue": "revenue", "unit": "cents", "description": "prepaid", "overage": "debt",
    })
}

async fn write(desk: &Desk, sequence: u64, operations: Value) -> Value {
    let body = json!({
        "namespace": "default", "vault": "main", "client_id": "billing", "sequence": sequence,
        "operations": operations,
    });
    desk.ok("POST", "/v1/write", &body).await
}

#[tokio::test]
async fn a_credit_limit_is_given_back_as_it_was_put() {
    let desk = Desk::open().await;
    assert_eq!(desk.ok("PUT", "/v1/admin/limits", &limit()).await, json!({"ok": true, "status": "active"}));
    let info = json!({"definition": limit(), "status": "active", "pending_decrease_to": null, "revision": 1});
    let found = desk.ok("GET", "/v1/admin/limits/acme:usd", &Value::Null).await;
    assert_eq!(found, json!({"limit": info}));
    assert_eq!(desk.ok("GET", "/v1/admin/limits", &Value::Null).await, json!({"limits": [info]}));
    let mut by_write = limit();
    by_write["key"] = json!("by:write");
    let body = json!({
        "namespace": "default", "client_id": "ops", "sequence": 1,
        "operations": [{"put_limit": {"definition": by_write}}],
    });
    desk.ok("POST", "/v1/write", &body).await;
    let found = desk.ok("GET", "/v1/admin/limits/by:write", &Value::Null).await;
    assert_eq!(found["limit"]["definition"], by_write);
}

#[tokio::test]
async fn what_has_a_default_need_not_be_put() {
    let desk = Desk::open().await;
    let short = json!({
        "key": "u", "kind": "credit", "timeout_seconds": 1, "vault": "main", "account": "a", "asset": "usd",
    });
    desk.ok("PUT", "/v1/admin/limits", &short).await;
    let found = desk.ok("GET", "/v1/admin/limits/u", &Value::Null).await;
    let definition = &found["limit"]["definition"];
    assert_eq!((&definition["revenue"], &definition["overage"]), (&json!("revenue"), &json!("debt")));
    assert_eq!((definition.get("capacity"), definition.get("window_seconds")), (None, None));
}

#[tokio::test]
async fn the_usage_of_a_credit_limit_is_what_its_account_has_holds_and_owes() {
    let desk = desk(1_000).await;
    let usage = async || {
        let usage = desk.usage("acme:usd").await;
        ["capacity", "reserved", "available", "debt"].map(|field| usage[field].as_u64().unwrap())
    };
    assert_eq!(usage().await, [1_000, 0, 1_000, 0]);
    let lease = desk.lease();
    assert_eq!(desk.reserve(&lease, &[("acme:usd", 300)]).await["allowed"], true);
    assert_eq!(usage().await, [1_000, 300, 700, 0]);
    write(&desk, 2, json!([{"freeze_account": {"account": "acme"}}])).await;
    assert_eq!(usage().await, [300, 300, 0, 0]);
    write(&desk, 3, json!([{"unfreeze_account": {"account": "acme"}}])).await;
    desk.complete(&lease, &[("acme:usd", 1_200)]).await;
    assert_eq!(usage().await, [0, 0, 0, 200]);
    let most = json!([{"issue": {"account": "acme", "asset": "usd", "amount": i128::MAX.to_string()}}]);
    let body =
        json!({"namespace": "default", "vault": "main", "client_id": "b", "sequence": 1, "operations": most});
    assert_eq!(desk.ask("POST", "/v1/write", &body.to_string()).await.status, 400);
    write(
        &desk,
        4,
        json!([{"issue": {"account": "acme", "asset": "usd", "amount": "99999999999999999999"}}]),
    )
    .await;
    assert_eq!(usage().await, [u64::MAX, 0, u64::MAX, 0]);
    let mut unknown = limit();
    (unknown["key"], unknown["vault"]) = (json!("u"), json!("nowhere"));
    desk.ok("PUT", "/v1/admin/limits", &unknown).await;
    assert_eq!(desk.usage("u").await["available"], 0);
}
