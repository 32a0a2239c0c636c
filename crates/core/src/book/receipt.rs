//! What a transaction is answered.

use std::sync::Arc;

use super::command::{LimitId, VaultId};
use super::outcome::LimitStatus;
use super::write::TxId;
use crate::credits::AccountId;
use crate::id::Actor;
use crate::limits::DefinitionError;
use crate::time::UnixMs;

/// The answer to `Write`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WriteOutcome {
    /// Nothing was changed, and the number is still free unless the refusal says otherwise.
    Refused(WriteError),
    /// It was committed before; this is what was said then.
    Exists(Arc<Receipt>),
    /// It is committed.
    Committed(Arc<Receipt>),
}

/// What a committed transaction is told, however often it asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// The transaction's own id.
    pub tx_id: TxId,
    /// The number it took.
    pub sequence: u64,
    /// Its place in the log.
    pub log_index: u64,
    /// When, by log time.
    pub committed_at: UnixMs,
    /// Who was behind it.
    pub actor: Actor,
    /// What became of its operations, in their order.
    pub results: Vec<OperationResult>,
}

/// What became of one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationResult {
    /// A limit was put or deleted.
    Limit {
        /// Its number.
        limit: LimitId,
        /// Its revision after the change.
        revision: u64,
        /// Where it stands.
        status: LimitStatus,
    },
    /// A vault is open.
    Vault(VaultId),
    /// An account was opened, frozen, unfrozen or closed.
    Account(AccountId),
    /// Credit was moved, in the one entry of the transaction.
    Entry,
}

/// Why a transaction was refused, in order of precedence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WriteError {
    /// It is malformed.
    Invalid(InvalidWrite),
    /// There is no such vault.
    VaultNotFound,
    /// Numbers before this one are missing.
    SequenceGap {
        /// The last number that was committed.
        last_committed_sequence: u64,
    },
    /// The number was committed, and its result is no longer kept.
    AlreadyCommitted {
        /// The last number that was committed.
        last_committed_sequence: u64,
    },
    /// The number was committed with other operations.
    SequenceReused {
        /// The last number that was committed.
        last_committed_sequence: u64,
    },
    /// The client is new, and there are as many as there may be.
    TooManyClients,
    /// An operation does not belong to the scope of the transaction.
    WrongScope {
        /// Its place.
        operation: usize,
    },
    /// A limit does not have the revision that an operation expects.
    ConditionFailed {
        /// The place of the operation.
        operation: usize,
        /// The revision the limit has; 0 if it does not exist.
        revision: u64,
    },
    /// An operation names an account that was never opened.
    AccountNotFound {
        /// The place of the operation.
        operation: usize,
    },
    /// An operation names an account that is closed.
    AccountClosed {
        /// The place of the operation.
        operation: usize,
    },
    /// An operation takes from an account that is frozen.
    AccountFrozen {
        /// The place of the operation.
        operation: usize,
    },
    /// An account to open exists, or one to close is not empty or is the vault's own.
    Conflict {
        /// The place of the operation.
        operation: usize,
    },
    /// An account has too little for what the transaction takes from it.
    InsufficientCredit {
        /// The place of the operation.
        operation: usize,
    },
}

/// What is malformed in a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InvalidWrite {
    /// No such namespace.
    UnknownNamespace,
    /// More than [`super::OPERATIONS_MAX`] operations.
    TooManyOperations {
        /// How many there were.
        found: usize,
    },
    /// A number that can never be committed: 0, or so high that nothing could follow.
    Sequence {
        /// The number.
        found: u64,
    },
    /// One operation is malformed.
    Operation {
        /// Its place.
        operation: usize,
        /// What is wrong with it.
        why: InvalidOperation,
    },
}

/// What is wrong with one operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InvalidOperation {
    /// A definition is out of bounds.
    Definition(DefinitionError),
    /// A limit exists and is of another kind.
    LimitKindDiffers,
    /// There are as many limits as there may be.
    TooManyLimits,
    /// There are as many vaults as there may be.
    TooManyVaults,
    /// There are as many accounts as there may be.
    TooManyAccounts,
    /// The vault has as many assets as it may have.
    TooManyAssets,
    /// An amount of 0.
    AmountZero,
    /// An amount, a balance or a total beyond what an `i128` can count.
    OutOfRange,
    /// A memo that is too long.
    MemoTooLong {
        /// Its length in bytes.
        found: usize,
    },
    /// A transfer from an account to itself.
    ToItself,
}

impl WriteError {
    /// The code by which the contract knows it.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            WriteError::Invalid(_) => "INVALID",
            WriteError::VaultNotFound => "VAULT_NOT_FOUND",
            WriteError::SequenceGap { .. } => "SEQUENCE_GAP",
            WriteError::AlreadyCommitted { .. } => "ALREADY_COMMITTED",
            WriteError::SequenceReused { .. } => "SEQUENCE_REUSED",
            WriteError::TooManyClients => "TOO_MANY_CLIENTS",
            WriteError::WrongScope { .. } => "WRONG_SCOPE",
            WriteError::ConditionFailed { .. } => "CONDITION_FAILED",
            WriteError::AccountNotFound { .. } => "ACCOUNT_NOT_FOUND",
            WriteError::AccountClosed { .. } => "ACCOUNT_CLOSED",
            WriteError::AccountFrozen { .. } => "ACCOUNT_FROZEN",
            WriteError::Conflict { .. } => "CONFLICT",
            WriteError::InsufficientCredit { .. } => "INSUFFICIENT_CREDIT",
        }
    }

    /// The place of the operation that is to blame, if one is.
    #[must_use]
    pub const fn operation(&self) -> Option<usize> {
        match self {
            WriteError::Invalid(InvalidWrite::Operation { operation, .. })
            | WriteError::WrongScope { operation }
            | WriteError::ConditionFailed { operation, .. }
            | WriteError::AccountNotFound { operation }
            | WriteError::AccountClosed { operation }
            | WriteError::AccountFrozen { operation }
            | WriteError::Conflict { operation }
            | WriteError::InsufficientCredit { operation } => Some(*operation),
            WriteError::Invalid(
                InvalidWrite::UnknownNamespace
                | InvalidWrite::TooManyOperations { .. }
                | InvalidWrite::Sequence { .. },
            )
            | WriteError::VaultNotFound
            | WriteError::SequenceGap { .. }
            | WriteError::AlreadyCommitted { .. }
            | WriteError::SequenceReused { .. }
            | WriteError::TooManyClients => None,
        }
    }

    /// The last number that the client committed, where that is what the refusal is about.
    #[must_use]
    pub const fn last_committed_sequence(&self) -> Option<u64> {
        match self {
            WriteError::SequenceGap { last_committed_sequence }
            | WriteError::AlreadyCommitted { last_committed_sequence }
            | WriteError::SequenceReused { last_committed_sequence } => Some(*last_committed_sequence),
            WriteError::Invalid(_)
            | WriteError::VaultNotFound
            | WriteError::TooManyClients
            | WriteError::WrongScope { .. }
            | WriteError::ConditionFailed { .. }
            | WriteError::AccountNotFound { .. }
            | WriteError::AccountClosed { .. }
            | WriteError::AccountFrozen { .. }
            | WriteError::Conflict { .. }
            | WriteError::InsufficientCredit { .. } => None,
        }
    }
}
