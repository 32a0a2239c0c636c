//! The journal in memory: what happened lately, and what it adds up to.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use earmark_core::{
    AccountId, AccountName, AssetId, AssetName, Book, JournalRecord, Operation, Transaction, UnixMs, VaultId,
};

use crate::ledger::{Audit, EntryPage, EntryView};

/// So many records are kept at most; the oldest go first.
pub(crate) const RECORDS_MAX: usize = 100_000;
/// So many operations and changes are kept at most, in all records together.
pub(crate) const PARTS_MAX: usize = 1_000_000;

/// What happened lately. Records are numbered from 1.
#[derive(Default)]
pub(crate) struct History {
    records: VecDeque<Transaction>,
    /// How many were dropped, which is the number of the last one that was.
    dropped: u64,
    parts: usize,
    /// The numbers of the records that changed an account.
    of_account: HashMap<AccountId, VecDeque<u64>>,
    /// What leases have paid, and to whom, in all.
    settled: BTreeMap<(AccountId, AssetId), i128>,
}

fn parts(record: &Transaction) -> usize {
    record.operations.len().saturating_add(record.changes.len())
}

impl History {
    pub(crate) fn extend(&mut self, records: Vec<JournalRecord>) {
        for record in records {
            match record {
                JournalRecord::Transaction(transaction) => self.push(transaction),
                // What is held still belongs to its account, so only what is paid changes who has what.
                JournalRecord::Hold(_) | JournalRecord::Release(_) => {}
                JournalRecord::Settle(settle) => {
                    let asset = settle.hold.asset;
                    let paid = i128::from(settle.paid);
                    for (account, amount) in [(settle.hold.account, -paid), (settle.revenue, paid)] {
                        let sum = self.settled.entry((account, asset)).or_default();
                        *sum = sum.wrapping_add(amount);
                    }
                }
            }
        }
        while self.records.len() > RECORDS_MAX || self.parts > PARTS_MAX {
            self.drop_oldest();
        }
    }

    fn push(&mut self, record: Transaction) {
        let number = self.dropped.saturating_add(self.records.len() as u64).saturating_add(1);
        for change in &record.changes {
            let numbers = self.of_account.entry(change.account).or_default();
            if numbers.back() != Some(&number) {
                numbers.push_back(number);
            }
        }
        self.parts = self.parts.saturating_add(parts(&record));
        self.records.push_back(record);
    }

    fn drop_oldest(&mut self) {
        let Some(record) = self.records.pop_front() else { return };
        self.dropped = self.dropped.saturating_add(1);
        self.parts = self.parts.saturating_sub(parts(&record));
        for change in &record.changes {
            if let Some(numbers) = self.of_account.get_mut(&change.account) {
                numbers.pop_front_if(|number| *number <= self.dropped);
                if numbers.is_empty() {
                    self.of_account.remove(&change.account);
                }
            }
        }
    }

    fn record(&self, number: u64) -> Option<&Transaction> {
        let place = number.checked_sub(self.dropped)?.checked_sub(1)?;
        self.records.get(usize::try_from(place).ok()?)
    }

    /// The entries of an account after a number, so many at most.
    pub(crate) fn entries(
        &self,
        book: &Book,
        (account, name): (AccountId, &AccountName),
        after: u64,
        page_size: usize,
    ) -> EntryPage {
        let Some(numbers) = self.of_account.get(&account) else { return EntryPage::default() };
        let first = numbers.partition_point(|number| *number <= after);
        let page = numbers.range(first..).take(page_size);
        let view = |number: &u64| Some(view(book, *number, self.record(*number)?, (account, name)));
        let entries: Vec<EntryView> = page.filter_map(view).collect();
        let has_more = numbers.len() > first.saturating_add(entries.len());
        let next = entries.last().map(|entry| entry.number).filter(|_| has_more);
        EntryPage { entries, next }
    }

    /// Counts a vault anew, and compares it with what the journal adds up to.
    pub(crate) fn audit(&self, book: &Book, vault: VaultId, at: UnixMs) -> Audit {
        let assets = book.audit(vault);
        let uneven = assets.iter().find(|totals| {
            totals.issued.checked_sub(totals.retired).is_none_or(|expected| expected != totals.live)
        });
        let differs = match uneven {
            Some(totals) => Some(format!(
                "{}: {} were issued and {} retired, but the accounts have {}",
                totals.asset, totals.issued, totals.retired, totals.live
            )),
            None if self.dropped == 0 => self.difference(book, vault, at),
            None => None,
        };
        let balanced = differs.is_none();
        let cut = (self.dropped > 0).then(|| {
            format!(
                "the journal no longer reaches back to the start: its oldest {} records were dropped, so \
                 accounts were compared with the totals only",
                self.dropped
            )
        });
        Audit { balanced, assets, message: differs.or(cut), at }
    }

    /// Where the Book and the journal disagree, if they do.
    fn difference(&self, book: &Book, vault: VaultId, at: UnixMs) -> Option<String> {
        let mut sums: BTreeMap<(AccountId, AssetName), i128> = BTreeMap::new();
        let mut totals: BTreeMap<AssetName, (i128, i128)> = BTreeMap::new();
        for record in self.records.iter().filter(|record| record.vault == Some(vault)) {
            for change in &record.changes {
                let Some(asset) = book.asset_name(vault, change.asset) else {
                    return Some(format!("the journal has an asset that the vault has not: {change:?}"));
                };
                let sum = sums.entry((change.account, asset.clone())).or_default();
                *sum = sum.wrapping_add(change.amount);
            }
            for operation in &record.operations {
                count(operation, &mut totals);
            }
        }
        for ((account, asset), amount) in &self.settled {
            if book.account_name(*account).is_some_and(|(home, _)| home == vault)
                && let Some(asset) = book.asset_name(vault, *asset)
            {
                let sum = sums.entry((*account, asset.clone())).or_default();
                *sum = sum.wrapping_add(*amount);
            }
        }
        for info in book.audit(vault) {
            let journal = totals.get(&info.asset).copied().unwrap_or_default();
            if journal != (info.issued, info.retired) {
                return Some(format!(
                    "{}: the journal has {} issued and {} retired, the vault has {} and {}",
                    info.asset, journal.0, journal.1, info.issued, info.retired
                ));
            }
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
        let left = sums.into_iter().find(|(_, sum)| *sum != 0);
        left.map(|((account, asset), sum)| format!("{account:?}: the journal has {sum} {asset}, it has none"))
    }
}

fn count(operation: &Operation, totals: &mut BTreeMap<AssetName, (i128, i128)>) {
    let signed = |amount: u128| i128::try_from(amount).unwrap_or(i128::MAX);
    match operation {
        Operation::Issue { asset, amount, .. } => {
            let (issued, _) = totals.entry(asset.clone()).or_default();
            *issued = issued.wrapping_add(signed(*amount));
        }
        Operation::Retire { asset, amount, .. } => {
            let (_, retired) = totals.entry(asset.clone()).or_default();
            *retired = retired.wrapping_add(signed(*amount));
        }
        Operation::PutLimit { .. }
        | Operation::DeleteLimit { .. }
        | Operation::OpenVault { .. }
        | Operation::OpenAccount { .. }
        | Operation::FreezeAccount { .. }
        | Operation::UnfreezeAccount { .. }
        | Operation::CloseAccount { .. }
        | Operation::Transfer { .. } => {}
    }
}

fn view(
    book: &Book,
    number: u64,
    record: &Transaction,
    (account, name): (AccountId, &AccountName),
) -> EntryView {
    let mut changes: Vec<(AssetName, i128)> = (record.changes.iter())
        .filter(|change| change.account == account)
        .filter_map(|change| Some((book.asset_name(record.vault?, change.asset)?.clone(), change.amount)))
        .collect();
    changes.sort_unstable_by(|a, b| a.0.cmp(&b.0));
    let memos = record.operations.iter().filter_map(|operation| memo(operation, name));
    EntryView {
        number,
        client: record.client.clone(),
        receipt: Arc::clone(&record.receipt),
        changes,
        memos: memos.filter(|memo| !memo.is_empty()).map(str::to_owned).collect(),
    }
}

/// Why an operation concerns an account, if it does.
fn memo<'a>(operation: &'a Operation, name: &AccountName) -> Option<&'a str> {
    match operation {
        Operation::Issue { account, memo, .. } | Operation::Retire { account, memo, .. } => {
            (account == name).then_some(memo)
        }
        Operation::Transfer { from, to, memo, .. } => (from == name || to == name).then_some(memo),
        Operation::PutLimit { .. }
        | Operation::DeleteLimit { .. }
        | Operation::OpenVault { .. }
        | Operation::OpenAccount { .. }
        | Operation::FreezeAccount { .. }
        | Operation::UnfreezeAccount { .. }
        | Operation::CloseAccount { .. } => None,
    }
}

#[cfg(test)]
mod tests;
