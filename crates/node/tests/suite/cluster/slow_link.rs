//! Links with limited bandwidth.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use earmark_admission::ManualClock;
use earmark_node::{BoxFuture, Connection, Listener, Net, Node, NodeOptions};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

use crate::support::client::{START_MS, issue, open};
use crate::support::disk::SimDisk;
use crate::support::net::SimNet;
use crate::support::sim_cluster::{Settings, SimCluster, SimHost, address, until};

/// Timer resolution.
const TIMER: Duration = Duration::from_millis(1);

#[derive(Debug)]
struct SlowNet {
    inner: SimNet,
    bytes_per_ms: u64,
}

/// A connection with limited write bandwidth.
struct Slow {
    inner: Connection,
    sleep: Pin<Box<Sleep>>,
    bytes_per_ms: u64,
    /// When all bytes written so far have arrived.
    arrived: Instant,
}

impl Net for SlowNet {
    fn connect(&self, address: String) -> BoxFuture<io::Result<Connection>> {
        let (connecting, bytes_per_ms) = (self.inner.connect(address), self.bytes_per_ms);
        Box::pin(async move {
            let (inner, sleep) = (connecting.await?, Box::pin(sleep(Duration::ZERO)));
            Ok(Connection::new(Slow { inner, sleep, bytes_per_ms, arrived: Instant::now() }))
        })
    }

    fn listen(&self, address: String) -> BoxFuture<io::Result<Box<dyn Listener>>> {
        self.inner.listen(address)
    }
}

impl AsyncRead for Slow {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Slow {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.sleep.as_mut().poll(cx).is_pending() {
            return Poll::Pending;
        }
        let written = Pin::new(&mut self.inner).poll_write(cx, bytes);
        if let Poll::Ready(Ok(count)) = &written {
            let now = Instant::now();
            let takes = Duration::from_micros(*count as u64 * 1_000 / self.bytes_per_ms);
            self.arrived = self.arrived.max(now) + takes;
            let arrived = self.arrived;
            if arrived > now + TIMER {
                self.sleep.as_mut().reset(arrived);
            }
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

/// One message took longer than a heartbeat, and was then sent again from the start. A new node on a slow link
/// received hundreds of megabytes but no entry of a four-megabyte log.
#[tokio::test(start_paused = true)]
async fn a_new_node_catches_up_over_a_slow_link() {
    let mut cluster = SimCluster::empty(Settings::default());
    // 100 Mbit/s.
    start(&mut cluster, 1, 12_500).await;
    load(&cluster, 400).await;
    start(&mut cluster, 2, 12_500).await;
    until("node 2 is a voter", || cluster.is_voter(2)).await;
    cluster.agree().await;
}

/// Starts a node with limited bandwidth to its peers.
async fn start(cluster: &mut SimCluster, id: u64, bytes_per_ms: u64) {
    let clock = ManualClock::at(START_MS);
    cluster.hosts.insert(id, SimHost { disk: SimDisk::new(), clock, node: None });
    let net = Arc::new(SlowNet { inner: cluster.net.at(&address(id)), bytes_per_ms });
    let node = Node::open(NodeOptions { net, ..cluster.options(id) }).await.unwrap();
    cluster.hosts.get_mut(&id).unwrap().node = Some(node);
}

/// Makes the log and the journal of node 1 long.
async fn load(cluster: &SimCluster, writes: u64) {
    cluster.leader().await;
    cluster.client(1).write("load", 1, vec![open("acme")]).await;
    for sequence in 2..writes {
        cluster.client(1).write("load", sequence, vec![issue("acme", 1); 256]).await;
    }
}

/// A snapshot with its journal had ten minutes, and was then sent again from the start. A node with a slower link
/// could never join.
#[tokio::test(start_paused = true)]
async fn a_journal_may_take_as_long_to_arrive_as_it_needs() {
    let mut cluster =
        SimCluster::empty(Settings { keep_entries: 0, segment_bytes: 100_000, ..Settings::default() });
    let bytes_per_ms = 12;
    start(&mut cluster, 1, bytes_per_ms).await;
    load(&cluster, 800).await;
    cluster.node(1).snapshot().await.unwrap();
    let disk = &cluster.hosts[&1].disk;
    let journal = disk.paths().into_iter().filter(|path| path.ends_with(".journal"));
    let bytes: usize = journal.map(|path| disk.bytes(&path).len()).sum();
    let takes = Duration::from_millis(bytes as u64 / bytes_per_ms);
    assert!(takes > Duration::from_secs(700), "{takes:?} proves little");
    start(&mut cluster, 2, bytes_per_ms).await;
    tokio::time::sleep(takes).await;
    until("node 2 is a voter", || cluster.is_voter(2)).await;
    cluster.agree().await;
}
