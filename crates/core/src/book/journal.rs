//! History: what happened, as records that leave the Book and are not part of its state.

use std::sync::Arc;

use super::command::{NamespaceId, VaultId};
use super::receipt::Receipt;
use super::write::Operation;
use crate::credits::{AccountId, AssetId};
use crate::id::ClientId;

/// One thing that happened. The Book hands its records out and forgets them; see
/// [`Book::drain_journal`](super::Book::drain_journal).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JournalRecord {
    /// A transaction was committed.
    Transaction(Transaction),
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
