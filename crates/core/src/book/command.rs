//! The commands of the Book.

use super::call::{CallMark, LeaseClaim};
use super::extend::Extend;
use super::write::Write;
use crate::credits::SettleLabels;
use crate::id::{JobId, LeaseId, LimitKey, NamespaceName};
use crate::keys::{CreateKey, RevokeKey};
use crate::limits::{Definition, SettingChange, Template};
use crate::policies::PutPolicy;
use crate::quota::SetQuotas;
use crate::time::UnixMs;

/// The maximum number of requirements of a reserve, and of actuals of a complete.
pub const REQUIREMENTS_MAX: usize = 32;

/// The id of a namespace. Never reused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NamespaceId(pub u16);

impl NamespaceId {
    /// The namespace `default`, which exists from the start.
    pub const DEFAULT: NamespaceId = NamespaceId(0);
}

/// The id of a limit. A freed slot is given to another limit, with a higher generation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LimitId {
    /// The position in the table of limits.
    pub slot: u32,
    /// How often the slot was freed before.
    pub generation: u32,
}

/// The id of a vault. Never reused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VaultId(pub u32);

impl VaultId {
    /// The vault `main` of the namespace `default`, which exists from the start.
    pub const MAIN: VaultId = VaultId(0);
}

/// A limit by id, or by key where the caller does not know the id.
///
/// An id names the limit that it was given to, or none: after that limit was freed, the command is refused as stale. A
/// key is resolved when the command is applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LimitRef {
    /// By id. The limit belongs to the namespace of the lease, or is shared.
    Id(LimitId),
    /// By key, in the namespace of the lease.
    Key(LimitKey),
    /// By namespace and key. The limit is shared, or the namespace is that of the lease.
    Foreign(Box<ForeignLimit>),
}

/// A limit by namespace and key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForeignLimit {
    /// The namespace, which may not exist.
    pub namespace: NamespaceName,
    /// The key.
    pub key: LimitKey,
}

impl From<LimitKey> for LimitRef {
    fn from(key: LimitKey) -> LimitRef {
        match key.foreign() {
            Some((namespace, key)) => LimitRef::Foreign(Box::new(ForeignLimit { namespace, key })),
            None => LimitRef::Key(key),
        }
    }
}

/// An amount of one limit: a requirement of a reserve or an actual of a complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The limit.
    pub limit: LimitRef,
    /// The amount; at least 1 in a reserve.
    pub amount: u64,
}

/// A change to the Book. The outcome depends only on the state, the command and its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command<'a> {
    /// Opens a namespace.
    OpenNamespace(&'a NamespaceName),
    /// Creates a limit or changes its definition.
    PutLimit(PutLimit<'a>),
    /// Deletes a limit once nothing is reserved.
    DeleteLimit(DeleteLimit<'a>),
    /// Creates a template or changes its definition.
    PutTemplate(PutTemplate<'a>),
    /// Deletes a template.
    DeleteTemplate(DeleteTemplate<'a>),
    /// Refuses reserves of a limit for a time, or resumes it.
    PauseLimit(PauseLimit<'a>),
    /// Reserves all requirements, or none.
    Reserve(Reserve<'a>),
    /// Takes more for a live lease, moves its end, or reports its usage.
    Extend(Extend<'a>),
    /// Settles the actual usage of a lease.
    Complete(Complete<'a>),
    /// Returns everything a lease reserved, as if nothing had been used.
    Release(Release),
    /// Removes a deleted limit after the system that enforces it reported it empty.
    DropLimit(DropLimit<'a>),
    /// Sets which parts of the state other systems keep.
    SetExternal(ExternalSetup),
    /// Changes settings.
    Configure(&'a [SettingChange]),
    /// Applies a transaction exactly once.
    Write(&'a Write),
    /// Creates an API key.
    CreateKey(&'a CreateKey),
    /// Revokes an API key.
    RevokeKey(&'a RevokeKey),
    /// Sets quotas of a namespace.
    SetQuotas(&'a SetQuotas),
    /// Replaces the policy of a namespace.
    PutPolicy(&'a PutPolicy),
    /// Advances time and cleans up a bounded number of due records.
    Tick,
    /// Moves log time forward to this time if nothing is reserved; else like a tick.
    AdvanceTime(UnixMs),
}

/// Creates a limit or changes its definition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PutLimit<'a> {
    /// The namespace of the limit.
    pub namespace: NamespaceId,
    /// The definition.
    pub definition: &'a Definition,
    /// The revision the limit must have; 0 if it must not exist.
    pub expected_revision: Option<u64>,
}

/// Deletes a limit once nothing is reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeleteLimit<'a> {
    /// The namespace of the limit.
    pub namespace: NamespaceId,
    /// The key.
    pub key: &'a LimitKey,
    /// The revision the limit must have.
    pub expected_revision: Option<u64>,
}

/// Creates a template or changes its definition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PutTemplate<'a> {
    /// The namespace of the template.
    pub namespace: NamespaceId,
    /// The template.
    pub template: &'a Template,
    /// The revision the template must have; 0 if it must not exist.
    pub expected_revision: Option<u64>,
}

/// Deletes a template. Its keys are unknown at once, and reserved amounts settle as usual.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeleteTemplate<'a> {
    /// The namespace of the template.
    pub namespace: NamespaceId,
    /// The key, with placeholders.
    pub key: &'a LimitKey,
    /// The revision the template must have.
    pub expected_revision: Option<u64>,
}

/// Refuses reserves of a limit for a time, or resumes it. A second pause replaces the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PauseLimit<'a> {
    /// The namespace of the limit.
    pub namespace: NamespaceId,
    /// The key.
    pub key: &'a LimitKey,
    /// How long, in milliseconds; at most [`PAUSE_MS_MAX`](crate::PAUSE_MS_MAX). 0 resumes the limit.
    pub for_ms: u64,
    /// Why, for people; may be empty.
    pub reason: &'a str,
    /// Whether it may only lengthen a pause. Then a shorter one, and a resume of a paused limit, change nothing.
    pub only_lengthen: bool,
}

/// Which parts of the state other systems keep. For those the Book is only the registry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExternalParts {
    /// Another system enforces rolling and concurrency limits. A deleted limit stays until it is dropped.
    pub limits: bool,
    /// Another system keeps the accounts and holds. Leases record their credit requirements, and the Book holds none.
    pub credit: bool,
}

/// Sets which parts of the state other systems keep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExternalSetup {
    /// The parts that other systems keep.
    pub parts: ExternalParts,
    /// The id of the ledger that enforces the limits, if it has one. The first id wins; a node with another ledger
    /// sees the difference and refuses to start.
    pub ledger: Option<u128>,
}

impl From<ExternalParts> for ExternalSetup {
    fn from(external: ExternalParts) -> ExternalSetup {
        ExternalSetup { parts: external, ledger: None }
    }
}

/// Removes a deleted limit after the system that enforces it reported it empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DropLimit<'a> {
    /// The namespace of the limit.
    pub namespace: NamespaceId,
    /// The key.
    pub key: &'a LimitKey,
    /// The revision that the delete produced. A limit that was put again since stays.
    pub revision: u64,
}

/// Reserves all requirements, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reserve<'a> {
    /// The namespace of the lease, and of the limits that name no other.
    pub namespace: NamespaceId,
    /// The lease.
    pub lease: LeaseId,
    /// The job behind it, kept with the lease. A retry does not change it.
    pub job: Option<&'a JobId>,
    /// The call behind it, kept with the lease. A retry of the call gets the first answer, whatever its requirements.
    pub call: Option<CallMark>,
    /// Whether a gateway sends it. Then the lease is refused to all others.
    pub by_gateway: bool,
    /// 1 to [`REQUIREMENTS_MAX`] amounts, each at least 1, no limit twice, in any order.
    pub requirements: &'a [Part],
}

/// Settles the actual usage of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Complete<'a> {
    /// The namespace of the lease, and of the limits that name no other.
    pub namespace: NamespaceId,
    /// The lease.
    pub lease: LeaseId,
    /// The sender, and the call it is for.
    pub claim: LeaseClaim,
    /// Up to [`REQUIREMENTS_MAX`] amounts, no limit twice.
    pub actuals: &'a [Part],
    /// The labels of its settlements. Without credit they have no effect.
    pub labels: &'a SettleLabels,
}

/// Returns everything a lease reserved and ends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Release {
    /// The namespace of the lease.
    pub namespace: NamespaceId,
    /// The lease.
    pub lease: LeaseId,
}
