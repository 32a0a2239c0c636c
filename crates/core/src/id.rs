//! Ids: names with their alphabets, leases, and the 128-bit ids that labels hash to.
//!
//! The Book uses natural keys. A label is hashed only where an id is stored by another system, so that the same lease
//! and limit give the same id on every node and after every restart.

mod actor;
mod api_key;
mod label;
mod lease;
mod name;
pub(crate) mod pattern;

pub use actor::Actor;
pub use api_key::{API_KEY_PREFIX, INVITATION_PREFIX, LOOKS_LIKE_API_KEY, contains_api_key, redact_api_keys};
pub use label::{EntryPurpose, GrowthAttempt, Id128, Label, LeaseScope, LimitScope, id128, id128_with};
pub use lease::{LeaseId, LeaseIdError};
pub use name::{
    AccountName, AssetName, ClientId, IdempotencyKey, JobId, KeyId, KeyName, LimitKey, NameError, NameRule,
    NamespaceName, VaultName,
};
pub use pattern::PLACEHOLDERS_MAX;
