//! Ids: names with their alphabets, leases, and the 128-bit ids that labels hash to.
//!
//! The Book uses natural keys. A label is hashed only where an id is stored by another system, so that the same lease
//! and limit give the same id on every node and after every restart.

mod actor;
mod label;
mod lease;
mod name;

pub use actor::Actor;
pub use label::{EntryPurpose, Id128, Label, id128, id128_with};
pub use lease::{LeaseId, LeaseIdError};
pub use name::{
    AccountName, AssetName, ClientId, IdempotencyKey, JobId, KeyId, KeyName, LimitKey, NameError, NamespaceName,
    VaultName,
};
