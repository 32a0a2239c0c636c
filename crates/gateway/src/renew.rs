//! Renewals: a call that is still running keeps its reservations, and reports its usage so far.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use earmark_client::core::LeaseId;
use earmark_client::{CallExtension, CallUsage, ExtendAnswer, Failure};
use tokio::task::JoinHandle;

use crate::earmark::Earmark;
use crate::open_calls::OpenCall;

/// Renews one call until it is dropped.
pub(crate) struct Renewal {
    task: JoinHandle<()>,
    used: Arc<Mutex<Option<CallUsage>>>,
}

impl Renewal {
    /// Renews a call every `interval`.
    pub(crate) fn start(earmark: Arc<dyn Earmark>, lease: LeaseId, call: OpenCall, interval: Duration) -> Renewal {
        let used = Arc::new(Mutex::new(None));
        let task = tokio::spawn(renew(earmark, lease, call, interval, Arc::clone(&used)));
        Renewal { task, used }
    }

    /// The usage so far, which the call pays even if this gateway never settles it.
    pub(crate) fn used(&self, usage: Option<CallUsage>) {
        *self.used.lock().unwrap_or_else(PoisonError::into_inner) = usage;
    }
}

impl Drop for Renewal {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn renew(
    earmark: Arc<dyn Earmark>,
    lease: LeaseId,
    call: OpenCall,
    interval: Duration,
    used: Arc<Mutex<Option<CallUsage>>>,
) {
    let namespace = call.namespace.as_deref().and_then(|name| name.parse().ok());
    let mut extension = CallExtension {
        number: 1,
        attributes: call.attributes,
        namespace,
        policy_revision: call.policy_revision,
        ..CallExtension::default()
    };
    let mut is_unknown = false;
    loop {
        tokio::time::sleep(interval).await;
        // An extension without an answer is repeated as it was.
        if !is_unknown {
            extension.used = used.lock().unwrap_or_else(PoisonError::into_inner).clone();
        }
        match earmark.extend(lease, &extension).await {
            Ok(ExtendAnswer::Extended(_)) => {
                extension.number = extension.number.saturating_add(1);
                is_unknown = false;
            }
            Ok(ExtendAnswer::Not(refusal)) => {
                tracing::warn!(%lease, ?refusal, "a running call was not renewed");
                is_unknown = false;
            }
            Err(failure @ (Failure::Invalid { .. } | Failure::NotFound { .. })) => {
                tracing::warn!(%lease, %failure, "a running call cannot be renewed");
                return;
            }
            Err(failure) => {
                tracing::warn!(%lease, %failure, "a running call is not renewed yet");
                is_unknown = true;
            }
        }
    }
}
