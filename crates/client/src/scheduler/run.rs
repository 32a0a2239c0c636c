//! The driver task, and the tasks that it spawns.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;

use super::lanes::{Candidate, LaneId, Pick};
use super::{Item, Shared, TaskError};
use crate::answer::Denial;
use crate::job::Job;
use crate::limiter::{Attempt, Guard};

/// The longest wait of a lane before it tries one of its tasks: the limits may have room before the hint.
const PROBE_MAX: Duration = Duration::from_secs(5);

/// The next action of the driver.
enum Action<T, R> {
    Try(Candidate<Item<T, R>>),
    Abandon(Item<T, R>),
    Wait(Option<Instant>),
    End,
}

/// Spawns attempts until the scheduler is closed and idle.
pub(super) async fn drive<T: Send + 'static, R: Send + 'static>(shared: Arc<Shared<T, R>>) {
    loop {
        let changed = shared.changed.notified();
        match look(&shared) {
            Action::Try(next) => {
                shared.handle.spawn(attempt(Arc::clone(&shared), next));
            }
            Action::Abandon(item) => abandon(&shared, item),
            Action::Wait(Some(until)) => {
                tokio::select! {
                    () = changed => {}
                    () = tokio::time::sleep_until(until) => {}
                }
            }
            Action::Wait(None) => changed.await,
            Action::End => return,
        }
    }
}

fn look<T, R>(shared: &Shared<T, R>) -> Action<T, R> {
    let mut state = shared.lock();
    if state.running >= shared.options.running_max.max(1) {
        return Action::Wait(None);
    }
    match state.lanes.next(Instant::now()) {
        Pick::Try(next) => {
            state.running += 1;
            Action::Try(next)
        }
        Pick::Abandoned(item) => Action::Abandon(item),
        Pick::Nothing => {
            let is_idle = state.lanes.queued() == 0 && state.running == 0;
            if is_idle {
                shared.idle.notify_waiters();
            }
            match is_idle && state.is_closing {
                true => Action::End,
                false => Action::Wait(state.lanes.wake_at()),
            }
        }
    }
}

/// Ends a task that was cancelled or whose deadline has passed.
fn abandon<T, R>(shared: &Shared<T, R>, item: Item<T, R>) {
    if item.task_state.is_cancelled() {
        let less = |count: usize| count.checked_sub(1);
        _ = shared.cancelled.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    } else if item.task_state.start() {
        _ = item.reply.send(Err(TaskError::DeadlinePassed { last: None }));
    }
}

/// The slot of a running task. Dropping it frees the slot.
struct RunningSlot<'a, T, R> {
    shared: &'a Shared<T, R>,
    lane: LaneId,
    /// The job, once it is admitted.
    running: Option<Job>,
    is_returned: bool,
}

impl<T, R> Drop for RunningSlot<'_, T, R> {
    fn drop(&mut self) {
        if self.is_returned {
            return;
        }
        let mut state = self.shared.lock();
        state.running -= 1;
        match &self.running {
            Some(job) => state.lanes.ended(self.lane, job),
            None => state.lanes.settled(self.lane),
        }
        drop(state);
        self.shared.changed.notify_one();
    }
}

/// Makes one attempt to admit a task, and runs its work.
async fn attempt<T: Send + 'static, R: Send + 'static>(shared: Arc<Shared<T, R>>, next: Candidate<Item<T, R>>) {
    let mut slot = RunningSlot { shared: &shared, lane: next.lane, running: None, is_returned: false };
    let mut next = next;
    let (job, deadline) = (next.item.task.job.clone(), next.item.task.deadline);
    let attempt = tokio::select! {
        biased;
        attempt = shared.limiter.attempt(&job, deadline) => attempt,
        // Dropping the attempt frees what it may have reserved.
        () = cancelled(&mut next.item.task) => return abandon(&shared, next.item.task),
    };
    let error = match attempt {
        Attempt::Admitted(guard) => {
            shared.lock().lanes.admitted(next.lane, &job);
            slot.running = Some(job);
            return work(&shared, next.item.task, guard).await;
        }
        Attempt::Denied(denial) => {
            // `put_back` returns the slot together with the task.
            slot.is_returned = true;
            return put_back(&shared, next, &denial);
        }
        Attempt::Refused(error) => TaskError::Refused(error),
        Attempt::NoAnswer(last) => TaskError::DeadlinePassed { last },
    };
    let item = next.item.task;
    if item.task_state.start() {
        _ = item.reply.send(Err(error));
    }
}

/// Waits until the handle of a task has cancelled it.
async fn cancelled<T, R>(item: &mut Item<T, R>) {
    item.reply.closed().await;
    if !item.task_state.is_cancelled() {
        // A detached task continues.
        std::future::pending().await
    }
}

async fn work<T, R>(shared: &Shared<T, R>, item: Item<T, R>, guard: Guard) {
    let Item { payload, task_state, reply, .. } = item;
    if !task_state.start() {
        // The task was cancelled during the attempt, and no call was made.
        _ = guard.release().await;
        return;
    }
    let result = (shared.work)(payload, guard).await;
    _ = reply.send(Ok(result));
}

fn put_back<T, R>(shared: &Shared<T, R>, next: Candidate<Item<T, R>>, denial: &Denial) {
    let now = Instant::now();
    let until = now + shared.limiter.wait_for(denial).min(PROBE_MAX);
    let mut state = shared.lock();
    state.running -= 1;
    let given_up = match state.is_over {
        true => {
            state.lanes.settled(next.lane);
            Some(next.item.task)
        }
        false => {
            state.lanes.denied(now, next, &denial.limited_by, until);
            None
        }
    };
    drop(state);
    if let Some(item) = given_up {
        _ = item.reply.send(Err(TaskError::ShutDown));
    }
    shared.changed.notify_one();
}
