//! Reconciles the capacities in force with the registry.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use earmark_admission::{BackendError, Direction, EnforcedStatus};
use earmark_core::{Kind, LimitKey, NamespaceName};
use tigerbeetle::{Account, CreateAccountResult};

use crate::backend::{Inner, Setup, check_account, describe_limit};
use crate::capacity::{self, ChangeResult, Step};
use crate::limit_table::{LimitTotals, TrackedLimit, target};
use crate::reads::{CreateAccounts, LastChange, LedgerTime, LookUpAccounts};
use crate::schema::LimitName;

/// Interval of the background reconciliation.
const EVERY: Duration = Duration::from_secs(1);
/// Limits per lookup request, and reconciled in parallel.
const LIMITS_AT_ONCE: usize = 100;
/// Attempts at one change while other processes change the same limit.
const RACES_MAX: usize = 64;
/// Failed attempts at one change that are skipped.
const ATTEMPTS_MAX: u64 = 1_024;

/// Why setup failed.
enum SetupError {
    /// An account belongs to another application.
    Foreign(String),
    /// The request failed; setup is tried again.
    Retry(BackendError),
}

impl From<BackendError> for SetupError {
    fn from(error: BackendError) -> SetupError {
        SetupError::Retry(error)
    }
}

impl From<SetupError> for BackendError {
    fn from(error: SetupError) -> BackendError {
        match error {
            SetupError::Foreign(message) => BackendError::Failed(message),
            SetupError::Retry(error) => error,
        }
    }
}

/// The setup state after an attempt; `None` to try again.
fn setup_after(established: Result<(), SetupError>) -> Option<Setup> {
    match established {
        Ok(()) => Some(Setup::Ready),
        Err(SetupError::Foreign(message)) => {
            tracing::error!("{message}");
            Some(Setup::Failed(message))
        }
        Err(SetupError::Retry(error)) => {
            tracing::warn!("setup on TigerBeetle failed and is tried again: {error}");
            None
        }
    }
}

impl Inner {
    /// Reconciles a limit as far as possible now. Concurrent callers wait and share the result.
    pub(crate) async fn reconcile(&self, tracked: &TrackedLimit) -> Result<EnforcedStatus, BackendError> {
        let arrived = Instant::now();
        self.wait_for_setup().await?;
        // The holder of the lock may wait for a silent cluster, and waiters here have no bounded queue.
        let Ok(mut reconciled) = tokio::time::timeout(self.options.deadline, tracked.reconciling.lock()).await else {
            return Err(BackendError::Failed(self.timeout_message()));
        };
        if reconciled.is_some_and(|began| began >= arrived)
            && let Some(totals) = tracked.totals()
        {
            let info = self.info(&tracked.name);
            return Ok(capacity::enforced_status(&totals, target(info.as_deref())));
        }
        let began = Instant::now();
        let enforced = self.reconcile_now(tracked).await;
        *reconciled = enforced.is_ok().then_some(began);
        enforced
    }

    async fn reconcile_now(&self, tracked: &TrackedLimit) -> Result<EnforcedStatus, BackendError> {
        if tracked.totals().is_none() {
            self.create_accounts(std::slice::from_ref(&tracked)).await?;
        }
        for _ in 0..RACES_MAX {
            // The order matters: read the change number before the registry. A process that changes the registry after
            // this read uses a later change number, or has used this one, and then this change is refused.
            let change = self.last_change(tracked).await?.saturating_add(1);
            self.registry.refresh().await?;
            let info = self.info(&tracked.name);
            let (target, revision) = (target(info.as_deref()), info.map_or(0, |info| info.revision));
            let totals = self.read_limit(tracked).await?;
            let step = capacity::step(&totals, target);
            if matches!(step, Step::Nothing | Step::Wait) {
                return Ok(capacity::enforced_status(&totals, target));
            }
            match self.change(tracked, step, change).await? {
                ChangeResult::Done => {
                    let debt = if totals.in_force == 0 { 0 } else { totals.debt };
                    tracked.store_totals(
                        self.next_lookup_number(),
                        revision,
                        Some(LimitTotals { in_force: target, debt, ..totals }),
                    );
                    return Ok(capacity::enforced_status(&LimitTotals { in_force: target, ..totals }, target));
                }
                ChangeResult::Exceeded => return Ok(capacity::enforced_status(&totals, target)),
                ChangeResult::Raced | ChangeResult::Spent => {}
                ChangeResult::Failed(message) => return Err(BackendError::Failed(message)),
            }
        }
        Err(BackendError::Failed(format!("other processes keep changing {}; try again", describe_limit(&tracked.name))))
    }

    /// Makes one change, under the first attempt id that has not failed.
    async fn change(&self, tracked: &TrackedLimit, step: Step, change: u64) -> Result<ChangeResult, BackendError> {
        for attempt in 0..ATTEMPTS_MAX {
            let chain = capacity::chain(tracked, &self.common, step, change, attempt);
            let results = self.create_one(chain, Direction::GivesBack).await?;
            match capacity::read(&results) {
                ChangeResult::Spent => {}
                read => return Ok(read),
            }
        }
        Ok(ChangeResult::Failed(format!("{ATTEMPTS_MAX} attempts to change {} failed", describe_limit(&tracked.name))))
    }

    /// Number of the last successful change.
    async fn last_change(&self, tracked: &TrackedLimit) -> Result<u64, BackendError> {
        let transfers = self.read(LastChange(tracked.accounts.limit)).await?;
        Ok(transfers.first().map_or(0, |last| last.user_data_64))
    }

    /// Reads the accounts of a limit.
    pub(crate) async fn read_limit(&self, tracked: &TrackedLimit) -> Result<LimitTotals, BackendError> {
        let totals = self.read_limits(&[tracked]).await?.first().copied().flatten();
        totals.ok_or_else(|| {
            BackendError::Failed(format!(
                "TigerBeetle has no account for {}; is this another data file?",
                describe_limit(&tracked.name)
            ))
        })
    }

    /// Reads the accounts of limits; `None` where they do not exist.
    pub(crate) async fn read_limits(
        &self,
        tracked_limits: &[&TrackedLimit],
    ) -> Result<Vec<Option<LimitTotals>>, BackendError> {
        let mut all = Vec::with_capacity(tracked_limits.len());
        for tracked_limits in tracked_limits.chunks(LIMITS_AT_ONCE) {
            let revisions: Vec<u64> = tracked_limits.iter().map(|tracked| self.revision(tracked)).collect();
            let ids =
                tracked_limits.iter().flat_map(|tracked| [tracked.accounts.limit, tracked.accounts.debt]).collect();
            let (number, found) = self.read_numbered(LookUpAccounts(ids)).await?;
            for (tracked, revision) in tracked_limits.iter().zip(revisions) {
                let totals = LimitTotals::read(&tracked.accounts, &found);
                tracked.store_totals(number, revision, totals);
                all.push(totals);
            }
        }
        Ok(all)
    }

    fn revision(&self, tracked: &TrackedLimit) -> u64 {
        self.info(&tracked.name).map_or(0, |info| info.revision)
    }

    /// Creates missing accounts of limits.
    async fn create_accounts(&self, tracked_limits: &[&TrackedLimit]) -> Result<(), SetupError> {
        for tracked_limits in tracked_limits.chunks(LIMITS_AT_ONCE / 2) {
            let accounts = tracked_limits.iter().flat_map(|tracked| tracked.accounts.records()).collect();
            let results = self.created(accounts).await?;
            for (tracked, results) in tracked_limits.iter().zip(results.chunks(2)) {
                for result in results {
                    check_account(result.status, &describe_limit(&tracked.name)).map_err(SetupError::Foreign)?;
                }
            }
        }
        Ok(())
    }

    async fn created(&self, accounts: Vec<Account>) -> Result<Vec<CreateAccountResult>, BackendError> {
        let expected = accounts.len();
        let results = self.read(CreateAccounts(accounts)).await?;
        match results.len() {
            found if found == expected => Ok(results),
            found => Err(BackendError::Failed(format!("TigerBeetle gave {found} results for {expected} accounts"))),
        }
    }

    /// Sets up, then maintains the limits until shutdown.
    pub(crate) async fn run(self: Arc<Inner>) {
        loop {
            if let Some(setup) = setup_after(self.establish().await) {
                self.setup.send_replace(setup);
                break;
            }
            tokio::time::sleep(EVERY).await;
        }
        let mut rotation = 0;
        loop {
            if let Err(error) = self.maintain(&mut rotation).await {
                tracing::debug!("maintenance of limits failed: {error}");
            }
            tokio::time::sleep(EVERY).await;
        }
    }

    async fn establish(&self) -> Result<(), SetupError> {
        let results = self.created(self.common.records().to_vec()).await?;
        for (result, what) in results.iter().zip(["the operator", "all leases"]) {
            check_account(result.status, what).map_err(SetupError::Foreign)?;
        }
        self.read(LedgerTime).await?;
        let tracked_limits = self.registered_limits();
        let tracked_limits: Vec<&TrackedLimit> = tracked_limits.iter().map(Arc::as_ref).collect();
        self.create_accounts(&tracked_limits).await?;
        self.read_limits(&tracked_limits).await?;
        Ok(())
    }

    /// The limits of the registry that have accounts. Adds them to the table.
    pub(crate) fn registered_limits(&self) -> Vec<Arc<TrackedLimit>> {
        let limits = self.registry.limits();
        let limits = limits.iter().filter(|(_, info)| !matches!(info.definition.kind, Kind::Credit(_)));
        let name =
            |namespace: &NamespaceName, key: &LimitKey| LimitName { namespace: namespace.clone(), key: key.clone() };
        limits.map(|(namespace, info)| self.table.limit(&name(namespace, &info.definition.key), Some(info))).collect()
    }

    /// Adds the limits of the registry to the table if the registry changed.
    pub(crate) fn load_limits(&self) {
        let version = self.registry.version().wrapping_add(1);
        if self.loaded_version.load(Ordering::Relaxed) != version {
            self.registered_limits();
            self.loaded_version.store(version, Ordering::Relaxed);
        }
    }

    /// Reads the ledger's time, so that a silent cluster is noticed; refreshes some limits; and, on the leader,
    /// reconciles limits that differ from the registry.
    async fn maintain(self: &Arc<Inner>, rotation: &mut usize) -> Result<(), BackendError> {
        self.read(LedgerTime).await?;
        self.load_limits();
        // A cached lease may still name a deleted limit, so keep it in the table for the retention.
        let retention = Duration::from_millis(self.config().retention_ms);
        self.table.forget(|tracked| tracked.gone_for(self.is_gone(tracked)) >= retention);
        let tracked_limits = self.table.all();
        let start = if *rotation < tracked_limits.len() { *rotation } else { 0 };
        let batch: Vec<&TrackedLimit> =
            tracked_limits.iter().skip(start).take(LIMITS_AT_ONCE).map(Arc::as_ref).collect();
        *rotation = start.saturating_add(LIMITS_AT_ONCE);
        self.read_limits(&batch).await?;
        let differing: Vec<&Arc<TrackedLimit>> =
            tracked_limits.iter().filter(|tracked| self.differs_from_registry(tracked)).collect();
        let decreasing = differing.iter().filter(|tracked| self.is_decreasing(tracked)).count();
        self.decreasing.store(decreasing, Ordering::Relaxed);
        if !self.registry.runs_maintenance() {
            return Ok(());
        }
        for tracked_limits in differing.chunks(LIMITS_AT_ONCE) {
            let mut reconciling = tokio::task::JoinSet::new();
            for tracked in tracked_limits {
                let (inner, tracked) = (Arc::clone(self), Arc::clone(tracked));
                reconciling.spawn(async move { inner.reconcile(&tracked).await });
            }
            while let Some(reconciled) = reconciling.join_next().await {
                if let Ok(Err(error)) = reconciled {
                    tracing::warn!("a limit differs from the registry and could not be changed: {error}");
                }
            }
        }
        Ok(())
    }

    /// Whether the limit is neither put nor in the ledger. A deleted limit may follow a template; then the cache of
    /// derived limits keeps it.
    fn is_gone(&self, tracked: &TrackedLimit) -> bool {
        let info = self.info(&tracked.name);
        info.as_ref().is_some_and(|info| info.template.is_some())
            || info.is_none() && tracked.totals().is_none_or(|totals| totals.in_force == 0 && totals.reserved == 0)
    }

    fn differs_from_registry(&self, tracked: &TrackedLimit) -> bool {
        let target = target(self.info(&tracked.name).as_deref());
        tracked.totals().map_or(target > 0, |totals| totals.in_force != target)
    }

    fn is_decreasing(&self, tracked: &TrackedLimit) -> bool {
        let target = target(self.info(&tracked.name).as_deref());
        tracked.totals().is_some_and(|totals| totals.in_force > target)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: setup asked for the common accounts once. A full read queue at that moment counted as an answer, and
    /// nothing was served until a restart.
    #[test]
    fn a_queue_that_is_full_at_the_start_is_no_reason_to_serve_nothing_ever_after() {
        let full = BackendError::Overloaded("the queue is full");
        assert_eq!(setup_after(Err(full.into())), None);
        let foreign = check_account(tigerbeetle::CreateAccountStatus::ExistsWithDifferentFlags, "the operator");
        let foreign = foreign.map_err(SetupError::Foreign);
        assert!(matches!(setup_after(foreign), Some(Setup::Failed(message)) if message.contains("flags")));
        assert_eq!(setup_after(Ok(())), Some(Setup::Ready));
    }
}
