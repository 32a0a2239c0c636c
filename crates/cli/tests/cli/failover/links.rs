//! Proxies between the nodes, which can delay, hold back or close their connections.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{sleep, spawn};
use std::time::{Duration, Instant};

use super::nodes::COUNT;

const POLL: Duration = Duration::from_millis(2);
/// Timeout for finding a connection in /proc/net/tcp.
const IDENTIFY: Duration = Duration::from_secs(1);

/// One proxy in front of each node.
#[derive(Default)]
pub(crate) struct Links {
    /// Whether bytes from one node to another are held back.
    held: [[AtomicBool; COUNT]; COUNT],
    delay_ms: AtomicU64,
    processes: [AtomicU64; COUNT],
    /// Dialling node, dialled node, and the stream of each end.
    connections: Mutex<Vec<(usize, usize, TcpStream)>>,
    is_over: AtomicBool,
}

impl Links {
    /// Starts a proxy for each node.
    pub(crate) fn open(fronts: &[String], nodes: &[String]) -> Arc<Links> {
        let links = Arc::new(Links::default());
        for (to, (front, node)) in fronts.iter().zip(nodes).enumerate() {
            let listener = TcpListener::bind(front).unwrap();
            listener.set_nonblocking(true).unwrap();
            let (links, node) = (Arc::clone(&links), node.clone());
            spawn(move || {
                while !links.is_over() {
                    match listener.accept() {
                        Ok((dialled, _)) => {
                            let (links, node) = (Arc::clone(&links), node.clone());
                            spawn(move || links.carry(dialled, to, &node));
                        }
                        Err(_) => sleep(POLL),
                    }
                }
            });
        }
        links
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// Sets the process id of a node.
    pub(crate) fn is_process(&self, node: usize, id: u32) {
        self.processes[node].store(id.into(), Ordering::Relaxed);
    }

    pub(crate) fn hold(&self, from: usize, to: usize, is_held: bool) {
        self.held[from][to].store(is_held, Ordering::SeqCst);
    }

    /// Ends all partitions and delays.
    pub(crate) fn heal(&self) {
        self.held.iter().flatten().for_each(|held| held.store(false, Ordering::SeqCst));
        self.delay_ms.store(0, Ordering::Relaxed);
    }

    pub(crate) fn delay(&self, by: Duration) {
        self.delay_ms.store(u64::try_from(by.as_millis()).unwrap(), Ordering::Relaxed);
    }

    /// Closes all connections of a node.
    pub(crate) fn sever(&self, node: usize) {
        self.connections.lock().unwrap().retain(|(from, to, stream)| {
            let is_its = *from == node || *to == node;
            if is_its {
                // The stream may be closed already.
                _ = stream.shutdown(Shutdown::Both);
            }
            !is_its
        });
    }

    fn is_held(&self, from: usize, to: usize) -> bool {
        self.held[from][to].load(Ordering::SeqCst)
    }

    /// Forwards a connection to its node. Like a TCP handshake, it waits until both directions are open.
    fn carry(self: &Arc<Links>, dialled: TcpStream, to: usize, node: &str) {
        let Some(from) = self.dialler(&dialled) else { return };
        while self.is_held(from, to) || self.is_held(to, from) {
            if self.is_over() {
                return;
            }
            sleep(POLL);
        }
        let Ok(reached) = TcpStream::connect(node) else { return };
        dialled.set_nonblocking(false).unwrap();
        for stream in [&dialled, &reached] {
            stream.set_nodelay(true).unwrap();
            stream.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
            self.connections.lock().unwrap().push((from, to, stream.try_clone().unwrap()));
        }
        let (links, back) = (Arc::clone(self), (reached.try_clone().unwrap(), dialled.try_clone().unwrap()));
        spawn(move || links.pump(back, to, from));
        self.pump((dialled, reached), from, to);
    }

    fn pump(&self, (mut source, mut sink): (TcpStream, TcpStream), from: usize, to: usize) {
        let mut bytes = vec![0; 64 << 10];
        loop {
            let len = match source.read(&mut bytes) {
                Ok(0) => break,
                Ok(len) => len,
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    if self.is_over() {
                        break;
                    }
                    continue;
                }
                Err(_) => break,
            };
            sleep(Duration::from_millis(self.delay_ms.load(Ordering::Relaxed)));
            while self.is_held(from, to) && !self.is_over() {
                sleep(POLL);
            }
            if sink.write_all(&bytes[..len]).is_err() {
                break;
            }
        }
        // Either end may be closed already.
        _ = source.shutdown(Shutdown::Both);
        _ = sink.shutdown(Shutdown::Both);
    }

    /// The node that opened a connection: the process that owns the socket.
    fn dialler(&self, dialled: &TcpStream) -> Option<usize> {
        let port = dialled.peer_addr().ok()?.port();
        let start = Instant::now();
        while start.elapsed() < IDENTIFY {
            if let Some(inode) = inode(port)
                && let Some(node) = (0..COUNT).find(|node| self.has(*node, &inode))
            {
                return Some(node);
            }
            sleep(POLL);
        }
        None
    }

    fn has(&self, node: usize, inode: &str) -> bool {
        let process = self.processes[node].load(Ordering::Relaxed);
        let Ok(files) = fs::read_dir(format!("/proc/{process}/fd")) else { return false };
        let wanted = format!("socket:[{inode}]");
        files.flatten().any(|file| fs::read_link(file.path()).is_ok_and(|link| link.as_os_str() == &*wanted))
    }
}

/// The inode of the established socket with this local port.
fn inode(port: u16) -> Option<String> {
    const ESTABLISHED: &str = "01";
    let table = fs::read_to_string("/proc/net/tcp").ok()?;
    let local = format!(":{port:04X}");
    let fields = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let found = table.lines().map(fields).find(|row| row[1].ends_with(&local) && row[3] == ESTABLISHED);
    found.map(|row| row[9].clone()).filter(|inode| inode != "0")
}

impl Drop for Stop {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::Relaxed);
    }
}

/// Stops the proxies on drop.
pub(crate) struct Stop(pub(crate) Arc<Links>);
