//! Completing. Limits and credit run concurrently, so that an outage of one does not delay the other. Where the claim on a
//! lease may be refused, the limits judge it before credit is settled.

use earmark_core::{Actor, LeaseClaim, LimitKey, NamespaceName};
use earmark_trace::step;

use super::Parts;
use crate::backend::{Amount, BackendError, CompleteAnswer, CompleteRequest, describe_ignored, describe_raised};
use crate::book_host::BookHost;
use crate::credits::{SettleAnswer, SettleRequest};
use crate::limits::LimitsComplete;

impl<H: BookHost> Parts<H> {
    pub(super) async fn complete(
        &self,
        actor: Option<Actor>,
        requests: Vec<CompleteRequest>,
    ) -> Vec<Result<CompleteAnswer, BackendError>> {
        if let Err(error) = self.ensure_placement().await {
            return vec![Err(error.into()); requests.len()];
        }
        if requests.iter().any(|request| self.has_unknown(&request.namespace, &request.actuals)) {
            self.catch_up().await;
        }
        let mut completes = Vec::with_capacity(requests.len());
        let mut first = Settlements::default();
        for request in &requests {
            let (complete, settle) = self.split(request);
            completes.push(complete);
            first.add(settle.filter(|_| self.may_complete(request)));
        }
        let limits = step("limits", self.limits.complete(completes));
        let (completed, first) = tokio::join!(limits, self.settle(actor.clone(), first));
        let mut second = Settlements::default();
        for ((request, completed), settled) in requests.iter().zip(&completed).zip(&first) {
            let is_due = settled.is_none() && self.is_due_after(request, completed);
            second.add(is_due.then(|| self.settlement(request)));
        }
        let second = self.settle(actor, second).await;
        let mut answers = Vec::with_capacity(requests.len());
        for (((request, completed), first), second) in requests.iter().zip(completed).zip(first).zip(second) {
            let settled = first.or(second).unwrap_or_else(|| Ok(SettleAnswer::default()));
            // Both parts were tried. A retry finds what was done.
            answers.push(match (completed, settled) {
                (Ok(completed), Ok(settled)) => Ok(self.merge(request, completed, settled)),
                (Err(error), _) | (_, Err(error)) => Err(error),
            });
        }
        answers
    }

    /// Settles one batch. The answers stand where the batch has them; `None` for a request without a settlement.
    async fn settle(
        &self,
        actor: Option<Actor>,
        batch: Settlements,
    ) -> Vec<Option<Result<SettleAnswer, BackendError>>> {
        let Settlements { requests, places } = batch;
        let settled = match requests.is_empty() {
            true => Vec::new(),
            false => step("credit", self.credits.settle(actor, requests)).await,
        };
        let answer = |place: usize| settled.get(place).cloned().unwrap_or_else(unanswered);
        places.into_iter().map(|place| place.map(answer)).collect()
    }

    pub(super) fn is_limit(&self, namespace: &NamespaceName, key: &LimitKey) -> bool {
        let limit = self.known(namespace, key);
        key.foreign().is_some() || limit.is_some_and(|limit| limit.definition.kind.terms().is_none())
    }

    pub(super) fn is_credit(&self, namespace: &NamespaceName, key: &LimitKey) -> bool {
        let limit = self.known(namespace, key);
        limit.is_some_and(|limit| limit.definition.kind.terms().is_some())
    }

    /// Splits the actuals. The settlement of a lease whose reserve took no credit is left out. A credit limit, or the
    /// template of a limit, may have been deleted since, so a key that is not known goes to both.
    fn split(&self, request: &CompleteRequest) -> (LimitsComplete, Option<SettleRequest>) {
        let (namespace, lease, claim) = (request.namespace.clone(), request.lease, request.claim);
        if is_any_twice(&request.actuals) {
            // The limits reject a duplicate key. Credit must not settle such a request.
            return (LimitsComplete { namespace, lease, claim, actuals: request.actuals.clone() }, None);
        }
        let limits =
            request.actuals.iter().filter(|actual| !self.is_credit(&request.namespace, &actual.key)).cloned().collect();
        let settle = (!self.creditless.has(&namespace, lease)).then(|| self.settlement(request));
        (LimitsComplete { namespace, lease, claim, actuals: limits }, settle)
    }

    fn settlement(&self, request: &CompleteRequest) -> SettleRequest {
        let others = request.actuals.iter().filter(|actual| !self.is_limit(&request.namespace, &actual.key));
        SettleRequest {
            namespace: request.namespace.clone(),
            lease: request.lease,
            actuals: others.cloned().collect(),
            is_release: false,
            labels: request.labels.clone(),
        }
    }

    /// Whether the claim on a lease fits for certain, as this process knows.
    fn may_complete(&self, request: &CompleteRequest) -> bool {
        let LeaseClaim { attributes, by_gateway } = request.claim;
        attributes.is_none() && (by_gateway || self.unowned.has(&request.namespace, request.lease))
    }

    /// Whether the credit of a lease is to be settled now that the limits have judged it: they accepted the claim, and its
    /// reserve or an extension may have taken credit.
    fn is_due_after(&self, request: &CompleteRequest, completed: &Result<CompleteAnswer, BackendError>) -> bool {
        completed.as_ref().is_ok_and(|completed| {
            let is_refused = completed.is_invalid || completed.owned_by_gateway;
            let has_credit = completed.is_extended || !self.creditless.has(&request.namespace, request.lease);
            !is_refused && has_credit
        })
    }

    /// Merges the answers of limits and credit.
    fn merge(&self, request: &CompleteRequest, completed: CompleteAnswer, settled: SettleAnswer) -> CompleteAnswer {
        let reconciled = completed.reconciled || settled.is_known;
        let is_ignored = |key: &&LimitKey| {
            let by_limits = self.is_credit(&request.namespace, key) || completed.ignored.contains(key);
            let by_credit =
                self.is_limit(&request.namespace, key) || !settled.is_known || settled.ignored.contains(key);
            by_limits && by_credit
        };
        let keys = request.actuals.iter().map(|actual| &actual.key);
        let ignored: Vec<LimitKey> = if reconciled { keys.filter(is_ignored).cloned().collect() } else { Vec::new() };
        // The message of the limits names keys that credit settled.
        let is_of_lease = !completed.ignored.is_empty() || !completed.raised.is_empty();
        let message = completed.message.clone().filter(|_| !is_of_lease);
        let is_raised = |key: &&LimitKey| completed.raised.contains(key) || settled.raised.contains(key);
        let raised: Vec<LimitKey> =
            request.actuals.iter().map(|actual| &actual.key).filter(is_raised).cloned().collect();
        let notes = [describe_ignored(&ignored), describe_raised(&raised), message];
        let notes: Vec<String> = notes.into_iter().flatten().collect();
        let message = (!notes.is_empty()).then(|| notes.join("; "));
        CompleteAnswer {
            reconciled,
            message,
            ignored,
            raised,
            credit_paid: settled.paid,
            credit_debt: settled.debt,
            credit_uncollected: settled.uncollected,
            ..completed
        }
    }
}

/// One batch of settlements, with the place of each request's settlement in it.
#[derive(Default)]
struct Settlements {
    requests: Vec<SettleRequest>,
    places: Vec<Option<usize>>,
}

impl Settlements {
    fn add(&mut self, settle: Option<SettleRequest>) {
        self.places.push(settle.is_some().then_some(self.requests.len()));
        self.requests.extend(settle);
    }
}

pub(super) fn is_any_twice(actuals: &[Amount]) -> bool {
    let before = |place: usize| actuals.iter().take(place);
    actuals.iter().enumerate().any(|(place, actual)| before(place).any(|other| other.key == actual.key))
}

fn unanswered() -> Result<SettleAnswer, BackendError> {
    Err(BackendError::Failed("the credit store did not answer a settlement".into()))
}
