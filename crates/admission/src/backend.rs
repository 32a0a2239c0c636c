//! The trait that every backend implements, with its requests, answers and errors.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use earmark_core::{
    AccountName, BalanceInfo, Book, CallMark, ClientId, CreditShortage, CreditTerms, Definition, DefinitionError,
    GrantInfo, JobId, LeaseClaim, LeaseId, LimitInfo, LimitKey, LimitStatus, NamespaceName, PolicyRevision, Principal,
    PutPolicy, QuotaKind, QuotaUsage, SetQuotas, SettleLabels, TemplateError, TemplateInfo, UnixMs, Usage, VaultName,
};
use tokio::task::JoinHandle;

use crate::applied::{AppliedUsage, LimitOverage, TimedOutLease};
use crate::callers::Keys;
use crate::credit_lists::{AccountPage, AccountQuery, EntryQuery, VaultPage, VaultQuery};
use crate::extend::{ExtendAnswer, ExtendRequest};
use crate::fullness::LimitFullness;
use crate::lease_view::LeaseView;
use crate::pauses::PauseLimitRequest;
use crate::policies::PolicyError;
use crate::quotas::{QuotaError, describe_quota};
use crate::templates::{DeleteTemplateRequest, PutTemplateRequest};
use crate::usage::{UsageError, UsagePage, UsageQuery};
use crate::writes::{Audit, CreditReadError, CreditRoom, EntryPage, PAGE_MAX, WriteAnswer, WriteRequest};

/// A boxed future, so that the traits of this crate can be trait objects, and so that a long-running future is compiled
/// in the crate that makes it and not in every program that awaits it.
pub type Answer<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The answers to a batch, in the order of its requests.
pub type Answers<'a, T> = Answer<'a, Vec<Result<T, BackendError>>>;

/// Spawns a boxed future: tokio's task code is compiled once per result type instead of once per future. The task runs
/// in the trace of its caller.
pub fn spawn<T: Send + 'static>(future: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
    let boxed: Answer<'static, T> = Box::pin(earmark_trace::carried(future));
    tokio::spawn(boxed)
}

/// Keeps limits and credit: a Book in memory, a replicated Book, or a Book with limits in TigerBeetle and credit in
/// SQL.
///
/// `by` is the caller of a request. Its key is checked when the request is applied, or before each batch where limits
/// or credit are kept elsewhere. Dropping a future does not cancel its request: the request is still executed. A retry
/// with the same lease gets the same answer.
pub trait Backend: Send + Sync + 'static {
    /// Decides each reserve on its own. Answers are in request order.
    fn reserve(&self, by: Principal, requests: Vec<ReserveRequest>) -> Answers<'_, ReserveAnswer>;

    /// Settles each complete on its own. Answers are in request order.
    fn complete(&self, by: Principal, requests: Vec<CompleteRequest>) -> Answers<'_, CompleteAnswer>;

    /// Decides each extension of a lease on its own. Answers are in request order.
    fn extend(&self, by: Principal, requests: Vec<ExtendRequest>) -> Answers<'_, ExtendAnswer> {
        drop(by);
        Box::pin(std::future::ready(requests.iter().map(|_| Ok(ExtendAnswer::unsupported())).collect()))
    }

    /// Creates a limit or changes its definition.
    fn put_limit(&self, by: Principal, request: PutLimitRequest) -> Answer<'_, Result<LimitChange, LimitError>>;

    /// Deletes a limit. A limit in use decreases to 0 first.
    fn delete_limit(&self, by: Principal, request: DeleteLimitRequest) -> Answer<'_, Result<LimitChange, LimitError>>;

    /// Refuses reserves of a limit for a time, or resumes it. Returns when the pause ends; `None` if it is not paused.
    fn pause_limit(&self, by: Principal, request: PauseLimitRequest) -> Answer<'_, Result<Option<UnixMs>, LimitError>>;

    /// Creates a template or changes its definition. Returns its revision.
    fn put_template(&self, by: Principal, request: PutTemplateRequest) -> Answer<'_, Result<u64, LimitError>>;

    /// Deletes a template. Its keys are unknown at once. Returns the revision of the deletion.
    fn delete_template(&self, by: Principal, request: DeleteTemplateRequest) -> Answer<'_, Result<u64, LimitError>>;

    /// The template that a key follows, unless a limit with this key was put. Reads what this process knows.
    fn template_of(&self, _: &NamespaceName, _: &LimitKey) -> Option<LimitKey> {
        None
    }

    /// A limit as this process knows it, put or derived from a template, without asking the leader. `None` if it does not
    /// exist, or the backend does not know.
    fn applied_limit(&self, _: &NamespaceName, _: &LimitKey) -> Option<Arc<LimitInfo>> {
        None
    }

    /// The templates of a namespace, ordered by key.
    fn templates(&self, namespace: NamespaceName) -> Answer<'_, Result<Vec<TemplateInfo>, BackendError>>;

    /// A page of the limits of a namespace, ordered by key.
    fn limits(&self, namespace: NamespaceName, query: LimitQuery) -> Answer<'_, Result<LimitPage, BackendError>>;

    /// One limit.
    fn limit(&self, namespace: NamespaceName, key: LimitKey) -> Answer<'_, Result<Option<LimitInfo>, BackendError>>;

    /// Capacity, reserved amount and debt of a limit.
    fn usage(&self, namespace: NamespaceName, key: LimitKey) -> Answer<'_, Result<Option<Usage>, BackendError>>;

    /// The largest amount of a credit limit with these terms that a reserve would get now, or why it would get none.
    fn credit_room(&self, namespace: NamespaceName, terms: CreditTerms)
    -> Answer<'_, Result<CreditRoom, BackendError>>;

    /// Limits of a namespace with their usage.
    fn usage_page(&self, namespace: NamespaceName, query: UsageQuery) -> Answer<'_, Result<UsagePage, UsageError>>;

    /// A lease, while it is remembered.
    fn lease(&self, namespace: NamespaceName, lease: LeaseId) -> Answer<'_, Result<Option<LeaseView>, BackendError>>;

    /// Applies a transaction exactly once. A retry gets the first answer.
    fn write(&self, by: Principal, request: WriteRequest) -> Answer<'_, Result<WriteAnswer, BackendError>>;

    /// The last sequence number that a client committed in a scope; 0 before the first.
    fn client_state(
        &self,
        namespace: NamespaceName,
        vault: Option<VaultName>,
        client: ClientId,
    ) -> Answer<'_, Result<u64, CreditReadError>>;

    /// The balances of an account, ordered by asset.
    fn balances(&self, account: AccountPath) -> Answer<'_, Result<Vec<BalanceInfo>, CreditReadError>>;

    /// The grants of an account, by asset and then in spending order. Plain credit is one of them.
    fn grants(&self, account: AccountPath) -> Answer<'_, Result<Vec<GrantInfo>, CreditReadError>>;

    /// A page of the vaults of a namespace, ordered by name.
    fn vaults(&self, namespace: NamespaceName, query: VaultQuery) -> Answer<'_, Result<VaultPage, BackendError>>;

    /// A page of the accounts of a vault with their balances, ordered by name.
    fn accounts(
        &self,
        namespace: NamespaceName,
        vault: VaultName,
        query: AccountQuery,
    ) -> Answer<'_, Result<AccountPage, CreditReadError>>;

    /// A page of an account's history.
    fn entries(&self, account: AccountPath, query: EntryQuery) -> Answer<'_, Result<EntryPage, CreditReadError>>;

    /// Recounts a vault and compares it with its journal.
    fn audit(&self, namespace: NamespaceName, vault: VaultName) -> Answer<'_, Result<Audit, CreditReadError>>;

    /// The quotas of a namespace with their use; `None` if it does not exist. Without those that nothing enforces.
    fn quotas(&self, namespace: NamespaceName) -> Answer<'_, Result<Option<Vec<QuotaUsage>>, BackendError>>;

    /// Sets quotas of a namespace.
    fn set_quotas(&self, by: Principal, command: SetQuotas) -> Answer<'_, Result<(), QuotaError>>;

    /// The newest policy of a namespace; `None` if it has none.
    fn policy(&self, namespace: NamespaceName) -> Answer<'_, Result<Option<PolicyRevision>, BackendError>>;

    /// Replaces the policy of a namespace and returns its revision. The caller has checked the document.
    fn put_policy(&self, by: Principal, command: PutPolicy) -> Answer<'_, Result<u64, PolicyError>>;

    /// The policy as this process has applied it, without asking the leader: the one with `revision` if it is kept, else
    /// the newest. `None` if the namespace has none.
    fn applied_policy(&self, namespace: &NamespaceName, revision: Option<u64>) -> Option<PolicyRevision>;

    /// The usage of each limit as this process has applied it, without asking the leader. Amounts that another system
    /// keeps are left out.
    fn applied_usage(&self, _: &NamespaceName, keys: &[&LimitKey]) -> Vec<AppliedUsage> {
        vec![AppliedUsage::default(); keys.len()]
    }

    /// The leases of the Book whose concurrency or credit reservations ran out since the last call, each once. Leases
    /// that another system keeps are left out.
    fn timed_out(&self) -> Answer<'_, Result<Vec<TimedOutLease>, BackendError>> {
        Box::pin(std::future::ready(Ok(Vec::new())))
    }

    /// The fullness of the defined limits of a namespace, or of all, for metrics. Reads what this process knows, so limits
    /// and credit that another system keeps are left out.
    fn fullness(&self, _namespace: Option<&NamespaceName>) -> Vec<LimitFullness> {
        Vec::new()
    }

    /// The quotas of the first namespaces with their use, for metrics: without those of a database that is slow.
    fn quota_gauges(&self) -> Answer<'_, Vec<(NamespaceName, Vec<QuotaUsage>)>>;

    /// The API keys, if this backend stores any. Without keys the server accepts loopback callers only.
    fn keys(&self) -> Option<&dyn Keys> {
        None
    }

    /// Checks with a linearizable read that `by` is still authorized.
    fn check_right(&self, by: Principal) -> Answer<'_, Result<(), BackendError>> {
        match (self.keys(), by) {
            (_, Principal::System | Principal::Actor(_) | Principal::Session { .. }) | (None, Principal::Anonymous) => {
                Box::pin(std::future::ready(Ok(())))
            }
            (Some(keys), by) => keys.check(by),
            (None, Principal::Key(_)) => Box::pin(std::future::ready(Err(BackendError::Unauthenticated))),
        }
    }

    /// Gauges for metrics. Cheap enough to call every second.
    fn stats(&self) -> Stats;

    /// Whether the backend can serve.
    ///
    /// # Errors
    /// The reason, for an operator.
    fn ready(&self) -> Result<(), String>;

    /// A warning for the operator while the backend serves, such as a disk that is short of space.
    fn warning(&self) -> Option<String> {
        None
    }

    /// Finishes pending requests and refuses new ones.
    fn shut_down(&self) -> Answer<'_, ()>;
}

/// Which limits to list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitQuery {
    /// Only limits whose key begins like this.
    pub prefix: Option<LimitKey>,
    /// Only limits after this key: `next` of the previous page.
    pub after: Option<LimitKey>,
    /// Limits on the page, 1 to [`PAGE_MAX`].
    pub page_size: usize,
    /// Only limits that were put. Derived limits are not even read.
    pub defined: bool,
}

impl Default for LimitQuery {
    fn default() -> LimitQuery {
        LimitQuery { prefix: None, after: None, page_size: PAGE_MAX, defined: false }
    }
}

/// A page of limits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LimitPage {
    /// The limits, ordered by key.
    pub limits: Vec<LimitInfo>,
    /// `after` of the next page; `None` on the last one.
    pub next: Option<LimitKey>,
}

/// Most items in one batch.
pub const BATCH_MAX: usize = 256;

/// The full name of an account.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AccountPath {
    /// The namespace.
    pub namespace: NamespaceName,
    /// The vault.
    pub vault: VaultName,
    /// The account's name in the vault.
    pub account: AccountName,
}

/// An amount of one limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Amount {
    /// The limit; [`LimitKey::in_namespace`] for a shared limit of another namespace.
    pub key: LimitKey,
    /// The amount; at least 1 in a reserve.
    pub amount: u64,
}

/// Reserves all requirements or none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReserveRequest {
    /// The namespace of the limits and of the lease.
    pub namespace: NamespaceName,
    /// The lease. Each attempt needs a new one.
    pub lease: LeaseId,
    /// The caller's job, for logs.
    pub job: Option<JobId>,
    /// The call behind it, kept with the lease. A retry of the call gets the first answer, whatever its requirements.
    pub call: Option<CallMark>,
    /// Whether a gateway sends it. Then extend and complete are refused to all others.
    pub by_gateway: bool,
    /// 1 to 32 requirements in any order. Keys are unique.
    pub requirements: Vec<Amount>,
}

/// Reports the actual usage of a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompleteRequest {
    /// The namespace of the limits and of the lease.
    pub namespace: NamespaceName,
    /// The lease that was allowed.
    pub lease: LeaseId,
    /// The caller's job, for logs.
    pub job: Option<JobId>,
    /// The sender, and the call it is for.
    pub claim: LeaseClaim,
    /// Up to 32 amounts in any order; 0 is allowed. Keys are unique.
    pub actuals: Vec<Amount>,
    /// The labels of its settlements. Without credit they have no effect.
    pub labels: SettleLabels,
}

/// Creates a limit or changes its definition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PutLimitRequest {
    /// The namespace of the limit.
    pub namespace: NamespaceName,
    /// The new definition.
    pub definition: Definition,
    /// The revision that the limit must have; 0 means that it must not exist.
    pub expected_revision: Option<u64>,
}

/// Deletes a limit. A limit in use decreases to 0 first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeleteLimitRequest {
    /// The namespace of the limit.
    pub namespace: NamespaceName,
    /// The limit.
    pub key: LimitKey,
    /// The revision that the limit must have.
    pub expected_revision: Option<u64>,
}

/// The answer to a reserve. A denial is an answer, not an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReserveAnswer {
    /// All requirements are reserved, by this request or by its first attempt.
    Allowed {
        /// When the lease was allowed.
        reserved_at: UnixMs,
        /// The limits that are not enforced and would have denied it, ordered by key.
        would_deny: Vec<LimitKey>,
        /// The policy revision of the first attempt, if the lease is that of a call. If it is not that of this request,
        /// the request had the requirements of another policy, and no credit was touched: send it again with the
        /// requirements of this revision.
        policy_revision: Option<u64>,
    },
    /// A limit lacks room. The lease stays denied: retry with a new one.
    Denied {
        /// When a new lease may succeed; a minute if it never can.
        retry_after_ms: u64,
        /// The limits without room, the one that frees up last first.
        limited_by: Vec<LimitKey>,
        /// Whether an amount exceeds the capacity of its limit.
        never: bool,
    },
    /// The request was refused before room was checked, or credit is missing.
    Refused(Refusal),
}

/// Why a reserve was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The lease is too old, lies in the future or was used for other requirements; or the request is malformed.
    InvalidRequest {
        /// The field that is wrong, and what is allowed.
        message: String,
    },
    /// A gateway made the lease, and another caller sends this. Nothing changed.
    OwnedByGateway,
    /// No limit has this key. The same lease may try again.
    UnknownLimitKey(LimitKey),
    /// The limit is decreasing. The same lease may try again.
    LimitDecreasing {
        /// The limit.
        key: LimitKey,
        /// When to try again.
        retry_after_ms: u64,
    },
    /// The limit is paused. The same lease may try again.
    LimitPaused {
        /// The limit.
        key: LimitKey,
        /// The rest of the pause.
        retry_after_ms: u64,
    },
    /// The lease was completed, released or timed out: take a new one.
    LeaseExpired,
    /// The namespace has used up a quota. The same lease may try again.
    QuotaExceeded {
        /// The quota.
        kind: QuotaKind,
        /// When to try again.
        retry_after_ms: u64,
    },
    /// The vault or an account of a credit limit does not exist. The same lease may try again.
    AccountNotFound {
        /// The credit limit; the first by key if there are several.
        key: LimitKey,
        /// When to try again.
        retry_after_ms: u64,
    },
    /// The call was denied before, by the requirements of another revision of the policy. The lease stays denied.
    DeniedByPolicy {
        /// The revision.
        policy_revision: u64,
    },
    /// All limits have room, but an account has too little credit. The lease stays denied.
    InsufficientCredit {
        /// The credit limit of that account; the first by key if there are several.
        key: LimitKey,
        /// When to try with a new lease.
        retry_after_ms: u64,
        /// The state of the account.
        why: CreditShortage,
    },
}

/// The answer to a complete.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CompleteAnswer {
    /// Whether the lease was known and its actuals were applied, now or before.
    pub reconciled: bool,
    /// A note for the caller, such as the keys that were ignored.
    pub message: Option<String>,
    /// Keys of actuals that the lease had not reserved, in request order.
    pub ignored: Vec<LimitKey>,
    /// Keys of actuals below the usage that extensions reported, which counts instead, in request order.
    pub raised: Vec<LimitKey>,
    /// Whether the request was malformed. Then nothing was applied.
    pub is_invalid: bool,
    /// Whether a gateway made the lease and another caller completes it. Then nothing was applied.
    pub owned_by_gateway: bool,
    /// The quota that is used up, if the lease is unknown and could not be marked. Then nothing was applied.
    pub exceeded: Option<QuotaKind>,
    /// Whether extensions changed the lease, so that it may hold credit that its reserve did not.
    pub is_extended: bool,
    /// Usage beyond the reservation that fitted.
    pub overage_reserved: u64,
    /// Usage beyond the reservation that is now debt.
    pub overage_debt: u64,
    /// Usage beyond the reservation that only the metrics record.
    pub overage_dropped: u64,
    /// The same usage by limit, ordered by key, and credit that an account of the Book did not have.
    pub overages: Vec<LimitOverage>,
    /// Credit paid from the balance of accounts.
    pub credit_paid: u64,
    /// Credit paid by overdraft.
    pub credit_debt: u64,
    /// Credit that was not collected: the account had too little and no overdraft, or is closed.
    pub credit_uncollected: u64,
}

impl CompleteAnswer {
    /// The refusal of a lease that a gateway made.
    #[must_use]
    pub fn owned_by_gateway() -> CompleteAnswer {
        CompleteAnswer { message: Some(OWNED_BY_GATEWAY.into()), owned_by_gateway: true, ..CompleteAnswer::default() }
    }

    /// The refusal of a claim on a lease that is not that of its call.
    #[must_use]
    pub fn other_call() -> CompleteAnswer {
        CompleteAnswer { message: Some(OTHER_CALL.into()), is_invalid: true, ..CompleteAnswer::default() }
    }
}

/// Explains a credit shortage to the caller. `None` when the account simply has too little.
#[must_use]
pub const fn describe_credit_shortage(why: CreditShortage) -> Option<&'static str> {
    match why {
        CreditShortage::UnknownAccount => {
            Some("the vault or an account of this limit does not exist; open it with open_vault or open_account")
        }
        CreditShortage::Frozen => Some("the account of this limit is frozen"),
        CreditShortage::Closed => Some("the account of this limit, or its revenue account, is closed"),
        CreditShortage::NotEnough => None,
    }
}

/// The refusal of a claim on a lease that is not that of its call.
pub const OTHER_CALL: &str =
    "lease_id: this lease is not that of a call with these attributes; repeat those of the call";

/// The refusal of a lease that a gateway made.
pub const OWNED_BY_GATEWAY: &str = "lease_id: a gateway made this lease; only gateways can change it";

/// Names the ignored actuals to the caller. `None` without any.
#[must_use]
pub fn describe_ignored(ignored: &[LimitKey]) -> Option<String> {
    let keys: Vec<&str> = ignored.iter().map(LimitKey::as_str).collect();
    (!keys.is_empty()).then(|| format!("ignored, since the lease had not reserved them: {}", keys.join(", ")))
}

/// Names the actuals below the usage that extensions reported. `None` without any.
#[must_use]
pub fn describe_raised(raised: &[LimitKey]) -> Option<String> {
    let keys: Vec<&str> = raised.iter().map(LimitKey::as_str).collect();
    (!keys.is_empty()).then(|| format!("counted as the usage that was reported, which is higher: {}", keys.join(", ")))
}

/// The result of a change to a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitChange {
    /// The revision after the change.
    pub revision: u64,
    /// The status after the change.
    pub status: LimitStatus,
}

/// Why a limit was not changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LimitError {
    /// The definition is malformed.
    #[error(transparent)]
    Invalid(#[from] DefinitionError),
    /// The template is malformed.
    #[error(transparent)]
    InvalidTemplate(#[from] TemplateError),
    /// The limit has another revision than expected.
    #[error("expected_revision: it has revision {revision} (0 means that it does not exist)")]
    RevisionDiffers {
        /// The revision it has.
        revision: u64,
    },
    /// No limit has this key.
    #[error("no limit has this key")]
    NotFound,
    /// The length or the reason of a pause is out of bounds.
    #[error("{0}")]
    InvalidPause(String),
    /// As many limits are paused as may be, of the namespace or of all.
    #[error("paused limits reached {max}; resume some")]
    TooManyPauses {
        /// The bound.
        max: usize,
    },
    /// The limit exists with another kind.
    #[error("{}", crate::writes::KIND_DIFFERS)]
    KindDiffers,
    /// The vault of a credit limit does not exist.
    #[error("vault: no vault has this name; open it with open_vault first")]
    VaultNotFound,
    /// Another template differs from it in the names of placeholders only.
    #[error("key: the template {key} differs only in the names of its placeholders; change or delete that one")]
    SameTemplate {
        /// The key of the other template.
        key: LimitKey,
    },
    /// The limit count is at its maximum.
    #[error("key: limit count reached its bound (--limits-max)")]
    TooMany,
    /// The namespace has used up a quota.
    #[error("{}", describe_quota(*.0))]
    QuotaExceeded(QuotaKind),
    /// The backend failed.
    #[error(transparent)]
    Backend(#[from] BackendError),
}

/// Why a request has no answer. Either nothing happened or the outcome is unknown: retry the same request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BackendError {
    /// The queue or the lease table is full.
    #[error("overloaded: {0}")]
    Overloaded(&'static str),
    /// The key is missing, invalid, expired or revoked. Nothing happened.
    #[error("the API key is missing, invalid, expired or revoked")]
    Unauthenticated,
    /// An internal failure.
    #[error("{0}")]
    Failed(String),
}

/// Gauges of a backend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Leases that neither ended nor timed out, to the second. `None` where no process knows all leases.
    pub live_leases: Option<usize>,
    /// Leases in the lease table, ended ones included.
    pub remembered_leases: usize,
    /// Limits that are active or decreasing.
    pub limits: usize,
    /// Limits that are decreasing.
    pub decreasing_limits: usize,
    /// Limits that are paused.
    pub paused_limits: usize,
    /// The sum of the debt of all limits.
    pub debt: u128,
    /// Whether credit does not expire, because log time and wall time differ too much.
    pub is_expiry_waiting: bool,
    /// Requests in the queue.
    pub queue_depth: usize,
}

impl Stats {
    /// The gauges of a Book.
    #[must_use]
    pub fn of(book: &Book, now: UnixMs, queue_depth: usize) -> Stats {
        let totals = book.totals(now);
        Stats {
            live_leases: Some(book.live_leases(now)),
            remembered_leases: book.leases(),
            limits: totals.limits,
            decreasing_limits: totals.decreasing,
            paused_limits: totals.paused,
            debt: totals.debt,
            is_expiry_waiting: book.is_expiry_waiting(),
            queue_depth,
        }
    }
}
