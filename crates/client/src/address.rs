//! The address of a server.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use hyper::Uri;

/// The address of a server: `http://host:port`, or `https://host:port` for TLS.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ServerAddress {
    authority: String,
    host: String,
    port: u16,
    is_tls: bool,
}

/// Why a text is not the address of a server.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("server: found {found:?}, allowed is {allowed}")]
pub struct AddressError {
    found: String,
    allowed: &'static str,
}

const PLAIN: &str =
    "http://HOST:PORT or https://HOST:PORT, such as http://127.0.0.1:7878, without a user, a path or a query";
const PORT: &str = "http://HOST:PORT or https://HOST:PORT, with a port of at most 65535";

impl FromStr for ServerAddress {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<ServerAddress, AddressError> {
        let refuse = |allowed| AddressError { found: without_user(text), allowed };
        let uri: Uri = text.parse().map_err(|_| refuse(PLAIN))?;
        let is_tls = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(refuse(PLAIN)),
        };
        let authority = uri.authority().ok_or_else(|| refuse(PLAIN))?;
        let has_more = uri.path_and_query().is_some_and(|rest| rest.as_str() != "/");
        if has_more || authority.as_str().contains('@') || authority.host().is_empty() {
            return Err(refuse(PLAIN));
        }
        // An invalid port must not count as a missing one, which has a default.
        let behind_host = authority.as_str().strip_prefix(authority.host()).unwrap_or_default();
        let port = match behind_host.strip_prefix(':').map(str::parse) {
            None if is_tls => 443,
            None => 80,
            Some(port) => port.map_err(|_| refuse(PORT))?,
        };
        // The resolver takes an IPv6 address without brackets.
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        Ok(ServerAddress { authority: authority.to_string(), host, port, is_tls })
    }
}

/// The text without the user and the password, which must not end up in logs.
fn without_user(text: &str) -> String {
    let Some((user, rest)) = text.rsplit_once('@') else { return text.to_owned() };
    let scheme = user.split_once("://").map_or(String::new(), |(scheme, _)| format!("{scheme}://"));
    format!("{scheme}***@{rest}")
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_tls { "https" } else { "http" };
        write!(f, "{scheme}://{}", self.authority)
    }
}

impl ServerAddress {
    /// The value of the header `host`.
    pub fn authority(&self) -> &str {
        &self.authority
    }

    /// The host name or IP address.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The port.
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// Whether the server has TLS.
    pub const fn is_tls(&self) -> bool {
        self.is_tls
    }

    /// Whether a key would be sent unencrypted to another machine.
    pub fn is_exposed(&self) -> bool {
        let is_local = match self.host.parse::<IpAddr>() {
            Ok(address) => address.to_canonical().is_loopback(),
            // RFC 6761 reserves this name for the loopback interface.
            Err(_) => self.host.eq_ignore_ascii_case("localhost"),
        };
        !self.is_tls && !is_local
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_gives_host_port_and_scheme() {
        for (text, authority, host, port, is_tls) in [
            ("http://127.0.0.1:7878", "127.0.0.1:7878", "127.0.0.1", 7878, false),
            ("http://127.0.0.1:7878/", "127.0.0.1:7878", "127.0.0.1", 7878, false),
            ("http://[::1]:80", "[::1]:80", "::1", 80, false),
            ("https://earmark", "earmark", "earmark", 443, true),
        ] {
            let (authority, host) = (authority.to_owned(), host.to_owned());
            assert_eq!(text.parse(), Ok(ServerAddress { authority, host, port, is_tls }), "{text}");
        }
    }

    #[test]
    fn a_key_is_exposed_in_clear_beyond_this_machine() {
        for (text, is_exposed) in [
            ("http://127.0.0.1:7878", false),
            ("http://127.9.9.9:7878", false),
            ("http://[::1]:7878", false),
            ("http://[::ffff:127.0.0.1]:7878", false),
            ("http://localhost:7878", false),
            ("http://LOCALHOST:7878", false),
            ("https://10.0.0.1:7878", false),
            ("https://earmark", false),
            ("http://10.0.0.1:7878", true),
            ("http://0.0.0.0:7878", true),
            ("http://[::ffff:10.0.0.1]:7878", true),
            ("http://earmark", true),
            ("http://localhost.example", true),
            ("http://127.0.0.1.example", true),
        ] {
            assert_eq!(text.parse::<ServerAddress>().unwrap().is_exposed(), is_exposed, "{text}");
        }
    }

    #[test]
    fn a_malformed_address_is_refused_with_the_allowed_form() {
        for text in [
            "",
            "7878",
            "localhost:7878",
            "ftp://a:1",
            "http://",
            "http://a:99999",
            "http://a:1/path",
            "http://a:1?query",
            "http://user@a:1",
        ] {
            let message = text.parse::<ServerAddress>().unwrap_err().to_string();
            assert!(message.contains("allowed is http://HOST:PORT"), "{text}: {message}");
        }
    }

    /// The message about an address with a user repeated its password.
    #[test]
    fn a_password_in_an_address_is_not_repeated() {
        for (text, shown) in [
            ("http://user:hunter2@a:1", "http://***@a:1"),
            ("http://user:hunter2/@a:1/path", "http://***@a:1/path"),
            ("user:hunter2@a:1", "***@a:1"),
            ("http://:hunter2@hunter2@a", "http://***@a"),
        ] {
            let error = text.parse::<ServerAddress>().unwrap_err();
            assert!(error.to_string().contains(&format!("found {shown:?}")), "{error}");
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{error:?}");
        }
    }
}
