//! Shared limits: a caller of one namespace reserves a limit of another.

use earmark_core::Role;
use serde_json::{Value, json};

use crate::support::{KeyedServer, TestServer, complete, reserve};

fn definition(shared: bool) -> String {
    let definition = json!({"key": "gpt-4o:rpm", "kind": "rolling", "capacity": 5, "window_seconds": 60});
    let mut definition = definition;
    definition["shared"] = json!(shared);
    definition.to_string()
}

/// A server with the shared limit `gpt-4o:rpm` of `default`, and a caller of the namespace `team`.
async fn team() -> (KeyedServer, String) {
    let keyed = KeyedServer::open().await;
    assert_eq!(keyed.ask(Some(&keyed.root), "PUT", "/v1/admin/limits", &definition(true)).await.status, 200);
    let caller = keyed.key(Role::Caller, "team").await;
    (keyed, caller)
}

async fn post(keyed: &KeyedServer, key: &str, path: &str, body: &Value) -> Value {
    let answer = keyed.ask(Some(key), "POST", path, &body.to_string()).await;
    assert_eq!(answer.status, 200, "{body}: {answer:?}");
    answer.json()
}

async fn reserved(keyed: &KeyedServer) -> Value {
    keyed.ask(Some(&keyed.root), "GET", "/v1/admin/limits/gpt-4o:rpm/usage", "").await.json()["reserved"].clone()
}

/// The namespace of the caller has no limits, and did not exist before.
#[tokio::test]
async fn a_shared_limit_is_reserved_denied_and_completed_from_another_namespace() {
    let (keyed, caller) = team().await;
    let lease = keyed.server.lease();
    let taken = post(&keyed, &caller, "/v1/reserve", &reserve(&lease, &[("!default:gpt-4o:rpm", 4)])).await;
    assert_eq!(taken["allowed"], true, "{taken}");
    assert_eq!(reserved(&keyed).await, 4);
    let reader = keyed.key(Role::Reader, "team").await;
    let view = keyed.ask(Some(&reader), "GET", &format!("/v1/leases/{lease}"), "").await.json();
    assert_eq!(view["lease"]["requirements"], json!([{"key": "!default:gpt-4o:rpm", "amount": 4}]));

    let denied = reserve(&keyed.server.lease(), &[("!default:gpt-4o:rpm", 2)]);
    let denied = post(&keyed, &caller, "/v1/reserve", &denied).await;
    assert_eq!((&denied["error"], &denied["limited_by"]), (&json!(""), &json!(["!default:gpt-4o:rpm"])));
    let never = reserve(&keyed.server.lease(), &[("!default:gpt-4o:rpm", 6)]);
    let never = post(&keyed, &caller, "/v1/reserve/batch", &json!({"requests": [never]})).await;
    assert_eq!(never["results"][0]["error"], "exceeds_capacity:!default:gpt-4o:rpm");

    let done = complete(&lease, &[("!default:gpt-4o:rpm", 1), ("!default:other", 1)]);
    let done = post(&keyed, &caller, "/v1/complete/batch", &json!({"requests": [done]})).await;
    let message = "ignored, since the lease had not reserved them: !default:other";
    assert_eq!(done["results"][0], json!({"ok": true, "error": "", "message": message, "reconciled": true}));
    assert_eq!(reserved(&keyed).await, 1);
    let line = r#"earmark_denials_total{namespace="team",key="!default:gpt-4o:rpm",reason="capacity"} 2"#;
    assert!(keyed.ask(Some(&reader), "GET", "/metrics", "").await.text.contains(line));
}

#[tokio::test]
async fn a_limit_that_is_not_shared_is_unknown_and_its_leases_settle() {
    let (keyed, caller) = team().await;
    let lease = keyed.server.lease();
    post(&keyed, &caller, "/v1/reserve", &reserve(&lease, &[("!default:gpt-4o:rpm", 3)])).await;
    assert_eq!(keyed.ask(Some(&keyed.root), "PUT", "/v1/admin/limits", &definition(false)).await.status, 200);
    for (name, error) in [
        ("!default:gpt-4o:rpm", "unknown_limit_key:!default:gpt-4o:rpm"),
        ("!default:none", "unknown_limit_key:!default:none"),
        ("!nobody:gpt-4o:rpm", "unknown_limit_key:!nobody:gpt-4o:rpm"),
        ("gpt-4o:rpm", "unknown_limit_key:gpt-4o:rpm"),
        ("!team:gpt-4o:rpm", "unknown_limit_key:gpt-4o:rpm"),
    ] {
        let refused = reserve(&keyed.server.lease(), &[(name, 1)]);
        let refused = post(&keyed, &caller, "/v1/reserve", &refused).await;
        assert_eq!((&refused["allowed"], &refused["error"]), (&json!(false), &json!(error)));
    }
    // The retry of a live lease gets its first answer.
    let again = post(&keyed, &caller, "/v1/reserve", &reserve(&lease, &[("!default:gpt-4o:rpm", 3)])).await;
    assert_eq!(again["allowed"], true);
    let done = post(&keyed, &caller, "/v1/complete", &complete(&lease, &[("!default:gpt-4o:rpm", 2)])).await;
    assert_eq!(done["reconciled"], true);
    assert_eq!(reserved(&keyed).await, 2);
}

#[tokio::test]
async fn sharing_gives_no_right_to_read_or_change_and_a_caller_cannot_share() {
    let (keyed, caller) = team().await;
    let admin = keyed.key(Role::Admin, "team").await;
    for path in ["/v1/admin/limits/gpt-4o:rpm", "/v1/admin/limits/gpt-4o:rpm/usage"] {
        assert_eq!(keyed.ask(Some(&admin), "GET", path, "").await.status, 404);
    }
    for path in ["/v1/admin/limits/!default:gpt-4o:rpm", "/v1/admin/limits/%21default:gpt-4o:rpm"] {
        let refused = keyed.ask(Some(&admin), "GET", path, "").await.problem(400, "invalid_request");
        assert!(refused.starts_with("key: found '!' at byte 0"), "{refused}");
        keyed.ask(Some(&admin), "DELETE", path, "").await.problem(400, "invalid_request");
    }
    assert_eq!(keyed.ask(Some(&admin), "DELETE", "/v1/admin/limits/gpt-4o:rpm", "").await.status, 404);
    let listed = keyed.ask(Some(&admin), "GET", "/v1/admin/limits", "").await.json();
    assert_eq!(listed["limits"], json!([]));
    let marked = definition(true).replace("gpt-4o:rpm", "!default:gpt-4o:rpm");
    keyed.ask(Some(&admin), "PUT", "/v1/admin/limits", &marked).await.problem(400, "invalid_request");
    // Sharing is a change of a limit, which a caller may not make.
    let refused = keyed.ask(Some(&caller), "PUT", "/v1/admin/limits", &definition(true)).await;
    assert_eq!(refused.status, 403, "{refused:?}");
    assert_eq!(reserved(&keyed).await, 0);
}

#[tokio::test]
async fn a_limit_named_with_and_without_its_own_namespace_is_named_twice() {
    let server = TestServer::open().await;
    server.put_rolling("rpm", 5, 60).await;
    let lease = server.lease();
    let twice = reserve(&lease, &[("rpm", 1), ("!default:rpm", 1)]);
    let message = "requirements[1].key: found \"rpm\" as in item 0, allowed is each key once";
    let refused = server.ask("POST", "/v1/reserve", &twice.to_string()).await;
    assert_eq!(refused.problem(400, "invalid_request"), message);
    let batch = json!({"requests": [reserve(&lease, &[("rpm", 1)]), twice]}).to_string();
    let refused = server.ask("POST", "/v1/reserve/batch", &batch).await;
    assert_eq!(refused.problem(400, "invalid_request"), format!("requests[1].{message}"));
    let same = reserve(&lease, &[("!team:rpm", 1), ("!team:rpm", 1)]).to_string();
    let refused = server.ask("POST", "/v1/reserve", &same).await;
    let message = "requirements[1].key: found \"!team:rpm\" as in item 0, allowed is each key once";
    assert_eq!(refused.problem(400, "invalid_request"), message);
    let twice = complete(&lease, &[("!default:rpm", 1), ("rpm", 1)]).to_string();
    let refused = server.ask("POST", "/v1/complete", &twice).await;
    let message = "actuals[1].key: found \"rpm\" as in item 0, allowed is each key once";
    assert_eq!(refused.problem(400, "invalid_request"), message);
    let wrong = json!({"lease_id": lease, "requirements": [{"namespace": "a b", "key": "rpm", "amount": 1}]});
    let refused = server.ask("POST", "/v1/reserve", &wrong.to_string()).await.problem(400, "invalid_request");
    assert!(refused.starts_with("requirements[0].namespace: found ' ' at byte 1"), "{refused}");
    // The own namespace named is no other limit.
    assert_eq!(server.reserve(&lease, &[("!default:rpm", 5)]).await["allowed"], true);
    assert_eq!(server.reserve(&lease, &[("rpm", 5)]).await["allowed"], true);
    assert_eq!(server.reserved("rpm").await, 5);
}

/// Every key of a shared template had a series of its own in each namespace that reserved it.
#[tokio::test]
async fn the_keys_of_a_shared_template_share_one_series_per_namespace() {
    let (keyed, caller) = team().await;
    let template =
        json!({"key": "user:{user}:rpm", "kind": "rolling", "capacity": 1, "window_seconds": 60, "shared": true});
    let put = keyed.ask(Some(&keyed.root), "PUT", "/v1/admin/templates", &template.to_string()).await;
    assert_eq!(put.status, 200, "{put:?}");
    for user in 0..3 {
        let key = format!("!default:user:{user}:rpm");
        for is_allowed in [true, false] {
            let body = reserve(&keyed.server.lease(), &[(&key, 1)]);
            assert_eq!(post(&keyed, &caller, "/v1/reserve", &body).await["allowed"], is_allowed);
        }
    }
    let text = keyed.ask(Some(&keyed.root), "GET", "/metrics", "").await.text;
    let lines: Vec<&str> = text.lines().filter(|line| line.starts_with("earmark_denials_total{")).collect();
    let only = r#"earmark_denials_total{namespace="team",key="!default:user:{user}:rpm",reason="capacity"} 3"#;
    assert_eq!(lines, [only]);
}
