//! Session tokens: which ones a server accepts.

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::SystemRandom;
use ring::rsa::{KeyPairComponents, PublicKeyComponents};
use ring::signature::{Ed25519KeyPair, KeyPair as _, RSA_PKCS1_SHA256, RsaKeyPair};
use serde_json::{Value, json};

use crate::keys::{by, is_in};
use crate::support::{Server, run};

const ISSUER: &str = "https://issuer.example";

/// The public test key of RFC 7515, A.2.
const N: &str = "ofgWCuLjybRlzo0tZWJjNiuSfb4p4fAkd_wWJcyQoTbji9k0l8W26mPddxHmfHQp-Vaw-4qPCJrcS2mJPMEzP1Pt0Bm4d4QlL-yRT-SFd2lZS-pCgNMsD1W_YpRPEwOWvG6b32690r2jZ47soMZo9wGzjb_7OMg0LOL-bSf63kpaSHSXndS5z5rexMdbBYUsLA9e-KXBdQOS-UTo7WTBEMa2R2CapHg665xsmtdVMTBQY4uDZlxvb3qCo5ZwKh9kG4LT6_I5IhlJH7aGhyxXFvUK-DWNmoudF8NAco9_h9iaGNj8q2ethFkMLs91kzk2PAcDTW9gb54h4FRWyuXpoQ";
const D: &str = "Eq5xpGnNCivDflJsRQBXHx1hdR1k6Ulwe2JZD50LpXyWPEAeP88vLNO97IjlA7_GQ5sLKMgvfTeXZx9SE-7YwVol2NXOoAJe46sui395IW_GO-pWJ1O0BkTGoVEn2bKVRUCgu-GjBVaYLU6f3l9kJfFNS3E0QbVdxzubSu3Mkqzjkn439X0M_V51gfpRLI9JYanrC4D4qAdGcopV_0ZHHzQlBjudU2QvXt4ehNYTCBr6XCLQUShb1juUO1ZdiYoFaFQT5Tw8bGUl_x_jTj3ccPDVZFD9pIuhLhBOneufuBiB4cS98l2SR_RQyGWSeWjnczT0QU91p1DhOVRuOopznQ";
const P: &str = "4BzEEOtIpmVdVEZNCqS7baC4crd0pqnRH_5IB3jw3bcxGn6QLvnEtfdUdiYrqBdss1l58BQ3KhooKeQTa9AB0Hw_Py5PJdTJNPY8cQn7ouZ2KKDcmnPGBY5t7yLc1QlQ5xHdwW1VhvKn-nXqhJTBgIPgtldC-KDV5z-y2XDwGUc";
const Q: &str = "uQPEfgmVtjL0Uyyx88GZFF1fOunH3-7cepKmtH4pxhtCoHqpWmT8YAmZxaewHgHAjLYsp1ZSe7zFYHj7C6ul7TjeLQeZD_YwD66t62wDmpe_HlB-TnBA-njbglfIsRLtXlnDzQkv5dTltRJ11BKBBypeeF6689rjcJIDEz9RWdc";
const DP: &str = "BwKfV3Akq5_MFZDFZCnW-wzl-CCo83WoZvnLQwCTeDv8uzluRSnm71I3QCLdhrqE2e9YkxvuxdBfpT_PI7Yz-FOKnu1R6HsJeDCjn12Sk3vmAktV2zb34MCdy7cpdTh_YVr7tss2u6vneTwrA86rZtu5Mbr1C1XsmvkxHQAdYo0";
const DQ: &str = "h_96-mK1R_7glhsum81dZxjTnYynPbZpHziZjeeHcXYsXaaMwkOlODsWa7I9xXDoRwbKgB719rrmI2oKr6N3Do9U0ajaHF-NKJnwgjMd2w9cjz3_-kyNlxAr2v4IKhGNpmM5iIgOS1VZnOZ68m6_pbLBSp3nssTdlqvd0tIiTHU";
const QI: &str = "IYd7DHOhrWvxkwPQsRM2tOgrjbcrfvtQJipd-DlcxyVuuM9sQLdgjVk2oy26F0EmpScGLq2MowX7fhd_QJQ3ydy5cY7YIBi87w93IKLEdfnbJtoOPLUW0ITrJReOgo1cq9SbsxYawBgfp_gh6A5603k2-ZQwVK0JKSHuLFkuQ3U";

fn decoded(text: &str) -> Vec<u8> {
    URL_SAFE_NO_PAD.decode(text).unwrap()
}

fn ed25519() -> Ed25519KeyPair {
    Ed25519KeyPair::from_seed_unchecked(&[7; 32]).unwrap()
}

fn rsa() -> RsaKeyPair {
    let part = |text: &str| decoded(text);
    let public_key = PublicKeyComponents { n: part(N), e: part("AQAB") };
    let (dp, dq, qi) = (part(DP), part(DQ), part(QI));
    let parts = KeyPairComponents { public_key, d: part(D), p: part(P), q: part(Q), dP: dp, dQ: dq, qInv: qi };
    RsaKeyPair::from_components(&parts).unwrap()
}

/// Writes the issuer's JSON Web Key Set.
fn keys(folder: &Path) -> PathBuf {
    let x = URL_SAFE_NO_PAD.encode(ed25519().public_key().as_ref());
    let path = folder.join("issuer.json");
    let keys = json!({"keys": [
        {"kty": "OKP", "crv": "Ed25519", "kid": "ed", "x": x},
        {"kty": "RSA", "kid": "rsa", "n": N, "e": "AQAB"},
    ]});
    std::fs::write(&path, keys.to_string()).unwrap();
    path
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

fn claims(changes: &[(&str, Value)]) -> Value {
    let mut claims = json!({
        "iss": ISSUER, "aud": "earmark", "sub": "789", "iat": now(), "exp": now() + 600,
        "earmark_role": "admin", "earmark_namespace": "default",
    });
    changes.iter().for_each(|(name, value)| claims[*name] = value.clone());
    claims
}

/// The signature algorithm of a token.
enum By {
    EdDsa,
    Rs256,
    /// HMAC with a public value as the secret.
    Hs256(Vec<u8>),
    Nothing,
}

fn token(by: &By, claims: &Value) -> String {
    let (alg, kid) = match by {
        By::EdDsa => ("EdDSA", "ed"),
        By::Rs256 => ("RS256", "rsa"),
        By::Hs256(_) => ("HS256", "rsa"),
        By::Nothing => ("none", "ed"),
    };
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let message = format!("{}.{}", part(&json!({"alg": alg, "kid": kid})), part(claims));
    let signature = match by {
        By::EdDsa => ed25519().sign(message.as_bytes()).as_ref().to_vec(),
        By::Rs256 => {
            let key = rsa();
            let mut signature = vec![0; key.public().modulus_len()];
            key.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), message.as_bytes(), &mut signature).unwrap();
            signature
        }
        By::Hs256(secret) => {
            let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, secret);
            ring::hmac::sign(&key, message.as_bytes()).as_ref().to_vec()
        }
        By::Nothing => Vec::new(),
    };
    format!("{message}.{}", URL_SAFE_NO_PAD.encode(signature))
}

fn wrong() -> Vec<(&'static str, String)> {
    let good = claims(&[]);
    let public = ed25519().public_key().as_ref().to_vec();
    let whole = token(&By::EdDsa, &good);
    vec![
        ("another audience", token(&By::EdDsa, &claims(&[("aud", json!("billing"))]))),
        ("another issuer", token(&By::Rs256, &claims(&[("iss", json!("https://other.example"))]))),
        ("over", token(&By::EdDsa, &claims(&[("exp", json!(now() - 1))]))),
        ("over, by RSA", token(&By::Rs256, &claims(&[("exp", json!(now() - 1))]))),
        ("for ever", token(&By::EdDsa, &claims(&[("exp", json!(now() + 86_400 * 3_650))]))),
        ("longer than is allowed here", token(&By::EdDsa, &claims(&[("exp", json!(now() + 3_700))]))),
        ("none", token(&By::Nothing, &good)),
        ("HS256 with the modulus", token(&By::Hs256(decoded(N)), &good)),
        ("HS256 with the modulus as it is written", token(&By::Hs256(N.into()), &good)),
        ("HS256 with the key of EdDSA", token(&By::Hs256(public), &good)),
        ("cut", whole[..whole.len() - 2].to_owned()),
    ]
}

#[test]
fn a_session_of_either_algorithm_is_its_user_and_a_token_that_is_wrong_is_nobodys() {
    let folder = tempfile::tempdir().unwrap();
    let (data, keys) = (folder.path().join("data"), keys(folder.path()));
    let flags = ["--issuer", ISSUER, "--issuer-keys", keys.to_str().unwrap(), "--audience", "earmark"];
    let more = ["--issuer-max-age", "3600", "--log-level", "trace"];
    let server = Server::on(&data, &[&flags[..], &more[..]].concat());
    assert!(server.line("limits list").ends(1).stderr.contains("401 unauthenticated"));

    let write = |client: &str| format!("write --client {client} --sequence 1 --namespace default --json");
    let mut used = Vec::new();
    for (how, client, sub) in [(By::EdDsa, "a", "789"), (By::Rs256, "b", "ann@example.com")] {
        let session = token(&how, &claims(&[("sub", json!(sub))]));
        let written = by(&server, &session, &write(client)).ends(0).json();
        assert_eq!(written["success"]["actor"], format!("user:{sub}"), "{written}");
        used.push(session);
    }
    for (what, wrong) in wrong() {
        let refused = by(&server, &wrong, &write("c")).ends(1);
        assert!(refused.stderr.contains("401 unauthenticated"), "{what}: {refused:?}");
        let advice = "the credentials are missing or not valid; put a key or session token in EARMARK_KEY";
        assert!(refused.stderr.contains(advice), "{what}: {refused:?}");
        used.push(wrong);
    }
    let reader = token(&By::EdDsa, &claims(&[("earmark_role", json!("reader"))]));
    assert!(by(&server, &reader, &write("c")).ends(1).stderr.contains("403 forbidden"));
    let changes = by(&server, &used[0], "audit --changes").ends(0).stdout;
    for actor in ["user:789", "user:ann@example.com"] {
        assert!(changes.contains(actor), "{changes}");
    }
    assert!(!changes.contains("client:c"), "{changes}");

    server.signal("TERM");
    let stopped = server.wait();
    assert!(stopped.stderr.contains("user:ann@example.com"), "the log must name the user");
    for session in used {
        let signature = session.rsplit('.').next().unwrap();
        let claims = session.split('.').nth(1).unwrap();
        for secret in [signature, claims].into_iter().filter(|text| !text.is_empty()) {
            assert!(!stopped.stderr.contains(secret), "a token is in the log");
            assert!(!is_in(&data, secret), "a token is in the data folder");
        }
    }
}

#[test]
fn an_issuer_whose_keys_cannot_be_read_stops_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("none.json");
    let path = path.to_str().unwrap();
    let words = ["serve", "--in-memory", "--listen", "127.0.0.1:0", "--issuer", ISSUER, "--audience", "earmark"];
    let refused = run(&[&words[..], &["--issuer-keys", path]].concat()).ends(2);
    assert!(refused.stderr.contains("--issuer-keys"), "{refused:?}");
}
