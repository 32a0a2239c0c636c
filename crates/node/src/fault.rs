//! What can be wrong with a data folder, and what its owner is to do.

use std::io;

/// Why a data folder cannot be used, or can be used no longer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// The file system refused.
    #[error("cannot {operation} {path}: {source}. {}", advice(source))]
    Io {
        /// What was tried.
        operation: Operation,
        /// The file or folder.
        path: String,
        /// What the file system said.
        source: io::Error,
    },
    /// A file does not hold what was written to it.
    #[error(
        "{path} is damaged at byte {offset}: {found}. Restore this data folder from a backup, or replace this node: \
         see docs/operating.md"
    )]
    Damaged {
        /// The file.
        path: String,
        /// Where the first thing that is wrong begins.
        offset: u64,
        /// What is there, and what should be.
        found: String,
    },
    /// A file that must be there is not.
    #[error(
        "{path} is missing. Restore this data folder from a backup, or replace this node: see docs/operating.md"
    )]
    Missing {
        /// The file.
        path: String,
    },
    /// The log begins behind the newest snapshot.
    #[error(
        "in {path} is no snapshot that reaches entry {wanted}, with which the log begins, so one is missing. Restore \
         this data folder from a backup, or replace this node: see docs/operating.md"
    )]
    SnapshotMissing {
        /// The folder of snapshots.
        path: String,
        /// The entry before the first of the log.
        wanted: u64,
    },
    /// A later version of Earmark wrote this.
    #[error(
        "{path} has format {found}, and this version of Earmark reads up to {known}. Use a newer version"
    )]
    NewerFormat {
        /// The file.
        path: String,
        /// The version that the file names.
        found: u32,
        /// The newest version known here.
        known: u32,
    },
    /// The folder, or one file in it, was made for another cluster.
    #[error(
        "{path} belongs to cluster {found:032x}, not to {expected:032x}. Give this node its own data folder"
    )]
    OtherCluster {
        /// The file.
        path: String,
        /// The cluster that the file names.
        found: u128,
        /// The cluster that was asked for.
        expected: u128,
    },
    /// The folder was made for another node of the cluster.
    #[error(
        "{path} belongs to node {found}, not to node {expected}. Give each node its own data folder, or start this \
         one with the id that the folder has"
    )]
    OtherNode {
        /// The file.
        path: String,
        /// The node that the file names.
        found: u64,
        /// The node that was asked for.
        expected: u64,
    },
    /// The folder holds something else.
    #[error(
        "{path} is not empty, and was not made by Earmark: it holds {found}. Name an empty or a new folder"
    )]
    NotEmpty {
        /// The folder.
        path: String,
        /// The first name in it that is not Earmark's.
        found: String,
    },
    /// The folder is a data folder already.
    #[error("{path} is the data folder of a node already. Name an empty or a new folder")]
    Occupied {
        /// The folder.
        path: String,
    },
    /// What was under way cannot go on.
    #[error("{why}")]
    Stopped {
        /// What happened, and what to do.
        why: String,
    },
    /// The journal cannot be used.
    #[error(transparent)]
    Journal(#[from] crate::journal::JournalError),
    /// Work on the disk ended without a result.
    #[error("work on the disk was cut off. If this node is not shutting down, report what its log says")]
    CutOff,
    /// Another process has the folder.
    #[error("{path} is in use by another process. Stop that one first, or name another folder")]
    InUse {
        /// The folder.
        path: String,
    },
}

/// What was tried when a file system refused.
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

/// Says of an error which file it is about.
pub(crate) trait At<T> {
    /// Names the operation and the file.
    fn at(self, operation: Operation, path: impl FnOnce() -> String) -> Result<T, Fault>;
}

impl<T> At<T> for io::Result<T> {
    fn at(self, operation: Operation, path: impl FnOnce() -> String) -> Result<T, Fault> {
        self.map_err(|source| Fault::Io { operation, path: path(), source })
    }
}
