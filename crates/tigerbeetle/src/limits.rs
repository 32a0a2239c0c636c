//! `trait Limits` on TigerBeetle.

use std::sync::Arc;

use earmark_admission::{
    Amount, Answer, Answers, BackendError, CompleteAnswer, EnforcedStatus, LeaseView, Limits, LimitsComplete,
    LimitsExtend, LimitsExtended, LimitsReserve, ReserveAnswer, Stats,
};
use earmark_core::{Kind, LeaseId, LeaseState, LimitInfo, LimitKey, LimitStatus, NamespaceName, Usage};

use crate::backend::{Inner, TigerBeetleLimits};
use crate::capacity::{Step, as_if_done, enforced_status, step};
use crate::lease_cache::CachedLease;
use crate::lease_record::Held;
use crate::limit_table::{LimitTotals, TrackedLimit, UNBOUNDED, target};
use crate::schema::{Decision, Ending, LeaseName, LimitName};

impl Inner {
    async fn apply_definition(
        self: Arc<Inner>,
        namespace: NamespaceName,
        key: LimitKey,
    ) -> Result<EnforcedStatus, BackendError> {
        let name = LimitName { namespace, key };
        let info = self.info(&name);
        if info.as_ref().is_some_and(|info| matches!(info.definition.kind, Kind::Credit(_))) {
            return Ok(EnforcedStatus::InForce);
        }
        self.reconcile(&self.table.limit(&name, info.as_deref())).await
    }

    async fn enforced_statuses(
        self: Arc<Inner>,
        namespace: NamespaceName,
        limits: Vec<Arc<LimitInfo>>,
    ) -> Result<Vec<EnforcedStatus>, BackendError> {
        let tracked_limits: Vec<Arc<TrackedLimit>> =
            limits.iter().map(|info| self.table.limit(&name_of(&namespace, info), Some(info))).collect();
        let tracked_limits: Vec<&TrackedLimit> = tracked_limits.iter().map(Arc::as_ref).collect();
        let totals = self.read_limits(&tracked_limits).await?;
        let mut enforced_statuses = Vec::with_capacity(limits.len());
        for ((info, tracked), totals) in limits.iter().zip(tracked_limits).zip(totals) {
            let totals = totals.unwrap_or_default();
            // Finish a deletion that is possible now, so that a put of the same key creates a new limit.
            let can_go = target(Some(info)) == 0 && matches!(step(&totals, 0), Step::Down { .. });
            enforced_statuses.push(if can_go { self.reconcile(tracked).await? } else { stands(info, totals) });
        }
        Ok(enforced_statuses)
    }

    async fn usage(self: Arc<Inner>, namespace: NamespaceName, info: Arc<LimitInfo>) -> Result<Usage, BackendError> {
        let tracked = self.table.limit(&name_of(&namespace, &info), Some(&info));
        let totals = self.read_limits(&[&tracked]).await?.first().copied().flatten();
        Ok(usage(&info, totals.unwrap_or_default()))
    }

    async fn usages(
        self: Arc<Inner>,
        namespace: NamespaceName,
        limits: Vec<Arc<LimitInfo>>,
    ) -> Result<Vec<Usage>, BackendError> {
        let tracked: Vec<Arc<TrackedLimit>> =
            limits.iter().map(|info| self.table.limit(&name_of(&namespace, info), Some(info))).collect();
        let tracked: Vec<&TrackedLimit> = tracked.iter().map(Arc::as_ref).collect();
        let totals = self.read_limits(&tracked).await?;
        Ok(limits.iter().zip(totals).map(|(info, totals)| usage(info, totals.unwrap_or_default())).collect())
    }

    async fn lease(
        self: Arc<Inner>,
        namespace: NamespaceName,
        lease: LeaseId,
    ) -> Result<Option<LeaseView>, BackendError> {
        // The ledger's clock is unknown before setup.
        self.wait_for_setup().await?;
        let name = LeaseName::new(namespace, lease);
        let denied = match self.leases.get(name.id) {
            Some(CachedLease::Denied(denied)) => Some(denied),
            Some(CachedLease::Allowed(_)) | None => None,
        };
        let record = self.read_lease(&name).await?;
        // A marked anchor only says that a process completed the lease.
        if denied.is_some() && record.as_ref().is_none_or(|record| record.first.decision == Decision::Marked) {
            let (job, body) = (self.leases.job(name.id), denied.map(|denied| denied.body).unwrap_or_default());
            let call_fingerprint = body.policy_revision.map(|_| body.fingerprint);
            return Ok(Some(LeaseView { job, call_fingerprint, by_gateway: body.by_gateway, ..LeaseView::DENIED }));
        }
        let Some(record) = record else { return Ok(None) };
        let state = record.state(self.shared.clock.now_ns());
        let is_allowed = record.first.decision == Decision::Reserved && record.ending != Some(Ending::Released);
        let held = || record.held.iter().filter(|_| record.ending.is_none());
        let amount = |held: &Held, amount| {
            Some(Amount { key: held.name.as_ref()?.seen_from(&name.namespace), amount }).filter(|each| each.amount > 0)
        };
        Ok(Some(LeaseView {
            reserved_at: is_allowed.then(|| record.reserved_at()),
            requirements: by_key(held().filter_map(|held| amount(held, held.total())).collect()),
            state,
            job: self.leases.job(name.id),
            extensions: record.newest.number,
            used: by_key(held().filter_map(|held| amount(held, held.used)).collect()),
            ends_at: record.ends_at().filter(|_| state == LeaseState::Live),
            policy_revision: record.first.policy_revision(),
            call_fingerprint: record.first.is_call.then_some(record.first.fingerprint),
            by_gateway: record.first.by_gateway,
            has_credit: record.newest.has_credit,
        }))
    }
}

fn by_key(mut amounts: Vec<Amount>) -> Vec<Amount> {
    amounts.sort_unstable_by(|a, b| a.key.cmp(&b.key));
    amounts
}

fn name_of(namespace: &NamespaceName, info: &LimitInfo) -> LimitName {
    LimitName { namespace: namespace.clone(), key: info.definition.key.clone() }
}

fn stands(info: &LimitInfo, totals: LimitTotals) -> EnforcedStatus {
    if matches!(info.definition.kind, Kind::Credit(_)) {
        return EnforcedStatus::InForce;
    }
    let target = target(Some(info));
    enforced_status(&as_if_done(totals, target), target)
}

fn usage(info: &LimitInfo, totals: LimitTotals) -> Usage {
    let target = target(Some(info));
    let mut totals = as_if_done(totals, target);
    if info.template.is_some() {
        // Before the first reserve the account of a derived limit is missing, or has the capacity of an older template.
        totals.in_force = totals.in_force.max(target);
    }
    let small = |amount: u128| u64::try_from(amount).unwrap_or(u64::MAX);
    let status = match enforced_status(&totals, target) {
        EnforcedStatus::InForce => LimitStatus::Active,
        EnforcedStatus::Decreasing => LimitStatus::Decreasing { to: small(target) },
        EnforcedStatus::Absent => LimitStatus::Deleted,
    };
    // The account of a limit that is not enforced is funded without bound.
    let capacity = if totals.in_force == UNBOUNDED { info.definition.capacity } else { small(totals.in_force) };
    Usage {
        capacity,
        reserved: totals.reserved,
        available: if status == LimitStatus::Active { capacity.saturating_sub(totals.reserved) } else { 0 },
        debt: totals.debt,
        status,
        paused_until: info.pause.as_ref().map(|pause| pause.until),
    }
}

/// Repeats one failure for each request.
fn to_all<T>(
    count: usize,
    answers: Result<Vec<Result<T, BackendError>>, BackendError>,
) -> Vec<Result<T, BackendError>> {
    answers.unwrap_or_else(|error| std::iter::repeat_with(|| Err(error.clone())).take(count).collect())
}

impl Limits for TigerBeetleLimits {
    fn reserve(&self, requests: Vec<LimitsReserve>) -> Answers<'_, ReserveAnswer> {
        let count = requests.len();
        let work = Arc::clone(&self.inner).reserve_all(requests);
        Box::pin(async move { to_all(count, self.inner.within_deadline(work).await) })
    }

    fn extend(&self, requests: Vec<LimitsExtend>) -> Answers<'_, LimitsExtended> {
        let count = requests.len();
        let work = Arc::clone(&self.inner).extend_all(requests);
        Box::pin(async move { to_all(count, self.inner.within_deadline(work).await) })
    }

    fn complete(&self, requests: Vec<LimitsComplete>) -> Answers<'_, CompleteAnswer> {
        let count = requests.len();
        let work = Arc::clone(&self.inner).complete_all(requests);
        Box::pin(async move { to_all(count, self.inner.within_deadline(work).await) })
    }

    fn release(&self, namespace: NamespaceName, lease: LeaseId) -> Answer<'_, Result<(), BackendError>> {
        let work = Arc::clone(&self.inner).release(namespace, lease);
        Box::pin(async move { self.inner.within_deadline(work).await? })
    }

    fn apply_definition(
        &self,
        namespace: NamespaceName,
        key: LimitKey,
    ) -> Answer<'_, Result<EnforcedStatus, BackendError>> {
        let work = Arc::clone(&self.inner).apply_definition(namespace, key);
        Box::pin(async move { self.inner.within_deadline(work).await? })
    }

    fn enforced_status(
        &self,
        namespace: NamespaceName,
        limits: Vec<Arc<LimitInfo>>,
    ) -> Answer<'_, Result<Vec<EnforcedStatus>, BackendError>> {
        let work = Arc::clone(&self.inner).enforced_statuses(namespace, limits);
        Box::pin(async move { self.inner.within_deadline(work).await? })
    }

    fn usage(&self, namespace: NamespaceName, limit: Arc<LimitInfo>) -> Answer<'_, Result<Usage, BackendError>> {
        let work = Arc::clone(&self.inner).usage(namespace, limit);
        Box::pin(async move { self.inner.within_deadline(work).await? })
    }

    fn usages(
        &self,
        namespace: NamespaceName,
        limits: Vec<Arc<LimitInfo>>,
    ) -> Answer<'_, Result<Vec<Usage>, BackendError>> {
        let work = Arc::clone(&self.inner).usages(namespace, limits);
        Box::pin(async move { self.inner.within_deadline(work).await? })
    }

    fn lease(&self, namespace: NamespaceName, lease: LeaseId) -> Answer<'_, Result<Option<LeaseView>, BackendError>> {
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
