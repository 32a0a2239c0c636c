//! Connections to servers: TCP, and TLS over it.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::Uri;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::address::ServerAddress;
use crate::failure::Failure;
use crate::options::{ClientOptions, OptionsError, Protocol};
#[cfg(feature = "tls")]
use crate::tls::Tls;

/// Connects to one server.
#[derive(Clone)]
pub(crate) struct Connector(Arc<Inner>);

struct Inner {
    address: ServerAddress,
    connect_timeout: Duration,
    #[cfg(feature = "tls")]
    tls: Option<Tls>,
}

/// Why there is no connection. Nothing was sent.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct NotConnected(#[source] io::Error);

impl NotConnected {
    pub(crate) fn failure(&self, server: &str) -> Failure {
        Failure::Unreachable { server: server.to_owned(), why: self.to_string(), kind: self.0.kind() }
    }
}

/// The connectors to the servers of `options`.
pub(crate) fn connectors(options: &ClientOptions, protocol: Protocol) -> Result<Vec<Connector>, OptionsError> {
    let ClientOptions { servers, key, connect_timeout, .. } = options;
    if servers.is_empty() {
        return Err(OptionsError::NoServers);
    }
    if key.is_some()
        && !options.is_plaintext_allowed
        && let Some(exposed) = servers.iter().find(|server| server.is_exposed())
    {
        return Err(OptionsError::Plaintext { found: exposed.clone() });
    }
    #[cfg(feature = "tls")]
    let tls = match servers.iter().any(ServerAddress::is_tls) {
        true => Some(Tls::new(&options.roots, options.certificate.as_ref(), protocol)?),
        false => None,
    };
    #[cfg(not(feature = "tls"))]
    if let Some(found) = servers.iter().find(|server| server.is_tls()) {
        _ = protocol;
        return Err(OptionsError::NoTls { found: found.clone() });
    }
    let connector = |address: &ServerAddress| {
        Connector(Arc::new(Inner {
            address: address.clone(),
            connect_timeout: *connect_timeout,
            #[cfg(feature = "tls")]
            tls: tls.clone().filter(|_| address.is_tls()),
        }))
    };
    Ok(servers.iter().map(connector).collect())
}

/// The index of the server that the next request goes to.
#[derive(Debug, Default)]
pub(crate) struct Preferred(AtomicUsize);

impl Preferred {
    /// The preferred server and its index.
    pub(crate) fn of<'a, T>(&self, servers: &'a [T]) -> Result<(usize, &'a T), Failure> {
        let index = self.0.load(Ordering::Relaxed);
        let missing = || Failure::Invalid { message: "a bug of this client: it has no server".into() };
        servers.get(index).map(|server| (index, server)).ok_or_else(missing)
    }

    /// Moves on from the server at `index`. Of several callers that saw it fail, only the first moves on.
    pub(crate) fn advance(&self, index: usize, count: usize) {
        let next = (index + 1) % count;
        _ = self.0.compare_exchange(index, next, Ordering::Relaxed, Ordering::Relaxed);
    }
}

impl Connector {
    pub(crate) fn address(&self) -> &ServerAddress {
        &self.0.address
    }

    /// Opens a connection.
    pub(crate) async fn connect(&self) -> Result<Stream, NotConnected> {
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
            return Ok(Box::new(tls.wrap(self.address.host(), stream).await?));
        }
        Ok(Box::new(stream))
    }
}

/// For tonic, which calls it to connect and to reconnect.
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

/// A byte stream: TCP or TLS.
pub(crate) trait Bytes: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Bytes for T {}

/// A connection.
pub(crate) type Stream = Box<dyn Bytes>;
