//! Plain HTTP requests to an Earmark server, for callers that need a path which [`Client`](crate::Client) does not
//! cover, such as the command line.
//!
//! ```no_run
//! use std::time::Duration;
//! use earmark_client::http::{HttpClient, HttpRequest, Method};
//! use earmark_client::{ApiKey, ClientOptions, Deadline};
//!
//! # async fn list() -> Result<(), Box<dyn std::error::Error>> {
//! let mut options = ClientOptions::of(&["https://earmark.example:7878"])?;
//! options.key = Some(ApiKey::new("emk_...")?);
//! let http = HttpClient::new(&options)?;
//! let request = HttpRequest::new(Method::GET, "/v1/admin/limits");
//! let response = http.send(&request, Deadline::after(Duration::from_secs(10))).await?;
//! println!("{}: {}", response.status, String::from_utf8_lossy(&response.body));
//! # Ok(())
//! # }
//! ```

mod pool;

use std::borrow::Cow;
use std::fmt::Display;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
pub use hyper::header::HeaderMap;
pub use hyper::{Method, StatusCode};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

pub(crate) use pool::ConnectionPool;

use crate::connect::{Preferred, connectors};
use crate::deadline::Deadline;
use crate::failure::Failure;
use crate::key::ClientKey;
use crate::options::{ClientOptions, OptionsError, Protocol};

/// The number of characters of an unexpected body that an error message shows.
const EXCERPT_CHARS: usize = 200;

/// The bytes of a name that are encoded: all but letters, digits, and punctuation that stands for itself in a path
/// segment and in a query. `%` and `/` are encoded, so that the keys `a%2Fb` and `a/b` stay different.
const ENCODED: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b':').remove(b'@');

/// Percent-encodes a name for one segment of a path or one value of a query.
///
/// ```
/// assert_eq!(earmark_client::http::encoded("team/a%2F|k=v+1").to_string(), "team%2Fa%252F%7Ck%3Dv%2B1");
/// ```
#[must_use]
pub fn encoded(name: &str) -> impl Display + '_ {
    utf8_percent_encode(name, ENCODED)
}

/// One HTTP request.
#[derive(Clone, Debug)]
pub struct HttpRequest {
    /// The method.
    pub method: Method,
    /// The path with its query, percent-encoded: `/v1/clients/billing?namespace=default`.
    pub path: String,
    /// The JSON body.
    pub body: Option<Bytes>,
    /// The key of the client that a gateway calls for.
    pub client_key: Option<ClientKey>,
}

impl HttpRequest {
    /// A request without a body.
    #[must_use]
    pub fn new(method: Method, path: impl Into<String>) -> HttpRequest {
        HttpRequest { method, path: path.into(), body: None, client_key: None }
    }

    /// The same request with a JSON body.
    #[must_use]
    pub fn json(self, body: impl Into<Bytes>) -> HttpRequest {
        HttpRequest { body: Some(body.into()), ..self }
    }

    /// The same request for the client with this key. Only a key of role `gateway` may send it.
    #[must_use]
    pub fn for_client(self, client_key: Option<ClientKey>) -> HttpRequest {
        HttpRequest { client_key, ..self }
    }
}

/// The response of a server, whatever its status.
#[derive(Clone, Debug)]
pub struct HttpResponse {
    /// The status.
    pub status: StatusCode,
    /// The headers.
    pub headers: HeaderMap,
    /// The body, at most [`ClientOptions::answer_bytes_max`] bytes.
    pub body: Bytes,
}

/// A response whose body is read while it arrives.
#[derive(Debug)]
pub struct HttpDownload {
    /// The status.
    pub status: StatusCode,
    /// The headers.
    pub headers: HeaderMap,
    server: String,
    body: hyper::body::Incoming,
}

impl HttpDownload {
    /// The next bytes of the body; `None` at its end.
    ///
    /// # Errors
    /// When the connection broke before the end, or no bytes came within `patience`.
    pub async fn next(&mut self, patience: Duration) -> Result<Option<Bytes>, Failure> {
        let no_answer = |why: String| Failure::NoAnswer { server: self.server.clone(), why };
        loop {
            match tokio::time::timeout(patience, self.body.frame()).await {
                Err(_) => return Err(no_answer(format!("no bytes within {} s", patience.as_secs()))),
                Ok(None) => return Ok(None),
                Ok(Some(Err(error))) => return Err(no_answer(error.to_string())),
                Ok(Some(Ok(frame))) => {
                    if let Ok(bytes) = frame.into_data() {
                        return Ok(Some(bytes));
                    }
                }
            }
        }
    }
}

/// The beginning of a body on one line, for an error message.
#[must_use]
pub fn excerpt(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    let excerpt: String = text.chars().take(EXCERPT_CHARS).collect();
    visible(&excerpt).into_owned()
}

/// Text from a server, made safe for a terminal. Control characters and characters that hide or reorder text become
/// visible escapes such as `\u{1b}`.
#[must_use]
pub fn visible(text: &str) -> Cow<'_, str> {
    if !text.contains(is_hidden) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\n' | '\r' | '\t' => shown.extend(character.escape_default()),
            hidden if is_hidden(hidden) => shown.extend(hidden.escape_unicode()),
            other => shown.push(other),
        }
    }
    Cow::Owned(shown)
}

/// Whether a terminal obeys this character, or shows nothing for it: C0 and C1 controls, bidirectional controls,
/// zero-width characters, line and paragraph separators, and tags.
#[must_use]
pub fn is_hidden(character: char) -> bool {
    character.is_control()
        || matches!(character,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// Sends HTTP requests to the servers of one cluster, with their key, TLS and timeouts. Connections are kept open.
pub struct HttpClient {
    servers: Vec<ConnectionPool>,
    preferred: Preferred,
    attempt_timeout: Duration,
}

impl HttpClient {
    /// A client with these options, of which `protocol`, `namespace` and `backoff` are not used. It connects with the
    /// first request.
    ///
    /// # Errors
    /// When there is no server, the root certificates cannot be read, or the key would be sent in plaintext to another
    /// machine.
    pub fn new(options: &ClientOptions) -> Result<HttpClient, OptionsError> {
        let connectors = connectors(options, Protocol::Http)?.into_iter();
        Ok(HttpClient {
            servers: connectors.map(|connector| ConnectionPool::new(connector, options)).collect(),
            preferred: Preferred::default(),
            attempt_timeout: options.attempt_timeout,
        })
    }

    /// Sends one request to the preferred server and returns the head of the response, on a connection of its own.
    ///
    /// # Errors
    /// When the server cannot be reached, or no head came within [`ClientOptions::attempt_timeout`].
    pub async fn download(&self, request: &HttpRequest) -> Result<HttpDownload, Failure> {
        let (_, server) = self.preferred.of(&self.servers)?;
        server.download_by(request, Deadline::after(self.attempt_timeout)).await
    }

    /// Sends one request and returns the response. The request is sent at most once: only when no connection could be
    /// made does the next server get it.
    ///
    /// # Errors
    /// When no server could be reached, or no response came within [`ClientOptions::attempt_timeout`] and the deadline.
    /// [`Failure::certainty`] tells whether the server may have executed the request.
    pub async fn send(&self, request: &HttpRequest, deadline: Deadline) -> Result<HttpResponse, Failure> {
        let mut unreachable = 0;
        loop {
            let (index, server) = self.preferred.of(&self.servers)?;
            let by = deadline.or_after(self.attempt_timeout);
            let response = server.send_by(request, by).await;
            let is_server_at_fault = match &response {
                Ok(response) => response.status.is_server_error(),
                Err(failure) => failure.blames_server(),
            };
            if is_server_at_fault {
                self.preferred.advance(index, self.servers.len());
            }
            match response {
                Err(Failure::Unreachable { .. }) if unreachable + 1 < self.servers.len() => unreachable += 1,
                other => return other,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_excerpt_is_short_and_on_one_line() {
        assert_eq!(excerpt(b"a\x1b[2J\nb"), "a\\u{1b}[2J\\nb");
        assert_eq!(excerpt(&[b'x'; 1_000]).len(), EXCERPT_CHARS);
    }

    /// A hostile server could clear the screen, retitle the terminal, or show a text in another order than it is.
    #[test]
    fn what_a_terminal_obeys_becomes_visible() {
        for (text, shown) in [
            ("plain é 日 🦀", "plain é 日 🦀"),
            ("\u{1b}]0;owned\u{7}", "\\u{1b}]0;owned\\u{7}"),
            ("\u{9b}2J\u{7f}", "\\u{9b}2J\\u{7f}"),
            ("a\r\n\tb", "a\\r\\n\\tb"),
            ("\u{202e}cod\u{2066}x\u{2069}", "\\u{202e}cod\\u{2066}x\\u{2069}"),
            ("\u{200e}\u{200f}\u{61c}\u{2028}\u{feff}", "\\u{200e}\\u{200f}\\u{61c}\\u{2028}\\u{feff}"),
        ] {
            assert_eq!(visible(text), shown);
        }
    }
}
