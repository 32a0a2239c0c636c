//! Users who come with a session token of a configured issuer, over HTTP and gRPC.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use earmark_proto::v1;
use earmark_server::{Issuer, IssuerOptions};
use ring::signature::{Ed25519KeyPair, KeyPair as _};
use serde_json::{Value, json};
use tonic::Code;

use crate::callers::with;
use crate::calls;
use crate::support::Keyed;

const ISSUER: &str = "https://issuer.example";

fn pair(seed: u8) -> Ed25519KeyPair {
    Ed25519KeyPair::from_seed_unchecked(&[seed; 32]).unwrap()
}

/// An issuer whose keys are in a file.
fn issuer() -> Arc<Issuer> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("keys.json");
    let x = URL_SAFE_NO_PAD.encode(pair(1).public_key().as_ref());
    let key = json!({"kty": "OKP", "crv": "Ed25519", "kid": "one", "x": x});
    std::fs::write(&path, json!({"keys": [key]}).to_string()).unwrap();
    let options = IssuerOptions {
        issuer: ISSUER.into(),
        audience: "earmark".into(),
        role_claim: "earmark_role".into(),
        namespace_claim: "earmark_namespace".into(),
    };
    Arc::new(Issuer::open(options, &path).unwrap())
}

fn token(seed: u8, sub: &str, role: &str, namespace: &str, lasts: i64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let claims = json!({
        "iss": ISSUER, "aud": "earmark", "sub": sub, "exp": now.saturating_add_signed(lasts),
        "earmark_role": role, "earmark_namespace": namespace,
    });
    let message = format!("{}.{}", part(&json!({"alg": "EdDSA", "kid": "one"})), part(&claims));
    format!("{message}.{}", URL_SAFE_NO_PAD.encode(pair(seed).sign(message.as_bytes())))
}

fn write(client: &str, sequence: u64, operations: Vec<v1::Operation>) -> v1::WriteRequest {
    let namespace = "team".into();
    v1::WriteRequest { namespace, client_id: client.into(), ..calls::write(None, sequence, operations) }
}

#[tokio::test]
async fn a_session_acts_as_its_user_in_its_namespace_and_within_its_role() {
    let keyed = Keyed::with(|options| options.issuer = Some(issuer())).await;
    let (writer, reader) = (token(1, "789", "writer", "team", 60), token(1, "5", "reader", "team", 60));
    let mut ledger = calls::ledger(&keyed.desk).await;
    let wrong = [
        token(2, "789", "writer", "team", 60),
        token(1, "789", "writer", "team", -60),
        token(1, "789", "owner", "team", 60),
        format!("{writer}x"),
        "nonsense".into(),
    ];
    for wrong in &wrong {
        assert_eq!(keyed.ask(Some(wrong), "GET", "/v1/admin/limits", "").await.status, 401, "{wrong}");
        let answer = ledger.write(with(Some(wrong), write("c", 1, Vec::new()))).await;
        assert_eq!(calls::refused(answer, Code::Unauthenticated), "the credentials are missing or not valid");
    }

    let body = json!({"namespace": "team", "client_id": "web", "sequence": 1, "operations": []}).to_string();
    assert_eq!(keyed.ask(Some(&reader), "POST", "/v1/write", &body).await.status, 403);
    let answer = ledger.write(with(Some(&reader), write("web", 1, Vec::new()))).await;
    assert_eq!(calls::refused(answer, Code::PermissionDenied), "the credentials do not allow this");
    let elsewhere = body.replace("team", "default");
    assert_eq!(keyed.ask(Some(&writer), "POST", "/v1/write", &elsewhere).await.status, 403);
    let answer = ledger.write(with(Some(&writer), calls::write(None, 1, Vec::new()))).await;
    assert_eq!(calls::refused(answer, Code::PermissionDenied), "the credentials do not allow this");

    let limit = json!({"key": "slots", "kind": "rolling", "capacity": 9, "window_seconds": 60}).to_string();
    assert_eq!(keyed.ask(Some(&writer), "PUT", "/v1/admin/limits", &limit).await.status, 200);
    let operations = json!([{"open_vault": {"vault": "eu"}}]);
    let body = json!({"namespace": "team", "client_id": "web", "sequence": 1, "operations": operations});
    let done = keyed.ask(Some(&writer), "POST", "/v1/write", &body.to_string()).await.json();
    assert_eq!(done["success"]["actor"], "user:789", "{done}");
    let done = ledger.write(with(Some(&writer), write("rpc", 1, vec![calls::open_vault("us")]))).await;
    assert_eq!(calls::success(done.unwrap().into_inner()).actor, "user:789");

    let admin = token(1, "1", "admin", "team", 60);
    let audit = keyed.ask(Some(&admin), "GET", "/v1/audit", "").await.json();
    let entries = audit["entries"].as_array().unwrap();
    let seen = |entry: &Value| {
        ["summary", "actor", "namespace"].map(|field| entry[field].as_str().unwrap().to_owned())
    };
    let entries: Vec<[String; 3]> = entries.iter().map(seen).collect();
    let expected = ["put_limit slots", "open_vault eu", "open_vault us"];
    assert_eq!(entries, expected.map(|what| [what, "user:789", "team"].map(str::to_owned)));
    // The limits of `default` are another namespace's, and none of theirs are there.
    let limits = keyed.ask(Some(&reader), "GET", "/v1/admin/limits", "").await;
    assert!(limits.text.contains("slots"), "{limits:?}");
    let limits = keyed.ask(Some(&keyed.root), "GET", "/v1/admin/limits", "").await;
    assert!(!limits.text.contains("slots"), "{limits:?}");
    // An admin of a namespace looks after that, and not after the server.
    assert_eq!(keyed.ask(Some(&admin), "GET", "/v1/admin/cluster", "").await.status, 403);
}
