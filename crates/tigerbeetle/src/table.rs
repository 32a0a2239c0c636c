//! The limits of the registry, as they are known in the ledger.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Instant;

use earmark_core::{LimitInfo, LimitKey, LimitStatus, NamespaceName};
use tigerbeetle::Account;

use crate::chart::{LimitAccounts, is_ours};
use crate::clock::lock;

/// Every backoff has reached its maximum long before; more denials are not counted.
const DENIALS_MAX: u32 = 64;

/// One limit, and what was last seen of its accounts.
#[derive(Debug)]
pub(crate) struct Cell {
    pub(crate) namespace: NamespaceName,
    pub(crate) key: LimitKey,
    pub(crate) accounts: LimitAccounts,
    /// One at a time brings it in line; who waited for the one before need not do it again.
    pub(crate) driving: tokio::sync::Mutex<Option<Instant>>,
    looked: Mutex<Option<Looked>>,
    /// How many denials in a row.
    denials: AtomicU32,
}

/// What was seen, and which revision the registry had just before.
#[derive(Clone, Copy, Debug)]
struct Looked {
    revision: u64,
    seen: Seen,
}

/// What the ledger has of a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    /// The capacity in force.
    pub(crate) in_force: u64,
    pub(crate) reserved: u64,
    pub(crate) debt: u128,
}

impl Seen {
    /// What the two accounts of a limit say; none if either is missing, or is not one of ours: whoever then makes it is
    /// told so.
    pub(crate) fn read(accounts: &LimitAccounts, found: &[Account]) -> Option<Seen> {
        let account = |ours: Account| found.iter().find(|account| is_ours(account, &ours));
        let [limit, debt] = accounts.records();
        let (limit, debt) = (account(limit)?, account(debt)?);
        let small = |amount: u128| u64::try_from(amount).unwrap_or(u64::MAX);
        Some(Seen {
            in_force: small(limit.credits_posted.saturating_sub(limit.debits_posted)),
            reserved: small(limit.debits_pending),
            debt: debt.debits_posted.saturating_sub(debt.credits_posted),
        })
    }

    pub(crate) fn available(&self) -> u64 {
        self.in_force.saturating_sub(self.reserved)
    }
}

/// What the registry wants a limit to have: nothing once it is deleted, or on its way there.
pub(crate) fn target(info: Option<&LimitInfo>) -> u64 {
    match info.map(|info| (info.status, info.definition.capacity)) {
        Some((LimitStatus::Active | LimitStatus::Decreasing { to: 1.. }, capacity)) => capacity,
        Some((LimitStatus::Decreasing { to: 0 } | LimitStatus::Deleted, _)) | None => 0,
    }
}

impl Cell {
    fn new(namespace: NamespaceName, key: LimitKey) -> Cell {
        Cell {
            accounts: LimitAccounts::of(&namespace, &key),
            namespace,
            key,
            driving: tokio::sync::Mutex::new(None),
            looked: Mutex::new(None),
            denials: AtomicU32::new(0),
        }
    }

    /// What was last seen of it; nothing if it was never looked for, or was not there.
    pub(crate) fn seen(&self) -> Option<Seen> {
        lock(&self.looked).map(|looked| looked.seen)
    }

    /// This was seen of it, after the registry was found to have it at this revision.
    pub(crate) fn see(&self, revision: u64, seen: Option<Seen>) {
        *lock(&self.looked) = seen.map(|seen| Looked { revision, seen });
    }

    /// It is not what it was taken for.
    pub(crate) fn doubt(&self) {
        *lock(&self.looked) = None;
    }

    /// Whether reserves may be sent to the ledger without another look at the limit. One look is due after each
    /// change of the registry, wherever it was made.
    pub(crate) fn is_open(&self, info: &LimitInfo) -> bool {
        let capacity = target(Some(info));
        lock(&self.looked).is_some_and(|Looked { revision, seen }| {
            revision == info.revision && seen.in_force > 0 && seen.in_force <= capacity
        })
    }

    /// Counts a denial; how many there were in a row before.
    pub(crate) fn deny(&self) -> u32 {
        let count = |denials: u32| Some(denials.saturating_add(1).min(DENIALS_MAX));
        self.denials.fetch_update(Ordering::Relaxed, Ordering::Relaxed, count).unwrap_or_default()
    }

    pub(crate) fn allow(&self) {
        self.denials.store(0, Ordering::Relaxed);
    }
}

/// All limits that this process has heard of.
#[derive(Debug, Default)]
pub(crate) struct Table {
    cells: RwLock<Cells>,
}

#[derive(Debug, Default)]
struct Cells {
    by_name: HashMap<NamespaceName, HashMap<LimitKey, Arc<Cell>>>,
    by_account: HashMap<u128, Arc<Cell>>,
}

impl Table {
    /// The limit of this name, in the registry or not.
    pub(crate) fn cell(&self, namespace: &NamespaceName, key: &LimitKey) -> Arc<Cell> {
        if let Some(cell) = self.find(namespace, key) {
            return cell;
        }
        let mut cells = self.cells.write().unwrap_or_else(PoisonError::into_inner);
        let Cells { by_name, by_account } = &mut *cells;
        let of_namespace = by_name.entry(namespace.clone()).or_default();
        let cell = of_namespace.entry(key.clone()).or_insert_with(|| {
            let cell = Arc::new(Cell::new(namespace.clone(), key.clone()));
            by_account.insert(cell.accounts.limit, Arc::clone(&cell));
            cell
        });
        Arc::clone(cell)
    }

    fn find(&self, namespace: &NamespaceName, key: &LimitKey) -> Option<Arc<Cell>> {
        let cells = self.cells.read().unwrap_or_else(PoisonError::into_inner);
        cells.by_name.get(namespace)?.get(key).cloned()
    }

    /// The name of a limit by its account.
    pub(crate) fn key_of(&self, account: u128) -> Option<LimitKey> {
        let cells = self.cells.read().unwrap_or_else(PoisonError::into_inner);
        cells.by_account.get(&account).map(|cell| cell.key.clone())
    }

    pub(crate) fn all(&self) -> Vec<Arc<Cell>> {
        let cells = self.cells.read().unwrap_or_else(PoisonError::into_inner);
        cells.by_account.values().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use earmark_core::{Definition, Kind, LimitId, Overage};

    fn name(text: &str) -> (NamespaceName, LimitKey) {
        ("default".parse().unwrap(), text.parse().unwrap())
    }

    #[test]
    fn a_limit_has_one_cell_and_is_found_by_its_account() {
        let table = Table::default();
        let (namespace, key) = name("rpm");
        let cell = table.cell(&namespace, &key);
        assert!(Arc::ptr_eq(&cell, &table.cell(&namespace, &key)));
        assert_eq!(table.key_of(cell.accounts.limit), Some(key));
        assert_eq!(table.key_of(cell.accounts.debt), None);
        assert_eq!(table.all().len(), 1);
    }

    fn info(status: LimitStatus) -> LimitInfo {
        let definition = Definition {
            key: name("rpm").1,
            kind: Kind::Rolling { window_seconds: 1 },
            capacity: 5,
            unit: String::new(),
            description: String::new(),
            overage: Overage::Debt,
        };
        LimitInfo { id: LimitId(0), definition, status, revision: 3 }
    }

    #[test]
    fn a_limit_is_open_once_it_was_seen_with_no_more_than_it_is_to_have() {
        let table = Table::default();
        let (namespace, key) = name("rpm");
        let cell = table.cell(&namespace, &key);
        for (revision, in_force, is_open) in [
            (3, None, false),
            (3, Some(0), false),
            (3, Some(4), true),
            (3, Some(5), true),
            (3, Some(6), false),
            (2, Some(5), false),
        ] {
            cell.see(revision, in_force.map(|in_force| Seen { in_force, ..Seen::default() }));
            assert_eq!(cell.is_open(&info(LimitStatus::Active)), is_open, "{revision} {in_force:?}");
        }
    }

    #[test]
    fn what_is_in_force_is_what_the_account_has() {
        let accounts = LimitAccounts { limit: 1, debt: 2 };
        let [limit, debt] = accounts.records();
        let limit = Account { credits_posted: 50, debits_posted: 20, debits_pending: 7, ..limit };
        let debt = Account { credits_posted: 1, debits_posted: 4, ..debt };
        let seen = Seen::read(&accounts, &[debt, limit]).unwrap();
        assert_eq!(seen, Seen { in_force: 30, reserved: 7, debt: 3 });
        assert_eq!(seen.available(), 23);
        assert_eq!(Seen::read(&accounts, &[limit]), None);
    }

    /// The put of a limit failed, for an account of its id was somebody else's; but the account for its debt was made
    /// along with that. The next look found both and took them for its own, and a limit was in force on an account that
    /// can be overdrawn.
    #[test]
    fn an_account_that_is_not_ours_is_not_seen() {
        let accounts = LimitAccounts { limit: 1, debt: 2 };
        let [limit, debt] = accounts.records();
        assert_eq!(Seen::read(&accounts, &[limit, debt]), Some(Seen::default()));
        let flags = debt.flags;
        for foreign in [
            Account { flags, ..limit },
            Account { ledger: 7, ..limit },
            Account { code: 7, ..limit },
            Account { user_data_64: 7, ..limit },
        ] {
            assert_eq!(Seen::read(&accounts, &[foreign, debt]), None, "{foreign:?}");
        }
    }

    #[test]
    fn a_limit_that_goes_away_is_to_have_nothing() {
        assert_eq!(target(None), 0);
        assert_eq!(target(Some(&info(LimitStatus::Active))), 5);
        assert_eq!(target(Some(&info(LimitStatus::Decreasing { to: 5 }))), 5);
        assert_eq!(target(Some(&info(LimitStatus::Decreasing { to: 0 }))), 0);
        assert_eq!(target(Some(&info(LimitStatus::Deleted))), 0);
    }
}
