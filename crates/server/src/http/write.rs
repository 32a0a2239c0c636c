//! `POST /v1/write`, its batch, and `GET /v1/clients/{client_id}`.

use axum::http::StatusCode;
use earmark_admission::{BackendError, WriteAnswer, WriteRequest};
use earmark_core::{ClientId, NamespaceName, OperationResult, Receipt, VaultName, WriteError};
use serde::Serialize;

use super::limits;
use super::operation::{WriteBatchBody, WriteBody};
use super::reply::{Handled, Reply};
use super::serve::Call;
use super::shape::CLIENT;
use crate::answer::UNAVAILABLE;
use crate::app::App;
use crate::execute;

pub(super) async fn one(app: &App, call: Call) -> Handled {
    let parsed = call.parse::<WriteBody>();
    let request = parsed.and_then(|body| body.into_request(&call).map_err(|why| Reply::invalid(&why)));
    let request = request.inspect_err(|_| execute::malformed_write(app))?;
    write(app, &call, request, None).await
}

pub(super) async fn batch(app: &App, call: Call) -> Handled {
    let body = call.parse::<WriteBatchBody>().inspect_err(|_| execute::malformed_write(app))?;
    let parts = body.parts();
    let request = body.into_request(&call).inspect_err(|_| execute::malformed_write(app));
    let request = request.map_err(|why| Reply::invalid(&why))?;
    write(app, &call, request, Some(&parts)).await
}

pub(super) async fn client(app: &App, call: Call) -> Handled {
    let Ok(client) = ClientId::new(call.name()) else {
        return Err(Reply::invalid(&CLIENT.explain(&"client_id", call.name()).unwrap_or_default()));
    };
    // The query is already validated.
    let namespace = call.query("namespace").and_then(|name| NamespaceName::new(name).ok());
    let namespace = namespace.unwrap_or_else(|| call.namespace());
    let vault = call.query("vault").and_then(|name| VaultName::new(name).ok());
    let caller = &call.context.caller;
    let is_theirs = caller.check_write_to(&namespace, vault.as_ref(), &[]);
    is_theirs.and_then(|()| caller.check_client(&client))?;
    let state = app.backend.client_state(namespace, vault, client);
    let last_committed_sequence = execute::read(app, &call.context, state).await?;
    Ok(Reply::ok(&ClientState { last_committed_sequence }))
}

async fn write(app: &App, call: &Call, request: WriteRequest, parts: Option<&[usize]>) -> Handled {
    let caller = &call.context.caller;
    let is_theirs = caller.check_write_to(&request.namespace, request.vault.as_ref(), &request.operations);
    let may_write = is_theirs.and_then(|()| caller.check_write_id(&request.id));
    may_write.and_then(|()| caller.check_operations(&request.operations))?;
    let _permit = call.context.admit(app, request.operations.len()).await?;
    let written = execute::write(app, &call.context, request).await;
    match &written.answer {
        Ok(WriteAnswer::Committed(receipt)) => {
            Ok(Reply::ok(&Committed { success: Success::of(receipt, &written.subjects) }))
        }
        Ok(WriteAnswer::Refused(error)) => Err(refused(error, written.message(error, parts))),
        Err(BackendError::Unauthenticated) => Err(Reply::unauthenticated()),
        Err(error) => Err(unavailable(error)),
    }
}

fn refused(error: &WriteError, message: String) -> Reply {
    let wire = ErrorWire {
        code: error.code(),
        message,
        operation: error.operation(),
        last_committed_sequence: error.last_committed_sequence(),
    };
    Reply::json(status(error), &NotCommitted { error: wire })
}

fn unavailable(error: &BackendError) -> Reply {
    let message = execute::unavailable(error);
    let wire = ErrorWire { code: UNAVAILABLE, message, operation: None, last_committed_sequence: None };
    Reply::json(StatusCode::SERVICE_UNAVAILABLE, &NotCommitted { error: wire })
}

fn status(error: &WriteError) -> StatusCode {
    match error {
        WriteError::Invalid(_) | WriteError::WrongScope { .. } => StatusCode::BAD_REQUEST,
        WriteError::InsufficientCredit { .. } => StatusCode::PAYMENT_REQUIRED,
        WriteError::VaultNotFound { .. } | WriteError::AccountNotFound { .. } => StatusCode::NOT_FOUND,
        WriteError::SequenceGap { .. }
        | WriteError::AlreadyCommitted { .. }
        | WriteError::SequenceReused { .. }
        | WriteError::TooManyClients
        | WriteError::KeyCommitted
        | WriteError::KeyReused
        | WriteError::TooManyKeys
        | WriteError::QuotaExceeded { .. }
        | WriteError::ConditionFailed { .. }
        | WriteError::AccountClosed { .. }
        | WriteError::AccountFrozen { .. }
        | WriteError::Conflict { .. } => StatusCode::CONFLICT,
    }
}

#[derive(Serialize)]
struct ClientState {
    last_committed_sequence: u64,
}

#[derive(Serialize)]
struct Committed<'a> {
    success: Success<'a>,
}

#[derive(Serialize)]
struct Success<'a> {
    tx_id: String,
    /// None for a write with an idempotency key.
    #[serde(skip_serializing_if = "Option::is_none")]
    sequence: Option<u64>,
    log_index: u64,
    committed_at_unix_ms: u64,
    actor: &'a str,
    results: Vec<ResultWire<'a>>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum ResultWire<'a> {
    Limit { limit: &'a str, revision: u64, status: &'static str },
    Vault { vault: &'a str },
    Account { account: &'a str },
    Entry { entry: String },
    Client { client_id: &'a str },
}

impl<'a> Success<'a> {
    fn of(receipt: &'a Receipt, subjects: &'a [String]) -> Success<'a> {
        let result = |(result, name): (&OperationResult, &'a String)| match *result {
            OperationResult::Limit { revision, status, .. } => {
                ResultWire::Limit { limit: name, revision, status: limits::name(status) }
            }
            OperationResult::Vault(_) => ResultWire::Vault { vault: name },
            OperationResult::Account(_) => ResultWire::Account { account: name },
            OperationResult::Client => ResultWire::Client { client_id: name },
            OperationResult::Entry => ResultWire::Entry { entry: receipt.tx_id.to_string() },
        };
        Success {
            tx_id: receipt.tx_id.to_string(),
            sequence: receipt.sequence,
            log_index: receipt.log_index,
            committed_at_unix_ms: receipt.committed_at.wall.get(),
            actor: receipt.actor.as_str(),
            results: receipt.results.iter().zip(subjects).map(result).collect(),
        }
    }
}

#[derive(Serialize)]
struct NotCommitted {
    error: ErrorWire,
}

#[derive(Serialize)]
struct ErrorWire {
    code: &'static str,
    message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    operation: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_committed_sequence: Option<u64>,
}
