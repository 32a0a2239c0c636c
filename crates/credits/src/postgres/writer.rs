//! Writers: each takes all calls that wait and makes their changes in one statement, which is one transaction.

use std::sync::Arc;

use sqlx::postgres::PgConnection;
use sqlx::{Postgres, Row};
use tokio::time::timeout;

use super::batch::Batch;
use super::error::{Failed, failed};
use super::{Inner, PostgresOptions};
use crate::sql::queue::{Counts, Writes};
use crate::store::{Change, StoreError};

/// So often a batch is tried again after it met another.
const CLASHES_MAX: usize = 10;

/// Works until there will be no more calls.
pub(super) async fn work(waiting: Writes, inner: Arc<Inner>) {
    loop {
        let mut jobs = waiting.next().await;
        if jobs.is_empty() {
            return;
        }
        // All writers come to gates in the same order, or two could wait for each other.
        jobs.sort_by_key(|job| job.asked.iter().find_map(Change::gate));
        let lists: Vec<&[Change]> = jobs.iter().map(|job| job.asked.as_slice()).collect();
        let counts = match together(&inner, &lists).await {
            Ok(counts) => counts.into_iter().map(Ok).collect(),
            // One of them must not take the others down, so each gets a transaction of its own.
            Err(StoreError::Refused(_)) if lists.len() > 1 => one_by_one(&inner, &lists).await,
            Err(error) => vec![Err(error); lists.len()],
        };
        for (job, counts) in jobs.into_iter().zip(counts) {
            job.answer(counts);
        }
    }
}

async fn one_by_one(inner: &Inner, lists: &[&[Change]]) -> Vec<Counts> {
    let mut counts = Vec::with_capacity(lists.len());
    for list in lists {
        let done = together(inner, &[list]).await;
        let is_gone = done.as_ref().is_err_and(StoreError::is_passing);
        counts.push(done.map(|mut all| all.pop().unwrap_or_default()));
        if is_gone {
            // The others would only wait as long, one after the other.
            break;
        }
    }
    counts.resize(lists.len(), Err(StoreError::Busy("a call before it got no answer")));
    counts
}

async fn together(inner: &Inner, lists: &[&[Change]]) -> Result<Vec<Vec<u64>>, StoreError> {
    let batch = Batch::of(lists);
    let mut tries = 0..CLASHES_MAX;
    loop {
        let mut lent = inner.writing.lend().await?;
        match call(&mut lent.connection, &batch, &inner.options).await {
            Ok(counts) => {
                lent.done();
                return split(&counts, lists);
            }
            Err(Failed { error, is_clash, is_whole }) => {
                if is_whole {
                    lent.done();
                }
                if !is_clash || tries.next().is_none() {
                    return Err(error);
                }
            }
        }
    }
}

async fn call(
    connection: &mut PgConnection,
    batch: &Batch,
    options: &PostgresOptions,
) -> Result<Vec<i64>, Failed> {
    let query = sqlx::query::<Postgres>("select write_4($1::jsonb, $2, $3::jsonb, $4)")
        .bind(batch.changes())
        .bind(&batch.texts)
        .bind(batch.vaults())
        .bind(batch.is_promised);
    match timeout(options.answer_timeout(), query.fetch_one(connection)).await {
        Ok(row) => row.and_then(|row| row.try_get(0)).map_err(|error| failed(&error)),
        Err(_) => {
            let error = StoreError::Unavailable("the database did not answer in time".to_owned());
            Err(Failed { error, is_clash: false, is_whole: false })
        }
    }
}

/// Gives each list its counts.
fn split(counts: &[i64], lists: &[&[Change]]) -> Result<Vec<Vec<u64>>, StoreError> {
    let mut counts = counts.iter().map(|count| count.unsigned_abs());
    let split: Vec<Vec<u64>> = lists.iter().map(|list| counts.by_ref().take(list.len()).collect()).collect();
    let is_whole = split.iter().zip(lists).all(|(counts, list)| counts.len() == list.len());
    is_whole
        .then_some(split)
        .ok_or_else(|| StoreError::Corrupt("the function write_4 is not Earmark's".to_owned()))
}
