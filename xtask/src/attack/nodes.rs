//! The nodes under attack: processes on free ports, with a data folder and a log each.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};
use std::net::{Ipv6Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::gateway;
use super::wire::{self, Request};
use crate::run::Failure;

/// Longest wait for a node or a member.
const START_MAX: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(100);

/// The processes, killed on drop together with their folder.
pub(super) struct Nodes {
    /// Whether the logs stay in the folder, because they may explain a failure.
    pub(super) keeps_logs: bool,
    folder: PathBuf,
    children: Vec<Child>,
    ports: Vec<u16>,
    /// The port of the gateway, if there is one.
    gateway: Option<u16>,
    /// An admin key of namespace `default`.
    root: String,
}

fn failed(what: impl Into<String>) -> Failure {
    Failure::Server(what.into())
}

fn free_port() -> io::Result<u16> {
    TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0))?.local_addr().map(|address| address.port())
}

impl Nodes {
    pub(super) fn start(binary: &Path, count: usize) -> Result<Nodes, Failure> {
        let folder = std::env::temp_dir().join(format!("earmark-attack-{}", std::process::id()));
        let write = |source| Failure::Write { path: folder.clone(), source };
        fs::create_dir_all(&folder).map_err(write)?;
        // A server with an issuer accepts no call without credentials, also before it has learned of the first key.
        fs::write(folder.join("jwks.json"), r#"{"keys":[]}"#).map_err(write)?;
        let ports = |_| free_port().map_err(|error| failed(format!("has no free port: {error}")));
        let ports = (0..count * 2).map(ports).collect::<Result<Vec<u16>, Failure>>()?;
        let (ports, peers) = ports.split_at(count);
        let mut nodes = Nodes {
            keeps_logs: false,
            folder,
            children: Vec::new(),
            ports: ports.to_vec(),
            gateway: None,
            root: String::new(),
        };
        for place in 0..count {
            nodes.spawn(binary, place, peers)?;
            nodes.wait("a node that is ready", |nodes| nodes.is_ready(place))?;
        }
        nodes.wait("members that are voters", |nodes| nodes.voters() == count)?;
        Ok(nodes)
    }

    fn spawn(&mut self, binary: &Path, place: usize, peers: &[u16]) -> Result<(), Failure> {
        let log = self.folder.join(format!("log{place}"));
        let log = File::create(&log).map_err(|source| Failure::Write { path: log, source })?;
        let mut command = Command::new(binary);
        command.args(["serve", "--insecure-plaintext", "--insecure-peers", "--data"]).arg(self.data(place));
        command.args(["--issuer", "https://issuer.example", "--audience", "earmark", "--issuer-keys"]);
        command.arg(self.folder.join("jwks.json"));
        let port = |ports: &[u16], place: usize| ports.get(place).copied().unwrap_or_default();
        command.args(["--listen", &format!("[::]:{}", port(&self.ports, place))]);
        command.args(["--node-id", &(place + 1).to_string()]);
        command.args(["--peer-listen", &format!("127.0.0.1:{}", port(peers, place))]);
        match place {
            0 => command.args(["--bootstrap-key", "--bootstrap", &format!("127.0.0.1:{}", port(peers, 0))]),
            _ => command.args(["--join", &format!("127.0.0.1:{}", port(peers, 0))]),
        };
        command.env_remove("RUST_LOG").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
        let line = crate::run::line(&command);
        let mut child = command.spawn().map_err(|source| Failure::Start { line, source })?;
        let stdout = child.stdout.take();
        self.children.push(child);
        let mut lines = stdout.map(|stdout| BufReader::new(stdout).lines()).into_iter().flatten();
        if place == 0 {
            let key = lines.by_ref().map_while(Result::ok).find_map(|line| {
                line.strip_prefix("key:").map(|key| key.trim().to_owned()).filter(|key| key.starts_with("emk_"))
            });
            self.root = key.ok_or_else(|| failed("did not print its key"))?;
        }
        // Drains standard output, because the process would block on a full pipe.
        std::thread::spawn(move || lines.for_each(drop));
        Ok(())
    }

    /// Starts a gateway before the first node. From then on calls go to it.
    pub(super) fn start_gateway(&mut self, binary: &Path) -> Result<(), Failure> {
        let port = free_port().map_err(|error| failed(format!("has no free port: {error}")))?;
        let upstream = gateway::upstream().map_err(|error| failed(format!("has no upstream: {error}")))?;
        let (path, log) = (self.folder.join("gateway.toml"), self.folder.join("log-gateway"));
        let write = |path: &Path, source| Failure::Write { path: path.to_owned(), source };
        fs::write(&path, gateway::config(port, upstream)).map_err(|source| write(&path, source))?;
        let log = File::create(&log).map_err(|source| write(&log, source))?;
        let key = self.key_of("default", "gateway")?;
        let server = self.ports.first().copied().unwrap_or_default();
        let mut command = Command::new(binary);
        command.arg("gateway").arg("--config").arg(path).arg("--calls").arg(self.folder.join("calls"));
        command.args(["--server", &format!("http://127.0.0.1:{server}")]).env("EARMARK_KEY", key);
        command.env_remove("RUST_LOG").stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let line = crate::run::line(&command);
        self.children.push(command.spawn().map_err(|source| Failure::Start { line, source })?);
        self.gateway = Some(port);
        self.wait("a gateway that is ready", |nodes| nodes.is_ready(0))
    }

    fn data(&self, place: usize) -> PathBuf {
        self.folder.join(format!("n{place}"))
    }

    fn wait(&self, what: &str, is_there: impl Fn(&Nodes) -> bool) -> Result<(), Failure> {
        let start = Instant::now();
        while !is_there(self) {
            if start.elapsed() > START_MAX {
                return Err(failed(format!("has no {what} after {} s", START_MAX.as_secs())));
            }
            sleep(POLL);
        }
        Ok(())
    }

    fn is_ready(&self, place: usize) -> bool {
        let request = Request { key: &self.root, method: "GET", path: "/readyz", body: "" };
        let address = self.honest().get(place).copied();
        address.is_some_and(|address| wire::ask(address, request).is_ok_and(|answer| answer.status == 200))
    }

    fn voters(&self) -> usize {
        let answer = self.ask("GET", "/v1/admin/cluster", "");
        answer
            .map_or(0, |body| body.matches("\"role\":\"leader\"").count() + body.matches("\"role\":\"voter\"").count())
    }

    /// Asks the first node as an admin of `default`.
    pub(super) fn ask(&self, method: &str, path: &str, body: &str) -> Result<String, Failure> {
        self.ask_as(&self.root, method, path, body)
    }

    /// Asks the first node with a key.
    pub(super) fn ask_as(&self, key: &str, method: &str, path: &str, body: &str) -> Result<String, Failure> {
        let port = self.ports.first().copied().ok_or_else(|| failed("has no node"))?;
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let answer = wire::ask(address, Request { key, method, path, body });
        let answer = answer.map_err(|error| failed(format!("did not answer {method} {path}: {error}")))?;
        match answer.status {
            200 => Ok(answer.body),
            status => Err(failed(format!("answered {method} {path} with {status}: {}", answer.body))),
        }
    }

    /// A new admin key of a namespace.
    pub(super) fn key(&self, namespace: &str) -> Result<String, Failure> {
        self.key_of(namespace, "admin")
    }

    fn key_of(&self, namespace: &str, role: &str) -> Result<String, Failure> {
        let body = format!(r#"{{"name":"attack","role":"{role}","namespace":"{namespace}"}}"#);
        let body = self.ask("POST", "/v1/admin/keys", &body)?;
        let answer = wire::Answer { status: 200, body };
        answer.text("key").map(str::to_owned).ok_or_else(|| failed("returned no key"))
    }

    /// The addresses for honest tenants.
    pub(super) fn honest(&self) -> Vec<SocketAddr> {
        self.targets().map(|port| SocketAddr::from(([127, 0, 0, 1], port))).collect()
    }

    /// The addresses for attackers, whose own address then differs from that of the tenants.
    pub(super) fn attacked(&self) -> Vec<SocketAddr> {
        self.targets().map(|port| SocketAddr::from((Ipv6Addr::LOCALHOST, port))).collect()
    }

    /// The ports of the gateway or else of the nodes.
    fn targets(&self) -> impl Iterator<Item = u16> + '_ {
        let nodes = if self.gateway.is_some() { &[][..] } else { &self.ports };
        self.gateway.into_iter().chain(nodes.iter().copied())
    }

    /// The memory of the largest node or gateway, in bytes.
    pub(super) fn memory(&self) -> u64 {
        self.children.iter().map(|child| resident(child.id())).max().unwrap_or(0)
    }

    /// The size of all data folders and logs, in bytes.
    pub(super) fn disk(&self) -> u64 {
        size(&self.folder)
    }

    /// The place of a node that has ended.
    pub(super) fn ended(&mut self) -> Option<usize> {
        self.children.iter_mut().position(|child| !matches!(child.try_wait(), Ok(None)))
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        for child in &mut self.children {
            _ = child.kill();
            _ = child.wait();
        }
        if self.keeps_logs {
            (0..self.children.len()).for_each(|place| _ = fs::remove_dir_all(self.data(place)));
            println!("the logs of the nodes are in {}", self.folder.display());
            return;
        }
        _ = fs::remove_dir_all(&self.folder);
    }
}

/// The resident memory of a process, from `/proc`; 0 on other systems than Linux.
fn resident(process: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib: Option<u64> = line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok());
    kib.unwrap_or(0) * 1024
}

fn size(path: &Path) -> u64 {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    let sizes = entries.map(|entry| match entry.metadata() {
        Ok(about) if about.is_dir() => size(&entry.path()),
        Ok(about) => about.len(),
        Err(_) => 0,
    });
    sizes.sum()
}
