//! An issuer of session tokens, and its tokens.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use earmark_server::{Issuer, IssuerOptions};
use ring::signature::{Ed25519KeyPair, KeyPair as _};
use serde_json::{Value, json};

pub(crate) const ISSUER: &str = "https://issuer.example";

pub(crate) fn pair(seed: u8) -> Ed25519KeyPair {
    Ed25519KeyPair::from_seed_unchecked(&[seed; 32]).unwrap()
}

/// An issuer with a key file.
pub(crate) fn issuer() -> Arc<Issuer> {
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
        attribute_claims: vec![("tenant".into(), "org_id".into())],
        lifetime_max: Duration::from_secs(3_600),
    };
    Arc::new(Issuer::open(options, &path).unwrap())
}

/// The claims of a token that expires in `lasts` seconds.
pub(crate) fn claims(sub: &str, role: &str, namespace: &str, lasts: i64) -> Value {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    json!({
        "iss": ISSUER, "aud": "earmark", "sub": sub, "exp": now.saturating_add_signed(lasts),
        "earmark_role": role, "earmark_namespace": namespace,
    })
}

pub(crate) fn part(value: &Value) -> String {
    URL_SAFE_NO_PAD.encode(value.to_string())
}

pub(crate) fn unsigned(header: &Value, claims: &Value) -> String {
    format!("{}.{}", part(header), part(claims))
}

pub(crate) fn signed(seed: u8, header: &Value, claims: &Value) -> String {
    let message = unsigned(header, claims);
    format!("{message}.{}", URL_SAFE_NO_PAD.encode(pair(seed).sign(message.as_bytes())))
}

pub(crate) fn token(seed: u8, sub: &str, role: &str, namespace: &str, lasts: i64) -> String {
    signed(seed, &json!({"alg": "EdDSA", "kid": "one"}), &claims(sub, role, namespace, lasts))
}
