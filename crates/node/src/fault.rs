//! Errors of the data folder, each with advice for the operator.

use std::io;

/// Why a data folder cannot be used any longer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum Fault {
    /// The file system failed.
    #[error("cannot {operation} {path}: {source}. {}", advice(source))]
    Io { operation: Operation, path: String, source: io::Error },
    /// A file is damaged.
    #[error(
        "{path} is damaged at byte {offset}: {found}. Restore this data folder from a backup, or replace this node: \
         see docs/operating.md"
    )]
    Damaged { path: String, offset: u64, found: String },
    /// A required file is missing.
    #[error("{path} is missing. Restore this data folder from a backup, or replace this node: see docs/operating.md")]
    Missing { path: String },
    /// No snapshot reaches the beginning of the log.
    #[error(
        "{path} has no snapshot up to entry {wanted}, where the log begins. Restore this data folder from a backup, \
         or replace this node: see docs/operating.md"
    )]
    SnapshotMissing { path: String, wanted: u64 },
    /// A newer version of Earmark wrote the file.
    #[error("{path} has format {found}, newer than {known}. Use a newer version of Earmark")]
    NewerFormat { path: String, found: u32, known: u32 },
    /// The folder, or one file in it, belongs to another cluster.
    #[error("{path} belongs to cluster {found:032x}, not to {expected:032x}. Give this node its own data folder")]
    OtherCluster { path: String, found: u128, expected: u128 },
    /// The folder belongs to another node of the cluster.
    #[error(
        "{path} belongs to node {found}, not to node {expected}. Give each node its own data folder, or start this \
         one with the id that the folder has"
    )]
    OtherNode { path: String, found: u64, expected: u64 },
    /// The folder is not empty.
    #[error("{path} is not an Earmark data folder: it contains {found}. Name an empty or a new folder")]
    NotEmpty { path: String, found: String },
    /// The folder is a data folder already.
    #[error("{path} is the data folder of a node already. Name an empty or a new folder")]
    Occupied { path: String },
    /// The operation cannot continue.
    #[error("{why}")]
    Stopped { why: String },
    /// The journal lacks records that the snapshot needs.
    #[error(
        "{path}: the journal ends with record {found}, but the snapshot needs record {needed}. Restore this data \
         folder from a backup, or replace this node: see docs/operating.md"
    )]
    JournalShort { path: String, found: u64, needed: u64 },
    /// A journal record does not continue the journal.
    #[error(
        "journal record {number} is invalid: {why}. If this happens again, replace this node: see docs/operating.md"
    )]
    RecordRefused { number: u64, why: String },
    /// A disk task ended without a result.
    #[error("a disk task was cancelled. If this node is not shutting down, report its log messages")]
    Interrupted,
    /// Another process uses the folder.
    #[error("{path} is in use by another process. Stop that one first, or name another folder")]
    InUse { path: String },
}

/// File system operation that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Operation {
    Create,
    List,
    Lock,
    Open,
    Read,
    Remove,
    Rename,
    Shorten,
    Sync,
    Write,
}

impl std::fmt::Display for Operation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Operation::Create => "create",
            Operation::List => "list",
            Operation::Lock => "lock",
            Operation::Open => "open",
            Operation::Read => "read",
            Operation::Remove => "remove",
            Operation::Rename => "rename",
            Operation::Shorten => "shorten",
            Operation::Sync => "sync",
            Operation::Write => "write to",
        })
    }
}

fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "The disk is full: free some space and start this node again. Nothing that was acknowledged is lost"
        }
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            "Let the user that runs this node read and write the folder, then start it again"
        }
        _ => {
            "Check the disk, then start this node again, or replace it: see docs/operating.md. Nothing that was \
             acknowledged is lost while a majority of the nodes is well"
        }
    }
}
