//! A real TigerBeetle cluster: one replica, or three, on temporary files and free ports.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use earmark_tigerbeetle::{LedgerUrl, TigerBeetleOptions};
use tempfile::TempDir;

/// The binary: `TB_BIN`, or `tigerbeetle` on the `PATH`. Prints a message without one, so that a skipped test does
/// not look like a passed one.
pub fn binary() -> Option<PathBuf> {
    let found = match std::env::var_os("TB_BIN") {
        Some(path) => Some(PathBuf::from(path)),
        None => std::env::var_os("PATH").and_then(|paths| {
            std::env::split_paths(&paths).map(|folder| folder.join("tigerbeetle")).find(|file| file.is_file())
        }),
    };
    if found.is_none() {
        eprintln!("skipped: no tigerbeetle binary; put one of 0.17.9 on the PATH or name it in TB_BIN");
    }
    found
}

/// How long a replica may take to listen on a busy machine.
const PATIENCE: Duration = Duration::from_secs(240);
/// The first port given. All are below the range of ports that the system gives to connections: a client that tries to
/// reach a dead replica in that range may connect to itself, and then the replica cannot return.
const FIRST_PORT: u16 = 10_000;
/// Ports for each process of tests.
const PORTS: u16 = 100;
const PROCESSES: u32 = 100;

/// Limits of a server: on batches, caches and I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// Batches of 253 events.
    Development,
    /// Batches of 8,189 events, and direct I/O.
    Production,
}

impl Mode {
    fn flags(self) -> &'static [&'static str] {
        match self {
            Mode::Development => &["--development"],
            Mode::Production => &[],
        }
    }
}

struct Replica {
    file: PathBuf,
    address: SocketAddr,
    child: Option<Child>,
}

impl Replica {
    fn log(&self) -> String {
        std::fs::read_to_string(self.file.with_extension("log")).unwrap_or_default()
    }

    /// Whether the process listens.
    ///
    /// # Panics
    /// If it has ended by itself.
    fn is_up(&mut self) -> bool {
        let ended = self.child.as_mut().and_then(|child| child.try_wait().unwrap());
        assert!(ended.is_none(), "the replica on {} ended by itself with {ended:?}: {}", self.address, self.log());
        TcpStream::connect_timeout(&self.address, Duration::from_millis(100)).is_ok()
    }

    fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        self.kill();
    }
}

pub struct Server {
    binary: PathBuf,
    mode: Mode,
    replicas: Vec<Replica>,
    _folder: TempDir,
}

/// A free address, which no other test of this process gets.
fn free() -> SocketAddr {
    static GIVEN: AtomicU16 = AtomicU16::new(0);
    let first = FIRST_PORT + u16::try_from(std::process::id() % PROCESSES).unwrap() * PORTS;
    let ports = std::iter::repeat_with(|| first + GIVEN.fetch_add(1, Ordering::Relaxed) % PORTS);
    let mut addresses = ports.map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    addresses.find(|address| TcpListener::bind(address).is_ok()).unwrap()
}

impl Server {
    /// Starts a cluster of one replica, if there is a binary.
    pub fn start() -> Option<Server> {
        Server::format().map(Server::started)
    }

    /// Starts a cluster of three replicas.
    pub fn start_three() -> Option<Server> {
        Server::formatted(3, Mode::Development).map(Server::started)
    }

    /// Starts one replica with the settings for production.
    pub fn start_for_production() -> Option<Server> {
        Server::formatted(1, Mode::Production).map(Server::started)
    }

    /// A cluster of one replica that is not running.
    pub fn format() -> Option<Server> {
        Server::formatted(1, Mode::Development)
    }

    fn formatted(count: usize, mode: Mode) -> Option<Server> {
        let binary = binary()?;
        let folder = tempfile::tempdir().unwrap();
        let replicas = (0..count).map(|place| {
            let file = folder.path().join(format!("0_{place}.tigerbeetle"));
            let formatted = Command::new(&binary)
                .args(["format", "--cluster=0", &format!("--replica={place}"), &format!("--replica-count={count}")])
                .args(mode.flags())
                .arg(&file)
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status()
                .unwrap();
            assert!(formatted.success(), "{} format failed", binary.display());
            Replica { file, address: free(), child: None }
        });
        let replicas = replicas.collect();
        Some(Server { binary, mode, replicas, _folder: folder })
    }

    fn started(mut self) -> Server {
        self.up();
        self
    }

    /// Starts the processes that do not run, on their ports and files, and waits until they listen.
    pub fn up(&mut self) {
        let addresses = self.addresses();
        for replica in self.replicas.iter_mut().filter(|replica| replica.child.is_none()) {
            let log = std::fs::File::create(replica.file.with_extension("log")).unwrap();
            let child = Command::new(&self.binary)
                .args(["start", &format!("--addresses={addresses}"), "--cache-grid=64MiB"])
                .args(self.mode.flags())
                .arg(&replica.file)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(log)
                .spawn()
                .unwrap();
            replica.child = Some(child);
        }
        let start = Instant::now();
        for replica in &mut self.replicas {
            while !replica.is_up() {
                assert!(start.elapsed() < PATIENCE, "{} does not listen: {}", replica.address, replica.log());
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }

    /// Kills the processes with SIGKILL.
    pub fn kill(&mut self) {
        self.replicas.iter_mut().for_each(Replica::kill);
    }

    /// Kills one replica with SIGKILL.
    pub fn kill_one(&mut self, place: usize) {
        self.replicas[place].kill();
    }

    /// The last lines of the logs, for a test that fails.
    pub fn logs(&self) -> String {
        let logs = self.replicas.iter().map(|replica| {
            let log = replica.log();
            let last = log.lines().count().saturating_sub(20);
            let lines: Vec<&str> = log.lines().skip(last).collect();
            format!("{}:\n{}", replica.address, lines.join("\n"))
        });
        logs.collect::<Vec<_>>().join("\n")
    }

    fn addresses(&self) -> String {
        self.replicas.iter().map(|replica| replica.address.to_string()).collect::<Vec<_>>().join(",")
    }

    /// The address of the first replica.
    pub fn address(&self) -> SocketAddr {
        self.replicas[0].address
    }

    pub fn url(&self) -> LedgerUrl {
        format!("tigerbeetle://{}?cluster=0", self.addresses()).parse().unwrap()
    }

    pub fn options(&self) -> TigerBeetleOptions {
        TigerBeetleOptions::new(self.url())
    }
}
