//! The client's half of the conversion: decodes replies (`*_in`) and encodes operations (`*_of`).

use earmark_core::{
    BalanceInfo, Definition, GrantInfo, JobId, KindTag, LeaseState, LimitStatus, LimitUsage, Operation, Overdraft,
    PRIORITY_DEFAULT, UnixMs, Usage,
};

use super::invalid::Invalid;
use super::limit::{definition, definition_of, not_among};
use super::operation::terms;
use super::receipt::plan_of;
use super::{name, optional_name};
use crate::v1;

/// Decodes the status of a limit. `pending_decrease_to` is the target of a decrease.
///
/// # Errors
/// When the status is unknown, or a decrease has no target.
pub fn status_in(status: i32, pending_decrease_to: Option<u64>) -> Result<LimitStatus, Invalid> {
    match (v1::LimitStatus::try_from(status), pending_decrease_to) {
        (Ok(v1::LimitStatus::Active), _) => Ok(LimitStatus::Active),
        (Ok(v1::LimitStatus::Decreasing), Some(to)) => Ok(LimitStatus::Decreasing { to }),
        (Ok(v1::LimitStatus::Decreasing), None) => Err(Invalid::missing("pending_decrease_to")),
        (Ok(v1::LimitStatus::Deleted), _) => Ok(LimitStatus::Deleted),
        (Ok(v1::LimitStatus::Unspecified) | Err(_), _) => {
            Err(not_among("status", status, "active, decreasing and deleted"))
        }
    }
}

/// Decodes a limit: definition, status and revision.
///
/// # Errors
/// When a field is invalid.
pub fn info_in(message: v1::LimitInfo) -> Result<(Definition, LimitStatus, u64), Invalid> {
    let given = message.definition.ok_or_else(|| Invalid::missing("definition"))?;
    let definition = definition(given).map_err(|error| error.inside("definition"))?;
    Ok((definition, status_in(message.status, message.pending_decrease_to)?, message.revision))
}

/// Decodes the state of a lease.
///
/// # Errors
/// When the state is unknown.
pub fn state_in(state: i32) -> Result<LeaseState, Invalid> {
    match v1::LeaseState::try_from(state) {
        Ok(v1::LeaseState::Live) => Ok(LeaseState::Live),
        Ok(v1::LeaseState::Expired) => Ok(LeaseState::Expired),
        Ok(v1::LeaseState::Completed) => Ok(LeaseState::Completed),
        Ok(v1::LeaseState::Denied) => Ok(LeaseState::Denied),
        Ok(v1::LeaseState::Unspecified) | Err(_) => {
            Err(not_among("state", state, "live, expired, completed and denied"))
        }
    }
}

/// Decodes the job of a lease.
///
/// # Errors
/// When the job id is invalid.
pub fn job_in(job: Option<&str>) -> Result<Option<JobId>, Invalid> {
    optional_name("job_id", job)
}

/// Decodes the usage of a limit.
///
/// # Errors
/// When a field is invalid.
pub fn usage_in(message: &v1::GetUsageResponse) -> Result<Usage, Invalid> {
    Ok(Usage {
        capacity: message.capacity,
        reserved: message.reserved,
        available: message.available,
        debt: number("debt", &message.debt)?,
        status: status_in(message.status, message.pending_decrease_to)?,
        paused_until: message.paused_until_unix_ms.map(UnixMs::new),
    })
}

/// Decodes a limit with its usage. The target of a decrease is not in a list, so a limit that is decreasing has target 0.
///
/// # Errors
/// When a field is invalid.
pub fn limit_usage_in(message: &v1::LimitUsage) -> Result<LimitUsage, Invalid> {
    let kind = match v1::LimitKind::try_from(message.kind) {
        Ok(v1::LimitKind::Rolling) => KindTag::Rolling,
        Ok(v1::LimitKind::Concurrency) => KindTag::Concurrency,
        Ok(v1::LimitKind::Credit) => KindTag::Credit,
        Ok(v1::LimitKind::Calendar) => KindTag::Calendar,
        Ok(v1::LimitKind::Unspecified) | Err(_) => {
            return Err(not_among("kind", message.kind, "rolling, concurrency, credit and calendar"));
        }
    };
    let usage = Usage {
        capacity: message.capacity,
        reserved: message.reserved,
        available: message.available,
        debt: number("debt", &message.debt)?,
        status: status_in(message.status, Some(0))?,
        paused_until: message.paused_until_unix_ms.map(UnixMs::new),
    };
    Ok(LimitUsage { key: name("key", &message.key)?, kind, usage })
}

/// Decodes the balance of an account in one asset.
///
/// # Errors
/// When a field is invalid.
pub fn balance_in(message: &v1::Balance) -> Result<BalanceInfo, Invalid> {
    Ok(BalanceInfo {
        asset: name("asset", &message.asset)?,
        available: number("available", &message.available)?,
        held: number("held", &message.held)?,
        pending: number("pending", &message.pending)?,
    })
}

/// Decodes a grant.
///
/// # Errors
/// A field is malformed.
pub fn grant_in(message: &v1::Grant) -> Result<GrantInfo, Invalid> {
    Ok(GrantInfo {
        asset: name("asset", &message.asset)?,
        remaining: number("remaining", &message.remaining)?,
        held: number("held", &message.held)?,
        terms: terms(Some(message.priority), message.expires_at_unix_ms)?,
    })
}

/// Parses an amount that is sent as text, because it may exceed 64 bits.
fn number<T: std::str::FromStr>(field: &str, text: &str) -> Result<T, Invalid> {
    text.parse().map_err(|_| Invalid::new(field, format_args!("found {text:?}, allowed are decimal digits")))
}

/// Encodes an operation.
#[must_use]
pub fn operation_of(operation: &Operation) -> v1::Operation {
    use v1::operation::Operation as Kind;
    let account_only = |account: &earmark_core::AccountName| v1::AccountOperation { account: account.to_string() };
    let kind = match operation {
        Operation::PutLimit { definition, expected_revision } => Kind::PutLimit(v1::PutLimitOperation {
            definition: Some(definition_of(definition)),
            expected_revision: *expected_revision,
        }),
        Operation::DeleteLimit { key, expected_revision } => {
            Kind::DeleteLimit(v1::DeleteLimitOperation { key: key.to_string(), expected_revision: *expected_revision })
        }
        Operation::OpenVault { vault } => Kind::OpenVault(v1::OpenVaultOperation { vault: vault.to_string() }),
        Operation::DeleteVault { vault } => Kind::DeleteVault(v1::DeleteVaultOperation { vault: vault.to_string() }),
        Operation::RetireClient { client } => {
            Kind::RetireClient(v1::RetireClientOperation { client_id: client.to_string() })
        }
        Operation::OpenAccount { account, overdraft, plan } => Kind::OpenAccount(v1::OpenAccountOperation {
            account: account.to_string(),
            overdraft: match overdraft {
                Overdraft::Deny => v1::Overdraft::Deny.into(),
                Overdraft::Allow => v1::Overdraft::Allow.into(),
                Overdraft::Limit(_) => v1::Overdraft::Limit.into(),
            },
            overdraft_limit: if let Overdraft::Limit(limit) = overdraft { Some(limit.to_string()) } else { None },
            plan: plan.as_ref().map(plan_of),
        }),
        Operation::SetPlan { account, plan } => {
            Kind::SetPlan(v1::SetPlanOperation { account: account.to_string(), plan: plan.as_ref().map(plan_of) })
        }
        Operation::FreezeAccount { account } => Kind::FreezeAccount(account_only(account)),
        Operation::UnfreezeAccount { account } => Kind::UnfreezeAccount(account_only(account)),
        Operation::CloseAccount { account } => Kind::CloseAccount(account_only(account)),
        Operation::Issue { account, asset, amount, memo, terms } => Kind::Issue(v1::IssueOperation {
            account: account.to_string(),
            asset: asset.to_string(),
            amount: amount.to_string(),
            memo: memo.clone(),
            expires_at_unix_ms: terms.expires_at().map(UnixMs::get),
            priority: Some(terms.priority()).filter(|priority| *priority != PRIORITY_DEFAULT).map(u32::from),
        }),
        Operation::Retire { account, asset, amount, memo } => Kind::Retire(v1::CreditOperation {
            account: account.to_string(),
            asset: asset.to_string(),
            amount: amount.to_string(),
            memo: memo.clone(),
        }),
        Operation::Transfer { from, to, asset, amount, memo } => Kind::Transfer(v1::TransferOperation {
            from: from.to_string(),
            to: to.to_string(),
            asset: asset.to_string(),
            amount: amount.to_string(),
            memo: memo.clone(),
        }),
    };
    v1::Operation { operation: Some(kind) }
}
