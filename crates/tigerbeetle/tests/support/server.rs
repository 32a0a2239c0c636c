//! A real TigerBeetle server: one replica on a temporary file and a free port.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
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

pub struct Server {
    binary: PathBuf,
    file: PathBuf,
    address: SocketAddr,
    child: Option<Child>,
    _folder: TempDir,
}

impl Server {
    /// Starts a server, if there is a binary.
    pub fn start() -> Option<Server> {
        Server::format().map(|mut server| {
            server.up();
            server
        })
    }

    /// A formatted server that is not running.
    pub fn format() -> Option<Server> {
        let binary = binary()?;
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("0_0.tigerbeetle");
        let formatted = Command::new(&binary)
            .args(["format", "--cluster=0", "--replica=0", "--replica-count=1", "--development"])
            .arg(&file)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .unwrap();
        assert!(formatted.success(), "{} format failed", binary.display());
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap();
        Some(Server { binary, file, address: port, child: None, _folder: folder })
    }

    /// Starts the process on the same port and file as before.
    pub fn up(&mut self) {
        assert!(self.child.is_none());
        let log = std::fs::File::create(self.file.with_extension("log")).unwrap();
        let child = Command::new(&self.binary)
            .arg("start")
            .arg(format!("--addresses={}", self.address))
            .args(["--development", "--cache-grid=64MiB"])
            .arg(&self.file)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        self.child = Some(child);
        let start = Instant::now();
        while TcpStream::connect_timeout(&self.address, Duration::from_millis(100)).is_err() {
            assert!(start.elapsed() < Duration::from_secs(240), "the server does not listen: {}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Kills the process with SIGKILL.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.file.with_extension("log")).unwrap_or_default()
    }

    pub fn file(&self) -> &Path {
        &self.file
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn url(&self) -> LedgerUrl {
        format!("tigerbeetle://{}?cluster=0", self.address).parse().unwrap()
    }

    pub fn options(&self) -> TigerBeetleOptions {
        TigerBeetleOptions::new(self.url())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            _ = child.kill();
            _ = child.wait();
        }
    }
}
