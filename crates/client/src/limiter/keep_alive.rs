//! Renews the lease of a guard in the background.

use std::sync::Arc;
use std::time::Duration;

use earmark_core::UnixMs;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::Shared;
use super::extend::{AskedBy, ExtendError, Extension, Extensions};
use crate::answer::Extended;
use crate::deadline::Deadline;

/// A lease is renewed when a third of its timeout has passed, so that two renewals may fail before it runs out.
const RENEWALS_PER_TIMEOUT: u32 = 3;
/// The shortest wait between two renewals. A lease at its latest end, 24 hours after the reserve, would otherwise be
/// renewed ever faster.
const WAIT_MIN: Duration = Duration::from_millis(50);

/// Renews the lease of a [`Guard`](super::Guard) whenever a third of its timeout has passed, and reports the usage that
/// [`Guard::used`](super::Guard::used) recorded. It stops with the guard, or when it is dropped.
#[must_use = "dropping it stops the renewals"]
pub struct KeepAlive {
    task: JoinHandle<()>,
    lost: watch::Receiver<Option<ExtendError>>,
}

impl KeepAlive {
    /// Waits until the lease cannot be renewed any more, and returns why. A call should stop then: others may take its
    /// capacity. `None` once the guard is completed or dropped.
    pub async fn lost(&mut self) -> Option<ExtendError> {
        let error = self.lost.wait_for(Option::is_some).await.ok()?;
        error.clone()
    }

    /// Why the lease cannot be renewed any more; `None` as long as it can.
    #[must_use]
    pub fn error(&self) -> Option<ExtendError> {
        self.lost.borrow().clone()
    }
}

impl Drop for KeepAlive {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl std::fmt::Debug for KeepAlive {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KeepAlive").field("error", &self.error()).finish_non_exhaustive()
    }
}

/// The lease to renew.
pub(super) struct Renewed {
    pub(super) shared: Arc<Shared>,
    pub(super) extensions: Arc<Extensions>,
    /// When the job was admitted, on the clock of the server and on that of this process.
    pub(super) admitted: (UnixMs, Instant),
    pub(super) timeout: Duration,
    /// Changes once the guard has ended.
    pub(super) is_over: watch::Receiver<bool>,
}

impl Renewed {
    pub(super) fn keep_alive(self) -> KeepAlive {
        let (sender, lost) = watch::channel(None);
        let handle = self.shared.handle.clone();
        let task = handle.spawn(async move {
            let mut is_over = self.is_over.clone();
            let error = tokio::select! {
                // An error means that the guard was dropped.
                _ = is_over.wait_for(|is_over| *is_over) => return,
                error = self.renew() => error,
            };
            tracing::warn!(%error, "a lease cannot be renewed and will run out");
            _ = sender.send(Some(error));
            // The reason stays readable until the guard ends.
            _ = is_over.wait_for(|is_over| *is_over).await;
        });
        KeepAlive { task, lost }
    }

    /// Renews until it is not possible any more.
    async fn renew(&self) -> ExtendError {
        let mut left = self.timeout.saturating_sub(self.admitted.1.elapsed());
        loop {
            let ends = Instant::now() + left;
            tokio::time::sleep((left.min(self.timeout) / RENEWALS_PER_TIMEOUT).max(WAIT_MIN)).await;
            // Until the end each attempt without an answer is repeated. After it one more attempt tells what became of
            // the lease.
            let deadline = Deadline::at(ends.max(Instant::now() + self.timeout / RENEWALS_PER_TIMEOUT));
            let renewal = Extension::new();
            left = match self.extensions.extend(&self.shared, &renewal, AskedBy::KeepAlive, deadline).await {
                Ok(extended) => self.left(&extended),
                Err(ExtendError::NotNow(denial)) if Instant::now() < ends => denial.retry_after,
                Err(error) => return error,
            };
        }
    }

    /// The rest of the lease, from the server's times: both are on its clock, so that the clocks need not agree.
    fn left(&self, extended: &Extended) -> Duration {
        let Some(ends_at) = extended.ends_at else { return self.timeout };
        let from_start = Duration::from_millis(ends_at.get().saturating_sub(self.admitted.0.get()));
        from_start.saturating_sub(self.admitted.1.elapsed())
    }
}
