//! A store with an injected fault.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use earmark_admission::{AccountQuery, Answer};
use earmark_core::{AccountName, AccountStatus, AssetName, UnixMs};
use tokio::sync::Notify;

use crate::id::{GateId, OwnerId, ReservationId};
use crate::model::{
    AccountKey, LeaseKey, Posting, PostingState, Record, StoredEntry, StoredRecord, UsageKey, VaultKey,
};
use crate::saga::{abort_steps, finish_steps, prepare_steps};
use crate::store::{
    AsOf, Census, Change, DueQuery, Filter, FindRecord, Funds, HistoryQuery, RecordPage, Records, Spendable,
    StaleOwners, Store, StoreError, Survey, Surveyed, TransactionQuery, Transactions,
};

/// Whether a fault hits before or after the effect of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// The call has no effect.
    Before,
    /// The call takes effect, but its answer is lost.
    After,
}

/// The kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// This call fails.
    Fail,
    /// This call and all later ones fail until the store is repaired.
    Outage,
    /// This call and all later ones hang until the store is repaired.
    Stop,
}

/// A store with a fault at one call. Each change of a list counts as a call.
pub struct Faulty {
    inner: Arc<dyn Store>,
    /// Whether a commit is one call, or a call per step, so that a fault can hit between any two steps.
    commits_whole: bool,
    whole_commits: Mutex<Vec<u64>>,
    fault: Mutex<Option<(u64, When, Mode)>>,
    calls: AtomicU64,
    funds_reads: AtomicU64,
    measures_concurrency: AtomicBool,
    in_flight: AtomicU64,
    max_concurrency: AtomicU64,
    is_down: AtomicBool,
    is_stopped: AtomicBool,
    woken: Notify,
    hit: Notify,
}

enum Side {
    Before,
    After,
}

impl Faulty {
    /// A store without a fault that commits plans step by step.
    #[must_use]
    pub fn new(inner: Arc<dyn Store>) -> Arc<Faulty> {
        Faulty::with(inner, false)
    }

    /// A store without a fault that commits plans as the inner store does, or step by step.
    #[must_use]
    pub fn with(inner: Arc<dyn Store>, commits_whole: bool) -> Arc<Faulty> {
        Arc::new(Faulty {
            inner,
            commits_whole,
            whole_commits: Mutex::default(),
            fault: Mutex::new(None),
            calls: AtomicU64::new(0),
            funds_reads: AtomicU64::new(0),
            measures_concurrency: AtomicBool::new(false),
            in_flight: AtomicU64::new(0),
            max_concurrency: AtomicU64::new(0),
            is_down: AtomicBool::new(false),
            is_stopped: AtomicBool::new(false),
            woken: Notify::new(),
            hit: Notify::new(),
        })
    }

    /// Injects a fault at a call, counted from 1 from now on.
    pub fn inject(&self, call: u64, when: When, mode: Mode) {
        self.calls.store(0, Ordering::SeqCst);
        *self.fault.lock().unwrap_or_else(PoisonError::into_inner) = Some((call, when, mode));
    }

    /// Resets the call counter.
    pub fn reset_calls(&self) {
        self.calls.store(0, Ordering::SeqCst);
    }

    /// Calls since the last reset.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.calls.load(Ordering::SeqCst)
    }

    /// The numbers of the calls that committed a whole plan.
    #[must_use]
    pub fn whole_commits(&self) -> Vec<u64> {
        self.whole_commits.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How often the sums of an account with all its holds were read.
    #[must_use]
    pub fn funds_reads(&self) -> u64 {
        self.funds_reads.load(Ordering::SeqCst)
    }

    /// Starts to measure concurrency. Each call yields once, so that calls overlap even on a store that answers at
    /// once.
    pub fn measure_concurrency(&self) {
        self.measures_concurrency.store(true, Ordering::SeqCst);
    }

    /// The highest number of concurrent calls.
    #[must_use]
    pub fn max_concurrency(&self) -> u64 {
        self.max_concurrency.load(Ordering::SeqCst)
    }

    /// Removes the fault and wakes stopped calls.
    pub fn repair(&self) {
        *self.fault.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.is_down.store(false, Ordering::SeqCst);
        self.is_stopped.store(false, Ordering::SeqCst);
        self.woken.notify_waiters();
    }

    /// Makes every call fail from now on.
    pub fn fail_all(&self) {
        self.is_down.store(true, Ordering::SeqCst);
    }

    /// Waits until a call is stopped.
    pub async fn stopped(&self) {
        while !self.is_stopped.load(Ordering::SeqCst) {
            let hit = self.hit.notified();
            if self.is_stopped.load(Ordering::SeqCst) {
                return;
            }
            hit.await;
        }
    }

    async fn pass(&self, call: u64, side: Side) -> Result<(), StoreError> {
        let down = || Err(StoreError::Unavailable("it is gone".into()));
        let fault = *self.fault.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((hit, when, mode)) = fault
            && hit == call
            && matches!((when, &side), (When::Before, Side::Before) | (When::After, Side::After))
        {
            match mode {
                Mode::Fail => return down(),
                Mode::Outage => self.is_down.store(true, Ordering::SeqCst),
                Mode::Stop => {
                    self.is_stopped.store(true, Ordering::SeqCst);
                    self.hit.notify_waiters();
                }
            }
        }
        loop {
            let woken = self.woken.notified();
            if !self.is_stopped.load(Ordering::SeqCst) {
                break;
            }
            woken.await;
        }
        if self.is_down.load(Ordering::SeqCst) { down() } else { Ok(()) }
    }

    /// The inner call starts only after the check, because a store may act at once.
    async fn through<T, F>(&self, call: impl FnOnce() -> F) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        let number = self.calls.fetch_add(1, Ordering::SeqCst) + 1;
        if self.measures_concurrency.load(Ordering::SeqCst) {
            let in_flight = self.in_flight.fetch_add(1, Ordering::SeqCst) + 1;
            self.max_concurrency.fetch_max(in_flight, Ordering::SeqCst);
            tokio::task::yield_now().await;
            self.in_flight.fetch_sub(1, Ordering::SeqCst);
        }
        self.pass(number, Side::Before).await?;
        let answer = call().await?;
        self.pass(number, Side::After).await?;
        Ok(answer)
    }
}

impl Store for Faulty {
    fn write(&self, changes: Vec<Change>) -> Answer<'_, Result<Vec<u64>, StoreError>> {
        Box::pin(async move {
            let mut counts = Vec::new();
            for change in changes {
                counts.extend(self.through(|| self.inner.write(vec![change])).await?);
            }
            Ok(counts)
        })
    }

    fn commit(&self, record: Arc<Record>) -> Answer<'_, Result<bool, StoreError>> {
        if self.commits_whole {
            let call = self.calls.load(Ordering::SeqCst) + 1;
            self.whole_commits.lock().unwrap_or_else(PoisonError::into_inner).push(call);
            return Box::pin(self.through(move || self.inner.commit(record)));
        }
        Box::pin(async move {
            let (token, plan) = (record.token, Arc::clone(&record.plan));
            let prepare = self.write(prepare_steps(record)).await?;
            if prepare.first() != Some(&1) {
                return Ok(false);
            }
            if self.write(vec![Change::Decide(token, Arc::clone(&plan))]).await? == [1] {
                self.write(finish_steps(token, &plan)).await?;
                return Ok(true);
            }
            self.write(abort_steps(token)).await?;
            Ok(false)
        })
    }

    fn survey(&self, survey: Survey) -> Answer<'_, Result<Surveyed, StoreError>> {
        Box::pin(self.through(move || self.inner.survey(survey)))
    }

    fn entries(&self, gate: GateId) -> Answer<'_, Result<Vec<StoredEntry>, StoreError>> {
        Box::pin(self.through(move || self.inner.entries(gate)))
    }

    fn lease(&self, lease: LeaseKey) -> Answer<'_, Result<Vec<StoredEntry>, StoreError>> {
        Box::pin(self.through(move || self.inner.lease(lease)))
    }

    fn held(&self, lease: LeaseKey) -> Answer<'_, Result<Vec<(Posting, PostingState)>, StoreError>> {
        Box::pin(self.through(move || self.inner.held(lease)))
    }

    fn record(&self, find: FindRecord) -> Answer<'_, Result<Option<StoredRecord>, StoreError>> {
        Box::pin(self.through(move || self.inner.record(find)))
    }

    fn records(&self, filter: Filter, page: RecordPage) -> Answer<'_, Result<Records, StoreError>> {
        Box::pin(self.through(move || self.inner.records(filter, page)))
    }

    fn stale_owners(&self, gone: StaleOwners, max: usize) -> Answer<'_, Result<Vec<OwnerId>, StoreError>> {
        Box::pin(self.through(move || self.inner.stale_owners(gone, max)))
    }

    fn orphans(&self, max: usize) -> Answer<'_, Result<Vec<ReservationId>, StoreError>> {
        Box::pin(self.through(move || self.inner.orphans(max)))
    }

    fn due(&self, due: DueQuery, max: usize) -> Answer<'_, Result<Vec<Posting>, StoreError>> {
        Box::pin(self.through(move || self.inner.due(due, max)))
    }

    fn grants(&self, account: AccountKey) -> Answer<'_, Result<Vec<(Posting, PostingState)>, StoreError>> {
        Box::pin(self.through(move || self.inner.grants(account)))
    }

    fn plan_mark(&self, account: AccountKey) -> Answer<'_, Result<Option<(Posting, PostingState)>, StoreError>> {
        Box::pin(self.through(move || self.inner.plan_mark(account)))
    }

    fn expiring(&self, due: DueQuery, max: usize) -> Answer<'_, Result<Vec<Posting>, StoreError>> {
        Box::pin(self.through(move || self.inner.expiring(due, max)))
    }

    fn funds(&self, account: AccountKey, as_of: AsOf) -> Answer<'_, Result<Vec<Funds>, StoreError>> {
        self.funds_reads.fetch_add(1, Ordering::SeqCst);
        Box::pin(self.through(move || self.inner.funds(account, as_of)))
    }

    fn spendable(
        &self,
        account: AccountKey,
        asset: AssetName,
        as_of: AsOf,
    ) -> Answer<'_, Result<Spendable, StoreError>> {
        Box::pin(self.through(move || self.inner.spendable(account, asset, as_of)))
    }

    fn assets_of(&self, account: AccountKey) -> Answer<'_, Result<Vec<AssetName>, StoreError>> {
        Box::pin(self.through(move || self.inner.assets_of(account)))
    }

    fn accounts(
        &self,
        home: VaultKey,
        query: AccountQuery,
    ) -> Answer<'_, Result<Vec<(AccountName, AccountStatus)>, StoreError>> {
        Box::pin(self.through(move || self.inner.accounts(home, query)))
    }

    fn history(&self, account: AccountKey, query: HistoryQuery) -> Answer<'_, Result<Vec<StoredEntry>, StoreError>> {
        Box::pin(self.through(move || self.inner.history(account, query)))
    }

    fn transactions(&self, query: TransactionQuery) -> Answer<'_, Result<Transactions, StoreError>> {
        Box::pin(self.through(move || self.inner.transactions(query)))
    }

    fn census(&self, home: VaultKey) -> Answer<'_, Result<Census, StoreError>> {
        Box::pin(self.through(move || self.inner.census(home)))
    }

    fn usage(&self, keys: Vec<UsageKey>) -> Answer<'_, Result<Vec<u64>, StoreError>> {
        Box::pin(self.through(move || self.inner.usage(keys)))
    }

    fn time(&self) -> Answer<'_, Result<Option<UnixMs>, StoreError>> {
        Box::pin(self.through(move || self.inner.time()))
    }

    fn close(&self) -> Answer<'_, ()> {
        Box::pin(std::future::ready(()))
    }
}
