//! Reserving in two steps: the limits, which register the lease, then the credit.

use std::sync::Arc;

use earmark_core::{Actor, CreditShortage, LimitKey, NamespaceName, SettleLabels};
use earmark_trace::step;

use super::{Parts, all};
use crate::backend::{AccountPath, Amount, Answer, BackendError, Refusal, ReserveAnswer, ReserveRequest};
use crate::book_host::BookHost;
use crate::credits::{HoldAnswer, HoldPart, HoldRequest, HoldState, SettleRequest};
use crate::limits::{EnforcedStatus, LimitsReserve};
use crate::writes::CreditReadError;

/// Milliseconds to wait after a credit shortage. Nobody knows when the account gets credit, so this is a guess.
pub const CREDIT_RETRY_MS: u64 = 10_000;

/// The credit part of a request.
pub(super) enum CreditNeed {
    None,
    /// Credit to hold, ordered by key.
    Credit(Vec<HoldPart>),
    /// A key without a limit. It may have been a credit limit when the lease was allowed.
    Unknown(LimitKey),
}

/// The step after the limits have answered.
enum NextStep {
    Answer,
    /// Hold credit. The index is that of the hold in the batch.
    Hold(usize),
    /// Look up the credit of the lease: the lease has ended, or this limit was deleted.
    LookUpHold(Option<LimitKey>),
}

impl<H: BookHost> Parts<H> {
    /// Whether a request needs limits only, as this process knows.
    pub(super) fn has_only_limits(&self, request: &ReserveRequest) -> bool {
        matches!(self.credit_need(&request.namespace, &request.requirements), CreditNeed::None)
    }

    pub(super) fn credit_need(&self, namespace: &NamespaceName, amounts: &[Amount]) -> CreditNeed {
        let mut parts = Vec::new();
        // A limit of another namespace never was credit.
        for requirement in amounts.iter().filter(|part| part.key.foreign().is_none()) {
            let Some(limit) = self.known(namespace, &requirement.key) else {
                return CreditNeed::Unknown(requirement.key.clone());
            };
            if limit.definition.kind.terms().is_some() {
                let limit = Arc::new(limit.definition.clone());
                parts.push(HoldPart { limit, amount: requirement.amount });
            }
        }
        parts.sort_unstable_by(|a, b| a.limit.key.cmp(&b.limit.key));
        if parts.is_empty() { CreditNeed::None } else { CreditNeed::Credit(parts) }
    }

    pub(super) async fn reserve(
        &self,
        actor: Option<Actor>,
        requests: Vec<ReserveRequest>,
    ) -> Vec<Result<ReserveAnswer, BackendError>> {
        if let Err(error) = self.ensure_placement().await {
            return vec![Err(error.into()); requests.len()];
        }
        let mut missing = Vec::with_capacity(requests.len());
        for request in &requests {
            missing.push(self.missing_account(request).await);
        }
        let payable = requests.into_iter().zip(&missing).filter(|(_, missing)| missing.is_none());
        let mut answers = self.reserve_payable(actor, payable.map(|(request, _)| request).collect()).await.into_iter();
        let unanswered = || Err(BackendError::Failed("a reserve has no answer".into()));
        let answer = |missing: Option<LimitKey>| match missing {
            Some(key) => Ok(ReserveAnswer::Refused(account_not_found(key))),
            None => answers.next().unwrap_or_else(unanswered),
        };
        missing.into_iter().map(answer).collect()
    }

    /// The first credit limit, by key, whose vault or account does not exist. It is looked up before the limits reserve
    /// anything, so that the same lease can try again. If the credit store does not answer, the hold decides.
    async fn missing_account(&self, request: &ReserveRequest) -> Option<LimitKey> {
        let need = self.credit_need(&request.namespace, &request.requirements);
        let CreditNeed::Credit(parts) = need else { return None };
        for part in parts {
            if self.lacks_account(&request.namespace, &part).await {
                return (!self.limits_refuse(request).await).then(|| part.limit.key.clone());
            }
        }
        None
    }

    /// Whether the vault or an account of a hold does not exist.
    pub(super) async fn lacks_account(&self, namespace: &NamespaceName, part: &HoldPart) -> bool {
        let Some(terms) = part.limit.kind.terms() else { return false };
        for account in [&terms.account, &terms.revenue] {
            let (namespace, vault) = (namespace.clone(), terms.vault.clone());
            let path = AccountPath { namespace, vault, account: account.clone() };
            if self.accounts.has(&path) {
                continue;
            }
            match step("credit", self.credits.balances(path.clone())).await {
                Ok(_) => self.accounts.add(path),
                Err(CreditReadError::Backend(_)) => {}
                Err(_) => return true,
            }
        }
        false
    }

    /// Whether the limits refuse a request without a trace for a reason that comes before a missing account: its lease is
    /// known, or a limit is decreasing.
    async fn limits_refuse(&self, request: &ReserveRequest) -> bool {
        let known = self.limits.lease(request.namespace.clone(), request.lease).await;
        if matches!(known, Ok(Some(_))) {
            return true;
        }
        for part in &request.requirements {
            let limit = self.known(&request.namespace, &part.key);
            let Some(limit) = limit.filter(|limit| limit.definition.kind.terms().is_none()) else { continue };
            let namespace = part.key.foreign().map_or_else(|| request.namespace.clone(), |(namespace, _)| namespace);
            let enforced = self.limits.enforced_status(namespace, vec![limit]).await;
            if enforced.is_ok_and(|enforced| enforced.contains(&EnforcedStatus::Decreasing)) {
                return true;
            }
        }
        false
    }

    async fn reserve_payable(
        &self,
        actor: Option<Actor>,
        requests: Vec<ReserveRequest>,
    ) -> Vec<Result<ReserveAnswer, BackendError>> {
        let asked = requests.iter().map(|request| LimitsReserve {
            namespace: request.namespace.clone(),
            lease: request.lease,
            job: request.job.clone(),
            call: request.call,
            by_gateway: request.by_gateway,
            requirements: request.requirements.clone(),
        });
        let taken = step("limits", self.limits.reserve(asked.collect())).await;
        let mut holds = Vec::new();
        let steps: Vec<NextStep> = (requests.iter().zip(&taken))
            .map(|(request, answer)| match answer {
                Ok(answer) => self.next_step(request, answer, &mut holds),
                Err(_) => NextStep::Answer,
            })
            .collect();
        let held = match holds.is_empty() {
            true => Vec::new(),
            false => step("credit", self.credits.hold(actor.clone(), holds)).await,
        };
        let answers = requests.iter().zip(taken).zip(steps).map(|((request, taken), step)| {
            let held = match step {
                NextStep::Hold(place) => held.get(place).cloned(),
                NextStep::Answer | NextStep::LookUpHold(_) => None,
            };
            let actor = actor.clone();
            let answer: Answer<'_, _> = Box::pin(async move {
                let taken = taken?;
                match step {
                    NextStep::Answer => Ok(taken),
                    NextStep::Hold(_) => self.after_hold(request, taken, held).await,
                    NextStep::LookUpHold(gone) => self.after_lookup(actor, request, taken, gone).await,
                }
            });
            answer
        });
        all(answers.collect()).await
    }

    fn next_step(&self, request: &ReserveRequest, answer: &ReserveAnswer, holds: &mut Vec<HoldRequest>) -> NextStep {
        let asked_revision = request.call.map(|call| call.policy_revision);
        let has_ended = match answer {
            // A retry of a call with the requirements of another policy. Its credit is that of the first one.
            ReserveAnswer::Allowed { policy_revision, .. } if *policy_revision != asked_revision => {
                return NextStep::Answer;
            }
            ReserveAnswer::Allowed { .. } => false,
            ReserveAnswer::Refused(Refusal::LeaseExpired) => true,
            ReserveAnswer::Denied { .. }
            | ReserveAnswer::Refused(
                Refusal::InvalidRequest { .. }
                | Refusal::OwnedByGateway
                | Refusal::UnknownLimitKey(_)
                | Refusal::LimitDecreasing { .. }
                | Refusal::LimitPaused { .. }
                | Refusal::AccountNotFound { .. }
                | Refusal::QuotaExceeded { .. }
                | Refusal::DeniedByPolicy { .. }
                | Refusal::InsufficientCredit { .. },
            ) => return NextStep::Answer,
        };
        if !has_ended && request.call.is_none() && !request.by_gateway {
            self.unowned.add(&request.namespace, request.lease);
        }
        match self.credit_need(&request.namespace, &request.requirements) {
            CreditNeed::None if has_ended => NextStep::Answer,
            CreditNeed::None => {
                self.creditless.add(&request.namespace, request.lease);
                NextStep::Answer
            }
            // Credit may have been refused to a lease that has ended. Repeat that answer.
            CreditNeed::Credit(_) | CreditNeed::Unknown(_) if has_ended => NextStep::LookUpHold(None),
            CreditNeed::Unknown(key) => NextStep::LookUpHold(Some(key)),
            CreditNeed::Credit(parts) => {
                let (namespace, lease) = (request.namespace.clone(), request.lease);
                holds.push(HoldRequest { namespace, lease, holds: parts });
                NextStep::Hold(holds.len().saturating_sub(1))
            }
        }
    }

    async fn after_hold(
        &self,
        request: &ReserveRequest,
        taken: ReserveAnswer,
        held: Option<Result<HoldAnswer, BackendError>>,
    ) -> Result<ReserveAnswer, BackendError> {
        let unanswered = || BackendError::Failed("the credit store did not answer a hold".into());
        match held.ok_or_else(unanswered)?? {
            HoldAnswer::Held => Ok(taken),
            HoldAnswer::Refused { key, why } => self.refuse(request, key, why).await,
            // A complete ended it, and settles the limits too; or it timed out, and a complete has yet to settle the
            // limits.
            HoldAnswer::Ended => Ok(ReserveAnswer::Refused(Refusal::LeaseExpired)),
        }
    }

    /// Returns the limits. If that fails, the caller's retry does it again.
    async fn refuse(
        &self,
        request: &ReserveRequest,
        key: LimitKey,
        why: CreditShortage,
    ) -> Result<ReserveAnswer, BackendError> {
        step("limits", self.limits.release(request.namespace.clone(), request.lease)).await?;
        Ok(ReserveAnswer::Refused(shortage(key, why)))
    }

    async fn after_lookup(
        &self,
        actor: Option<Actor>,
        request: &ReserveRequest,
        taken: ReserveAnswer,
        gone: Option<LimitKey>,
    ) -> Result<ReserveAnswer, BackendError> {
        let (namespace, requirements) = (request.namespace.clone(), request.requirements.clone());
        let state = step("credit", self.credits.holds(namespace, request.lease, requirements)).await?;
        match (state, gone) {
            (HoldState::Refused { key, why }, None) => Ok(ReserveAnswer::Refused(shortage(key, why))),
            (HoldState::Refused { key, why }, Some(_)) => self.refuse(request, key, why).await,
            (_, None) | (HoldState::Held, Some(_)) => Ok(taken),
            (HoldState::Ended, Some(_)) => Ok(ReserveAnswer::Refused(Refusal::LeaseExpired)),
            (HoldState::Unknown, Some(key)) => {
                // A hold that is still in flight will find that its lease has ended.
                self.fence(actor, request).await?;
                self.limits.release(request.namespace.clone(), request.lease).await?;
                Ok(ReserveAnswer::Refused(Refusal::UnknownLimitKey(key)))
            }
        }
    }

    async fn fence(&self, actor: Option<Actor>, request: &ReserveRequest) -> Result<(), BackendError> {
        let (namespace, lease) = (request.namespace.clone(), request.lease);
        let release =
            SettleRequest { namespace, lease, actuals: Vec::new(), is_release: true, labels: SettleLabels::NONE };
        let released = self.credits.settle(actor, vec![release]).await;
        released.into_iter().try_for_each(|answer| answer.map(drop))
    }
}

pub(super) fn shortage(key: LimitKey, why: CreditShortage) -> Refusal {
    if why == CreditShortage::UnknownAccount {
        return account_not_found(key);
    }
    Refusal::InsufficientCredit { key, retry_after_ms: CREDIT_RETRY_MS, why }
}

pub(super) fn account_not_found(key: LimitKey) -> Refusal {
    Refusal::AccountNotFound { key, retry_after_ms: CREDIT_RETRY_MS }
}
