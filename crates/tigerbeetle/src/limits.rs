//! `trait Limits`, on the ledger.

use std::sync::Arc;

use earmark_admission::{
    Amount, Answer, BackendError, CompleteAnswer, LeaseView, LimitStanding, Limits, LimitsComplete,
    LimitsReserve, ReserveAnswer, Stats,
};
use earmark_core::{Kind, LeaseId, LeaseState, LimitInfo, LimitKey, LimitStatus, NamespaceName, Usage};

use crate::backend::{Inner, TigerBeetleLimits};
use crate::capacity::{Step, as_if_done, standing, step};
use crate::chart::{Ending, LeaseName, Origin};
use crate::leases::Memory;
use crate::table::{Cell, Seen, target};

impl Inner {
    async fn changed(
        self: Arc<Inner>,
        namespace: NamespaceName,
        key: LimitKey,
    ) -> Result<LimitStanding, BackendError> {
        let info = self.registry.limit(&namespace, &key);
        if info.is_some_and(|info| matches!(info.definition.kind, Kind::Credit(_))) {
            return Ok(LimitStanding::InForce);
        }
        self.bring_in_line(&self.table.cell(&namespace, &key)).await
    }

    async fn standings(
        self: Arc<Inner>,
        namespace: NamespaceName,
        limits: Vec<Arc<LimitInfo>>,
    ) -> Result<Vec<LimitStanding>, BackendError> {
        let cells: Vec<Arc<Cell>> =
            limits.iter().map(|info| self.table.cell(&namespace, &info.definition.key)).collect();
        let cells: Vec<&Cell> = cells.iter().map(Arc::as_ref).collect();
        let seen = self.look_at_all(&cells).await?;
        let mut standings = Vec::with_capacity(limits.len());
        for ((info, cell), seen) in limits.iter().zip(cells).zip(seen) {
            let seen = seen.unwrap_or_default();
            // What was deleted and can go is gone from now on, so that a limit of the same name is a new one.
            let can_go = target(Some(info)) == 0 && matches!(step(&seen, 0), Step::Down { .. });
            standings.push(if can_go { self.bring_in_line(cell).await? } else { stands(info, seen) });
        }
        Ok(standings)
    }

    async fn usage(
        self: Arc<Inner>,
        namespace: NamespaceName,
        info: Arc<LimitInfo>,
    ) -> Result<Usage, BackendError> {
        let cell = self.table.cell(&namespace, &info.definition.key);
        let seen = self.look_at_all(&[&cell]).await?.first().copied().flatten();
        Ok(usage(&info, seen.unwrap_or_default()))
    }

    async fn lease(
        self: Arc<Inner>,
        namespace: NamespaceName,
        lease: LeaseId,
    ) -> Result<Option<LeaseView>, BackendError> {
        // Before that nobody knows what time it is in the ledger.
        self.set_up().await?;
        let name = LeaseName::new(namespace, lease);
        let was_denied = matches!(self.leases.get(name.id), Some(Memory::Denied(_)));
        let record = self.look(&name).await?;
        // A mark says only that somebody has completed it.
        if was_denied && record.as_ref().is_none_or(|record| record.origin == Origin::Marked) {
            return Ok(Some(LeaseView {
                reserved_at: None,
                requirements: Vec::new(),
                state: LeaseState::Denied,
            }));
        }
        let Some(record) = record else { return Ok(None) };
        let state = record.state(self.shared.clock.now_ns());
        let is_allowed = record.origin == Origin::Reserved && record.ending != Some(Ending::Released);
        let held = record.held.iter().filter(|_| record.ending.is_none());
        let requirements =
            held.filter_map(|held| Some(Amount { key: held.key.clone()?, amount: held.amount })).collect();
        Ok(Some(LeaseView { reserved_at: is_allowed.then(|| record.reserved_at()), requirements, state }))
    }
}

fn stands(info: &LimitInfo, seen: Seen) -> LimitStanding {
    if matches!(info.definition.kind, Kind::Credit(_)) {
        return LimitStanding::InForce;
    }
    let target = target(Some(info));
    standing(&as_if_done(seen, target), target)
}

fn usage(info: &LimitInfo, seen: Seen) -> Usage {
    let target = target(Some(info));
    let seen = as_if_done(seen, target);
    let status = match standing(&seen, target) {
        LimitStanding::InForce => LimitStatus::Active,
        LimitStanding::Decreasing => LimitStatus::Decreasing { to: target },
        LimitStanding::Gone => LimitStatus::Deleted,
    };
    Usage {
        capacity: seen.in_force,
        reserved: seen.reserved,
        available: seen.available(),
        debt: seen.debt,
        status,
    }
}

/// The same failure for each of several requests.
fn to_all<T>(
    count: usize,
    answers: Result<Vec<Result<T, BackendError>>, BackendError>,
) -> Vec<Result<T, BackendError>> {
    answers.unwrap_or_else(|error| std::iter::repeat_with(|| Err(error.clone())).take(count).collect())
}

impl Limits for TigerBeetleLimits {
    fn reserve(&self, requests: Vec<LimitsReserve>) -> Answer<'_, Vec<Result<ReserveAnswer, BackendError>>> {
        let count = requests.len();
        let work = Arc::clone(&self.inner).reserve_all(requests);
        Box::pin(async move { to_all(count, self.inner.within_deadline(work).await) })
    }

    fn complete(
        &self,
        requests: Vec<LimitsComplete>,
    ) -> Answer<'_, Vec<Result<CompleteAnswer, BackendError>>> {
        let count = requests.len();
        let work = Arc::clone(&self.inner).complete_all(requests);
        Box::pin(async move { to_all(count, self.inner.within_deadline(work).await) })
    }

    fn release(&self, namespace: NamespaceName, lease: LeaseId) -> Answer<'_, Result<(), BackendError>> {
        let work = Arc::clone(&self.inner).release(namespace, lease);
        Box::pin(async move { self.inner.within_deadline(work).await? })
    }

    fn changed(
        &self,
        namespace: NamespaceName,
        key: LimitKey,
    ) -> Answer<'_, Result<LimitStanding, BackendError>> {
        let work = Arc::clone(&self.inner).changed(namespace, key);
        Box::pin(async move { self.inner.within_deadline(work).await? })
    }

    fn standing(
        &self,
        namespace: NamespaceName,
        limits: Vec<Arc<LimitInfo>>,
    ) -> Answer<'_, Result<Vec<LimitStanding>, BackendError>> {
        let work = Arc::clone(&self.inner).standings(namespace, limits);
        Box::pin(async move { self.inner.within_deadline(work).await? })
    }

    fn usage(
        &self,
        namespace: NamespaceName,
        limit: Arc<LimitInfo>,
    ) -> Answer<'_, Result<Usage, BackendError>> {
        let work = Arc::clone(&self.inner).usage(namespace, limit);
        Box::pin(async move { self.inner.within_deadline(work).await? })
    }

    fn lease(
        &self,
        namespace: NamespaceName,
        lease: LeaseId,
    ) -> Answer<'_, Result<Option<LeaseView>, BackendError>> {
        let work = Arc::clone(&self.inner).lease(namespace, lease);
        Box::pin(async move { self.inner.within_deadline(work).await? })
    }

    fn ledger(&self) -> Option<u128> {
        Some(self.inner.shared.url.cluster)
    }

    fn stats(&self) -> Stats {
        self.inner.stats()
    }

    fn ready(&self) -> Result<(), String> {
        self.inner.ready()
    }

    fn shut_down(&self) -> Answer<'_, ()> {
        Box::pin(self.stop())
    }
}
