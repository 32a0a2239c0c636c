//! The operations of a vault: account changes, and credit moved in one entry.

use super::receipt::{InvalidOperation, OperationResult, WriteError};
use super::transact::Refusal;
use super::write::{MEMO_BYTES_MAX, Operation};
use super::{Book, Change, VaultId};
use crate::credits::{AccountStatus, CreditRefusal, Culprit, Draft, Plan, Shortfall};
use crate::quota::QuotaKind;
use crate::time::UnixMs;

impl Book {
    /// Checks the operations in order, then moves all credit at once. An operation may spend the deposit of a later
    /// one.
    pub(super) fn write_vault(
        &mut self,
        now: UnixMs,
        vault: VaultId,
        operations: &[Operation],
    ) -> Result<(Vec<OperationResult>, Vec<Change>), WriteError> {
        let quota = self.vault_name(vault).map(|(namespace, _)| self.quota(namespace, QuotaKind::Accounts));
        let mut draft = self.credits.begin(now, vault, quota.unwrap_or(0));
        let mut results = Vec::with_capacity(operations.len());
        for (position, operation) in operations.iter().enumerate() {
            match self.draft(&mut draft, operation) {
                Ok(result) => results.push(result),
                Err(refusal) => {
                    self.credits.abandon(draft);
                    return Err(refusal.at(position));
                }
            }
        }
        match self.credits.finish(&draft, operations) {
            Ok(changes) => Ok((results, changes)),
            Err(Shortfall(refusal, culprit)) => {
                let position = operations.iter().rposition(|each| self.is_to_blame(vault, each, refusal, culprit));
                self.credits.abandon(draft);
                Err(Refusal::Credit(refusal).at(position.unwrap_or(0)))
            }
        }
    }

    fn draft(&mut self, draft: &mut Draft, operation: &Operation) -> Result<OperationResult, Refusal> {
        let credits = &mut self.credits;
        let account = match operation {
            Operation::OpenAccount { account, overdraft, plan } => {
                check_plan(plan.as_ref())?;
                credits.open_account(draft, account, (*overdraft, plan.as_ref()))
            }
            Operation::SetPlan { account, plan } => {
                check_plan(plan.as_ref())?;
                credits.plan_account(draft, account, plan.as_ref())
            }
            Operation::FreezeAccount { account } => credits.set_standing(draft, account, AccountStatus::Frozen),
            Operation::UnfreezeAccount { account } => credits.set_standing(draft, account, AccountStatus::Open),
            Operation::CloseAccount { account } => credits.set_standing(draft, account, AccountStatus::Closed),
            Operation::Issue { account, asset, amount, memo, terms } => {
                let amount = checked(*amount, memo)?;
                credits.issue(draft, account, asset, (amount, *terms)).map_err(Refusal::Credit)?;
                return Ok(OperationResult::Entry);
            }
            Operation::Transfer { from, to, asset, amount, memo } => {
                let amount = checked(*amount, memo)?;
                if from == to {
                    return Err(Refusal::Invalid(InvalidOperation::ToItself));
                }
                credits.transfer(draft, (from, to), asset, amount).map_err(Refusal::Credit)?;
                return Ok(OperationResult::Entry);
            }
            Operation::Retire { account, asset, amount, memo } => {
                let amount = checked(*amount, memo)?;
                credits.retire(draft, account, asset, amount).map_err(Refusal::Credit)?;
                return Ok(OperationResult::Entry);
            }
            Operation::RetireClient { .. } => return Ok(OperationResult::Client),
            Operation::PutLimit { .. }
            | Operation::DeleteLimit { .. }
            | Operation::OpenVault { .. }
            | Operation::DeleteVault { .. } => {
                return Err(Refusal::WrongScope);
            }
        };
        account.map(OperationResult::Account).map_err(Refusal::Credit)
    }

    /// Whether an operation contributed to the failure. For a lack of credit only operations that take count.
    fn is_to_blame(&self, vault: VaultId, operation: &Operation, refusal: CreditRefusal, culprit: Culprit) -> bool {
        let (owner, what) = match culprit {
            Culprit::Balance(account, asset) => (self.credits.account_name(account), asset),
            Culprit::Issued(asset) | Culprit::Retired(asset) => (None, asset),
        };
        let owner = owner.map(|(_, name)| name);
        let is_short = refusal == CreditRefusal::Insufficient;
        let (asset, is_meant) = match operation {
            Operation::Issue { account, asset, .. } => {
                let gets = owner == Some(account) && !is_short;
                (asset, gets || matches!(culprit, Culprit::Issued(_)))
            }
            Operation::Retire { account, asset, .. } => {
                (asset, owner == Some(account) || matches!(culprit, Culprit::Retired(_)))
            }
            Operation::Transfer { from, to, asset, .. } => {
                (asset, owner == Some(from) || (owner == Some(to) && !is_short))
            }
            Operation::PutLimit { .. }
            | Operation::DeleteLimit { .. }
            | Operation::OpenVault { .. }
            | Operation::DeleteVault { .. }
            | Operation::RetireClient { .. }
            | Operation::OpenAccount { .. }
            | Operation::SetPlan { .. }
            | Operation::FreezeAccount { .. }
            | Operation::UnfreezeAccount { .. }
            | Operation::CloseAccount { .. } => return false,
        };
        is_meant && self.credits.asset_name(vault, what) == Some(asset)
    }
}

fn check_plan(plan: Option<&Plan>) -> Result<(), Refusal> {
    plan.map_or(Ok(()), |plan| plan.check().map_err(Refusal::Invalid))
}

/// Checks an amount and its memo.
fn checked(amount: u128, memo: &str) -> Result<i128, Refusal> {
    if memo.len() > MEMO_BYTES_MAX {
        return Err(Refusal::Invalid(InvalidOperation::MemoTooLong { found: memo.len() }));
    }
    match i128::try_from(amount) {
        Ok(0) => Err(Refusal::Invalid(InvalidOperation::AmountZero)),
        Ok(amount) => Ok(amount),
        Err(_) => Err(Refusal::Credit(CreditRefusal::OutOfRange)),
    }
}
