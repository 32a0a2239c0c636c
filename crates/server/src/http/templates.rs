//! `/v1/admin/templates`: templates of limits.

use axum::http::StatusCode;
use earmark_admission::{
    DeleteTemplateRequest, LimitDocument, LimitError, PAGE_MAX, PutTemplateRequest, TemplateDocument,
};
use earmark_core::{LimitKey, TemplateInfo};
use serde::Serialize;
use serde_json::{Value, json};

use super::limits::{self, SHORT_PAGE};
use super::reply::{CONFLICT, Handled, Reply};
use super::schema::{defined, described, exactly, with_placeholders};
use super::serve::{Call, bare, off_runtime};
use super::shape::Described as _;
use crate::app::App;
use crate::execute::{self, TEMPLATE_NOT_FOUND};

pub(super) async fn put(app: &App, call: Call) -> Handled {
    let template = document(&call)?.into_template();
    let namespace = call.named_namespace()?;
    let request = PutTemplateRequest { namespace, template, expected_revision: expected_revision(&call) };
    let revision = execute::put_template(app, &call.context, request).await.map_err(|error| refused(&error))?;
    Ok(Reply::ok(&Changed { ok: true, revision }))
}

pub(super) async fn delete(app: &App, call: Call) -> Handled {
    let namespace = call.named_namespace()?;
    let Some(text) = call.query("key") else { return Err(Reply::invalid("key is required")) };
    // The query is already validated.
    let Ok(key) = LimitKey::pattern(text) else { return Err(Reply::not_found(TEMPLATE_NOT_FOUND)) };
    let request = DeleteTemplateRequest { namespace, key, expected_revision: expected_revision(&call) };
    execute::delete_template(app, &call.context, request).await.map_err(|error| refused(&error))?;
    Ok(Reply::ok(&Done { ok: true }))
}

pub(super) async fn list(app: &App, call: Call) -> Handled {
    let namespace = call.named_namespace()?;
    let _permit = call.context.acquire(PAGE_MAX).await?;
    let templates = execute::read(app, &call.context, app.backend.templates(namespace)).await?;
    // All of them are one page, so they are charged once their number is known.
    app.auth.charge_batch(&call.context.caller, templates.len())?;
    let is_short = templates.len() <= SHORT_PAGE;
    let build = move || Reply::ok(&Templates { templates: templates.iter().map(TemplateWire::of).collect() });
    Ok(if is_short { build() } else { off_runtime(build).await })
}

fn document(call: &Call) -> Result<TemplateDocument, Reply> {
    // The shape is checked first: its messages name the field and the value in the body.
    if let Some(wrong) = TemplateDocument::SHAPE.explain(&call.body) {
        return Err(Reply::invalid(&wrong));
    }
    serde_json::from_slice(&call.body).map_err(|error| Reply::invalid(&bare(&error)))
}

fn expected_revision(call: &Call) -> Option<u64> {
    call.query("expected_revision").and_then(|text| text.parse().ok())
}

fn refused(error: &LimitError) -> Reply {
    match error {
        LimitError::NotFound => Reply::not_found(TEMPLATE_NOT_FOUND),
        LimitError::Backend(error) => limits::failed(error),
        LimitError::QuotaExceeded(kind) => limits::quota_exceeded(*kind),
        LimitError::RevisionDiffers { .. } => Reply::problem(StatusCode::CONFLICT, CONFLICT, &error.to_string()),
        error => Reply::invalid(&error.to_string()),
    }
}

#[derive(Serialize)]
struct Changed {
    ok: bool,
    revision: u64,
}

#[derive(Serialize)]
struct Done {
    ok: bool,
}

#[derive(Serialize)]
struct Templates {
    templates: Vec<TemplateWire>,
}

#[derive(Serialize)]
struct TemplateWire {
    definition: LimitDocument,
    revision: u64,
    live: u64,
}

impl TemplateWire {
    fn of(info: &TemplateInfo) -> TemplateWire {
        TemplateWire { definition: LimitDocument::of(&info.definition), revision: info.revision, live: info.live }
    }
}

/// The named schemas of the responses.
pub(super) fn schemas() -> [(&'static str, Value); 2] {
    let count = json!({"type": "integer", "minimum": 0});
    let revision = described(count.clone(), "The revision, for `expected_revision`.");
    let live = described(count, "The number of limits that are derived from it now.");
    let template =
        exactly(json!({"definition": with_placeholders(defined()), "revision": revision, "live": live}), &[]);
    [
        ("TemplateChanged", exactly(json!({"ok": {"const": true}, "revision": revision}), &[])),
        ("Templates", exactly(json!({"templates": {"type": "array", "items": template}}), &[])),
    ]
}
