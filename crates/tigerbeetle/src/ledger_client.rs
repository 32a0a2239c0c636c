//! The requests to a ledger. The official client answers them; tests also answer them without a server.

use std::fmt;
use std::future::Future;
use std::pin::Pin;

use tigerbeetle::{
    Account, AccountFilter, Client, Completion, CreateAccountResult, CreateTransferResult, Error, InitError,
    QueryFilter, Transfer,
};

use crate::options::LedgerUrl;

/// The reply to a request.
pub type Reply<T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send>>;

/// A client of a ledger. A request is queued before its method returns.
pub trait LedgerClient: Send + Sync {
    /// Creates accounts. The reply has a result for each.
    fn create_accounts(&self, accounts: Vec<Account>) -> Reply<Vec<CreateAccountResult>>;

    /// Creates transfers. The reply has a result for each.
    fn create_transfers(&self, transfers: Vec<Transfer>) -> Reply<Vec<CreateTransferResult>>;

    /// Reads accounts by id. Missing ones are left out.
    fn look_up_accounts(&self, ids: Vec<u128>) -> Reply<Vec<Account>>;

    /// Reads transfers by their fields.
    fn query_transfers(&self, filter: QueryFilter) -> Reply<Vec<Transfer>>;

    /// Reads transfers of one account.
    fn account_transfers(&self, filter: AccountFilter) -> Reply<Vec<Transfer>>;
}

/// Creates clients of a ledger.
pub trait Connect: fmt::Debug + Send + Sync {
    /// Creates a client.
    ///
    /// # Errors
    /// When the client refuses the address, or lacks resources.
    fn connect(&self, url: &LedgerUrl) -> Result<Box<dyn LedgerClient>, InitError>;
}

/// Creates clients of the official crate.
#[derive(Debug)]
pub(crate) struct Official;

impl Connect for Official {
    fn connect(&self, url: &LedgerUrl) -> Result<Box<dyn LedgerClient>, InitError> {
        Ok(Box::new(Client::new(url.cluster, &url.addresses())?))
    }
}

impl LedgerClient for Client {
    fn create_accounts(&self, accounts: Vec<Account>) -> Reply<Vec<CreateAccountResult>> {
        let results = Vec::with_capacity(accounts.len());
        let created = self.create_accounts_reusable(Completion::new(), accounts, results);
        Box::pin(async { created.await.map(|(_, _, results)| results) })
    }

    fn create_transfers(&self, transfers: Vec<Transfer>) -> Reply<Vec<CreateTransferResult>> {
        let results = Vec::with_capacity(transfers.len());
        let created = self.create_transfers_reusable(Completion::new(), transfers, results);
        Box::pin(async { created.await.map(|(_, _, results)| results) })
    }

    fn look_up_accounts(&self, ids: Vec<u128>) -> Reply<Vec<Account>> {
        Box::pin(self.lookup_accounts(&ids))
    }

    fn query_transfers(&self, filter: QueryFilter) -> Reply<Vec<Transfer>> {
        Box::pin(Client::query_transfers(self, filter))
    }

    fn account_transfers(&self, filter: AccountFilter) -> Reply<Vec<Transfer>> {
        Box::pin(self.get_account_transfers(filter))
    }
}
