//! Calls: attributes and bounds instead of keys and amounts.

mod explained;
mod kept;

use serde_json::{Value, json};

use crate::support::{Answer, TestServer};

const POLICY: &str = r#"
[[rules]]
name   = "provider"
when   = 'provider == "openai"'
limits = [ { key = "{model}:tpm", amount = "tokens" }, { key = "{model}:calls", amount = "requests" } ]

[[rules]]
name   = "tenant"
limits = [ { key = "{tenant}:usd", amount = "cost" } ]

[[rules]]
name = "plan"
when = 'plan == "free" && !model.endsWith("-mini")'
deny = "the plan free has small models only"

[[rules]]
name     = "user"
optional = true
limits   = [ { key = "user:{user}:out", amount = "output_tokens" } ]

[[prices]]
model = "gpt-4o*"
asset = "usd"
input = 2_500_000
cached_input = 1_250_000
output = 10_000_000
"#;

/// A server with the policy, its limits, and 100,000 minor units of credit for `acme`.
async fn opened() -> TestServer {
    let server = TestServer::open().await;
    prepare(&server).await;
    server
}

pub(crate) async fn prepare(server: &TestServer) {
    server.put_rolling("gpt-4o:tpm", 10_000, 60).await;
    server.put_concurrency("gpt-4o:calls", 3, 60).await;
    let user = json!({"key": "user:{user}:out", "kind": "rolling", "capacity": 1_000, "window_seconds": 60});
    server.ok("PUT", "/v1/admin/templates", &user).await;
    let operations = json!([
        {"open_account": {"account": "acme", "overdraft": "deny"}},
        {"issue": {"account": "acme", "asset": "usd", "amount": "100000"}},
    ]);
    let write =
        json!({"namespace": "default", "vault": "main", "client_id": "c", "sequence": 1, "operations": operations});
    server.ok("POST", "/v1/write", &write).await;
    for (key, asset) in [("acme:usd", "usd"), ("globex:usd", "eur")] {
        let limit = json!({"key": key, "kind": "credit", "timeout_seconds": 60, "vault": "main", "account": "acme",
            "asset": asset});
        server.ok("PUT", "/v1/admin/limits", &limit).await;
    }
    put_policy(server, POLICY).await;
}

async fn put_policy(server: &TestServer, policy: &str) -> u64 {
    let answer = server.ok("PUT", "/v1/admin/policy", &json!({"policy": policy})).await;
    answer["revision"].as_u64().unwrap()
}

fn attributes(text: &str) -> Value {
    let pairs = text.split_whitespace().map(|pair| pair.split_once('=').unwrap());
    Value::Object(pairs.map(|(name, value)| (name.to_owned(), json!(value))).collect())
}

pub(crate) fn call(lease: &str, text: &str, input: u64, output: u64) -> Value {
    let attributes = attributes(text);
    json!({"lease_id": lease, "attributes": attributes, "input_tokens_max": input, "output_tokens_max": output})
}

const ACME: &str = "tenant=acme model=gpt-4o provider=openai";

async fn make(server: &TestServer, lease: &str, text: &str, bounds: (u64, u64)) -> Value {
    server.ok("POST", "/v1/calls", &call(lease, text, bounds.0, bounds.1)).await
}

async fn complete(server: &TestServer, lease: &str, text: &str, more: Value) -> Value {
    let mut body = json!({"lease_id": lease, "attributes": attributes(text), "outcome": "done"});
    for (name, value) in more.as_object().unwrap() {
        body[name] = value.clone();
    }
    server.ok("POST", "/v1/calls/complete", &body).await
}

async fn available(server: &TestServer) -> String {
    let balances = server.ok("GET", "/v1/vaults/main/accounts/acme/balances", &Value::Null).await;
    balances["balances"][0]["available"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_call_reserves_what_the_policy_says_and_settles_its_usage() {
    let server = opened().await;
    let lease = server.lease();
    let answer = make(&server, &lease, &format!("{ACME} user=u1"), (1_200, 500)).await;
    let requirements = json!([
        {"key": "gpt-4o:tpm", "amount": 1_700}, {"key": "gpt-4o:calls", "amount": 1},
        {"key": "acme:usd", "amount": 8_000}, {"key": "user:u1:out", "amount": 500},
    ]);
    assert_eq!((&answer["allowed"], &answer["requirements"]), (&json!(true), &requirements), "{answer}");
    let revision = answer["policy_revision"].clone();
    assert!(revision.as_u64().unwrap() > 0 && answer["reserved_at_unix_ms"].as_u64().unwrap() > 0, "{answer}");
    assert_eq!(make(&server, &lease, &format!("{ACME} user=u1"), (1_200, 500)).await, answer, "a retry");
    assert_eq!((server.reserved("gpt-4o:tpm").await, available(&server).await), (1_700, "92000".to_owned()));

    let usage = json!({"input_tokens": 1_000, "cached_input_tokens": 400, "output_tokens": 100, "service_tier": "x"});
    let more = json!({"usage": usage, "policy_revision": revision});
    let settled = complete(&server, &lease, &format!("{ACME} user=u1"), more.clone()).await;
    let actuals = json!([
        {"key": "gpt-4o:tpm", "actual_amount": 1_100}, {"key": "gpt-4o:calls", "actual_amount": 1},
        {"key": "acme:usd", "actual_amount": 3_000}, {"key": "user:u1:out", "actual_amount": 100},
    ]);
    let expected = json!({"ok": true, "error": "", "reconciled": true, "actuals": actuals, "cost": "3000"});
    assert_eq!(settled, expected);
    assert_eq!(complete(&server, &lease, &format!("{ACME} user=u1"), more).await, expected, "a retry");
    assert_eq!((server.reserved("gpt-4o:tpm").await, available(&server).await), (1_100, "97000".to_owned()));
    assert_eq!(server.reserved("gpt-4o:calls").await, 0);
}

#[tokio::test]
async fn a_call_without_a_known_usage_settles_its_bound_and_one_that_was_refused_nothing() {
    let server = opened().await;
    for (more, cost, tokens, credit) in [
        (json!({"outcome": "unknown"}), json!("8000"), 1_700, "92000"),
        (json!({"outcome": "done"}), json!("8000"), 3_400, "84000"),
        (json!({"outcome": "refused"}), json!("0"), 3_400, "84000"),
        // Somebody who cannot say that the call was made does not know its usage either.
        (
            json!({"outcome": "unknown", "usage": {"input_tokens": 1, "output_tokens": 1}}),
            json!("8000"),
            5_100,
            "76000",
        ),
    ] {
        let lease = server.lease();
        make(&server, &lease, ACME, (1_200, 500)).await;
        let settled = complete(&server, &lease, ACME, more.clone()).await;
        assert_eq!((&settled["reconciled"], &settled["cost"]), (&json!(true), &cost), "{more}: {settled}");
        let actuals = settled["actuals"].as_array().unwrap();
        let settled_tokens = if more["outcome"] == "refused" { 0 } else { 1_700 };
        let expected = json!({"key": "gpt-4o:tpm", "actual_amount": settled_tokens});
        assert!(actuals.contains(&expected), "{settled}");
        let found = (server.reserved("gpt-4o:tpm").await, available(&server).await);
        assert_eq!(found, (tokens, credit.to_owned()), "{more}");
        assert_eq!(server.reserved("gpt-4o:calls").await, 0);
    }
}

#[tokio::test]
async fn a_call_grows_while_it_streams_and_what_it_used_stays() {
    let server = opened().await;
    let lease = server.lease();
    make(&server, &lease, ACME, (1_000, 100)).await;
    let extend = |number: u32, more: Value| {
        let mut body = json!({"lease_id": lease, "extension": number, "attributes": attributes(ACME)});
        for (name, value) in more.as_object().unwrap() {
            body[name] = value.clone();
        }
        body
    };
    let to = &server;
    let ask = |body: Value| async move { to.ok("POST", "/v1/calls/extend", &body).await };
    let grown = ask(extend(1, json!({"add_output_tokens": 200}))).await;
    assert_eq!((&grown["allowed"], grown.get("message")), (&json!(true), None), "{grown}");
    assert!(grown["ends_at_unix_ms"].as_u64().unwrap() > 0);
    assert_eq!((server.reserved("gpt-4o:tpm").await, available(&server).await), (1_300, "94500".to_owned()));
    let used = json!({"used": {"input_tokens": 900, "output_tokens": 50}});
    assert_eq!(ask(extend(2, used)).await["allowed"], true);
    let denied = ask(extend(3, json!({"add_output_tokens": 9_000}))).await;
    assert_eq!((&denied["allowed"], &denied["limited_by"]), (&json!(false), &json!(["gpt-4o:tpm"])), "{denied}");
    let other = json!({"lease_id": lease, "extension": 4, "attributes": {"tenant": "globex"}});
    assert_eq!(ask(other).await["error"], "invalid_request");
    let settled = complete(&server, &lease, ACME, json!({"outcome": "refused"})).await;
    assert!(settled["message"].as_str().unwrap().starts_with("counted as the usage that was reported"), "{settled}");
    // The answer states no lower amount than extensions reported.
    assert_eq!((&settled["actuals"], &settled["cost"]), (&json!([]), &Value::Null), "{settled}");
    // Only the newest part of a lease shrinks.
    assert_eq!((server.reserved("gpt-4o:tpm").await, available(&server).await), (1_100, "97250".to_owned()));
}

#[tokio::test]
async fn a_refusal_by_policy_has_its_name_and_takes_nothing() {
    let server = opened().await;
    let base = "provider=openai model=gpt-4o tenant=acme";
    for (text, error) in [
        ("model=gpt-4o", "missing_attribute:tenant"),
        ("tenant=acme", "missing_attribute:model"),
        ("tenant=acme model=o1", "no_price:o1"),
        ("tenant=acme model=gpt-4o plan=free", "denied_by_rule:plan"),
        ("tenant=globex model=gpt-4o", "invalid_request"),
        ("tenant=nobody model=gpt-4o", "unknown_limit_key:nobody:usd"),
    ] {
        let answer = make(&server, &server.lease(), text, (1, 1)).await;
        assert_eq!((&answer["allowed"], &answer["error"]), (&json!(false), &json!(error)), "{text}: {answer}");
    }
    let answer = make(&server, &server.lease(), "tenant=globex model=gpt-4o", (1, 1)).await;
    assert_eq!(answer["message"], "globex:usd: found credit in eur, allowed is usd, the asset of the prices");
    put_policy(&server, "[[rules]]\nname = \"never\"\nwhen = 'false'\ndeny = \"no\"\n").await;
    let answer = make(&server, &server.lease(), base, (1, 1)).await;
    assert_eq!(answer["message"], "no rule of the policy matches, and unmatched is \"refuse\"");
    assert_eq!((&answer["error"], &answer["requirements"]), (&json!("no_rule"), &json!([])));
    assert_eq!((server.reserved("gpt-4o:tpm").await, available(&server).await), (0, "100000".to_owned()));

    let without = TestServer::open().await;
    let answer = make(&without, &without.lease(), base, (1, 1)).await;
    let message = "the namespace has no policy; put one with `earmark policy put`";
    assert_eq!((&answer["error"], &answer["message"]), (&json!("no_rule"), &json!(message)));
    assert_eq!(answer.get("policy_revision"), None);
}

#[tokio::test]
async fn a_call_that_needs_no_limits_is_allowed_without_a_lease() {
    let server = opened().await;
    put_policy(&server, "unmatched = \"allow\"").await;
    let lease = server.lease();
    let answer = make(&server, &lease, ACME, (1, 1)).await;
    assert_eq!((&answer["allowed"], &answer["requirements"]), (&json!(true), &json!([])), "{answer}");
    let lease_view = server.ask("GET", &format!("/v1/leases/{lease}"), "").await;
    assert_eq!(lease_view.status, 404);
    let usage = json!({"usage": {"input_tokens": 1, "output_tokens": 1}});
    let settled = complete(&server, &lease, ACME, usage).await;
    assert_eq!((&settled["ok"], &settled["reconciled"]), (&json!(true), &json!(false)), "{settled}");
    assert_eq!((&settled["actuals"], &settled["cost"]), (&json!([]), &Value::Null), "{settled}");
}

#[tokio::test]
async fn a_policy_that_changes_between_reserve_and_complete_loses_nothing() {
    let server = opened().await;
    let usage = json!({"input_tokens": 60, "output_tokens": 40});
    let mut tokens = 0;
    // The second loop has lost the revision: 32 newer ones are kept. Limits that they do not name stay as reserved.
    for (changes, actual, credit) in [(1, 100, "99450"), (33, 200, "98200")] {
        let lease = server.lease();
        let first = make(&server, &lease, ACME, (100, 100)).await;
        assert_eq!(first["allowed"], true);
        for change in 0..changes {
            let rule = format!("[[rules]]\nname = \"r{change}\"\nlimits = [ {{ key = \"k{change}\", amount = 1 }} ]\n");
            put_policy(&server, &rule).await;
        }
        let more = json!({"usage": usage, "policy_revision": first["policy_revision"]});
        let settled = complete(&server, &lease, ACME, more).await;
        assert_eq!((&settled["reconciled"], settled.get("message")), (&json!(true), None), "{settled}");
        tokens += actual;
        assert_eq!((server.reserved("gpt-4o:tpm").await, available(&server).await), (tokens, credit.to_owned()));
        put_policy(&server, POLICY).await;
    }
}

async fn strict(server: &TestServer, text: &str, bounds: (u64, u64)) -> Answer {
    let body = call(&server.lease(), text, bounds.0, bounds.1).to_string();
    server.ask("POST", "/v1/calls?status=true", &body).await
}

#[tokio::test]
async fn a_denial_has_headers_and_with_status_true_a_status() {
    let server = opened().await;
    server.put_rolling("gpt-4o:tpm", 100, 60).await;
    assert_eq!(strict(&server, ACME, (80, 0)).await.status, 200);
    let denied = strict(&server, ACME, (30, 0)).await;
    let ms: u64 = denied.header("retry-after-ms").unwrap().parse().unwrap();
    let seconds: u64 = denied.header("retry-after").unwrap().parse().unwrap();
    assert_eq!(
        (denied.status, ms, seconds),
        (429, denied.json()["retry_after_ms"].as_u64().unwrap(), ms.div_ceil(1_000))
    );
    assert_eq!((denied.header("x-should-retry"), denied.header("ratelimit")), (None, None));
    let plain = server.ask("POST", "/v1/calls", &call(&server.lease(), ACME, 30, 0).to_string()).await;
    assert_eq!((plain.status, plain.header("retry-after").is_some()), (200, true));

    for (text, bounds, status, error) in [
        (ACME, (101, 0), 400, "exceeds_capacity:gpt-4o:tpm"),
        ("tenant=acme model=gpt-4o", (4_000_000, 0), 402, "insufficient_credit:acme:usd"),
        ("tenant=acme model=o1", (1, 0), 403, "no_price:o1"),
        ("model=gpt-4o", (1, 0), 403, "missing_attribute:tenant"),
        ("tenant=globex model=gpt-4o", (1, 0), 400, "invalid_request"),
        ("tenant=nobody model=gpt-4o", (1, 0), 400, "unknown_limit_key:nobody:usd"),
    ] {
        let answer = strict(&server, text, bounds).await;
        assert_eq!((answer.status, &answer.json()["error"]), (status, &json!(error)), "{answer:?}");
        let found = (answer.header("x-should-retry"), answer.header("retry-after"));
        assert_eq!(found, (Some("false"), None), "{error}");
    }
    server.ok("POST", "/v1/admin/limits/gpt-4o:tpm/pause", &json!({"for_ms": 1_500})).await;
    let paused = strict(&server, ACME, (1, 0)).await;
    assert_eq!((paused.status, paused.header("retry-after")), (429, Some("2")), "{paused:?}");
}

#[tokio::test]
async fn a_server_that_reveals_what_remains_says_it_in_headers() {
    let server = TestServer::with(|_, options| options.reveals_remaining = true).await;
    prepare(&server).await;
    server.put_rolling("gpt-4o:tpm", 100, 60).await;
    let answer = strict(&server, "tenant=acme model=gpt-4o provider=openai", (80, 0)).await;
    let found = (answer.header("ratelimit-policy"), answer.header("ratelimit"));
    let policies = "\"gpt-4o:tpm\";q=100;w=60, \"gpt-4o:calls\";q=3, \"acme:usd\";q=100000";
    let states = "\"gpt-4o:tpm\";r=20, \"gpt-4o:calls\";r=2, \"acme:usd\";r=99800";
    assert_eq!(found, (Some(policies), Some(states)));
    let denied = strict(&server, "tenant=acme model=gpt-4o provider=openai", (30, 0)).await;
    let states = "\"gpt-4o:tpm\";r=20;t=5, \"gpt-4o:calls\";r=2, \"acme:usd\";r=99800";
    assert_eq!((denied.status, denied.header("ratelimit")), (429, Some(states)), "{denied:?}");
}

#[tokio::test]
async fn explain_says_what_the_answer_would_be_and_takes_nothing() {
    let server = opened().await;
    let shared = json!({"key": "all:rpm", "kind": "rolling", "capacity": 9, "window_seconds": 60, "shared": true});
    server.ok("PUT", "/v1/admin/limits?namespace=team", &shared).await;
    let policy = format!(
        "{}\n[[rules]]\nname = \"all\"\nlimits = [ {{ key = \"all:rpm\", amount = \"requests\", namespace = \"team\" }} ]\n",
        POLICY.split("[[prices]]").next().unwrap()
    ) + "[[prices]]"
        + POLICY.split("[[prices]]").nth(1).unwrap();
    let revision = put_policy(&server, &policy).await;
    let explain = |text: &str, input: u64| {
        let body = json!({"attributes": attributes(text), "input_tokens_max": input, "output_tokens_max": 0});
        let server = &server;
        async move { server.ok("POST", "/v1/calls/explain", &body).await }
    };
    let rules = |matched: [bool; 5]| {
        let names = ["provider", "tenant", "plan", "user", "all"].into_iter().zip(matched);
        json!(names.map(|(name, matched)| json!({"name": name, "matched": matched})).collect::<Vec<_>>())
    };
    let limits = json!([
        {"key": "gpt-4o:tpm", "amount": 1_000, "capacity": 10_000, "available": 10_000, "fits": true},
        {"key": "gpt-4o:calls", "amount": 1, "capacity": 3, "available": 3, "fits": true},
        {"key": "acme:usd", "amount": 2_500, "capacity": 100_000, "available": 100_000, "fits": true},
        {"key": "!team:all:rpm", "amount": 1},
    ]);
    let expected = json!({
        "allowed": true, "error": "", "rules": rules([true, true, false, false, true]), "limits": limits,
        "cost": "2500", "policy_revision": revision,
    });
    assert_eq!(explain(ACME, 1_000).await, expected);
    for (text, input, error) in [
        (ACME, 10_001, "exceeds_capacity:gpt-4o:tpm"),
        ("tenant=acme model=gpt-4o", 4_000_000, "insufficient_credit:acme:usd"),
        ("tenant=acme model=o1", 1, "no_price:o1"),
        ("tenant=acme model=gpt-4o plan=free", 1, "denied_by_rule:plan"),
        ("tenant=nobody model=gpt-4o", 1, "unknown_limit_key:nobody:usd"),
        ("tenant=globex model=gpt-4o", 1, "invalid_request"),
    ] {
        let answer = explain(text, input).await;
        assert_eq!((&answer["allowed"], &answer["error"]), (&json!(false), &json!(error)), "{answer}");
        let made = make(&server, &server.lease(), text, (input, 0)).await;
        assert_eq!((&made["allowed"], &made["error"]), (&json!(false), &json!(error)), "explain and call agree");
    }
    assert_eq!((server.reserved("gpt-4o:tpm").await, available(&server).await), (0, "100000".to_owned()));
    server.ok("POST", "/v1/admin/limits/gpt-4o:tpm/pause", &json!({"for_ms": 1_500})).await;
    assert_eq!(explain(ACME, 1).await["error"], "limit_paused:gpt-4o:tpm");
}

#[tokio::test]
async fn a_malformed_call_is_refused_by_field_and_takes_nothing() {
    let server = opened().await;
    let lease = server.lease();
    let good = call(&lease, ACME, 1, 1);
    let many: Value =
        (0..33).map(|number| (format!("a{number}"), json!("x"))).collect::<serde_json::Map<_, _>>().into();
    for (field, value, message) in [
        ("lease_id", json!("x"), "lease_id: "),
        ("attributes", json!([]), "attributes: found [], allowed is an object of texts"),
        ("attributes", json!({"tenant": 1}), "attributes.tenant: found 1, allowed is a text"),
        ("attributes", json!({"Tenant": "a"}), "attributes: found the name \"Tenant\""),
        ("attributes", json!({"tenant": ""}), "attributes: tenant: found 0 bytes, allowed are 1 to 256"),
        ("attributes", json!({"tenant": "a\nb"}), "attributes: tenant: found the control character"),
        ("attributes", many, "attributes: found more than 32"),
        ("input_tokens_max", json!(-1), "input_tokens_max: found -1, allowed are integers from 0 to 4294967295"),
        ("output_tokens_max", json!(4_294_967_296_u64), "output_tokens_max: found 4294967296"),
        ("output_tokens_max", json!("1"), "output_tokens_max: found \"1\""),
        ("requirements", json!([]), "requirements: found an unknown field"),
    ] {
        let mut body = good.clone();
        body[field] = value;
        let found = server.ask("POST", "/v1/calls", &body.to_string()).await.problem(400, "invalid_request");
        assert!(found.starts_with(message), "{message}\nbut {found}");
    }
    let twice = good.to_string().replace("\"tenant\":", "\"tenant\":\"globex\",\"tenant\":");
    let found = server.ask("POST", "/v1/calls", &twice).await.problem(400, "invalid_request");
    assert_eq!(found, "attributes: found tenant twice, allowed is each name once");

    make(&server, &lease, ACME, (1, 1)).await;
    let usage = json!({"input_tokens": 1, "output_tokens": 1});
    for (field, value, message) in [
        ("outcome", json!("failed"), "outcome: found \"failed\", allowed are done, refused and unknown"),
        ("outcome", json!("refused"), "usage: not allowed with outcome refused"),
        ("usage", json!([]), "usage: found [], allowed is an object with input_tokens"),
        ("usage", json!({"input_tokens": 1}), "usage.output_tokens is required"),
        ("policy_revision", json!(0), "policy_revision: found 0"),
    ] {
        let mut body = json!({"lease_id": lease, "attributes": attributes(ACME), "usage": usage, "outcome": "done"});
        body[field] = value;
        let found = server.ask("POST", "/v1/calls/complete", &body.to_string()).await.problem(400, "invalid_request");
        assert!(found.starts_with(message), "{message}\nbut {found}");
    }
    assert_eq!(server.reserved("gpt-4o:tpm").await, 2);
}
