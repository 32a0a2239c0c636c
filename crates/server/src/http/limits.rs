//! `/v1/admin/limits`: definitions and usage of limits.

use axum::http::StatusCode;
use earmark_admission::{
    BackendError, DeleteLimitRequest, LimitChange, LimitDocument, LimitError, LimitPage, LimitQuery, PAGE_MAX,
    PauseLimitRequest, PutLimitRequest, describe_quota, quota_code,
};
use earmark_core::{
    Definition, LOOKS_LIKE_API_KEY, LimitInfo, LimitKey, LimitStatus, NamespaceName, PAUSE_MS_MAX,
    PAUSE_REASON_BYTES_MAX, QuotaKind, UnixMs, Usage, contains_api_key,
};
use serde::{Deserialize, Serialize};

use super::reply::{CONFLICT, Handled, Reply};
use super::serve::{Call, bare, off_runtime};
use super::shape::{Described, LIMIT_KEY, Shape, body};
use crate::answer::{BACKEND_ERROR, OVERLOADED};
use crate::app::App;
use crate::execute::{self, LIMIT_NOT_FOUND};

/// Limits of a page that is built at once: about a tenth of a millisecond of work.
pub(super) const SHORT_PAGE: usize = 100;

pub(super) async fn put(app: &App, call: Call) -> Handled {
    let definition = definition(&call)?.into_definition();
    let namespace = call.named_namespace()?;
    let request = PutLimitRequest { namespace, definition, expected_revision: None };
    changed(execute::put_limit(app, &call.context, request).await)
}

pub(super) async fn delete(app: &App, call: Call) -> Handled {
    let (namespace, key) = named(&call)?;
    let request = DeleteLimitRequest { namespace, key, expected_revision: None };
    changed(execute::delete_limit(app, &call.context, request).await)
}

pub(super) async fn pause(app: &App, call: Call) -> Handled {
    let ((namespace, key), body) = (named(&call)?, call.parse::<PauseBody>()?);
    let reason = body.reason.unwrap_or_default().0;
    let request = PauseLimitRequest { namespace, key, for_ms: body.for_ms.0, reason, only_lengthen: false };
    let until = execute::pause_limit(app, &call.context, request).await.map_err(|error| refused(&error))?;
    Ok(Reply::ok(&Paused { ok: true, paused_until_unix_ms: until.map_or(0, UnixMs::get) }))
}

pub(super) async fn list(app: &App, call: Call) -> Handled {
    let namespace = call.named_namespace()?;
    // The query is already validated.
    let key = |name: &str| call.query(name).and_then(|text| LimitKey::new(text).ok());
    let page_size = call.query("page_size").and_then(|text| text.parse().ok()).unwrap_or(PAGE_MAX);
    let defined = call.query("defined") == Some("true");
    let query = LimitQuery { prefix: key("prefix"), after: key("after"), page_size, defined };
    let _permit = call.context.admit(app, page_size).await?;
    let page = execute::read(app, &call.context, app.backend.limits(namespace, query)).await?;
    Ok(page_reply(page).await)
}

/// The response with a page. A long one is built off the runtime's threads.
async fn page_reply(page: LimitPage) -> Reply {
    let build = move |page: &LimitPage| {
        let limits = page.limits.iter().map(LimitWire::of).collect();
        Reply::ok(&Limits { limits, next: page.next.as_ref().map(LimitKey::as_str) })
    };
    if page.limits.len() <= SHORT_PAGE {
        return build(&page);
    }
    off_runtime(move || build(&page)).await
}

pub(super) async fn get(app: &App, call: Call) -> Handled {
    let (namespace, key) = named(&call)?;
    let limit = execute::read(app, &call.context, app.backend.limit(namespace, key)).await?;
    Ok(Reply::ok(&Limit { limit: LimitWire::of(&limit.ok_or_else(limit_not_found)?) }))
}

pub(super) async fn usage(app: &App, call: Call) -> Handled {
    let (namespace, key) = named(&call)?;
    let usage = execute::read(app, &call.context, app.backend.usage(namespace, key)).await?;
    Ok(Reply::ok(&UsageWire::of(&usage.ok_or_else(limit_not_found)?)))
}

/// The response to a failed backend.
pub(super) fn failed(error: &BackendError) -> Reply {
    let (status, code) = match error {
        BackendError::Unauthenticated => return Reply::unauthenticated(),
        BackendError::Overloaded(_) => (StatusCode::SERVICE_UNAVAILABLE, OVERLOADED),
        _ => (StatusCode::INTERNAL_SERVER_ERROR, BACKEND_ERROR),
    };
    Reply::problem(status, code, &error.to_string())
}

/// The namespace of a limit and its key in the path.
fn named(call: &Call) -> Result<(NamespaceName, LimitKey), Reply> {
    let wrong = |_| Reply::invalid(&LIMIT_KEY.explain(&"key", call.name()).unwrap_or_default());
    let key = LimitKey::new(call.name()).map_err(wrong)?;
    Ok((call.named_namespace()?, key))
}

fn definition(call: &Call) -> Result<LimitDocument, Reply> {
    // The shape is checked first: its messages name the field and the value in the body.
    if let Some(wrong) = LimitDocument::SHAPE.explain(&call.body) {
        return Err(Reply::invalid(&wrong));
    }
    serde_json::from_slice(&call.body).map_err(|error| Reply::invalid(&bare(&error)))
}

fn changed(changed: Result<LimitChange, LimitError>) -> Handled {
    let change = changed.map_err(|error| refused(&error))?;
    Ok(Reply::ok(&Changed { ok: true, status: name(change.status) }))
}

fn refused(error: &LimitError) -> Reply {
    match error {
        LimitError::NotFound => limit_not_found(),
        LimitError::Backend(error) => failed(error),
        LimitError::QuotaExceeded(kind) => quota_exceeded(*kind),
        LimitError::TooManyPauses { .. } => Reply::problem(StatusCode::CONFLICT, CONFLICT, &error.to_string()),
        error => Reply::invalid(&error.to_string()),
    }
}

body! {
    pub(super) struct PauseBody {
        /// How long new reserves are refused, in milliseconds; 0 resumes the limit.
        for_ms: PauseMs,
        /// The reason, for people.
        reason: Option<PauseReason>,
    }
}

#[derive(Deserialize)]
#[serde(transparent)]
pub(super) struct PauseMs(u64);

impl Described for PauseMs {
    const SHAPE: Shape = Shape::Integer { min: 0, max: PAUSE_MS_MAX };
}

/// The reason of a pause. The backend checks its length.
#[derive(Default, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct PauseReason(String);

impl TryFrom<String> for PauseReason {
    type Error = &'static str;

    fn try_from(text: String) -> Result<PauseReason, &'static str> {
        if contains_api_key(&text) { Err(LOOKS_LIKE_API_KEY) } else { Ok(PauseReason(text)) }
    }
}

impl Described for PauseReason {
    const SHAPE: Shape = Shape::Text { bytes_max: PAUSE_REASON_BYTES_MAX };
}

#[derive(Serialize)]
struct Paused {
    ok: bool,
    paused_until_unix_ms: u64,
}

/// A refusal by a quota.
pub(super) fn quota_exceeded(kind: QuotaKind) -> Reply {
    Reply::problem(StatusCode::CONFLICT, &quota_code(kind), &describe_quota(kind))
}

fn limit_not_found() -> Reply {
    Reply::not_found(LIMIT_NOT_FOUND)
}

pub(super) fn name(status: LimitStatus) -> &'static str {
    match status {
        LimitStatus::Active => "active",
        LimitStatus::Decreasing { .. } => "decreasing",
        LimitStatus::Deleted => "deleted",
    }
}

fn pending_decrease_to(status: LimitStatus) -> Option<u64> {
    match status {
        LimitStatus::Decreasing { to } => Some(to),
        LimitStatus::Active | LimitStatus::Deleted => None,
    }
}

#[derive(Serialize)]
struct Changed {
    ok: bool,
    status: &'static str,
}

#[derive(Serialize)]
struct Limits<'a> {
    limits: Vec<LimitWire>,
    next: Option<&'a str>,
}

#[derive(Serialize)]
struct Limit {
    limit: LimitWire,
}

#[derive(Serialize)]
struct LimitWire {
    definition: LimitDocument,
    status: &'static str,
    pending_decrease_to: Option<u64>,
    revision: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    template: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    paused_until_unix_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pause_reason: Option<String>,
}

impl LimitWire {
    fn of(limit: &LimitInfo) -> LimitWire {
        LimitWire {
            definition: LimitDocument::of(&Definition { capacity: limit.capacity, ..limit.definition.clone() }),
            status: name(limit.status),
            pending_decrease_to: pending_decrease_to(limit.status),
            revision: limit.revision,
            template: limit.template.as_ref().map(ToString::to_string),
            paused_until_unix_ms: limit.pause.as_ref().map(|pause| pause.until.get()),
            pause_reason: limit.pause.as_ref().map(|pause| pause.reason.to_string()).filter(|text| !text.is_empty()),
        }
    }
}

#[derive(Serialize)]
struct UsageWire {
    capacity: u64,
    reserved: u64,
    available: u64,
    debt: u128,
    status: &'static str,
    pending_decrease_to: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    paused_until_unix_ms: Option<u64>,
}

impl UsageWire {
    fn of(usage: &Usage) -> UsageWire {
        UsageWire {
            capacity: usage.capacity,
            reserved: usage.reserved,
            available: usage.available,
            debt: usage.debt,
            status: name(usage.status),
            pending_decrease_to: pending_decrease_to(usage.status),
            paused_until_unix_ms: usage.paused_until.map(UnixMs::get),
        }
    }
}
