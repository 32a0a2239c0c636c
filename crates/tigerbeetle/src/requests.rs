//! The two ends of the queues: transfers in batches, and everything else.

use std::future::Future;
use std::pin::Pin;

use earmark_admission::{BackendError, BatchTarget};
use tigerbeetle::{
    Account, AccountFilter, AccountFilterFlags, Client, Completion, CreateAccountResult,
    CreateTransferResult, CreateTransferStatus, Error, QueryFilter, Transfer,
};

use crate::batch::{BATCH_EVENTS_MAX, Chains, Room, next_request};
use crate::chart::{Code, LEDGER};
use crate::session::{Lost, Session};

/// The most transfers that a lease has: its anchor and its end, and for each of 32 limits a reservation, its void,
/// what was taken again and its debt.
const LEASE_TRANSFERS_MAX: u32 = 2 + 4 * 32;

/// What became of transfers: a result for each, in order.
pub(crate) type Created = Result<Vec<CreateTransferResult>, BackendError>;

/// Creates transfers, as many in a request as the server takes.
pub(crate) struct Writes {
    session: Session,
    room: Room,
}

impl Writes {
    pub(crate) fn new(session: Session) -> Writes {
        Writes { session, room: Room::new() }
    }

    /// Sends whole chains until all have their results.
    async fn create(&mut self, transfers: &[Transfer], lens: &[usize]) -> Vec<Created> {
        let mut created: Vec<Created> = Vec::with_capacity(lens.len());
        let mut sent = 0_usize;
        while created.len() < lens.len() {
            let chains = next_request(lens, created.len(), self.room.events());
            let lens = &lens[chains];
            let events: usize = lens.iter().sum();
            let to = sent.saturating_add(events).min(transfers.len());
            let request = transfers[sent..to].to_vec();
            let results = Vec::with_capacity(events);
            let answer = self
                .session
                .ask(|client| client.create_transfers_reusable(Completion::new(), request, results))
                .await;
            match answer {
                Ok((_, _, results)) if results.len() == events => {
                    self.room.taken(events);
                    self.session.shared().clock.tell(told_at(&results));
                    created.extend(split(&results, lens).map(|results| Ok(results.to_vec())));
                }
                Ok((_, _, results)) => {
                    let error = BackendError::Failed(format!(
                        "TigerBeetle gave {} results for {events} transfers",
                        results.len()
                    ));
                    created.extend(lens.iter().map(|_| Err(error.clone())));
                }
                Err(Lost::TooMuchData) if lens.len() == 1 => {
                    created.push(Err(BackendError::Failed(format!(
                        "TigerBeetle takes fewer than {events} transfers in a request: start it with a larger \
                         --limit-request"
                    ))));
                }
                Err(Lost::TooMuchData) => {
                    self.room.refused(events);
                    continue;
                }
                Err(Lost::Session) => {
                    self.room = Room::new();
                    continue;
                }
                Err(Lost::Stopped(error)) => created.extend(lens.iter().map(|_| Err(error.clone()))),
            }
            sent = to;
        }
        created
    }
}

/// When results were told; 0 if they do not say. What exists has the time at which it was made.
fn told_at(results: &[CreateTransferResult]) -> u64 {
    let told = results.iter().rev().find(|result| result.status != CreateTransferStatus::Exists);
    told.map_or(0, |result| result.timestamp)
}

/// Results of several chains, one after the other.
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
    /// What one caller sends together.
    type Item = Chains;
    /// For each of its chains.
    type Outcome = Vec<Created>;

    const BATCH_EVENTS_MAX: usize = BATCH_EVENTS_MAX;

    async fn submit(&mut self, batch: Vec<Chains>) -> Vec<Vec<Created>> {
        let counts: Vec<usize> = batch.iter().map(|chains| chains.lens.len()).collect();
        let mut created = match &batch[..] {
            [one] => self.create(&one.transfers, &one.lens).await,
            many => {
                let transfers: Vec<Transfer> = many.iter().flat_map(|c| &c.transfers).copied().collect();
                let lens: Vec<usize> = many.iter().flat_map(|c| &c.lens).copied().collect();
                self.create(&transfers, &lens).await
            }
        }
        .into_iter();
        counts.into_iter().map(|count| created.by_ref().take(count).collect()).collect()
    }

    async fn idle(&mut self) {}
}

/// Everything that is not a transfer.
#[derive(Clone, Debug)]
pub(crate) enum Ask {
    /// Makes accounts that are missing.
    CreateAccounts(Vec<Account>),
    /// Reads accounts. Those that do not exist are left out.
    Accounts(Vec<u128>),
    /// All transfers of a lease.
    Lease(u128),
    /// The last change of a limit's capacity.
    LastChange { account: u128 },
    /// What time it is.
    Time,
}

/// What was answered.
#[derive(Clone, Debug)]
pub(crate) enum Told {
    CreatedAccounts(Vec<CreateAccountResult>),
    Accounts(Vec<Account>),
    Transfers(Vec<Transfer>),
    Refused(Vec<CreateTransferResult>),
}

/// An answer of the client on its way.
type Awaited = Pin<Box<dyn Future<Output = Result<Told, Error>> + Send>>;

/// Asks what needs no order. The client puts what is asked together into as few requests as it can.
pub(crate) struct Reads {
    session: Session,
}

impl Reads {
    pub(crate) fn new(session: Session) -> Reads {
        Reads { session }
    }

    fn tell_time(&self, told: &[Told]) {
        let mut refused = told.iter().filter_map(|told| match told {
            Told::Refused(results) => results.last(),
            Told::CreatedAccounts(_) | Told::Accounts(_) | Told::Transfers(_) => None,
        });
        if let Some(refused) = refused.next_back() {
            self.session.shared().clock.tell(refused.timestamp);
        }
    }
}

impl Ask {
    fn send(&self, client: &Client) -> Awaited {
        fn told<T: 'static>(
            answer: impl Future<Output = Result<T, Error>> + Send + 'static,
            told: fn(T) -> Told,
        ) -> Awaited {
            Box::pin(async move { answer.await.map(told) })
        }
        match self {
            Ask::CreateAccounts(accounts) => told(client.create_accounts(accounts), Told::CreatedAccounts),
            Ask::Accounts(ids) => told(client.lookup_accounts(ids), Told::Accounts),
            Ask::Lease(lease) => told(client.query_transfers(of_lease(*lease)), Told::Transfers),
            Ask::LastChange { account } => {
                told(client.get_account_transfers(last_change(*account)), Told::Transfers)
            }
            // A transfer without an id is refused, leaves no trace, and is told when it was refused.
            Ask::Time => told(client.create_transfers(&[Transfer::default()]), Told::Refused),
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
    type Item = Ask;
    type Outcome = Result<Told, BackendError>;

    const BATCH_EVENTS_MAX: usize = 64;

    async fn submit(&mut self, batch: Vec<Ask>) -> Vec<Result<Told, BackendError>> {
        loop {
            let asked = self.session.ask(|client| {
                let sent: Vec<Awaited> = batch.iter().map(|ask| ask.send(client)).collect();
                async {
                    let mut told = Vec::with_capacity(sent.len());
                    for answer in sent {
                        told.push(answer.await?);
                    }
                    Ok(told)
                }
            });
            let error = match asked.await {
                Ok(told) => {
                    self.tell_time(&told);
                    return told.into_iter().map(Ok).collect();
                }
                Err(Lost::Session) => continue,
                Err(Lost::TooMuchData) => {
                    BackendError::Failed("TigerBeetle takes no request as large as this one".into())
                }
                Err(Lost::Stopped(error)) => error,
            };
            return batch.iter().map(|_| Err(error.clone())).collect();
        }
    }

    async fn idle(&mut self) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A retry of a lease that had nothing but credit was answered with the time of its anchor, and that was taken for the
    /// time: until the next answer nothing had ever expired.
    #[test]
    fn what_exists_does_not_set_the_clock_back() {
        let result =
            |timestamp, status| CreateTransferResult { timestamp, status, reserved: Default::default() };
        let (exists, failed) = (CreateTransferStatus::Exists, CreateTransferStatus::LinkedEventFailed);
        assert_eq!(told_at(&[result(5, exists)]), 0);
        assert_eq!(told_at(&[result(5, exists), result(91, failed), result(92, failed)]), 92);
        assert_eq!(told_at(&[result(90, CreateTransferStatus::Created), result(5, exists)]), 90);
    }

    #[test]
    fn results_are_mapped_back_by_position() {
        let status = CreateTransferStatus::Created;
        let results: Vec<_> = (0..9)
            .map(|timestamp| CreateTransferResult { timestamp, status, reserved: Default::default() })
            .collect();
        let lens = [2, 3, 0, 4];
        let firsts = split(&results, &lens).map(|chain| (chain.len(), chain.first().map(|r| r.timestamp)));
        assert_eq!(firsts.collect::<Vec<_>>(), [(2, Some(0)), (3, Some(2)), (0, None), (4, Some(5))]);
    }
}
