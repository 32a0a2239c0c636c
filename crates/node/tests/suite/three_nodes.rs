//! Backend conformance suite on a cluster of three, through a follower.

use std::sync::Arc;

use crate::support::real_cluster::{Folder, agree, several};
use earmark_admission::conformance::Harness;
use earmark_admission::{Answer, Backend, Clock, Cluster, ManualClock};
use earmark_node::{Node, NodeBackend};

struct ThreeNodes {
    backend: Arc<NodeBackend>,
    clock: Arc<ManualClock>,
    nodes: Vec<Node>,
    folders: Vec<Folder>,
}

impl Harness for ThreeNodes {
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
        Box::pin(agree(&self.nodes, &self.folders))
    }
}

async fn three_nodes() -> ThreeNodes {
    let clock = ManualClock::at(1_700_000_000_000);
    let (folders, nodes) = several(3, &clock).await;
    let follower = nodes.iter().find(|node| {
        let status = node.status();
        status.leader.is_some_and(|leader| leader != status.node)
    });
    let backend = follower.unwrap().backend();
    ThreeNodes { backend, clock, nodes, folders }
}

earmark_admission::conformance!(three_nodes);
