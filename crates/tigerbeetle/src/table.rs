//! The limits of the registry, as they are known in the ledger.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

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
    looked: Mutex<Looked>,
    /// Since when there is nothing of it any more.
    gone: Mutex<Option<Instant>>,
    /// How many denials in a row.
    denials: AtomicU32,
}

/// When somebody looked, among all who did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Turn(u64);

impl Turn {
    pub(crate) fn next(self) -> Turn {
        Turn(self.0.saturating_add(1))
    }
}

/// What was seen, when, and which revision the registry had just before.
#[derive(Clone, Copy, Debug, Default)]
struct Looked {
    turn: Turn,
    revision: u64,
    seen: Option<Seen>,
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
            looked: Mutex::default(),
            gone: Mutex::default(),
            denials: AtomicU32::new(0),
        }
    }

    /// What was last seen of it; nothing if it was never looked for, or was not there.
    pub(crate) fn seen(&self) -> Option<Seen> {
        lock(&self.looked).seen
    }

    /// This was seen of it, after the registry was found to have it at this revision. Who looked before others did and
    /// tells of it after them has nothing new to tell.
    pub(crate) fn see(&self, turn: Turn, revision: u64, seen: Option<Seen>) {
        let mut looked = lock(&self.looked);
        if looked.turn <= turn {
            *looked = Looked { turn, revision, seen };
        }
    }

    /// It is not what it was taken for, by whoever looked until now.
    pub(crate) fn doubt(&self, turn: Turn) {
        self.see(turn, 0, None);
    }

    /// Notes whether there is anything of it; for how long there has been nothing.
    pub(crate) fn gone_for(&self, is_gone: bool) -> Duration {
        let mut gone = lock(&self.gone);
        *gone = gone.or_else(|| Some(Instant::now())).filter(|_| is_gone);
        gone.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// Whether reserves may be sent to the ledger without another look at the limit. One look is due after each
    /// change of the registry, wherever it was made.
    pub(crate) fn is_open(&self, info: &LimitInfo) -> bool {
        let capacity = target(Some(info));
        let Looked { revision, seen, .. } = *lock(&self.looked);
        revision == info.revision && seen.is_some_and(|seen| (1..=capacity).contains(&seen.in_force))
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

    /// Forgets limits. Of a lease that held them their names are not known any more, as in a process that has just started.
    pub(crate) fn forget(&self, is_gone: impl Fn(&Cell) -> bool) {
        let gone: Vec<Arc<Cell>> = self.all().into_iter().filter(|cell| is_gone(cell)).collect();
        if gone.is_empty() {
            return;
        }
        let mut cells = self.cells.write().unwrap_or_else(PoisonError::into_inner);
        for cell in gone {
            cells.by_account.remove(&cell.accounts.limit);
            if let Some(of_namespace) = cells.by_name.get_mut(&cell.namespace) {
                of_namespace.remove(&cell.key);
                if of_namespace.is_empty() {
                    cells.by_name.remove(&cell.namespace);
                }
            }
        }
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
            let seen = in_force.map(|in_force| Seen { in_force, ..Seen::default() });
            cell.see(Turn::default(), revision, seen);
            assert_eq!(cell.is_open(&info(LimitStatus::Active)), is_open, "{revision} {in_force:?}");
        }
    }

    /// Of two looks at a limit the first could be told last. A limit that was looked at before it was funded was taken
    /// for one that is gone, and usage beyond what was reserved of it was dropped and not recorded as debt.
    #[test]
    fn an_older_look_does_not_undo_a_newer_one() {
        let (namespace, key) = name("rpm");
        let cell = Table::default().cell(&namespace, &key);
        let first = Turn::default().next();
        let second = first.next();
        let seen = |in_force| Some(Seen { in_force, ..Seen::default() });
        cell.see(second, 3, seen(5));
        cell.see(first, 2, seen(0));
        assert!(cell.is_open(&info(LimitStatus::Active)));
        cell.see(first, 2, None);
        assert_eq!(cell.seen(), seen(5));
        cell.see(second.next(), 3, seen(4));
        assert_eq!(cell.seen(), seen(4));
    }

    /// Limits that were deleted stayed in memory, and were looked at in turn with the others, for ever.
    #[test]
    fn what_is_gone_is_found_neither_by_its_name_nor_by_its_account() {
        let table = Table::default();
        let cells = ["rpm", "tpm"].map(|text| {
            let (namespace, key) = name(text);
            table.cell(&namespace, &key)
        });
        table.forget(|cell| cell.key.as_str() == "rpm");
        assert_eq!(table.all().len(), 1);
        assert_eq!(table.key_of(cells[0].accounts.limit), None);
        assert_eq!(table.key_of(cells[1].accounts.limit), Some(cells[1].key.clone()));
        let (namespace, key) = name("rpm");
        assert!(!Arc::ptr_eq(&table.cell(&namespace, &key), &cells[0]));
        table.forget(|_| true);
        assert!(table.cells.read().unwrap().by_name.is_empty());
        assert_eq!(cells[0].gone_for(false), Duration::ZERO);
        cells[0].gone_for(true);
        std::thread::sleep(Duration::from_millis(2));
        assert!(cells[0].gone_for(true) >= Duration::from_millis(2));
        assert_eq!(cells[0].gone_for(false), Duration::ZERO);
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
