//! Connections: TCP, and TLS over it.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::Uri;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::address::ServerAddress;
#[cfg(feature = "tls")]
use crate::tls::Tls;

/// Connects to one server, always the same way.
#[derive(Clone)]
pub(crate) struct Connector(Arc<Inner>);

struct Inner {
    address: ServerAddress,
    connect_timeout: Duration,
    #[cfg(feature = "tls")]
    tls: Option<Tls>,
}

/// Why there is no connection. What gets to see this knows that nothing was sent.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct NotConnected(#[source] io::Error);

impl Connector {
    #[cfg(feature = "tls")]
    pub(crate) fn new(address: ServerAddress, connect_timeout: Duration, tls: Option<Tls>) -> Connector {
        Connector(Arc::new(Inner { address, connect_timeout, tls }))
    }

    #[cfg(not(feature = "tls"))]
    pub(crate) fn new(address: ServerAddress, connect_timeout: Duration) -> Connector {
        Connector(Arc::new(Inner { address, connect_timeout }))
    }

    pub(super) fn address(&self) -> &ServerAddress {
        &self.0.address
    }

    /// A new connection.
    pub(super) async fn connect(&self) -> Result<Stream, NotConnected> {
        let inner = &self.0;
        match timeout(inner.connect_timeout, inner.connect()).await {
            Ok(connected) => connected.map_err(NotConnected),
            Err(_) => {
                let what = format!("no connection within {} ms", inner.connect_timeout.as_millis());
                Err(NotConnected(io::Error::new(io::ErrorKind::TimedOut, what)))
            }
        }
    }
}

impl Inner {
    async fn connect(&self) -> io::Result<Stream> {
        let stream = TcpStream::connect((self.address.host(), self.address.port())).await?;
        stream.set_nodelay(true)?;
        #[cfg(feature = "tls")]
        if let Some(tls) = &self.tls {
            return Ok(Stream::Tls(Box::new(tls.wrap(self.address.host(), stream).await?)));
        }
        Ok(Stream::Plain(stream))
    }
}

/// For tonic, which connects by itself when it has to.
impl tower_service::Service<Uri> for Connector {
    type Response = TokioIo<Stream>;
    type Error = NotConnected;
    type Future = Pin<Box<dyn Future<Output = Result<TokioIo<Stream>, NotConnected>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), NotConnected>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let connector = self.clone();
        Box::pin(async move { connector.connect().await.map(TokioIo::new) })
    }
}

/// A connection.
pub(crate) enum Stream {
    Plain(TcpStream),
    #[cfg(feature = "tls")]
    Tls(Box<tokio_rustls::client::TlsStream<TcpStream>>),
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Plain(stream) => Pin::new(stream).poll_read(context, into),
            #[cfg(feature = "tls")]
            Stream::Tls(stream) => Pin::new(stream).poll_read(context, into),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Stream::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            #[cfg(feature = "tls")]
            Stream::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Plain(stream) => Pin::new(stream).poll_flush(context),
            #[cfg(feature = "tls")]
            Stream::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            #[cfg(feature = "tls")]
            Stream::Tls(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}
