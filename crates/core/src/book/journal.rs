//! The journal: history as records that leave the Book and are not part of its state.

mod codec;

use std::sync::Arc;

use super::command::{NamespaceId, VaultId};
use super::receipt::Receipt;
use super::write::{Operation, WriteId};
use crate::credits::{AccountId, AssetId, GrantTerms, SettleLabels};
use crate::id::{Actor, KeyId, KeyName, LeaseId, LimitKey, NamespaceName};
use crate::keys::{KeyInfo, KeyNumber, Labels, MaySet, Role};
use crate::limits::Definition;
use crate::quota::QuotaKind;
use crate::time::{Moment, UnixMs};

/// One journal record. The Book hands records out and keeps none; see
/// [`Book::drain_journal`](super::Book::drain_journal).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JournalRecord {
    /// A transaction was committed.
    Transaction(Transaction),
    /// Credit of an account was held for a lease.
    Hold(HoldEntry),
    /// A lease settled its cost.
    Settle(SettleEntry),
    /// A hold was returned to the account.
    Release(HoldEntry),
    /// Credit of an account expired.
    Expire(ExpireEntry),
    /// The plan of an account issued credit.
    Plan(PlanEntry),
    /// An API key was created or revoked.
    Key(KeyEntry),
    /// A limit was put or deleted outside a transaction.
    Limit(Box<LimitEntry>),
    /// A template was put or deleted.
    Template(Box<LimitEntry>),
    /// A limit was paused or resumed.
    Pause(PauseEntry),
    /// Quotas of a namespace were set.
    Quotas(QuotaEntry),
    /// The policy of a namespace was replaced.
    Policy(PolicyEntry),
}

impl JournalRecord {
    /// Whether it is a change by an actor, for the change log: a transaction, or a change of a key, a limit, a
    /// template, a policy or quotas. Holds and settlements are in the history of their accounts.
    #[must_use]
    pub const fn is_change(&self) -> bool {
        match self {
            JournalRecord::Transaction(_)
            | JournalRecord::Key(_)
            | JournalRecord::Limit(_)
            | JournalRecord::Template(_)
            | JournalRecord::Pause(_)
            | JournalRecord::Quotas(_)
            | JournalRecord::Policy(_) => true,
            JournalRecord::Hold(_)
            | JournalRecord::Settle(_)
            | JournalRecord::Release(_)
            | JournalRecord::Expire(_)
            | JournalRecord::Plan(_) => false,
        }
    }

    /// The accounts it concerns, without duplicates, in ascending order.
    #[must_use]
    pub fn accounts(&self) -> Vec<AccountId> {
        let mut accounts = match self {
            JournalRecord::Transaction(transaction) => {
                transaction.changes.iter().map(|change| change.account).collect()
            }
            JournalRecord::Hold(hold) | JournalRecord::Release(hold) => vec![hold.account],
            JournalRecord::Settle(settle) => vec![settle.hold.account, settle.revenue],
            JournalRecord::Expire(expire) => vec![expire.account],
            JournalRecord::Plan(plan) => vec![plan.account],
            JournalRecord::Key(_)
            | JournalRecord::Limit(_)
            | JournalRecord::Template(_)
            | JournalRecord::Pause(_)
            | JournalRecord::Quotas(_)
            | JournalRecord::Policy(_) => Vec::new(),
        };
        accounts.sort_unstable();
        accounts.dedup();
        accounts
    }
}

/// A limit that was paused or resumed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PauseEntry {
    /// When.
    pub at: Moment,
    /// The namespace.
    pub namespace: NamespaceId,
    /// The key.
    pub key: LimitKey,
    /// When the pause ends; `None` if the limit was resumed.
    pub until: Option<UnixMs>,
    /// The reason; may be empty.
    pub reason: String,
    /// The actor.
    pub actor: Actor,
}

/// Quotas of a namespace that were set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotaEntry {
    /// When they were set.
    pub at: Moment,
    /// The namespace.
    pub namespace: NamespaceId,
    /// The quotas, ordered by kind.
    pub changes: Vec<QuotaChange>,
    /// The actor.
    pub actor: Actor,
}

/// A policy that was replaced. The Book keeps the text of the last revisions; the journal has their digests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyEntry {
    /// When it was replaced.
    pub at: Moment,
    /// The namespace.
    pub namespace: NamespaceId,
    /// The revision before; 0 for the first policy.
    pub old: u64,
    /// The revision from now on.
    pub revision: u64,
    /// The length of the document.
    pub bytes: u64,
    /// The first 128 bits of the document's SHA-256.
    pub digest: u128,
    /// The actor.
    pub actor: Actor,
}

/// A quota that was set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotaChange {
    /// The bounded resource.
    pub kind: QuotaKind,
    /// The quota before.
    pub old: u64,
    /// The quota from now on.
    pub new: u64,
}

/// A committed transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transaction {
    /// The namespace.
    pub namespace: NamespaceId,
    /// The vault of a vault transaction.
    pub vault: Option<VaultId>,
    /// Its identity.
    pub id: WriteId,
    /// The receipt.
    pub receipt: Arc<Receipt>,
    /// The operations.
    pub operations: Vec<Operation>,
    /// The definitions that its operations replaced or deleted, ordered by operation.
    pub replaced: Vec<Replaced>,
    /// The changes of its credit entry, ordered by account and asset. Empty if it moved no credit.
    pub changes: Vec<Change>,
}

impl Transaction {
    /// The changes of limits by its operations, in order.
    pub fn limit_changes(&self) -> impl Iterator<Item = DefinitionChange<'_>> {
        self.operations.iter().enumerate().filter_map(|(position, operation)| {
            let key = operation.limit()?;
            let old = self.replaced.binary_search_by_key(&position, |replaced| replaced.operation);
            let old = old.ok().and_then(|found| self.replaced.get(found)).map(|replaced| &replaced.definition);
            let new = if let Operation::PutLimit { definition, .. } = operation { Some(definition) } else { None };
            Some(DefinitionChange { key, old, new })
        })
    }
}

/// The definition of a limit before an operation of a transaction changed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replaced {
    /// The index of the operation.
    pub operation: usize,
    /// The definition before it.
    pub definition: Definition,
}

/// A limit before and after a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DefinitionChange<'a> {
    /// The key.
    pub key: &'a LimitKey,
    /// The definition before; `None` for a new limit. While the limit was decreasing, its capacity is the target.
    pub old: Option<&'a Definition>,
    /// The definition after; `None` if the limit was deleted.
    pub new: Option<&'a Definition>,
}

/// The change of one balance by an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// The account.
    pub account: AccountId,
    /// The asset.
    pub asset: AssetId,
    /// The amount added; negative if taken.
    pub amount: i128,
}

/// A hold or its release.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HoldEntry {
    /// When it was recorded. An expired hold is spendable at once, and its release is recorded a little later.
    pub at: Moment,
    /// The namespace of the lease and the limit.
    pub namespace: NamespaceId,
    /// The lease.
    pub lease: LeaseId,
    /// The key of the credit limit. Not its id, which may be given to another limit.
    pub limit: LimitKey,
    /// The account that pays.
    pub account: AccountId,
    /// The asset.
    pub asset: AssetId,
    /// The amount.
    pub amount: u64,
    /// The number of the extension that held it; 0 for the reserve, and for a release or settlement.
    pub extension: u32,
    /// The actor of the command; `None` for a release or settlement by expiry.
    pub actor: Option<Actor>,
}

/// The settlement of a hold. The hold returns `held`, the revenue account gets `paid`. The difference goes back to
/// the owner, or is taken from it if negative.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettleEntry {
    /// The hold, with the time of the settlement.
    pub hold: HoldEntry,
    /// The amount still held; 0 if the hold had expired.
    pub held: u64,
    /// The account that was paid.
    pub revenue: AccountId,
    /// The amount paid.
    pub paid: u64,
    /// The part of `paid` that the owner did not have and owes.
    pub debt: u64,
    /// The part of the cost that nobody paid.
    pub uncollected: u64,
    /// Why it was settled.
    pub reason: SettleReason,
    /// The labels of the complete; none for a timeout.
    pub labels: SettleLabels,
}

/// Credit that expired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpireEntry {
    /// When it was recorded. Expired credit cannot be spent, and is recorded with the next decision about the account or
    /// a little later.
    pub at: Moment,
    /// The namespace of the account.
    pub namespace: NamespaceId,
    /// The account that lost it.
    pub account: AccountId,
    /// The asset.
    pub asset: AssetId,
    /// The amount; positive.
    pub amount: i128,
    /// Its priority and expiry.
    pub terms: GrantTerms,
}

/// Credit that a plan issued for a period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanEntry {
    /// When it was issued: with the first decision about the account in the period, or a little after its begin.
    pub at: Moment,
    /// The namespace of the account.
    pub namespace: NamespaceId,
    /// The account that received it.
    pub account: AccountId,
    /// The asset.
    pub asset: AssetId,
    /// The new credit: the amount of the plan, and of missed periods up to the cap on carried credit; positive.
    pub amount: i128,
    /// The unused credit of the period before that it kept. The balance had it already.
    pub carried: i128,
    /// The priority and the expiry of both, which is the end of the period.
    pub terms: GrantTerms,
}

/// Why a hold was settled. The codes are part of the journal format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum SettleReason {
    /// Its lease completed while it was held.
    Complete = 1,
    /// It ran out: the reported usage was charged, or all of it by `on_timeout`.
    Timeout = 2,
    /// Its lease completed after it had run out. Only what exceeds the payment at the timeout is charged.
    Late = 3,
}

impl SettleReason {
    /// All reasons.
    pub const ALL: [SettleReason; 3] = [SettleReason::Complete, SettleReason::Timeout, SettleReason::Late];

    /// The name in entries.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            SettleReason::Complete => "complete",
            SettleReason::Timeout => "timeout",
            SettleReason::Late => "late",
        }
    }
}

/// The change of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum KeyChange {
    /// Created.
    Created = 1,
    /// Revoked.
    Revoked = 2,
}

/// A key that was created or revoked, without its secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyEntry {
    /// When.
    pub at: Moment,
    /// The change.
    pub change: KeyChange,
    /// The number of the key.
    pub number: KeyNumber,
    /// The public part.
    pub id: KeyId,
    /// The display name.
    pub name: KeyName,
    /// The role.
    pub role: Role,
    /// The namespace of the key.
    pub namespace: NamespaceName,
    /// The attributes of each of its calls.
    pub labels: Labels,
    /// The attributes that its calls may set.
    pub may_set: MaySet,
    /// The actor.
    pub actor: Actor,
}

impl KeyEntry {
    pub(crate) fn of(at: Moment, change: KeyChange, info: &KeyInfo, actor: Actor) -> KeyEntry {
        KeyEntry {
            at,
            change,
            number: info.number,
            id: info.id.clone(),
            name: info.name.clone(),
            role: info.role,
            namespace: info.namespace.clone(),
            labels: info.labels.clone(),
            may_set: info.may_set.clone(),
            actor,
        }
    }
}

/// The change of a limit, with its definitions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LimitEdit {
    /// Created or redefined.
    Put {
        /// The definition before; `None` for a new limit.
        old: Option<Definition>,
        /// The definition after.
        new: Definition,
    },
    /// Deleted, or decreasing to 0.
    Deleted {
        /// The definition before.
        old: Definition,
    },
}

impl LimitEdit {
    /// The limit before and after.
    #[must_use]
    pub const fn change(&self) -> DefinitionChange<'_> {
        match self {
            LimitEdit::Put { old, new } => DefinitionChange { key: &new.key, old: old.as_ref(), new: Some(new) },
            LimitEdit::Deleted { old } => DefinitionChange { key: &old.key, old: Some(old), new: None },
        }
    }
}

/// A limit or template that was put or deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitEntry {
    /// When.
    pub at: Moment,
    /// The namespace.
    pub namespace: NamespaceId,
    /// The change.
    pub edit: LimitEdit,
    /// The revision after the change.
    pub revision: u64,
    /// The actor.
    pub actor: Actor,
}

#[cfg(test)]
mod tests;
