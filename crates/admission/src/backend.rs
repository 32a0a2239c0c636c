//! What a server asks of whatever keeps the limits: batches in, answers by position out.

use std::future::Future;
use std::pin::Pin;

use earmark_core::{
    AccountName, BalanceInfo, Book, By, ClientId, CreditShortage, Definition, DefinitionError, JobId,
    LIMITS_MAX, LeaseId, LeaseState, LimitInfo, LimitKey, LimitStatus, NamespaceName, UnixMs, Usage,
    VaultName,
};

use crate::callers::Keys;
use crate::writes::{Audit, CreditReadError, EntryPage, WriteAnswer, WriteRequest};

/// An answer that is on its way.
pub type Answer<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Whatever keeps the limits and the credit: a Book in memory, a replicated one, a ledger elsewhere.
///
/// Dropping an answer does not take its request back: what was submitted is carried out. Retrying with the
/// same lease gives the same answer.
pub trait Backend: Send + Sync + 'static {
    /// Reserves each request on its own. The answers are in the order of the requests.
    fn reserve(&self, requests: Vec<ReserveRequest>) -> Answer<'_, Vec<Result<ReserveAnswer, BackendError>>>;

    /// Completes each request on its own. The answers are in the order of the requests.
    fn complete(
        &self,
        requests: Vec<CompleteRequest>,
    ) -> Answer<'_, Vec<Result<CompleteAnswer, BackendError>>>;

    /// Creates a limit or changes its definition.
    fn put_limit(&self, request: PutLimitRequest) -> Answer<'_, Result<LimitChange, LimitError>>;

    /// Lets a limit run empty and then forgets it.
    fn delete_limit(&self, request: DeleteLimitRequest) -> Answer<'_, Result<LimitChange, LimitError>>;

    /// All limits of a namespace, in order of their keys.
    fn limits(&self, namespace: NamespaceName) -> Answer<'_, Result<Vec<LimitInfo>, BackendError>>;

    /// One limit.
    fn limit(
        &self,
        namespace: NamespaceName,
        key: LimitKey,
    ) -> Answer<'_, Result<Option<LimitInfo>, BackendError>>;

    /// What a limit holds.
    fn usage(
        &self,
        namespace: NamespaceName,
        key: LimitKey,
    ) -> Answer<'_, Result<Option<Usage>, BackendError>>;

    /// What is known of a lease.
    fn lease(
        &self,
        namespace: NamespaceName,
        lease: LeaseId,
    ) -> Answer<'_, Result<Option<LeaseView>, BackendError>>;

    /// Applies a transaction, once. The same write gives the same answer, however often it is asked.
    fn write(&self, request: WriteRequest) -> Answer<'_, Result<WriteAnswer, BackendError>>;

    /// The last number that a client committed in a namespace, or in a vault of it; 0 before the first.
    fn client_state(
        &self,
        namespace: NamespaceName,
        vault: Option<VaultName>,
        client: ClientId,
    ) -> Answer<'_, Result<u64, CreditReadError>>;

    /// What an account has, in order of asset.
    fn balances(&self, account: AccountPath) -> Answer<'_, Result<Vec<BalanceInfo>, CreditReadError>>;

    /// The history of an account after a number (0: from the oldest that is kept), so many entries at most.
    fn entries(
        &self,
        account: AccountPath,
        after: u64,
        page_size: usize,
    ) -> Answer<'_, Result<EntryPage, CreditReadError>>;

    /// Counts a vault anew.
    fn audit(&self, namespace: NamespaceName, vault: VaultName)
    -> Answer<'_, Result<Audit, CreditReadError>>;

    /// Whoever keeps the keys, if this backend has a Book. Without keys only those on this machine can call.
    fn keys(&self) -> Option<&dyn Keys> {
        None
    }

    /// Whether what comes by this right may still be done, whatever is known here.
    fn check_right(&self, by: By) -> Answer<'_, Result<(), BackendError>> {
        match (self.keys(), by) {
            (_, By::Itself | By::Named(_)) | (None, By::Anyone) => Box::pin(std::future::ready(Ok(()))),
            (Some(keys), by) => keys.check(by),
            (None, By::Key(_)) => Box::pin(std::future::ready(Err(BackendError::Unauthenticated))),
        }
    }

    /// Reserves by the right of a caller. A backend whose commands carry it has it judged with them; any other asks
    /// before each batch.
    fn reserve_by(
        &self,
        by: By,
        requests: Vec<ReserveRequest>,
    ) -> Answer<'_, Vec<Result<ReserveAnswer, BackendError>>> {
        Box::pin(async move {
            match self.check_right(by).await {
                Ok(()) => self.reserve(requests).await,
                Err(error) => requests.iter().map(|_| Err(error.clone())).collect(),
            }
        })
    }

    /// Completes by the right of a caller.
    fn complete_by(
        &self,
        by: By,
        requests: Vec<CompleteRequest>,
    ) -> Answer<'_, Vec<Result<CompleteAnswer, BackendError>>> {
        Box::pin(async move {
            match self.check_right(by).await {
                Ok(()) => self.complete(requests).await,
                Err(error) => requests.iter().map(|_| Err(error.clone())).collect(),
            }
        })
    }

    /// Puts a limit by the right of a caller.
    fn put_limit_by(&self, by: By, request: PutLimitRequest) -> Answer<'_, Result<LimitChange, LimitError>> {
        Box::pin(async move {
            self.check_right(by).await?;
            self.put_limit(request).await
        })
    }

    /// Deletes a limit by the right of a caller.
    fn delete_limit_by(
        &self,
        by: By,
        request: DeleteLimitRequest,
    ) -> Answer<'_, Result<LimitChange, LimitError>> {
        Box::pin(async move {
            self.check_right(by).await?;
            self.delete_limit(request).await
        })
    }

    /// Applies a transaction by the right of a caller.
    fn write_by(&self, by: By, request: WriteRequest) -> Answer<'_, Result<WriteAnswer, BackendError>> {
        Box::pin(async move {
            self.check_right(by).await?;
            self.write(request).await
        })
    }

    /// How it is doing, for metrics. Cheap enough to be asked every second.
    fn stats(&self) -> Stats;

    /// Whether it can serve; if not, why not.
    ///
    /// # Errors
    /// A sentence for an operator.
    fn ready(&self) -> Result<(), String>;

    /// Finishes what is under way and takes nothing more.
    fn shut_down(&self) -> Answer<'_, ()>;
}

/// The most items of one batch.
pub const BATCH_MAX: usize = 256;

/// Where an account is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccountPath {
    /// Its namespace.
    pub namespace: NamespaceName,
    /// Its vault.
    pub vault: VaultName,
    /// Its name.
    pub account: AccountName,
}

/// How much of which limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Amount {
    /// The limit.
    pub key: LimitKey,
    /// How much; at least 1 in a reserve.
    pub amount: u64,
}

/// Takes all requirements, or none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReserveRequest {
    /// Where the limits and the lease live.
    pub namespace: NamespaceName,
    /// The attempt.
    pub lease: LeaseId,
    /// The work behind it, for logs.
    pub job: Option<JobId>,
    /// 1 to 32, no key twice, in any order.
    pub requirements: Vec<Amount>,
}

/// Says what a lease really used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompleteRequest {
    /// Where the limits and the lease live.
    pub namespace: NamespaceName,
    /// The attempt that was allowed.
    pub lease: LeaseId,
    /// The work behind it, for logs.
    pub job: Option<JobId>,
    /// Up to 32, no key twice, in any order. An amount may be 0.
    pub actuals: Vec<Amount>,
}

/// Creates a limit or changes its definition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PutLimitRequest {
    /// Where the limit lives.
    pub namespace: NamespaceName,
    /// What it is to be.
    pub definition: Definition,
    /// The revision it must have now; 0 if it must not exist.
    pub expected_revision: Option<u64>,
}

/// Lets a limit run empty and then forgets it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeleteLimitRequest {
    /// Where the limit lives.
    pub namespace: NamespaceName,
    /// Its name.
    pub key: LimitKey,
    /// The revision it must have now.
    pub expected_revision: Option<u64>,
}

/// The answer to a reserve. A denial is an answer, not a failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReserveAnswer {
    /// Everything is taken, now or at the first attempt.
    Allowed {
        /// When it was.
        reserved_at: UnixMs,
    },
    /// Something does not fit. The lease is spent: come back with a new one.
    Denied {
        /// When a new lease has a chance; 0 if it has none.
        retry_after_ms: u64,
        /// What stood in the way, the one that frees last first.
        limited_by: Vec<LimitKey>,
        /// An amount exceeds its limit's capacity.
        never: bool,
    },
    /// It could not be decided by what is free.
    Refused(Refusal),
}

/// Why a reserve was refused whatever is free.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The lease is too old, from the future, or was used for something else; or the request is malformed.
    InvalidRequest {
        /// What is wrong, for a person.
        message: String,
    },
    /// No limit of this name. The same lease may try again.
    UnknownLimitKey(LimitKey),
    /// The limit is going down. The same lease may try again.
    LimitDecreasing {
        /// The limit.
        key: LimitKey,
        /// When to try again.
        retry_after_ms: u64,
    },
    /// The lease was completed, released or ran out: take a new one.
    LeaseExpired,
    /// All limits have room, and an account has not what is to be held of it. The lease is spent.
    InsufficientCredit {
        /// The limit on that account; the first in order of key if there are several.
        key: LimitKey,
        /// When a new lease may have a chance.
        retry_after_ms: u64,
        /// What is wrong with the account.
        why: CreditShortage,
    },
}

/// The answer to a complete.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CompleteAnswer {
    /// Whether the lease was known and its actuals were applied, now or before.
    pub reconciled: bool,
    /// What a person should know: keys that were ignored, say.
    pub message: Option<String>,
    /// The actuals that named nothing the lease had reserved, in the order of the request.
    pub ignored: Vec<LimitKey>,
    /// The request was malformed, and nothing was done.
    pub is_invalid: bool,
    /// Usage beyond what was reserved that fitted.
    pub overage_reserved: u64,
    /// Usage beyond what was reserved that is now debt.
    pub overage_debt: u64,
    /// Usage beyond what was reserved that is recorded nowhere but in the metrics.
    pub overage_dropped: u64,
    /// Credit that accounts had, and paid.
    pub credit_paid: u64,
    /// Credit that accounts paid without having it, and owe.
    pub credit_debt: u64,
    /// Credit that nobody paid: the account had too little and keeps no debt, or is closed.
    pub credit_uncollected: u64,
}

/// What a person should know about an account that has not what is to be held of it; nothing if it simply has too
/// little.
#[must_use]
pub const fn describe_credit_shortage(why: CreditShortage) -> Option<&'static str> {
    match why {
        CreditShortage::UnknownAccount => {
            Some("the vault or an account of this limit was never opened; see open_vault and open_account")
        }
        CreditShortage::Frozen => Some("the account of this limit is frozen, and nothing can be held of it"),
        CreditShortage::Closed => Some("the account of this limit, or the one that it pays, is closed"),
        CreditShortage::NotEnough => None,
    }
}

/// What a person should know about actuals that were ignored; nothing if none were.
#[must_use]
pub fn describe_ignored(ignored: &[LimitKey]) -> Option<String> {
    let keys: Vec<&str> = ignored.iter().map(LimitKey::as_str).collect();
    (!keys.is_empty()).then(|| format!("ignored, since the lease had not reserved them: {}", keys.join(", ")))
}

/// A limit was changed, or is on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitChange {
    /// Its revision after the change.
    pub revision: u64,
    /// Where it stands.
    pub status: LimitStatus,
}

/// Why a limit was not changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LimitError {
    /// The definition is malformed.
    #[error(transparent)]
    Invalid(#[from] DefinitionError),
    /// It has another revision than expected.
    #[error("expected_revision: the limit has revision {revision} (0: it does not exist)")]
    RevisionDiffers {
        /// The one it has.
        revision: u64,
    },
    /// There is no such limit.
    #[error("no limit has this key")]
    NotFound,
    /// It exists and is of another kind.
    #[error("kind: an existing limit keeps its kind; delete it first, or use another key")]
    KindDiffers,
    /// There are as many as there may be.
    #[error("key: there are {LIMITS_MAX} limits already, deleted ones included, and more cannot be")]
    TooMany,
    /// The backend failed.
    #[error(transparent)]
    Backend(#[from] BackendError),
}

/// Why there is no answer. The outcome is unknown, or nothing happened: retry with the same lease, or the same
/// write.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BackendError {
    /// Too much is waiting, or too many leases are remembered.
    #[error("overloaded: {0}")]
    Overloaded(&'static str),
    /// Whoever asks has no right to, or no longer. Nothing happened.
    #[error("the credentials are not valid")]
    Unauthenticated,
    /// Something broke.
    #[error("{0}")]
    Failed(String),
}

/// What is known of a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseView {
    /// When it was allowed, if it was.
    pub reserved_at: Option<UnixMs>,
    /// What it took, in order of key. Of a denied or completed lease nothing is kept.
    pub requirements: Vec<Amount>,
    /// Where it stands.
    pub state: LeaseState,
}

/// How a backend is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Leases that hold something or ran out without being completed; none where nobody here knows of all of them.
    pub live_leases: Option<usize>,
    /// Leases that are remembered, resolved ones included.
    pub remembered_leases: usize,
    /// Limits that are in force or going down.
    pub limits: usize,
    /// Limits that are going down.
    pub decreasing_limits: usize,
    /// The debt of all limits.
    pub debt: u128,
    /// Requests that wait to be submitted.
    pub queue_depth: usize,
}

impl Stats {
    /// How a Book is doing, with so much work waiting for it.
    #[must_use]
    pub fn of(book: &Book, now: UnixMs, queue_depth: usize) -> Stats {
        let totals = book.totals(now);
        Stats {
            live_leases: Some(book.live_leases()),
            remembered_leases: book.leases(),
            limits: totals.limits,
            decreasing_limits: totals.decreasing,
            debt: totals.debt,
            queue_depth,
        }
    }
}
