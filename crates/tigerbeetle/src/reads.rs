//! Requests other than creating transfers. Each request type names its reply, so that a reply cannot belong to another
//! request.

use std::future::Future;
use std::pin::Pin;

use earmark_admission::{BackendError, BatchTarget};
use tigerbeetle::{
    Account, AccountFilter, AccountFilterFlags, CreateAccountResult, CreateTransferResult, Error, QueryFilter,
    QueryFilterFlags, Transfer,
};
use tokio::sync::oneshot;

use crate::clock::LedgerClock;
use crate::ledger_client::{LedgerClient, Reply};
use crate::schema::{Code, LEDGER};
use crate::session::{Session, SessionError};

/// Transfers on one page of a lease. A lease that was not extended fits: its anchor, its end, and for each of 32 limits
/// a reservation, a void, a rereserve, a debt, and two more reservations with their voids if it is taken again in a later
/// period. A server may return fewer.
const PAGE_TRANSFERS: u32 = 2 + 8 * 32;
/// Transfers on further pages, of which a server returns as many as fit into its reply.
const NEXT_PAGE_TRANSFERS: u32 = 8_189;
/// Pages of one lease: 10,000 extensions of 32 limits, each with a void, a reservation and a report of usage, on pages
/// of 100.
pub(crate) const LEASE_PAGES_MAX: usize = 10_000;

/// A request that was handed to the client, and keeps its reply.
type Sent<'a> = Pin<Box<dyn Future<Output = Result<(), Error>> + Send + 'a>>;

/// A request that may be repeated: it reads, or creates what may exist already.
pub(crate) trait Read: Send + Sync + 'static {
    /// The reply.
    type Reply: Send + 'static;

    /// Hands the request to the client.
    fn send(&self, client: &dyn LedgerClient) -> Reply<Self::Reply>;

    /// The ledger's time, if the reply has it.
    fn ledger_time(_: &Self::Reply) -> Option<u64> {
        None
    }
}

/// Creates accounts. A reply has a result for each.
pub(crate) struct CreateAccounts(pub(crate) Vec<Account>);
/// Reads accounts. Missing ones are left out.
pub(crate) struct LookUpAccounts(pub(crate) Vec<u128>);
/// Reads a page of the transfers of a lease, newest first.
pub(crate) struct TransfersOfLease {
    pub(crate) lease: u128,
    /// The newest timestamp on the page; 0 for the first page.
    pub(crate) newest_ns: u64,
}
/// Reads the last capacity change of the limit with this account.
pub(crate) struct LastChange(pub(crate) u128);
/// Reads the ledger's time.
pub(crate) struct LedgerTime;

impl Read for CreateAccounts {
    type Reply = Vec<CreateAccountResult>;

    fn send(&self, client: &dyn LedgerClient) -> Reply<Vec<CreateAccountResult>> {
        client.create_accounts(self.0.clone())
    }
}

impl Read for LookUpAccounts {
    type Reply = Vec<Account>;

    fn send(&self, client: &dyn LedgerClient) -> Reply<Vec<Account>> {
        client.look_up_accounts(self.0.clone())
    }
}

impl Read for TransfersOfLease {
    type Reply = Vec<Transfer>;

    fn send(&self, client: &dyn LedgerClient) -> Reply<Vec<Transfer>> {
        client.query_transfers(QueryFilter {
            user_data_128: self.lease,
            ledger: LEDGER,
            timestamp_max: self.newest_ns,
            limit: if self.newest_ns == 0 { PAGE_TRANSFERS } else { NEXT_PAGE_TRANSFERS },
            flags: QueryFilterFlags::Reversed,
            ..QueryFilter::default()
        })
    }
}

impl Read for LastChange {
    type Reply = Vec<Transfer>;

    fn send(&self, client: &dyn LedgerClient) -> Reply<Vec<Transfer>> {
        client.account_transfers(AccountFilter {
            account_id: self.0,
            code: Code::Capacity as u16,
            limit: 1,
            flags: AccountFilterFlags::Debits | AccountFilterFlags::Credits | AccountFilterFlags::Reversed,
            ..AccountFilter::default()
        })
    }
}

impl Read for LedgerTime {
    type Reply = Vec<CreateTransferResult>;

    /// A transfer without an id is refused without a trace, and the result has the ledger's time.
    fn send(&self, client: &dyn LedgerClient) -> Reply<Vec<CreateTransferResult>> {
        client.create_transfers(vec![Transfer::default()])
    }

    fn ledger_time(results: &Vec<CreateTransferResult>) -> Option<u64> {
        results.last().map(|result| result.timestamp)
    }
}

/// A read in the queue, with the way to its caller.
pub(crate) struct QueuedRead(Box<dyn AnyRead>);

/// A read of any type.
trait AnyRead: Send {
    /// Sends the request, and keeps its reply.
    fn send(&mut self, client: &dyn LedgerClient) -> Sent<'_>;
    /// Sends the reply to the caller.
    fn reply(self: Box<Self>, clock: &LedgerClock);
    fn fail(self: Box<Self>, error: BackendError);
}

/// A read, its reply once it has come, and its caller.
struct TypedRead<R: Read> {
    request: R,
    received: Option<R::Reply>,
    caller: oneshot::Sender<Result<R::Reply, BackendError>>,
}

impl<R: Read> AnyRead for TypedRead<R> {
    fn send(&mut self, client: &dyn LedgerClient) -> Sent<'_> {
        let sent = self.request.send(client);
        Box::pin(async {
            self.received = Some(sent.await?);
            Ok(())
        })
    }

    fn reply(self: Box<Self>, clock: &LedgerClock) {
        // Without a reply the channel closes, and the caller gets an error.
        let Some(reply) = self.received else { return };
        if let Some(time) = R::ledger_time(&reply) {
            clock.observe(time);
        }
        // The caller may have gone away.
        _ = self.caller.send(Ok(reply));
    }

    fn fail(self: Box<Self>, error: BackendError) {
        _ = self.caller.send(Err(error));
    }
}

impl QueuedRead {
    /// The read, and the receiver of its reply.
    pub(crate) fn new<R: Read>(request: R) -> (QueuedRead, oneshot::Receiver<Result<R::Reply, BackendError>>) {
        let (caller, reply) = oneshot::channel();
        (QueuedRead(Box::new(TypedRead { request, received: None, caller })), reply)
    }
}

/// Sends reads concurrently. The client merges them into few requests.
pub(crate) struct Reads {
    session: Session,
}

impl Reads {
    pub(crate) fn new(session: Session) -> Reads {
        Reads { session }
    }
}

impl BatchTarget for Reads {
    type Item = QueuedRead;

    const BATCH_EVENTS_MAX: usize = 64;

    async fn submit(&mut self, mut batch: Vec<QueuedRead>) {
        loop {
            let sent = self.session.request(|client| {
                let sent: Vec<Sent<'_>> = batch.iter_mut().map(|read| read.0.send(client)).collect();
                async {
                    for reply in sent {
                        reply.await?;
                    }
                    Ok(())
                }
            });
            let error = match sent.await {
                Ok(()) => {
                    let clock = &self.session.shared().clock;
                    return batch.into_iter().for_each(|read| read.0.reply(clock));
                }
                Err(SessionError::ClientLost) => continue,
                Err(SessionError::TooMuchData) => BackendError::Failed(
                    "TigerBeetle refused a read as too large; start it with a larger --limit-request".into(),
                ),
                Err(SessionError::Stopped(error)) => error,
            };
            return batch.into_iter().for_each(|read| read.0.fail(error.clone()));
        }
    }

    async fn idle(&mut self) {}
}
