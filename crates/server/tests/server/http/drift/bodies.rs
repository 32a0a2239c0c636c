//! The documented bodies are those that the server takes.

use earmark_core::REQUIREMENTS_MAX;
use serde_json::{Value, json};

use super::{LIMITS, WRITE, WRITE_BATCH};
use crate::support::{Schemas, TestServer, reserve};

#[tokio::test]
async fn the_documented_bodies_are_those_that_are_taken() {
    let server = TestServer::open().await;
    server.put_rolling("a", 1_000, 60).await;
    let document = server.ok("GET", "/openapi.json", &Value::Null).await;
    let schemas = Schemas(document.clone());
    let good = reserve(&server.lease(), &[("a", 1)]);
    let with = |change: fn(&mut Value)| {
        let mut body = good.clone();
        change(&mut body);
        body
    };
    let part = |number: usize| json!({"key": format!("k{number}"), "amount": 1});
    let parts =
        |count: usize| json!({"lease_id": good["lease_id"], "requirements": (0..count).map(part).collect::<Vec<_>>()});
    let schema = &document["paths"]["/v1/reserve"]["post"]["requestBody"]["content"]["application/json"]["schema"];
    for body in [
        good.clone(),
        with(|body| body["job_id"] = json!("job:1")),
        with(|body| body["job_id"] = Value::Null),
        with(|body| body["job_id"] = json!("")),
        with(|body| body["actor"] = json!("me")),
        with(|body| body["lease_id"] = json!("x")),
        with(|body| body["requirements"][0]["amount"] = json!(0)),
        with(|body| body["requirements"][0]["amount"] = json!(u64::MAX)),
        with(|body| body["requirements"][0]["amount"] = json!("1")),
        with(|body| body["requirements"][0]["amount"] = json!(-1)),
        with(|body| body["requirements"][0]["key"] = json!("a b")),
        with(|body| body["requirements"][0]["key"] = json!("k".repeat(257))),
        with(|body| body["requirements"][0]["unit"] = json!("x")),
        with(|body| body["requirements"] = json!([])),
        with(|body| body["requirements"] = json!([["a", 1]])),
        with(|body| _ = body.as_object_mut().unwrap().remove("lease_id")),
        parts(REQUIREMENTS_MAX),
        parts(REQUIREMENTS_MAX + 1),
        json!([]),
    ] {
        let is_documented = schemas.check(schema, &body).is_ok();
        let status = server.ask("POST", "/v1/reserve", &body.to_string()).await.status;
        assert_eq!(status == 200, is_documented, "{body}");
    }
    let schema = &document["paths"][LIMITS]["put"]["requestBody"]["content"]["application/json"]["schema"];
    for body in [
        json!({"key": "r", "kind": "rolling", "capacity": 1, "window_seconds": 60}),
        json!({"key": "r", "kind": "rolling", "capacity": 1, "window_seconds": 60, "timeout_seconds": null}),
        json!({"key": "r", "kind": "rolling", "capacity": 1, "window_seconds": 60, "timeout_seconds": 1}),
        json!({"key": "r", "kind": "rolling", "capacity": 1, "timeout_seconds": 60}),
        json!({"key": "r", "kind": "rolling", "capacity": 1}),
        json!({"key": "c", "kind": "concurrency", "capacity": 1, "timeout_seconds": 31_622_400}),
        json!({"key": "c", "kind": "concurrency", "capacity": 1, "timeout_seconds": 31_622_401}),
        json!({"key": "c", "kind": "concurrency", "capacity": 0, "timeout_seconds": 60}),
        json!({"key": "u", "kind": "credit", "capacity": 1, "timeout_seconds": 60}),
        json!({"key": "u", "kind": "credit", "timeout_seconds": 60, "vault": "main", "account": "a", "asset": "usd"}),
        json!({"key": "u", "kind": "credit", "timeout_seconds": 60, "vault": "main", "account": "a", "asset": "usd",
            "revenue": "r", "capacity": null, "window_seconds": null}),
        json!({"key": "u", "kind": "credit", "timeout_seconds": 60, "vault": "main", "account": "a", "asset": "USD"}),
        json!({"key": "u", "kind": "credit", "timeout_seconds": 60, "vault": "a:b", "account": "a", "asset": "usd"}),
        json!({"key": "u", "kind": "credit", "timeout_seconds": 60, "vault": "main", "account": null, "asset": "usd"}),
        json!({"key": "u", "kind": "credit", "timeout_seconds": 60, "vault": "main", "account": "a", "asset": "usd",
            "capacity": 1}),
        json!({"key": "r", "kind": "rolling", "capacity": 1, "window_seconds": 60, "vault": "main"}),
        json!({"key": "r", "kind": "rolling", "capacity": 1, "window_seconds": 60, "overage": "deny"}),
        json!({"key": "r", "kind": "rolling", "capacity": 1, "window_seconds": 60, "overage": null}),
        json!({"key": "r", "kind": "rolling", "capacity": 1, "window_seconds": 60, "overage": "free"}),
        json!({"key": "r", "kind": "rolling", "capacity": 1, "window_seconds": 60, "unit": "u".repeat(65)}),
    ] {
        let is_documented = schemas.check(schema, &body).is_ok();
        let status = server.ask("PUT", LIMITS, &body.to_string()).await.status;
        assert_eq!(status == 200, is_documented, "{body}");
    }
}

#[tokio::test]
async fn the_documented_writes_are_those_that_are_taken() {
    let server = TestServer::open().await;
    let document = server.ok("GET", "/openapi.json", &Value::Null).await;
    let schemas = Schemas(document.clone());
    let schema = &document["paths"][WRITE]["post"]["requestBody"]["content"]["application/json"]["schema"];
    let of = |operations: Value| json!({"namespace": "default", "vault": "main", "client_id": "c", "sequence": 1, "operations": operations});
    let issue = |amount: Value| json!([{"issue": {"account": "revenue", "asset": "usd", "amount": amount}}]);
    for body in [
        of(json!([])),
        of(issue(json!(1))),
        of(issue(json!("1"))),
        of(issue(json!(0))),
        of(issue(json!("01"))),
        of(issue(json!(-1))),
        of(json!([{}])),
        of(json!([{"freeze_account": {"account": "a"}, "close_account": {"account": "a"}}])),
        of(json!([{"freeze_account": {"account": "a", "actor": "user:me"}}])),
        of(json!([{"put_limit": {"definition": {"key": "a", "kind": "rolling", "capacity": 1}}}])),
        of(json!(vec![json!({"open_vault": {"vault": "a"}}); 257])),
    ] {
        let is_documented = schemas.check(schema, &body).is_ok();
        let answer = server.ask("POST", WRITE, &body.to_string()).await;
        assert_eq!(answer.status != 400, is_documented, "{body}: {answer:?}");
    }
}

// The document allowed 256 parts of a batch. The server accepts any number; only the total of
// operations is limited.
#[tokio::test]
async fn a_batch_may_have_more_parts_than_operations_and_is_documented_so() {
    let server = TestServer::open().await;
    let document = server.ok("GET", "/openapi.json", &Value::Null).await;
    let schema = &document["paths"][WRITE_BATCH]["post"]["requestBody"]["content"]["application/json"]["schema"];
    let vault = |number: usize| json!({"open_vault": {"vault": format!("v{number}")}});
    let of = |operations: usize, parts: usize| {
        let writes: Vec<Value> = (0..parts)
            .map(|part| json!({"operations": (part < operations).then(|| vault(part)).into_iter().collect::<Vec<_>>()}))
            .collect();
        json!({"namespace": "default", "client_id": "c", "sequence": 1, "writes": writes})
    };
    let refused = server.ask("POST", WRITE_BATCH, &of(257, 300).to_string()).await;
    assert_eq!((refused.status, &refused.json()["error"]["code"]), (400, &json!("INVALID")));
    let body = of(256, 300);
    Schemas(document.clone()).check(schema, &body).unwrap();
    let taken = server.ask("POST", WRITE_BATCH, &body.to_string()).await;
    assert_eq!(taken.json()["success"]["results"].as_array().map(Vec::len), Some(256), "{taken:?}");
    let malformed = json!({"namespace": "default", "client_id": "c", "sequence": 2,
        "writes": vec![json!({"operations": []}); 257], "actor": "user:me"});
    let message = server.ask("POST", WRITE_BATCH, &malformed.to_string()).await.problem(400, "invalid_request");
    assert!(message.starts_with("actor: found an unknown field"), "{message}");
}
