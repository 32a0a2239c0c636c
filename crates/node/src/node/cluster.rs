//! Cluster administration: status, membership and backups.

use earmark_admission::{
    Answer, BackupMade, BackupName, Cluster, ClusterError, ClusterStatus, FileStream, InvitationId, InvitationInfo,
    MemberStatus, NewInvitation, SigningKeyInfo, Token,
};
use earmark_core::{Actor, SecretHash};

use super::Node;
use crate::members::MembersError;

impl Cluster for Node {
    fn status(&self) -> ClusterStatus {
        let metrics = self.proposer.raft.metrics().borrow().clone();
        let membership = metrics.membership_config.membership();
        let last = metrics.last_log_index.unwrap_or(0);
        let lag = |id: &u64| {
            let matched = metrics.replication.as_ref()?.get(id)?;
            Some(last.saturating_sub(matched.map_or(0, |matched| matched.index)))
        };
        let members = membership.nodes().map(|(id, member)| MemberStatus {
            node: *id,
            address: member.address.clone(),
            is_voter: membership.voter_ids().any(|voter| voter == *id),
            lag: lag(id),
        });
        ClusterStatus {
            cluster: self.identity.cluster,
            node: self.identity.node,
            leader: metrics.current_leader,
            term: metrics.current_term,
            last_log_index: metrics.last_log_index,
            applied_index: metrics.last_applied.map(|id| id.index),
            snapshot_index: metrics.snapshot.map(|id| id.index),
            quorum_ack_ms: metrics.millis_since_quorum_ack,
            members: members.collect(),
            settings: *self.proposer.applied_state.lock().book.config(),
        }
    }

    fn add(&self, node: u64, address: String) -> Answer<'_, Result<(), ClusterError>> {
        Box::pin(async move { self.members.add(node, address).await.map_err(cluster_error) })
    }

    fn remove(&self, node: u64) -> Answer<'_, Result<(), ClusterError>> {
        Box::pin(async move { self.members.remove(node).await.map_err(cluster_error) })
    }

    fn invite(&self, by: Actor, wanted: NewInvitation) -> Answer<'_, Result<String, ClusterError>> {
        Box::pin(async move {
            let secret = Token::random_invitation().map_err(|error| ClusterError::Unavailable(error.to_string()))?;
            let hash = SecretHash::of(secret.as_bytes());
            let made = self.members.invite(hash, by, wanted.uses, wanted.expires_seconds).await;
            made.map(|()| secret).map_err(cluster_error)
        })
    }

    fn invitations(&self) -> Answer<'_, Result<Vec<InvitationInfo>, ClusterError>> {
        Box::pin(async move {
            let now = self.host.reads.barrier().await.map_err(ClusterError::Unavailable)?;
            Ok(self.proposer.applied_state.roster().invitations.list(now))
        })
    }

    fn revoke_invitation(&self, id: InvitationId) -> Answer<'_, Result<(), ClusterError>> {
        Box::pin(async move { self.members.revoke_invitation(id).await.map_err(cluster_error) })
    }

    fn backup(&self, name: Option<BackupName>) -> Answer<'_, Result<BackupMade, ClusterError>> {
        Box::pin(self.back_up(name))
    }

    fn archive(&self) -> Answer<'_, Result<Box<dyn FileStream>, ClusterError>> {
        Box::pin(self.archive_backup())
    }

    fn export_audit(&self) -> Answer<'_, Result<Box<dyn FileStream>, ClusterError>> {
        Box::pin(self.start_export())
    }

    fn signing_keys(&self) -> Answer<'_, Result<Vec<SigningKeyInfo>, ClusterError>> {
        Box::pin(self.published_keys())
    }
}

pub(super) fn cluster_error(error: MembersError) -> ClusterError {
    match error {
        MembersError::Refused(message) => ClusterError::Refused(message),
        MembersError::Unavailable(message) => ClusterError::Unavailable(message),
        MembersError::NotLeader(_) => ClusterError::Unavailable("the leader changes".into()),
    }
}
