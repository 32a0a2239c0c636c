//! A link that takes only so many bytes in a second.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use earmark_admission::ManualClock;
use earmark_node::{Connection, Eventually, Listener, Net, Node, NodeOptions};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

use crate::support::desk::{START_MS, issue, open};
use crate::support::disk::SimDisk;
use crate::support::fleet::{Fleet, Seat, Settings, address, until};
use crate::support::net::SimNet;

/// A hundred megabits a second.
const BYTES_PER_MS: u64 = 12_500;
/// Timers are no finer than this.
const TIMER: Duration = Duration::from_millis(1);

#[derive(Debug)]
struct SlowNet(SimNet);

/// What is written here takes its time.
struct Slow {
    inner: Connection,
    sleep: Pin<Box<Sleep>>,
    /// When all that was written so far has arrived.
    arrived: Instant,
}

impl Net for SlowNet {
    fn connect(&self, address: String) -> Eventually<io::Result<Connection>> {
        let connecting = self.0.connect(address);
        Box::pin(async {
            let inner = connecting.await?;
            let slow = Slow { inner, sleep: Box::pin(sleep(Duration::ZERO)), arrived: Instant::now() };
            Ok(Connection::new(slow))
        })
    }

    fn listen(&self, address: String) -> Eventually<io::Result<Box<dyn Listener>>> {
        self.0.listen(address)
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
            let takes = Duration::from_micros(*count as u64 * 1_000 / BYTES_PER_MS);
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

/// What was sent at once took longer than a heartbeat, after which it was given up and sent again from the beginning: a
/// new node on a slow link received hundreds of megabytes, and not one entry of a log of four.
#[tokio::test(start_paused = true)]
async fn a_new_node_catches_up_over_a_slow_link() {
    let mut fleet = Fleet::empty(Settings::default());
    for id in 1..=2 {
        let clock = ManualClock::at(START_MS);
        fleet.seats.insert(id, Seat { disk: SimDisk::new(), clock, node: None });
        let net = Arc::new(SlowNet(fleet.net.at(&address(id))));
        let node = Node::open(NodeOptions { net, ..fleet.options(id) }).await.unwrap();
        fleet.seats.get_mut(&id).unwrap().node = Some(node);
        if id == 1 {
            fleet.leader().await;
            fleet.desk(1).write("load", 1, vec![open("acme")]).await;
            for sequence in 2..400 {
                fleet.desk(1).write("load", sequence, vec![issue("acme", 1); 256]).await;
            }
        }
    }
    until("node 2 is a voter", || fleet.is_voter(2)).await;
    fleet.agree().await;
}
