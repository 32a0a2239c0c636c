//! Bringing what is in force in line with the registry.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use earmark_admission::{BackendError, Direction, LimitStanding};
use earmark_core::Kind;
use tigerbeetle::{Account, CreateAccountResult};

use crate::backend::{Inner, Setup, check_account, describe_limit, mixed_up};
use crate::capacity::{self, ChangeRead, Step};
use crate::requests::{Ask, Told};
use crate::table::{Cell, Seen, target};

/// How often whoever is in charge looks for limits that are not in line.
const EVERY: Duration = Duration::from_secs(1);
/// How many limits are looked at in one request, and brought in line at a time.
const LIMITS_AT_ONCE: usize = 100;
/// How often a change is tried again because someone else made one at the same time.
const RACES_MAX: usize = 64;
/// How many failed attempts at one change are skipped.
const ATTEMPTS_MAX: u64 = 1_024;

/// Why accounts are not there.
enum Unestablished {
    /// One is somebody else's.
    ForGood(String),
    /// They could not be asked for, or not all of them, and can be asked for again.
    ForNow(BackendError),
}

impl From<BackendError> for Unestablished {
    fn from(error: BackendError) -> Unestablished {
        Unestablished::ForNow(error)
    }
}

impl From<Unestablished> for BackendError {
    fn from(error: Unestablished) -> BackendError {
        match error {
            Unestablished::ForGood(message) => BackendError::Failed(message),
            Unestablished::ForNow(error) => error,
        }
    }
}

/// What an attempt to set up comes to; nothing if there is to be another.
fn verdict(established: Result<(), Unestablished>) -> Option<Setup> {
    match established {
        Ok(()) => Some(Setup::Ready),
        Err(Unestablished::ForGood(message)) => {
            tracing::error!("{message}");
            Some(Setup::Failed(message))
        }
        Err(Unestablished::ForNow(error)) => {
            tracing::warn!("limits on TigerBeetle are not set up yet: {error}");
            None
        }
    }
}

impl Inner {
    /// Brings a limit in line, as far as that is possible now. Who comes while that is going on waits for it.
    pub(crate) async fn bring_in_line(&self, cell: &Cell) -> Result<LimitStanding, BackendError> {
        let arrived = Instant::now();
        self.set_up().await?;
        // Whoever drives may wait for a cluster that is away. Those behind it are not in a queue that has a bound.
        let Ok(mut driven) = tokio::time::timeout(self.options.deadline, cell.driving.lock()).await else {
            return Err(BackendError::Failed(self.silence()));
        };
        if driven.is_some_and(|began| began >= arrived)
            && let Some(seen) = cell.seen()
        {
            let info = self.registry.limit(&cell.namespace, &cell.key);
            return Ok(capacity::standing(&seen, target(info.as_deref())));
        }
        let began = Instant::now();
        let standing = self.drive(cell).await;
        *driven = standing.is_ok().then_some(began);
        standing
    }

    async fn drive(&self, cell: &Cell) -> Result<LimitStanding, BackendError> {
        if cell.seen().is_none() {
            self.create_accounts(std::slice::from_ref(&cell)).await?;
        }
        for _ in 0..RACES_MAX {
            // The order matters. Whoever changed the registry after it was read here makes a change later than the
            // one that follows here, or has made it already, and then this one is refused.
            let change = self.last_change(cell).await?.saturating_add(1);
            self.registry.refresh().await?;
            let info = self.registry.limit(&cell.namespace, &cell.key);
            let (target, revision) = (target(info.as_deref()), info.map_or(0, |info| info.revision));
            let seen = self.look_at(cell).await?;
            let step = capacity::step(&seen, target);
            if matches!(step, Step::Nothing | Step::Wait) {
                return Ok(capacity::standing(&seen, target));
            }
            match self.change(cell, step, change).await? {
                ChangeRead::Done => {
                    let debt = if seen.in_force == 0 { 0 } else { seen.debt };
                    cell.see(self.next_turn(), revision, Some(Seen { in_force: target, debt, ..seen }));
                    return Ok(capacity::standing(&Seen { in_force: target, ..seen }, target));
                }
                ChangeRead::Exceeded => return Ok(capacity::standing(&seen, target)),
                ChangeRead::Raced | ChangeRead::Spent => {}
                ChangeRead::Failed(message) => return Err(BackendError::Failed(message)),
            }
        }
        Err(BackendError::Failed(format!("others keep changing {}", describe_limit(&cell.key))))
    }

    /// Makes one change, under the first attempt that has not failed yet.
    async fn change(&self, cell: &Cell, step: Step, change: u64) -> Result<ChangeRead, BackendError> {
        for attempt in 0..ATTEMPTS_MAX {
            let chain = capacity::chain(cell, &self.common, step, change, attempt);
            let results = self.create_one(chain, Direction::GivesBack).await?;
            match capacity::read(&results) {
                ChangeRead::Spent => {}
                read => return Ok(read),
            }
        }
        Ok(ChangeRead::Failed(format!("too many changes of {} have failed", describe_limit(&cell.key))))
    }

    /// The number of the last change that stands.
    async fn last_change(&self, cell: &Cell) -> Result<u64, BackendError> {
        match self.ask(Ask::LastChange { account: cell.accounts.limit }).await? {
            Told::Transfers(transfers) => Ok(transfers.first().map_or(0, |last| last.user_data_64)),
            Told::CreatedAccounts(_) | Told::Accounts(_) | Told::Refused(_) => Err(mixed_up()),
        }
    }

    /// What the ledger has of a limit now.
    pub(crate) async fn look_at(&self, cell: &Cell) -> Result<Seen, BackendError> {
        let seen = self.look_at_all(&[cell]).await?.first().copied().flatten();
        seen.ok_or_else(|| {
            BackendError::Failed(format!("TigerBeetle has lost the account of {}", describe_limit(&cell.key)))
        })
    }

    /// What the ledger has of limits now; nothing of those that have no accounts.
    pub(crate) async fn look_at_all(&self, cells: &[&Cell]) -> Result<Vec<Option<Seen>>, BackendError> {
        let mut all = Vec::with_capacity(cells.len());
        for cells in cells.chunks(LIMITS_AT_ONCE) {
            let revisions: Vec<u64> = cells.iter().map(|cell| self.revision(cell)).collect();
            let ids = cells.iter().flat_map(|cell| [cell.accounts.limit, cell.accounts.debt]).collect();
            let (turn, Told::Accounts(found)) = self.look_in_turn(Ask::Accounts(ids)).await? else {
                return Err(mixed_up());
            };
            for (cell, revision) in cells.iter().zip(revisions) {
                let seen = Seen::read(&cell.accounts, &found);
                cell.see(turn, revision, seen);
                all.push(seen);
            }
        }
        Ok(all)
    }

    fn revision(&self, cell: &Cell) -> u64 {
        self.registry.limit(&cell.namespace, &cell.key).map_or(0, |info| info.revision)
    }

    /// Makes the accounts of limits where they are missing.
    async fn create_accounts(&self, cells: &[&Cell]) -> Result<(), Unestablished> {
        for cells in cells.chunks(LIMITS_AT_ONCE / 2) {
            let accounts = cells.iter().flat_map(|cell| cell.accounts.records()).collect();
            let results = self.created(accounts).await?;
            for (cell, results) in cells.iter().zip(results.chunks(2)) {
                for result in results {
                    check_account(result.status, &describe_limit(&cell.key))
                        .map_err(Unestablished::ForGood)?;
                }
            }
        }
        Ok(())
    }

    async fn created(&self, accounts: Vec<Account>) -> Result<Vec<CreateAccountResult>, BackendError> {
        let expected = accounts.len();
        match self.ask(Ask::CreateAccounts(accounts)).await? {
            Told::CreatedAccounts(results) if results.len() == expected => Ok(results),
            Told::CreatedAccounts(_) | Told::Accounts(_) | Told::Transfers(_) | Told::Refused(_) => {
                Err(mixed_up())
            }
        }
    }

    /// Sets up, then looks after the limits until it is stopped.
    pub(crate) async fn run(self: Arc<Inner>) {
        loop {
            if let Some(setup) = verdict(self.establish().await) {
                self.setup.send_replace(setup);
                break;
            }
            tokio::time::sleep(EVERY).await;
        }
        let mut rotation = 0;
        loop {
            if let Err(error) = self.look_after(&mut rotation).await {
                tracing::debug!("limits could not be looked after: {error}");
            }
            tokio::time::sleep(EVERY).await;
        }
    }

    async fn establish(&self) -> Result<(), Unestablished> {
        let results = self.created(self.common.records().to_vec()).await?;
        for (result, what) in results.iter().zip(["the operator", "all leases"]) {
            check_account(result.status, what).map_err(Unestablished::ForGood)?;
        }
        self.ask(Ask::Time).await?;
        let cells = self.wanted();
        let cells: Vec<&Cell> = cells.iter().map(Arc::as_ref).collect();
        self.create_accounts(&cells).await?;
        self.look_at_all(&cells).await?;
        Ok(())
    }

    /// The limits of the registry that have accounts, which are known from now on.
    pub(crate) fn wanted(&self) -> Vec<Arc<Cell>> {
        let limits = self.registry.limits();
        let limits = limits.iter().filter(|(_, info)| !matches!(info.definition.kind, Kind::Credit(_)));
        limits.map(|(namespace, info)| self.table.cell(namespace, &info.definition.key)).collect()
    }

    /// Gets to know the limits of the registry, if it has changed since.
    pub(crate) fn meet_limits(&self) {
        let version = self.registry.version().wrapping_add(1);
        if self.met.load(Ordering::Relaxed) != version {
            self.wanted();
            self.met.store(version, Ordering::Relaxed);
        }
    }

    /// Asks what time it is, so that silence is noticed; looks at some limits in turn; and, if it is for this
    /// process to do, brings those in line that are not.
    async fn look_after(self: &Arc<Inner>, rotation: &mut usize) -> Result<(), BackendError> {
        self.ask(Ask::Time).await?;
        self.meet_limits();
        // Leases that are remembered may have held it, and name it when they are read.
        let retention = Duration::from_millis(self.options.config.retention_ms);
        self.table.forget(|cell| cell.gone_for(self.is_gone(cell)) >= retention);
        let cells = self.table.all();
        let start = if *rotation < cells.len() { *rotation } else { 0 };
        let turn: Vec<&Cell> = cells.iter().skip(start).take(LIMITS_AT_ONCE).map(Arc::as_ref).collect();
        *rotation = start.saturating_add(LIMITS_AT_ONCE);
        self.look_at_all(&turn).await?;
        let out_of_line: Vec<&Arc<Cell>> = cells.iter().filter(|cell| self.is_out_of_line(cell)).collect();
        let decreasing = out_of_line.iter().filter(|cell| self.is_decreasing(cell)).count();
        self.decreasing.store(decreasing, Ordering::Relaxed);
        if !self.registry.is_in_charge() {
            return Ok(());
        }
        for cells in out_of_line.chunks(LIMITS_AT_ONCE) {
            let mut driving = tokio::task::JoinSet::new();
            for cell in cells {
                let (inner, cell) = (Arc::clone(self), Arc::clone(cell));
                driving.spawn(async move { inner.bring_in_line(&cell).await });
            }
            while let Some(driven) = driving.join_next().await {
                if let Ok(Err(error)) = driven {
                    tracing::warn!("a limit could not be brought in line: {error}");
                }
            }
        }
        Ok(())
    }

    /// Whether neither the registry nor the ledger has anything of a limit any more.
    fn is_gone(&self, cell: &Cell) -> bool {
        self.registry.limit(&cell.namespace, &cell.key).is_none()
            && cell.seen().is_none_or(|seen| seen.in_force == 0 && seen.reserved == 0)
    }

    fn is_out_of_line(&self, cell: &Cell) -> bool {
        let target = target(self.registry.limit(&cell.namespace, &cell.key).as_deref());
        cell.seen().map_or(target > 0, |seen| seen.in_force != target)
    }

    fn is_decreasing(&self, cell: &Cell) -> bool {
        let target = target(self.registry.limit(&cell.namespace, &cell.key).as_deref());
        cell.seen().is_some_and(|seen| seen.in_force > target)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The accounts that everything stands on were asked for once. If just then too much was waiting to be read, that was
    /// taken for an answer, and nothing was served until a restart.
    #[test]
    fn a_queue_that_is_full_at_the_start_is_no_reason_to_serve_nothing_ever_after() {
        let full = BackendError::Overloaded("the queue is full");
        assert_eq!(verdict(Err(full.into())), None);
        let foreign =
            check_account(tigerbeetle::CreateAccountStatus::ExistsWithDifferentFlags, "the operator");
        let foreign = foreign.map_err(Unestablished::ForGood);
        assert!(matches!(verdict(foreign), Some(Setup::Failed(message)) if message.contains("flags")));
        assert_eq!(verdict(Ok(())), Some(Setup::Ready));
    }
}
