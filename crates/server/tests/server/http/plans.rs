//! Plans over HTTP.

use serde_json::{Value, json};

use crate::support::{START_MS, TestServer};

const HOUR_MS: u64 = 60 * 60 * 1_000;

fn body(sequence: u64, operations: Value) -> Value {
    json!({
        "namespace": "default", "vault": "main", "client_id": "billing", "sequence": sequence, "operations": operations,
    })
}

fn hourly(carry_over: Value) -> Value {
    json!({"asset": "usd", "amount": "100", "period": "hour", "carry_over": carry_over})
}

#[tokio::test]
async fn a_plan_issues_each_period_once_and_is_shown_changed_and_removed() {
    let server = TestServer::open().await;
    let write = async |sequence, operations| server.ok("POST", "/v1/write", &body(sequence, operations)).await;
    let accounts = async || server.ok("GET", "/v1/vaults/main/accounts?prefix=acme", &Value::Null).await;
    write(1, json!([{"open_account": {"account": "acme", "overdraft": "deny", "plan": hourly(json!("none"))}}])).await;
    let shown = accounts().await["accounts"][0].clone();
    assert_eq!(shown["balances"][0]["available"], "100");
    let next = shown["plan"]["next_at_unix_ms"].as_u64().unwrap();
    assert!(next > START_MS && next - START_MS <= HOUR_MS && next.is_multiple_of(HOUR_MS), "{next}");
    let expected = json!({
        "asset": "usd", "amount": "100", "period": "hour", "utc_offset_minutes": 0, "carry_over": "none",
        "next_at_unix_ms": next,
    });
    assert_eq!(shown["plan"], expected);
    // The next period: the rest of the last one expires.
    write(2, json!([{"retire": {"account": "acme", "asset": "usd", "amount": "30"}}])).await;
    server.clock.advance_ms(next - START_MS);
    write(3, json!([{"set_plan": {"account": "acme", "plan": hourly(json!({"max": "50"}))}}])).await;
    assert_eq!(accounts().await["accounts"][0]["balances"][0]["available"], "100");
    assert_eq!(accounts().await["accounts"][0]["plan"]["carry_over"], json!({"max": "50"}));
    // From now on up to 50 of the rest is kept.
    server.clock.advance_ms(HOUR_MS);
    write(4, json!([{"set_plan": {"account": "acme", "plan": null}}])).await;
    let shown = accounts().await["accounts"][0].clone();
    assert_eq!((&shown["balances"][0]["available"], shown.get("plan")), (&json!("150"), None));
    let entries = server.ok("GET", "/v1/vaults/main/accounts/acme/entries", &Value::Null).await;
    let issued: Vec<&Value> = entries["entries"].as_array().unwrap().iter().filter(|it| it["kind"] == "plan").collect();
    assert_eq!(issued.len(), 3);
    assert_eq!((&issued[2]["carried"], &issued[2]["actor"]), (&json!("50"), &json!("system:earmark")));
    let audit = server.ok("GET", "/v1/vaults/main/audit", &Value::Null).await;
    let totals = json!({"asset": "usd", "issued": "300", "retired": "30", "expired": "120", "live": "150"});
    assert_eq!(audit, json!({"balanced": true, "assets": [totals]}));
}

#[tokio::test]
async fn a_wrong_plan_is_explained_by_field_and_changes_nothing() {
    let server = TestServer::open().await;
    for (field, value, message) in [
        ("amount", json!("0"), "plan.amount: found \"0\", allowed are integers from 1"),
        ("period", json!("year"), "plan.period: found \"year\", allowed are hour, day, week and month"),
        ("utc_offset_minutes", json!(841), "plan.utc_offset_minutes: found 841, allowed are integers from -720 to 840"),
        ("carry_over", json!({"max": "0"}), "plan.carry_over.max: found \"0\", allowed are integers from 1"),
        ("carry_over", json!("all"), "plan.carry_over: found \"all\""),
        ("asset", json!("USD"), "plan.asset: found 'U' at byte 0"),
        ("price", json!(1), "plan"),
    ] {
        let mut plan = hourly(json!("none"));
        plan[field] = value.clone();
        let open = json!([{"open_account": {"account": "acme", "overdraft": "deny", "plan": plan}}]);
        let answer = server.ask("POST", "/v1/write", &body(1, open).to_string()).await;
        let found = answer.problem(400, "invalid_request");
        assert!(found.contains(message), "{field} {value}: {found}");
    }
    let unknown = json!([{"set_plan": {"account": "acme", "plan": hourly(json!("none"))}}]);
    let answer = server.ask("POST", "/v1/write", &body(1, unknown).to_string()).await;
    assert_eq!((answer.status, &answer.json()["error"]["code"]), (404, &json!("ACCOUNT_NOT_FOUND")));
}
