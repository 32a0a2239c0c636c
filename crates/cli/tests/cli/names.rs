//! Three nodes in network namespaces of their own, with a DNS server whose answers change.
//!
//! It needs root and `ip` of iproute2. All addresses are inside the namespaces, which the test makes and deletes.

use std::collections::BTreeMap;
use std::fs::File;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{JoinHandle, sleep};
use std::time::{Duration, Instant};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::Value;
use tempfile::TempDir;

use crate::support::{Ran, Server, TIMEOUT, command};

const NODES: [&str; 3] = ["a", "b", "c"];
/// The bridge between the namespaces, where the DNS server listens.
const HUB: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);

fn name(node: &str) -> String {
    format!("{node}.earmark.test")
}

/// The names and addresses of the DNS server; it answers with failures while they are `None`.
type Zone = Arc<Mutex<Option<BTreeMap<String, Ipv4Addr>>>>;

/// The namespaces, their DNS server and the processes in them.
struct World {
    folder: TempDir,
    zone: Zone,
    is_over: Arc<AtomicBool>,
    dns: Option<JoinHandle<()>>,
    /// The node and its process, in the order of [`NODES`].
    servers: Vec<Option<Server>>,
    written: u64,
}

/// The namespace of a node or of the hub. Each test process has its own.
fn namespace(of: &str) -> String {
    format!("earmark-{}-{of}", std::process::id())
}

fn resolver_folder(of: &str) -> PathBuf {
    Path::new("/etc/netns").join(namespace(of))
}

/// Runs `ip`, which must succeed.
fn ip(line: &str) {
    let output = Command::new("ip").args(line.split_whitespace()).output().unwrap();
    assert!(output.status.success(), "ip {line}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Whether namespaces can be made here.
fn can_make_namespaces() -> bool {
    let probe = namespace("probe");
    let ran = |action: &str| Command::new("ip").args(["netns", action, &probe]).output();
    let is_made = ran("add").is_ok_and(|output| output.status.success());
    if is_made {
        _ = ran("del");
    }
    is_made
}

/// An `earmark` command in the namespace of a node.
fn inside(node: &str, words: &[&str]) -> Command {
    let plain = command(words);
    let mut wrapped = Command::new("ip");
    wrapped.args(["netns", "exec", &namespace(node)]).arg(plain.get_program()).args(plain.get_args());
    for (variable, _) in plain.get_envs().filter(|(_, value)| value.is_none()) {
        wrapped.env_remove(variable);
    }
    wrapped
}

/// Answers questions for addresses until the test is over.
fn serve_dns(zone: &Zone, is_over: &AtomicBool) {
    let hub = File::open(Path::new("/run/netns").join(namespace("hub"))).unwrap();
    move_into_link_name_space(hub.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
    let socket = UdpSocket::bind((HUB, 53)).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let mut buffer = [0; 512];
    while !is_over.load(Ordering::Relaxed) {
        let Ok((length, from)) = socket.recv_from(&mut buffer) else { continue };
        if let Some(answer) = answer(&buffer[..length], zone) {
            _ = socket.send_to(&answer, from);
        }
    }
}

/// The answer to a DNS message with one question (RFC 1035, section 4).
fn answer(question: &[u8], zone: &Zone) -> Option<Vec<u8>> {
    const HEADER: usize = 12;
    const A: [u8; 2] = [0, 1];
    let (mut at, mut labels) = (HEADER, Vec::new());
    while *question.get(at)? != 0 {
        let end = at + 1 + usize::from(question[at]);
        labels.push(String::from_utf8_lossy(question.get(at + 1..end)?).to_lowercase());
        at = end;
    }
    let end = at + 5;
    let kind = question.get(at + 1..at + 3)?;
    let zone = zone.lock().unwrap();
    let (code, found) = match zone.as_ref().map(|zone| zone.get(&labels.join("."))) {
        None => (2, None),
        Some(None) => (3, None),
        Some(Some(address)) => (0, (kind == A).then_some(*address)),
    };
    let mut answer = question.get(..2)?.to_vec();
    answer.extend([0x81, 0x80 | code, 0, 1, 0, u8::from(found.is_some()), 0, 0, 0, 0]);
    answer.extend(question.get(HEADER..end)?);
    if let Some(address) = found {
        // The name of the question, type A, class IN, time to live 0, four bytes.
        answer.extend([0xc0, 0x0c, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4]);
        answer.extend(address.octets());
    }
    Some(answer)
}

/// Writes an authority, and for each node a certificate of its name.
fn certificates(folder: &Path) {
    let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let authority = rcgen::CertifiedIssuer::self_signed(params, rcgen::KeyPair::generate().unwrap()).unwrap();
    std::fs::write(folder.join("ca.pem"), authority.pem()).unwrap();
    for node in NODES {
        let key = rcgen::KeyPair::generate().unwrap();
        let params = rcgen::CertificateParams::new(vec![name(node)]).unwrap();
        std::fs::write(folder.join(format!("{node}.pem")), params.signed_by(&key, &authority).unwrap().pem()).unwrap();
        std::fs::write(folder.join(format!("{node}.key")), key.serialize_pem()).unwrap();
    }
}

impl World {
    /// Makes the namespaces, connects them by a bridge, and starts the DNS server.
    fn new() -> World {
        let folder = tempfile::tempdir().unwrap();
        certificates(folder.path());
        let zone = Zone::default();
        let is_over = Arc::new(AtomicBool::new(false));
        let servers = NODES.iter().map(|_| None).collect();
        let mut world = World { folder, zone, is_over, dns: None, servers, written: 0 };
        let hub = namespace("hub");
        ip(&format!("netns add {hub}"));
        ip(&format!("-n {hub} link add br0 type bridge"));
        ip(&format!("-n {hub} addr add {HUB}/24 dev br0"));
        ip(&format!("-n {hub} link set br0 up"));
        for node in NODES {
            let space = namespace(node);
            ip(&format!("netns add {space}"));
            ip(&format!("-n {space} link set lo up"));
            ip(&format!("-n {hub} link add to-{node} type veth peer name eth0 netns {space}"));
            ip(&format!("-n {hub} link set to-{node} master br0 up"));
            ip(&format!("-n {space} link set eth0 up"));
            std::fs::create_dir_all(resolver_folder(node)).unwrap();
            let settings = format!("nameserver {HUB}\noptions timeout:1 attempts:1\n");
            std::fs::write(resolver_folder(node).join("resolv.conf"), settings).unwrap();
            world.move_to(node, 11 + u8::try_from(place(node)).unwrap());
        }
        let (zone, is_over) = (world.zone.clone(), world.is_over.clone());
        world.dns = Some(std::thread::spawn(move || serve_dns(&zone, &is_over)));
        world
    }

    /// Gives a node another address, and its name too.
    fn move_to(&self, node: &str, host: u8) {
        let address = Ipv4Addr::new(10, 77, 0, host);
        ip(&format!("-n {} addr flush dev eth0 scope global", namespace(node)));
        ip(&format!("-n {} addr add {address}/24 dev eth0", namespace(node)));
        self.point(node, address);
    }

    /// Lets a name resolve to an address. Names that did not resolve do so again.
    fn point(&self, node: &str, address: Ipv4Addr) {
        self.zone.lock().unwrap().get_or_insert_default().insert(name(node), address);
    }

    /// Lets no name resolve, and returns the names and addresses to restore.
    fn silence(&self) -> Option<BTreeMap<String, Ipv4Addr>> {
        self.zone.lock().unwrap().take()
    }

    fn data(&self, node: &str) -> PathBuf {
        self.folder.path().join("data").join(node)
    }

    /// Starts a node, with the same flags on each but for its name, and waits until it listens.
    fn start(&self, node: &str) -> Server {
        let path = |file: &str| self.folder.path().join(file).to_str().unwrap().to_owned();
        let founders = NODES.map(name).join(",");
        let (advertise, data) = (name(node), self.data(node));
        let (cert, key, ca) = (path(&format!("{node}.pem")), path(&format!("{node}.key")), path("ca.pem"));
        let words = ["serve", "--listen", "127.0.0.1:0", "--data", data.to_str().unwrap()];
        let peers = ["--peer-listen", "0.0.0.0:7979", "--peer-advertise", &advertise, "--bootstrap", &founders];
        let files = ["--peer-cert", &cert, "--peer-key", &key, "--peer-ca", &ca];
        Server::of(&mut inside(node, &[&words[..], &peers, &files].concat()))
    }

    fn kill(&mut self, node: &str) {
        self.servers[place(node)].take().unwrap().kill();
    }

    /// Runs a client command in the namespace of a node.
    fn line(&self, node: &str, line: &str) -> Ran {
        let url = self.servers[place(node)].as_ref().unwrap().url();
        let words: Vec<&str> = line.split_whitespace().collect();
        Ran::of(inside(node, &words).env("EARMARK_SERVER", url).output().unwrap())
    }

    /// Issues one more unit of credit through a node, with the same sequence until it is acknowledged.
    fn write(&mut self, node: &str) {
        self.written += 1;
        let operation = r#"{"issue":{"account":"acme","asset":"usd","amount":"1"}}"#;
        let line = format!("write --client w --sequence {} --vault main --op {operation}", self.written + 1);
        self.until(node, &line, |ran| ran.code == Some(0));
    }

    /// Repeats a client command until its outcome is as wanted.
    fn until(&self, node: &str, line: &str, wanted: impl Fn(&Ran) -> bool) {
        let start = Instant::now();
        loop {
            let ran = self.line(node, line);
            if wanted(&ran) {
                return;
            }
            assert!(start.elapsed() < TIMEOUT * 2, "{node}: {line}: {ran:?}");
            sleep(Duration::from_millis(100));
        }
    }

    /// Waits until every node sees three voters of one cluster and all that was acknowledged.
    fn agree(&mut self) {
        for node in NODES {
            self.write(node);
        }
        let status = self.line("a", "cluster status --json").ends(0).json();
        for node in NODES {
            self.until(node, "cluster status --json", |ran| {
                let Ok(seen) = serde_json::from_str::<Value>(&ran.stdout) else { return false };
                seen["cluster_id"] == status["cluster_id"] && voters(&seen) == 3
            });
            let balance = self.line(node, "balance --vault main --account acme --json").ends(0).json();
            assert_eq!(balance["balances"][0]["available"], self.written.to_string(), "{node}");
        }
    }
}

fn place(node: &str) -> usize {
    NODES.iter().position(|one| *one == node).unwrap()
}

fn voters(status: &Value) -> usize {
    let members = status["members"].as_array();
    members.map_or(0, |members| members.iter().filter(|member| member["role"] != "learner").count())
}

impl Drop for World {
    fn drop(&mut self) {
        self.servers.clear();
        self.is_over.store(true, Ordering::Relaxed);
        _ = self.dns.take().map(JoinHandle::join);
        for of in NODES.into_iter().chain(["hub"]) {
            _ = Command::new("ip").args(["netns", "del", &namespace(of)]).output();
            _ = std::fs::remove_dir_all(resolver_folder(of));
        }
    }
}

/// Starts the founders at once, since each waits for the others.
fn found() -> World {
    let mut world = World::new();
    let started: Vec<Server> = std::thread::scope(|scope| {
        let world = &world;
        let started = NODES.map(|node| scope.spawn(move || world.start(node)));
        started.into_iter().map(|server| server.join().unwrap()).collect()
    });
    world.servers = started.into_iter().map(Some).collect();
    let open = r#"{"open_account":{"account":"acme","overdraft":"deny"}}"#;
    world.until("a", &format!("write --client w --sequence 1 --vault main --op {open}"), |ran| ran.code == Some(0));
    world.agree();
    world
}

#[test]
fn names_that_move_vanish_or_point_to_another_node_lose_nothing_and_make_no_second_cluster() {
    if !can_make_namespaces() {
        println!("skipped: network namespaces need root and ip (apt-get install iproute2)");
        return;
    }
    let mut world = found();

    // Every node gets another address while it runs, one after the other.
    for (place, node) in NODES.into_iter().enumerate() {
        world.move_to(node, 21 + u8::try_from(place).unwrap());
        world.agree();
    }

    // A node is killed and returns while no name resolves. The others go on, and it finds them later.
    let zone = world.silence();
    world.kill("c");
    let returned = std::thread::scope(|scope| {
        let (folder, zone_again) = (&world, world.zone.clone());
        let start = scope.spawn(move || folder.start("c"));
        sleep(Duration::from_secs(2));
        *zone_again.lock().unwrap() = zone;
        start.join().unwrap()
    });
    world.servers[place("c")] = Some(returned);
    world.agree();

    // The name of a node resolves to another one, whose certificate does not have it.
    let another = Ipv4Addr::new(10, 77, 0, 22);
    world.point("c", another);
    world.kill("c");
    world.write("a");
    world.write("b");
    let returned = world.start("c");
    world.servers[place("c")] = Some(returned);
    world.write("a");
    world.point("c", Ipv4Addr::new(10, 77, 0, 23));
    world.agree();

    // A founder loses its volume while no name resolves. It waits, and begins nothing.
    let zone = world.silence();
    world.kill("c");
    std::fs::remove_dir_all(world.data("c")).unwrap();
    let returned = std::thread::scope(|scope| {
        let (lone, zone_again) = (&world, world.zone.clone());
        let start = scope.spawn(move || lone.start("c"));
        sleep(Duration::from_secs(2));
        assert!(!lone.data("c").join("identity").exists(), "it began or joined a cluster alone");
        *zone_again.lock().unwrap() = zone;
        start.join().unwrap()
    });
    world.servers[place("c")] = Some(returned);
    world.agree();
}
