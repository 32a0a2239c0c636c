//! The consumers of the two queues: transfers in batches, and reads.

use std::future::Future;
use std::pin::Pin;

use earmark_admission::{BackendError, BatchTarget, PendingItem};
use tigerbeetle::{
    Account, AccountFilter, AccountFilterFlags, Client, Completion, CreateAccountResult, CreateTransferResult,
    CreateTransferStatus, Error, QueryFilter, Transfer,
};

use crate::batch::{BATCH_EVENTS_MAX, Chains, RequestSize, next_request};
use crate::schema::{Code, LEDGER};
use crate::session::{Session, SessionError};

/// Maximum transfers of a lease: its anchor, its end, and for each of 32 limits a reservation, a void, a rereserve and
/// a debt.
const LEASE_TRANSFERS_MAX: u32 = 2 + 4 * 32;

/// Results of one chain, in order.
pub(crate) type Created = Result<Vec<CreateTransferResult>, BackendError>;

/// Creates transfers, in requests as large as the server accepts.
pub(crate) struct Writes {
    session: Session,
    size: RequestSize,
}

impl Writes {
    pub(crate) fn new(session: Session) -> Writes {
        Writes { session, size: RequestSize::new() }
    }

    /// Sends whole chains until all have results.
    async fn create(&mut self, transfers: &[Transfer], lens: &[usize]) -> Vec<Created> {
        let mut created: Vec<Created> = Vec::with_capacity(lens.len());
        let mut sent = 0_usize;
        while created.len() < lens.len() {
            let chains = next_request(lens, created.len(), self.size.events());
            let lens = &lens[chains];
            let events: usize = lens.iter().sum();
            let to = sent.saturating_add(events).min(transfers.len());
            let request = transfers[sent..to].to_vec();
            let results = Vec::with_capacity(events);
            let answer = self
                .session
                .request(|client| client.create_transfers_reusable(Completion::new(), request, results))
                .await;
            match answer {
                Ok((_, _, results)) if results.len() == events => {
                    self.size.taken(events);
                    self.session.shared().clock.observe(result_time(&results));
                    created.extend(split(&results, lens).map(|results| Ok(results.to_vec())));
                }
                Ok((_, _, results)) => {
                    let error = BackendError::Failed(format!(
                        "TigerBeetle gave {} results for {events} transfers",
                        results.len()
                    ));
                    created.extend(lens.iter().map(|_| Err(error.clone())));
                }
                Err(SessionError::TooMuchData) if lens.len() == 1 => {
                    created.push(Err(BackendError::Failed(format!(
                        "TigerBeetle accepts fewer than {events} transfers per request; start it with a larger \
                         --limit-request"
                    ))));
                }
                Err(SessionError::TooMuchData) => {
                    self.size.refused(events);
                    continue;
                }
                Err(SessionError::ClientLost) => {
                    self.size = RequestSize::new();
                    continue;
                }
                Err(SessionError::Stopped(error)) => created.extend(lens.iter().map(|_| Err(error.clone()))),
            }
            sent = to;
        }
        created
    }
}

/// Timestamp of the results; 0 if unknown. `Exists` carries the time of the original transfer.
fn result_time(results: &[CreateTransferResult]) -> u64 {
    let current = results.iter().rev().find(|result| result.status != CreateTransferStatus::Exists);
    current.map_or(0, |result| result.timestamp)
}

/// Splits results by chain.
fn split<'a>(
    results: &'a [CreateTransferResult],
    lens: &'a [usize],
) -> impl Iterator<Item = &'a [CreateTransferResult]> {
    let mut rest = results;
    lens.iter().map(move |len| {
        let (chain, after) = rest.split_at((*len).min(rest.len()));
        rest = after;
        chain
    })
}

impl BatchTarget for Writes {
    /// The chains of one caller, and a result for each.
    type Item = PendingItem<Chains, Vec<Created>>;

    const BATCH_EVENTS_MAX: usize = BATCH_EVENTS_MAX;

    async fn submit(&mut self, mut batch: Vec<PendingItem<Chains, Vec<Created>>>) {
        let counts: Vec<usize> = batch.iter().map(|pending| pending.item.lens.len()).collect();
        let (transfers, lens): (Vec<Transfer>, Vec<usize>) = match &mut batch[..] {
            [one] => (std::mem::take(&mut one.item.transfers), std::mem::take(&mut one.item.lens)),
            many => (
                many.iter().flat_map(|pending| &pending.item.transfers).copied().collect(),
                many.iter().flat_map(|pending| &pending.item.lens).copied().collect(),
            ),
        };
        let mut created = self.create(&transfers, &lens).await.into_iter();
        for (pending, count) in batch.into_iter().zip(counts) {
            pending.reply(created.by_ref().take(count).collect());
        }
    }

    async fn idle(&mut self) {}
}

/// A request other than creating transfers.
#[derive(Clone, Debug)]
pub(crate) enum ReadRequest {
    /// Creates accounts.
    CreateAccounts(Vec<Account>),
    /// Reads accounts. Missing ones are left out.
    Accounts(Vec<u128>),
    /// All transfers of a lease.
    Lease(u128),
    /// The last capacity change of a limit.
    LastChange { account: u128 },
    /// The ledger's time.
    Time,
}

#[derive(Clone, Debug)]
pub(crate) enum ReadReply {
    CreatedAccounts(Vec<CreateAccountResult>),
    Accounts(Vec<Account>),
    Transfers(Vec<Transfer>),
    Refused(Vec<CreateTransferResult>),
}

type Awaited = Pin<Box<dyn Future<Output = Result<ReadReply, Error>> + Send>>;

/// Sends reads concurrently. The client merges them into few requests.
pub(crate) struct Reads {
    session: Session,
}

impl Reads {
    pub(crate) fn new(session: Session) -> Reads {
        Reads { session }
    }

    fn observe_time(&self, replies: &[ReadReply]) {
        let mut refused = replies.iter().filter_map(|reply| match reply {
            ReadReply::Refused(results) => results.last(),
            ReadReply::CreatedAccounts(_) | ReadReply::Accounts(_) | ReadReply::Transfers(_) => None,
        });
        if let Some(refused) = refused.next_back() {
            self.session.shared().clock.observe(refused.timestamp);
        }
    }
}

impl ReadRequest {
    fn send(&self, client: &Client) -> Awaited {
        fn reply<T: 'static>(
            answer: impl Future<Output = Result<T, Error>> + Send + 'static,
            wrap: fn(T) -> ReadReply,
        ) -> Awaited {
            Box::pin(async move { answer.await.map(wrap) })
        }
        match self {
            ReadRequest::CreateAccounts(accounts) => {
                reply(client.create_accounts(accounts), ReadReply::CreatedAccounts)
            }
            ReadRequest::Accounts(ids) => reply(client.lookup_accounts(ids), ReadReply::Accounts),
            ReadRequest::Lease(lease) => reply(client.query_transfers(of_lease(*lease)), ReadReply::Transfers),
            ReadRequest::LastChange { account } => {
                reply(client.get_account_transfers(last_change(*account)), ReadReply::Transfers)
            }
            // A transfer without an id is refused without a trace, and the result carries the ledger's time.
            ReadRequest::Time => reply(client.create_transfers(&[Transfer::default()]), ReadReply::Refused),
        }
    }
}

fn of_lease(lease: u128) -> QueryFilter {
    QueryFilter { user_data_128: lease, ledger: LEDGER, limit: LEASE_TRANSFERS_MAX, ..QueryFilter::default() }
}

fn last_change(account: u128) -> AccountFilter {
    AccountFilter {
        account_id: account,
        code: Code::Capacity as u16,
        limit: 1,
        flags: AccountFilterFlags::Debits | AccountFilterFlags::Credits | AccountFilterFlags::Reversed,
        ..AccountFilter::default()
    }
}

impl BatchTarget for Reads {
    type Item = PendingItem<ReadRequest, Result<ReadReply, BackendError>>;

    const BATCH_EVENTS_MAX: usize = 64;

    async fn submit(&mut self, batch: Vec<PendingItem<ReadRequest, Result<ReadReply, BackendError>>>) {
        loop {
            let sent = self.session.request(|client| {
                let sent: Vec<Awaited> = batch.iter().map(|pending| pending.item.send(client)).collect();
                async {
                    let mut replies = Vec::with_capacity(sent.len());
                    for answer in sent {
                        replies.push(answer.await?);
                    }
                    Ok(replies)
                }
            });
            let error = match sent.await {
                Ok(replies) => {
                    self.observe_time(&replies);
                    return batch.into_iter().zip(replies).for_each(|(pending, reply)| pending.reply(Ok(reply)));
                }
                Err(SessionError::ClientLost) => continue,
                Err(SessionError::TooMuchData) => BackendError::Failed(
                    "TigerBeetle refused a read as too large; start it with a larger --limit-request".into(),
                ),
                Err(SessionError::Stopped(error)) => error,
            };
            return batch.into_iter().for_each(|pending| pending.reply(Err(error.clone())));
        }
    }

    async fn idle(&mut self) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: a retry of a credit-only lease returned the timestamp of its anchor. The clock was set back to it,
    /// and until the next answer no reservation seemed expired.
    #[test]
    fn what_exists_does_not_set_the_clock_back() {
        let result = |timestamp, status| CreateTransferResult { timestamp, status, reserved: Default::default() };
        let (exists, failed) = (CreateTransferStatus::Exists, CreateTransferStatus::LinkedEventFailed);
        assert_eq!(result_time(&[result(5, exists)]), 0);
        assert_eq!(result_time(&[result(5, exists), result(91, failed), result(92, failed)]), 92);
        assert_eq!(result_time(&[result(90, CreateTransferStatus::Created), result(5, exists)]), 90);
    }

    #[test]
    fn results_are_mapped_back_by_position() {
        let status = CreateTransferStatus::Created;
        let results: Vec<_> =
            (0..9).map(|timestamp| CreateTransferResult { timestamp, status, reserved: Default::default() }).collect();
        let lens = [2, 3, 0, 4];
        let firsts = split(&results, &lens).map(|chain| (chain.len(), chain.first().map(|r| r.timestamp)));
        assert_eq!(firsts.collect::<Vec<_>>(), [(2, Some(0)), (3, Some(2)), (0, None), (4, Some(5))]);
    }
}
