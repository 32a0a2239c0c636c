//! Lists of limits with their usage, and limits of other namespaces.

use earmark_core::Role;
use serde_json::{Value, json};

use crate::support::{KeyedServer, TestServer};

fn limit(key: &str, kind: &str, reserved: u64, capacity: u64, debt: u64) -> Value {
    let available = capacity - reserved;
    json!({
        "key": key, "kind": kind, "capacity": capacity, "reserved": reserved, "available": available, "debt": debt,
        "status": "active",
    })
}

#[tokio::test]
async fn usage_is_listed_in_the_order_that_was_asked_for() {
    let server = TestServer::open().await;
    server.put_rolling("a", 100, 60).await;
    server.put_rolling("b", 10, 60).await;
    server.put_concurrency("c", 4, 60).await;
    let (used, held) = (server.lease(), server.lease());
    server.reserve(&used, &[("a", 1)]).await;
    server.complete(&used, &[("a", 500)]).await;
    server.reserve(&held, &[("a", 9), ("b", 5), ("c", 4)]).await;
    let [a, b, c] =
        [limit("a", "rolling", 10, 100, 499), limit("b", "rolling", 5, 10, 0), limit("c", "concurrency", 4, 4, 0)];
    let get = async |query: &str| server.ok("GET", &format!("/v1/usage{query}"), &Value::Null).await;
    assert_eq!(get("").await, json!({"usage": [a, b, c], "next": null}));
    assert_eq!(get("?sort=fullness").await, json!({"usage": [c, b, a], "next": null}));
    assert_eq!(get("?sort=fullness&page_size=1").await, json!({"usage": [c], "next": null}));
    assert_eq!(get("?sort=debt&page_size=2").await, json!({"usage": [a, b], "next": null}));
    assert_eq!(get("?page_size=2").await, json!({"usage": [a, b], "next": "b"}));
    assert_eq!(get("?page_size=2&after=b").await, json!({"usage": [c], "next": null}));
    assert_eq!(get("?prefix=b&sort=debt").await, json!({"usage": [b], "next": null}));
    assert_eq!(get("?namespace=nowhere").await, json!({"usage": [], "next": null}));
    for (query, message) in [
        ("sort=debt&after=a", "after: found a, but a list sorted by debt has only one page"),
        ("sort=size", "sort: found \"size\", allowed are key, fullness, debt"),
        ("page_size=0", "page_size: found \"0\", allowed are integers from 1 to 1000"),
        ("prefix=%20", "prefix: found ' ' at byte 0"),
        ("of=a", "query: found \"of\", allowed are namespace and prefix and sort and after and page_size"),
    ] {
        let found = server.ask("GET", &format!("/v1/usage?{query}"), "").await.problem(400, "invalid_request");
        assert!(found.starts_with(message), "{query}: {found}");
    }
}

/// The pieces of a sorted list are of different limits, and only the first page of them is kept.
#[tokio::test]
async fn a_sorted_list_finds_the_fullest_of_many_limits() {
    let server = TestServer::open().await;
    for sequence in 0..5_u64 {
        let put = |number: u64| {
            let definition =
                json!({"key": format!("{number:04}"), "kind": "rolling", "capacity": 2_000, "window_seconds": 60});
            json!({"put_limit": {"definition": definition}})
        };
        let operations: Vec<Value> = (sequence * 250..(sequence + 1) * 250).map(put).collect();
        let write =
            json!({"namespace": "default", "client_id": "c", "sequence": sequence + 1, "operations": operations});
        server.ok("POST", "/v1/write", &write).await;
    }
    for number in (0..1_250_u64).step_by(50) {
        server.reserve(&server.lease(), &[(&format!("{number:04}"), number + 1)]).await;
    }
    let page = server.ok("GET", "/v1/usage?sort=fullness&page_size=3", &Value::Null).await;
    let keys: Vec<&str> =
        page["usage"].as_array().unwrap().iter().map(|limit| limit["key"].as_str().unwrap()).collect();
    assert_eq!(keys, ["1200", "1150", "1100"]);
}

#[tokio::test]
async fn an_admin_of_the_server_lists_and_writes_limits_of_every_namespace() {
    let keyed = KeyedServer::open().await;
    let team = keyed.key(Role::Admin, "team").await;
    let put = |sequence: u64, vault: Value| {
        let definition = json!({"key": "a", "kind": "rolling", "capacity": 1, "window_seconds": 60});
        let operations = json!([{"put_limit": {"definition": definition, "expected_revision": 0}}]);
        json!({"namespace": "team", "vault": vault, "client_id": "ops", "sequence": sequence, "operations": operations})
            .to_string()
    };
    let write = keyed.ask(Some(&keyed.root), "POST", "/v1/write", &put(1, Value::Null)).await;
    assert_eq!(write.status, 200, "{write:?}");
    for (path, key) in [
        ("/v1/admin/limits?namespace=team", &keyed.root),
        ("/v1/usage?namespace=team", &keyed.root),
        ("/v1/usage?namespace=team&sort=debt", &team),
        ("/v1/usage", &team),
    ] {
        let answer = keyed.ask(Some(key), "GET", path, "").await;
        assert!(answer.status == 200 && answer.text.contains("\"a\""), "{path}: {answer:?}");
    }
    let state = keyed.ask(Some(&keyed.root), "GET", "/v1/clients/ops?namespace=team", "").await.json();
    assert_eq!(state["last_committed_sequence"], 1);
    // Vaults of other namespaces stay closed, and so is everything to an admin of one namespace.
    keyed.ask(Some(&keyed.root), "POST", "/v1/write", &put(2, json!("main"))).await.problem(403, "forbidden");
    for operation in [json!({"open_vault": {"vault": "eu"}}), json!({"retire_client": {"client_id": "ops"}})] {
        let write = json!({"namespace": "team", "client_id": "ops", "sequence": 2, "operations": [operation]});
        let answer = keyed.ask(Some(&keyed.root), "POST", "/v1/write", &write.to_string()).await;
        assert_eq!(answer.problem(403, "forbidden"), "namespace: found team, this key belongs to namespace default");
    }
    let reader = keyed.key(Role::Reader, "default").await;
    for key in [&team, &reader] {
        for path in ["/v1/admin/limits?namespace=other", "/v1/usage?namespace=other"] {
            keyed.ask(Some(key), "GET", path, "").await.problem(403, "forbidden");
        }
    }
}

#[tokio::test]
async fn an_admin_of_the_server_changes_one_limit_of_any_namespace() {
    let keyed = KeyedServer::open().await;
    let team = keyed.key(Role::Admin, "team").await;
    let limit = json!({"key": "a", "kind": "rolling", "capacity": 5, "window_seconds": 60}).to_string();
    let pause = json!({"for_ms": 60_000}).to_string();
    let requests = [
        ("PUT", "/v1/admin/limits", limit.as_str()),
        ("GET", "/v1/admin/limits/a", ""),
        ("GET", "/v1/admin/limits/a/usage", ""),
        ("POST", "/v1/admin/limits/a/pause", pause.as_str()),
        ("DELETE", "/v1/admin/limits/a", ""),
    ];
    for (method, path, body) in requests {
        let answer = keyed.ask(Some(&team), method, &format!("{path}?namespace=default"), body).await;
        assert_eq!(answer.problem(403, "forbidden"), "namespace: found default, this key belongs to namespace team");
        let answer = keyed.ask(Some(&keyed.root), method, &format!("{path}?namespace=team"), body).await;
        assert_eq!(answer.status, 200, "{method} {path}: {answer:?}");
        if method == "PUT" {
            assert_eq!(keyed.ask(Some(&team), "GET", "/v1/admin/limits/a", "").await.status, 200);
            keyed.ask(Some(&keyed.root), "GET", "/v1/admin/limits/a", "").await.problem(404, "not_found");
        }
        if method == "POST" {
            let page = keyed.ask(Some(&team), "GET", "/v1/usage", "").await.json();
            assert!(page["usage"][0]["paused_until_unix_ms"].as_u64().unwrap() > 60_000, "{page}");
        }
    }
    keyed.ask(Some(&team), "GET", "/v1/admin/limits/a", "").await.problem(404, "not_found");
}

/// A derived limit with debt could be ended by nobody, and lists of definitions paged through all derived limits.
#[tokio::test]
async fn a_derived_limit_is_deleted_and_defined_limits_are_listed_alone() {
    let server = TestServer::open().await;
    let limit =
        |key: &str, window: u64| json!({"key": key, "kind": "rolling", "capacity": 5, "window_seconds": window});
    server.ok("PUT", "/v1/admin/templates", &limit("user:{user}:rpm", 1)).await;
    server.ok("PUT", "/v1/admin/limits", &limit("b", 60)).await;
    server.reserve(&server.lease(), &[("user:1:rpm", 1)]).await;
    let keys = async |query: &str| {
        let page = server.ok("GET", &format!("/v1/admin/limits{query}"), &Value::Null).await;
        assert_eq!(page["next"], Value::Null);
        let limits = page["limits"].as_array().unwrap();
        limits.iter().map(|limit| limit["definition"]["key"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(keys("?prefix=").await, ["b", "user:1:rpm"]);
    assert_eq!(keys("?defined=false").await, ["b", "user:1:rpm"]);
    assert_eq!(keys("?defined=true&prefix=").await, ["b"]);
    assert_eq!(keys("?defined=true&prefix=user").await, Vec::<String>::new());
    let wrong = server.ask("GET", "/v1/admin/limits?defined=1", "").await.problem(400, "invalid_request");
    assert_eq!(wrong, "defined: found \"1\", allowed are true, false");
    server.ask("DELETE", "/v1/admin/limits/user:1:rpm", "").await.problem(404, "not_found");
    server.clock.advance_ms(1_001);
    let deleted = server.ok("DELETE", "/v1/admin/limits/user:1:rpm", &Value::Null).await;
    assert_eq!(deleted, json!({"ok": true, "status": "deleted"}));
}
