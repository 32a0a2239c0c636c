//! Snapshots: the whole state as bytes, versioned, checksummed and canonical.
//!
//! A snapshot is a header and blocks. Each block has its length and a checksum that also covers the previous
//! checksum, so that no block can be changed, dropped, repeated or moved unnoticed. Records are written in an order
//! that the state defines, so two Books that behave alike give the same bytes, whatever the history of their tables.

mod block;
mod clients;
mod credit;
mod decode;
mod encode;
mod extended;
mod idempotency;
mod keys;
mod ledger;
mod plans;
mod policies;
mod quotas;
mod records;
mod templates;

pub use decode::Restore;
pub use encode::{Encoded, Frozen};
pub use ledger::{FrozenAccount, FrozenAsset, FrozenVault};

/// The version of the format.
pub const SNAPSHOT_VERSION: u32 = 1;

/// Why a snapshot cannot be restored.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// The signature is missing.
    #[error("this is not a snapshot of a Book: it does not start with its signature")]
    NotASnapshot,
    /// Another version of Earmark wrote it.
    #[error("this snapshot has format {found}, this version reads {SNAPSHOT_VERSION}: use the Earmark that wrote it")]
    OtherVersion {
        /// The format version found.
        found: u32,
    },
    /// The end block is missing.
    #[error("this snapshot is cut off after block {blocks}: restore another copy")]
    Truncated {
        /// The number of whole blocks.
        blocks: u64,
    },
    /// A block is not as it was written.
    #[error("this snapshot is damaged in block {block}: {what}; restore another copy")]
    Damaged {
        /// The block, counted from 0.
        block: u64,
        /// Why the block was rejected.
        what: &'static str,
    },
}

#[cfg(test)]
mod tests;
