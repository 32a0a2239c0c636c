//! The limits that a reserve or an extension asks for: refusals by name, and what is in the way.

use std::sync::Arc;

use earmark_admission::{Amount, BackendError, Refusal};
use earmark_core::{Definition, LeaseId, LimitInfo, LimitKey, NEVER_RETRY_MS};

use crate::backend::{Inner, missing_result};
use crate::limit_table::{TrackedLimit, target};
use crate::reserve_chain::Taken;
use crate::retake_chain::seconds_until;
use crate::schema::{Holding, LeaseName, LimitName, PartVersion};

/// An amount of one limit.
#[derive(Clone)]
pub(crate) struct Requirement {
    /// As leases of the namespace name it.
    pub(crate) key: LimitKey,
    pub(crate) limit: LimitName,
    pub(crate) amount: u64,
}

/// A required limit: its accounts and its definition.
pub(crate) struct Limit {
    pub(crate) tracked: Arc<TrackedLimit>,
    pub(crate) info: Arc<LimitInfo>,
}

/// Why a chain had no room.
pub(crate) struct Shortage {
    /// The limits in the way, one that can never have room first.
    pub(crate) limited_by: Vec<LimitName>,
    pub(crate) never: bool,
    pub(crate) retry_after_ms: u64,
}

impl Requirement {
    /// The amounts of a lease, sorted. Limits of its own namespace come first.
    pub(crate) fn sorted(name: &LeaseName, amounts: &[Amount]) -> Vec<Requirement> {
        let required = |part: &Amount| {
            let limit = LimitName::of(&name.namespace, part);
            Requirement { key: limit.seen_from(&name.namespace), limit, amount: part.amount }
        };
        let mut requirements: Vec<Requirement> = amounts.iter().map(required).collect();
        let order = |part: &Requirement| part.limit.namespace != name.namespace;
        requirements.sort_unstable_by(|a, b| order(a).cmp(&order(b)).then_with(|| a.limit.cmp(&b.limit)));
        requirements
    }
}

impl Inner {
    /// The limit as leases of a namespace see it. One of another namespace is unknown unless it is shared.
    pub(crate) fn info_for(&self, lease: &LeaseName, limit: &LimitName) -> Option<Arc<LimitInfo>> {
        let info = self.info(limit)?;
        (limit.namespace == lease.namespace || info.definition.shared).then_some(info)
    }

    /// The rest of the pause of a limit.
    pub(crate) fn paused_for_ms(&self, info: &LimitInfo) -> Option<u64> {
        let until = info.pause.as_ref()?.until;
        Some(until.ms_since(self.options.clock.now().log)).filter(|left_ms| *left_ms > 0)
    }

    /// The reservation of one limit. A calendar limit is taken to the end of the period that contains the ledger's time,
    /// rounded up to whole seconds.
    pub(crate) fn taken(&self, part: &Requirement, holding: Holding, limit: &Limit, extension: u32) -> Taken {
        let now_ns = self.shared.clock.now_ns();
        let ends_at_ns = self.period_end_ns(&part.limit, now_ns);
        let reserved = limit.tracked.totals().map_or(0, |totals| totals.reserved);
        let Definition { kind, capacity, enforce, .. } = &limit.info.definition;
        Taken {
            limit: Some(part.limit.clone()),
            account: limit.tracked.accounts.limit,
            amount: part.amount,
            holding,
            hold_seconds: ends_at_ns.map_or(kind.hold_seconds(), |end_ns| seconds_until(end_ns, now_ns)),
            ends_at_ns,
            would_deny: !enforce && reserved.saturating_add(part.amount) > *capacity,
            version: PartVersion { extension, round: 0 },
        }
    }

    /// Reads the limits of a reserve that are not enforced, to tell which would deny it. The reserve that follows
    /// records the answer, so that a retry repeats it. Reserves in between are not counted.
    pub(crate) async fn read_shadow_limits(&self, requirements: &[Requirement]) -> Result<(), BackendError> {
        let shadow = requirements.iter().filter_map(|part| {
            let info = self.info(&part.limit).filter(|info| !info.definition.enforce)?;
            Some(self.table.limit(&part.limit, Some(&info)))
        });
        let shadow: Vec<Arc<TrackedLimit>> = shadow.collect();
        let shadow: Vec<&TrackedLimit> = shadow.iter().map(Arc::as_ref).collect();
        if !shadow.is_empty() {
            self.read_limits(&shadow).await?;
        }
        Ok(())
    }

    /// The first limit, by name, that is unknown, paused or decreasing.
    pub(crate) async fn refusal_by_name(
        &self,
        name: &LeaseName,
        requirements: &[Requirement],
    ) -> Result<Option<Refusal>, BackendError> {
        let limits = || requirements.iter().map(|part| (&part.key, &part.limit));
        if limits().any(|(_, limit)| self.info_for(name, limit).is_none()) {
            self.registry.refresh().await?;
        }
        for (key, limit) in limits() {
            let unknown = || Ok(Some(Refusal::UnknownLimitKey(key.clone())));
            let Some(info) = self.info_for(name, limit) else { return unknown() };
            if let Some(retry_after_ms) = self.paused_for_ms(&info) {
                return Ok(Some(Refusal::LimitPaused { key: key.clone(), retry_after_ms }));
            }
            if Holding::of(&info.definition.kind).is_none() {
                continue;
            }
            let tracked = self.table.limit(limit, Some(&info));
            if tracked.is_open(&info) {
                continue;
            }
            self.reconcile(&tracked).await?;
            let Some(info) = self.info(limit) else { return unknown() };
            let (target, in_force) = (target(Some(&info)), tracked.totals().map_or(0, |totals| totals.in_force));
            if target == 0 && in_force == 0 {
                return unknown();
            }
            if in_force > target {
                let retry_after_ms = self.config().hints.decreasing_ms;
                return Ok(Some(Refusal::LimitDecreasing { key: key.clone(), retry_after_ms }));
            }
        }
        Ok(None)
    }

    /// The limits in the way of a chain whose transfer at `index` had too little. The ledger names only the first such
    /// limit; limits with too small a capacity are known from the registry.
    pub(crate) async fn shortage(
        &self,
        lease: LeaseId,
        asked: &[(&Taken, &Limit)],
        index: usize,
    ) -> Result<Shortage, BackendError> {
        let Some((taken, limit)) = asked.get(index) else { return Err(missing_result()) };
        let mut limited_by = self.too_large(asked);
        if !limited_by.is_empty() && self.registry.refresh().await.is_ok() {
            // Another process may have raised the capacity, and a caller that is told `never` does not come back.
            limited_by = self.too_large(asked);
        }
        let never = !limited_by.is_empty();
        if !limited_by.contains(&limit.tracked.name) {
            limited_by.push(limit.tracked.name.clone());
        }
        let retry_after_ms = if never { NEVER_RETRY_MS } else { self.wait_ms(lease, taken, &limit.tracked) };
        Ok(Shortage { limited_by, never, retry_after_ms })
    }

    /// The limits whose capacity is below the amount asked for.
    fn too_large(&self, asked: &[(&Taken, &Limit)]) -> Vec<LimitName> {
        let most = |limit: &Limit| {
            let in_force = limit.tracked.totals().map_or(0, |totals| totals.in_force);
            let info = self.info(&limit.tracked.name);
            in_force.max(target(Some(info.as_ref().unwrap_or(&limit.info))))
        };
        let above = asked.iter().filter(|(taken, limit)| u128::from(taken.amount) > most(limit));
        above.map(|(_, limit)| limit.tracked.name.clone()).collect()
    }

    /// The backoff, at most the time until everything on the limit has expired: the ledger does not tell when capacity
    /// frees.
    fn wait_ms(&self, lease: LeaseId, taken: &Taken, tracked: &TrackedLimit) -> u64 {
        let hold_ms = u64::from(taken.hold_seconds).saturating_mul(1_000);
        let is_rolling = taken.holding != Holding::Concurrency;
        let hints = self.config().hints;
        hints.backoff_ms(is_rolling, hold_ms, tracked.count_denial(), lease).min(hold_ms)
    }
}
