//! The host of a Book, in memory or replicated, and the backend on top of it.

mod keys;
mod pages;
mod unknown;
mod writes;

use std::future::Future;
use std::sync::{Arc, Mutex};

use earmark_core::{
    AccountId, AccountName, BalanceInfo, Book, ClientId, CreditShortage, CreditTerms, ExtendStep, ExternalParts,
    GrantInfo, InvalidWrite, LeaseId, LimitInfo, LimitKey, NamespaceId, NamespaceName, Part, PolicyRevision, Principal,
    PutPolicy, QuotaUsage, SetQuotas, TemplateInfo, TimeoutScan, TxId, UnixMs, Usage, VaultId, VaultName, Write,
    WriteError,
};

use crate::applied::{AppliedUsage, TimedOutLease};
use crate::backend::{
    AccountPath, Amount, Answer, Answers, Backend, BackendError, CompleteAnswer, CompleteRequest, DeleteLimitRequest,
    LimitChange, LimitError, LimitPage, LimitQuery, PutLimitRequest, ReserveAnswer, ReserveRequest, Stats,
};
use crate::book_request::{
    Answered, BookComplete, BookRequest, BookReserve, ChangeLimit, Decided, LimitCommand, NamesLimits, OpenNamespace,
};
use crate::callers::{ChangePage, ChangeQuery, Keys};
use crate::credit_lists::{AccountPage, AccountQuery, EntryQuery, VaultPage, VaultQuery};
use crate::extend::{ExtendAnswer, ExtendRequest};
use crate::fullness::LimitFullness;
use crate::lease_view::LeaseView;
use crate::limits::Registry;
use crate::names::Names;
use crate::pauses::PauseLimitRequest;
use crate::policies::{NewestPolicies, PolicyError};
use crate::quotas::QuotaError;
use crate::registry::{LimitCache, ProcessPlacement};
use crate::submitter::Direction;
use crate::templates::{DeleteTemplateRequest, PutTemplateRequest};
use crate::usage::{UsageError, UsagePage, UsageQuery};
use crate::writes::{Audit, CreditReadError, CreditRoom, EntryPage, WriteAnswer, WriteRequest};
use writes::is_first_of_namespace;
pub(crate) use writes::{limit_keys, vault};

/// Runs a Book: in memory, or as the state machine of a replicated log.
pub trait BookHost: Send + Sync + 'static {
    /// Executes requests in one batch, even when the caller drops the future. Answers are in request order.
    fn submit<R: BookRequest>(
        &self,
        by: Principal,
        requests: Vec<R>,
        direction: Direction,
    ) -> impl Future<Output = Vec<Answered<R>>> + Send;

    /// A read barrier: waits until everything acknowledged so far can be read, and returns the time of the read.
    fn read_barrier(&self) -> impl Future<Output = Result<UnixMs, BackendError>> + Send;

    /// The local time, without a read barrier. Good enough to reject a caller early.
    fn now(&self) -> UnixMs;

    /// Reads the Book.
    fn with_book<T>(&self, read: impl FnOnce(&Book) -> T) -> T;

    /// A page of an account's history.
    fn entries(
        &self,
        account: (AccountId, AccountName),
        query: EntryQuery,
    ) -> impl Future<Output = Result<EntryPage, BackendError>> + Send;

    /// Recounts a vault as of a time.
    fn audit(&self, vault: VaultId, at: UnixMs) -> impl Future<Output = Result<Audit, BackendError>> + Send;

    /// A page of the change log.
    fn log(&self, query: ChangeQuery) -> impl Future<Output = Result<ChangePage, BackendError>> + Send;

    /// Called after each attempt to change limits of a namespace, one at a time.
    fn limits_changed(
        self: &Arc<Self>,
        namespace: &NamespaceName,
        is_changed: bool,
    ) -> impl Future<Output = Result<(), BackendError>> + Send;

    /// See [`Book::limits_version`]. Called for every call by attributes, and for every lease when limits are enforced
    /// elsewhere, so it must not wait.
    fn limits_version(&self) -> u64 {
        self.with_book(Book::limits_version)
    }

    /// Whether this process runs background maintenance. One process of a cluster does.
    fn runs_maintenance(&self) -> bool {
        true
    }

    /// Gauges for metrics.
    fn stats(&self) -> Stats;

    /// Whether the Book can serve.
    ///
    /// # Errors
    /// The reason, for an operator.
    fn ready(&self) -> Result<(), String>;

    /// A warning for the operator while the Book serves, such as a disk that is short of space.
    fn warning(&self) -> Option<String> {
        None
    }

    /// Finishes pending requests and refuses new ones.
    fn shut_down(self: &Arc<Self>) -> impl Future<Output = ()> + Send;
}

/// A backend on a Book. Clones share the Book.
pub struct BookBackend<H>(pub(crate) Arc<Inner<H>>, pub(crate) Option<Arc<ProcessPlacement>>);

impl<H> Clone for BookBackend<H> {
    fn clone(&self) -> BookBackend<H> {
        BookBackend(Arc::clone(&self.0), self.1.clone())
    }
}

/// The host, with the names and limits that this process has looked up.
pub(crate) struct Inner<H> {
    pub(crate) host: Arc<H>,
    names: Names,
    pub(crate) cache: LimitCache,
    pub(crate) newest_policies: NewestPolicies,
    /// How far this process has looked for leases that ran out.
    pub(crate) timeouts: Mutex<TimeoutScan>,
    /// Serializes changes of limits, so that the limits file gets them in order.
    pub(crate) changing: tokio::sync::Mutex<()>,
}

impl<H: BookHost> BookBackend<H> {
    /// A backend on this host's Book.
    pub fn new(host: Arc<H>) -> BookBackend<H> {
        let inner = Inner {
            host,
            names: Names::default(),
            cache: LimitCache::default(),
            newest_policies: NewestPolicies::default(),
            timeouts: Mutex::default(),
            changing: tokio::sync::Mutex::new(()),
        };
        BookBackend(Arc::new(inner), None)
    }

    /// Changes a limit in its own task, so that the limits file is written even when the caller disconnects.
    async fn change(
        &self,
        by: Principal,
        namespace: NamespaceName,
        change: LimitCommand,
    ) -> Result<LimitChange, LimitError> {
        let task = crate::spawn(Arc::clone(&self.0).change(by, namespace, change));
        task.await.map_err(|error| BackendError::Failed(error.to_string()))?
    }

    /// Submits requests about leases, if this process may decide them. A namespace that is unknown here is looked up.
    pub(crate) async fn decide<Q: Send, A: Send + 'static, R>(
        &self,
        by: Principal,
        requests: Vec<Q>,
        direction: Direction,
        namespace: impl Fn(&Q) -> &NamespaceName + Send,
        resolve: impl Fn(&Inner<H>, Q) -> R + Send,
    ) -> Vec<Result<A, BackendError>>
    where
        R: BookRequest<Answer = Decided<A, R>, Error = BackendError> + NamesLimits,
    {
        let may_decide = match self.check_placement() {
            Ok(()) => self.0.find_namespaces(requests.iter().map(namespace)).await,
            Err(error) => Err(error.into()),
        };
        match may_decide {
            Ok(()) => {
                let requests: Vec<R> = requests.into_iter().map(|request| resolve(&self.0, request)).collect();
                match self.0.answer_unknown(&by, &requests) {
                    Some(answers) => answers,
                    None => self.0.submit_resolved(by, requests, direction).await,
                }
            }
            Err(error) => requests.iter().map(|_| Err(error.clone())).collect(),
        }
    }

    /// Reads the Book after a read barrier.
    pub(crate) async fn read<T>(&self, read: impl FnOnce(&Book, UnixMs) -> T + Send) -> Result<T, BackendError> {
        let now = self.0.host.read_barrier().await?;
        Ok(self.0.host.with_book(|book| read(book, now)))
    }
}

impl<H: BookHost> Inner<H> {
    /// The id of a namespace, if it exists.
    pub(crate) fn namespace(&self, name: &NamespaceName) -> Option<NamespaceId> {
        self.names.namespace(name).or_else(|| self.host.with_book(|book| book.namespace(name)))
    }

    /// Runs a read barrier if a namespace is unknown here: another node may just have created it.
    pub(crate) async fn find_namespaces<'a>(
        &self,
        names: impl Iterator<Item = &'a NamespaceName>,
    ) -> Result<(), BackendError> {
        let mut unknown = names.filter(|name| self.namespace(name).is_none());
        match unknown.next() {
            Some(_) => self.host.read_barrier().await.map(|_| ()),
            None => Ok(()),
        }
    }

    /// Amounts as the Book takes them. Ids of unknown names are looked up now and then.
    pub(crate) fn parts(&self, namespace: &NamespaceName, amounts: &[Amount]) -> Vec<Part> {
        let parts = || -> Vec<Part> {
            self.names.with(namespace, |resolve| {
                amounts.iter().map(|part| Part { limit: resolve(&part.key), amount: part.amount }).collect()
            })
        };
        let found = parts();
        let is_unknown = |part: &Part| !matches!(part.limit, earmark_core::LimitRef::Id(_));
        if !found.iter().any(is_unknown) || !self.names.may_learn() {
            return found;
        }
        let unknown = found.iter().zip(amounts).filter(|(part, _)| is_unknown(part));
        self.learn(namespace, unknown.map(|(_, amount)| &amount.key));
        parts()
    }

    fn learn<'a>(&self, namespace: &NamespaceName, keys: impl IntoIterator<Item = &'a LimitKey>) {
        self.host.with_book(|book| keys.into_iter().for_each(|key| self.names.learn(book, namespace, key)));
    }

    /// Submits requests about leases. A request with a stale id is sent again with keys, which are never stale.
    pub(crate) async fn submit_resolved<A: Send + 'static, R>(
        &self,
        by: Principal,
        requests: Vec<R>,
        direction: Direction,
    ) -> Vec<Result<A, BackendError>>
    where
        R: BookRequest<Answer = Decided<A, R>, Error = BackendError> + NamesLimits,
    {
        let again_by = by.clone();
        let answers = self.host.submit(by, requests, direction).await;
        let (mut stale, mut places) = (Vec::new(), Vec::new());
        let mut decided = Vec::with_capacity(answers.len());
        for (place, answer) in answers.into_iter().enumerate() {
            decided.push(match answer {
                Ok(Decided::Answer(answer)) => Ok(answer),
                Ok(Decided::Stale(request)) => {
                    self.names.forget(&request);
                    places.push(place);
                    stale.push(request);
                    Err(BackendError::Failed("the id of a limit was stale twice".into()))
                }
                Err(error) => Err(error),
            });
        }
        if !stale.is_empty() {
            let answers = self.host.submit(again_by, stale, direction).await;
            for (place, answer) in places.into_iter().zip(answers) {
                match answer {
                    Ok(Decided::Answer(answer)) => decided[place] = Ok(answer),
                    Ok(Decided::Stale(_)) => {}
                    Err(error) => decided[place] = Err(error),
                }
            }
        }
        decided
    }

    pub(crate) async fn submit_one<R: BookRequest>(&self, by: Principal, request: R) -> Answered<R> {
        let answer = self.host.submit(by, vec![request], Direction::GivesBack).await.pop();
        answer.unwrap_or_else(|| Err(BackendError::Failed("the Book did not answer".into()).into()))
    }

    /// The id of a namespace, which is created if needed.
    pub(crate) async fn open(&self, by: Principal, name: &NamespaceName) -> Result<NamespaceId, LimitError> {
        if let Some(id) = self.namespace(name) {
            return Ok(id);
        }
        self.submit_one(by, OpenNamespace(name.clone())).await
    }

    /// Opens the namespaces of leases that reserve shared limits: such a namespace may have no limits of its own. If that
    /// fails, the reserve is refused.
    async fn open_for_shared(&self, by: &Principal, requests: &[ReserveRequest]) {
        for request in requests {
            let mut foreign = request.requirements.iter().filter_map(|part| part.key.foreign());
            let is_foreign = foreign.any(|(namespace, _)| self.namespace(&namespace).is_some());
            if is_foreign {
                _ = self.open(by.clone(), &request.namespace).await;
            }
        }
    }

    /// The id of a write's namespace. The namespace is created before the write is applied, so a refused write may
    /// leave an empty namespace behind.
    async fn namespace_of_write(
        &self,
        by: &Principal,
        name: &NamespaceName,
        opens: bool,
    ) -> Result<Option<NamespaceId>, BackendError> {
        self.find_namespaces([name].into_iter()).await?;
        if !opens {
            return Ok(self.namespace(name));
        }
        match self.open(by.clone(), name).await {
            Ok(id) => Ok(Some(id)),
            Err(LimitError::Backend(error)) => Err(error),
            Err(_) => Ok(None),
        }
    }

    async fn change(
        self: Arc<Self>,
        by: Principal,
        name: NamespaceName,
        change: LimitCommand,
    ) -> Result<LimitChange, LimitError> {
        let _one_at_a_time = self.changing.lock().await;
        let namespace = match &change {
            LimitCommand::Put(..) => self.open(by.clone(), &name).await?,
            LimitCommand::Delete(..) | LimitCommand::Drop(..) => {
                self.find_namespaces([&name].into_iter()).await?;
                self.namespace(&name).ok_or(LimitError::NotFound)?
            }
        };
        let key = change.key().clone();
        let changed = self.submit_one(by, ChangeLimit { namespace, change }).await;
        if let Err(LimitError::Backend(_)) = changed {
            return changed;
        }
        self.learn(&name, [&key]);
        self.host.limits_changed(&name, changed.is_ok()).await?;
        changed
    }

    /// Applies a transaction, and reports changed limits to the host.
    async fn write(
        self: Arc<Self>,
        by: Principal,
        write: Write,
        name: NamespaceName,
    ) -> Result<WriteAnswer, BackendError> {
        let keys = limit_keys(&write.operations);
        let _one_at_a_time = match keys.is_empty() {
            true => None,
            false => Some(self.changing.lock().await),
        };
        let answer = self.submit_one(by, write).await?;
        // A retry reports them too, in case the first attempt failed before this line.
        if matches!(answer, WriteAnswer::Committed(_)) && !keys.is_empty() {
            self.learn(&name, &keys);
            self.host.limits_changed(&name, true).await?;
        }
        Ok(answer)
    }
}

impl<H: BookHost> Backend for BookBackend<H> {
    fn reserve(&self, by: Principal, requests: Vec<ReserveRequest>) -> Answers<'_, ReserveAnswer> {
        let resolve = |inner: &Inner<H>, request: ReserveRequest| BookReserve {
            namespace: inner.namespace(&request.namespace),
            lease: request.lease,
            job: request.job,
            call: request.call,
            by_gateway: request.by_gateway,
            parts: inner.parts(&request.namespace, &request.requirements),
            requirements: request.requirements,
        };
        Box::pin(async move {
            self.0.open_for_shared(&by, &requests).await;
            self.decide(by, requests, Direction::Takes, |request| &request.namespace, resolve).await
        })
    }

    fn extend(&self, by: Principal, requests: Vec<ExtendRequest>) -> Answers<'_, ExtendAnswer> {
        self.extend_step(by, requests.into_iter().map(|request| (request, ExtendStep::Whole)).collect())
    }

    fn complete(&self, by: Principal, requests: Vec<CompleteRequest>) -> Answers<'_, CompleteAnswer> {
        let resolve = |inner: &Inner<H>, request: CompleteRequest| BookComplete {
            namespace: inner.namespace(&request.namespace),
            lease: request.lease,
            parts: Some(inner.parts(&request.namespace, &request.actuals)),
            claim: request.claim,
            actuals: request.actuals,
            labels: request.labels,
        };
        Box::pin(self.decide(by, requests, Direction::GivesBack, |request| &request.namespace, resolve))
    }

    fn put_limit(&self, by: Principal, request: PutLimitRequest) -> Answer<'_, Result<LimitChange, LimitError>> {
        let change = LimitCommand::Put(request.definition, request.expected_revision);
        Box::pin(self.change(by, request.namespace, change))
    }

    fn delete_limit(&self, by: Principal, request: DeleteLimitRequest) -> Answer<'_, Result<LimitChange, LimitError>> {
        let change = LimitCommand::Delete(request.key, request.expected_revision);
        Box::pin(self.change(by, request.namespace, change))
    }

    fn pause_limit(&self, by: Principal, request: PauseLimitRequest) -> Answer<'_, Result<Option<UnixMs>, LimitError>> {
        Box::pin(self.pause(by, request))
    }

    fn put_template(&self, by: Principal, request: PutTemplateRequest) -> Answer<'_, Result<u64, LimitError>> {
        self.put_template_of(by, request)
    }

    fn delete_template(&self, by: Principal, request: DeleteTemplateRequest) -> Answer<'_, Result<u64, LimitError>> {
        self.delete_template_of(by, request)
    }

    fn template_of(&self, namespace: &NamespaceName, key: &LimitKey) -> Option<LimitKey> {
        self.template_seen_from(namespace, key)
    }

    fn applied_limit(&self, namespace: &NamespaceName, key: &LimitKey) -> Option<Arc<LimitInfo>> {
        Registry::limit(self, namespace, key)
    }

    fn templates(&self, namespace: NamespaceName) -> Answer<'_, Result<Vec<TemplateInfo>, BackendError>> {
        Box::pin(self.list_templates(namespace))
    }

    fn limits(&self, namespace: NamespaceName, query: LimitQuery) -> Answer<'_, Result<LimitPage, BackendError>> {
        Box::pin(self.limit_page(namespace, query))
    }

    fn limit(&self, namespace: NamespaceName, key: LimitKey) -> Answer<'_, Result<Option<LimitInfo>, BackendError>> {
        Box::pin(self.read(move |book, now| book.find_limit(now, book.namespace(&namespace)?, &key)))
    }

    fn usage(&self, namespace: NamespaceName, key: LimitKey) -> Answer<'_, Result<Option<Usage>, BackendError>> {
        Box::pin(async move {
            self.check_placement()?;
            self.read(move |book, now| book.find_usage(now, book.namespace(&namespace)?, &key)).await
        })
    }

    fn credit_room(
        &self,
        namespace: NamespaceName,
        terms: CreditTerms,
    ) -> Answer<'_, Result<CreditRoom, BackendError>> {
        Box::pin(self.read(move |book, now| match book.namespace(&namespace) {
            Some(namespace) => book.credit_room(now, namespace, &terms),
            None => Err(CreditShortage::UnknownAccount),
        }))
    }

    fn usage_page(&self, namespace: NamespaceName, query: UsageQuery) -> Answer<'_, Result<UsagePage, UsageError>> {
        Box::pin(self.usage_in_pieces(namespace, query))
    }

    fn lease(&self, namespace: NamespaceName, lease: LeaseId) -> Answer<'_, Result<Option<LeaseView>, BackendError>> {
        Box::pin(async move {
            self.check_placement()?;
            self.read(move |book, now| LeaseView::of(book, now, &namespace, lease)).await
        })
    }

    fn write(&self, by: Principal, request: WriteRequest) -> Answer<'_, Result<WriteAnswer, BackendError>> {
        let WriteRequest { namespace: name, vault, id, operations, actor } = request;
        let (inner, keys) = (Arc::clone(&self.0), self.clone());
        // Definitions of limits live here even when another system enforces them.
        let agreed = if vault.is_some() { self.check_placement() } else { Ok(()) };
        // In its own task, for the same reason as a change of a limit.
        let task = crate::spawn(async move {
            agreed?;
            let may_be_first = id.sequence().is_none_or(|sequence| sequence == 1) && vault.is_none();
            let opens = may_be_first && operations.iter().any(is_first_of_namespace);
            let Some(namespace) = inner.namespace_of_write(&by, &name, opens).await? else {
                keys.check_right(by).await?;
                return Ok(WriteAnswer::Refused(WriteError::Invalid(InvalidWrite::UnknownNamespace)));
            };
            let (tx_id, log_index) = (TxId::default(), 0);
            let write = Write { namespace, vault, id, operations, tx_id, log_index, actor };
            inner.write(by, write, name).await
        });
        Box::pin(async { task.await.map_err(|error| BackendError::Failed(error.to_string()))? })
    }

    fn client_state(
        &self,
        namespace: NamespaceName,
        vault: Option<VaultName>,
        client: ClientId,
    ) -> Answer<'_, Result<u64, CreditReadError>> {
        let read = self.read(move |book, _| {
            let id = book.namespace(&namespace).ok_or(CreditReadError::NamespaceNotFound)?;
            let vault = match &vault {
                Some(name) => Some(book.vault(id, name).ok_or(CreditReadError::VaultNotFound)?),
                None => None,
            };
            Ok(book.last_committed(id, vault, &client))
        });
        Box::pin(async { read.await? })
    }

    fn grants(&self, account: AccountPath) -> Answer<'_, Result<Vec<GrantInfo>, CreditReadError>> {
        Box::pin(async move { self.read_account(&account, |book, now, id| book.grants(now, id)).await })
    }

    fn balances(&self, account: AccountPath) -> Answer<'_, Result<Vec<BalanceInfo>, CreditReadError>> {
        Box::pin(async move { self.read_account(&account, |book, now, id| book.balances(now, id)).await })
    }

    fn vaults(&self, namespace: NamespaceName, query: VaultQuery) -> Answer<'_, Result<VaultPage, BackendError>> {
        Box::pin(self.vault_page(namespace, query))
    }

    fn accounts(
        &self,
        namespace: NamespaceName,
        vault: VaultName,
        query: AccountQuery,
    ) -> Answer<'_, Result<AccountPage, CreditReadError>> {
        Box::pin(self.account_page(namespace, vault, query))
    }

    fn entries(&self, account: AccountPath, query: EntryQuery) -> Answer<'_, Result<EntryPage, CreditReadError>> {
        Box::pin(async move {
            let id = self.read_account(&account, |_, _, id| id).await?;
            Ok(self.0.host.entries((id, account.account), query).await?)
        })
    }

    fn audit(&self, namespace: NamespaceName, name: VaultName) -> Answer<'_, Result<Audit, CreditReadError>> {
        Box::pin(async move {
            let (now, id) = self.read(|book, now| (now, vault(book, &namespace, &name))).await?;
            Ok(self.0.host.audit(id?, now).await?)
        })
    }

    fn quotas(&self, namespace: NamespaceName) -> Answer<'_, Result<Option<Vec<QuotaUsage>>, BackendError>> {
        Box::pin(self.quota_usage(namespace))
    }

    fn set_quotas(&self, by: Principal, command: SetQuotas) -> Answer<'_, Result<(), QuotaError>> {
        self.set_quotas_of(by, command)
    }

    fn policy(&self, namespace: NamespaceName) -> Answer<'_, Result<Option<PolicyRevision>, BackendError>> {
        Box::pin(self.newest_policy(namespace))
    }

    fn put_policy(&self, by: Principal, command: PutPolicy) -> Answer<'_, Result<u64, PolicyError>> {
        self.put_policy_of(by, command)
    }

    fn applied_policy(&self, namespace: &NamespaceName, revision: Option<u64>) -> Option<PolicyRevision> {
        BookBackend::applied_policy(self, namespace, revision)
    }

    fn applied_usage(&self, namespace: &NamespaceName, keys: &[&LimitKey]) -> Vec<AppliedUsage> {
        self.book_usage(namespace, keys)
    }

    fn timed_out(&self) -> Answer<'_, Result<Vec<TimedOutLease>, BackendError>> {
        Box::pin(self.timed_out_leases())
    }

    fn fullness(&self, namespace: Option<&NamespaceName>) -> Vec<LimitFullness> {
        self.book_fullness(ExternalParts::default(), namespace)
    }

    fn quota_gauges(&self) -> Answer<'_, Vec<(NamespaceName, Vec<QuotaUsage>)>> {
        Box::pin(std::future::ready(self.quota_gauges_now()))
    }

    fn keys(&self) -> Option<&dyn Keys> {
        Some(self)
    }

    fn stats(&self) -> Stats {
        self.0.host.stats()
    }

    fn ready(&self) -> Result<(), String> {
        self.0.host.ready()?;
        self.check_placement().map_err(|error| error.to_string())
    }

    fn warning(&self) -> Option<String> {
        self.0.host.warning()
    }

    fn shut_down(&self) -> Answer<'_, ()> {
        Box::pin(self.0.host.shut_down())
    }
}
