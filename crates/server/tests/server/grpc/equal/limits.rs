//! Limits and leases without credit.

use serde_json::{Value, json};

use super::{Ask, compare};
use crate::support::TestServer;

pub(super) fn limit(key: &str, rest: &Value) -> Value {
    let mut json = json!({"key": key, "kind": "rolling", "capacity": 5, "window_seconds": 60});
    for (name, value) in rest.as_object().unwrap() {
        json[name] = value.clone();
    }
    json
}

/// Definitions, most of them invalid.
fn definitions() -> Vec<Ask> {
    let none = json!({});
    vec![
        Ask::Put(limit("a", &json!({"unit": "tokens", "description": "why", "overage": "deny"}))),
        Ask::Put(json!({"key": "calls", "kind": "concurrency", "capacity": 2, "timeout_seconds": 30})),
        Ask::Put(
            json!({"key": "month", "kind": "calendar", "capacity": 5, "period": "month", "utc_offset_minutes": -90}),
        ),
        Ask::Put(json!({"key": "week", "kind": "calendar", "capacity": 5, "period": "week", "shared": true})),
        Ask::Put(json!({"key": "b", "kind": "calendar", "capacity": 5})),
        Ask::Put(json!({"key": "b", "kind": "calendar", "capacity": 5, "period": "day", "utc_offset_minutes": 841})),
        Ask::Put(json!({"key": "b", "kind": "calendar", "capacity": 5, "period": "day", "window_seconds": 60})),
        Ask::Put(limit("b", &json!({"period": "day"}))),
        Ask::Put(limit("shadow", &json!({"capacity": 2, "enforce": false}))),
        Ask::Put(limit("a!b", &none)),
        Ask::Put(limit("b", &json!({"capacity": 0}))),
        Ask::Put(limit("b", &json!({"window_seconds": 0}))),
        Ask::Put(limit("b", &json!({"window_seconds": 31_622_401}))),
        Ask::Put(limit("b", &json!({"timeout_seconds": 1}))),
        Ask::Put(limit("b", &json!({"unit": "u".repeat(65)}))),
        Ask::Put(limit("b", &json!({"description": "d".repeat(1_025)}))),
        Ask::Put(json!({"key": "b", "kind": "rolling", "capacity": 1})),
        Ask::Put(json!({"key": "b", "kind": "concurrency", "capacity": 1})),
        Ask::Put(json!({"key": "b", "kind": "rolling", "window_seconds": 1})),
        Ask::Put(json!({"key": "b", "capacity": 1, "window_seconds": 1})),
        Ask::Put(json!({"key": "a", "kind": "concurrency", "capacity": 1, "timeout_seconds": 1})),
    ]
}

/// Reserves and completes of eight leases on two limits.
fn life(lease: &[String]) -> Vec<Ask> {
    let take = |place: usize, amounts: &[(&str, u64)]| crate::support::reserve(&lease[place], amounts);
    let use_up = |place: usize, amounts: &[(&str, u64)]| crate::support::complete(&lease[place], amounts);
    let many: Vec<String> = (0..33).map(|number| format!("k{number}")).collect();
    let many: Vec<(&str, u64)> = many.iter().map(|key| (key.as_str(), 1)).collect();
    let mut job = take(0, &[("a", 1)]);
    job["job_id"] = json!("a b");
    vec![
        Ask::Get("a"),
        Ask::Get("nothing"),
        Ask::Get("a b"),
        Ask::List,
        Ask::Reserve(take(0, &[("a", 4), ("calls", 1)])),
        Ask::Reserve(take(0, &[("calls", 1), ("a", 4)])),
        Ask::Reserve(take(0, &[("a", 3)])),
        Ask::Reserve(take(8, &[("shadow", 3), ("month", 1)])),
        Ask::Reserve(take(8, &[("month", 1), ("shadow", 3)])),
        Ask::Reserve(take(9, &[("week", 5)])),
        Ask::Get("month"),
        Ask::Usage("shadow"),
        Ask::Reserve(take(1, &[("a", 2), ("calls", 1)])),
        Ask::Reserve(take(2, &[("a", 6)])),
        Ask::Reserve(take(3, &[("a", 1), ("nothing", 1)])),
        Ask::Reserve(take(3, &[])),
        Ask::Reserve(take(3, &many)),
        Ask::Reserve(take(3, &[("a", 0)])),
        Ask::Reserve(take(3, &[("a", 1), ("a", 1)])),
        Ask::Reserve(take(3, &[("a b", 1)])),
        Ask::Reserve(job),
        Ask::Reserve(crate::support::reserve("not-a-ulid", &[("a", 1)])),
        Ask::Reserve(crate::support::reserve(&TestServer::lease_at(1), &[("a", 1)])),
        Ask::Lease(lease[0].clone()),
        Ask::Lease(lease[7].clone()),
        Ask::Lease("x".into()),
        Ask::Usage("a"),
        Ask::Usage("nothing"),
        Ask::ListUsage("key", None, None, 1_000),
        Ask::ListUsage("key", Some("ca"), None, 1),
        Ask::ListUsage("key", None, None, 1),
        Ask::ListUsage("key", None, Some("a"), 1),
        Ask::ListUsage("fullness", None, None, 1),
        Ask::ListUsage("debt", None, None, 9),
        Ask::ListUsage("debt", None, Some("a"), 9),
        Ask::Put(limit("a", &json!({"capacity": 1}))),
        Ask::Reserve(take(4, &[("a", 1)])),
        Ask::Usage("a"),
        Ask::Get("a"),
        Ask::Complete(use_up(0, &[("a", 7), ("z", 1)])),
        Ask::Complete(use_up(0, &[("a", 7), ("z", 1)])),
        Ask::Complete(use_up(1, &[])),
        Ask::Complete(use_up(6, &[])),
        Ask::Complete(use_up(0, &[("a", 1), ("a", 1)])),
        Ask::Complete(use_up(0, &many)),
        Ask::Reserve(take(0, &[("a", 4), ("calls", 1)])),
        Ask::ReserveBatch(vec![take(5, &[("calls", 2)]), take(7, &[("calls", 1)]), take(3, &[("x", 1)])]),
        Ask::ReserveBatch(vec![]),
        Ask::ReserveBatch(vec![take(5, &[("calls", 2)]), take(7, &[("calls", 0)])]),
        Ask::ReserveBatch(vec![take(5, &[("calls", 2)]); 257]),
        Ask::CompleteBatch(vec![use_up(5, &[("calls", 1)]), use_up(7, &[])]),
        Ask::CompleteBatch(vec![]),
        Ask::Usage("calls"),
        Ask::Delete("a"),
        Ask::Delete("calls"),
        Ask::Delete("calls"),
        Ask::Delete("nothing"),
        Ask::List,
    ]
}

/// Extensions of a lease on two limits.
fn extensions(lease: &[String]) -> Vec<Ask> {
    let extend = |place: usize, number: u32, more: Value| {
        let mut body = json!({"lease_id": lease[place], "extension": number});
        for (name, value) in more.as_object().unwrap() {
            body[name] = value.clone();
        }
        body
    };
    let add = |key: &str, amount: u64| json!({"add": [{"key": key, "amount": amount}]});
    let used = |key: &str, amount: u64| json!({"used": [{"key": key, "actual_amount": amount}]});
    let many: Vec<Value> = (0..33).map(|number| json!({"key": format!("k{number}"), "amount": 1})).collect();
    vec![
        Ask::Put(limit("a", &json!({"capacity": 9}))),
        Ask::Put(json!({"key": "calls", "kind": "concurrency", "capacity": 2, "timeout_seconds": 30})),
        Ask::Reserve(crate::support::reserve(&lease[0], &[("a", 4), ("calls", 1)])),
        Ask::Extend(extend(0, 1, add("a", 1))),
        Ask::Extend(extend(0, 1, add("a", 1))),
        Ask::Extend(extend(0, 1, add("a", 2))),
        Ask::Extend(extend(0, 2, used("a", 6))),
        Ask::Extend(extend(0, 3, used("z", 6))),
        Ask::Lease(lease[0].clone()),
        Ask::Extend(extend(0, 4, add("calls", 2))),
        Ask::Extend(extend(0, 5, add("calls", 3))),
        Ask::Extend(extend(0, 6, add("nothing", 1))),
        Ask::Extend(extend(0, 9, json!({}))),
        Ask::Extend(extend(0, 0, json!({}))),
        Ask::Extend(extend(0, 10_001, json!({}))),
        Ask::Extend(extend(0, 6, json!({"add": many}))),
        Ask::Extend(extend(0, 6, add("a", 0))),
        Ask::Extend(extend(0, 6, add("a b", 1))),
        Ask::Extend(extend(0, 6, json!({"renew": false}))),
        Ask::Extend(extend(1, 1, json!({}))),
        Ask::Extend(json!({"lease_id": "x", "extension": 1})),
        Ask::ExtendBatch(vec![extend(0, 7, json!({})), extend(0, 8, json!({})), extend(1, 1, json!({}))]),
        Ask::ExtendBatch(vec![]),
        Ask::ExtendBatch(vec![extend(0, 9, json!({})), extend(0, 10, add("a", 0))]),
        Ask::ExtendBatch(vec![extend(0, 9, json!({})); 257]),
        Ask::Complete(crate::support::complete(&lease[0], &[("a", 2)])),
        Ask::Extend(extend(0, 9, json!({}))),
        Ask::Lease(lease[0].clone()),
    ]
}

#[tokio::test]
async fn extensions_are_the_same_over_http_and_grpc() {
    let (http, grpc) = (TestServer::open().await, TestServer::open().await);
    let leases: Vec<String> = (0..2).map(|_| http.lease()).collect();
    compare(&extensions(&leases), &http, &grpc).await;
}

#[tokio::test]
async fn limits_are_the_same_over_http_and_grpc() {
    let (http, grpc) = (TestServer::open().await, TestServer::open().await);
    let leases: Vec<String> = (0..10).map(|_| http.lease()).collect();
    compare(&definitions(), &http, &grpc).await;
    compare(&life(&leases), &http, &grpc).await;
}
