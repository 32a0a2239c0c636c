//! PostgreSQL errors as store errors.

use crate::store::StoreError;

/// A failed call.
pub(super) struct Failed {
    pub(super) error: StoreError,
    /// Two transactions conflicted. Nothing was done, and an immediate retry may succeed.
    pub(super) is_conflict: bool,
    /// The connection is usable.
    pub(super) is_usable: bool,
}

/// The error of a single statement. If the database reports a failure, nothing was done. If it goes away or does not
/// answer, the outcome is unknown.
pub(super) fn failed(error: &sqlx::Error) -> Failed {
    let message = error.to_string();
    let sqlx::Error::Database(database) = error else {
        let error = match error {
            sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_) | sqlx::Error::ColumnNotFound(_) => {
                StoreError::Corrupt(message)
            }
            _ => StoreError::Unavailable(message),
        };
        return Failed { error, is_conflict: false, is_usable: false };
    };
    let code = database.code().unwrap_or_default();
    let message = format!("{} ({code})", database.message());
    match code.as_ref() {
        // Serialization failure, deadlock.
        "40001" | "40P01" => {
            let error = StoreError::Busy("transactions kept conflicting");
            Failed { error, is_conflict: true, is_usable: true }
        }
        // Another call inserted the row at the same time. A retry sees it.
        "23505" => Failed { error: StoreError::Refused(message), is_conflict: true, is_usable: true },
        "55P03" => {
            let error = StoreError::Busy("a row stayed locked too long");
            Failed { error, is_conflict: false, is_usable: true }
        }
        // Timeout, or cancelled by an operator.
        "57014" => {
            let error = StoreError::Busy("the statement timed out");
            Failed { error, is_conflict: false, is_usable: true }
        }
        // Server shutdown, connection failure.
        code if code.starts_with("57P") || code.starts_with("08") => {
            Failed { error: StoreError::Unavailable(message), is_conflict: false, is_usable: false }
        }
        _ => Failed { error: StoreError::Refused(message), is_conflict: false, is_usable: true },
    }
}

/// The error of a read.
pub(super) fn read_error(error: sqlx::Error) -> StoreError {
    failed(&error).error
}
