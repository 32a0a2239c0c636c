//! The descriptors of a proxy: checks that take nothing, and settlements.

use earmark_admission::{Amount, BackendError, CompleteAnswer, CompleteRequest};
use earmark_core::{Kind, LeaseClaim, LeaseId, LimitKey, NamespaceName, UnixMs};
use earmark_policy::{CallAmount, Hits, HitsUsed, Policy, Refusal};

use super::asked::{Asked, hits, raise};
use super::foreseen;
use super::settle::reserved_of;
use super::{CallRequest, Called, Decision, amounts_of, counted, policy_of};
use crate::answer::ReserveWire;
use crate::app::App;
use crate::execute::{self, RequestContext};
use crate::observed::{self, Subject};

/// The longest window in seconds of a lease that is not completed: the default retention. The Book forgets such a lease
/// as soon as a completed one. Those with longer windows are completed, so that their reservations merge.
const OPEN_WINDOW_SECONDS_MAX: u32 = 900;

/// The end of a lease that a proxy held.
pub(crate) struct SettleHits {
    pub(crate) namespace: NamespaceName,
    pub(crate) lease: LeaseId,
    pub(crate) policy_revision: Option<u64>,
    pub(crate) asked: Asked,
    pub(crate) used: HeldUsage,
}

/// How much of a lease was used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeldUsage {
    /// This much.
    Known(HitsUsed),
    /// Nobody knows, so that the bound counts.
    Unknown,
    /// Nothing: the upstream refused the request.
    Nothing,
}

/// Settles the lease of a proxy.
pub(crate) async fn settle_hits(
    app: &App,
    context: &RequestContext,
    request: &SettleHits,
) -> Result<CompleteAnswer, BackendError> {
    let subject = (&request.namespace, request.lease);
    let mut actuals = Vec::new();
    if request.used != HeldUsage::Unknown
        && let Some(compiled) = policy_of(app, context, subject, request.policy_revision).await?
    {
        let mut all = Vec::new();
        for hits in hits(&compiled.policy, request.asked.descriptors()) {
            raise(&mut all, actual(&compiled.policy, &hits, &request.used));
        }
        actuals = reserved_of(app, context, subject, amounts_of(all)).await?;
    }
    complete(app, context, subject, (&request.asked, actuals)).await
}

fn actual(policy: &Policy, hits: &Hits<'_>, used: &HeldUsage) -> Vec<CallAmount> {
    match used {
        HeldUsage::Known(used) => policy.settle_hits(hits, used).actuals,
        HeldUsage::Nothing => policy.release(hits.attributes),
        HeldUsage::Unknown => Vec::new(),
    }
}

/// Completes a lease that was counted and will not be settled later. One whose windows are all short ends by itself.
pub(crate) async fn count(
    app: &App,
    context: &RequestContext,
    request: &CallRequest,
    requirements: &[Amount],
) -> Result<(), BackendError> {
    let namespace = &request.namespace;
    if requirements.iter().all(|amount| ends_soon(app, namespace, &amount.key)) {
        return Ok(());
    }
    Box::pin(complete(app, context, (namespace, request.lease), (&request.asked, Vec::new()))).await.map(drop)
}

fn ends_soon(app: &App, own: &NamespaceName, key: &LimitKey) -> bool {
    let foreign = key.foreign();
    let (namespace, key) = foreign.as_ref().map_or((own, key), |(namespace, key)| (namespace, key));
    match app.backend.applied_limit(namespace, key).map(|limit| limit.definition.kind.clone()) {
        Some(kind @ (Kind::Rolling { .. } | Kind::Calendar { .. })) => kind.hold_seconds() <= OPEN_WINDOW_SECONDS_MAX,
        Some(Kind::Concurrency { .. } | Kind::Credit(_)) | None => false,
    }
}

async fn complete(
    app: &App,
    context: &RequestContext,
    (namespace, lease): (&NamespaceName, LeaseId),
    (asked, actuals): (&Asked, Vec<Amount>),
) -> Result<CompleteAnswer, BackendError> {
    let claim = LeaseClaim { attributes: Some(asked.hashes().0), by_gateway: context.caller.by_gateway };
    let labels = earmark_core::SettleLabels::NONE;
    let complete = CompleteRequest { namespace: namespace.clone(), lease, job: None, claim, actuals, labels };
    let answer = execute::complete_calls(app, context, vec![complete], &[asked.attributes()]).await.pop();
    answer.unwrap_or_else(|| Err(BackendError::Failed("no answer".into())))
}

/// The answer that a reserve would get. Takes nothing.
pub(crate) async fn check(app: &App, context: &RequestContext, request: &CallRequest, now: UnixMs) -> Called {
    let policy = match app.policies.newest(&app.backend, &request.namespace).await {
        Ok(Some(policy)) => policy,
        Ok(None) => return counted(app, context, request, Called::refused(Refusal::NoPolicy, None)),
        Err(error) => return Called::failed(error),
    };
    let revision = Some(policy.revision);
    let requirements = match request.asked.evaluate(&policy.policy) {
        Ok(amounts) => amounts_of(amounts),
        Err(refusal) => return counted(app, context, request, Called::refused(refusal, revision)),
    };
    let found = foreseen::find(app, context, &request.namespace, &requirements).await;
    let answer = found.map(|found| foreseen::answer(&requirements, &found, now));
    let wire = ReserveWire::of(&answer);
    if !wire.allowed && answer.is_ok() {
        app.metrics.reserved(wire.outcome());
        let (keys, reason) = wire.limited_by();
        let template_of = |key: &LimitKey| app.backend.template_of(&request.namespace, key);
        app.metrics.denied_by(&request.namespace, keys, reason, template_of);
        let (namespace, lease, asked) = (request.namespace.clone(), request.lease, requirements.clone());
        let subject = Subject { namespace, lease, job: None, asked };
        let asked = (context, &subject, Some(request.asked.attributes()));
        observed::taken(app, asked, (wire.allowed, wire.error, wire.limited_by));
    }
    Called { decision: Decision::Limits(answer), requirements, policy_revision: revision }
}

/// The limits of each descriptor with hits by the newest policy. `None` for a descriptor that the policy refuses.
pub(crate) async fn keys_by_descriptor(
    app: &App,
    request: &CallRequest,
) -> Result<Vec<Option<Vec<LimitKey>>>, BackendError> {
    let list = request.asked.descriptors();
    let Some(compiled) = app.policies.newest(&app.backend, &request.namespace).await? else {
        return Ok(vec![None; list.len()]);
    };
    let keys = |hits: Hits<'_>| {
        let amounts = compiled.policy.evaluate_hits(&hits).ok()?;
        Some(amounts.into_iter().map(|amount| amount.key).collect())
    };
    Ok(hits(&compiled.policy, list).map(keys).collect())
}
