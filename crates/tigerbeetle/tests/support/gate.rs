//! A connection to a ledger that stops a process between its requests: one chosen request, or all of them.

use std::fmt;
use std::sync::{Arc, Mutex};

use earmark_tigerbeetle::{Connect, LedgerClient, LedgerUrl, Reply, TigerBeetleOptions};
use tigerbeetle::{
    Account, AccountFilter, CreateAccountResult, CreateTransferResult, InitError, QueryFilter, Transfer,
};
use tokio::sync::watch;

/// Where the chosen request is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    BeforeItsEffect,
    AfterItsEffect,
}

/// A gate for the requests of one process.
#[derive(Clone)]
pub struct Gate {
    connect: Arc<dyn Connect>,
    /// The number of requests before the chosen one, and where it stops.
    chosen: Arc<Mutex<Option<(usize, Stop)>>>,
    is_open: watch::Sender<bool>,
    /// Whether a request waits.
    is_stopped: watch::Sender<bool>,
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Gate")
    }
}

impl Gate {
    /// An open gate before a ledger, and the options of a process behind it.
    pub fn before(options: TigerBeetleOptions) -> (Gate, TigerBeetleOptions) {
        let (is_open, _) = watch::channel(true);
        let (is_stopped, _) = watch::channel(false);
        let gate = Gate { connect: options.connect, chosen: Arc::default(), is_open, is_stopped };
        let connect = Arc::new(gate.clone());
        (gate, TigerBeetleOptions { connect, ..options })
    }

    /// Stops every request before its effect.
    pub fn close(&self) {
        self.is_open.send_replace(false);
    }

    /// Lets all requests pass.
    pub fn open(&self) {
        *self.chosen.lock().unwrap() = None;
        self.is_open.send_replace(true);
        self.is_stopped.send_replace(false);
    }

    /// Stops the request after `earlier` others, until the gate is opened.
    pub fn stop_at(&self, earlier: usize, stop: Stop) {
        *self.chosen.lock().unwrap() = Some((earlier, stop));
    }

    /// Waits until a request is stopped.
    pub async fn stopped(&self) {
        self.is_stopped.subscribe().wait_for(|is_stopped| *is_stopped).await.unwrap();
    }

    /// Where the next request is stopped, if it is the chosen one.
    fn stop(&self) -> Option<Stop> {
        let mut chosen = self.chosen.lock().unwrap();
        match chosen.as_mut()? {
            (0, stop) => {
                let stop = *stop;
                *chosen = None;
                self.is_open.send_replace(false);
                Some(stop)
            }
            (earlier, _) => {
                *earlier -= 1;
                None
            }
        }
    }

    async fn wait(&self) {
        let mut is_open = self.is_open.subscribe();
        if !*is_open.borrow_and_update() {
            self.is_stopped.send_replace(true);
            is_open.wait_for(|is_open| *is_open).await.unwrap();
        }
    }
}

impl Connect for Gate {
    fn connect(&self, url: &LedgerUrl) -> Result<Box<dyn LedgerClient>, InitError> {
        let client = Arc::from(self.connect.connect(url)?);
        Ok(Box::new(GatedClient { gate: self.clone(), client }))
    }
}

struct GatedClient {
    gate: Gate,
    client: Arc<dyn LedgerClient>,
}

impl GatedClient {
    fn pass<T: Send + 'static>(
        &self,
        request: impl FnOnce(&dyn LedgerClient) -> Reply<T> + Send + 'static,
    ) -> Reply<T> {
        let (gate, client) = (self.gate.clone(), Arc::clone(&self.client));
        let stop = gate.stop();
        Box::pin(async move {
            if stop == Some(Stop::AfterItsEffect) {
                let reply = request(&*client).await;
                gate.wait().await;
                return reply;
            }
            gate.wait().await;
            request(&*client).await
        })
    }
}

impl LedgerClient for GatedClient {
    fn create_accounts(&self, accounts: Vec<Account>) -> Reply<Vec<CreateAccountResult>> {
        self.pass(|client| client.create_accounts(accounts))
    }

    fn create_transfers(&self, transfers: Vec<Transfer>) -> Reply<Vec<CreateTransferResult>> {
        self.pass(|client| client.create_transfers(transfers))
    }

    fn look_up_accounts(&self, ids: Vec<u128>) -> Reply<Vec<Account>> {
        self.pass(|client| client.look_up_accounts(ids))
    }

    fn query_transfers(&self, filter: QueryFilter) -> Reply<Vec<Transfer>> {
        self.pass(move |client| client.query_transfers(filter))
    }

    fn account_transfers(&self, filter: AccountFilter) -> Reply<Vec<Transfer>> {
        self.pass(move |client| client.account_transfers(filter))
    }
}
