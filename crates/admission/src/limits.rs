//! Limits that are kept outside the Book, where the Book is only their registry.

use std::sync::Arc;

use earmark_core::{LeaseId, LimitInfo, LimitKey, NamespaceName, Usage};

use crate::backend::{Amount, Answer, BackendError, CompleteAnswer, LeaseView, ReserveAnswer, Stats};

/// Whatever enforces rolling and concurrency limits: a Book, or a ledger elsewhere. It registers every lease, also
/// one that has requirements of credit only, with the fingerprint of all that the lease asks for.
///
/// Dropping an answer does not take its request back. Retrying with the same lease gives the same answer.
pub trait Limits: Send + Sync + 'static {
    /// Takes what each lease asks for of the limits here, all or nothing. Requirements on credit are registered and
    /// nothing more. The answers are in the order of the requests.
    fn reserve(&self, requests: Vec<LimitsReserve>) -> Answer<'_, Vec<Result<ReserveAnswer, BackendError>>>;

    /// Says what each lease really used. Actuals of credit are not among them; keys that the lease does not have are
    /// ignored, and named in the answer. The answers are in the order of the requests.
    fn complete(
        &self,
        requests: Vec<LimitsComplete>,
    ) -> Answer<'_, Vec<Result<CompleteAnswer, BackendError>>>;

    /// Gives back all that a lease has taken, as if nothing of it had been used: its credit was refused. From then on
    /// the lease has ended, and a complete of it finds that it held nothing.
    fn release(&self, namespace: NamespaceName, lease: LeaseId) -> Answer<'_, Result<(), BackendError>>;

    /// The registry has a limit of another definition, or none any more: what is in force is brought in line, or
    /// begins to be. Gives the limit as it now stands.
    fn changed(
        &self,
        namespace: NamespaceName,
        key: LimitKey,
    ) -> Answer<'_, Result<LimitStanding, BackendError>>;

    /// How a limit of the registry stands.
    fn standing(
        &self,
        namespace: NamespaceName,
        limits: Vec<Arc<LimitInfo>>,
    ) -> Answer<'_, Result<Vec<LimitStanding>, BackendError>>;

    /// What a limit of the registry holds.
    fn usage(
        &self,
        namespace: NamespaceName,
        limit: Arc<LimitInfo>,
    ) -> Answer<'_, Result<Usage, BackendError>>;

    /// What is known of a lease.
    fn lease(
        &self,
        namespace: NamespaceName,
        lease: LeaseId,
    ) -> Answer<'_, Result<Option<LeaseView>, BackendError>>;

    /// The number of the ledger that enforces them, if it has one: all who share a registry must mean the same.
    fn ledger(&self) -> Option<u128> {
        None
    }

    /// How it is doing; what belongs to the registry is left at 0.
    fn stats(&self) -> Stats;

    /// Whether it can serve; if not, why not.
    ///
    /// # Errors
    /// A sentence for an operator.
    fn ready(&self) -> Result<(), String>;

    /// Finishes what is under way and takes nothing more.
    fn shut_down(&self) -> Answer<'_, ()>;
}

/// Which limits there are to be. What is in force is known to whoever enforces them.
pub trait Registry: Send + Sync + 'static {
    /// A limit, as far as is known here; another node may know of a later one. One that is being deleted is known, with
    /// the status of one that decreases to 0, until whoever enforces it says that it is gone.
    fn limit(&self, namespace: &NamespaceName, key: &LimitKey) -> Option<Arc<LimitInfo>>;

    /// Waits until all that was acknowledged anywhere is known here.
    fn refresh(&self) -> Answer<'_, Result<(), BackendError>>;

    /// All limits of all namespaces, as far as is known here.
    fn limits(&self) -> Vec<(NamespaceName, Arc<LimitInfo>)>;

    /// Grows whenever what [`limits`](Registry::limits) would say has changed, so that it need not be asked for nothing.
    fn version(&self) -> u64;

    /// Whether it is for this process to bring what is in force in line when nobody asks: one among several does.
    fn is_in_charge(&self) -> bool;
}

/// Takes the requirements on limits, or none; registers all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitsReserve {
    /// Where the limits and the lease live.
    pub namespace: NamespaceName,
    /// The attempt.
    pub lease: LeaseId,
    /// All requirements, those on credit included: 1 to 32, no key twice, in any order.
    pub requirements: Vec<Amount>,
}

/// Says what a lease really used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitsComplete {
    /// Where the limits and the lease live.
    pub namespace: NamespaceName,
    /// The attempt that was allowed.
    pub lease: LeaseId,
    /// Up to 32, no key twice, in any order, none on credit. An amount may be 0.
    pub actuals: Vec<Amount>,
}

/// How a limit stands where it is enforced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitStanding {
    /// As the registry says.
    InForce,
    /// It is going down to what the registry says, or to nothing, and reserves are refused until then.
    Decreasing,
    /// It is gone.
    Gone,
}
