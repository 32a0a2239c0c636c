//! The journal of an in-memory Book, bounded, with the sums of what was dropped.

mod change_log;
mod sums;
mod view;

use std::collections::{HashMap, VecDeque};

use earmark_core::{AccountId, AccountName, Book, JournalRecord, UnixMs, VaultId};

use crate::callers::{ChangePage, ChangeQuery};
use crate::credit_lists::{EntryCollector, EntryOrder, EntryQuery};
use crate::writes::{Audit, EntryPage};
pub use change_log::{ChangePager, summary};
pub use sums::{AccountSum, Sums};
pub use view::entry_view;

/// Most journal records in memory. Beyond this the oldest are dropped.
pub(crate) const RECORDS_MAX: usize = 100_000;
/// Most operations and balance changes in memory, summed over all records. One transaction may have hundreds.
pub(crate) const PARTS_MAX: usize = 1_000_000;

/// The latest journal records, numbered from 1.
#[derive(Default)]
pub(crate) struct History {
    records: VecDeque<JournalRecord>,
    /// The number of the last dropped record.
    dropped: u64,
    /// The sums of the dropped records.
    dropped_sums: Sums,
    parts: usize,
    /// The numbers of the records of each account.
    of_account: HashMap<AccountId, VecDeque<u64>>,
    /// The numbers of the records in the change log.
    changes: VecDeque<u64>,
}

fn parts(record: &JournalRecord) -> usize {
    match record {
        JournalRecord::Transaction(record) => {
            let limits = record.replaced.len();
            record.operations.len().saturating_add(limits).saturating_add(record.changes.len())
        }
        JournalRecord::Hold(_)
        | JournalRecord::Release(_)
        | JournalRecord::Expire(_)
        | JournalRecord::Plan(_)
        | JournalRecord::Key(_)
        | JournalRecord::Limit(_)
        | JournalRecord::Template(_)
        | JournalRecord::Pause(_)
        | JournalRecord::Quotas(_)
        | JournalRecord::Policy(_) => 1,
        JournalRecord::Settle(_) => 2,
    }
}

/// Calls `touch` with every account of a record. An account may come up twice.
fn for_each_account(record: &JournalRecord, mut touch: impl FnMut(AccountId)) {
    match record {
        JournalRecord::Transaction(record) => record.changes.iter().for_each(|change| touch(change.account)),
        JournalRecord::Hold(hold) | JournalRecord::Release(hold) => touch(hold.account),
        JournalRecord::Expire(expire) => touch(expire.account),
        JournalRecord::Plan(plan) => touch(plan.account),
        JournalRecord::Key(_)
        | JournalRecord::Limit(_)
        | JournalRecord::Template(_)
        | JournalRecord::Pause(_)
        | JournalRecord::Quotas(_)
        | JournalRecord::Policy(_) => {}
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
        if record.is_change() {
            self.changes.push_back(number);
        }
        self.parts = self.parts.saturating_add(parts(&record));
        self.records.push_back(record);
    }

    fn drop_oldest(&mut self) {
        let Some(record) = self.records.pop_front() else { return };
        self.dropped = self.dropped.saturating_add(1);
        self.dropped_sums.add(&record);
        self.parts = self.parts.saturating_sub(parts(&record));
        self.changes.pop_front_if(|number| *number <= self.dropped);
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

    /// A page of an account's entries.
    pub(crate) fn entries(&self, book: &Book, account: (AccountId, &AccountName), query: EntryQuery) -> EntryPage {
        let dropped = self.dropped;
        let Some(numbers) = self.of_account.get(&account.0) else {
            return EntryPage { dropped, ..EntryPage::default() };
        };
        let (order, after) = (query.order, query.after);
        let mut page = EntryCollector::new(query);
        let mut take = |number: &u64| {
            let view = self.record(*number).and_then(|record| entry_view(book, *number, record, account));
            page.take(*number, view)
        };
        let is_read = match order {
            EntryOrder::Ascending => {
                let first = numbers.partition_point(|number| *number <= after);
                numbers.range(first..).all(&mut take)
            }
            EntryOrder::Descending => {
                let before = if after == 0 { u64::MAX } else { after };
                let end = numbers.partition_point(|number| *number < before);
                numbers.range(..end).rev().all(&mut take)
            }
        };
        EntryPage { dropped, ..page.finish(!is_read) }
    }

    /// A page of the change log.
    pub(crate) fn log(&self, book: &Book, query: &ChangeQuery) -> ChangePage {
        let end = match query.after.book {
            0 => self.changes.len(),
            before => self.changes.partition_point(|number| *number < before),
        };
        let mut pager = ChangePager::new(query.clone());
        for number in self.changes.range(..end).rev() {
            let Some(record) = self.record(*number) else { break };
            if !pager.take(book, *number, record) {
                break;
            }
        }
        pager.finish()
    }

    /// Recounts a vault and compares it with the sums of the journal.
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
