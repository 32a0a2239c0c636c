//! `/v1/admin/policy`: the policy of a namespace.

use axum::http::StatusCode;
use earmark_admission::PolicyError;
use earmark_core::{POLICY_BYTES_MAX, PutPolicy};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::limits;
use super::parse::Count;
use super::reply::{CONFLICT, Handled, Reply};
use super::schema::{described, exactly};
use super::serve::Call;
use super::shape::{Described, Shape, body};
use crate::app::App;
use crate::execute;
use crate::policy::{self, POLICY_NOT_FOUND, PutError};

body! {
    pub(super) struct PolicyBody {
        /// The document, in TOML.
        policy: PolicyText,
        /// The revision that the policy must have; 0 if there must be none.
        expected_revision: Option<Count<0>>,
    }
}

/// The text of a policy in a body.
#[derive(Deserialize)]
#[serde(transparent)]
pub(super) struct PolicyText(String);

impl Described for PolicyText {
    const SHAPE: Shape = Shape::Text { bytes_max: POLICY_BYTES_MAX };
}

pub(super) async fn put(app: &App, call: Call) -> Handled {
    let (namespace, body) = (call.named_namespace()?, call.parse::<PolicyBody>()?);
    let expected_revision = body.expected_revision.map(|revision| revision.0);
    let command = PutPolicy { namespace, text: body.policy.0.into(), expected_revision };
    match policy::put(app, &call.context, command).await {
        Ok(revision) => Ok(Reply::ok(&Changed { ok: true, revision })),
        Err(PutError::Mistake(mistake)) => Err(Reply::invalid(&format!("policy: {mistake}"))),
        Err(PutError::Refused(error)) => Err(refused(&error)),
    }
}

pub(super) async fn get(app: &App, call: Call) -> Handled {
    let namespace = call.named_namespace()?;
    let found = execute::read(app, &call.context, app.backend.policy(namespace)).await?;
    let found = found.ok_or_else(|| Reply::not_found(POLICY_NOT_FOUND))?;
    Ok(Reply::ok(&Found { policy: &found.text, revision: found.revision }))
}

fn refused(error: &PolicyError) -> Reply {
    match error {
        PolicyError::Backend(error) => limits::failed(error),
        PolicyError::QuotaExceeded(kind) => limits::quota_exceeded(*kind),
        PolicyError::RevisionDiffers { .. } => Reply::problem(StatusCode::CONFLICT, CONFLICT, &error.to_string()),
        error => Reply::invalid(&error.to_string()),
    }
}

#[derive(Serialize)]
struct Changed {
    ok: bool,
    revision: u64,
}

#[derive(Serialize)]
struct Found<'a> {
    policy: &'a str,
    revision: u64,
}

/// The named schemas of the responses.
pub(super) fn schemas() -> [(&'static str, Value); 2] {
    let revision = described(json!({"type": "integer", "minimum": 1}), "The revision, for `expected_revision`.");
    [
        ("PolicyChanged", exactly(json!({"ok": {"const": true}, "revision": revision}), &[])),
        ("Policy", exactly(json!({"policy": {"type": "string"}, "revision": revision}), &[])),
    ]
}
