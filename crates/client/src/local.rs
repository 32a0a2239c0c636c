//! A Book in this process, with the same API as a server.

mod host;

use std::sync::Arc;
use std::time::Duration;

use earmark_admission::{
    AccountPath, Amount, Backend, BackendError, BookBackend, Clock, CompleteRequest, CreditReadError,
    DeleteLimitRequest, DeleteTemplateRequest, ExtendAnswer as ExtendAnswered, ExtendRequest, LimitChange, LimitError,
    LimitQuery, OWNED_BY_GATEWAY, PAGE_MAX, PauseLimitRequest, PutLimitRequest, PutTemplateRequest, Refusal,
    ReserveAnswer as Answered, ReserveRequest, SystemClock, UsageError, WriteAnswer, WriteRequest, describe_conflict,
    describe_credit_shortage, describe_quota, describe_write_error,
};
use earmark_core::{
    AccountName, Actor, BalanceInfo, ClientId, Config, Definition, GrantInfo, LeaseId, LimitInfo, LimitKey,
    LimitStatus, NamespaceName, Operation, Principal, Template, TemplateInfo, UnixMs, Usage, VaultName,
};
use earmark_proto::v1::write_response::Result as Written;
use earmark_proto::{convert, v1};
use futures_util::FutureExt;

use self::host::LocalHost;
use crate::answer::{
    Completed, Denial, ExtendAnswer, Extended, LeaseView, LimitView, Receipt, ReserveAnswer, Scope, UsagePage,
    UsageQuery, WriteRefusal,
};
use crate::failure::Failure;
use crate::request::{CompleteItem, ExtendItem, LimitViews, Pause, ReserveItem, Write};
use crate::wire::Reader;

/// The actor of writes on a Book in this process, which authenticates no callers.
const ACTOR: &str = "system:local";
const NAME: &str = "the Book of this process";

/// The options of a Book in this process.
pub struct LocalOptions {
    /// The settings of the Book.
    pub config: Config,
    /// The clock of the Book.
    pub clock: Arc<dyn Clock>,
}

impl Default for LocalOptions {
    fn default() -> LocalOptions {
        LocalOptions { config: Config::default(), clock: Arc::new(SystemClock::new()) }
    }
}

/// A Book under a lock. It answers at once.
pub(crate) struct Local {
    backend: BookBackend<LocalHost>,
    namespace: NamespaceName,
    actor: Actor,
}

impl Local {
    pub(crate) fn new(options: LocalOptions) -> Result<Local, earmark_core::NameError> {
        Ok(Local {
            backend: BookBackend::new(Arc::new(LocalHost::new(options.config, options.clock))),
            namespace: NamespaceName::new(NamespaceName::DEFAULT)?,
            actor: Actor::new(ACTOR)?,
        })
    }

    pub(crate) async fn reserve(&self, items: &[ReserveItem]) -> Vec<Result<ReserveAnswer, Failure>> {
        let requests = items.iter().map(|item| self.reserve_request(item)).collect();
        self.backend.reserve(Principal::System, requests).await.into_iter().map(reserved).collect()
    }

    pub(crate) async fn extend(&self, items: &[ExtendItem]) -> Vec<Result<ExtendAnswer, Failure>> {
        let request = |item: &ExtendItem| ExtendRequest {
            namespace: self.namespace.clone(),
            lease: item.lease,
            number: item.number,
            add: amounts(&item.add),
            used: amounts(&item.used),
            claim: earmark_core::LeaseClaim::default(),
            renew: item.renew,
        };
        let requests = items.iter().map(request).collect();
        self.backend.extend(Principal::System, requests).await.into_iter().map(extended).collect()
    }

    pub(crate) async fn complete(&self, items: &[CompleteItem]) -> Vec<Result<Completed, Failure>> {
        let requests = items.iter().map(|item| self.complete_request(item)).collect();
        self.backend.complete(Principal::System, requests).await.into_iter().map(completed).collect()
    }

    pub(crate) async fn put_limit(&self, definition: Definition) -> Result<LimitStatus, Failure> {
        let namespace = self.namespace.clone();
        let request = PutLimitRequest { namespace, definition, expected_revision: None };
        changed(self.backend.put_limit(Principal::System, request).await)
    }

    pub(crate) async fn delete_limit(&self, key: LimitKey) -> Result<LimitStatus, Failure> {
        let namespace = self.namespace.clone();
        let request = DeleteLimitRequest { namespace, key, expected_revision: None };
        changed(self.backend.delete_limit(Principal::System, request).await)
    }

    pub(crate) async fn put_template(&self, template: Template) -> Result<u64, Failure> {
        let request = PutTemplateRequest { namespace: self.namespace.clone(), template, expected_revision: None };
        template_changed(self.backend.put_template(Principal::System, request).await)
    }

    pub(crate) async fn delete_template(&self, key: LimitKey) -> Result<(), Failure> {
        let request = DeleteTemplateRequest { namespace: self.namespace.clone(), key, expected_revision: None };
        template_changed(self.backend.delete_template(Principal::System, request).await).map(drop)
    }

    pub(crate) async fn templates(&self) -> Result<Vec<TemplateInfo>, Failure> {
        self.backend.templates(self.namespace.clone()).await.map_err(failed)
    }

    pub(crate) async fn pause_limit(&self, key: LimitKey, pause: &Pause<'_>) -> Result<Option<UnixMs>, Failure> {
        let (namespace, reason) = (self.namespace.clone(), pause.reason.to_owned());
        let request = PauseLimitRequest { namespace, key, for_ms: pause.for_ms(), reason, only_lengthen: false };
        match self.backend.pause_limit(Principal::System, request).await {
            Ok(until) => Ok(until),
            Err(LimitError::NotFound) => Err(no_such_limit()),
            Err(LimitError::Backend(error)) => Err(failed(error)),
            Err(error) => Err(Failure::Invalid { message: error.to_string() }),
        }
    }

    pub(crate) async fn limit(&self, key: LimitKey) -> Result<LimitView, Failure> {
        let found = self.backend.limit(self.namespace.clone(), key).await.map_err(failed)?;
        found.map(view).ok_or_else(no_such_limit)
    }

    pub(crate) async fn limits(&self, after: Option<LimitKey>) -> Result<LimitViews, Failure> {
        let query = LimitQuery { after, ..LimitQuery::default() };
        let page = self.backend.limits(self.namespace.clone(), query).await.map_err(failed)?;
        Ok(LimitViews { limits: page.limits.into_iter().map(view).collect(), next: page.next })
    }

    pub(crate) async fn usage(&self, key: LimitKey) -> Result<Usage, Failure> {
        let found = self.backend.usage(self.namespace.clone(), key).await.map_err(failed)?;
        found.ok_or_else(no_such_limit)
    }

    pub(crate) async fn usage_page(&self, query: UsageQuery) -> Result<UsagePage, Failure> {
        let UsageQuery { prefix, sort, after, page_size } = query;
        let page_size = page_size.and_then(|size| usize::try_from(size).ok()).unwrap_or(PAGE_MAX);
        let query = earmark_admission::UsageQuery { prefix, sort, after, page_size };
        match self.backend.usage_page(self.namespace.clone(), query).await {
            Ok(page) => Ok(UsagePage { usage: page.usage, next: page.next }),
            Err(UsageError::Backend(error)) => Err(failed(error)),
            Err(error) => Err(Failure::Invalid { message: error.to_string() }),
        }
    }

    pub(crate) async fn lease(&self, lease: LeaseId) -> Result<LeaseView, Failure> {
        let found = self.backend.lease(self.namespace.clone(), lease).await.map_err(failed)?;
        let view = found.ok_or_else(|| Failure::NotFound { message: "lease not found, or forgotten since".into() })?;
        let used = view.used.into_iter().map(|part| (part.key, part.amount)).collect();
        let earmark_admission::LeaseView { state, reserved_at, job, extensions, ends_at, .. } = view;
        Ok(LeaseView { state, reserved_at, job, extensions, used, ends_at })
    }

    pub(crate) async fn client_state(&self, scope: Scope, client: ClientId) -> Result<u64, Failure> {
        let Scope { namespace, vault } = scope;
        self.backend.client_state(namespace, vault, client).await.map_err(unread)
    }

    pub(crate) async fn balances(&self, vault: VaultName, account: AccountName) -> Result<Vec<BalanceInfo>, Failure> {
        let path = AccountPath { namespace: self.namespace.clone(), vault, account };
        self.backend.balances(path).await.map_err(unread)
    }

    pub(crate) async fn grants(&self, vault: VaultName, account: AccountName) -> Result<Vec<GrantInfo>, Failure> {
        let path = AccountPath { namespace: self.namespace.clone(), vault, account };
        self.backend.grants(path).await.map_err(unread)
    }

    /// Reserves without waiting, so that no timer is needed.
    pub(crate) fn reserve_now(&self, item: &ReserveItem) -> Option<Result<ReserveAnswer, Failure>> {
        self.backend.reserve(Principal::System, vec![self.reserve_request(item)]).now_or_never()?.pop().map(reserved)
    }

    /// Completes without waiting, for callers that cannot await, such as `Drop`.
    pub(crate) fn complete_now(&self, item: &CompleteItem) -> Option<Result<Completed, Failure>> {
        self.backend.complete(Principal::System, vec![self.complete_request(item)]).now_or_never()?.pop().map(completed)
    }

    fn reserve_request(&self, item: &ReserveItem) -> ReserveRequest {
        ReserveRequest {
            namespace: self.namespace.clone(),
            lease: item.lease,
            job: item.job.id().cloned(),
            call: None,
            by_gateway: false,
            requirements: amounts(item.job.requirements()),
        }
    }

    fn complete_request(&self, item: &CompleteItem) -> CompleteRequest {
        CompleteRequest {
            namespace: self.namespace.clone(),
            lease: item.lease,
            job: item.job.id().cloned(),
            claim: earmark_core::LeaseClaim::default(),
            actuals: amounts(item.actuals.amounts()),
            labels: item.actuals.labels().clone(),
        }
    }

    pub(crate) async fn write(&self, item: &Write) -> Result<Result<Receipt, WriteRefusal>, Failure> {
        let request = WriteRequest {
            namespace: item.scope.namespace.clone(),
            vault: item.scope.vault.clone(),
            id: item.id.clone(),
            operations: item.operations.clone(),
            actor: self.actor.clone(),
        };
        let result = match self.backend.write(Principal::System, request).await.map_err(failed)? {
            WriteAnswer::Committed(receipt) => {
                let subject = |operation: &Operation| operation.subject().to_owned();
                let subjects: Vec<String> = item.operations.iter().map(subject).collect();
                Written::Success(convert::success(&receipt, &subjects))
            }
            WriteAnswer::Refused(error) => {
                let operation = error.operation().and_then(|place| item.operations.get(place));
                let message = describe_write_error(&error, operation.map_or("", describe_conflict));
                Written::Error(convert::write_error(&error, message))
            }
        };
        Reader(NAME).written(v1::WriteResponse { result: Some(result) })
    }
}

fn amounts(amounts: &[(LimitKey, u64)]) -> Vec<Amount> {
    amounts.iter().map(|(key, amount)| Amount { key: key.clone(), amount: *amount }).collect()
}

fn failed(error: BackendError) -> Failure {
    Failure::Unavailable { server: NAME.into(), message: error.to_string() }
}

fn unread(error: CreditReadError) -> Failure {
    match error {
        CreditReadError::Backend(error) => failed(error),
        other => Failure::NotFound { message: other.to_string() },
    }
}

fn no_such_limit() -> Failure {
    Failure::NotFound { message: LimitError::NotFound.to_string() }
}

fn template_changed(changed: Result<u64, LimitError>) -> Result<u64, Failure> {
    changed.map_err(|error| match error {
        LimitError::NotFound => Failure::NotFound { message: "no template has this key".into() },
        LimitError::Backend(error) => failed(error),
        error => Failure::Invalid { message: error.to_string() },
    })
}

fn changed(changed: Result<LimitChange, LimitError>) -> Result<LimitStatus, Failure> {
    match changed {
        Ok(change) => Ok(change.status),
        Err(LimitError::NotFound) => Err(no_such_limit()),
        Err(LimitError::Backend(error)) => Err(failed(error)),
        Err(error) => Err(Failure::Invalid { message: error.to_string() }),
    }
}

fn view(info: LimitInfo) -> LimitView {
    let LimitInfo { definition, status, revision, template, .. } = info;
    LimitView { definition, status, revision, template }
}

fn reserved(answer: Result<Answered, BackendError>) -> Result<ReserveAnswer, Failure> {
    Ok(match answer.map_err(failed)? {
        Answered::Allowed { reserved_at, would_deny, .. } => ReserveAnswer::Allowed { reserved_at, would_deny },
        Answered::Denied { never: true, limited_by, .. } => ReserveAnswer::Never { limited_by },
        Answered::Denied { retry_after_ms, limited_by, .. } => {
            let retry_after = Duration::from_millis(retry_after_ms);
            ReserveAnswer::Denied(Denial { retry_after, limited_by })
        }
        Answered::Refused(refusal) => match refusal {
            Refusal::InvalidRequest { message } => ReserveAnswer::Invalid { message },
            Refusal::OwnedByGateway => ReserveAnswer::Invalid { message: OWNED_BY_GATEWAY.into() },
            Refusal::UnknownLimitKey(key) => ReserveAnswer::UnknownLimitKey(key),
            Refusal::LimitDecreasing { key, retry_after_ms } => {
                let retry_after = Duration::from_millis(retry_after_ms);
                ReserveAnswer::LimitDecreasing(Denial { retry_after, limited_by: vec![key] })
            }
            Refusal::LimitPaused { key, retry_after_ms } => {
                let retry_after = Duration::from_millis(retry_after_ms);
                ReserveAnswer::LimitPaused(Denial { retry_after, limited_by: vec![key] })
            }
            Refusal::AccountNotFound { key, .. } => ReserveAnswer::AccountNotFound(key),
            Refusal::QuotaExceeded { kind, retry_after_ms } => ReserveAnswer::QuotaExceeded {
                retry_after: Duration::from_millis(retry_after_ms),
                message: describe_quota(kind),
            },
            Refusal::LeaseExpired | Refusal::DeniedByPolicy { .. } => ReserveAnswer::LeaseExpired,
            Refusal::InsufficientCredit { key, why, .. } => {
                let message = describe_credit_shortage(why).map(str::to_owned);
                ReserveAnswer::InsufficientCredit { key, message }
            }
        },
    })
}

fn extended(answer: Result<ExtendAnswered, BackendError>) -> Result<ExtendAnswer, Failure> {
    let answer = answer.map_err(failed)?;
    let message = answer.message();
    let answer = match answer {
        ExtendAnswered::Extended { ends_at, .. } => {
            return Ok(ExtendAnswer::Extended(Extended { ends_at, message }));
        }
        ExtendAnswered::Denied { retry_after_ms, limited_by, never } => {
            Answered::Denied { retry_after_ms, limited_by, never }
        }
        ExtendAnswered::Refused(refusal) => Answered::Refused(refusal),
    };
    reserved(Ok(answer)).map(ExtendAnswer::Not)
}

fn completed(answer: Result<earmark_admission::CompleteAnswer, BackendError>) -> Result<Completed, Failure> {
    let answer = answer.map_err(failed)?;
    match answer.is_invalid || answer.owned_by_gateway || answer.exceeded.is_some() {
        true => Err(Failure::Invalid { message: answer.message.unwrap_or_default() }),
        false => Ok(Completed { reconciled: answer.reconciled, message: answer.message }),
    }
}
