//! Mutual TLS between nodes.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use earmark_admission::{Cluster as _, ManualClock, NewInvitation, TimeSource};
use earmark_node::{BoxFuture, Connection, Listener, Net, Node, NodeOptions, PeerFiles, RealNet, TlsNet};
use earmark_proto::peer::{
    AppendRequest, Ballot, ReadIndexRequest, Route, SnapshotPart, SnapshotStart, SubmitRequest, VoteRequest,
    snapshot_part,
};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, KeyUsagePurpose, SanType};
use tempfile::TempDir;
use tonic::Code;
use tonic::transport::Channel;

use crate::support::client::{MINUTE, START_MS, TestClient, definition};
use crate::support::raw_peer::{self, RawClient};
use crate::support::real_cluster::{Folder, folder, options, reopen, until};

pub type Authority = CertifiedIssuer<'static, KeyPair>;

pub fn authority() -> Authority {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// Certificate files of a node, signed by one authority and trusting another.
fn files(folder: &Path, name: &str, signed_by: &Authority, trusts: &Authority) -> PeerFiles {
    named(folder, name, &[], signed_by, trusts)
}

/// Like [`files`], with URIs in the certificate.
pub fn named(folder: &Path, name: &str, uris: &[&str], signed_by: &Authority, trusts: &Authority) -> PeerFiles {
    let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned(), "localhost".to_owned()]).unwrap();
    let uris = uris.iter().map(|uri| SanType::URI((*uri).try_into().unwrap()));
    params.subject_alt_names.extend(uris);
    write_files(folder, name, params, signed_by, trusts)
}

/// Certificate files of a node with DNS names only.
pub fn dns_files(folder: &Path, name: &str, hosts: &[&str], by: &Authority) -> PeerFiles {
    let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
    write_files(folder, name, CertificateParams::new(hosts).unwrap(), by, by)
}

fn write_files(
    folder: &Path,
    name: &str,
    params: CertificateParams,
    signed_by: &Authority,
    trusts: &Authority,
) -> PeerFiles {
    let key = KeyPair::generate().unwrap();
    let cert = params.signed_by(&key, signed_by).unwrap();
    let file = |what: &str, text: String| {
        let path = folder.join(format!("{name}-{what}.pem"));
        std::fs::write(&path, text).unwrap();
        path
    };
    PeerFiles { cert: file("cert", cert.pem()), key: file("key", key.serialize_pem()), ca: file("ca", trusts.pem()) }
}

/// Starts a node. With `first` it joins the cluster of that node, by an invitation.
async fn node(id: u64, folder: &Folder, clock: &Arc<ManualClock>, net: Arc<dyn Net>, first: Option<&Node>) -> Node {
    let mut options = NodeOptions {
        id: Some(id),
        peer_listen: Some("127.0.0.1:0".into()),
        net,
        ..options(folder, Arc::clone(clock) as Arc<dyn TimeSource>)
    };
    if first.is_none() {
        options.bootstrap = vec!["127.0.0.1:0".into()];
    }
    if let Some(first) = first {
        options.join = vec![first.peer_address().unwrap().to_owned()];
        options.invitation = Some(invite(first, NewInvitation::default()).await);
    }
    Node::open(options).await.unwrap()
}

/// Makes an invitation, once there is a leader.
pub async fn invite(node: &Node, wanted: NewInvitation) -> String {
    until(|| node.status().leader.is_some()).await;
    node.invite("user:ann".parse().unwrap(), wanted).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_of_one_authority_form_a_cluster_and_strangers_are_turned_away() {
    let (ours, theirs) = (authority(), authority());
    let pems = TempDir::new().unwrap();
    let net = |id: u64, by: &Authority, trusts: &Authority| -> Arc<dyn Net> {
        let uri = format!("earmark://node/{id}");
        Arc::new(TlsNet::open(named(pems.path(), "node", &[&uri], by, trusts)).unwrap())
    };
    let clock = ManualClock::at(START_MS);
    let (first_folder, second_folder, third_folder) = (folder(), folder(), folder());
    let first = node(1, &first_folder, &clock, net(1, &ours, &ours), None).await;
    until(|| first.status().leader.is_some()).await;
    let address = first.peer_address().unwrap().to_owned();
    let second = node(2, &second_folder, &clock, net(2, &ours, &ours), Some(&first)).await;
    until(|| first.status().members.iter().filter(|member| member.is_voter).count() == 2).await;
    TestClient(second.backend()).put(definition("rpm", MINUTE, 10)).await;

    // Plain TCP, a certificate of another authority, and one that also trusts the other authority.
    let strangers: [Arc<dyn Net>; 3] = [Arc::new(RealNet), net(3, &theirs, &ours), net(3, &theirs, &theirs)];
    for (place, net) in strangers.into_iter().enumerate() {
        let options = NodeOptions {
            id: Some(3),
            peer_listen: Some("127.0.0.1:0".into()),
            join: vec![address.clone()],
            net,
            ..options(&third_folder, Arc::clone(&clock) as Arc<dyn TimeSource>)
        };
        let joined = tokio::time::timeout(Duration::from_secs(2), Node::open(options)).await;
        let is_member = first.status().members.iter().any(|member| member.node == 3);
        assert!(!is_member, "stranger {place} is a member");
        if let Ok(Ok(node)) = joined {
            assert_eq!(node.status().leader, None, "stranger {place} follows");
            node.shut_down().await;
        }
    }
    TestClient(second.backend()).admit(&[("rpm", 1)]).await;
    first.shut_down().await;
    second.shut_down().await;
}

/// Clients that connected and sent nothing took all handshake slots, and no node got in until they timed out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strangers_who_say_nothing_keep_no_node_out() {
    let ours = authority();
    let pems = TempDir::new().unwrap();
    let net = TlsNet::open(files(pems.path(), "node", &ours, &ours)).unwrap();
    let mut listener = net.listen("127.0.0.1:0".into()).await.unwrap();
    let address = listener.address();
    let mut silent = Vec::new();
    for _ in 0..100 {
        silent.push(tokio::net::TcpStream::connect(&address).await.unwrap());
    }
    let both = async { tokio::join!(listener.accept(), net.connect(address)) };
    let (accepted, connected) = tokio::time::timeout(Duration::from_secs(2), both).await.unwrap();
    assert!(accepted.is_ok() && connected.is_ok());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_certificate_is_taken_while_the_node_runs_and_a_bad_one_is_not() {
    let ours = authority();
    let pems = TempDir::new().unwrap();
    let used = files(pems.path(), "used", &ours, &ours);
    let net = TlsNet::open(used.clone()).unwrap();
    let other = files(pems.path(), "other", &ours, &ours);
    // A certificate without its key.
    std::fs::copy(&other.cert, &used.cert).unwrap();
    let error = net.reload().unwrap_err().to_string();
    assert!(error.contains("cannot be used"), "{error}");
    let mut listener = net.listen("127.0.0.1:0".into()).await.unwrap();
    let address = listener.address();
    let (_, connected) = tokio::join!(listener.accept(), net.connect(address));
    assert!(connected.is_ok(), "what was there before is no longer in use");
    std::fs::copy(&other.key, &used.key).unwrap();
    net.reload().unwrap();
    let debug = format!("{net:?}");
    assert!(!debug.contains("PRIVATE"), "{debug}");
}

/// Hides its certificate identity, like an attacker with a stolen certificate.
#[derive(Debug)]
pub struct Thief(pub TlsNet);

impl Net for Thief {
    fn connect(&self, address: String) -> BoxFuture<io::Result<Connection>> {
        self.0.connect(address)
    }

    fn listen(&self, address: String) -> BoxFuture<io::Result<Box<dyn Listener>>> {
        self.0.listen(address)
    }
}

/// Three nodes whose certificates name them.
pub struct Named {
    pub ours: Authority,
    pub pems: TempDir,
    pub clock: Arc<ManualClock>,
    pub folders: Vec<Folder>,
    pub nodes: Vec<Node>,
}

impl Named {
    async fn start() -> Named {
        Named::of(3).await
    }

    /// Nodes 1 to `count`, all of them voters.
    pub async fn of(count: u64) -> Named {
        let (ours, pems, clock) = (authority(), TempDir::new().unwrap(), ManualClock::at(START_MS));
        let mut named = Named { ours, pems, clock, folders: Vec::new(), nodes: Vec::new() };
        for id in 1..=count {
            let (net, folder) = (Arc::new(named.net(id)), folder());
            let started = node(id, &folder, &named.clock, net, named.nodes.first()).await;
            named.nodes.push(started);
            named.folders.push(folder);
            let first = &named.nodes[0];
            let voters = || first.status().members.iter().filter(|member| member.is_voter).count() as u64;
            until(|| voters() == id).await;
        }
        named
    }

    /// Options of a node that is to join.
    pub fn joining(&self, id: u64, folder: &Folder, invitation: Option<String>) -> NodeOptions {
        NodeOptions {
            id: Some(id),
            peer_listen: Some("127.0.0.1:0".into()),
            join: vec![self.nodes[0].peer_address().unwrap().to_owned()],
            net: Arc::new(self.net(id)),
            invitation,
            ..options(folder, Arc::clone(&self.clock) as Arc<dyn TimeSource>)
        }
    }

    /// Options of a member that starts again at an address.
    pub fn joining_at(&self, id: u64, folder: &Folder, address: &str) -> NodeOptions {
        NodeOptions {
            id: Some(id),
            peer_listen: Some(address.to_owned()),
            net: Arc::new(self.net(id)),
            ..options(folder, Arc::clone(&self.clock) as Arc<dyn TimeSource>)
        }
    }

    /// Network with the certificate of a node.
    pub fn net(&self, id: u64) -> TlsNet {
        let uri = format!("earmark://node/{id}");
        TlsNet::open(named(self.pems.path(), &uri[10..].replace('/', "-"), &[&uri], &self.ours, &self.ours)).unwrap()
    }

    /// Connection to a node with the certificate of another, and the route of its calls.
    async fn connect(&self, by: u64, to: usize) -> (Channel, Route) {
        let address = self.nodes[to].peer_address().unwrap();
        let channel = raw_peer::channel(Arc::new(self.net(by)), address).await.unwrap();
        let incarnation = self.nodes.get(by as usize - 1).map_or(7, |node| node.identity().incarnation);
        let route = raw_peer::route(&channel, by, incarnation).await;
        (channel, route)
    }

    async fn client(&self, by: u64, to: usize) -> RawClient {
        let (channel, route) = self.connect(by, to).await;
        raw_peer::client(&channel, Some(&route))
    }
}

/// Any certificate of the authority was accepted for any node, so a stolen one could vote and lead as every node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_cannot_send_the_vote_of_another() {
    let named = Named::start().await;
    let mut client = named.client(2, 0).await;
    let term = named.nodes[0].status().term;
    let ballot = |node| Some(Ballot { term: term + 7, node, committed: false });
    let refusals = [
        client.vote(VoteRequest { vote: ballot(3), last: None }).await.map(drop),
        client.append(AppendRequest { vote: ballot(3), ..Default::default() }).await.map(drop),
        client.install_snapshot(tokio_stream::iter([start(ballot(3))])).await.map(drop),
    ];
    for refusal in refusals {
        assert_eq!(refusal.unwrap_err().code(), Code::InvalidArgument);
    }
    assert!(client.read_index(ReadIndexRequest {}).await.is_ok(), "as itself it is heard");
    assert!(named.nodes[0].status().term < term + 7, "nobody was elected by the votes above");
    TestClient(named.nodes[2].backend()).put(definition("rpm", MINUTE, 10)).await;
}

fn start(vote: Option<Ballot>) -> SnapshotPart {
    SnapshotPart { part: Some(snapshot_part::Part::Start(SnapshotStart { vote })) }
}

/// This test failed at times for two reasons. A node that had stopped may hold its folder and its port for a moment. And
/// node 3 may have been the leader when it stopped: it then leads again after its restart and starts no election.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_with_the_certificate_of_another_does_not_start_and_is_not_spoken_to() {
    let mut named = Named::start().await;
    let address = named.nodes[2].peer_address().unwrap().to_owned();
    loop {
        let third = named.nodes.pop().unwrap();
        third.shut_down().await;
        // On a busy machine it may have become the leader just before it stopped.
        let has_led = third.status().leader == Some(3);
        drop(third);
        // The others elect one of themselves while it is away.
        until(|| named.nodes[0].status().leader.is_some_and(|leader| leader != 3)).await;
        if !has_led {
            break;
        }
        let third = reopen(|| named.joining_at(3, &named.folders[2], &address)).await;
        until(|| third.status().leader.is_some_and(|leader| leader != 3)).await;
        named.nodes.push(third);
    }
    let join = named.nodes[0].peer_address().unwrap().to_owned();
    let again = |net: Arc<dyn Net>| NodeOptions {
        id: Some(3),
        peer_listen: Some(address.clone()),
        join: vec![join.clone()],
        net,
        ..options(&named.folders[2], Arc::clone(&named.clock) as Arc<dyn TimeSource>)
    };
    let (mut tries, mut error) = (0, String::new());
    while !error.contains("does not name node 3") && tries < 1_000 {
        tokio::time::sleep(Duration::from_millis(50)).await;
        error = Node::open(again(Arc::new(named.net(2)))).await.err().unwrap().to_string();
        tries += 1;
    }
    assert!(error.contains("does not name node 3") && error.contains("earmark://node/3"), "{error}");

    // A node that starts anyway, at the address of node 3, receives nothing from its peers.
    TestClient(named.nodes[1].backend()).put(definition("rpm", MINUTE, 10)).await;
    let thief = reopen(|| again(Arc::new(Thief(named.net(2))))).await;
    until(|| thief.status().last_log_index.is_some()).await;
    let behind = thief.status().last_log_index;
    until(|| named.nodes[0].status().last_log_index > behind).await;
    let last = named.nodes[0].status().last_log_index;
    // Its elections fail. Its term is not compared with that of the others: they elect again too on a busy machine.
    let began = thief.status().term;
    until(|| {
        assert!(named.nodes.iter().all(|node| node.status().leader != Some(3)), "the thief was elected");
        thief.status().term > began + 2
    })
    .await;
    assert_eq!(thief.status().last_log_index, behind);
    assert_eq!(thief.status().leader, None);
    thief.shut_down().await;
    drop(thief);

    // With its own certificate it is accepted again.
    let third = reopen(|| again(Arc::new(named.net(3)))).await;
    until(|| third.status().last_log_index >= last).await;
}

/// Ids are never reused, so the removal of a node also revokes its certificate.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_certificate_of_a_node_that_was_removed_is_of_no_use() {
    let mut named = Named::start().await;
    let (channels, routes): (Vec<_>, Vec<_>) =
        [named.connect(3, 0).await, named.connect(3, 1).await].into_iter().unzip();
    let third = named.nodes.pop().unwrap();
    let leader = named.nodes.iter().find(|node| node.status().leader == Some(node.status().node));
    let leader = leader.unwrap_or(&named.nodes[0]);
    leader.remove(3).await.unwrap();
    third.shut_down().await;
    for (to, node) in named.nodes.iter().enumerate() {
        until(|| node.status().members.len() == 2 && node.status().leader.is_some()).await;
        let mut client = raw_peer::client(&channels[to], Some(&routes[to]));
        let term = node.status().term;
        let vote = Some(Ballot { term: term + 7, node: 3, committed: true });
        let refusals = [
            client.append(AppendRequest { vote, ..Default::default() }).await.map(drop),
            client.vote(VoteRequest { vote, last: None }).await.map(drop),
            client.submit(SubmitRequest { batch: vec![0].into(), traces: Vec::new() }).await.map(drop),
            client.read_index(ReadIndexRequest {}).await.map(drop),
            client.install_snapshot(tokio_stream::iter([start(vote)])).await.map(drop),
        ];
        for refusal in refusals {
            let status = refusal.unwrap_err();
            assert!(status.message().contains("was removed from the cluster"), "{status}");
        }
        assert_eq!(node.status().term, term);
    }
}

#[tokio::test]
async fn a_certificate_is_good_for_its_dns_names_and_wildcards_name_no_node() {
    let ours = authority();
    let pems = TempDir::new().unwrap();
    let files = |hosts: &[&str]| dns_files(pems.path(), "one", hosts, &ours);
    let net = TlsNet::open(files(&["a.test", "*.b.test"])).unwrap();
    let proves = |address: &str| net.local_identity().proves_name(address);
    assert!(proves("a.test:1") && proves("A.test.:2"));
    assert!(!proves("x.b.test:1") && !proves("*.b.test:1") && !proves("b.test:1"));
    // A renewed certificate keeps the names, and may have more.
    files(&["c.test"]);
    assert!(net.reload().unwrap_err().to_string().contains("does not name the same node"));
    files(&["c.test", "a.test"]);
    net.reload().unwrap();
    assert!(net.local_identity().proves_name("c.test:1"));
}

#[tokio::test]
async fn a_certificate_is_good_for_the_nodes_that_it_names() {
    let ours = authority();
    let pems = TempDir::new().unwrap();
    let shows = |uris: &[&str]| {
        let net = TlsNet::open(named(pems.path(), "one", uris, &ours, &ours)).unwrap().local_identity();
        (1..=3).filter(|id| net.may_act_as(*id, "127.0.0.1:1")).collect::<Vec<u64>>()
    };
    assert_eq!(shows(&["earmark://node/2"]), [2]);
    assert_eq!(shows(&["earmark://node/2", "https://example.com", "earmark://node/3"]), [2, 3]);
    assert_eq!(shows(&[]), [0_u64; 0]);
    for none in
        ["https://example.com/node/2", "earmark://node/", "earmark://node/x", "earmark://node/2/3", "earmark://node/-1"]
    {
        assert_eq!(shows(&[none]), [0_u64; 0], "{none}");
    }
    // The named node cannot change while a node runs.
    let used = named(pems.path(), "used", &["earmark://node/1"], &ours, &ours);
    let net = TlsNet::open(used).unwrap();
    for uris in [&["earmark://node/2"][..], &[]] {
        named(pems.path(), "used", uris, &ours, &ours);
        assert!(net.reload().unwrap_err().to_string().contains("does not name the same node"));
    }
    named(pems.path(), "used", &["earmark://node/1"], &ours, &ours);
    net.reload().unwrap();
}
