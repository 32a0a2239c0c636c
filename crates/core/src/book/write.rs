//! Transactions: sequenced, atomic lists of operations.

use std::collections::BTreeMap;
use std::fmt;

use super::command::NamespaceId;
use crate::credits::{GrantTerms, Overdraft, Plan};
use crate::id::{AccountName, Actor, AssetName, ClientId, IdempotencyKey, LeaseId, LimitKey, VaultName};
use crate::limits::Definition;

/// The maximum number of operations of a transaction.
pub const OPERATIONS_MAX: usize = 256;
/// The maximum length of a memo, in bytes.
pub const MEMO_BYTES_MAX: usize = 256;

/// The id of a transaction, assigned by the leader. Displayed as a ULID.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TxId(pub u128);

impl fmt::Display for TxId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        LeaseId::from_u128(self.0).fmt(f)
    }
}

/// A transaction: all its operations are applied exactly once, or none is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// The namespace.
    pub namespace: NamespaceId,
    /// The vault of a vault transaction; `None` for a namespace transaction.
    pub vault: Option<VaultName>,
    /// Its identity in this scope.
    pub id: WriteId,
    /// Up to [`OPERATIONS_MAX`]. An empty transaction is valid and only uses up its identity.
    pub operations: Vec<Operation>,
    /// The id.
    pub tx_id: TxId,
    /// The index in the log.
    pub log_index: u64,
    /// The actor.
    pub actor: Actor,
}

/// The identity of a transaction in its scope. A transaction is applied once per identity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WriteId {
    /// A sequence of a client.
    Sequence {
        /// The client.
        client: ClientId,
        /// The client's sequence in this scope, counted from 1.
        sequence: u64,
    },
    /// A key of the caller's choice.
    Key(IdempotencyKey),
}

impl WriteId {
    /// The client; `None` for a key.
    #[must_use]
    pub const fn client(&self) -> Option<&ClientId> {
        match self {
            WriteId::Sequence { client, .. } => Some(client),
            WriteId::Key(_) => None,
        }
    }

    /// The sequence; `None` for a key.
    #[must_use]
    pub const fn sequence(&self) -> Option<u64> {
        match self {
            WriteId::Sequence { sequence, .. } => Some(*sequence),
            WriteId::Key(_) => None,
        }
    }

    /// The idempotency key; `None` for a sequence.
    #[must_use]
    pub const fn key(&self) -> Option<&IdempotencyKey> {
        match self {
            WriteId::Sequence { .. } => None,
            WriteId::Key(key) => Some(key),
        }
    }
}

/// The identity for logs and messages: `client billing, sequence 7` or `key evt_1`.
impl fmt::Display for WriteId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WriteId::Sequence { client, sequence } => write!(f, "client {client}, sequence {sequence}"),
            WriteId::Key(key) => write!(f, "key {key}"),
        }
    }
}

/// One operation of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Creates a limit of the namespace or changes its definition.
    PutLimit {
        /// The definition.
        definition: Definition,
        /// The revision the limit must have; 0 if it must not exist.
        expected_revision: Option<u64>,
    },
    /// Deletes a limit of the namespace once nothing is reserved.
    DeleteLimit {
        /// The key.
        key: LimitKey,
        /// The revision the limit must have.
        expected_revision: Option<u64>,
    },
    /// Opens a vault of the namespace. Opening it again changes nothing.
    OpenVault {
        /// The name.
        vault: VaultName,
    },
    /// Deletes a vault of the namespace that was never used: it has no account but its revenue account, never had an
    /// asset, and no client id. Its number is not used again.
    DeleteVault {
        /// The name.
        vault: VaultName,
    },
    /// Retires a client id of the scope: it is refused for ever, and its memory is freed. Needs role admin.
    RetireClient {
        /// The client id.
        client: ClientId,
    },
    /// Opens an account of the vault.
    OpenAccount {
        /// The name.
        account: AccountName,
        /// Whether it may go below zero.
        overdraft: Overdraft,
        /// Its plan.
        plan: Option<Plan>,
    },
    /// Sets or removes the plan of an account.
    SetPlan {
        /// The name.
        account: AccountName,
        /// The plan; `None` removes it.
        plan: Option<Plan>,
    },
    /// Freezes an account: only the cost of leases can be taken from it.
    FreezeAccount {
        /// The name.
        account: AccountName,
    },
    /// Unfreezes an account.
    UnfreezeAccount {
        /// The name.
        account: AccountName,
    },
    /// Closes an empty account for ever.
    CloseAccount {
        /// The name.
        account: AccountName,
    },
    /// Creates credit.
    Issue {
        /// The account that receives it.
        account: AccountName,
        /// The asset.
        asset: AssetName,
        /// The amount in minor units; at least 1.
        amount: u128,
        /// A note for people.
        memo: String,
        /// Its priority and expiry.
        terms: GrantTerms,
    },
    /// Moves credit between accounts.
    Transfer {
        /// The account that pays.
        from: AccountName,
        /// The account that receives.
        to: AccountName,
        /// The asset.
        asset: AssetName,
        /// The amount in minor units; at least 1.
        amount: u128,
        /// A note for people.
        memo: String,
    },
    /// Destroys credit.
    Retire {
        /// The account it is taken from.
        account: AccountName,
        /// The asset.
        asset: AssetName,
        /// The amount in minor units; at least 1.
        amount: u128,
        /// A note for people.
        memo: String,
    },
}

impl Operation {
    /// The name of the limit, vault or account it changes; empty for operations that move credit.
    #[must_use]
    pub fn subject(&self) -> &str {
        match self {
            Operation::PutLimit { definition, .. } => definition.key.as_str(),
            Operation::DeleteLimit { key, .. } => key.as_str(),
            Operation::OpenVault { vault } | Operation::DeleteVault { vault } => vault.as_str(),
            Operation::RetireClient { client } => client.as_str(),
            Operation::OpenAccount { account, .. }
            | Operation::SetPlan { account, .. }
            | Operation::FreezeAccount { account }
            | Operation::UnfreezeAccount { account }
            | Operation::CloseAccount { account } => account.as_str(),
            Operation::Issue { .. } | Operation::Transfer { .. } | Operation::Retire { .. } => "",
        }
    }

    /// The limit it puts or deletes.
    #[must_use]
    pub const fn limit(&self) -> Option<&LimitKey> {
        match self {
            Operation::PutLimit { definition, .. } => Some(&definition.key),
            Operation::DeleteLimit { key, .. } => Some(key),
            Operation::OpenVault { .. }
            | Operation::DeleteVault { .. }
            | Operation::OpenAccount { .. }
            | Operation::SetPlan { .. }
            | Operation::FreezeAccount { .. }
            | Operation::UnfreezeAccount { .. }
            | Operation::CloseAccount { .. }
            | Operation::Issue { .. }
            | Operation::Transfer { .. }
            | Operation::Retire { .. }
            | Operation::RetireClient { .. } => None,
        }
    }

    /// The accounts whose plans a transaction changes, each with its plan after it. Of several changes of one plan the
    /// last counts.
    #[must_use]
    pub fn plan_changes(operations: &[Operation]) -> BTreeMap<&AccountName, Option<&Plan>> {
        let mut changes = BTreeMap::new();
        for operation in operations {
            let (account, plan) = match operation {
                Operation::OpenAccount { account, plan: Some(plan), .. } => (account, Some(plan)),
                Operation::SetPlan { account, plan } => (account, plan.as_ref()),
                Operation::CloseAccount { account } => (account, None),
                _ => continue,
            };
            changes.insert(account, plan);
        }
        changes
    }

    /// Whether it belongs to a transaction of a vault, or else of a namespace.
    #[must_use]
    pub const fn fits(&self, is_of_vault: bool) -> bool {
        match self {
            Operation::RetireClient { .. } => true,
            Operation::PutLimit { .. }
            | Operation::DeleteLimit { .. }
            | Operation::OpenVault { .. }
            | Operation::DeleteVault { .. } => !is_of_vault,
            Operation::OpenAccount { .. }
            | Operation::SetPlan { .. }
            | Operation::FreezeAccount { .. }
            | Operation::UnfreezeAccount { .. }
            | Operation::CloseAccount { .. }
            | Operation::Issue { .. }
            | Operation::Transfer { .. }
            | Operation::Retire { .. } => is_of_vault,
        }
    }
}
