//! API keys in places where they do not belong. People paste a key where an id belongs; it then went into the log, the
//! journal, the change log and the metrics.

use earmark_core::{LOOKS_LIKE_API_KEY, Role};
use earmark_proto::v1;
use serde_json::{Value, json};
use tonic::Code;

use crate::grpc::callers::with;
use crate::grpc::calls;
use crate::support::KeyedServer;

/// A write with one operation.
fn write(client: &str, vault: Option<&str>, operation: Value) -> Value {
    json!({"namespace": "default", "vault": vault, "client_id": client, "sequence": 1, "operations": [operation]})
}

fn definition(key: &str, unit: &str, description: &str) -> Value {
    json!({"key": key, "kind": "rolling", "capacity": 1, "window_seconds": 60, "unit": unit, "description": description})
}

/// Requests with a key in each place that takes a text, with the name of that place.
fn requests(key: &str, lease: &str) -> Vec<(&'static str, &'static str, String, Value)> {
    let percent: String = key.bytes().map(|byte| format!("%{byte:02x}")).collect();
    let issue = |memo: &str| json!({"issue": {"account": "a", "asset": "usd", "amount": "1", "memo": memo}});
    let reserve = |lease: &str, job: &str, limit: &str| json!({"lease_id": lease, "job_id": job, "requirements": [{"key": limit, "amount": 1}]});
    let complete = json!({"lease_id": lease, "actuals": [{"key": key, "actual_amount": 1}]});
    let credit = json!({"key": "a", "kind": "credit", "timeout_seconds": 60, "vault": "main", "account": key,
        "asset": "usd"});
    let path = |text: String| (text, Value::Null);
    let body = |path: &str, body: Value| (path.to_owned(), body);
    [
        ("lease_id", "POST", body("/v1/reserve", reserve(key, "j", "a"))),
        ("job_id", "POST", body("/v1/reserve", reserve(lease, key, "a"))),
        ("requirements[0].key", "POST", body("/v1/reserve", reserve(lease, "j", key))),
        ("requests[0].job_id", "POST", body("/v1/reserve/batch", json!({"requests": [reserve(lease, key, "a")]}))),
        ("actuals[0].key", "POST", body("/v1/complete", complete)),
        ("key", "PUT", body("/v1/admin/limits", definition(key, "", ""))),
        ("key", "PUT", body("/v1/admin/limits", definition(&format!("a:{}", key.to_uppercase()), "", ""))),
        ("unit", "PUT", body("/v1/admin/limits", definition("a", &key[..40], ""))),
        ("description", "PUT", body("/v1/admin/limits", definition("a", "", &format!("for {key}.")))),
        ("account", "PUT", body("/v1/admin/limits", credit)),
        (
            "policy: line 3",
            "PUT",
            body("/v1/admin/policy", json!({"policy": format!("[[rules]]\nname = \"a\"\ndeny = \"{key}\"\n")})),
        ),
        ("policy: line 1", "PUT", body("/v1/admin/policy", json!({"policy": format!("# {key}\n")}))),
        ("client_id", "POST", body("/v1/write", write(&key[..50], None, json!({"open_vault": {"vault": "v"}})))),
        ("vault", "POST", body("/v1/write", write("c", Some(&key[..50]), issue("")))),
        (
            "idempotency_key",
            "POST",
            body("/v1/write", json!({"namespace": "default", "idempotency_key": key, "operations": []})),
        ),
        (
            "operations[0].open_vault.vault",
            "POST",
            body("/v1/write", write("c", None, json!({"open_vault": {"vault": &key[..50]}}))),
        ),
        (
            "operations[0].issue.memo",
            "POST",
            body("/v1/write", write("c", Some("main"), issue(&format!("see {percent}")))),
        ),
        (
            "operations[0].put_limit.definition.description",
            "POST",
            body("/v1/write", write("c", None, json!({"put_limit": {"definition": definition("a", "", key)}}))),
        ),
        ("name", "POST", body("/v1/admin/keys", json!({"name": &key[..50], "role": "reader"}))),
        ("client_id", "POST", body("/v1/admin/keys", json!({"name": "n", "role": "writer", "client_id": &key[..50]}))),
        ("namespace", "POST", body("/v1/admin/keys", json!({"name": "n", "role": "writer", "namespace": &key[..50]}))),
        ("path", "GET", path(format!("/v1/admin/limits/{key}"))),
        ("path", "GET", path(format!("/v1/admin/limits/{percent}/usage"))),
        ("path", "GET", path(format!("/v1/leases/{key}"))),
        ("path", "DELETE", path(format!("/v1/admin/keys/{key}"))),
        ("path", "GET", path(format!("/v1/vaults/main/accounts/{percent}/balances"))),
        ("path", "GET", path(format!("/nowhere/{key}"))),
        ("path", "GET", path(format!("/{}", percent.replace('%', "%25")))),
        ("query", "GET", path(format!("/v1/audit?after={key}"))),
        ("query", "GET", path(format!("/v1/admin/limits?{percent}=1"))),
        ("query", "GET", path(format!("/v1/clients/c?namespace={key}"))),
        ("query", "GET", path(format!("/readyz?{key}"))),
    ]
    .map(|(place, method, (path, body))| (place, method, path, body))
    .into()
}

#[tokio::test]
async fn a_key_is_refused_by_name_wherever_it_is_no_credential() {
    let keyed = KeyedServer::open().await;
    let key = keyed.key(Role::Caller, "default").await;
    let secret = key.split('_').nth(2).unwrap();
    for (place, method, path, body) in requests(&key, &keyed.server.lease()) {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let answer = keyed.ask(Some(&keyed.root), method, &path, &body).await;
        let message = answer.problem(400, "invalid_request");
        assert_eq!(message, format!("{place}: {LOOKS_LIKE_API_KEY}"), "{method} {path} {body}");
        let shown = format!("{:?} {}", answer.headers, answer.text);
        assert!(!shown.contains(&secret[..20]), "{shown}");
    }
    for id in [key.clone(), key.replace('_', "%5F"), format!("trace-{key}")] {
        let headers = format!("authorization: Bearer {}\r\nx-request-id: {id}\r\n", keyed.root);
        let answer = keyed.ask_with(&headers, "GET", "/v1/admin/limits", "").await;
        assert_eq!(answer.problem(400, "invalid_request"), format!("x-request-id: {LOOKS_LIKE_API_KEY}"));
        assert!(!answer.header("x-request-id").unwrap().contains(secret));
    }
    let metrics = keyed.ask(Some(&keyed.root), "GET", "/metrics", "").await.text;
    assert!(!metrics.contains("emk"), "{metrics}");
    let changes = keyed.ask(Some(&keyed.root), "GET", "/v1/audit", "").await.text;
    assert!(!changes.contains("emk"), "{changes}");
}

#[tokio::test]
async fn a_key_is_refused_over_grpc_too() {
    let keyed = KeyedServer::open().await;
    let key = keyed.key(Role::Caller, "default").await;
    let (mut limits, mut ledger) = (calls::limits(&keyed.server).await, calls::ledger(&keyed.server).await);
    let lease = keyed.server.lease();
    let mut refusals = Vec::new();

    let reserve = calls::reserve(&lease, &[(&key, 1)]);
    refusals.push(("requirements[0].key", limits.reserve(with(Some(&keyed.root), reserve)).await.map(drop)));
    let reserve = calls::reserve(&key, &[("a", 1)]);
    refusals.push(("lease_id", limits.reserve(with(Some(&keyed.root), reserve)).await.map(drop)));
    let reserve = v1::ReserveRequest { job_id: Some(key.clone()), ..calls::reserve(&lease, &[("a", 1)]) };
    refusals.push(("job_id", limits.reserve(with(Some(&keyed.root), reserve)).await.map(drop)));
    let mut put = calls::rolling("a", 1);
    put.definition.as_mut().unwrap().description = key.clone();
    refusals.push(("description", limits.put_limit(with(Some(&keyed.root), put)).await.map(drop)));
    let get = v1::GetLimitRequest { key: key.clone(), namespace: None };
    refusals.push(("key", limits.get_limit(with(Some(&keyed.root), get)).await.map(drop)));
    let state = v1::GetClientStateRequest { client_id: key.clone(), ..Default::default() };
    refusals.push(("client_id", ledger.get_client_state(with(Some(&keyed.root), state)).await.map(drop)));
    let mut list = with(Some(&keyed.root), v1::ListLimitsRequest::default());
    list.metadata_mut().insert("x-request-id", key.parse().unwrap());
    refusals.push(("x-request-id", limits.list_limits(list).await.map(drop)));

    for (place, refusal) in refusals {
        let message = calls::refused(refusal, Code::InvalidArgument);
        assert_eq!(message, format!("{place}: {LOOKS_LIKE_API_KEY}"));
    }
}
