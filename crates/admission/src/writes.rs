//! What a server asks of whatever keeps the credit: sequenced writes in, receipts and balances out.

use std::sync::Arc;

use earmark_core::{
    Actor, AssetName, AssetTotals, ClientId, InvalidOperation, InvalidWrite, LeaseId, LimitKey,
    MEMO_BYTES_MAX, NamespaceName, OPERATIONS_MAX, Operation, Receipt, UnixMs, VaultName, WriteError,
};

use crate::backend::BackendError;

/// The most entries of one page.
pub const PAGE_MAX: usize = 1_000;
/// A page ends with the entry whose memos bring it to so many bytes. One entry may have 64 KiB of them, and
/// whoever reads a page of a thousand such has the Book wait for its copy, and a client take it whole.
const PAGE_MEMO_BYTES: usize = 1 << 20;

/// A transaction: all its operations are applied, once, or none is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriteRequest {
    /// Where it belongs.
    pub namespace: NamespaceName,
    /// The vault that its operations are about; none if they are about the namespace.
    pub vault: Option<VaultName>,
    /// Who counts.
    pub client: ClientId,
    /// Its number among those of the client in this scope, counted from 1.
    pub sequence: u64,
    /// Up to 256. None at all is valid: the transaction only consumes its number.
    pub operations: Vec<Operation>,
    /// Who is behind it: the authenticated caller, never a field of a request.
    pub actor: Actor,
}

/// The answer to a write. A refusal is an answer: nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WriteAnswer {
    /// It is committed, now or by an earlier copy of the same write.
    Committed(Arc<Receipt>),
    /// Nothing was changed.
    Refused(WriteError),
}

/// Why there is nothing to read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CreditReadError {
    /// There is no such namespace.
    #[error("namespace: no such namespace; the first limit, vault or key in it opens it")]
    NamespaceNotFound,
    /// There is no such vault in the namespace.
    #[error("vault: no vault has this name; open it with open_vault")]
    VaultNotFound,
    /// There is no such account in the vault.
    #[error("account: no account has this name; open it with open_account")]
    AccountNotFound,
    /// The backend failed.
    #[error(transparent)]
    Backend(#[from] BackendError),
}

/// A part of an account's history, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EntryPage {
    /// The entries.
    pub entries: Vec<EntryView>,
    /// What to ask for entries after; none if these are the latest.
    pub next: Option<u64>,
}

impl EntryPage {
    /// The first of these entries, as many as one page takes. `has_more` says whether others come after them.
    pub fn of(views: impl IntoIterator<Item = EntryView>, has_more: bool) -> EntryPage {
        let mut entries: Vec<EntryView> = Vec::new();
        let (mut memo_bytes, mut has_more) = (0_usize, has_more);
        for view in views {
            if memo_bytes >= PAGE_MEMO_BYTES {
                has_more = true;
                break;
            }
            memo_bytes = memo_bytes.saturating_add(view.memo_bytes());
            entries.push(view);
        }
        let next = entries.last().map(|entry| entry.number).filter(|_| has_more);
        EntryPage { entries, next }
    }
}

/// One entry, as one account sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryView {
    /// Its place in the journal, by which pages are asked for.
    pub number: u64,
    /// When it was written down.
    pub at: UnixMs,
    /// What happened.
    pub what: EntryKind,
    /// What it did to the account, in order of asset.
    pub changes: Vec<EntryChange>,
}

impl EntryView {
    fn memo_bytes(&self) -> usize {
        match &self.what {
            EntryKind::Transaction { memos, .. } => memos.iter().map(String::len).sum(),
            EntryKind::Hold(_) | EntryKind::Settle { .. } | EntryKind::Release(_) => 0,
        }
    }
}

/// What an entry did to one asset of an account. The changes of all entries add up to what the account has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryChange {
    /// The asset.
    pub asset: AssetName,
    /// What it added to what can be spent, or took from it if below zero.
    pub amount: i128,
    /// What it added to what is held for leases, or took from it if below zero.
    pub held: i128,
}

/// What an entry is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// A transaction was committed.
    Transaction {
        /// The client behind it.
        client: ClientId,
        /// What it was answered.
        receipt: Arc<Receipt>,
        /// Why, as the operations that name the account say it.
        memos: Vec<String>,
    },
    /// Credit was set aside for a lease.
    Hold(HoldView),
    /// A lease said what it cost.
    Settle {
        /// What was held for it.
        hold: HoldView,
        /// What the revenue account got.
        paid: u64,
        /// How much of that the owner did not have, and owes.
        debt: u64,
        /// What it cost and nobody paid.
        uncollected: u64,
    },
    /// All that was held went back, for its time was over or it cost nothing.
    Release(HoldView),
}

/// What was held, for whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HoldView {
    /// The lease.
    pub lease: LeaseId,
    /// The limit of kind `credit`.
    pub limit: LimitKey,
    /// How much the lease had set aside.
    pub amount: u64,
    /// Who had it done, where that is kept: the caller, or Earmark itself when its time was over.
    pub actor: Option<Actor>,
}

/// A vault, counted anew.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Audit {
    /// Whether everything that could be compared is equal.
    pub balanced: bool,
    /// What there is of every asset, in order of asset.
    pub assets: Vec<AssetTotals>,
    /// What differs, or what could not be compared.
    pub message: Option<String>,
    /// When.
    pub at: UnixMs,
}

/// What is wrong with a write, for a person.
#[must_use]
pub fn describe_write_error(error: &WriteError) -> String {
    match error {
        WriteError::Invalid(invalid) => describe_invalid(invalid),
        WriteError::VaultNotFound => "vault: no vault has this name; open it with open_vault".into(),
        WriteError::SequenceGap { last_committed_sequence: last } => {
            format!("sequence: the last committed one is {last}, allowed is {}", last.saturating_add(1))
        }
        WriteError::AlreadyCommitted { last_committed_sequence: last } => format!(
            "sequence: this one was committed, and its result is no longer kept; the last committed one is {last}"
        ),
        WriteError::SequenceReused { last_committed_sequence: last } => format!(
            "sequence: this one was committed with other operations; the last committed one is {last}"
        ),
        WriteError::TooManyClients => {
            "client_id: there are as many clients as there may be, allowed are those that wrote before".into()
        }
        WriteError::WrongScope { operation } => format!(
            "operations[{operation}]: limits and vaults need a write without vault, accounts and credit one with"
        ),
        WriteError::ConditionFailed { operation, revision: 0 } => {
            format!("operations[{operation}]: the limit does not exist")
        }
        WriteError::ConditionFailed { operation, revision } => {
            format!("operations[{operation}].expected_revision: the limit has revision {revision}")
        }
        WriteError::AccountNotFound { operation } => {
            format!("operations[{operation}]: no account has this name; open it with open_account")
        }
        WriteError::AccountClosed { operation } => {
            format!("operations[{operation}]: the account is closed, for ever")
        }
        WriteError::AccountFrozen { operation } => {
            format!("operations[{operation}]: the account is frozen, and nothing goes out of it")
        }
        WriteError::Conflict { operation } => format!(
            "operations[{operation}]: the account to open exists, or the one to close is not empty or is the vault's own"
        ),
        WriteError::InsufficientCredit { operation } => {
            format!("operations[{operation}]: the account has too little of this asset")
        }
    }
}

fn describe_invalid(invalid: &InvalidWrite) -> String {
    match invalid {
        InvalidWrite::UnknownNamespace => {
            "namespace: no such namespace; the first limit, vault or key in it opens it".into()
        }
        InvalidWrite::TooManyOperations { found } => {
            format!("operations: found {found}, allowed are up to {OPERATIONS_MAX}")
        }
        InvalidWrite::Sequence { found: 0 } => "sequence: found 0, the first one is 1".into(),
        InvalidWrite::Sequence { found } => {
            format!("sequence: found {found}, after which none could follow; use a new client_id")
        }
        InvalidWrite::Operation { operation, why } => {
            format!("operations[{operation}]{}", describe_operation(why))
        }
    }
}

/// What is wrong with an operation, from where it is inside of it.
fn describe_operation(why: &InvalidOperation) -> String {
    let why = match why {
        InvalidOperation::Definition(error) => return format!(".put_limit.definition.{error}"),
        InvalidOperation::LimitKindDiffers => {
            return ".put_limit.definition.kind: an existing limit keeps its kind; delete it first, or use another key"
                .into();
        }
        InvalidOperation::TooManyLimits => "there are as many limits as there can be".into(),
        InvalidOperation::TooManyVaults => "there are as many vaults as there can be".into(),
        InvalidOperation::TooManyAccounts => "there are as many accounts as there can be".into(),
        InvalidOperation::TooManyAssets => "the vault has as many assets as it can have".into(),
        InvalidOperation::AmountZero => "amount: found 0, allowed are integers from 1".into(),
        InvalidOperation::OutOfRange => {
            format!("amount: it, a balance or a total would be beyond {}", i128::MAX)
        }
        InvalidOperation::MemoTooLong { found } => {
            format!("memo: found {found} bytes, allowed are up to {MEMO_BYTES_MAX}")
        }
        InvalidOperation::ToItself => "to: found the account that gives, allowed is another".into(),
    };
    format!(": {why}")
}
