//! A store that fails or stops at one call.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use earmark_admission::{Answer, CreditCursor};
use earmark_core::{AssetName, NamespaceName, UnixMs};
use tokio::sync::Notify;

use crate::id::{GateId, OwnerId, ReservationId};
use crate::model::{AccountKey, LeaseKey, Posting, PostingState, StoredEntry, StoredRecord, VaultKey};
use crate::store::{
    Census, Change, Due, Filter, FindRecord, Funds, Gone, Reach, RecordPage, Records, Store, StoreError,
    Survey, Surveyed, Transactions,
};

/// On which side of its effect a call is hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// It had none.
    Before,
    /// It had it, and nobody hears of it.
    After,
}

/// What happens to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// It fails, and the next one does not.
    Fail,
    /// It fails, and so do all others, until the store is mended.
    Outage,
    /// It never answers, and neither does any other, until the process is woken up.
    Stop,
}

/// A store that fails or stops at one call. Every change of a list is a call of its own.
pub struct Faulty {
    inner: Arc<dyn Store>,
    fault: Mutex<Option<(u64, When, Mode)>>,
    calls: AtomicU64,
    looks_at_all: AtomicU64,
    is_crowd_seen: AtomicBool,
    at_once: AtomicU64,
    most_at_once: AtomicU64,
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
    /// A store that works, for now.
    #[must_use]
    pub fn new(inner: Arc<dyn Store>) -> Arc<Faulty> {
        Arc::new(Faulty {
            inner,
            fault: Mutex::new(None),
            calls: AtomicU64::new(0),
            looks_at_all: AtomicU64::new(0),
            is_crowd_seen: AtomicBool::new(false),
            at_once: AtomicU64::new(0),
            most_at_once: AtomicU64::new(0),
            is_down: AtomicBool::new(false),
            is_stopped: AtomicBool::new(false),
            woken: Notify::new(),
            hit: Notify::new(),
        })
    }

    /// Hits one call, counted from 1, from now on.
    pub fn plan(&self, call: u64, when: When, mode: Mode) {
        self.calls.store(0, Ordering::SeqCst);
        *self.fault.lock().unwrap_or_else(PoisonError::into_inner) = Some((call, when, mode));
    }

    /// Starts to count calls.
    pub fn count(&self) {
        self.calls.store(0, Ordering::SeqCst);
    }

    /// How many calls there were.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.calls.load(Ordering::SeqCst)
    }

    /// How often somebody asked for all that an account has, with all that leases hold of it.
    #[must_use]
    pub fn looks_at_all(&self) -> u64 {
        self.looks_at_all.load(Ordering::SeqCst)
    }

    /// Starts to see how many calls are under way at once. Each lets others come, also where a store answers at once.
    pub fn crowd(&self) {
        self.is_crowd_seen.store(true, Ordering::SeqCst);
    }

    /// The most that were.
    #[must_use]
    pub fn most_at_once(&self) -> u64 {
        self.most_at_once.load(Ordering::SeqCst)
    }

    /// The store works again, and the process goes on where it was stopped.
    pub fn mend(&self) {
        *self.fault.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.is_down.store(false, Ordering::SeqCst);
        self.is_stopped.store(false, Ordering::SeqCst);
        self.woken.notify_waiters();
    }

    /// Every call fails from now on.
    pub fn break_down(&self) {
        self.is_down.store(true, Ordering::SeqCst);
    }

    /// Waits until the process is stopped.
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

    /// The call is not made before it is let through: a store may answer at once.
    async fn through<T, F>(&self, call: impl FnOnce() -> F) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        let number = self.calls.fetch_add(1, Ordering::SeqCst) + 1;
        if self.is_crowd_seen.load(Ordering::SeqCst) {
            let at_once = self.at_once.fetch_add(1, Ordering::SeqCst) + 1;
            self.most_at_once.fetch_max(at_once, Ordering::SeqCst);
            tokio::task::yield_now().await;
            self.at_once.fetch_sub(1, Ordering::SeqCst);
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

    fn gone(&self, gone: Gone, max: usize) -> Answer<'_, Result<Vec<OwnerId>, StoreError>> {
        Box::pin(self.through(move || self.inner.gone(gone, max)))
    }

    fn orphans(&self, max: usize) -> Answer<'_, Result<Vec<ReservationId>, StoreError>> {
        Box::pin(self.through(move || self.inner.orphans(max)))
    }

    fn due(&self, due: Due, max: usize) -> Answer<'_, Result<Vec<Posting>, StoreError>> {
        Box::pin(self.through(move || self.inner.due(due, max)))
    }

    fn funds(&self, account: AccountKey, now: UnixMs) -> Answer<'_, Result<Vec<Funds>, StoreError>> {
        self.looks_at_all.fetch_add(1, Ordering::SeqCst);
        Box::pin(self.through(move || self.inner.funds(account, now)))
    }

    fn reach(
        &self,
        account: AccountKey,
        asset: AssetName,
        now: UnixMs,
    ) -> Answer<'_, Result<Reach, StoreError>> {
        Box::pin(self.through(move || self.inner.reach(account, asset, now)))
    }

    fn assets_of(&self, account: AccountKey) -> Answer<'_, Result<Vec<AssetName>, StoreError>> {
        Box::pin(self.through(move || self.inner.assets_of(account)))
    }

    fn history(
        &self,
        account: AccountKey,
        after: u64,
        max: usize,
    ) -> Answer<'_, Result<Vec<StoredEntry>, StoreError>> {
        Box::pin(self.through(move || self.inner.history(account, after, max)))
    }

    fn transactions(
        &self,
        namespace: Option<NamespaceName>,
        after: CreditCursor,
        max: usize,
    ) -> Answer<'_, Result<Transactions, StoreError>> {
        Box::pin(self.through(move || self.inner.transactions(namespace, after, max)))
    }

    fn count(&self, home: VaultKey) -> Answer<'_, Result<Census, StoreError>> {
        Box::pin(self.through(move || self.inner.count(home)))
    }

    fn clients(&self) -> Answer<'_, Result<u64, StoreError>> {
        Box::pin(self.through(move || self.inner.clients()))
    }

    fn time(&self) -> Answer<'_, Result<Option<UnixMs>, StoreError>> {
        Box::pin(self.through(move || self.inner.time()))
    }

    fn close(&self) -> Answer<'_, ()> {
        Box::pin(std::future::ready(()))
    }
}
