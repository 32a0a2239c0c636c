//! Simulated network whose links can be cut. Data sent on a cut link waits until the link is restored, like
//! retransmitted packets.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use earmark_node::{BoxFuture, ChannelListener, Connection, Listener, Net};
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf};
use tokio::sync::mpsc;
use tokio::time::{Instant, Sleep, sleep};

const BUFFER: usize = 1 << 20;
/// Timer resolution; shorter delays accumulate.
const TIMER: Duration = Duration::from_millis(1);

#[derive(Debug, Default)]
struct State {
    listeners: BTreeMap<String, mpsc::Sender<Connection>>,
    cut: BTreeSet<(String, String)>,
    waiting: Vec<Waker>,
    /// Listening addresses by the name that nodes use; `None` for a name that does not resolve. Other names are
    /// addresses.
    names: BTreeMap<String, Option<String>>,
    /// Bytes sent per link.
    sent: BTreeMap<(String, String), u64>,
}

/// The network, seen by one node.
#[derive(Clone, Debug)]
pub struct SimNet {
    me: String,
    state: Arc<Mutex<State>>,
    /// Bandwidth of connections that this node opens; unlimited by default.
    bytes_per_ms: Option<u64>,
}

impl SimNet {
    pub fn new() -> SimNet {
        SimNet { me: String::new(), state: Arc::default(), bytes_per_ms: None }
    }

    /// The same network, seen by the node at an address.
    pub fn at(&self, address: &str) -> SimNet {
        SimNet { me: address.to_owned(), ..self.clone() }
    }

    /// The same network with limited bandwidth for this node's connections.
    pub fn limited(self, bytes_per_ms: Option<u64>) -> SimNet {
        SimNet { bytes_per_ms, ..self }
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

    /// Lets a name, `host:port`, resolve to an address, or to nothing. Open connections stay.
    pub fn resolve(&self, name: &str, address: Option<&str>) {
        self.state().names.insert(name.to_owned(), address.map(str::to_owned));
    }

    /// Bytes sent from one address to another.
    pub fn sent(&self, from: &str, to: &str) -> u64 {
        self.state().sent.get(&(from.to_owned(), to.to_owned())).copied().unwrap_or(0)
    }
}

struct End {
    from: String,
    to: String,
    stream: DuplexStream,
    net: SimNet,
    bytes_per_ms: Option<u64>,
    /// When all bytes written so far have arrived.
    arrived: Instant,
    sleep: Pin<Box<Sleep>>,
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

impl End {
    /// Blocks further writes until these bytes have arrived.
    fn pace(&mut self, bytes: u64) {
        let Some(bytes_per_ms) = self.bytes_per_ms else { return };
        let now = Instant::now();
        self.arrived = self.arrived.max(now) + Duration::from_micros(bytes * 1_000 / bytes_per_ms);
        if self.arrived > now + TIMER {
            self.sleep.as_mut().reset(self.arrived);
        }
    }
}

impl AsyncRead for End {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if !self.is_whole(cx) {
            return Poll::Pending;
        }
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for End {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if !self.is_whole(cx) || self.bytes_per_ms.is_some() && self.sleep.as_mut().poll(cx).is_pending() {
            return Poll::Pending;
        }
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        if let Poll::Ready(Ok(count)) = &written {
            let link = (self.from.clone(), self.to.clone());
            *self.net.state().sent.entry(link).or_default() += *count as u64;
            self.pace(*count as u64);
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
            let found = net.state().names.get(&address).cloned().unwrap_or(Some(address));
            let address = found.ok_or_else(|| io::Error::other("the name does not resolve"))?;
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
            let end = |from: &str, to: &str, stream, bytes_per_ms| {
                let (from, to, net) = (from.to_owned(), to.to_owned(), net.clone());
                let (arrived, sleep) = (Instant::now(), Box::pin(sleep(Duration::ZERO)));
                Connection::new(End { from, to, stream, net, bytes_per_ms, arrived, sleep })
            };
            let refused = || io::Error::from(io::ErrorKind::ConnectionRefused);
            let listener = net.state().listeners.get(&address).cloned().ok_or_else(refused)?;
            listener.send(end(&address, &net.me, there, None)).await.map_err(|_| refused())?;
            Ok(end(&net.me, &address, here, net.bytes_per_ms))
        })
    }

    fn listen(&self, address: String) -> BoxFuture<io::Result<Box<dyn Listener>>> {
        let (listener, sender) = ChannelListener::new(address.clone());
        self.state().listeners.insert(address, sender);
        Box::pin(async move { Ok(Box::new(listener) as Box<dyn Listener>) })
    }
}
