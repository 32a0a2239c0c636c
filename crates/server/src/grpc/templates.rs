//! The templates of `earmark.v1.LimitsService`.

use earmark_admission::{DeleteTemplateRequest, LimitError, PAGE_MAX, PutTemplateRequest};
use earmark_core::{LimitKey, NamespaceName, TemplateInfo};
use earmark_proto::convert::{self, Invalid};
use earmark_proto::v1;
use tonic::Status;

use super::status::{failed, of_limit};
use crate::app::App;
use crate::execute::{self, RequestContext, TEMPLATE_NOT_FOUND};

pub(super) async fn put(
    app: &App,
    context: &RequestContext,
    request: v1::PutTemplateRequest,
) -> Result<v1::PutTemplateResponse, Status> {
    let v1::PutTemplateRequest { definition, namespace, expected_revision } = request;
    let given = definition.ok_or_else(|| Invalid::missing("definition"))?;
    let template = convert::template(given)?;
    let namespace = named_namespace(context, namespace.as_deref())?;
    let request = PutTemplateRequest { namespace, template, expected_revision };
    let revision = execute::put_template(app, context, request).await.map_err(|error| refused(&error))?;
    Ok(v1::PutTemplateResponse { ok: true, revision })
}

pub(super) async fn list(
    app: &App,
    context: &RequestContext,
    request: v1::ListTemplatesRequest,
) -> Result<v1::ListTemplatesResponse, Status> {
    let namespace = named_namespace(context, request.namespace.as_deref())?;
    let _permit = context.acquire(PAGE_MAX).await?;
    let templates = execute::read(app, context, app.backend.templates(namespace)).await;
    let templates = templates.map_err(|error| failed(&error))?;
    // All of them are one page, so they are charged once their number is known.
    app.auth.charge_batch(&context.caller, templates.len())?;
    Ok(v1::ListTemplatesResponse { templates: templates.iter().map(message).collect() })
}

pub(super) async fn delete(
    app: &App,
    context: &RequestContext,
    request: v1::DeleteTemplateRequest,
) -> Result<v1::DeleteTemplateResponse, Status> {
    let v1::DeleteTemplateRequest { key, namespace, expected_revision } = request;
    let key = LimitKey::pattern(&key).map_err(|error| Invalid::name("key", &error))?;
    let namespace = named_namespace(context, namespace.as_deref())?;
    let request = DeleteTemplateRequest { namespace, key, expected_revision };
    execute::delete_template(app, context, request).await.map_err(|error| refused(&error))?;
    Ok(v1::DeleteTemplateResponse { ok: true })
}

/// The namespace of the request, if the caller may name it; without one, the caller's.
fn named_namespace(context: &RequestContext, text: Option<&str>) -> Result<NamespaceName, Status> {
    let Some(text) = text else { return Ok(context.caller.namespace.clone()) };
    let namespace = convert::name("namespace", text)?;
    context.caller.check_limits_of(&namespace)?;
    Ok(namespace)
}

fn refused(error: &LimitError) -> Status {
    if *error == LimitError::NotFound { Status::not_found(TEMPLATE_NOT_FOUND) } else { of_limit(error) }
}

fn message(info: &TemplateInfo) -> v1::TemplateInfo {
    let TemplateInfo { definition, revision, live } = info;
    v1::TemplateInfo { definition: Some(convert::definition_of(definition)), revision: *revision, live: *live }
}
