//! Nodes that prove to each other who they are, and strangers who cannot.

#![allow(clippy::panic, clippy::unwrap_used, reason = "a test may")]

mod support;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use earmark_admission::{Cluster as _, ManualClock, TimeSource};
use earmark_node::{Net, Node, NodeOptions, PeerFiles, RealNet, TlsNet};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tempfile::TempDir;

use support::cluster::{Folder, folder, options, until};
use support::desk::{Desk, MINUTE, START_MS, definition};

type Authority = CertifiedIssuer<'static, KeyPair>;

fn authority() -> Authority {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// The files of a node of an authority, which trusts those of another.
fn files(folder: &Path, name: &str, signed_by: &Authority, trusts: &Authority) -> PeerFiles {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["127.0.0.1".to_owned(), "localhost".to_owned()]).unwrap();
    let cert = params.signed_by(&key, signed_by).unwrap();
    let file = |what: &str, text: String| {
        let path = folder.join(format!("{name}-{what}.pem"));
        std::fs::write(&path, text).unwrap();
        path
    };
    PeerFiles {
        cert: file("cert", cert.pem()),
        key: file("key", key.serialize_pem()),
        ca: file("ca", trusts.pem()),
    }
}

async fn node(
    id: u64,
    folder: &Folder,
    clock: &Arc<ManualClock>,
    net: Arc<dyn Net>,
    join: Option<&str>,
) -> Node {
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
    Desk(second.backend()).put(definition("rpm", MINUTE, 10)).await;

    // In clear, with a certificate of somebody else, and with one that we would have to trust.
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
    Desk(second.backend()).admit(&[("rpm", 1)]).await;
    first.shut_down().await;
    second.shut_down().await;
}

/// Strangers who connected and said nothing took all places for handshakes, and no node came in until their time was over.
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
