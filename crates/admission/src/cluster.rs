//! The nodes of a cluster, for those who look after them.

use crate::backend::Answer;

/// A cluster, as one of its nodes sees it.
pub trait Cluster: Send + Sync + 'static {
    /// How it is doing.
    fn status(&self) -> ClusterStatus;

    /// Makes the node at an address a member: first as a learner, and once it has caught up as a voter.
    fn add(&self, node: u64, address: String) -> Answer<'_, Result<(), ClusterError>>;

    /// Takes a node out of the cluster.
    fn remove(&self, node: u64) -> Answer<'_, Result<(), ClusterError>>;
}

/// Why the members are as they were.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ClusterError {
    /// It will never be done like this.
    #[error("{0}")]
    Refused(String),
    /// Not now, or not yet: ask again.
    #[error("{0}")]
    Unavailable(String),
}

/// How a cluster is doing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterStatus {
    /// Its id.
    pub cluster: u128,
    /// The node that was asked.
    pub node: u64,
    /// Who leads, as far as that node knows.
    pub leader: Option<u64>,
    /// The term of the latest vote.
    pub term: u64,
    /// The last entry of its log.
    pub last_log_index: Option<u64>,
    /// The last entry that it knows to be committed and has applied.
    pub applied_index: Option<u64>,
    /// The last entry in its newest snapshot.
    pub snapshot_index: Option<u64>,
    /// How long ago a majority last answered the leader; known to the leader only.
    pub quorum_ack_ms: Option<u64>,
    /// The members, in order of their ids.
    pub members: Vec<MemberStatus>,
}

/// One member of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemberStatus {
    /// Its id.
    pub node: u64,
    /// Where its peers reach it; empty for a node that has none.
    pub address: String,
    /// Whether it votes, or only learns.
    pub is_voter: bool,
    /// By how many entries it is behind; known to the leader only.
    pub lag: Option<u64>,
}
