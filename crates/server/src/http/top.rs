//! `GET /v1/top`: the heaviest limits.

use earmark_core::LimitKey;
use serde::Serialize;
use serde_json::{Value, json};

use super::reply::{Handled, Reply};
use super::route::{BAD_QUERY, FAILED, OVERLOADED, Route, answer, get};
use super::schema::{described, exactly};
use super::serve::Call;
use super::shape::TOP_QUERY;
use crate::app::App;
use crate::caller::Access;
use crate::execute;
use crate::top::{Count, Measure, TOP_MAX, Within};

pub(super) const GET: Route = Route {
    query: TOP_QUERY,
    operation: "get_top",
    about: "Lists the limits of which the most was taken, denied or owed by requests that this node served, the heaviest \
            first. Retries count again.",
    answers: &[answer(200, &["Top"], "The limits."), BAD_QUERY, FAILED, OVERLOADED],
    ..get("/v1/top", Access::Read, |app, call| Box::pin(top(app, call)))
};

async fn top(app: &App, call: Call) -> Handled {
    let namespace = call.named_namespace()?;
    execute::check_key(app, &call.context).await?;
    // The query is already validated.
    let measure = call.query("of").and_then(Measure::from_name).unwrap_or_default();
    let within = call.query("within").and_then(Within::from_name).unwrap_or_default();
    let top = app.top.top(&namespace, measure, within, call.query("prefix").unwrap_or_default());
    Ok(Reply::ok(&TopWire { top: top.iter().map(TopLimitWire::of).collect() }))
}

#[derive(Serialize)]
struct TopWire<'a> {
    top: Vec<TopLimitWire<'a>>,
}

/// Of another namespace's limit only the key is shown.
#[derive(Serialize)]
pub(super) struct TopLimitWire<'a> {
    key: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    amount: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<u64>,
}

impl<'a> TopLimitWire<'a> {
    pub(super) fn of((key, count): &'a (LimitKey, Count)) -> TopLimitWire<'a> {
        let shown = |amount: u64| (!key.is_foreign()).then_some(amount);
        TopLimitWire { key: key.as_str(), amount: shown(count.amount), error: shown(count.error) }
    }
}

/// The named schema of the response.
pub(super) fn schemas() -> [(&'static str, Value); 1] {
    let count = |about: &str| described(json!({"type": "integer", "minimum": 0}), about);
    let limit = exactly(
        json!({
            "key": described(json!({"type": "string"}), "The key; `!<namespace>:<key>` for one of another namespace."),
            "amount": count("The count; never too low."),
            "error": count("The amount is too high by at most this."),
        }),
        &["amount", "error"],
    );
    [("Top", exactly(json!({"top": {"type": "array", "maxItems": TOP_MAX, "items": limit}}), &[]))]
}
