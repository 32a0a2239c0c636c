//! A Book in this process, behind the same API as a server.

mod direct;

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use earmark_admission::{
    AccountPath, Amount, Backend, BackendError, BookBackend, Clock, CompleteRequest, CreditReadError,
    DeleteLimitRequest, LimitChange, LimitError, PutLimitRequest, Refusal, ReserveAnswer as Answered,
    ReserveRequest, SystemClock, WriteAnswer, WriteRequest, describe_credit_shortage, describe_write_error,
};
use earmark_core::{
    Actor, Config, LimitInfo, LimitKey, NamespaceName, OperationResult, Receipt as Committed, WriteError,
};

use self::direct::Direct;
use crate::ask::{
    Answer, Ask, CompleteItem, Completed, Denial, LimitView, OperationOutcome, Receipt, ReserveAnswer,
    ReserveItem, Scope, WriteCode, WriteItem, WriteRefusal,
};
use crate::failure::Failure;

/// Who is behind the writes of a process that asks nobody.
const ACTOR: &str = "system:local";
const NAME: &str = "the Book of this process";

/// How a Book in this process is set up.
pub struct LocalOptions {
    /// The settings of the Book.
    pub config: Config,
    /// Where its time comes from.
    pub clock: Arc<dyn Clock>,
}

impl Default for LocalOptions {
    fn default() -> LocalOptions {
        LocalOptions { config: Config::default(), clock: Arc::new(SystemClock::new()) }
    }
}

/// A Book under a lock. What is asked of it is answered at once.
pub(crate) struct Local {
    backend: BookBackend<Direct>,
    namespace: NamespaceName,
    actor: Actor,
}

impl Local {
    pub(crate) fn new(options: LocalOptions) -> Result<Local, earmark_core::NameError> {
        Ok(Local {
            backend: BookBackend::new(Arc::new(Direct::new(options.config, options.clock))),
            namespace: NamespaceName::new(NamespaceName::DEFAULT)?,
            actor: Actor::new(ACTOR)?,
        })
    }

    pub(crate) async fn ask(&self, ask: &Ask) -> Result<Answer, Failure> {
        let namespace = self.namespace.clone();
        match ask {
            Ask::Reserve(items) => {
                let requests = items.iter().map(|item| self.reserve_request(item)).collect();
                let answers = self.backend.reserve(requests).await;
                Ok(Answer::Reserve(answers.into_iter().map(reserved).collect()))
            }
            Ask::Complete(items) => {
                let requests = items.iter().map(|item| self.complete_request(item)).collect();
                let answers = self.backend.complete(requests).await;
                Ok(Answer::Complete(answers.into_iter().map(completed).collect()))
            }
            Ask::PutLimit(definition) => {
                let definition = (**definition).clone();
                let request = PutLimitRequest { namespace, definition, expected_revision: None };
                changed(self.backend.put_limit(request).await)
            }
            Ask::DeleteLimit(key) => {
                let request = DeleteLimitRequest { namespace, key: key.clone(), expected_revision: None };
                changed(self.backend.delete_limit(request).await)
            }
            Ask::Limit(key) => {
                let found = self.backend.limit(namespace, key.clone()).await.map_err(failed)?;
                Ok(Answer::Limits(vec![view(found.ok_or_else(no_such_limit)?)]))
            }
            Ask::Limits => {
                let found = self.backend.limits(namespace).await.map_err(failed)?;
                Ok(Answer::Limits(found.into_iter().map(view).collect()))
            }
            Ask::Usage(key) => {
                let found = self.backend.usage(namespace, key.clone()).await.map_err(failed)?;
                Ok(Answer::Usage(found.ok_or_else(no_such_limit)?))
            }
            Ask::Write(item) => self.write(item).await.map(Answer::Write),
            Ask::ClientState { scope: Scope { namespace, vault }, client } => {
                let state = self.backend.client_state(namespace.clone(), vault.clone(), client.clone());
                Ok(Answer::ClientState(state.await.map_err(unread)?))
            }
            Ask::Balances { vault, account } => {
                let path = AccountPath { namespace, vault: vault.clone(), account: account.clone() };
                Ok(Answer::Balances(self.backend.balances(path).await.map_err(unread)?))
            }
        }
    }

    /// Reserves without waiting, so that no timer is needed for it.
    pub(crate) fn reserve_now(&self, item: &ReserveItem) -> Option<Result<ReserveAnswer, Failure>> {
        at_once(self.backend.reserve(vec![self.reserve_request(item)])).map(reserved)
    }

    /// Completes without waiting, from where nothing can be awaited.
    pub(crate) fn complete_now(&self, item: &CompleteItem) -> Option<Result<Completed, Failure>> {
        at_once(self.backend.complete(vec![self.complete_request(item)])).map(completed)
    }

    fn reserve_request(&self, item: &ReserveItem) -> ReserveRequest {
        ReserveRequest {
            namespace: self.namespace.clone(),
            lease: item.lease,
            job: item.job.id().cloned(),
            requirements: amounts(item.job.requirements()),
        }
    }

    fn complete_request(&self, item: &CompleteItem) -> CompleteRequest {
        CompleteRequest {
            namespace: self.namespace.clone(),
            lease: item.lease,
            job: item.job.id().cloned(),
            actuals: amounts(item.actuals.amounts()),
        }
    }

    async fn write(&self, item: &WriteItem) -> Result<Result<Receipt, WriteRefusal>, Failure> {
        let request = WriteRequest {
            namespace: item.scope.namespace.clone(),
            vault: item.scope.vault.clone(),
            client: item.client.clone(),
            sequence: item.sequence,
            operations: item.operations.clone(),
            actor: self.actor.clone(),
        };
        match self.backend.write(request).await.map_err(failed)? {
            WriteAnswer::Committed(receipt) => Ok(Ok(committed(&receipt, item))),
            WriteAnswer::Refused(error) => refused(&error).map(Err),
        }
    }
}

/// The one answer, if it is there at once.
fn at_once<T>(answers: impl Future<Output = Vec<T>>) -> Option<T> {
    match pin!(answers).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answers) => answers.into_iter().next(),
        Poll::Pending => None,
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

fn changed(changed: Result<LimitChange, LimitError>) -> Result<Answer, Failure> {
    match changed {
        Ok(change) => Ok(Answer::LimitStatus(change.status)),
        Err(LimitError::NotFound) => Err(no_such_limit()),
        Err(LimitError::Backend(error)) => Err(failed(error)),
        Err(error) => Err(Failure::Invalid { message: error.to_string() }),
    }
}

fn view(info: LimitInfo) -> LimitView {
    LimitView { definition: info.definition, status: info.status, revision: info.revision }
}

fn reserved(answer: Result<Answered, BackendError>) -> Result<ReserveAnswer, Failure> {
    Ok(match answer.map_err(failed)? {
        Answered::Allowed { reserved_at } => ReserveAnswer::Allowed { reserved_at },
        Answered::Denied { never: true, limited_by, .. } => ReserveAnswer::Never { limited_by },
        Answered::Denied { retry_after_ms, limited_by, .. } => {
            let retry_after = Duration::from_millis(retry_after_ms);
            ReserveAnswer::Denied(Denial { retry_after, limited_by })
        }
        Answered::Refused(refusal) => match refusal {
            Refusal::InvalidRequest { message } => ReserveAnswer::Invalid { message },
            Refusal::UnknownLimitKey(key) => ReserveAnswer::UnknownLimitKey(key),
            Refusal::LimitDecreasing { key, retry_after_ms } => {
                let retry_after = Duration::from_millis(retry_after_ms);
                ReserveAnswer::LimitDecreasing(Denial { retry_after, limited_by: vec![key] })
            }
            Refusal::LeaseExpired => ReserveAnswer::LeaseExpired,
            Refusal::InsufficientCredit { key, why, .. } => {
                let message = describe_credit_shortage(why).map(str::to_owned);
                ReserveAnswer::InsufficientCredit { key, message }
            }
        },
    })
}

fn completed(answer: Result<earmark_admission::CompleteAnswer, BackendError>) -> Result<Completed, Failure> {
    let answer = answer.map_err(failed)?;
    match answer.is_invalid {
        true => Err(Failure::Invalid { message: answer.message.unwrap_or_default() }),
        false => Ok(Completed { reconciled: answer.reconciled, message: answer.message }),
    }
}

fn committed(receipt: &Committed, item: &WriteItem) -> Receipt {
    let result = |(result, operation): (&OperationResult, &earmark_core::Operation)| {
        let name = operation.subject().to_owned();
        match result {
            OperationResult::Limit { revision, .. } => {
                OperationOutcome::Limit { key: name, revision: *revision }
            }
            OperationResult::Vault(_) => OperationOutcome::Vault(name),
            OperationResult::Account(_) => OperationOutcome::Account(name),
            OperationResult::Entry => OperationOutcome::Entry(receipt.tx_id.to_string()),
        }
    };
    Receipt {
        tx_id: receipt.tx_id.to_string(),
        sequence: receipt.sequence,
        log_index: receipt.log_index,
        committed_at: receipt.committed_at.wall,
        actor: receipt.actor.to_string(),
        results: receipt.results.iter().zip(&item.operations).map(result).collect(),
    }
}

fn refused(error: &WriteError) -> Result<WriteRefusal, Failure> {
    let code = WriteCode::named(error.code());
    Ok(WriteRefusal {
        code: code.ok_or_else(|| Failure::Strange { server: NAME.into(), what: error.code().into() })?,
        message: describe_write_error(error),
        operation: error.operation().and_then(|place| u32::try_from(place).ok()),
        last_committed_sequence: error.last_committed_sequence(),
    })
}
