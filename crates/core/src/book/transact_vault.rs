//! The operations of a vault: accounts, and credit that moves in one entry.

use super::receipt::{InvalidOperation, OperationResult, WriteError};
use super::transact::Refusal;
use super::write::{MEMO_BYTES_MAX, Operation};
use super::{Book, Change, VaultId};
use crate::credits::{AccountId, AssetId, CreditRefusal, Draft, Shortfall, Standing};
use crate::time::UnixMs;

impl Book {
    /// Checks the operations of a vault one after the other, then moves all that they move at once: what an
    /// account gets in one place of the transaction it may spend in another.
    pub(super) fn write_vault(
        &mut self,
        now: UnixMs,
        vault: VaultId,
        operations: &[Operation],
    ) -> Result<(Vec<OperationResult>, Vec<Change>), WriteError> {
        let mut draft = self.credits.begin(now, vault);
        let mut results = Vec::with_capacity(operations.len());
        for (place, operation) in operations.iter().enumerate() {
            match self.draft(&mut draft, operation) {
                Ok(result) => results.push(result),
                Err(refusal) => {
                    self.credits.abandon(draft);
                    return Err(refusal.at(place));
                }
            }
        }
        match self.credits.finish(&draft) {
            Ok(changes) => Ok((results, changes)),
            Err(Shortfall(refusal, whose)) => {
                let place = whose.and_then(|(account, asset)| self.mover(operations, account, asset));
                self.credits.abandon(draft);
                Err(Refusal::Credit(refusal).at(place.unwrap_or(0)))
            }
        }
    }

    fn draft(&mut self, draft: &mut Draft, operation: &Operation) -> Result<OperationResult, Refusal> {
        let credits = &mut self.credits;
        let account = match operation {
            Operation::OpenAccount { account, overdraft } => credits.open_account(draft, account, *overdraft),
            Operation::FreezeAccount { account } => credits.set_standing(draft, account, Standing::Frozen),
            Operation::UnfreezeAccount { account } => credits.set_standing(draft, account, Standing::Open),
            Operation::CloseAccount { account } => credits.set_standing(draft, account, Standing::Closed),
            Operation::Issue { account, asset, amount, memo } => {
                let amount = checked(*amount, memo)?;
                credits.issue(draft, account, asset, amount).map_err(Refusal::Credit)?;
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
            Operation::PutLimit { .. } | Operation::DeleteLimit { .. } | Operation::OpenVault { .. } => {
                return Err(Refusal::WrongScope);
            }
        };
        account.map(OperationResult::Account).map_err(Refusal::Credit)
    }

    /// The place of the last operation that moves this asset of this account.
    fn mover(&self, operations: &[Operation], account: AccountId, asset: AssetId) -> Option<usize> {
        let (vault, name) = self.credits.account_name(account)?;
        let asset_name = self.credits.asset_name(vault, asset)?;
        operations.iter().rposition(|operation| match operation {
            Operation::Issue { account, asset, .. } | Operation::Retire { account, asset, .. } => {
                account == name && asset == asset_name
            }
            Operation::Transfer { from, to, asset, .. } => {
                (from == name || to == name) && asset == asset_name
            }
            Operation::PutLimit { .. }
            | Operation::DeleteLimit { .. }
            | Operation::OpenVault { .. }
            | Operation::OpenAccount { .. }
            | Operation::FreezeAccount { .. }
            | Operation::UnfreezeAccount { .. }
            | Operation::CloseAccount { .. } => false,
        })
    }
}

/// The amount of an operation, if it is one.
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
