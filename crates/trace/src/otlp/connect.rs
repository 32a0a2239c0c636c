//! Connections to the collector: TCP, and TLS over it.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use super::{Endpoint, Protocol, StartError};

/// A plain or an encrypted connection.
pub(super) trait Connection: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Connection for T {}

type Connected = TokioIo<Box<dyn Connection>>;

/// Connects to one collector.
#[derive(Clone)]
pub(super) struct Connector {
    host: String,
    port: u16,
    tls: Option<TlsConnector>,
}

impl Connector {
    pub(super) fn new(endpoint: &Endpoint) -> Result<Connector, StartError> {
        let Endpoint { host, port, is_tls, protocol, .. } = endpoint;
        let tls = if *is_tls { Some(tls_connector(*protocol)?) } else { None };
        // A literal IPv6 address has brackets in a URL only.
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        Ok(Connector { host, port: *port, tls })
    }

    /// Connects without a timeout; the caller bounds the whole send.
    pub(super) async fn connect(&self) -> io::Result<Connected> {
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await?;
        stream.set_nodelay(true)?;
        let Some(tls) = &self.tls else { return Ok(TokioIo::new(Box::new(stream))) };
        let name = ServerName::try_from(self.host.clone()).map_err(io::Error::other)?;
        Ok(TokioIo::new(Box::new(tls.connect(name, stream).await?)))
    }
}

/// TLS with the root certificates of the system.
fn tls_connector(protocol: Protocol) -> Result<TlsConnector, StartError> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        return Err(StartError::Roots("this system has no root certificates; name a file in SSL_CERT_FILE".into()));
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| StartError::Roots(error.to_string()))?;
    let mut config = config.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = match protocol {
        Protocol::Grpc => vec![b"h2".to_vec()],
        Protocol::Http => vec![b"http/1.1".to_vec()],
    };
    Ok(TlsConnector::from(Arc::new(config)))
}

impl tower_service::Service<hyper::Uri> for Connector {
    type Response = Connected;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Connected>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    /// Ignores the URI of the gRPC channel, because there is one collector.
    fn call(&mut self, _: hyper::Uri) -> Self::Future {
        let connector = self.clone();
        Box::pin(async move { connector.connect().await })
    }
}
