//! Protects a gateway whose server has no keys from web pages in a browser on its machine (cross-origin requests, DNS
//! rebinding). The server has the same checks.

use std::net::{IpAddr, Ipv6Addr};

use hyper::Uri;
use hyper::header::{HOST, HeaderMap, HeaderName, ORIGIN};

const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Whether a request comes from a program on this machine, not from a page of another site.
pub(crate) fn is_local(uri: &Uri, headers: &HeaderMap) -> bool {
    let single = |name: &HeaderName| {
        let mut values = headers.get_all(name).iter();
        let first = values.next().map(|value| value.to_str().unwrap_or("?"));
        values.next().is_none().then_some(first)
    };
    let (Some(host), Some(origin), Some(site)) = (single(&HOST), single(&ORIGIN), single(&FETCH_SITE)) else {
        return false;
    };
    let authority = uri.authority().map(|authority| authority.as_str());
    let is_here = [authority, host].into_iter().flatten().all(is_loopback);
    let is_own = origin.is_none_or(|origin| {
        let rest = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
        rest.is_some() && rest == authority.or(host)
    });
    is_here && is_own && site.is_none_or(|site| matches!(site, "same-origin" | "none"))
}

/// Whether a host, with or without a port, is a loopback name or address.
fn is_loopback(host: &str) -> bool {
    let (name, port) = match host.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((address, port)) if address.parse::<Ipv6Addr>().is_ok() => (address, port),
            _ => return false,
        },
        None => host.split_at(host.find(':').unwrap_or(host.len())),
    };
    let is_port = |digits: &str| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    if !port.is_empty() && !port.strip_prefix(':').is_some_and(is_port) {
        return false;
    }
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    fn asks(headers: &[(HeaderName, &str)]) -> bool {
        let mut all = HeaderMap::new();
        for (name, value) in headers {
            all.append(name.clone(), HeaderValue::from_str(value).unwrap());
        }
        is_local(&Uri::from_static("/v1/models"), &all)
    }

    #[test]
    fn programs_are_let_in_and_web_pages_are_not() {
        for host in ["localhost", "LOCALHOST:8080", "127.0.0.1:8080", "[::1]:8080"] {
            assert!(asks(&[(HOST, host)]), "{host}");
        }
        assert!(asks(&[(HOST, "localhost:1"), (ORIGIN, "http://localhost:1"), (FETCH_SITE, "same-origin")]));
        for host in ["evil.example", "localhost.evil.example", "[::1].evil", "0.0.0.0:1", "localhost:x"] {
            assert!(!asks(&[(HOST, host)]), "{host}");
        }
        assert!(!asks(&[(HOST, "localhost:1"), (HOST, "localhost:1")]));
        assert!(!asks(&[(HOST, "localhost:1"), (ORIGIN, "http://evil.example")]));
        assert!(!asks(&[(HOST, "localhost:1"), (FETCH_SITE, "cross-site")]));
    }
}
