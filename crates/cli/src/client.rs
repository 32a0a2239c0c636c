//! The connection of a command to its server: address, key, certificates, and one JSON request at a time.

use std::fmt;
use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::pin::{Pin, pin};
use std::str::FromStr;
use std::time::Duration;

use clap::Args;
pub(crate) use earmark_client::http::excerpt;
use earmark_client::http::{HttpClient, HttpDownload, HttpRequest, HttpResponse, Method};
use earmark_client::{AddressError, ClientCertificate, ClientOptions, Deadline, OptionsError, Roots, ServerAddress};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::credentials::Credentials;
use crate::failure::Failure;
use crate::output;

const CA_FILE: &str = "EARMARK_CA_FILE";
/// The variables that name the client certificate and its private key.
const CERT_FILE: &str = "EARMARK_CERT_FILE";
const CERT_KEY_FILE: &str = "EARMARK_CERT_KEY_FILE";

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Seconds to wait for a response: longer than a server takes to report its own timeout.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(40);
/// Bytes of one response: 64 MiB, more than the largest page of any list.
const ANSWER_BYTES_MAX: usize = 1 << 26;
/// Minutes without a byte after which a download fails. A server first writes a large backup to its disk.
const DOWNLOAD_PATIENCE: Duration = Duration::from_secs(10 * 60);
/// Bytes of a refused download that are read for its message.
const EXCERPT_BYTES: usize = 64 << 10;

/// The options of every command that talks to a server.
#[derive(Args, Clone, Debug)]
pub(crate) struct ClientArgs {
    /// The address of the server
    #[arg(long, value_name = "URL", env = "EARMARK_SERVER", default_value = "http://127.0.0.1:7878")]
    pub(crate) server: ServerUrl,
    /// Send the key to another machine over http://; only where a tunnel or a proxy encrypts the connection
    #[arg(long)]
    pub(crate) insecure_plaintext: bool,
    /// Print the whole response as one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// The address of a server, and the credentials to send to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServerUrl {
    address: ServerAddress,
    /// Credentials that replace those of the environment.
    credentials: Option<Credentials>,
    /// Whether credentials may be sent unencrypted to another machine.
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
    /// The server, with the permission of `--insecure-plaintext`.
    pub(crate) fn url(&self) -> ServerUrl {
        self.server.clone().allow_plaintext(self.insecure_plaintext)
    }
}

impl ServerUrl {
    /// The address.
    pub(crate) fn address(&self) -> &ServerAddress {
        &self.address
    }

    /// The same server, called with these credentials.
    pub(crate) fn with(self, credentials: Credentials) -> ServerUrl {
        ServerUrl { credentials: Some(credentials), ..self }
    }

    /// The same server; `is_plaintext_allowed` permits credentials over an unencrypted connection.
    pub(crate) fn allow_plaintext(self, is_plaintext_allowed: bool) -> ServerUrl {
        ServerUrl { is_plaintext_allowed, ..self }
    }

    /// The credentials to send: those of this server, else those of the environment. Fails when others could read them
    /// on the way.
    pub(crate) fn credentials(&self) -> Result<Option<Credentials>, Failure> {
        let credentials = match &self.credentials {
            Some(credentials) => Some(credentials.clone()),
            None => Credentials::of_environment()?,
        };
        if credentials.is_some() && self.address.is_exposed() && !self.is_plaintext_allowed {
            return Err(Failure::Usage(format!(
                "server: {self} is unencrypted and would expose the key; use https://, or --insecure-plaintext if a \
                 tunnel encrypts the connection"
            )));
        }
        Ok(credentials)
    }

    /// The options of the Rust client for this server. `EARMARK_CA_FILE` replaces the root certificates of the system;
    /// `EARMARK_CERT_FILE` and `EARMARK_CERT_KEY_FILE` name a client certificate.
    pub(crate) fn options(&self) -> Result<ClientOptions, Failure> {
        let mut options = ClientOptions::of(&[self.to_string()]).map_err(usage)?;
        options.key = self.credentials()?.as_ref().map(Credentials::api_key).transpose()?;
        options.is_plaintext_allowed = true;
        if let Some(path) = file_of(CA_FILE) {
            options.roots = Roots::PemFile(path);
        }
        options.certificate = match (file_of(CERT_FILE), file_of(CERT_KEY_FILE)) {
            (Some(cert), Some(key)) => Some(ClientCertificate { cert, key }),
            (None, None) => None,
            _ => return Err(Failure::Usage(format!("{CERT_FILE} and {CERT_KEY_FILE}: found one, set both or none"))),
        };
        options.connect_timeout = CONNECT_TIMEOUT;
        Ok(options)
    }

    /// A TCP connection to the server, for the load generator.
    pub(crate) async fn connect(&self) -> Result<TcpStream, Failure> {
        let connected = timeout(CONNECT_TIMEOUT, TcpStream::connect((self.address.host(), self.address.port()))).await;
        let stream = connected.unwrap_or_else(|_| {
            let what = format!("no connection within {} s", CONNECT_TIMEOUT.as_secs());
            Err(io::Error::new(io::ErrorKind::TimedOut, what))
        });
        let unreachable = |source: io::Error| self.unreachable(source.to_string(), source.kind());
        let stream = stream.map_err(unreachable)?;
        stream.set_nodelay(true).map_err(unreachable)?;
        Ok(stream)
    }

    fn unreachable(&self, why: String, kind: io::ErrorKind) -> Failure {
        let hint = match kind {
            io::ErrorKind::ConnectionRefused => format!(
                "; is a server running there? Start one with: earmark serve --listen 127.0.0.1:{}",
                self.address.port()
            ),
            io::ErrorKind::InvalidData if self.address.is_tls() => {
                format!("; {CA_FILE} names a PEM file with the certificate of the server's authority")
            }
            _ => String::new(),
        };
        Failure::Unreachable { url: self.to_string(), why, hint }
    }

    fn failure(&self, failure: earmark_client::Failure) -> Failure {
        use earmark_client::Failure as Client;
        let url = self.to_string();
        match failure {
            Client::Unreachable { why, kind, .. } => self.unreachable(why, kind),
            Client::NoAnswer { why, .. } => Failure::NoAnswer { url, what: why },
            Client::Unexpected { what, .. } => Failure::UnexpectedAnswer { url, what },
            other => Failure::Usage(other.to_string()),
        }
    }
}

/// The file that a variable names.
fn file_of(variable: &str) -> Option<PathBuf> {
    std::env::var_os(variable).filter(|path| !path.is_empty()).map(PathBuf::from)
}

fn usage(error: OptionsError) -> Failure {
    match error {
        OptionsError::Certificate { why } => Failure::Usage(format!("{CERT_FILE}, {CERT_KEY_FILE}: {why}")),
        OptionsError::Roots { why } => Failure::Usage(format!("{CA_FILE}: {why}")),
        other => Failure::Usage(other.to_string()),
    }
}

/// Sends JSON requests to one server.
pub(crate) struct Client {
    url: ServerUrl,
    http: HttpClient,
}

impl Client {
    /// A client of the server at `url`. It connects with the first request.
    pub(crate) fn new(url: &ServerUrl) -> Result<Client, Failure> {
        let mut options = url.options()?;
        options.attempt_timeout = ANSWER_TIMEOUT;
        options.answer_bytes_max = ANSWER_BYTES_MAX;
        Ok(Client { url: url.clone(), http: HttpClient::new(&options).map_err(usage)? })
    }

    /// Sends a request with a body and returns the response.
    pub(crate) async fn send<A: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: &impl Serialize,
    ) -> Result<A, Failure> {
        self.call(method, path, Some(json(body)?)).await
    }

    /// Posts `body` and returns the response to a write: a success, or a refusal that is an object itself.
    pub(crate) async fn post_any(&self, path: &str, body: &impl Serialize) -> Result<Value, Failure> {
        let response = self.exchange(Method::POST, path, Some(json(body)?)).await?;
        match serde_json::from_slice::<Value>(&response.body) {
            Ok(answer) if answer["success"].is_object() || answer["error"].is_object() => Ok(answer),
            _ => Err(self.refusal(&response)),
        }
    }

    /// Sends a request and returns the response, which must be a success.
    pub(crate) async fn call<A: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<String>,
    ) -> Result<A, Failure> {
        let response = self.exchange(method, path, body).await?;
        if !response.status.is_success() {
            return Err(self.refusal(&response));
        }
        serde_json::from_slice(&response.body)
            .map_err(|error| self.unexpected(format!("{error}: {}", excerpt(&response.body))))
    }

    /// Requests a file and hands its bytes to `take` while they arrive. Returns the query of the next page, if there is one.
    pub(crate) async fn download(
        &self,
        path: &str,
        mut take: impl FnMut(&[u8]) -> Result<(), Failure>,
    ) -> Result<Option<String>, Failure> {
        let failed = |failure| self.url.failure(failure);
        let mut download = self.http.download(&HttpRequest::new(Method::GET, path)).await.map_err(failed)?;
        let mut refused = Vec::new();
        while let Some(piece) = download.next(DOWNLOAD_PATIENCE).await.map_err(failed)? {
            match download.status.is_success() {
                true => take(&piece)?,
                false if refused.len() < EXCERPT_BYTES => refused.extend_from_slice(&piece),
                false => break,
            }
        }
        if download.status.is_success() {
            let link = download.headers.get("link").and_then(|link| link.to_str().ok());
            let next = link.and_then(|link| link.strip_prefix('<')?.strip_suffix(">; rel=\"next\""));
            return Ok(next.map(str::to_owned));
        }
        let HttpDownload { status, headers, .. } = download;
        Err(self.refusal(&HttpResponse { status, headers, body: refused.into() }))
    }

    async fn exchange(&self, method: Method, path: &str, body: Option<String>) -> Result<HttpResponse, Failure> {
        let request = HttpRequest { method, path: path.to_owned(), body: body.map(Into::into), client_key: None };
        let response = self.http.send(&request, Deadline::after(ANSWER_TIMEOUT)).await;
        response.map_err(|failure| self.url.failure(failure))
    }

    fn refusal(&self, response: &HttpResponse) -> Failure {
        #[derive(serde::Deserialize)]
        struct Refusal {
            error: String,
            #[serde(default)]
            message: String,
        }
        let status = response.status.as_u16();
        match serde_json::from_slice::<Refusal>(&response.body) {
            Ok(Refusal { error, message }) => {
                let message = if message.is_empty() { "it gave no reason" } else { &message };
                let [error, message] = [&error, message].map(|text| output::visible(text).into_owned());
                Failure::Refused { status, error, message }
            }
            Err(_) => self.unexpected(format!("status {status}: {}", excerpt(&response.body))),
        }
    }

    /// An answer that a server of this version does not give.
    pub(crate) fn unexpected(&self, what: String) -> Failure {
        Failure::UnexpectedAnswer { url: self.url.to_string(), what }
    }
}

fn json(body: &impl Serialize) -> Result<String, Failure> {
    serde_json::to_string(body).map_err(|error| Failure::System { what: "writing the request", source: error.into() })
}

/// Runs a client command on a runtime of its own.
pub(crate) fn block_on<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let mut result = None;
    run(pin!(async { result = Some(work.await) }))?;
    let Some(result) = result else { unreachable!("the work has ended") };
    result
}

/// The part of [`block_on`] that is the same for all futures. The compiler would copy the loop of the runtime for each type
/// of future, and these copies were 7% of the program's code.
fn run(work: Pin<&mut dyn Future<Output = ()>>) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|source| Failure::System { what: "starting the runtime", source })?.block_on(work);
    Ok(())
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
        assert!(url("http://10.0.0.1:1").allow_plaintext(true).credentials().unwrap().is_some());
    }
}
