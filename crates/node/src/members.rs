//! Who belongs to the cluster, and how that changes.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use earmark_proto::peer::JoinRequest;
use openraft::ChangeMembers;
use tokio::time::{Instant, timeout, timeout_at};

use crate::ledger::Proposer;
use crate::types::Member;

/// A learner that is no further behind than this becomes a voter; the rest it catches up with on the way.
const LAG_MAX: u64 = 64;
/// The longest name of a machine, and a port. Every snapshot has the addresses of all members in its header.
const ADDRESS_BYTES_MAX: usize = 260;
const POLL: Duration = Duration::from_millis(20);

/// Why the members are as they were.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MembersError {
    /// It will never be done like this.
    #[error("{0}")]
    Refused(String),
    /// Not now, or not yet: asked again, it goes on where it was.
    #[error("{0}")]
    Unavailable(String),
}

/// Changes the members, one change at a time.
#[derive(Clone)]
pub(crate) struct Members {
    pub(crate) proposer: Proposer,
    pub(crate) cluster: u128,
    pub(crate) changing: Arc<tokio::sync::Mutex<()>>,
}

/// What an id stands for at present.
enum Standing {
    New,
    Member { known: Member, is_voter: bool },
}

impl Members {
    /// Makes a node a member: first as a learner, and once it has caught up as a voter. Whoever is one already stays
    /// one. An id that another data folder had is refused.
    pub(crate) async fn add(&self, id: u64, member: Member) -> Result<(), MembersError> {
        check_address(&member)?;
        let Some(leader) = self.proposer.leader() else {
            return Err(MembersError::Unavailable("no node leads now".into()));
        };
        if leader.id != self.proposer.id {
            let bytes = |number: u128| Bytes::copy_from_slice(&number.to_le_bytes());
            let (cluster, incarnation) = (bytes(self.cluster), bytes(member.incarnation));
            let request =
                JoinRequest { cluster, node: id, address: member.address, incarnation, is_met: true };
            return self.proposer.peers.join(&leader.address, request).await;
        }
        let deadline = Instant::now() + self.proposer.deadline;
        let late = |_| MembersError::Unavailable(format!("node {id} is catching up"));
        let _one_at_a_time = timeout_at(deadline, self.changing.lock()).await.map_err(late)?;
        timeout_at(deadline, self.add_here(id, member)).await.map_err(late)?
    }

    /// Makes sure that a node that is to be a member, or to be found somewhere else, answers there: an id and an address
    /// that nobody is behind would stay among the members, and the id be used up.
    pub(crate) async fn meet(&self, id: u64, member: &Member) -> Result<(), MembersError> {
        check_address(member)?;
        let metrics = self.proposer.raft.metrics().borrow().clone();
        if metrics.membership_config.membership().get_node(&id) == Some(member) {
            return Ok(());
        }
        let hello = self.proposer.peers.meet(&member.address, id).await.map_err(unavailable)?;
        let is_it = hello.node == id
            && hello.cluster == self.cluster.to_le_bytes().as_slice()
            && hello.incarnation == member.incarnation.to_le_bytes().as_slice();
        let message = || format!("at {} is another node than node {id}", member.address);
        is_it.then_some(()).ok_or_else(|| MembersError::Unavailable(message()))
    }

    async fn add_here(&self, id: u64, member: Member) -> Result<(), MembersError> {
        let raft = &self.proposer.raft;
        self.settled().await?;
        match self.standing(id, &member)? {
            Standing::Member { known, is_voter } => {
                if known.address != member.address {
                    self.relocate(id, member).await?;
                }
                if is_voter {
                    return Ok(());
                }
            }
            Standing::New => {
                tracing::info!(node = id, address = member.address, "a node joins as a learner");
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
        tracing::info!(node = id, "the node has caught up and is a voter now");
        Ok(())
    }

    /// Waits until everything that was ever decided about members is known here. A leader that has just been elected
    /// may have it in its log only, and would take an id that was used for a new one.
    async fn settled(&self) -> Result<(), MembersError> {
        self.proposer.raft.ensure_linearizable().await.map_err(unavailable).map(|_| ())
    }

    /// Why a node whose data folder nobody has seen yet cannot have an id, as far as is known here.
    pub(crate) fn refusal(&self, id: u64) -> Option<String> {
        let stranger = Member { address: String::new(), incarnation: 0 };
        self.standing(id, &stranger).err().map(|error| error.to_string())
    }

    fn standing(&self, id: u64, member: &Member) -> Result<Standing, MembersError> {
        let metrics = self.proposer.raft.metrics().borrow().clone();
        let membership = metrics.membership_config.membership();
        match membership.get_node(&id) {
            Some(known) if known.incarnation == member.incarnation => {
                let is_voter = membership.voter_ids().any(|voter| voter == id);
                Ok(Standing::Member { known: known.clone(), is_voter })
            }
            Some(_) => Err(MembersError::Refused(format!(
                "node {id} is a member with another data folder. If that one is lost, remove node {id} and give the \
                 new one an id that was never used"
            ))),
            None if self.proposer.shelf.lock().ids.contains(&id) => Err(MembersError::Refused(format!(
                "node id {id} was used before, and ids are never used again: choose another"
            ))),
            None => Ok(Standing::New),
        }
    }

    /// Takes a node out of the cluster.
    pub(crate) async fn remove(&self, id: u64) -> Result<(), MembersError> {
        let Some(leader) = self.proposer.leader() else {
            return Err(MembersError::Unavailable("no node leads now".into()));
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
            return Err(MembersError::Refused(format!("node {id} is no member")));
        }
        if voters.len() == 1 && voters.contains(&id) {
            let message = format!("node {id} is the only voter: without it there is no cluster");
            return Err(MembersError::Refused(message));
        }
        let only = BTreeSet::from([id]);
        let change = match voters.contains(&id) {
            true => ChangeMembers::RemoveVoters(only),
            false => ChangeMembers::RemoveNodes(only),
        };
        raft.change_membership(change, false).await.map_err(unavailable)?;
        tracing::info!(node = id, "the node is no member any more");
        Ok(())
    }

    /// Ends a change of the voters that was begun and not ended, because its leader was lost or its deadline passed in
    /// between. Until then nothing is decided without a majority of the former voters as well.
    pub(crate) async fn finish(&self) -> Result<(), MembersError> {
        // Whoever is changing the members now ends that too.
        let Ok(_one_at_a_time) = self.changing.try_lock() else { return Ok(()) };
        let metrics = self.proposer.raft.metrics().borrow().clone();
        if metrics.membership_config.membership().get_joint_config().len() < 2 {
            return Ok(());
        }
        let late = |_| MembersError::Unavailable("no majority of the nodes answered in time".into());
        let change = ChangeMembers::AddVoterIds(BTreeSet::new());
        let changed = timeout(self.proposer.deadline, self.proposer.raft.change_membership(change, false));
        changed.await.map_err(late)?.map_err(unavailable)?;
        tracing::info!("a change of the voters that was cut off is complete");
        Ok(())
    }

    /// Writes down where this node is now, if the members say something else.
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
        tracing::info!(node = id, address = member.address, "a node is somewhere else now");
        let change = ChangeMembers::SetNodes([(id, member)].into());
        self.proposer.raft.change_membership(change, true).await.map_err(unavailable)?;
        Ok(())
    }
}

fn check_address(member: &Member) -> Result<(), MembersError> {
    if (1..=ADDRESS_BYTES_MAX).contains(&member.address.len()) {
        return Ok(());
    }
    Err(MembersError::Refused(format!("its address is to have 1 to {ADDRESS_BYTES_MAX} bytes")))
}

fn unavailable(error: impl std::fmt::Display) -> MembersError {
    MembersError::Unavailable(error.to_string())
}
