//! Policies: checked here before they are proposed.

use earmark_admission::{BackendError, PolicyError};
use earmark_core::{NamespaceName, PutPolicy};
use earmark_policy::{Mistake, Policy};

use crate::app::App;
use crate::execute::RequestContext;

pub(crate) const POLICY_NOT_FOUND: &str = "this namespace has no policy; put one with `earmark policy put`";

/// Why a policy was not put.
#[derive(Debug)]
pub(crate) enum PutError {
    /// The document has a mistake.
    Mistake(Mistake),
    /// The backend refused it.
    Refused(PolicyError),
}

/// Checks a document and replaces the policy of its namespace. Returns the revision.
pub(crate) async fn put(app: &App, context: &RequestContext, command: PutPolicy) -> Result<u64, PutError> {
    let (namespace, text) = (command.namespace.clone(), command.text.clone());
    // Hundreds of conditions take long enough to keep others waiting.
    let checked = tokio::task::spawn_blocking(move || Policy::parse(&namespace, &text).map(drop)).await;
    let failed = |error: BackendError| PutError::Refused(PolicyError::Backend(error));
    checked.map_err(|error| failed(BackendError::Failed(error.to_string())))?.map_err(PutError::Mistake)?;
    log_put(context, &command.namespace);
    let answer = app.by(context.deadline, app.backend.put_policy(context.caller.by.clone(), command)).await;
    answer.map_err(failed)?.map_err(PutError::Refused)
}

fn log_put(context: &RequestContext, namespace: &NamespaceName) {
    tracing::info!(request_id = context.id(), actor = %context.caller.actor, %namespace, "put policy");
}
