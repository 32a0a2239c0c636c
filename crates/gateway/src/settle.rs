//! Settlement: in tasks that outlive the client's connection, retried with the same lease until Earmark has answered.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use earmark_client::core::{LeaseId, SETTLE_LABEL_VALUE_BYTES_MAX, SettleLabels};
use earmark_client::{CallCompleted, CallOutcome, CallResult, Failure};
use tokio::sync::{Notify, OwnedSemaphorePermit};

use crate::earmark::Earmark;
use crate::metrics::{Metrics, SettledBy};
use crate::open_calls::{End, OpenCall, OpenCalls};

/// The waits between tries: from the first to the longest, doubled each time.
const FIRST_WAIT: Duration = Duration::from_millis(200);
const LONGEST_WAIT: Duration = Duration::from_secs(10);
/// Tries to release a call whose reserve had no answer: it may still arrive after the first try.
const RELEASES_MAX: u32 = 3;
/// The wait between those tries: longer than a server keeps a request that it cannot execute.
const RELEASE_WAIT: Duration = Duration::from_secs(6);

/// Settles calls.
pub(crate) struct Settler {
    earmark: Arc<dyn Earmark>,
    calls: Arc<OpenCalls>,
    metrics: Arc<Metrics>,
    waiting_max: usize,
    waiting: AtomicUsize,
    done: Notify,
}

/// A call to settle.
pub(crate) struct Settlement {
    pub(crate) lease: LeaseId,
    pub(crate) call: OpenCall,
    pub(crate) end: End,
    /// Why it is settled like this.
    pub(crate) by: SettledBy,
    /// Whether its reserve had an answer. Without one it may arrive later.
    pub(crate) is_reserved: bool,
    /// The place of the call among all calls.
    pub(crate) permit: Option<OwnedSemaphorePermit>,
}

impl Settler {
    pub(crate) fn new(
        earmark: Arc<dyn Earmark>,
        calls: Arc<OpenCalls>,
        metrics: Arc<Metrics>,
        waiting_max: usize,
    ) -> Settler {
        Settler { earmark, calls, metrics, waiting_max, waiting: AtomicUsize::new(0), done: Notify::new() }
    }

    /// Whether the queue of calls that wait for their settlement is full. Then no new call may begin.
    pub(crate) fn is_full(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) >= self.waiting_max
    }

    /// Settlements that are not done.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Waits until all settlements are done.
    pub(crate) async fn finished(&self) {
        loop {
            let done = self.done.notified();
            if self.waiting() == 0 {
                return;
            }
            done.await;
        }
    }

    /// Settles a call in a task of its own. The end is written down before this returns.
    pub(crate) fn settle(self: &Arc<Self>, settlement: Settlement) {
        tokio::spawn(self.settling(settlement));
    }

    /// Settles a call, in a task that runs the future to its end. The end is written down before this returns.
    pub(crate) fn settling(
        self: &Arc<Self>,
        settlement: Settlement,
    ) -> impl Future<Output = Option<CallCompleted>> + Send + use<> {
        self.calls.ended(settlement.lease, &settlement.end);
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let settler = Arc::clone(self);
        async move {
            let completed = settler.complete(&settlement).await;
            settler.metrics.settled(settlement.by, &settlement.call, &settlement.end, completed.as_ref());
            settler.calls.settled(settlement.lease);
            drop(settlement.permit);
            settler.waiting.fetch_sub(1, Ordering::Relaxed);
            settler.done.notify_waiters();
            completed
        }
    }

    /// Completes a call, however long that takes. `None` if Earmark refuses it for good.
    async fn complete(&self, settlement: &Settlement) -> Option<CallCompleted> {
        let Settlement { lease, call, end, is_reserved, .. } = settlement;
        let outcome = CallOutcome {
            attributes: Arc::clone(&call.attributes),
            namespace: call.namespace.as_deref().and_then(|name| name.parse().ok()),
            policy_revision: call.policy_revision,
            result: CallResult::from(end),
            labels: labels(&call.attributes),
        };
        let (mut wait, mut releases) = (FIRST_WAIT, 0);
        loop {
            match self.earmark.complete(*lease, &outcome).await {
                Ok(completed) if completed.reconciled || *is_reserved => return Some(completed),
                // The reserve may still be on its way.
                Ok(completed) => {
                    releases += 1;
                    if releases == RELEASES_MAX {
                        return Some(completed);
                    }
                    tokio::time::sleep(RELEASE_WAIT).await;
                }
                Err(failure) if is_final(&failure) => {
                    tracing::error!(%lease, %failure, "a call cannot be settled; it ends by its timeout");
                    return None;
                }
                Err(failure) => {
                    tracing::warn!(%lease, %failure, "a call is not settled yet");
                    tokio::time::sleep(wait).await;
                    wait = (wait * 2).min(LONGEST_WAIT);
                }
            }
        }
    }
}

/// The attributes that become labels of settlements, so that statements group by them.
const LABELLED: [&str; 4] = ["model", "provider", "key", "user"];

/// The labels of a call. An attribute that is too long for a label is left out.
fn labels(attributes: &BTreeMap<String, String>) -> SettleLabels {
    let known = LABELLED.into_iter().filter_map(|name| Some((name, attributes.get(name)?)));
    let fitting = known.filter(|(_, value)| value.len() <= SETTLE_LABEL_VALUE_BYTES_MAX);
    SettleLabels::new(fitting).unwrap_or_default()
}

/// Whether another try cannot help. A key that is refused may be replaced.
pub(crate) fn is_final(failure: &Failure) -> bool {
    match failure {
        Failure::Invalid { .. } | Failure::NotFound { .. } => true,
        Failure::UnknownThenRefused { refusal } => is_final(refusal),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_settlement_is_labelled_with_what_is_known_of_model_provider_key_and_user() {
        let long = "x".repeat(SETTLE_LABEL_VALUE_BYTES_MAX + 1);
        let of = |pairs: &[(&str, &str)]| {
            labels(&pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()).to_string()
        };
        let all = [("model", "m"), ("alias", "a"), ("provider", "p"), ("key", "k"), ("user", "u"), ("tenant", "t")];
        assert_eq!(of(&all), "key=k model=m provider=p user=u");
        assert_eq!(of(&[("model", "m"), ("user", &long)]), "model=m");
        assert_eq!(of(&[]), "");
    }
}
