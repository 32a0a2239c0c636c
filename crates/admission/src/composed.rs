//! A backend composed of a registry (a Book), a limit enforcer and a credit store, each in the Book or elsewhere.
//!
//! No command spans two parts, so requests run in steps that are atomic and repeatable. A reserve first reserves the
//! limits, which registers its lease, and then holds credit. A retry gets the same answer whatever happened between two
//! steps: a crash, a duplicate, or the complete of the same lease.

mod change_log;
mod complete;
mod extend;
mod known_accounts;
mod lease_set;
mod limits;
mod quotas;
mod reserve;

pub use reserve::CREDIT_RETRY_MS;

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::task::Poll;
use std::time::Duration;

use earmark_core::{
    Actor, BalanceInfo, ClientId, ClientOwner, CreditTerms, ExternalParts, ExternalSetup, GrantInfo, InvalidWrite,
    LeaseId, LimitInfo, LimitKey, NamespaceName, PolicyRevision, Principal, PutPolicy, QuotaUsage, SetQuotas,
    TemplateInfo, UnixMs, Usage, VaultName, WriteError,
};

use crate::applied::{AppliedUsage, TimedOutLease};
use crate::backend::{
    AccountPath, Answer, Answers, Backend, BackendError, CompleteAnswer, CompleteRequest, DeleteLimitRequest,
    LimitChange, LimitError, LimitPage, LimitQuery, PutLimitRequest, ReserveAnswer, ReserveRequest, Stats,
};
use crate::book_host::{BookBackend, BookHost, limit_keys};
use crate::callers::Keys;
use crate::credit_lists::{AccountPage, AccountQuery, EntryQuery, VaultPage, VaultQuery};
use crate::credits::{Credits, Writer};
use crate::extend::{ExtendAnswer, ExtendRequest};
use crate::fullness::LimitFullness;
use crate::lease_view::LeaseView;
use crate::limits::{Limits, Registry};
use crate::pauses::PauseLimitRequest;
use crate::policies::PolicyError;
use crate::quotas::QuotaError;
use crate::registry::PlacementError;
use crate::templates::{DeleteTemplateRequest, PutTemplateRequest};
use crate::usage::{UsageError, UsagePage, UsageQuery};
use crate::writes::{Audit, CreditReadError, CreditRoom, EntryPage, WriteAnswer, WriteRequest};
use known_accounts::KnownAccounts;
use lease_set::LeaseSet;
use quotas::credit_quotas;

/// Interval of the sweep for deleted limits. Nothing waits for it.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// A backend composed of parts.
pub struct Composed<H>(Arc<Parts<H>>);

/// The parts of a composed backend, which its tasks share.
struct Parts<H> {
    registry: BookBackend<H>,
    limits: Arc<dyn Limits>,
    credits: Arc<dyn Credits>,
    setup: ExternalSetup,
    /// Whether the registry has recorded which parts are kept elsewhere.
    is_recorded: AtomicBool,
    is_stopped: AtomicBool,
    /// Leases whose reserve took no credit. An extension may have, which the limits tell when the lease is completed.
    creditless: LeaseSet,
    /// Leases that no gateway made, and that are not those of calls. Anyone may complete them.
    unowned: LeaseSet,
    accounts: KnownAccounts,
}

impl<H: BookHost> Composed<H> {
    /// Composes a backend. `elsewhere` names the parts outside the registry's Book. Needs a tokio runtime.
    pub fn new(
        registry: BookBackend<H>,
        limits: Arc<dyn Limits>,
        credits: Arc<dyn Credits>,
        external: ExternalParts,
    ) -> Composed<H> {
        let setup = ExternalSetup { parts: external, ledger: limits.ledger() };
        let parts = Arc::new(Parts {
            registry: registry.with_placement(setup),
            limits,
            credits,
            setup,
            is_recorded: AtomicBool::new(false),
            is_stopped: AtomicBool::new(false),
            creditless: LeaseSet::default(),
            unowned: LeaseSet::default(),
            accounts: KnownAccounts::default(),
        });
        crate::spawn(sweep_deleted_limits(Arc::downgrade(&parts)));
        Composed(parts)
    }

    /// Records in the registry which parts are kept elsewhere.
    ///
    /// # Errors
    /// When the registry cannot record it, or has another placement.
    pub async fn start(&self) -> Result<(), PlacementError> {
        self.0.ensure_placement().await
    }

    /// Runs the steps in their own task, so that they finish even when the caller disconnects.
    async fn finish<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> Result<T, BackendError> {
        crate::spawn(work).await.map_err(|error| BackendError::Failed(error.to_string()))
    }
}

/// Sweeps deleted limits until the backend is dropped or shut down.
async fn sweep_deleted_limits<H: BookHost>(parts: Weak<Parts<H>>) {
    let mut seen = None;
    loop {
        tokio::time::sleep(SWEEP_INTERVAL).await;
        let Some(parts) = parts.upgrade().filter(|parts| !parts.is_stopped.load(Ordering::Relaxed)) else {
            return;
        };
        if parts.ensure_placement().await.is_ok() && parts.setup.parts.limits {
            seen = parts.forget_absent_limits(seen).await;
        }
    }
}

/// Awaits all futures concurrently. Results are in order.
pub(crate) async fn all<T: Send>(mut waiting: Vec<Answer<'_, T>>) -> Vec<T> {
    let mut done: Vec<Option<T>> = waiting.iter().map(|_| None).collect();
    std::future::poll_fn(|context| {
        for (answer, place) in waiting.iter_mut().zip(&mut done) {
            if place.is_none()
                && let Poll::Ready(answer) = Pin::new(answer).poll(context)
            {
                *place = Some(answer);
            }
        }
        if done.iter().all(Option::is_some) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    done.into_iter().flatten().collect()
}

impl<H: BookHost> Parts<H> {
    /// Makes sure that the registry has recorded the placement, and that nobody has changed it since.
    async fn ensure_placement(&self) -> Result<(), PlacementError> {
        if !self.is_recorded.load(Ordering::Acquire) {
            self.registry.record_placement(self.setup).await?;
            self.is_recorded.store(true, Ordering::Release);
        }
        self.registry.check_placement()
    }

    /// Authorizes the caller and returns the actor, because limits and credit stores do not check keys.
    async fn authorize(&self, by: Principal) -> Result<Option<Actor>, BackendError> {
        self.registry.check_right(by.clone()).await?;
        match by {
            Principal::System => Ok(None),
            Principal::Actor(actor) | Principal::Session { actor, .. } => Ok(Some(actor)),
            Principal::Anonymous | Principal::Key(_) => {
                let actor = self.registry.0.host.with_book(|book| book.actor(&by));
                // A new key may have taken the slot of a revoked one in between.
                actor.map(Some).ok_or(BackendError::Unauthenticated)
            }
        }
    }

    /// Applies a transaction of a namespace and enforces the limits that it changed. A retry does so too, in case the
    /// first attempt failed in between.
    async fn write_namespace(&self, by: Principal, request: WriteRequest) -> Result<WriteAnswer, BackendError> {
        self.ensure_placement().await?;
        let (namespace, keys) = (request.namespace.clone(), limit_keys(&request.operations));
        for key in &keys {
            self.finish_change(&namespace, key).await?;
        }
        let answer = self.registry.write(by, request).await?;
        if matches!(answer, WriteAnswer::Committed(_)) {
            for key in keys {
                self.enforce_definition(&namespace, &key).await?;
            }
        }
        Ok(answer)
    }

    /// The caller of a write, with its claim to the client id, if the write has one.
    fn writer(&self, by: Principal, namespace: &NamespaceName, client: Option<&ClientId>) -> Writer {
        let host = Arc::clone(&self.registry.0.host);
        let now = host.now();
        let (claim, quotas) =
            host.with_book(|book| (book.client_claim(&by, client), credit_quotas(book, now, namespace)));
        let is_owner_valid = move |owner: &ClientOwner| {
            let now = host.now();
            host.with_book(|book| book.is_owner_valid(now, owner))
        };
        Writer { by, claim, is_owner_valid: Arc::new(is_owner_valid), quotas }
    }

    async fn write_vault(
        &self,
        by: Principal,
        request: WriteRequest,
        vault: &VaultName,
    ) -> Result<WriteAnswer, BackendError> {
        self.ensure_placement().await?;
        match self.registry.check_vault(&request.namespace, vault).await {
            Ok(()) => {
                let writer = self.writer(by, &request.namespace, request.id.client());
                self.credits.write(writer, request).await
            }
            Err(CreditReadError::NamespaceNotFound) => {
                Ok(WriteAnswer::Refused(WriteError::Invalid(InvalidWrite::UnknownNamespace)))
            }
            Err(CreditReadError::VaultNotFound | CreditReadError::AccountNotFound) => {
                Ok(WriteAnswer::Refused(WriteError::VaultNotFound { operation: None }))
            }
            Err(CreditReadError::Backend(error)) => Err(error),
        }
    }

    async fn check_account(&self, path: &AccountPath) -> Result<(), CreditReadError> {
        self.registry.check_vault(&path.namespace, &path.vault).await
    }
}

impl<H: BookHost> Backend for Composed<H> {
    fn reserve(&self, by: Principal, requests: Vec<ReserveRequest>) -> Answers<'_, ReserveAnswer> {
        let count = requests.len();
        Box::pin(async move {
            let actor = match self.0.authorize(by).await {
                Ok(actor) => actor,
                Err(error) => return vec![Err(error); count],
            };
            // A single step needs no task of its own.
            if requests.iter().all(|request| self.0.has_only_limits(request)) {
                return self.0.reserve(actor, requests).await;
            }
            let parts = Arc::clone(&self.0);
            let reserved = Composed::<H>::finish(async move {
                let is_behind = |r: &ReserveRequest| parts.has_unknown(&r.namespace, &r.requirements);
                if requests.iter().any(is_behind) {
                    parts.catch_up().await;
                }
                parts.reserve(actor, requests).await
            })
            .await;
            reserved.unwrap_or_else(|error| vec![Err(error); count])
        })
    }

    fn extend(&self, by: Principal, requests: Vec<ExtendRequest>) -> Answers<'_, ExtendAnswer> {
        let count = requests.len();
        let parts = Arc::clone(&self.0);
        Box::pin(async move {
            let actor = match parts.authorize(by).await {
                Ok(actor) => actor,
                Err(error) => return vec![Err(error); count],
            };
            let extended = Composed::<H>::finish(async move { parts.extend(actor, requests).await }).await;
            extended.unwrap_or_else(|error| vec![Err(error); count])
        })
    }

    fn complete(&self, by: Principal, requests: Vec<CompleteRequest>) -> Answers<'_, CompleteAnswer> {
        let count = requests.len();
        let parts = Arc::clone(&self.0);
        Box::pin(async move {
            let actor = match parts.authorize(by).await {
                Ok(actor) => actor,
                Err(error) => return vec![Err(error); count],
            };
            let completed = Composed::<H>::finish(async move { parts.complete(actor, requests).await }).await;
            completed.unwrap_or_else(|error| vec![Err(error); count])
        })
    }

    fn put_limit(&self, by: Principal, request: PutLimitRequest) -> Answer<'_, Result<LimitChange, LimitError>> {
        let parts = Arc::clone(&self.0);
        let put = async move { parts.put_limit(by, request).await };
        Box::pin(async move { Composed::<H>::finish(put).await? })
    }

    fn delete_limit(&self, by: Principal, request: DeleteLimitRequest) -> Answer<'_, Result<LimitChange, LimitError>> {
        let parts = Arc::clone(&self.0);
        let delete = async move { parts.delete_limit(by, request).await };
        Box::pin(async move { Composed::<H>::finish(delete).await? })
    }

    fn pause_limit(&self, by: Principal, request: PauseLimitRequest) -> Answer<'_, Result<Option<UnixMs>, LimitError>> {
        Box::pin(async move {
            self.0.ensure_placement().await.map_err(BackendError::from)?;
            self.0.registry.pause_limit(by, request).await
        })
    }

    fn put_template(&self, by: Principal, request: PutTemplateRequest) -> Answer<'_, Result<u64, LimitError>> {
        Box::pin(async move {
            self.0.ensure_placement().await.map_err(BackendError::from)?;
            self.0.registry.put_template(by, request).await
        })
    }

    fn delete_template(&self, by: Principal, request: DeleteTemplateRequest) -> Answer<'_, Result<u64, LimitError>> {
        Box::pin(async move {
            self.0.ensure_placement().await.map_err(BackendError::from)?;
            self.0.registry.delete_template(by, request).await
        })
    }

    fn template_of(&self, namespace: &NamespaceName, key: &LimitKey) -> Option<LimitKey> {
        self.0.registry.template_of(namespace, key)
    }

    fn applied_limit(&self, namespace: &NamespaceName, key: &LimitKey) -> Option<Arc<LimitInfo>> {
        Registry::limit(&self.0.registry, namespace, key)
    }

    fn templates(&self, namespace: NamespaceName) -> Answer<'_, Result<Vec<TemplateInfo>, BackendError>> {
        self.0.registry.templates(namespace)
    }

    fn limits(&self, namespace: NamespaceName, query: LimitQuery) -> Answer<'_, Result<LimitPage, BackendError>> {
        Box::pin(self.0.limits(namespace, query))
    }

    fn limit(&self, namespace: NamespaceName, key: LimitKey) -> Answer<'_, Result<Option<LimitInfo>, BackendError>> {
        Box::pin(self.0.limit(namespace, key))
    }

    fn usage(&self, namespace: NamespaceName, key: LimitKey) -> Answer<'_, Result<Option<Usage>, BackendError>> {
        Box::pin(self.0.usage(namespace, key))
    }

    fn credit_room(
        &self,
        namespace: NamespaceName,
        terms: CreditTerms,
    ) -> Answer<'_, Result<CreditRoom, BackendError>> {
        self.0.credits.room(namespace, terms)
    }

    fn usage_page(&self, namespace: NamespaceName, query: UsageQuery) -> Answer<'_, Result<UsagePage, UsageError>> {
        Box::pin(self.0.usage_page(namespace, query))
    }

    fn lease(&self, namespace: NamespaceName, lease: LeaseId) -> Answer<'_, Result<Option<LeaseView>, BackendError>> {
        Box::pin(async move {
            self.0.registry.check_placement()?;
            self.0.limits.lease(namespace, lease).await
        })
    }

    fn write(&self, by: Principal, request: WriteRequest) -> Answer<'_, Result<WriteAnswer, BackendError>> {
        let parts = Arc::clone(&self.0);
        let write = async move {
            parts.registry.check_right(by.clone()).await?;
            match request.vault.clone() {
                None => parts.write_namespace(by, request).await,
                Some(vault) => parts.write_vault(by, request, &vault).await,
            }
        };
        Box::pin(async move { Composed::<H>::finish(write).await? })
    }

    fn client_state(
        &self,
        namespace: NamespaceName,
        vault: Option<VaultName>,
        client: ClientId,
    ) -> Answer<'_, Result<u64, CreditReadError>> {
        Box::pin(async move {
            let Some(vault) = vault else {
                return self.0.registry.client_state(namespace, None, client).await;
            };
            self.0.registry.check_vault(&namespace, &vault).await?;
            self.0.credits.client_state(namespace, vault, client).await
        })
    }

    fn grants(&self, account: AccountPath) -> Answer<'_, Result<Vec<GrantInfo>, CreditReadError>> {
        Box::pin(async move {
            self.0.check_account(&account).await?;
            self.0.credits.grants(account).await
        })
    }

    fn balances(&self, account: AccountPath) -> Answer<'_, Result<Vec<BalanceInfo>, CreditReadError>> {
        Box::pin(async move {
            self.0.check_account(&account).await?;
            self.0.credits.balances(account).await
        })
    }

    fn vaults(&self, namespace: NamespaceName, query: VaultQuery) -> Answer<'_, Result<VaultPage, BackendError>> {
        self.0.registry.vaults(namespace, query)
    }

    fn accounts(
        &self,
        namespace: NamespaceName,
        vault: VaultName,
        query: AccountQuery,
    ) -> Answer<'_, Result<AccountPage, CreditReadError>> {
        Box::pin(async move {
            self.0.registry.check_vault(&namespace, &vault).await?;
            self.0.credits.accounts(namespace, vault, query).await
        })
    }

    fn entries(&self, account: AccountPath, query: EntryQuery) -> Answer<'_, Result<EntryPage, CreditReadError>> {
        Box::pin(async move {
            self.0.check_account(&account).await?;
            self.0.credits.entries(account, query).await
        })
    }

    fn audit(&self, namespace: NamespaceName, vault: VaultName) -> Answer<'_, Result<Audit, CreditReadError>> {
        Box::pin(async move {
            self.0.registry.check_vault(&namespace, &vault).await?;
            self.0.credits.audit(namespace, vault).await
        })
    }

    fn quotas(&self, namespace: NamespaceName) -> Answer<'_, Result<Option<Vec<QuotaUsage>>, BackendError>> {
        Box::pin(self.0.quotas(namespace))
    }

    fn set_quotas(&self, by: Principal, command: SetQuotas) -> Answer<'_, Result<(), QuotaError>> {
        if let Some(error) = self.0.find_unenforced(&command) {
            return Box::pin(std::future::ready(Err(error)));
        }
        self.0.registry.set_quotas_of(by, command)
    }

    fn policy(&self, namespace: NamespaceName) -> Answer<'_, Result<Option<PolicyRevision>, BackendError>> {
        Box::pin(self.0.registry.newest_policy(namespace))
    }

    fn put_policy(&self, by: Principal, command: PutPolicy) -> Answer<'_, Result<u64, PolicyError>> {
        self.0.registry.put_policy_of(by, command)
    }

    fn applied_policy(&self, namespace: &NamespaceName, revision: Option<u64>) -> Option<PolicyRevision> {
        self.0.registry.applied_policy(namespace, revision)
    }

    fn applied_usage(&self, namespace: &NamespaceName, keys: &[&LimitKey]) -> Vec<AppliedUsage> {
        let ExternalParts { limits, credit } = self.0.setup.parts;
        let mut usages = self.0.registry.book_usage(namespace, keys);
        for (usage, key) in usages.iter_mut().zip(keys) {
            let is_credit = self.0.is_credit(namespace, key);
            if if is_credit { credit } else { limits } {
                // The registry knows the capacity of a limit, but neither its use nor a balance.
                *usage = AppliedUsage { available: None, capacity: usage.capacity.filter(|_| !is_credit) };
            }
        }
        usages
    }

    fn timed_out(&self) -> Answer<'_, Result<Vec<TimedOutLease>, BackendError>> {
        Box::pin(self.0.registry.timed_out_leases())
    }

    fn fullness(&self, namespace: Option<&NamespaceName>) -> Vec<LimitFullness> {
        self.0.registry.book_fullness(self.0.setup.parts, namespace)
    }

    fn quota_gauges(&self) -> Answer<'_, Vec<(NamespaceName, Vec<QuotaUsage>)>> {
        Box::pin(self.0.quota_gauges())
    }

    fn keys(&self) -> Option<&dyn Keys> {
        Some(self)
    }

    fn stats(&self) -> Stats {
        let registry = self.0.registry.stats();
        let limits = self.0.limits.stats();
        let decreasing_limits = registry.decreasing_limits.max(limits.decreasing_limits);
        let is_expiry_waiting =
            registry.is_expiry_waiting || limits.is_expiry_waiting || self.0.credits.is_expiry_waiting();
        Stats {
            limits: registry.limits,
            decreasing_limits,
            paused_limits: registry.paused_limits,
            is_expiry_waiting,
            ..limits
        }
    }

    fn warning(&self) -> Option<String> {
        self.0.registry.warning()
    }

    fn ready(&self) -> Result<(), String> {
        let mut reasons: Vec<String> = Vec::new();
        let mut say = |what: &str, ready: Result<(), String>| {
            // Parts on one Book give one reason.
            if let Err(why) = ready
                && !reasons.iter().any(|reason| reason.ends_with(&why))
            {
                reasons.push(format!("{what}: {why}"));
            }
        };
        say("the registry", self.0.registry.ready());
        say("limits", self.0.limits.ready());
        say("credit", self.0.credits.ready());
        if reasons.is_empty() && !self.0.is_recorded.load(Ordering::Acquire) {
            reasons.push("the registry: the placement of limits and credit is not recorded yet".into());
        }
        if reasons.is_empty() { Ok(()) } else { Err(reasons.join("; ")) }
    }

    fn shut_down(&self) -> Answer<'_, ()> {
        Box::pin(async {
            self.0.is_stopped.store(true, Ordering::Relaxed);
            self.0.limits.shut_down().await;
            self.0.credits.shut_down().await;
            self.0.registry.shut_down().await;
        })
    }
}
