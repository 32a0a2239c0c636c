//! Admission: waits until the limits of a job have room, and frees what it did not use.

mod attempt;
mod extend;
mod guard;
mod keep_alive;
mod settle;
mod wait_queues;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use earmark_core::LimitKey;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::answer::Denial;
use crate::batcher::{BatchOptions, Batcher, ask_alone};
use crate::client::Client;
use crate::deadline::Deadline;
use crate::failure::Failure;
use crate::job::Job;
use crate::options::OptionsError;
use crate::request::{CompleteItem, ExtendItem, Item, ReserveItem};

pub(crate) use attempt::Attempt;
pub use extend::{ExtendError, Extension};
pub use guard::Guard;
pub use keep_alive::KeepAlive;
use wait_queues::{ReleaseCount, WaitQueues};

/// The shortest wait after a denial, whatever the hint says.
const WAIT_MIN: Duration = Duration::from_millis(5);
/// The longest wait after a denial: the limit may have been raised before its hint.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// The time before the deadline at which the last attempt is made, whatever the hint says: another job may have
/// completed meanwhile.
const LAST_ATTEMPT: Duration = Duration::from_millis(20);
/// The jitter added to a wait: at most this fraction of it, 1/10.
const JITTER_PART: u32 = 10;

/// The options of a [`Limiter`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimiterOptions {
    /// How callers share requests. `None` sends every item alone. A Book in this process ignores it.
    pub batching: Option<BatchOptions>,
    /// The time for retries of a complete. After it the lease is left to expire.
    pub complete_within: Duration,
    /// Concurrent completes in the background. Leases beyond it are left to expire.
    pub settling_max: usize,
}

impl Default for LimiterOptions {
    fn default() -> LimiterOptions {
        LimiterOptions {
            batching: Some(BatchOptions::default()),
            complete_within: Duration::from_secs(60),
            settling_max: 65_536,
        }
    }
}

/// Admits jobs. Cheap to clone.
///
/// Every attempt has its own lease. The same lease is retried while its outcome is unknown, and a denied lease is never
/// used again. Callers see no leases: they get a [`Guard`] or an error.
#[derive(Clone)]
pub struct Limiter(Arc<Shared>);

/// The state that all clones and guards of a limiter share.
struct Shared {
    client: Client,
    reserves: Option<Batcher<ReserveItem>>,
    extends: Option<Batcher<ExtendItem>>,
    completes: Option<Batcher<CompleteItem>>,
    options: LimiterOptions,
    /// The runtime for background completes, also of guards that are dropped outside of it.
    handle: Handle,
    settling: AtomicUsize,
    settled: Notify,
    /// Callers that a release in this process wakes before their hint.
    wait_queues: WaitQueues,
    abandoned: AtomicU64,
}

/// The result of [`Limiter::try_acquire`].
#[derive(Debug)]
#[must_use = "an admitted job holds its amounts until its guard is completed or dropped"]
pub enum TryAcquire {
    /// The job is admitted.
    Admitted(Guard),
    /// A limit has no room now.
    Denied(Denial),
}

/// Why a job was not admitted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AcquireError {
    /// The job needs more than the capacity of a limit, so waiting does not help.
    #[error("the job needs more than the capacity of {}", keys(.limited_by))]
    Never {
        /// The limits whose capacity is too small.
        limited_by: Vec<LimitKey>,
    },
    /// An account has too little credit for the hold.
    #[error("the account of {key} has too little credit{}", because(.message.as_deref()))]
    InsufficientCredit {
        /// The credit limit on the account.
        key: LimitKey,
        /// A note about the account.
        message: Option<String>,
    },
    /// The vault or the account of a credit limit does not exist.
    #[error("the account of {key} does not exist; open it first")]
    AccountNotFound {
        /// The credit limit.
        key: LimitKey,
    },
    /// A limit does not exist.
    #[error("limit {key} does not exist; create it first")]
    UnknownLimitKey {
        /// The key.
        key: LimitKey,
    },
    /// The request is malformed.
    #[error("invalid request: {message}")]
    InvalidRequest {
        /// The field, what was found, and what is allowed.
        message: String,
    },
    /// The key of the client was not accepted.
    #[error("the caller was refused: {message}; check the key")]
    Unauthorized {
        /// The message of the server.
        message: String,
    },
    /// The job was not admitted before the deadline.
    #[error("not admitted before the deadline{}", last_attempt(.denial.as_ref(), .failure.as_ref()))]
    DeadlinePassed {
        /// The last denial.
        denial: Option<Denial>,
        /// The failure of the last attempt, if it had no answer.
        failure: Option<Failure>,
    },
}

fn keys(keys: &[LimitKey]) -> String {
    keys.iter().map(LimitKey::as_str).collect::<Vec<_>>().join(", ")
}

fn because(message: Option<&str>) -> String {
    message.map(|message| format!(": {message}")).unwrap_or_default()
}

fn last_attempt(denial: Option<&Denial>, failure: Option<&Failure>) -> String {
    let denial = denial.map(|denial| format!("; no room in {}", keys(&denial.limited_by)));
    let failure = failure.map(|failure| format!("; {failure}"));
    denial.unwrap_or_default() + &failure.unwrap_or_default()
}

impl Limiter {
    /// A limiter on these servers. It needs a tokio runtime for completes in the background.
    ///
    /// # Errors
    /// Outside of a runtime.
    pub fn new(client: &Client, options: LimiterOptions) -> Result<Limiter, OptionsError> {
        let handle = Handle::try_current().map_err(|_| OptionsError::NoRuntime)?;
        #[cfg(feature = "local")]
        let batching = options.batching.filter(|_| client.book().is_none());
        #[cfg(not(feature = "local"))]
        let batching = options.batching;
        let reserves = batching.map(|batching| Batcher::new(client.clone(), batching, handle.clone()));
        let extends = batching.map(|batching| Batcher::new(client.clone(), batching, handle.clone()));
        let completes = batching.map(|batching| Batcher::new(client.clone(), batching, handle.clone()));
        Ok(Limiter(Arc::new(Shared {
            client: client.clone(),
            reserves,
            extends,
            completes,
            options,
            handle,
            settling: AtomicUsize::new(0),
            settled: Notify::new(),
            wait_queues: WaitQueues::new(),
            abandoned: AtomicU64::new(0),
        })))
    }

    /// Waits until a job is admitted. An error that waiting cannot cure is returned at once.
    ///
    /// Dropping the future before it ends frees whatever an attempt may have reserved, since no call was made.
    ///
    /// # Errors
    /// When the job can never be admitted, or was not before the deadline.
    pub async fn acquire(&self, job: &Job, deadline: Deadline) -> Result<Guard, AcquireError> {
        let mut last = None;
        loop {
            let before = self.0.wait_queues.releases();
            match self.0.attempt(job, deadline).await {
                Attempt::Admitted(guard) => return Ok(guard),
                Attempt::Refused(error) => return Err(error),
                Attempt::NoAnswer(failure) => {
                    return Err(AcquireError::DeadlinePassed { denial: last, failure });
                }
                Attempt::Denied(denial) => {
                    if !self.0.wait_until(&denial, before, deadline).await {
                        return Err(AcquireError::DeadlinePassed { denial: Some(denial), failure: None });
                    }
                    last = Some(denial);
                }
            }
        }
    }

    /// Makes one attempt to admit a job. A denial is an answer; only an unknown outcome is retried, until the deadline.
    ///
    /// # Errors
    /// When the job can never be admitted, or no answer came before the deadline.
    pub async fn try_acquire(&self, job: &Job, deadline: Deadline) -> Result<TryAcquire, AcquireError> {
        match self.0.attempt(job, deadline).await {
            Attempt::Admitted(guard) => Ok(TryAcquire::Admitted(guard)),
            Attempt::Denied(denial) => Ok(TryAcquire::Denied(denial)),
            Attempt::Refused(error) => Err(error),
            Attempt::NoAnswer(failure) => Err(AcquireError::DeadlinePassed { denial: None, failure }),
        }
    }

    pub(crate) async fn attempt(&self, job: &Job, deadline: Deadline) -> Attempt {
        self.0.attempt(job, deadline).await
    }

    /// The wait before a denied job is tried again.
    pub(crate) fn wait_for(&self, denial: &Denial) -> Duration {
        self.0.wait_for(denial)
    }

    /// Waits until all completes in the background are done, and returns whether they were before the deadline. A process
    /// that ends without it leaves the leases of dropped guards to expire.
    pub async fn flush(&self, deadline: Deadline) -> bool {
        let all_settled = async {
            loop {
                let next = self.0.settled.notified();
                if self.0.settling.load(Ordering::SeqCst) == 0 {
                    return;
                }
                next.await;
            }
        };
        deadline.bound(all_settled).await.is_some()
    }

    /// The number of leases that could not be completed and were left to expire.
    pub fn abandoned(&self) -> u64 {
        self.0.abandoned.load(Ordering::Relaxed)
    }
}

impl Shared {
    fn wait_for(&self, denial: &Denial) -> Duration {
        let wait = denial.retry_after.clamp(WAIT_MIN, WAIT_MAX);
        wait + self.client.env().up_to(wait / JITTER_PART)
    }

    /// Waits for the hint, for a release of a limit without room, or for the last attempt before the deadline. Returns
    /// whether there is time for another attempt.
    async fn wait_until(&self, denial: &Denial, before: ReleaseCount, deadline: Deadline) -> bool {
        let wait = self.wait_for(denial);
        let now = Instant::now();
        let last = deadline.instant().checked_sub(LAST_ATTEMPT).unwrap_or(now);
        if now >= last {
            tokio::time::sleep_until(deadline.instant()).await;
            return false;
        }
        if let Some(waiter) = self.wait_queues.wait_for(&denial.limited_by, before) {
            tokio::select! {
                () = tokio::time::sleep_until(last.min(now + wait)) => {}
                () = waiter.woken() => {}
            }
            waiter.retries();
        }
        true
    }

    /// Sends one item once, in a batch if there is a batcher.
    async fn ask_once<I: Item>(
        &self,
        batcher: Option<&Batcher<I>>,
        item: I,
        deadline: Deadline,
    ) -> Result<I::Answer, Failure> {
        match batcher {
            Some(batcher) => batcher.ask(item, deadline).await,
            // Boxed: this large future would otherwise be part of every caller that uses the batcher.
            None => Box::pin(ask_alone(&self.client, item, deadline)).await,
        }
    }
}
