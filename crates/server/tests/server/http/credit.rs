//! Credit limits over HTTP: holds and settlements.

use serde_json::{Value, json};

use crate::support::{START_MS, TestServer};

/// A server whose account `acme` has `amount` usd, with a limit `acme:usd` and a timeout of a minute.
async fn server(amount: u64) -> TestServer {
    let server = TestServer::open().await;
    let operations = json!([
        {"open_account": {"account": "acme", "overdraft": "deny"}},
        {"issue": {"account": "acme", "asset": "usd", "amount": amount}},
    ]);
    write(&server, 1, operations).await;
    server.ok("PUT", "/v1/admin/limits", &limit()).await;
    server
}

fn limit() -> Value {
    json!({
        "key": "acme:usd", "kind": "credit", "timeout_seconds": 60, "vault": "main", "account": "acme",
        "asset": "usd", "revenue": "revenue", "unit": "cents", "description": "prepaid", "overage": "debt",
    })
}

async fn write(server: &TestServer, sequence: u64, operations: Value) -> Value {
    let body = json!({
        "namespace": "default", "vault": "main", "client_id": "billing", "sequence": sequence,
        "operations": operations,
    });
    server.ok("POST", "/v1/write", &body).await
}

#[tokio::test]
async fn a_credit_limit_is_given_back_as_it_was_put() {
    let server = TestServer::open().await;
    assert_eq!(server.ok("PUT", "/v1/admin/limits", &limit()).await, json!({"ok": true, "status": "active"}));
    let info = json!({"definition": limit(), "status": "active", "pending_decrease_to": null, "revision": 1});
    let found = server.ok("GET", "/v1/admin/limits/acme:usd", &Value::Null).await;
    assert_eq!(found, json!({"limit": info}));
    assert_eq!(server.ok("GET", "/v1/admin/limits", &Value::Null).await, json!({"limits": [info], "next": null}));
    let mut by_write = limit();
    by_write["key"] = json!("by:write");
    let body = json!({
        "namespace": "default", "client_id": "ops", "sequence": 1,
        "operations": [{"put_limit": {"definition": by_write}}],
    });
    server.ok("POST", "/v1/write", &body).await;
    let found = server.ok("GET", "/v1/admin/limits/by:write", &Value::Null).await;
    assert_eq!(found["limit"]["definition"], by_write);
}

#[tokio::test]
async fn what_has_a_default_need_not_be_put() {
    let server = TestServer::open().await;
    let short = json!({
        "key": "u", "kind": "credit", "timeout_seconds": 1, "vault": "main", "account": "a", "asset": "usd",
    });
    server.ok("PUT", "/v1/admin/limits", &short).await;
    let found = server.ok("GET", "/v1/admin/limits/u", &Value::Null).await;
    let definition = &found["limit"]["definition"];
    assert_eq!((&definition["revenue"], &definition["overage"]), (&json!("revenue"), &json!("debt")));
    assert_eq!((definition.get("capacity"), definition.get("window_seconds")), (None, None));
}

#[tokio::test]
async fn the_usage_of_a_credit_limit_is_what_its_account_has_holds_and_owes() {
    let server = server(1_000).await;
    let usage = async || {
        let usage = server.usage("acme:usd").await;
        ["capacity", "reserved", "available", "debt"].map(|field| usage[field].as_u64().unwrap())
    };
    assert_eq!(usage().await, [1_000, 0, 1_000, 0]);
    let lease = server.lease();
    assert_eq!(server.reserve(&lease, &[("acme:usd", 300)]).await["allowed"], true);
    assert_eq!(usage().await, [1_000, 300, 700, 0]);
    write(&server, 2, json!([{"freeze_account": {"account": "acme"}}])).await;
    assert_eq!(usage().await, [300, 300, 0, 0]);
    write(&server, 3, json!([{"unfreeze_account": {"account": "acme"}}])).await;
    server.complete(&lease, &[("acme:usd", 1_200)]).await;
    assert_eq!(usage().await, [0, 0, 0, 200]);
    let most = json!([{"issue": {"account": "acme", "asset": "usd", "amount": i128::MAX.to_string()}}]);
    let body = json!({"namespace": "default", "vault": "main", "client_id": "b", "sequence": 1, "operations": most});
    assert_eq!(server.ask("POST", "/v1/write", &body.to_string()).await.status, 400);
    write(&server, 4, json!([{"issue": {"account": "acme", "asset": "usd", "amount": "99999999999999999999"}}])).await;
    assert_eq!(usage().await, [u64::MAX, 0, u64::MAX, 0]);
    let mut unknown = limit();
    (unknown["key"], unknown["account"]) = (json!("u"), json!("nobody"));
    server.ok("PUT", "/v1/admin/limits", &unknown).await;
    assert_eq!(server.usage("u").await["available"], 0);
}

/// The fields that explain a denial.
fn why(answer: &Value) -> (bool, &str, &str, Vec<&str>) {
    let text = |field: &str| answer[field].as_str().unwrap_or_default();
    let limited_by = answer["limited_by"].as_array().into_iter().flatten();
    let limited_by = limited_by.filter_map(Value::as_str).collect();
    (answer["allowed"].as_bool().unwrap(), text("error"), text("message"), limited_by)
}

async fn held(server: &TestServer) -> (String, String) {
    let balances = server.ok("GET", "/v1/vaults/main/accounts/acme/balances", &Value::Null).await;
    let text = |field: &str| balances["balances"][0][field].as_str().unwrap().to_owned();
    (text("available"), text("held"))
}

#[tokio::test]
async fn too_little_credit_alone_is_its_own_answer_and_beside_a_full_limit_a_plain_denial() {
    let server = server(100).await;
    server.put_rolling("rpm", 10, 60).await;
    let lease = server.lease();
    let short = server.reserve(&lease, &[("rpm", 1), ("acme:usd", 101)]).await;
    assert_eq!(why(&short), (false, "insufficient_credit:acme:usd", "", vec!["acme:usd"]));
    assert_eq!(short["retry_after_ms"], 10_000);
    assert_eq!(server.reserve(&lease, &[("rpm", 1), ("acme:usd", 101)]).await, short);
    assert_eq!(server.ok("GET", &format!("/v1/leases/{lease}"), &Value::Null).await["lease"]["state"], "denied");
    let full = server.reserve(&server.lease(), &[("rpm", 11), ("acme:usd", 101)]).await;
    assert_eq!(why(&full), (false, "exceeds_capacity:rpm", "", vec!["rpm"]));
    assert_eq!((server.reserved("rpm").await, held(&server).await), (0, ("100".into(), "0".into())));
    for (name, value) in [
        ("earmark_reserves_total{outcome=\"insufficient_credit\"}", 2.0),
        ("earmark_reserves_total{outcome=\"denied\"}", 1.0),
        ("earmark_denials_total{namespace=\"default\",key=\"acme:usd\",reason=\"credit\"}", 2.0),
        ("earmark_denials_total{namespace=\"default\",key=\"rpm\",reason=\"capacity\"}", 1.0),
    ] {
        assert_eq!(server.metric(name).await, value, "{name}");
    }
}

#[tokio::test]
async fn an_account_that_cannot_pay_is_explained() {
    let server = server(100).await;
    let mut other = limit();
    (other["key"], other["account"]) = (json!("bob:usd"), json!("bob"));
    server.ok("PUT", "/v1/admin/limits", &other).await;
    let refused = async |key: &str| server.reserve(&server.lease(), &[(key, 1)]).await;
    other["vault"] = json!("nowhere");
    let message = server.ask("PUT", "/v1/admin/limits", &other.to_string()).await.problem(400, "invalid_request");
    assert_eq!(message, "vault: no vault has this name; open it with open_vault first");
    let unknown = refused("bob:usd").await;
    assert_eq!((why(&unknown).1, why(&unknown).3), ("account_not_found:bob:usd", vec!["bob:usd"]));
    assert!(why(&unknown).2.contains("does not exist"), "{unknown}");
    write(&server, 2, json!([{"freeze_account": {"account": "acme"}}])).await;
    assert!(why(&refused("acme:usd").await).2.contains("is frozen"));
    let opened = json!([
        {"open_account": {"account": "bob", "overdraft": "deny"}}, {"close_account": {"account": "bob"}},
    ]);
    write(&server, 3, opened).await;
    assert!(why(&refused("bob:usd").await).2.contains("is closed"));
}

#[tokio::test]
async fn what_leases_cost_is_paid_and_counted() {
    let server = server(100).await;
    let mut strict = limit();
    (strict["key"], strict["overage"]) = (json!("strict"), json!("deny"));
    server.ok("PUT", "/v1/admin/limits", &strict).await;
    for (key, holds, actual, left) in [
        ("acme:usd", 40, Some(10), "90"),
        ("acme:usd", 40, None, "50"),
        ("acme:usd", 40, Some(0), "50"),
        ("strict", 40, Some(60), "0"),
    ] {
        let lease = server.lease();
        assert_eq!(server.reserve(&lease, &[(key, holds)]).await["allowed"], true);
        assert_eq!(held(&server).await.1, holds.to_string());
        let actuals: Vec<(&str, u64)> = actual.map(|amount| (key, amount)).into_iter().collect();
        assert_eq!(server.complete(&lease, &actuals).await["reconciled"], true);
        assert_eq!(held(&server).await, (left.into(), "0".into()));
        // A repeated complete changes nothing.
        server.complete(&lease, &[(key, 1)]).await;
        assert_eq!(held(&server).await, (left.into(), "0".into()));
    }
    write(&server, 2, json!([{"issue": {"account": "acme", "asset": "usd", "amount": 5}}])).await;
    let lease = server.lease();
    server.reserve(&lease, &[("acme:usd", 5)]).await;
    server.complete(&lease, &[("acme:usd", 12)]).await;
    assert_eq!(held(&server).await, ("-7".into(), "0".into()));
    for (name, value) in [
        ("earmark_credit_settled_total{how=\"paid\"}", 105.0),
        ("earmark_credit_settled_total{how=\"debt\"}", 7.0),
        ("earmark_credit_settled_total{how=\"uncollected\"}", 10.0),
        ("earmark_overage_total{how=\"debt\"}", 0.0),
    ] {
        assert_eq!(server.metric(name).await, value, "{name}");
    }
    let audit = server.ok("GET", "/v1/vaults/main/audit", &Value::Null).await;
    let totals = json!({"asset": "usd", "issued": "105", "retired": "0", "live": "105"});
    assert_eq!(audit, json!({"balanced": true, "assets": [totals]}));
}

#[tokio::test]
async fn a_hold_returns_after_its_timeout_and_a_late_complete_still_charges() {
    let server = server(100).await;
    let lease = server.lease();
    server.reserve(&lease, &[("acme:usd", 100)]).await;
    server.clock.advance_ms(59_999);
    assert_eq!(held(&server).await, ("0".into(), "100".into()));
    server.clock.advance_ms(1);
    assert_eq!(held(&server).await, ("100".into(), "0".into()));
    server.complete(&lease, &[("acme:usd", 30)]).await;
    assert_eq!(held(&server).await, ("70".into(), "0".into()));
}

#[tokio::test]
async fn the_history_of_an_account_shows_what_was_held_settled_and_released() {
    let server = server(100).await;
    let (first, second, third) = (server.lease(), server.lease(), server.lease());
    server.reserve(&first, &[("acme:usd", 40)]).await;
    server.reserve(&second, &[("acme:usd", 30)]).await;
    server.complete(&first, &[("acme:usd", 25)]).await;
    server.clock.advance_ms(61_000);
    // A timeout is recorded with the next command.
    server.reserve(&third, &[("nope", 1)]).await;
    let path = "/v1/vaults/main/accounts/acme/entries";
    let page = server.ok("GET", &format!("{path}?page_size=3"), &Value::Null).await;
    let rest = server.ok("GET", &format!("{path}?after={}", page["next"]), &Value::Null).await;
    let of = |kind: &str, number: u64, lease: &str, hold: &str, amount: &str, held: &str, at: u64| {
        // A timeout has no caller.
        let actor = if kind == "release" { "system:earmark" } else { "system:local" };
        json!({
            "number": number, "kind": kind, "lease_id": lease, "limit": "acme:usd", "hold": hold, "actor": actor,
            "committed_at_unix_ms": at, "changes": [{"asset": "usd", "amount": amount, "held": held}],
        })
    };
    let (start, end) = (START_MS, START_MS + 61_000);
    assert_eq!(page["entries"][1], of("hold", 3, &first, "40", "-40", "40", start));
    assert_eq!(page["entries"][2], of("hold", 4, &second, "30", "-30", "30", start));
    let mut settle = of("settle", 5, &first, "40", "15", "-40", start);
    (settle["paid"], settle["debt"], settle["uncollected"]) = (json!("25"), json!("0"), json!("0"));
    settle["reason"] = json!("complete");
    settle["labels"] = json!({});
    assert_eq!(rest["entries"], json!([settle, of("release", 6, &second, "30", "30", "-30", end)]));
    assert_eq!(rest["next"], Value::Null);
    let revenue = server.ok("GET", "/v1/vaults/main/accounts/revenue/entries", &Value::Null).await;
    settle["changes"] = json!([{"asset": "usd", "amount": "25", "held": "0"}]);
    assert_eq!(revenue["entries"], json!([settle]));
    let audit = server.ok("GET", "/v1/vaults/main/audit", &Value::Null).await;
    assert_eq!((&audit["balanced"], &audit["assets"][0]["live"]), (&json!(true), &json!("100")));
    let since = format!("{path}?order=desc&since={}&until={}", START_MS + 1, START_MS + 61_001);
    let late = server.ok("GET", &since, &Value::Null).await;
    assert_eq!((&late["entries"][0]["number"], late["entries"].as_array().unwrap().len()), (&json!(6), 1));
    let wrong = server.ask("GET", &format!("{path}?order=newest"), "").await;
    assert_eq!(wrong.status, 400);
}

#[tokio::test]
async fn vaults_and_accounts_are_listed_with_status_and_balances() {
    let server = server(100).await;
    let vaults = server.ok("GET", "/v1/vaults", &Value::Null).await;
    assert_eq!(vaults, json!({"vaults": ["main"], "next": null}));
    let acme = json!({
        "account": "acme", "status": "open",
        "balances": [{"asset": "usd", "available": "100", "held": "0", "pending": "0"}],
    });
    let first = server.ok("GET", "/v1/vaults/main/accounts?prefix=&page_size=1", &Value::Null).await;
    assert_eq!(first, json!({"accounts": [acme], "next": "acme"}));
    let rest = server.ok("GET", "/v1/vaults/main/accounts?after=acme", &Value::Null).await;
    assert_eq!(rest["accounts"][0], json!({"account": "revenue", "status": "open", "balances": []}));
    assert_eq!(server.ask("GET", "/v1/vaults/gone/accounts", "").await.status, 404);
    assert_eq!(server.ask("GET", "/v1/vaults?after=a:b", "").await.status, 400);
}

/// A server without keys took writes to the credit of any namespace, and over HTTP nobody could read it.
#[tokio::test]
async fn credit_is_read_in_the_namespace_that_the_query_names() {
    let server = server(100).await;
    let write = |vault: Option<&str>, operations: Value| json!({"namespace": "a+b", "vault": vault, "client_id": "c", "sequence": 1, "operations": operations});
    server.ok("POST", "/v1/write", &write(None, json!([{"open_vault": {"vault": "main"}}]))).await;
    let issue = json!([
        {"open_account": {"account": "bob", "overdraft": "deny"}},
        {"issue": {"account": "bob", "asset": "usd", "amount": 7}},
    ]);
    server.ok("POST", "/v1/write", &write(Some("main"), issue)).await;
    for what in ["balances", "grants", "entries", "statement"] {
        let path = format!("/v1/vaults/main/accounts/bob/{what}");
        let found = server.ask("GET", &format!("{path}?namespace=a%2Bb"), "").await;
        assert!(found.status == 200 && found.text.contains("\"7\""), "{what}: {}", found.text);
        assert_eq!(server.ask("GET", &path, "").await.status, 404, "{what}");
    }
    for what in ["accounts", "audit"] {
        let found = server.ask("GET", &format!("/v1/vaults/main/{what}?namespace=a%2Bb"), "").await;
        assert!(found.status == 200 && found.text.contains("\"7\""), "{what}: {}", found.text);
        assert!(!server.ask("GET", &format!("/v1/vaults/main/{what}"), "").await.text.contains("\"7\""), "{what}");
    }
    let vaults = server.ok("GET", "/v1/vaults?namespace=a%2Bb", &Value::Null).await;
    assert_eq!(vaults, json!({"vaults": ["main"], "next": null}));
    assert_eq!(server.ok("GET", "/v1/vaults?namespace=nowhere", &Value::Null).await["vaults"], json!([]));
}

/// `earmark_debt` stayed 0 while a credit limit showed debt.
#[tokio::test]
async fn the_debt_of_an_account_is_counted_once_however_many_limits_are_on_it() {
    let server = server(10).await;
    let mut second = limit();
    second["key"] = json!("acme:more");
    server.ok("PUT", "/v1/admin/limits", &second).await;
    let lease = server.lease();
    server.reserve(&lease, &[("acme:usd", 10)]).await;
    server.complete(&lease, &[("acme:usd", 25)]).await;
    assert_eq!(server.usage("acme:usd").await["debt"], 15);
    assert_eq!(server.metric("earmark_debt").await, 15.0);
}

#[tokio::test]
async fn a_grant_is_spent_in_order_expires_and_is_counted() {
    let server = server(10).await;
    let issue = |amount: u64, priority: u8, after_ms: u64| {
        let expires_at_unix_ms = START_MS + after_ms;
        json!({"issue": {
            "account": "acme", "asset": "usd", "amount": amount, "priority": priority,
            "expires_at_unix_ms": expires_at_unix_ms,
        }})
    };
    write(&server, 2, json!([issue(30, 128, 600_000), issue(20, 1, 900_000)])).await;
    let grants = async || server.ok("GET", "/v1/vaults/main/accounts/acme/grants", &Value::Null).await;
    let lease = server.lease();
    server.reserve(&lease, &[("acme:usd", 25)]).await;
    let expected = json!({"grants": [
        {"asset": "usd", "remaining": "0", "held": "20", "priority": 1, "expires_at_unix_ms": START_MS + 900_000},
        {"asset": "usd", "remaining": "25", "held": "5", "priority": 128, "expires_at_unix_ms": START_MS + 600_000},
        {"asset": "usd", "remaining": "10", "held": "0", "priority": 128},
    ]});
    assert_eq!(grants().await, expected);
    server.complete(&lease, &[("acme:usd", 20)]).await;
    server.clock.advance_ms(600_000);
    let balances = server.ok("GET", "/v1/vaults/main/accounts/acme/balances", &Value::Null).await;
    assert_eq!(balances["balances"][0]["available"], "10", "before any command");
    write(&server, 3, json!([{"retire": {"account": "acme", "asset": "usd", "amount": 1}}])).await;
    assert_eq!(grants().await["grants"], json!([{"asset": "usd", "remaining": "9", "held": "0", "priority": 128}]));
    let audit = server.ok("GET", "/v1/vaults/main/audit", &Value::Null).await;
    let totals = json!({"asset": "usd", "issued": "60", "retired": "1", "expired": "30", "live": "29"});
    assert_eq!(audit, json!({"balanced": true, "assets": [totals]}));
    let entries = server.ok("GET", "/v1/vaults/main/accounts/acme/entries", &Value::Null).await;
    let expired = entries["entries"].as_array().unwrap().iter().find(|entry| entry["kind"] == "expire").unwrap();
    assert_eq!(expired["changes"], json!([{"asset": "usd", "amount": "-30", "held": "0"}]));
    assert_eq!((&expired["priority"], &expired["expires_at_unix_ms"]), (&json!(128), &json!(START_MS + 600_000)));
}

#[tokio::test]
async fn wrong_grants_and_caps_are_explained_by_field() {
    let server = server(10).await;
    let operation = |name: &str, field: &str, value: Value| {
        let mut body = match name {
            "issue" => json!({"account": "acme", "asset": "usd", "amount": 1}),
            _ => json!({"account": "new", "overdraft": "deny"}),
        };
        body[field] = value;
        json!([{name: body}])
    };
    for (name, field, value, message) in [
        ("issue", "expires_at_unix_ms", json!(5), "operations[0]: expires_at_unix_ms: not in the future"),
        ("issue", "expires_at_unix_ms", json!("5"), "expires_at_unix_ms: found \"5\", allowed are integers from 0 to"),
        ("issue", "priority", json!(256), "priority: found 256, allowed are integers from 0 to 255"),
        ("issue", "priority", json!(-1), "priority: found -1, allowed are integers from 0 to 255"),
        (
            "open_account",
            "overdraft",
            json!({"limit": "0"}),
            "overdraft.limit: found \"0\", allowed are integers from 1",
        ),
        ("open_account", "overdraft", json!({}), "overdraft.limit is required"),
        ("open_account", "overdraft", json!("some"), "allowed are deny and allow, or an object with limit"),
    ] {
        let body = json!({
            "namespace": "default", "vault": "main", "client_id": "billing", "sequence": 2,
            "operations": operation(name, field, value.clone()),
        });
        let answer = server.ask("POST", "/v1/write", &body.to_string()).await;
        assert_eq!(answer.status, 400, "{field} {value}");
        let text = answer.text.replace("\\\"", "\"");
        assert!(text.contains(message), "{field} {value}: {text}");
    }
}

#[tokio::test]
async fn wrong_plans_are_explained_by_field() {
    let server = server(10).await;
    for (field, value, message) in [
        ("amount", json!("0"), "plan.amount: found \"0\", allowed are integers from 1"),
        ("amount", json!("18446744073709551616"), "plan.amount: found \"18446744073709551616\""),
        ("period", json!("fortnight"), "plan.period: found \"fortnight\", allowed are hour, day, week and month"),
        ("utc_offset_minutes", json!(841), "plan.utc_offset_minutes: found 841, allowed are integers from -720 to 840"),
        ("carry_over", json!("all"), "plan.carry_over: found \"all\", allowed are none, or an object with max"),
        ("carry_over", json!({"max": "0"}), "plan.carry_over.max: found \"0\", allowed are integers from 1"),
        ("until", json!(5), "plan.until: found an unknown field"),
    ] {
        let mut plan = json!({"asset": "usd", "amount": "70", "period": "month"});
        plan[field] = value.clone();
        for operation in [
            json!({"set_plan": {"account": "acme", "plan": plan}}),
            json!({"open_account": {"account": "new", "overdraft": "deny", "plan": plan}}),
        ] {
            let body = json!({"namespace": "default", "vault": "main", "client_id": "billing", "sequence": 2,
                "operations": [operation]});
            let answer = server.ask("POST", "/v1/write", &body.to_string()).await;
            let text = answer.text.replace("\\\"", "\"");
            assert!(answer.status == 400 && text.contains(message), "{field} {value}: {text}");
        }
    }
    let accounts = server.ok("GET", "/v1/vaults/main/accounts?prefix=acme", &Value::Null).await;
    assert!(accounts["accounts"][0].get("plan").is_none(), "{accounts}");
}

#[tokio::test]
async fn labels_of_a_complete_are_in_the_entries_and_wrong_ones_are_refused_by_field() {
    let server = server(100).await;
    let lease = server.lease();
    server.reserve(&lease, &[("acme:usd", 40)]).await;
    let complete = |labels: Value| json!({"lease_id": lease, "actuals": [{"key": "acme:usd", "actual_amount": 5}], "labels": labels});
    let nine: serde_json::Map<_, _> = (0..9).map(|number| (format!("n{number}"), json!("x"))).collect();
    for (labels, message) in [
        (json!(nine), "labels: found more than 8, allowed are 8"),
        (json!({"n".repeat(65): "x"}), "labels: found the name"),
        (json!({"Model": "x"}), "labels: found the name \"Model\""),
        (json!({"model": "x".repeat(129)}), "labels: model: found 129 bytes, allowed are 1 to 128"),
        (json!({"model": ""}), "labels: model: found 0 bytes"),
        (json!({"model": 5}), "labels.model: found 5, allowed is a text"),
        (json!(["model"]), "labels: found [\"model\"], allowed is an object of texts"),
    ] {
        let alone = server.ask("POST", "/v1/complete", &complete(labels.clone()).to_string()).await;
        let found = alone.problem(400, "invalid_request");
        assert!(found.starts_with(message), "{labels}: {found}");
        let batch = json!({"requests": [complete(labels)]}).to_string();
        let found = server.ask("POST", "/v1/complete/batch", &batch).await.problem(400, "invalid_request");
        assert!(found.starts_with(&format!("requests[0].{message}")), "{found}");
    }
    let labels = json!({"model": "gpt-4o", "user": "Zoë \"z\""});
    assert_eq!(server.ok("POST", "/v1/complete", &complete(labels.clone())).await["reconciled"], true);
    assert_eq!(server.ok("POST", "/v1/complete", &complete(json!({"model": "other"}))).await["reconciled"], true);
    let free = server.lease();
    server.put_rolling("rpm", 5, 60).await;
    server.reserve(&free, &[("rpm", 1)]).await;
    let without_credit = json!({"lease_id": free, "actuals": [], "labels": labels});
    assert_eq!(server.ok("POST", "/v1/complete", &without_credit).await["reconciled"], true);
    let page = server.ok("GET", "/v1/vaults/main/accounts/acme/entries", &Value::Null).await;
    let settled: Vec<&Value> = page["entries"].as_array().unwrap().iter().filter(|it| it["kind"] == "settle").collect();
    assert_eq!(settled.len(), 1);
    assert_eq!(settled[0]["labels"], labels);
}

/// Settles a lease that costs `cost`.
async fn spend(server: &TestServer, cost: u64, labels: Value) {
    let lease = server.lease();
    server.reserve(&lease, &[("acme:usd", cost)]).await;
    let body = json!({"lease_id": lease, "actuals": [], "labels": labels});
    assert_eq!(server.ok("POST", "/v1/complete", &body).await["reconciled"], true);
}

#[tokio::test]
async fn a_statement_is_read_as_json_and_as_csv() {
    let server = server(100).await;
    spend(&server, 7, json!({"model": "gpt-4o"})).await;
    server.clock.advance_ms(1_000);
    spend(&server, 5, json!({"model": "a, \"b\""})).await;
    spend(&server, 3, json!({})).await;
    let statement = "/v1/vaults/main/accounts/acme/statement";
    let since = START_MS + 1_000;
    let path = format!("{statement}?since={since}&group_by=model");
    let group = |value: Value, spent: &str| json!({"value": value, "spent": spent, "settlements": 1});
    let asset = json!({
        "asset": "usd", "opening": "93", "issued": "0", "received": "0", "transferred_in": "0", "spent": "8",
        "transferred_out": "0", "expired": "0", "retired": "0", "closing": "85", "settlements": 2,
        "groups": [group(Value::Null, "3"), group(json!("a, \"b\""), "5")],
    });
    let expected = json!({"account": "acme", "since": since, "until": null, "group_by": "model", "assets": [asset],
        "next": null});
    assert_eq!(server.ok("GET", &path, &Value::Null).await, expected);
    assert_eq!(server.ok("GET", &format!("{path}&format=json"), &Value::Null).await, expected);
    let csv = server.ask("GET", &format!("{path}&format=csv"), "").await;
    assert_eq!((csv.status, csv.header("content-type")), (200, Some("text/csv; charset=utf-8")));
    assert_eq!(
        csv.text,
        "asset,group_by,value,opening,issued,received,transferred_in,spent,transferred_out,expired,retired,closing,\
         settlements\r\n\
         usd,,,93,0,0,0,8,0,0,0,85,2\r\n\
         usd,model,,,,,,3,,,,,1\r\n\
         usd,model,\"a, \"\"b\"\"\",,,,,5,,,,,1\r\n"
    );
    let first = server.ok("GET", &format!("{path}&page_size=1"), &Value::Null).await;
    assert_eq!(first["assets"][0]["groups"], json!([group(Value::Null, "3")]));
    let after = first["next"].as_str().unwrap();
    let second = server.ok("GET", &format!("{path}&page_size=1&after={after}"), &Value::Null).await;
    assert_eq!(second["assets"][0]["groups"], json!([group(json!("a, \"b\""), "5")]));
    assert_eq!((&second["assets"][0]["closing"], &second["next"]), (&json!("85"), &Value::Null));
    let first = server.ask("GET", &format!("{path}&format=csv&page_size=1"), "").await;
    let link = first.header("link").unwrap().strip_prefix('<').unwrap().split_once(">; rel=\"next\"").unwrap().0;
    let second = server.ask("GET", &format!("{statement}{link}"), "").await;
    assert_eq!((second.status, second.header("link")), (200, None));
    assert_eq!(first.text.clone() + &second.text, csv.text, "the pages are the file");
    for (query, message) in [
        ("after=7-61", "after: pages have groups only, so group_by is required"),
        ("group_by=model&after=x", "after: found \"x\", allowed is next of the previous page"),
        ("group_by=model&page_size=0", "page_size: found \"0\""),
        ("group_by=model&page_size=50001", "page_size: found \"50001\""),
        ("since=6&until=5", "since: found 6, which is after until, 5"),
        ("group_by=Model", "group_by: found the name \"Model\""),
        ("group_by=", "group_by: found the name \"\""),
        ("format=xml", "format: found \"xml\", allowed are json, csv"),
        ("since=yesterday", "since: found \"yesterday\""),
        ("limit=5", "query: found \"limit\""),
    ] {
        let found = server.ask("GET", &format!("{statement}?{query}"), "").await.problem(400, "invalid_request");
        assert!(found.starts_with(message), "{query}: {found}");
    }
    server.ask("GET", "/v1/vaults/main/accounts/nobody/statement", "").await.problem(404, "not_found");
}
