//! The types that the log is made of.

use bytes::Bytes;

use crate::runtime::Runtime;
use crate::snapshot::SnapshotData;

openraft::declare_raft_types!(
    /// What openraft is told about this system.
    pub Types:
        D = Batch,
        R = Applied,
        NodeId = u64,
        Node = Member,
        Entry = openraft::Entry<Types>,
        SnapshotData = SnapshotData,
        AsyncRuntime = Runtime,
);

/// The commands of one log entry as bytes, with the time they are applied at. Cheap to clone, since an entry is
/// written, sent and applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch(pub Bytes);

/// What an entry gave, by position.
#[derive(Debug, Default)]
pub struct Applied(pub Vec<earmark_core::Outcome>);

/// Where a node is, and which data folder it runs on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Member {
    /// Where its peers reach it; empty for a node that has none.
    pub address: String,
    /// Drawn when its data folder was made: a node that lost its folder is another node.
    pub incarnation: u128,
}

/// The place of an entry in the log.
pub type LogId = openraft::LogId<u64>;
/// Whom a node voted for.
pub type Vote = openraft::Vote<u64>;
/// One entry of the log.
pub type Entry = openraft::Entry<Types>;
/// The log and its protocol.
pub(crate) type Raft = openraft::Raft<Types>;
