//! Transactions: sequenced, atomic lists of operations.

use super::command::NamespaceId;
use crate::id::{Actor, ClientId, LimitKey, VaultName};
use crate::limits::Definition;

/// The most operations of one transaction.
pub const OPERATIONS_MAX: usize = 256;

/// A transaction's own id, assigned by whoever orders the commands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TxId(pub u128);

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
}

impl Operation {
    /// Whether it is about a vault, and not about a namespace.
    #[must_use]
    pub const fn is_of_vault(&self) -> bool {
        match self {
            Operation::PutLimit { .. } | Operation::DeleteLimit { .. } | Operation::OpenVault { .. } => false,
        }
    }
}
