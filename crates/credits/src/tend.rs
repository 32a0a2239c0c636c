//! Looking after what was left behind: sagas of dead processes, orphans, holds whose time is over.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use earmark_admission::Answer;
use earmark_core::UnixMs;

use crate::model::{AccountKey, Posting};
use crate::saga::{Engine, Trouble};
use crate::store::{CHANGES_MAX, Change, Due, Filter, Gone, RecordPage, RecordPlace, StoreError};
use crate::task::ReleaseTask;

/// So many records, orphans or holds are looked at in one go.
const BATCH: usize = 64;
/// So many batches of one kind in one round. The next round takes the rest.
const BATCHES_MAX: usize = 64;

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
        let mut page = RecordPage::first(BATCH);
        for _ in 0..BATCHES_MAX {
            let Some(after) = self.recover_some(silent.clone(), page, &mut stuck).await? else { break };
            page = RecordPage { after, max: BATCH };
        }
        self.recover_some(Filter::Of(self.owner), RecordPage::first(BATCH), &mut stuck).await?;
        self.stuck.note(stuck);
        for rid in self.call(self.store.orphans(BATCH)).await? {
            tracing::warn!(%rid, "gave back what was reserved by nobody");
            self.write(vec![Change::Release(rid), Change::Unclaim(rid)]).await?;
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
        for stored in &records.found {
            match self.look_after(stored).await {
                Ok(()) => {}
                Err(error) if error.is_passing() => return Err(error),
                Err(error) => drop(stuck.insert(stored.record.ticket.gate.to_string(), error)),
            }
        }
        Ok(records.next)
    }

    /// Gives back what leases hold whose time is over.
    pub(crate) async fn sweep(&self) -> Result<(), Trouble> {
        for _ in 0..BATCHES_MAX {
            if self.sweep_some(None).await? < BATCH {
                return Ok(());
            }
        }
        Ok(())
    }

    /// The same, of one account.
    pub(crate) fn sweep_account(&self, account: AccountKey) -> Answer<'_, Result<(), Trouble>> {
        Box::pin(async move { self.sweep_some(Some(account)).await.map(drop) })
    }

    async fn sweep_some(&self, account: Option<AccountKey>) -> Result<usize, Trouble> {
        let due = Due { now: self.time.now(), account };
        let found = self.call(self.store.due(due, BATCH)).await?;
        let count = found.len();
        for posting in found {
            self.release(posting).await?;
        }
        Ok(count)
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
