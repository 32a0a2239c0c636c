//! The connections to an upstream: TLS, HTTP/1.1 and HTTP/2.

mod pool;

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use hyper::client::conn::{http1, http2};
use hyper::header::{AUTHORIZATION, HeaderValue};
use hyper::http::uri::Authority;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
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
use crate::config::{Secret, TargetUrl, Upstream};
pub(crate) use pool::AnswerBody;
use pool::{Pool, Sender};

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
    tls: Option<TlsConnector>,
    pool: Pool,
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
        Ok(Connections {
            circuit: Circuit::new(config.circuit_failures, config.circuit_pause),
            drains: Arc::new(Semaphore::new(config.drain_max)),
            key: key.transpose()?,
            secret,
            tls,
            pool: Pool::default(),
            config,
        })
    }

    /// Closes the connections that nobody used for a while.
    pub(crate) fn upkeep(&self) {
        self.pool.close_idle();
    }

    /// Sends a request to a target with the upstream's key, and returns the head of the answer. The request has the path
    /// and the query of its URL. It waits as long as the upstream does.
    pub(crate) async fn send(
        self: &Arc<Self>,
        url: &TargetUrl,
        mut request: Request<RequestBody>,
    ) -> Result<Response<AnswerBody>, NoAnswer> {
        if let Some(key) = &self.key {
            request.headers_mut().insert(self.config.key_header.clone(), key.clone());
        }
        let mut idle = self.pool.take(&url.authority);
        loop {
            let is_kept = idle.is_some();
            let mut sender = match idle.take() {
                Some(sender) => sender,
                None => Box::pin(self.connect(url)).await.map_err(|error| NoAnswer::NotConnected(chain(&error)))?,
            };
            match sender.send(url, request).await {
                Ok(answer) => return Ok(answer.map(|body| AnswerBody::new(body, sender, self, url))),
                // The request comes back only if none of its bytes was sent.
                Err(mut error) => match error.take_message() {
                    // An upstream may close a kept connection before it takes the request.
                    Some(again) if is_kept => request = again,
                    Some(_) => return Err(NoAnswer::NotConnected(chain(&error.into_error()))),
                    None => return Err(NoAnswer::Broken(chain(&error.into_error()))),
                },
            }
        }
    }

    /// Opens a connection.
    async fn connect(&self, url: &TargetUrl) -> io::Result<Sender> {
        let limit = self.config.timeouts.connect;
        let late = |_| io::Error::new(io::ErrorKind::TimedOut, format!("no connection within {} s", limit.as_secs()));
        timeout(limit, self.open(url)).await.map_err(late)?
    }

    async fn open(&self, url: &TargetUrl) -> io::Result<Sender> {
        let host = url.authority.host().trim_start_matches('[').trim_end_matches(']');
        let port = url.authority.port_u16().unwrap_or(if self.tls.is_some() { 443 } else { 80 });
        let tcp = TcpStream::connect((host, port)).await?;
        tcp.set_nodelay(true)?;
        let stream = match &self.tls {
            None => Stream::Plain(tcp),
            Some(tls) => {
                let name = ServerName::try_from(host.to_owned());
                let name = name.map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
                Stream::Tls(Box::new(tls.connect(name, tcp).await?))
            }
        };
        self.handshake(stream, &url.authority).await.map_err(io::Error::other)
    }

    /// Begins HTTP/2 if the upstream chose it, else HTTP/1.
    async fn handshake(&self, stream: Stream, authority: &Authority) -> hyper::Result<Sender> {
        if !stream.is_http2() {
            let (sender, connection) =
                http1::Builder::new().max_buf_size(HEAD_BYTES_MAX).handshake(TokioIo::new(stream)).await?;
            // The caller that waits for the answer sees an error of the connection.
            tokio::spawn(connection);
            return Ok(Sender::Http1(sender));
        }
        // One connection carries all requests. Another caller may have opened it meanwhile.
        if let Some(sender) = self.pool.take(authority) {
            return Ok(sender);
        }
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder.initial_stream_window_size(WINDOW_BYTES).max_header_list_size(HEAD_BYTES_MAX as u32);
        let (sender, connection) = builder.handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        self.pool.keep(authority.clone(), Sender::Http2(sender.clone()));
        Ok(Sender::Http2(sender))
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

/// A connection: TCP, or TLS over it.
enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Stream {
    fn is_http2(&self) -> bool {
        matches!(self, Stream::Tls(tls) if tls.get_ref().1.alpn_protocol() == Some(b"h2"))
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
