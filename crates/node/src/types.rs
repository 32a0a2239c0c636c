//! openraft type configuration.

use std::sync::Arc;

use bytes::Bytes;
use earmark_trace::TraceContext;

use crate::runtime::Runtime;
use crate::snapshot::SnapshotData;

openraft::declare_raft_types!(
    /// openraft type parameters of this crate.
    pub Types:
        D = Batch,
        R = Applied,
        NodeId = u64,
        Node = Member,
        Entry = openraft::Entry<Types>,
        SnapshotData = SnapshotData,
        AsyncRuntime = Runtime,
);

/// Encoded commands of one log entry, with the time to apply them at. Cheap to clone, because an entry is written,
/// sent and applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// The encoded commands.
    pub bytes: Bytes,
    /// The contexts of its sampled requests. Nodes send them to each other, and nothing writes them to disk.
    pub traces: Traces,
}

/// The contexts of sampled requests; `None` without any.
pub(crate) type Traces = Option<Arc<[TraceContext]>>;

impl From<Bytes> for Batch {
    fn from(bytes: Bytes) -> Batch {
        Batch { bytes, traces: None }
    }
}

/// Outcomes of one entry, by position.
#[derive(Debug, Default)]
pub struct Applied(pub Vec<earmark_core::Outcome>);

/// Address and incarnation of a member.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Member {
    /// Peer address; empty for a single node without a listener.
    pub address: String,
    /// Random id of its data folder. A node that lost its folder counts as another node.
    pub incarnation: u128,
}

/// Id of a log entry.
pub type LogId = openraft::LogId<u64>;
/// A Raft vote.
pub type Vote = openraft::Vote<u64>;
/// A log entry.
pub type Entry = openraft::Entry<Types>;
pub(crate) type Raft = openraft::Raft<Types>;
