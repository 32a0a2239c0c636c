//! The task that drives the lanes, and those that it starts.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;

use super::lanes::{LaneId, Next, Pick};
use super::{Item, Shared, TaskError};
use crate::ask::Denial;
use crate::job::Job;
use crate::limiter::{Attempt, Guard};

/// However far away a hint is, a lane tries one of its tasks after so long: what is in the way may be gone sooner.
const PROBE_MAX: Duration = Duration::from_secs(5);

/// What is to be done about one look at the lanes.
enum Step<T, R> {
    Try(Next<Item<T, R>>),
    Over(Item<T, R>),
    Wait(Option<Instant>),
    End,
}

/// Starts what can be tried, until there is nothing left and nothing more comes.
pub(super) async fn drive<T: Send + 'static, R: Send + 'static>(shared: Arc<Shared<T, R>>) {
    loop {
        let changed = shared.changed.notified();
        match look(&shared) {
            Step::Try(next) => {
                shared.handle.spawn(attempt(Arc::clone(&shared), next));
            }
            Step::Over(item) => over(&shared, item),
            Step::Wait(Some(until)) => {
                tokio::select! {
                    () = changed => {}
                    () = tokio::time::sleep_until(until) => {}
                }
            }
            Step::Wait(None) => changed.await,
            Step::End => return,
        }
    }
}

fn look<T, R>(shared: &Shared<T, R>) -> Step<T, R> {
    let mut state = shared.lock();
    if state.running >= shared.options.running_max.max(1) {
        return Step::Wait(None);
    }
    match state.lanes.next(Instant::now()) {
        Pick::Try(next) => {
            state.running += 1;
            Step::Try(next)
        }
        Pick::Over(item) => Step::Over(item),
        Pick::Nothing => {
            let is_idle = state.lanes.queued() == 0 && state.running == 0;
            if is_idle {
                shared.idle.notify_waiters();
            }
            match is_idle && state.is_closing {
                true => Step::End,
                false => Step::Wait(state.lanes.wake_at()),
            }
        }
    }
}

/// A task that nobody wants any more, or whose time is over.
fn over<T, R>(shared: &Shared<T, R>, item: Item<T, R>) {
    if item.standing.is_cancelled() {
        let less = |count: usize| count.checked_sub(1);
        _ = shared.cancelled.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    } else if item.standing.start() {
        _ = item.reply.send(Err(TaskError::DeadlinePassed { last: None }));
    }
}

/// A task at work. However it ends, its place is free again.
struct Place<'a, T, R> {
    shared: &'a Shared<T, R>,
    lane: LaneId,
    /// What it holds, once it runs.
    running: Option<Job>,
    is_given_back: bool,
}

impl<T, R> Drop for Place<'_, T, R> {
    fn drop(&mut self) {
        if self.is_given_back {
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

/// Has a task admitted, and does its work.
async fn attempt<T: Send + 'static, R: Send + 'static>(shared: Arc<Shared<T, R>>, next: Next<Item<T, R>>) {
    let mut place = Place { shared: &shared, lane: next.lane, running: None, is_given_back: false };
    let mut next = next;
    let (job, deadline) = (next.item.what.job.clone(), next.item.what.deadline);
    let attempt = tokio::select! {
        biased;
        attempt = shared.limiter.attempt(&job, deadline) => attempt,
        // What the attempt may have taken is given back with it.
        () = cancelled(&mut next.item.what) => return over(&shared, next.item.what),
    };
    let error = match attempt {
        Attempt::Admitted(guard) => {
            shared.lock().lanes.admitted(next.lane, &job);
            place.running = Some(job);
            return work(&shared, next.item.what, guard).await;
        }
        Attempt::Denied(denial) => {
            // The place goes back together with the task.
            place.is_given_back = true;
            return put_back(&shared, next, &denial);
        }
        Attempt::Refused(error) => TaskError::Refused(error),
        Attempt::NoAnswer(last) => TaskError::DeadlinePassed { last },
    };
    let item = next.item.what;
    if item.standing.start() {
        _ = item.reply.send(Err(error));
    }
}

/// Until whoever submitted a task has cancelled it.
async fn cancelled<T, R>(item: &mut Item<T, R>) {
    item.reply.closed().await;
    if !item.standing.is_cancelled() {
        // Nobody waits for it, and it goes on.
        std::future::pending().await
    }
}

async fn work<T, R>(shared: &Shared<T, R>, item: Item<T, R>, guard: Guard) {
    let Item { payload, standing, reply, .. } = item;
    if !standing.start() {
        // It was cancelled while it was admitted, and no call was made.
        _ = guard.release().await;
        return;
    }
    let result = (shared.work)(payload, guard).await;
    _ = reply.send(Ok(result));
}

fn put_back<T, R>(shared: &Shared<T, R>, next: Next<Item<T, R>>, denial: &Denial) {
    let now = Instant::now();
    let until = now + shared.limiter.wait_for(denial).min(PROBE_MAX);
    let mut state = shared.lock();
    state.running -= 1;
    let given_up = match state.is_over {
        true => {
            state.lanes.settled(next.lane);
            Some(next.item.what)
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
