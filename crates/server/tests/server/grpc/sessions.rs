//! Session tokens of a configured issuer, over HTTP and gRPC.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use earmark_proto::v1;
use ring::signature::KeyPair as _;
use serde_json::{Value, json};
use tonic::Code;

use crate::grpc::callers::with;
use crate::grpc::calls;
use crate::support::KeyedServer;
use crate::support::session::{claims, issuer, pair, signed, token, unsigned};

/// Tokens with one fault each.
fn wrong() -> Vec<String> {
    let good = claims("789", "admin", "default", 60);
    let with = |name: &str, value: &str| {
        let mut claims = good.clone();
        claims[name] = value.into();
        signed(1, &json!({"alg": "EdDSA", "kid": "one"}), &claims)
    };
    let says = |header: Value| signed(1, &header, &good);
    let whole = token(1, "789", "admin", "default", 60);
    // The public key used as a shared secret.
    let secret = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, pair(1).public_key().as_ref());
    let hs256 = unsigned(&json!({"alg": "HS256", "kid": "one"}), &good);
    let tag = URL_SAFE_NO_PAD.encode(ring::hmac::sign(&secret, hs256.as_bytes()));
    vec![
        token(2, "789", "admin", "default", 60),
        token(1, "789", "admin", "default", -60),
        token(1, "789", "admin", "default", 86_400 * 365),
        token(1, "789", "owner", "default", 60),
        with("aud", "somebody"),
        with("iss", "https://other.example"),
        with("sub", ""),
        says(json!({"alg": "none", "kid": "one"})),
        says(json!({"alg": "HS256", "kid": "one"})),
        says(json!({"alg": "EdDSA", "kid": "two"})),
        format!("{}.", unsigned(&json!({"alg": "none"}), &good)),
        unsigned(&json!({"alg": "none"}), &good),
        format!("{hs256}.{tag}"),
        whole[..whole.len() - 1].to_owned(),
        whole.rsplit_once('.').unwrap().0.to_owned(),
        format!("{whole}x"),
        "nonsense".into(),
    ]
}

fn write(client: &str, sequence: u64, operations: Vec<v1::Operation>) -> v1::WriteRequest {
    let namespace = "team".into();
    v1::WriteRequest { namespace, client_id: client.into(), ..calls::write(None, sequence, operations) }
}

/// Every faulty token gets the same response as a faulty key, over both protocols.
#[tokio::test]
async fn tokens_that_are_not_good_are_all_answered_alike() {
    let keyed = Arc::new(KeyedServer::with(|options| options.issuer = Some(issuer())).await);
    let good = token(1, "789", "admin", "default", 60);
    assert_eq!(keyed.ask(Some(&good), "GET", "/v1/admin/limits", "").await.status, 200);
    // All at once, because repeated failures are delayed.
    let asked: Vec<_> = wrong()
        .into_iter()
        .chain([format!("{}x", keyed.root)])
        .map(|wrong| {
            let keyed = Arc::clone(&keyed);
            tokio::spawn(async move {
                let answer = keyed.ask(Some(&wrong), "GET", "/v1/admin/limits", "").await;
                let mut ledger = calls::ledger(&keyed.server).await;
                let call = ledger.write(with(Some(&wrong), calls::write(None, 1, Vec::new()))).await;
                (wrong, answer, call)
            })
        })
        .collect();
    for asked in asked {
        let (wrong, answer, call) = asked.await.unwrap();
        let message = answer.problem(401, "unauthenticated");
        assert_eq!(message, "the credentials are missing or not valid", "{wrong}");
        assert_eq!(calls::refused(call, Code::Unauthenticated), message, "{wrong}");
    }
    let state = keyed.ask(Some(&good), "GET", "/v1/clients/billing", "").await.json();
    assert_eq!(state["last_committed_sequence"], 0, "nothing was written");
}

#[tokio::test]
async fn a_session_acts_as_its_user_in_its_namespace_and_within_its_role() {
    let keyed = KeyedServer::with(|options| options.issuer = Some(issuer())).await;
    let (writer, reader) = (token(1, "789", "writer", "team", 60), token(1, "5", "reader", "team", 60));
    let mut ledger = calls::ledger(&keyed.server).await;
    let body = json!({"namespace": "team", "client_id": "web", "sequence": 1, "operations": []}).to_string();
    assert_eq!(keyed.ask(Some(&reader), "POST", "/v1/write", &body).await.status, 403);
    let answer = ledger.write(with(Some(&reader), write("web", 1, Vec::new()))).await;
    let message = "needs role writer or admin; this session has role reader";
    assert_eq!(calls::refused(answer, Code::PermissionDenied), message);
    let elsewhere = body.replace("team", "default");
    assert_eq!(keyed.ask(Some(&writer), "POST", "/v1/write", &elsewhere).await.status, 403);
    let answer = ledger.write(with(Some(&writer), calls::write(None, 1, Vec::new()))).await;
    let message = "namespace: found default, this session belongs to namespace team";
    assert_eq!(calls::refused(answer, Code::PermissionDenied), message);

    let limit = json!({"key": "slots", "kind": "rolling", "capacity": 9, "window_seconds": 60}).to_string();
    assert_eq!(keyed.ask(Some(&writer), "PUT", "/v1/admin/limits", &limit).await.status, 200);
    let operations = json!([{"open_vault": {"vault": "eu"}}]);
    let body = json!({"namespace": "team", "client_id": "web", "sequence": 1, "operations": operations});
    let done = keyed.ask(Some(&writer), "POST", "/v1/write", &body.to_string()).await.json();
    assert_eq!(done["success"]["actor"], "user:789", "{done}");
    let done = ledger.write(with(Some(&writer), write("rpc", 1, vec![calls::open_vault("us")]))).await;
    assert_eq!(calls::success(done.unwrap().into_inner()).actor, "user:789");

    let (other, admin) = (token(1, "790", "writer", "team", 60), token(1, "1", "admin", "team", 60));
    let next = body.to_string().replace("\"sequence\":1", "\"sequence\":2").replace("eu", "us");
    let refused = keyed.ask(Some(&other), "POST", "/v1/write", &next).await;
    assert_eq!(refused.status, 400, "{refused:?}");
    assert!(refused.text.contains("client_id: web belongs to another key or user"), "{refused:?}");
    let refused = ledger.write(with(Some(&other), write("rpc", 1, vec![calls::open_vault("us")]))).await;
    let refused = format!("{:?}", refused.unwrap().into_inner());
    assert!(refused.contains("client_id: rpc belongs to another key or user"), "{refused}");

    let audit = keyed.ask(Some(&admin), "GET", "/v1/audit", "").await.json();
    let entries = audit["entries"].as_array().unwrap();
    let seen = |entry: &Value| ["summary", "actor", "namespace"].map(|field| entry[field].as_str().unwrap().to_owned());
    let entries: Vec<[String; 3]> = entries.iter().map(seen).collect();
    let expected = ["open_vault us", "open_vault eu", "put_limit slots"];
    assert_eq!(entries, expected.map(|what| [what, "user:789", "team"].map(str::to_owned)));
    // Limits of `default` belong to another namespace.
    let limits = keyed.ask(Some(&reader), "GET", "/v1/admin/limits", "").await;
    assert!(limits.text.contains("slots"), "{limits:?}");
    let limits = keyed.ask(Some(&keyed.root), "GET", "/v1/admin/limits", "").await;
    assert!(!limits.text.contains("slots"), "{limits:?}");
    // An admin of another namespace does not administer the server.
    assert_eq!(keyed.ask(Some(&admin), "GET", "/v1/admin/cluster", "").await.status, 403);
}
