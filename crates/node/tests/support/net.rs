//! Simulated network whose links can be cut. Data sent on a cut link waits until the link is restored, like
//! retransmitted packets.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

use earmark_node::{BoxFuture, Connection, Listener, Net};
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf};
use tokio::sync::mpsc;

const BUFFER: usize = 1 << 20;

#[derive(Debug, Default)]
struct State {
    listeners: BTreeMap<String, mpsc::UnboundedSender<Connection>>,
    cut: BTreeSet<(String, String)>,
    waiting: Vec<Waker>,
    /// Bytes sent per link.
    sent: BTreeMap<(String, String), u64>,
}

/// The network, seen by one node.
#[derive(Clone, Debug)]
pub struct SimNet {
    me: String,
    state: Arc<Mutex<State>>,
}

impl SimNet {
    pub fn new() -> SimNet {
        SimNet { me: String::new(), state: Arc::default() }
    }

    /// The same network, seen by the node at an address.
    pub fn at(&self, address: &str) -> SimNet {
        SimNet { me: address.to_owned(), state: Arc::clone(&self.state) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Cuts a link in both directions.
    pub fn cut(&self, a: &str, b: &str) {
        let mut state = self.state();
        state.cut.insert((a.to_owned(), b.to_owned()));
        state.cut.insert((b.to_owned(), a.to_owned()));
    }

    /// Restores a link and delivers waiting data.
    pub fn mend(&self, a: &str, b: &str) {
        let mut state = self.state();
        state.cut.remove(&(a.to_owned(), b.to_owned()));
        state.cut.remove(&(b.to_owned(), a.to_owned()));
        state.waiting.drain(..).for_each(Waker::wake);
    }

    /// Restores all links and delivers waiting data.
    pub fn heal(&self) {
        let mut state = self.state();
        state.cut.clear();
        state.waiting.drain(..).for_each(Waker::wake);
    }

    /// Bytes sent from one address to another.
    pub fn sent(&self, from: &str, to: &str) -> u64 {
        self.state().sent.get(&(from.to_owned(), to.to_owned())).copied().unwrap_or(0)
    }
}

/// One end of a connection.
struct End {
    from: String,
    to: String,
    stream: DuplexStream,
    net: SimNet,
}

impl End {
    /// Whether the link works; otherwise registers the waker.
    fn is_whole(&self, cx: &Context<'_>) -> bool {
        let mut state = self.net.state();
        let is_cut = state.cut.contains(&(self.from.clone(), self.to.clone()));
        if is_cut {
            state.waiting.push(cx.waker().clone());
        }
        !is_cut
    }
}

impl AsyncRead for End {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.is_whole(cx) {
            return Poll::Pending;
        }
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for End {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if !self.is_whole(cx) {
            return Poll::Pending;
        }
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        if let Poll::Ready(Ok(count)) = &written {
            let link = (self.from.clone(), self.to.clone());
            *self.net.state().sent.entry(link).or_default() += *count as u64;
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

impl Net for SimNet {
    fn connect(&self, address: String) -> BoxFuture<io::Result<Connection>> {
        let net = self.clone();
        Box::pin(async move {
            std::future::poll_fn(|cx| {
                let mut state = net.state();
                if state.cut.contains(&(net.me.clone(), address.clone())) {
                    state.waiting.push(cx.waker().clone());
                    return Poll::Pending;
                }
                Poll::Ready(())
            })
            .await;
            let (here, there) = tokio::io::duplex(BUFFER);
            let end = |from: &str, to: &str, stream| {
                let (from, to) = (from.to_owned(), to.to_owned());
                Connection::new(End { from, to, stream, net: net.clone() })
            };
            let refused = || io::Error::from(io::ErrorKind::ConnectionRefused);
            let listener = net.state().listeners.get(&address).cloned().ok_or_else(refused)?;
            listener.send(end(&address, &net.me, there)).map_err(|_| refused())?;
            Ok(end(&net.me, &address, here))
        })
    }

    fn listen(&self, address: String) -> BoxFuture<io::Result<Box<dyn Listener>>> {
        let (sender, receiver) = mpsc::unbounded_channel();
        self.state().listeners.insert(address.clone(), sender);
        Box::pin(async move { Ok(Box::new(SimListener { address, receiver }) as Box<dyn Listener>) })
    }
}

struct SimListener {
    address: String,
    receiver: mpsc::UnboundedReceiver<Connection>,
}

impl Listener for SimListener {
    fn accept(&mut self) -> Pin<Box<dyn Future<Output = io::Result<Connection>> + Send + '_>> {
        Box::pin(async {
            match self.receiver.recv().await {
                Some(connection) => Ok(connection),
                None => std::future::pending().await,
            }
        })
    }

    fn address(&self) -> String {
        self.address.clone()
    }
}
