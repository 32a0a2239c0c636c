//! Sums of the journal, compared with the Book by an audit.

use std::collections::BTreeMap;

use earmark_core::{
    AccountId, AssetId, AssetName, AssetTotals, Book, JournalRecord, Operation, Transaction, UnixMs, VaultId,
};

use crate::writes::Audit;

/// The sums of an account in one asset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AccountSum {
    /// The asset.
    pub asset: AssetId,
    /// The balance, held amounts included.
    pub amount: i128,
    /// The expired credit.
    pub expired: i128,
    /// The credit that plans issued.
    pub planned: i128,
}

/// Amounts by account and asset.
type AccountSums = BTreeMap<(AccountId, AssetId), i128>;

/// Sums of journal records. Additions wrap, so that the order of records does not matter.
#[derive(Clone, Default)]
pub struct Sums {
    /// The balance of each account and asset, held amounts included.
    accounts: AccountSums,
    /// Issued and retired amounts.
    totals: BTreeMap<(VaultId, AssetName), (i128, i128)>,
    /// The expired credit of each account and asset.
    expired: AccountSums,
    /// The credit that plans issued to each account and asset.
    planned: AccountSums,
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
            JournalRecord::Expire(expire) => {
                self.change(expire.account, expire.asset, expire.amount.wrapping_neg());
                let sum = self.expired.entry((expire.account, expire.asset)).or_default();
                *sum = sum.wrapping_add(expire.amount);
            }
            JournalRecord::Plan(plan) => {
                self.change(plan.account, plan.asset, plan.amount);
                let sum = self.planned.entry((plan.account, plan.asset)).or_default();
                *sum = sum.wrapping_add(plan.amount);
            }
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
                | Operation::DeleteVault { .. }
                | Operation::RetireClient { .. }
                | Operation::OpenAccount { .. }
                | Operation::SetPlan { .. }
                | Operation::FreezeAccount { .. }
                | Operation::UnfreezeAccount { .. }
                | Operation::CloseAccount { .. }
                | Operation::Transfer { .. } => {}
            }
        }
    }

    /// Removes the sums of an account and returns them, ordered by asset.
    pub fn take_account(&mut self, account: AccountId) -> Vec<AccountSum> {
        let assets = (account, AssetId(0))..=(account, AssetId(u16::MAX));
        let mut found: BTreeMap<AssetId, AccountSum> = BTreeMap::new();
        let mut take = |sums: &mut AccountSums, set: fn(&mut AccountSum, i128)| {
            for ((_, asset), sum) in sums.extract_if(assets.clone(), |_, _| true) {
                set(found.entry(asset).or_insert(AccountSum { asset, ..AccountSum::default() }), sum);
            }
        };
        take(&mut self.accounts, |found, amount| found.amount = amount);
        take(&mut self.expired, |found, expired| found.expired = expired);
        take(&mut self.planned, |found, planned| found.planned = planned);
        found.into_values().collect()
    }

    /// Removes the amounts of an asset that transactions issued and retired, and returns them.
    pub fn take_totals(&mut self, vault: VaultId, asset: &AssetName) -> (i128, i128) {
        self.totals.remove(&(vault, asset.clone())).unwrap_or_default()
    }

    /// The first account whose sums were not taken and are not zero.
    #[must_use]
    pub fn account_left(&self) -> Option<AccountId> {
        let left = self.accounts.iter().chain(&self.expired).chain(&self.planned).find(|(_, sum)| **sum != 0);
        left.map(|((account, _), _)| *account)
    }

    /// The first asset whose totals were not taken and are not zero.
    #[must_use]
    pub fn asset_left(&self) -> Option<(VaultId, &AssetName)> {
        let left = self.totals.iter().find(|(_, sums)| **sums != (0, 0));
        left.map(|((vault, asset), _)| (*vault, asset))
    }

    /// Recounts a vault and compares it with these sums.
    #[must_use]
    pub fn audit(self, book: &Book, vault: VaultId, at: UnixMs) -> Audit {
        let assets = book.audit(vault);
        let left = |totals: &AssetTotals| totals.issued.checked_sub(totals.retired)?.checked_sub(totals.expired);
        let uneven = assets.iter().find(|totals| left(totals) != Some(totals.live));
        let message = match uneven {
            Some(totals) => Some(format!(
                "{}: {} were issued, {} retired and {} expired, but the accounts have {}",
                totals.asset, totals.issued, totals.retired, totals.expired, totals.live
            )),
            None => self.difference(book, vault),
        };
        Audit { balanced: message.is_none(), assets, message, at }
    }

    /// The sum of an asset over the accounts of a vault.
    fn sum_in(amounts: &AccountSums, book: &Book, vault: VaultId, asset: &AssetName) -> i128 {
        let is_meant = |(account, id): (AccountId, AssetId)| {
            let home = book.account_name(account).map(|(home, _)| home);
            home == Some(vault) && book.asset_name(vault, id) == Some(asset)
        };
        let sums = amounts.iter().filter(|(key, _)| is_meant(**key)).map(|(_, sum)| *sum);
        sums.fold(0, i128::wrapping_add)
    }

    /// The first difference between the Book and these sums, if any.
    fn difference(mut self, book: &Book, vault: VaultId) -> Option<String> {
        for info in book.audit(vault) {
            let mut journal = self.totals.get(&(vault, info.asset.clone())).copied().unwrap_or_default();
            journal.0 = journal.0.wrapping_add(Sums::sum_in(&self.planned, book, vault, &info.asset));
            let expired = Sums::sum_in(&self.expired, book, vault, &info.asset);
            if (journal, expired) != ((info.issued, info.retired), info.expired) {
                return Some(format!(
                    "{}: the journal has {} issued, {} retired and {expired} expired, the vault has {}, {} and {}",
                    info.asset, journal.0, journal.1, info.issued, info.retired, info.expired
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
        for account in book.accounts(AccountId(0)) {
            let Some((home, name)) = book.account_name(account) else { break };
            if home != vault {
                continue;
            }
            for (asset, has) in book.amounts(account) {
                let sum = sums.remove(&(account, asset.clone())).unwrap_or(0);
                if sum != has {
                    return Some(format!("{name}: the journal adds up to {sum} {asset}, it has {has}"));
                }
            }
        }
        let left = sums.into_iter().next();
        left.map(|((account, asset), sum)| format!("{account:?}: the journal has {sum} {asset}, it has none"))
    }
}
