//! One simulated host: a real node on a simulated disk, network and clock.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use earmark_admission::TimeSource;
use earmark_node::{BoxFuture, Connection, Listener, LogOptions, Net, Node, NodeOptions, Timing};
use tokio::io::BufWriter;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::support::disk::SimDisk;

/// Start of every simulation, in microseconds since 1970.
pub const BEGIN_US: u64 = 1_700_000_000_000_000;
const PORT: u16 = 7000;
const MESSAGE_BYTES: usize = 1 << 20;

/// Short timeouts, so that much happens in little simulated time.
pub const TIMING: Timing = Timing {
    heartbeat: Duration::from_millis(60),
    election: Duration::from_millis(300),
    deadline: Duration::from_secs(2),
};

/// Work for a node, run in its process.
pub type Job = Box<dyn FnOnce(Arc<Node>) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send>;

/// Sizes of one simulation.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    pub segment_bytes: u64,
    pub cache_bytes: usize,
    pub snapshot_bytes: u64,
    pub keep_entries: u64,
}

/// A host. It survives its process.
#[derive(Clone)]
pub struct Host {
    pub id: u64,
    pub disk: SimDisk,
    pub size: Size,
    /// Error of its wall clock, in microseconds.
    pub wall_off_us: Arc<AtomicI64>,
    process: Arc<Mutex<Option<Process>>>,
}

/// A running node, and the way to it.
#[derive(Clone)]
pub struct Process {
    pub node: Arc<Node>,
    pub jobs: mpsc::UnboundedSender<Job>,
}

pub fn name(id: u64) -> String {
    format!("n{id}")
}

/// Address of a node for its peers.
pub fn address(id: u64) -> String {
    format!("{}:{PORT}", name(id))
}

impl Host {
    pub fn new(id: u64, disk: SimDisk, size: Size) -> Host {
        Host { id, disk, size, wall_off_us: Arc::default(), process: Arc::default() }
    }

    /// Runs a node process that executes jobs until it is killed.
    pub async fn run(self) -> turmoil::Result {
        let time = SimTime { start: Instant::now(), wall_off_us: Arc::clone(&self.wall_off_us) };
        let options = NodeOptions {
            id: Some(self.id),
            peer_listen: Some(address(self.id)),
            bootstrap: if self.id == 1 { vec![address(1)] } else { Vec::new() },
            join: if self.id == 1 { Vec::new() } else { vec![address(1)] },
            timing: TIMING,
            time: Arc::new(time),
            net: Arc::new(SimNet),
            log: LogOptions { segment_bytes: self.size.segment_bytes, cache_bytes: self.size.cache_bytes },
            snapshot_bytes: self.size.snapshot_bytes,
            keep_entries: self.size.keep_entries,
            ..NodeOptions::new(self.disk.mount())
        };
        let node = match Node::open(options).await {
            Ok(node) => Arc::new(node),
            // A power cut that is still pending also hits a starting process.
            Err(error) if self.disk.is_faulty() => {
                tracing::info!("{}: {error}", name(self.id));
                return std::future::pending().await;
            }
            Err(error) => return Err(format!("node {} cannot start: {error}", self.id).into()),
        };
        let (sender, mut jobs) = mpsc::unbounded_channel::<Job>();
        *self.process.lock().unwrap() = Some(Process { node: Arc::clone(&node), jobs: sender });
        while let Some(job) = jobs.recv().await {
            tokio::spawn(job(Arc::clone(&node)));
        }
        Ok(())
    }

    pub fn node(&self) -> Option<Arc<Node>> {
        self.process.lock().unwrap().as_ref().map(|process| Arc::clone(&process.node))
    }

    /// Sends a job to the running node, if any.
    pub fn hand_over(&self, job: Job) -> bool {
        self.process.lock().unwrap().as_ref().is_some_and(|process| process.jobs.send(job).is_ok())
    }

    /// Forgets the dead process.
    pub fn bury(&self) {
        *self.process.lock().unwrap() = None;
    }
}

/// Steady time is simulated time; the wall clock has an error.
pub struct SimTime {
    pub start: Instant,
    pub wall_off_us: Arc<AtomicI64>,
}

impl TimeSource for SimTime {
    fn steady_us(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_micros()).unwrap()
    }

    fn wall_us(&self) -> u64 {
        let elapsed = turmoil::sim_elapsed().map_or(0, |elapsed| elapsed.as_micros());
        let right = BEGIN_US + u64::try_from(elapsed).unwrap();
        right.saturating_add_signed(self.wall_off_us.load(Ordering::Relaxed))
    }
}

/// The simulated network of the host that a task runs on.
#[derive(Debug)]
pub struct SimNet;

impl Net for SimNet {
    fn connect(&self, address: String) -> BoxFuture<io::Result<Connection>> {
        Box::pin(async move { Ok(whole(turmoil::net::TcpStream::connect(address).await?)) })
    }

    fn listen(&self, address: String) -> BoxFuture<io::Result<Box<dyn Listener>>> {
        Box::pin(async move {
            let listener = turmoil::net::TcpListener::bind(("0.0.0.0", PORT)).await?;
            Ok(Box::new(SimListener { listener, address }) as Box<dyn Listener>)
        })
    }
}

/// Sends everything flushed together as one message. Responses contain the real date, whose compressed length varies;
/// with it the number of messages would vary.
fn whole(stream: turmoil::net::TcpStream) -> Connection {
    Connection::new(BufWriter::with_capacity(MESSAGE_BYTES, stream))
}

struct SimListener {
    listener: turmoil::net::TcpListener,
    address: String,
}

impl Listener for SimListener {
    fn accept(&mut self) -> Pin<Box<dyn Future<Output = io::Result<Connection>> + Send + '_>> {
        Box::pin(async { Ok(whole(self.listener.accept().await?.0)) })
    }

    fn address(&self) -> String {
        self.address.clone()
    }
}
