//! The head of a client's request: its credentials, its attributes, and the headers that go on in both directions.

use std::collections::{BTreeMap, BTreeSet};

use earmark_client::ClientKey;
use earmark_core::{contains_api_key, quoted};
use earmark_trace::{TRACEPARENT, TRACESTATE};
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};

use crate::config::Upstream;

/// The header with further attributes: `user=u1, feature=chat`.
pub(crate) const ATTRIBUTES: HeaderName = HeaderName::from_static("x-earmark-attributes");
const X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");
const API_KEY: HeaderName = HeaderName::from_static("api-key");
const ANTHROPIC_BETA: HeaderName = HeaderName::from_static("anthropic-beta");
const ANTHROPIC_VERSION: HeaderName = HeaderName::from_static("anthropic-version");

/// The attributes that route and credentials set. No header can name them.
const OWN_ATTRIBUTES: [&str; 5] = ["model", "alias", "provider", "operation", "key"];
/// Parameters of a query that carry credentials.
const KEY_PARAMETERS: [&str; 7] = ["key", "api_key", "api-key", "apikey", "access_token", "token", "authorization"];
/// The headers of a client that go to the upstream. The first value counts, and the configuration may replace it.
const FORWARDED: [HeaderName; 4] = [header::ACCEPT, header::CONTENT_TYPE, header::USER_AGENT, ANTHROPIC_VERSION];
/// The other headers of a client that its call needs.
const NEEDED: [&str; 3] = ["anthropic-beta", TRACEPARENT, TRACESTATE];
/// The headers of an upstream that do not reach the client. Connections have their own; the rest is about the
/// operator's account.
const HELD_BACK: [&str; 16] = [
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "content-length",
    "set-cookie",
    "alt-svc",
    "strict-transport-security",
    "openai-organization",
    "openai-project",
    "anthropic-organization-id",
    "x-request-id",
];
const HELD_BACK_PREFIXES: [&str; 5] = ["x-ratelimit-", "anthropic-ratelimit-", "ratelimit", "x-earmark-", "cf-"];

/// Why the head of a request is refused.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum HeadRefusal {
    #[error("the request has two different credentials; send one key, in authorization or x-api-key")]
    TwoKeys,
    #[error("authorization: found another scheme than Bearer; send: Authorization: Bearer <Earmark key>")]
    NotBearer,
    #[error("the query of the URL has a credential, which logs would show; send it in a header")]
    KeyInQuery,
    #[error("{0}")]
    Attributes(String),
    #[error("content-encoding: found {0}, allowed is a body that is not compressed")]
    Encoded(String),
}

/// The API key or session token that a client sends as the API key of its SDK. `None` without one, or if it cannot be a
/// key: the caller treats both alike.
pub(crate) fn client_key(headers: &HeaderMap) -> Result<Option<ClientKey>, HeadRefusal> {
    let mut keys: BTreeSet<&[u8]> = BTreeSet::new();
    for value in headers.get_all(header::AUTHORIZATION) {
        let (scheme, key) = value.as_bytes().split_at_checked(7).ok_or(HeadRefusal::NotBearer)?;
        if !scheme.eq_ignore_ascii_case(b"bearer ") {
            return Err(HeadRefusal::NotBearer);
        }
        keys.insert(key.trim_ascii());
    }
    for name in [X_API_KEY, API_KEY] {
        keys.extend(headers.get_all(name).iter().map(|value| value.as_bytes().trim_ascii()));
    }
    let mut keys = keys.into_iter();
    match (keys.next(), keys.next()) {
        (None, _) => Ok(None),
        (Some(key), None) => Ok(std::str::from_utf8(key).ok().and_then(|key| ClientKey::new(key).ok())),
        (Some(_), Some(_)) => Err(HeadRefusal::TwoKeys),
    }
}

/// The public part of an API key: `emk_<id>_<secret>`. A session token has none.
pub(crate) fn key_id(headers: &HeaderMap) -> Option<String> {
    let values = [header::AUTHORIZATION, X_API_KEY, API_KEY].into_iter().filter_map(|name| headers.get(name));
    let mut texts = values.filter_map(|value| value.to_str().ok());
    texts.find_map(|text| {
        let text = text.get(..7).filter(|scheme| scheme.eq_ignore_ascii_case("bearer ")).map_or(text, |_| &text[7..]);
        let (id, _) = text.trim().strip_prefix("emk_")?.split_once('_')?;
        Some(id.to_owned())
    })
}

/// Refuses a query with a credential in it.
pub(crate) fn check_query(query: Option<&str>) -> Result<(), HeadRefusal> {
    let Some(query) = query else { return Ok(()) };
    let names = query.split('&').map(|part| part.split('=').next().unwrap_or_default().to_ascii_lowercase());
    let has_key = contains_api_key(query) || names.into_iter().any(|name| KEY_PARAMETERS.contains(&name.as_str()));
    if has_key { Err(HeadRefusal::KeyInQuery) } else { Ok(()) }
}

/// Refuses an encoded body: what is validated must be what is forwarded.
pub(crate) fn check_encoding(headers: &HeaderMap) -> Result<(), HeadRefusal> {
    match headers
        .get_all(header::CONTENT_ENCODING)
        .iter()
        .find(|value| !value.as_bytes().eq_ignore_ascii_case(b"identity"))
    {
        Some(value) => Err(HeadRefusal::Encoded(quoted(value.to_str().unwrap_or("another")))),
        None => Ok(()),
    }
}

/// The attributes that a request adds.
pub(crate) fn attributes(headers: &HeaderMap) -> Result<BTreeMap<String, String>, HeadRefusal> {
    let refuse = |what: String| HeadRefusal::Attributes(format!("{ATTRIBUTES}: {what}"));
    let mut attributes = BTreeMap::new();
    for value in headers.get_all(ATTRIBUTES) {
        let text =
            std::str::from_utf8(value.as_bytes()).map_err(|_| refuse("found bytes that are not UTF-8".into()))?;
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (name, value) = part
                .split_once('=')
                .map(|(name, value)| (name.trim(), value.trim()))
                .ok_or_else(|| refuse(format!("found {}, allowed is name=value, name=value", quoted(part))))?;
            if OWN_ATTRIBUTES.contains(&name) {
                return Err(refuse(format!("found {name}, which the gateway sets and no header can name")));
            }
            if attributes.insert(name.to_owned(), value.to_owned()).is_some() {
                return Err(refuse(format!("found {} twice, allowed is each name once", quoted(name))));
            }
        }
    }
    let checked = earmark_policy::Attributes::new(&attributes);
    checked.map(|_| attributes.clone()).map_err(|error| refuse(error.to_string()))
}

/// The headers of a client that its call needs. They are copies: hyper's keep the buffer of 8 KiB that all were read
/// into, and its connection needs another one.
pub(crate) fn needed(client: &HeaderMap) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in client {
        if FORWARDED.contains(name) || NEEDED.contains(&name.as_str()) {
            headers.append(name.clone(), copied(value));
        }
    }
    headers
}

/// A value in memory of its own.
fn copied(value: &HeaderValue) -> HeaderValue {
    // The bytes of a value are always valid.
    HeaderValue::from_bytes(value.as_bytes()).unwrap_or_else(|_| value.clone())
}

/// The headers of a request to an upstream, but for its key.
pub(crate) fn upstream_headers(client: &HeaderMap, upstream: &Upstream) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for name in FORWARDED {
        if let Some(value) = client.get(&name) {
            headers.insert(name, value.clone());
        }
    }
    if !headers.contains_key(header::CONTENT_TYPE) {
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    }
    // Only what nobody has to decompress can be metered.
    headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    let beta: Vec<&str> = client
        .get_all(ANTHROPIC_BETA)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(',').map(str::trim))
        .filter(|name| upstream.anthropic_beta.iter().any(|allowed| allowed == name))
        .collect();
    if let Ok(value) = HeaderValue::from_str(&beta.join(","))
        && !beta.is_empty()
    {
        headers.insert(ANTHROPIC_BETA, value);
    }
    for (name, value) in &upstream.headers {
        headers.insert(name.clone(), value.clone());
    }
    headers
}

/// The headers of an upstream's answer that reach the client.
pub(crate) fn reply_headers(upstream: &HeaderMap, holds_secret: impl Fn(&[u8]) -> bool) -> HeaderMap {
    let named: Vec<String> = upstream
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(',').map(|name| name.trim().to_ascii_lowercase()))
        .collect();
    let mut headers = HeaderMap::new();
    for (name, value) in upstream {
        let text = name.as_str();
        let is_held_back = HELD_BACK.contains(&text)
            || HELD_BACK_PREFIXES.iter().any(|prefix| text.starts_with(prefix))
            || named.iter().any(|other| other == text)
            || holds_secret(value.as_bytes());
        if !is_held_back {
            headers.append(name.clone(), copied(value));
        }
    }
    headers
}

#[cfg(test)]
mod tests;
