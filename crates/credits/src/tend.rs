//! Looking after what was left behind: sagas of dead processes, orphans, holds whose time is over.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Mutex, PoisonError};

use earmark_admission::Answer;
use earmark_core::UnixMs;

use crate::model::{AccountKey, Posting};
use crate::saga::{Engine, Trouble};
use crate::side_by_side::side_by_side;
use crate::store::{CHANGES_MAX, Change, Due, DuePlace, Filter, Gone, RecordPage, RecordPlace, StoreError};
use crate::task::ReleaseTask;

/// So many records, orphans or holds are looked at in one go.
const BATCH: usize = 64;
/// So many batches of one kind in one round. The next round takes the rest.
const BATCHES_MAX: usize = 64;
/// So many are seen to side by side: a store commits them together, and those who pay are still many more.
const SIDE_BY_SIDE: usize = 16;
/// So many reservation ids without a record are listed at a time.
const ORPHANS: usize = 1_024;

/// So long a process that is silent and has left nothing is still listed, for people.
const FORGOTTEN_MS: u64 = 60 * 60 * 1_000;
/// A sign of life from further ahead was given by a clock that was wrong.
const AHEAD_MS_MAX: u64 = 60_000;

/// The sagas that the last recovery had to leave as they are.
#[derive(Default)]
pub(crate) struct StuckSagas(Mutex<BTreeMap<String, StoreError>>);

impl StuckSagas {
    /// Says what is stuck: once in the log, and in the metrics for as long as it is.
    fn note(&self, stuck: BTreeMap<String, StoreError>) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for (gate, why) in &stuck {
            if known.get(gate) != Some(why) {
                tracing::error!(%gate, %why, "a saga cannot be finished; what it has reserved stays so");
            }
        }
        metrics::gauge!("earmark_credit_stuck_sagas").set(stuck.len() as f64);
        *known = stuck;
    }
}

/// How far the sweeper has come among the holds that are over.
#[derive(Default)]
pub(crate) struct SweptTo(Mutex<DuePlace>);

impl SweptTo {
    fn get(&self) -> DuePlace {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, place: DuePlace) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = place;
    }
}

/// Where a hold stands among those that end.
fn place(posting: &Posting) -> Option<DuePlace> {
    posting.hold.as_ref().map(|hold| DuePlace { ends_at: hold.ends_at, id: posting.id })
}

impl Engine {
    /// Says that this process lives, and learns what time it is where the rows are.
    pub(crate) async fn beat(&self) -> Result<(), StoreError> {
        let asked_at = self.time.own();
        if let Some(told) = self.call(self.store.time()).await? {
            self.time.learn(asked_at, told, self.time.own());
        }
        self.write(vec![Change::Beat(self.owner, self.time.now())]).await.map(drop)
    }

    /// Drives every saga that nobody drives to its end, and gives back what nobody has reserved.
    pub(crate) async fn recover(&self) -> Result<(), StoreError> {
        let mut stuck = BTreeMap::new();
        let silent = Filter::Silent { but: self.owner, since: self.silent_since() };
        for filter in [silent, Filter::Of(self.owner)] {
            let mut page = RecordPage::first(BATCH);
            for _ in 0..BATCHES_MAX {
                let Some(after) = self.recover_some(filter.clone(), page, &mut stuck).await? else { break };
                page = RecordPage { after, max: BATCH };
            }
        }
        self.stuck.note(stuck);
        self.release_orphans().await
    }

    async fn release_orphans(&self) -> Result<(), StoreError> {
        for _ in 0..BATCHES_MAX {
            let orphans = self.call(self.store.orphans(ORPHANS)).await?;
            let lists = orphans.chunks(CHANGES_MAX / 2).map(|rids| {
                rids.iter().flat_map(|rid| [Change::Release(*rid), Change::Unclaim(*rid)]).collect()
            });
            for some in lists.collect::<Vec<Vec<Change>>>().chunks(SIDE_BY_SIDE) {
                let writes = some.iter().map(|list| self.write(list.clone()));
                for written in side_by_side(writes).await {
                    written?;
                }
            }
            for rid in &orphans {
                tracing::warn!(%rid, "gave back what was reserved by nobody");
            }
            if orphans.len() < ORPHANS {
                break;
            }
        }
        Ok(())
    }

    /// Removes the rows of processes that will not be heard of again. Without one a process is silent, and one that lives
    /// after all has another with its next sign of life.
    pub(crate) async fn forget_the_gone(&self) -> Result<(), StoreError> {
        let now = self.time.now();
        let silent_since = UnixMs::new(now.get().saturating_sub(FORGOTTEN_MS));
        let gone = Gone { silent_since, ahead_of: now.plus_ms(AHEAD_MS_MAX) };
        let found = self.call(self.store.gone(gone, CHANGES_MAX)).await?;
        if !found.is_empty() {
            self.write(found.into_iter().map(Change::Leave).collect()).await?;
        }
        Ok(())
    }

    /// Drives some sagas to their end, and says where the next ones are. One that cannot be read, or that the store
    /// refuses to finish, is left to an operator and keeps nobody from the others.
    async fn recover_some(
        &self,
        filter: Filter,
        page: RecordPage,
        stuck: &mut BTreeMap<String, StoreError>,
    ) -> Result<Option<RecordPlace>, StoreError> {
        let records = self.call(self.store.records(filter, page)).await?;
        stuck.extend(records.unread.into_iter().map(|unread| (unread.gate, unread.why)));
        for some in records.found.chunks(SIDE_BY_SIDE) {
            let results = side_by_side(some.iter().map(|stored| self.look_after(stored))).await;
            for (stored, result) in some.iter().zip(results) {
                match result {
                    Ok(()) => {}
                    Err(error) if error.is_passing() => return Err(error),
                    Err(error) => drop(stuck.insert(stored.record.ticket.gate.to_string(), error)),
                }
            }
        }
        Ok(records.next)
    }

    /// Gives back what leases hold whose time is over. An account that somebody is at work on for too long, and a hold that cannot
    /// be read, keep nobody from the others: the next round goes on behind where this one stopped.
    pub(crate) async fn sweep(&self) -> Result<(), Trouble> {
        let (mut after, mut busy, mut trouble) = (self.swept.get(), HashSet::new(), None);
        for _ in 0..BATCHES_MAX {
            let found = self.due(None, after).await?;
            for some in found.chunks(SIDE_BY_SIDE) {
                let some: Vec<&Posting> = some.iter().filter(|each| !busy.contains(&each.account)).collect();
                let results = side_by_side(some.iter().map(|posting| self.release((*posting).clone()))).await;
                for (posting, result) in some.into_iter().zip(results) {
                    match result {
                        Ok(()) => {}
                        Err(Trouble::Busy) => drop(busy.insert(posting.account.clone())),
                        Err(Trouble::Store(error)) if error.is_passing() => return Err(error.into()),
                        Err(error) => trouble = trouble.or(Some(error)),
                    }
                }
            }
            let last = found.last().filter(|_| found.len() == BATCH).and_then(place);
            after = last.unwrap_or_default();
            self.swept.set(after);
            if last.is_none() {
                break;
            }
        }
        trouble.map_or(Ok(()), Err)
    }

    /// The same for some of what is over of one account.
    pub(crate) fn sweep_account(&self, account: AccountKey) -> Answer<'_, Result<(), Trouble>> {
        Box::pin(async move {
            let found = self.due(Some(account), DuePlace::default()).await?;
            for some in found.chunks(SIDE_BY_SIDE) {
                for result in side_by_side(some.iter().map(|posting| self.release(posting.clone()))).await {
                    result?;
                }
            }
            Ok(())
        })
    }

    async fn due(&self, account: Option<AccountKey>, after: DuePlace) -> Result<Vec<Posting>, Trouble> {
        let due = Due { now: self.time.now(), account, after };
        Ok(self.call(self.store.due(due, BATCH)).await?)
    }

    /// Gives back what a lease holds.
    pub(crate) fn release(&self, posting: Posting) -> Answer<'_, Result<(), Trouble>> {
        Box::pin(async move {
            if let Some(task) = ReleaseTask::new(posting) {
                self.carry_out(&task).await?;
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
    fn a_saga_is_measured_as_stuck_for_as_long_as_it_is() {
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
