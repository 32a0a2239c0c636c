//! The workers behind the queues of a SQL store: each runs all waiting requests in one transaction.

use std::collections::HashSet;
use std::sync::Arc;

use super::database::Database;
use super::queue::{Job, QueueReader};
use crate::model::Record;
use crate::store::{Change, StoreError};

/// Requests of one kind that run in one transaction.
pub(crate) trait Batch: Send + Sync + 'static {
    type Request: Send + Sync;
    type Answer: Clone + Send;

    /// Removes the requests that can share a transaction from a non-empty list. At least one.
    fn take(jobs: &mut Vec<Job<Self::Request, Self::Answer>>) -> Vec<Job<Self::Request, Self::Answer>>;

    fn run(&self, requests: &[Self::Request]) -> impl Future<Output = Result<Vec<Self::Answer>, StoreError>> + Send;
}

/// Plans to commit.
pub(crate) struct Commits<D>(pub(crate) Arc<D>);

/// Lists of single changes.
pub(crate) struct Changes<D>(pub(crate) Arc<D>);

impl<D: Database> Batch for Commits<D> {
    type Request = Arc<Record>;
    type Answer = bool;

    /// Plans that share a gate, a client or an input follow in the next transaction.
    fn take(jobs: &mut Vec<Job<Arc<Record>, bool>>) -> Vec<Job<Arc<Record>, bool>> {
        // All writers insert gates in the same order, or two could deadlock.
        jobs.sort_by_key(|job| job.request.token.gate);
        let (mut gates, mut clients, mut inputs) = (HashSet::new(), HashSet::new(), HashSet::new());
        let is_disjoint = |job: &mut Job<Arc<Record>, bool>| {
            let record = &job.request;
            let client = record.plan.sequence_claim.as_ref().map(|claim| claim.client.clone());
            let is_new = !gates.contains(&record.token.gate)
                && client.as_ref().is_none_or(|client| !clients.contains(client))
                && record.plan.inputs.iter().all(|input| !inputs.contains(&input.id));
            if is_new {
                gates.insert(record.token.gate);
                clients.extend(client);
                inputs.extend(record.plan.inputs.iter().map(|input| input.id));
            }
            is_new
        };
        jobs.extract_if(.., is_disjoint).collect()
    }

    async fn run(&self, plans: &[Arc<Record>]) -> Result<Vec<bool>, StoreError> {
        self.0.commit(plans).await
    }
}

impl<D: Database> Batch for Changes<D> {
    type Request = Vec<Change>;
    type Answer = Vec<u64>;

    fn take(jobs: &mut Vec<Job<Vec<Change>, Vec<u64>>>) -> Vec<Job<Vec<Change>, Vec<u64>>> {
        jobs.sort_by_key(|job| job.request.iter().find_map(Change::gate));
        std::mem::take(jobs)
    }

    async fn run(&self, lists: &[Vec<Change>]) -> Result<Vec<Vec<u64>>, StoreError> {
        self.0.write(lists).await
    }
}

/// Runs until the queue is closed.
pub(crate) async fn work<B: Batch>(reader: QueueReader<B::Request, B::Answer>, batch: B) {
    loop {
        let mut jobs = reader.next().await;
        if jobs.is_empty() {
            return;
        }
        while !jobs.is_empty() {
            let (requests, answers): (Vec<_>, Vec<_>) =
                B::take(&mut jobs).into_iter().map(|job| (job.request, job.answer)).unzip();
            let results = match batch.run(&requests).await {
                Ok(results) => results.into_iter().map(Ok).collect(),
                // One bad request must not fail the others, so each gets its own transaction.
                Err(StoreError::Refused(_)) if requests.len() > 1 => one_by_one(&batch, &requests).await,
                Err(error) => vec![Err(error); requests.len()],
            };
            for (answer, result) in answers.into_iter().zip(results) {
                // The caller may be gone; it reads the outcome when it asks again.
                let _ = answer.send(result);
            }
        }
    }
}

async fn one_by_one<B: Batch>(batch: &B, requests: &[B::Request]) -> Vec<Result<B::Answer, StoreError>> {
    let mut results = Vec::with_capacity(requests.len());
    for request in requests {
        let result = batch.run(std::slice::from_ref(request)).await;
        let is_down = result.as_ref().is_err_and(StoreError::is_transient);
        let missing = || StoreError::Corrupt("the database did not answer a request".to_owned());
        results.push(result.and_then(|mut answers| answers.pop().ok_or_else(missing)));
        if is_down {
            // The others would only wait as long, one after the other.
            break;
        }
    }
    results.resize(requests.len(), Err(StoreError::Busy("an earlier call got no answer")));
    results
}
