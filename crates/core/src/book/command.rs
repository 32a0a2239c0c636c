//! What the Book is asked to do.

use super::write::Write;
use crate::id::{LeaseId, LimitKey, NamespaceName};
use crate::keys::{CreateKey, RevokeKey};
use crate::limits::Definition;
use crate::time::UnixMs;

/// The most requirements of one reserve, and the most actuals of one complete.
pub const REQUIREMENTS_MAX: usize = 32;

/// A namespace the Book knows. Never reused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NamespaceId(pub u16);

impl NamespaceId {
    /// The namespace `default`, which exists from the start.
    pub const DEFAULT: NamespaceId = NamespaceId(0);
}

/// A limit the Book has heard of. It keeps this number for ever, deleted and put again or not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LimitId(pub u32);

/// A vault the Book knows. Never reused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VaultId(pub u32);

impl VaultId {
    /// The vault `main` of the namespace `default`, which exists from the start.
    pub const MAIN: VaultId = VaultId(0);
}

/// A limit, by the number it was resolved to, or by name where the caller knows no number.
///
/// Numbers are fixed for ever, so one that was resolved long ago still means the same limit. A name is
/// resolved when the command is applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LimitRef {
    /// By number.
    Id(LimitId),
    /// By name.
    Key(LimitKey),
}

/// How much of which limit: what a reserve asks for, or what a complete says was used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The limit.
    pub limit: LimitRef,
    /// How much; at least 1 in a reserve.
    pub amount: u64,
}

/// One change to the Book. All that decides it is in here and in the time it is applied at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command<'a> {
    /// Makes a namespace known.
    OpenNamespace(&'a NamespaceName),
    /// Creates a limit or changes its definition.
    PutLimit(PutLimit<'a>),
    /// Lets a limit run empty and then forgets it.
    DeleteLimit(DeleteLimit<'a>),
    /// Takes all requirements, or none.
    Reserve(Reserve<'a>),
    /// Says what a lease really used.
    Complete(Complete<'a>),
    /// Gives back all that a lease has taken, as if nothing of it had been used.
    Release(Release),
    /// Forgets a limit that was deleted and is gone from where it was enforced.
    DropLimit(DropLimit<'a>),
    /// Says what is kept elsewhere from now on.
    Keep(Keep),
    /// Applies a transaction, once.
    Write(&'a Write),
    /// Makes a key.
    CreateKey(&'a CreateKey),
    /// Ends a key.
    RevokeKey(&'a RevokeKey),
    /// Only passes the time: a few records that are due are cleaned up.
    Tick,
}

/// Creates a limit or changes its definition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PutLimit<'a> {
    /// Where the limit lives.
    pub namespace: NamespaceId,
    /// What it is to be.
    pub definition: &'a Definition,
    /// The revision it must have now; 0 if it must not exist.
    pub expected_revision: Option<u64>,
}

/// Lets a limit run empty and then forgets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeleteLimit<'a> {
    /// Where the limit lives.
    pub namespace: NamespaceId,
    /// Its name.
    pub key: &'a LimitKey,
    /// The revision it must have now.
    pub expected_revision: Option<u64>,
}

/// What is kept outside the Book, which is then only its registry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Elsewhere {
    /// What leases take of rolling and concurrency limits. One that is deleted stays until it is dropped.
    pub limits: bool,
    /// Accounts, and what is held of them. Leases keep what they require of credit, and the Book holds none of it.
    pub credit: bool,
}

/// Says what is kept elsewhere from now on, and by whom.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Keep {
    /// What is kept elsewhere.
    pub elsewhere: Elsewhere,
    /// The number of the ledger that enforces the limits, if it has one. The first that is named stays: whoever names
    /// another finds that out by looking, and keeps away.
    pub ledger: Option<u128>,
}

impl From<Elsewhere> for Keep {
    fn from(elsewhere: Elsewhere) -> Keep {
        Keep { elsewhere, ledger: None }
    }
}

/// Forgets a limit that was deleted and is gone from where it was enforced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DropLimit<'a> {
    /// Where the limit lives.
    pub namespace: NamespaceId,
    /// Its name.
    pub key: &'a LimitKey,
    /// The revision it got when it was deleted. One that was put again since stays.
    pub revision: u64,
}

/// Takes all requirements, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reserve<'a> {
    /// Where the limits and the lease live.
    pub namespace: NamespaceId,
    /// The attempt.
    pub lease: LeaseId,
    /// The wall time at which the command was made; it judges a lease that comes from the future.
    pub wall: UnixMs,
    /// 1 to [`REQUIREMENTS_MAX`], each at least 1, no limit twice. Their order does not matter.
    pub requirements: &'a [Part],
}

/// Says what a lease really used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Complete<'a> {
    /// Where the limits and the lease live.
    pub namespace: NamespaceId,
    /// The attempt that was allowed.
    pub lease: LeaseId,
    /// The wall time at which the command was made.
    pub wall: UnixMs,
    /// Up to [`REQUIREMENTS_MAX`], no limit twice.
    pub actuals: &'a [Part],
}

/// Gives back all that a lease has taken. From then on the lease has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Release {
    /// Where the limits and the lease live.
    pub namespace: NamespaceId,
    /// The attempt that was allowed.
    pub lease: LeaseId,
    /// The wall time at which the command was made.
    pub wall: UnixMs,
}
