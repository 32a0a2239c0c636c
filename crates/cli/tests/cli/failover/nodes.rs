//! The processes of a cluster.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::links::{Links, Stop};
use crate::ask::ask_by;

pub(crate) const COUNT: usize = 3;
const PATIENCE: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(20);

/// Three nodes with their data folders, killed on drop.
pub(crate) struct Nodes {
    /// The binary of the processes that start next.
    binary: PathBuf,
    /// The binary of the previous version, if there is one.
    previous: Option<PathBuf>,
    folder: TempDir,
    urls: Vec<String>,
    peers: Vec<String>,
    children: Vec<Option<Child>>,
    /// Proxy addresses of the nodes; empty without proxies.
    fronts: Vec<String>,
    links: Option<Stop>,
    /// An admin key, if the cluster has keys.
    pub(crate) root: Option<String>,
    flags: &'static [&'static str],
}

/// Free addresses.
fn free(count: usize) -> Vec<String> {
    std::iter::repeat_with(crate::ask::free).take(count).collect()
}

impl Nodes {
    /// Starts all nodes and waits until all are voters.
    pub(crate) fn start() -> Nodes {
        Nodes::new(TempDir::new().unwrap(), COUNT).started()
    }

    /// Starts nodes of the previous version, whose binary `EARMARK_PREVIOUS` names. Without it they are of this version,
    /// and the first one has data of an earlier version, which `unpack` writes to its folder.
    pub(crate) fn of_previous_version(unpack: impl FnOnce(&Path)) -> Nodes {
        let mut nodes = Nodes::new(TempDir::new().unwrap(), COUNT);
        nodes.previous = std::env::var_os("EARMARK_PREVIOUS").map(PathBuf::from);
        match &nodes.previous {
            Some(binary) => nodes.binary.clone_from(binary),
            None => {
                eprintln!("EARMARK_PREVIOUS names no binary; the nodes start on the data of an earlier version");
                unpack(&nodes.data(0));
            }
        }
        let mut nodes = nodes.started();
        nodes.binary = PathBuf::from(env!("CARGO_BIN_EXE_earmark"));
        nodes
    }

    /// Starts nodes of the previous version from now on. Returns false if there is no binary of one.
    pub(crate) fn start_previous_version_next(&mut self) -> bool {
        if let Some(binary) = &self.previous {
            self.binary.clone_from(binary);
        }
        self.previous.is_some()
    }

    /// Like [`Nodes::start`], with a proxy in front of each node.
    pub(crate) fn behind_proxies() -> Nodes {
        Nodes::with_flags(&[])
    }

    /// Like [`Nodes::behind_proxies`], on servers that require keys.
    pub(crate) fn with_keys() -> Nodes {
        let mut nodes = Nodes::with_flags(&["--insecure-peers"]);
        nodes.root = Some(nodes.key("admin"));
        nodes
    }

    pub(crate) fn key(&self, role: &str) -> String {
        let body = json!({"name": "test", "role": role}).to_string();
        let made = ("POST", "/v1/admin/keys", body.as_str());
        let made = ask_by(self.root.as_deref(), &self.urls[0], made, PATIENCE).unwrap();
        assert_eq!(made.status, 200, "{}", made.body);
        let made: Value = serde_json::from_str(&made.body).unwrap();
        made["key"].as_str().unwrap().to_owned()
    }

    fn with_flags(flags: &'static [&'static str]) -> Nodes {
        let mut nodes = Nodes::new(TempDir::new().unwrap(), COUNT);
        nodes.flags = flags;
        nodes.fronts = free(COUNT);
        nodes.links = Some(Stop(Links::open(&nodes.fronts, &nodes.peers)));
        nodes.started()
    }

    fn new(folder: TempDir, count: usize) -> Nodes {
        let mut urls = free(count * 2);
        let peers = urls.split_off(count);
        let (children, fronts) = (Vec::new(), Vec::new());
        let binary = PathBuf::from(env!("CARGO_BIN_EXE_earmark"));
        Nodes { binary, previous: None, folder, urls, peers, children, fronts, links: None, root: None, flags: &[] }
    }

    fn started(self) -> Nodes {
        let mut nodes = self;
        for place in 0..COUNT {
            let child = nodes.spawn(place);
            nodes.children.push(Some(child));
            nodes.until(place, |status| status["leader_id"].is_u64());
        }
        nodes.until(0, |status| {
            let members = status["members"].as_array().unwrap();
            members.len() == COUNT && members.iter().all(|member| member["role"] != "learner")
        });
        nodes
    }

    fn spawn(&self, place: usize) -> Child {
        let mut command = Command::new(&self.binary);
        command.args(["serve", "--log-level", "error", "--listen", &self.urls[place]]).args(self.flags);
        command.args(["--node-id", &(place + 1).to_string(), "--peer-listen", &self.peers[place], "--data"]);
        command.arg(self.data(place));
        let reached = if self.fronts.is_empty() { &self.peers } else { &self.fronts };
        command.args([if place > 0 { "--join" } else { "--bootstrap" }, &reached[0]]);
        if let Some(front) = self.fronts.get(place) {
            command.args(["--peer-advertise", front]);
        }
        let quiet = command.env_remove("RUST_LOG").stdin(Stdio::null()).stdout(Stdio::null());
        let child = quiet.spawn().unwrap();
        if let Some(Stop(links)) = &self.links {
            links.is_process(place, child.id());
        }
        child
    }

    /// The proxies between the nodes.
    pub(crate) fn links(&self) -> Arc<Links> {
        Arc::clone(&self.links.as_ref().unwrap().0)
    }

    /// Starts a cluster of one node on a folder.
    pub(crate) fn alone(folder: TempDir) -> Nodes {
        let mut node = Nodes::new(folder, 1);
        node.children.push(Some(node.spawn(0)));
        node.until(0, |status| status["leader_id"] == 1);
        node
    }

    pub(crate) fn data(&self, place: usize) -> PathBuf {
        self.folder.path().join(format!("n{place}"))
    }

    /// The client addresses of the nodes.
    pub(crate) fn urls(&self) -> &[String] {
        &self.urls
    }

    fn status(&self, place: usize) -> Option<Value> {
        let asked = ("GET", "/v1/admin/cluster", "");
        let answered = ask_by(self.root.as_deref(), &self.urls[place], asked, Duration::from_secs(1)).ok()?;
        serde_json::from_str(&answered.body).ok()
    }

    fn until(&self, place: usize, wanted: impl Fn(&Value) -> bool) {
        let start = Instant::now();
        while !self.status(place).is_some_and(|status| wanted(&status)) {
            assert!(start.elapsed() < PATIENCE, "node {place}: {:?}", self.status(place));
            sleep(POLL);
        }
    }

    /// The index of the leader, once all nodes agree on it.
    pub(crate) fn leader(&self) -> usize {
        let start = Instant::now();
        loop {
            let said: Vec<Option<u64>> = (0..COUNT).map(|place| self.status(place)?["leader_id"].as_u64()).collect();
            if let Some(leader) = said[0]
                && said.iter().all(|other| *other == Some(leader))
            {
                return usize::try_from(leader).unwrap() - 1;
            }
            assert!(start.elapsed() < PATIENCE, "no leader: {said:?}");
            sleep(POLL);
        }
    }

    /// Kills a node with SIGKILL.
    pub(crate) fn kill(&mut self, place: usize) {
        let mut child = self.children[place].take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Stops a node with SIGTERM and waits for it to exit.
    pub(crate) fn stop(&mut self, place: usize) {
        self.signal(place, "TERM");
        let stopped = self.children[place].take().unwrap().wait().unwrap();
        assert!(stopped.success(), "{stopped}");
    }

    pub(crate) fn restart(&mut self, place: usize) {
        self.children[place] = Some(self.spawn(place));
        self.until(place, |status| status["leader_id"].is_u64());
    }

    /// Waits until a node has applied everything that the leader has applied now.
    pub(crate) fn settled(&self, place: usize) {
        let applied = self.status(self.leader()).and_then(|status| status["applied_index"].as_u64());
        self.until(place, |status| status["applied_index"].as_u64() >= applied);
    }

    /// Sends a signal, such as STOP.
    pub(crate) fn signal(&self, place: usize, name: &str) {
        let id = self.children[place].as_ref().unwrap().id().to_string();
        assert!(Command::new("kill").args([&format!("-{name}"), &id]).status().unwrap().success());
    }

    /// Waits until all nodes have applied the same entries, and asserts that all still run.
    pub(crate) fn settle(&mut self) {
        let start = Instant::now();
        loop {
            let applied: Vec<Option<u64>> =
                (0..COUNT).map(|place| self.status(place)?["applied_index"].as_u64()).collect();
            if applied[0].is_some() && applied.iter().all(|other| *other == applied[0]) {
                break;
            }
            assert!(start.elapsed() < PATIENCE, "they do not agree: {applied:?}");
            sleep(POLL);
        }
        for child in self.children.iter_mut().flatten() {
            assert!(child.try_wait().unwrap().is_none(), "a node has stopped by itself");
        }
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        for child in self.children.iter_mut().flatten() {
            // The process may have exited already.
            _ = child.kill();
            _ = child.wait();
        }
    }
}
