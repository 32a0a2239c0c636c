//! Membership changes of the cluster.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use earmark_admission::{INVITATION_USES_MAX, InvitationId};
use earmark_core::{Actor, SecretHash};
use earmark_proto::peer::{InviteRequest, PublishKeyRequest, RevokeInvitationRequest};
use openraft::ChangeMembers;
use tokio::time::{Instant, timeout, timeout_at};

use crate::auth::{Admission, Caller, not_invited, other_folder, removed};
use crate::entry::ADDRESS_BYTES_MAX;
use crate::invitations::{INVITATIONS_MAX, InvitationEdit, InvitationError};
use crate::peers::{CallError, Target};
use crate::proposer::Proposer;
use crate::published_keys::NodeKey;
use crate::roster::{RosterChange, RosterEdit, namesakes};
use crate::types::Member;

/// A learner at most this many entries behind becomes a voter.
const LAG_MAX: u64 = 64;
const POLL: Duration = Duration::from_millis(20);

#[derive(Debug, thiserror::Error)]
pub(crate) enum MembersError {
    /// Permanent: the request can never succeed.
    #[error("{0}")]
    Refused(String),
    /// Temporary: a retry continues where this attempt stopped.
    #[error("{0}")]
    Unavailable(String),
    /// Only the leader changes the membership.
    #[error("node {} leads", .0.id)]
    NotLeader(Target),
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
    /// Adds the sender of a call, or moves it to another address, and returns its id. With `check_only` no member is
    /// changed, and a sender without an id gets one.
    pub(crate) async fn join(&self, caller: &Caller, check_only: bool) -> Result<u64, MembersError> {
        let Caller { node: id, incarnation, address, admission } = caller;
        let (id, member) = (*id, Member { address: address.clone(), incarnation: *incarnation });
        check_address(&member)?;
        if let Some(leader) = self.other_leader()? {
            return Err(MembersError::NotLeader(leader));
        }
        if check_only {
            let settled = timeout(self.proposer.deadline, self.settled()).await;
            settled.map_err(|_| no_majority())??;
            // The invitation was checked when the call was authorised.
            return match id {
                0 => self.give_id(member.incarnation).await,
                id => self.join_state(id, &member).map(|_| id),
            };
        }
        if id == 0 {
            return Err(MembersError::Refused("a node without an id cannot join; ask for one first".into()));
        }
        self.verify_member(id, &member).await?;
        self.add_member(id, member, admission).await.map(|()| id)
    }

    /// Gives a new node an id: an entry in the log, which decides between nodes that ask at once.
    async fn give_id(&self, incarnation: u128) -> Result<u64, MembersError> {
        self.change_roster(RosterEdit::GiveId { incarnation }).await?;
        let given = self.proposer.applied_state.roster().ids.given_to(incarnation);
        given.ok_or_else(|| MembersError::Refused("no node id is left".into()))
    }

    /// Makes an invitation: an entry in the log.
    pub(crate) async fn invite(
        &self,
        hash: SecretHash,
        by: Actor,
        uses: u32,
        expires_seconds: Option<u32>,
    ) -> Result<(), MembersError> {
        if let Some(leader) = self.other_leader()? {
            let (secret_hash, actor) = (Bytes::copy_from_slice(hash.as_bytes()), by.as_str().to_owned());
            let request = InviteRequest { secret_hash, uses, expires_seconds, actor };
            return self.proposer.peers.invite(&leader, request).await;
        }
        if !(1..=INVITATION_USES_MAX).contains(&uses) {
            let message = format!("uses: found {uses}, allowed are integers from 1 to {INVITATION_USES_MAX}");
            return Err(MembersError::Refused(message));
        }
        let now = self.proposer.now().map_err(unavailable)?.log;
        let expires_at = expires_seconds.map(|seconds| now.plus_ms(u64::from(seconds).saturating_mul(1_000)));
        let edit = InvitationEdit::Create { hash, uses, expires_at, invited_by: by };
        self.change_roster(RosterEdit::Invitations(edit)).await?;
        match self.proposer.applied_state.roster().invitations.contains(&hash) {
            true => Ok(()),
            false => Err(MembersError::Refused(format!(
                "{INVITATIONS_MAX} invitations are open; use or revoke some, or wait until they expire"
            ))),
        }
    }

    /// Revokes an invitation: an entry in the log.
    pub(crate) async fn revoke_invitation(&self, id: InvitationId) -> Result<(), MembersError> {
        if let Some(leader) = self.other_leader()? {
            return self.proposer.peers.revoke_invitation(&leader, RevokeInvitationRequest { id: id.0 }).await;
        }
        timeout(self.proposer.deadline, self.settled()).await.map_err(|_| no_majority())??;
        let now = self.proposer.now().map_err(unavailable)?.log;
        if self.proposer.applied_state.roster().invitations.list(now).iter().all(|info| info.id != id) {
            return Err(MembersError::Refused(format!("no invitation has the id {id}")));
        }
        self.change_roster(RosterEdit::Invitations(InvitationEdit::Revoke { id })).await
    }

    /// Publishes the key with which this node signs: an entry in the log. Returns at once if the key is known.
    pub(crate) async fn publish_key(&self, key: NodeKey) -> Result<(), MembersError> {
        if self.proposer.applied_state.roster().keys.contains(&key) {
            return Ok(());
        }
        match self.other_leader()? {
            Some(leader) => {
                let public_key = Bytes::copy_from_slice(&key.key.0);
                self.proposer.peers.publish_key(&leader, PublishKeyRequest { public_key }).await
            }
            None => self.change_roster(RosterEdit::PublishKey(key)).await,
        }
    }

    async fn change_roster(&self, edit: RosterEdit) -> Result<(), MembersError> {
        let at = self.proposer.now().map_err(unavailable)?.log;
        let change = self.proposer.propose(RosterChange { at, edit }.encode());
        let changed = timeout(self.proposer.deadline, change).await;
        changed.map_err(|_| no_majority())?.map(drop).map_err(unavailable)
    }

    /// Uses an invitation for a node, and returns who made it. The log decides which of several nodes gets the last
    /// use.
    async fn redeem(&self, hash: SecretHash, node: u64, incarnation: u128) -> Result<Actor, MembersError> {
        self.change_roster(RosterEdit::Invitations(InvitationEdit::Redeem { hash, node, incarnation })).await?;
        let roster = self.proposer.applied_state.roster();
        match roster.invitations.inviter(&hash, (node, incarnation)) {
            Some(by) => Ok(by.clone()),
            None => {
                let why = match roster.invitations.contains(&hash) {
                    true => InvitationError::UsedUp,
                    false => InvitationError::Unknown,
                };
                Err(MembersError::Refused(why.to_string()))
            }
        }
    }

    /// Adds a node that an admin names: first as a learner, then, once it has caught up, as a voter.
    pub(crate) async fn add(&self, id: u64, address: String) -> Result<(), MembersError> {
        if let Some(leader) = self.other_leader()? {
            return self.proposer.peers.add(&leader, id, address).await;
        }
        let membership = self.proposer.raft.metrics().borrow().membership_config.clone();
        let known = membership.membership().get_node(&id);
        if let Some(Member { address: known, .. }) = known.filter(|known| known.address != address) {
            let message = format!("node {id} is a member at {known}; to move it, start it with another --peer-listen");
            return Err(MembersError::Refused(message));
        }
        check_address(&Member { address: address.clone(), incarnation: 0 })?;
        let (cluster, found) = self.proposer.peers.identify(&address).await.map_err(call_failed)?;
        if cluster != self.cluster {
            let message = format!("the node at {address} belongs to another cluster; name a node of this cluster");
            return Err(MembersError::Refused(message));
        }
        if found.id != id {
            return Err(MembersError::Refused(format!("{address} is node {}, not node {id}", found.id)));
        }
        self.add_member(id, Member { address, incarnation: found.incarnation }, &Admission::Admin).await
    }

    /// The leader, if it is another node.
    fn other_leader(&self) -> Result<Option<Target>, MembersError> {
        let leader = self.proposer.leader();
        let leader = leader.ok_or_else(|| MembersError::Unavailable("no leader is known".into()))?;
        Ok((leader.id != self.proposer.id).then_some(leader))
    }

    async fn add_member(&self, id: u64, member: Member, admission: &Admission) -> Result<(), MembersError> {
        let deadline = Instant::now() + self.proposer.deadline;
        let late = |_| MembersError::Unavailable(format!("node {id} is catching up"));
        let _one_at_a_time = timeout_at(deadline, self.changing.lock()).await.map_err(late)?;
        timeout_at(deadline, self.add_here(id, member, admission)).await.map_err(late)?
    }

    /// The members that this node knows.
    pub(crate) fn list(&self) -> Vec<Target> {
        let membership = self.proposer.raft.metrics().borrow().membership_config.clone();
        let target = |(id, member): (&u64, &Member)| {
            let Member { address, incarnation } = member.clone();
            Target { id: *id, address, incarnation }
        };
        membership.membership().nodes().map(target).collect()
    }

    /// Verifies that a joining or moved node answers at its address. Otherwise an id and address without a node
    /// behind them would stay in the membership, and the id would be used up.
    async fn verify_member(&self, id: u64, member: &Member) -> Result<(), MembersError> {
        let metrics = self.proposer.raft.metrics().borrow().clone();
        if metrics.membership_config.membership().get_node(&id) == Some(member) {
            return Ok(());
        }
        let hello = self.proposer.peers.hello(&member.address, Some(id)).await.map_err(unavailable)?;
        let is_it = hello.node == id
            && hello.cluster == self.cluster.to_le_bytes().as_slice()
            && hello.incarnation == member.incarnation.to_le_bytes().as_slice();
        let message = || format!("{} is not node {id}", member.address);
        is_it.then_some(()).ok_or_else(|| MembersError::Unavailable(message()))
    }

    async fn add_here(&self, id: u64, member: Member, admission: &Admission) -> Result<(), MembersError> {
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
                let invited_by = match admission {
                    Admission::None => return Err(MembersError::Unavailable(not_invited(&member.address))),
                    Admission::SameName => "its certificate, which has the name of a member".to_owned(),
                    Admission::OpenNetwork => "nobody: the network has no certificates".to_owned(),
                    Admission::Admin => "an admin who added it".to_owned(),
                    Admission::Invitation(hash) => self.redeem(*hash, id, member.incarnation).await?.to_string(),
                };
                tracing::info!(node = id, address = member.address, invited_by, "node joins as a learner");
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
        self.promote(id).await
    }

    /// Makes a learner that has caught up a voter. In the same step the members with its name leave: they lost their
    /// data folder, or their node was replaced.
    async fn promote(&self, id: u64) -> Result<(), MembersError> {
        let metrics = self.proposer.raft.metrics().borrow().clone();
        let membership = metrics.membership_config.membership();
        let address = membership.get_node(&id).map_or("", |member| &member.address);
        let replaced = namesakes(membership, id, address);
        let mut voters = membership.get_joint_config().last().cloned().unwrap_or_default();
        voters.insert(id);
        voters.retain(|voter| !replaced.contains(voter));
        let change = |change, retains| self.proposer.raft.change_membership(change, retains);
        change(ChangeMembers::ReplaceAllVoters(voters), false).await.map_err(unavailable)?;
        tracing::info!(node = id, "node has caught up and is a voter");
        let metrics = self.proposer.raft.metrics().borrow().clone();
        let members = metrics.membership_config.membership();
        let learners: BTreeSet<u64> = replaced.iter().copied().filter(|id| members.get_node(id).is_some()).collect();
        if !learners.is_empty() {
            change(ChangeMembers::RemoveNodes(learners), false).await.map_err(unavailable)?;
        }
        for replaced in replaced {
            tracing::info!(node = replaced, by = id, "node removed: another node has its name");
        }
        Ok(())
    }

    /// Waits until this node knows every committed membership change. A new leader may have some only in its log, and
    /// would take a used id for a new one.
    async fn settled(&self) -> Result<(), MembersError> {
        self.proposer.raft.ensure_linearizable().await.map_err(unavailable).map(|_| ())
    }

    fn join_state(&self, id: u64, member: &Member) -> Result<JoinState, MembersError> {
        let metrics = self.proposer.raft.metrics().borrow().clone();
        let membership = metrics.membership_config.membership();
        match membership.get_node(&id) {
            Some(known) if known.incarnation == member.incarnation => {
                let is_voter = membership.voter_ids().any(|voter| voter == id);
                Ok(JoinState::Member { known: known.clone(), is_voter })
            }
            Some(_) => Err(MembersError::Refused(other_folder(id))),
            None => {
                let roster = self.proposer.applied_state.roster();
                if roster.ids.is_used(id) {
                    return Err(MembersError::Refused(removed(id)));
                }
                if roster.ids.is_given_to_another(id, member.incarnation) {
                    let message = format!("the cluster has given id {id} to another node; leave --node-id out");
                    return Err(MembersError::Refused(message));
                }
                Ok(JoinState::New)
            }
        }
    }

    pub(crate) async fn remove(&self, id: u64) -> Result<(), MembersError> {
        if let Some(leader) = self.other_leader()? {
            return self.proposer.peers.remove(&leader, id).await;
        }
        let deadline = Instant::now() + self.proposer.deadline;
        let late = |_| no_majority();
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
        let late = |_| no_majority();
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
        let late = |_| no_majority();
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

fn no_majority() -> MembersError {
    MembersError::Unavailable("no majority of the nodes answered in time".into())
}

fn call_failed(error: CallError) -> MembersError {
    match error {
        CallError::Excluded { message } => MembersError::Refused(message),
        error => MembersError::Unavailable(error.to_string()),
    }
}

fn unavailable(error: impl std::fmt::Display) -> MembersError {
    MembersError::Unavailable(error.to_string())
}
