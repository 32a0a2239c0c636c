//! History: what happened, as records that leave the Book and are not part of its state.

mod codec;

use std::sync::Arc;

use super::command::{LimitId, NamespaceId, VaultId};
use super::receipt::Receipt;
use super::write::Operation;
use crate::credits::{AccountId, AssetId};
use crate::id::{Actor, ClientId, KeyId, KeyName, LeaseId, LimitKey, NamespaceName};
use crate::keys::{KeyInfo, KeyNumber, Role};
use crate::time::UnixMs;

/// One thing that happened. The Book hands its records out and forgets them; see
/// [`Book::drain_journal`](super::Book::drain_journal).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JournalRecord {
    /// A transaction was committed.
    Transaction(Transaction),
    /// Credit was moved from an account to the hold account of a lease.
    Hold(HoldEntry),
    /// A lease said what it cost, and it was paid.
    Settle(SettleEntry),
    /// All that was held went back to the account.
    Release(HoldEntry),
    /// A key was made or revoked.
    Key(KeyEntry),
    /// A limit was put or deleted outside of any transaction.
    Limit(LimitEntry),
}

impl JournalRecord {
    /// The accounts it is about, each once, in ascending order.
    #[must_use]
    pub fn accounts(&self) -> Vec<AccountId> {
        let mut accounts = match self {
            JournalRecord::Transaction(transaction) => {
                transaction.changes.iter().map(|change| change.account).collect()
            }
            JournalRecord::Hold(hold) | JournalRecord::Release(hold) => vec![hold.account],
            JournalRecord::Settle(settle) => vec![settle.hold.account, settle.revenue],
            JournalRecord::Key(_) | JournalRecord::Limit(_) => Vec::new(),
        };
        accounts.sort_unstable();
        accounts.dedup();
        accounts
    }
}

/// A transaction that was committed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transaction {
    /// Where it belongs.
    pub namespace: NamespaceId,
    /// The vault it is about, if it is about one.
    pub vault: Option<VaultId>,
    /// Whose it is.
    pub client: ClientId,
    /// What was answered.
    pub receipt: Arc<Receipt>,
    /// What was asked.
    pub operations: Vec<Operation>,
    /// What its one entry of credit changed, in order of account and asset; none if it moved nothing.
    pub changes: Vec<Change>,
}

/// What an entry added to an account, or took from it if below zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// The account.
    pub account: AccountId,
    /// The asset.
    pub asset: AssetId,
    /// How much.
    pub amount: i128,
}

/// Credit that was set aside for a lease, or was given back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HoldEntry {
    /// When it was written down. A hold that runs out is spendable when its time is over, and its release is
    /// written down a little later.
    pub at: UnixMs,
    /// Where the lease and the limit live.
    pub namespace: NamespaceId,
    /// The lease.
    pub lease: LeaseId,
    /// The limit of kind `credit`.
    pub limit: LimitId,
    /// Whose credit it is.
    pub account: AccountId,
    /// What.
    pub asset: AssetId,
    /// How much.
    pub amount: u64,
    /// Who had it written down; nobody if it follows from time alone, or was kept by a version that did not ask.
    pub actor: Option<Actor>,
}

/// What became of a hold whose lease was completed. The hold account gave `held`, the revenue account got `paid`,
/// and the difference is what the owner got back, or gave if it is below zero.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettleEntry {
    /// The hold, and when it was settled.
    pub hold: HoldEntry,
    /// What was still held; 0 if its time was over.
    pub held: u64,
    /// Who was paid.
    pub revenue: AccountId,
    /// What was paid.
    pub paid: u64,
    /// How much of that the owner did not have, and owes.
    pub debt: u64,
    /// What it cost and nobody paid.
    pub uncollected: u64,
}

/// What became of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum KeyChange {
    /// It was made.
    Created = 1,
    /// It was revoked.
    Revoked = 2,
}

/// A key that was made or revoked. Of its secret there is nothing here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyEntry {
    /// When.
    pub at: UnixMs,
    /// What became of it.
    pub change: KeyChange,
    /// Its number.
    pub number: KeyNumber,
    /// Its public part.
    pub id: KeyId,
    /// What people call it.
    pub name: KeyName,
    /// What it may do,
    pub role: Role,
    /// and where.
    pub namespace: NamespaceName,
    /// Who did it.
    pub actor: Actor,
}

impl KeyEntry {
    pub(crate) fn of(at: UnixMs, change: KeyChange, info: &KeyInfo, actor: Actor) -> KeyEntry {
        KeyEntry {
            at,
            change,
            number: info.number,
            id: info.id.clone(),
            name: info.name.clone(),
            role: info.role,
            namespace: info.namespace.clone(),
            actor,
        }
    }
}

/// What became of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum LimitEdit {
    /// It was made, or has another definition.
    Put = 1,
    /// It was deleted, or begins to run empty.
    Deleted = 2,
}

/// A limit that somebody put or deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitEntry {
    /// When.
    pub at: UnixMs,
    /// Where it lives.
    pub namespace: NamespaceId,
    /// Its key.
    pub key: LimitKey,
    /// What became of it.
    pub change: LimitEdit,
    /// Its revision from then on.
    pub revision: u64,
    /// Who did it.
    pub actor: Actor,
}

#[cfg(test)]
mod tests;
