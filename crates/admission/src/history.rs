//! The journal in memory: what happened lately, and what it adds up to.

mod change_log;
mod sums;
mod view;

use std::collections::{HashMap, VecDeque};

use earmark_core::{AccountId, AccountName, Book, JournalRecord, NamespaceName, UnixMs, VaultId};

use crate::callers::ChangePage;
use crate::writes::{Audit, EntryPage};
pub use change_log::{ChangePager, summary};
pub use sums::Sums;
pub use view::entry_view;

/// So many records are kept at most; the oldest go first.
pub(crate) const RECORDS_MAX: usize = 100_000;
/// So many operations and changes are kept at most, in all records together.
pub(crate) const PARTS_MAX: usize = 1_000_000;

/// What happened lately. Records are numbered from 1.
#[derive(Default)]
pub(crate) struct History {
    records: VecDeque<JournalRecord>,
    /// How many were dropped, which is the number of the last one that was.
    dropped: u64,
    /// What those add up to.
    dropped_sums: Sums,
    parts: usize,
    /// The numbers of the records that concern an account.
    of_account: HashMap<AccountId, VecDeque<u64>>,
}

fn parts(record: &JournalRecord) -> usize {
    match record {
        JournalRecord::Transaction(record) => record.operations.len().saturating_add(record.changes.len()),
        JournalRecord::Hold(_)
        | JournalRecord::Release(_)
        | JournalRecord::Key(_)
        | JournalRecord::Limit(_) => 1,
        JournalRecord::Settle(_) => 2,
    }
}

/// Calls `touch` with every account that a record concerns, with some of them several times.
fn for_each_account(record: &JournalRecord, mut touch: impl FnMut(AccountId)) {
    match record {
        JournalRecord::Transaction(record) => record.changes.iter().for_each(|change| touch(change.account)),
        JournalRecord::Hold(hold) | JournalRecord::Release(hold) => touch(hold.account),
        JournalRecord::Key(_) | JournalRecord::Limit(_) => {}
        JournalRecord::Settle(settle) => {
            touch(settle.hold.account);
            touch(settle.revenue);
        }
    }
}

impl History {
    pub(crate) fn extend(&mut self, records: Vec<JournalRecord>) {
        records.into_iter().for_each(|record| self.push(record));
        while self.records.len() > RECORDS_MAX || self.parts > PARTS_MAX {
            self.drop_oldest();
        }
    }

    fn push(&mut self, record: JournalRecord) {
        let number = self.dropped.saturating_add(self.records.len() as u64).saturating_add(1);
        for_each_account(&record, |account| {
            let numbers = self.of_account.entry(account).or_default();
            if numbers.back() != Some(&number) {
                numbers.push_back(number);
            }
        });
        self.parts = self.parts.saturating_add(parts(&record));
        self.records.push_back(record);
    }

    fn drop_oldest(&mut self) {
        let Some(record) = self.records.pop_front() else { return };
        self.dropped = self.dropped.saturating_add(1);
        self.dropped_sums.add(&record);
        self.parts = self.parts.saturating_sub(parts(&record));
        for_each_account(&record, |account| {
            if let Some(numbers) = self.of_account.get_mut(&account) {
                numbers.pop_front_if(|number| *number <= self.dropped);
                if numbers.is_empty() {
                    self.of_account.remove(&account);
                }
            }
        });
    }

    fn record(&self, number: u64) -> Option<&JournalRecord> {
        let place = number.checked_sub(self.dropped)?.checked_sub(1)?;
        self.records.get(usize::try_from(place).ok()?)
    }

    /// The entries of an account after a number, so many at most.
    pub(crate) fn entries(
        &self,
        book: &Book,
        account: (AccountId, &AccountName),
        after: u64,
        page_size: usize,
    ) -> EntryPage {
        let Some(numbers) = self.of_account.get(&account.0) else { return EntryPage::default() };
        let first = numbers.partition_point(|number| *number <= after);
        let page = numbers.range(first..).take(page_size);
        let view = |number: &u64| entry_view(book, *number, self.record(*number)?, account);
        let has_more = numbers.len() > first.saturating_add(page_size);
        EntryPage::of(page.filter_map(view), has_more)
    }

    /// What was changed after a number, in a namespace or in all of them.
    pub(crate) fn log(
        &self,
        book: &Book,
        namespace: Option<&NamespaceName>,
        after: u64,
        page_size: usize,
    ) -> ChangePage {
        let skipped = after.saturating_sub(self.dropped);
        let first = self.dropped.saturating_add(skipped);
        let records = self.records.iter().skip(usize::try_from(skipped).unwrap_or(usize::MAX));
        let mut pager = ChangePager::new(namespace.cloned(), page_size);
        for (number, record) in (first.saturating_add(1)..).zip(records) {
            if !pager.take(book, number, record) {
                break;
            }
        }
        pager.finish()
    }

    /// Counts a vault anew, and compares it with what the journal adds up to.
    pub(crate) fn audit(&self, book: &Book, vault: VaultId, at: UnixMs) -> Audit {
        let mut sums = self.dropped_sums.clone();
        self.records.iter().for_each(|record| sums.add(record));
        let mut audit = sums.audit(book, vault, at);
        if audit.message.is_none() && self.dropped > 0 {
            audit.message = Some(format!(
                "the history no longer reaches back to the start: of its oldest {} records only the sums are kept",
                self.dropped
            ));
        }
        audit
    }
}

#[cfg(test)]
mod tests;
