use ring::signature::{Ed25519KeyPair, KeyPair};
use serde_json::json;

use super::*;

/// An RSA key of 2048 bits that signs nothing but these tests, and the signature of RFC 7515, A.2, made with it.
const RFC_N: &str = "ofgWCuLjybRlzo0tZWJjNiuSfb4p4fAkd_wWJcyQoTbji9k0l8W26mPddxHmfHQp-Vaw-4qPCJrcS2mJPMEzP1Pt0Bm4d4QlL-yRT-\
SFd2lZS-pCgNMsD1W_YpRPEwOWvG6b32690r2jZ47soMZo9wGzjb_7OMg0LOL-bSf63kpaSHSXndS5z5rexMdbBYUsLA9e-KXBdQOS-UTo7WTBEMa2R2CapHg665xsmtdVMTBQY4uDZlxvb3qCo5ZwKh9kG4LT6_I5IhlJH7aGhyxXFvUK-DWNmoudF8NAco9_h9iaGNj8q2ethFkMLs91kzk2PAcDTW9gb54h4FRWyuXpoQ";
const RFC_MESSAGE: &str = "eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ";
const RFC_SIGNATURE: &str = "cC4hiUPoj9Eetdgtv3hF80EGrhuB__dzERat0XF9g2VtQgr9PJbu3XOiZj5RZmh7AAuHIm4Bh-0Qc_lF5YKt_O8W2Fp5jujGbds9uJdbF9CUAr7t1dnZcAcQjbKBYNX4BAynRFdiuB--f_nZLgrnbyTyWzO75vRK5h6xBArLIARNPvkSjtQBMHlb1L07Qe7K0GarZRmB_eSN9383LcOLn6_dO--xi12jzDwusC-eOkHWEsqtFZESc6BfI7noOPqvhJ1phCnvWh6IeYI2w9QOYEUipUTI8np6LbgGY9Fs98rqVt5AXLIhWkWywlVmtVrBp0igcN_IoypGlUPQGe77Rw";

fn now() -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(1_700_000_000)
}

fn options() -> IssuerOptions {
    IssuerOptions {
        issuer: "https://issuer.example".into(),
        audience: "earmark".into(),
        role_claim: "earmark_role".into(),
        namespace_claim: "earmark_namespace".into(),
        attribute_claims: vec![("tenant".into(), "org_id".into()), ("seat".into(), "seat".into())],
        lifetime_max: Duration::from_secs(3_600),
    }
}

fn pair(seed: u8) -> Ed25519KeyPair {
    Ed25519KeyPair::from_seed_unchecked(&[seed; 32]).unwrap()
}

fn document(pair: &Ed25519KeyPair, kid: &str) -> Value {
    let x = URL_SAFE_NO_PAD.encode(pair.public_key().as_ref());
    json!({"kty": "OKP", "crv": "Ed25519", "alg": "EdDSA", "use": "sig", "kid": kid, "x": x})
}

/// An issuer with these keys, without a file.
fn of(options: IssuerOptions, set: &Value) -> Issuer {
    let keys = RwLock::new(parse(set.to_string().as_bytes()).unwrap());
    Issuer { options, keys, path: PathBuf::new(), stamp: Mutex::new(None) }
}

fn issuer() -> Issuer {
    let rsa = json!({"kty": "RSA", "kid": "rsa", "n": RFC_N, "e": "AQAB"});
    let set = json!({"keys": [document(&pair(1), "one"), rsa]});
    of(options(), &set)
}

fn claims() -> Value {
    json!({
        "iss": "https://issuer.example",
        "aud": "earmark",
        "sub": "789",
        "exp": 1_700_000_060,
        "earmark_role": "writer",
        "earmark_namespace": "team",
    })
}

fn part(value: &Value) -> String {
    URL_SAFE_NO_PAD.encode(value.to_string())
}

fn token(pair: &Ed25519KeyPair, header: &Value, claims: &Value) -> String {
    let message = format!("{}.{}", part(header), part(claims));
    let signature = URL_SAFE_NO_PAD.encode(pair.sign(message.as_bytes()));
    format!("{message}.{signature}")
}

fn header() -> Value {
    json!({"alg": "EdDSA", "typ": "JWT", "kid": "one"})
}

fn is_accepted(token: &str) -> bool {
    issuer().verify(token, now()).is_some()
}

#[test]
fn a_session_is_its_subject_in_its_namespace_until_it_ends() {
    let session = issuer().verify(&token(&pair(1), &header(), &claims()), now()).unwrap();
    assert_eq!(session.caller.actor.as_str(), "user:789");
    assert_eq!((session.caller.role, session.caller.namespace.as_str()), (Role::Writer, "team"));
    assert_eq!(session.remaining, Duration::from_secs(60));
    let late = now() + Duration::from_secs(60);
    assert!(issuer().verify(&token(&pair(1), &header(), &claims()), late).is_none());
}

/// A gateway that takes the first of two claims, and a server that takes the last, see different roles.
#[test]
fn a_token_with_a_claim_twice_is_rejected() {
    let signed = |header: &str, claims: &str| {
        let message = format!("{}.{}", URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode(claims));
        let signature = URL_SAFE_NO_PAD.encode(pair(1).sign(message.as_bytes()));
        is_accepted(&format!("{message}.{signature}"))
    };
    let (header, claims) = (header().to_string(), claims().to_string());
    assert!(signed(&header, &claims));
    let twice = |text: &str, more: &str| text.replacen('{', &format!("{{{more},"), 1);
    for more in [
        r#""earmark_role":"admin""#,
        r#""earmark_role":"writer""#,
        r#""earmark_\u0072ole":"admin""#,
        r#""sub":"1""#,
        r#""other":{"a":1,"a":2}"#,
    ] {
        assert!(!signed(&header, &twice(&claims, more)), "{more}");
    }
    for more in [r#""alg":"none""#, r#""alg":"EdDSA""#, r#""typ":"JWT""#] {
        assert!(!signed(&twice(&header, more), &claims), "{more}");
    }
}

#[test]
fn a_token_with_one_wrong_claim_is_rejected() {
    let with = |name: &str, value: Value| {
        let mut claims = claims();
        claims[name] = value;
        is_accepted(&token(&pair(1), &header(), &claims))
    };
    assert!(with("aud", json!(["other", "earmark"])));
    assert!(with("nbf", json!(1_700_000_020)));
    for (name, value) in [
        ("iss", json!("https://other.example")),
        ("iss", Value::Null),
        ("aud", json!("other")),
        ("aud", json!(["other"])),
        ("aud", Value::Null),
        ("exp", json!(1_700_000_000)),
        ("exp", json!("1700000060")),
        ("exp", json!(-1)),
        ("exp", Value::Null),
        ("nbf", json!(1_700_000_050)),
        ("nbf", json!("soon")),
        ("iat", json!(1_700_000_050)),
        ("iat", json!("before")),
        ("iat", Value::Null),
        ("sub", json!("")),
        ("sub", json!("a b")),
        ("sub", json!(789)),
        ("earmark_role", json!("root")),
        ("earmark_role", Value::Null),
        ("earmark_namespace", json!("a/b")),
        ("earmark_namespace", Value::Null),
    ] {
        assert!(!with(name, value.clone()), "{name} {value}");
    }
    let mut claims = claims();
    claims.as_object_mut().unwrap().remove("exp");
    assert!(!is_accepted(&token(&pair(1), &header(), &claims)));
}

/// Tokens without an expiry were accepted, and sessions cannot be revoked.
#[test]
fn a_token_with_too_long_a_lifetime_is_rejected() {
    const NOW: u64 = 1_700_000_000;
    for (made, ends, is_good) in [
        (None, NOW + 3_600, true),
        (None, NOW + 3_601, false),
        (None, 99_999_999_999, false),
        (Some(NOW), NOW + 3_600, true),
        (Some(NOW), NOW + 3_601, false),
        (Some(NOW - 3_000), NOW + 600, true),
        (Some(NOW - 3_000), NOW + 601, false),
        // Issued in the future: within the tolerated clock skew, and beyond it.
        (Some(NOW + 30), NOW + 3_600, true),
        (Some(NOW + 30), NOW + 3_601, false),
        (Some(99_999_999_000), 99_999_999_999, false),
    ] {
        let mut claims = claims();
        claims["exp"] = json!(ends);
        if let Some(made) = made {
            claims["iat"] = json!(made);
        }
        assert_eq!(is_accepted(&token(&pair(1), &header(), &claims)), is_good, "{made:?} {ends}");
    }
}

#[test]
fn the_algorithm_is_that_of_the_configured_key_whatever_a_token_says() {
    let good = token(&pair(1), &header(), &claims());
    assert!(is_accepted(&good));
    let says = |header: Value| token(&pair(1), &header, &claims());
    for wrong in [
        says(json!({"alg": "none", "kid": "one"})),
        says(json!({"alg": "HS256", "kid": "one"})),
        says(json!({"alg": "RS256", "kid": "one"})),
        says(json!({"alg": "eddsa", "kid": "one"})),
        says(json!({"alg": "EdDSA", "kid": "rsa"})),
        says(json!({"alg": "EdDSA", "kid": "two"})),
        says(json!({"alg": "EdDSA"})),
        says(json!({"kid": "one"})),
        says(json!({"alg": "EdDSA", "kid": "one", "crit": ["b64"], "b64": false})),
    ] {
        assert!(!is_accepted(&wrong), "{wrong}");
    }
    // Without a signature at all.
    let unsigned = format!("{}.{}.", part(&json!({"alg": "none"})), part(&claims()));
    assert!(!is_accepted(&unsigned));
    assert!(!is_accepted(unsigned.trim_end_matches('.')));
    // Signed with the public key as if it were a shared secret.
    let secret = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, pair(1).public_key().as_ref());
    let message = format!("{}.{}", part(&json!({"alg": "HS256", "kid": "one"})), part(&claims()));
    let tag = URL_SAFE_NO_PAD.encode(ring::hmac::sign(&secret, message.as_bytes()));
    assert!(!is_accepted(&format!("{message}.{tag}")));
}

#[test]
fn a_token_that_was_changed_cut_or_signed_by_another_key_is_rejected() {
    let good = token(&pair(1), &header(), &claims());
    assert!(!is_accepted(&token(&pair(2), &header(), &claims())));
    for shorter in 0..good.len() {
        assert!(!is_accepted(&good[..shorter]));
    }
    let (message, signature) = good.rsplit_once('.').unwrap();
    let admin = part(&json!({"earmark_role": "admin"}));
    assert!(!is_accepted(&format!("{}.{admin}.{signature}", message.split_once('.').unwrap().0)));
    assert!(!is_accepted(&format!("{good}=")));
    assert!(!is_accepted(&format!("{good}.")));
}

#[test]
fn signatures_of_rsa_are_checked_as_their_standard_shows() {
    let issuer = issuer();
    let keys = issuer.keys.read().unwrap();
    let key = keys.iter().find(|key| key.id.as_deref() == Some("rsa")).unwrap();
    let signature = decode(RFC_SIGNATURE).unwrap();
    assert!(key.kind.verify(RFC_MESSAGE.as_bytes(), &signature));
    assert!(!key.kind.verify(RFC_MESSAGE.to_uppercase().as_bytes(), &signature));
    // Its claims are of another issuer, and expired.
    assert!(issuer.verify(&format!("{RFC_MESSAGE}.{RFC_SIGNATURE}"), now()).is_none());
}

/// One encryption key or key of an unknown kind in an issuer's set kept the server from starting, and later kept it on
/// keys that the issuer had withdrawn.
#[test]
fn unusable_keys_are_skipped_and_without_any_all_tokens_are_rejected() {
    let curve = json!({"kty": "EC", "crv": "P-256", "kid": "a"});
    let shared = json!({"kty": "oct", "k": "AAAA", "kid": "one"});
    let short = json!({"kty": "RSA", "n": "AQAB", "e": "AQAB", "kid": "a"});
    let other = json!({"kty": "RSA", "n": RFC_N, "e": "AQAB", "alg": "RS512", "kid": "a"});
    let mut secret = document(&pair(1), "one");
    secret["use"] = json!("enc");
    let odd = [curve, shared, short, other, secret, json!(7)];
    for (document, says) in odd.iter().zip(["kty EC and crv P-256", "kty oct", "2048 or more", "alg RS512", "use enc"])
    {
        let why = serde_json::from_value(document.clone()).map(public_key).unwrap().unwrap_err();
        assert!(why.contains(says), "{why}");
    }
    let good = token(&pair(1), &header(), &claims());
    let set = |more: Option<Value>| json!({"keys": odd.iter().cloned().chain(more).collect::<Vec<_>>()});
    assert!(of(options(), &set(Some(document(&pair(1), "one")))).verify(&good, now()).is_some());
    for nothing in [set(None), json!({"keys": []})] {
        assert!(of(options(), &nothing).verify(&good, now()).is_none());
        let mut nameless = header();
        nameless.as_object_mut().unwrap().remove("kid");
        assert!(of(options(), &nothing).verify(&token(&pair(1), &nameless, &claims()), now()).is_none());
    }
    let twice = json!({"keys": [document(&pair(1), "one"), document(&pair(2), "one")]});
    assert!(parse(twice.to_string().as_bytes()).unwrap_err().contains("same kid"));
}

#[test]
fn changed_keys_are_reloaded_and_unusable_ones_are_not() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("keys.json");
    let write = |pair: &Ed25519KeyPair, kid: &str| {
        std::fs::write(&path, json!({"keys": [document(pair, kid)]}).to_string()).unwrap();
    };
    let header = |kid: &str| json!({"alg": "EdDSA", "kid": kid});
    let [first, second] =
        [(1, "one"), (2, "number two")].map(|(seed, kid)| token(&pair(seed), &header(kid), &claims()));
    write(&pair(1), "one");
    let issuer = Issuer::open(options(), &path).unwrap();
    let is_good = |token: &str| issuer.verify(token, now()).is_some();
    assert_eq!((is_good(&first), is_good(&second)), (true, false));
    write(&pair(2), "number two");
    issuer.refresh();
    assert_eq!((is_good(&first), is_good(&second)), (false, true));
    std::fs::write(&path, "{}").unwrap();
    issuer.refresh();
    assert!(issuer.reload().is_err());
    assert_eq!((is_good(&first), is_good(&second)), (false, true));
}

#[test]
fn claims_become_labels_and_one_that_is_no_attribute_makes_the_token_invalid() {
    let with = |name: &str, value: Value| {
        let mut claims = claims();
        claims[name] = value;
        issuer().verify(&token(&pair(1), &header(), &claims), now()).map(|session| session.caller.labels.to_string())
    };
    assert_eq!(with("org_id", json!("acme")).as_deref(), Some("tenant=acme"));
    assert_eq!(with("seat", json!(7)).as_deref(), Some("seat=7"));
    assert_eq!(with("org_id", Value::Null).as_deref(), Some(""));
    assert_eq!(with("other", json!("acme")).as_deref(), Some(""));
    for wrong in
        [json!(""), json!("a\u{7}"), json!("x".repeat(257)), json!(["acme"]), json!({}), json!(true), json!(1.5)]
    {
        assert_eq!(with("org_id", wrong.clone()), None, "{wrong}");
    }
}
