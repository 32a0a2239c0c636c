//! `GET /v1/top`: the heaviest limits.

use earmark_core::Role;
use serde_json::{Value, json};

use crate::support::{KeyedServer, TestServer, reserve};

async fn top(server: &TestServer, query: &str) -> Value {
    server.ok("GET", &format!("/v1/top?{query}"), &Value::Null).await["top"].clone()
}

fn limit(key: &str, amount: u64) -> Value {
    json!({"key": key, "amount": amount, "error": 0})
}

#[tokio::test]
async fn what_was_taken_denied_and_owed_is_counted_by_limit() {
    let server = TestServer::open().await;
    for key in ["a:rpm", "a:tpm", "b:rpm"] {
        server.put_rolling(key, 100, 60).await;
    }
    let lease = server.lease();
    server.reserve(&lease, &[("a:rpm", 5), ("a:tpm", 90)]).await;
    server.reserve(&server.lease(), &[("b:rpm", 7)]).await;
    let add = json!([{"key": "b:rpm", "amount": 1}]);
    server.ok("POST", "/v1/extend", &json!({"lease_id": lease, "extension": 1, "add": add})).await;
    for _ in 0..3 {
        server.reserve(&server.lease(), &[("a:tpm", 50), ("a:rpm", 1)]).await;
    }
    server.reserve(&server.lease(), &[("nope", 1)]).await;
    server.complete(&lease, &[("a:tpm", 400)]).await;
    for within in ["", "within=1m", "within=5m", "within=1h"] {
        let taken = json!([limit("a:tpm", 90), limit("b:rpm", 8), limit("a:rpm", 5)]);
        assert_eq!(top(&server, within).await, taken);
        assert_eq!(top(&server, &format!("of=denied&{within}")).await, json!([limit("a:tpm", 3)]));
        assert_eq!(top(&server, &format!("of=debt&{within}")).await, json!([limit("a:tpm", 310)]));
    }
    assert_eq!(top(&server, "prefix=b").await, json!([limit("b:rpm", 8)]));
    for (query, message) in [
        ("of=all", "of: found \"all\", allowed are taken, denied, debt"),
        ("within=1d", "within: found \"1d\", allowed are 1m, 5m, 1h"),
        ("prefix=%20", "prefix: "),
    ] {
        let answer = server.ask("GET", &format!("/v1/top?{query}"), "").await;
        assert!(answer.problem(400, "invalid_request").starts_with(message), "{answer:?}");
    }
}

#[tokio::test]
async fn the_owner_of_a_shared_limit_sees_what_others_took_and_they_see_its_key_only() {
    let keyed = KeyedServer::open().await;
    let shared = json!({"key": "gpt:rpm", "kind": "rolling", "capacity": 9, "window_seconds": 60, "shared": true});
    keyed.ask(Some(&keyed.root), "PUT", "/v1/admin/limits", &shared.to_string()).await;
    let caller = keyed.key(Role::Caller, "team").await;
    let body = reserve(&keyed.server.lease(), &[("!default:gpt:rpm", 2)]).to_string();
    assert_eq!(keyed.ask(Some(&caller), "POST", "/v1/reserve", &body).await.json()["allowed"], true);
    let reader = keyed.key(Role::Reader, "team").await;
    let of_team = keyed.ask(Some(&reader), "GET", "/v1/top", "").await.json();
    assert_eq!(of_team, json!({"top": [{"key": "!default:gpt:rpm"}]}));
    let of_default = keyed.ask(Some(&keyed.root), "GET", "/v1/top", "").await.json();
    assert_eq!(of_default, json!({"top": [limit("gpt:rpm", 2)]}));
    keyed.ask(Some(&reader), "GET", "/v1/top?namespace=default", "").await.problem(403, "forbidden");
}
