//! Network interface between nodes. Tests provide their own.

use std::fmt::Debug;
use std::future::Future;
use std::io;
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

/// Nodes that a peer's certificate allows it to act as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerIdentity {
    /// Any node: the network has no certificates.
    Unproven,
    /// The nodes that the certificate names. Without a name it allows none.
    Nodes(Arc<[u64]>),
}

impl PeerIdentity {
    /// Whether the peer may act as a node.
    #[must_use]
    pub fn may_act_as(&self, node: u64) -> bool {
        match self {
            PeerIdentity::Unproven => true,
            PeerIdentity::Nodes(nodes) => nodes.contains(&node),
        }
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
