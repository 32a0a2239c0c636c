//! Reads of usage and of leases.

use std::sync::Arc;

use earmark_admission::{Amount, Backend, EnforcedStatus, Limits};
use earmark_core::{LeaseState, LimitKey, LimitStatus, NamespaceName, Usage};
use earmark_tigerbeetle::TigerBeetleLimits;

use super::{Asked, Asking, Stream};
use crate::compare;
use crate::support::registry::TestRegistry;
use crate::support::wall_ms;

impl Stream {
    pub(super) async fn usages(&mut self) -> Asking {
        let all: Vec<Amount> = self.limits.iter().map(|limit| Amount { key: limit.key.clone(), amount: 0 }).collect();
        self.usage_of(&all).await
    }

    /// Compares the usage of limits that can be compared.
    pub(super) async fn usage_of(&mut self, parts: &[Amount]) -> Asking {
        let mut reading = Vec::new();
        for part in parts {
            let Some(place) = self.place(&part.key) else { continue };
            if !self.is_clear(place) {
                continue;
            }
            let began = wall_ms();
            let (namespace, key) = self.owned(&part.key);
            let book = self.book.usage(namespace.clone(), key.clone()).await.unwrap();
            let (node, registry) = (self.node(), Arc::clone(&self.registry));
            let ledger = tokio::spawn(async move { usage(&node, &registry, namespace, key).await });
            reading.push((place, part, began, book, ledger));
        }
        let mut is_compared = false;
        for (place, part, began, book, ledger) in reading {
            let ledger = ledger.await.unwrap();
            self.say(&("usage", part.key.as_str(), &ledger));
            let compared = match self.limits[place].template {
                Some(_) if !self.limits[place].is_put => compare::used(book, ledger),
                Some(_) => compare::usage(book, ledger),
                None => {
                    self.limits[place].is_put = ledger.is_some();
                    compare::usage(book, ledger)
                }
            };
            self.check(began, std::slice::from_ref(part), compared)?;
            self.tally.met("usage");
            is_compared = true;
        }
        Ok(is_compared)
    }

    pub(super) async fn lease(&mut self) -> Asking {
        match self.known() {
            Some(place) => self.lease_at(place).await,
            None => Ok(false),
        }
    }

    pub(super) async fn lease_at(&mut self, place: usize) -> Asking {
        let Asked { lease, at, is_unknown, extended, .. } = self.leases[place].clone();
        let parts = self.leases[place].all();
        // Only the process that denied a lease knows its state. Only one that used a derived key can name its account.
        let is_derived = |part: &Amount| part.key.as_str().starts_with("derived:");
        if at.is_none() && !is_unknown || parts.iter().any(is_derived) {
            return Ok(false);
        }
        let began = wall_ms();
        let book = self.book.lease(self.namespace.clone(), lease).await.unwrap();
        let namespace = self.namespace.clone();
        let ledger = self.node().lease(namespace, lease).await.unwrap();
        self.check(began, &parts, compare::lease(book.as_ref(), ledger.as_ref(), self.longest_ms))?;
        let has_timed_out = book.is_some_and(|view| view.state == LeaseState::Expired);
        self.tally.met(match (extended.is_some(), has_timed_out) {
            (false, _) => "view",
            (true, false) => "view of an extended lease",
            (true, true) => "view of an extended lease that timed out",
        });
        Ok(true)
    }
}

/// Usage of a limit in TigerBeetle. The leader notices a finished deletion within a second; this test triggers it at
/// once.
async fn usage(
    node: &TigerBeetleLimits,
    registry: &TestRegistry,
    namespace: NamespaceName,
    key: LimitKey,
) -> Option<Usage> {
    let info = registry.get(&namespace, &key)?;
    if info.status == (LimitStatus::Decreasing { to: 0 })
        && node.apply_definition(namespace.clone(), key.clone()).await.unwrap() == EnforcedStatus::Absent
    {
        registry.drop_limit(&namespace, &key);
        return None;
    }
    Some(node.usage(namespace, info).await.unwrap())
}
