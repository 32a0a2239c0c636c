//! One node of the simulation: a real node on a simulated disk, network and clock.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use earmark_admission::TimeSource;
use earmark_node::{Connection, Eventually, Listener, LogOptions, Net, Node, NodeOptions, Timing};
use tokio::io::BufWriter;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::support::disk::SimDisk;

/// When every simulation begins, in microseconds since 1970.
pub const BEGIN_US: u64 = 1_700_000_000_000_000;
const PORT: u16 = 7000;
const MESSAGE_BYTES: usize = 1 << 20;

/// Quick nodes, so that much happens in little simulated time.
pub const TIMING: Timing = Timing {
    heartbeat: Duration::from_millis(60),
    election: Duration::from_millis(300),
    deadline: Duration::from_secs(2),
};

/// Something to do with a node, in its process.
pub type Job = Box<dyn FnOnce(Arc<Node>) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send>;

/// How nodes of one simulation are set up.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    pub segment_bytes: u64,
    pub cache_bytes: usize,
    pub snapshot_bytes: u64,
    pub keep_entries: u64,
}

/// A machine. It stays when its process dies.
#[derive(Clone)]
pub struct Machine {
    pub id: u64,
    pub disk: SimDisk,
    pub size: Size,
    /// By how much its wall clock is wrong, in microseconds.
    pub wall_off_us: Arc<AtomicI64>,
    process: Arc<Mutex<Option<Process>>>,
}

#[derive(Clone)]
struct Process {
    node: Arc<Node>,
    desk: mpsc::UnboundedSender<Job>,
}

pub fn name(id: u64) -> String {
    format!("n{id}")
}

impl Machine {
    pub fn new(id: u64, disk: SimDisk, size: Size) -> Machine {
        Machine { id, disk, size, wall_off_us: Arc::default(), process: Arc::default() }
    }

    /// Starts a process on this machine, and serves jobs until it is killed.
    pub async fn run(self) -> turmoil::Result {
        let time = SimTime { start: Instant::now(), wall_off_us: Arc::clone(&self.wall_off_us) };
        let options = NodeOptions {
            id: Some(self.id),
            peer_listen: Some(format!("{}:{PORT}", name(self.id))),
            join: if self.id == 1 { Vec::new() } else { vec![format!("{}:{PORT}", name(1))] },
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
            // Power that was cut on purpose is gone for an opening process too; it is restored from outside.
            Err(error) if self.disk.is_troubled() => {
                tracing::info!("{}: {error}", name(self.id));
                return std::future::pending().await;
            }
            Err(error) => return Err(format!("node {} cannot start: {error}", self.id).into()),
        };
        let (desk, mut jobs) = mpsc::unbounded_channel::<Job>();
        *self.process.lock().unwrap() = Some(Process { node: Arc::clone(&node), desk });
        while let Some(job) = jobs.recv().await {
            tokio::spawn(job(Arc::clone(&node)));
        }
        Ok(())
    }

    /// The node that runs here, if one does.
    pub fn node(&self) -> Option<Arc<Node>> {
        self.process.lock().unwrap().as_ref().map(|process| Arc::clone(&process.node))
    }

    /// Hands a job to the node, if one runs here.
    pub fn hand_over(&self, job: Job) -> bool {
        self.process.lock().unwrap().as_ref().is_some_and(|process| process.desk.send(job).is_ok())
    }

    /// Forgets the process, which is dead.
    pub fn bury(&self) {
        *self.process.lock().unwrap() = None;
    }
}

/// Steady time is the simulation's; the wall clock is what somebody set.
struct SimTime {
    start: Instant,
    wall_off_us: Arc<AtomicI64>,
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

#[derive(Debug)]
struct SimNet;

impl Net for SimNet {
    fn connect(&self, address: String) -> Eventually<io::Result<Connection>> {
        Box::pin(async move { Ok(whole(turmoil::net::TcpStream::connect(address).await?)) })
    }

    fn listen(&self, address: String) -> Eventually<io::Result<Box<dyn Listener>>> {
        Box::pin(async move {
            let listener = turmoil::net::TcpListener::bind(("0.0.0.0", PORT)).await?;
            Ok(Box::new(SimListener { listener, address }) as Box<dyn Listener>)
        })
    }
}

/// A connection that sends what is flushed together as one message. Responses carry the real date, whose length
/// varies when it is compressed; how much fits into one write, and with that the number of messages, would vary too.
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
