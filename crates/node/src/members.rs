//! Membership changes of the cluster.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use earmark_proto::peer::JoinRequest;
use openraft::ChangeMembers;
use tokio::time::{Instant, timeout, timeout_at};

use crate::proposer::Proposer;
use crate::types::Member;

/// A learner at most this many entries behind becomes a voter.
const LAG_MAX: u64 = 64;
/// Maximum address length in bytes: the longest host name and a port. Every snapshot header holds all addresses.
const ADDRESS_BYTES_MAX: usize = 260;
const POLL: Duration = Duration::from_millis(20);

#[derive(Debug, thiserror::Error)]
pub(crate) enum MembersError {
    /// Permanent: the request can never succeed.
    #[error("{0}")]
    Refused(String),
    /// Temporary: a retry continues where this attempt stopped.
    #[error("{0}")]
    Unavailable(String),
}

#[derive(Clone)]
pub(crate) struct Members {
    pub(crate) proposer: Proposer,
    pub(crate) cluster: u128,
    pub(crate) changing: Arc<tokio::sync::Mutex<()>>,
}

/// Relation of a node id to the current membership.
enum JoinState {
    New,
    Member { known: Member, is_voter: bool },
}

impl Members {
    /// Adds a node: first as a learner, then, once it has caught up, as a voter. Existing members stay. An id that
    /// belongs to another data folder is refused.
    pub(crate) async fn add(&self, id: u64, member: Member) -> Result<(), MembersError> {
        check_address(&member)?;
        let Some(leader) = self.proposer.leader() else {
            return Err(MembersError::Unavailable("no leader is known".into()));
        };
        if leader.id != self.proposer.id {
            let bytes = |number: u128| Bytes::copy_from_slice(&number.to_le_bytes());
            let (cluster, incarnation) = (bytes(self.cluster), bytes(member.incarnation));
            let request = JoinRequest { cluster, node: id, address: member.address, incarnation, is_met: true };
            return self.proposer.peers.join(&leader.address, request).await;
        }
        let deadline = Instant::now() + self.proposer.deadline;
        let late = |_| MembersError::Unavailable(format!("node {id} is catching up"));
        let _one_at_a_time = timeout_at(deadline, self.changing.lock()).await.map_err(late)?;
        timeout_at(deadline, self.add_here(id, member)).await.map_err(late)?
    }

    /// Verifies that a joining or moved node answers at its address. Otherwise an id and address without a node
    /// behind them would stay in the membership, and the id would be used up.
    pub(crate) async fn verify_member(&self, id: u64, member: &Member) -> Result<(), MembersError> {
        check_address(member)?;
        let metrics = self.proposer.raft.metrics().borrow().clone();
        if metrics.membership_config.membership().get_node(&id) == Some(member) {
            return Ok(());
        }
        let hello = self.proposer.peers.hello_from(&member.address, id).await.map_err(unavailable)?;
        let is_it = hello.node == id
            && hello.cluster == self.cluster.to_le_bytes().as_slice()
            && hello.incarnation == member.incarnation.to_le_bytes().as_slice();
        let message = || format!("{} is not node {id}", member.address);
        is_it.then_some(()).ok_or_else(|| MembersError::Unavailable(message()))
    }

    async fn add_here(&self, id: u64, member: Member) -> Result<(), MembersError> {
        let raft = &self.proposer.raft;
        self.settled().await?;
        match self.join_state(id, &member)? {
            JoinState::Member { known, is_voter } => {
                if known.address != member.address {
                    self.relocate(id, member).await?;
                }
                if is_voter {
                    return Ok(());
                }
            }
            JoinState::New => {
                tracing::info!(node = id, address = member.address, "node joins as a learner");
                raft.add_learner(id, member, false).await.map_err(unavailable)?;
            }
        }
        loop {
            let metrics = raft.metrics().borrow().clone();
            let last = metrics.last_log_index.unwrap_or(0);
            let matched = metrics.replication.and_then(|known| known.get(&id).copied().flatten());
            if matched.is_some_and(|matched| matched.index + LAG_MAX >= last) {
                break;
            }
            tokio::time::sleep(POLL).await;
        }
        let voters = ChangeMembers::AddVoterIds(BTreeSet::from([id]));
        raft.change_membership(voters, true).await.map_err(unavailable)?;
        tracing::info!(node = id, "node has caught up and is a voter");
        Ok(())
    }

    /// Waits until this node knows every committed membership change. A new leader may have some only in its log, and
    /// would take a used id for a new one.
    async fn settled(&self) -> Result<(), MembersError> {
        self.proposer.raft.ensure_linearizable().await.map_err(unavailable).map(|_| ())
    }

    /// Why a node without a data folder cannot use an id, as far as this node knows.
    pub(crate) fn refusal(&self, id: u64) -> Option<String> {
        let stranger = Member { address: String::new(), incarnation: 0 };
        self.join_state(id, &stranger).err().map(|error| error.to_string())
    }

    fn join_state(&self, id: u64, member: &Member) -> Result<JoinState, MembersError> {
        let metrics = self.proposer.raft.metrics().borrow().clone();
        let membership = metrics.membership_config.membership();
        match membership.get_node(&id) {
            Some(known) if known.incarnation == member.incarnation => {
                let is_voter = membership.voter_ids().any(|voter| voter == id);
                Ok(JoinState::Member { known: known.clone(), is_voter })
            }
            Some(_) => Err(MembersError::Refused(format!(
                "node {id} is a member with another data folder. If that folder is lost, remove node {id} and start \
                 the new node with an id that was never used"
            ))),
            None if self.proposer.applied_state.lock().ids.contains(&id) => Err(MembersError::Refused(format!(
                "node id {id} was used before, and ids are never used again; choose another"
            ))),
            None => Ok(JoinState::New),
        }
    }

    pub(crate) async fn remove(&self, id: u64) -> Result<(), MembersError> {
        let Some(leader) = self.proposer.leader() else {
            return Err(MembersError::Unavailable("no leader is known".into()));
        };
        if leader.id != self.proposer.id {
            return self.proposer.peers.remove(&leader, id).await;
        }
        let deadline = Instant::now() + self.proposer.deadline;
        let late = |_| MembersError::Unavailable("no majority of the nodes answered in time".into());
        let _one_at_a_time = timeout_at(deadline, self.changing.lock()).await.map_err(late)?;
        timeout_at(deadline, self.remove_here(id)).await.map_err(late)?
    }

    async fn remove_here(&self, id: u64) -> Result<(), MembersError> {
        let raft = &self.proposer.raft;
        self.settled().await?;
        let metrics = raft.metrics().borrow().clone();
        let membership = metrics.membership_config.membership();
        let voters: BTreeSet<u64> = membership.voter_ids().collect();
        if membership.get_node(&id).is_none() {
            return Err(MembersError::Refused(format!("node {id} is not a member")));
        }
        if voters.len() == 1 && voters.contains(&id) {
            let message = format!("node {id} is the only voter and cannot be removed");
            return Err(MembersError::Refused(message));
        }
        let only = BTreeSet::from([id]);
        let change = match voters.contains(&id) {
            true => ChangeMembers::RemoveVoters(only),
            false => ChangeMembers::RemoveNodes(only),
        };
        raft.change_membership(change, false).await.map_err(unavailable)?;
        tracing::info!(node = id, "node removed from the cluster");
        Ok(())
    }

    /// Completes a voter change that was interrupted by a leader change or a deadline. Until then every decision also
    /// needs a majority of the old voters.
    pub(crate) async fn finish(&self) -> Result<(), MembersError> {
        // The task that holds the lock completes the change.
        let Ok(_one_at_a_time) = self.changing.try_lock() else { return Ok(()) };
        let metrics = self.proposer.raft.metrics().borrow().clone();
        if metrics.membership_config.membership().get_joint_config().len() < 2 {
            return Ok(());
        }
        let late = |_| MembersError::Unavailable("no majority of the nodes answered in time".into());
        let change = ChangeMembers::AddVoterIds(BTreeSet::new());
        let changed = timeout(self.proposer.deadline, self.proposer.raft.change_membership(change, false));
        changed.await.map_err(late)?.map_err(unavailable)?;
        tracing::info!("interrupted voter change completed");
        Ok(())
    }

    /// Leader: updates its own address in the membership if it moved.
    pub(crate) async fn move_here(&self, address: &str) -> Result<(), MembersError> {
        let id = self.proposer.id;
        let metrics = self.proposer.raft.metrics().borrow().clone();
        let known = metrics.membership_config.membership().get_node(&id).cloned();
        let Some(member) = known.filter(|known| known.address != address) else { return Ok(()) };
        let moved = self.relocate(id, Member { address: address.to_owned(), ..member });
        let late = |_| MembersError::Unavailable("no majority of the nodes answered in time".into());
        timeout(self.proposer.deadline, moved).await.map_err(late)?
    }

    async fn relocate(&self, id: u64, member: Member) -> Result<(), MembersError> {
        tracing::info!(node = id, address = member.address, "node moved to another address");
        let change = ChangeMembers::SetNodes([(id, member)].into());
        self.proposer.raft.change_membership(change, true).await.map_err(unavailable)?;
        Ok(())
    }
}

fn check_address(member: &Member) -> Result<(), MembersError> {
    if (1..=ADDRESS_BYTES_MAX).contains(&member.address.len()) {
        return Ok(());
    }
    Err(MembersError::Refused(format!("address must have 1 to {ADDRESS_BYTES_MAX} bytes")))
}

fn unavailable(error: impl std::fmt::Display) -> MembersError {
    MembersError::Unavailable(error.to_string())
}
