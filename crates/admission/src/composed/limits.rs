//! Limits: definitions from the registry, status and usage from the enforcer.

use std::sync::Arc;

use earmark_core::{LimitInfo, LimitKey, LimitStatus, NamespaceName, Principal, Usage};

use super::Parts;
use crate::backend::{Amount, Backend, BackendError, DeleteLimitRequest, LimitChange, LimitError, PutLimitRequest};
use crate::book_host::BookHost;
use crate::limits::{LimitStanding, Registry};
use crate::registry::is_deleting;

/// The registry version of the last sweep that found nothing left to delete.
pub(super) type Seen = Option<u64>;

fn is_credit(limit: &LimitInfo) -> bool {
    limit.definition.kind.terms().is_some()
}

/// The status of a limit from its definition and its enforced status; `None` if it is gone.
fn status(limit: &LimitInfo, standing: LimitStanding) -> Option<LimitStatus> {
    match standing {
        LimitStanding::Gone if is_deleting(limit) => None,
        LimitStanding::Decreasing | LimitStanding::InForce if is_deleting(limit) => {
            Some(LimitStatus::Decreasing { to: 0 })
        }
        LimitStanding::Decreasing => Some(LimitStatus::Decreasing { to: limit.definition.capacity }),
        LimitStanding::InForce | LimitStanding::Gone => Some(LimitStatus::Active),
    }
}

impl<H: BookHost> Parts<H> {
    /// A limit as this process knows it.
    pub(super) fn known(&self, namespace: &NamespaceName, key: &LimitKey) -> Option<Arc<LimitInfo>> {
        Registry::limit(&self.registry, namespace, key)
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
        self.kept().await.map_err(BackendError::from)?;
        let (namespace, key) = (request.namespace.clone(), request.definition.key.clone());
        let capacity = request.definition.capacity;
        self.make_room(&namespace, &key).await?;
        let change = self.registry.put_limit(by, request).await?;
        let status = match self.bring_in_line(&namespace, &key).await? {
            LimitStanding::Decreasing => LimitStatus::Decreasing { to: capacity },
            LimitStanding::InForce | LimitStanding::Gone => LimitStatus::Active,
        };
        Ok(LimitChange { status, ..change })
    }

    pub(super) async fn delete_limit(
        &self,
        by: Principal,
        request: DeleteLimitRequest,
    ) -> Result<LimitChange, LimitError> {
        self.registry.check_right(by.clone()).await?;
        self.kept().await.map_err(BackendError::from)?;
        let (namespace, key) = (request.namespace.clone(), request.key.clone());
        self.make_room(&namespace, &key).await?;
        let change = self.registry.delete_limit(by, request).await?;
        let status = match self.bring_in_line(&namespace, &key).await? {
            LimitStanding::Gone => LimitStatus::Deleted,
            LimitStanding::Decreasing | LimitStanding::InForce => LimitStatus::Decreasing { to: 0 },
        };
        Ok(LimitChange { status, ..change })
    }

    /// Forgets a limit that was deleted and is gone, so that the same key starts anew.
    pub(super) async fn make_room(&self, namespace: &NamespaceName, key: &LimitKey) -> Result<(), BackendError> {
        match self.known(namespace, key) {
            Some(limit) if is_deleting(&limit) => self.standing_of(namespace, &limit).await.map(drop),
            Some(_) | None => Ok(()),
        }
    }

    /// Has the enforcer apply the registry's definition. A limit that is gone there is forgotten here.
    pub(super) async fn bring_in_line(
        &self,
        namespace: &NamespaceName,
        key: &LimitKey,
    ) -> Result<LimitStanding, BackendError> {
        let standing = self.limits.changed(namespace.clone(), key.clone()).await?;
        if standing == LimitStanding::Gone
            && let Some(limit) = self.known(namespace, key)
        {
            self.forget(namespace, &limit).await?;
        }
        Ok(standing)
    }

    /// Tells the registry that a deleted limit is gone.
    async fn forget(&self, namespace: &NamespaceName, limit: &LimitInfo) -> Result<(), BackendError> {
        if self.keep.parts.limits && is_deleting(limit) {
            self.registry.drop_limit(namespace, limit).await?;
        }
        Ok(())
    }

    async fn standing_of(
        &self,
        namespace: &NamespaceName,
        limit: &Arc<LimitInfo>,
    ) -> Result<LimitStanding, BackendError> {
        let standing = self.limits.standing(namespace.clone(), vec![Arc::clone(limit)]).await?;
        let standing = standing.first().copied().unwrap_or(LimitStanding::InForce);
        if standing == LimitStanding::Gone {
            self.forget(namespace, limit).await?;
        }
        Ok(standing)
    }

    /// The enforced status of limits, in order; `None` while the system that enforces them does not answer. The
    /// definitions are in the registry and can be read without it.
    async fn known_standings(
        &self,
        namespace: NamespaceName,
        limits: Vec<Arc<LimitInfo>>,
    ) -> Option<Vec<LimitStanding>> {
        self.limits.ready().ok()?;
        self.limits.standing(namespace, limits).await.ok()
    }

    pub(super) async fn limits(&self, namespace: NamespaceName) -> Result<Vec<LimitInfo>, BackendError> {
        let found: Vec<Arc<LimitInfo>> =
            Backend::limits(&self.registry, namespace.clone()).await?.into_iter().map(Arc::new).collect();
        let enforced: Vec<_> = found.iter().filter(|limit| !is_credit(limit)).cloned().collect();
        let mut standings = self.known_standings(namespace.clone(), enforced).await.map(Vec::into_iter);
        let mut seen = Vec::with_capacity(found.len());
        for limit in found {
            if is_credit(&limit) {
                seen.push(Arc::unwrap_or_clone(limit));
                continue;
            }
            let Some(standings) = &mut standings else {
                seen.push(Arc::unwrap_or_clone(limit));
                continue;
            };
            let standing = standings.next().unwrap_or(LimitStanding::InForce);
            if let Some(status) = status(&limit, standing) {
                seen.push(self.with_status(namespace.clone(), limit, status).await?);
            }
        }
        Ok(seen)
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
        let standings = self.known_standings(namespace.clone(), vec![Arc::clone(&limit)]).await;
        let Some(standing) = standings.and_then(|standings| standings.first().copied()) else {
            return Ok(Some(Arc::unwrap_or_clone(limit)));
        };
        if standing == LimitStanding::Gone {
            self.forget(&namespace, &limit).await?;
        }
        match status(&limit, standing) {
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
        self.registry.agree()?;
        let Some(limit) = Backend::limit(&self.registry, namespace.clone(), key).await? else {
            return Ok(None);
        };
        if is_credit(&limit) {
            return self.credits.usage(namespace, Arc::new(limit.definition)).await.map(Some);
        }
        let limit = Arc::new(limit);
        if is_deleting(&limit) && self.standing_of(&namespace, &limit).await? == LimitStanding::Gone {
            return Ok(None);
        }
        self.limits.usage(namespace, limit).await.map(Some)
    }

    /// Forgets deleted limits that are gone, if this process runs maintenance. Returns the version that was swept, so
    /// that an unchanged registry is not scanned again.
    pub(super) async fn drop_what_is_gone(&self, seen: Seen) -> Seen {
        let version = self.registry.0.host.limits_version();
        if seen == Some(version) || !self.registry.is_in_charge() {
            return seen;
        }
        let mut is_done = true;
        for (namespace, limit) in Registry::limits(&self.registry) {
            if is_deleting(&limit) {
                let standing = self.standing_of(&namespace, &limit).await;
                is_done &= standing == Ok(LimitStanding::Gone);
            }
        }
        is_done.then_some(version)
    }
}
