//! Labels and the 128-bit ids they hash to.

use std::fmt;

use sha2::{Digest, Sha256};

use super::{AccountName, AssetName, ClientId, IdempotencyKey, LeaseId, LimitKey, NamespaceName, VaultName};

/// An id that other systems store; never 0 and never `u128::MAX`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id128(u128);

impl Id128 {
    /// All 128 bits.
    #[must_use]
    pub const fn to_u128(self) -> u128 {
        self.0
    }
}

/// The id of `label`: the first 16 bytes of its SHA-256, little-endian.
#[must_use]
pub fn id128(label: &str) -> Id128 {
    id128_with(|bytes| Sha256::digest(bytes).into(), label)
}

/// [`id128`] with another digest. TigerBeetle refuses the ids 0 and `u128::MAX`, so those get their lowest bit
/// flipped.
pub fn id128_with(digest: impl FnOnce(&[u8]) -> [u8; 32], label: &str) -> Id128 {
    let bytes = digest(label.as_bytes());
    let mut first = [0_u8; 16];
    first.copy_from_slice(&bytes[..16]);
    match u128::from_le_bytes(first) {
        id @ (0 | u128::MAX) => Id128(id ^ 1),
        id => Id128(id),
    }
}

/// Everything that gets a 128-bit id, and the text that is hashed for it.
///
/// A namespace other than `default` stands as `!<namespace>:` before its key or its lease. No name contains `!` and no
/// namespace contains `:`, so labels of two namespaces cannot collide.
#[derive(Clone, Copy, Debug)]
pub enum Label<'a> {
    /// The account that every limit is funded from.
    OperatorAccount,
    /// The account that lease anchors are posted to.
    LeaseAccount,
    /// The account of a limit.
    LimitAccount(&'a NamespaceName, &'a LimitKey),
    /// The account of a limit's debt.
    DebtAccount(&'a NamespaceName, &'a LimitKey),
    /// A lease's reservation of one limit.
    Reserve(LeaseScope<'a>, LimitScope<'a>),
    /// The end of a reservation.
    Void(LeaseScope<'a>, LimitScope<'a>),
    /// The new reservation of a settled lease.
    Rereserve(LeaseScope<'a>, LimitScope<'a>),
    /// Usage beyond what could be reserved.
    Debt(LeaseScope<'a>, LimitScope<'a>),
    /// The anchor of a lease. The first transfer with this id fixes the lease's requirements.
    LeaseAnchor(&'a NamespaceName, LeaseId),
    /// The end of a lease.
    LeaseComplete(&'a NamespaceName, LeaseId),
    /// One attempt at one change of a limit's capacity.
    Capacity {
        /// The limit's namespace.
        namespace: &'a NamespaceName,
        /// The limit.
        key: &'a LimitKey,
        /// The number of changes in force, this one included.
        change: u64,
        /// The number of attempts. A failed id cannot be used again.
        attempt: u64,
    },
    /// The transfer that clears a limit's debt when a deleted limit is put again.
    Cleared {
        /// The limit's namespace.
        namespace: &'a NamespaceName,
        /// The limit.
        key: &'a LimitKey,
        /// The capacity change it belongs to.
        change: u64,
        /// The attempt at that change.
        attempt: u64,
    },
    /// The lease itself, in `user_data_128` of each of its transfers.
    Lease(&'a NamespaceName, LeaseId),
    /// An entry of credit.
    Entry(&'a NamespaceName, &'a VaultName, EntryPurpose<'a>),
}

/// A lease in its namespace.
#[derive(Clone, Copy, Debug)]
pub struct LeaseScope<'a>(pub &'a NamespaceName, pub LeaseId);

/// A limit in its namespace. A lease may reserve shared limits of other namespaces.
#[derive(Clone, Copy, Debug)]
pub struct LimitScope<'a>(pub &'a NamespaceName, pub &'a LimitKey);

/// The purpose of a credit entry.
#[derive(Clone, Copy, Debug)]
pub enum EntryPurpose<'a> {
    /// A sequenced write.
    Transaction(&'a ClientId, u64),
    /// The hold of a lease.
    Hold(LeaseId, &'a LimitKey),
    /// The settlement of a lease.
    Settle(LeaseId, &'a LimitKey),
    /// The release of a hold, or its settlement at its timeout.
    Release(LeaseId, &'a LimitKey),
    /// The growth of a hold by an extension.
    Extend(LeaseId, GrowthAttempt, &'a LimitKey),
    /// The return of a growth, because the limits refused the extension.
    Return(LeaseId, GrowthAttempt, &'a LimitKey),
    /// The settlement of a lease after the timeout of its hold.
    Late(LeaseId, &'a LimitKey),
    /// The first hold or the end of a lease that holds nothing, after this many earlier ones were returned.
    First(LeaseId, u32),
    /// A write with an idempotency key.
    Key(&'a IdempotencyKey),
    /// The overdraft mark of an account and an asset.
    OverdraftMark(&'a AccountName, &'a AssetName),
    /// The mark that keeps the plan of an account.
    PlanMark(&'a AccountName),
    /// The issue of a plan, by the id of its mark.
    Issue(u128),
    /// The expiry of postings, by the id of the first.
    Expire(u128),
}

/// One attempt to hold more for an extension.
#[derive(Clone, Copy, Debug)]
pub struct GrowthAttempt {
    /// The number of the extension.
    pub number: u32,
    /// How often a growth of this number was returned.
    pub attempt: u32,
}

impl fmt::Display for GrowthAttempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A key may begin with digits and a colon, so the separator is a dot.
        match self.attempt {
            0 => write!(f, "{}", self.number),
            attempt => write!(f, "{}.{attempt}", self.number),
        }
    }
}

impl Label<'_> {
    /// The 128-bit id.
    #[must_use]
    pub fn id(&self) -> Id128 {
        id128(&self.to_string())
    }
}

struct Scope<'a>(&'a NamespaceName);

impl fmt::Display for Scope<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_default() { Ok(()) } else { write!(f, "!{}:", self.0) }
    }
}

impl fmt::Display for LeaseScope<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", Scope(self.0), self.1)
    }
}

impl fmt::Display for LimitScope<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", Scope(self.0), self.1)
    }
}

impl fmt::Display for Label<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Label::OperatorAccount => f.write_str("acct:operator"),
            Label::LeaseAccount => f.write_str("acct:lease"),
            Label::LimitAccount(ns, key) => write!(f, "acct:limit:{}{key}", Scope(ns)),
            Label::DebtAccount(ns, key) => write!(f, "acct:debt:{}{key}", Scope(ns)),
            Label::Reserve(lease, limit) => write!(f, "xfer:reserve:{lease}:{limit}"),
            Label::Void(lease, limit) => write!(f, "xfer:void:{lease}:{limit}"),
            Label::Rereserve(lease, limit) => write!(f, "xfer:rereserve:{lease}:{limit}"),
            Label::Debt(lease, limit) => write!(f, "xfer:debt:{lease}:{limit}"),
            Label::LeaseAnchor(ns, lease) => write!(f, "xfer:lease:{}{lease}", Scope(ns)),
            Label::LeaseComplete(ns, lease) => write!(f, "xfer:complete:{}{lease}", Scope(ns)),
            Label::Capacity { namespace, key, change, attempt } => {
                write!(f, "xfer:capacity:{}{key}:{change}:{attempt}", Scope(namespace))
            }
            Label::Cleared { namespace, key, change, attempt } => {
                write!(f, "xfer:cleared:{}{key}:{change}:{attempt}", Scope(namespace))
            }
            Label::Lease(ns, lease) => write!(f, "lease:{ns}:{lease}"),
            Label::Entry(ns, vault, what) => write!(f, "entry:{ns}:{vault}:{what}"),
        }
    }
}

impl fmt::Display for EntryPurpose<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            EntryPurpose::Transaction(client, sequence) => write!(f, "tx:{client}:{sequence}"),
            EntryPurpose::Hold(lease, key) => write!(f, "hold:{lease}:{key}"),
            EntryPurpose::Settle(lease, key) => write!(f, "settle:{lease}:{key}"),
            EntryPurpose::Release(lease, key) => write!(f, "release:{lease}:{key}"),
            EntryPurpose::Extend(lease, attempt, key) => write!(f, "extend:{lease}:{attempt}:{key}"),
            EntryPurpose::Return(lease, attempt, key) => write!(f, "return:{lease}:{attempt}:{key}"),
            EntryPurpose::Late(lease, key) => write!(f, "late:{lease}:{key}"),
            EntryPurpose::First(lease, returned) => write!(f, "first:{lease}:{returned}"),
            EntryPurpose::Key(key) => write!(f, "key:{key}"),
            EntryPurpose::OverdraftMark(account, asset) => write!(f, "overdraft:{asset}:{account}"),
            EntryPurpose::PlanMark(account) => write!(f, "plan:{account}"),
            EntryPurpose::Issue(mark) => write!(f, "issue:{}", LeaseId::from_u128(mark)),
            EntryPurpose::Expire(posting) => write!(f, "expire:{}", LeaseId::from_u128(posting)),
        }
    }
}

#[cfg(test)]
mod tests;
