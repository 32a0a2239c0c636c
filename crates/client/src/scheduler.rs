//! The scheduler: many jobs of many models, each as soon as its own limits have room.

mod lanes;
mod run;
mod ticket;

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

pub use lanes::Priority;
use lanes::{LaneBounds, Lanes, Waits};
use ticket::AccountStatus;
pub use ticket::Ticket;

/// Of the room in the queue, so much may be taken by what was cancelled before it is looked for.
const CANCELLED_PART: usize = 16;

/// A queue. Jobs of different lanes never wait for each other.
///
/// One lane for a provider and model is enough where all its callers share the same limits. Where tenants have limits
/// of their own, a lane for each of them keeps one that has run out from holding up more than a few jobs of the others.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Lane(Arc<str>);

impl Lane {
    /// The lane of a model.
    #[must_use]
    pub fn of(provider: &str, model: &str) -> Lane {
        // Lengths keep one pair of names from looking like another.
        Lane(format!("{}:{provider}:{model}", provider.len()).into())
    }

    /// The lane of a model for one tenant.
    #[must_use]
    pub fn of_tenant(provider: &str, model: &str, tenant: &str) -> Lane {
        Lane(format!("{}:{provider}:{}:{model}:{tenant}", provider.len(), model.len()).into())
    }
}

/// How a [`Scheduler`] is set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SchedulerOptions {
    /// The most tasks that wait. Each takes less than 512 bytes, besides its payload and its result.
    pub queued_max: usize,
    /// The same, of one lane: so much of the whole can one exhausted model take.
    pub queued_per_lane_max: usize,
    /// The most tasks at work, those included whose admission is under way.
    pub running_max: usize,
    /// The same, of one lane: so much of the whole can one slow model take.
    pub running_per_lane_max: usize,
    /// The most admissions under way of one lane.
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

/// What is to be done once it is admitted.
#[derive(Clone, Debug)]
pub struct Task<T> {
    /// Its queue.
    pub lane: Lane,
    /// How urgent it is in there.
    pub priority: Priority,
    /// What it needs.
    pub job: Job,
    /// What the work is told.
    pub payload: T,
    /// Until when it is to be admitted.
    pub deadline: Deadline,
}

/// Why a task was not taken. It is given back.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum SubmitError<T> {
    /// As many wait as may.
    #[error("{queued_max} tasks wait already, and no more may")]
    Full {
        /// The task.
        task: Box<Task<T>>,
        /// How many may wait.
        queued_max: usize,
    },
    /// As many of its lane wait as may.
    #[error("{queued_per_lane_max} tasks of its lane wait already, and no more may")]
    LaneFull {
        /// The task.
        task: Box<Task<T>>,
        /// How many of one lane may wait.
        queued_per_lane_max: usize,
    },
    /// It takes nothing more.
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

/// Why a task came to nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TaskError {
    /// It cannot be admitted, whatever is free.
    #[error(transparent)]
    Refused(AcquireError),
    /// It was not admitted in time.
    #[error("not admitted before the deadline")]
    DeadlinePassed {
        /// Why the last attempt had no answer.
        last: Option<Failure>,
    },
    /// The scheduler was shut down before it was admitted.
    #[error("the scheduler was shut down")]
    ShutDown,
    /// The work panicked, or its runtime has stopped.
    #[error("the work panicked, or its runtime has stopped")]
    Lost,
}

type Work<T, R> = dyn Fn(T, Guard) -> Pin<Box<dyn Future<Output = R> + Send>> + Send + Sync;

/// Does tasks once they are admitted: a queue for each lane, turns among those that can go on, priorities within.
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
///     unit: "calls".into(), description: String::new(), overage: Overage::Debt,
/// };
/// client.put_limit(&calls, within()).await?;
/// let limiter = Limiter::new(&client, LimiterOptions::default())?;
///
/// let scheduler = Scheduler::start(&limiter, SchedulerOptions::default(), |prompt: String, guard| async move {
///     let answer = prompt.to_uppercase();
///     guard.complete(Actuals::unknown()).await.map(|_| answer)
/// })?;
/// let ticket = scheduler.submit(Task {
///     lane: Lane::of("openai", "gpt-4o"),
///     priority: Priority::High,
///     job: Job::new([("gpt-4o:calls".parse()?, 1)])?,
///     payload: "hello".to_owned(),
///     deadline: within(),
/// })?;
/// assert_eq!(ticket.outcome().await??, "HELLO");
/// assert_eq!(scheduler.drain(within()).await, 0);
/// # Ok(())
/// # }
/// ```
pub struct Scheduler<T, R>(Arc<Shared<T, R>>);

struct Shared<T, R> {
    state: Mutex<State<T, R>>,
    /// Something changed that the driver should see.
    changed: Notify,
    /// Nothing waits and nothing is at work any more.
    idle: Notify,
    cancelled: Arc<AtomicUsize>,
    limiter: Limiter,
    work: Box<Work<T, R>>,
    options: SchedulerOptions,
    handle: Handle,
}

struct State<T, R> {
    lanes: Lanes<Item<T, R>>,
    /// Tasks at work, those included whose admission is under way.
    running: usize,
    is_closing: bool,
    /// What waited was given up, and nothing waits any more.
    is_over: bool,
}

impl<T, R> State<T, R> {
    /// The bound that keeps another task of a lane from waiting, if one does.
    fn full(&self, options: &SchedulerOptions, lane: &Lane) -> Option<Bound> {
        if self.lanes.queued() >= options.queued_max {
            return Some(Bound::All);
        }
        let of_lane = self.lanes.queued_in(&lane.0);
        (of_lane >= options.queued_per_lane_max.max(1)).then_some(Bound::Lane)
    }
}

/// How many tasks may wait.
#[derive(Clone, Copy)]
enum Bound {
    All,
    Lane,
}

impl Bound {
    const fn of(self, options: &SchedulerOptions) -> usize {
        match self {
            Bound::All => options.queued_max,
            Bound::Lane => options.queued_per_lane_max,
        }
    }

    fn refuse<T>(self, options: &SchedulerOptions, task: Task<T>) -> SubmitError<T> {
        let SchedulerOptions { queued_max, queued_per_lane_max, .. } = *options;
        let task = Box::new(task);
        match self {
            Bound::All => SubmitError::Full { task, queued_max },
            Bound::Lane => SubmitError::LaneFull { task, queued_per_lane_max },
        }
    }
}

/// A task that waits.
struct Item<T, R> {
    job: Job,
    payload: T,
    deadline: Deadline,
    standing: Arc<AccountStatus>,
    reply: oneshot::Sender<Result<R, TaskError>>,
}

impl<T, R> Waits for Item<T, R> {
    fn job(&self) -> &Job {
        &self.job
    }

    fn is_over(&self, now: Instant) -> bool {
        self.standing.is_cancelled() || now >= self.deadline.instant()
    }
}

impl<T, R> Shared<T, R> {
    fn lock(&self) -> MutexGuard<'_, State<T, R>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Send + 'static, R: Send + 'static> Scheduler<T, R> {
    /// Starts a scheduler that does `work` with every task that is admitted. Needs a tokio runtime.
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
            state: Mutex::new(State {
                lanes: Lanes::new(bounds),
                running: 0,
                is_closing: false,
                is_over: false,
            }),
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
    /// When as many wait as may, or it is shutting down. The task is given back.
    pub fn submit(&self, task: Task<T>) -> Result<Ticket<R>, SubmitError<T>> {
        let Shared { options, cancelled, .. } = &*self.0;
        let mut state = self.0.lock();
        if state.is_closing {
            return Err(SubmitError::ShuttingDown { task: Box::new(task) });
        }
        // What is dropped may do anything, so it is dropped when the lock is free again.
        let mut swept = Vec::new();
        if let Some(bound) = state.full(options, &task.lane) {
            let found = cancelled.load(Ordering::Relaxed);
            if found < (bound.of(options) / CANCELLED_PART).max(1) {
                return Err(bound.refuse(options, task));
            }
            cancelled.fetch_sub(found, Ordering::Relaxed);
            swept = state.lanes.sweep(|item| !item.standing.is_cancelled());
            if let Some(bound) = state.full(options, &task.lane) {
                drop(state);
                return Err(bound.refuse(options, task));
            }
        }
        let (reply, answer) = oneshot::channel();
        let Task { lane, priority, job, payload, deadline } = task;
        let standing = Arc::new(AccountStatus::default());
        let item = Item { job, payload, deadline, standing: Arc::clone(&standing), reply };
        state.lanes.push(Instant::now(), &lane.0, priority, item);
        drop(state);
        drop(swept);
        self.0.changed.notify_one();
        Ok(Ticket { standing, answer, deadline, cancelled: Arc::clone(cancelled) })
    }

    /// How many tasks wait, those included that were cancelled and not yet found.
    #[must_use]
    pub fn queued(&self) -> usize {
        self.0.lock().lanes.queued()
    }

    /// Takes nothing more, and waits until everything that was taken is done. At the deadline what still waits is given
    /// up; says how many that were. What is at work then is left to end by itself, and what is denied then is given up
    /// too.
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
            // Nobody may wait for it any more.
            _ = item.reply.send(Err(TaskError::ShutDown));
        }
        self.0.changed.notify_one();
        count
    }
}

/// What was taken is still done.
impl<T, R> Drop for Scheduler<T, R> {
    fn drop(&mut self) {
        self.0.lock().is_closing = true;
        self.0.changed.notify_one();
    }
}
