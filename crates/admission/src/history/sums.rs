//! Sums of the journal, compared with the Book by an audit.

use std::collections::BTreeMap;

use earmark_core::{AccountId, AssetId, AssetName, Book, JournalRecord, Operation, Transaction, UnixMs, VaultId};

use crate::writes::Audit;

/// Sums of journal records. Additions wrap, so that the order of records does not matter.
#[derive(Clone, Default)]
pub struct Sums {
    /// The balance of each account and asset, held amounts included.
    accounts: BTreeMap<(AccountId, AssetId), i128>,
    /// Issued and retired amounts.
    totals: BTreeMap<(VaultId, AssetName), (i128, i128)>,
}

impl Sums {
    /// Adds a record.
    pub fn add(&mut self, record: &JournalRecord) {
        match record {
            JournalRecord::Transaction(transaction) => self.add_transaction(transaction),
            // A held amount still belongs to its account. Only payments move credit.
            JournalRecord::Hold(_)
            | JournalRecord::Release(_)
            | JournalRecord::Key(_)
            | JournalRecord::Limit(_)
            | JournalRecord::Template(_)
            | JournalRecord::Pause(_)
            | JournalRecord::Quotas(_)
            | JournalRecord::Policy(_) => {}
            JournalRecord::Settle(settle) => {
                let paid = i128::from(settle.paid);
                self.change(settle.hold.account, settle.hold.asset, paid.wrapping_neg());
                self.change(settle.revenue, settle.hold.asset, paid);
            }
        }
    }

    fn change(&mut self, account: AccountId, asset: AssetId, amount: i128) {
        let sum = self.accounts.entry((account, asset)).or_default();
        *sum = sum.wrapping_add(amount);
    }

    fn add_transaction(&mut self, transaction: &Transaction) {
        let Some(vault) = transaction.vault else { return };
        for change in &transaction.changes {
            self.change(change.account, change.asset, change.amount);
        }
        let signed = |amount: u128| i128::try_from(amount).unwrap_or(i128::MAX);
        for operation in &transaction.operations {
            match operation {
                Operation::Issue { asset, amount, .. } => {
                    let (issued, _) = self.totals.entry((vault, asset.clone())).or_default();
                    *issued = issued.wrapping_add(signed(*amount));
                }
                Operation::Retire { asset, amount, .. } => {
                    let (_, retired) = self.totals.entry((vault, asset.clone())).or_default();
                    *retired = retired.wrapping_add(signed(*amount));
                }
                Operation::PutLimit { .. }
                | Operation::DeleteLimit { .. }
                | Operation::OpenVault { .. }
                | Operation::RetireClient { .. }
                | Operation::OpenAccount { .. }
                | Operation::FreezeAccount { .. }
                | Operation::UnfreezeAccount { .. }
                | Operation::CloseAccount { .. }
                | Operation::Transfer { .. } => {}
            }
        }
    }

    /// Recounts a vault and compares it with these sums.
    #[must_use]
    pub fn audit(self, book: &Book, vault: VaultId, at: UnixMs) -> Audit {
        let assets = book.audit(vault);
        let uneven = assets
            .iter()
            .find(|totals| totals.issued.checked_sub(totals.retired).is_none_or(|expected| expected != totals.live));
        let message = match uneven {
            Some(totals) => Some(format!(
                "{}: {} were issued and {} retired, but the accounts have {}",
                totals.asset, totals.issued, totals.retired, totals.live
            )),
            None => self.difference(book, vault, at),
        };
        Audit { balanced: message.is_none(), assets, message, at }
    }

    /// The first difference between the Book and these sums, if any.
    fn difference(mut self, book: &Book, vault: VaultId, at: UnixMs) -> Option<String> {
        for info in book.audit(vault) {
            let journal = self.totals.get(&(vault, info.asset.clone())).copied().unwrap_or_default();
            if journal != (info.issued, info.retired) {
                return Some(format!(
                    "{}: the journal has {} issued and {} retired, the vault has {} and {}",
                    info.asset, journal.0, journal.1, info.issued, info.retired
                ));
            }
        }
        let is_home = |account: AccountId| book.account_name(account).is_none_or(|(home, _)| home == vault);
        self.accounts.retain(|(account, _), sum| is_home(*account) && *sum != 0);
        let mut sums = BTreeMap::new();
        for ((account, asset), sum) in self.accounts {
            let Some(name) = book.asset_name(vault, asset) else {
                return Some(format!("the journal has an asset that the vault has not: {asset:?}"));
            };
            sums.insert((account, name.clone()), sum);
        }
        for account in (0..).map(AccountId) {
            let Some((home, name)) = book.account_name(account) else { break };
            if home != vault {
                continue;
            }
            for balance in book.balances(at, account) {
                let sum = sums.remove(&(account, balance.asset.clone())).unwrap_or(0);
                let has = balance.available.wrapping_add(balance.held);
                if sum != has {
                    let asset = balance.asset;
                    return Some(format!("{name}: the journal adds up to {sum} {asset}, it has {has}"));
                }
            }
        }
        let left = sums.into_iter().next();
        left.map(|((account, asset), sum)| format!("{account:?}: the journal has {sum} {asset}, it has none"))
    }
}
