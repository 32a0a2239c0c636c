//! The outcomes of transactions.

use std::sync::Arc;

use super::command::VaultId;
use super::outcome::LimitStatus;
use super::write::TxId;
use crate::credits::AccountId;
use crate::id::{Actor, ClientId};
use crate::limits::DefinitionError;
use crate::quota::QuotaKind;
use crate::time::Moment;

/// The outcome of `Write`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WriteOutcome {
    /// Refused. Nothing changed, and the sequence or key is still free unless the error says otherwise.
    Refused(WriteError),
    /// Committed before; this is the original receipt.
    Exists(Arc<Receipt>),
    /// Committed.
    Committed(Arc<Receipt>),
}

/// The receipt of a committed transaction. Every retry gets the same one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// The id of the transaction.
    pub tx_id: TxId,
    /// Its sequence; `None` if it has an idempotency key.
    pub sequence: Option<u64>,
    /// Its index in the log.
    pub log_index: u64,
    /// The time of the commit.
    pub committed_at: Moment,
    /// The actor.
    pub actor: Actor,
    /// The results of its operations, in order.
    pub results: Vec<OperationResult>,
}

/// The result of one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationResult {
    /// A limit was put or deleted.
    Limit {
        /// The revision after the change.
        revision: u64,
        /// The status after the change.
        status: LimitStatus,
    },
    /// A vault exists, or was deleted.
    Vault(VaultId),
    /// An account was opened, frozen, unfrozen or closed, or its plan was set.
    Account(AccountId),
    /// Credit was moved by the transaction's entry.
    Entry,
    /// A client was retired, now or before.
    Client,
}

/// Why a transaction was refused, in order of precedence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WriteError {
    /// The transaction is malformed.
    Invalid(InvalidWrite),
    /// The vault of the transaction, or of a credit limit that it puts, does not exist.
    VaultNotFound {
        /// The index of the operation that puts the limit.
        operation: Option<usize>,
    },
    /// Earlier sequences are missing.
    SequenceGap {
        /// The last committed sequence.
        last_committed_sequence: u64,
    },
    /// The sequence was committed and its result is no longer kept.
    AlreadyCommitted {
        /// The last committed sequence.
        last_committed_sequence: u64,
    },
    /// The sequence was committed with other operations.
    SequenceReused {
        /// The last committed sequence.
        last_committed_sequence: u64,
    },
    /// The client is new, and the maximum number of clients or the quota of its namespace is reached.
    TooManyClients,
    /// The key was used, and the answer to it is no longer kept.
    KeyCommitted,
    /// The key was used with other operations or by another actor.
    KeyReused,
    /// The key is new, and the maximum number of idempotency keys or the quota of the namespace is reached.
    TooManyKeys,
    /// The namespace has used up a quota.
    QuotaExceeded {
        /// The index of the operation that needs more; `None` for the transaction as a whole.
        operation: Option<usize>,
        /// The quota.
        kind: QuotaKind,
    },
    /// An operation does not belong to the scope of the transaction.
    WrongScope {
        /// The index of the operation.
        operation: usize,
    },
    /// A limit does not have the revision that an operation expects.
    ConditionFailed {
        /// The index of the operation.
        operation: usize,
        /// The revision it has; 0 if it does not exist.
        revision: u64,
    },
    /// An account does not exist.
    AccountNotFound {
        /// The index of the operation.
        operation: usize,
    },
    /// An account is closed.
    AccountClosed {
        /// The index of the operation.
        operation: usize,
    },
    /// An operation takes from a frozen account.
    AccountFrozen {
        /// The index of the operation.
        operation: usize,
    },
    /// The account to open exists, the account to close is not empty or is `revenue`, or the vault to delete is in use.
    Conflict {
        /// The index of the operation.
        operation: usize,
    },
    /// An account has less than the transaction takes from it.
    InsufficientCredit {
        /// The index of the operation.
        operation: usize,
    },
}

/// Why a transaction is malformed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InvalidWrite {
    /// The namespace does not exist.
    UnknownNamespace,
    /// More than [`super::OPERATIONS_MAX`] operations.
    TooManyOperations {
        /// The number found.
        found: usize,
    },
    /// A sequence that can never be committed: 0 or `u64::MAX`.
    Sequence {
        /// The sequence.
        found: u64,
    },
    /// Another key has claimed the client id.
    ClientClaimed {
        /// The client id.
        client: ClientId,
    },
    /// The client id was retired.
    ClientRetired {
        /// The client id.
        client: ClientId,
    },
    /// An operation is malformed.
    Operation {
        /// Its index.
        operation: usize,
        /// The reason.
        why: InvalidOperation,
    },
}

/// Why an operation is malformed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InvalidOperation {
    /// A definition is out of bounds.
    Definition(DefinitionError),
    /// The limit exists with another kind.
    LimitKindDiffers,
    /// The maximum number of limits is reached.
    TooManyLimits,
    /// The maximum number of vaults is reached.
    TooManyVaults,
    /// The maximum number of accounts is reached.
    TooManyAccounts,
    /// The maximum number of assets of the vault is reached.
    TooManyAssets,
    /// The account would have more grants of the asset than [`GRANTS_MAX`](crate::GRANTS_MAX).
    TooManyGrants,
    /// The expiry of a grant is not in the future.
    ExpiryPast,
    /// The amount is 0.
    AmountZero,
    /// The cap on carried credit is 0.
    CarryOverZero,
    /// The offset of a plan is out of range.
    PlanUtcOffset {
        /// The offset found, in minutes.
        found: i16,
    },
    /// An amount, balance or total does not fit an `i128`.
    OutOfRange,
    /// The memo is too long.
    MemoTooLong {
        /// Its length in bytes.
        found: usize,
    },
    /// A transfer from an account to itself.
    ToItself,
    /// The writer is not an admin.
    NeedsAdmin,
    /// The client to retire has never written in this scope, or is the writer itself.
    UnknownClient,
    /// Another system keeps the credit, and does not support the operation.
    CreditExternal,
}

impl WriteError {
    /// The error code of the API contract.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            WriteError::Invalid(_) => "INVALID",
            WriteError::VaultNotFound { .. } => "VAULT_NOT_FOUND",
            WriteError::SequenceGap { .. } => "SEQUENCE_GAP",
            WriteError::AlreadyCommitted { .. } | WriteError::KeyCommitted => "ALREADY_COMMITTED",
            WriteError::SequenceReused { .. } => "SEQUENCE_REUSED",
            WriteError::TooManyClients => "TOO_MANY_CLIENTS",
            WriteError::KeyReused => "KEY_REUSED",
            WriteError::TooManyKeys => "TOO_MANY_KEYS",
            WriteError::QuotaExceeded { .. } => "QUOTA_EXCEEDED",
            WriteError::WrongScope { .. } => "WRONG_SCOPE",
            WriteError::ConditionFailed { .. } => "CONDITION_FAILED",
            WriteError::AccountNotFound { .. } => "ACCOUNT_NOT_FOUND",
            WriteError::AccountClosed { .. } => "ACCOUNT_CLOSED",
            WriteError::AccountFrozen { .. } => "ACCOUNT_FROZEN",
            WriteError::Conflict { .. } => "CONFLICT",
            WriteError::InsufficientCredit { .. } => "INSUFFICIENT_CREDIT",
        }
    }

    /// The index of the operation to blame, if there is one.
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
            WriteError::VaultNotFound { operation } | WriteError::QuotaExceeded { operation, .. } => *operation,
            WriteError::Invalid(
                InvalidWrite::UnknownNamespace
                | InvalidWrite::TooManyOperations { .. }
                | InvalidWrite::Sequence { .. }
                | InvalidWrite::ClientClaimed { .. }
                | InvalidWrite::ClientRetired { .. },
            )
            | WriteError::SequenceGap { .. }
            | WriteError::AlreadyCommitted { .. }
            | WriteError::SequenceReused { .. }
            | WriteError::TooManyClients
            | WriteError::KeyCommitted
            | WriteError::KeyReused
            | WriteError::TooManyKeys => None,
        }
    }

    /// The client's last committed sequence, for errors about sequences.
    #[must_use]
    pub const fn last_committed_sequence(&self) -> Option<u64> {
        match self {
            WriteError::SequenceGap { last_committed_sequence }
            | WriteError::AlreadyCommitted { last_committed_sequence }
            | WriteError::SequenceReused { last_committed_sequence } => Some(*last_committed_sequence),
            WriteError::Invalid(_)
            | WriteError::VaultNotFound { .. }
            | WriteError::TooManyClients
            | WriteError::KeyCommitted
            | WriteError::KeyReused
            | WriteError::TooManyKeys
            | WriteError::QuotaExceeded { .. }
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
