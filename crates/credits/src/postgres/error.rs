//! What went wrong, and whether anything was done.

use crate::store::StoreError;

/// What a failed call says about itself.
pub(super) struct Failed {
    pub(super) error: StoreError,
    /// Nothing was done, and the same may go well at once: two transactions were in each other's way.
    pub(super) is_clash: bool,
    /// The connection can be used again.
    pub(super) is_whole: bool,
}

/// A call that is one statement. If the database itself says that it failed then nothing was done; if the database says that it
/// is going away, or nothing at all, nobody knows.
pub(super) fn failed(error: &sqlx::Error) -> Failed {
    let message = error.to_string();
    let sqlx::Error::Database(database) = error else {
        let error = match error {
            sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_) | sqlx::Error::ColumnNotFound(_) => {
                StoreError::Corrupt(message)
            }
            _ => StoreError::Unavailable(message),
        };
        return Failed { error, is_clash: false, is_whole: false };
    };
    let code = database.code().unwrap_or_default();
    let message = format!("{} ({code})", database.message());
    match code.as_ref() {
        // A serialization failure, a deadlock.
        "40001" | "40P01" => {
            let error = StoreError::Busy("others were in the way again and again");
            Failed { error, is_clash: true, is_whole: true }
        }
        // A row that another has added in the same moment. Whoever tries again sees it.
        "23505" => Failed { error: StoreError::Refused(message), is_clash: true, is_whole: true },
        "55P03" => {
            let error = StoreError::Busy("somebody holds a lock on a row for too long");
            Failed { error, is_clash: false, is_whole: true }
        }
        // The statement took too long, or somebody cancelled it.
        "57014" => {
            let error = StoreError::Busy("it took too long and was given up");
            Failed { error, is_clash: false, is_whole: true }
        }
        // The server shuts down, or the connection is at fault.
        code if code.starts_with("57P") || code.starts_with("08") => {
            Failed { error: StoreError::Unavailable(message), is_clash: false, is_whole: false }
        }
        _ => Failed { error: StoreError::Refused(message), is_clash: false, is_whole: true },
    }
}

/// Of a read, of which it does not matter whether it was made.
pub(super) fn unread(error: sqlx::Error) -> StoreError {
    failed(&error).error
}
