//! Backends that fail, wait or lag behind, and a cluster.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use earmark_admission::{
    AccountPage, AccountPath, AccountQuery, Answer, Answers, Audit, Backend, BackendError, BackupMade, BackupName,
    ChangePage, ChangeQuery, Cluster, ClusterError, ClusterStatus, CompleteAnswer, CompleteRequest, CreditReadError,
    CreditRoom, DeleteLimitRequest, DeleteTemplateRequest, EntryPage, EntryQuery, ExtendAnswer, ExtendRequest,
    FileStream, InvitationId, InvitationInfo, KeyError, Keys, LeaseView, LimitChange, LimitError, LimitPage,
    LimitQuery, LocalBook, MemberStatus, NewInvitation, PauseLimitRequest, PolicyError, PutLimitRequest,
    PutTemplateRequest, QuotaError, ReserveAnswer, ReserveRequest, SigningKeyInfo, Stats, UsageError, UsagePage,
    UsageQuery, VaultPage, VaultQuery, WriteAnswer, WriteRequest,
};
use earmark_core::{
    Actor, BalanceInfo, ClientId, CreateKey, CreditTerms, GrantInfo, KeyId, KeyInfo, LeaseId, LimitInfo, LimitKey,
    NamespaceName, PolicyRevision, Principal, PutPolicy, QuotaUsage, RevokeKey, SecretHash, SetQuotas, TemplateInfo,
    UnixMs, Usage, VaultName,
};
use tokio::sync::Semaphore;

/// Implements the named methods of `Backend` by `$how`: `pass_on` or `fail`.
macro_rules! methods {
    ($how:ident: $($name:ident)*) => { $(method!($how $name);)* };
}

/// Implements a method by `$how`.
macro_rules! method {
    ($how:ident reserve) => { $how!(reserve(by: Principal, requests: Vec<ReserveRequest>) -> Answers<'_, ReserveAnswer>); };
    ($how:ident complete) => { $how!(complete(by: Principal, requests: Vec<CompleteRequest>) -> Answers<'_, CompleteAnswer>); };
    ($how:ident extend) => { $how!(extend(by: Principal, requests: Vec<ExtendRequest>) -> Answers<'_, ExtendAnswer>); };
    ($how:ident put_limit) => { $how!(put_limit(by: Principal, request: PutLimitRequest) -> Answer<'_, Result<LimitChange, LimitError>>); };
    ($how:ident delete_limit) => { $how!(delete_limit(by: Principal, request: DeleteLimitRequest) -> Answer<'_, Result<LimitChange, LimitError>>); };
    ($how:ident pause_limit) => { $how!(pause_limit(by: Principal, request: PauseLimitRequest) -> Answer<'_, Result<Option<UnixMs>, LimitError>>); };
    ($how:ident put_template) => { $how!(put_template(by: Principal, request: PutTemplateRequest) -> Answer<'_, Result<u64, LimitError>>); };
    ($how:ident delete_template) => { $how!(delete_template(by: Principal, request: DeleteTemplateRequest) -> Answer<'_, Result<u64, LimitError>>); };
    ($how:ident templates) => { $how!(templates(namespace: NamespaceName) -> Answer<'_, Result<Vec<TemplateInfo>, BackendError>>); };
    ($how:ident limits) => { $how!(limits(namespace: NamespaceName, query: LimitQuery) -> Answer<'_, Result<LimitPage, BackendError>>); };
    ($how:ident limit) => { $how!(limit(namespace: NamespaceName, key: LimitKey) -> Answer<'_, Result<Option<LimitInfo>, BackendError>>); };
    ($how:ident usage) => { $how!(usage(namespace: NamespaceName, key: LimitKey) -> Answer<'_, Result<Option<Usage>, BackendError>>); };
    ($how:ident credit_room) => { $how!(credit_room(namespace: NamespaceName, terms: CreditTerms) -> Answer<'_, Result<CreditRoom, BackendError>>); };
    ($how:ident usage_page) => { $how!(usage_page(namespace: NamespaceName, query: UsageQuery) -> Answer<'_, Result<UsagePage, UsageError>>); };
    ($how:ident lease) => { $how!(lease(namespace: NamespaceName, lease: LeaseId) -> Answer<'_, Result<Option<LeaseView>, BackendError>>); };
    ($how:ident write) => { $how!(write(by: Principal, request: WriteRequest) -> Answer<'_, Result<WriteAnswer, BackendError>>); };
    ($how:ident client_state) => { $how!(client_state(namespace: NamespaceName, vault: Option<VaultName>, client: ClientId) -> Answer<'_, Result<u64, CreditReadError>>); };
    ($how:ident balances) => { $how!(balances(account: AccountPath) -> Answer<'_, Result<Vec<BalanceInfo>, CreditReadError>>); };
    ($how:ident vaults) => { $how!(vaults(namespace: NamespaceName, query: VaultQuery) -> Answer<'_, Result<VaultPage, BackendError>>); };
    ($how:ident accounts) => { $how!(accounts(namespace: NamespaceName, vault: VaultName, query: AccountQuery) -> Answer<'_, Result<AccountPage, CreditReadError>>); };
    ($how:ident grants) => { $how!(grants(account: AccountPath) -> Answer<'_, Result<Vec<GrantInfo>, CreditReadError>>); };
    ($how:ident entries) => { $how!(entries(account: AccountPath, query: EntryQuery) -> Answer<'_, Result<EntryPage, CreditReadError>>); };
    ($how:ident audit) => { $how!(audit(namespace: NamespaceName, vault: VaultName) -> Answer<'_, Result<Audit, CreditReadError>>); };
    ($how:ident quotas) => { $how!(quotas(namespace: NamespaceName) -> Answer<'_, Result<Option<Vec<QuotaUsage>>, BackendError>>); };
    ($how:ident set_quotas) => { $how!(set_quotas(by: Principal, command: SetQuotas) -> Answer<'_, Result<(), QuotaError>>); };
    ($how:ident put_policy) => { $how!(put_policy(by: Principal, command: PutPolicy) -> Answer<'_, Result<u64, PolicyError>>); };
    ($how:ident quota_gauges) => { $how!(quota_gauges() -> Answer<'_, Vec<(NamespaceName, Vec<QuotaUsage>)>>); };
    ($how:ident stats) => { $how!(stats() -> Stats); };
    ($how:ident ready) => { $how!(ready() -> Result<(), String>); };
    ($how:ident shut_down) => { $how!(shut_down() -> Answer<'_, ()>); };
    ($how:ident policy) => { $how!(policy(namespace: NamespaceName) -> Answer<'_, Result<Option<PolicyRevision>, BackendError>>); };
    ($how:ident applied_policy) => { $how!(applied_policy(namespace: &NamespaceName, revision: Option<u64>) -> Option<PolicyRevision>); };
    ($how:ident applied_limit) => { $how!(applied_limit(namespace: &NamespaceName, key: &LimitKey) -> Option<Arc<LimitInfo>>); };
    ($how:ident template_of) => { $how!(template_of(namespace: &NamespaceName, key: &LimitKey) -> Option<LimitKey>); };
}

/// A method that the field `book` answers.
macro_rules! pass_on {
    ($name:ident($($argument:ident: $type:ty),*) -> $answer:ty) => {
        fn $name(&self, $($argument: $type),*) -> $answer {
            self.book.$name($($argument),*)
        }
    };
}

/// A method that fails.
macro_rules! fail {
    ($name:ident($($argument:ident: $type:ty),*) -> $answer:ty) => {
        fn $name(&self, $(_: $type),*) -> $answer {
            self.fail()
        }
    };
}

/// A backend that fails every request with one error.
pub(crate) struct Broken(pub(crate) BackendError);

impl Broken {
    fn each<T: Send + 'static>(&self, count: usize) -> Answers<'_, T> {
        let failures: Vec<_> = (0..count).map(|_| Err(self.0.clone())).collect();
        Box::pin(std::future::ready(failures))
    }

    fn fail<T: Send + 'static, E: From<BackendError> + Send + 'static>(&self) -> Answer<'_, Result<T, E>> {
        Box::pin(std::future::ready(Err(self.0.clone().into())))
    }
}

impl Backend for Broken {
    fn reserve(&self, _: Principal, requests: Vec<ReserveRequest>) -> Answers<'_, ReserveAnswer> {
        self.each(requests.len())
    }

    fn complete(&self, _: Principal, requests: Vec<CompleteRequest>) -> Answers<'_, CompleteAnswer> {
        self.each(requests.len())
    }

    fn extend(&self, _: Principal, requests: Vec<ExtendRequest>) -> Answers<'_, ExtendAnswer> {
        self.each(requests.len())
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

    methods! { fail:
        put_limit delete_limit pause_limit put_template delete_template templates limits limit usage
        credit_room usage_page lease write client_state grants balances vaults accounts entries audit quotas
        set_quotas policy put_policy
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
    fn reserve(&self, by: Principal, requests: Vec<ReserveRequest>) -> Answers<'_, ReserveAnswer> {
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

    fn complete(&self, _: Principal, requests: Vec<CompleteRequest>) -> Answers<'_, CompleteAnswer> {
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

    fn keys(&self) -> Option<&dyn Keys> {
        self.keeps_keys.then(|| self.book.keys()).flatten()
    }

    fn shut_down(&self) -> Answer<'_, ()> {
        self.is_shut_down.store(true, Ordering::SeqCst);
        self.book.shut_down()
    }

    methods! { pass_on:
        delete_limit pause_limit put_template delete_template template_of templates limits limit usage
        credit_room usage_page lease write client_state grants balances vaults accounts entries audit quotas
        set_quotas policy put_policy applied_policy quota_gauges stats ready
    }
}

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

    methods! { pass_on:
        reserve complete extend put_limit delete_limit pause_limit put_template delete_template
        templates limits limit usage credit_room usage_page lease write client_state balances vaults accounts grants
        entries audit quotas set_quotas put_policy quota_gauges stats ready shut_down applied_limit
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

    fn signing_keys(&self) -> Answer<'_, Result<Vec<SigningKeyInfo>, ClusterError>> {
        let info = |node, is_member| SigningKeyInfo {
            public_key: "5a".repeat(32),
            cluster: 0xab,
            node,
            published_at: UnixMs::new(7),
            is_member,
        };
        // A read is not refused.
        let error = self.0.clone().err().filter(|error| matches!(error, ClusterError::Unavailable(_)));
        Box::pin(std::future::ready(error.map_or_else(|| Ok(vec![info(1, true), info(5, false)]), Err)))
    }
}

/// The pieces of a file, in reverse order.
struct Pieces(Vec<Vec<u8>>);

impl FileStream for Pieces {
    fn next(&mut self) -> std::io::Result<Option<Vec<u8>>> {
        Ok(self.0.pop())
    }
}
