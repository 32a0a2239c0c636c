//! Writers: each takes all calls that wait and makes their changes in one statement, which is one transaction.

use std::sync::Arc;

use sqlx::postgres::PgConnection;
use sqlx::{Postgres, Row};
use tokio::time::timeout;

use super::Inner;
use super::batch::Batch;
use super::commit::{Columns, Commit};
use super::error::{Failed, failed};
use crate::sql::queue::{Counts, Writes};
use crate::sql::whole;
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

/// What makes lists, first those that are whole sagas, at once, then the others, change by change: what these take and give back
/// again would be in the way of the first.
const BOTH: &str = "select commit_sagas($5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23,
        $24, $25, $26, $27, $28, $29, $30, $31, $32, $33, $34, $35, $36, $37, $38, $39, $40, $41, $42, $43, $44, $45),
    case when $1::jsonb is null then null else write_4($1::jsonb, $2, $3::jsonb, $4) end";
const STEPS: &str = "select null::boolean[], write_4($1::jsonb, $2, $3::jsonb, $4)";

/// Lists as one statement.
pub(super) struct Call<'a> {
    lists: &'a [&'a [Change]],
    /// Of each list, whether it is committed at once.
    is_whole: Vec<bool>,
    steps: Batch,
    commit: Option<Columns<'a>>,
}

impl<'a> Call<'a> {
    pub(super) fn of(lists: &'a [&'a [Change]]) -> Call<'a> {
        let mut commit = Commit::default();
        let is_whole: Vec<bool> = lists.iter().map(|list| commit.take(list)).collect();
        let others = lists.iter().zip(&is_whole).filter(|(_, is_whole)| !**is_whole).map(|(list, _)| *list);
        // What both number is locked by the first.
        commit.lock(others.clone());
        let mut steps = Batch::of(others);
        steps.is_promised |= !commit.is_empty();
        let commit = (!commit.is_empty()).then(|| commit.columns());
        Call { lists, is_whole, steps, commit }
    }

    /// Whether somebody will be promised that it is done for ever.
    #[cfg(test)]
    pub(super) fn is_promised(&self) -> bool {
        self.steps.is_promised
    }

    /// Makes the changes.
    pub(super) async fn make(&self, connection: &mut PgConnection) -> Result<Vec<Vec<u64>>, Failed> {
        let steps = &self.steps;
        let query = sqlx::query::<Postgres>(if self.commit.is_some() { BOTH } else { STEPS })
            .bind(steps.changes())
            .bind(&steps.texts)
            .bind(steps.vaults())
            .bind(steps.is_promised);
        let query = match &self.commit {
            Some(commit) => commit.bind(query),
            None => query,
        };
        let row = query.fetch_one(connection).await.map_err(|error| failed(&error))?;
        let counts: Option<Vec<i64>> = row.try_get(1).map_err(|error| failed(&error))?;
        let are_done: Option<Vec<bool>> = row.try_get(0).map_err(|error| failed(&error))?;
        self.split(&counts.unwrap_or_default(), &are_done.unwrap_or_default()).ok_or_else(|| {
            let error = StoreError::Corrupt("the functions of the schema are not Earmark's".to_owned());
            Failed { error, is_clash: false, is_whole: false }
        })
    }

    /// Gives each list its counts, if there are as many as there should be.
    fn split(&self, counts: &[i64], are_done: &[bool]) -> Option<Vec<Vec<u64>>> {
        let (mut counts, mut are_done) = (counts.iter(), are_done.iter());
        let of_list = |(list, is_whole): (&&[Change], &bool)| {
            if *is_whole {
                return are_done.next().map(|is_done| whole::counts(list, *is_done));
            }
            let counts: Vec<u64> =
                counts.by_ref().take(list.len()).map(|count| count.unsigned_abs()).collect();
            (counts.len() == list.len()).then_some(counts)
        };
        self.lists.iter().zip(&self.is_whole).map(of_list).collect()
    }
}

async fn together(inner: &Inner, lists: &[&[Change]]) -> Result<Vec<Vec<u64>>, StoreError> {
    let call = Call::of(lists);
    let mut tries = 0..CLASHES_MAX;
    loop {
        let mut pooled = inner.writing.acquire().await?;
        let made = timeout(inner.options.answer_timeout(), call.make(&mut pooled.connection)).await;
        let made = made.unwrap_or_else(|_| {
            let error = StoreError::Unavailable("the database did not answer in time".to_owned());
            Err(Failed { error, is_clash: false, is_whole: false })
        });
        match made {
            Ok(counts) => {
                pooled.release();
                return Ok(counts);
            }
            Err(Failed { error, is_clash, is_whole }) => {
                if is_whole {
                    pooled.release();
                }
                if !is_clash || tries.next().is_none() {
                    return Err(error);
                }
            }
        }
    }
}
