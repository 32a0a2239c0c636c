use super::*;
use crate::config::Config;

fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in pairs {
        headers.append(HeaderName::from_static(name), HeaderValue::from_str(value).unwrap());
    }
    headers
}

#[test]
fn a_key_is_taken_from_the_header_of_either_sdk() {
    for pairs in [
        &[("authorization", "Bearer emk_abc_d")][..],
        &[("authorization", "bearer emk_abc_d")],
        &[("x-api-key", "emk_abc_d")],
        &[("api-key", "emk_abc_d")],
        &[("x-api-key", "emk_abc_d"), ("authorization", "Bearer emk_abc_d")],
    ] {
        let headers = headers(pairs);
        assert_eq!(client_key(&headers), Ok(Some(ClientKey::new("emk_abc_d").unwrap())), "{pairs:?}");
        assert_eq!(key_id(&headers).as_deref(), Some("abc"), "{pairs:?}");
    }
    assert_eq!(client_key(&HeaderMap::new()), Ok(None));
    assert_eq!(key_id(&headers(&[("authorization", "Bearer ey.J.x")])), None);
    let two = headers(&[("x-api-key", "emk_a_b"), ("authorization", "Bearer emk_c_d")]);
    assert_eq!(client_key(&two), Err(HeadRefusal::TwoKeys));
    for value in ["Basic YTpi", "Bearer", ""] {
        assert_eq!(client_key(&headers(&[("authorization", value)])), Err(HeadRefusal::NotBearer), "{value}");
    }
}

#[test]
fn a_key_in_a_query_is_refused() {
    for query in ["key=1", "a=b&api_key=x", "Access_Token=x", "q=emk_4m8qk2v7d1xz_0123456789abcdefghjkmnpqrstv"] {
        assert_eq!(check_query(Some(query)), Err(HeadRefusal::KeyInQuery), "{query}");
    }
    for query in ["beta=true", "", "api-version=2024-10-21"] {
        assert_eq!(check_query(Some(query)), Ok(()), "{query}");
    }
}

#[test]
fn a_header_cannot_name_the_model() {
    let found =
        attributes(&headers(&[("x-earmark-attributes", "user=u1, feature = chat"), ("x-earmark-attributes", "a=b")]));
    let pairs = [("a", "b"), ("feature", "chat"), ("user", "u1")];
    assert_eq!(found.unwrap(), pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).into());
    for (text, what) in [
        ("model=cheap", "found model, which the gateway sets"),
        ("user=a, alias=b", "found alias"),
        ("provider=x", "found provider"),
        ("operation=x", "found operation"),
        ("key=x", "found key"),
        ("user", "found \"user\", allowed is name=value"),
        ("user=a,user=b", "found \"user\" twice"),
        ("User=a", "attributes: found the name \"User\""),
        ("user=", "attributes: user: found 0 bytes"),
    ] {
        let refusal = attributes(&headers(&[("x-earmark-attributes", text)])).unwrap_err().to_string();
        assert!(refusal.starts_with(&format!("x-earmark-attributes: {what}")), "{text}: {refusal}");
    }
}

#[test]
fn only_listed_headers_go_upstream() {
    let config = Config::parse(
        r#"
[[upstreams]]
name = "a"
api = "anthropic"
base_url = "https://a.example"
anthropic_beta = ["one", "two"]
headers = { x-team = "t" }
[[models]]
name = "m"
targets = ["a/m"]
"#,
    )
    .unwrap();
    let client = headers(&[
        ("authorization", "Bearer emk_a_b"),
        ("x-api-key", "emk_a_b"),
        ("cookie", "c=1"),
        ("accept-encoding", "gzip"),
        ("anthropic-beta", "one, three"),
        ("anthropic-version", "2023-06-01"),
        ("x-earmark-attributes", "user=u"),
        ("user-agent", "sdk"),
        ("x-forwarded-for", "1.2.3.4"),
    ]);
    let sent = upstream_headers(&client, &config.upstreams[0]);
    let mut names: Vec<(&str, &str)> =
        sent.iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap())).collect();
    names.sort_unstable();
    assert_eq!(
        names,
        [
            ("accept-encoding", "identity"),
            ("anthropic-beta", "one"),
            ("anthropic-version", "2023-06-01"),
            ("content-type", "application/json"),
            ("user-agent", "sdk"),
            ("x-team", "t"),
        ]
    );
}

#[test]
fn the_operators_account_does_not_reach_clients() {
    let upstream = headers(&[
        ("content-type", "application/json"),
        ("content-length", "3"),
        ("connection", "close, x-private"),
        ("x-private", "1"),
        ("set-cookie", "a=b"),
        ("openai-organization", "org"),
        ("x-ratelimit-remaining-tokens", "9"),
        ("anthropic-ratelimit-tokens-limit", "9"),
        ("x-earmark-cost", "0"),
        ("x-echo", "sk-secret"),
        ("openai-processing-ms", "12"),
        ("retry-after", "3"),
    ]);
    let kept = reply_headers(&upstream, |value| value == b"sk-secret");
    let mut names: Vec<&str> = kept.keys().map(HeaderName::as_str).collect();
    names.sort_unstable();
    assert_eq!(names, ["content-type", "openai-processing-ms", "retry-after"]);
}

#[test]
fn an_encoded_body_is_refused() {
    assert_eq!(check_encoding(&headers(&[("content-encoding", "identity")])), Ok(()));
    assert_eq!(check_encoding(&HeaderMap::new()), Ok(()));
    let refused = check_encoding(&headers(&[("content-encoding", "gzip")])).unwrap_err().to_string();
    assert_eq!(refused, "content-encoding: found \"gzip\", allowed is a body that is not compressed");
}

/// Values that share the buffer of the connection keep it for as long as the call.
#[test]
fn the_headers_of_a_call_are_copies_of_what_it_needs() {
    let client = headers(&[
        ("authorization", "Bearer emk_key"),
        ("content-type", "application/json"),
        ("anthropic-beta", "one"),
        ("anthropic-beta", "two"),
        ("traceparent", "00-a-b-01"),
        ("x-stainless-lang", "python"),
    ]);
    let needed = needed(&client);
    let mut found: Vec<_> = needed.iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap())).collect();
    found.sort_unstable();
    assert_eq!(
        found,
        [
            ("anthropic-beta", "one"),
            ("anthropic-beta", "two"),
            ("content-type", "application/json"),
            ("traceparent", "00-a-b-01"),
        ]
    );
    assert_ne!(needed["content-type"].as_bytes().as_ptr(), client["content-type"].as_bytes().as_ptr());
}
