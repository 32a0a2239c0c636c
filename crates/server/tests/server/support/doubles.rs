//! Backends that fail or wait, and a cluster.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use earmark_admission::{
    AccountPage, AccountPath, AccountQuery, Answer, Audit, Backend, BackendError, BackupMade, BackupName, ChangePage,
    ChangeQuery, Cluster, ClusterError, ClusterStatus, CompleteAnswer, CompleteRequest, CreditReadError,
    DeleteLimitRequest, DeleteTemplateRequest, EntryPage, EntryQuery, ExtendAnswer, ExtendRequest, FileStream,
    InvitationId, InvitationInfo, KeyError, Keys, LeaseView, LimitChange, LimitError, LimitPage, LimitQuery, LocalBook,
    MemberStatus, NewInvitation, PauseLimitRequest, PolicyError, PutLimitRequest, PutTemplateRequest, QuotaError,
    ReserveAnswer, ReserveRequest, Stats, UsageError, UsagePage, UsageQuery, VaultPage, VaultQuery, WriteAnswer,
    WriteRequest,
};
use earmark_core::{
    Actor, BalanceInfo, ClientId, CreateKey, GrantInfo, KeyId, KeyInfo, LeaseId, LimitInfo, LimitKey, NamespaceName,
    PolicyRevision, Principal, PutPolicy, QuotaUsage, RevokeKey, SecretHash, SetQuotas, TemplateInfo, UnixMs, Usage,
    VaultName,
};
use tokio::sync::Semaphore;

/// A backend that fails every request with one error.
pub(crate) struct Broken(pub(crate) BackendError);

impl Broken {
    fn each<T>(&self, count: usize) -> Answer<'_, Vec<Result<T, BackendError>>>
    where
        T: Send + 'static,
    {
        let failures: Vec<_> = (0..count).map(|_| Err(self.0.clone())).collect();
        Box::pin(std::future::ready(failures))
    }

    fn fail<T: Send + 'static, E: From<BackendError> + Send + 'static>(&self) -> Answer<'_, Result<T, E>> {
        Box::pin(std::future::ready(Err(self.0.clone().into())))
    }
}

impl Backend for Broken {
    fn reserve(
        &self,
        _: Principal,
        requests: Vec<ReserveRequest>,
    ) -> Answer<'_, Vec<Result<ReserveAnswer, BackendError>>> {
        self.each(requests.len())
    }

    fn complete(
        &self,
        _: Principal,
        requests: Vec<CompleteRequest>,
    ) -> Answer<'_, Vec<Result<CompleteAnswer, BackendError>>> {
        self.each(requests.len())
    }

    fn extend(
        &self,
        _: Principal,
        requests: Vec<ExtendRequest>,
    ) -> Answer<'_, Vec<Result<ExtendAnswer, BackendError>>> {
        self.each(requests.len())
    }

    fn put_limit(&self, _: Principal, _: PutLimitRequest) -> Answer<'_, Result<LimitChange, LimitError>> {
        self.fail()
    }

    fn delete_limit(&self, _: Principal, _: DeleteLimitRequest) -> Answer<'_, Result<LimitChange, LimitError>> {
        self.fail()
    }

    fn pause_limit(&self, _: Principal, _: PauseLimitRequest) -> Answer<'_, Result<Option<UnixMs>, LimitError>> {
        self.fail()
    }

    fn put_template(&self, _: Principal, _: PutTemplateRequest) -> Answer<'_, Result<u64, LimitError>> {
        self.fail()
    }

    fn delete_template(&self, _: Principal, _: DeleteTemplateRequest) -> Answer<'_, Result<u64, LimitError>> {
        self.fail()
    }

    fn templates(&self, _: NamespaceName) -> Answer<'_, Result<Vec<TemplateInfo>, BackendError>> {
        self.fail()
    }

    fn limits(&self, _: NamespaceName, _: LimitQuery) -> Answer<'_, Result<LimitPage, BackendError>> {
        self.fail()
    }

    fn limit(&self, _: NamespaceName, _: LimitKey) -> Answer<'_, Result<Option<LimitInfo>, BackendError>> {
        self.fail()
    }

    fn usage(&self, _: NamespaceName, _: LimitKey) -> Answer<'_, Result<Option<Usage>, BackendError>> {
        self.fail()
    }

    fn usage_page(&self, _: NamespaceName, _: UsageQuery) -> Answer<'_, Result<UsagePage, UsageError>> {
        self.fail()
    }

    fn lease(&self, _: NamespaceName, _: LeaseId) -> Answer<'_, Result<Option<LeaseView>, BackendError>> {
        self.fail()
    }

    fn write(&self, _: Principal, _: WriteRequest) -> Answer<'_, Result<WriteAnswer, BackendError>> {
        self.fail()
    }

    fn client_state(
        &self,
        _: NamespaceName,
        _: Option<VaultName>,
        _: ClientId,
    ) -> Answer<'_, Result<u64, CreditReadError>> {
        self.fail()
    }

    fn grants(&self, _: AccountPath) -> Answer<'_, Result<Vec<GrantInfo>, CreditReadError>> {
        self.fail()
    }

    fn balances(&self, _: AccountPath) -> Answer<'_, Result<Vec<BalanceInfo>, CreditReadError>> {
        self.fail()
    }

    fn vaults(&self, _: NamespaceName, _: VaultQuery) -> Answer<'_, Result<VaultPage, BackendError>> {
        self.fail()
    }

    fn accounts(
        &self,
        _: NamespaceName,
        _: VaultName,
        _: AccountQuery,
    ) -> Answer<'_, Result<AccountPage, CreditReadError>> {
        self.fail()
    }

    fn entries(&self, _: AccountPath, _: EntryQuery) -> Answer<'_, Result<EntryPage, CreditReadError>> {
        self.fail()
    }

    fn audit(&self, _: NamespaceName, _: VaultName) -> Answer<'_, Result<Audit, CreditReadError>> {
        self.fail()
    }

    fn quotas(&self, _: NamespaceName) -> Answer<'_, Result<Option<Vec<QuotaUsage>>, BackendError>> {
        self.fail()
    }

    fn set_quotas(&self, _: Principal, _: SetQuotas) -> Answer<'_, Result<(), QuotaError>> {
        self.fail()
    }

    fn policy(&self, _: NamespaceName) -> Answer<'_, Result<Option<PolicyRevision>, BackendError>> {
        self.fail()
    }

    fn put_policy(&self, _: Principal, _: PutPolicy) -> Answer<'_, Result<u64, PolicyError>> {
        self.fail()
    }

    /// A policy that needs a limit, so that a call reaches the backend.
    fn applied_policy(&self, _: &NamespaceName, _: Option<u64>) -> Option<PolicyRevision> {
        let text = "[[rules]]\nname = \"a\"\nlimits = [ { key = \"a\", amount = 1 } ]\n";
        Some(PolicyRevision { revision: 1, text: text.into() })
    }

    fn quota_gauges(&self) -> Answer<'_, Vec<(NamespaceName, Vec<QuotaUsage>)>> {
        Box::pin(std::future::ready(Vec::new()))
    }

    fn keys(&self) -> Option<&dyn Keys> {
        Some(self)
    }

    fn stats(&self) -> Stats {
        Stats::default()
    }

    fn ready(&self) -> Result<(), String> {
        Err(self.0.to_string())
    }

    fn shut_down(&self) -> Answer<'_, ()> {
        Box::pin(std::future::ready(()))
    }
}

/// No keys, and none can be created.
impl Keys for Broken {
    fn has_keys(&self) -> bool {
        false
    }

    fn authenticate(&self, _: &KeyId, _: &SecretHash) -> Option<Arc<KeyInfo>> {
        None
    }

    fn valid(&self, _: &KeyId) -> Option<Arc<KeyInfo>> {
        None
    }

    fn permits(&self, _: &Principal) -> bool {
        true
    }

    fn check(&self, _: Principal) -> Answer<'_, Result<(), BackendError>> {
        self.fail()
    }

    fn list(&self, _: Option<NamespaceName>) -> Answer<'_, Result<Vec<Arc<KeyInfo>>, BackendError>> {
        self.fail()
    }

    fn create(&self, _: Principal, _: CreateKey) -> Answer<'_, Result<Arc<KeyInfo>, KeyError>> {
        match &self.0 {
            BackendError::Overloaded(_) => Box::pin(std::future::ready(Err(KeyError::TooMany))),
            _ => self.fail(),
        }
    }

    fn revoke(&self, _: Principal, _: RevokeKey) -> Answer<'_, Result<Arc<KeyInfo>, KeyError>> {
        self.fail()
    }

    fn log(&self, _: ChangeQuery) -> Answer<'_, Result<ChangePage, BackendError>> {
        self.fail()
    }
}

/// A backend that holds back answers to reserves until the test releases them, and changes
/// limits only while the test allows it.
pub(crate) struct Gate {
    pub(crate) book: LocalBook,
    /// Holds back only reserves of this namespace, if given.
    pub(crate) held_back: Option<NamespaceName>,
    /// Whether it has keys.
    pub(crate) keeps_keys: bool,
    /// The leases that were held back, in order.
    pub(crate) came: Mutex<Vec<LeaseId>>,
    pub(crate) gate: Semaphore,
    pub(crate) changes: Semaphore,
    pub(crate) is_shut_down: AtomicBool,
}

impl Gate {
    pub(crate) fn before(book: LocalBook) -> Gate {
        Gate {
            book,
            held_back: None,
            keeps_keys: false,
            came: Mutex::default(),
            gate: Semaphore::new(0),
            changes: Semaphore::new(1),
            is_shut_down: AtomicBool::new(false),
        }
    }
}

impl Backend for Gate {
    fn reserve(
        &self,
        by: Principal,
        requests: Vec<ReserveRequest>,
    ) -> Answer<'_, Vec<Result<ReserveAnswer, BackendError>>> {
        let is_held_back = requests
            .iter()
            .any(|request| self.held_back.as_ref().is_none_or(|namespace| *namespace == request.namespace));
        if is_held_back {
            self.came.lock().unwrap().extend(requests.iter().map(|request| request.lease));
        }
        let answers = self.book.reserve(by, requests);
        Box::pin(async move {
            let answers = answers.await;
            if is_held_back {
                self.gate.acquire().await.unwrap().forget();
            }
            answers
        })
    }

    fn complete(
        &self,
        _: Principal,
        requests: Vec<CompleteRequest>,
    ) -> Answer<'_, Vec<Result<CompleteAnswer, BackendError>>> {
        let count = requests.len();
        // A backend that rejects a complete which passed the server's own checks.
        let invalid = CompleteAnswer { is_invalid: true, message: Some("no".into()), ..Default::default() };
        Box::pin(std::future::ready(vec![Ok(invalid); count]))
    }

    fn put_limit(&self, by: Principal, request: PutLimitRequest) -> Answer<'_, Result<LimitChange, LimitError>> {
        Box::pin(async move {
            let _open = self.changes.acquire().await.unwrap();
            self.book.put_limit(by, request).await
        })
    }

    fn delete_limit(&self, by: Principal, request: DeleteLimitRequest) -> Answer<'_, Result<LimitChange, LimitError>> {
        self.book.delete_limit(by, request)
    }

    fn pause_limit(&self, by: Principal, request: PauseLimitRequest) -> Answer<'_, Result<Option<UnixMs>, LimitError>> {
        self.book.pause_limit(by, request)
    }

    fn put_template(&self, by: Principal, request: PutTemplateRequest) -> Answer<'_, Result<u64, LimitError>> {
        self.book.put_template(by, request)
    }

    fn delete_template(&self, by: Principal, request: DeleteTemplateRequest) -> Answer<'_, Result<u64, LimitError>> {
        self.book.delete_template(by, request)
    }

    fn template_of(&self, namespace: &NamespaceName, key: &LimitKey) -> Option<LimitKey> {
        self.book.template_of(namespace, key)
    }

    fn templates(&self, namespace: NamespaceName) -> Answer<'_, Result<Vec<TemplateInfo>, BackendError>> {
        self.book.templates(namespace)
    }

    fn limits(&self, namespace: NamespaceName, query: LimitQuery) -> Answer<'_, Result<LimitPage, BackendError>> {
        self.book.limits(namespace, query)
    }

    fn limit(&self, namespace: NamespaceName, key: LimitKey) -> Answer<'_, Result<Option<LimitInfo>, BackendError>> {
        self.book.limit(namespace, key)
    }

    fn usage(&self, namespace: NamespaceName, key: LimitKey) -> Answer<'_, Result<Option<Usage>, BackendError>> {
        self.book.usage(namespace, key)
    }

    fn usage_page(&self, namespace: NamespaceName, query: UsageQuery) -> Answer<'_, Result<UsagePage, UsageError>> {
        self.book.usage_page(namespace, query)
    }

    fn lease(&self, namespace: NamespaceName, lease: LeaseId) -> Answer<'_, Result<Option<LeaseView>, BackendError>> {
        self.book.lease(namespace, lease)
    }

    fn write(&self, by: Principal, request: WriteRequest) -> Answer<'_, Result<WriteAnswer, BackendError>> {
        self.book.write(by, request)
    }

    fn client_state(
        &self,
        namespace: NamespaceName,
        vault: Option<VaultName>,
        client: ClientId,
    ) -> Answer<'_, Result<u64, CreditReadError>> {
        self.book.client_state(namespace, vault, client)
    }

    fn grants(&self, account: AccountPath) -> Answer<'_, Result<Vec<GrantInfo>, CreditReadError>> {
        self.book.grants(account)
    }

    fn balances(&self, account: AccountPath) -> Answer<'_, Result<Vec<BalanceInfo>, CreditReadError>> {
        self.book.balances(account)
    }

    fn vaults(&self, namespace: NamespaceName, query: VaultQuery) -> Answer<'_, Result<VaultPage, BackendError>> {
        self.book.vaults(namespace, query)
    }

    fn accounts(
        &self,
        namespace: NamespaceName,
        vault: VaultName,
        query: AccountQuery,
    ) -> Answer<'_, Result<AccountPage, CreditReadError>> {
        self.book.accounts(namespace, vault, query)
    }

    fn entries(&self, account: AccountPath, query: EntryQuery) -> Answer<'_, Result<EntryPage, CreditReadError>> {
        self.book.entries(account, query)
    }

    fn audit(&self, namespace: NamespaceName, vault: VaultName) -> Answer<'_, Result<Audit, CreditReadError>> {
        self.book.audit(namespace, vault)
    }

    fn quotas(&self, namespace: NamespaceName) -> Answer<'_, Result<Option<Vec<QuotaUsage>>, BackendError>> {
        self.book.quotas(namespace)
    }

    fn set_quotas(&self, by: Principal, command: SetQuotas) -> Answer<'_, Result<(), QuotaError>> {
        self.book.set_quotas(by, command)
    }

    fn policy(&self, namespace: NamespaceName) -> Answer<'_, Result<Option<PolicyRevision>, BackendError>> {
        self.book.policy(namespace)
    }

    fn put_policy(&self, by: Principal, command: PutPolicy) -> Answer<'_, Result<u64, PolicyError>> {
        self.book.put_policy(by, command)
    }

    fn applied_policy(&self, namespace: &NamespaceName, revision: Option<u64>) -> Option<PolicyRevision> {
        self.book.applied_policy(namespace, revision)
    }

    fn quota_gauges(&self) -> Answer<'_, Vec<(NamespaceName, Vec<QuotaUsage>)>> {
        self.book.quota_gauges()
    }

    fn keys(&self) -> Option<&dyn Keys> {
        self.keeps_keys.then(|| self.book.keys()).flatten()
    }

    fn stats(&self) -> Stats {
        self.book.stats()
    }

    fn ready(&self) -> Result<(), String> {
        self.book.ready()
    }

    fn shut_down(&self) -> Answer<'_, ()> {
        self.is_shut_down.store(true, Ordering::SeqCst);
        self.book.shut_down()
    }
}

/// A cluster of three nodes, with one result for every change.
pub(crate) struct Nodes(pub(crate) Result<(), ClusterError>);

impl Cluster for Nodes {
    fn status(&self) -> ClusterStatus {
        let member =
            |node, is_voter, lag| MemberStatus { node, address: format!("127.0.0.1:710{node}"), is_voter, lag };
        ClusterStatus {
            cluster: 0xab,
            node: 1,
            leader: Some(1),
            term: 3,
            last_log_index: Some(9),
            applied_index: Some(8),
            members: vec![member(1, true, Some(0)), member(2, true, Some(4)), member(3, false, None)],
            ..ClusterStatus::default()
        }
    }

    fn add(&self, _: u64, _: String) -> Answer<'_, Result<(), ClusterError>> {
        Box::pin(std::future::ready(self.0.clone()))
    }

    fn remove(&self, _: u64) -> Answer<'_, Result<(), ClusterError>> {
        Box::pin(std::future::ready(self.0.clone()))
    }
    fn invite(&self, by: Actor, wanted: NewInvitation) -> Answer<'_, Result<String, ClusterError>> {
        let shown = format!("emi_{by}_{}_{:?}", wanted.uses, wanted.expires_seconds);
        Box::pin(std::future::ready(self.0.clone().map(|()| shown)))
    }

    fn invitations(&self) -> Answer<'_, Result<Vec<InvitationInfo>, ClusterError>> {
        let info = |expires_at: Option<u64>| InvitationInfo {
            id: InvitationId(0x0123_4567_89ab_cdef),
            uses_left: 1,
            expires_at: expires_at.map(UnixMs::new),
            invited_by: "user:ann".parse().unwrap(),
            nodes: vec![4],
        };
        // A read is not refused.
        let error = self.0.clone().err().filter(|error| matches!(error, ClusterError::Unavailable(_)));
        Box::pin(std::future::ready(error.map_or_else(|| Ok(vec![info(Some(7)), info(None)]), Err)))
    }

    fn revoke_invitation(&self, _: InvitationId) -> Answer<'_, Result<(), ClusterError>> {
        Box::pin(std::future::ready(self.0.clone()))
    }

    fn backup(&self, name: Option<BackupName>) -> Answer<'_, Result<BackupMade, ClusterError>> {
        let name = name.unwrap_or_else(|| BackupName::of_time(UnixMs::new(0)));
        let path = format!("data/backups/{}", name.as_str());
        let made = BackupMade { name, path, bytes: 7, index: Some(8), journal_records: 5, cluster: 0xcd };
        Box::pin(std::future::ready(self.0.clone().map(|()| made)))
    }

    fn archive(&self) -> Answer<'_, Result<Box<dyn FileStream>, ClusterError>> {
        let pieces = Pieces(vec![b"the end".to_vec(), b"pieces, ".to_vec()]);
        Box::pin(std::future::ready(self.0.clone().map(|()| Box::new(pieces) as Box<dyn FileStream>)))
    }

    fn export_audit(&self) -> Answer<'_, Result<Box<dyn FileStream>, ClusterError>> {
        self.archive()
    }
}

/// The pieces of a file, in reverse order.
struct Pieces(Vec<Vec<u8>>);

impl FileStream for Pieces {
    fn next(&mut self) -> std::io::Result<Option<Vec<u8>>> {
        Ok(self.0.pop())
    }
}
