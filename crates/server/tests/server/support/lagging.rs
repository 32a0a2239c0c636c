//! A node that has not applied the newest policy.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use earmark_admission::{
    AccountPage, AccountPath, AccountQuery, Answer, Audit, Backend, BackendError, CompleteAnswer, CompleteRequest,
    CreditReadError, DeleteLimitRequest, DeleteTemplateRequest, EntryPage, EntryQuery, ExtendAnswer, ExtendRequest,
    LeaseView, LimitChange, LimitError, LimitPage, LimitQuery, LocalBook, PauseLimitRequest, PolicyError,
    PutLimitRequest, PutTemplateRequest, QuotaError, ReserveAnswer, ReserveRequest, Stats, UsageError, UsagePage,
    UsageQuery, VaultPage, VaultQuery, WriteAnswer, WriteRequest,
};
use earmark_core::{
    BalanceInfo, ClientId, GrantInfo, LeaseId, LimitInfo, LimitKey, NamespaceName, PolicyRevision, Principal,
    PutPolicy, QuotaUsage, SetQuotas, TemplateInfo, UnixMs, Usage, VaultName,
};

/// A Book whose policy is an older revision until a linearizable read.
pub(crate) struct Lagging {
    book: Arc<LocalBook>,
    revision: u64,
    has_caught_up: AtomicBool,
}

impl Lagging {
    pub(crate) fn behind(book: &Arc<LocalBook>, revision: u64) -> Lagging {
        Lagging { book: Arc::clone(book), revision, has_caught_up: AtomicBool::new(false) }
    }
}

/// Passes methods on to the Book.
macro_rules! pass_on {
    ($(fn $name:ident($($argument:ident: $type:ty),*) -> $answer:ty;)*) => {$(
        fn $name(&self, $($argument: $type),*) -> $answer {
            self.book.$name($($argument),*)
        }
    )*};
}

impl Backend for Lagging {
    fn policy(&self, namespace: NamespaceName) -> Answer<'_, Result<Option<PolicyRevision>, BackendError>> {
        self.has_caught_up.store(true, Ordering::Relaxed);
        self.book.policy(namespace)
    }

    fn applied_policy(&self, namespace: &NamespaceName, revision: Option<u64>) -> Option<PolicyRevision> {
        if self.has_caught_up.load(Ordering::Relaxed) {
            return self.book.applied_policy(namespace, revision);
        }
        let known = revision.filter(|revision| *revision <= self.revision).unwrap_or(self.revision);
        self.book.applied_policy(namespace, Some(known))
    }

    fn applied_limit(&self, namespace: &NamespaceName, key: &LimitKey) -> Option<Arc<LimitInfo>> {
        self.book.applied_limit(namespace, key)
    }

    pass_on! {
        fn reserve(by: Principal, requests: Vec<ReserveRequest>) -> Answer<'_, Vec<Result<ReserveAnswer, BackendError>>>;
        fn complete(by: Principal, requests: Vec<CompleteRequest>) -> Answer<'_, Vec<Result<CompleteAnswer, BackendError>>>;
        fn extend(by: Principal, requests: Vec<ExtendRequest>) -> Answer<'_, Vec<Result<ExtendAnswer, BackendError>>>;
        fn put_limit(by: Principal, request: PutLimitRequest) -> Answer<'_, Result<LimitChange, LimitError>>;
        fn delete_limit(by: Principal, request: DeleteLimitRequest) -> Answer<'_, Result<LimitChange, LimitError>>;
        fn pause_limit(by: Principal, request: PauseLimitRequest) -> Answer<'_, Result<Option<UnixMs>, LimitError>>;
        fn put_template(by: Principal, request: PutTemplateRequest) -> Answer<'_, Result<u64, LimitError>>;
        fn delete_template(by: Principal, request: DeleteTemplateRequest) -> Answer<'_, Result<u64, LimitError>>;
        fn templates(namespace: NamespaceName) -> Answer<'_, Result<Vec<TemplateInfo>, BackendError>>;
        fn limits(namespace: NamespaceName, query: LimitQuery) -> Answer<'_, Result<LimitPage, BackendError>>;
        fn limit(namespace: NamespaceName, key: LimitKey) -> Answer<'_, Result<Option<LimitInfo>, BackendError>>;
        fn usage(namespace: NamespaceName, key: LimitKey) -> Answer<'_, Result<Option<Usage>, BackendError>>;
        fn usage_page(namespace: NamespaceName, query: UsageQuery) -> Answer<'_, Result<UsagePage, UsageError>>;
        fn lease(namespace: NamespaceName, lease: LeaseId) -> Answer<'_, Result<Option<LeaseView>, BackendError>>;
        fn write(by: Principal, request: WriteRequest) -> Answer<'_, Result<WriteAnswer, BackendError>>;
        fn client_state(namespace: NamespaceName, vault: Option<VaultName>, client: ClientId) -> Answer<'_, Result<u64, CreditReadError>>;
        fn balances(account: AccountPath) -> Answer<'_, Result<Vec<BalanceInfo>, CreditReadError>>;
        fn vaults(namespace: NamespaceName, query: VaultQuery) -> Answer<'_, Result<VaultPage, BackendError>>;
        fn accounts(namespace: NamespaceName, vault: VaultName, query: AccountQuery)
            -> Answer<'_, Result<AccountPage, CreditReadError>>;
        fn grants(account: AccountPath) -> Answer<'_, Result<Vec<GrantInfo>, CreditReadError>>;
        fn entries(account: AccountPath, query: EntryQuery) -> Answer<'_, Result<EntryPage, CreditReadError>>;
        fn audit(namespace: NamespaceName, vault: VaultName) -> Answer<'_, Result<Audit, CreditReadError>>;
        fn quotas(namespace: NamespaceName) -> Answer<'_, Result<Option<Vec<QuotaUsage>>, BackendError>>;
        fn set_quotas(by: Principal, command: SetQuotas) -> Answer<'_, Result<(), QuotaError>>;
        fn put_policy(by: Principal, command: PutPolicy) -> Answer<'_, Result<u64, PolicyError>>;
        fn quota_gauges() -> Answer<'_, Vec<(NamespaceName, Vec<QuotaUsage>)>>;
        fn stats() -> Stats;
        fn ready() -> Result<(), String>;
        fn shut_down() -> Answer<'_, ()>;
    }
}
