//! Giving back: what a lease used, said until somebody has heard it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Shared;
use crate::ask::{CompleteItem, Completed};
use crate::batcher::ask_alone;
use crate::deadline::Deadline;
use crate::failure::{Certainty, Failure};

/// Counts a lease that is being given back.
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
    /// Completes in the background, so that a caller that goes away meanwhile takes nothing with it.
    pub(super) fn settle(
        self: &Arc<Self>,
        item: CompleteItem,
    ) -> tokio::task::JoinHandle<Result<Completed, Failure>> {
        let settling = Settling::start(self);
        self.handle.spawn(async move {
            let shared = Arc::clone(&settling.0);
            let settled = shared.complete(&item).await;
            if settled.is_ok() {
                shared.freed.give_back(&item.job);
            }
            if let Err(failure) = &settled {
                shared.abandoned.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(lease = %item.lease, %failure, "a lease is left to expire");
            }
            drop(settling);
            settled
        })
    }

    /// Completes without anybody who waits for it.
    pub(super) fn settle_in_background(self: &Arc<Self>, item: CompleteItem) {
        #[cfg(feature = "local")]
        if let Some(Some(Ok(_))) = self.client.book().map(|book| book.complete_now(&item)) {
            self.freed.give_back(&item.job);
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
        let mut backoff = self.client.backoff();
        let (mut last, mut earlier) = (None, Certainty::NothingHappened);
        while !deadline.has_passed() {
            match deadline.bound(self.complete_once(item.clone(), deadline)).await {
                Some(Err(failure)) if failure.is_transient() => {
                    earlier = earlier.or(failure.certainty());
                    let wait = backoff.wait(&failure, self.client.servers());
                    last = Some(Box::new(failure));
                    _ = deadline.bound(tokio::time::sleep(wait)).await;
                }
                Some(answer) => return answer.map_err(|failure| failure.after(earlier)),
                None => break,
            }
        }
        Err(Failure::DeadlinePassed { last })
    }

    async fn complete_once(&self, item: CompleteItem, deadline: Deadline) -> Result<Completed, Failure> {
        match &self.completes {
            Some(batcher) => batcher.ask(item, deadline).await,
            // Boxed, for it is large, and every call would carry room for it that shares a request.
            None => Box::pin(ask_alone(&self.client, item, deadline)).await,
        }
    }
}
