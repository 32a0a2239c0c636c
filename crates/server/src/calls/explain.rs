//! Explanations of the answer that a call would get.

use earmark_admission::{Amount, BackendError};
use earmark_core::{Kind, LimitKey, NamespaceName, Usage};
use earmark_policy::{Attributes, Call, LimitState, Refusal, RuleMatch};
use futures_util::future::join_all;
use serde::Serialize;

use super::foreseen::{self, Found};
use super::{CallWire, amounts_of, other_asset};
use crate::answer::ReserveWire;
use crate::app::App;
use crate::decisions::now as wall_time;
use crate::execute::{self, RequestContext};

/// A call that may be made later.
pub(crate) struct ExplainRequest {
    pub(crate) namespace: NamespaceName,
    pub(crate) attributes: Attributes,
    pub(crate) input_tokens_max: u32,
    pub(crate) output_tokens_max: u32,
}

/// The answer that a call would get, and the reasons.
#[derive(Serialize)]
pub(crate) struct Explained {
    pub(crate) allowed: bool,
    pub(crate) error: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) message: Option<String>,
    pub(crate) rules: Vec<ExplainedRule>,
    pub(crate) limits: Vec<ExplainedLimit>,
    /// The most that the call can cost, if its model has a price.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "super::answer::decimal")]
    pub(crate) cost: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) policy_revision: Option<u64>,
}

#[derive(Serialize)]
pub(crate) struct ExplainedRule {
    pub(crate) name: Box<str>,
    pub(crate) matched: bool,
}

/// A limit that the call needs. The state of a limit of another namespace is not shown.
#[derive(Serialize)]
pub(crate) struct ExplainedLimit {
    pub(crate) key: String,
    pub(crate) amount: u64,
    #[serde(flatten)]
    pub(crate) state: Option<ExplainedState>,
}

#[derive(Clone, Copy, Serialize)]
pub(crate) struct ExplainedState {
    pub(crate) capacity: u64,
    pub(crate) available: u64,
    pub(crate) fits: bool,
}

/// Explains the answer to a call. Takes nothing.
pub(crate) async fn explain(
    app: &App,
    context: &RequestContext,
    request: &ExplainRequest,
) -> Result<Explained, BackendError> {
    let Some(policy) = app.policies.newest(&app.backend, &request.namespace).await? else {
        execute::check_key(app, context).await?;
        return Ok(Explained::refused(&Refusal::NoPolicy, Vec::new(), None, None));
    };
    let ExplainRequest { namespace, attributes, input_tokens_max, output_tokens_max } = request;
    let (input_tokens_max, output_tokens_max) = (*input_tokens_max, *output_tokens_max);
    let explanation = policy.policy.explain(&Call { attributes, input_tokens_max, output_tokens_max });
    let (rules, cost, revision) = (explanation.rules, explanation.cost, Some(policy.revision));
    let amounts = match explanation.requirements {
        Ok(amounts) => match other_asset(app, namespace, &policy, &amounts) {
            None => amounts_of(amounts),
            Some(refusal) => return Ok(Explained::refused(&refusal, rules, cost, revision)),
        },
        Err(refusal) => {
            execute::check_key(app, context).await?;
            return Ok(Explained::refused(&refusal, rules, cost, revision));
        }
    };
    let found = foreseen::find(app, context, namespace, &amounts).await?;
    let answer = Ok(foreseen::answer(&amounts, &found, wall_time()));
    let wire = ReserveWire::of(&answer);
    let limits = amounts.iter().zip(&found).map(|(amount, found)| shown(amount, found.as_ref())).collect();
    Ok(Explained {
        allowed: wire.allowed,
        message: wire.message.map(String::from),
        limits,
        ..Explained::new(wire.error.to_string(), rules, cost, revision)
    })
}

impl Explained {
    fn new(error: String, rules: Vec<RuleMatch>, cost: Option<u64>, policy_revision: Option<u64>) -> Explained {
        let rules = rules.into_iter().map(|RuleMatch { name, matched }| ExplainedRule { name, matched }).collect();
        Explained { allowed: false, error, message: None, rules, limits: Vec::new(), cost, policy_revision }
    }

    fn refused(refusal: &Refusal, rules: Vec<RuleMatch>, cost: Option<u64>, revision: Option<u64>) -> Explained {
        let message = Some(refusal.message());
        Explained { message, ..Explained::new(refusal.error(), rules, cost, revision) }
    }
}

fn shown(amount: &Amount, found: Option<&Found>) -> ExplainedLimit {
    let state = |found: &Found| ExplainedState {
        capacity: found.usage.capacity,
        available: found.usage.available,
        fits: found.fits(amount.amount),
    };
    let none = ExplainedState { capacity: 0, available: 0, fits: false };
    let state = amount.key.foreign().is_none().then(|| found.map_or(none, state));
    ExplainedLimit { key: amount.key.to_string(), amount: amount.amount, state }
}

/// A limit of a call, for the headers of its answer.
pub(crate) struct KnownLimit {
    pub(crate) key: LimitKey,
    pub(crate) usage: Usage,
    pub(crate) window_seconds: Option<u64>,
}

/// The limits of a call that its caller may know: those of its own namespace. None if they cannot be read.
pub(crate) async fn known_limits(app: &App, namespace: &NamespaceName, amounts: &[Amount]) -> Vec<KnownLimit> {
    let own = amounts.iter().filter(|amount| amount.key.foreign().is_none());
    let reads = own.map(|Amount { key, .. }| async move {
        let limit = app.backend.applied_limit(namespace, key)?;
        let usage = app.backend.usage(namespace.clone(), key.clone()).await.ok()??;
        let window_seconds = match limit.definition.kind {
            Kind::Rolling { window_seconds } => Some(u64::from(window_seconds)),
            Kind::Calendar { .. } => Some(u64::from(limit.definition.kind.hold_seconds())),
            Kind::Concurrency { .. } | Kind::Credit(_) => None,
        };
        Some(KnownLimit { key: key.clone(), usage, window_seconds })
    });
    join_all(reads).await.into_iter().flatten().collect()
}

/// The known limits for the headers of an answer. Only those that denied the call are known to free up by then.
pub(crate) fn limit_states<'a>(known: &'a [KnownLimit], wire: &CallWire<'_>) -> Vec<LimitState<'a>> {
    let reset_seconds = wire.reserve.retry_after_ms.div_ceil(1_000);
    let state = |limit: &'a KnownLimit| LimitState {
        key: limit.key.as_str(),
        capacity: limit.usage.capacity,
        available: limit.usage.available,
        window_seconds: limit.window_seconds,
        reset_seconds: wire.reserve.limited_by.contains(&limit.key).then_some(reset_seconds).filter(|it| *it > 0),
    };
    known.iter().map(state).collect()
}
