//! Limits that come and go, so that their ids are given to others while leases and caches still name them.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use earmark_admission::{
    Backend, CompleteRequest, DeleteLimitRequest, LimitError, PutLimitRequest, ReserveAnswer, ReserveRequest,
};
use earmark_core::{Definition, Kind, LeaseId, Principal};
use earmark_node::NodeBackend;
use tokio::time::sleep;

use crate::caller::Caller;
use crate::support::client::{amounts, definition, key, namespace};

pub(super) const CAPACITY: u64 = 10;
const WINDOW_SECONDS: u32 = 1;
pub(super) const HOLD_SECONDS: u32 = 600;

impl Caller {
    /// Lets ids be reused. Only this caller names these limits, so it knows what each of them must hold.
    pub async fn churn_limits(mut self) {
        let mut round = 0;
        while !self.context.is_over() {
            round += 1;
            self.churn(round).await;
            let names = ["first", "slot", "second", "third"].map(|name| format!("churn:{round}:{name}"));
            for name in names {
                self.delete(&name).await;
            }
            let pause = self.ms(0, 300);
            sleep(pause).await;
        }
    }

    /// A lease holds a short rolling part and a long slot. Its rolling limit is deleted and others are put; then the
    /// lease completes with overage. `None` if the simulation ends in the middle.
    async fn churn(&mut self, round: u64) -> Option<()> {
        let [first, slot, second, third] =
            ["first", "slot", "second", "third"].map(|name| format!("churn:{round}:{name}"));
        let cached = self.any();
        self.put(Some(cached), &first, Kind::Rolling { window_seconds: WINDOW_SECONDS }).await?;
        self.put(None, &slot, Kind::Concurrency { timeout_seconds: HOLD_SECONDS }).await?;
        let lease = self.new_lease();
        self.take(Some(cached), lease, &[(&first, 4), (&slot, 1)]).await?;
        self.delete(&first).await?;
        sleep(Duration::from_secs(u64::from(WINDOW_SECONDS) + 1)).await;
        self.put(None, &second, Kind::Rolling { window_seconds: HOLD_SECONDS }).await?;
        self.end(lease, &[(&first, 9), (&slot, 1)]).await?;
        self.must_hold(&second, 0, "after overage of a deleted limit").await?;
        self.put(None, &third, Kind::Rolling { window_seconds: HOLD_SECONDS }).await?;
        // The node may still know the id of the first limit, which the third one may have now.
        let late = self.new_lease();
        let taken = self.take(Some(cached), late, &[(&first, 1)]).await?;
        let is_wrong = taken != Taken::Refused && !self.exists(&first).await?;
        let what = format!("{first} was deleted, and a reserve of it is {taken:?}");
        self.context.oracle.borrow_mut().must(!is_wrong, || what);
        self.must_hold(&third, 0, "after a reserve of a deleted limit").await?;
        let lease = self.new_lease();
        if self.take(None, lease, &[(&third, 3)]).await? == Taken::Allowed {
            self.must_hold(&third, 3, "after a reserve of it").await?;
        }
        self.must_hold(&second, 0, "after a reserve of another").await
    }

    pub(super) async fn must_hold(&mut self, name: &str, reserved: u64, when: &str) -> Option<()> {
        while !self.context.is_over() {
            let key = key(name);
            let usage = self.attempt(None, "usage", async move |node| node.usage(namespace(), key).await).await;
            if let Some(Ok(Some(usage))) = usage {
                let what = format!("{name} {when}: {usage:?}");
                self.context.oracle.borrow_mut().must(usage.reserved == reserved && usage.debt == 0, || what);
                return Some(());
            }
        }
        None
    }

    /// Whether a limit exists. A put without an answer may be applied late, after the delete.
    async fn exists(&mut self, name: &str) -> Option<bool> {
        while !self.context.is_over() {
            let key = key(name);
            let limit = self.attempt(None, "limit", async move |node| node.limit(namespace(), key).await).await;
            if let Some(Ok(limit)) = limit {
                return Some(limit.is_some());
            }
        }
        None
    }

    async fn put(&mut self, node: Option<usize>, name: &str, kind: Kind) -> Option<()> {
        self.put_limit(node, definition(name, kind, CAPACITY)).await
    }

    pub(super) async fn put_limit(&mut self, node: Option<usize>, definition: Definition) -> Option<()> {
        let name = definition.key.clone();
        while !self.context.is_over() {
            let definition = definition.clone();
            let request = PutLimitRequest { namespace: namespace(), definition, expected_revision: None };
            let put = async move |node: Arc<NodeBackend>| node.put_limit(Principal::System, request).await;
            if let Some(Ok(_)) = self.attempt(node, &format!("put {name}"), put).await {
                return Some(());
            }
        }
        None
    }

    pub(super) async fn delete(&mut self, name: &str) -> Option<()> {
        while !self.context.is_over() {
            let request = DeleteLimitRequest { namespace: namespace(), key: key(name), expected_revision: None };
            let delete = async move |node: Arc<NodeBackend>| node.delete_limit(Principal::System, request).await;
            let answer = self.attempt(None, &format!("delete {name}"), delete).await;
            if let Some(Ok(_) | Err(LimitError::NotFound)) = answer {
                return Some(());
            }
        }
        None
    }

    /// Reserves until there is an answer.
    pub(super) async fn take(&mut self, node: Option<usize>, lease: LeaseId, parts: &[(&str, u64)]) -> Option<Taken> {
        while !self.context.is_over() {
            let request = ReserveRequest {
                namespace: namespace(),
                lease,
                job: None,
                call: None,
                by_gateway: false,
                requirements: amounts(parts),
            };
            let reserve =
                async move |node: Arc<NodeBackend>| node.reserve(Principal::System, vec![request]).await.remove(0);
            match self.attempt(node, &format!("reserve {parts:?}"), reserve).await {
                Some(Ok(ReserveAnswer::Allowed { .. })) => return Some(Taken::Allowed),
                Some(Ok(ReserveAnswer::Denied { .. })) => return Some(Taken::Denied),
                // Also for a lease whose time is wrong by a node's clock.
                Some(Ok(ReserveAnswer::Refused(_))) => return Some(Taken::Refused),
                Some(Err(_)) | None => {}
            }
        }
        None
    }

    async fn end(&mut self, lease: LeaseId, parts: &[(&str, u64)]) -> Option<()> {
        while !self.context.is_over() {
            let request = CompleteRequest {
                namespace: namespace(),
                lease,
                job: None,
                claim: earmark_core::LeaseClaim::default(),
                actuals: amounts(parts),
                labels: earmark_core::SettleLabels::NONE,
            };
            let complete =
                async move |node: Arc<NodeBackend>| node.complete(Principal::System, vec![request]).await.remove(0);
            if let Some(Ok(_)) = self.attempt(None, &format!("complete {parts:?}"), complete).await {
                return Some(());
            }
        }
        None
    }

    /// One attempt at this node, or at any.
    pub(super) async fn attempt<T: Send + 'static, F: Future<Output = T> + Send>(
        &mut self,
        node: Option<usize>,
        what: &str,
        ask: impl FnOnce(Arc<NodeBackend>) -> F + Send + 'static,
    ) -> Option<T> {
        let node = node.unwrap_or_else(|| self.any());
        let text = self.say(node, what);
        self.context.oracle.borrow_mut().ask(&text);
        let answer = self.ask(node, ask).await;
        if answer.is_none() {
            let pause = self.ms(1, 40);
            sleep(pause).await;
        }
        answer
    }
}

/// The answer to a reserve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taken {
    Allowed,
    Denied,
    Refused,
}
