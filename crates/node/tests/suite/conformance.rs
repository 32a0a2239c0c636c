//! Backend conformance suite, on one durable node and through a follower of three.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use earmark_admission::conformance::Harness;
use earmark_admission::{Answer, Backend, Clock, Cluster as _, Keys as _, ManualClock, Token};
use earmark_core::{CreateKey, Principal, Role};
use earmark_node::{Node, NodeBackend};

use crate::support::client::START_MS;
use crate::support::real_cluster::{Folder, agree, folder, one, several};

struct NodeHarness {
    backend: Arc<NodeBackend>,
    clock: Arc<ManualClock>,
    nodes: Vec<Node>,
    folders: Vec<Folder>,
}

impl Harness for NodeHarness {
    fn backend(&self) -> &dyn Backend {
        &*self.backend
    }

    fn now_ms(&self) -> u64 {
        self.clock.now().wall.get()
    }

    fn advance_ms(&self, ms: u64) -> Answer<'_, ()> {
        self.clock.advance_ms(ms);
        Box::pin(async {})
    }

    fn finish(&self) -> Answer<'_, ()> {
        Box::pin(async {
            if self.nodes.len() > 1 {
                agree(&self.nodes, &self.folders).await;
            }
        })
    }
}

async fn start_one() -> NodeHarness {
    let (clock, folder) = (ManualClock::at(START_MS), folder());
    let node = one(&folder, &clock).await;
    NodeHarness { backend: node.backend(), clock, nodes: vec![node], folders: vec![folder] }
}

async fn start_three() -> NodeHarness {
    let clock = ManualClock::at(START_MS);
    let (folders, nodes) = several(3, &clock).await;
    let follower = nodes.iter().find(|node| {
        let status = node.status();
        status.leader.is_some_and(|leader| leader != status.node)
    });
    NodeHarness { backend: follower.unwrap().backend(), clock, nodes, folders }
}

mod one_node {
    earmark_admission::conformance!(super::start_one);
}

mod three_nodes {
    earmark_admission::conformance!(super::start_three);
}

/// All files below a folder.
fn files(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => all.extend(files(&path)),
            false => all.push((path.clone(), std::fs::read(&path).unwrap())),
        }
    }
    all
}

#[tokio::test]
async fn no_file_of_a_node_has_the_secret_of_a_key_and_its_snapshot_log_and_journal_have_its_id() {
    let folder = folder();
    let node = one(&folder, &ManualClock::at(START_MS)).await;
    let token = Token::random().unwrap();
    let create = CreateKey {
        id: token.id().clone(),
        secret: token.hash(),
        name: "root".parse().unwrap(),
        role: Role::Admin,
        namespace: "default".parse().unwrap(),
        client: None,
        labels: earmark_core::Labels::default(),
        may_set: earmark_core::MaySet::default(),
        valid_seconds: None,
        is_first: true,
        actor: "system:bootstrap".parse().unwrap(),
    };
    node.backend().create(Principal::System, create).await.unwrap();
    node.snapshot().await.unwrap();
    node.shut_down().await;
    let has = |bytes: &[u8], text: &str| bytes.windows(text.len()).any(|window| window == text.as_bytes());
    let revealed = token.reveal();
    let secret = revealed.split('_').nth(2).unwrap();
    let mut with_id = Vec::new();
    for (path, bytes) in files(&folder.path) {
        assert!(!has(&bytes, secret), "the secret is in {}", path.display());
        if has(&bytes, token.id().as_str()) {
            with_id.push(path.extension().unwrap_or_default().to_string_lossy().into_owned());
        }
    }
    with_id.sort();
    assert_eq!(with_id, ["journal", "log", "snapshot"]);
}
