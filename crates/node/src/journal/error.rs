//! What can be wrong with a journal, in words that name the file and what to do.

use std::io;

/// Why the journal cannot be used, or cannot go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JournalError {
    /// The file system refused something.
    #[error(
        "{file}: {operation} failed: {source}; see to the disk (its space, permissions and health), then start \
         the node again"
    )]
    Io {
        /// The file or folder.
        file: String,
        /// What was to be done.
        operation: &'static str,
        /// What the file system said.
        source: io::Error,
    },
    /// A file does not hold what was written to it.
    #[error(
        "{file}: damaged at byte {offset}: {what}; put the file back from a backup, or empty the data folder of \
         this node and add it to the cluster again"
    )]
    Damaged {
        /// The file.
        file: String,
        /// Where.
        offset: u64,
        /// What is wrong there.
        what: String,
    },
    /// Records are missing that the snapshot relies on.
    #[error(
        "{file}: the journal ends with record {found}, and the snapshot relies on {needed}; put the journal back \
         from a backup, or empty the data folder of this node and add it to the cluster again"
    )]
    Short {
        /// The file that should have them.
        file: String,
        /// The last record that is there.
        found: u64,
        /// The last record that should be.
        needed: u64,
    },
    /// A file was written for other data.
    #[error(
        "{file}: it belongs to the cluster {found:032x}, and this node to {expected:032x}; start the node with \
         its own data folder"
    )]
    OtherCluster {
        /// The file.
        file: String,
        /// The cluster it belongs to.
        found: u128,
        /// The cluster of the node.
        expected: u128,
    },
    /// A file was written by a newer program.
    #[error(
        "{file}: its format is version {found}, and this program reads up to {expected}; start the program that \
         wrote it, or a newer one"
    )]
    Newer {
        /// The file.
        file: String,
        /// The version it has.
        found: u32,
        /// The version that can be read.
        expected: u32,
    },
    /// Something failed before, and nothing is taken since.
    #[error("the journal has stopped, since {0}")]
    Stopped(String),
    /// Another node sent what does not follow on what is here.
    #[error(
        "record {number} of the journal that another node sent: {what}; if this happens again, empty the data \
         folder of this node and add it to the cluster again"
    )]
    Refused {
        /// The record.
        number: u64,
        /// What is wrong with it.
        what: String,
    },
    /// The work was dropped before it ended, as when a node shuts down.
    #[error("the journal was not flushed: the node is shutting down")]
    Interrupted,
}
