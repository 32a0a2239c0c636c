//! What went wrong, and whether anything was done.

use crate::store::StoreError;

/// SQLite's code for a lock that another connection or process holds.
const BUSY: i32 = 5;

/// Before a commit nothing is done, whatever went wrong.
pub(super) fn refused(error: sqlx::Error) -> StoreError {
    match &error {
        sqlx::Error::Database(database) if is_busy(database.code().as_deref()) => {
            StoreError::Busy("another process holds the file")
        }
        sqlx::Error::PoolTimedOut => StoreError::Busy("no connection was free in time"),
        sqlx::Error::PoolClosed => StoreError::Busy("it is closed"),
        sqlx::Error::ColumnDecode { .. }
        | sqlx::Error::Decode(_)
        | sqlx::Error::ColumnIndexOutOfBounds { .. } => StoreError::Corrupt(error.to_string()),
        _ => StoreError::Refused(error.to_string()),
    }
}

/// When a commit fails nobody knows what the disk has.
pub(super) fn unknown(error: sqlx::Error) -> StoreError {
    match &error {
        sqlx::Error::Database(database) if is_busy(database.code().as_deref()) => {
            StoreError::Busy("another process holds the file")
        }
        _ => StoreError::Unavailable(error.to_string()),
    }
}

fn is_busy(code: Option<&str>) -> bool {
    // The upper bytes of an extended code say why; the lowest says what.
    let code = code.and_then(|code| code.parse::<i32>().ok());
    code.is_some_and(|code| code & 0xff == BUSY)
}
