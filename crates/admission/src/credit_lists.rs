//! Lists of vaults, accounts and entries, in pages.

use std::collections::BTreeSet;

use earmark_core::{AccountName, AccountStatus, BalanceInfo, PlanInfo, UnixMs, VaultName};

use crate::writes::{EntryPage, EntryView, PAGE_MAX};

/// Entries that one page examines at most. A page with a filter may end here, short or empty, with a `next`.
const ENTRIES_EXAMINED_MAX: usize = 10_000;
/// Entries that a filtered page reads at once.
const ENTRIES_CHUNK: usize = 500;
/// Bytes of memos after which a page ends. One entry may have 64 KiB of memos, so a page limited by count alone could
/// reach 64 MiB, and the Book waits while it is copied.
const PAGE_MEMO_BYTES: usize = 1 << 20;

/// Which vaults to list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VaultQuery {
    /// Only vaults after this name: `next` of the previous page.
    pub after: Option<VaultName>,
    /// Vaults on the page, 1 to [`PAGE_MAX`].
    pub page_size: usize,
}

/// A page of vaults, ordered by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VaultPage {
    /// The vaults.
    pub vaults: Vec<VaultName>,
    /// `after` of the next page; `None` on the last one.
    pub next: Option<VaultName>,
}

/// Which accounts of a vault to list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccountQuery {
    /// Only accounts whose name begins like this.
    pub prefix: Option<AccountName>,
    /// Only accounts after this name: `next` of the previous page.
    pub after: Option<AccountName>,
    /// Accounts on the page, 1 to [`PAGE_MAX`].
    pub page_size: usize,
}

impl AccountQuery {
    /// Whether an account belongs to this page or a later one.
    #[must_use]
    pub fn matches(&self, name: &AccountName) -> bool {
        self.after.as_ref().is_none_or(|after| name > after)
            && self.prefix.as_ref().is_none_or(|prefix| name.as_str().starts_with(prefix.as_str()))
    }
}

/// An account in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccountView {
    /// The name.
    pub account: AccountName,
    /// The status.
    pub status: AccountStatus,
    /// The balances, ordered by asset.
    pub balances: Vec<BalanceInfo>,
    /// The plan, if it has one.
    pub plan: Option<PlanInfo>,
}

/// A page of accounts, ordered by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccountPage {
    /// The accounts.
    pub accounts: Vec<AccountView>,
    /// `after` of the next page; `None` on the last one.
    pub next: Option<AccountName>,
}

/// Collects the first names of a page from names in any order. It keeps one more than the page.
pub(crate) struct NameCollector<'a> {
    query: &'a AccountQuery,
    names: BTreeSet<AccountName>,
}

impl<'a> NameCollector<'a> {
    pub(crate) fn new(query: &'a AccountQuery) -> NameCollector<'a> {
        NameCollector { query, names: BTreeSet::new() }
    }

    pub(crate) fn add(&mut self, name: &AccountName) {
        let is_full = self.names.len() > self.query.page_size;
        if !self.query.matches(name) || (is_full && self.names.last().is_some_and(|last| name > last)) {
            return;
        }
        self.names.insert(name.clone());
        if self.names.len() > self.query.page_size.saturating_add(1) {
            self.names.pop_last();
        }
    }

    /// The names of the page, and whether others follow.
    pub(crate) fn finish(mut self) -> (Vec<AccountName>, bool) {
        let has_more = self.names.len() > self.query.page_size;
        if has_more {
            self.names.pop_last();
        }
        (self.names.into_iter().collect(), has_more)
    }
}

/// The order of entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EntryOrder {
    /// Oldest first.
    #[default]
    Ascending,
    /// Newest first.
    Descending,
}

impl EntryOrder {
    /// All orders by name.
    pub const NAMES: [&'static str; 2] = ["asc", "desc"];

    /// The order with this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<EntryOrder> {
        match name {
            "asc" => Some(EntryOrder::Ascending),
            "desc" => Some(EntryOrder::Descending),
            _ => None,
        }
    }
}

/// Which entries of an account to list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryQuery {
    /// Continues after this entry in the order of the list: `next` of the previous page. 0 begins the list.
    pub after: u64,
    /// Only entries at this time or later.
    pub since: Option<UnixMs>,
    /// Only entries before this time.
    pub until: Option<UnixMs>,
    /// The order, by number.
    pub order: EntryOrder,
    /// Entries on the page, 1 to [`PAGE_MAX`].
    pub page_size: usize,
}

impl EntryQuery {
    /// A page of all entries, oldest first.
    #[must_use]
    pub const fn oldest_first(after: u64, page_size: usize) -> EntryQuery {
        EntryQuery { after, since: None, until: None, order: EntryOrder::Ascending, page_size }
    }

    fn includes(&self, at: UnixMs) -> bool {
        self.since.is_none_or(|since| at >= since) && self.until.is_none_or(|until| at < until)
    }
}

/// Collects a page of entries that are read in chunks, in the order of the query.
pub struct EntryCollector {
    query: EntryQuery,
    entries: Vec<EntryView>,
    memo_bytes: usize,
    examined: usize,
}

impl EntryCollector {
    /// An empty page.
    #[must_use]
    pub fn new(query: EntryQuery) -> EntryCollector {
        let page_size = query.page_size.clamp(1, PAGE_MAX);
        let query = EntryQuery { page_size, ..query };
        EntryCollector { query, entries: Vec::new(), memo_bytes: 0, examined: 0 }
    }

    /// The entries to read next: the order, the entry to continue after, and how many. `None` if the page is over.
    #[must_use]
    pub fn next_chunk(&self) -> Option<(EntryOrder, u64, usize)> {
        let missing = self.query.page_size.saturating_sub(self.entries.len());
        let is_over = missing == 0 || self.memo_bytes >= PAGE_MEMO_BYTES || self.examined >= ENTRIES_EXAMINED_MAX;
        let is_filtered = self.query.since.is_some() || self.query.until.is_some();
        let most = if is_filtered { missing.max(ENTRIES_CHUNK) } else { missing };
        (!is_over).then_some((self.query.order, self.query.after, most))
    }

    /// Examines the entry that follows, and keeps it if it matches. `None` is an entry without effect on the account.
    /// Returns false if the page is over; then the entry belongs to the next one.
    pub fn take(&mut self, number: u64, view: Option<EntryView>) -> bool {
        if self.next_chunk().is_none() {
            return false;
        }
        self.query.after = number;
        self.examined = self.examined.saturating_add(1);
        if let Some(view) = view.filter(|view| self.query.includes(view.at)) {
            self.memo_bytes = self.memo_bytes.saturating_add(view.memo_bytes());
            self.entries.push(view);
        }
        true
    }

    /// The page. `has_more` says whether entries follow the last examined one.
    #[must_use]
    pub fn finish(self, has_more: bool) -> EntryPage {
        EntryPage { entries: self.entries, next: has_more.then_some(self.query.after), dropped: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> AccountName {
        AccountName::new(text).unwrap()
    }

    #[test]
    fn a_page_of_names_has_the_first_that_match_whatever_their_order() {
        let collect = |prefix: Option<&str>, after: Option<&str>, page_size| {
            let query = AccountQuery { prefix: prefix.map(name), after: after.map(name), page_size };
            let mut collector = NameCollector::new(&query);
            for text in ["b", "a2", "c", "a1", "a3", "aa"] {
                collector.add(&name(text));
                assert!(collector.names.len() <= page_size + 1);
            }
            let (names, has_more) = collector.finish();
            (names.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "), has_more)
        };
        assert_eq!(collect(None, None, 2), ("a1 a2".into(), true));
        assert_eq!(collect(None, Some("a2"), 2), ("a3 aa".into(), true));
        assert_eq!(collect(None, Some("aa"), 2), ("b c".into(), false));
        assert_eq!(collect(Some("a"), Some("a1"), 9), ("a2 a3 aa".into(), false));
        assert_eq!(collect(Some("x"), None, 1), (String::new(), false));
    }

    /// A filter that matches nothing would otherwise read the whole history in one request.
    #[test]
    fn a_page_that_matches_nothing_ends_after_its_bound_and_says_where_to_go_on() {
        let until = Some(UnixMs::new(5));
        let mut page = EntryCollector::new(EntryQuery { until, ..EntryQuery::oldest_first(0, 10) });
        let mut number = 0;
        while page.take(number + 1, None) {
            number += 1;
        }
        assert_eq!(number, ENTRIES_EXAMINED_MAX as u64);
        assert_eq!(page.next_chunk(), None);
        assert_eq!(page.finish(true), EntryPage { next: Some(number), ..EntryPage::default() });
    }
}
