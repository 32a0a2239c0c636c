//! Receipts, write errors and balances.

use earmark_core::{
    AssetTotals, BalanceInfo, CarryOver, GrantInfo, OperationResult, Period, Plan, Receipt, UnixMs, WriteError,
};

use super::limit::status;
use crate::v1;

/// Encodes a receipt. `subjects` are the names that its operations refer to, in order: a receipt only holds internal
/// numbers.
#[must_use]
pub fn success(receipt: &Receipt, subjects: &[String]) -> v1::WriteSuccess {
    use v1::operation_result::Result as Kind;
    let result = |(result, subject): (&OperationResult, &String)| {
        let result = match *result {
            OperationResult::Limit { revision, status: stands, .. } => {
                let status = status(stands).into();
                Kind::Limit(v1::LimitResult { limit: subject.clone(), revision, status })
            }
            OperationResult::Vault(_) => Kind::Vault(subject.clone()),
            OperationResult::Account(_) => Kind::Account(subject.clone()),
            OperationResult::Entry => Kind::Entry(receipt.tx_id.to_string()),
            OperationResult::Client => Kind::ClientId(subject.clone()),
        };
        v1::OperationResult { result: Some(result) }
    };
    v1::WriteSuccess {
        tx_id: receipt.tx_id.to_string(),
        sequence: receipt.sequence.unwrap_or_default(),
        log_index: receipt.log_index,
        committed_at_unix_ms: receipt.committed_at.wall.get(),
        actor: receipt.actor.to_string(),
        results: receipt.results.iter().zip(subjects).map(result).collect(),
    }
}

/// Encodes a write error with its message.
#[must_use]
pub fn write_error(error: &WriteError, message: String) -> v1::WriteError {
    v1::WriteError {
        code: code(error).into(),
        message,
        operation: error.operation().and_then(|place| u32::try_from(place).ok()),
        last_committed_sequence: error.last_committed_sequence(),
    }
}

pub(super) const fn code(error: &WriteError) -> v1::WriteErrorCode {
    match error {
        WriteError::Invalid(_) => v1::WriteErrorCode::Invalid,
        WriteError::VaultNotFound { .. } => v1::WriteErrorCode::VaultNotFound,
        WriteError::SequenceGap { .. } => v1::WriteErrorCode::SequenceGap,
        WriteError::AlreadyCommitted { .. } | WriteError::KeyCommitted => v1::WriteErrorCode::AlreadyCommitted,
        WriteError::SequenceReused { .. } => v1::WriteErrorCode::SequenceReused,
        WriteError::TooManyClients => v1::WriteErrorCode::TooManyClients,
        WriteError::KeyReused => v1::WriteErrorCode::KeyReused,
        WriteError::TooManyKeys => v1::WriteErrorCode::TooManyKeys,
        WriteError::QuotaExceeded { .. } => v1::WriteErrorCode::QuotaExceeded,
        WriteError::WrongScope { .. } => v1::WriteErrorCode::WrongScope,
        WriteError::ConditionFailed { .. } => v1::WriteErrorCode::ConditionFailed,
        WriteError::AccountNotFound { .. } => v1::WriteErrorCode::AccountNotFound,
        WriteError::AccountClosed { .. } => v1::WriteErrorCode::AccountClosed,
        WriteError::AccountFrozen { .. } => v1::WriteErrorCode::AccountFrozen,
        WriteError::Conflict { .. } => v1::WriteErrorCode::Conflict,
        WriteError::InsufficientCredit { .. } => v1::WriteErrorCode::InsufficientCredit,
    }
}

/// Encodes a balance.
#[must_use]
pub fn balance(balance: &BalanceInfo) -> v1::Balance {
    v1::Balance {
        asset: balance.asset.to_string(),
        available: balance.available.to_string(),
        held: balance.held.to_string(),
        pending: balance.pending.to_string(),
    }
}

/// Encodes a plan.
#[must_use]
pub fn plan_of(plan: &Plan) -> v1::Plan {
    let period = match plan.period {
        Period::Hour => v1::Period::Hour,
        Period::Day => v1::Period::Day,
        Period::Week => v1::Period::Week,
        Period::Month => v1::Period::Month,
    };
    v1::Plan {
        asset: plan.asset.to_string(),
        amount: plan.amount.to_string(),
        period: period.into(),
        utc_offset_minutes: plan.utc_offset_minutes.into(),
        carry_over_max: match plan.carry_over {
            CarryOver::None => None,
            CarryOver::Max(max) => Some(max.to_string()),
        },
    }
}

/// Encodes a grant.
#[must_use]
pub fn grant(grant: &GrantInfo) -> v1::Grant {
    v1::Grant {
        asset: grant.asset.to_string(),
        remaining: grant.remaining.to_string(),
        held: grant.held.to_string(),
        priority: grant.terms.priority().into(),
        expires_at_unix_ms: grant.terms.expires_at().map(UnixMs::get),
    }
}

/// Encodes the totals of an asset in a vault.
#[must_use]
pub fn totals(totals: &AssetTotals) -> v1::AssetTotals {
    v1::AssetTotals {
        asset: totals.asset.to_string(),
        issued: totals.issued.to_string(),
        retired: totals.retired.to_string(),
        live: totals.live.to_string(),
        expired: totals.expired.to_string(),
    }
}
