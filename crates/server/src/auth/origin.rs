//! Protects a server without keys from web pages in a browser on its machine (cross-origin requests, DNS rebinding).

use axum::http::header::{HOST, ORIGIN};
use axum::http::{HeaderMap, HeaderName, Uri};

use crate::caller::AuthError;

const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Rejects requests that a browser sends for a foreign page. Such a page has a foreign origin; after DNS rebinding the
/// host name is still the foreign one.
pub(super) fn check(uri: &Uri, headers: &HeaderMap) -> Result<(), AuthError> {
    let text = |name: &HeaderName| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
    let host = uri.authority().map(|authority| authority.as_str()).or(text(&HOST));
    let is_here = host.is_none_or(is_loopback);
    let is_own = text(&ORIGIN).is_none_or(|origin| {
        let rest = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
        rest.is_some() && rest == host
    });
    let is_same = text(&FETCH_SITE).is_none_or(|site| matches!(site, "same-origin" | "none"));
    if is_here && is_own && is_same { Ok(()) } else { Err(AuthError::NotLocal) }
}

/// Whether a host, with or without a port, is a loopback name or address.
fn is_loopback(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    let address = name.parse::<std::net::IpAddr>();
    name.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn asks(uri: &str, headers: &[(HeaderName, &str)]) -> bool {
        let headers = headers.iter().map(|(name, value)| (name.clone(), HeaderValue::from_str(value).unwrap()));
        check(&uri.parse().unwrap(), &headers.collect()).is_ok()
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
        for origin in ["http://evil.example", "null", "http://localhost:2", "file://"] {
            assert!(!asks("/", &[(HOST, "localhost:1"), (ORIGIN, origin)]), "{origin}");
        }
        for site in ["cross-site", "same-site"] {
            assert!(!asks("/", &[(HOST, "localhost:1"), (FETCH_SITE, site)]), "{site}");
        }
    }
}
