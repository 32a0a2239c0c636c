//! Extends and completes calls.

use earmark_admission::{
    Amount, BackendError, CompleteAnswer, CompleteRequest, ExtendAnswer, ExtendRequest, describe_raised,
};
use earmark_core::{
    LOOKS_LIKE_API_KEY, LeaseClaim, LeaseId, LimitKey, NamespaceName, REQUIREMENTS_MAX, SettleLabels, contains_api_key,
};
use earmark_policy::{Attributes, CallAmount, Usage};
use futures_util::future::join_all;

use super::{CallAttributes, amounts_of, lease, policy_of};
use crate::app::App;
use crate::caller::AuthError;
use crate::execute::{self, RequestContext};

/// The maximum length of the name of a service tier in bytes.
pub(crate) const SERVICE_TIER_BYTES_MAX: usize = 64;

/// Checks the name of a service tier.
pub(crate) fn check_service_tier(name: &str) -> Result<(), String> {
    if contains_api_key(name) {
        return Err(LOOKS_LIKE_API_KEY.to_owned());
    }
    if name.len() > SERVICE_TIER_BYTES_MAX {
        return Err(format!("found {} bytes, allowed are up to {SERVICE_TIER_BYTES_MAX}", name.len()));
    }
    Ok(())
}

/// More output of a call, and its usage so far.
pub(crate) struct ExtendCall {
    pub(crate) namespace: NamespaceName,
    pub(crate) lease: LeaseId,
    pub(crate) number: u32,
    pub(crate) attributes: Attributes,
    pub(crate) add_output_tokens: u32,
    pub(crate) used: Option<Usage>,
    pub(crate) policy_revision: Option<u64>,
}

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallOutcome {
    /// It was made. Without a usage the bound counts.
    Done,
    /// It was not made.
    Refused,
    /// It may have been made. The bound counts.
    Unknown,
}

impl CallOutcome {
    /// The names in the API.
    pub(crate) const NAMES: [&'static str; 3] = ["done", "refused", "unknown"];

    pub(crate) fn from_name(name: &str) -> Option<CallOutcome> {
        match name {
            "done" => Some(CallOutcome::Done),
            "refused" => Some(CallOutcome::Refused),
            "unknown" => Some(CallOutcome::Unknown),
            _ => None,
        }
    }
}

/// The end of a call.
pub(crate) struct CompleteCall {
    pub(crate) namespace: NamespaceName,
    pub(crate) lease: LeaseId,
    pub(crate) attributes: Attributes,
    /// Counts with outcome `Done` only.
    pub(crate) usage: Option<Usage>,
    pub(crate) outcome: CallOutcome,
    pub(crate) policy_revision: Option<u64>,
    pub(crate) labels: SettleLabels,
}

impl CompleteCall {
    /// The mistake of a usage with the outcome that has none.
    pub(crate) const USAGE_MISPLACED: &'static str = "usage: not allowed with outcome refused";

    /// Whether the usage contradicts the outcome.
    pub(crate) fn is_contradictory(usage: Option<&Usage>, outcome: CallOutcome) -> bool {
        usage.is_some() && outcome == CallOutcome::Refused
    }
}

/// The answer to the end of a call.
pub(crate) struct CompletedCall {
    pub(crate) answer: Result<CompleteAnswer, BackendError>,
    /// The amounts that were settled. Limits that are not in it stay as reserved, or count what extensions reported.
    pub(crate) actuals: Vec<Amount>,
    /// The cost, if it is known.
    pub(crate) cost: Option<u64>,
}

impl CompletedCall {
    /// Whether the caller's key was refused at last.
    pub(crate) fn is_unauthenticated(&self) -> bool {
        matches!(self.answer, Err(BackendError::Unauthenticated))
    }
}

/// Extends the lease of a call.
pub(crate) async fn extend(
    app: &App,
    context: &RequestContext,
    request: &ExtendCall,
) -> Result<ExtendAnswer, BackendError> {
    let subject = (&request.namespace, request.lease);
    let policy = policy_of(app, context, subject, request.policy_revision).await?;
    let (mut add, mut used) = (Vec::new(), Vec::new());
    if let Some(compiled) = &policy {
        match compiled.policy.grow(&request.attributes, request.add_output_tokens) {
            Ok(amounts) => add = amounts_of(amounts),
            Err(refusal) => return Ok(ExtendAnswer::invalid(refusal.message())),
        }
        if let Some(usage) = &request.used {
            let actuals = amounts_of(compiled.policy.settle(&request.attributes, usage).actuals);
            used = reserved_of(app, context, subject, actuals).await?;
        }
    }
    let extension = ExtendRequest {
        namespace: request.namespace.clone(),
        lease: request.lease,
        number: request.number,
        add,
        used,
        renew: true,
        claim: claim(context, &request.attributes),
    };
    let answer = execute::extend_calls(app, context, vec![extension], Some(CallAttributes::One(&request.attributes)))
        .await
        .pop();
    let mut answer = answer.unwrap_or_else(no_answer)?;
    // The caller named no keys, so none that the lease lacks are news.
    if let ExtendAnswer::Extended { ignored, .. } = &mut answer {
        ignored.clear();
    }
    Ok(answer)
}

/// The amounts that settle a call.
#[derive(Default)]
struct Settlement {
    /// The amounts to report. A limit without one settles what it has reserved.
    actuals: Vec<Amount>,
    /// The amounts that settle the bound, for the answer.
    bound: Vec<Amount>,
    /// The limits that take the cost.
    of_cost: Vec<LimitKey>,
    cost: Option<u64>,
}

/// Completes the lease of a call.
pub(crate) async fn complete(app: &App, context: &RequestContext, request: &CompleteCall) -> CompletedCall {
    let completed = complete_each(app, context, std::slice::from_ref(request)).await.pop();
    completed.unwrap_or_else(|| settled(no_answer(), Settlement::default()))
}

/// Completes each lease of a batch. The error says that the caller's key was refused.
pub(crate) async fn complete_all(
    app: &App,
    context: &RequestContext,
    requests: &[CompleteCall],
) -> Result<Vec<CompletedCall>, AuthError> {
    let completed = complete_each(app, context, requests).await;
    match completed.iter().all(CompletedCall::is_unauthenticated) {
        true => Err(AuthError::Unauthenticated),
        false => Ok(completed),
    }
}

/// Completes the leases of calls, in one batch of the backend.
async fn complete_each(app: &App, context: &RequestContext, requests: &[CompleteCall]) -> Vec<CompletedCall> {
    // A call without a usage reads its lease.
    let settlements = join_all(requests.iter().map(|request| settlement(app, context, request))).await;
    let (mut completes, mut attributes) = (Vec::new(), Vec::new());
    for (request, settlement) in requests.iter().zip(&settlements) {
        let Ok(settlement) = settlement else { continue };
        completes.push(CompleteRequest {
            namespace: request.namespace.clone(),
            lease: request.lease,
            job: None,
            claim: claim(context, &request.attributes),
            actuals: settlement.actuals.clone(),
            labels: request.labels.clone(),
        });
        attributes.push(CallAttributes::One(&request.attributes));
    }
    let answers = match completes.is_empty() {
        true => Vec::new(),
        false => execute::complete_calls(app, context, completes, &attributes).await,
    };
    let mut answers = answers.into_iter();
    let completed = settlements.into_iter().map(|settlement| match settlement {
        Err(error) => settled(Err(error), Settlement::default()),
        Ok(settlement) => {
            let answer = answers.next().unwrap_or_else(no_answer);
            let is_settled = matches!(&answer, Ok(CompleteAnswer { reconciled: true, .. }));
            settled(answer, if is_settled { settlement } else { Settlement::default() })
        }
    });
    completed.collect()
}

fn no_answer<T>() -> Result<T, BackendError> {
    Err(BackendError::Failed("no answer".into()))
}

/// Leaves out the limits that the lease had not reserved, because the caller named none, and those that count more,
/// because extensions reported more.
fn settled(answer: Result<CompleteAnswer, BackendError>, settlement: Settlement) -> CompletedCall {
    let Settlement { mut actuals, bound, of_cost, mut cost } = settlement;
    actuals.extend(bound);
    let answer = answer.map(|mut answer| {
        actuals.retain(|actual| !answer.ignored.contains(&actual.key) && !answer.raised.contains(&actual.key));
        cost = cost.filter(|_| !answer.raised.iter().any(|key| of_cost.contains(key)));
        if !answer.ignored.is_empty() {
            answer.message = describe_raised(&answer.raised);
        }
        answer
    });
    CompletedCall { answer, actuals, cost }
}

async fn settlement(app: &App, context: &RequestContext, request: &CompleteCall) -> Result<Settlement, BackendError> {
    let subject = (&request.namespace, request.lease);
    let Some(compiled) = policy_of(app, context, subject, request.policy_revision).await? else {
        return Ok(Settlement::default());
    };
    let released = || compiled.policy.release(&request.attributes);
    match (request.outcome, &request.usage) {
        (CallOutcome::Done, Some(usage)) => {
            let settlement = compiled.policy.settle(&request.attributes, usage);
            let of_cost = keys_of_cost(&settlement.actuals);
            let actuals = reserved_of(app, context, subject, amounts_of(settlement.actuals)).await?;
            Ok(Settlement { actuals, of_cost, cost: settlement.cost, ..Settlement::default() })
        }
        (CallOutcome::Refused, _) => {
            let released = released();
            let of_cost = keys_of_cost(&released);
            let actuals = reserved_of(app, context, subject, amounts_of(released)).await?;
            Ok(Settlement { actuals, of_cost, cost: Some(0), ..Settlement::default() })
        }
        (CallOutcome::Done | CallOutcome::Unknown, _) => {
            let bound = requirements_of(app, context, subject).await?;
            let cost_key = released().into_iter().find(|amount| amount.is_cost).map(|amount| amount.key);
            let cost = bound.iter().find(|amount| Some(&amount.key) == cost_key.as_ref()).map(|amount| amount.amount);
            Ok(Settlement { bound, cost, ..Settlement::default() })
        }
    }
}

fn keys_of_cost(amounts: &[CallAmount]) -> Vec<LimitKey> {
    amounts.iter().filter(|amount| amount.is_cost).map(|amount| amount.key.clone()).collect()
}

/// The amounts that a lease has reserved.
async fn requirements_of(
    app: &App,
    context: &RequestContext,
    (namespace, lease_id): (&NamespaceName, LeaseId),
) -> Result<Vec<Amount>, BackendError> {
    Ok(lease(app, context, namespace, lease_id).await?.map(|view| view.requirements).unwrap_or_default())
}

/// The amounts of limits that a lease has, if there are more than a lease can have.
pub(super) async fn reserved_of(
    app: &App,
    context: &RequestContext,
    subject: (&NamespaceName, LeaseId),
    mut amounts: Vec<Amount>,
) -> Result<Vec<Amount>, BackendError> {
    if amounts.len() > REQUIREMENTS_MAX {
        let requirements = requirements_of(app, context, subject).await?;
        amounts.retain(|amount| requirements.iter().any(|reserved| reserved.key == amount.key));
        amounts.truncate(REQUIREMENTS_MAX);
    }
    Ok(amounts)
}

fn claim(context: &RequestContext, attributes: &Attributes) -> LeaseClaim {
    LeaseClaim { attributes: Some(attributes.hash32()), by_gateway: context.caller.by_gateway }
}
