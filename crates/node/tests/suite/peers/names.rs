//! Nodes whose certificates have DNS names and no ids, with a resolver of the test.

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use earmark_admission::{Cluster as _, ManualClock, NewInvitation, TimeSource};
use earmark_node::{BoxFuture, Net, Node, NodeOptions, Resolve, TlsNet};
use tempfile::TempDir;

use crate::support::client::{MINUTE, START_MS, TestClient, definition};
use crate::support::real_cluster::{Folder, folder, options, reopen, until};
use crate::tls::{Authority, Thief, authority, dns_files, invite};

/// Addresses by name. A name without one does not resolve.
#[derive(Clone, Debug, Default)]
struct Dns(Arc<Mutex<BTreeMap<String, SocketAddr>>>);

impl Dns {
    fn set(&self, name: &str, address: Option<SocketAddr>) {
        let mut names = self.0.lock().unwrap();
        match address {
            Some(address) => _ = names.insert(name.to_owned(), address),
            None => _ = names.remove(name),
        }
    }
}

impl Resolve for Dns {
    fn resolve(&self, address: String) -> BoxFuture<io::Result<Vec<SocketAddr>>> {
        let found = self.0.lock().unwrap().get(&address).copied();
        Box::pin(async move { found.map(|found| vec![found]).ok_or_else(|| io::Error::other("no such name")) })
    }
}

const FOUNDERS: [&str; 3] = ["a.test:7101", "b.test:7101", "c.test:7101"];

fn free() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

struct World {
    ours: Authority,
    pems: TempDir,
    dns: Dns,
    clock: Arc<ManualClock>,
}

impl World {
    fn new() -> World {
        World {
            ours: authority(),
            pems: TempDir::new().unwrap(),
            dns: Dns::default(),
            clock: ManualClock::at(START_MS),
        }
    }

    /// A network with a certificate for the host of a name.
    fn net(&self, name: &str) -> TlsNet {
        let host = name.split(':').next().unwrap();
        let files = dns_files(self.pems.path(), host, &[host], &self.ours);
        TlsNet::with_resolver(files, Arc::new(self.dns.clone())).unwrap()
    }

    /// Options of a node with a name that listens at an address. Its name resolves to that address from now on.
    fn options(&self, name: &str, folder: &Folder, at: SocketAddr) -> NodeOptions {
        self.dns.set(name, Some(at));
        NodeOptions {
            peer_listen: Some(at.to_string()),
            peer_advertise: Some(name.to_owned()),
            bootstrap: FOUNDERS.map(str::to_owned).into(),
            net: Arc::new(self.net(name)),
            trusts_peers: true,
            ..options(folder, Arc::clone(&self.clock) as Arc<dyn TimeSource>)
        }
    }

    /// Starts the founders at once.
    async fn found(&self) -> (Vec<Folder>, Vec<Node>) {
        let folders = vec![folder(), folder(), folder()];
        let start = |(name, folder): (&&str, &Folder)| tokio::spawn(Node::open(self.options(name, folder, free())));
        let starting: Vec<_> = FOUNDERS.iter().zip(&folders).map(start).collect();
        let mut nodes = Vec::new();
        for node in starting {
            nodes.push(node.await.unwrap().unwrap());
        }
        for node in &nodes {
            until(|| node.status().leader.is_some()).await;
        }
        (folders, nodes)
    }
}

fn names(node: &Node) -> Vec<(u64, String)> {
    node.status().members.into_iter().map(|member| (member.node, member.address)).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_with_names_find_each_other_at_changing_addresses_and_refuse_a_wrong_one() {
    let world = World::new();
    let (folders, mut nodes) = world.found().await;
    let before = names(&nodes[0]);
    assert_eq!(before, [1, 2, 3].map(|id| (id, FOUNDERS[id as usize - 1].to_owned())));
    TestClient(nodes[1].backend()).put(definition("rpm", MINUTE, 10)).await;
    let third = nodes.pop().unwrap();
    third.shut_down().await;
    drop(third);
    // The name resolves to nothing, then to another node, whose certificate does not have it.
    let first: SocketAddr = world.dns.0.lock().unwrap()[FOUNDERS[0]];
    for wrong in [None, Some(first)] {
        world.dns.set(FOUNDERS[2], wrong);
        until(|| nodes.iter().all(|node| node.status().leader.is_some_and(|leader| leader != 3))).await;
        TestClient(nodes[0].backend()).admit(&[("rpm", 1)]).await;
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    let lag = |node: &Node| node.status().members.iter().find(|member| member.node == 3).and_then(|member| member.lag);
    assert!(nodes.iter().filter_map(lag).all(|lag| lag > 0), "another node has taken entries for node 3");
    let at = free();
    let third = reopen(|| world.options(FOUNDERS[2], &folders[2], at)).await;
    until(|| third.status().leader.is_some()).await;
    assert_eq!(TestClient(third.backend()).usage("rpm").await.reserved, 2);
    assert_eq!(names(&third), before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_lost_its_folder_returns_under_its_name_and_others_need_an_invitation() {
    let world = World::new();
    let (_folders, mut nodes) = world.found().await;
    TestClient(nodes[1].backend()).put(definition("rpm", MINUTE, 10)).await;
    let third = nodes.pop().unwrap();
    third.shut_down().await;
    drop(third);
    let new_folder = folder();
    let third = reopen(|| world.options(FOUNDERS[2], &new_folder, free())).await;
    let new = third.identity().node;
    assert_eq!(new, 4);
    let is_replaced = |node: &Node| {
        let members = node.status().members;
        members.len() == 3 && members.iter().any(|member| member.node == new && member.is_voter)
    };
    until(|| nodes.iter().all(is_replaced)).await;
    until(|| is_replaced(&third)).await;
    TestClient(third.backend()).admit(&[("rpm", 1)]).await;

    // Another name waits for an invitation.
    let stranger_folder = folder();
    let at = free();
    let stranger = || world.options("d.test:7101", &stranger_folder, at);
    let waiting = tokio::time::timeout(Duration::from_secs(2), Node::open(stranger())).await;
    assert!(waiting.is_err(), "it did not wait: {:?}", waiting.map(|node| node.map(|node| node.identity())));
    assert_eq!(nodes[0].status().members.len(), 3);
    // A name that its certificate does not have is refused here, and by the others.
    let impostor = || NodeOptions { peer_advertise: Some(FOUNDERS[1].to_owned()), ..stranger() };
    let error = Node::open(impostor()).await.err().unwrap().to_string();
    assert!(error.contains("the DNS name b.test"), "{error}");
    let net: Arc<dyn Net> = Arc::new(Thief(world.net("d.test:7101")));
    let shameless = NodeOptions { net, ..impostor() };
    let waiting = tokio::time::timeout(Duration::from_secs(2), Node::open(shameless)).await;
    assert!(!matches!(waiting, Ok(Ok(_))), "it got an id");
    assert_eq!(nodes[0].status().members.len(), 3);
    let invitation = Some(invite(&nodes[0], NewInvitation::default()).await);
    let fourth = reopen(|| NodeOptions { invitation: invitation.clone(), ..stranger() }).await;
    assert_eq!(fourth.identity().node, 5);
    until(|| nodes[0].status().members.iter().any(|member| member.node == 5 && member.is_voter)).await;
}
