//! Mutual TLS between nodes.

use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use earmark_admission::{Cluster as _, ManualClock, TimeSource};
use earmark_node::{BoxFuture, Connection, Listener, Net, Node, NodeOptions, PeerFiles, RealNet, TlsNet};
use earmark_proto::peer::peer_service_client::PeerServiceClient;
use earmark_proto::peer::{
    AppendRequest, Ballot, HelloRequest, JoinRequest, JournalStateRequest, ReadIndexRequest, RemoveRequest, Route,
    SnapshotPart, SnapshotStart, SubmitRequest, VoteRequest, members_reply, snapshot_part,
};
use hyper_util::rt::TokioIo;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, KeyUsagePurpose, SanType};
use tempfile::TempDir;
use tonic::Code;
use tonic::transport::{Channel, Endpoint, Uri};
use tower_service::Service;

use crate::support::client::{MINUTE, START_MS, TestClient, definition};
use crate::support::real_cluster::{Folder, folder, options, until};

type Authority = CertifiedIssuer<'static, KeyPair>;

fn authority() -> Authority {
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
fn named(folder: &Path, name: &str, uris: &[&str], signed_by: &Authority, trusts: &Authority) -> PeerFiles {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned(), "localhost".to_owned()]).unwrap();
    let uris = uris.iter().map(|uri| SanType::URI((*uri).try_into().unwrap()));
    params.subject_alt_names.extend(uris);
    let cert = params.signed_by(&key, signed_by).unwrap();
    let file = |what: &str, text: String| {
        let path = folder.join(format!("{name}-{what}.pem"));
        std::fs::write(&path, text).unwrap();
        path
    };
    PeerFiles { cert: file("cert", cert.pem()), key: file("key", key.serialize_pem()), ca: file("ca", trusts.pem()) }
}

async fn node(id: u64, folder: &Folder, clock: &Arc<ManualClock>, net: Arc<dyn Net>, join: Option<&str>) -> Node {
    let options = NodeOptions {
        id: Some(id),
        peer_listen: Some("127.0.0.1:0".into()),
        join: join.map(str::to_owned).into_iter().collect(),
        net,
        ..options(folder, Arc::clone(clock) as Arc<dyn TimeSource>)
    };
    Node::open(options).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_of_one_authority_form_a_cluster_and_strangers_are_turned_away() {
    let (ours, theirs) = (authority(), authority());
    let pems = TempDir::new().unwrap();
    let net = |name: &str, by: &Authority, trusts: &Authority| -> Arc<dyn Net> {
        Arc::new(TlsNet::open(files(pems.path(), name, by, trusts)).unwrap())
    };
    let clock = ManualClock::at(START_MS);
    let (first_folder, second_folder, third_folder) = (folder(), folder(), folder());
    let first = node(1, &first_folder, &clock, net("first", &ours, &ours), None).await;
    until(|| first.status().leader.is_some()).await;
    let address = first.peer_address().unwrap().to_owned();
    let second = node(2, &second_folder, &clock, net("second", &ours, &ours), Some(&address)).await;
    until(|| first.status().members.iter().filter(|member| member.is_voter).count() == 2).await;
    TestClient(second.backend()).put(definition("rpm", MINUTE, 10)).await;

    // Plain TCP, a certificate of another authority, and one that also trusts the other authority.
    let strangers: [Arc<dyn Net>; 3] =
        [Arc::new(RealNet), net("foreign", &theirs, &ours), net("gullible", &theirs, &theirs)];
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
struct Thief(TlsNet);

impl Net for Thief {
    fn connect(&self, address: String) -> BoxFuture<io::Result<Connection>> {
        self.0.connect(address)
    }

    fn listen(&self, address: String) -> BoxFuture<io::Result<Box<dyn Listener>>> {
        self.0.listen(address)
    }
}

/// Connects a client to one address.
struct Dial(TlsNet, String);

impl Service<Uri> for Dial {
    type Response = TokioIo<Connection>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<TokioIo<Connection>>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let connecting = self.0.connect(self.1.clone());
        Box::pin(async { connecting.await.map(TokioIo::new) })
    }
}

/// Three nodes whose certificates name them.
struct Named {
    ours: Authority,
    pems: TempDir,
    clock: Arc<ManualClock>,
    folders: [Folder; 3],
    nodes: Vec<Node>,
}

impl Named {
    async fn start() -> Named {
        let (ours, pems, clock) = (authority(), TempDir::new().unwrap(), ManualClock::at(START_MS));
        let folders = [folder(), folder(), folder()];
        let mut named = Named { ours, pems, clock, folders, nodes: Vec::new() };
        for id in 1..=3 {
            let join = named.nodes.first().and_then(Node::peer_address).map(str::to_owned);
            let net = Arc::new(named.net(id));
            let started = node(id, &named.folders[id as usize - 1], &named.clock, net, join.as_deref()).await;
            named.nodes.push(started);
        }
        let first = &named.nodes[0];
        until(|| first.status().members.iter().filter(|member| member.is_voter).count() == 3).await;
        named
    }

    /// Network with the certificate of a node.
    fn net(&self, id: u64) -> TlsNet {
        let uri = format!("earmark://node/{id}");
        TlsNet::open(named(self.pems.path(), &uri[10..].replace('/', "-"), &[&uri], &self.ours, &self.ours)).unwrap()
    }

    /// Client of a node, with the certificate of another.
    async fn client(&self, by: u64, to: usize) -> (PeerServiceClient<Channel>, Route) {
        let dial = Dial(self.net(by), self.nodes[to].peer_address().unwrap().to_owned());
        let channel = Endpoint::from_static("http://peer").connect_with_connector(dial).await.unwrap();
        let mut client = PeerServiceClient::new(channel);
        let hello = client.hello(HelloRequest::default()).await.unwrap().into_inner();
        (client, Route { cluster: hello.cluster, from: by, to: hello.node, incarnation: hello.incarnation })
    }
}

/// Any certificate of the authority was accepted for any node, so a stolen one could vote and lead as every node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_has_the_certificate_of_one_node_speaks_as_no_other() {
    let named = Named::start().await;
    let (mut client, own) = named.client(2, 0).await;
    let term = named.nodes[0].status().term;
    let ballot = |node| Some(Ballot { term: term + 7, node, committed: false });
    let route = Some(Route { from: 3, ..own.clone() });
    let refusals = [
        client.vote(VoteRequest { route: route.clone(), vote: ballot(3), last: None }).await.map(drop),
        client.append(AppendRequest { route: route.clone(), vote: ballot(3), ..Default::default() }).await.map(drop),
        client.submit(SubmitRequest { route: route.clone(), batch: vec![0].into() }).await.map(drop),
        client.read_index(ReadIndexRequest { route: route.clone() }).await.map(drop),
        client.journal_state(JournalStateRequest { route: route.clone() }).await.map(drop),
        client.remove(RemoveRequest { route: route.clone(), node: 1 }).await.map(drop),
        client.install_snapshot(tokio_stream::iter([start(route, ballot(3))])).await.map(drop),
    ];
    for (place, refusal) in refusals.into_iter().enumerate() {
        let status = refusal.unwrap_err();
        assert_eq!(status.code(), Code::Unauthenticated, "{place}: {status}");
        assert!(status.message().contains("does not name node 3"), "{place}: {status}");
    }
    // Its own identity with the vote of another node.
    let route = Some(own.clone());
    let refusals = [
        client.vote(VoteRequest { route: route.clone(), vote: ballot(3), last: None }).await.map(drop),
        client.append(AppendRequest { route: route.clone(), vote: ballot(3), ..Default::default() }).await.map(drop),
        client.install_snapshot(tokio_stream::iter([start(route.clone(), ballot(3))])).await.map(drop),
    ];
    for refusal in refusals {
        assert_eq!(refusal.unwrap_err().code(), Code::InvalidArgument);
    }
    // A join request for another node.
    let join = JoinRequest {
        cluster: own.cluster,
        node: 4,
        address: named.nodes[1].peer_address().unwrap().to_owned(),
        incarnation: own.incarnation,
        is_met: false,
    };
    let joined = client.join(join).await.unwrap().into_inner().result;
    assert!(matches!(joined, Some(members_reply::Result::Refused(_))), "{joined:?}");
    assert!(client.read_index(ReadIndexRequest { route }).await.is_ok(), "as itself it is heard");
    assert!(named.nodes[0].status().term < term + 7, "nobody was elected by the votes above");
    assert_eq!(named.nodes[0].status().members.len(), 3);
    TestClient(named.nodes[2].backend()).put(definition("rpm", MINUTE, 10)).await;
}

fn start(route: Option<Route>, vote: Option<Ballot>) -> SnapshotPart {
    SnapshotPart { part: Some(snapshot_part::Part::Start(SnapshotStart { route, vote })) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_with_the_certificate_of_another_does_not_start_and_is_not_spoken_to() {
    let mut named = Named::start().await;
    let third = named.nodes.pop().unwrap();
    let address = third.peer_address().unwrap().to_owned();
    third.shut_down().await;
    drop(third);
    let join = named.nodes[0].peer_address().unwrap().to_owned();
    let again = |net: Arc<dyn Net>| NodeOptions {
        id: Some(3),
        peer_listen: Some(address.clone()),
        join: vec![join.clone()],
        net,
        ..options(&named.folders[2], Arc::clone(&named.clock) as Arc<dyn TimeSource>)
    };
    let error = Node::open(again(Arc::new(named.net(2)))).await.err().unwrap().to_string();
    assert!(error.contains("names another node") && error.contains("earmark://node/3"), "{error}");

    // A node that starts anyway, at the address of node 3, receives nothing from its peers.
    TestClient(named.nodes[1].backend()).put(definition("rpm", MINUTE, 10)).await;
    let thief = Node::open(again(Arc::new(Thief(named.net(2))))).await.unwrap();
    until(|| thief.status().last_log_index.is_some()).await;
    let behind = thief.status().last_log_index;
    until(|| named.nodes[0].status().last_log_index > behind).await;
    let last = named.nodes[0].status().last_log_index;
    // Each of its failed elections raises its own term only. A busy machine may elect a leader again, which raises that
    // of the others by one, so the terms are not compared with those of the start.
    let term_of_others = || named.nodes.iter().map(|node| node.status().term).max().unwrap();
    until(|| thief.status().term > term_of_others() + 2).await;
    assert_eq!(thief.status().last_log_index, behind);
    assert_eq!(thief.status().leader, None);
    thief.shut_down().await;
    drop(thief);

    // With its own certificate it is accepted again.
    let third = Node::open(again(Arc::new(named.net(3)))).await.unwrap();
    until(|| third.status().last_log_index >= last).await;
}

/// Ids are never reused, so the removal of a node also revokes its certificate.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_certificate_of_a_node_that_was_removed_is_of_no_use() {
    let mut named = Named::start().await;
    let third = named.nodes.pop().unwrap();
    let leader = named.nodes.iter().find(|node| node.status().leader == Some(node.status().node));
    let leader = leader.unwrap_or(&named.nodes[0]);
    leader.remove(3).await.unwrap();
    third.shut_down().await;
    for to in 0..2 {
        let node = &named.nodes[to];
        until(|| node.status().members.len() == 2 && node.status().leader.is_some()).await;
        let (mut client, own) = named.client(3, to).await;
        let term = node.status().term;
        let vote = Some(Ballot { term: term + 7, node: 3, committed: true });
        let route = Some(own);
        let refusals = [
            client.append(AppendRequest { route: route.clone(), vote, ..Default::default() }).await.map(drop),
            client.vote(VoteRequest { route: route.clone(), vote, last: None }).await.map(drop),
            client.submit(SubmitRequest { route: route.clone(), batch: vec![0].into() }).await.map(drop),
            client.read_index(ReadIndexRequest { route: route.clone() }).await.map(drop),
            client.install_snapshot(tokio_stream::iter([start(route, vote)])).await.map(drop),
        ];
        for refusal in refusals {
            let status = refusal.unwrap_err();
            assert!(status.message().contains("was removed from the cluster"), "{status}");
        }
        assert_eq!(node.status().term, term);
    }
}

#[tokio::test]
async fn a_certificate_is_good_for_the_nodes_it_names_and_for_any_if_it_names_none() {
    let ours = authority();
    let pems = TempDir::new().unwrap();
    let shows = |uris: &[&str]| {
        let net = TlsNet::open(named(pems.path(), "one", uris, &ours, &ours)).unwrap().local_identity();
        (1..=3).filter(|id| net.may_act_as(*id)).collect::<Vec<u64>>()
    };
    assert_eq!(shows(&[]), [1, 2, 3]);
    assert_eq!(shows(&["https://example.com/node/2"]), [1, 2, 3]);
    assert_eq!(shows(&["earmark://node/2"]), [2]);
    assert_eq!(shows(&["earmark://node/2", "https://example.com", "earmark://node/3"]), [2, 3]);
    for none in ["earmark://node/", "earmark://node/x", "earmark://node/2/3", "earmark://node/-1"] {
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
