//! Admission: waits until a job may go ahead, and gives back what it did not use.

mod attempt;
mod freed;
mod guard;
mod settle;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use earmark_core::LimitKey;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::ask::{CompleteItem, Denial, ReserveItem};
use crate::batcher::{BatchOptions, Batcher};
use crate::client::Client;
use crate::deadline::Deadline;
use crate::failure::Failure;
use crate::job::Job;
use crate::options::OptionsError;

pub(crate) use attempt::Attempt;
use freed::{Freed, Seen};
pub use guard::Guard;

/// A denial that says no better is waited out so long.
const WAIT_MIN: Duration = Duration::from_millis(5);
/// However far away a hint is, another attempt is made after so long: somebody may have put a larger limit.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// So long before the deadline the last attempt is made, whatever the hint was: what is in the way may have
/// completed meanwhile.
const LAST_ATTEMPT: Duration = Duration::from_millis(20);
/// Of what a hint says, so much more is waited at most, by chance.
const JITTER_PART: u32 = 10;

/// How a [`Limiter`] is set up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimiterOptions {
    /// How callers share requests; none if each sends its own. A Book in this process needs none.
    pub batching: Option<BatchOptions>,
    /// For how long a complete is tried. Then the lease is left to expire.
    pub complete_within: Duration,
    /// How many leases may be given back in the background at once. More are left to expire.
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
/// Every attempt has a lease of its own, which is retried as it is while its outcome is unknown, and never used
/// again once it was denied. Callers see none of it: they get a [`Guard`], or learn why not.
#[derive(Clone)]
pub struct Limiter(Arc<Shared>);

struct Shared {
    client: Client,
    reserves: Option<Batcher<ReserveItem>>,
    completes: Option<Batcher<CompleteItem>>,
    options: LimiterOptions,
    /// Where leases are given back, also by guards that are dropped outside of a runtime.
    handle: Handle,
    settling: AtomicUsize,
    settled: Notify,
    /// What is given back here, so that one of those that wait for it may find room sooner than its hint said.
    freed: Freed,
    abandoned: AtomicU64,
}

/// What became of one attempt.
#[derive(Debug)]
#[must_use = "what was admitted is held until its guard is completed or dropped"]
pub enum TryAcquire {
    /// The job may go ahead.
    Admitted(Guard),
    /// It may not now.
    Denied(Denial),
}

/// Why a job may not go ahead.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AcquireError {
    /// It asks for more than a limit has in all, so waiting does not help.
    #[error("it asks for more than there can be of {}", Keys(.limited_by))]
    Never {
        /// The limits that are too small.
        limited_by: Vec<LimitKey>,
    },
    /// An account has not what is to be held of it.
    #[error("the account of {key} has too little credit{}", Because(.message))]
    InsufficientCredit {
        /// The limit on that account.
        key: LimitKey,
        /// What else is wrong with the account.
        message: Option<String>,
    },
    /// There is no such limit.
    #[error("no limit has the key {key}; put it first")]
    UnknownLimitKey {
        /// The key.
        key: LimitKey,
    },
    /// The request was refused, whatever is free.
    #[error("invalid request: {message}")]
    InvalidRequest {
        /// What is wrong.
        message: String,
    },
    /// The key of the client was not accepted.
    #[error("the caller was refused: {message}; check the key")]
    Unauthorized {
        /// What the server said.
        message: String,
    },
    /// It was not admitted in time.
    #[error("not admitted before the deadline{}", Why(.denial, .failure))]
    DeadlinePassed {
        /// What stood in the way last.
        denial: Option<Denial>,
        /// Why the last attempt had no answer.
        failure: Option<Failure>,
    },
}

struct Keys<'a>(&'a [LimitKey]);

impl std::fmt::Display for Keys<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (place, key) in self.0.iter().enumerate() {
            write!(f, "{}{key}", if place == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

struct Because<'a>(&'a Option<String>);

impl std::fmt::Display for Because<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.as_ref().map_or(Ok(()), |message| write!(f, ": {message}"))
    }
}

struct Why<'a>(&'a Option<Denial>, &'a Option<Failure>);

impl std::fmt::Display for Why<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(denial) = self.0 {
            write!(f, "; in the way: {}", Keys(&denial.limited_by))?;
        }
        self.1.as_ref().map_or(Ok(()), |failure| write!(f, "; {failure}"))
    }
}

impl Limiter {
    /// A limiter on these servers. Needs a tokio runtime, in which it gives back what was not completed.
    ///
    /// # Errors
    /// Outside of a runtime.
    pub fn new(client: &Client, options: LimiterOptions) -> Result<Limiter, OptionsError> {
        let handle = Handle::try_current().map_err(|_| OptionsError::NoRuntime)?;
        #[cfg(feature = "local")]
        let batching = options.batching.filter(|_| client.book().is_none());
        #[cfg(not(feature = "local"))]
        let batching = options.batching;
        let reserves = batching.map(|batching| Batcher::start(client.clone(), batching, &handle));
        let completes = batching.map(|batching| Batcher::start(client.clone(), batching, &handle));
        Ok(Limiter(Arc::new(Shared {
            client: client.clone(),
            reserves,
            completes,
            options,
            handle,
            settling: AtomicUsize::new(0),
            settled: Notify::new(),
            freed: Freed::new(),
            abandoned: AtomicU64::new(0),
        })))
    }

    /// Waits until a job is admitted. What waiting cannot cure is returned at once.
    ///
    /// Dropped half-way, it gives back what an attempt may have taken, with a use of 0 for every limit, since no call
    /// was made.
    ///
    /// # Errors
    /// When it will not be admitted, or was not before the deadline.
    pub async fn acquire(&self, job: &Job, deadline: Deadline) -> Result<Guard, AcquireError> {
        let mut last = None;
        loop {
            let seen = self.0.freed.seen();
            match self.0.attempt(job, deadline).await {
                Attempt::Admitted(guard) => return Ok(guard),
                Attempt::Refused(error) => return Err(error),
                Attempt::NoAnswer(failure) => {
                    return Err(AcquireError::DeadlinePassed { denial: last, failure });
                }
                Attempt::Denied(denial) => {
                    if !self.0.wait_until(&denial, seen, deadline).await {
                        return Err(AcquireError::DeadlinePassed { denial: Some(denial), failure: None });
                    }
                    last = Some(denial);
                }
            }
        }
    }

    /// Attempts once to have a job admitted. A denial is an answer; only an unknown outcome is tried again, until the
    /// deadline.
    ///
    /// # Errors
    /// When it will not be admitted whatever is free, or there was no answer before the deadline.
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

    /// How long to wait before a denied job is tried again.
    pub(crate) fn wait_for(&self, denial: &Denial) -> Duration {
        self.0.wait_for(denial)
    }

    /// Waits until everything is given back that was dropped so far; says whether it was before the deadline. A
    /// process that ends without it leaves its slots to expire.
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

    /// How many leases could not be given back, and were left to expire.
    #[must_use]
    pub fn abandoned(&self) -> u64 {
        self.0.abandoned.load(Ordering::Relaxed)
    }
}

impl Shared {
    fn wait_for(&self, denial: &Denial) -> Duration {
        let wait = denial.retry_after.clamp(WAIT_MIN, WAIT_MAX);
        wait + self.client.around().up_to(wait / JITTER_PART)
    }

    /// Waits as the hint says, until something that is in the way is given back, or for the last chance before the
    /// deadline; says whether another attempt is due.
    async fn wait_until(&self, denial: &Denial, seen: Seen, deadline: Deadline) -> bool {
        let wait = self.wait_for(denial);
        let now = Instant::now();
        let last = deadline.instant().checked_sub(LAST_ATTEMPT).unwrap_or(now);
        if now >= last {
            tokio::time::sleep_until(deadline.instant()).await;
            return false;
        }
        if let Some(waiter) = self.freed.wait_for(&denial.limited_by, seen) {
            tokio::select! {
                () = tokio::time::sleep_until(last.min(now + wait)) => {}
                () = waiter.woken() => {}
            }
            waiter.tries_again();
        }
        true
    }
}
