//! Network interface between nodes. Tests provide their own.

use std::fmt::Debug;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

/// A boxed future.
pub type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// A network.
pub trait Net: Debug + Send + Sync + 'static {
    /// Connects to an address, `host:port`.
    fn connect(&self, address: String) -> BoxFuture<io::Result<Connection>>;

    /// Listens at an address.
    fn listen(&self, address: String) -> BoxFuture<io::Result<Box<dyn Listener>>>;

    /// Identity that this node's certificate proves to its peers.
    fn local_identity(&self) -> PeerIdentity {
        PeerIdentity::Unproven
    }
}

/// Nodes that a certificate allows its owner to act as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerIdentity {
    /// Any node: the network has no certificates.
    Unproven,
    /// The nodes that the certificate names. Without a name it allows none.
    Certificate {
        /// Node ids, from URIs.
        nodes: Arc<[u64]>,
        /// DNS names in lower case. Wildcards are left out, because they name no single node.
        names: Arc<[String]>,
    },
}

impl PeerIdentity {
    /// Whether the peer may act as the node with this id, whose address is `host:port`. The certificate has its id or its
    /// host.
    #[must_use]
    pub fn may_act_as(&self, node: u64, address: &str) -> bool {
        match self {
            PeerIdentity::Unproven => true,
            PeerIdentity::Certificate { nodes, .. } => nodes.contains(&node) || self.proves_name(address),
        }
    }

    /// Whether the certificate has the host of an address as a DNS name. IP addresses prove nothing: several nodes may
    /// share one. Without certificates nothing is proved, although a peer may then act as any node.
    #[must_use]
    pub fn proves_name(&self, address: &str) -> bool {
        match self {
            PeerIdentity::Unproven => false,
            PeerIdentity::Certificate { names, .. } => {
                let host = host(address);
                host.parse::<IpAddr>().is_err() && names.contains(&normal_name(host))
            }
        }
    }
}

/// The host of an address, `host:port`, without the brackets of an IPv6 address.
pub(crate) fn host(address: &str) -> &str {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    host.trim_start_matches('[').trim_end_matches(']')
}

/// A DNS name or an address with one, in lower case and without the dot of an absolute name.
pub(crate) fn normal_name(name: &str) -> String {
    let (host, port) = name.rsplit_once(':').unwrap_or((name, ""));
    let host = host.trim_end_matches('.').to_ascii_lowercase();
    if port.is_empty() { host } else { format!("{host}:{port}") }
}

/// Translates the address of a node, `host:port`, into socket addresses.
pub trait Resolve: Debug + Send + Sync + 'static {
    /// Resolves an address. It is called for every connection, because a node keeps its name and may change its address.
    fn resolve(&self, address: String) -> BoxFuture<io::Result<Vec<SocketAddr>>>;
}

/// The resolver of the operating system.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemResolver;

impl Resolve for SystemResolver {
    fn resolve(&self, address: String) -> BoxFuture<io::Result<Vec<SocketAddr>>> {
        Box::pin(async move { Ok(tokio::net::lookup_host(address).await?.collect()) })
    }
}

/// A listening socket.
pub trait Listener: Send {
    /// Accepts the next connection.
    fn accept(&mut self) -> Pin<Box<dyn Future<Output = io::Result<Connection>> + Send + '_>>;

    /// Listening address, `host:port`.
    fn address(&self) -> String;
}

/// Listener for connections that a background task accepts.
#[derive(Debug)]
pub struct ChannelListener {
    address: String,
    connections: mpsc::Receiver<Connection>,
}

impl ChannelListener {
    /// A listener at an address, and the sender of its connections. The sender closes when the listener is dropped.
    #[must_use]
    pub fn new(address: String) -> (ChannelListener, mpsc::Sender<Connection>) {
        let (sender, connections) = mpsc::channel(64);
        (ChannelListener { address, connections }, sender)
    }
}

impl Listener for ChannelListener {
    fn accept(&mut self) -> Pin<Box<dyn Future<Output = io::Result<Connection>> + Send + '_>> {
        Box::pin(async {
            match self.connections.recv().await {
                Some(connection) => Ok(connection),
                // All senders are gone, so no connection will come.
                None => std::future::pending().await,
            }
        })
    }

    fn address(&self) -> String {
        self.address.clone()
    }
}

/// A bidirectional byte stream.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// One connection.
pub struct Connection {
    stream: Box<dyn Stream>,
    peer_identity: PeerIdentity,
}

impl Connection {
    /// A connection whose remote end proved nothing.
    pub fn new(stream: impl Stream + 'static) -> Connection {
        Connection::with(stream, PeerIdentity::Unproven)
    }

    /// A connection with a verified remote identity.
    pub fn with(stream: impl Stream + 'static, peer_identity: PeerIdentity) -> Connection {
        Connection { stream: Box::new(stream), peer_identity }
    }

    /// Identity of the remote end.
    #[must_use]
    pub fn peer_identity(&self) -> &PeerIdentity {
        &self.peer_identity
    }
}

impl Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Connection").field(&self.peer_identity).finish()
    }
}

impl tonic::transport::server::Connected for Connection {
    type ConnectInfo = PeerIdentity;

    fn connect_info(&self) -> PeerIdentity {
        self.peer_identity.clone()
    }
}

impl AsyncRead for Connection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// Plain TCP.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealNet;

impl Net for RealNet {
    fn connect(&self, address: String) -> BoxFuture<io::Result<Connection>> {
        Box::pin(async move {
            let stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            Ok(Connection::new(stream))
        })
    }

    fn listen(&self, address: String) -> BoxFuture<io::Result<Box<dyn Listener>>> {
        Box::pin(async move { Ok(Box::new(TcpListener::bind(address).await?) as Box<dyn Listener>) })
    }
}

impl Listener for TcpListener {
    fn accept(&mut self) -> Pin<Box<dyn Future<Output = io::Result<Connection>> + Send + '_>> {
        Box::pin(async {
            let (stream, _) = TcpListener::accept(self).await?;
            stream.set_nodelay(true)?;
            Ok(Connection::new(stream))
        })
    }

    fn address(&self) -> String {
        self.local_addr().map(|address| address.to_string()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_proves_the_names_that_it_has_and_no_ip_address() {
        let names: Vec<String> = ["a.example", "127.0.0.1"].map(str::to_owned).into();
        let identity = PeerIdentity::Certificate { nodes: [3].into(), names: names.into() };
        for (address, is_proven) in [
            ("a.example:7101", true),
            ("A.Example.:7101", true),
            ("b.example:7101", false),
            ("b.a.example:7101", false),
            ("127.0.0.1:7101", false),
            ("[::1]:7101", false),
        ] {
            assert_eq!(identity.proves_name(address), is_proven, "{address}");
            assert_eq!(identity.may_act_as(4, address), is_proven, "{address}");
        }
        assert!(identity.may_act_as(3, "b.example:7101"));
        assert!(!PeerIdentity::Unproven.proves_name("a.example:7101"));
    }
}
