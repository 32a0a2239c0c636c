//! The traits of limits that are defined in a Book (the registry) and enforced by the Book or by TigerBeetle.

use std::sync::Arc;

use earmark_core::{
    CallMark, Config, CreditShortage, JobId, LeaseClaim, LeaseId, LimitInfo, LimitKey, NamespaceName, Usage,
};

use crate::backend::{Amount, Answer, Answers, BackendError, CompleteAnswer, Refusal, ReserveAnswer, Stats};
use crate::extend::ExtendAnswer;
use crate::lease_view::LeaseView;

/// Enforces rolling and concurrency limits, in a Book or in TigerBeetle. It registers every lease, credit-only leases
/// included, with a fingerprint of all requirements.
///
/// Dropping a future does not cancel its request. A retry with the same lease gets the same answer.
pub trait Limits: Send + Sync + 'static {
    /// Reserves the limits of each lease, all or none. Credit requirements are registered but not held. Answers are in
    /// request order.
    fn reserve(&self, requests: Vec<LimitsReserve>) -> Answers<'_, ReserveAnswer>;

    /// Extends each lease, all or nothing, and decides about its number. Credit amounts are registered but not held.
    /// Answers are in request order; their end is that of concurrency reservations. A refusal for want of credit is
    /// remembered with its number and repeated.
    fn extend(&self, requests: Vec<LimitsExtend>) -> Answers<'_, LimitsExtended>;

    /// Reports the actual usage of each lease, without credit. Keys that the lease did not reserve are ignored and
    /// named in the answer. Answers are in request order.
    fn complete(&self, requests: Vec<LimitsComplete>) -> Answers<'_, CompleteAnswer>;

    /// Returns all that a lease reserved because its credit was refused. The lease ends: a later complete finds that it
    /// held nothing.
    fn release(&self, namespace: NamespaceName, lease: LeaseId) -> Answer<'_, Result<(), BackendError>>;

    /// Applies the registry's current definition of a limit, or its deletion, and returns the enforced status.
    fn apply_definition(
        &self,
        namespace: NamespaceName,
        key: LimitKey,
    ) -> Answer<'_, Result<EnforcedStatus, BackendError>>;

    /// The enforced status of each limit, in order.
    fn enforced_status(
        &self,
        namespace: NamespaceName,
        limits: Vec<Arc<LimitInfo>>,
    ) -> Answer<'_, Result<Vec<EnforcedStatus>, BackendError>>;

    /// Capacity, reserved amount and debt of a limit.
    fn usage(&self, namespace: NamespaceName, limit: Arc<LimitInfo>) -> Answer<'_, Result<Usage, BackendError>>;

    /// The usage of each limit, in order.
    fn usages(
        &self,
        namespace: NamespaceName,
        limits: Vec<Arc<LimitInfo>>,
    ) -> Answer<'_, Result<Vec<Usage>, BackendError>> {
        Box::pin(async move {
            let mut usages = Vec::with_capacity(limits.len());
            for limit in limits {
                usages.push(self.usage(namespace.clone(), limit).await?);
            }
            Ok(usages)
        })
    }

    /// A lease, while it is remembered.
    fn lease(&self, namespace: NamespaceName, lease: LeaseId) -> Answer<'_, Result<Option<LeaseView>, BackendError>>;

    /// The TigerBeetle cluster id, if there is one. All processes that share a registry must use the same.
    fn ledger(&self) -> Option<u128> {
        None
    }

    /// Gauges. Those of the registry stay 0.
    fn stats(&self) -> Stats;

    /// Whether the limits can be enforced.
    ///
    /// # Errors
    /// The reason, for an operator.
    fn ready(&self) -> Result<(), String>;

    /// Finishes pending requests and refuses new ones.
    fn shut_down(&self) -> Answer<'_, ()>;
}

/// The definitions of limits. The enforcer knows which of them are in force.
pub trait Registry: Send + Sync + 'static {
    /// A limit as this process knows it, put or derived from a template; another node may know a newer definition. A
    /// limit that is being deleted has status `Decreasing { to: 0 }` until the enforcer reports it gone.
    fn limit(&self, namespace: &NamespaceName, key: &LimitKey) -> Option<Arc<LimitInfo>>;

    /// Waits until this process knows everything that any node has acknowledged.
    fn refresh(&self) -> Answer<'_, Result<(), BackendError>>;

    /// All limits of all namespaces that were put, as this process knows them.
    fn limits(&self) -> Vec<(NamespaceName, Arc<LimitInfo>)>;

    /// A version that grows with every change of [`limits`](Registry::limits), so that callers can skip an unchanged
    /// list.
    fn version(&self) -> u64;

    /// The settings in force, as this process knows them. [`version`](Registry::version) grows with every change of
    /// them.
    fn config(&self) -> Config;

    /// Whether this process runs background maintenance. One process of a cluster does.
    fn runs_maintenance(&self) -> bool;
}

/// Reserves the requirements on limits and registers all requirements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitsReserve {
    /// The namespace of the limits and of the lease.
    pub namespace: NamespaceName,
    /// The lease.
    pub lease: LeaseId,
    /// The job behind it. A retry does not change it.
    pub job: Option<JobId>,
    /// The call behind it, kept with the lease. A retry of the call gets the first answer, whatever its requirements.
    pub call: Option<CallMark>,
    /// Whether a gateway sends it. Then extend and complete are refused to all others.
    pub by_gateway: bool,
    /// 1 to 32 requirements in any order, those on credit included. Keys are unique.
    pub requirements: Vec<Amount>,
}

/// Extends a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitsExtend {
    /// The namespace of the limits and of the lease.
    pub namespace: NamespaceName,
    /// The lease that was allowed.
    pub lease: LeaseId,
    /// The number of the extension.
    pub number: u32,
    /// Up to 32 amounts to take in any order, those on credit included. Keys are unique.
    pub add: Vec<Amount>,
    /// Up to 32 amounts that are used for certain, those on credit included. Keys are unique.
    pub used: Vec<Amount>,
    /// Whether to move the ends of its concurrency reservations.
    pub renew: bool,
    /// The answer of the credit store about `add`.
    pub credit: CreditStep,
    /// The sender, and the call it is for.
    pub claim: LeaseClaim,
}

/// The answer to [`LimitsExtend`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitsExtended {
    /// The answer.
    pub answer: ExtendAnswer,
    /// Whether the lease may have credit limits, those of this extension included.
    pub may_have_credit: bool,
}

impl From<ExtendAnswer> for LimitsExtended {
    /// The answer to an extension that was not made.
    fn from(answer: ExtendAnswer) -> LimitsExtended {
        LimitsExtended { answer, may_have_credit: false }
    }
}

/// The answer of the credit store about an extension, before the limits decide.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CreditStep {
    /// The credit is held, or none is asked for.
    Held,
    /// The extension is refused with this, unless the limits have a refusal that comes first. The number stays free.
    Blocked(Refusal),
    /// Credit is missing. Unless the limits refuse the extension, nothing is taken and its number stays denied.
    Short {
        /// The credit limit of the account with too little.
        key: LimitKey,
        /// The state of the account.
        why: CreditShortage,
    },
}

impl CreditStep {
    /// The refusal of an extension that is blocked.
    #[must_use]
    pub fn refusal(&self) -> Option<Refusal> {
        if let CreditStep::Blocked(refusal) = self { Some(refusal.clone()) } else { None }
    }
}

/// Reports the actual usage of a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitsComplete {
    /// The namespace of the limits and of the lease.
    pub namespace: NamespaceName,
    /// The lease that was allowed.
    pub lease: LeaseId,
    /// The sender, and the call it is for.
    pub claim: LeaseClaim,
    /// Up to 32 amounts in any order, without credit; 0 is allowed. Keys are unique.
    pub actuals: Vec<Amount>,
}

/// The status of a limit at its enforcer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EnforcedStatus {
    /// The registry's definition is in force.
    InForce,
    /// The limit is decreasing to the registry's capacity, or to 0. Reserves are refused until then.
    Decreasing,
    /// The enforcer has no such limit.
    Absent,
}
