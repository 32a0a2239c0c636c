//! `GET /v1/usage`: limits with their usage.

use earmark_admission::{PAGE_MAX, UsageError, UsagePage, UsageQuery};
use earmark_core::{LimitKey, LimitUsage, UnixMs, UsageSort};
use serde::Serialize;
use serde_json::{Value, json};

use super::limits::{SHORT_PAGE, failed, name};
use super::reply::{Handled, Reply};
use super::schema::{amounts, exactly, key, kinds};
use super::serve::{Call, off_runtime};
use crate::app::App;
use crate::execute;

pub(super) async fn list(app: &App, call: Call) -> Handled {
    let namespace = call.named_namespace()?;
    // The query is already validated.
    let key = |name: &str| call.query(name).and_then(|text| LimitKey::new(text).ok());
    let query = UsageQuery {
        prefix: key("prefix"),
        sort: call.query("sort").and_then(UsageSort::from_name).unwrap_or_default(),
        after: key("after"),
        page_size: call.query("page_size").and_then(|text| text.parse().ok()).unwrap_or(PAGE_MAX),
    };
    query.check().map_err(|error| refused(&error))?;
    let _permit = call.context.admit_usage(app, &query).await?;
    let page = execute::read(app, &call.context, app.backend.usage_page(namespace, query)).await;
    let page = page.map_err(|error| refused(&error))?;
    Ok(page_reply(page).await)
}

fn refused(error: &UsageError) -> Reply {
    match error {
        UsageError::Backend(error) => failed(error),
        other => Reply::invalid(&other.to_string()),
    }
}

/// The response with a page. A long one is built off the runtime's threads.
async fn page_reply(page: UsagePage) -> Reply {
    let is_short = page.usage.len() <= SHORT_PAGE;
    let build = move || {
        let usage = page.usage.iter().map(LimitUsageWire::of).collect();
        Reply::ok(&PageWire { usage, next: page.next.as_ref().map(LimitKey::as_str) })
    };
    if is_short { build() } else { off_runtime(build).await }
}

#[derive(Serialize)]
struct PageWire<'a> {
    usage: Vec<LimitUsageWire<'a>>,
    next: Option<&'a str>,
}

#[derive(Serialize)]
pub(super) struct LimitUsageWire<'a> {
    key: &'a str,
    kind: &'static str,
    capacity: u64,
    reserved: u64,
    available: u64,
    debt: u128,
    status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    paused_until_unix_ms: Option<u64>,
}

impl LimitUsageWire<'_> {
    pub(super) fn of(limit: &LimitUsage) -> LimitUsageWire<'_> {
        let LimitUsage { key, kind, usage } = limit;
        LimitUsageWire {
            key: key.as_str(),
            kind: kind.name(),
            capacity: usage.capacity,
            reserved: usage.reserved,
            available: usage.available,
            debt: usage.debt,
            status: name(usage.status),
            paused_until_unix_ms: usage.paused_until.map(UnixMs::get),
        }
    }
}

/// The schema of the response.
pub(super) fn schema() -> Value {
    let mut properties = amounts();
    properties.insert("key".into(), key());
    properties.insert("kind".into(), json!({"enum": kinds()}));
    properties.insert("status".into(), json!({"enum": ["active", "decreasing"]}));
    let paused = json!({"type": "integer", "minimum": 0, "description": "When its pause ends, while it is paused."});
    properties.insert("paused_until_unix_ms".into(), paused);
    let next = "`after` of the next page; null on the last one, and in another order than by key.";
    exactly(
        json!({
            "usage": {"type": "array", "maxItems": PAGE_MAX, "items": exactly(Value::Object(properties), &["paused_until_unix_ms"])},
            "next": {"type": ["string", "null"], "description": next},
        }),
        &[],
    )
}
