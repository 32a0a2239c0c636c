//! Limits: definitions from the registry, status and usage from the enforcer.

use std::sync::Arc;

use earmark_core::{Definition, LimitInfo, LimitKey, LimitStatus, LimitUsage, NamespaceName, Principal, Usage};

use super::Parts;
use crate::backend::{
    Amount, Backend, BackendError, DeleteLimitRequest, LimitChange, LimitError, LimitPage, LimitQuery, PutLimitRequest,
};
use crate::book_host::BookHost;
use crate::limits::{EnforcedStatus, Registry};
use crate::registry::is_deleting;
use crate::usage::{UsageCollector, UsageError, UsagePage, UsageQuery};
use crate::writes::PAGE_MAX;

/// The most limits that are sorted by usage. Their usage is read from another system, a thousand limits at a time.
const SORTED_MAX: usize = 10_000;

/// The registry version of the last sweep that found nothing left to delete.
pub(super) type SweptVersion = Option<u64>;

fn is_credit(limit: &LimitInfo) -> bool {
    limit.definition.kind.terms().is_some()
}

/// The status of a limit from its definition and its enforced status; `None` if it is gone.
fn status(limit: &LimitInfo, enforced: EnforcedStatus) -> Option<LimitStatus> {
    match enforced {
        EnforcedStatus::Absent if is_deleting(limit) => None,
        EnforcedStatus::Decreasing | EnforcedStatus::InForce if is_deleting(limit) => {
            Some(LimitStatus::Decreasing { to: 0 })
        }
        EnforcedStatus::Decreasing => Some(LimitStatus::Decreasing { to: limit.definition.capacity }),
        EnforcedStatus::InForce | EnforcedStatus::Absent => Some(LimitStatus::Active),
    }
}

impl<H: BookHost> Parts<H> {
    /// A limit as this process knows it, and as leases of a namespace see it: one of another namespace is unknown unless
    /// it is shared.
    pub(super) fn known(&self, namespace: &NamespaceName, key: &LimitKey) -> Option<Arc<LimitInfo>> {
        match key.foreign() {
            Some((namespace, key)) => {
                Registry::limit(&self.registry, &namespace, &key).filter(|limit| limit.definition.shared)
            }
            None => Registry::limit(&self.registry, namespace, key),
        }
    }

    /// Whether any key has no known limit here.
    pub(super) fn has_unknown(&self, namespace: &NamespaceName, amounts: &[Amount]) -> bool {
        amounts.iter().any(|amount| self.known(namespace, &amount.key).is_none())
    }

    /// Refreshes the registry. Otherwise a limit that another node has just created would count as a credit limit or as
    /// deleted, which cannot be undone. If the refresh fails, the local state must do.
    pub(super) async fn catch_up(&self) {
        _ = Registry::refresh(&self.registry).await;
    }

    pub(super) async fn put_limit(&self, by: Principal, request: PutLimitRequest) -> Result<LimitChange, LimitError> {
        self.registry.check_right(by.clone()).await?;
        self.ensure_placement().await.map_err(BackendError::from)?;
        let (namespace, key) = (request.namespace.clone(), request.definition.key.clone());
        let capacity = request.definition.capacity;
        self.finish_change(&namespace, &key).await?;
        self.check_kind_of_derived(&namespace, &request.definition).await?;
        let change = self.registry.put_limit(by, request).await?;
        let status = match self.enforce_definition(&namespace, &key).await? {
            EnforcedStatus::Decreasing => LimitStatus::Decreasing { to: capacity },
            EnforcedStatus::InForce | EnforcedStatus::Absent => LimitStatus::Active,
        };
        Ok(LimitChange { status, ..change })
    }

    pub(super) async fn delete_limit(
        &self,
        by: Principal,
        request: DeleteLimitRequest,
    ) -> Result<LimitChange, LimitError> {
        self.registry.check_right(by.clone()).await?;
        self.ensure_placement().await.map_err(BackendError::from)?;
        let (namespace, key) = (request.namespace.clone(), request.key.clone());
        self.finish_change(&namespace, &key).await?;
        let change = self.registry.delete_limit(by, request).await?;
        let enforced = self.enforce_definition(&namespace, &key).await?;
        // The key may follow its template again.
        let is_derived = self.known(&namespace, &key).is_some_and(|limit| limit.template.is_some());
        let status = match enforced {
            EnforcedStatus::Absent => LimitStatus::Deleted,
            _ if is_derived || change.status == LimitStatus::Deleted => LimitStatus::Deleted,
            EnforcedStatus::Decreasing | EnforcedStatus::InForce => LimitStatus::Decreasing { to: 0 },
        };
        Ok(LimitChange { status, ..change })
    }

    /// Completes the previous change of a limit before the next. A limit that was deleted and is gone is forgotten, so
    /// that the same key starts anew. A decrease that fits by now takes effect, so that the capacity in force is its
    /// target while the next one decreases it further.
    pub(super) async fn finish_change(&self, namespace: &NamespaceName, key: &LimitKey) -> Result<(), BackendError> {
        match self.known(namespace, key) {
            Some(limit) if is_deleting(&limit) => self.enforced_status_of(namespace, &limit).await.map(drop),
            Some(limit) if limit.template.is_some() => Ok(()),
            Some(_) => self.enforce_definition(namespace, key).await.map(drop),
            None => Ok(()),
        }
    }

    /// Refuses a definition of another kind than its template while the derived limit is in use. The Book does not know
    /// the amounts that TigerBeetle has reserved.
    async fn check_kind_of_derived(
        &self,
        namespace: &NamespaceName,
        definition: &Definition,
    ) -> Result<(), LimitError> {
        let derived = self.known(namespace, &definition.key).filter(|limit| limit.template.is_some());
        let differs = |limit: &Arc<LimitInfo>| !limit.definition.kind.is_same_kind(&definition.kind);
        let Some(derived) = derived.filter(differs).filter(|derived| self.setup.parts.limits && !is_credit(derived))
        else {
            return Ok(());
        };
        let usage = self.limits.usage(namespace.clone(), derived).await?;
        if usage.reserved > 0 || usage.debt > 0 { Err(LimitError::KindDiffers) } else { Ok(()) }
    }

    /// Has the enforcer apply the registry's definition. A limit that is gone there is forgotten here.
    pub(super) async fn enforce_definition(
        &self,
        namespace: &NamespaceName,
        key: &LimitKey,
    ) -> Result<EnforcedStatus, BackendError> {
        self.follow_template(namespace, key).await?;
        let enforced = self.limits.apply_definition(namespace.clone(), key.clone()).await?;
        if enforced == EnforcedStatus::Absent
            && let Some(limit) = self.known(namespace, key)
        {
            self.forget(namespace, &limit).await?;
        }
        Ok(enforced)
    }

    /// Forgets a deleted limit that overrode a template of its kind. Its key follows the template again, and the account
    /// keeps what is reserved.
    async fn follow_template(&self, namespace: &NamespaceName, key: &LimitKey) -> Result<(), BackendError> {
        match self.known(namespace, key) {
            Some(limit) if is_deleting(&limit) && self.registry.overrides_template(namespace, &limit) => {
                self.forget(namespace, &limit).await
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Tells the registry that a deleted limit is gone.
    async fn forget(&self, namespace: &NamespaceName, limit: &LimitInfo) -> Result<(), BackendError> {
        if self.setup.parts.limits && is_deleting(limit) {
            self.registry.drop_limit(namespace, limit).await?;
        }
        Ok(())
    }

    async fn enforced_status_of(
        &self,
        namespace: &NamespaceName,
        limit: &Arc<LimitInfo>,
    ) -> Result<EnforcedStatus, BackendError> {
        let enforced = self.limits.enforced_status(namespace.clone(), vec![Arc::clone(limit)]).await?;
        let enforced = enforced.first().copied().unwrap_or(EnforcedStatus::InForce);
        if enforced == EnforcedStatus::Absent {
            self.forget(namespace, limit).await?;
        }
        Ok(enforced)
    }

    /// The enforced status of limits, in order; `None` while the system that enforces them does not answer. The
    /// definitions are in the registry and can be read without it.
    async fn enforced_statuses(
        &self,
        namespace: NamespaceName,
        limits: Vec<Arc<LimitInfo>>,
    ) -> Option<Vec<EnforcedStatus>> {
        self.limits.ready().ok()?;
        self.limits.enforced_status(namespace, limits).await.ok()
    }

    pub(super) async fn limits(&self, namespace: NamespaceName, query: LimitQuery) -> Result<LimitPage, BackendError> {
        let LimitPage { limits, next } = Backend::limits(&self.registry, namespace.clone(), query).await?;
        let found: Vec<Arc<LimitInfo>> = limits.into_iter().map(Arc::new).collect();
        let enforced: Vec<_> = found.iter().filter(|limit| !is_credit(limit)).cloned().collect();
        let mut enforced = self.enforced_statuses(namespace.clone(), enforced).await.map(Vec::into_iter);
        let mut seen = Vec::with_capacity(found.len());
        for limit in found {
            if is_credit(&limit) {
                seen.push(Arc::unwrap_or_clone(limit));
                continue;
            }
            let Some(enforced) = &mut enforced else {
                seen.push(Arc::unwrap_or_clone(limit));
                continue;
            };
            let enforced = enforced.next().unwrap_or(EnforcedStatus::InForce);
            if let Some(status) = status(&limit, enforced) {
                seen.push(self.with_status(namespace.clone(), limit, status).await?);
            }
        }
        Ok(LimitPage { limits: seen, next })
    }

    pub(super) async fn limit(
        &self,
        namespace: NamespaceName,
        key: LimitKey,
    ) -> Result<Option<LimitInfo>, BackendError> {
        let Some(limit) = Backend::limit(&self.registry, namespace.clone(), key).await? else {
            return Ok(None);
        };
        if is_credit(&limit) {
            return Ok(Some(limit));
        }
        let limit = Arc::new(limit);
        let enforced = self.enforced_statuses(namespace.clone(), vec![Arc::clone(&limit)]).await;
        let Some(enforced) = enforced.and_then(|enforced| enforced.first().copied()) else {
            return Ok(Some(Arc::unwrap_or_clone(limit)));
        };
        if enforced == EnforcedStatus::Absent {
            self.forget(&namespace, &limit).await?;
        }
        match status(&limit, enforced) {
            Some(status) => self.with_status(namespace, limit, status).await.map(Some),
            None => Ok(None),
        }
    }

    /// The limit with its status and, while it is decreasing, the capacity in force.
    async fn with_status(
        &self,
        namespace: NamespaceName,
        limit: Arc<LimitInfo>,
        status: LimitStatus,
    ) -> Result<LimitInfo, BackendError> {
        let capacity = match status {
            LimitStatus::Decreasing { .. } => self.limits.usage(namespace, Arc::clone(&limit)).await?.capacity,
            LimitStatus::Active | LimitStatus::Deleted => limit.capacity,
        };
        Ok(LimitInfo { status, capacity, ..Arc::unwrap_or_clone(limit) })
    }

    pub(super) async fn usage(&self, namespace: NamespaceName, key: LimitKey) -> Result<Option<Usage>, BackendError> {
        self.registry.check_placement()?;
        let Some(limit) = Backend::limit(&self.registry, namespace.clone(), key).await? else {
            return Ok(None);
        };
        if is_credit(&limit) {
            return self.credits.usage(namespace, Arc::new(limit.definition)).await.map(Some);
        }
        let limit = Arc::new(limit);
        if is_deleting(&limit) && self.enforced_status_of(&namespace, &limit).await? == EnforcedStatus::Absent {
            return Ok(None);
        }
        self.limits.usage(namespace, limit).await.map(Some)
    }

    /// Limits with their usage: definitions from the registry, usage from where it is kept, in pages.
    pub(super) async fn usage_page(
        &self,
        namespace: NamespaceName,
        query: UsageQuery,
    ) -> Result<UsagePage, UsageError> {
        query.check()?;
        self.registry.check_placement().map_err(BackendError::from)?;
        let mut collector = UsageCollector::new(&query);
        let (mut next, mut looked_at) = (query.after.clone(), 0_usize);
        loop {
            let (prefix, after, page_size) = (query.prefix.clone(), next, collector.piece(PAGE_MAX));
            let piece = LimitQuery { prefix, after, page_size, defined: false };
            let LimitPage { limits, next: after } = Backend::limits(&self.registry, namespace.clone(), piece).await?;
            looked_at = looked_at.saturating_add(limits.len());
            if query.reads_all() && looked_at > SORTED_MAX {
                return Err(UsageError::TooManyToSort { max: SORTED_MAX });
            }
            collector.add(self.usages(&namespace, limits).await?);
            next = after;
            if let Some(page) = collector.finish(next.as_ref()) {
                return Ok(page);
            }
        }
    }

    /// The usage of limits, in order, without those that are gone.
    async fn usages(&self, namespace: &NamespaceName, limits: Vec<LimitInfo>) -> Result<Vec<LimitUsage>, BackendError> {
        let limits: Vec<Arc<LimitInfo>> = limits.into_iter().map(Arc::new).collect();
        let enforced: Vec<_> = limits.iter().filter(|limit| !is_credit(limit)).cloned().collect();
        let mut enforced = self.limits.usages(namespace.clone(), enforced).await?.into_iter();
        let mut usages = Vec::with_capacity(limits.len());
        for limit in limits {
            let usage = if is_credit(&limit) {
                let definition = Arc::new(limit.definition.clone());
                Some(self.credits.usage(namespace.clone(), definition).await?)
            } else {
                enforced.next()
            };
            if let Some(usage) = usage.filter(|usage| usage.status != LimitStatus::Deleted) {
                let (key, kind) = (limit.definition.key.clone(), limit.definition.kind.tag());
                // The registry keeps the pauses.
                let paused_until = limit.pause.as_ref().map(|pause| pause.until);
                usages.push(LimitUsage { key, kind, usage: Usage { paused_until, ..usage } });
            }
        }
        Ok(usages)
    }

    /// Forgets deleted limits that are gone, if this process runs maintenance. Returns the version that was swept, so
    /// that an unchanged registry is not scanned again.
    pub(super) async fn forget_absent_limits(&self, seen: SweptVersion) -> SweptVersion {
        let version = self.registry.0.host.limits_version();
        if seen == Some(version) || !self.registry.runs_maintenance() {
            return seen;
        }
        let mut is_done = true;
        for (namespace, limit) in Registry::limits(&self.registry) {
            if is_deleting(&limit) {
                if self.follow_template(&namespace, &limit.definition.key).await.is_err() {
                    is_done = false;
                    continue;
                }
                let enforced = self.enforced_status_of(&namespace, &limit).await;
                is_done &= enforced == Ok(EnforcedStatus::Absent);
            }
        }
        is_done.then_some(version)
    }
}
