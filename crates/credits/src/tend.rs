//! Looking after what was left behind: sagas of dead processes, orphans, holds whose time is over.

use earmark_admission::Answer;

use crate::model::{AccountKey, Posting};
use crate::saga::{Engine, Trouble};
use crate::store::{Change, Due, Filter, StoreError};
use crate::task::ReleaseTask;

/// So many records, orphans or holds are looked at in one go.
const BATCH: usize = 64;
/// So many batches of one kind in one round. The next round takes the rest.
const BATCHES_MAX: usize = 64;

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
        let silent = || Filter::Silent { but: self.owner, since: self.silent_since() };
        for _ in 0..BATCHES_MAX {
            let records = self.call(self.store.records(silent(), BATCH)).await?;
            for stored in &records {
                self.look_after(stored).await?;
            }
            if records.len() < BATCH {
                break;
            }
        }
        for stored in self.call(self.store.records(Filter::Of(self.owner), BATCH)).await? {
            self.look_after(&stored).await?;
        }
        for rid in self.call(self.store.orphans(BATCH)).await? {
            tracing::warn!(%rid, "gave back what was reserved by nobody");
            self.write(vec![Change::Release(rid), Change::Unclaim(rid)]).await?;
        }
        Ok(())
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
