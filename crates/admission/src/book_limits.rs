//! Limits in a Book while SQL keeps the credit.

use std::sync::Arc;

use earmark_core::{
    CreditShortage, ExtendStep, LeaseClaim, LeaseId, LimitInfo, LimitKey, LimitStatus, NamespaceName, Principal,
    SettleLabels, Usage,
};

use crate::backend::{
    Amount, Answer, Answers, Backend, BackendError, CompleteAnswer, CompleteRequest, Refusal, ReserveAnswer,
    ReserveRequest, Stats,
};
use crate::book_host::{BookBackend, BookHost};
use crate::book_request::BookComplete;
use crate::extend::{ExtendAnswer, ExtendRequest};
use crate::lease_view::LeaseView;
use crate::limits::{CreditStep, EnforcedStatus, Limits, LimitsComplete, LimitsExtend, LimitsExtended, LimitsReserve};
use crate::submitter::Direction;

/// The limits of a Book that does not keep credit; see [`BookBackend::record_placement`].
pub struct BookLimits<H>(BookBackend<H>);

impl<H: BookHost> BookLimits<H> {
    /// The limits of this Book.
    pub fn new(book: BookBackend<H>) -> BookLimits<H> {
        BookLimits(book)
    }
}

fn enforced_status(limit: Option<LimitInfo>) -> EnforcedStatus {
    match limit.map(|limit| limit.status) {
        Some(LimitStatus::Active) => EnforcedStatus::InForce,
        Some(LimitStatus::Decreasing { .. }) => EnforcedStatus::Decreasing,
        Some(LimitStatus::Deleted) | None => EnforcedStatus::Absent,
    }
}

/// The step of the Book after the credit store has answered. The first amount of a denial for want of credit is that of
/// the account with too little.
fn extend_step(credit: &CreditStep, add: &mut [Amount]) -> ExtendStep {
    match credit {
        CreditStep::Held => ExtendStep::Whole,
        CreditStep::Blocked(_) => ExtendStep::Judge,
        CreditStep::Short { key, why } => {
            if let Some(place) = add.iter().position(|part| part.key == *key) {
                add.swap(0, place);
            }
            match why {
                CreditShortage::Frozen => ExtendStep::DenyFrozen,
                CreditShortage::Closed => ExtendStep::DenyClosed,
                CreditShortage::NotEnough | CreditShortage::UnknownAccount => ExtendStep::Deny,
            }
        }
    }
}

/// The answer of the Book, which does not tell whether a lease has credit elsewhere. `blocked` is the refusal of an
/// extension that nothing else is in the way of.
fn limits_extended(answer: ExtendAnswer, blocked: Option<Refusal>) -> LimitsExtended {
    match (answer, blocked) {
        (ExtendAnswer::Extended { .. }, Some(refusal)) => ExtendAnswer::Refused(refusal).into(),
        (answer, _) => LimitsExtended { answer, may_have_credit: true },
    }
}

impl<H: BookHost> Limits for BookLimits<H> {
    fn reserve(&self, requests: Vec<LimitsReserve>) -> Answers<'_, ReserveAnswer> {
        let requests = requests.into_iter().map(|request| {
            let LimitsReserve { namespace, lease, job, call, by_gateway, requirements } = request;
            ReserveRequest { namespace, lease, job, call, by_gateway, requirements }
        });
        self.0.reserve(Principal::System, requests.collect())
    }

    fn extend(&self, requests: Vec<LimitsExtend>) -> Answers<'_, LimitsExtended> {
        Box::pin(async move {
            let blocked: Vec<Option<Refusal>> = requests.iter().map(|request| request.credit.refusal()).collect();
            let requests = requests.into_iter().map(|request| {
                let LimitsExtend { namespace, lease, number, mut add, used, renew, credit, claim } = request;
                let step = extend_step(&credit, &mut add);
                (ExtendRequest { namespace, lease, number, add, used, renew, claim }, step)
            });
            let answers = self.0.extend_step(Principal::System, requests.collect()).await;
            let answers = answers.into_iter().zip(blocked);
            answers.map(|(answer, blocked)| Ok(limits_extended(answer?, blocked))).collect()
        })
    }

    fn complete(&self, requests: Vec<LimitsComplete>) -> Answers<'_, CompleteAnswer> {
        let requests = requests.into_iter().map(|request| {
            let LimitsComplete { namespace, lease, claim, actuals } = request;
            CompleteRequest { namespace, lease, job: None, claim, actuals, labels: SettleLabels::NONE }
        });
        self.0.complete(Principal::System, requests.collect())
    }

    fn release(&self, namespace: NamespaceName, lease: LeaseId) -> Answer<'_, Result<(), BackendError>> {
        Box::pin(async move { self.0.release(&namespace, lease).await.map(drop) })
    }

    fn apply_definition(
        &self,
        namespace: NamespaceName,
        key: LimitKey,
    ) -> Answer<'_, Result<EnforcedStatus, BackendError>> {
        Box::pin(async move { Ok(enforced_status(self.0.limit(namespace, key).await?)) })
    }

    fn enforced_status(
        &self,
        namespace: NamespaceName,
        limits: Vec<Arc<LimitInfo>>,
    ) -> Answer<'_, Result<Vec<EnforcedStatus>, BackendError>> {
        let read = self.0.read(move |book, now| {
            let find =
                |limit: &LimitInfo| book.limit(now, book.resolve(book.namespace(&namespace)?, &limit.definition.key)?);
            limits.iter().map(|limit| enforced_status(find(limit))).collect()
        });
        Box::pin(read)
    }

    fn usage(&self, namespace: NamespaceName, limit: Arc<LimitInfo>) -> Answer<'_, Result<Usage, BackendError>> {
        let key = limit.definition.key.clone();
        Box::pin(async move { Ok(self.0.usage(namespace, key).await?.unwrap_or(DELETED_USAGE)) })
    }

    fn usages(
        &self,
        namespace: NamespaceName,
        limits: Vec<Arc<LimitInfo>>,
    ) -> Answer<'_, Result<Vec<Usage>, BackendError>> {
        let read = self.0.read(move |book, now| {
            let find =
                |limit: &LimitInfo| book.usage(now, book.resolve(book.namespace(&namespace)?, &limit.definition.key)?);
            limits.iter().map(|limit| find(limit).unwrap_or(DELETED_USAGE)).collect()
        });
        Box::pin(read)
    }

    fn lease(&self, namespace: NamespaceName, lease: LeaseId) -> Answer<'_, Result<Option<LeaseView>, BackendError>> {
        Backend::lease(&self.0, namespace, lease)
    }

    fn stats(&self) -> Stats {
        Stats { limits: 0, decreasing_limits: 0, ..Backend::stats(&self.0) }
    }

    fn ready(&self) -> Result<(), String> {
        Backend::ready(&self.0)
    }

    fn shut_down(&self) -> Answer<'_, ()> {
        Backend::shut_down(&self.0)
    }
}

/// The usage of a limit that was deleted during the request.
pub(crate) const DELETED_USAGE: Usage =
    Usage { capacity: 0, reserved: 0, available: 0, debt: 0, status: LimitStatus::Deleted, paused_until: None };

impl<H: BookHost> BookBackend<H> {
    /// Returns everything that a lease reserved.
    pub(crate) async fn release(
        &self,
        namespace: &NamespaceName,
        lease: LeaseId,
    ) -> Result<CompleteAnswer, BackendError> {
        self.0.find_namespaces([namespace].into_iter()).await?;
        let namespace = self.0.namespace(namespace);
        let (claim, labels) = (LeaseClaim::default(), SettleLabels::NONE);
        let release = BookComplete { namespace, lease, parts: None, claim, actuals: Vec::new(), labels };
        let answers = self.0.submit_resolved(Principal::System, vec![release], Direction::GivesBack).await;
        answers.into_iter().next().unwrap_or_else(|| Err(BackendError::Failed("the Book did not answer".into())))
    }
}
