//! A server that is open to all on its machine must not be open to web pages that a browser there shows.

use axum::http::header::{HOST, ORIGIN};
use axum::http::{HeaderMap, HeaderName, Uri};

use crate::caller::Refused;

const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Turns away what a browser sends for a page of somebody else. Such a page has another origin; and one whose name was
/// made to mean this machine still calls it by that name.
pub(super) fn check(uri: &Uri, headers: &HeaderMap) -> Result<(), Refused> {
    let text = |name: &HeaderName| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
    let host = uri.authority().map(|authority| authority.as_str()).or(text(&HOST));
    let is_here = host.is_none_or(is_loopback);
    let is_own = text(&ORIGIN).is_none_or(|origin| {
        let rest = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
        rest.is_some() && rest == host
    });
    let is_same = text(&FETCH_SITE).is_none_or(|site| matches!(site, "same-origin" | "none"));
    if is_here && is_own && is_same { Ok(()) } else { Err(Refused::NotFromHere) }
}

/// Whether a host, with or without a port, is this machine.
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
        let headers =
            headers.iter().map(|(name, value)| (name.clone(), HeaderValue::from_str(value).unwrap()));
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
        for host in
            ["evil.example", "evil.example:7878", "localhost.evil.example", "192.168.0.1", "0.0.0.0:1"]
        {
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
