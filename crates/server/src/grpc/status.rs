//! What is a status here and an HTTP status there.

use earmark_admission::{BackendError, CreditReadError, LimitError, Token};
use earmark_proto::convert::Invalid;
use tonic::Status;

use crate::body::{Unread, Why};
use crate::caller::Refused;
use crate::carry_out::NO_SUCH_LIMIT;

/// Whoever calls is not let in.
pub(super) fn refused(refused: Refused) -> Status {
    let message = refused.message();
    match refused {
        Refused::Unauthenticated => Status::unauthenticated(message),
        Refused::Forbidden | Refused::NotFromHere => Status::permission_denied(message),
        Refused::TooMany { retry_after_ms } => {
            let mut status = Status::resource_exhausted(message);
            status.metadata_mut().insert("retry-after-ms", retry_after_ms.into());
            status
        }
    }
}

/// What is malformed; nothing was done.
pub(super) fn invalid(error: &Invalid) -> Status {
    // What was found in the wrong place may be a key.
    Status::invalid_argument(Token::redact(&error.to_string()))
}

/// The backend has no answer.
pub(super) fn failed(error: &BackendError) -> Status {
    failed_with(error, error.to_string())
}

/// The backend has no answer, and these are the words for it.
pub(super) fn failed_with(error: &BackendError, message: String) -> Status {
    match error {
        BackendError::Unauthenticated => refused(Refused::Unauthenticated),
        BackendError::Overloaded(_) => Status::unavailable(message),
        _ => Status::internal(message),
    }
}

/// There is nothing to read.
pub(super) fn of_ledger(error: &CreditReadError) -> Status {
    match error {
        CreditReadError::Backend(error) => failed(error),
        other => Status::not_found(other.to_string()),
    }
}

/// A limit was not changed.
pub(super) fn of_limit(error: &LimitError) -> Status {
    match error {
        LimitError::NotFound => Status::not_found(NO_SUCH_LIMIT),
        LimitError::Backend(error) => failed(error),
        other => Status::invalid_argument(other.to_string()),
    }
}

/// A message was not read.
pub(super) fn unread(unread: &Unread) -> Status {
    let message = unread.message();
    match unread.why {
        // So do other servers of gRPC.
        Why::TooLarge => Status::resource_exhausted(message),
        Why::NoRoom => Status::unavailable(message),
        Why::TooSlow => Status::deadline_exceeded(message),
        Why::CutShort(_) => Status::invalid_argument(message),
    }
}
