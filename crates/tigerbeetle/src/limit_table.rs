//! The limits known to this process, with the totals last read from the ledger.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use earmark_core::{LimitInfo, LimitStatus};
use tigerbeetle::Account;

use crate::clock::lock;
use crate::schema::{LimitAccounts, LimitName, is_ours};

/// Maximum counted denials in a row. Every backoff reaches its maximum earlier.
const DENIALS_MAX: u32 = 64;

/// A limit and the totals last read from its accounts.
#[derive(Debug)]
pub(crate) struct TrackedLimit {
    pub(crate) name: LimitName,
    pub(crate) accounts: LimitAccounts,
    /// Held by the task that reconciles the limit; holds the start time of the last reconciliation.
    pub(crate) reconciling: tokio::sync::Mutex<Option<Instant>>,
    lookup: Mutex<Lookup>,
    /// Since when the limit is neither in the registry nor in the ledger.
    gone: Mutex<Option<Instant>>,
    /// Denials in a row.
    denials: AtomicU32,
}

/// Order of account lookups within the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LookupNumber(u64);

impl LookupNumber {
    pub(crate) fn next(self) -> LookupNumber {
        LookupNumber(self.0.saturating_add(1))
    }
}

/// Totals with their lookup number and the registry revision read before them.
#[derive(Clone, Copy, Debug, Default)]
struct Lookup {
    number: LookupNumber,
    revision: u64,
    totals: Option<LimitTotals>,
}

/// Totals of a limit in the ledger.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LimitTotals {
    pub(crate) in_force: u128,
    pub(crate) reserved: u64,
    pub(crate) debt: u128,
}

impl LimitTotals {
    /// Totals from the two accounts; `None` if one is missing or is not Earmark's. Creating the accounts then reports
    /// the reason.
    pub(crate) fn read(accounts: &LimitAccounts, found: &[Account]) -> Option<LimitTotals> {
        let account = |ours: Account| found.iter().find(|account| is_ours(account, &ours));
        let [limit, debt] = accounts.records();
        let (limit, debt) = (account(limit)?, account(debt)?);
        Some(LimitTotals {
            in_force: limit.credits_posted.saturating_sub(limit.debits_posted),
            reserved: u64::try_from(limit.debits_pending).unwrap_or(u64::MAX),
            debt: debt.debits_posted.saturating_sub(debt.credits_posted),
        })
    }

    pub(crate) fn available(&self) -> u128 {
        self.in_force.saturating_sub(u128::from(self.reserved))
    }
}

/// The capacity in force of a limit that counts and never denies: more than 2^32 reservations of the largest amount.
/// The accounts of 2^32 such limits can be funded before the sums of the operator account overflow.
pub(crate) const UNBOUNDED: u128 = 1 << 96;

/// The capacity that the registry demands: 0 for a limit that is deleted or being deleted.
pub(crate) fn target(info: Option<&LimitInfo>) -> u128 {
    let Some(info) = info else { return 0 };
    match info.status {
        LimitStatus::Active | LimitStatus::Decreasing { to: 1.. } if !info.definition.enforce => UNBOUNDED,
        LimitStatus::Active | LimitStatus::Decreasing { to: 1.. } => u128::from(info.definition.capacity),
        LimitStatus::Decreasing { to: 0 } | LimitStatus::Deleted => 0,
    }
}

impl TrackedLimit {
    fn new(name: LimitName) -> TrackedLimit {
        TrackedLimit {
            accounts: LimitAccounts::of(&name),
            name,
            reconciling: tokio::sync::Mutex::new(None),
            lookup: Mutex::default(),
            gone: Mutex::default(),
            denials: AtomicU32::new(0),
        }
    }

    /// The last totals; `None` if never read or not found.
    pub(crate) fn totals(&self) -> Option<LimitTotals> {
        lock(&self.lookup).totals
    }

    /// Stores totals. Results of an older lookup that arrive late are dropped.
    pub(crate) fn store_totals(&self, number: LookupNumber, revision: u64, totals: Option<LimitTotals>) {
        let mut lookup = lock(&self.lookup);
        if lookup.number <= number {
            *lookup = Lookup { number, revision, totals };
        }
    }

    /// Discards the totals, so that the limit is read again.
    pub(crate) fn invalidate(&self, number: LookupNumber) {
        self.store_totals(number, 0, None);
    }

    /// Updates whether the limit is gone; returns for how long it has been.
    pub(crate) fn gone_for(&self, is_gone: bool) -> Duration {
        let mut gone = lock(&self.gone);
        *gone = gone.or_else(|| Some(Instant::now())).filter(|_| is_gone);
        gone.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// Whether reserves can be sent without reading the limit first. Every registry change requires one read. A limit
    /// that never denies must have been funded without bound.
    pub(crate) fn is_open(&self, info: &LimitInfo) -> bool {
        let capacity = target(Some(info));
        let least = if info.definition.enforce { 1 } else { capacity };
        let Lookup { revision, totals, .. } = *lock(&self.lookup);
        revision == info.revision && totals.is_some_and(|totals| (least..=capacity).contains(&totals.in_force))
    }

    /// Counts a denial; returns the number of denials in a row before it.
    pub(crate) fn count_denial(&self) -> u32 {
        let count = |denials: u32| Some(denials.saturating_add(1).min(DENIALS_MAX));
        self.denials.fetch_update(Ordering::Relaxed, Ordering::Relaxed, count).unwrap_or_default()
    }

    pub(crate) fn reset_denials(&self) {
        self.denials.store(0, Ordering::Relaxed);
    }
}

/// The limits that this process knows, with their last totals.
#[derive(Debug, Default)]
pub(crate) struct LimitTable {
    /// Limits of the registry, and deleted ones for a while.
    defined: RwLock<LimitIndex>,
    derived: RwLock<DerivedLimits>,
}

/// Limits by name and by account.
#[derive(Debug, Default)]
struct LimitIndex {
    by_name: HashMap<LimitName, Arc<TrackedLimit>>,
    by_account: HashMap<u128, Arc<TrackedLimit>>,
}

/// Derived limits per generation of the cache. Two generations are kept, about 100 MB. A limit that was evicted is read
/// from the ledger before its next reserve.
const DERIVED_MAX: usize = 1 << 17;

/// A bounded cache of derived limits. They are in no registry, so nothing sweeps them.
#[derive(Debug, Default)]
struct DerivedLimits {
    young: LimitIndex,
    old: LimitIndex,
}

impl LimitIndex {
    fn insert(&mut self, tracked: &Arc<TrackedLimit>) {
        self.by_account.insert(tracked.accounts.limit, Arc::clone(tracked));
        self.by_name.insert(tracked.name.clone(), Arc::clone(tracked));
    }

    fn remove(&mut self, name: &LimitName) -> Option<Arc<TrackedLimit>> {
        let tracked = self.by_name.remove(name)?;
        self.by_account.remove(&tracked.accounts.limit);
        Some(tracked)
    }
}

impl DerivedLimits {
    /// The limit with this name, as one of the young generation.
    fn limit(&mut self, name: &LimitName, generation_max: usize) -> Arc<TrackedLimit> {
        if let Some(tracked) = self.young.by_name.get(name) {
            return Arc::clone(tracked);
        }
        let tracked = self.old.remove(name).unwrap_or_else(|| Arc::new(TrackedLimit::new(name.clone())));
        if self.young.by_name.len() >= generation_max {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(&tracked);
        tracked
    }

    fn remove(&mut self, name: &LimitName) -> Option<Arc<TrackedLimit>> {
        self.young.remove(name).or_else(|| self.old.remove(name))
    }
}

fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

fn write<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}

impl LimitTable {
    /// The limit with this name. A missing entry is created: in the table if the limit was put, in the bounded cache if it
    /// is derived from a template or unknown.
    pub(crate) fn limit(&self, name: &LimitName, info: Option<&LimitInfo>) -> Arc<TrackedLimit> {
        if let Some(tracked) = read(&self.defined).by_name.get(name) {
            return Arc::clone(tracked);
        }
        if info.is_none_or(|info| info.template.is_some()) {
            if let Some(tracked) = read(&self.derived).young.by_name.get(name) {
                return Arc::clone(tracked);
            }
            return write(&self.derived).limit(name, DERIVED_MAX);
        }
        let mut defined = write(&self.defined);
        if let Some(tracked) = defined.by_name.get(name) {
            return Arc::clone(tracked);
        }
        let derived = write(&self.derived).remove(name);
        let tracked = derived.unwrap_or_else(|| Arc::new(TrackedLimit::new(name.clone())));
        defined.insert(&tracked);
        tracked
    }

    /// The name of a limit by its account.
    pub(crate) fn name_of(&self, account: u128) -> Option<LimitName> {
        let name = |index: &LimitIndex| index.by_account.get(&account).map(|tracked| tracked.name.clone());
        let defined = name(&read(&self.defined));
        let derived = || {
            let derived = read(&self.derived);
            name(&derived.young).or_else(|| name(&derived.old))
        };
        defined.or_else(derived)
    }

    /// Drops limits. Leases that hold them then show accounts without names, as after a restart.
    pub(crate) fn forget(&self, is_gone: impl Fn(&TrackedLimit) -> bool) {
        let gone: Vec<Arc<TrackedLimit>> = self.all().into_iter().filter(|tracked| is_gone(tracked)).collect();
        if gone.is_empty() {
            return;
        }
        let mut defined = write(&self.defined);
        for tracked in gone {
            defined.remove(&tracked.name);
        }
    }

    /// All limits that were put.
    pub(crate) fn all(&self) -> Vec<Arc<TrackedLimit>> {
        read(&self.defined).by_account.values().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use earmark_core::{Definition, Kind, LimitKey};

    fn name(text: &str) -> LimitName {
        LimitName::in_default(text)
    }

    #[test]
    fn a_limit_has_one_cell_and_is_found_by_its_account() {
        let table = LimitTable::default();
        let rpm = name("rpm");
        let tracked = table.limit(&rpm, Some(&info(LimitStatus::Active)));
        assert!(Arc::ptr_eq(&tracked, &table.limit(&rpm, None)));
        assert_eq!(table.name_of(tracked.accounts.limit), Some(rpm));
        assert_eq!(table.name_of(tracked.accounts.debt), None);
        assert_eq!(table.all().len(), 1);
    }

    fn info(status: LimitStatus) -> LimitInfo {
        let definition = Definition::new(name("rpm").key, Kind::Rolling { window_seconds: 1 }, 5);
        LimitInfo { capacity: definition.capacity, definition, status, revision: 3, template: None, pause: None }
    }

    #[test]
    fn a_limit_is_open_once_it_was_seen_with_no_more_than_it_is_to_have() {
        let table = LimitTable::default();
        let tracked = table.limit(&name("rpm"), None);
        for (revision, in_force, is_open) in [
            (3, None, false),
            (3, Some(0), false),
            (3, Some(4), true),
            (3, Some(5), true),
            (3, Some(6), false),
            (2, Some(5), false),
        ] {
            let totals = in_force.map(|in_force| LimitTotals { in_force, ..LimitTotals::default() });
            tracked.store_totals(LookupNumber::default(), revision, totals);
            assert_eq!(tracked.is_open(&info(LimitStatus::Active)), is_open, "{revision} {in_force:?}");
        }
    }

    /// Regression: the older of two lookups could be stored last. A limit read before it was funded then looked
    /// deleted, and overage was dropped instead of recorded as debt.
    #[test]
    fn an_older_look_does_not_undo_a_newer_one() {
        let tracked = LimitTable::default().limit(&name("rpm"), None);
        let first = LookupNumber::default().next();
        let second = first.next();
        let totals = |in_force| Some(LimitTotals { in_force, ..LimitTotals::default() });
        tracked.store_totals(second, 3, totals(5));
        tracked.store_totals(first, 2, totals(0));
        assert!(tracked.is_open(&info(LimitStatus::Active)));
        tracked.store_totals(first, 2, None);
        assert_eq!(tracked.totals(), totals(5));
        tracked.store_totals(second.next(), 3, totals(4));
        assert_eq!(tracked.totals(), totals(4));
    }

    /// Regression: deleted limits stayed in memory and were polled for ever.
    #[test]
    fn what_is_gone_is_found_neither_by_its_name_nor_by_its_account() {
        let table = LimitTable::default();
        let tracked_limits = ["rpm", "tpm"].map(|text| table.limit(&name(text), Some(&info(LimitStatus::Active))));
        table.forget(|tracked| tracked.name == name("rpm"));
        assert_eq!(table.all().len(), 1);
        assert_eq!(table.name_of(tracked_limits[0].accounts.limit), None);
        assert_eq!(table.name_of(tracked_limits[1].accounts.limit), Some(name("tpm")));
        assert!(!Arc::ptr_eq(&table.limit(&name("rpm"), None), &tracked_limits[0]));
        table.forget(|_| true);
        assert!(table.defined.read().unwrap().by_name.is_empty());
        assert_eq!(tracked_limits[0].gone_for(false), Duration::ZERO);
        tracked_limits[0].gone_for(true);
        std::thread::sleep(Duration::from_millis(2));
        assert!(tracked_limits[0].gone_for(true) >= Duration::from_millis(2));
        assert_eq!(tracked_limits[0].gone_for(false), Duration::ZERO);
    }

    /// Millions of derived keys pass through a process; it remembers the ones used last.
    #[test]
    fn derived_limits_are_bounded_and_swept_by_nobody() {
        let table = LimitTable::default();
        let derived =
            LimitInfo { template: Some(LimitKey::pattern("{tenant}:rpm").unwrap()), ..info(LimitStatus::Active) };
        let first = table.limit(&name("a:rpm"), Some(&derived));
        assert!(table.all().is_empty());
        assert_eq!(table.name_of(first.accounts.limit), Some(name("a:rpm")));
        let mut cache = DerivedLimits::default();
        for number in 0..10 {
            cache.limit(&name("a:rpm"), 3);
            cache.limit(&name(&format!("{number}:rpm")), 3);
        }
        assert!(cache.young.by_name.len() + cache.old.by_name.len() <= 6);
        assert_eq!(cache.young.by_name.len(), cache.young.by_account.len());
        assert!(cache.remove(&name("a:rpm")).is_some());
        // An override takes the cell along.
        assert!(Arc::ptr_eq(&table.limit(&name("a:rpm"), Some(&info(LimitStatus::Active))), &first));
        assert_eq!(table.all().len(), 1);
    }

    #[test]
    fn what_is_in_force_is_what_the_account_has() {
        let accounts = LimitAccounts { limit: 1, debt: 2 };
        let [limit, debt] = accounts.records();
        let limit = Account { credits_posted: 50, debits_posted: 20, debits_pending: 7, ..limit };
        let debt = Account { credits_posted: 1, debits_posted: 4, ..debt };
        let totals = LimitTotals::read(&accounts, &[debt, limit]).unwrap();
        assert_eq!(totals, LimitTotals { in_force: 30, reserved: 7, debt: 3 });
        assert_eq!(totals.available(), 23);
        assert_eq!(LimitTotals::read(&accounts, &[limit]), None);
    }

    /// Regression: a put failed because an account with the limit's id belonged to another application, but the debt
    /// account was created. The next lookup found both and put the limit in force on an account that can be overdrawn.
    #[test]
    fn an_account_that_is_not_ours_is_not_seen() {
        let accounts = LimitAccounts { limit: 1, debt: 2 };
        let [limit, debt] = accounts.records();
        assert_eq!(LimitTotals::read(&accounts, &[limit, debt]), Some(LimitTotals::default()));
        let flags = debt.flags;
        for foreign in [
            Account { flags, ..limit },
            Account { ledger: 7, ..limit },
            Account { code: 7, ..limit },
            Account { user_data_64: 7, ..limit },
        ] {
            assert_eq!(LimitTotals::read(&accounts, &[foreign, debt]), None, "{foreign:?}");
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
