//! Templates over HTTP: put, list and delete.

use earmark_core::Role;
use serde_json::{Value, json};

use crate::support::{KeyedServer, TestServer};

const PATH: &str = "/v1/admin/templates";

fn rolling(key: &str, capacity: u64) -> Value {
    json!({"key": key, "kind": "rolling", "capacity": capacity, "window_seconds": 60})
}

#[tokio::test]
async fn a_template_is_put_listed_and_deleted() {
    let server = TestServer::open().await;
    let put = server.ok("PUT", PATH, &rolling("user:{user}:rpm", 5)).await;
    assert_eq!(put, json!({"ok": true, "revision": 1}));
    assert_eq!(server.ok("PUT", PATH, &rolling("user:{user}:rpm", 5)).await, put, "nothing changed");
    let credit = json!({
        "key": "{tenant}:usd", "kind": "credit", "timeout_seconds": 60, "vault": "main", "account": "{tenant}",
        "asset": "usd",
    });
    assert_eq!(server.ok("PUT", PATH, &credit).await, json!({"ok": true, "revision": 2}));
    let listed = server.ok("GET", PATH, &Value::Null).await;
    let templates = listed["templates"].as_array().unwrap();
    assert_eq!(templates.len(), 2);
    assert_eq!(templates[0]["definition"]["key"], "user:{user}:rpm");
    assert_eq!((&templates[0]["revision"], &templates[0]["live"]), (&json!(1), &json!(0)));
    assert_eq!(templates[1]["definition"]["account"], "{tenant}");

    let (path, body) = (format!("{PATH}?expected_revision=2"), rolling("user:{user}:rpm", 6).to_string());
    let message = server.ask("PUT", &path, &body).await.problem(409, "conflict");
    assert_eq!(message, "expected_revision: it has revision 1 (0 means that it does not exist)");
    let delete = format!("{PATH}?key=user:%7Buser%7D:rpm");
    server.ask("DELETE", &format!("{delete}&expected_revision=7"), "").await.problem(409, "conflict");
    assert_eq!(server.ok("DELETE", &delete, &Value::Null).await, json!({"ok": true}));
    let answer = server.ask("DELETE", &delete, "").await;
    assert_eq!(answer.problem(404, "not_found"), "key: no template has this key");

    let log = server.ok("GET", "/v1/audit?key=user:%7Buser%7D:rpm", &Value::Null).await;
    let summaries: Vec<&str> =
        log["entries"].as_array().unwrap().iter().map(|entry| entry["summary"].as_str().unwrap()).collect();
    assert_eq!(summaries, ["delete_template user:{user}:rpm", "put_template user:{user}:rpm"]);
    assert_eq!(log["entries"][1]["kind"], "template");
    assert_eq!(log["entries"][1]["new"]["capacity"], 5);
}

#[tokio::test]
async fn a_bad_template_is_refused_with_its_field_and_changes_nothing() {
    let server = TestServer::open().await;
    server.ok("PUT", PATH, &rolling("user:{user}:rpm", 5)).await;
    let credit = |account: &str| {
        json!({
            "key": "{tenant}:usd", "kind": "credit", "timeout_seconds": 60, "vault": "main", "account": account,
            "asset": "usd",
        })
    };
    for (body, message) in [
        (rolling("user:u1:rpm", 5), "key: found \"user:u1:rpm\", a template needs a placeholder such as {user}"),
        (rolling("user:{user}:{user}", 5), "key: found {user} twice, allowed is each placeholder once"),
        (
            rolling("user:x-{user}:rpm", 5),
            "key: found \"x-{user}\", allowed is a placeholder such as {user} as a whole",
        ),
        (rolling("{a}:{b}:{c}:{d}:{e}", 5), "key: found 5 placeholders, allowed are 1 to 4"),
        (
            rolling("user:{id}:rpm", 5),
            "key: the template user:{user}:rpm differs only in the names of its placeholders",
        ),
        (rolling("user:{user}:tpm", 0), "capacity: found 0, allowed are integers from 1"),
        (credit("{user}"), "account: found {user}, allowed are the placeholders of the key"),
        (credit("a-{tenant}"), "account: found \"a-{tenant}\", allowed is a placeholder"),
        (
            json!({"key": "user:{user}:rpm", "kind": "concurrency", "capacity": 1, "timeout_seconds": 1}),
            "kind: an existing limit keeps its kind",
        ),
        (json!({"key": "a:{b}", "kind": "rolling", "capacity": 1}), "window_seconds is required for a rolling limit"),
        (json!({"key": "a:{b}", "burst": 1}), "burst: found an unknown field"),
    ] {
        let found = server.ask("PUT", PATH, &body.to_string()).await.problem(400, "invalid_request");
        assert!(found.starts_with(message), "{body}: {found}");
    }
    let limit = server.ask("PUT", "/v1/admin/limits", &rolling("user:{user}:rpm", 5).to_string()).await;
    assert!(limit.problem(400, "invalid_request").starts_with("key: found '{' at byte 5"), "{limit:?}");
    for query in ["", "?key=user", "?key=%7Ba%7D&expected_revision=x"] {
        let answer = server.ask("DELETE", &format!("{PATH}{query}"), "").await;
        answer.problem(400, "invalid_request");
    }
    let listed = server.ok("GET", PATH, &Value::Null).await;
    assert_eq!(listed["templates"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn only_an_admin_of_default_names_another_namespace() {
    let keyed = KeyedServer::open().await;
    let writer = keyed.key(Role::Writer, "team").await;
    let body = rolling("user:{user}", 5).to_string();
    let put = keyed.ask(Some(&keyed.root), "PUT", &format!("{PATH}?namespace=team"), &body).await;
    assert_eq!(put.status, 200, "{put:?}");
    let theirs = keyed.ask(Some(&writer), "GET", PATH, "").await.json();
    assert_eq!(theirs["templates"][0]["definition"]["key"], "user:{user}");
    let ours = keyed.ask(Some(&keyed.root), "GET", PATH, "").await.json();
    assert_eq!(ours["templates"], json!([]));
    let answer = keyed.ask(Some(&writer), "PUT", &format!("{PATH}?namespace=default"), &body).await;
    assert!(answer.problem(403, "forbidden").starts_with("namespace: found default"), "{answer:?}");
}

fn reserve(lease: &str, amounts: &[(String, u64)]) -> Value {
    let requirements: Vec<Value> = amounts.iter().map(|(key, amount)| json!({"key": key, "amount": amount})).collect();
    json!({"lease_id": lease, "requirements": requirements})
}

#[tokio::test]
async fn a_derived_limit_is_shown_with_its_template_and_a_key_that_is_not_live_is_shown_unused() {
    let server = TestServer::open().await;
    server.ok("PUT", PATH, &rolling("user:{user}:rpm", 5)).await;
    let unused = server.ok("GET", "/v1/admin/limits/user:u1:rpm/usage", &Value::Null).await;
    assert_eq!((&unused["capacity"], &unused["reserved"]), (&json!(5), &json!(0)));
    let answer = server.ok("POST", "/v1/reserve", &reserve(&server.lease(), &[("user:u1:rpm".into(), 3)])).await;
    assert_eq!(answer["allowed"], true, "{answer}");
    for path in ["/v1/admin/limits/user:u1:rpm", "/v1/admin/limits/user:u2:rpm"] {
        let limit = server.ok("GET", path, &Value::Null).await;
        assert_eq!(limit["limit"]["template"], "user:{user}:rpm", "{limit}");
        assert_eq!(limit["limit"]["revision"], 1);
    }
    let usage = server.ok("GET", "/v1/admin/limits/user:u1:rpm/usage", &Value::Null).await;
    assert_eq!((&usage["reserved"], &usage["available"]), (&json!(3), &json!(2)));
    let listed = server.ok("GET", "/v1/admin/limits", &Value::Null).await;
    assert_eq!(listed["limits"].as_array().unwrap().len(), 1, "only what is live: {listed}");
    assert_eq!(server.ok("GET", PATH, &Value::Null).await["templates"][0]["live"], 1);
    assert_eq!(server.ask("DELETE", "/v1/admin/limits/user:u1:rpm", "").await.status, 404, "nobody put it");
}

/// A noisy template filled the table of series and hid the limits that somebody defined.
#[tokio::test]
async fn the_keys_of_a_template_share_one_series() {
    let server = TestServer::open().await;
    server.ok("PUT", PATH, &rolling("user:{user}:rpm", 1)).await;
    server.ok("PUT", "/v1/admin/limits", &rolling("user:vip:rpm", 1)).await;
    for user in ["u1", "u2", "u3", "vip"] {
        for _ in 0..2 {
            let body = reserve(&server.lease(), &[(format!("user:{user}:rpm"), 1)]);
            server.ok("POST", "/v1/reserve", &body).await;
        }
    }
    let metrics = server.ask("GET", "/metrics", "").await.text;
    assert!(metrics.contains("key=\"user:{user}:rpm\",reason=\"capacity\"} 3\n"), "{metrics}");
    assert!(metrics.contains("key=\"user:vip:rpm\",reason=\"capacity\"} 1\n"), "{metrics}");
    assert!(!metrics.contains("user:u1:rpm"), "{metrics}");
}
