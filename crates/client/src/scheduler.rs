//! The scheduler: runs tasks of many models, each as soon as its limits have room.
//!
//! A [`Task`] is a [`Job`] (its requirements) with a payload. One driver (`run`) picks the next task (`lanes`) and
//! spawns an attempt to reserve its requirements. An admitted task runs the work function; a denied one is queued again.

mod handle;
mod lanes;
mod run;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use crate::deadline::Deadline;
use crate::failure::Failure;
use crate::job::Job;
use crate::limiter::{AcquireError, Guard, Limiter};
use crate::options::OptionsError;

pub use handle::JobHandle;
use handle::TaskState;
pub use lanes::Priority;
use lanes::{LaneBounds, Lanes, Queueable};

/// A submit to a full queue sweeps out cancelled tasks if they are at least 1/16 of its capacity. A sweep visits the
/// whole queue, so it must free enough slots to be worth its cost.
const SWEEP_DIVISOR: usize = 16;

/// The name of a queue of tasks. A lane whose limits are exhausted does not delay other lanes.
///
/// One lane for each model is enough where all callers share the same limits. Where tenants have their own limits, give
/// each its own lane: a lane examines only its first tasks, so the backlog of an exhausted tenant would hide the tasks
/// of the others behind it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Lane(Arc<str>);

impl Lane {
    /// The lane of a model.
    #[must_use]
    pub fn of(provider: &str, model: &str) -> Lane {
        // The length makes the name unambiguous.
        Lane(format!("{}:{provider}:{model}", provider.len()).into())
    }

    /// The lane of one tenant for a model.
    #[must_use]
    pub fn of_tenant(provider: &str, model: &str, tenant: &str) -> Lane {
        Lane(format!("{}:{provider}:{}:{model}:{tenant}", provider.len(), model.len()).into())
    }
}

/// The options of a [`Scheduler`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SchedulerOptions {
    /// Queued tasks. Each takes less than 512 bytes, besides its payload and its result.
    pub queued_max: usize,
    /// Queued tasks of one lane, so that an exhausted model cannot fill the queue.
    pub queued_per_lane_max: usize,
    /// Concurrent tasks, running or waiting for the answer to an attempt.
    pub running_max: usize,
    /// Concurrent tasks of one lane, so that a slow model cannot occupy them all.
    pub running_per_lane_max: usize,
    /// Concurrent attempts of one lane. An attempt is one reserve that waits for its answer.
    pub attempts_per_lane_max: usize,
}

impl Default for SchedulerOptions {
    fn default() -> SchedulerOptions {
        SchedulerOptions {
            queued_max: 1_000_000,
            queued_per_lane_max: 250_000,
            running_max: 4_096,
            running_per_lane_max: 1_024,
            attempts_per_lane_max: 32,
        }
    }
}

/// A task to run once its job is admitted.
#[derive(Clone, Debug)]
pub struct Task<T> {
    /// The lane.
    pub lane: Lane,
    /// The priority within the lane.
    pub priority: Priority,
    /// The limits that the task needs, with their amounts.
    pub job: Job,
    /// The argument of the work function.
    pub payload: T,
    /// The deadline for the admission. An admitted task may run longer.
    pub deadline: Deadline,
}

/// Why a task was not queued. The error returns the task.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum SubmitError<T> {
    /// The queue is full.
    #[error("the queue is full with {queued_max} tasks; retry later, or raise queued_max")]
    Full {
        /// The task.
        task: Box<Task<T>>,
        /// The capacity of the queue.
        queued_max: usize,
    },
    /// The lane is full.
    #[error("the lane is full with {queued_per_lane_max} tasks; retry later, or raise queued_per_lane_max")]
    LaneFull {
        /// The task.
        task: Box<Task<T>>,
        /// The capacity of one lane.
        queued_per_lane_max: usize,
    },
    /// The scheduler is being drained.
    #[error("the scheduler is shutting down")]
    ShuttingDown {
        /// The task.
        task: Box<Task<T>>,
    },
}

impl<T> fmt::Debug for SubmitError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SubmitError::Full { .. } => "Full",
            SubmitError::LaneFull { .. } => "LaneFull",
            SubmitError::ShuttingDown { .. } => "ShuttingDown",
        })
    }
}

/// Why a task has no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TaskError {
    /// The job can never be admitted.
    #[error(transparent)]
    Refused(AcquireError),
    /// The job was not admitted before the deadline.
    #[error("not admitted before the deadline")]
    DeadlinePassed {
        /// The failure of the last attempt, if it had no answer.
        last: Option<Failure>,
    },
    /// The scheduler was shut down before the job was admitted.
    #[error("the scheduler was shut down")]
    ShutDown,
    /// The work panicked, or its runtime stopped.
    #[error("the work panicked, or its runtime has stopped")]
    Lost,
}

/// The function that executes a task.
type Work<T, R> = dyn Fn(T, Guard) -> Pin<Box<dyn Future<Output = R> + Send>> + Send + Sync;

/// Runs tasks once they are admitted. Lanes with room take turns, and each lane has priorities.
///
/// ```
/// use std::time::Duration;
/// use earmark_client::core::{Definition, Kind, Overage};
/// use earmark_client::*;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let client = Client::local(LocalOptions::default())?;
/// let within = || Deadline::after(Duration::from_secs(10));
/// let calls = Definition {
///     key: "gpt-4o:calls".parse()?, kind: Kind::Concurrency { timeout_seconds: 600 }, capacity: 2,
///     unit: "calls".into(), description: String::new(), overage: Overage::Debt, shared: false, enforce: true,
/// };
/// client.put_limit(&calls, within()).await?;
/// let limiter = Limiter::new(&client, LimiterOptions::default())?;
///
/// let scheduler = Scheduler::start(&limiter, SchedulerOptions::default(), |prompt: String, guard| async move {
///     let answer = prompt.to_uppercase();
///     guard.complete(Actuals::unknown()).await.map(|_| answer)
/// })?;
/// let handle = scheduler.submit(Task {
///     lane: Lane::of("openai", "gpt-4o"),
///     priority: Priority::High,
///     job: Job::new([("gpt-4o:calls".parse()?, 1)])?,
///     payload: "hello".to_owned(),
///     deadline: within(),
/// })?;
/// assert_eq!(handle.outcome().await??, "HELLO");
/// assert_eq!(scheduler.drain(within()).await, 0);
/// # Ok(())
/// # }
/// ```
pub struct Scheduler<T, R>(Arc<Shared<T, R>>);

/// The state that all clones of a scheduler and its driver share.
struct Shared<T, R> {
    state: Mutex<State<T, R>>,
    /// Wakes the driver.
    changed: Notify,
    /// Signals that no task is queued or running.
    idle: Notify,
    /// Cancelled tasks that are still queued, of all lanes. An estimate: a task may leave the queue uncounted.
    cancelled: Arc<AtomicUsize>,
    limiter: Limiter,
    work: Box<Work<T, R>>,
    options: SchedulerOptions,
    handle: Handle,
}

/// The queued and running tasks.
struct State<T, R> {
    lanes: Lanes<Item<T, R>>,
    /// Tasks that run or wait for the answer to an attempt.
    running: usize,
    /// No task is accepted any more; queued tasks still run.
    is_closing: bool,
    /// The deadline of a drain has passed: a denied task ends with `ShutDown`, and is not queued again.
    is_over: bool,
}

impl<T, R> State<T, R> {
    /// The exhausted capacity, if any: its size, and whether it is the capacity of the lane or of the whole queue.
    fn full(&self, options: &SchedulerOptions, lane: &Lane) -> Option<(usize, bool)> {
        if self.lanes.queued() >= options.queued_max {
            return Some((options.queued_max, false));
        }
        let is_lane_full = self.lanes.queued_in(&lane.0) >= options.queued_per_lane_max.max(1);
        is_lane_full.then_some((options.queued_per_lane_max, true))
    }
}

/// The error for a task that found this capacity exhausted.
fn refuse<T>(task: Task<T>, (capacity, is_lane): (usize, bool)) -> SubmitError<T> {
    let task = Box::new(task);
    match is_lane {
        true => SubmitError::LaneFull { task, queued_per_lane_max: capacity },
        false => SubmitError::Full { task, queued_max: capacity },
    }
}

/// A queued task.
struct Item<T, R> {
    job: Job,
    payload: T,
    deadline: Deadline,
    task_state: Arc<TaskState>,
    reply: oneshot::Sender<Result<R, TaskError>>,
}

impl<T, R> Queueable for Item<T, R> {
    fn job(&self) -> &Job {
        &self.job
    }

    fn is_abandoned(&self, now: Instant) -> bool {
        self.task_state.is_cancelled() || now >= self.deadline.instant()
    }
}

impl<T, R> Shared<T, R> {
    fn lock(&self) -> MutexGuard<'_, State<T, R>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Send + 'static, R: Send + 'static> Scheduler<T, R> {
    /// Starts a scheduler that runs `work` for every admitted task. It needs a tokio runtime.
    ///
    /// # Errors
    /// Outside of a runtime.
    pub fn start<F>(
        limiter: &Limiter,
        options: SchedulerOptions,
        work: impl Fn(T, Guard) -> F + Send + Sync + 'static,
    ) -> Result<Scheduler<T, R>, OptionsError>
    where
        F: Future<Output = R> + Send + 'static,
    {
        let handle = Handle::try_current().map_err(|_| OptionsError::NoRuntime)?;
        let bounds = LaneBounds {
            attempts_max: options.attempts_per_lane_max.max(1),
            running_max: options.running_per_lane_max.max(1),
        };
        let shared = Arc::new(Shared {
            state: Mutex::new(State { lanes: Lanes::new(bounds), running: 0, is_closing: false, is_over: false }),
            changed: Notify::new(),
            idle: Notify::new(),
            cancelled: Arc::new(AtomicUsize::new(0)),
            limiter: limiter.clone(),
            work: Box::new(move |payload, guard| Box::pin(work(payload, guard))),
            options,
            handle: handle.clone(),
        });
        handle.spawn(run::drive(Arc::clone(&shared)));
        Ok(Scheduler(shared))
    }

    /// Puts a task into the queue of its lane.
    ///
    /// # Errors
    /// When the queue or the lane is full, or the scheduler is being drained. The error returns the task.
    pub fn submit(&self, task: Task<T>) -> Result<JobHandle<R>, SubmitError<T>> {
        let Shared { options, cancelled, .. } = &*self.0;
        let mut state = self.0.lock();
        if state.is_closing {
            return Err(SubmitError::ShuttingDown { task: Box::new(task) });
        }
        // Payloads are dropped outside of the lock, because their `Drop` may do anything.
        let mut swept = Vec::new();
        if let Some(full) = state.full(options, &task.lane) {
            let found = cancelled.load(Ordering::Relaxed);
            if found < (full.0 / SWEEP_DIVISOR).max(1) {
                return Err(refuse(task, full));
            }
            cancelled.fetch_sub(found, Ordering::Relaxed);
            swept = state.lanes.sweep(|item| !item.task_state.is_cancelled());
            if let Some(full) = state.full(options, &task.lane) {
                drop(state);
                return Err(refuse(task, full));
            }
        }
        let (reply, answer) = oneshot::channel();
        let Task { lane, priority, job, payload, deadline } = task;
        let task_state = Arc::new(TaskState::default());
        let item = Item { job, payload, deadline, task_state: Arc::clone(&task_state), reply };
        state.lanes.push(Instant::now(), &lane.0, priority, item);
        drop(state);
        drop(swept);
        self.0.changed.notify_one();
        Ok(JobHandle { task_state, answer, deadline, cancelled: Arc::clone(cancelled) })
    }

    /// The number of queued tasks, including cancelled ones that were not swept out yet.
    pub fn queued(&self) -> usize {
        self.0.lock().lanes.queued()
    }

    /// Stops accepting tasks and waits until all queued tasks have run. At the deadline the tasks still queued end with
    /// [`TaskError::ShutDown`], and their number is returned. It includes cancelled tasks.
    ///
    /// Running tasks continue. A task whose attempt is denied after the deadline ends the same way, and is not counted.
    pub async fn drain(&self, deadline: Deadline) -> usize {
        self.0.lock().is_closing = true;
        self.0.changed.notify_one();
        let all_done = async {
            loop {
                let next = self.0.idle.notified();
                {
                    let state = self.0.lock();
                    if state.lanes.queued() == 0 && state.running == 0 {
                        return;
                    }
                }
                next.await;
            }
        };
        if deadline.bound(all_done).await.is_some() {
            return 0;
        }
        let given_up = {
            let mut state = self.0.lock();
            state.is_over = true;
            state.lanes.sweep(|_| false)
        };
        let count = given_up.len();
        for item in given_up {
            // The handle may be gone.
            _ = item.reply.send(Err(TaskError::ShutDown));
        }
        self.0.changed.notify_one();
        count
    }
}

/// Dropping the scheduler stops accepting tasks. Queued tasks still run.
impl<T, R> Drop for Scheduler<T, R> {
    fn drop(&mut self) {
        self.0.lock().is_closing = true;
        self.0.changed.notify_one();
    }
}
