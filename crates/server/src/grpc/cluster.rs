//! `earmark.v1.ClusterService`.

use std::sync::Arc;

use earmark_admission::{ClusterError, NewInvitation};
use earmark_proto::v1;
use earmark_proto::v1::cluster_service_server::ClusterService;
use tonic::{Request, Response, Status, async_trait};

use super::ledger::context;
use super::status::failed;
use crate::app::App;
use crate::execute;

pub(super) struct ClusterAdmin(pub(super) Arc<App>);

#[async_trait]
impl ClusterService for ClusterAdmin {
    async fn create_invitation(
        &self,
        request: Request<v1::CreateInvitationRequest>,
    ) -> Result<Response<v1::CreateInvitationResponse>, Status> {
        let context = context(&request)?;
        let v1::CreateInvitationRequest { uses, expires_seconds } = request.into_inner();
        let wanted = NewInvitation::new(uses, expires_seconds).map_err(Status::invalid_argument)?;
        let none = || Status::not_found("this server runs in memory and has no cluster");
        let cluster = self.0.cluster.get().map(Arc::clone).ok_or_else(none)?;
        execute::check_key(&self.0, &context).await.map_err(|error| failed(&error))?;
        let by = context.caller.actor.clone();
        tracing::info!(request_id = context.id(), actor = %by, what = %wanted, "cluster change begins");
        let making = tokio::spawn(async move { cluster.invite(by, wanted).await });
        let made = self.0.by(context.deadline, making).await.map_err(|error| failed(&error))?;
        let made = made.map_err(|error| Status::internal(error.to_string()))?;
        let result = made.as_ref().map_or_else(ToString::to_string, |_| "done".to_owned());
        let actor = &context.caller.actor;
        tracing::info!(request_id = context.id(), %actor, what = %wanted, result, "cluster change ended");
        match made {
            Ok(invitation) => Ok(Response::new(v1::CreateInvitationResponse { invitation })),
            Err(ClusterError::Refused(why)) => Err(Status::failed_precondition(why)),
            Err(error) => Err(Status::unavailable(format!("{error}; retry"))),
        }
    }
}
