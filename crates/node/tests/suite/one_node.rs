//! Backend conformance suite on one durable node.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::support::real_cluster::{Folder, folder, one};
use earmark_admission::conformance::Harness;
use earmark_admission::{Answer, Backend, Clock, Keys as _, ManualClock, Token};
use earmark_core::{CreateKey, Principal, Role};
use earmark_node::{Node, NodeBackend};

struct OneNode {
    backend: Arc<NodeBackend>,
    clock: Arc<ManualClock>,
    _node: Node,
    _folder: Folder,
}

impl Harness for OneNode {
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
}

async fn one_node() -> OneNode {
    let clock = ManualClock::at(1_700_000_000_000);
    let folder = folder();
    let node = one(&folder, &clock).await;
    OneNode { backend: node.backend(), clock, _node: node, _folder: folder }
}

earmark_admission::conformance!(one_node);

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
    let node = one(&folder, &ManualClock::at(1_700_000_000_000)).await;
    let token = Token::random().unwrap();
    let create = CreateKey {
        id: token.id().clone(),
        secret: token.hash(),
        name: "root".parse().unwrap(),
        role: Role::Admin,
        namespace: "default".parse().unwrap(),
        client: None,
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
