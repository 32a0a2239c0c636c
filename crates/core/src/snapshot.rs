//! Snapshots: the whole state as bytes, versioned, checksummed and canonical.
//!
//! A snapshot is a header and blocks. Every block has its length and a checksum that also covers the block
//! before, so that none can be changed, dropped, doubled or moved unnoticed. What is written is what can be
//! observed, in an order that the state itself defines: two Books that behave alike give the same bytes,
//! whatever the history of their tables.

mod block;
mod credit;
mod decode;
mod encode;
mod keys;
mod records;
mod writers;

pub use decode::Restore;
pub use encode::{Encoded, Frozen};

/// The newest version of the format that is read. A Book is written in the oldest that has room for what it holds.
pub const SNAPSHOT_VERSION: u32 = VERSION_KEYS;
/// The version before anything could be kept elsewhere.
const VERSION_ALL_HERE: u32 = 1;
/// The version of a Book that had something kept elsewhere, and never had keys.
const VERSION_ELSEWHERE: u32 = 2;
/// The version of a Book that has keys, whatever is kept elsewhere.
const VERSION_KEYS: u32 = 3;

/// Why a snapshot cannot be restored.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// It does not start like one.
    #[error("this is not a snapshot of a Book: it does not start with its signature")]
    NotASnapshot,
    /// It was written by a newer version.
    #[error("this snapshot has format {found}, this version reads up to {SNAPSHOT_VERSION}: use a newer one")]
    NewerVersion {
        /// The version of its format.
        found: u32,
    },
    /// It ends before its end.
    #[error("this snapshot is cut off after block {blocks}: restore another copy")]
    Truncated {
        /// How many whole blocks there were.
        blocks: u64,
    },
    /// Its bytes are not those that were written.
    #[error("this snapshot is damaged in block {block}: {what}; restore another copy")]
    Damaged {
        /// Which block, counted from 0.
        block: u64,
        /// What is wrong with it.
        what: &'static str,
    },
}

#[cfg(test)]
mod tests;
