//! One durable node passes the suite of all backends.

#![allow(clippy::panic, clippy::unwrap_used, reason = "a test may")]

mod support;

use std::sync::Arc;

use earmark_admission::conformance::Harness;
use earmark_admission::{Answer, Backend, Clock, ManualClock};
use earmark_node::{Node, NodeBackend};
use support::cluster::{Folder, folder, one};

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
