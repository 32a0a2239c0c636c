//! The answers of servers, over either protocol or from a Book in this process.

use std::time::Duration;

use earmark_core::{
    Definition, JobId, LeaseState, LimitKey, LimitStatus, LimitUsage, NamespaceName, UnixMs, UsageSort, VaultName,
};

/// Where sequenced writes belong: a namespace, or a vault of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scope {
    /// The namespace.
    pub namespace: NamespaceName,
    /// The vault that the operations change. `None` for operations on the namespace.
    pub vault: Option<VaultName>,
}

/// The answer to one reserve.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReserveAnswer {
    /// Everything is reserved, now or by an earlier copy of the request.
    Allowed {
        /// The server time of the reserve.
        reserved_at: UnixMs,
        /// Limits that are not enforced and would have denied it.
        would_deny: Vec<LimitKey>,
    },
    /// A limit has no room now.
    Denied(Denial),
    /// A limit is being decreased.
    LimitDecreasing(Denial),
    /// A limit is paused.
    LimitPaused(Denial),
    /// An amount exceeds the capacity of its limit.
    Never {
        /// The limits whose capacity is too small.
        limited_by: Vec<LimitKey>,
    },
    /// An account has too little credit.
    InsufficientCredit {
        /// The credit limit on the account.
        key: LimitKey,
        /// A note about the account.
        message: Option<String>,
    },
    /// The vault or the account of this credit limit does not exist.
    AccountNotFound(LimitKey),
    /// This limit does not exist.
    UnknownLimitKey(LimitKey),
    /// The lease was completed, released or timed out.
    LeaseExpired,
    /// The namespace has used up a quota.
    QuotaExceeded {
        /// The wait before another attempt can succeed.
        retry_after: Duration,
        /// Which quota.
        message: String,
    },
    /// The lease is too old, or was used for other requirements.
    Invalid {
        /// The value that was found, and the values that are allowed.
        message: String,
    },
}

/// The answer to one extension.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExtendAnswer {
    /// The lease is extended.
    Extended(Extended),
    /// A denial or a refusal, which are those of a reserve.
    Not(ReserveAnswer),
}

/// An extension that was applied, now or by an earlier attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extended {
    /// The server time at which the first of its concurrency and credit reservations ends, if it has any.
    pub ends_at: Option<UnixMs>,
    /// A note for people, such as the keys whose usage was ignored.
    pub message: Option<String>,
}

/// A denied reserve: not enough is free now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denial {
    /// The wait before another attempt can succeed.
    pub retry_after: Duration,
    /// The limits without room, the one that frees last first.
    pub limited_by: Vec<LimitKey>,
}

/// The answer to a complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completed {
    /// Whether the server knew the lease and applied its actuals, now or earlier.
    pub reconciled: bool,
    /// A note for people, such as the keys that were ignored.
    pub message: Option<String>,
}

/// A limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitView {
    /// The latest definition.
    pub definition: Definition,
    /// The status.
    pub status: LimitStatus,
    /// The revision of its last change; of a derived limit that of its template.
    pub revision: u64,
    /// The key of the template that it is derived from.
    pub template: Option<LimitKey>,
}

/// Which limits to list with their usage.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UsageQuery {
    /// Only limits whose key begins like this.
    pub prefix: Option<LimitKey>,
    /// The order. Only a list by key has further pages.
    pub sort: UsageSort,
    /// `next` of the previous page.
    pub after: Option<LimitKey>,
    /// Limits on the page, 1 to 1,000; by default 1,000.
    pub page_size: Option<u32>,
}

/// A list of limits with their usage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsagePage {
    /// The limits, in the order of the query. The list does not say to which capacity a limit is decreasing.
    pub usage: Vec<LimitUsage>,
    /// `after` of the next page.
    pub next: Option<LimitKey>,
}

/// A lease, as far as the server remembers it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseView {
    /// The state.
    pub state: LeaseState,
    /// When it was allowed, if it was.
    pub reserved_at: Option<UnixMs>,
    /// The job of its first reserve, if it had one. On TigerBeetle only the server that took the reserve knows it.
    pub job: Option<JobId>,
    /// The number of its last extension; 0 without one.
    pub extensions: u32,
    /// The usage that its extensions reported, sorted by key.
    pub used: Vec<(LimitKey, u64)>,
    /// When the first of its concurrency and credit reservations ends. `None` without any, or if it is not live.
    pub ends_at: Option<UnixMs>,
}

/// The receipt of a committed transaction. A repeated write gets the same one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// The id of the transaction.
    pub tx_id: String,
    /// The sequence number of the transaction; `None` if it has an idempotency key.
    pub sequence: Option<u64>,
    /// The position among all committed writes.
    pub log_index: u64,
    /// The time of the commit.
    pub committed_at: UnixMs,
    /// The caller that the server authenticated.
    pub actor: String,
    /// The result of each operation, in their order.
    pub results: Vec<OperationOutcome>,
}

/// The result of one operation.
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
    /// Credit moved in the ledger entry with this id, which is that of the transaction.
    Entry(String),
    /// This client id is retired.
    Client(String),
}

/// Why a transaction was not committed. Nothing changed, except perhaps with [`WriteCode::Unavailable`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {message}")]
pub struct WriteRefusal {
    /// The reason.
    pub code: WriteCode,
    /// The reason in words.
    pub message: String,
    /// The index of the operation that was refused.
    pub operation: Option<u32>,
    /// The last sequence number that the client committed.
    pub last_committed_sequence: Option<u64>,
}

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $text:literal;)*) => {
        /// Why a transaction was refused.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum WriteCode {$($(#[$doc])* $name,)*}

        impl WriteCode {
            /// The code with this name.
            pub(crate) fn named(text: &str) -> Option<WriteCode> {
                match text {
                    $($text => Some(WriteCode::$name),)*
                    _ => None,
                }
            }

            /// The name of the code in the API.
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
    /// The sequence number is greater than the last committed one plus 1.
    SequenceGap = "SEQUENCE_GAP";
    /// The sequence number or key was committed, and its result is no longer remembered.
    AlreadyCommitted = "ALREADY_COMMITTED";
    /// The sequence number was committed with other content.
    SequenceReused = "SEQUENCE_REUSED";
    /// A limit does not have the expected revision.
    ConditionFailed = "CONDITION_FAILED";
    /// An account has too little credit.
    InsufficientCredit = "INSUFFICIENT_CREDIT";
    /// The account does not exist.
    AccountNotFound = "ACCOUNT_NOT_FOUND";
    /// The account is closed.
    AccountClosed = "ACCOUNT_CLOSED";
    /// The account is frozen.
    AccountFrozen = "ACCOUNT_FROZEN";
    /// The account to open exists, or the account to close has credit or belongs to the vault itself.
    Conflict = "CONFLICT";
    /// The vault does not exist.
    VaultNotFound = "VAULT_NOT_FOUND";
    /// The client is new, and the scope has its maximum number of clients.
    TooManyClients = "TOO_MANY_CLIENTS";
    /// The idempotency key was used with other content or by another caller.
    KeyReused = "KEY_REUSED";
    /// The idempotency key is new, and the namespace has used as many as it may.
    TooManyKeys = "TOO_MANY_KEYS";
    /// The namespace has used up a quota, which the message names.
    QuotaExceeded = "QUOTA_EXCEEDED";
    /// The server cannot tell whether the write was committed.
    Unavailable = "UNAVAILABLE";
    /// An operation does not belong to the scope of the write.
    WrongScope = "WRONG_SCOPE";
    /// The write is malformed; the message names the field.
    Invalid = "INVALID";
}

impl std::fmt::Display for WriteCode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}
