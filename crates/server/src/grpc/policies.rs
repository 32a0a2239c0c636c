//! The policies of `earmark.v1.LimitsService`.

use earmark_admission::PolicyError;
use earmark_core::{NamespaceName, PutPolicy};
use earmark_proto::{convert, v1};
use tonic::Status;

use super::status::failed;
use crate::app::App;
use crate::execute::{self, RequestContext};
use crate::policy::{self, POLICY_NOT_FOUND, PutError};

pub(super) async fn get(
    app: &App,
    context: &RequestContext,
    request: v1::GetPolicyRequest,
) -> Result<v1::GetPolicyResponse, Status> {
    let namespace = namespace(context, request.namespace.as_deref())?;
    match execute::read(app, context, app.backend.policy(namespace)).await {
        Ok(Some(found)) => Ok(v1::GetPolicyResponse { policy: found.text.to_string(), revision: found.revision }),
        Ok(None) => Err(Status::not_found(POLICY_NOT_FOUND)),
        Err(error) => Err(failed(&error)),
    }
}

pub(super) async fn put(
    app: &App,
    context: &RequestContext,
    request: v1::PutPolicyRequest,
) -> Result<v1::PutPolicyResponse, Status> {
    let namespace = namespace(context, request.namespace.as_deref())?;
    let v1::PutPolicyRequest { policy: text, expected_revision, .. } = request;
    let command = PutPolicy { namespace, text: text.into(), expected_revision };
    match policy::put(app, context, command).await {
        Ok(revision) => Ok(v1::PutPolicyResponse { ok: true, revision }),
        Err(PutError::Mistake(mistake)) => Err(Status::invalid_argument(format!("policy: {mistake}"))),
        Err(PutError::Refused(PolicyError::Backend(error))) => Err(failed(&error)),
        Err(PutError::Refused(error @ PolicyError::RevisionDiffers { .. })) => {
            Err(Status::failed_precondition(error.to_string()))
        }
        Err(PutError::Refused(error @ PolicyError::TooLarge)) => Err(Status::invalid_argument(error.to_string())),
        Err(PutError::Refused(error)) => Err(Status::resource_exhausted(error.to_string())),
    }
}

/// The namespace of the request; without one, the caller's. Only an admin of `default` gets here.
fn namespace(context: &RequestContext, text: Option<&str>) -> Result<NamespaceName, Status> {
    let Some(text) = text else { return Ok(context.caller.namespace.clone()) };
    Ok(convert::name("namespace", text)?)
}
