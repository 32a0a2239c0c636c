//! The operations of a transaction as JSON.

use earmark_core::{Operation, Overdraft, parse_credit};
use serde::{Deserialize, Serialize};

use super::OverdraftWord;

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum OperationDocument {
    OpenAccount { account: String, overdraft: OverdraftWord },
    FreezeAccount { account: String },
    UnfreezeAccount { account: String },
    CloseAccount { account: String },
    Issue { account: String, asset: String, amount: String, memo: String },
    Transfer { from: String, to: String, asset: String, amount: String, memo: String },
    Retire { account: String, asset: String, amount: String, memo: String },
}

impl OperationDocument {
    /// None for an operation that is about no vault.
    pub(super) fn of(operation: &Operation) -> Option<OperationDocument> {
        Some(match operation {
            &Operation::OpenAccount { ref account, overdraft } => OperationDocument::OpenAccount {
                account: account.to_string(),
                overdraft: OverdraftWord::of(overdraft),
            },
            Operation::FreezeAccount { account } => {
                OperationDocument::FreezeAccount { account: account.to_string() }
            }
            Operation::UnfreezeAccount { account } => {
                OperationDocument::UnfreezeAccount { account: account.to_string() }
            }
            Operation::CloseAccount { account } => {
                OperationDocument::CloseAccount { account: account.to_string() }
            }
            Operation::Issue { account, asset, amount, memo } => OperationDocument::Issue {
                account: account.to_string(),
                asset: asset.to_string(),
                amount: amount.to_string(),
                memo: memo.clone(),
            },
            Operation::Transfer { from, to, asset, amount, memo } => OperationDocument::Transfer {
                from: from.to_string(),
                to: to.to_string(),
                asset: asset.to_string(),
                amount: amount.to_string(),
                memo: memo.clone(),
            },
            Operation::Retire { account, asset, amount, memo } => OperationDocument::Retire {
                account: account.to_string(),
                asset: asset.to_string(),
                amount: amount.to_string(),
                memo: memo.clone(),
            },
            Operation::PutLimit { .. } | Operation::DeleteLimit { .. } | Operation::OpenVault { .. } => {
                return None;
            }
        })
    }

    pub(super) fn operation(&self) -> Option<Operation> {
        Some(match self {
            &OperationDocument::OpenAccount { ref account, overdraft } => {
                let overdraft: Overdraft = overdraft.overdraft();
                Operation::OpenAccount { account: account.parse().ok()?, overdraft }
            }
            OperationDocument::FreezeAccount { account } => {
                Operation::FreezeAccount { account: account.parse().ok()? }
            }
            OperationDocument::UnfreezeAccount { account } => {
                Operation::UnfreezeAccount { account: account.parse().ok()? }
            }
            OperationDocument::CloseAccount { account } => {
                Operation::CloseAccount { account: account.parse().ok()? }
            }
            OperationDocument::Issue { account, asset, amount, memo } => Operation::Issue {
                account: account.parse().ok()?,
                asset: asset.parse().ok()?,
                amount: parse_credit(amount)?,
                memo: memo.clone(),
            },
            OperationDocument::Transfer { from, to, asset, amount, memo } => Operation::Transfer {
                from: from.parse().ok()?,
                to: to.parse().ok()?,
                asset: asset.parse().ok()?,
                amount: parse_credit(amount)?,
                memo: memo.clone(),
            },
            OperationDocument::Retire { account, asset, amount, memo } => Operation::Retire {
                account: account.parse().ok()?,
                asset: asset.parse().ok()?,
                amount: parse_credit(amount)?,
                memo: memo.clone(),
            },
        })
    }
}
