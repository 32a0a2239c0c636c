//! Statements: the sums of an account's entries in a period, and its spending by the value of a label.
//!
//! A statement reads the history in pages, like any reader, so that it needs no more memory for a longer history and
//! every backend has it. The wall time of entries may run backwards, so all entries are read. Of more groups than a page
//! has, it keeps the first ones in the order of their values.

use std::collections::BTreeMap;

use earmark_core::{AssetName, UnixMs, check_attribute_name};

use crate::backend::{AccountPath, Backend, BackendError};
use crate::credit_lists::EntryQuery;
use crate::writes::{CreditReadError, EntryChange, EntryKind, EntryView, PAGE_MAX};

/// Groups of a page, over all assets, unless the query says otherwise: about 2 MB of text.
pub const STATEMENT_GROUPS_DEFAULT: usize = 10_000;

/// The most groups of a page, over all assets: about 30 MB, its text included, if all values have 128 bytes. Each page
/// reads the history again, so a client that wants all groups asks for pages of this size.
pub const STATEMENT_GROUPS_MAX: usize = 50_000;

/// The period of a statement, and the label that groups its spending.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatementQuery {
    /// Entries before this time make the opening balance.
    pub since: Option<UnixMs>,
    /// Entries at this time or later are left out.
    pub until: Option<UnixMs>,
    /// The name of the label.
    pub group_by: Option<String>,
    /// [`Statement::next`] of the previous page.
    pub after: Option<StatementCursor>,
    /// Groups of a page, over all assets, from 1 to [`STATEMENT_GROUPS_MAX`]. The groups of one value stay together.
    pub page_size: usize,
}

impl Default for StatementQuery {
    fn default() -> StatementQuery {
        StatementQuery { since: None, until: None, group_by: None, after: None, page_size: STATEMENT_GROUPS_DEFAULT }
    }
}

/// The position behind a page of a statement. Later pages read the history up to the same entry, so that all pages are of
/// one statement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatementCursor {
    /// The last entry of the statement.
    through: u64,
    /// The last value of the page; empty if that is the group without the label.
    value: String,
}

impl std::fmt::Display for StatementCursor {
    /// The number, and the bytes of the value in hexadecimal, so that it needs no escapes in a URL or header.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-", self.through)?;
        self.value.bytes().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl std::str::FromStr for StatementCursor {
    type Err = ();

    fn from_str(text: &str) -> Result<StatementCursor, ()> {
        let (through, hex) = text.split_once('-').ok_or(())?;
        let digits: Vec<u8> =
            hex.chars().map(|digit| digit.to_digit(16).map(|digit| digit as u8)).collect::<Option<_>>().ok_or(())?;
        let bytes: Vec<u8> = digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect();
        let value = String::from_utf8(bytes).map_err(drop)?;
        let cursor = StatementCursor { through: through.parse().map_err(drop)?, value };
        if cursor.to_string() == text { Ok(cursor) } else { Err(()) }
    }
}

impl StatementQuery {
    /// The query of a page.
    ///
    /// # Errors
    /// The field, and what is wrong with it.
    pub fn page(self, after: Option<&str>, page_size: Option<u64>) -> Result<StatementQuery, String> {
        let page_size = page_size.unwrap_or(STATEMENT_GROUPS_DEFAULT as u64);
        if page_size == 0 || page_size > STATEMENT_GROUPS_MAX as u64 {
            return Err(format!("page_size: found {page_size}, allowed are integers from 1 to {STATEMENT_GROUPS_MAX}"));
        }
        let wrong = |text: &str| format!("after: found {text:?}, allowed is next of the previous page");
        let after = after.map(|text| text.parse().map_err(|()| wrong(text))).transpose()?;
        if after.is_some() && self.group_by.is_none() {
            return Err("after: pages have groups only, so group_by is required".to_owned());
        }
        let page_size = usize::try_from(page_size).unwrap_or(STATEMENT_GROUPS_MAX);
        Ok(StatementQuery { after, page_size, ..self })
    }

    /// Checks the period and the name of the label.
    ///
    /// # Errors
    /// The field, and what is wrong with it.
    pub fn check(&self) -> Result<(), String> {
        if let (Some(since), Some(until)) = (self.since, self.until)
            && since > until
        {
            return Err(format!("since: found {}, which is after until, {}", since.get(), until.get()));
        }
        match &self.group_by {
            Some(name) => check_attribute_name(name).map_err(|what| format!("group_by: {what}")),
            None => Ok(()),
        }
    }
}

/// Why there is no statement.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StatementError {
    /// The query is wrong.
    #[error("{0}")]
    Invalid(String),
    /// The history in memory has dropped its oldest entries.
    #[error(
        "the history in memory no longer has the oldest {dropped} entries, so that a statement would be wrong; run the \
         server with --data"
    )]
    HistoryDropped {
        /// The number of dropped entries, of all accounts.
        dropped: u64,
    },
    /// The history could not be read.
    #[error(transparent)]
    Credit(#[from] CreditReadError),
}

impl From<BackendError> for StatementError {
    fn from(error: BackendError) -> StatementError {
        StatementError::Credit(error.into())
    }
}

/// The statement of an account.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Statement {
    /// The assets that the account had until the end of the period, ordered by name.
    pub assets: Vec<AssetStatement>,
    /// The position behind the groups of this page, if there are more.
    pub next: Option<StatementCursor>,
}

/// The statement of one asset. Balances are available and held credit together, so that holds do not change them:
/// `closing` is `opening + issued + received + transferred_in - spent - transferred_out - expired - retired`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AssetStatement {
    /// The asset.
    pub asset: AssetName,
    /// The balance at the start of the period.
    pub opening: i128,
    /// The movements in the period.
    pub moved: Movements,
    /// The balance at the end of the period.
    pub closing: i128,
    /// The spending of this page by value of the label, ordered by value; first that of settlements without the label.
    /// Empty without `group_by`.
    pub groups: Vec<StatementGroup>,
}

/// The movements of an asset in a period. None is negative.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Movements {
    /// Credit issued to the account.
    pub issued: i128,
    /// Credit from settlements that paid this account.
    pub received: i128,
    /// Credit from other accounts.
    pub transferred_in: i128,
    /// Credit that settlements took.
    pub spent: i128,
    /// Credit to other accounts.
    pub transferred_out: i128,
    /// Credit that expired.
    pub expired: i128,
    /// Credit retired from the account.
    pub retired: i128,
    /// The number of settlements that took credit.
    pub settlements: u64,
}

impl Movements {
    /// The change of the balance; `None` on overflow.
    fn net(&self) -> Option<i128> {
        let plus = self.issued.checked_add(self.received)?.checked_add(self.transferred_in)?;
        let minus = self.spent.checked_add(self.transferred_out)?.checked_add(self.expired)?;
        plus.checked_sub(minus)?.checked_sub(self.retired)
    }
}

/// The spending under one value of the label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatementGroup {
    /// The value; `None` for settlements without the label.
    pub value: Option<String>,
    /// The amount.
    pub spent: i128,
    /// The number of settlements.
    pub settlements: u64,
}

/// The statement of an account.
///
/// # Errors
/// When the query is wrong, or the history cannot be read or is incomplete.
pub async fn statement(
    backend: &dyn Backend,
    account: AccountPath,
    query: StatementQuery,
) -> Result<Statement, StatementError> {
    query.check().map_err(StatementError::Invalid)?;
    let through = query.after.as_ref().map_or(u64::MAX, |after| after.through);
    let mut sums = StatementSums::new(query);
    let mut after = 0;
    loop {
        let page = backend.entries(account.clone(), EntryQuery::oldest_first(after, PAGE_MAX)).await?;
        if page.dropped > 0 {
            return Err(StatementError::HistoryDropped { dropped: page.dropped });
        }
        for entry in page.entries.iter().take_while(|entry| entry.number <= through) {
            sums.add(entry)?;
        }
        match page.next {
            Some(next) if next < through => after = next,
            Some(_) | None => return sums.finish(),
        }
        tokio::task::yield_now().await;
    }
}

/// The amount and the number of settlements under one value of the label, for each asset. Most values have one asset,
/// for which a map would take half a kilobyte.
type GroupsOfValue = Vec<(AssetName, i128, u64)>;

/// The sums of a statement while entries are added, in any order.
pub struct StatementSums {
    query: StatementQuery,
    assets: BTreeMap<AssetName, AssetSums>,
    /// The groups of the page, by value and asset.
    groups: BTreeMap<Option<Box<str>>, GroupsOfValue>,
    /// The number of groups, over all values and assets.
    count: usize,
    /// The lowest value that has no room on the page.
    end: Option<Box<str>>,
    /// The number of the last entry.
    through: u64,
}

#[derive(Default)]
struct AssetSums {
    opening: i128,
    /// The change of the balance in the period.
    change: i128,
    moved: Movements,
}

impl StatementSums {
    /// No entries yet. The query is checked.
    #[must_use]
    pub const fn new(query: StatementQuery) -> StatementSums {
        StatementSums { query, assets: BTreeMap::new(), groups: BTreeMap::new(), count: 0, end: None, through: 0 }
    }

    /// Adds an entry of the account.
    ///
    /// # Errors
    /// When a sum overflows.
    pub fn add(&mut self, entry: &EntryView) -> Result<(), StatementError> {
        self.through = self.through.max(entry.number);
        if self.query.until.is_some_and(|until| entry.at >= until) {
            return Ok(());
        }
        let is_before = self.query.since.is_some_and(|since| entry.at < since);
        for change in &entry.changes {
            let sums = match self.assets.get_mut(&change.asset) {
                Some(sums) => sums,
                None => self.assets.entry(change.asset.clone()).or_default(),
            };
            let net = change.amount.checked_add(change.held).ok_or_else(overflow)?;
            let balance = if is_before { &mut sums.opening } else { &mut sums.change };
            add(balance, net)?;
            if is_before {
                continue;
            }
            let Some((spent, label)) = sums.moved.add(entry, change, net)? else { continue };
            let Some(name) = &self.query.group_by else { continue };
            let value = label.get(name);
            self.add_to_group(value, &change.asset, spent)?;
        }
        Ok(())
    }

    /// Adds a settlement to its group, if that is on the page.
    fn add_to_group(&mut self, value: Option<&str>, asset: &AssetName, spent: i128) -> Result<(), StatementError> {
        let is_before = self.query.after.as_ref().is_some_and(|after| value <= Some(after.value.as_str()));
        let is_behind = self.end.as_deref().is_some_and(|end| value >= Some(end));
        if is_before || is_behind {
            return Ok(());
        }
        let of_value = self.groups.entry(value.map(Box::from)).or_default();
        match of_value.iter_mut().find(|(found, ..)| found == asset) {
            Some((_, sum, settlements)) => {
                add(sum, spent)?;
                *settlements = settlements.saturating_add(1);
            }
            None => {
                self.count = self.count.saturating_add(1);
                of_value.reserve_exact(1);
                of_value.push((asset.clone(), spent, 1));
            }
        }
        while self.count > self.query.page_size && self.groups.len() > 1 {
            let Some((value, of_value)) = self.groups.pop_last() else { break };
            self.count = self.count.saturating_sub(of_value.len());
            self.end = value;
        }
        Ok(())
    }

    /// The statement.
    ///
    /// # Errors
    /// When the movements do not lead from the opening to the closing balance.
    pub fn finish(self) -> Result<Statement, StatementError> {
        let StatementSums { assets, groups, end, through, .. } = self;
        let last = groups.last_key_value().map(|(value, _)| value.as_deref().unwrap_or_default().to_owned());
        let next = end.and(last).map(|value| StatementCursor { through, value });
        let mut by_asset: BTreeMap<AssetName, Vec<StatementGroup>> = BTreeMap::new();
        for (value, of_value) in groups {
            for (asset, spent, settlements) in of_value {
                let value = value.as_deref().map(str::to_owned);
                by_asset.entry(asset).or_default().push(StatementGroup { value, spent, settlements });
            }
        }
        let assets = assets.into_iter().map(|(asset, sums)| {
            if sums.moved.net() != Some(sums.change) {
                let what = format!("the entries of {asset} do not add up to its balance: {:?}", sums.moved);
                return Err(BackendError::Failed(what).into());
            }
            let closing = sums.opening.checked_add(sums.change).ok_or_else(overflow)?;
            let groups = by_asset.remove(&asset).unwrap_or_default();
            Ok(AssetStatement { asset, opening: sums.opening, moved: sums.moved, closing, groups })
        });
        Ok(Statement { assets: assets.collect::<Result<_, StatementError>>()?, next })
    }
}

impl Movements {
    /// Adds one change of an entry. Returns the amount and the labels of a settlement that took credit.
    fn add<'a>(
        &mut self,
        entry: &'a EntryView,
        change: &EntryChange,
        net: i128,
    ) -> Result<Option<(i128, &'a earmark_core::SettleLabels)>, StatementError> {
        match &entry.what {
            EntryKind::Transaction { .. } => {
                let flows = change.flows;
                for (sum, amount) in [
                    (&mut self.issued, flows.issued),
                    (&mut self.retired, flows.retired),
                    (&mut self.transferred_in, flows.transferred_in),
                    (&mut self.transferred_out, flows.transferred_out),
                ] {
                    add(sum, i128::try_from(amount).map_err(|_| overflow())?)?;
                }
            }
            EntryKind::Hold(_) | EntryKind::Release(_) => {}
            EntryKind::Expire(_) => add(&mut self.expired, net.checked_neg().ok_or_else(overflow)?)?,
            EntryKind::Plan { .. } => add(&mut self.issued, net)?,
            EntryKind::Settle { paid, labels, .. } => {
                let paid = i128::from(*paid);
                // An account that is its own revenue account pays and receives the same amount.
                if net >= 0 {
                    add(&mut self.received, paid)?;
                }
                if paid > 0 && net <= 0 {
                    add(&mut self.spent, paid)?;
                    self.settlements = self.settlements.saturating_add(1);
                    return Ok(Some((paid, labels)));
                }
            }
        }
        Ok(None)
    }
}

fn add(sum: &mut i128, amount: i128) -> Result<(), StatementError> {
    *sum = sum.checked_add(amount).ok_or_else(overflow)?;
    Ok(())
}

fn overflow() -> StatementError {
    let what = format!("a sum of the statement would exceed {}; choose a shorter period", i128::MAX);
    StatementError::Invalid(what)
}

#[cfg(test)]
mod tests;
