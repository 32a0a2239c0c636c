//! Calls: their attributes and bounds become requirements by the policy of their namespace.
//!
//! A call keeps its policy. Its lease has the hash of its attributes and bounds and the revision that gave its
//! requirements, so a retry gets its first answer, and extend and complete settle by the same rules.

mod answer;
mod asked;
mod cache;
mod explain;
mod foreseen;
mod hits;
mod settle;

use std::sync::Arc;

use earmark_admission::{Amount, BackendError, LeaseView, Refusal as LimitRefusal, ReserveAnswer, ReserveRequest};
use earmark_core::{CallMark, JobId, LeaseId, NamespaceName};
use earmark_policy::{CallAmount, Refusal};
use futures_util::future::join_all;

pub(crate) use answer::{ActualWire, CallWire, CompleteCallWire, RequirementWire, strict_status};
pub(crate) use asked::{Asked, CallAttributes, Descriptor};
use cache::Compiled;
pub(crate) use cache::PolicyCache;
pub(crate) use explain::{
    ExplainRequest, Explained, ExplainedLimit, ExplainedRule, KnownLimit, explain, known_limits, limit_states,
};
pub(crate) use hits::{HeldUsage, SettleHits, check, count, keys_by_descriptor, settle_hits};
#[cfg(test)]
pub(crate) use settle::CompletedCall;
pub(crate) use settle::{
    CallOutcome, CompleteCall, ExtendCall, SERVICE_TIER_BYTES_MAX, check_service_tier, complete, complete_all, extend,
};

use crate::app::App;
use crate::caller::{AuthError, Caller};
use crate::execute::{self, RequestContext};
use crate::metrics::Reserved;
use crate::observed::{self, Subject};

/// A call before it is made.
pub(crate) struct CallRequest {
    pub(crate) namespace: NamespaceName,
    pub(crate) lease: LeaseId,
    pub(crate) job: Option<JobId>,
    pub(crate) asked: Asked,
}

/// The decision about a call.
pub(crate) struct Called {
    pub(crate) decision: Decision,
    /// The requirements that followed from the policy. Empty if it refused the call.
    pub(crate) requirements: Vec<Amount>,
    /// The revision of the policy. `None` if the namespace has none.
    pub(crate) policy_revision: Option<u64>,
}

/// The origin of a decision about a call.
pub(crate) enum Decision {
    /// The policy refused it.
    Refused(Refusal),
    /// The policy allows it and names no limits, so there is no lease.
    Free,
    /// The limits decided.
    Limits(Result<ReserveAnswer, BackendError>),
}

impl CallRequest {
    fn mark(&self, policy_revision: u64) -> CallMark {
        let (attributes, bounds) = self.asked.hashes();
        CallMark { attributes, bounds, policy_revision }
    }
}

impl Called {
    fn refused(refusal: Refusal, policy_revision: Option<u64>) -> Called {
        Called { decision: Decision::Refused(refusal), requirements: Vec::new(), policy_revision }
    }

    fn failed(error: BackendError) -> Called {
        Called::of(Err(error))
    }

    /// A decision without a policy.
    pub(crate) fn of(answer: Result<ReserveAnswer, BackendError>) -> Called {
        Called { decision: Decision::Limits(answer), requirements: Vec::new(), policy_revision: None }
    }

    /// Whether the caller's key was refused at last.
    pub(crate) fn is_unauthenticated(&self) -> bool {
        matches!(self.decision, Decision::Limits(Err(BackendError::Unauthenticated)))
    }
}

/// The namespace of a request that may name one. A gateway of `default` acts for every namespace.
pub(crate) fn namespace_of(caller: &Caller, named: Option<NamespaceName>) -> Result<NamespaceName, AuthError> {
    let Some(namespace) = named else { return Ok(caller.namespace.clone()) };
    caller.check_namespace(&namespace)?;
    Ok(namespace)
}

/// Reserves the limits that the policy names for a call.
pub(crate) async fn call(app: &App, context: &RequestContext, request: &CallRequest) -> Called {
    call_each(app, context, std::slice::from_ref(request)).await.pop().unwrap_or_else(no_answer)
}

/// Reserves for each call of a batch, in order. The error says that the caller's key was refused.
pub(crate) async fn call_all(
    app: &App,
    context: &RequestContext,
    requests: &[CallRequest],
) -> Result<Vec<Called>, AuthError> {
    let called = call_each(app, context, requests).await;
    match called.iter().all(Called::is_unauthenticated) {
        true => Err(AuthError::Unauthenticated),
        false => Ok(called),
    }
}

/// Reserves for calls, in one batch of the backend.
async fn call_each(app: &App, context: &RequestContext, requests: &[CallRequest]) -> Vec<Called> {
    let mut judged = Vec::with_capacity(requests.len());
    for request in requests {
        judged.push(match app.policies.newest(&app.backend, &request.namespace).await {
            Ok(Some(policy)) => Ok((request, policy)),
            Ok(None) => Err(counted(app, context, request, Called::refused(Refusal::NoPolicy, None))),
            Err(error) => Err(Called::failed(error)),
        });
    }
    let mut first = attempt(app, context, judged.iter().flatten()).await.into_iter();
    let called = judged.into_iter().map(|judged| {
        let judged = judged.map(|call| (call, first.next().unwrap_or_else(no_answer)));
        async move {
            match judged {
                Ok(((request, policy), first)) => by_first_revision(app, context, (request, &policy), first).await,
                Err(called) => called,
            }
        }
    });
    // Side by side, so that their reads of leases share a confirmation by the leader.
    join_all(called).await
}

fn no_answer() -> Called {
    Called::failed(BackendError::Failed("no answer".into()))
}

/// The decision about a call by the revision that decided about it first.
async fn by_first_revision(
    app: &App,
    context: &RequestContext,
    (request, policy): (&CallRequest, &Compiled),
    first: Called,
) -> Called {
    let earlier = match first_revision(app, context, request, &first).await {
        Ok(earlier) => earlier.filter(|revision| *revision != policy.revision),
        Err(error) => return Called::failed(error),
    };
    let Some(earlier) = earlier else { return counted(app, context, request, first) };
    // Policies seldom change between a call and its retry.
    match Box::pin(app.policies.kept(&app.backend, &request.namespace, earlier)).await {
        Ok(Some(kept)) => {
            let called = Box::pin(attempt(app, context, [&(request, kept)].into_iter())).await.pop();
            counted(app, context, request, called.unwrap_or_else(no_answer))
        }
        Ok(None) => {
            let called = Box::pin(without_policy(app, context, request, first, earlier)).await;
            counted(app, context, request, called)
        }
        Err(error) => Called::failed(error),
    }
}

/// Counts and logs a decision that the limits did not make, which are counted where they are executed.
fn counted(app: &App, context: &RequestContext, request: &CallRequest, called: Called) -> Called {
    match &called.decision {
        Decision::Refused(_) => {
            app.metrics.reserved(Reserved::RefusedByPolicy);
            let (namespace, job) = (request.namespace.clone(), request.job.clone());
            let subject = Subject { namespace, lease: request.lease, job, asked: Vec::new() };
            observed::refused(app, (context, &subject, Some(request.asked.attributes())));
        }
        Decision::Free => app.metrics.reserved(Reserved::Allowed),
        Decision::Limits(_) => {}
    }
    called
}

/// Reserves for calls, each by a revision of the policy, in one batch of the backend.
async fn attempt<'a>(
    app: &App,
    context: &RequestContext,
    judged: impl Iterator<Item = &'a (&'a CallRequest, Arc<Compiled>)> + Send,
) -> Vec<Called> {
    let (mut reserves, mut attributes) = (Vec::new(), Vec::new());
    let decided = judged.map(|(request, policy)| {
        let decided = match requirements(app, request, policy) {
            Ok(requirements) if requirements.is_empty() => Decision::Free,
            Err(refusal) => Decision::Refused(refusal),
            Ok(requirements) => {
                reserves.push(ReserveRequest {
                    namespace: request.namespace.clone(),
                    lease: request.lease,
                    job: request.job.clone(),
                    call: Some(request.mark(policy.revision)),
                    by_gateway: context.caller.by_gateway,
                    requirements,
                });
                attributes.push(request.asked.attributes());
                return (None, policy.revision);
            }
        };
        (Some(decided), policy.revision)
    });
    let decided: Vec<(Option<Decision>, u64)> = decided.collect();
    let mut answers = execute::reserve_calls(app, context, reserves, &attributes).await.into_iter();
    let called = decided.into_iter().map(|(decided, revision)| {
        let (decision, requirements) = match decided {
            Some(decision) => (decision, Vec::new()),
            None => {
                let no_answer = || (Err(BackendError::Failed("no answer".into())), Vec::new());
                let (answer, requirements) = answers.next().unwrap_or_else(no_answer);
                (Decision::Limits(answer), requirements)
            }
        };
        Called { decision, requirements, policy_revision: Some(revision) }
    });
    called.collect()
}

/// The limits that a call needs by one revision of the policy.
fn requirements(app: &App, request: &CallRequest, policy: &Compiled) -> Result<Vec<Amount>, Refusal> {
    let amounts = request.asked.evaluate(&policy.policy)?;
    match other_asset(app, &request.namespace, policy, &amounts) {
        Some(refusal) => Err(refusal),
        None => Ok(amounts_of(amounts)),
    }
}

/// The revision that decided about this call before, if another one may have.
async fn first_revision(
    app: &App,
    context: &RequestContext,
    request: &CallRequest,
    called: &Called,
) -> Result<Option<u64>, BackendError> {
    match &called.decision {
        Decision::Limits(Ok(ReserveAnswer::Allowed { policy_revision, .. })) => Ok(*policy_revision),
        Decision::Limits(Ok(ReserveAnswer::Refused(LimitRefusal::DeniedByPolicy { policy_revision }))) => {
            Ok(Some(*policy_revision))
        }
        // The lease may exist: these decisions do not look for it.
        Decision::Refused(_)
        | Decision::Free
        | Decision::Limits(Ok(ReserveAnswer::Refused(
            LimitRefusal::UnknownLimitKey(_) | LimitRefusal::AccountNotFound { .. },
        ))) => {
            let fingerprint = Some(request.mark(0).fingerprint());
            let view = Box::pin(lease(app, context, &request.namespace, request.lease)).await?;
            Ok(view.filter(|view| view.call_fingerprint == fingerprint).and_then(|view| view.policy_revision))
        }
        Decision::Limits(Ok(ReserveAnswer::Denied { .. } | ReserveAnswer::Refused(_)) | Err(_)) => Ok(None),
    }
}

/// The first answer to a call whose policy is no longer kept: the lease has its requirements.
async fn without_policy(
    app: &App,
    context: &RequestContext,
    request: &CallRequest,
    called: Called,
    revision: u64,
) -> Called {
    let Decision::Limits(Ok(ReserveAnswer::Allowed { .. })) = &called.decision else { return called };
    match lease(app, context, &request.namespace, request.lease).await {
        Ok(Some(view)) => Called { requirements: view.requirements, policy_revision: Some(revision), ..called },
        Ok(None) => Called { policy_revision: Some(revision), ..called },
        Err(error) => Called::failed(error),
    }
}

/// A lease. Checks the caller's key too: a call that takes nothing reaches no other check.
async fn lease(
    app: &App,
    context: &RequestContext,
    namespace: &NamespaceName,
    lease: LeaseId,
) -> Result<Option<LeaseView>, BackendError> {
    execute::read(app, context, app.backend.lease(namespace.clone(), lease)).await
}

/// The refusal of a cost in the asset of the prices that a limit of another asset would take.
fn other_asset(app: &App, namespace: &NamespaceName, policy: &Compiled, amounts: &[CallAmount]) -> Option<Refusal> {
    let asset = policy.policy.asset()?;
    let costs = amounts.iter().filter(|amount| amount.is_cost);
    costs.into_iter().find_map(|amount| {
        // A limit of another namespace is never credit.
        let limit = app.backend.applied_limit(namespace, &amount.key)?;
        let found = &limit.definition.kind.terms()?.asset;
        let refusal =
            || Refusal::OtherAsset { key: amount.key.clone(), found: found.clone(), of_prices: asset.clone() };
        (found != asset).then(refusal)
    })
}

fn amounts_of(amounts: Vec<CallAmount>) -> Vec<Amount> {
    amounts.into_iter().map(|CallAmount { key, amount, .. }| Amount { key, amount }).collect()
}

/// The policy that settles a call: the revision that the request names, else that of its lease, else the newest.
async fn policy_of(
    app: &App,
    context: &RequestContext,
    (namespace, lease_id): (&NamespaceName, LeaseId),
    named: Option<u64>,
) -> Result<Option<Arc<Compiled>>, BackendError> {
    let revision = match named {
        Some(revision) => Some(revision),
        None => lease(app, context, namespace, lease_id).await?.and_then(|view| view.policy_revision),
    };
    if let Some(revision) = revision
        && let Some(kept) = app.policies.kept(&app.backend, namespace, revision).await?
    {
        return Ok(Some(kept));
    }
    app.policies.newest(&app.backend, namespace).await
}
