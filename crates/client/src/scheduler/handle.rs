//! The handle of a submitted task.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

use tokio::sync::oneshot;

use super::TaskError;
use crate::deadline::Deadline;

const WAITING: u8 = 0;
const STARTED: u8 = 1;
const CANCELLED: u8 = 2;

/// The state of a task. Its handle and the scheduler race to change it, and the first wins.
#[derive(Debug, Default)]
pub(super) struct TaskState(AtomicU8);

impl TaskState {
    fn change(&self, to: u8) -> bool {
        self.0.compare_exchange(WAITING, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Starts the task, unless it was cancelled. A started task cannot be cancelled.
    pub(super) fn start(&self) -> bool {
        self.change(STARTED)
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Acquire) == CANCELLED
    }
}

/// The handle of a submitted task. Dropping it cancels a task that has not started, unless it was detached.
#[must_use = "dropping it cancels the task"]
pub struct JobHandle<R> {
    pub(super) task_state: Arc<TaskState>,
    pub(super) answer: oneshot::Receiver<Result<R, TaskError>>,
    pub(super) deadline: Deadline,
    pub(super) cancelled: Arc<AtomicUsize>,
}

impl<R> fmt::Debug for JobHandle<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JobHandle").field("task_state", &self.task_state).finish_non_exhaustive()
    }
}

impl<R> JobHandle<R> {
    /// Waits for the result of the task. A task that has not started at its deadline never starts.
    ///
    /// # Errors
    /// When the task was not admitted.
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

    /// Cancels the task unless it has started, and returns whether it did.
    pub fn cancel(self) -> bool {
        self.cancel_waiting()
    }

    /// Runs the task to its end, without its result.
    pub fn detach(mut self) {
        // Dropping the handle then changes the state of no task.
        self.task_state = Arc::new(TaskState(AtomicU8::new(STARTED)));
    }

    fn cancel_waiting(&self) -> bool {
        let is_cancelled = self.task_state.change(CANCELLED);
        if is_cancelled {
            self.cancelled.fetch_add(1, Ordering::Relaxed);
        }
        is_cancelled
    }
}

impl<R> Drop for JobHandle<R> {
    fn drop(&mut self) {
        self.cancel_waiting();
    }
}
