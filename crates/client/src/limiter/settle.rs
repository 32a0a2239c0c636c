//! Completes in the background.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Shared;
use crate::answer::Completed;
use crate::deadline::Deadline;
use crate::failure::Failure;
use crate::request::CompleteItem;

/// Counts a complete in the background.
struct Settling(Arc<Shared>);

impl Settling {
    fn start(shared: &Arc<Shared>) -> Settling {
        shared.settling.fetch_add(1, Ordering::SeqCst);
        Settling(Arc::clone(shared))
    }
}

impl Drop for Settling {
    fn drop(&mut self) {
        self.0.settling.fetch_sub(1, Ordering::SeqCst);
        self.0.settled.notify_waiters();
    }
}

impl Shared {
    /// Completes in the background, so that it continues when the caller is dropped.
    pub(super) fn settle(self: &Arc<Self>, item: CompleteItem) -> tokio::task::JoinHandle<Result<Completed, Failure>> {
        let settling = Settling::start(self);
        self.handle.spawn(async move {
            let shared = Arc::clone(&settling.0);
            let settled = shared.complete(&item).await;
            match &settled {
                Ok(_) => shared.wait_queues.release(&item.job),
                Err(failure) => {
                    shared.abandoned.fetch_add(1, Ordering::Relaxed);
                    tracing::warn!(lease = %item.lease, %failure, "a lease could not be completed and will expire");
                }
            }
            drop(settling);
            settled
        })
    }

    /// Completes without a caller that waits for it.
    pub(super) fn settle_in_background(self: &Arc<Self>, item: CompleteItem) {
        #[cfg(feature = "local")]
        if let Some(Some(Ok(_))) = self.client.book().map(|book| book.complete_now(&item)) {
            self.wait_queues.release(&item.job);
            return;
        }
        if self.settling.load(Ordering::SeqCst) >= self.options.settling_max {
            self.abandoned.fetch_add(1, Ordering::Relaxed);
            return;
        }
        drop(self.settle(item));
    }

    async fn complete(&self, item: &CompleteItem) -> Result<Completed, Failure> {
        let deadline = Deadline::after(self.options.complete_within);
        let attempt = || self.ask_once(self.completes.as_ref(), item.clone(), deadline);
        self.client.retry(true, deadline, attempt).await
    }
}
