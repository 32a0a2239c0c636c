//! A stand-in for a TigerBeetle server, so that limits on TigerBeetle are tested on every machine: accounts and transfers
//! in memory, with the statuses of 0.17.9 in their order. Its proof is `tests/stand_in.rs`, which compares it with a
//! real server, status by status, where there is one. Balancing, closing and imported transfers are not supported,
//! because Earmark sends none.

mod exists;
mod state;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use earmark_tigerbeetle::{Connect, LedgerClient, LedgerUrl, Reply, TigerBeetleOptions};
use tigerbeetle::{
    Account, AccountFilter, CreateAccountResult, CreateTransferResult, Error, InitError, QueryFilter, Transfer,
};
use tokio::sync::watch;

pub use state::State;

/// Events in one request, and records in one reply, of a server in development mode.
const DEVELOPMENT_EVENTS_MAX: usize = 253;
/// Those of a server with the settings for production.
const PRODUCTION_EVENTS_MAX: usize = 8_189;

/// When the stand-in ends the sessions of its clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Eviction {
    /// The next request of each client has no effect.
    BeforeTheEffect,
    /// The next request of each client takes effect, and its answer is lost.
    AfterTheEffect,
}

#[derive(Clone, Debug)]
pub struct StandIn {
    state: Arc<Mutex<State>>,
    is_up: watch::Sender<bool>,
    /// Evictions so far, times two, plus one if the last one loses answers.
    evictions: Arc<AtomicU64>,
    events_max: usize,
}

impl StandIn {
    pub fn start() -> StandIn {
        let (is_up, _) = watch::channel(true);
        StandIn { state: Arc::default(), is_up, evictions: Arc::default(), events_max: DEVELOPMENT_EVENTS_MAX }
    }

    pub fn start_for_production() -> StandIn {
        StandIn { events_max: PRODUCTION_EVENTS_MAX, ..StandIn::start() }
    }

    /// Puts its clock ahead of the wall.
    pub fn put_ahead(&self, ms: u64) {
        self.state.lock().unwrap().put_ahead(ms);
    }

    /// Leaves requests without an answer until `up`.
    pub fn down(&self) {
        self.is_up.send_replace(false);
    }

    pub fn up(&self) {
        self.is_up.send_replace(true);
    }

    pub fn evict(&self, eviction: Eviction) {
        let next = (self.evictions.load(Ordering::SeqCst) / 2 + 1) * 2;
        self.evictions.store(next + u64::from(eviction == Eviction::AfterTheEffect), Ordering::SeqCst);
    }

    pub fn client(&self) -> Box<dyn LedgerClient> {
        Box::new(StandInClient { ledger: self.clone(), connected_at: self.evictions.load(Ordering::SeqCst) })
    }

    pub fn options(&self) -> TigerBeetleOptions {
        let url: LedgerUrl = "tigerbeetle://127.0.0.1:1?cluster=0".parse().unwrap();
        TigerBeetleOptions { connect: Arc::new(self.clone()), ..TigerBeetleOptions::new(url) }
    }
}

impl Connect for StandIn {
    fn connect(&self, _: &LedgerUrl) -> Result<Box<dyn LedgerClient>, InitError> {
        Ok(self.client())
    }
}

struct StandInClient {
    ledger: StandIn,
    connected_at: u64,
}

impl StandInClient {
    fn request<T: Send + 'static>(
        &self,
        events: usize,
        request: impl FnOnce(&mut State) -> T + Send + 'static,
    ) -> Reply<T> {
        let (ledger, connected_at) = (self.ledger.clone(), self.connected_at);
        Box::pin(async move {
            if events > ledger.events_max {
                return Err(Error::TooMuchData);
            }
            let mut is_up = ledger.is_up.subscribe();
            is_up.wait_for(|is_up| *is_up).await.unwrap();
            let evictions = ledger.evictions.load(Ordering::SeqCst);
            let is_evicted = evictions != connected_at;
            if is_evicted && evictions.is_multiple_of(2) {
                return Err(Error::ClientEvicted);
            }
            let reply = request(&mut ledger.state.lock().unwrap());
            // Requests of other clients may come first.
            tokio::task::yield_now().await;
            if is_evicted { Err(Error::ClientEvicted) } else { Ok(reply) }
        })
    }
}

impl LedgerClient for StandInClient {
    fn create_accounts(&self, accounts: Vec<Account>) -> Reply<Vec<CreateAccountResult>> {
        self.request(accounts.len(), move |state| state.create_accounts(&accounts))
    }

    fn create_transfers(&self, transfers: Vec<Transfer>) -> Reply<Vec<CreateTransferResult>> {
        self.request(transfers.len(), move |state| state.create_transfers(&transfers))
    }

    fn look_up_accounts(&self, ids: Vec<u128>) -> Reply<Vec<Account>> {
        self.request(ids.len(), move |state| state.look_up_accounts(&ids))
    }

    fn query_transfers(&self, filter: QueryFilter) -> Reply<Vec<Transfer>> {
        let records_max = self.ledger.events_max;
        self.request(1, move |state| state.query_transfers(&filter, records_max))
    }

    fn account_transfers(&self, filter: AccountFilter) -> Reply<Vec<Transfer>> {
        let records_max = self.ledger.events_max;
        self.request(1, move |state| state.account_transfers(&filter, records_max))
    }
}
