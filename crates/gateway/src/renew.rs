//! Renewals: calls that are still running keep their reservations, and report their usage so far.
//!
//! One task renews the calls of a gateway. A call that ends within the interval, as most do, costs an entry in a map.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use earmark_client::core::LeaseId;
use earmark_client::{CallExtension, CallUsage, ExtendAnswer, Failure, ReserveAnswer};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior};

use crate::earmark::Earmark;
use crate::open_calls::OpenCall;
use crate::settle::is_final;

/// Renewals that wait for Earmark at the same time. Fewer than its connections, so that new calls need not wait.
const UNDER_WAY_MAX: usize = 64;
/// Looks for due renewals in one interval: a renewal is late by at most this part of it.
const LOOKS_PER_INTERVAL: u32 = 20;

/// The calls of a gateway that are running.
pub(crate) struct Renewals {
    earmark: Arc<dyn Earmark>,
    interval: Duration,
    running: Mutex<BTreeMap<LeaseId, Running>>,
}

/// One running call.
struct Running {
    call: OpenCall,
    /// The usage so far.
    used: Option<CallUsage>,
    /// The time of the next renewal. `None` while one is under way.
    due: Option<Instant>,
    /// The number of the next extension.
    number: u32,
    /// The usage that the last extension reported, if it had no answer: it is repeated as it was.
    unanswered: Option<Option<CallUsage>>,
}

/// Renews one call until it is dropped.
pub(crate) struct Renewal {
    renewals: Arc<Renewals>,
    lease: LeaseId,
}

impl Renewal {
    /// The usage so far, which the call pays even if this gateway never settles it.
    pub(crate) fn used(&self, usage: CallUsage) {
        if let Some(running) = self.renewals.lock().get_mut(&self.lease) {
            running.used = Some(usage);
        }
    }
}

impl Drop for Renewal {
    fn drop(&mut self) {
        self.renewals.lock().remove(&self.lease);
    }
}

impl Renewals {
    pub(crate) fn new(earmark: Arc<dyn Earmark>, interval: Duration) -> Renewals {
        Renewals { earmark, interval, running: Mutex::default() }
    }

    /// Renews a call from now on.
    pub(crate) fn add(self: &Arc<Self>, lease: LeaseId, call: OpenCall) -> Renewal {
        let due = Some(Instant::now() + self.interval);
        self.lock().insert(lease, Running { call, used: None, due, number: 1, unanswered: None });
        Renewal { renewals: Arc::clone(self), lease }
    }

    /// Renews the calls that are due. Never returns.
    pub(crate) async fn run(self: Arc<Self>) {
        let mut looks = tokio::time::interval(self.interval / LOOKS_PER_INTERVAL);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut under_way = JoinSet::new();
        loop {
            looks.tick().await;
            for (lease, extension) in self.due(Instant::now()) {
                if under_way.len() >= UNDER_WAY_MAX {
                    _ = under_way.join_next().await;
                }
                under_way.spawn(Arc::clone(&self).renew(lease, extension));
            }
            while under_way.try_join_next().is_some() {}
        }
    }

    /// The extensions that are due.
    fn due(&self, now: Instant) -> Vec<(LeaseId, CallExtension)> {
        let mut running = self.lock();
        let due = running.iter_mut().filter(|(_, one)| one.due.is_some_and(|due| due <= now));
        due.map(|(lease, one)| (*lease, one.extension())).collect()
    }

    async fn renew(self: Arc<Self>, lease: LeaseId, extension: CallExtension) {
        let answer = self.earmark.extend(lease, &extension).await;
        let mut running = self.lock();
        // A call that has ended meanwhile needs no renewal.
        let Some(one) = running.get_mut(&lease) else { return };
        if one.goes_on(lease, answer) {
            one.due = Some(Instant::now() + self.interval);
        } else {
            running.remove(&lease);
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<LeaseId, Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Running {
    /// The next extension, which is under way from now on.
    fn extension(&mut self) -> CallExtension {
        self.due = None;
        let used = self.unanswered.get_or_insert_with(|| self.used.clone()).clone();
        CallExtension {
            number: self.number,
            attributes: Arc::clone(&self.call.attributes),
            namespace: self.call.namespace.as_deref().and_then(|name| name.parse().ok()),
            policy_revision: self.call.policy_revision,
            used,
            ..CallExtension::default()
        }
    }

    /// Takes the answer to the last extension. Returns whether another one may follow.
    fn goes_on(&mut self, lease: LeaseId, answer: Result<ExtendAnswer, Failure>) -> bool {
        match answer {
            Ok(ExtendAnswer::Extended(_)) => {
                self.number = self.number.saturating_add(1);
                self.unanswered = None;
                true
            }
            Ok(ExtendAnswer::Not(ReserveAnswer::LeaseExpired)) => {
                tracing::warn!(%lease, "a running call was not renewed in time; its limits count it as ended");
                false
            }
            Ok(ExtendAnswer::Not(refusal)) => {
                tracing::warn!(%lease, ?refusal, "a running call was not renewed");
                let takes_number = matches!(
                    refusal,
                    ReserveAnswer::Denied(_) | ReserveAnswer::Never { .. } | ReserveAnswer::InsufficientCredit { .. }
                );
                self.number = self.number.saturating_add(u32::from(takes_number));
                self.unanswered = None;
                true
            }
            Err(failure) if is_final(&failure) => {
                tracing::warn!(%lease, %failure, "a running call cannot be renewed");
                false
            }
            Err(failure) => {
                tracing::warn!(%lease, %failure, "a running call is not renewed yet");
                true
            }
        }
    }
}
