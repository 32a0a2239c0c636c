//! Labels of keys, `whoami`, and gateways that call for their clients.

use earmark_core::{Labels, MaySet, Role};
use earmark_proto::v1;
use serde_json::{Value, json};
use tonic::metadata::MetadataValue;
use tonic::{Code, Request};

use crate::grpc::callers::with;
use crate::grpc::calls;
use crate::support::session::{claims, issuer, signed, token};
use crate::support::{Answer, KeyedServer, TestServer, Wire, complete, reserve};

const HEADER: &str = "x-earmark-client-key";
const CLIENT_REJECTED: &str = "x-earmark-client-key: the credentials are not valid";

/// Headers with the credentials of the sender and of its client.
fn credentials(sender: &str, client: &str) -> String {
    format!("authorization: Bearer {sender}\r\n{HEADER}: {client}\r\n")
}

/// A gRPC request of a gateway for its client.
fn through<T>(gateway: &str, client: &str, message: T) -> Request<T> {
    let mut request = with(Some(gateway), message);
    request.metadata_mut().insert(HEADER, MetadataValue::try_from(client).unwrap());
    request
}

/// The key of a client of the namespace `team`, with labels.
async fn client(keyed: &KeyedServer) -> String {
    let labelled = |key: &mut earmark_core::CreateKey| {
        key.labels = Labels::new([("tenant", "acme"), ("plan", "pro")]).unwrap();
        key.may_set = MaySet::new(["user"]).unwrap();
    };
    keyed.key_of(Role::Client, "team", labelled).await
}

fn id(key: &str) -> &str {
    key.split('_').nth(1).unwrap()
}

async fn whoami(keyed: &KeyedServer, headers: &str) -> Answer {
    keyed.ask_with(headers, "GET", "/v1/whoami", "").await
}

async fn put_limit(keyed: &KeyedServer, namespace: &str) {
    let limit = json!({"key": "rpm", "kind": "concurrency", "capacity": 9, "timeout_seconds": 60}).to_string();
    let path = format!("/v1/admin/limits?namespace={namespace}");
    assert_eq!(keyed.ask(Some(&keyed.root), "PUT", &path, &limit).await.status, 200);
}

async fn reserved(keyed: &KeyedServer, namespace: &str) -> u64 {
    let path = format!("/v1/admin/limits/rpm/usage?namespace={namespace}");
    keyed.ask(Some(&keyed.root), "GET", &path, "").await.json()["reserved"].as_u64().unwrap()
}

#[tokio::test]
async fn a_key_is_created_with_labels_and_shows_them_in_lists_changes_and_whoami() {
    let keyed = KeyedServer::open().await;
    let body = json!({
        "name": "app", "role": "caller", "namespace": "team",
        "labels": {"tenant": "acme", "plan": "pro"}, "may_set": ["user", "feature"],
    });
    let made = keyed.ask(Some(&keyed.root), "POST", "/v1/admin/keys", &body.to_string()).await.json();
    let (labels, may_set) = (json!({"plan": "pro", "tenant": "acme"}), json!(["feature", "user"]));
    assert_eq!((&made["info"]["labels"], &made["info"]["may_set"]), (&labels, &may_set));
    let listed = keyed.ask(Some(&keyed.root), "GET", "/v1/admin/keys", "").await.json();
    assert_eq!((&listed["keys"][1]["labels"], &listed["keys"][1]["may_set"]), (&labels, &may_set));
    assert_eq!((&listed["keys"][0]["labels"], &listed["keys"][0]["may_set"]), (&json!({}), &json!([])));
    let changes = keyed.ask(Some(&keyed.root), "GET", "/v1/audit", "").await.json();
    let summary = changes["entries"][0]["summary"].as_str().unwrap();
    assert!(summary.ends_with("app caller plan=pro tenant=acme may_set=feature may_set=user"), "{summary}");

    let key = made["key"].as_str().unwrap();
    let who = keyed.ask(Some(key), "GET", "/v1/whoami", "").await.json();
    let actor = format!("client:{}", id(key));
    let expected = json!({
        "actor": actor, "namespace": "team", "role": "caller", "labels": labels, "may_set": may_set,
    });
    assert_eq!(who, expected);
    let mut limits = calls::limits(&keyed.server).await;
    let said = limits.whoami(with(Some(key), v1::WhoamiRequest {})).await.unwrap().into_inner();
    let labels: std::collections::BTreeMap<String, String> = said.labels.into_iter().collect();
    let said = json!({
        "actor": said.actor, "namespace": said.namespace, "role": said.role, "labels": labels,
        "may_set": said.may_set,
    });
    assert_eq!(said, expected);
    let open = TestServer::open().await.ok("GET", "/v1/whoami", &Value::Null).await;
    let expected =
        json!({"actor": "system:local", "namespace": "default", "role": "admin", "labels": {}, "may_set": []});
    assert_eq!(open, expected);
}

#[tokio::test]
async fn labels_that_are_not_attributes_are_refused_by_name_and_create_no_key() {
    let keyed = KeyedServer::open().await;
    let many: serde_json::Map<String, Value> = (0..33).map(|each| (format!("a{each}"), json!("x"))).collect();
    let names: Vec<String> = (0..33).map(|each| format!("a{each}")).collect();
    for (field, value, message) in [
        ("labels", json!({"Tenant": "acme"}), "labels: found the name \"Tenant\", allowed are 1 to 64 bytes of"),
        ("labels", json!({"tenant": ""}), "labels: tenant: found 0 bytes, allowed are 1 to 256"),
        ("labels", json!({"tenant": "a\nb"}), "labels: tenant: found the control character '\\n'"),
        ("labels", json!({"tenant": 7}), "labels.tenant: found 7, allowed is a text"),
        ("labels", json!(["tenant"]), "labels: found [\"tenant\"], allowed is an object of texts"),
        ("labels", json!({"key": "k1"}), "labels: found key, which the server sets"),
        ("labels", json!(many), "labels: found more than 32"),
        ("may_set", json!(["key"]), "may_set: found key, which the server sets"),
        ("may_set", json!(["user", "user"]), "may_set: found user twice"),
        ("may_set", json!(["a b"]), "may_set: found the name \"a b\""),
        ("may_set", json!(names), "may_set: found more than 32"),
    ] {
        let body = json!({"name": "n", "role": "caller", (field): value});
        let refused = keyed.ask(Some(&keyed.root), "POST", "/v1/admin/keys", &body.to_string()).await;
        let refused = refused.problem(400, "invalid_request");
        assert!(refused.starts_with(message), "{body}: {refused}");
    }
    let twice = r#"{"name": "n", "role": "caller", "labels": {"tenant": "acme", "tenant": "globex"}}"#;
    let refused = keyed.ask(Some(&keyed.root), "POST", "/v1/admin/keys", twice).await.problem(400, "invalid_request");
    assert!(refused.contains("tenant"), "{refused}");
    let listed = keyed.ask(Some(&keyed.root), "GET", "/v1/admin/keys", "").await.json();
    assert_eq!(listed["keys"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn a_session_has_the_labels_of_its_claims() {
    let keyed = KeyedServer::with(|options| options.issuer = Some(issuer())).await;
    let header = json!({"alg": "EdDSA", "kid": "one"});
    let mut said = claims("789", "caller", "team", 60);
    said["org_id"] = json!("acme");
    let who = whoami(&keyed, &format!("authorization: Bearer {}\r\n", signed(1, &header, &said))).await.json();
    assert_eq!((&who["actor"], &who["labels"]), (&json!("user:789"), &json!({"tenant": "acme"})));
    let plain = token(1, "789", "caller", "team", 60);
    let who = whoami(&keyed, &format!("authorization: Bearer {plain}\r\n")).await.json();
    assert_eq!(who["labels"], json!({}));
    for wrong in [json!(["acme"]), json!(true), json!(""), json!("a\nb"), json!("x".repeat(257))] {
        said["org_id"] = wrong;
        let refused = whoami(&keyed, &format!("authorization: Bearer {}\r\n", signed(1, &header, &said))).await;
        refused.problem(401, "unauthenticated");
    }
}

#[tokio::test]
async fn a_gateway_of_default_calls_for_a_client_of_any_namespace() {
    let keyed = KeyedServer::open().await;
    put_limit(&keyed, "team").await;
    let (gateway, client) = (keyed.key(Role::Gateway, "default").await, client(&keyed).await);
    let headers = credentials(&gateway, &client);
    let who = whoami(&keyed, &headers).await.json();
    let expected = json!({
        "actor": format!("client:{}", id(&client)), "namespace": "team", "role": "client",
        "labels": {"plan": "pro", "tenant": "acme"}, "may_set": ["user"],
    });
    assert_eq!(who, expected);
    let own = keyed.ask(Some(&gateway), "GET", "/v1/whoami", "").await.json();
    assert_eq!((&own["role"], &own["namespace"]), (&json!("gateway"), &json!("default")));

    let lease = keyed.server.lease();
    let body = reserve(&lease, &[("rpm", 2)]).to_string();
    let taken = keyed.ask_with(&headers, "POST", "/v1/reserve", &body).await.json();
    assert_eq!((&taken["allowed"], reserved(&keyed, "team").await), (&json!(true), 2));
    let mut limits = calls::limits(&keyed.server).await;
    let other = keyed.server.lease();
    let taken = limits.reserve(through(&gateway, &client, calls::reserve(&other, &[("rpm", 3)]))).await;
    assert!(taken.unwrap().into_inner().allowed);
    assert_eq!(reserved(&keyed, "team").await, 5);
    let said = limits.whoami(through(&gateway, &client, v1::WhoamiRequest {})).await.unwrap().into_inner();
    assert_eq!((said.role.as_str(), said.namespace.as_str()), ("client", "team"));

    // Without the client's key the request names the namespace, which HTTP cannot.
    let done = keyed.ask_with(&headers, "POST", "/v1/complete", &complete(&lease, &[]).to_string()).await.json();
    assert_eq!(done["reconciled"], true, "{done}");
    let namespace = Some("team".to_owned());
    let done = v1::CompleteRequest { lease_id: other.to_string(), namespace, ..Default::default() };
    assert!(limits.complete(with(Some(&gateway), done)).await.unwrap().into_inner().reconciled);
    assert_eq!(reserved(&keyed, "team").await, 0);
}

#[tokio::test]
async fn a_clients_key_is_taken_from_gateways_only_and_a_wrong_one_is_named() {
    let keyed = KeyedServer::open().await;
    let (gateway, client) = (keyed.key(Role::Gateway, "default").await, client(&keyed).await);
    let mut limits = calls::limits(&keyed.server).await;
    for role in Role::ALL.into_iter().filter(|role| *role != Role::Gateway) {
        let sender = keyed.key(role, "team").await;
        for path in ["/v1/whoami", "/v1/reserve"] {
            let method = if path == "/v1/whoami" { "GET" } else { "POST" };
            let refused = keyed.ask_with(&credentials(&sender, &client), method, path, "").await;
            let message = format!("{HEADER}: needs role gateway; this key has role {role}");
            assert_eq!(refused.problem(403, "forbidden"), message);
        }
        let refused = limits.whoami(through(&sender, &client, v1::WhoamiRequest {})).await;
        assert!(calls::refused(refused, Code::PermissionDenied).contains("needs role gateway"));
    }
    let revoked = keyed.key(Role::Client, "team").await;
    keyed.revoke(&revoked).await;
    let cut = &client[..client.len() - 1];
    for wrong in [&revoked, cut, "emk_", "x", &"x".repeat(8_193), &format!("Bearer {client}")] {
        let refused = whoami(&keyed, &credentials(&gateway, wrong)).await;
        assert_eq!(refused.problem(401, "unauthenticated"), CLIENT_REJECTED, "{wrong}");
        let refused = limits.whoami(through(&gateway, wrong, v1::WhoamiRequest {})).await;
        assert_eq!(calls::refused(refused, Code::Unauthenticated), CLIENT_REJECTED, "{wrong}");
    }
    let twice = format!("{}{HEADER}: {client}\r\n", credentials(&gateway, &client));
    assert_eq!(whoami(&keyed, &twice).await.problem(401, "unauthenticated"), CLIENT_REJECTED);
    // The sender's own key comes first.
    let both = whoami(&keyed, &credentials(cut, cut)).await.problem(401, "unauthenticated");
    assert_eq!(both, "the credentials are missing or not valid");
    let same = whoami(&keyed, &credentials(&gateway, &gateway)).await.problem(403, "forbidden");
    assert_eq!(same, format!("{HEADER}: found the gateway's own key; send the key of its client"));
}

#[tokio::test]
async fn a_gateway_acts_for_those_who_may_call_in_its_namespace_and_for_nothing_else() {
    let keyed = KeyedServer::open().await;
    let (gateway, theirs) = (keyed.key(Role::Gateway, "team").await, keyed.key(Role::Client, "other").await);
    for role in Role::ALL {
        let client = keyed.key(role, "team").await;
        let answer = whoami(&keyed, &credentials(&gateway, &client)).await;
        if matches!(role, Role::Client | Role::Caller | Role::Admin) {
            assert_eq!(answer.json()["role"], role.as_str());
        } else {
            let message = format!("{HEADER}: needs role client, caller or admin; it has role {role}");
            assert_eq!(answer.problem(403, "forbidden"), message);
        }
    }
    let refused = whoami(&keyed, &credentials(&gateway, &theirs)).await.problem(403, "forbidden");
    assert!(refused.starts_with(&format!("{HEADER}: it belongs to another namespace")), "{refused}");
    let admin = keyed.key(Role::Admin, "team").await;
    let pause = json!({"for_ms": 1_000}).to_string();
    let path = "/v1/admin/limits/rpm/pause";
    let refused = keyed.ask_with(&credentials(&gateway, &admin), "POST", path, &pause).await;
    assert!(refused.problem(403, "forbidden").starts_with(&format!("{HEADER}: not accepted here")));
    // The client's role gives the gateway no more rights.
    for (method, path) in [("GET", "/v1/admin/keys"), ("PUT", "/v1/admin/limits"), ("GET", "/v1/usage")] {
        let refused = keyed.ask_with(&credentials(&gateway, &admin), method, path, "").await;
        assert!(refused.problem(403, "forbidden").contains("this key has role gateway"));
    }
    // A server without keys reads no credentials.
    let open = TestServer::open().await;
    let mut wire = Wire::to(open.address).await;
    wire.send(&format!("GET /v1/whoami HTTP/1.1\r\nhost: localhost\r\n{HEADER}: any\r\n\r\n")).await;
    assert_eq!(wire.answer().await.json()["actor"], "system:local");
}

#[tokio::test]
async fn the_rate_of_a_client_behind_a_gateway_is_its_own() {
    let keyed = KeyedServer::with(|options| options.requests_per_second = Some(3)).await;
    let gateway = keyed.key(Role::Gateway, "default").await;
    let (noisy, quiet) = (client(&keyed).await, client(&keyed).await);
    let body = reserve(&keyed.server.lease(), &[("rpm", 1)]).to_string();
    let mut statuses = Vec::new();
    for _ in 0..12 {
        statuses.push(keyed.ask_with(&credentials(&gateway, &noisy), "POST", "/v1/reserve", &body).await.status);
    }
    assert!(statuses.contains(&429), "{statuses:?}");
    assert_eq!(keyed.ask_with(&credentials(&gateway, &quiet), "POST", "/v1/reserve", &body).await.status, 200);
    assert_eq!(keyed.ask(Some(&gateway), "GET", "/v1/whoami", "").await.status, 200);
}

#[tokio::test]
async fn a_revoked_clients_key_reserves_no_more_and_its_calls_still_settle() {
    let keyed = KeyedServer::open().await;
    put_limit(&keyed, "team").await;
    let (gateway, client) = (keyed.key(Role::Gateway, "default").await, client(&keyed).await);
    let headers = credentials(&gateway, &client);
    let lease = keyed.server.lease();
    let body = reserve(&lease, &[("rpm", 2)]).to_string();
    assert_eq!(keyed.ask_with(&headers, "POST", "/v1/reserve", &body).await.json()["allowed"], true);
    keyed.revoke(&client).await;
    // The credentials are still cached; the state machine rejects them.
    let next = reserve(&keyed.server.lease(), &[("rpm", 1)]).to_string();
    let refused = keyed.ask_with(&headers, "POST", "/v1/reserve", &next).await;
    assert_eq!(refused.problem(401, "unauthenticated"), CLIENT_REJECTED);
    assert_eq!(whoami(&keyed, &headers).await.problem(401, "unauthenticated"), CLIENT_REJECTED);
    assert_eq!(keyed.ask(Some(&gateway), "GET", "/v1/whoami", "").await.status, 200, "the gateway's key is good");
    let mut limits = calls::limits(&keyed.server).await;
    let namespace = Some("team".to_owned());
    let done = v1::CompleteRequest { lease_id: lease.to_string(), namespace, ..Default::default() };
    assert!(limits.complete(with(Some(&gateway), done)).await.unwrap().into_inner().reconciled);
    assert_eq!(reserved(&keyed, "team").await, 0);
    // A revoked gateway does nothing, for nobody.
    let other = keyed.key(Role::Client, "team").await;
    assert_eq!(whoami(&keyed, &credentials(&gateway, &other)).await.status, 200);
    keyed.revoke(&gateway).await;
    tokio::time::sleep(std::time::Duration::from_millis(1_100)).await;
    assert_eq!(whoami(&keyed, &credentials(&gateway, &other)).await.status, 401);
}

#[tokio::test]
async fn a_gateway_can_only_lengthen_a_pause_and_one_of_default_does_so_everywhere() {
    let keyed = KeyedServer::open().await;
    put_limit(&keyed, "team").await;
    put_limit(&keyed, "default").await;
    let (everywhere, team) = (keyed.key(Role::Gateway, "default").await, keyed.key(Role::Gateway, "team").await);
    let pause = async |key: &str, for_ms: u64| {
        let body = json!({"for_ms": for_ms, "reason": "429"}).to_string();
        keyed.ask(Some(key), "POST", "/v1/admin/limits/rpm/pause?namespace=team", &body).await
    };
    let until =
        async |key: &str, for_ms: u64| pause(key, for_ms).await.json()["paused_until_unix_ms"].as_u64().unwrap();
    let long = until(&team, 60_000).await;
    assert_eq!([until(&team, 1_000).await, until(&everywhere, 0).await, until(&everywhere, 5).await], [long; 3]);
    let longer = until(&everywhere, 120_000).await;
    assert!(longer > long);
    let mut limits = calls::limits(&keyed.server).await;
    let request = |for_ms| v1::PauseLimitRequest {
        key: "rpm".into(),
        for_ms: Some(for_ms),
        reason: String::new(),
        namespace: Some("team".into()),
    };
    let said = limits.pause_limit(with(Some(&team), request(0))).await.unwrap().into_inner();
    assert_eq!(said.paused_until_unix_ms, longer);
    let body = json!({"for_ms": 1}).to_string();
    let path = "/v1/admin/limits/rpm/pause?namespace=default";
    keyed.ask(Some(&team), "POST", path, &body).await.problem(403, "forbidden");
    let writer = keyed.key(Role::Writer, "team").await;
    assert_eq!(until(&writer, 0).await, 0, "a writer resumes");
}
