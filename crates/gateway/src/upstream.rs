//! The connections to an upstream: pools, TLS, HTTP/1.1 and HTTP/2.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::header::{AUTHORIZATION, HeaderValue};
use hyper::{Request, Response, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::circuit::Circuit;
use crate::config::{Secret, Upstream};

/// Idle connections to one host that are kept.
const IDLE_MAX: usize = 256;
/// How long an idle connection is kept. Providers close theirs after a minute or more.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// The largest head of an answer, in bytes. hyper also allows at most 100 headers.
const HEAD_BYTES_MAX: usize = 64 << 10;
/// Flow-control window of one HTTP/2 answer, in bytes: what a slow client may leave unread.
const WINDOW_BYTES: u32 = 64 << 10;

/// Why an upstream cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("upstream {upstream}: {what}")]
pub struct UpstreamError {
    upstream: String,
    what: String,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoAnswer {
    /// No connection could be made, so nothing was sent.
    #[error("cannot connect: {0}")]
    NotConnected(String),
    /// The connection broke after something was sent.
    #[error("{0}")]
    Broken(String),
    /// The head of the answer did not come in time.
    #[error("no answer within {} s", .0.as_secs())]
    TimedOut(Duration),
}

/// An upstream with its connections.
pub(crate) struct Connections {
    pub(crate) config: Arc<Upstream>,
    pub(crate) circuit: Circuit,
    /// One permit for each answer that is read for a client that has gone.
    pub(crate) drains: Arc<Semaphore>,
    pub(crate) secret: Option<Secret>,
    key: Option<HeaderValue>,
    client: Client<Connector, RequestBody>,
}

/// The body of a request in pieces, with its length.
pub(crate) struct RequestBody(VecDeque<Bytes>);

impl RequestBody {
    pub(crate) fn new(pieces: Vec<Bytes>) -> RequestBody {
        RequestBody(pieces.into())
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.pop_front().map(Frame::data).map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.iter().map(|piece| piece.len() as u64).sum())
    }
}

impl Connections {
    pub(crate) fn new(config: Arc<Upstream>, secret: Option<Secret>) -> Result<Connections, UpstreamError> {
        let failed = |what: String| UpstreamError { upstream: config.name.clone(), what };
        let prefix = if config.key_header == AUTHORIZATION { "Bearer " } else { "" };
        let key =
            secret.as_ref().map(|secret| secret.header(prefix).ok_or_else(|| failed("the key is no header".into())));
        let tls = match config.base_url.starts_with("https:") {
            true => Some(tls(&config).map_err(failed)?),
            false => None,
        };
        let connector = Connector { tls, timeout: config.timeouts.connect };
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_TIMEOUT)
            .pool_max_idle_per_host(IDLE_MAX)
            .http1_max_buf_size(HEAD_BYTES_MAX)
            .http2_initial_stream_window_size(WINDOW_BYTES)
            .http2_max_header_list_size(HEAD_BYTES_MAX as u32)
            .build(connector);
        Ok(Connections {
            circuit: Circuit::new(config.circuit_failures, config.circuit_pause),
            drains: Arc::new(Semaphore::new(config.drain_max)),
            key: key.transpose()?,
            secret,
            client,
            config,
        })
    }

    /// Sends a request with the upstream's key, and returns the head of the answer.
    pub(crate) async fn send(&self, mut request: Request<RequestBody>) -> Result<Response<Incoming>, NoAnswer> {
        if let Some(key) = &self.key {
            request.headers_mut().insert(self.config.key_header.clone(), key.clone());
        }
        let first_byte = self.config.timeouts.first_byte;
        match timeout(first_byte, self.client.request(request)).await {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(error)) if error.is_connect() => Err(NoAnswer::NotConnected(chain(&error))),
            Ok(Err(error)) => Err(NoAnswer::Broken(chain(&error))),
            Err(_) => Err(NoAnswer::TimedOut(first_byte)),
        }
    }
}

/// An error with its sources.
pub(crate) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(next) = source {
        let next_text = next.to_string();
        if !text.ends_with(&next_text) {
            text = format!("{text}: {next_text}");
        }
        source = next.source();
    }
    text
}

fn tls(config: &Upstream) -> Result<TlsConnector, String> {
    let mut roots = RootCertStore::empty();
    let found = match &config.ca_file {
        Some(path) => CertificateDer::pem_file_iter(path)
            .and_then(Iterator::collect::<Result<Vec<_>, _>>)
            .map_err(|error| format!("ca_file: cannot read {}: {error}", path.display()))?,
        None => rustls_native_certs::load_native_certs().certs,
    };
    roots.add_parsable_certificates(found);
    if roots.is_empty() {
        return Err("there are no root certificates; set ca_file, or install those of the system".into());
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions().map_err(|error| error.to_string())?;
    let mut tls = builder.with_root_certificates(roots).with_no_client_auth();
    tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(TlsConnector::from(Arc::new(tls)))
}

/// Connects to the host of a URL.
#[derive(Clone)]
struct Connector {
    tls: Option<TlsConnector>,
    timeout: Duration,
}

impl Connector {
    async fn connect(self, uri: Uri) -> io::Result<TokioIo<Stream>> {
        let limit = self.timeout;
        let late = |_| io::Error::new(io::ErrorKind::TimedOut, format!("no connection within {} s", limit.as_secs()));
        timeout(limit, self.open(uri)).await.map_err(late)?.map(TokioIo::new)
    }

    async fn open(self, uri: Uri) -> io::Result<Stream> {
        let host = uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']').to_owned();
        let port = uri.port_u16().unwrap_or(if self.tls.is_some() { 443 } else { 80 });
        let tcp = TcpStream::connect((host.as_str(), port)).await?;
        tcp.set_nodelay(true)?;
        let Some(tls) = self.tls else { return Ok(Stream::Plain(tcp)) };
        let name = ServerName::try_from(host).map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        Ok(Stream::Tls(Box::new(tls.connect(name, tcp).await?)))
    }
}

impl tower_service::Service<Uri> for Connector {
    type Response = TokioIo<Stream>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<TokioIo<Stream>>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        Box::pin(self.clone().connect(uri))
    }
}

/// A connection: TCP, or TLS over it.
enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Connection for Stream {
    fn connected(&self) -> Connected {
        match self {
            Stream::Tls(tls) if tls.get_ref().1.alpn_protocol() == Some(b"h2") => Connected::new().negotiated_h2(),
            _ => Connected::new(),
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut *self {
            Stream::Plain(tcp) => Pin::new(tcp).poll_read(context, buffer),
            Stream::Tls(tls) => Pin::new(tls).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match &mut *self {
            Stream::Plain(tcp) => Pin::new(tcp).poll_write(context, bytes),
            Stream::Tls(tls) => Pin::new(tls).poll_write(context, bytes),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut *self {
            Stream::Plain(tcp) => Pin::new(tcp).poll_write_vectored(context, pieces),
            Stream::Tls(tls) => Pin::new(tls).poll_write_vectored(context, pieces),
        }
    }

    /// Without this hyper copies each request into a buffer that it keeps for as long as the connection.
    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Stream::Plain(tcp) => Pin::new(tcp).poll_flush(context),
            Stream::Tls(tls) => Pin::new(tls).poll_flush(context),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Stream::Plain(tcp) => Pin::new(tcp).poll_shutdown(context),
            Stream::Tls(tls) => Pin::new(tls).poll_shutdown(context),
        }
    }
}
