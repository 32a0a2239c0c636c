//! The roles that may call each endpoint.

use std::collections::BTreeSet;

use earmark_core::Role;
use serde_json::Value;

use super::callers::UNAUTHENTICATED;
use crate::support::{KeyedServer, TestServer};

/// The roles of the keys of a [`Row`], in order.
const ROLES: [&str; 8] = ["", "client", "gateway", "reader", "caller", "writer", "admin", "admin"];

/// Allowed for: no key, client, gateway, reader, caller, writer, admin of another namespace, admin of `default`.
type Row = (&'static str, &'static str, [bool; 8]);

const ALL: [bool; 8] = [true; 8];
const CALL: [bool; 8] = [false, false, true, false, true, false, true, true];
/// Anyone with credentials but a client.
const IDENTIFY: [bool; 8] = [false, false, true, true, true, true, true, true];
const PAUSE: [bool; 8] = [false, false, true, false, false, true, true, true];
const WRITE: [bool; 8] = [false, false, false, false, false, true, true, true];
const READ: [bool; 8] = [false, false, false, true, false, true, true, true];
/// A gateway warns of limits that release what is not settled.
const READ_LIMITS: [bool; 8] = EXPLAIN;
const EXPLAIN: [bool; 8] = [false, false, true, true, false, true, true, true];
const MANAGE: [bool; 8] = [false, false, false, false, false, false, true, true];
const OPERATE: [bool; 8] = [false, false, false, false, false, false, false, true];

const MATRIX: [Row; 60] = [
    ("post", "/v1/calls", CALL),
    ("post", "/v1/calls/batch", CALL),
    ("post", "/v1/calls/extend", CALL),
    ("post", "/v1/calls/complete", CALL),
    ("post", "/v1/calls/complete/batch", CALL),
    ("post", "/v1/calls/explain", EXPLAIN),
    ("post", "/v1/reserve", CALL),
    ("post", "/v1/extend", CALL),
    ("post", "/v1/complete", CALL),
    ("post", "/v1/reserve/batch", CALL),
    ("post", "/v1/extend/batch", CALL),
    ("post", "/v1/complete/batch", CALL),
    ("put", "/v1/admin/limits", WRITE),
    ("get", "/v1/admin/limits", READ_LIMITS),
    ("get", "/v1/admin/limits/{key}", READ),
    ("delete", "/v1/admin/limits/{key}", WRITE),
    ("post", "/v1/admin/limits/{key}/pause", PAUSE),
    ("get", "/v1/admin/limits/{key}/usage", READ),
    ("put", "/v1/admin/templates", WRITE),
    ("get", "/v1/admin/templates", READ_LIMITS),
    ("delete", "/v1/admin/templates", WRITE),
    ("get", "/v1/usage", READ),
    ("get", "/v1/leases/{lease_id}", READ),
    ("post", "/v1/write", WRITE),
    ("post", "/v1/write/batch", WRITE),
    ("get", "/v1/clients/{client_id}", READ),
    ("get", "/v1/vaults/{vault}/accounts/{account}/balances", READ),
    ("get", "/v1/vaults/{vault}/accounts/{account}/grants", READ),
    ("get", "/v1/vaults", READ),
    ("get", "/v1/vaults/{vault}/accounts", READ),
    ("get", "/v1/vaults/{vault}/accounts/{account}/entries", READ),
    ("get", "/v1/vaults/{vault}/accounts/{account}/statement", READ),
    ("get", "/v1/vaults/{vault}/audit", READ),
    ("get", "/v1/admin/cluster", OPERATE),
    ("post", "/v1/admin/cluster/members", OPERATE),
    ("delete", "/v1/admin/cluster/members/{node_id}", OPERATE),
    ("post", "/v1/admin/cluster/invitations", OPERATE),
    ("get", "/v1/admin/cluster/invitations", OPERATE),
    ("delete", "/v1/admin/cluster/invitations/{invitation_id}", OPERATE),
    ("post", "/v1/admin/cluster/backup", OPERATE),
    ("get", "/v1/admin/cluster/backup", OPERATE),
    ("get", "/v1/admin/audit/export", OPERATE),
    ("get", "/v1/admin/audit/keys", OPERATE),
    ("post", "/v1/admin/keys", MANAGE),
    ("get", "/v1/admin/keys", MANAGE),
    ("delete", "/v1/admin/keys/{key_id}", MANAGE),
    ("get", "/v1/admin/quotas/{namespace}", OPERATE),
    ("put", "/v1/admin/quotas/{namespace}", OPERATE),
    ("get", "/v1/admin/policy", OPERATE),
    ("put", "/v1/admin/policy", OPERATE),
    ("get", "/v1/audit", MANAGE),
    ("get", "/v1/whoami", IDENTIFY),
    ("get", "/v1/decisions", READ),
    ("get", "/v1/top", READ),
    ("get", "/v1/charts", READ),
    ("get", "/v1/events", READ),
    ("get", "/metrics", READ),
    ("get", "/healthz", ALL),
    ("get", "/readyz", ALL),
    ("get", "/openapi.json", ALL),
];

fn filled(path: &str) -> String {
    let mut parts: Vec<String> = Vec::new();
    for part in path.split('/') {
        parts.push(if part.starts_with('{') { "x".into() } else { part.into() });
    }
    parts.join("/")
}

#[tokio::test]
async fn every_endpoint_lets_in_just_the_roles_of_its_row() {
    let keyed = KeyedServer::open().await;
    let callers = [
        None,
        Some(keyed.key(Role::Client, "default").await),
        Some(keyed.key(Role::Gateway, "default").await),
        Some(keyed.key(Role::Reader, "default").await),
        Some(keyed.key(Role::Caller, "default").await),
        Some(keyed.key(Role::Writer, "default").await),
        Some(keyed.key(Role::Admin, "team").await),
        Some(keyed.root.clone()),
    ];
    let document = keyed.ask(None, "GET", "/openapi.json", "").await.json();
    for (method, path, row) in MATRIX {
        let described = document["paths"][path][method]["description"].as_str().unwrap().to_lowercase();
        for (place, is_let_in) in row.into_iter().enumerate() {
            let key = callers[place].as_deref();
            let answer = keyed.ask(key, &method.to_uppercase(), &filled(path), "").await;
            let what = format!("{method} {path} by {place}: {answer:?}");
            match (is_let_in, place) {
                (true, _) => assert!(![401, 403].contains(&answer.status), "{what}"),
                (false, 0) => {
                    assert_eq!((answer.status, answer.text.as_str()), (401, UNAUTHENTICATED), "{what}");
                    assert_eq!(answer.header("www-authenticate"), Some("Bearer"));
                }
                (false, _) => {
                    let (message, has) = (answer.problem(403, "forbidden"), ROLES[place]);
                    let has = format!("; this key has role {has}");
                    assert!(message.starts_with("needs role ") && message.contains(&has), "{what}: {message}");
                    let needed = message.split(';').next().unwrap();
                    assert_eq!(described, format!("{needed}."), "{what}");
                }
            }
        }
    }
}

#[tokio::test]
async fn every_endpoint_has_a_row() {
    let server = TestServer::open().await;
    let document = server.ok("GET", "/openapi.json", &Value::Null).await;
    let mut served = BTreeSet::new();
    for (path, operations) in document["paths"].as_object().unwrap() {
        served.extend(operations.as_object().unwrap().keys().map(|verb| (verb.clone(), path.clone())));
    }
    let rows: BTreeSet<(String, String)> =
        MATRIX.iter().map(|(verb, path, _)| ((*verb).to_owned(), (*path).to_owned())).collect();
    assert_eq!(rows, served);
}
