//! SQLite errors as store errors.

use crate::store::StoreError;

/// SQLITE_BUSY: another connection or process holds a lock.
const BUSY: i32 = 5;

/// An error before the commit: nothing was done.
pub(super) fn refused(error: sqlx::Error) -> StoreError {
    match &error {
        sqlx::Error::Database(database) if is_busy(database.code().as_deref()) => {
            StoreError::Busy("another process has locked the file")
        }
        sqlx::Error::PoolTimedOut => StoreError::Busy("no connection was free in time"),
        sqlx::Error::PoolClosed => StoreError::Busy("closed"),
        sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_) | sqlx::Error::ColumnIndexOutOfBounds { .. } => {
            StoreError::Corrupt(error.to_string())
        }
        _ => StoreError::Refused(error.to_string()),
    }
}

/// An error of the commit: the outcome is unknown.
pub(super) fn unknown(error: sqlx::Error) -> StoreError {
    match &error {
        sqlx::Error::Database(database) if is_busy(database.code().as_deref()) => {
            StoreError::Busy("another process has locked the file")
        }
        _ => StoreError::Unavailable(error.to_string()),
    }
}

fn is_busy(code: Option<&str>) -> bool {
    // The lowest byte of an extended code is the primary code.
    let code = code.and_then(|code| code.parse::<i32>().ok());
    code.is_some_and(|code| code & 0xff == BUSY)
}
