//! The HTTP client of the commands: one connection, one request at a time.

use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::str::FromStr;
use std::time::Duration;

use clap::Args;
use earmark_client::{AddressError, ServerAddress};
use hyper::body::{Body, Incoming};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::credentials::Credentials;
use crate::failure::Failure;
use crate::output;
use crate::secure;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Longer than a server takes to say that it gave up.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(40);
/// More than a list of as many limits as a server can hold.
const ANSWER_BYTES_MAX: usize = 1 << 30;
/// How much of an answer that makes no sense is shown.
const EXCERPT_CHARS: usize = 200;

/// What every command that talks to a server takes.
#[derive(Args, Clone, Debug)]
pub(crate) struct ClientArgs {
    /// The address of the server
    #[arg(long, value_name = "URL", env = "EARMARK_SERVER", default_value = "http://127.0.0.1:7878")]
    pub(crate) server: ServerUrl,
    /// Send the key to another machine by http://; only where something in between encrypts, such as a tunnel
    #[arg(long)]
    pub(crate) insecure_plaintext: bool,
    /// Print the whole answer as one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// Where a server is, and what it is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServerUrl {
    address: ServerAddress,
    /// What is sent besides what the environment has.
    credentials: Option<Credentials>,
    /// Whether credentials may be sent where others can read them.
    is_plaintext_allowed: bool,
}

impl FromStr for ServerUrl {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<ServerUrl, AddressError> {
        Ok(ServerUrl { address: text.parse()?, credentials: None, is_plaintext_allowed: false })
    }
}

impl fmt::Display for ServerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.address.fmt(f)
    }
}

impl ClientArgs {
    /// The server, with what may be sent there.
    pub(crate) fn url(&self) -> ServerUrl {
        self.server.clone().in_clear(self.insecure_plaintext)
    }
}

impl ServerUrl {
    /// Where it is.
    pub(crate) fn address(&self) -> &ServerAddress {
        &self.address
    }

    /// The same server, called with these credentials.
    pub(crate) fn with(self, credentials: Credentials) -> ServerUrl {
        ServerUrl { credentials: Some(credentials), ..self }
    }

    /// The same server, to which credentials may be sent in clear, or not.
    pub(crate) fn in_clear(self, is_plaintext_allowed: bool) -> ServerUrl {
        ServerUrl { is_plaintext_allowed, ..self }
    }

    /// What is sent to it: its own credentials, else those of the environment. None are sent where others could read
    /// them, unless somebody said that they may be.
    pub(crate) fn credentials(&self) -> Result<Option<Credentials>, Failure> {
        let credentials = match &self.credentials {
            Some(credentials) => Some(credentials.clone()),
            None => Credentials::of_environment()?,
        };
        if credentials.is_some() && self.address.is_exposed() && !self.is_plaintext_allowed {
            return Err(Failure::Usage(format!(
                "server: found {self}, where the key could be read on the way; allowed is https://, or say \
                 --insecure-plaintext if something in between encrypts"
            )));
        }
        Ok(credentials)
    }

    /// A TCP connection to the server.
    pub(crate) async fn connect(&self) -> Result<TcpStream, Failure> {
        let connected =
            timeout(CONNECT_TIMEOUT, TcpStream::connect((self.address.host(), self.address.port()))).await;
        let stream = match connected {
            Ok(Ok(stream)) => stream,
            Ok(Err(source)) => return Err(self.unreachable(source)),
            Err(_) => {
                let what = format!("no connection within {} s", CONNECT_TIMEOUT.as_secs());
                return Err(self.unreachable(io::Error::new(io::ErrorKind::TimedOut, what)));
            }
        };
        stream.set_nodelay(true).map_err(|source| self.unreachable(source))?;
        Ok(stream)
    }

    fn unreachable(&self, source: io::Error) -> Failure {
        let hint = match source.kind() {
            io::ErrorKind::ConnectionRefused => format!(
                "; is a server running there? Start one with: earmark serve --listen 127.0.0.1:{}",
                self.address.port()
            ),
            _ => String::new(),
        };
        Failure::Unreachable { url: self.to_string(), source, hint }
    }
}

/// A connection to a server.
pub(crate) struct Client {
    url: ServerUrl,
    credentials: Option<Credentials>,
    sender: SendRequest<String>,
}

impl Client {
    /// Connects to the server at `url`. The connection is driven by a task of the current runtime.
    pub(crate) async fn connect(url: &ServerUrl) -> Result<Client, Failure> {
        let credentials = url.credentials()?;
        let stream = url.connect().await?;
        let failed = |error: hyper::Error| no_answer(url, error);
        // What goes wrong with the connection is seen by whoever waits for an answer.
        let sender = if url.address.is_tls() {
            let shaken = timeout(CONNECT_TIMEOUT, secure::shake_hands(url.address.host(), stream)).await;
            let stream = shaken.map_err(|_| no_answer(url, "TLS was not agreed on in time"))??;
            let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(failed)?;
            tokio::spawn(connection);
            sender
        } else {
            let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(failed)?;
            tokio::spawn(connection);
            sender
        };
        Ok(Client { url: url.clone(), credentials, sender })
    }

    /// Posts `body` and reads the answer.
    pub(crate) async fn post<A: DeserializeOwned>(
        &mut self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<A, Failure> {
        self.send(Method::POST, path, body).await
    }

    /// Sends one request with a body and reads its answer.
    pub(crate) async fn send<A: DeserializeOwned>(
        &mut self,
        method: Method,
        path: &str,
        body: &impl Serialize,
    ) -> Result<A, Failure> {
        let body = serde_json::to_string(body)
            .map_err(|error| Failure::System { what: "writing the request", source: error.into() })?;
        self.call(method, path, Some(body)).await
    }

    /// Posts `body` and reads the answer to a write: a success, or a refusal that is an object itself.
    pub(crate) async fn post_any(&mut self, path: &str, body: &impl Serialize) -> Result<Value, Failure> {
        let body = serde_json::to_string(body)
            .map_err(|error| Failure::System { what: "writing the request", source: error.into() })?;
        let (status, bytes) = self.in_time(Method::POST, path, Some(body)).await?;
        match serde_json::from_slice::<Value>(&bytes) {
            Ok(answer) if answer["success"].is_object() || answer["error"].is_object() => Ok(answer),
            _ => Err(self.refusal(status, &bytes)),
        }
    }

    /// Sends one request and reads its answer, which must be a success.
    pub(crate) async fn call<A: DeserializeOwned>(
        &mut self,
        method: Method,
        path: &str,
        body: Option<String>,
    ) -> Result<A, Failure> {
        let (status, bytes) = self.in_time(method, path, body).await?;
        if !(200..300).contains(&status) {
            return Err(self.refusal(status, &bytes));
        }
        serde_json::from_slice(&bytes).map_err(|error| self.strange(&format!("{error}: {}", excerpt(&bytes))))
    }

    async fn in_time(
        &mut self,
        method: Method,
        path: &str,
        body: Option<String>,
    ) -> Result<(u16, Vec<u8>), Failure> {
        match timeout(ANSWER_TIMEOUT, self.exchange(method, path, body)).await {
            Ok(exchanged) => exchanged,
            Err(_) => {
                let what = format!("nothing came within {} s", ANSWER_TIMEOUT.as_secs());
                Err(no_answer(&self.url, what))
            }
        }
    }

    async fn exchange(
        &mut self,
        method: Method,
        path: &str,
        body: Option<String>,
    ) -> Result<(u16, Vec<u8>), Failure> {
        let mut request =
            Request::builder().method(method).uri(path).header(HOST, self.url.address.authority());
        if body.is_some() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        if let Some(credentials) = &self.credentials {
            request = request.header(AUTHORIZATION, credentials.header());
        }
        let request = request
            .body(body.unwrap_or_default())
            .map_err(|error| Failure::Usage(format!("{path}: {error}")))?;
        self.sender.ready().await.map_err(|error| no_answer(&self.url, error))?;
        let answer = self.sender.send_request(request).await.map_err(|error| match error.is_parse() {
            true => self.strange(&format!("{error}; where TLS is spoken, its URL begins with https://")),
            false => no_answer(&self.url, error),
        })?;
        let status = answer.status().as_u16();
        let bytes = self.collect(answer.into_body()).await?;
        Ok((status, bytes))
    }

    async fn collect(&self, mut body: Incoming) -> Result<Vec<u8>, Failure> {
        let mut bytes = Vec::new();
        while let Some(frame) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
            let frame = frame.map_err(|error| no_answer(&self.url, error))?;
            if let Some(data) = frame.data_ref() {
                bytes.extend_from_slice(data);
            }
            if bytes.len() > ANSWER_BYTES_MAX {
                return Err(self.strange("it is larger than any answer can be"));
            }
        }
        Ok(bytes)
    }

    fn refusal(&self, status: u16, bytes: &[u8]) -> Failure {
        #[derive(serde::Deserialize)]
        struct Refusal {
            error: String,
            #[serde(default)]
            message: String,
        }
        match serde_json::from_slice::<Refusal>(bytes) {
            Ok(Refusal { error, message }) => {
                let message = if message.is_empty() { "it gave no reason" } else { &message };
                let message = output::visible(message);
                Failure::Refused { status, error, message }
            }
            Err(_) => self.strange(&format!("status {status}: {}", excerpt(bytes))),
        }
    }

    fn strange(&self, what: &str) -> Failure {
        Failure::StrangeAnswer { url: self.url.to_string(), what: what.to_owned() }
    }
}

fn no_answer(url: &ServerUrl, what: impl fmt::Display) -> Failure {
    Failure::NoAnswer { url: url.to_string(), what: what.to_string() }
}

/// The beginning of `bytes`, for a message.
pub(crate) fn excerpt(bytes: &[u8]) -> String {
    output::visible(&String::from_utf8_lossy(bytes)).chars().take(EXCERPT_CHARS).collect()
}

/// Runs what a client command does, on a runtime of its own.
pub(crate) fn block_on<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|source| Failure::System { what: "starting the runtime", source })?.block_on(work)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_not_sent_in_clear_to_another_machine_unless_that_is_said() {
        let url = |text: &str| text.parse::<ServerUrl>().unwrap().with(Credentials::new("emk_a_b").unwrap());
        for text in ["http://127.0.0.1:1", "http://localhost:1", "https://10.0.0.1:1"] {
            assert!(url(text).credentials().unwrap().is_some(), "{text}");
        }
        let refused = url("http://10.0.0.1:1").credentials().unwrap_err().to_string();
        assert!(refused.contains("--insecure-plaintext"), "{refused}");
        assert!(!refused.contains("emk_"), "{refused}");
        assert!(url("http://10.0.0.1:1").in_clear(true).credentials().unwrap().is_some());
    }

    #[test]
    fn an_excerpt_is_short_and_on_one_line() {
        assert_eq!(excerpt(b"a\x1b[2J\nb"), "a [2J b");
        assert_eq!(excerpt(&[b'x'; 1_000]).len(), EXCERPT_CHARS);
    }
}
