//! What servers are asked, and what they answer, whatever is spoken with them.

use std::time::Duration;

use earmark_core::{
    AccountName, BalanceInfo, ClientId, Definition, LeaseId, LimitKey, LimitStatus, NamespaceName, Operation,
    UnixMs, Usage, VaultName,
};

use crate::failure::Failure;
use crate::job::{Actuals, Job};

/// The most reserves or completes of one request.
pub(crate) const BATCH_MAX: usize = 256;

/// One reserve attempt.
#[derive(Clone, Debug)]
pub(crate) struct ReserveItem {
    pub(crate) lease: LeaseId,
    pub(crate) job: Job,
}

/// What a lease used.
#[derive(Clone, Debug)]
pub(crate) struct CompleteItem {
    pub(crate) lease: LeaseId,
    pub(crate) job: Job,
    pub(crate) actuals: Actuals,
}

/// Where sequenced writes belong: a namespace, or a vault of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scope {
    /// The namespace.
    pub namespace: NamespaceName,
    /// The vault that operations are about; none if they are about the namespace.
    pub vault: Option<VaultName>,
}

/// A transaction.
#[derive(Clone, Debug)]
pub(crate) struct WriteItem {
    pub(crate) scope: Scope,
    pub(crate) client: ClientId,
    pub(crate) sequence: u64,
    pub(crate) operations: Vec<Operation>,
}

/// What a server is asked.
#[derive(Clone, Debug)]
pub(crate) enum Ask {
    Reserve(Vec<ReserveItem>),
    Complete(Vec<CompleteItem>),
    PutLimit(Box<Definition>),
    DeleteLimit(LimitKey),
    Limit(LimitKey),
    Limits,
    Usage(LimitKey),
    Write(Box<WriteItem>),
    ClientState { scope: Scope, client: ClientId },
    Balances { vault: VaultName, account: AccountName },
}

impl Ask {
    /// Whether something is different once it was carried out.
    pub(crate) const fn changes_something(&self) -> bool {
        match self {
            Ask::Reserve(_) | Ask::Complete(_) | Ask::PutLimit(_) | Ask::DeleteLimit(_) | Ask::Write(_) => {
                true
            }
            Ask::Limit(_) | Ask::Limits | Ask::Usage(_) | Ask::ClientState { .. } | Ask::Balances { .. } => {
                false
            }
        }
    }
}

/// What a server answers, each to what it was asked.
#[derive(Debug)]
pub(crate) enum Answer {
    Reserve(Vec<Result<ReserveAnswer, Failure>>),
    Complete(Vec<Result<Completed, Failure>>),
    LimitStatus(LimitStatus),
    Limits(Vec<LimitView>),
    Usage(Usage),
    Write(Result<Receipt, WriteRefusal>),
    ClientState(u64),
    Balances(Vec<BalanceInfo>),
}

impl Answer {
    /// Whether another server may do better. A node that is cut off from the others still answers: each item of a batch
    /// with a failure, and a write with a refusal.
    pub(crate) fn blames_server(&self) -> bool {
        fn any<T>(answers: &[Result<T, Failure>]) -> bool {
            answers.iter().any(|answer| answer.as_ref().is_err_and(Failure::blames_server))
        }
        match self {
            Answer::Reserve(answers) => any(answers),
            Answer::Complete(answers) => any(answers),
            Answer::Write(written) => {
                written.as_ref().is_err_and(|refusal| refusal.code == WriteCode::Unavailable)
            }
            Answer::LimitStatus(_)
            | Answer::Limits(_)
            | Answer::Usage(_)
            | Answer::ClientState(_)
            | Answer::Balances(_) => false,
        }
    }
}

/// The answer to one reserve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ReserveAnswer {
    Allowed { reserved_at: UnixMs },
    Denied(Denial),
    LimitDecreasing(Denial),
    Never { limited_by: Vec<LimitKey> },
    InsufficientCredit { key: LimitKey, message: Option<String> },
    UnknownLimitKey(LimitKey),
    LeaseExpired,
    Invalid { message: String },
}

/// A denial: an answer, not a failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denial {
    /// When another attempt has a chance.
    pub retry_after: Duration,
    /// What stood in the way, the one that frees last first.
    pub limited_by: Vec<LimitKey>,
}

/// What became of a complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completed {
    /// Whether the lease was known and its actuals were applied, now or before.
    pub reconciled: bool,
    /// What a person should know: keys that were ignored, say.
    pub message: Option<String>,
}

/// A limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitView {
    /// The definition that was put last.
    pub definition: Definition,
    /// Where it stands.
    pub status: LimitStatus,
    /// How often it was put or deleted.
    pub revision: u64,
}

/// What a committed transaction is told, however often it asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// The transaction's own id.
    pub tx_id: String,
    /// The number it took.
    pub sequence: u64,
    /// Its place in the order of all writes that were committed.
    pub log_index: u64,
    /// When.
    pub committed_at: UnixMs,
    /// Who was behind it, as the server sees it.
    pub actor: String,
    /// What became of its operations, in their order.
    pub results: Vec<OperationOutcome>,
}

/// What became of one operation.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OperationOutcome {
    /// A limit was put or deleted.
    Limit {
        /// Its key.
        key: String,
        /// Its revision after the change.
        revision: u64,
    },
    /// This vault is open.
    Vault(String),
    /// This account was opened, frozen, unfrozen or closed.
    Account(String),
    /// Credit was moved in this entry, the one of the transaction.
    Entry(String),
}

/// Why a transaction was not committed. Nothing was changed, but for [`WriteCode::Unavailable`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {message}")]
pub struct WriteRefusal {
    /// Which.
    pub code: WriteCode,
    /// What is wrong, for a person.
    pub message: String,
    /// The place of the operation that is to blame.
    pub operation: Option<u32>,
    /// The last number that the client committed.
    pub last_committed_sequence: Option<u64>,
}

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $text:literal;)*) => {
        /// Why a transaction was refused.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum WriteCode {$($(#[$doc])* $name,)*}

        impl WriteCode {
            /// The code of this name, if there is one.
            pub(crate) fn named(text: &str) -> Option<WriteCode> {
                match text {
                    $($text => Some(WriteCode::$name),)*
                    _ => None,
                }
            }

            /// As the contract has it.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(WriteCode::$name => $text,)*
                }
            }
        }
    };
}

codes! {
    /// The sequence is above the last one plus 1.
    SequenceGap = "SEQUENCE_GAP";
    /// It was committed, and its result is no longer kept.
    AlreadyCommitted = "ALREADY_COMMITTED";
    /// It was committed with other content.
    SequenceReused = "SEQUENCE_REUSED";
    /// An expected revision did not hold.
    ConditionFailed = "CONDITION_FAILED";
    /// An account has too little.
    InsufficientCredit = "INSUFFICIENT_CREDIT";
    /// No such account.
    AccountNotFound = "ACCOUNT_NOT_FOUND";
    /// The account is closed, for ever.
    AccountClosed = "ACCOUNT_CLOSED";
    /// The account is frozen.
    AccountFrozen = "ACCOUNT_FROZEN";
    /// The account to open exists, or the one to close is not empty or is the vault's own.
    Conflict = "CONFLICT";
    /// No such vault.
    VaultNotFound = "VAULT_NOT_FOUND";
    /// The client is new, and there are as many as there may be.
    TooManyClients = "TOO_MANY_CLIENTS";
    /// The outcome is unknown.
    Unavailable = "UNAVAILABLE";
    /// An operation does not belong to the scope.
    WrongScope = "WRONG_SCOPE";
    /// It is malformed; the message says what is wrong.
    Invalid = "INVALID";
}

impl std::fmt::Display for WriteCode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}
