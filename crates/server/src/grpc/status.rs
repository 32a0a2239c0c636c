//! Errors as gRPC statuses.

use earmark_admission::{BackendError, CreditReadError, LimitError, StatementError, UsageError};
use earmark_core::redact_api_keys;
use tonic::Status;

use super::answer::Answer;
use crate::body::{BodyError, BodyErrorKind};
use crate::caller::AuthError;
use crate::execute::LIMIT_NOT_FOUND;

/// Metadata with the time after which a caller that exceeded its rate may retry.
const RETRY_AFTER: &str = "retry-after-ms";

/// The retry hint of an answer to a caller that exceeded its rate.
pub(super) fn retry_after_ms(answer: &Answer) -> Option<u64> {
    let Answer::Status(status) = answer else { return None };
    retry_after_of(status)
}

/// The retry hint of a status.
pub(super) fn retry_after_of(status: &Status) -> Option<u64> {
    status.metadata().get(RETRY_AFTER)?.to_str().ok()?.parse().ok()
}

/// A request that is rejected for its credentials, its role or its rate.
impl From<AuthError> for Status {
    fn from(error: AuthError) -> Status {
        // The message may quote a key that was sent in a wrong field.
        let message = redact_api_keys(&error.message()).into_owned();
        match error {
            AuthError::Unauthenticated | AuthError::ClientUnauthenticated | AuthError::Certificate(_) => {
                Status::unauthenticated(message)
            }
            AuthError::Forbidden(_) | AuthError::NotLocal => Status::permission_denied(message),
            AuthError::RateLimited { retry_after_ms } => {
                let mut status = Status::resource_exhausted(message);
                status.metadata_mut().insert(RETRY_AFTER, retry_after_ms.into());
                status
            }
        }
    }
}

/// A failed backend.
pub(super) fn failed(error: &BackendError) -> Status {
    failed_with(error, error.to_string())
}

/// A failed backend, with this message.
pub(super) fn failed_with(error: &BackendError, message: String) -> Status {
    match error {
        BackendError::Unauthenticated => AuthError::Unauthenticated.into(),
        BackendError::Overloaded(_) => Status::unavailable(message),
        _ => Status::internal(message),
    }
}

/// A failed read of a vault.
pub(super) fn of_ledger(error: &CreditReadError) -> Status {
    match error {
        CreditReadError::Backend(error) => failed(error),
        other => Status::not_found(other.to_string()),
    }
}

/// A refused or failed statement.
pub(super) fn of_statement(error: &StatementError) -> Status {
    match error {
        StatementError::Credit(error) => of_ledger(error),
        StatementError::HistoryDropped { .. } => Status::failed_precondition(error.to_string()),
        other => Status::invalid_argument(redact_api_keys(&other.to_string())),
    }
}

/// A refused or failed list of limits with their usage.
pub(super) fn of_usage(error: &UsageError) -> Status {
    match error {
        UsageError::Backend(error) => failed(error),
        other => Status::invalid_argument(other.to_string()),
    }
}

/// A refused or failed change of a limit or template.
pub(super) fn of_limit(error: &LimitError) -> Status {
    match error {
        LimitError::NotFound => Status::not_found(LIMIT_NOT_FOUND),
        LimitError::Backend(error) => failed(error),
        LimitError::QuotaExceeded(_) => Status::resource_exhausted(error.to_string()),
        LimitError::RevisionDiffers { .. } | LimitError::TooManyPauses { .. } => {
            Status::failed_precondition(error.to_string())
        }
        other => Status::invalid_argument(other.to_string()),
    }
}

/// A request message that could not be read.
pub(super) fn body_error(error: &BodyError) -> Status {
    let message = error.message();
    match error.kind {
        // As other gRPC servers do.
        BodyErrorKind::TooLarge => Status::resource_exhausted(message),
        BodyErrorKind::NoMemory(_) => Status::unavailable(message),
        BodyErrorKind::TooSlow => Status::deadline_exceeded(message),
        BodyErrorKind::Incomplete(_) => Status::invalid_argument(message),
    }
}
