//! Sequenced writes and credit over HTTP: every code with its status, and reads.

use std::sync::Arc;

use earmark_admission::{BackendError, ManualClock};
use earmark_core::{OPERATIONS_MAX, RESULTS_MAX};
use serde_json::{Value, json};

use crate::support::{Answer, Broken, START_MS, TestServer};

fn body(vault: Option<&str>, sequence: u64, operations: Value) -> Value {
    let mut body =
        json!({"namespace": "default", "client_id": "billing", "sequence": sequence, "operations": operations});
    if let Some(vault) = vault {
        body["vault"] = json!(vault);
    }
    body
}

fn open(name: &str) -> Value {
    json!({"open_account": {"account": name, "overdraft": "deny"}})
}

fn issue(name: &str, amount: impl Into<Value>) -> Value {
    json!({"issue": {"account": name, "asset": "usd", "amount": amount.into()}})
}

fn transfer(from: &str, to: &str, amount: &str) -> Value {
    json!({"transfer": {"from": from, "to": to, "asset": "usd", "amount": amount, "memo": "rent"}})
}

const MAIN: Option<&str> = Some("main");

async fn write(server: &TestServer, body: &Value) -> Answer {
    server.ask("POST", "/v1/write", &body.to_string()).await
}

async fn commit(server: &TestServer, vault: Option<&str>, sequence: u64, operations: Value) -> Value {
    server.ok("POST", "/v1/write", &body(vault, sequence, operations)).await["success"].clone()
}

async fn refuse(server: &TestServer, status: u16, body: &Value) -> Value {
    let answer = write(server, body).await;
    assert_eq!(answer.status, status, "{body}: {answer:?}");
    let error = answer.json()["error"].clone();
    assert!(!error["message"].as_str().unwrap().is_empty(), "{error}");
    error
}

async fn available(server: &TestServer, account: &str) -> String {
    let path = format!("/v1/vaults/main/accounts/{account}/balances");
    let balances = server.ok("GET", &path, &Value::Null).await;
    balances["balances"][0]["available"].as_str().unwrap_or("0").to_owned()
}

#[tokio::test]
async fn a_write_is_answered_once_and_for_all() {
    let server = TestServer::open().await;
    let operations = json!([open("acme"), open("bob"), issue("acme", "5000000"), transfer("acme", "bob", "1")]);
    let request = body(MAIN, 1, operations);
    let first = write(&server, &request).await;
    assert_eq!(first.status, 200, "{first:?}");
    let success = &first.json()["success"];
    assert_eq!((&success["sequence"], &success["actor"]), (&json!(1), &json!("system:local")));
    let tx = &success["tx_id"];
    let entry = json!({"entry": tx});
    assert_eq!(success["results"], json!([{"account": "acme"}, {"account": "bob"}, entry, entry]));
    server.clock.advance_ms(60_000);
    assert_eq!(write(&server, &request).await.text, first.text);
    assert_eq!((available(&server, "acme").await, available(&server, "bob").await), ("4999999".into(), "1".into()));
}

/// Retries and refused writes took a log index, so that an auditor found gaps in the order
/// of writes.
#[tokio::test]
async fn the_places_of_committed_writes_have_no_holes() {
    let server = TestServer::open().await;
    for sequence in 1..=3 {
        let committed = commit(&server, MAIN, sequence, json!([])).await;
        assert_eq!(committed["log_index"], sequence);
        assert_eq!(commit(&server, MAIN, sequence, json!([])).await, committed);
        refuse(&server, 409, &body(MAIN, sequence + 2, json!([]))).await;
        refuse(&server, 404, &body(MAIN, sequence + 1, json!([issue("nobody", 1)]))).await;
    }
}

#[tokio::test]
async fn sequences_are_counted_and_refused_by_code() {
    let server = TestServer::open().await;
    let gap = refuse(&server, 409, &body(MAIN, 2, json!([]))).await;
    assert_eq!((&gap["code"], &gap["last_committed_sequence"]), (&json!("SEQUENCE_GAP"), &json!(0)));
    commit(&server, MAIN, 1, json!([open("acme")])).await;
    let reused = refuse(&server, 409, &body(MAIN, 1, json!([open("bob")]))).await;
    assert_eq!((&reused["code"], &reused["last_committed_sequence"]), (&json!("SEQUENCE_REUSED"), &json!(1)));
    let top = refuse(&server, 400, &body(MAIN, u64::MAX, json!([]))).await;
    assert_eq!(top["code"], "INVALID");
    let mut wire = crate::support::Wire::to(server.address).await;
    let last = RESULTS_MAX as u64 + 2;
    for sequence in 2..=last {
        let fence = body(MAIN, sequence, json!([])).to_string();
        assert_eq!(wire.ask("POST", "/v1/write", &fence).await.status, 200);
    }
    let gone = refuse(&server, 409, &body(MAIN, 1, json!([open("acme")]))).await;
    assert_eq!((&gone["code"], &gone["last_committed_sequence"]), (&json!("ALREADY_COMMITTED"), &json!(last)));
}

#[tokio::test]
async fn every_scope_has_its_own_stream_and_its_own_operations() {
    let server = TestServer::open().await;
    let state = async |query: &str| {
        let path = format!("/v1/clients/billing{query}");
        server.ok("GET", &path, &Value::Null).await["last_committed_sequence"].as_u64().unwrap()
    };
    let limit = json!({"key": "rpm", "kind": "rolling", "capacity": 5, "window_seconds": 60});
    let put = |revision: u64| json!({"put_limit": {"definition": limit, "expected_revision": revision}});
    let opened = commit(&server, None, 1, json!([{"open_vault": {"vault": "eu"}}, put(0)])).await;
    assert_eq!(opened["results"], json!([{"vault": "eu"}, {"limit": "rpm", "revision": 1, "status": "active"}]));
    commit(&server, MAIN, 1, json!([])).await;
    commit(&server, Some("eu"), 1, json!([])).await;
    commit(&server, Some("eu"), 2, json!([])).await;
    assert_eq!((state("").await, state("?vault=main").await), (1, 1));
    assert_eq!(state("?namespace=default&vault=eu").await, 2);
    assert_eq!(server.usage("rpm").await["capacity"], 5);
    let condition = refuse(&server, 409, &body(None, 2, json!([put(1), put(7)]))).await;
    assert_eq!((&condition["code"], &condition["operation"]), (&json!("CONDITION_FAILED"), &json!(1)));
    let other = json!({"key": "rpm", "kind": "concurrency", "capacity": 5, "timeout_seconds": 60});
    let kind = json!([put(1), {"put_limit": {"definition": other}}]);
    let kind = refuse(&server, 400, &body(None, 2, kind)).await;
    assert_eq!((&kind["code"], &kind["operation"]), (&json!("INVALID"), &json!(1)));
    let message = kind["message"].as_str().unwrap();
    assert!(message.starts_with("operations[1].put_limit.definition.kind: an existing limit"), "{message}");
    let scope = refuse(&server, 400, &body(MAIN, 2, json!([open("a"), put(1)]))).await;
    assert_eq!((&scope["code"], &scope["operation"]), (&json!("WRONG_SCOPE"), &json!(1)));
    let nowhere = refuse(&server, 404, &body(Some("us"), 1, json!([]))).await;
    assert_eq!(nowhere["code"], "VAULT_NOT_FOUND");
    let mut elsewhere = body(None, 1, json!([]));
    elsewhere["namespace"] = json!("elsewhere");
    assert_eq!(refuse(&server, 400, &elsewhere).await["code"], "INVALID");
    let deleted = commit(&server, None, 2, json!([{"delete_limit": {"key": "rpm", "expected_revision": 1}}])).await;
    assert_eq!(deleted["results"][0]["status"], "deleted");
}

#[tokio::test]
async fn credit_is_refused_by_code_and_nothing_changes() {
    let server = TestServer::open().await;
    let setup = json!([
        open("acme"), open("cold"), open("gone"), issue("acme", 10), issue("cold", 10),
        {"freeze_account": {"account": "cold"}}, {"close_account": {"account": "gone"}},
    ]);
    commit(&server, MAIN, 1, setup).await;
    for (operation, status, code) in [
        (transfer("acme", "cold", "12"), 402, "INSUFFICIENT_CREDIT"),
        (transfer("acme", "nobody", "1"), 404, "ACCOUNT_NOT_FOUND"),
        (issue("gone", 1), 409, "ACCOUNT_CLOSED"),
        (transfer("cold", "acme", "1"), 409, "ACCOUNT_FROZEN"),
        (open("acme"), 409, "CONFLICT"),
        (transfer("acme", "acme", "1"), 400, "INVALID"),
    ] {
        let error = refuse(&server, status, &body(MAIN, 2, json!([issue("acme", 1), operation]))).await;
        assert_eq!((&error["code"], &error["operation"]), (&json!(code), &json!(1)), "{operation}");
    }
    for (operation, message) in [
        (open("acme"), "operations[0]: account: the account exists"),
        (json!({"close_account": {"account": "acme"}}), "operations[0]: account: the account has a balance"),
    ] {
        let error = refuse(&server, 409, &body(MAIN, 2, json!([operation]))).await;
        let found = error["message"].as_str().unwrap();
        assert!(found.starts_with(message) && !found.contains("vault to delete"), "{found}");
    }
    assert_eq!(available(&server, "acme").await, "10");
    commit(&server, MAIN, 2, json!([{"unfreeze_account": {"account": "cold"}}, transfer("cold", "acme", "1")])).await;
    assert_eq!(available(&server, "acme").await, "11");
}

#[tokio::test]
async fn clients_beyond_the_cap_are_refused() {
    let server = TestServer::with(|local, _| local.config.clients_max = 1).await;
    commit(&server, MAIN, 1, json!([])).await;
    let mut other = body(MAIN, 1, json!([]));
    other["client_id"] = json!("other");
    assert_eq!(refuse(&server, 409, &other).await["code"], "TOO_MANY_CLIENTS");
}

#[tokio::test]
async fn a_write_that_gets_no_answer_is_to_be_sent_again() {
    for error in [BackendError::Overloaded("no room"), BackendError::Failed("broken".into())] {
        let clock = ManualClock::at(START_MS);
        let server = TestServer::on(clock, Arc::new(Broken(error)), TestServer::options()).await;
        let error = refuse(&server, 503, &body(MAIN, 1, json!([]))).await;
        assert_eq!(error["code"], "UNAVAILABLE");
        assert!(error["message"].as_str().unwrap().ends_with("retry the same write"), "{error}");
        assert_eq!(server.metric("earmark_writes_total{code=\"UNAVAILABLE\"}").await, 1.0);
    }
}

#[tokio::test]
async fn a_batch_is_one_write() {
    let server = TestServer::open().await;
    let batch = |sequence: u64, writes: Value| json!({"namespace": "default", "vault": "main", "client_id": "billing", "sequence": sequence, "writes": writes});
    let good = batch(1, json!([{"operations": [open("acme")]}, {"operations": [issue("acme", 5)]}]));
    let done = server.ok("POST", "/v1/write/batch", &good).await;
    assert_eq!(done["success"]["results"].as_array().unwrap().len(), 2);
    assert_eq!(server.ok("POST", "/v1/write/batch", &good).await, done);
    let bad = batch(2, json!([{"operations": [issue("acme", 1)]}, {"operations": [issue("nobody", 1)]}]));
    let answer = server.ask("POST", "/v1/write/batch", &bad.to_string()).await;
    assert_eq!((answer.status, &answer.json()["error"]["operation"]), (404, &json!(1)));
    assert_eq!(available(&server, "acme").await, "5");
    let half = json!({"operations": vec![issue("acme", 1); OPERATIONS_MAX / 2]});
    let full = batch(2, json!([half, half]));
    let over = batch(2, json!([half, half, {"operations": [issue("acme", 1)]}]));
    let answer = server.ask("POST", "/v1/write/batch", &over.to_string()).await;
    assert_eq!((answer.status, &answer.json()["error"]["code"]), (400, &json!("INVALID")));
    server.ok("POST", "/v1/write/batch", &full).await;
    assert_eq!(available(&server, "acme").await, "261");
}

#[tokio::test]
async fn amounts_are_read_back_as_they_were_written() {
    let server = TestServer::open().await;
    let most = i128::MAX.to_string();
    commit(&server, MAIN, 1, json!([open("a"), open("b"), issue("a", most.as_str())])).await;
    assert_eq!(available(&server, "a").await, most);
    // An integer beyond 64 bits and beyond the precision of floats.
    let text = body(MAIN, 2, json!([transfer("a", "b", "AMOUNT")])).to_string();
    let large = "100000000000000000000000000000000000001";
    let answer = server.ask("POST", "/v1/write", &text.replace("\"AMOUNT\"", large)).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(available(&server, "b").await, large);
    for amount in [
        "0",
        "-1",
        "1.0",
        "1e3",
        "\"\"",
        "\"01\"",
        "\"1.5\"",
        "\"+1\"",
        "\" 1\"",
        "null",
        "\"x\"",
        "170141183460469231731687303715884105728",
    ] {
        let answer = server.ask("POST", "/v1/write", &text.replace("\"AMOUNT\"", amount)).await;
        let message = answer.problem(400, "invalid_request");
        assert!(
            message.starts_with(&format!("operations[0].transfer.amount: found {amount}, allowed are")),
            "{message}"
        );
    }
}

#[tokio::test]
async fn a_body_that_is_not_what_it_must_be_is_refused_by_field() {
    let server = TestServer::open().await;
    let with = |change: fn(&mut Value)| {
        let mut body = body(MAIN, 1, json!([open("acme")]));
        change(&mut body);
        body
    };
    for (body, message) in [
        (with(|body| body["actor"] = json!("user:me")), "actor: found an unknown field"),
        (with(|body| body["sequence"] = json!(0)), "sequence: found 0, allowed are integers from 1"),
        (with(|body| body["sequence"] = json!("1")), "sequence: found \"1\""),
        (with(|body| body["vault"] = json!("a:b")), "vault: found ':' at byte 1"),
        (with(|body| body["client_id"] = json!("")), "client_id: found 0 bytes"),
        (with(|body| _ = body.as_object_mut().unwrap().remove("namespace")), "namespace is required"),
        (with(|body| body["operations"] = json!({})), "operations: found {}, allowed is a list"),
        (with(|body| body["operations"] = json!([{}])), "operations[0]: found 0 fields, allowed is exactly one"),
        (with(|body| body["operations"] = json!(["issue"])), "operations[0]: found \"issue\", allowed is an object"),
        (
            with(|body| body["operations"][0]["freeze_account"] = json!({"account": "a"})),
            "operations[0]: found 2 fields, allowed is exactly one of put_limit",
        ),
        (with(|body| body["operations"] = json!([{"mint": {}}])), "operations[0].mint: found an unknown field"),
        (
            with(|body| body["operations"][0]["open_account"]["actor"] = json!("user:me")),
            "operations[0].open_account.actor: found an unknown field",
        ),
        (
            with(|body| body["operations"][0]["open_account"]["overdraft"] = json!("some")),
            "operations[0].open_account.overdraft: found \"some\", allowed are deny and allow",
        ),
        (
            with(|body| body["operations"][0]["open_account"] = json!(["acme", "deny"])),
            "operations[0].open_account: found [\"acme\",\"deny\"], allowed is an object",
        ),
        (
            with(|body| {
                body["operations"] = json!([
                    {"open_vault": {"vault": "eu"}},
                    {"put_limit": {"definition": {"key": "a", "kind": "rolling", "capacity": 1}}},
                ])
            }),
            "operations[1].put_limit.definition.window_seconds is required for a rolling limit",
        ),
        (
            with(|body| {
                body["operations"] =
                    json!([{"put_limit": {"definition": {"key": "a", "kind": "credit", "capacity": 1}}}])
            }),
            "operations[0].put_limit.definition.capacity: found 1, but a credit limit has none",
        ),
    ] {
        let found = write(&server, &body).await.problem(400, "invalid_request");
        assert!(found.starts_with(message), "{body}: {found}");
    }
    let many = body(MAIN, 1, json!(vec![open("a"); OPERATIONS_MAX + 1]));
    assert_eq!(write(&server, &many).await.status, 400);
    let long = "m".repeat(257);
    let memo = json!({"issue": {"account": "acme", "asset": "usd", "amount": 1, "memo": long}});
    assert_eq!(refuse(&server, 400, &body(MAIN, 1, json!([memo]))).await["code"], "INVALID");
    let state = server.ok("GET", "/v1/clients/billing?vault=main", &Value::Null).await;
    assert_eq!(state, json!({"last_committed_sequence": 0}));
}

#[tokio::test]
async fn the_history_of_an_account_is_read_page_by_page_and_adds_up() {
    let server = TestServer::open().await;
    commit(&server, MAIN, 1, json!([open("acme"), open("bob"), issue("acme", 10)])).await;
    let second = commit(&server, MAIN, 2, json!([transfer("acme", "bob", "4")])).await;
    commit(&server, MAIN, 3, json!([{"retire": {"account": "acme", "asset": "usd", "amount": "1"}}])).await;
    let path = "/v1/vaults/main/accounts/acme/entries";
    let page = server.ok("GET", &format!("{path}?page_size=2"), &Value::Null).await;
    assert_eq!(page["entries"][0]["changes"], json!([{"asset": "usd", "amount": "10", "held": "0", "issued": "10"}]));
    let entry = json!({
        "number": 2, "kind": "transaction", "tx_id": second["tx_id"], "log_index": second["log_index"],
        "committed_at_unix_ms": second["committed_at_unix_ms"], "actor": "system:local", "client_id": "billing",
        "sequence": 2, "memos": ["rent"],
        "changes": [{"asset": "usd", "amount": "-4", "held": "0", "transferred_out": "4"}],
    });
    assert_eq!(page["entries"][1], entry);
    let next = page["next"].as_u64().unwrap();
    let rest = server.ok("GET", &format!("{path}?after={next}"), &Value::Null).await;
    assert_eq!((rest["entries"].as_array().unwrap().len(), &rest["next"]), (1, &Value::Null));
    let audit = server.ok("GET", "/v1/vaults/main/audit", &Value::Null).await;
    let totals = json!({"asset": "usd", "issued": "10", "retired": "1", "live": "9"});
    assert_eq!(audit, json!({"balanced": true, "assets": [totals]}));
}

#[tokio::test]
async fn reads_of_what_is_not_there_or_malformed_are_refused() {
    let server = TestServer::open().await;
    for (path, status, message) in [
        ("/v1/vaults/us/audit", 404, "vault: no vault has this name"),
        ("/v1/vaults/a%3Ab/audit", 400, "vault: found ':' at byte 1"),
        ("/v1/vaults/us/accounts/a/balances", 404, "vault: no vault"),
        ("/v1/vaults/main/accounts/a/balances", 404, "account: no account has this name"),
        ("/v1/vaults/main/accounts/a%20b/entries", 400, "account: found ' ' at byte 1"),
        ("/v1/vaults/main/accounts/revenue/entries?page_size=0", 400, "page_size: found \"0\", allowed"),
        ("/v1/vaults/main/accounts/revenue/entries?after=-1", 400, "after: found \"-1\", allowed"),
        ("/v1/vaults/main/accounts/revenue/entries?since=-1", 400, "since: found \"-1\", allowed"),
        ("/v1/vaults/main/accounts/revenue/entries?before=1", 400, "query: found \"before\", allowed are namespace"),
        ("/v1/clients/a?vault=us", 404, "vault: no vault"),
        (
            "/v1/clients/a?namespace=elsewhere",
            404,
            "namespace: no namespace has this name; the first limit, vault or key in it creates it",
        ),
        ("/v1/clients/a?vault=main&vault=main", 400, "vault: given twice"),
        ("/v1/clients/a%3Ab", 400, "client_id: found ':' at byte 1"),
    ] {
        let code = if status == 404 { "not_found" } else { "invalid_request" };
        let found = server.ask("GET", path, "").await.problem(status, code);
        assert!(found.starts_with(message), "{path}: {found}");
    }
    let empty = server.ok("GET", "/v1/vaults/main/accounts/revenue/balances", &Value::Null).await;
    assert_eq!(empty, json!({"balances": []}));
}

/// Most routes ignored their query: `audit?namespace=eu` returned the audit of `default`, and
/// `/v1/write?vault=eu` wrote to the vault of its body.
#[tokio::test]
async fn a_parameter_that_nobody_reads_is_refused() {
    let server = TestServer::open().await;
    let body = json!({"namespace": "default", "client_id": "a", "sequence": 1, "operations": []}).to_string();
    for (method, path, body) in [
        ("GET", "/v1/whoami?namespace=eu", ""),
        ("GET", "/v1/leases/01J00000000000000000000000?namespace=eu", ""),
        ("POST", "/v1/write?namespace=eu", &body),
    ] {
        let found = server.ask(method, path, body).await.problem(400, "invalid_request");
        assert_eq!(found, "query: found \"namespace\", this path has no query parameters", "{path}");
    }
    let state = server.ok("GET", "/v1/clients/a", &Value::Null).await;
    assert_eq!(state["last_committed_sequence"], 0);
    // An empty query is allowed, and health probes may add any.
    server.ok("GET", "/v1/vaults/main/audit?", &Value::Null).await;
    server.ok("GET", "/healthz?now=1", &Value::Null).await;
}

/// A forgotten vault gave "the last committed one is 0", and an operation of a batch was named by its index in all of it.
#[tokio::test]
async fn a_refused_write_names_its_scope_and_its_place_in_a_batch() {
    let server = TestServer::open().await;
    commit(&server, MAIN, 1, json!([open("a"), open("b")])).await;
    let gap = refuse(&server, 409, &body(None, 2, json!([]))).await["message"].as_str().unwrap().to_owned();
    assert!(gap.ends_with("(scope: namespace default, no vault, client billing)"), "{gap}");
    let gap = refuse(&server, 409, &body(MAIN, 9, json!([]))).await["message"].as_str().unwrap().to_owned();
    assert!(gap.ends_with("(scope: namespace default, vault main, client billing)"), "{gap}");
    let mut batch = body(MAIN, 2, Value::Null);
    batch.as_object_mut().unwrap().remove("operations");
    batch["writes"] =
        json!([{"operations": [issue("a", 1)]}, {"operations": []}, {"operations": [transfer("a", "b", "9")]}]);
    let answer = server.ask("POST", "/v1/write/batch", &batch.to_string()).await;
    assert_eq!(answer.status, 402, "{answer:?}");
    let error = answer.json()["error"].clone();
    let message = error["message"].as_str().unwrap();
    assert!(message.starts_with("writes[2].operations[0]: "), "{message}");
    assert_eq!(error["operation"], 1);
    for sequence in [0, u64::MAX] {
        let answer = write(&server, &body(MAIN, sequence, json!([]))).await;
        assert!(!answer.text.contains("to 18446744073709551615"), "{answer:?}");
    }
}
