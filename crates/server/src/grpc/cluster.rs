//! `earmark.v1.ClusterService`.

use std::future::Future;
use std::sync::Arc;

use earmark_admission::{Cluster, ClusterError, InvitationId, InvitationInfo, NewInvitation, SigningKeyInfo};
use earmark_core::UnixMs;
use earmark_proto::v1;
use earmark_proto::v1::cluster_service_server::ClusterService;
use tonic::{Request, Response, Status, async_trait};

use super::RpcResult;
use super::ledger::context;
use super::status::failed;
use crate::app::App;
use crate::execute::{self, RequestContext};

pub(super) struct ClusterAdmin(pub(super) Arc<App>);

impl ClusterAdmin {
    fn cluster(&self) -> Result<Arc<dyn Cluster>, Status> {
        let none = || Status::not_found("this server runs in memory and has no cluster");
        self.0.cluster.get().map(Arc::clone).ok_or_else(none)
    }

    /// Makes a change in a task of its own, so that it goes on when the caller gives up, and logs it.
    async fn change<T: Send + 'static>(
        &self,
        context: &RequestContext,
        what: &str,
        change: impl Future<Output = Result<T, ClusterError>> + Send + 'static,
    ) -> Result<T, Status> {
        execute::check_key(&self.0, context).await.map_err(|error| failed(&error))?;
        let actor = &context.caller.actor;
        tracing::info!(request_id = context.id(), %actor, what, "cluster change begins");
        let changed = self.0.by(context.deadline, earmark_admission::spawn(change)).await;
        let changed = changed.map_err(|error| failed(&error))?.map_err(|error| Status::internal(error.to_string()))?;
        let result = changed.as_ref().map_or_else(ToString::to_string, |_| "done".to_owned());
        tracing::info!(request_id = context.id(), %actor, what, result, "cluster change ended");
        changed.map_err(refused)
    }
}

fn refused(error: ClusterError) -> Status {
    match error {
        ClusterError::Refused(why) => Status::failed_precondition(why),
        error => Status::unavailable(format!("{error}; retry")),
    }
}

#[async_trait]
impl ClusterService for ClusterAdmin {
    async fn create_invitation(
        &self,
        request: Request<v1::CreateInvitationRequest>,
    ) -> RpcResult<v1::CreateInvitationResponse> {
        let context = context(&request)?;
        let v1::CreateInvitationRequest { uses, expires_seconds } = request.into_inner();
        let wanted = NewInvitation::new(uses, expires_seconds).map_err(Status::invalid_argument)?;
        let (cluster, by) = (self.cluster()?, context.caller.actor.clone());
        let making = async move { cluster.invite(by, wanted).await };
        let invitation = self.change(&context, &wanted.to_string(), making).await?;
        Ok(Response::new(v1::CreateInvitationResponse { invitation }))
    }

    async fn list_invitations(
        &self,
        request: Request<v1::ListInvitationsRequest>,
    ) -> RpcResult<v1::ListInvitationsResponse> {
        let (context, cluster) = (context(&request)?, self.cluster()?);
        execute::check_key(&self.0, &context).await.map_err(|error| failed(&error))?;
        let listed = self.0.by(context.deadline, cluster.invitations()).await.map_err(|error| failed(&error))?;
        let invitations = listed.map_err(refused)?.into_iter().map(invitation).collect();
        Ok(Response::new(v1::ListInvitationsResponse { invitations }))
    }

    async fn list_signing_keys(
        &self,
        request: Request<v1::ListSigningKeysRequest>,
    ) -> Result<Response<v1::ListSigningKeysResponse>, Status> {
        let (context, cluster) = (context(&request)?, self.cluster()?);
        execute::check_key(&self.0, &context).await.map_err(|error| failed(&error))?;
        let listed = self.0.by(context.deadline, cluster.signing_keys()).await.map_err(|error| failed(&error))?;
        let keys = listed.map_err(refused)?.into_iter().map(signing_key).collect();
        Ok(Response::new(v1::ListSigningKeysResponse { keys }))
    }

    async fn revoke_invitation(
        &self,
        request: Request<v1::RevokeInvitationRequest>,
    ) -> RpcResult<v1::RevokeInvitationResponse> {
        let context = context(&request)?;
        let found = request.into_inner().id;
        let invalid = |allowed| Status::invalid_argument(format!("id: found {found:?}, {allowed}"));
        let id: InvitationId = found.parse().map_err(invalid)?;
        let cluster = self.cluster()?;
        let revoking = async move { cluster.revoke_invitation(id).await };
        self.change(&context, &format!("revoke invitation {id}"), revoking).await?;
        Ok(Response::new(v1::RevokeInvitationResponse {}))
    }
}

fn signing_key(info: SigningKeyInfo) -> v1::SigningKey {
    v1::SigningKey {
        public_key: info.public_key,
        cluster_id: format!("{:032x}", info.cluster),
        node_id: info.node,
        published_at_unix_ms: info.published_at.get(),
        is_member: info.is_member,
    }
}

fn invitation(info: InvitationInfo) -> v1::Invitation {
    v1::Invitation {
        id: info.id.to_string(),
        uses_left: info.uses_left,
        expires_at_unix_ms: info.expires_at.map(UnixMs::get),
        invited_by: info.invited_by.to_string(),
        nodes: info.nodes,
    }
}
