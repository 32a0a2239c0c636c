//! Transactions and their operations.

use std::fmt::Display;

use earmark_core::{
    CarryOver, GrantTerms, NamespaceName, Operation, Overdraft, PRIORITY_DEFAULT, Period, Plan, UTC_OFFSET_MINUTES,
    UnixMs, VaultName, WriteId, parse_credit,
};

use super::invalid::{Invalid, each};
use super::limit::{definition, not_among};
use super::{name, optional_name};
use crate::v1;

/// No length limit here; the Book counts the operations of all lists.
const ANY: std::ops::RangeInclusive<usize> = 0..=usize::MAX;

/// A validated transaction, without its actor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriteParts {
    /// Namespace.
    pub namespace: NamespaceName,
    /// Vault, for a vault transaction.
    pub vault: Option<VaultName>,
    /// Its identity in the scope.
    pub id: WriteId,
    /// Operations, in order.
    pub operations: Vec<Operation>,
}

/// Why a client id or a sequence is refused beside an idempotency key.
pub const NOT_WITH_KEY: &str = "not allowed with idempotency_key; send client_id and sequence, or a key";

/// Sequence numbers. The last `u64` is refused, because none could follow it.
const SEQUENCES: std::ops::RangeInclusive<u64> = 1..=u64::MAX - 1;

/// Validates a write.
///
/// # Errors
/// When a field is invalid. The number of operations is checked when the write is applied.
pub fn write_parts(request: v1::WriteRequest) -> Result<WriteParts, Invalid> {
    Ok(WriteParts {
        namespace: name("namespace", &request.namespace)?,
        vault: optional_name("vault", request.vault.as_deref())?,
        id: write_id(request.idempotency_key.as_deref(), &request.client_id, request.sequence)?,
        operations: each("operations", request.operations, &ANY, operation)?,
    })
}

/// Validates a batch write and joins its lists.
///
/// # Errors
/// When a field is invalid. The number of operations is checked when the write is applied.
pub fn batch_parts(request: v1::BatchWriteRequest) -> Result<WriteParts, Invalid> {
    let part = |part: v1::WritePart| each("operations", part.operations, &ANY, operation);
    Ok(WriteParts {
        namespace: name("namespace", &request.namespace)?,
        vault: optional_name("vault", request.vault.as_deref())?,
        id: write_id(request.idempotency_key.as_deref(), &request.client_id, request.sequence)?,
        operations: each("writes", request.writes, &ANY, part)?.into_iter().flatten().collect(),
    })
}

/// The identity of a write: an idempotency key, or a client id with its sequence.
fn write_id(key: Option<&str>, client_id: &str, sequence: u64) -> Result<WriteId, Invalid> {
    let Some(key) = key else {
        let client = name("client_id", client_id)?;
        return Ok(WriteId::Sequence { client, sequence: Invalid::unless_within("sequence", sequence, &SEQUENCES)? });
    };
    let mixed = [("client_id", !client_id.is_empty()), ("sequence", sequence != 0)];
    match mixed.into_iter().find(|(_, is_there)| *is_there) {
        Some((field, _)) => Err(Invalid::new(field, NOT_WITH_KEY)),
        None => Ok(WriteId::Key(name("idempotency_key", key)?)),
    }
}

/// Operation fields, for error messages.
const KINDS: &str = "put_limit, delete_limit, open_vault, delete_vault, retire_client, open_account, \
                     freeze_account, unfreeze_account, close_account, set_plan, issue, transfer, retire";

fn operation(message: v1::Operation) -> Result<Operation, Invalid> {
    use v1::operation::Operation as Kind;
    let Some(kind) = message.operation else {
        return Err(Invalid::whole(format_args!("found 0 fields, allowed is exactly one of {KINDS}")));
    };
    match kind {
        Kind::PutLimit(put) => put_limit(put).map_err(|error| error.inside("put_limit")),
        Kind::DeleteLimit(delete) => name("key", &delete.key)
            .map(|key| Operation::DeleteLimit { key, expected_revision: delete.expected_revision })
            .map_err(|error| error.inside("delete_limit")),
        Kind::OpenVault(open) => name("vault", &open.vault)
            .map(|vault| Operation::OpenVault { vault })
            .map_err(|error| error.inside("open_vault")),
        Kind::DeleteVault(delete) => name("vault", &delete.vault)
            .map(|vault| Operation::DeleteVault { vault })
            .map_err(|error| error.inside("delete_vault")),
        Kind::RetireClient(retire) => name("client_id", &retire.client_id)
            .map(|client| Operation::RetireClient { client })
            .map_err(|error| error.inside("retire_client")),
        Kind::OpenAccount(open) => open_account(open).map_err(|error| error.inside("open_account")),
        Kind::FreezeAccount(freeze) => name("account", &freeze.account)
            .map(|account| Operation::FreezeAccount { account })
            .map_err(|error| error.inside("freeze_account")),
        Kind::UnfreezeAccount(unfreeze) => name("account", &unfreeze.account)
            .map(|account| Operation::UnfreezeAccount { account })
            .map_err(|error| error.inside("unfreeze_account")),
        Kind::CloseAccount(close) => name("account", &close.account)
            .map(|account| Operation::CloseAccount { account })
            .map_err(|error| error.inside("close_account")),
        Kind::SetPlan(set) => set_plan(set).map_err(|error| error.inside("set_plan")),
        Kind::Issue(issue) => self::issue(issue).map_err(|error| error.inside("issue")),
        Kind::Transfer(transfer) => self::transfer(transfer).map_err(|error| error.inside("transfer")),
        Kind::Retire(retire) => self::retire(retire).map_err(|error| error.inside("retire")),
    }
}

fn put_limit(put: v1::PutLimitOperation) -> Result<Operation, Invalid> {
    let found = put.definition.ok_or_else(|| Invalid::missing("definition"))?;
    let definition = definition(found).map_err(|error| error.inside("definition"))?;
    Ok(Operation::PutLimit { definition, expected_revision: put.expected_revision })
}

fn open_account(open: v1::OpenAccountOperation) -> Result<Operation, Invalid> {
    let account = name("account", &open.account)?;
    let overdraft = match v1::Overdraft::try_from(open.overdraft) {
        Ok(v1::Overdraft::Deny) => Overdraft::Deny,
        Ok(v1::Overdraft::Allow) => Overdraft::Allow,
        Ok(v1::Overdraft::Limit) => {
            let text = open.overdraft_limit.as_deref().ok_or_else(|| Invalid::missing("overdraft.limit"))?;
            Overdraft::Limit(credit_at_most("overdraft.limit", text, u64::MAX)?)
        }
        Ok(v1::Overdraft::Unspecified) => return Err(Invalid::missing("overdraft")),
        Err(_) => return Err(not_among("overdraft", open.overdraft, "deny, allow and limit")),
    };
    let plan = open.plan.map(plan).transpose().map_err(|error| error.inside("plan"))?;
    Ok(Operation::OpenAccount { account, overdraft, plan })
}

fn set_plan(set: v1::SetPlanOperation) -> Result<Operation, Invalid> {
    let account = name("account", &set.account)?;
    let plan = set.plan.map(plan).transpose().map_err(|error| error.inside("plan"))?;
    Ok(Operation::SetPlan { account, plan })
}

/// Decodes a plan.
fn plan(message: v1::Plan) -> Result<Plan, Invalid> {
    let period = match v1::Period::try_from(message.period) {
        Ok(v1::Period::Hour) => Period::Hour,
        Ok(v1::Period::Day) => Period::Day,
        Ok(v1::Period::Week) => Period::Week,
        Ok(v1::Period::Month) => Period::Month,
        Ok(v1::Period::Unspecified) => return Err(Invalid::missing("period")),
        Err(_) => return Err(not_among("period", message.period, "hour, day, week and month")),
    };
    let offset = message.utc_offset_minutes;
    let allowed = i32::from(*UTC_OFFSET_MINUTES.start())..=i32::from(*UTC_OFFSET_MINUTES.end());
    Invalid::unless_within("utc_offset_minutes", offset, &allowed)?;
    let max = message.carry_over_max.map(|max| credit_at_most("carry_over.max", &max, u64::MAX)).transpose()?;
    Ok(Plan {
        asset: name("asset", &message.asset)?,
        amount: credit_at_most("amount", &message.amount, u64::MAX)?,
        period,
        utc_offset_minutes: i16::try_from(offset).unwrap_or_default(),
        carry_over: max.map_or(CarryOver::None, CarryOver::Max),
    })
}

fn issue(issue: v1::IssueOperation) -> Result<Operation, Invalid> {
    let v1::IssueOperation { account, asset, amount, memo, expires_at_unix_ms, priority } = issue;
    Invalid::unless_free_of_keys("memo", &memo)?;
    let (account, asset) = (name("account", &account)?, name("asset", &asset)?);
    let terms = terms(priority, expires_at_unix_ms)?;
    Ok(Operation::Issue { account, asset, amount: credit(&amount)?, memo, terms })
}

/// Decodes the priority and expiry of credit.
pub(super) fn terms(priority: Option<u32>, expires_at_unix_ms: Option<u64>) -> Result<GrantTerms, Invalid> {
    let priority = priority.map_or(Ok(PRIORITY_DEFAULT), |priority| {
        let wrong = |_| Invalid::new("priority", format_args!("found {priority}, allowed are integers from 0 to 255"));
        u8::try_from(priority).map_err(wrong)
    })?;
    let last = UnixMs::MAX.get() - 1;
    if let Some(at) = expires_at_unix_ms.filter(|at| *at > last) {
        let why = format_args!("found {at}, allowed are integers from 0 to {last}");
        return Err(Invalid::new("expires_at_unix_ms", why));
    }
    Ok(GrantTerms::new(priority, expires_at_unix_ms.map(UnixMs::new)))
}

fn retire(retire: v1::CreditOperation) -> Result<Operation, Invalid> {
    let v1::CreditOperation { account, asset, amount, memo } = retire;
    Invalid::unless_free_of_keys("memo", &memo)?;
    let (account, asset) = (name("account", &account)?, name("asset", &asset)?);
    Ok(Operation::Retire { account, asset, amount: credit(&amount)?, memo })
}

fn transfer(transfer: v1::TransferOperation) -> Result<Operation, Invalid> {
    let v1::TransferOperation { from, to, asset, amount, memo } = transfer;
    Invalid::unless_free_of_keys("memo", &memo)?;
    let (from, to, asset) = (name("from", &from)?, name("to", &to)?, name("asset", &asset)?);
    Ok(Operation::Transfer { from, to, asset, amount: credit(&amount)?, memo })
}

/// Characters of an invalid amount quoted in an error.
const FOUND_CHARS_MAX: usize = 64;

fn credit(text: &str) -> Result<u128, Invalid> {
    credit_at_most("amount", text, i128::MAX)
}

/// An amount of credit that fits the type of `max`.
fn credit_at_most<M: Display, T: TryFrom<u128>>(field: &'static str, text: &str, max: M) -> Result<T, Invalid> {
    parse_credit(text).and_then(|amount| T::try_from(amount).ok()).ok_or_else(|| {
        let found: String = text.chars().take(FOUND_CHARS_MAX).collect();
        let dots = if found.len() < text.len() { "..." } else { "" };
        let allowed = format_args!("allowed are integers from 1 to {max}, as a text such as \"5000000\"");
        Invalid::new(field, format_args!("found {found:?}{dots}, {allowed}"))
    })
}
