//! `GET /v1/decisions`: the decision log.

use std::collections::BTreeMap;

use earmark_admission::PAGE_MAX;
use earmark_core::UnixMs;
use serde::Serialize;
use serde_json::{Value, json};

use super::reply::{Handled, Reply};
use super::route::{BAD_QUERY, FAILED, OVERLOADED, PROBLEM, Route, answer, get};
use super::schema::{described, exactly};
use super::serve::{Call, off_runtime};
use super::shape::{DECISIONS_QUERY, Shape};
use crate::app::App;
use crate::caller::{Access, QueueCost};
use crate::decisions::{DECISIONS_OFF, DecisionPage, DecisionQuery, LoggedDecision, LoggedLimit, Outcome};
use crate::execute::{self, PAGE_SIZE_DEFAULT};

pub(super) const LIST: Route = Route {
    query: DECISIONS_QUERY,
    queue_cost: QueueCost::PerItem,
    operation: "list_decisions",
    about: "Lists recent denials, refusals, timeouts and overages, newest first. Each node has its own log: denials, \
            refusals and overages of the requests it served, and timeouts of all leases. Of one key and outcome at most \
            ten decisions a second are listed; the last of them counts the rest.",
    answers: &[
        answer(200, &["Decisions"], "A page."),
        BAD_QUERY,
        answer(404, PROBLEM, "The decision log is off."),
        FAILED,
        OVERLOADED,
    ],
    ..get("/v1/decisions", Access::Read, |app, call| Box::pin(list(app, call)))
};

async fn list(app: &App, call: Call) -> Handled {
    let namespace = call.named_namespace()?;
    // The query is already validated.
    let number = |name: &str| call.query(name).and_then(|text| text.parse::<u64>().ok());
    let query = DecisionQuery {
        namespace,
        key: call.query("key").map(str::to_owned),
        actor: call.query("actor").and_then(|text| text.parse().ok()),
        job: call.query("job").and_then(|text| text.parse().ok()),
        outcome: call.query("outcome").and_then(Outcome::from_name),
        since: number("since").map_or_else(UnixMs::default, UnixMs::new),
        until: number("until").map_or(UnixMs::MAX, UnixMs::new),
        after: number("after").unwrap_or(u64::MAX),
        page_size: call.query("page_size").and_then(|text| text.parse().ok()).unwrap_or(PAGE_SIZE_DEFAULT),
    };
    let _permit = call.context.admit(app, query.cost()).await?;
    let page = execute::read(app, &call.context, app.decisions.read(query)).await?;
    let page = page.ok_or_else(|| Reply::not_found(DECISIONS_OFF))?;
    Ok(off_runtime(move || Reply::ok(&PageWire::of(&page))).await)
}

#[derive(Serialize)]
struct PageWire<'a> {
    decisions: Vec<DecisionWire<'a>>,
    next: Option<String>,
}

impl<'a> PageWire<'a> {
    fn of(page: &'a DecisionPage) -> PageWire<'a> {
        let next = page.next.map(|position| position.to_string());
        PageWire { decisions: page.decisions.iter().map(DecisionWire::of).collect(), next }
    }
}

#[derive(Serialize)]
pub(super) struct DecisionWire<'a> {
    at_unix_ms: u64,
    outcome: &'static str,
    lease_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    job_id: Option<&'a str>,
    actor: &'a str,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    attributes: BTreeMap<&'a str, &'a str>,
    limits: Vec<LimitWire<'a>>,
    repeated: u64,
}

#[derive(Serialize)]
struct LimitWire<'a> {
    key: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    asked: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    available: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    capacity: Option<u64>,
}

impl<'a> DecisionWire<'a> {
    pub(super) fn of(decision: &'a LoggedDecision) -> DecisionWire<'a> {
        let limit = |limit: &'a LoggedLimit| LimitWire {
            key: limit.key.as_str(),
            asked: limit.asked,
            available: limit.available,
            capacity: limit.capacity,
        };
        DecisionWire {
            at_unix_ms: decision.at.get(),
            outcome: decision.outcome.name(),
            lease_id: decision.lease.to_string(),
            job_id: decision.job.as_ref().map(|job| job.as_str()),
            actor: decision.actor.as_str(),
            attributes: decision.attributes.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect(),
            limits: decision.limits.iter().map(limit).collect(),
            repeated: decision.repeated,
        }
    }
}

/// The named schema of the response.
pub(super) fn schemas() -> [(&'static str, Value); 1] {
    let count = || json!({"type": "integer", "minimum": 0});
    let limit = exactly(
        json!({
            "key": described(json!({"type": "string"}), "The key; `!<namespace>:<key>` for one of another namespace."),
            "asked": described(count(), "The amount asked for; of a timeout, the reserved amount; of an overage, the excess."),
            "available": described(count(), "The amount that was available, where this node knows it."),
            "capacity": described(count(), "The capacity in force, where this node knows it."),
        }),
        &["asked", "available", "capacity"],
    );
    let decision = exactly(
        json!({
            "at_unix_ms": count(),
            "outcome": {"enum": Outcome::NAMES},
            "lease_id": Shape::Lease.schema(),
            "job_id": {"type": "string"},
            "actor": {"type": "string"},
            "attributes": {"type": "object", "additionalProperties": {"type": "string"}},
            "limits": described(
                json!({"type": "array", "items": limit}),
                "The limits in the way, the one that frees last first. Of another namespace's limit only the key.",
            ),
            "repeated": described(
                count(),
                "Further decisions of the same key and outcome in the same second, which are not listed.",
            ),
        }),
        &["job_id", "attributes"],
    );
    let next =
        "`after` of the next page; null on the last one. A page with a filter may be short although more follow.";
    let page = exactly(
        json!({
            "decisions": {"type": "array", "maxItems": PAGE_MAX, "items": decision},
            "next": {"type": ["string", "null"], "description": next},
        }),
        &[],
    );
    [("Decisions", page)]
}
