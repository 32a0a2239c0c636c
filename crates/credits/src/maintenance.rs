//! Maintenance of a store: heartbeats, recovery of abandoned sagas, release of orphans, settlement of holds that timed
//! out.
//!
//! An *owner* is a process that drives sagas on the store. It counts as dead when its heartbeat is too old. An *orphan*
//! is a reservation in the store without a saga record.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::{Mutex, PoisonError};

use earmark_admission::Answer;
use earmark_core::UnixMs;
use futures_util::future::join_all;

use crate::model::{AccountKey, Plan, Posting};
use crate::saga::{Engine, TaskError};
use crate::store::{
    CHANGES_MAX, Change, DueCursor, DueQuery, Filter, RecordCursor, RecordPage, StaleOwners, StoreError,
};
use crate::task::{ExpireTask, IssueTask, TimeoutTask, is_covered};

/// Records or holds per read.
const BATCH: usize = 64;
/// Reads per kind and round. The next round continues.
const BATCHES_MAX: usize = 64;
/// Concurrent recoveries or releases: enough for the store to commit several together, few next to the requests in
/// flight, so that maintenance does not slow payments down.
const CONCURRENT: usize = 16;
/// Orphans per read.
const ORPHANS: usize = 1_024;

/// How long the heartbeat row of a dead process is kept for operators, in milliseconds.
const HEARTBEAT_RETENTION_MS: u64 = 60 * 60 * 1_000;
/// How far in the future a heartbeat may be, in milliseconds. One further ahead comes from a wrong clock.
const HEARTBEAT_AHEAD_MS_MAX: u64 = 60_000;

/// The sagas that the last recovery could not finish, by gate. They need an operator.
#[derive(Default)]
pub(crate) struct StuckSagas(Mutex<BTreeMap<String, StoreError>>);

impl StuckSagas {
    /// Replaces the list. Logs each saga that is new or has a new error, and sets the gauge.
    fn note(&self, stuck: BTreeMap<String, StoreError>) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for (gate, why) in &stuck {
            if known.get(gate) != Some(why) {
                tracing::error!(%gate, %why, "a saga cannot be finished; its rows stay reserved");
            }
        }
        metrics::gauge!("earmark_credit_stuck_sagas").set(stuck.len() as f64);
        *known = stuck;
    }
}

/// Where the next round of the sweep of timed-out holds continues.
#[derive(Default)]
pub(crate) struct SweepCursor(Mutex<DueCursor>);

impl SweepCursor {
    fn get(&self) -> DueCursor {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, cursor: DueCursor) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = cursor;
    }
}

/// The position of a held posting in the list of timed-out holds.
fn cursor_of(posting: &Posting) -> Option<DueCursor> {
    posting.hold.as_ref().map(|hold| DueCursor { ends_at: hold.ends_at, id: posting.id })
}

impl Engine {
    /// Records a heartbeat of this process, and adjusts its time to the store's clock.
    pub(crate) async fn heartbeat(&self) -> Result<(), StoreError> {
        let asked_at = self.time.own();
        if let Some(store_time) = self.call(self.store.time()).await? {
            self.time.learn(asked_at, store_time, self.time.own());
        }
        self.write(vec![Change::Heartbeat(self.owner, self.time.now())]).await.map(drop)
    }

    /// Drives abandoned sagas to their end, then releases orphans. Abandoned are the sagas of dead processes, and those
    /// of this process that no request drives any more.
    pub(crate) async fn recover(&self) -> Result<(), StoreError> {
        let mut stuck = BTreeMap::new();
        let dead = Filter::Expired { except: self.owner, since: self.expired_since() };
        for filter in [dead, Filter::OwnedBy(self.owner)] {
            let mut page = RecordPage::first(BATCH);
            for _ in 0..BATCHES_MAX {
                let Some(after) = self.recover_some(filter.clone(), page, &mut stuck).await? else { break };
                page = RecordPage { after, max: BATCH };
            }
        }
        self.stuck.note(stuck);
        self.release_orphans().await
    }

    /// Releases the postings and accounts that a reservation without a saga record still occupies.
    async fn release_orphans(&self) -> Result<(), StoreError> {
        for _ in 0..BATCHES_MAX {
            let orphans = self.call(self.store.orphans(ORPHANS)).await?;
            let lists = orphans
                .chunks(CHANGES_MAX / 2)
                .map(|rids| rids.iter().flat_map(|rid| [Change::Release(*rid), Change::Unclaim(*rid)]).collect());
            for some in lists.collect::<Vec<Vec<Change>>>().chunks(CONCURRENT) {
                let writes = some.iter().map(|list| self.write(list.clone()));
                for written in join_all(writes).await {
                    written?;
                }
            }
            for rid in &orphans {
                tracing::warn!(%rid, "released rows that no saga owns");
            }
            if orphans.len() < ORPHANS {
                break;
            }
        }
        Ok(())
    }

    /// Deletes heartbeat rows that are no longer needed: of processes dead for an hour that own no saga record, and
    /// rows from a wrong clock. A process that is alive after all inserts its row again with its next heartbeat.
    pub(crate) async fn delete_stale_owners(&self) -> Result<(), StoreError> {
        let now = self.time.now();
        let expired_since = UnixMs::new(now.get().saturating_sub(HEARTBEAT_RETENTION_MS));
        let stale = StaleOwners { expired_since, ahead_of: now.plus_ms(HEARTBEAT_AHEAD_MS_MAX) };
        let found = self.call(self.store.stale_owners(stale, CHANGES_MAX)).await?;
        if !found.is_empty() {
            self.write(found.into_iter().map(Change::Leave).collect()).await?;
        }
        Ok(())
    }

    /// Recovers one page of sagas and returns the cursor of the next page. A saga that cannot be read or finished goes
    /// into `stuck` and does not block the others. A transient error of the store ends the round.
    async fn recover_some(
        &self,
        filter: Filter,
        page: RecordPage,
        stuck: &mut BTreeMap<String, StoreError>,
    ) -> Result<Option<RecordCursor>, StoreError> {
        let records = self.call(self.store.records(filter, page)).await?;
        stuck.extend(records.unread.into_iter().map(|unread| (unread.gate, unread.why)));
        for some in records.found.chunks(CONCURRENT) {
            let results = join_all(some.iter().map(|stored| self.recover_saga(stored))).await;
            for (stored, result) in some.iter().zip(results) {
                match result {
                    Ok(()) => {}
                    Err(error) if error.is_transient() => return Err(error),
                    Err(error) => drop(stuck.insert(stored.record.token.gate.to_string(), error)),
                }
            }
        }
        Ok(records.next)
    }

    /// Settles holds that timed out, and returns the first error that needs an operator.
    ///
    /// A busy account or a hold that cannot be settled does not block the others. The cursor moves past it, and wraps
    /// around to the first hold after the last page, so a later round tries it again.
    pub(crate) async fn sweep(&self) -> Result<(), TaskError> {
        let (mut after, mut busy, mut first_error) = (self.swept.get(), HashSet::new(), None);
        for _ in 0..BATCHES_MAX {
            let found = self.due(None, after).await?;
            for some in found.chunks(CONCURRENT) {
                let some: Vec<&Posting> = some.iter().filter(|each| !busy.contains(&each.account)).collect();
                let results = join_all(some.iter().map(|posting| self.time_out((*posting).clone()))).await;
                for (posting, result) in some.into_iter().zip(results) {
                    match result {
                        Ok(()) => {}
                        Err(TaskError::Busy) => drop(busy.insert(posting.account.clone())),
                        Err(TaskError::Store(error)) if error.is_transient() => return Err(error.into()),
                        Err(error) => first_error = first_error.or(Some(error)),
                    }
                }
            }
            let last = found.last().filter(|_| found.len() == BATCH).and_then(cursor_of);
            after = last.unwrap_or_default();
            self.swept.set(after);
            if last.is_none() {
                break;
            }
        }
        first_error.map_or(Ok(()), Err)
    }

    /// Settles timed-out holds of one account that return credit, at most one page, for a request that needs it now.
    ///
    /// A hold that does not cover the reported usage returns nothing. Its timeout may itself need what others return, so
    /// it is left to the sweep.
    pub(crate) fn sweep_account(&self, account: AccountKey) -> Answer<'_, Result<(), TaskError>> {
        Box::pin(async move {
            let mut after = DueCursor::default();
            for _ in 0..BATCHES_MAX {
                let found = self.due(Some(account.clone()), after).await?;
                let covered: Vec<&Posting> = found.iter().filter(|posting| is_covered(posting)).collect();
                for some in covered.chunks(CONCURRENT) {
                    for result in join_all(some.iter().map(|posting| self.time_out((*posting).clone()))).await {
                        result?;
                    }
                }
                match found.last().filter(|_| covered.is_empty() && found.len() == BATCH).and_then(cursor_of) {
                    Some(last) => after = last,
                    None => break,
                }
            }
            Ok(())
        })
    }

    /// One page of holds that have timed out, of one account or of all.
    async fn due(&self, account: Option<AccountKey>, after: DueCursor) -> Result<Vec<Posting>, TaskError> {
        let due = DueQuery { now: self.time.now(), account, after };
        Ok(self.call(self.store.due(due, BATCH)).await?)
    }

    /// Issues plans and records the expiry of grants that are due, and returns the first error that needs an operator. A busy account does
    /// not block the others; a later round tries it again.
    pub(crate) async fn sweep_grants(&self) -> Result<(), TaskError> {
        let (mut after, mut first_error) = (DueCursor::default(), None);
        for _ in 0..BATCHES_MAX {
            let due = DueQuery { now: self.time.as_of().expiry, account: None, after };
            let found = self.call(self.store.expiring(due, BATCH)).await?;
            let accounts: BTreeSet<&AccountKey> = found.iter().map(|posting| &posting.account).collect();
            let accounts: Vec<&AccountKey> = accounts.into_iter().collect();
            for some in accounts.chunks(CONCURRENT) {
                for result in join_all(some.iter().map(|account| self.apply_due((*account).clone()))).await {
                    match result {
                        Ok(_) | Err(TaskError::Busy) => {}
                        Err(TaskError::Store(error)) if error.is_transient() => return Err(error.into()),
                        Err(error) => first_error = first_error.or(Some(error)),
                    }
                }
            }
            match found.last().filter(|_| found.len() == BATCH) {
                Some(last) => {
                    let ends_at = last.terms.expires_at().unwrap_or_default();
                    after = DueCursor { ends_at, id: last.id };
                }
                None => break,
            }
        }
        first_error.map_or(Ok(()), Err)
    }

    /// Issues the plan of an account if it is due, then records the expiry of its grants that are.
    pub(crate) fn apply_due(&self, account: AccountKey) -> Answer<'_, Result<(), TaskError>> {
        Box::pin(async move {
            self.issue(account.clone()).await?;
            for _ in 0..BATCHES_MAX {
                let (now, account) = (self.time.as_of().expiry, Some(account.clone()));
                let due = DueQuery { now, account, after: DueCursor::default() };
                let found = self.call(self.store.expiring(due, 2)).await?;
                let Some(posting) = found.iter().find(|posting| posting.plan.is_none()) else { break };
                if !self.execute(&ExpireTask::new(posting)).await? {
                    break;
                }
            }
            Ok(())
        })
    }

    /// Issues the plan of an account if it is due. Returns whether it is not due any more: a plan may have to wait.
    pub(crate) fn issue(&self, account: AccountKey) -> Answer<'_, Result<bool, TaskError>> {
        Box::pin(async move {
            match self.call(self.store.plan_mark(account)).await? {
                Some((mark, _)) if mark.terms.is_expired(self.time.as_of().expiry) => {
                    self.execute(&IssueTask::new(&mark)).await
                }
                _ => Ok(true),
            }
        })
    }

    /// Issues the plans that a transaction set, and records the expiry of what returned to grants that have expired
    /// meanwhile. A failure is left to the
    /// sweep: the plan has taken effect.
    pub(crate) async fn apply_due_outputs(&self, plan: &Plan) {
        if plan.outputs.iter().all(|posting| posting.terms.expires_at().is_none()) {
            return;
        }
        let expiry = self.time.as_of().expiry;
        let mut accounts: Vec<&AccountKey> = Vec::new();
        for posting in plan.outputs.iter().filter(|posting| posting.terms.is_expired(expiry)) {
            if !accounts.contains(&&posting.account) {
                accounts.push(&posting.account);
            }
        }
        for account in accounts {
            let _ = self.apply_due(account.clone()).await;
        }
    }

    /// Settles the hold on a posting at its timeout. A posting without a hold is left as it is.
    pub(crate) fn time_out(&self, posting: Posting) -> Answer<'_, Result<(), TaskError>> {
        Box::pin(async move {
            if let Some(task) = TimeoutTask::new(posting) {
                self.execute(&task).await?;
            }
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use metrics_exporter_prometheus::PrometheusBuilder;

    use super::*;

    #[test]
    fn the_gauge_counts_the_sagas_that_are_stuck_now() {
        let (recorder, sagas) = (PrometheusBuilder::new().build_recorder(), StuckSagas::default());
        let why = StoreError::Corrupt("version 99".to_owned());
        for gates in [&["a", "b"][..], &["b"], &[]] {
            let stuck = gates.iter().map(|gate| ((*gate).to_owned(), why.clone())).collect();
            metrics::with_local_recorder(&recorder, || sagas.note(stuck));
            let text = recorder.handle().render();
            let line = format!("\nearmark_credit_stuck_sagas {}\n", gates.len());
            assert!(text.contains(&line), "{text}");
        }
    }
}
