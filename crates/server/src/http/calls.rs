//! `/v1/calls`: calls by their attributes, and what the policy makes of them.

mod plain;
pub(super) mod routes;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::fmt;

use axum::body::Bytes;
use earmark_admission::{BackendError, ExtendAnswer};
use earmark_core::{JobId, LeaseId, NamespaceName, REQUIREMENTS_MAX, SettleLabels};
use earmark_policy::Usage;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};
use serde_json::{Value, json};

use super::labels::LabelList;
use super::parse::{BatchBody, Count, ExtensionNumber, Object, ShortText, Text, UsualCall, UsualEnd};
use super::reply::{Handled, JSON, Reply};
use super::schema::{self, described, exactly};
use super::serve::Call;
use super::shape::{self, Described, Shape, body};
use crate::answer::{Code, ExtendWire};
use crate::app::App;
use crate::caller::{AttributeRefusal, Caller};
use crate::calls::{
    self, Asked, CallOutcome, CallRequest, CallWire, CompleteCall, CompleteCallWire, ExplainRequest, ExtendCall,
    SERVICE_TIER_BYTES_MAX,
};
use crate::metrics::{Completed, Reserved};

body! {
    pub(super) struct CallBody {
        /// A ULID that the caller generates: one attempt at the call. Take a new one after a denial.
        lease_id: Text<LeaseId>,
        /// The job behind it, across attempts.
        job_id: Option<Text<JobId>>,
        /// The attributes of the call: names and values. Those that the key fixes are added.
        attributes: AttributeList,
        /// The most input tokens that the call may use.
        input_tokens_max: Tokens,
        /// The most output tokens that the call may use.
        output_tokens_max: Tokens,
    }
}

body! {
    pub(super) struct ExplainBody {
        /// The job behind it. It does not matter.
        job_id: Option<Text<JobId>>,
        /// The attributes of the call: names and values.
        attributes: AttributeList,
        /// The most input tokens that the call may use.
        input_tokens_max: Tokens,
        /// The most output tokens that the call may use.
        output_tokens_max: Tokens,
    }
}

body! {
    pub(super) struct ExtendCallBody {
        /// The lease.
        lease_id: Text<LeaseId>,
        /// 1 for the first extension of the lease, then one more than the last. A retry repeats the number and the body.
        extension: ExtensionNumber,
        /// The attributes of the call.
        attributes: AttributeList,
        /// More output tokens that the call may use.
        add_output_tokens: Option<Tokens>,
        /// The usage so far, in total. It is charged when the lease runs out, and a complete cannot report less.
        used: Option<Object<UsageBody>>,
        /// `policy_revision` of the answer to the call; without it, that of the lease.
        policy_revision: Option<Count<1>>,
        /// The namespace of the lease; by default the caller's. A gateway of `default` may name any.
        namespace: Option<Text<NamespaceName>>,
    }
}

body! {
    pub(super) struct CompleteCallBody {
        /// The lease.
        lease_id: Text<LeaseId>,
        /// The attributes of the call.
        attributes: AttributeList,
        /// The usage; it counts with outcome `done`, and is refused with `refused`. Without it all of the bounds is settled.
        usage: Option<Object<UsageBody>>,
        /// How the call ended. `refused`: it was not made, and everything is released but the usage that extensions
        /// reported. `unknown`: all of the bounds is settled.
        outcome: Ended,
        /// `policy_revision` of the answer to the call; without it, that of the lease.
        policy_revision: Option<Count<1>>,
        /// The namespace of the lease; by default the caller's. A gateway of `default` may name any.
        namespace: Option<Text<NamespaceName>>,
        /// Labels of its settlements, for statements. Without credit they have no effect.
        labels: Option<LabelList>,
    }
}

body! {
    pub(super) struct UsageBody {
        /// All input tokens.
        input_tokens: Tokens,
        /// All output tokens.
        output_tokens: Tokens,
        /// Input tokens that were read from a cache. Parts of more than their whole count as the whole.
        cached_input_tokens: Option<Tokens>,
        /// Input tokens that were written to a cache.
        cache_write_tokens: Option<Tokens>,
        /// Input tokens that were written to a cache for an hour.
        cache_write_1h_tokens: Option<Tokens>,
        /// Output tokens of reasoning.
        reasoning_tokens: Option<Tokens>,
        /// The tier that served the call. Prices have none, so it does not matter.
        service_tier: Option<ShortText<SERVICE_TIER_BYTES_MAX>>,
    }
}

impl UsageBody {
    pub(super) fn into_usage(self) -> Usage {
        // Prices have no tiers.
        drop(self.service_tier);
        let part = |tokens: Option<Tokens>| tokens.map_or(0, |tokens| tokens.0);
        Usage {
            input_tokens: self.input_tokens.0,
            output_tokens: self.output_tokens.0,
            cached_input_tokens: part(self.cached_input_tokens),
            cache_write_tokens: part(self.cache_write_tokens),
            cache_write_1h_tokens: part(self.cache_write_1h_tokens),
            reasoning_tokens: part(self.reasoning_tokens),
        }
    }
}

/// A number of tokens.
pub(super) struct Tokens(pub(super) u32);

impl Described for Tokens {
    const SHAPE: Shape = Shape::Integer { min: 0, max: u32::MAX as u64 };
}

impl<'de> Deserialize<'de> for Tokens {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Tokens, D::Error> {
        u32::deserialize(deserializer).map(Tokens)
    }
}

/// How a call ended.
pub(super) struct Ended(pub(super) CallOutcome);

impl Described for Ended {
    const SHAPE: Shape = Shape::Choice(&CallOutcome::NAMES);
}

impl<'de> Deserialize<'de> for Ended {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Ended, D::Error> {
        let name = Cow::<str>::deserialize(deserializer)?;
        CallOutcome::from_name(&name).map(Ended).ok_or_else(|| D::Error::custom("not an outcome"))
    }
}

/// Attributes or labels of a body as they are written. The caller's rights check them.
pub(super) struct AttributeList(pub(super) Vec<(String, String)>);

impl Described for AttributeList {
    const SHAPE: Shape = shape::ATTRIBUTES;
}

impl<'de> Deserialize<'de> for AttributeList {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<AttributeList, D::Error> {
        deserializer.deserialize_map(AttributesVisitor)
    }
}

struct AttributesVisitor;

impl<'de> Visitor<'de> for AttributesVisitor {
    type Value = AttributeList;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of texts")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<AttributeList, A::Error> {
        let mut list = Vec::with_capacity(8);
        while let Some(pair) = map.next_entry()? {
            list.push(pair);
        }
        Ok(AttributeList(list))
    }
}

fn refused(refusal: &AttributeRefusal) -> Reply {
    match refusal {
        AttributeRefusal::Forbidden(error) => Reply::rejected(error),
        AttributeRefusal::Malformed(message) => Reply::invalid(message),
    }
}

/// The refusal of an item, which refuses its whole batch.
fn refused_in_batch((index, refusal): (usize, AttributeRefusal)) -> Reply {
    match refusal {
        AttributeRefusal::Forbidden(error) => Reply::rejected(&error),
        AttributeRefusal::Malformed(message) => Reply::invalid(&format!("requests[{index}].{message}")),
    }
}

/// The requests of a batch.
fn requests<B, R>(
    call: &Call,
    items: Vec<B>,
    request: fn(&Call, B) -> Result<R, AttributeRefusal>,
) -> Result<Vec<R>, Reply> {
    let items = items.into_iter().enumerate();
    items.map(|(index, body)| request(call, body).map_err(|refusal| refused_in_batch((index, refusal)))).collect()
}

fn namespace(caller: &Caller, named: Option<Text<NamespaceName>>) -> Result<NamespaceName, AttributeRefusal> {
    calls::namespace_of(caller, named.map(|Text(name)| name)).map_err(AttributeRefusal::Forbidden)
}

pub(super) async fn one(app: &App, call: Call) -> Handled {
    let request = call_request(&call).inspect_err(|_| app.metrics.reserved(Reserved::InvalidRequest))?;
    let called = calls::call(app, &call.context, &request).await;
    if called.is_unauthenticated() {
        return Err(Reply::unauthenticated());
    }
    let known = match app.reveals_remaining {
        true => calls::known_limits(app, &request.namespace, &called.requirements).await,
        false => Vec::new(),
    };
    let wire = CallWire::of(&called);
    let is_strict = call.query("status") == Some("true");
    let status = if is_strict { calls::strict_status(&wire.reserve) } else { wire.reserve.status() };
    if matches!(wire.reserve.error, Code::Forbidden) {
        return Ok(Reply::answer(status, wire.reserve.message.as_deref(), &wire));
    }
    let headers = wire.headers(&calls::limit_states(&known, &wire));
    let reply = match plain::plain(&wire) {
        Some(body) => Reply::of(status, JSON, Bytes::from(body)),
        None => Reply::json(status, &wire),
    };
    Ok(Reply { headers: headers.into(), ..reply })
}

/// The request in the body, which serde parses if it has not the usual form.
fn call_request(call: &Call) -> Result<CallRequest, Reply> {
    let request = match UsualCall::scan(&call.body) {
        Some(usual) => usual_request(call, usual),
        None => request(call, call.parse()?),
    };
    request.map_err(|refusal| refused(&refusal))
}

/// The request in a body of the usual form.
fn usual_request(call: &Call, usual: UsualCall<'_>) -> Result<CallRequest, AttributeRefusal> {
    let UsualCall { lease, job, attributes, input_tokens_max, output_tokens_max } = usual;
    let attributes = call.context.caller.attributes(attributes)?;
    Ok(asked(call, (lease, job), Asked::Call { attributes, input_tokens_max, output_tokens_max }))
}

/// The request in a parsed body.
fn request(call: &Call, body: CallBody) -> Result<CallRequest, AttributeRefusal> {
    let attributes = call.context.caller.attributes(body.attributes.0)?;
    let (input_tokens_max, output_tokens_max) = (body.input_tokens_max.0, body.output_tokens_max.0);
    let lease = (body.lease_id.0, body.job_id.map(|job| job.0));
    Ok(asked(call, lease, Asked::Call { attributes, input_tokens_max, output_tokens_max }))
}

fn asked(call: &Call, (lease, job): (LeaseId, Option<JobId>), asked: Asked) -> CallRequest {
    CallRequest { namespace: call.namespace(), lease, job, asked }
}

pub(super) async fn batch(app: &App, call: Call) -> Handled {
    let requests = match UsualCall::scan_all(&call.body) {
        Some(usual) => requests(&call, usual, usual_request),
        None => call.parse().and_then(|body: BatchBody<CallBody>| requests(&call, body.requests.0, request)),
    };
    let requests = requests.inspect_err(|_| app.metrics.reserved(Reserved::InvalidRequest))?;
    let _permit = call.context.admit(app, requests.len()).await?;
    let called = calls::call_all(app, &call.context, &requests).await?;
    Ok(plain::results(called.iter().map(CallWire::of).collect()))
}

pub(super) async fn extend(app: &App, call: Call) -> Handled {
    let parsed = call.parse::<ExtendCallBody>();
    let request = parsed.and_then(|body| extend_request(&call, body).map_err(|refusal| refused(&refusal)));
    let request = request.inspect_err(|_| app.metrics.extended(Reserved::InvalidRequest))?;
    let answer: Result<ExtendAnswer, BackendError> = calls::extend(app, &call.context, &request).await;
    if matches!(answer, Err(BackendError::Unauthenticated)) {
        return Err(Reply::unauthenticated());
    }
    let wire = ExtendWire::of(&answer);
    Ok(Reply::answer(wire.status(), wire.message.as_deref(), &wire))
}

fn extend_request(call: &Call, body: ExtendCallBody) -> Result<ExtendCall, AttributeRefusal> {
    let caller = &call.context.caller;
    Ok(ExtendCall {
        namespace: namespace(caller, body.namespace)?,
        lease: body.lease_id.0,
        number: body.extension.get(),
        attributes: caller.attributes(body.attributes.0)?,
        add_output_tokens: body.add_output_tokens.map_or(0, |tokens| tokens.0),
        used: body.used.map(|Object(usage)| usage.into_usage()),
        policy_revision: body.policy_revision.map(|revision| revision.0),
    })
}

pub(super) async fn complete(app: &App, call: Call) -> Handled {
    let request = match UsualEnd::scan(&call.body) {
        Some(usual) => usual_end(&call, usual).map_err(|refusal| refused(&refusal)),
        None => call.parse().and_then(|body| complete_request(&call, body).map_err(|refusal| refused(&refusal))),
    };
    let request = request.inspect_err(|_| app.metrics.completed(Completed::InvalidRequest))?;
    let completed = calls::complete(app, &call.context, &request).await;
    if completed.is_unauthenticated() {
        return Err(Reply::unauthenticated());
    }
    let wire = CompleteCallWire::of(&completed);
    Ok(Reply::answer(wire.complete.status(), wire.complete.message.as_deref(), &wire))
}

pub(super) async fn complete_batch(app: &App, call: Call) -> Handled {
    let requests = match UsualEnd::scan_all(&call.body) {
        Some(usual) => requests(&call, usual, usual_end),
        None => call
            .parse()
            .and_then(|body: BatchBody<CompleteCallBody>| requests(&call, body.requests.0, complete_request)),
    };
    let requests = requests.inspect_err(|_| app.metrics.completed(Completed::InvalidRequest))?;
    let _permit = call.context.admit(app, requests.len()).await?;
    let completed = calls::complete_all(app, &call.context, &requests).await?;
    Ok(plain::results(completed.iter().map(CompleteCallWire::of).collect()))
}

fn complete_request(call: &Call, body: CompleteCallBody) -> Result<CompleteCall, AttributeRefusal> {
    let caller = &call.context.caller;
    let usage = body.usage.map(|Object(usage)| usage.into_usage());
    if CompleteCall::is_contradictory(usage.as_ref(), body.outcome.0) {
        return Err(AttributeRefusal::Malformed(CompleteCall::USAGE_MISPLACED.to_owned()));
    }
    Ok(CompleteCall {
        namespace: namespace(caller, body.namespace)?,
        lease: body.lease_id.0,
        attributes: caller.attributes(body.attributes.0)?,
        usage,
        outcome: body.outcome.0,
        policy_revision: body.policy_revision.map(|revision| revision.0),
        labels: LabelList::check(body.labels).map_err(AttributeRefusal::Malformed)?,
    })
}

/// The request in a body of the usual form.
fn usual_end(call: &Call, usual: UsualEnd<'_>) -> Result<CompleteCall, AttributeRefusal> {
    let UsualEnd { lease, attributes, usage, outcome, policy_revision, namespace: named, labels } = usual;
    let caller = &call.context.caller;
    if CompleteCall::is_contradictory(usage.as_ref(), outcome) {
        return Err(AttributeRefusal::Malformed(CompleteCall::USAGE_MISPLACED.to_owned()));
    }
    Ok(CompleteCall {
        namespace: namespace(caller, named.map(Text))?,
        lease,
        attributes: caller.attributes(attributes)?,
        usage,
        outcome,
        policy_revision,
        labels: SettleLabels::new(labels).map_err(|error| AttributeRefusal::Malformed(format!("labels: {error}")))?,
    })
}

pub(super) async fn explain(app: &App, call: Call) -> Handled {
    let (namespace, body) = (call.named_namespace()?, call.parse::<ExplainBody>()?);
    let attributes = call.context.caller.attributes_to_explain(body.attributes.0);
    let attributes = attributes.map_err(|refusal| refused(&refusal))?;
    let job_id = body.job_id.as_ref().map(|job| job.0.as_str());
    tracing::debug!(request_id = call.context.id(), actor = %call.context.caller.actor, job_id, "explain");
    let (input_tokens_max, output_tokens_max) = (body.input_tokens_max.0, body.output_tokens_max.0);
    let request = ExplainRequest { namespace, attributes, input_tokens_max, output_tokens_max };
    let explained = calls::explain(app, &call.context, &request).await?;
    Ok(Reply::ok(&explained))
}

/// The named schemas of the responses.
pub(super) fn schemas() -> [(&'static str, Value); 5] {
    let namespace = described(json!({"type": "string"}), "The namespace of a shared limit; absent for the own one.");
    let amount = Shape::Integer { min: 0, max: u64::MAX }.schema();
    let requirement = json!({"key": schema::key(), "amount": amount, "namespace": namespace});
    let actual = json!({"key": schema::key(), "actual_amount": amount, "namespace": namespace});
    let list = |item: Value, about: &str| {
        let items = exactly(item, &["namespace"]);
        json!({"type": "array", "maxItems": REQUIREMENTS_MAX, "items": items, "description": about})
    };
    let revision =
        described(json!({"type": "integer", "minimum": 1}), "The revision of the policy; absent without one.");
    let mut call = schema::reserve_answer();
    call["properties"]["error"] = schema::call_error();
    call["properties"]["requirements"] = list(
        requirement,
        "The limits that the call needs. Empty if the policy refuses it, or names none: then there is no lease.",
    );
    call["properties"]["policy_revision"] = revision.clone();
    push(&mut call["required"], "requirements");
    let mut complete = schema::complete_answer();
    complete["properties"]["actuals"] = list(
        actual,
        "The settled amounts. Limits that are not in it stay as reserved, or count what extensions reported.",
    );
    complete["properties"]["cost"] =
        json!({"type": ["string", "null"], "description": "The cost in minor units; null if it is not known."});
    push(&mut complete["required"], "actuals");
    push(&mut complete["required"], "cost");
    [
        ("CallAnswer", call),
        ("CallResults", schema::results("CallAnswer")),
        ("CompleteCallAnswer", complete),
        ("CompleteCallResults", schema::results("CompleteCallAnswer")),
        ("Explanation", explanation(&revision)),
    ]
}

fn push(list: &mut Value, name: &str) {
    if let Some(names) = list.as_array_mut() {
        names.push(json!(name));
    }
}

fn explanation(revision: &Value) -> Value {
    let amount = Shape::Integer { min: 0, max: u64::MAX }.schema();
    let rule = exactly(json!({"name": {"type": "string"}, "matched": {"type": "boolean"}}), &[]);
    let limit = json!({
        "key": schema::named_key(),
        "amount": amount,
        "capacity": described(amount.clone(), "Absent for a limit of another namespace."),
        "available": described(amount.clone(), "Absent for a limit of another namespace."),
        "fits": described(
            json!({"type": "boolean"}),
            "Whether there is room, an overdraft included. Absent for a limit of another namespace.",
        ),
    });
    let limit = exactly(limit, &["capacity", "available", "fits"]);
    let properties = json!({
        "allowed": described(json!({"type": "boolean"}), "Whether the call would be allowed now."),
        "error": described(schema::call_error(), "The error that the answer would have."),
        "message": {"type": "string"},
        "rules": {"type": "array", "items": rule, "description": "All rules, in order."},
        "limits": {"type": "array", "maxItems": REQUIREMENTS_MAX, "items": limit},
        "cost": {"type": "string", "description": "The most that it can cost, in minor units; absent without a price."},
        "policy_revision": revision,
    });
    exactly(properties, &["message", "cost", "policy_revision"])
}
