//! What whoever submitted a task holds.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

use tokio::sync::oneshot;

use super::TaskError;
use crate::deadline::Deadline;

const WAITING: u8 = 0;
const STARTED: u8 = 1;
const CANCELLED: u8 = 2;

/// Where a task stands. Only one of the two sides moves it on.
#[derive(Debug, Default)]
pub(super) struct AccountStatus(AtomicU8);

impl AccountStatus {
    fn moves(&self, to: u8) -> bool {
        self.0.compare_exchange(WAITING, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Whether it may start; from then on it cannot be cancelled.
    pub(super) fn start(&self) -> bool {
        self.moves(STARTED)
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Acquire) == CANCELLED
    }
}

/// A task that was submitted. Dropped before it has started, it is cancelled; [`Ticket::detach`] lets it go on.
#[must_use = "dropping it cancels the task"]
pub struct Ticket<R> {
    pub(super) standing: Arc<AccountStatus>,
    pub(super) answer: oneshot::Receiver<Result<R, TaskError>>,
    pub(super) deadline: Deadline,
    pub(super) cancelled: Arc<AtomicUsize>,
}

impl<R> fmt::Debug for Ticket<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticket").field("standing", &self.standing).finish_non_exhaustive()
    }
}

impl<R> Ticket<R> {
    /// What came of it. A task that has not started by its deadline never will; one that has is waited for.
    ///
    /// # Errors
    /// When it was not admitted.
    pub async fn outcome(mut self) -> Result<R, TaskError> {
        let lost = |_| Err(TaskError::Lost);
        if let Some(outcome) = self.deadline.bound(&mut self.answer).await {
            return outcome.unwrap_or_else(lost);
        }
        if self.cancel_waiting() {
            return Err(TaskError::DeadlinePassed { last: None });
        }
        (&mut self.answer).await.unwrap_or_else(lost)
    }

    /// Cancels it; says whether it had not started yet. One that has started goes on.
    pub fn cancel(self) -> bool {
        self.cancel_waiting()
    }

    /// Lets it go on without anybody who waits for it.
    pub fn detach(mut self) {
        // What is dropped with this ticket is the standing of no task.
        self.standing = Arc::new(AccountStatus(AtomicU8::new(STARTED)));
    }

    fn cancel_waiting(&self) -> bool {
        let is_cancelled = self.standing.moves(CANCELLED);
        if is_cancelled {
            self.cancelled.fetch_add(1, Ordering::Relaxed);
        }
        is_cancelled
    }
}

impl<R> Drop for Ticket<R> {
    fn drop(&mut self) {
        self.cancel_waiting();
    }
}
