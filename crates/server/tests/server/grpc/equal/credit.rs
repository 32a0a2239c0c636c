//! Credit limits: holds, settlements, and what is read back.

use serde_json::{Value, json};

use super::{Ask, Said, compare};
use crate::support::{START_MS, TestServer, complete, reserve};

fn credit(key: &str, account: &str, rest: &Value) -> Value {
    let mut json = json!({
        "key": key, "kind": "credit", "timeout_seconds": 60, "vault": "main", "account": account, "asset": "usd",
    });
    for (name, value) in rest.as_object().unwrap() {
        json[name] = value.clone();
    }
    json
}

fn body(vault: Option<&str>, sequence: u64, rest: &Value) -> Value {
    let mut json = json!({"namespace": "default", "client_id": "billing", "sequence": sequence});
    if let Some(vault) = vault {
        json["vault"] = vault.into();
    }
    for (name, value) in rest.as_object().unwrap() {
        json[name] = value.clone();
    }
    json
}

fn write(vault: Option<&str>, sequence: u64, operations: &Value) -> Ask {
    Ask::Write(body(vault, sequence, &json!({"operations": operations})))
}

/// A batch: several lists of operations under one sequence.
fn batch(vault: Option<&str>, sequence: u64, parts: &[Value]) -> Ask {
    let writes: Vec<Value> = parts.iter().map(|operations| json!({"operations": operations})).collect();
    Ask::BatchWrite(body(vault, sequence, &json!({"writes": writes})))
}

fn open(account: &str) -> Value {
    json!({"open_account": {"account": account, "overdraft": "deny"}})
}

fn issue(account: &str, amount: &str) -> Value {
    json!({"issue": {"account": account, "asset": "usd", "amount": amount, "memo": "top-up"}})
}

const MAIN: Option<&str> = Some("main");

/// Accounts in every state, and limits on them.
fn setup() -> Vec<Ask> {
    let none = json!({});
    let accounts = json!([open("acme"), open("bob"), open("cold"), open("gone"), issue("acme", "100")]);
    let standings = json!([{"freeze_account": {"account": "cold"}}, {"close_account": {"account": "gone"}}]);
    vec![
        write(MAIN, 1, &accounts),
        write(MAIN, 2, &standings),
        Ask::Put(credit("usd", "acme", &json!({"unit": "cents", "description": "prepaid"}))),
        Ask::Put(credit("strict", "acme", &json!({"overage": "deny", "revenue": "bob"}))),
        Ask::Put(credit("paying", "acme", &json!({"on_timeout": "charge"}))),
        Ask::Put(credit("paying", "acme", &json!({"on_timeout": "release"}))),
        Ask::Put(credit("cold", "cold", &none)),
        Ask::Put(credit("gone", "gone", &none)),
        Ask::Put(credit("nobody", "nobody", &none)),
        Ask::Put(credit("unpaid", "acme", &json!({"revenue": "nobody"}))),
        Ask::Put(json!({"key": "rpm", "kind": "rolling", "capacity": 1, "window_seconds": 60})),
    ]
}

/// Invalid definitions.
fn malformed() -> Vec<Ask> {
    let rolling = |field: &str, value: &str| {
        let mut json = json!({"key": "b", "kind": "rolling", "capacity": 1, "window_seconds": 60});
        json[field] = value.into();
        Ask::Put(json)
    };
    let slots = json!({"key": "b", "kind": "concurrency", "capacity": 1, "timeout_seconds": 60, "asset": "usd"});
    vec![
        Ask::Put(credit("b", "acme", &json!({"capacity": 5}))),
        Ask::Put(credit("b", "acme", &json!({"capacity": 0}))),
        Ask::Put(credit("b", "acme", &json!({"window_seconds": 5}))),
        Ask::Put(credit("b", "acme", &json!({"timeout_seconds": null}))),
        Ask::Put(credit("b", "acme", &json!({"timeout_seconds": 0}))),
        Ask::Put(credit("b", "acme", &json!({"vault": null}))),
        Ask::Put(credit("b", "acme", &json!({"vault": "a:b"}))),
        Ask::Put(credit("b", "acme", &json!({"account": null}))),
        Ask::Put(credit("b", "a b", &json!({}))),
        Ask::Put(credit("b", "acme", &json!({"asset": null}))),
        Ask::Put(credit("b", "acme", &json!({"asset": "USD"}))),
        Ask::Put(credit("b", "acme", &json!({"revenue": "a b"}))),
        Ask::Put(credit("b", "acme", &json!({"vault": null, "asset": null, "capacity": 5}))),
        rolling("vault", "main"),
        rolling("account", "acme"),
        rolling("asset", "usd"),
        rolling("revenue", "bob"),
        Ask::Put(slots),
        Ask::Put(credit("rpm", "acme", &json!({}))),
        Ask::Put(json!({"key": "usd", "kind": "rolling", "capacity": 1, "window_seconds": 60})),
    ]
}

/// Leases that settle, that are denied, and one that times out.
fn life(lease: &[String]) -> Vec<Ask> {
    let take = |place: usize, amounts: &[(&str, u64)]| reserve(&lease[place], amounts);
    let pay = |place: usize, amounts: &[(&str, u64)]| complete(&lease[place], amounts);
    let labelled = |place: usize, amounts: &[(&str, u64)], labels: Value| {
        let mut json = pay(place, amounts);
        json["labels"] = labels;
        json
    };
    let nine: serde_json::Map<_, _> = (0..9).map(|number| (format!("n{number}"), json!("x"))).collect();
    vec![
        Ask::Get("usd"),
        Ask::List,
        Ask::Reserve(take(0, &[("usd", 40), ("rpm", 1)])),
        Ask::Reserve(take(0, &[("rpm", 1), ("usd", 40)])),
        Ask::Usage("usd"),
        Ask::Usage("cold"),
        Ask::Usage("nobody"),
        Ask::Balances("main", "acme"),
        Ask::Reserve(take(1, &[("usd", 61)])),
        Ask::Reserve(take(1, &[("usd", 61)])),
        Ask::Reserve(take(2, &[("nobody", 1)])),
        Ask::Reserve(take(3, &[("cold", 1)])),
        Ask::Reserve(take(4, &[("gone", 1)])),
        Ask::Reserve(take(5, &[("unpaid", 1)])),
        Ask::Reserve(take(6, &[("usd", 61), ("rpm", 1)])),
        Ask::ReserveBatch(vec![take(7, &[("usd", 20)]), take(8, &[("strict", 41)]), take(9, &[("strict", 40)])]),
        Ask::Lease(lease[0].clone()),
        Ask::Lease(lease[1].clone()),
        Ask::Complete(labelled(0, &[("usd", 25)], json!(nine))),
        Ask::Complete(labelled(0, &[("usd", 25)], json!({"Model": "m"}))),
        Ask::Complete(labelled(0, &[("usd", 25)], json!({"model": "x".repeat(129)}))),
        Ask::Complete(labelled(0, &[("usd", 25), ("rpm", 1)], json!({"model": "m", "user": "é"}))),
        Ask::Complete(pay(0, &[("usd", 25), ("rpm", 1)])),
        Ask::CompleteBatch(vec![pay(9, &[("strict", 90)]), pay(8, &[("strict", 1)])]),
        Ask::Wait(60_000),
        // A timeout is recorded with the next command.
        Ask::Reserve(take(10, &[("nothing", 1)])),
        Ask::Complete(pay(7, &[("usd", 30)])),
        Ask::Usage("usd"),
        Ask::Reserve(take(11, &[("usd", 1)])),
        Ask::Delete("usd"),
        Ask::Get("usd"),
    ]
}

fn reads() -> Vec<Ask> {
    vec![
        Ask::Balances("main", "acme"),
        Ask::Balances("main", "bob"),
        Ask::Balances("main", "revenue"),
        Ask::Balances("main", "nobody"),
        Ask::Balances("us", "acme"),
        Ask::Balances("a:b", "acme"),
        Ask::Balances("main", "a*b"),
        Ask::Entries("acme", None, None),
        Ask::Entries("acme", None, Some(2)),
        Ask::Entries("acme", Some(2), Some(3)),
        Ask::Entries("acme", Some(1_000), None),
        Ask::Entries("revenue", None, Some(1_000)),
        Ask::Entries("bob", None, Some(1)),
        Ask::Entries("gone", None, None),
        Ask::Entries("nobody", None, None),
        Ask::EntriesOf("acme", None, None, true),
        Ask::EntriesOf("acme", Some(0), Some(1), false),
        Ask::EntriesOf("revenue", Some(1), None, true),
        Ask::EntriesOf("nobody", None, None, true),
        Ask::Statement("acme", None, None, None),
        Ask::Statement("acme", None, None, Some("model")),
        Ask::Statement("acme", Some(START_MS + 1), Some(START_MS + 60_000), Some("user")),
        Ask::Statement("revenue", None, Some(START_MS + 1), None),
        Ask::Statement("bob", Some(5), Some(4), None),
        Ask::Statement("bob", None, None, Some("Model")),
        Ask::Statement("nobody", None, None, None),
        Ask::StatementPage(None, 1),
        Ask::StatementPage(Some("999999-"), 1),
        Ask::StatementPage(Some("999999-61"), 10_000),
        Ask::StatementPage(Some("61"), 1),
        Ask::Vaults(None, None),
        Ask::Vaults(None, Some(1)),
        Ask::Vaults(Some("main"), None),
        Ask::Vaults(Some("a:b"), None),
        Ask::Accounts("main", None, None, None),
        Ask::Accounts("main", Some("b"), None, Some(1)),
        Ask::Accounts("main", Some(""), Some("acme"), Some(2)),
        Ask::Accounts("us", None, None, None),
        Ask::Audit("main"),
        Ask::Audit("us"),
        Ask::Audit("a:b"),
        Ask::State("billing", MAIN),
        Ask::State("billing", None),
        Ask::State("nobody", MAIN),
        Ask::State("billing", Some("us")),
        Ask::State("billing", Some("a:b")),
        Ask::State("a:b", None),
    ]
}

/// Batches of both scopes.
fn batches() -> Vec<Ask> {
    let transfer = json!({"transfer": {"from": "acme", "to": "bob", "asset": "usd", "amount": "1", "memo": "rent"}});
    let put = |definition: Value| json!({"put_limit": {"definition": definition}});
    let eu = json!({"open_vault": {"vault": "eu"}});
    let many = json!(vec![issue("acme", "1"); 128]);
    let good = || batch(MAIN, 3, &[json!([issue("acme", "50")]), json!([]), json!([transfer])]);
    vec![
        good(),
        good(),
        batch(MAIN, 3, &[json!([issue("acme", "50")])]),
        batch(MAIN, 9, &[]),
        batch(MAIN, 0, &[]),
        batch(MAIN, 4, &[json!([issue("acme", "1")]), json!([issue("nobody", "1")])]),
        batch(MAIN, 4, &[json!([issue("acme", "1")]), json!([issue("acme", "1"), {}])]),
        batch(MAIN, 4, &[json!([issue("a b", "1")])]),
        batch(MAIN, 4, &[many.clone(), many.clone(), json!([transfer])]),
        batch(MAIN, 4, &[many.clone(), many]),
        batch(MAIN, 5, &[]),
        batch(MAIN, 6, &[json!([eu])]),
        batch(None, 1, &[json!([eu]), json!([put(credit("eu", "acme", &json!({"vault": "eu"})))])]),
        batch(None, 2, &[json!([eu]), json!([put(credit("rpm", "acme", &json!({})))])]),
        batch(None, 2, &[json!([]), json!([eu, put(credit("b", "acme", &json!({"capacity": 5})))])]),
        batch(None, 2, &[json!([put(credit("b", "acme", &json!({"asset": null})))])]),
        write(None, 2, &json!([eu, put(credit("b", "acme", &json!({"timeout_seconds": null})))])),
        write(None, 2, &json!([eu, put(credit("rpm", "acme", &json!({})))])),
        Ask::Get("eu"),
    ]
}

/// Grants and caps, and what is wrong with them.
fn grants() -> Vec<Ask> {
    let issue = |rest: Value| {
        let mut json = issue("acme", "7");
        for (name, value) in rest.as_object().unwrap() {
            json["issue"][name] = value.clone();
        }
        json!([json])
    };
    let capped = |limit: &str| json!([{"open_account": {"account": "capped", "overdraft": {"limit": limit}}}]);
    let later = START_MS + 600_000;
    vec![
        write(MAIN, 6, &issue(json!({"expires_at_unix_ms": later, "priority": 0}))),
        write(MAIN, 7, &issue(json!({"expires_at_unix_ms": later + 1}))),
        write(MAIN, 8, &issue(json!({"priority": 255}))),
        write(MAIN, 9, &issue(json!({"expires_at_unix_ms": 5}))),
        write(MAIN, 9, &issue(json!({"priority": 256}))),
        write(MAIN, 9, &issue(json!({"expires_at_unix_ms": u64::MAX}))),
        write(MAIN, 9, &capped("100")),
        write(MAIN, 10, &json!([{"transfer": {"from": "capped", "to": "bob", "asset": "usd", "amount": "101"}}])),
        write(MAIN, 10, &json!([{"transfer": {"from": "capped", "to": "bob", "asset": "usd", "amount": "100"}}])),
        Ask::Grants("main", "acme"),
        Ask::Grants("main", "capped"),
        Ask::Grants("main", "nobody"),
        Ask::Grants("a:b", "acme"),
        Ask::Wait(900_000),
        write(MAIN, 11, &json!([])),
        Ask::Grants("main", "acme"),
    ]
}

/// Writes with idempotency keys, and plans, and what is wrong with them.
fn keys_and_plans() -> Vec<Ask> {
    let keyed = |key: &str, vault: Option<&str>, operations: Value| {
        let mut json = json!({"namespace": "default", "idempotency_key": key, "operations": operations});
        if let Some(vault) = vault {
            json["vault"] = vault.into();
        }
        json
    };
    let mixed = |field: &str, value: Value| {
        let mut json = keyed("evt_3", MAIN, json!([]));
        json[field] = value;
        Ask::Write(json)
    };
    let paid = || Ask::Write(keyed("evt_1", MAIN, json!([issue("acme", "3")])));
    let plan = |field: &str, value: Value| {
        let mut plan = json!({"asset": "usd", "amount": "70", "period": "hour", "utc_offset_minutes": 0});
        plan[field] = value;
        plan
    };
    let set = |plan: Value| Ask::Write(keyed("evt_2", MAIN, json!([{"set_plan": {"account": "acme", "plan": plan}}])));
    let opened = |plan: Value| {
        let account = json!({"account": "subscriber", "overdraft": "deny", "plan": plan});
        Ask::Write(keyed("evt_2", MAIN, json!([{"open_account": account}])))
    };
    let mut asks = vec![
        paid(),
        paid(),
        Ask::Write(keyed("evt_1", MAIN, json!([issue("acme", "4")]))),
        Ask::Write(keyed("evt_1", None, json!([]))),
        Ask::Write(keyed("evt_1", Some("us"), json!([]))),
        Ask::Write(keyed("", MAIN, json!([]))),
        Ask::Write(keyed("a b", MAIN, json!([]))),
        Ask::Write(keyed(&"k".repeat(256), MAIN, json!([]))),
        mixed("client_id", json!("billing")),
        mixed("sequence", json!(1)),
        Ask::Write(keyed("evt_2", MAIN, json!([issue("nobody", "1")]))),
    ];
    for (field, value) in
        [("utc_offset_minutes", json!(841)), ("utc_offset_minutes", json!(-721)), ("asset", json!("U S"))]
    {
        asks.extend([set(plan(field, value.clone())), opened(plan(field, value))]);
    }
    asks.extend([
        opened(plan("carry_over", json!({"max": "5"}))),
        paid(),
        Ask::Accounts("main", Some("sub"), None, None),
        Ask::Grants("main", "subscriber"),
        Ask::Wait(25 * 3_600_000),
        paid(),
        Ask::Write(keyed("evt_4", MAIN, json!([]))),
        Ask::Grants("main", "subscriber"),
    ]);
    asks
}

#[tokio::test]
async fn keys_and_plans_are_the_same_over_http_and_grpc() {
    let (http, grpc) = (TestServer::open().await, TestServer::open().await);
    for asks in [setup(), keys_and_plans()] {
        compare(&asks, &http, &grpc).await;
    }
    // Only the hint about JSON differs.
    for (plan, field) in [
        (json!({"asset": "usd", "amount": "0", "period": "day"}), "amount"),
        (json!({"asset": "usd", "amount": "1", "period": "day", "carry_over": {"max": "0"}}), "carry_over"),
    ] {
        let ask = write(MAIN, 9, &json!([{"set_plan": {"account": "acme", "plan": plan}}]));
        for said in [ask.over_http(&http).await, ask.over_grpc(&grpc).await] {
            let Said::Failed("invalid", message) = said else { panic!("{said:?}") };
            let begin = format!("operations[0].set_plan.plan.{field}");
            assert!(message.starts_with(&begin) && message.contains("found \"0\", allowed are"), "{message}");
        }
    }
}

#[tokio::test]
async fn credit_is_the_same_over_http_and_grpc() {
    let (http, grpc) = (TestServer::open().await, TestServer::open().await);
    let leases: Vec<String> = (0..12).map(|_| http.lease()).collect();
    for asks in [setup(), malformed(), life(&leases), reads(), batches(), grants(), reads()] {
        compare(&asks, &http, &grpc).await;
    }
    for (name, value) in [
        ("earmark_reserves_total{outcome=\"insufficient_credit\"}", 6.0),
        ("earmark_denials_total{namespace=\"default\",key=\"rpm\",reason=\"capacity\"}", 1.0),
        ("earmark_credit_settled_total{how=\"paid\"}", 100.0),
    ] {
        assert_eq!(grpc.metric(name).await, value, "{name}");
    }
}
