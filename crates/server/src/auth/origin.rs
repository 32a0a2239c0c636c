//! Protects a server without keys from web pages in a browser on its machine (cross-origin requests, DNS rebinding).

use std::net::{IpAddr, Ipv6Addr};

use axum::http::header::{HOST, ORIGIN};
use axum::http::{HeaderMap, HeaderName, Uri};

use crate::caller::AuthError;

const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Rejects requests that a browser sends for a foreign page. Such a page has a foreign origin; after DNS rebinding the
/// host name is still the foreign one. A repeated header is rejected too: two readers could take different ones.
pub(super) fn check(uri: &Uri, headers: &HeaderMap) -> Result<(), AuthError> {
    let (mut host, mut origin, mut site, mut is_single) = (None, None, None, true);
    // One pass costs less than three look-ups: few requests have more than five headers.
    for (name, value) in headers {
        let found = match name {
            name if *name == HOST => &mut host,
            name if *name == ORIGIN => &mut origin,
            name if *name == FETCH_SITE => &mut site,
            _ => continue,
        };
        is_single &= found.replace(value.to_str().unwrap_or("?")).is_none();
    }
    let authority = uri.authority().map(|authority| authority.as_str());
    let is_here = [authority, host].into_iter().flatten().all(is_loopback);
    let is_own = origin.is_none_or(|origin| {
        let rest = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
        rest.is_some() && rest == authority.or(host)
    });
    let is_same = site.is_none_or(|site| matches!(site, "same-origin" | "none"));
    if is_single && is_here && is_own && is_same { Ok(()) } else { Err(AuthError::NotLocal) }
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
    use axum::http::HeaderValue;

    use super::*;

    fn asks(uri: &str, headers: &[(HeaderName, &str)]) -> bool {
        let mut all = HeaderMap::new();
        for (name, value) in headers {
            all.append(name.clone(), HeaderValue::from_str(value).unwrap());
        }
        check(&uri.parse().unwrap(), &all).is_ok()
    }

    #[test]
    fn programs_on_this_machine_are_let_in() {
        for host in ["localhost", "LOCALHOST:7878", "127.0.0.1:7878", "127.9.9.9", "[::1]:7878", "[::1]"] {
            assert!(asks("/v1/reserve", &[(HOST, host)]), "{host}");
        }
        assert!(asks("/v1/reserve", &[]));
        assert!(asks("http://127.0.0.1:7878/v1/reserve", &[]));
        assert!(asks("/", &[(HOST, "localhost:1"), (ORIGIN, "http://localhost:1")]));
        assert!(asks("/", &[(HOST, "localhost:1"), (FETCH_SITE, "none")]));
    }

    #[test]
    fn web_pages_are_not() {
        for host in ["evil.example", "evil.example:7878", "localhost.evil.example", "192.168.0.1", "0.0.0.0:1"] {
            assert!(!asks("/v1/reserve", &[(HOST, host)]), "{host}");
            assert!(!asks(&format!("http://{host}/v1/reserve"), &[]), "{host}");
        }
        for host in [
            "[::1].evil.example",
            "[::1]evil",
            "localhost:evil.example",
            "127.0.0.1:1:evil",
            "localhost:",
            "[::1",
            "::1",
        ] {
            assert!(!asks("/v1/reserve", &[(HOST, host)]), "{host}");
        }
        let twice = [(HOST, "localhost:1"), (HOST, "localhost:1")];
        assert!(!asks("/", &twice));
        assert!(!asks("/", &[(HOST, "localhost:1"), (ORIGIN, "http://localhost:1"), (ORIGIN, "http://evil.example")]));
        assert!(!asks("http://localhost:1/", &[(HOST, "evil.example")]));
        for origin in ["http://evil.example", "null", "http://localhost:2", "file://"] {
            assert!(!asks("/", &[(HOST, "localhost:1"), (ORIGIN, origin)]), "{origin}");
        }
        for site in ["cross-site", "same-site"] {
            assert!(!asks("/", &[(HOST, "localhost:1"), (FETCH_SITE, site)]), "{site}");
        }
    }
}
