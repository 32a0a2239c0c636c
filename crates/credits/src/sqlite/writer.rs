//! The one writer: it takes all calls that wait, makes their changes inside one transaction, and answers when that is on
//! disk.

use std::path::PathBuf;

use sqlx::sqlite::{SqliteConnection, SqliteRow};
use sqlx::{Connection, Row};

use super::SqliteOptions;
use super::change::Totals;
use super::commit;
use super::error::{refused, unknown};
use super::script::Script;
use crate::model::AssetKey;
use crate::sql::parse;
use crate::sql::queue::{Counts, Job, Writes};
use crate::sql::whole::{self, WholeSagas};
use crate::store::{AssetSums, Change, StoreError};

/// Works until there will be no more calls.
pub(super) async fn work(
    waiting: Writes,
    mut connection: SqliteConnection,
    path: PathBuf,
    options: SqliteOptions,
) {
    loop {
        let jobs = waiting.next().await;
        if jobs.is_empty() {
            break;
        }
        let lists: Vec<&[Change]> = jobs.iter().map(|job| job.asked.as_slice()).collect();
        let counts: Vec<Counts> = match together(&mut connection, &lists).await {
            Ok(counts) => counts.into_iter().map(Ok).collect(),
            // One of them must not take the others down, so each gets a transaction of its own.
            Err(StoreError::Refused(_)) if jobs.len() > 1 => one_by_one(&mut connection, &lists).await,
            Err(error) => vec![Err(error); jobs.len()],
        };
        let has_failed = counts.iter().any(Result::is_err);
        answer(jobs, counts);
        if has_failed && is_stuck(&mut connection).await {
            match super::connect(&path, &options).await {
                Ok(fresh) => connection = fresh,
                Err(error) => tracing::warn!(%error, "the file of credit could not be opened again"),
            }
        }
    }
    let _ = connection.close().await;
}

/// When a disk is full or fails, SQLite itself ends the transaction. There is nothing to roll back then, which sqlx takes for
/// a transaction that still goes on, and it would never begin another.
async fn is_stuck(connection: &mut SqliteConnection) -> bool {
    // What was begun to be rolled back has been when this is answered.
    connection.ping().await.is_err() || connection.is_in_transaction()
}

fn answer(jobs: Vec<Job<Vec<Change>, Vec<u64>>>, counts: Vec<Counts>) {
    for (job, counts) in jobs.into_iter().zip(counts) {
        job.answer(counts);
    }
}

async fn one_by_one(connection: &mut SqliteConnection, lists: &[&[Change]]) -> Vec<Counts> {
    let mut counts = Vec::with_capacity(lists.len());
    for list in lists {
        let done = together(connection, &[list]).await;
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

/// Makes the changes of several lists in one transaction.
async fn together(
    connection: &mut SqliteConnection,
    lists: &[&[Change]],
) -> Result<Vec<Vec<u64>>, StoreError> {
    // The lock that keeps other writers out is taken at once: a transaction that begins by reading could not get it later.
    let mut transaction = connection.begin_with("begin immediate").await.map_err(refused)?;
    match all(&mut transaction, lists).await {
        Ok(counts) => {
            transaction.commit().await.map_err(unknown)?;
            Ok(counts)
        }
        Err(error) => {
            // If this fails the transaction goes with the connection, and is not made either.
            let _ = transaction.rollback().await;
            Err(error)
        }
    }
}

/// Makes lists, first those that are whole sagas, at once, then the others, change by change: what these take and give back
/// again would be in the way of the first.
async fn all(connection: &mut SqliteConnection, lists: &[&[Change]]) -> Result<Vec<Vec<u64>>, StoreError> {
    let mut sagas = WholeSagas::default();
    let is_whole: Vec<bool> = lists.iter().map(|list| sagas.take(list).is_some()).collect();
    let mut are_done = match sagas.records.is_empty() {
        true => Vec::new(),
        false => commit::commit(connection, &sagas.records).await?,
    }
    .into_iter();
    let mut counts = Vec::with_capacity(lists.len());
    for (list, is_whole) in lists.iter().zip(is_whole) {
        counts.push(match is_whole {
            true => whole::counts(list, are_done.next().unwrap_or(false)),
            false => make(connection, list).await?,
        });
    }
    Ok(counts)
}

async fn make(connection: &mut SqliteConnection, list: &[Change]) -> Result<Vec<u64>, StoreError> {
    let mut counts = vec![0_u64; list.len()];
    let mut script = Script::default();
    for (place, change) in list.iter().enumerate() {
        let mut totals = Totals::new();
        if let Change::Record(_, plan) = change
            && !plan.totals.is_empty()
        {
            // What comes before may count the same assets, so it is made before they are read.
            add(&mut counts, std::mem::take(&mut script).run(connection).await.map_err(refused)?)?;
            let assets: Vec<AssetKey> = plan.totals.iter().map(|change| change.asset.clone()).collect();
            totals = read_totals(connection, assets).await?;
        }
        script.change(place, change, &totals);
    }
    add(&mut counts, script.run(connection).await.map_err(refused)?)?;
    Ok(counts)
}

async fn read_totals(connection: &mut SqliteConnection, assets: Vec<AssetKey>) -> Result<Totals, StoreError> {
    let mut script = Script::default();
    script.read_totals(&assets);
    let mut totals: Totals = assets.into_iter().map(|asset| (asset, AssetSums::default())).collect();
    for row in script.run(connection).await.map_err(refused)? {
        let place: i64 = row.try_get(0).map_err(refused)?;
        let (issued, retired): (String, String) =
            (row.try_get(1).map_err(refused)?, row.try_get(2).map_err(refused)?);
        let (issued, retired) = (parse("issued", &issued)?, parse("retired", &retired)?);
        if let Some(found) = usize::try_from(place).ok().and_then(|place| totals.get_mut(place)) {
            found.1 = AssetSums { issued, retired };
        }
    }
    Ok(totals)
}

/// Adds the rows that say how many rows were changed, and by which change.
fn add(counts: &mut [u64], rows: Vec<SqliteRow>) -> Result<(), StoreError> {
    for row in rows {
        let (place, changed): (i64, i64) =
            (row.try_get(0).map_err(refused)?, row.try_get(1).map_err(refused)?);
        if let Some(count) = usize::try_from(place).ok().and_then(|place| counts.get_mut(place)) {
            *count = count.saturating_add(changed.unsigned_abs());
        }
    }
    Ok(())
}
