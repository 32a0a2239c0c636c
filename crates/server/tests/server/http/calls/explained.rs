//! An explanation says what the call would get, whatever is in the way of it.

use serde_json::{Value, json};

use super::{call, put_policy};
use crate::support::TestServer;

/// Limits and accounts in every state.
async fn prepare(server: &TestServer) {
    let write = |sequence: u64, operations: Value| json!({"namespace": "default", "vault": "main", "client_id": "c", "sequence": sequence, "operations": operations});
    let open = |account: &str, overdraft: Value| json!({"open_account": {"account": account, "overdraft": overdraft}});
    let opened = json!([
        open("owing", json!("allow")), open("capped", json!({"limit": "50"})), open("frozen", json!("deny")),
        open("closed", json!("deny")), open("shared", json!("deny")),
        {"issue": {"account": "frozen", "asset": "usd", "amount": "1000"}},
        {"issue": {"account": "shared", "asset": "usd", "amount": "100"}},
        {"freeze_account": {"account": "frozen"}}, {"close_account": {"account": "closed"}},
    ]);
    server.ok("POST", "/v1/write", &write(1, opened)).await;
    for (key, account) in [
        ("owing", "owing"),
        ("capped", "capped"),
        ("frozen", "frozen"),
        ("closed", "closed"),
        ("shared:a", "shared"),
        ("shared:b", "shared"),
        ("missing:a", "nobody"),
        ("missing:b", "nobody"),
    ] {
        let limit = json!({"key": key, "kind": "credit", "timeout_seconds": 60, "vault": "main", "account": account,
            "asset": "usd"});
        server.ok("PUT", "/v1/admin/limits", &limit).await;
    }
    for (key, capacity) in [("full", 5), ("paused", 5), ("shrinking", 50)] {
        server.put_rolling(key, capacity, 60).await;
    }
    server.put_concurrency("slots", 1, 60).await;
    let shadow = json!({"key": "shadow", "kind": "rolling", "capacity": 3, "window_seconds": 60, "enforce": false});
    server.ok("PUT", "/v1/admin/limits", &shadow).await;
    server.reserve(&server.lease(), &[("full", 3), ("slots", 1), ("shrinking", 40)]).await;
    server.put_rolling("shrinking", 10, 60).await;
    server.ok("POST", "/v1/admin/limits/paused/pause", &json!({"for_ms": 60_000})).await;
}

/// An explanation once judged limits one by one: it said that an account with an overdraft had too little credit, and
/// named a full limit where the call named an unknown one.
#[tokio::test]
async fn an_explanation_has_the_answer_of_the_call_whatever_is_in_the_way() {
    let server = TestServer::open().await;
    prepare(&server).await;
    for (needs, error) in [
        ("owing=500", None),
        ("capped=50", None),
        ("capped=51", Some("insufficient_credit:capped")),
        ("frozen=5", Some("insufficient_credit:frozen")),
        ("closed=1", Some("insufficient_credit:closed")),
        ("shared:b=60 shared:a=60", Some("insufficient_credit:shared:a")),
        ("shared:b=60 shared:a=40", None),
        ("missing:b=1 missing:a=1", Some("account_not_found:missing:a")),
        ("frozen=1 missing:a=1", Some("account_not_found:missing:a")),
        ("full=3 missing:a=1", Some("account_not_found:missing:a")),
        ("full=3 unknown=1", Some("unknown_limit_key:unknown")),
        ("unknown:b=1 unknown:a=1", Some("unknown_limit_key:unknown:a")),
        ("full=9 paused=1", Some("limit_paused:paused")),
        ("full=3 shrinking=1", Some("limit_decreasing:shrinking")),
        ("shrinking=1 paused=1", Some("limit_paused:paused")),
        ("missing:a=1 paused=1", Some("limit_paused:paused")),
        ("full=3", Some("")),
        ("slots=1 full=6", Some("exceeds_capacity:full")),
        ("frozen=1 full=3", Some("")),
        ("shadow=9", None),
        ("shadow=9 full=6", Some("exceeds_capacity:full")),
    ] {
        let limit = |need: &str| {
            let (key, amount) = need.split_once('=').unwrap();
            format!("{{ key = \"{key}\", amount = {amount} }}")
        };
        let limits: Vec<String> = needs.split_whitespace().map(limit).collect();
        put_policy(&server, &format!("[[rules]]\nname = \"a\"\nlimits = [ {} ]\n", limits.join(", "))).await;
        let asked = json!({"attributes": {}, "input_tokens_max": 0, "output_tokens_max": 0});
        let explained = server.ok("POST", "/v1/calls/explain", &asked).await;
        let lease = server.lease();
        let made = server.ok("POST", "/v1/calls", &call(&lease, "", 0, 0)).await;
        let seen = |answer: &Value| ["allowed", "error", "message"].map(|name| answer[name].clone());
        assert_eq!(seen(&explained), seen(&made), "{needs}: {explained}");
        assert_eq!(
            (&made["allowed"], &made["error"]),
            (&json!(error.is_none()), &json!(error.unwrap_or(""))),
            "{needs}"
        );
        if error.is_none() {
            let ended = json!({"lease_id": lease, "attributes": {}, "outcome": "refused"});
            server.ok("POST", "/v1/calls/complete", &ended).await;
        }
    }
}
