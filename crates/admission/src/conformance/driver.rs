//! Helpers for cases about limits.

use std::sync::atomic::{AtomicU64, Ordering};

use earmark_core::{Definition, Kind, LeaseId, LimitKey, LimitStatus, NamespaceName, Principal, UnixMs, Usage};

use super::Harness;
use crate::backend::{
    Amount, BackendError, CompleteAnswer, CompleteRequest, DeleteLimitRequest, LimitChange, LimitError,
    PutLimitRequest, ReserveAnswer, ReserveRequest,
};
use crate::usage::{UsagePage, UsageQuery};

pub(super) const MINUTE: Kind = Kind::Rolling { window_seconds: 60 };
pub(super) const SLOTS: Kind = Kind::Concurrency { timeout_seconds: 60 };

/// A counter that makes leases unique in a test run.
static LEASES: AtomicU64 = AtomicU64::new(1);

/// Sends the requests of a case to the backend under test.
pub(super) struct Driver<'a, H>(pub(super) &'a H);

pub(super) fn namespace() -> NamespaceName {
    NamespaceName::new(NamespaceName::DEFAULT).expect("the default namespace has a valid name")
}

pub(super) fn key(name: &str) -> LimitKey {
    LimitKey::new(name).expect("a case uses valid keys")
}

pub(super) fn amounts(parts: &[(&str, u64)]) -> Vec<Amount> {
    parts.iter().map(|(name, amount)| Amount { key: key(name), amount: *amount }).collect()
}

pub(super) fn definition(name: &str, kind: Kind, capacity: u64) -> Definition {
    Definition::new(key(name), kind, capacity)
}

impl<H: Harness> Driver<'_, H> {
    pub(super) async fn put(&self, name: &str, kind: Kind, capacity: u64) -> LimitChange {
        self.try_put(definition(name, kind, capacity), None).await.expect("a limit that can be put")
    }

    pub(super) async fn try_put(
        &self,
        definition: Definition,
        expected_revision: Option<u64>,
    ) -> Result<LimitChange, LimitError> {
        let request = PutLimitRequest { namespace: namespace(), definition, expected_revision };
        self.0.backend().put_limit(Principal::System, request).await
    }

    pub(super) async fn delete(&self, name: &str) -> Result<LimitChange, LimitError> {
        let request = DeleteLimitRequest { namespace: namespace(), key: key(name), expected_revision: None };
        self.0.backend().delete_limit(Principal::System, request).await
    }

    pub(super) fn lease(&self) -> LeaseId {
        self.lease_made_at(self.0.now_ms())
    }

    pub(super) fn lease_made_at(&self, ms: u64) -> LeaseId {
        let number = LEASES.fetch_add(1, Ordering::Relaxed);
        LeaseId::from_parts(UnixMs::new(ms), u128::from(number))
    }

    pub(super) fn request(&self, lease: LeaseId, parts: &[(&str, u64)]) -> ReserveRequest {
        ReserveRequest {
            namespace: namespace(),
            lease,
            job: None,
            call: None,
            by_gateway: false,
            requirements: amounts(parts),
        }
    }

    pub(super) async fn reserve(&self, lease: LeaseId, parts: &[(&str, u64)]) -> ReserveAnswer {
        self.try_reserve(lease, parts).await.expect("a backend that answers")
    }

    pub(super) async fn try_reserve(
        &self,
        lease: LeaseId,
        parts: &[(&str, u64)],
    ) -> Result<ReserveAnswer, BackendError> {
        let answers = self.0.backend().reserve(Principal::System, vec![self.request(lease, parts)]).await;
        answers.into_iter().next().expect("an answer to every request")
    }

    /// Reserves with a new lease, which must be allowed.
    pub(super) async fn admit(&self, parts: &[(&str, u64)]) -> LeaseId {
        let lease = self.lease();
        let answer = self.reserve(lease, parts).await;
        assert!(matches!(answer, ReserveAnswer::Allowed { .. }), "{answer:?}");
        lease
    }

    /// Reserves with a new lease, which must be denied for lack of room.
    pub(super) async fn deny(&self, parts: &[(&str, u64)]) -> LeaseId {
        let lease = self.lease();
        let answer = self.reserve(lease, parts).await;
        assert!(matches!(answer, ReserveAnswer::Denied { .. }), "{answer:?}");
        lease
    }

    pub(super) async fn complete(&self, lease: LeaseId, parts: &[(&str, u64)]) -> CompleteAnswer {
        self.complete_labelled(lease, parts, &[]).await
    }

    pub(super) async fn complete_labelled(
        &self,
        lease: LeaseId,
        parts: &[(&str, u64)],
        labels: &[(&str, &str)],
    ) -> CompleteAnswer {
        let request = CompleteRequest {
            namespace: namespace(),
            lease,
            job: None,
            claim: earmark_core::LeaseClaim::default(),
            actuals: amounts(parts),
            labels: earmark_core::SettleLabels::new(labels.iter().copied()).expect("valid labels"),
        };
        let answers = self.0.backend().complete(Principal::System, vec![request]).await;
        answers.into_iter().next().expect("an answer to every request").expect("a backend that answers")
    }

    pub(super) async fn usage(&self, name: &str) -> Usage {
        let usage = self.0.backend().usage(namespace(), key(name)).await;
        usage.expect("a backend that answers").expect("a limit that exists")
    }

    /// A list of limits, in which each has the usage that it has alone.
    pub(super) async fn listed(&self, query: UsageQuery) -> UsagePage {
        let page = self.0.backend().usage_page(namespace(), query).await.expect("a backend that answers");
        for limit in &page.usage {
            assert_eq!(limit.usage, self.usage(limit.key.as_str()).await, "{}", limit.key);
        }
        page
    }

    pub(super) async fn reserved(&self, name: &str) -> u64 {
        self.usage(name).await.reserved
    }

    pub(super) async fn status(&self, name: &str) -> Option<LimitStatus> {
        let limit = self.0.backend().limit(namespace(), key(name)).await;
        limit.expect("a backend that answers").map(|limit| limit.status)
    }
}
