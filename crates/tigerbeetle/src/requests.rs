//! Creates transfers in batches.

use std::time::SystemTime;

use earmark_admission::{BackendError, BatchTarget, PendingItem};
use earmark_trace::{TRACES_MAX, TraceContext, record_each};
use tigerbeetle::{CreateTransferResult, CreateTransferStatus, Transfer};

use crate::batch::{BATCH_EVENTS_MAX, Chains, RequestSize, next_request};
use crate::session::{Session, SessionError};

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
            match self.session.request(|client| client.create_transfers(request)).await {
                Ok(results) if results.len() == events => {
                    self.size.taken(events);
                    self.session.shared().clock.observe(result_time(&results));
                    created.extend(split(&results, lens).map(|results| Ok(results.to_vec())));
                }
                Ok(results) => {
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
        let traced: Vec<TraceContext> = batch.iter().filter_map(PendingItem::dequeued).take(TRACES_MAX).collect();
        let since = (!traced.is_empty()).then(SystemTime::now);
        let mut created = self.create(&transfers, &lens).await.into_iter();
        if let Some(since) = since {
            record_each("ledger", traced, since, &[("earmark.transfers", transfers.len() as u64)]);
        }
        for (pending, count) in batch.into_iter().zip(counts) {
            pending.reply(created.by_ref().take(count).collect());
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
