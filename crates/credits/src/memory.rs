//! The rows in memory: the reference implementation, used by tests.

mod change;
mod rows;

use std::sync::{Arc, Mutex, PoisonError};

use earmark_admission::{AccountQuery, Answer};
use earmark_core::{AccountName, AccountStatus, AssetName, UnixMs};

use crate::id::{GateId, OwnerId, ReservationId};
use crate::model::{
    AccountKey, LeaseKey, Posting, PostingState, Record, StoredEntry, StoredRecord, UsageKey, VaultKey,
};
use crate::store::{
    AsOf, CHANGES_MAX, Census, Change, DueQuery, Filter, FindRecord, Funds, HistoryQuery, RecordPage, Records,
    Spendable, StaleOwners, Store, StoreError, Survey, Surveyed, TransactionQuery, Transactions,
};
use rows::Rows;

/// The rows in memory. They are lost when it is dropped.
#[derive(Default)]
pub struct MemoryStore {
    rows: Mutex<Rows>,
}

impl MemoryStore {
    /// An empty store.
    #[must_use]
    pub fn new() -> MemoryStore {
        MemoryStore::default()
    }

    fn with<T>(&self, look: impl FnOnce(&mut Rows) -> T) -> T {
        look(&mut self.rows.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn answer<T: Send + 'static>(&self, look: impl FnOnce(&Rows) -> T) -> Answer<'_, Result<T, StoreError>> {
        let found = self.with(|rows| look(rows));
        Box::pin(std::future::ready(Ok(found)))
    }
}

impl Store for MemoryStore {
    fn write(&self, changes: Vec<Change>) -> Answer<'_, Result<Vec<u64>, StoreError>> {
        debug_assert!(changes.len() <= CHANGES_MAX, "a list of changes is bounded");
        let counts = self.with(|rows| changes.iter().map(|change| rows.change(change)).collect());
        Box::pin(std::future::ready(Ok(counts)))
    }

    fn commit(&self, record: Arc<Record>) -> Answer<'_, Result<bool, StoreError>> {
        let is_done = self.with(|rows| rows.commit(&record));
        Box::pin(std::future::ready(Ok(is_done)))
    }

    fn survey(&self, survey: Survey) -> Answer<'_, Result<Surveyed, StoreError>> {
        self.answer(|rows| rows.survey(&survey))
    }

    fn entries(&self, gate: GateId) -> Answer<'_, Result<Vec<StoredEntry>, StoreError>> {
        self.answer(|rows| rows.entries(gate))
    }

    fn lease(&self, lease: LeaseKey) -> Answer<'_, Result<Vec<StoredEntry>, StoreError>> {
        self.answer(|rows| rows.lease(&lease))
    }

    fn held(&self, lease: LeaseKey) -> Answer<'_, Result<Vec<(Posting, PostingState)>, StoreError>> {
        self.answer(|rows| rows.held(&lease))
    }

    fn record(&self, find: FindRecord) -> Answer<'_, Result<Option<StoredRecord>, StoreError>> {
        self.answer(|rows| rows.record(&find))
    }

    fn records(&self, filter: Filter, page: RecordPage) -> Answer<'_, Result<Records, StoreError>> {
        self.answer(|rows| rows.records(&filter, &page))
    }

    fn stale_owners(&self, gone: StaleOwners, max: usize) -> Answer<'_, Result<Vec<OwnerId>, StoreError>> {
        self.answer(|rows| rows.stale_owners(gone, max))
    }

    fn orphans(&self, max: usize) -> Answer<'_, Result<Vec<ReservationId>, StoreError>> {
        self.answer(|rows| rows.orphans(max))
    }

    fn due(&self, due: DueQuery, max: usize) -> Answer<'_, Result<Vec<Posting>, StoreError>> {
        self.answer(|rows| rows.due(&due, max))
    }

    fn grants(&self, account: AccountKey) -> Answer<'_, Result<Vec<(Posting, PostingState)>, StoreError>> {
        self.answer(|rows| rows.grants(&account))
    }

    fn plan_mark(&self, account: AccountKey) -> Answer<'_, Result<Option<(Posting, PostingState)>, StoreError>> {
        self.answer(|rows| rows.grants(&account).into_iter().find(|(posting, _)| posting.plan.is_some()))
    }

    fn expiring(&self, due: DueQuery, max: usize) -> Answer<'_, Result<Vec<Posting>, StoreError>> {
        self.answer(|rows| rows.expiring(&due, max))
    }

    fn funds(&self, account: AccountKey, as_of: AsOf) -> Answer<'_, Result<Vec<Funds>, StoreError>> {
        self.answer(|rows| rows.funds(&account, as_of))
    }

    fn spendable(
        &self,
        account: AccountKey,
        asset: AssetName,
        as_of: AsOf,
    ) -> Answer<'_, Result<Spendable, StoreError>> {
        self.answer(|rows| rows.spendable(&account, &asset, as_of))
    }

    fn assets_of(&self, account: AccountKey) -> Answer<'_, Result<Vec<AssetName>, StoreError>> {
        self.answer(|rows| rows.assets_of(&account))
    }

    fn accounts(
        &self,
        home: VaultKey,
        query: AccountQuery,
    ) -> Answer<'_, Result<Vec<(AccountName, AccountStatus)>, StoreError>> {
        self.answer(|rows| rows.accounts(&home, &query))
    }

    fn history(&self, account: AccountKey, query: HistoryQuery) -> Answer<'_, Result<Vec<StoredEntry>, StoreError>> {
        self.answer(|rows| rows.history(&account, query))
    }

    fn transactions(&self, query: TransactionQuery) -> Answer<'_, Result<Transactions, StoreError>> {
        self.answer(|rows| rows.transactions(&query))
    }

    fn census(&self, home: VaultKey) -> Answer<'_, Result<Census, StoreError>> {
        self.answer(|rows| rows.census(&home))
    }

    fn usage(&self, keys: Vec<UsageKey>) -> Answer<'_, Result<Vec<u64>, StoreError>> {
        self.answer(|rows| keys.iter().map(|key| rows.used(key)).collect())
    }

    fn time(&self) -> Answer<'_, Result<Option<UnixMs>, StoreError>> {
        self.answer(|_| None)
    }

    fn close(&self) -> Answer<'_, ()> {
        Box::pin(std::future::ready(()))
    }
}
