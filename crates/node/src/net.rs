//! How nodes reach each other. Tests have their own network.

use std::fmt::Debug;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};

/// Something that is on its way.
pub type Eventually<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// A network.
pub trait Net: Debug + Send + Sync + 'static {
    /// Connects to an address, `host:port`.
    fn connect(&self, address: String) -> Eventually<io::Result<Connection>>;

    /// Listens at an address.
    fn listen(&self, address: String) -> Eventually<io::Result<Box<dyn Listener>>>;

    /// What it shows of this node to others.
    fn shows(&self) -> Shown {
        Shown::AnyNode
    }
}

/// What one end of a connection has shown of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shown {
    /// That it is a node, if anything at all; which one is believed.
    AnyNode,
    /// That it is one of these nodes.
    Nodes(Arc<[u64]>),
}

impl Shown {
    /// Whether it may speak as a node.
    #[must_use]
    pub fn is_good_for(&self, node: u64) -> bool {
        match self {
            Shown::AnyNode => true,
            Shown::Nodes(nodes) => nodes.contains(&node),
        }
    }
}

/// Takes connections.
pub trait Listener: Send {
    /// The next one.
    fn accept(&mut self) -> Pin<Box<dyn Future<Output = io::Result<Connection>> + Send + '_>>;

    /// Where it listens, `host:port`.
    fn address(&self) -> String;
}

/// Bytes both ways.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// One connection.
pub struct Connection {
    stream: Box<dyn Stream>,
    /// Who is at the other end.
    shown: Shown,
}

impl Connection {
    /// A connection by this stream, to whoever is there.
    pub fn new(stream: impl Stream + 'static) -> Connection {
        Connection::with(stream, Shown::AnyNode)
    }

    /// A connection by this stream, whose other end has shown this.
    pub fn with(stream: impl Stream + 'static, shown: Shown) -> Connection {
        Connection { stream: Box::new(stream), shown }
    }

    /// What its other end has shown.
    #[must_use]
    pub fn shown(&self) -> &Shown {
        &self.shown
    }
}

impl tonic::transport::server::Connected for Connection {
    type ConnectInfo = Shown;

    fn connect_info(&self) -> Shown {
        self.shown.clone()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
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

/// The network of this machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealNet;

impl Net for RealNet {
    fn connect(&self, address: String) -> Eventually<io::Result<Connection>> {
        Box::pin(async move {
            let stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            Ok(Connection::new(stream))
        })
    }

    fn listen(&self, address: String) -> Eventually<io::Result<Box<dyn Listener>>> {
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
