//! Roles, namespaces, and responses to rejected requests.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant};

use earmark_admission::{Backend as _, LocalBook, LocalOptions, PutTemplateRequest};
use earmark_core::{Definition, Kind, LimitKey, Principal, Role, Template};
use earmark_server::{Server, ServerError, ServerOptions};
use serde_json::{Value, json};

use crate::grpc::callers::with;
use crate::grpc::calls;
use crate::support::{Answer, KeyedServer, START_MS, TestServer, Wire, reserve};

pub(super) const UNAUTHENTICATED: &str =
    r#"{"error":"unauthenticated","message":"the credentials are missing or not valid"}"#;

/// A page of a thousand items and a write of 256 operations counted as one request each.
#[tokio::test]
async fn pages_and_writes_are_charged_by_their_items() {
    for (heavy, light) in [
        ("/v1/admin/limits", "/v1/admin/limits?page_size=8"),
        (
            "/v1/vaults/main/accounts/revenue/entries?page_size=1000",
            "/v1/vaults/main/accounts/revenue/entries?page_size=8",
        ),
        ("/v1/vaults/main/accounts/revenue/entries?since=1", "/v1/vaults?page_size=8"),
        ("/v1/vaults/main/accounts", "/v1/vaults?page_size=8"),
        ("/v1/audit?page_size=1000", "/v1/admin/limits/x"),
        ("/v1/usage", "/v1/usage?page_size=8"),
    ] {
        let keyed = KeyedServer::with(|options| options.requests_per_second = Some(1_000)).await;
        for _ in 0..20 {
            assert_ne!(keyed.ask(Some(&keyed.root), "GET", light, "").await.status, 429, "{light}");
        }
        let statuses = [
            keyed.ask(Some(&keyed.root), "GET", heavy, "").await.status,
            keyed.ask(Some(&keyed.root), "GET", heavy, "").await.status,
        ];
        assert!(statuses.contains(&429), "{heavy}: {statuses:?}");
    }
    let keyed = KeyedServer::with(|options| options.requests_per_second = Some(1_000)).await;
    let operation = serde_json::json!({"open_vault": {"vault": "main"}});
    let mut statuses = Vec::new();
    for _ in 0..6 {
        let write = serde_json::json!({
            "namespace": "default", "client_id": "c", "sequence": 7, "operations": vec![&operation; 256],
        });
        statuses.push(keyed.ask(Some(&keyed.root), "POST", "/v1/write", &write.to_string()).await.status);
    }
    assert!(statuses.contains(&429) && statuses.contains(&409), "{statuses:?}");
}

/// A list of a thousand templates counted as one request, and was built on a thread of the runtime.
#[tokio::test]
async fn a_list_of_templates_is_charged_by_its_templates() {
    let keyed = KeyedServer::with(|options| options.requests_per_second = Some(400)).await;
    let list = || keyed.ask(Some(&keyed.root), "GET", "/v1/admin/templates", "");
    for _ in 0..3 {
        assert_eq!(list().await.status, 200, "none");
    }
    for number in 0..380 {
        let key = LimitKey::pattern(&format!("k{number}:{{user}}")).unwrap();
        let template = Template::new(Definition::new(key, Kind::Rolling { window_seconds: 60 }, 1)).unwrap();
        let request = PutTemplateRequest { namespace: "default".parse().unwrap(), template, expected_revision: None };
        keyed.book.put_template(Principal::System, request).await.unwrap();
    }
    assert_eq!([list().await.status, list().await.status], [200, 429]);
    let listed = calls::limits(&keyed.server).await.list_templates(with(Some(&keyed.root), Default::default())).await;
    assert_eq!(listed.unwrap_err().code(), tonic::Code::ResourceExhausted);
}

/// A list of templates waited for more permits while it held one, until its deadline, and so did all that its caller asked
/// meanwhile.
#[tokio::test]
async fn a_list_waits_for_no_other_permit_of_its_own() {
    let keyed = KeyedServer::with(|options| options.requests_at_once = NonZeroU32::new(1)).await;
    for path in ["limits", "templates", "limits?prefix=a", "quotas/default", "policy?namespace=default"] {
        let listed = keyed.ask(Some(&keyed.root), "GET", &format!("/v1/admin/{path}"), "").await;
        assert_ne!(listed.status, 429, "{path}");
    }
    let listed = calls::limits(&keyed.server).await.list_templates(with(Some(&keyed.root), Default::default())).await;
    assert_eq!(listed.unwrap().into_inner().templates, []);
}

/// The page of a tenant's change log may read 5,000 changes of others, and counted as 100 requests.
#[tokio::test]
async fn a_change_log_page_of_one_namespace_is_charged_like_a_filter() {
    let keyed = KeyedServer::with(|options| options.requests_per_second = Some(1_000)).await;
    let tenant = keyed.key(Role::Admin, "team").await;
    for (key, second) in [(&keyed.root, 200), (&tenant, 429)] {
        let ask = || keyed.ask(Some(key), "GET", "/v1/audit?page_size=1", "");
        let statuses = [ask().await.status, ask().await.status];
        assert_eq!(statuses, [200, second]);
    }
}

/// All bad credentials get the same response, byte for byte.
#[tokio::test]
async fn credentials_that_are_not_good_are_all_answered_alike() {
    let keyed = Arc::new(KeyedServer::open().await);
    let wrong = keyed.wrong().await;
    // All at once, because repeated failures are delayed.
    let asked: Vec<_> = wrong
        .iter()
        .map(|headers| {
            let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
            let keyed = Arc::clone(&keyed);
            tokio::spawn(async move { keyed.ask_with(&headers, "GET", "/v1/admin/limits", "").await })
        })
        .collect();
    let shown = |answer: &Answer| {
        // These two headers always differ.
        let is_its_own = |name: &str| ["x-request-id", "date"].contains(&name);
        let headers = answer.headers.iter().filter(|(name, _)| !is_its_own(name));
        (answer.status, headers.cloned().collect::<Vec<_>>(), answer.text.clone())
    };
    let mut answers = Vec::new();
    for asked in asked {
        answers.push(asked.await.unwrap());
    }
    for (answer, headers) in answers.iter().zip(&wrong) {
        assert_eq!((answer.status, answer.text.as_str()), (401, UNAUTHENTICATED), "{headers:?}");
        assert_eq!(shown(answer), shown(&answers[0]), "{headers:?}");
    }
    let good = &keyed.root;
    assert_eq!(keyed.ask(Some(good), "GET", "/v1/admin/limits", "").await.status, 200);
    let metrics = keyed.ask(Some(good), "GET", "/metrics", "").await.text;
    let line = format!("earmark_failed_logins_total {}\n", wrong.len());
    assert!(metrics.contains(&line), "{metrics}");
}

/// Keys expired by log time alone, so slow log time accepted them for longer. Here it is years behind the
/// wall clock.
#[tokio::test]
async fn a_key_ends_by_the_clock_on_the_wall_too_whatever_the_time_of_the_log() {
    let keyed = KeyedServer::open().await;
    let wall = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let behind = u32::try_from(wall.as_secs() - START_MS / 1_000).unwrap();
    let over = keyed.key_of(Role::Reader, "default", |key| key.valid_seconds = Some(behind)).await;
    let good = keyed.key_of(Role::Reader, "default", |key| key.valid_seconds = Some(behind + 3_600)).await;
    for (key, status) in [(&over, 401), (&good, 200)] {
        assert_eq!(keyed.ask(Some(key), "GET", "/v1/admin/limits", "").await.status, status);
    }
    // It expires by log time while the wall clock has an hour left.
    keyed.server.clock.advance_ms(u64::from(behind + 3_600) * 1_000);
    assert_eq!(keyed.ask(Some(&good), "GET", "/v1/admin/limits", "").await.status, 401);
}

#[tokio::test]
async fn a_connection_is_closed_whose_failed_logins_find_no_room_to_wait() {
    let keyed = KeyedServer::with(|options| options.failed_logins_waiting_max = 0).await;
    let mut wire = Wire::to(keyed.server.address).await;
    for number in 1..=6 {
        let answer = wire.ask("GET", "/v1/audit", "").await;
        assert_eq!((answer.status, answer.text.as_str()), (401, UNAUTHENTICATED));
        assert_eq!(answer.header("connection"), (number == 6).then_some("close"), "{number}");
    }
    assert!(wire.is_closed().await);
    // A valid key is accepted.
    assert_eq!(keyed.ask(Some(&keyed.root), "GET", "/v1/audit", "").await.status, 200);
}

/// The response with a new key must not be cached.
#[tokio::test]
async fn the_answer_with_a_new_key_is_not_to_be_stored() {
    let keyed = KeyedServer::open().await;
    let body = r#"{"name":"n","role":"reader"}"#;
    let made = keyed.ask(Some(&keyed.root), "POST", "/v1/admin/keys", body).await;
    assert_eq!((made.status, made.header("cache-control")), (200, Some("no-store")));
    let listed = keyed.ask(Some(&keyed.root), "GET", "/v1/admin/keys", "").await;
    assert_eq!((listed.status, listed.header("cache-control")), (200, None));
}

#[tokio::test]
async fn a_key_that_is_revoked_while_it_is_in_use_is_refused_at_once() {
    let keyed = KeyedServer::open().await;
    let (root, caller) = (keyed.root.clone(), keyed.key(Role::Caller, "default").await);
    let reader = keyed.key(Role::Reader, "default").await;
    let limit = json!({"key": "a", "kind": "rolling", "capacity": 9, "window_seconds": 60}).to_string();
    assert_eq!(keyed.ask(Some(&root), "PUT", "/v1/admin/limits", &limit).await.status, 200);
    let asks = || reserve(&keyed.server.lease(), &[("a", 1)]).to_string();
    assert_eq!(keyed.ask(Some(&caller), "POST", "/v1/reserve", &asks()).await.status, 200);
    assert_eq!(keyed.ask(Some(&reader), "GET", "/v1/admin/limits", "").await.status, 200);
    for key in [&caller, &reader] {
        let path = format!("/v1/admin/keys/{}", key.split('_').nth(1).unwrap());
        assert_eq!(keyed.ask(Some(&root), "DELETE", &path, "").await.status, 200);
    }
    // The credential cache does not help a revoked key.
    let batch = format!(r#"{{"requests":[{}]}}"#, asks());
    for (key, method, path, body) in [
        (&caller, "POST", "/v1/reserve", asks()),
        (&caller, "POST", "/v1/reserve/batch", batch),
        (&reader, "GET", "/v1/admin/limits", String::new()),
        (&reader, "GET", "/metrics", String::new()),
    ] {
        let answer = keyed.ask(Some(key), method, path, &body).await;
        assert_eq!((answer.status, answer.text.as_str()), (401, UNAUTHENTICATED), "{path}");
    }
    let usage = keyed.ask(Some(&root), "GET", "/v1/admin/limits/a/usage", "").await.json();
    assert_eq!(usage["reserved"], 1);
}

#[tokio::test]
async fn one_namespace_neither_sees_nor_touches_another() {
    let keyed = KeyedServer::open().await;
    let (ours, theirs) = (keyed.key(Role::Admin, "ours").await, keyed.key(Role::Admin, "theirs").await);
    let limit =
        |capacity| json!({"key": "a", "kind": "rolling", "capacity": capacity, "window_seconds": 60}).to_string();
    for (key, capacity) in [(&ours, 1), (&theirs, 2)] {
        assert_eq!(keyed.ask(Some(key), "PUT", "/v1/admin/limits", &limit(capacity)).await.status, 200);
    }
    let lease = keyed.server.lease();
    let asks = reserve(&lease, &[("a", 1)]).to_string();
    assert_eq!(keyed.ask(Some(&ours), "POST", "/v1/reserve", &asks).await.json()["allowed"], true);
    // The same lease id is another lease in another namespace.
    assert_eq!(keyed.ask(Some(&theirs), "GET", &format!("/v1/leases/{lease}"), "").await.status, 404);
    assert_eq!(keyed.ask(Some(&ours), "GET", &format!("/v1/leases/{lease}"), "").await.status, 200);
    let usage = keyed.ask(Some(&theirs), "GET", "/v1/admin/limits/a/usage", "").await.json();
    assert_eq!((&usage["capacity"], &usage["reserved"]), (&json!(2), &json!(0)));
    let write = |namespace: &str| {
        let open = json!([{"open_vault": {"vault": "eu"}}]);
        json!({"namespace": namespace, "client_id": "c", "sequence": 1, "operations": open}).to_string()
    };
    let written = keyed.ask(Some(&ours), "POST", "/v1/write", &write("ours")).await.json();
    let id = ours.split('_').nth(1).unwrap();
    assert_eq!(written["success"]["actor"], format!("client:{id}"));
    // The response does not reveal whether the namespace exists.
    for namespace in ["theirs", "default", "nowhere"] {
        let message = format!("namespace: found {namespace}, this key belongs to namespace ours");
        let answer = keyed.ask(Some(&ours), "POST", "/v1/write", &write(namespace)).await;
        assert_eq!(answer.problem(403, "forbidden"), message);
        let of_account = ["balances", "grants", "entries", "statement"];
        let of_account = of_account.map(|what| format!("vaults/eu/accounts/a/{what}"));
        let others = ["clients/c", "vaults", "vaults/eu/accounts", "vaults/eu/audit"].map(str::to_owned);
        for path in others.into_iter().chain(of_account) {
            let path = format!("/v1/{path}?namespace={namespace}");
            let answer = keyed.ask(Some(&ours), "GET", &path, "").await;
            assert_eq!(answer.problem(403, "forbidden"), message, "{path}");
        }
        let key = json!({"name": "n", "role": "reader", "namespace": namespace}).to_string();
        let answer = keyed.ask(Some(&ours), "POST", "/v1/admin/keys", &key).await;
        assert_eq!(answer.problem(403, "forbidden"), message);
    }
    assert_eq!(keyed.ask(Some(&theirs), "GET", "/v1/vaults/eu/audit", "").await.status, 404);
    // Keys and changes of other namespaces are not listed, and their keys cannot be revoked.
    let listed = keyed.ask(Some(&ours), "GET", "/v1/admin/keys", "").await.json();
    assert_eq!(listed["keys"].as_array().unwrap().len(), 1, "{listed}");
    let path = format!("/v1/admin/keys/{}", theirs.split('_').nth(1).unwrap());
    assert_eq!(keyed.ask(Some(&ours), "DELETE", &path, "").await.status, 404);
    let log = keyed.ask(Some(&theirs), "GET", "/v1/audit", "").await.json();
    assert!(log["entries"].as_array().unwrap().iter().all(|entry| entry["namespace"] == "theirs"), "{log}");
    // Metrics do not show labels of other namespaces.
    let more = reserve(&keyed.server.lease(), &[("a", 1)]).to_string();
    assert_eq!(keyed.ask(Some(&ours), "POST", "/v1/reserve", &more).await.json()["allowed"], false);
    let line = r#"earmark_denials_total{namespace="ours",key="a",reason="capacity"} 1"#;
    for (key, is_seen) in [(&ours, true), (&theirs, false), (&keyed.root, true)] {
        let metrics = keyed.ask(Some(key), "GET", "/metrics", "").await.text;
        assert_eq!(metrics.contains(line), is_seen, "{metrics}");
    }
}

/// A tenant's reader saw the debt, the settled credit and the live leases of all tenants together.
#[tokio::test]
async fn only_an_admin_of_default_sees_the_totals_of_the_server() {
    let keyed = KeyedServer::open().await;
    let limit = json!({"key": "a", "kind": "rolling", "capacity": 1, "window_seconds": 60}).to_string();
    let admin = keyed.key(Role::Admin, "ours").await;
    assert_eq!(keyed.ask(Some(&admin), "PUT", "/v1/admin/limits", &limit).await.status, 200);
    for _ in 0..2 {
        let body = reserve(&keyed.server.lease(), &[("a", 1)]).to_string();
        assert_eq!(keyed.ask(Some(&admin), "POST", "/v1/reserve", &body).await.status, 200);
    }
    let totals = ["earmark_debt", "earmark_credit_settled_total", "earmark_live_leases", "earmark_limits"];
    let all = keyed.ask(Some(&keyed.root), "GET", "/metrics", "").await.text;
    totals.iter().for_each(|total| assert!(all.contains(total), "{total}"));
    let own = "# HELP earmark_denials_total ";
    let readers = [(Role::Reader, "ours"), (Role::Writer, "ours"), (Role::Reader, "default"), (Role::Admin, "theirs")];
    for (role, namespace) in readers {
        let key = keyed.key(role, namespace).await;
        let answer = keyed.ask(Some(&key), "GET", "/metrics", "").await;
        assert_eq!(answer.status, 200);
        let label = format!("namespace=\"{namespace}\"");
        let is_own = |line: &str| line.starts_with('#') || line.contains(&label);
        assert!(answer.text.lines().all(is_own), "{role:?} {namespace}: {}", answer.text);
        assert_eq!(answer.text.contains(own), namespace == "ours", "{role:?} {namespace}");
        totals.iter().for_each(|total| assert!(!answer.text.contains(total), "{total}"));
    }
}

#[tokio::test]
async fn a_key_that_is_bound_to_a_client_writes_as_that_client_only_and_is_called_by_it() {
    let keyed = KeyedServer::open().await;
    let bound = |key: &mut earmark_core::CreateKey| key.client = Some("billing-1".parse().unwrap());
    let key = keyed.key_of(Role::Writer, "default", bound).await;
    let write = |client: &str| {
        json!({"namespace": "default", "client_id": client, "sequence": 1, "operations": []}).to_string()
    };
    let answer = keyed.ask(Some(&key), "POST", "/v1/write", &write("billing-2")).await;
    let message = "client_id: found billing-2, this key is bound to client id billing-1";
    assert_eq!(answer.problem(403, "forbidden"), message);
    assert_eq!(keyed.ask(Some(&key), "GET", "/v1/clients/billing-2", "").await.status, 403);
    let answer = keyed.ask(Some(&key), "POST", "/v1/write", &write("billing-1")).await.json();
    assert_eq!(answer["success"]["actor"], "client:billing-1");
    let state = keyed.ask(Some(&key), "GET", "/v1/clients/billing-1", "").await.json();
    assert_eq!(state["last_committed_sequence"], 1);
}

#[tokio::test]
async fn a_client_id_of_another_key_is_refused_by_name() {
    let keyed = KeyedServer::open().await;
    let (first, second) = (keyed.key(Role::Writer, "default").await, keyed.key(Role::Writer, "default").await);
    for vault in [None, Some("main")] {
        let write = |sequence: u32| {
            let mut body = json!({"namespace": "default", "client_id": "c", "sequence": sequence, "operations": []});
            if let Some(vault) = vault {
                body["vault"] = json!(vault);
            }
            body.to_string()
        };
        assert_eq!(keyed.ask(Some(&first), "POST", "/v1/write", &write(1)).await.status, 200);
        for sequence in [1, 2] {
            let answer = keyed.ask(Some(&second), "POST", "/v1/write", &write(sequence)).await;
            assert_eq!((answer.status, &answer.json()["error"]["code"]), (400, &json!("INVALID")));
            let message = answer.json()["error"]["message"].as_str().unwrap().to_owned();
            assert!(message.starts_with("client_id: c belongs to another key or user"), "{message}");
        }
        assert_eq!(keyed.ask(Some(&keyed.root), "POST", "/v1/write", &write(2)).await.status, 200);
    }
}

#[tokio::test]
async fn nobody_names_an_actor() {
    let keyed = KeyedServer::open().await;
    let body = json!({"namespace": "default", "client_id": "c", "sequence": 1, "operations": [], "actor": "user:1"});
    let answer = keyed.ask(Some(&keyed.root), "POST", "/v1/write", &body.to_string()).await;
    assert!(answer.problem(400, "invalid_request").contains("actor"), "{answer:?}");
    let key = json!({"name": "n", "role": "reader", "created_by": "user:1"}).to_string();
    let answer = keyed.ask(Some(&keyed.root), "POST", "/v1/admin/keys", &key).await;
    assert!(answer.problem(400, "invalid_request").contains("created_by"), "{answer:?}");
    for seconds in [0, 316_224_001] {
        let key = json!({"name": "x", "role": "caller", "expires_in_seconds": seconds}).to_string();
        let found = keyed.ask(Some(&keyed.root), "POST", "/v1/admin/keys", &key).await.problem(400, "invalid_request");
        assert!(
            found.starts_with(&format!("expires_in_seconds: found {seconds}, allowed are integers from 1")),
            "{found}"
        );
    }
}

#[tokio::test]
async fn the_first_key_closes_a_server_that_was_open_and_changes_are_listed_with_who_made_them() {
    let server = TestServer::open().await;
    let limit = json!({"key": "a", "kind": "rolling", "capacity": 9, "window_seconds": 60});
    server.ok("PUT", "/v1/admin/limits", &limit).await;
    let open = json!([{"open_vault": {"vault": "eu"}}]);
    let write = json!({"namespace": "default", "client_id": "c", "sequence": 1, "operations": open});
    server.ok("POST", "/v1/write", &write).await;
    for odd in [
        json!({"name": "root", "role": "writer"}),
        json!({"name": "root", "role": "admin", "namespace": "team"}),
        json!({"name": "root", "role": "admin", "expires_in_seconds": 60}),
    ] {
        let answer = server.ask("POST", "/v1/admin/keys", &odd.to_string()).await;
        assert!(answer.problem(400, "invalid_request").contains("the first key"), "{answer:?}");
    }
    let odd = json!({"name": "root", "role": "admin", "client_id": "4m8qk2v7d1xz"});
    let answer = server.ask("POST", "/v1/admin/keys", &odd.to_string()).await;
    assert!(answer.problem(400, "invalid_request").contains("client_id"), "{answer:?}");
    let made = server.ok("POST", "/v1/admin/keys", &json!({"name": "root", "role": "admin"})).await;
    let (key, id) = (made["key"].as_str().unwrap(), made["info"]["key_id"].as_str().unwrap());
    assert_eq!(server.ask("GET", "/v1/admin/limits", "").await.status, 401);
    assert_eq!(server.ask("PUT", "/v1/admin/limits", &limit.to_string()).await.status, 401);
    let ask = async |path: &str| {
        let mut wire = crate::support::Wire::to(server.address).await;
        wire.send(&format!("GET {path} HTTP/1.1\r\nhost: far.example\r\nauthorization: bearer {key}\r\n\r\n")).await;
        wire.answer().await.json()
    };
    let first = ask("/v1/audit?page_size=1").await;
    assert_eq!(first["entries"][0]["actor"], "system:local");
    assert_eq!(first["entries"][0]["summary"], format!("create_key {id} root admin"));
    assert_eq!(first["entries"][0]["place"], first["next"]);
    let rest = ask(&format!("/v1/audit?after={}", first["next"].as_str().unwrap())).await;
    assert_eq!(rest["entries"][0]["summary"], "open_vault eu");
    assert_eq!(rest["entries"][0]["limits"], json!([]));
    assert_eq!(rest["entries"][1]["summary"], "put_limit a");
    assert_eq!(rest["entries"][1]["revision"], 1);
    assert_eq!(rest["next"], Value::Null);
    for wrong in ["x", "-1", "1-2", "", "1-2.3.4", "99999999999999999999"] {
        let answer = ask(&format!("/v1/audit?after={wrong}")).await;
        assert_eq!(answer["error"], "invalid_request", "{wrong}: {answer}");
        let message = answer["message"].as_str().unwrap();
        assert!(message.starts_with(&format!("after: found {wrong:?}, expected")), "{message}");
    }
}

/// The change log once had no values: it said that a limit was put, and not what it was before and after.
#[tokio::test]
async fn changes_of_limits_are_listed_with_old_and_new_definitions_and_filtered() {
    let server = TestServer::open().await;
    let definition = |key: &str, capacity: u64| {
        json!({"key": key, "kind": "rolling", "capacity": capacity, "window_seconds": 60, "unit": "calls",
            "description": "", "overage": "debt"})
    };
    server.ok("PUT", "/v1/admin/limits", &definition("a", 60)).await;
    server.ok("PUT", "/v1/admin/limits", &definition("a", 120)).await;
    server.ok("PUT", "/v1/admin/limits", &definition("ab", 7)).await;
    let operations = json!([
        {"put_limit": {"definition": definition("b", 1)}},
        {"put_limit": {"definition": definition("a", 90)}},
        {"delete_limit": {"key": "ab"}},
    ]);
    let write = json!({"namespace": "default", "client_id": "c", "sequence": 1, "operations": operations});
    server.ok("POST", "/v1/write", &write).await;
    server.ok("DELETE", "/v1/admin/limits/a", &Value::Null).await;
    let ask = async |query: &str| server.ok("GET", &format!("/v1/audit{query}"), &Value::Null).await;
    let all = ask("").await;
    let entries = all["entries"].as_array().unwrap();
    let summaries: Vec<&str> = entries.iter().map(|entry| entry["summary"].as_str().unwrap()).collect();
    let written = "put_limit b; put_limit a; delete_limit ab";
    assert_eq!(summaries, ["delete_limit a", written, "put_limit ab", "put_limit a", "put_limit a"]);
    let changed = |entry: &Value| [entry["old"].clone(), entry["new"].clone()];
    assert_eq!(changed(&entries[0]), [definition("a", 90), Value::Null]);
    assert_eq!(changed(&entries[3]), [definition("a", 60), definition("a", 120)]);
    assert_eq!(changed(&entries[4]), [Value::Null, definition("a", 60)]);
    let limits = json!([
        {"key": "b", "old": null, "new": definition("b", 1)},
        {"key": "a", "old": definition("a", 120), "new": definition("a", 90)},
        {"key": "ab", "old": definition("ab", 7), "new": null},
    ]);
    assert_eq!(entries[1]["limits"], limits);
    // Filters are exact, and pages keep them.
    assert_eq!(ask("?key=a").await["entries"], json!([entries[0], entries[1], entries[3], entries[4]]));
    assert_eq!(ask("?key=ab").await["entries"], json!([entries[1], entries[2]]));
    assert_eq!(ask("?key=c").await, json!({"entries": [], "next": null}));
    assert_eq!(ask("?actor=system:local").await["entries"], all["entries"]);
    assert_eq!(ask("?actor=user:7&key=a").await, json!({"entries": [], "next": null}));
    let page = ask("?key=a&page_size=3").await;
    let after = page["next"].as_str().unwrap();
    assert_eq!(ask(&format!("?key=a&after={after}")).await, json!({"entries": [entries[4]], "next": null}));
    for (query, message) in [
        ("?key=", "key: found 0 bytes"),
        ("?key=a%20b", "key: found ' ' at byte 1"),
        ("?actor=bob", "actor: found no kind of actor at its start"),
        ("?actor=user:7&actor=user:8", "actor: given twice"),
        ("?limit=a", "query: found \"limit\", allowed are key and actor and after and page_size"),
    ] {
        let answer = server.ask("GET", &format!("/v1/audit{query}"), "").await;
        let found = answer.problem(400, "invalid_request");
        assert!(found.starts_with(message), "{query}: {found}");
    }
}

#[tokio::test]
async fn a_web_page_in_a_browser_on_this_machine_cannot_reach_an_open_server() {
    let server = TestServer::open().await;
    for headers in [
        "host: evil.example\r\n",
        "host: localhost\r\norigin: http://evil.example\r\n",
        "host: localhost\r\nsec-fetch-site: cross-site\r\n",
    ] {
        let mut wire = crate::support::Wire::to(server.address).await;
        wire.send(&format!("GET /v1/admin/limits HTTP/1.1\r\n{headers}\r\n")).await;
        let answer = wire.answer().await;
        let message = answer.problem(403, "forbidden");
        // The message once spoke of credentials, although the server has no keys.
        assert!(message.contains("call it localhost or by a loopback address"), "{headers}: {message}");
    }
}

#[tokio::test]
async fn a_noisy_key_is_told_to_wait_and_others_are_not() {
    let keyed = KeyedServer::with(|options| options.requests_per_second = Some(3)).await;
    let (noisy, quiet) = (keyed.key(Role::Reader, "default").await, keyed.key(Role::Reader, "default").await);
    let mut refused = None;
    for _ in 0..5 {
        let answer = keyed.ask(Some(&noisy), "GET", "/v1/admin/limits", "").await;
        if answer.status == 429 {
            refused = Some(answer);
        }
    }
    let refused = refused.expect("five requests within a second");
    refused.problem(429, "rate_limited");
    assert_eq!(refused.header("retry-after"), Some("1"));
    assert_eq!(keyed.ask(Some(&quiet), "GET", "/v1/admin/limits", "").await.status, 200);
}

/// A caller that repeated refused requests at once got 13,000 answers a second, and slowed the others.
#[tokio::test]
async fn a_refused_caller_waits_for_its_answer_and_a_shutdown_does_not() {
    let keyed = KeyedServer::with(|options| options.requests_per_second = Some(1)).await;
    let noisy = keyed.key(Role::Reader, "default").await;
    let ask = || keyed.ask(Some(&noisy), "GET", "/v1/admin/limits/x", "");
    assert_eq!(ask().await.status, 404);
    let start = Instant::now();
    for _ in 0..2 {
        assert_eq!(ask().await.status, 429);
    }
    assert!(start.elapsed() >= Duration::from_millis(400), "{:?}", start.elapsed());
    let mut waiting = Wire::to(keyed.server.address).await;
    let head = format!("host: localhost\r\nauthorization: Bearer {noisy}\r\n");
    waiting.send(&format!("GET /v1/admin/limits/x HTTP/1.1\r\n{head}\r\n")).await;
    tokio::time::sleep(Duration::from_millis(20)).await;
    let start = Instant::now();
    keyed.server.stop().await;
    assert_eq!(waiting.answer().await.status, 429);
    assert!(start.elapsed() < Duration::from_millis(150), "{:?}", start.elapsed());
}

/// A batch larger than the rate per second was always rejected, because its first item was counted before the rest.
#[tokio::test]
async fn requests_that_are_refused_are_counted_and_an_audit_counts_as_many() {
    let keyed = KeyedServer::with(|options| options.requests_per_second = Some(50)).await;
    let (caller, reader) = (keyed.key(Role::Caller, "default").await, keyed.key(Role::Reader, "default").await);
    let mut statuses = Vec::new();
    for _ in 0..120 {
        statuses.push(keyed.ask(Some(&caller), "GET", "/v1/admin/limits", "").await.status);
    }
    assert!(statuses.contains(&403) && statuses.contains(&429), "{statuses:?}");
    assert_eq!(keyed.ask(Some(&reader), "GET", "/v1/vaults/main/audit", "").await.status, 200);
    assert_eq!(keyed.ask(Some(&reader), "GET", "/v1/vaults/main/audit", "").await.status, 429);
    assert_eq!(keyed.ask(Some(&keyed.root), "GET", "/v1/audit", "").await.status, 200);
    assert_eq!(keyed.ask(Some(&keyed.root), "GET", "/v1/audit", "").await.status, 429);
}

#[tokio::test]
async fn a_server_with_keys_still_does_not_take_them_in_clear_from_everywhere() {
    let keyed = KeyedServer::open().await;
    let bind = async |is_plaintext_allowed| {
        let listen = "0.0.0.0:0".parse().unwrap();
        let options = ServerOptions { listen, is_plaintext_allowed, ..ServerOptions::default() };
        Server::bind(options, Arc::<LocalBook>::clone(&keyed.book)).await
    };
    let error = bind(false).await.err().unwrap();
    assert!(matches!(error, ServerError::Plaintext { .. }), "{error}");
    assert!(error.to_string().contains("--tls-cert"), "{error}");
    assert!(bind(true).await.is_ok());
    let open = LocalBook::open(LocalOptions::default()).await.unwrap();
    let listen = "0.0.0.0:0".parse().unwrap();
    let options = ServerOptions { listen, is_plaintext_allowed: true, ..ServerOptions::default() };
    let error = Server::bind(options, Arc::new(open)).await.err().unwrap();
    assert!(error.to_string().contains("--bootstrap-key"), "{error}");
}
