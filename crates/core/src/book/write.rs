//! Transactions: sequenced, atomic lists of operations.

use std::fmt;

use super::command::NamespaceId;
use crate::credits::Overdraft;
use crate::id::{AccountName, Actor, AssetName, ClientId, LeaseId, LimitKey, VaultName};
use crate::limits::Definition;

/// The most operations of one transaction.
pub const OPERATIONS_MAX: usize = 256;
/// The longest memo, in bytes.
pub const MEMO_BYTES_MAX: usize = 256;

/// A transaction's own id, assigned by whoever orders the commands. Written as a ULID.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TxId(pub u128);

impl fmt::Display for TxId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        LeaseId::from_u128(self.0).fmt(f)
    }
}

/// A transaction: all its operations are applied, once, or none is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// Where it belongs.
    pub namespace: NamespaceId,
    /// The vault of the namespace that its operations are about; none if they are about the namespace.
    pub vault: Option<VaultName>,
    /// Who counts.
    pub client: ClientId,
    /// The number of this transaction among those of the client in this scope, counted from 1.
    pub sequence: u64,
    /// Up to [`OPERATIONS_MAX`]. None at all is valid: the transaction only consumes its number.
    pub operations: Vec<Operation>,
    /// Its own id.
    pub tx_id: TxId,
    /// Its place in the log.
    pub log_index: u64,
    /// Who is behind it.
    pub actor: Actor,
}

/// One part of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Creates a limit of the namespace or changes its definition.
    PutLimit {
        /// What it is to be.
        definition: Definition,
        /// The revision it must have now; 0 if it must not exist.
        expected_revision: Option<u64>,
    },
    /// Lets a limit of the namespace run empty and then forgets it.
    DeleteLimit {
        /// Its name.
        key: LimitKey,
        /// The revision it must have now.
        expected_revision: Option<u64>,
    },
    /// Makes a vault of the namespace known. One that is known stays as it is.
    OpenVault {
        /// Its name.
        vault: VaultName,
    },
    /// Opens an account of the vault.
    OpenAccount {
        /// Its name.
        account: AccountName,
        /// Whether it may go below zero.
        overdraft: Overdraft,
    },
    /// Lets nothing but the cost of leases go out of an account.
    FreezeAccount {
        /// Its name.
        account: AccountName,
    },
    /// Lets an account spend again.
    UnfreezeAccount {
        /// Its name.
        account: AccountName,
    },
    /// Closes an account that has nothing and owes nothing, for ever.
    CloseAccount {
        /// Its name.
        account: AccountName,
    },
    /// Makes credit from nothing.
    Issue {
        /// Who gets it.
        account: AccountName,
        /// What.
        asset: AssetName,
        /// How much, in minor units; at least 1.
        amount: u128,
        /// Why, for people.
        memo: String,
    },
    /// Moves credit.
    Transfer {
        /// Who gives it.
        from: AccountName,
        /// Who gets it.
        to: AccountName,
        /// What.
        asset: AssetName,
        /// How much, in minor units; at least 1.
        amount: u128,
        /// Why, for people.
        memo: String,
    },
    /// Makes credit nothing.
    Retire {
        /// Who gives it.
        account: AccountName,
        /// What.
        asset: AssetName,
        /// How much, in minor units; at least 1.
        amount: u128,
        /// Why, for people.
        memo: String,
    },
}

impl Operation {
    /// The name of what it is about; empty if it moves credit, for which there is an entry to name.
    #[must_use]
    pub fn subject(&self) -> &str {
        match self {
            Operation::PutLimit { definition, .. } => definition.key.as_str(),
            Operation::DeleteLimit { key, .. } => key.as_str(),
            Operation::OpenVault { vault } => vault.as_str(),
            Operation::OpenAccount { account, .. }
            | Operation::FreezeAccount { account }
            | Operation::UnfreezeAccount { account }
            | Operation::CloseAccount { account } => account.as_str(),
            Operation::Issue { .. } | Operation::Transfer { .. } | Operation::Retire { .. } => "",
        }
    }

    /// Whether it is about a vault, and not about a namespace.
    #[must_use]
    pub const fn is_of_vault(&self) -> bool {
        match self {
            Operation::PutLimit { .. } | Operation::DeleteLimit { .. } | Operation::OpenVault { .. } => false,
            Operation::OpenAccount { .. }
            | Operation::FreezeAccount { .. }
            | Operation::UnfreezeAccount { .. }
            | Operation::CloseAccount { .. }
            | Operation::Issue { .. }
            | Operation::Transfer { .. }
            | Operation::Retire { .. } => true,
        }
    }
}
