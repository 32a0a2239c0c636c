//! Sequenced writes, and reads of credit: balances, history and audit.

use std::sync::Arc;

use earmark_core::{
    AccountName, Actor, AssetName, AssetTotals, CreditShortage, GRANTS_MAX, GrantTerms, InvalidOperation, InvalidWrite,
    LeaseId, LimitKey, MEMO_BYTES_MAX, NamespaceName, OPERATIONS_MAX, Operation, QuotaKind, Receipt, SettleLabels,
    SettleReason, UnixMs, VaultName, WriteError, WriteId,
};

use crate::backend::BackendError;
use crate::quotas::describe_quota;

/// Most entries in one page.
pub const PAGE_MAX: usize = 1_000;

/// Why a definition of another kind is refused, and what to do.
pub(crate) const KIND_DIFFERS: &str = "kind: an existing limit keeps its kind; delete it first, or use another key. A \
                                       limit that a template derives keeps it while anything is reserved or owed: \
                                       pause it until then";

const NO_NAMESPACE: &str = "namespace: no namespace has this name; the first limit, vault or key in it creates it";

/// A transaction: all its operations are applied exactly once, or none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriteRequest {
    /// The namespace.
    pub namespace: NamespaceName,
    /// The vault of its operations; `None` for operations on the namespace.
    pub vault: Option<VaultName>,
    /// Its identity in this scope.
    pub id: WriteId,
    /// Up to 256 operations. An empty transaction only uses up its identity.
    pub operations: Vec<Operation>,
    /// The authenticated caller; never a field of a request body.
    pub actor: Actor,
}

/// The answer to a write. A refusal is an answer, not an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WriteAnswer {
    /// The write is committed, by this request or by its first attempt.
    Committed(Arc<Receipt>),
    /// Nothing was changed.
    Refused(WriteError),
}

/// The largest amount of credit that a reserve would get, its overdraft included, or why it would get none.
pub type CreditRoom = Result<u64, CreditShortage>;

/// Why a read of credit failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CreditReadError {
    /// The namespace does not exist.
    #[error("{NO_NAMESPACE}")]
    NamespaceNotFound,
    /// The vault does not exist in the namespace.
    #[error("vault: no vault has this name; open it with open_vault")]
    VaultNotFound,
    /// The account does not exist in the vault.
    #[error("account: no account has this name; open it with open_account")]
    AccountNotFound,
    /// The backend failed.
    #[error(transparent)]
    Backend(#[from] BackendError),
}

/// A page of an account's history.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EntryPage {
    /// The entries.
    pub entries: Vec<EntryView>,
    /// The `after` of the next page; `None` on the last page. A page with a filter may be short, or empty, before the last.
    pub next: Option<u64>,
    /// The number of oldest records, of all accounts, that the history no longer has.
    pub dropped: u64,
}

/// A journal entry from the point of view of one account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryView {
    /// Its journal number, the cursor of pages.
    pub number: u64,
    /// When it was recorded.
    pub at: UnixMs,
    /// The event.
    pub what: EntryKind,
    /// Its effect on the account, ordered by asset.
    pub changes: Vec<EntryChange>,
}

impl EntryView {
    pub(crate) fn memo_bytes(&self) -> usize {
        match &self.what {
            EntryKind::Transaction { memos, .. } => memos.iter().map(String::len).sum(),
            EntryKind::Hold(_)
            | EntryKind::Settle { .. }
            | EntryKind::Release(_)
            | EntryKind::Expire(_)
            | EntryKind::Plan { .. } => 0,
        }
    }
}

/// The effect of an entry on one asset of an account. The sum over all entries is the balance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryChange {
    /// The asset.
    pub asset: AssetName,
    /// Change of the available balance.
    pub amount: i128,
    /// Change of the held amount.
    pub held: i128,
    /// The operations of a transaction behind it; none for other entries.
    pub flows: Flows,
}

/// The amounts that the operations of one transaction moved to or from one asset of an account. Their sum is the change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flows {
    /// Issued to the account.
    pub issued: u128,
    /// Retired from the account.
    pub retired: u128,
    /// Transferred from other accounts.
    pub transferred_in: u128,
    /// Transferred to other accounts.
    pub transferred_out: u128,
}

impl Flows {
    /// The flows of these operations.
    #[must_use]
    pub fn of(operations: &[Operation], account: &AccountName, asset: &AssetName) -> Flows {
        let mut flows = Flows::default();
        for operation in operations {
            match operation {
                Operation::Issue { account: to, asset: of, amount, .. } if to == account && of == asset => {
                    flows.issued = flows.issued.saturating_add(*amount);
                }
                Operation::Retire { account: from, asset: of, amount, .. } if from == account && of == asset => {
                    flows.retired = flows.retired.saturating_add(*amount);
                }
                Operation::Transfer { from, to, asset: of, amount, .. } if of == asset => {
                    if from == account {
                        flows.transferred_out = flows.transferred_out.saturating_add(*amount);
                    }
                    if to == account {
                        flows.transferred_in = flows.transferred_in.saturating_add(*amount);
                    }
                }
                _ => {}
            }
        }
        flows
    }
}

/// The event behind an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// A transaction was committed.
    Transaction {
        /// Its identity.
        id: WriteId,
        /// The receipt of the write.
        receipt: Arc<Receipt>,
        /// The memos of the operations on this account.
        memos: Vec<String>,
    },
    /// Credit was held for a lease.
    Hold(HoldView),
    /// A lease was settled.
    Settle {
        /// The hold that was settled.
        hold: HoldView,
        /// The amount that the revenue account received.
        paid: u64,
        /// The part of `paid` that the payer owes by overdraft.
        debt: u64,
        /// The part of the cost that was not collected.
        uncollected: u64,
        /// Why it was settled.
        reason: SettleReason,
        /// The labels of the complete.
        labels: SettleLabels,
    },
    /// The hold or its growth was released: by timeout, by a refused extension, or because the lease cost nothing.
    Release(HoldView),
    /// Credit with these terms expired.
    Expire(GrantTerms),
    /// The plan of the account issued credit.
    Plan {
        /// The unused credit of the period before that it kept.
        carried: i128,
        /// The priority and the expiry of both.
        terms: GrantTerms,
    },
}

/// A hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HoldView {
    /// The lease.
    pub lease: LeaseId,
    /// The credit limit.
    pub limit: LimitKey,
    /// The held amount.
    pub amount: u64,
    /// The actor, where recorded: the caller, or Earmark itself for a timeout.
    pub actor: Option<Actor>,
}

/// The result of recounting a vault.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Audit {
    /// Whether all comparisons agree.
    pub balanced: bool,
    /// The totals of each asset, ordered by asset.
    pub assets: Vec<AssetTotals>,
    /// The difference, or a limitation of the comparison.
    pub message: Option<String>,
    /// When the vault was recounted.
    pub at: UnixMs,
}

/// Explains a refused write to the caller: the field, the problem, the remedy. `conflict` is [`describe_conflict`] of its
/// refused operation.
#[must_use]
pub fn describe_write_error(error: &WriteError, conflict: &str) -> String {
    match error {
        WriteError::Invalid(invalid) => describe_invalid(invalid),
        WriteError::VaultNotFound { .. } => "vault: no vault has this name; open it with open_vault".into(),
        WriteError::SequenceGap { last_committed_sequence: last } => {
            format!(
                "sequence: expected {}; the last committed sequence of this client is {last} in this scope, and the \
                 namespace and each of its vaults are scopes of their own",
                last.saturating_add(1)
            )
        }
        WriteError::AlreadyCommitted { last_committed_sequence: last } => format!(
            "sequence: already committed, and its result is no longer kept; the last committed sequence is {last}"
        ),
        WriteError::SequenceReused { last_committed_sequence: last } => {
            format!("sequence: already committed with other operations; the last committed sequence is {last}")
        }
        WriteError::TooManyClients => format!("client_id: {}", describe_quota(QuotaKind::Clients)),
        WriteError::KeyCommitted => {
            "idempotency_key: already committed, and its answer is no longer kept; the write has \
                                     taken effect, do not send it under another key"
                .into()
        }
        WriteError::KeyReused => "idempotency_key: already used with other operations or by another caller; send the \
                                  first write again, or use a new key"
            .into(),
        WriteError::TooManyKeys => format!("idempotency_key: {}", describe_quota(QuotaKind::IdempotencyKeys)),
        WriteError::QuotaExceeded { operation: Some(operation), kind } => {
            format!("operations[{operation}]: {}", describe_quota(*kind))
        }
        WriteError::QuotaExceeded { operation: None, kind } => describe_quota(*kind),
        WriteError::WrongScope { operation } => format!(
            "operations[{operation}]: operations on limits and vaults need a write without vault, operations on accounts \
             and credit a write with vault"
        ),
        WriteError::ConditionFailed { operation, revision: 0 } => {
            format!("operations[{operation}].expected_revision: the limit does not exist")
        }
        WriteError::ConditionFailed { operation, revision } => {
            format!("operations[{operation}].expected_revision: the limit has revision {revision}")
        }
        WriteError::AccountNotFound { operation } => {
            format!("operations[{operation}]: no account has this name; open it with open_account")
        }
        WriteError::AccountClosed { operation } => {
            format!("operations[{operation}]: the account is closed and cannot be opened again")
        }
        WriteError::AccountFrozen { operation } => {
            format!("operations[{operation}]: the account is frozen and cannot pay; see unfreeze_account")
        }
        WriteError::Conflict { operation } => format!("operations[{operation}]: {conflict}"),
        WriteError::InsufficientCredit { operation } => {
            format!("operations[{operation}]: the account has too little of this asset")
        }
    }
}

/// Why `WriteError::Conflict` refuses this operation.
#[must_use]
pub const fn describe_conflict(operation: &Operation) -> &'static str {
    match operation {
        Operation::OpenAccount { .. } => "account: the account exists; use it, or another name",
        Operation::CloseAccount { .. } => {
            "account: the account has a balance, or is the vault's revenue account; transfer or retire its credit first"
        }
        Operation::OpenVault { .. } => "vault: this write deletes the vault; open it again in another write",
        Operation::DeleteVault { .. } => {
            "vault: the vault has accounts, assets or client ids, or is main of default; only an unused vault can be \
             deleted"
        }
        Operation::PutLimit { .. }
        | Operation::DeleteLimit { .. }
        | Operation::RetireClient { .. }
        | Operation::SetPlan { .. }
        | Operation::FreezeAccount { .. }
        | Operation::UnfreezeAccount { .. }
        | Operation::Issue { .. }
        | Operation::Transfer { .. }
        | Operation::Retire { .. } => "the state of its account or vault does not allow it",
    }
}

fn describe_invalid(invalid: &InvalidWrite) -> String {
    match invalid {
        InvalidWrite::UnknownNamespace => NO_NAMESPACE.into(),
        InvalidWrite::TooManyOperations { found } => {
            format!("operations: found {found}, allowed are up to {OPERATIONS_MAX}")
        }
        InvalidWrite::Sequence { found: 0 } => "sequence: found 0; the first sequence is 1".into(),
        InvalidWrite::Sequence { found } => {
            format!("sequence: found {found}, which leaves no next number; use a new client_id")
        }
        InvalidWrite::ClientClaimed { client } => {
            format!(
                "client_id: {client} belongs to another key or user; use a client id of your own, or a key bound to {client}"
            )
        }
        InvalidWrite::ClientRetired { client } => {
            format!("client_id: {client} was retired and is refused for ever; use another")
        }
        InvalidWrite::Operation { operation, why } => {
            format!("operations[{operation}]{}", describe_operation(why))
        }
    }
}

/// The path inside the operation and the problem.
fn describe_operation(why: &InvalidOperation) -> String {
    let why = match why {
        InvalidOperation::Definition(error) => return format!(".put_limit.definition.{error}"),
        InvalidOperation::LimitKindDiffers => {
            return format!(".put_limit.definition.{KIND_DIFFERS}");
        }
        InvalidOperation::TooManyLimits => "the limit count is at its maximum".into(),
        InvalidOperation::TooManyVaults => "the vault count is at its maximum".into(),
        InvalidOperation::TooManyAccounts => "the account count is at its maximum".into(),
        InvalidOperation::TooManyAssets => "the asset count of the vault is at its maximum".into(),
        InvalidOperation::TooManyGrants => {
            format!(
                "the account would have more than {GRANTS_MAX} grants of this asset; spend some, or give grants the same priority and expiry"
            )
        }
        InvalidOperation::ExpiryPast => "expires_at_unix_ms: not in the future; choose a later time".into(),
        InvalidOperation::CarryOverZero => {
            "plan.carry_over.max: found 0, allowed are integers from 1; use \"none\" to carry nothing over".into()
        }
        InvalidOperation::PlanUtcOffset { found } => {
            format!("plan.utc_offset_minutes: found {found}, allowed are integers from -720 to 840")
        }
        InvalidOperation::AmountZero => "amount: found 0, allowed are integers from 1".into(),
        InvalidOperation::OutOfRange => {
            format!("amount: the amount, a balance or a total would exceed {}", i128::MAX)
        }
        InvalidOperation::MemoTooLong { found } => {
            format!("memo: found {found} bytes, allowed are up to {MEMO_BYTES_MAX}")
        }
        InvalidOperation::NeedsAdmin => "needs role admin".into(),
        InvalidOperation::UnknownClient => {
            "client_id: no such client has written in this scope, or it is the client of this write".into()
        }
        InvalidOperation::CreditExternal => {
            "not possible with --credits, because the database keeps the vaults and their clients".into()
        }
        InvalidOperation::ToItself => "to: found the paying account; name another".into(),
    };
    format!(": {why}")
}
