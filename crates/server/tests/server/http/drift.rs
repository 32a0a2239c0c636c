//! `/openapi.json` matches the server: the tests provoke every documented response, and every response
//! matches its schema.

mod bodies;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use earmark_admission::{BackendError, ClusterError, LocalBook, LocalOptions, ManualClock};
use earmark_core::Role;
use serde_json::{Value, json};

use crate::support::{
    Answer, Broken, Gate, KeyedServer, Nodes, START_MS, Schemas, TestServer, Wire, complete, reserve,
};

/// The document, and which of its responses occurred.
struct Drift {
    schemas: Schemas,
    seen: BTreeSet<(String, String, u16)>,
}

impl Drift {
    fn new(document: Value) -> Drift {
        Drift { schemas: Schemas(document), seen: BTreeSet::new() }
    }

    /// Checks a response against the document.
    fn check(&mut self, method: &str, path: &str, answer: &Answer) {
        let method = method.to_ascii_lowercase();
        let described = &self.schemas.0["paths"][path][&method]["responses"][answer.status.to_string()];
        assert!(described.is_object(), "{method} {path} {} is not documented", answer.status);
        let found = answer.header("content-type").unwrap();
        let mut kinds = described["content"].as_object().unwrap().iter();
        let (kind, content) = kinds.find(|(kind, _)| found.starts_with(kind.as_str())).expect(found);
        assert!(answer.header("x-request-id").is_some());
        let body = if kind == "application/json" { answer.json() } else { json!(answer.text) };
        if let Err(wrong) = self.schemas.check(&content["schema"], &body) {
            panic!("{method} {path} {}: {wrong}", answer.status);
        }
        self.seen.insert((path.to_owned(), method, answer.status));
    }

    /// Sends a request and checks its response. `name` fills the parameter of `path`.
    async fn ask(&mut self, server: &TestServer, method: &str, path: &str, name: &str, body: &Value) -> Value {
        let filled = path.replace("{invitation_id}", name).replace("{key}", if name.is_empty() { "a" } else { name });
        let filled = filled.replace("{lease_id}", name).replace("{client_id}", name);
        let filled = filled.replace("{node_id}", name).replace("{key_id}", name);
        let filled = filled.replace("{namespace}", if name.is_empty() { "team" } else { name });
        let filled = filled.replace("{vault}", "main").replace("{account}", name);
        let filled = if path == AUDIT || path == ACCOUNTS { filled.replace("main", name) } else { filled };
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let answer = server.ask(method, &filled, &body).await;
        self.check(method, path, &answer);
        serde_json::from_str(&answer.text).unwrap_or_default()
    }

    fn documented(&self) -> BTreeSet<(String, String, u16)> {
        let mut all = BTreeSet::new();
        for (path, operations) in self.schemas.0["paths"].as_object().unwrap() {
            for (method, operation) in operations.as_object().unwrap() {
                for status in operation["responses"].as_object().unwrap().keys() {
                    all.insert((path.clone(), method.clone(), status.parse().unwrap()));
                }
            }
        }
        all
    }
}

const LIMITS: &str = "/v1/admin/limits";
const LIMIT: &str = "/v1/admin/limits/{key}";
const PAUSE: &str = "/v1/admin/limits/{key}/pause";
const USAGE: &str = "/v1/admin/limits/{key}/usage";
const LIST_USAGE: &str = "/v1/usage";
const TEMPLATES: &str = "/v1/admin/templates";
const LEASE: &str = "/v1/leases/{lease_id}";
const WRITE: &str = "/v1/write";
const WRITE_BATCH: &str = "/v1/write/batch";
const CLIENT: &str = "/v1/clients/{client_id}";
const BALANCES: &str = "/v1/vaults/{vault}/accounts/{account}/balances";
const VAULTS: &str = "/v1/vaults";
const ACCOUNTS: &str = "/v1/vaults/{vault}/accounts";
const GRANTS: &str = "/v1/vaults/{vault}/accounts/{account}/grants";
const ENTRIES: &str = "/v1/vaults/{vault}/accounts/{account}/entries";
const STATEMENT: &str = "/v1/vaults/{vault}/accounts/{account}/statement";
const AUDIT: &str = "/v1/vaults/{vault}/audit";
const CLUSTER: &str = "/v1/admin/cluster";
const MEMBERS: &str = "/v1/admin/cluster/members";
const MEMBER: &str = "/v1/admin/cluster/members/{node_id}";
const INVITATIONS: &str = "/v1/admin/cluster/invitations";
const INVITATION: &str = "/v1/admin/cluster/invitations/{invitation_id}";
const BACKUP: &str = "/v1/admin/cluster/backup";
const EXPORT: &str = "/v1/admin/audit/export";
const SIGNING_KEYS: &str = "/v1/admin/audit/keys";
const KEYS: &str = "/v1/admin/keys";
const KEY: &str = "/v1/admin/keys/{key_id}";
const QUOTAS: &str = "/v1/admin/quotas/{namespace}";
const POLICY: &str = "/v1/admin/policy";
const CHANGES: &str = "/v1/audit";
const DECISIONS: &str = "/v1/decisions";
const TOP: &str = "/v1/top";
const CHARTS: &str = "/v1/charts";
const EVENTS: &str = "/v1/events";
const CALLS: &str = "/v1/calls";
const EXTEND_CALL: &str = "/v1/calls/extend";
const COMPLETE_CALL: &str = "/v1/calls/complete";
const CALL_BATCH: &str = "/v1/calls/batch";
const COMPLETE_CALL_BATCH: &str = "/v1/calls/complete/batch";
const EXPLAIN_CALL: &str = "/v1/calls/explain";
const WITH_BODY: [(&str, &str); 23] = [
    ("POST", CALLS),
    ("POST", CALL_BATCH),
    ("POST", COMPLETE_CALL_BATCH),
    ("POST", EXTEND_CALL),
    ("POST", COMPLETE_CALL),
    ("POST", EXPLAIN_CALL),
    ("PUT", POLICY),
    ("POST", PAUSE),
    ("PUT", TEMPLATES),
    ("PUT", QUOTAS),
    ("POST", KEYS),
    ("POST", MEMBERS),
    ("POST", INVITATIONS),
    ("POST", BACKUP),
    ("POST", WRITE),
    ("POST", WRITE_BATCH),
    ("POST", "/v1/reserve"),
    ("POST", "/v1/extend"),
    ("POST", "/v1/complete"),
    ("POST", "/v1/reserve/batch"),
    ("POST", "/v1/extend/batch"),
    ("POST", "/v1/complete/batch"),
    ("PUT", LIMITS),
];

#[tokio::test]
async fn every_documented_answer_comes_and_every_answer_is_as_documented() {
    let server = TestServer::open().await;
    let document = server.ok("GET", "/openapi.json", &Value::Null).await;
    let mut drift = Drift::new(document);
    good(&mut drift, &server).await;
    credit(&mut drift, &server).await;
    calls(&mut drift).await;
    nodes(&mut drift, &server).await;
    bad(&mut drift, &server).await;
    failing(&mut drift).await;
    callers(&mut drift).await;
    let (documented, seen) = (drift.documented(), drift.seen);
    let unseen: Vec<_> = documented.difference(&seen).collect();
    assert!(unseen.is_empty(), "documented, but no test sees it: {unseen:?}");
}

async fn good(drift: &mut Drift, server: &TestServer) {
    let none = Value::Null;
    let rolling = json!({"key": "a", "kind": "rolling", "capacity": 2, "window_seconds": 60, "unit": "calls"});
    let slots = json!({"key": "s", "kind": "concurrency", "capacity": 2, "timeout_seconds": 60, "unit": null});
    for limit in [&rolling, &slots] {
        drift.ask(server, "PUT", LIMITS, "", limit).await;
    }
    let (lease, other) = (server.lease(), server.lease());
    let old = TestServer::lease_at(START_MS - 3_600_000);
    for (lease, amounts) in [
        (&lease, &[("a", 1), ("s", 1)][..]),
        (&lease, &[("a", 2)]),
        (&other, &[("a", 2), ("s", 2)]),
        (&server.lease(), &[("a", 9)]),
        (&server.lease(), &[("nope", 1)]),
        (&old, &[("a", 1)]),
    ] {
        let body = reserve(lease, amounts);
        drift.ask(server, "POST", "/v1/reserve", "", &body).await;
        drift.ask(server, "POST", "/v1/reserve/batch", "", &json!({"requests": [body]})).await;
    }
    extensions(drift, server, &lease).await;
    drift.ask(server, "DELETE", LIMIT, "s", &none).await;
    drift.ask(server, "POST", "/v1/reserve", "", &reserve(&server.lease(), &[("s", 1)])).await;
    for (path, name) in
        [(LIMITS, ""), (LIST_USAGE, ""), (LIMIT, "s"), (USAGE, "s"), (USAGE, "a"), (LEASE, &lease), (LEASE, &other)]
    {
        drift.ask(server, "GET", path, name, &none).await;
    }
    for body in [complete(&lease, &[("a", 5), ("x", 1)]), complete(&lease, &[]), complete(&server.lease(), &[])] {
        drift.ask(server, "POST", "/v1/complete", "", &body).await;
        drift.ask(server, "POST", "/v1/complete/batch", "", &json!({"requests": [body]})).await;
    }
    drift.ask(server, "POST", "/v1/reserve", "", &reserve(&lease, &[("a", 1), ("s", 1)])).await;
    templates(drift, server).await;
    for (name, for_ms) in [("a", 1_000), ("a", 0), ("gone", 1_000)] {
        drift.ask(server, "POST", PAUSE, name, &json!({"for_ms": for_ms})).await;
    }
    drift.ask(server, "PUT", QUOTAS, "default", &json!({"derived_limits": 0, "templates": 9})).await;
    drift
        .ask(
            server,
            "PUT",
            TEMPLATES,
            "",
            &json!({"key": "p:{x}", "kind": "rolling", "capacity": 2, "window_seconds": 60}),
        )
        .await;
    drift.ask(server, "POST", PAUSE, "p:1", &json!({"for_ms": 1_000})).await;
    drift.ask(server, "DELETE", LIMIT, "a", &none).await;
    drift.ask(server, "PUT", QUOTAS, "default", &json!({"limits": 0, "leases": 0})).await;
    drift.ask(server, "GET", QUOTAS, "default", &none).await;
    drift
        .ask(server, "PUT", LIMITS, "", &json!({"key": "b", "kind": "rolling", "capacity": 2, "window_seconds": 60}))
        .await;
    drift.ask(server, "PUT", QUOTAS, "default", &json!({"limits": 100})).await;
    drift.ask(server, "PUT", LIMITS, "", &rolling).await;
    drift.ask(server, "POST", "/v1/reserve", "", &reserve(&server.lease(), &[("a", 1)])).await;
    drift.ask(server, "POST", "/v1/complete", "", &complete(&server.lease(), &[])).await;
    drift.ask(server, "PUT", QUOTAS, "default", &json!({"limits": 100, "leases": 1_000, "vaults": 9})).await;
    for path in ["/healthz", "/readyz", "/metrics", "/openapi.json", DECISIONS, TOP, CHARTS, EVENTS] {
        drift.ask(server, "GET", path, "", &none).await;
    }
}

/// Extensions of a lease that has reserved one each of `a` and `s`.
async fn extensions(drift: &mut Drift, server: &TestServer, lease: &str) {
    let used = json!([{"key": "a", "actual_amount": 2}, {"key": "x", "actual_amount": 1}]);
    let add = |key: &str, amount: u64| json!([{"key": key, "amount": amount}]);
    for body in [
        json!({"lease_id": lease, "extension": 1, "used": used}),
        json!({"lease_id": lease, "extension": 2, "add": add("s", 9)}),
        json!({"lease_id": lease, "extension": 3, "add": add("nope", 1)}),
        json!({"lease_id": lease, "extension": 5}),
        json!({"lease_id": server.lease(), "extension": 1}),
    ] {
        drift.ask(server, "POST", "/v1/extend", "", &body).await;
        drift.ask(server, "POST", "/v1/extend/batch", "", &json!({"requests": [body]})).await;
    }
    drift.ask(server, "GET", LEASE, lease, &Value::Null).await;
}

async fn templates(drift: &mut Drift, server: &TestServer) {
    let template = |key: &str| json!({"key": key, "kind": "rolling", "capacity": 2, "window_seconds": 60});
    drift.ask(server, "PUT", TEMPLATES, "", &template("t:{user}")).await;
    drift.ask(server, "GET", TEMPLATES, "", &Value::Null).await;
    for policy in [json!({"policy": ""}), json!({"policy": "", "expected_revision": 7})] {
        drift.ask(server, "GET", POLICY, "", &Value::Null).await;
        drift.ask(server, "PUT", POLICY, "", &policy).await;
    }
    let answer = server.ask("GET", "/v1/admin/policy?name=eu", "").await;
    drift.check("GET", POLICY, &answer);
    drift.ask(server, "PUT", QUOTAS, "default", &json!({"templates": 1})).await;
    drift.ask(server, "PUT", TEMPLATES, "", &template("u:{user}")).await;
    for revision in ["&expected_revision=999", "", ""] {
        let answer = server.ask("DELETE", &format!("/v1/admin/templates?key=t:%7Buser%7D{revision}"), "").await;
        drift.check("DELETE", TEMPLATES, &answer);
    }
}

/// A write, and the same as a batch.
async fn write(drift: &mut Drift, server: &TestServer, vault: Option<&str>, sequence: u64, operations: Value) {
    let mut body = json!({"namespace": "default", "vault": vault, "client_id": "c", "sequence": sequence});
    let mut batch = body.clone();
    batch["writes"] = json!([{"operations": operations}]);
    body["operations"] = operations;
    drift.ask(server, "POST", WRITE, "", &body).await;
    drift.ask(server, "POST", WRITE_BATCH, "", &batch).await;
}

async fn credit(drift: &mut Drift, server: &TestServer) {
    let issue = |account: &str| json!({"issue": {"account": account, "asset": "usd", "amount": "5"}});
    let retire = json!({"retire": {"account": "acme", "asset": "usd", "amount": 9}});
    let open = json!({"open_account": {"account": "acme", "overdraft": "deny"}});
    let limit = json!({"key": "w", "kind": "rolling", "capacity": 2, "window_seconds": 60});
    let put = json!({"put_limit": {"definition": limit}});
    write(drift, server, None, 1, json!([{"open_vault": {"vault": "eu"}}, put])).await;
    let usd =
        json!({"key": "u", "kind": "credit", "timeout_seconds": 9, "vault": "main", "account": "acme", "asset": "usd"});
    drift.ask(server, "PUT", LIMITS, "", &usd).await;
    let lease = server.lease();
    drift.ask(server, "POST", "/v1/reserve", "", &reserve(&lease, &[("u", 1)])).await;
    write(drift, server, Some("main"), 1, json!([open, issue("acme")])).await;
    for (amount, actuals) in [(1, &[("u", 1)][..]), (2, &[("u", 0)]), (3, &[]), (9, &[])] {
        let lease = server.lease();
        drift.ask(server, "POST", "/v1/reserve", "", &reserve(&lease, &[("u", amount)])).await;
        drift.ask(server, "POST", "/v1/complete", "", &complete(&lease, actuals)).await;
    }
    for (path, name) in [(LIMITS, ""), (LIST_USAGE, ""), (LIMIT, "u"), (USAGE, "u")] {
        drift.ask(server, "GET", path, name, &Value::Null).await;
    }
    write(drift, server, Some("main"), 2, json!([retire])).await;
    write(drift, server, Some("main"), 2, json!([issue("nobody")])).await;
    write(drift, server, Some("main"), 9, json!([])).await;
    write(drift, server, Some("main"), 2, json!([put])).await;
    for (path, name) in [
        (CLIENT, "c"),
        (BALANCES, "acme"),
        (GRANTS, "acme"),
        (VAULTS, ""),
        (ACCOUNTS, "main"),
        (ENTRIES, "acme"),
        (STATEMENT, "acme"),
        (AUDIT, "main"),
    ] {
        drift.ask(server, "GET", path, name, &Value::Null).await;
    }
    let grouped = server.ask("GET", "/v1/vaults/main/accounts/acme/statement?group_by=model&since=0", "").await;
    drift.check("GET", STATEMENT, &grouped);
    let csv = server.ask("GET", "/v1/vaults/main/accounts/acme/statement?format=csv", "").await;
    drift.check("GET", STATEMENT, &csv);
}

async fn calls(drift: &mut Drift) {
    let server = TestServer::open().await;
    super::calls::prepare(&server).await;
    let acme = "tenant=acme model=gpt-4o provider=openai";
    let lease = server.lease();
    for (lease, text, input) in [
        (lease.clone(), acme, 5_000),
        (server.lease(), acme, 6_000),
        (server.lease(), acme, 20_000),
        (server.lease(), "tenant=acme model=gpt-4o", 4_000_000),
        (server.lease(), "tenant=acme model=o1", 1),
        (server.lease(), "tenant=acme", 1),
        (server.lease(), "tenant=acme model=gpt-4o plan=free", 1),
        (server.lease(), "tenant=globex model=gpt-4o", 1),
        (server.lease(), "tenant=nobody model=gpt-4o", 1),
    ] {
        let mut body = super::calls::call(&lease, text, input, 0);
        drift.ask(&server, "POST", CALLS, "", &body).await;
        drift.ask(&server, "POST", CALL_BATCH, "", &json!({"requests": [body]})).await;
        let strict = server.ask("POST", "/v1/calls?status=true", &body.to_string()).await;
        drift.check("POST", CALLS, &strict);
        body.as_object_mut().unwrap().remove("lease_id");
        drift.ask(&server, "POST", EXPLAIN_CALL, "", &body).await;
    }
    let attributes = json!({"tenant": "acme", "model": "gpt-4o", "provider": "openai"});
    let used = json!({"input_tokens": 1, "output_tokens": 0});
    for more in [0, 10_000] {
        let body = json!({"lease_id": lease, "extension": 1, "attributes": attributes, "add_output_tokens": more, "used": used});
        drift.ask(&server, "POST", EXTEND_CALL, "", &body).await;
    }
    for (attributes, outcome) in [(&json!({}), "done"), (&attributes, "unknown"), (&attributes, "done")] {
        let mut body = json!({"lease_id": lease, "attributes": attributes, "outcome": outcome});
        drift.ask(&server, "POST", COMPLETE_CALL, "", &body).await;
        drift.ask(&server, "POST", COMPLETE_CALL_BATCH, "", &json!({"requests": [body]})).await;
        body["lease_id"] = json!(server.lease());
        drift.ask(&server, "POST", COMPLETE_CALL, "", &body).await;
    }
}

async fn nodes(drift: &mut Drift, none: &TestServer) {
    let second = json!({"node_id": 2, "address": "127.0.0.1:7102"});
    let refused = ClusterError::Refused("never".into());
    let unavailable = ClusterError::Unavailable("not now".into());
    let (done, never, later) = (
        TestServer::with_nodes(Nodes(Ok(()))).await,
        TestServer::with_nodes(Nodes(Err(refused))).await,
        TestServer::with_nodes(Nodes(Err(unavailable))).await,
    );
    for server in [none, &done, &never, &later] {
        drift.ask(server, "GET", CLUSTER, "", &Value::Null).await;
        drift.ask(server, "POST", MEMBERS, "", &second).await;
        drift.ask(server, "DELETE", MEMBER, "2", &Value::Null).await;
        drift.ask(server, "POST", INVITATIONS, "", &json!({})).await;
        drift.ask(server, "GET", INVITATIONS, "", &Value::Null).await;
        drift.ask(server, "DELETE", INVITATION, "0123456789abcdef", &Value::Null).await;
        drift.ask(server, "POST", BACKUP, "", &json!({})).await;
        drift.ask(server, "GET", BACKUP, "", &Value::Null).await;
        drift.ask(server, "GET", EXPORT, "", &Value::Null).await;
        drift.ask(server, "GET", SIGNING_KEYS, "", &Value::Null).await;
    }
    drift.ask(&done, "DELETE", MEMBER, "x", &Value::Null).await;
    drift.ask(&done, "DELETE", INVITATION, "x", &Value::Null).await;
    parameters(drift, &done).await;
}

/// Every path rejects unknown parameters. The document lacked this for `GET /v1/admin/cluster`.
async fn parameters(drift: &mut Drift, server: &TestServer) {
    let operations: BTreeSet<(String, String)> =
        drift.documented().into_iter().map(|(path, method, _)| (path, method)).collect();
    for (path, method) in operations.iter().filter(|(path, _)| path.starts_with("/v1/")) {
        let asked = format!("{}?nope=1", path.replace(['{', '}'], ""));
        let answer = server.ask(&method.to_uppercase(), &asked, "").await;
        drift.check(method, path, &answer);
        assert!(answer.problem(400, "invalid_request").starts_with("query: found \"nope\""), "{answer:?}");
    }
}

async fn bad(drift: &mut Drift, server: &TestServer) {
    let none = Value::Null;
    for (method, path) in WITH_BODY {
        drift.ask(server, method, path, "", &json!({"nope": 1})).await;
        drift.ask(server, method, path, "", &json!(" ".repeat(1 << 20))).await;
    }
    for (method, path, bad, absent) in [
        ("GET", LIMIT, "%20", "gone"),
        ("DELETE", LIMIT, "%20", "gone"),
        ("GET", USAGE, "%20", "gone"),
        ("GET", LEASE, "x", &server.lease()),
        ("GET", CLIENT, "%20", "c?vault=gone"),
        ("GET", BALANCES, "%20", "gone"),
        ("GET", ACCOUNTS, "%20", "gone"),
        ("GET", GRANTS, "%20", "gone"),
        ("GET", ENTRIES, "%20", "gone"),
        ("GET", STATEMENT, "%20", "gone"),
        ("GET", AUDIT, "%20", "gone"),
        ("GET", QUOTAS, "%20", "gone"),
    ] {
        drift.ask(server, method, path, bad, &none).await;
        drift.ask(server, method, path, absent, &none).await;
    }
    let answer = server.ask("GET", "/v1/admin/limits?names=eu", "").await;
    drift.check("GET", LIMITS, &answer);
    let answer = server.ask("GET", "/v1/usage?sort=debt&after=a", "").await;
    drift.check("GET", LIST_USAGE, &answer);
    let silent = TestServer::with(|_, options| options.decisions = None).await;
    drift.ask(&silent, "GET", DECISIONS, "", &none).await;
    drift.check("GET", EVENTS, &silent.ask("GET", "/v1/events?topics=decisions", "").await);
    let impatient = TestServer::with(|_, options| options.request_timeout = Duration::from_millis(100)).await;
    for (method, path) in WITH_BODY {
        let mut wire = Wire::to(impatient.address).await;
        wire.send(&format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\n{{")).await;
        drift.check(method, path, &wire.answer().await);
    }
    let cramped = TestServer::with(|_, options| options.bodies_bytes_max = 0).await;
    for (method, path) in WITH_BODY {
        let mut wire = Wire::to(cramped.address).await;
        let head = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n");
        wire.send(&format!("{head}1\r\n{{\r\n1\r\n}}\r\n0\r\n\r\n")).await;
        let answer = wire.answer().await;
        drift.check(method, path, &answer);
        assert!(answer.problem(503, "overloaded").starts_with("body: "), "{answer:?}");
    }
}

async fn failing(drift: &mut Drift) {
    let none = Value::Null;
    let clock = || ManualClock::at(START_MS);
    let limit = json!({"key": "a", "kind": "rolling", "capacity": 2, "window_seconds": 60});
    for error in [BackendError::Overloaded("no room"), BackendError::Failed("broken".into())] {
        let server = TestServer::on(clock(), Arc::new(Broken(error)), TestServer::options()).await;
        let lease = server.lease();
        drift.ask(&server, "POST", "/v1/reserve", "", &reserve(&lease, &[("a", 1)])).await;
        drift.ask(&server, "POST", "/v1/extend", "", &json!({"lease_id": lease, "extension": 1})).await;
        drift.ask(&server, "POST", "/v1/complete", "", &complete(&lease, &[])).await;
        let mut call = super::calls::call(&lease, "model=x", 1, 1);
        drift.ask(&server, "POST", CALLS, "", &call).await;
        call.as_object_mut().unwrap().remove("lease_id");
        drift.ask(&server, "POST", EXPLAIN_CALL, "", &call).await;
        let call = json!({"lease_id": lease, "attributes": {"model": "x"}, "policy_revision": 1});
        let with = |name: &str, value: Value| {
            let mut call = call.clone();
            call[name] = value;
            call
        };
        drift.ask(&server, "POST", EXTEND_CALL, "", &with("extension", json!(1))).await;
        drift.ask(&server, "POST", COMPLETE_CALL, "", &with("outcome", json!("refused"))).await;
        drift.ask(&server, "PUT", LIMITS, "", &limit).await;
        drift.ask(&server, "POST", PAUSE, "a", &json!({"for_ms": 1_000})).await;
        drift.ask(&server, "PUT", QUOTAS, "team", &json!({"limits": 1})).await;
        drift.ask(&server, "PUT", POLICY, "", &json!({"policy": ""})).await;
        let template = json!({"key": "a:{b}", "kind": "rolling", "capacity": 2, "window_seconds": 60});
        drift.ask(&server, "PUT", TEMPLATES, "", &template).await;
        drift.ask(&server, "GET", TEMPLATES, "", &none).await;
        drift.ask(&server, "GET", "/v1/whoami", "", &none).await;
        let answer = server.ask("DELETE", "/v1/admin/templates?key=a:%7Bb%7D", "").await;
        drift.check("DELETE", TEMPLATES, &answer);
        drift.ask(&server, "POST", KEYS, "", &json!({"name": "n", "role": "reader"})).await;
        write(drift, &server, None, 1, json!([])).await;
        for (method, path, name) in [
            ("GET", LIMITS, ""),
            ("GET", LIST_USAGE, ""),
            ("GET", LIMIT, "a"),
            ("DELETE", LIMIT, "a"),
            ("GET", USAGE, "a"),
            ("GET", LEASE, lease.as_str()),
            ("GET", "/readyz", ""),
            ("GET", CLIENT, "c"),
            ("GET", BALANCES, "a"),
            ("GET", VAULTS, ""),
            ("GET", ACCOUNTS, "main"),
            ("GET", GRANTS, "a"),
            ("GET", ENTRIES, "a"),
            ("GET", STATEMENT, "a"),
            ("GET", AUDIT, "main"),
            ("DELETE", KEY, "k"),
            ("GET", QUOTAS, "default"),
        ] {
            drift.ask(&server, method, path, name, &none).await;
        }
        for path in [KEYS, CHANGES, DECISIONS, TOP, CHARTS, EVENTS, POLICY] {
            drift.ask(&server, "GET", path, "", &none).await;
        }
    }
    let book = LocalBook::open(LocalOptions::default()).await.unwrap();
    let server = TestServer::on(clock(), Arc::new(Gate::before(book)), TestServer::options()).await;
    // This backend has no keys.
    drift.ask(&server, "POST", KEYS, "", &json!({"name": "n", "role": "reader"})).await;
    drift.ask(&server, "GET", KEYS, "", &none).await;
    drift.ask(&server, "GET", CHANGES, "", &none).await;
    let invalid = drift.ask(&server, "POST", "/v1/complete", "", &complete(&server.lease(), &[])).await;
    assert_eq!(invalid, json!({"ok": false, "error": "invalid_request", "message": "no", "reconciled": false}));
}

/// Responses of every guarded route to rejected requests, and of the routes for keys.
async fn callers(drift: &mut Drift) {
    let keyed = KeyedServer::with(|options| options.requests_per_second = Some(1)).await;
    let routes: Vec<(String, String)> = drift
        .documented()
        .into_iter()
        .filter(|(_, _, status)| *status == 401)
        .map(|(path, method, _)| (path, method))
        .collect();
    for (path, method) in routes {
        let filled = path.replace(['{', '}'], "");
        let method = method.to_uppercase();
        let calls = ["/v1/reserve", "/v1/extend", "/v1/complete", "/v1/calls"];
        let is_call = calls.iter().any(|call| path.starts_with(call)) && path != EXPLAIN_CALL;
        // Each key has one request per second, rejected ones included.
        let wrong = match path.as_str() {
            "/v1/whoami" => Role::Client,
            _ if is_call => Role::Reader,
            _ => Role::Caller,
        };
        let wrong = keyed.key(wrong, "default").await;
        let nobody = keyed.ask(None, &method, &filled, "").await;
        drift.check(&method, &path, &nobody);
        drift.check(&method, &path, &keyed.ask(Some(&wrong), &method, &filled, "").await);
        let right = keyed.key(Role::Admin, "default").await;
        let mut answers = Vec::new();
        for _ in 0..4 {
            answers.push(keyed.ask(Some(&right), &method, &filled, "").await);
        }
        let noisy = answers.iter().find(|answer| answer.status == 429).unwrap();
        drift.check(&method, &path, noisy);
    }
    let server = TestServer::open().await;
    let limit = |capacity: u64| json!({"key": "a", "kind": "rolling", "capacity": capacity, "window_seconds": 60});
    for capacity in [1, 2] {
        drift.ask(&server, "PUT", LIMITS, "", &limit(capacity)).await;
    }
    let operations = json!([{"put_limit": {"definition": limit(3)}}, {"delete_limit": {"key": "a"}}]);
    let write = json!({"namespace": "default", "client_id": "c", "sequence": 1, "operations": operations});
    drift.ask(&server, "POST", WRITE, "", &write).await;
    drift.ask(&server, "GET", "/v1/audit", "", &Value::Null).await;
    let answer = server.ask("GET", "/v1/audit?page_size=0", "").await;
    drift.check("GET", CHANGES, &answer);
    drift.ask(&server, "GET", "/v1/whoami", "", &Value::Null).await;
    let answer = server.ask("GET", "/v1/whoami?a=1", "").await;
    drift.check("GET", "/v1/whoami", &answer);
    let answer = server.ask("GET", "/v1/admin/keys?a=1", "").await;
    drift.check("GET", KEYS, &answer);
    drift.ask(&server, "GET", KEYS, "", &Value::Null).await;
    drift.ask(&server, "DELETE", KEY, "gone", &Value::Null).await;
    drift.ask(&server, "DELETE", KEY, "%20", &Value::Null).await;
    let made = drift.ask(&server, "POST", KEYS, "", &json!({"name": "n", "role": "admin"})).await;
    let keyed = KeyedServer::open().await;
    assert!(made["key"].as_str().unwrap().starts_with("emk_"));
    let (root, other) = (keyed.root.clone(), keyed.key(Role::Admin, "default").await);
    let path = |key: &str| format!("/v1/admin/keys/{}", key.split('_').nth(1).unwrap());
    for (by, key) in [(&root, &other), (&root, &root)] {
        let answer = keyed.ask(Some(by), "DELETE", &path(key), "").await;
        drift.check("DELETE", KEY, &answer);
    }
    for path in [KEYS, CHANGES] {
        let answer = keyed.ask(Some(&root), "GET", path, "").await;
        drift.check("GET", path, &answer);
    }
}
