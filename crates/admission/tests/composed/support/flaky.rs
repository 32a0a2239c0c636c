//! Parts with fault injection at a chosen step.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex};

use earmark_admission::{
    AccountPage, AccountPath, AccountQuery, Answer, Answers, Audit, BackendError, ChangePage, ChangeQuery,
    CompleteAnswer, CreditReadError, CreditRoom, Credits, EnforcedStatus, EntryPage, EntryQuery, GrowAnswer,
    GrowRequest, HoldAnswer, HoldRequest, HoldState, LeaseView, Limits, LimitsComplete, LimitsExtend, LimitsExtended,
    LimitsReserve, RenewAnswer, RenewRequest, ReserveAnswer, SettleAnswer, SettleRequest, ShrinkRequest, Stats,
    WriteAnswer, WriteRequest, Writer,
};
use earmark_core::{
    Actor, BalanceInfo, ClientId, CreditTerms, Definition, GrantInfo, LeaseId, LimitInfo, LimitKey, NamespaceName,
    Usage, VaultName,
};
use tokio::sync::watch;

/// A call from the composed backend to a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Step {
    Reserve,
    Hold,
    Release,
    Complete,
    Settle,
    Holds,
    Standing,
    Grow,
    Extend,
    Shrink,
    Renew,
}

/// Whether the fault comes before or after the effect of the step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum When {
    Before,
    After,
}

/// The kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    /// The step returns an error.
    Fails,
    /// The step hangs until it is resumed, like a process that died or is very slow.
    Stops,
}

/// A planned fault. It happens once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) step: Step,
    pub(crate) when: When,
    pub(crate) how: How,
}

/// The faults of a test, shared by all parts.
pub(crate) struct Faults {
    next: Mutex<Option<Fault>>,
    calls: Mutex<BTreeMap<Step, usize>>,
    goes_on: watch::Sender<bool>,
}

impl Faults {
    pub(crate) fn new() -> Arc<Faults> {
        let (goes_on, _) = watch::channel(false);
        Arc::new(Faults { next: Mutex::new(None), calls: Mutex::default(), goes_on })
    }

    pub(crate) fn plan(&self, fault: Fault) {
        *self.next.lock().unwrap() = Some(fault);
        self.goes_on.send_replace(false);
    }

    /// Whether the planned fault has happened.
    pub(crate) fn has_happened(&self) -> bool {
        self.next.lock().unwrap().is_none()
    }

    /// Cancels the planned fault.
    pub(crate) fn forget(&self) {
        *self.next.lock().unwrap() = None;
    }

    /// Resumes hanging steps.
    pub(crate) fn go_on(&self) {
        self.goes_on.send_replace(true);
    }

    /// Calls of a step since the last query.
    pub(crate) fn calls(&self, step: Step) -> usize {
        self.calls.lock().unwrap().remove(&step).unwrap_or(0)
    }

    fn take(&self, step: Step, when: When) -> Option<How> {
        let mut next = self.next.lock().unwrap();
        let fault = next.filter(|fault| fault.step == step && fault.when == when)?;
        *next = None;
        Some(fault.how)
    }

    async fn meet(&self, step: Step, when: When) -> Result<(), BackendError> {
        match self.take(step, when) {
            None => Ok(()),
            Some(How::Fails) => Err(BackendError::Failed(format!("{step:?} failed"))),
            Some(How::Stops) => {
                _ = self.goes_on.subscribe().wait_for(|goes_on| *goes_on).await;
                Ok(())
            }
        }
    }

    async fn around<T>(&self, step: Step, work: impl Future<Output = T>, fail: impl Fn(BackendError) -> T) -> T {
        *self.calls.lock().unwrap().entry(step).or_default() += 1;
        if let Err(error) = self.meet(step, When::Before).await {
            return fail(error);
        }
        let done = work.await;
        match self.meet(step, When::After).await {
            Ok(()) => done,
            Err(error) => fail(error),
        }
    }
}

fn each<T>(count: usize) -> impl Fn(BackendError) -> Vec<Result<T, BackendError>> {
    move |error| std::iter::repeat_with(|| Err(error.clone())).take(count).collect()
}

pub(crate) struct FlakyLimits(pub(crate) Arc<dyn Limits>, pub(crate) Arc<Faults>);

impl Limits for FlakyLimits {
    fn reserve(&self, requests: Vec<LimitsReserve>) -> Answers<'_, ReserveAnswer> {
        let fail = each(requests.len());
        Box::pin(self.1.around(Step::Reserve, self.0.reserve(requests), fail))
    }

    fn extend(&self, requests: Vec<LimitsExtend>) -> Answers<'_, LimitsExtended> {
        let fail = each(requests.len());
        Box::pin(self.1.around(Step::Extend, self.0.extend(requests), fail))
    }

    fn complete(&self, requests: Vec<LimitsComplete>) -> Answers<'_, CompleteAnswer> {
        let fail = each(requests.len());
        Box::pin(self.1.around(Step::Complete, self.0.complete(requests), fail))
    }

    fn release(&self, namespace: NamespaceName, lease: LeaseId) -> Answer<'_, Result<(), BackendError>> {
        Box::pin(self.1.around(Step::Release, self.0.release(namespace, lease), Err))
    }

    fn enforced_status(
        &self,
        namespace: NamespaceName,
        limits: Vec<Arc<LimitInfo>>,
    ) -> Answer<'_, Result<Vec<EnforcedStatus>, BackendError>> {
        Box::pin(self.1.around(Step::Standing, self.0.enforced_status(namespace, limits), Err))
    }

    pass_on_limits! { 0:
        apply_definition usage lease stats ready shut_down
    }
}

pub(crate) struct FlakyCredits(pub(crate) Arc<dyn Credits>, pub(crate) Arc<Faults>);

impl Credits for FlakyCredits {
    fn hold(&self, actor: Option<Actor>, requests: Vec<HoldRequest>) -> Answers<'_, HoldAnswer> {
        let fail = each(requests.len());
        Box::pin(self.1.around(Step::Hold, self.0.hold(actor, requests), fail))
    }

    fn grow(&self, actor: Option<Actor>, requests: Vec<GrowRequest>) -> Answers<'_, GrowAnswer> {
        let fail = each(requests.len());
        Box::pin(self.1.around(Step::Grow, self.0.grow(actor, requests), fail))
    }

    fn shrink(&self, actor: Option<Actor>, request: ShrinkRequest) -> Answer<'_, Result<(), BackendError>> {
        Box::pin(self.1.around(Step::Shrink, self.0.shrink(actor, request), Err))
    }

    fn renew(&self, actor: Option<Actor>, requests: Vec<RenewRequest>) -> Answers<'_, RenewAnswer> {
        let fail = each(requests.len());
        Box::pin(self.1.around(Step::Renew, self.0.renew(actor, requests), fail))
    }

    fn settle(&self, actor: Option<Actor>, requests: Vec<SettleRequest>) -> Answers<'_, SettleAnswer> {
        let fail = each(requests.len());
        Box::pin(self.1.around(Step::Settle, self.0.settle(actor, requests), fail))
    }

    fn holds(
        &self,
        namespace: NamespaceName,
        lease: LeaseId,
        requirements: Vec<earmark_admission::Amount>,
    ) -> Answer<'_, Result<HoldState, BackendError>> {
        Box::pin(self.1.around(Step::Holds, self.0.holds(namespace, lease, requirements), Err))
    }

    pass_on_credits! { 0:
        write client_state grants balances usage room accounts entries changes audit ready shut_down
    }
}
