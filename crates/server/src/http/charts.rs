//! `GET /v1/charts`: the last hour of the reserves that this node served.

use serde::Serialize;
use serde_json::{Value, json};

use super::reply::{Handled, Reply};
use super::route::{BAD_QUERY, FAILED, OVERLOADED, Route, answer, get};
use super::schema::{described, exactly};
use super::serve::Call;
use super::shape::CHARTS_QUERY;
use crate::app::App;
use crate::caller::Access;
use crate::charts::{ChartOf, ChartPoint, STEP_MS, STEPS_MAX};
use crate::execute;

pub(super) const GET: Route = Route {
    query: CHARTS_QUERY,
    operation: "get_charts",
    about: "Gets the reserves that this node served within the last hour, by outcome, and their latency, at steps of ten \
            seconds. They are in memory and begin anew with the process.",
    answers: &[answer(200, &["Charts"], "The steps."), BAD_QUERY, FAILED, OVERLOADED],
    ..get("/v1/charts", Access::Read, |app, call| Box::pin(charts(app, call)))
};

async fn charts(app: &App, call: Call) -> Handled {
    let namespace = call.named_namespace()?;
    let is_of_node = call.query("of") == Some("node");
    if is_of_node {
        call.context.caller.check_access(Access::Operate)?;
    }
    execute::check_key(app, &call.context).await?;
    let of = if is_of_node { ChartOf::Node } else { ChartOf::Namespace(&namespace) };
    let until_unix_ms = app.charts.current_step().saturating_add(1).saturating_mul(STEP_MS);
    Ok(Reply::ok(&ChartsWire { step_seconds: STEP_MS / 1_000, until_unix_ms, points: app.charts.points(of) }))
}

#[derive(Serialize)]
struct ChartsWire {
    step_seconds: u64,
    until_unix_ms: u64,
    points: Vec<ChartPoint>,
}

/// The named schema of the response.
pub(super) fn schemas() -> [(&'static str, Value); 1] {
    let count = |about: &str| described(json!({"type": "integer", "minimum": 0}), about);
    let time = |about: &str| described(json!({"type": ["integer", "null"], "minimum": 0}), about);
    let point = exactly(
        json!({
            "at_unix_ms": count("When the step begins."),
            "allowed": count("Reserves that were allowed."),
            "denied": count("Reserves that a limit or an account had no room for."),
            "refused": count("Reserves refused by name, by a quota or by the policy."),
            "failed": count("Reserves that were malformed, overloaded, or had no answer."),
            "p50_us": time("Microseconds within which half of them were answered; too high by less than a half."),
            "p99_us": time("Microseconds within which 99% of them were answered; too high by less than a half."),
        }),
        &[],
    );
    let charts = exactly(
        json!({
            "step_seconds": count("Length of a step."),
            "until_unix_ms": count("The end of the current step."),
            "points": described(
                json!({"type": "array", "maxItems": STEPS_MAX, "items": point}),
                "The steps that have reserves, oldest first. The last one may not be over.",
            ),
        }),
        &[],
    );
    [("Charts", charts)]
}
