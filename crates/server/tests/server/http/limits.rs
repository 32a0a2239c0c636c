//! Limits: create, change, delete.

use serde_json::{Value, json};

use crate::support::TestServer;

#[tokio::test]
async fn a_limit_is_given_back_as_it_was_put() {
    let server = TestServer::open().await;
    let rolling = json!({
        "key": "openai:gpt-4o:rpm", "kind": "rolling", "capacity": u64::MAX, "window_seconds": 60,
        "unit": "requests", "description": "per minute", "overage": "deny",
    });
    assert_eq!(server.ok("PUT", "/v1/admin/limits", &rolling).await, json!({"ok": true, "status": "active"}));
    server.put_concurrency("a", 3, 30).await;
    let info = json!({"definition": rolling, "status": "active", "pending_decrease_to": null, "revision": 1});
    for path in ["/v1/admin/limits/openai:gpt-4o:rpm", "/v1/admin/limits/openai%3Agpt-4o%3arpm"] {
        assert_eq!(server.ok("GET", path, &Value::Null).await, json!({"limit": info}));
    }
    let all = server.ok("GET", "/v1/admin/limits", &Value::Null).await;
    assert_eq!(all["limits"][0]["definition"]["key"], "a");
    assert_eq!(all["limits"][1], info);
    assert_eq!(all["limits"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn usage_shows_what_is_taken_and_what_is_waited_for() {
    let server = TestServer::open().await;
    server.put_concurrency("slots", 10, 60).await;
    let lease = server.lease();
    server.reserve(&lease, &[("slots", 7)]).await;
    let usage = |available, status, to: Value| {
        json!({
            "capacity": 10, "reserved": 7, "available": available, "debt": 0,
            "status": status, "pending_decrease_to": to,
        })
    };
    assert_eq!(server.usage("slots").await, usage(3, "active", Value::Null));
    server.put_concurrency("slots", 4, 60).await;
    assert_eq!(server.usage("slots").await, usage(0, "decreasing", json!(4)));
    assert_eq!(server.metric("earmark_decreasing_limits").await, 1.0);
    let limit = server.ok("GET", "/v1/admin/limits/slots", &Value::Null).await;
    assert_eq!(limit["limit"]["status"], "decreasing");
    assert_eq!(limit["limit"]["pending_decrease_to"], 4);
    assert_eq!(limit["limit"]["definition"]["capacity"], 10);
}

#[tokio::test]
async fn a_deleted_limit_is_decreasing_until_nothing_is_held_and_then_gone() {
    let server = TestServer::open().await;
    server.put_concurrency("slots", 1, 60).await;
    let lease = server.lease();
    server.reserve(&lease, &[("slots", 1)]).await;
    let path = "/v1/admin/limits/slots";
    assert_eq!(server.ok("DELETE", path, &Value::Null).await, json!({"ok": true, "status": "decreasing"}));
    assert_eq!(server.ok("GET", path, &Value::Null).await["limit"]["pending_decrease_to"], 0);
    server.complete(&lease, &[]).await;
    for (method, path) in [("GET", path), ("GET", "/v1/admin/limits/slots/usage"), ("DELETE", path)] {
        let message = server.ask(method, path, "").await.problem(404, "not_found");
        assert_eq!(message, "key: no limit has this key");
    }
    server.put_rolling("unused", 1, 1).await;
    let deleted = server.ok("DELETE", "/v1/admin/limits/unused", &Value::Null).await;
    assert_eq!(deleted, json!({"ok": true, "status": "deleted"}));
}

#[tokio::test]
async fn a_limit_keeps_its_kind() {
    let server = TestServer::open().await;
    server.put_rolling("a", 1, 60).await;
    let other = json!({"key": "a", "kind": "concurrency", "capacity": 1, "timeout_seconds": 60}).to_string();
    let message = server.ask("PUT", "/v1/admin/limits", &other).await.problem(400, "invalid_request");
    assert!(message.starts_with("kind: "), "{message}");
}

#[tokio::test]
async fn a_malformed_definition_is_refused_by_field() {
    let server = TestServer::open().await;
    let of = |rest: &str| format!(r#"{{"key":"a","kind":"rolling",{rest}}}"#);
    let whole = r#""capacity":1,"window_seconds":60"#;
    for (body, message) in [
        (of(r#""capacity":0,"window_seconds":60"#), "capacity: found 0, allowed are integers from 1 to"),
        (of(r#""capacity":"5","window_seconds":60"#), "capacity: found \"5\", allowed are integers"),
        (of(r#""capacity":18446744073709551616,"window_seconds":60"#), "capacity: found 18446744073709551616, "),
        (of(r#""capacity":1"#), "window_seconds is required for a rolling limit"),
        (of(r#""capacity":1,"window_seconds":0"#), "window_seconds: found 0, allowed are integers from 1 to 31622400"),
        (of(r#""capacity":1,"window_seconds":31622401"#), "window_seconds: found 31622401, "),
        (of(&format!(r#"{whole},"timeout_seconds":1"#)), "timeout_seconds: found 1, but a rolling limit has none"),
        (of(&format!(r#"{whole},"overage":"free""#)), "overage: found \"free\", allowed are debt and deny"),
        (of(&format!(r#"{whole},"actor":"me""#)), "actor: found an unknown field, allowed are key, kind"),
        (of(&format!(r#"{whole},"capacity":1"#)), "capacity: found it twice"),
        (of(whole).replace("\"a\"", "\"a!b\""), "key: found '!' at byte 1, allowed are 1 to 256 bytes"),
        (
            of(whole).replace("rolling", "bursty"),
            "kind: found \"bursty\", allowed are rolling, concurrency, calendar and credit",
        ),
        (r#"["a","rolling",1,60,null,"","","debt"]"#.into(), "body: found [\"a\",\"rolling\",1,60"),
    ] {
        let found = server.ask("PUT", "/v1/admin/limits", &body).await.problem(400, "invalid_request");
        assert!(found.starts_with(message), "{body}: {found}");
    }
    assert_eq!(server.ok("GET", "/v1/admin/limits", &Value::Null).await, json!({"limits": [], "next": null}));
}

#[tokio::test]
async fn a_path_with_a_key_or_lease_that_cannot_be_one_is_refused() {
    let server = TestServer::open().await;
    let long = "k".repeat(257);
    for (path, message) in [
        (
            "/v1/admin/limits/a!b",
            "key: found '!' at byte 1, allowed are 1 to 256 bytes of letters, digits and :._@+-/|=~%",
        ),
        (
            "/v1/admin/limits/a%20b/usage",
            "key: found ' ' at byte 1, allowed are 1 to 256 bytes of letters, digits and :._@+-/|=~%",
        ),
        (
            "/v1/admin/limits/%C3%A9",
            "key: found 'é' at byte 0, allowed are 1 to 256 bytes of letters, digits and :._@+-/|=~%",
        ),
        (
            "/v1/admin/limits/%00",
            "key: found '\\0' at byte 0, allowed are 1 to 256 bytes of letters, digits and :._@+-/|=~%",
        ),
        ("/v1/admin/limits/%FF", "path: percent-encoded bytes are not UTF-8"),
        (
            &format!("/v1/admin/limits/{long}"),
            "key: found 257 bytes, allowed are 1 to 256 bytes of letters, digits and :._@+-/|=~%",
        ),
        ("/v1/leases/x", "lease_id: found 1 bytes, a ULID has 26 characters"),
        (
            "/v1/leases/8ZZZZZZZZZZZZZZZZZZZZZZZZZ",
            "lease_id: found '8' as its first character, a ULID starts with 0 to 7",
        ),
    ] {
        assert_eq!(server.ask("GET", path, "").await.problem(400, "invalid_request"), message, "{path}");
    }
}

/// All limits were listed in one answer, which was built in one go on a thread of the runtime.
#[tokio::test]
async fn limits_are_listed_in_pages_and_a_short_list_is_one() {
    let server = TestServer::open().await;
    let put = |number: usize| {
        json!({"put_limit": {"definition": {
            "key": format!("{}:{number:04}", if number < 1_200 { "a" } else { "b" }),
            "kind": "rolling", "capacity": 1, "window_seconds": 60,
        }}})
    };
    for (sequence, first) in (0..1_280).step_by(256).enumerate() {
        let operations: Vec<Value> = (first..first + 256).map(put).collect();
        let write =
            json!({"namespace": "default", "client_id": "c", "sequence": sequence + 1, "operations": operations});
        server.ok("POST", "/v1/write", &write).await;
    }
    let pages = async |query: &str| {
        let (mut keys, mut lengths, mut after) = (Vec::new(), Vec::new(), String::new());
        loop {
            let page = server.ok("GET", &format!("/v1/admin/limits?{query}{after}"), &Value::Null).await;
            let limits = page["limits"].as_array().unwrap();
            keys.extend(limits.iter().map(|limit| limit["definition"]["key"].as_str().unwrap().to_owned()));
            lengths.push(limits.len());
            match page["next"].as_str() {
                Some(next) => after = format!("&after={next}"),
                None => return (keys, lengths),
            }
        }
    };
    let (all, lengths) = pages("").await;
    assert_eq!((all.len(), lengths), (1_280, vec![1_000, 280]));
    assert!(all.is_sorted());
    let (some, lengths) = pages("prefix=b&page_size=33").await;
    assert_eq!((some.as_slice(), lengths), (&all[1_200..], vec![33, 33, 14]));
    assert_eq!(pages("prefix=c").await, (vec![], vec![0]));
    assert_eq!(pages("prefix=b&after=a:0001").await.0.len(), 80);
    assert_eq!(pages("prefix=").await.0, all);
    for query in ["page_size=0", "page_size=1001", "prefix=%20", "after=%20", "size=1"] {
        server.ask("GET", &format!("/v1/admin/limits?{query}"), "").await.problem(400, "invalid_request");
    }
}
