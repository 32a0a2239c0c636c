//! The guard of an admitted job.

use std::fmt;
use std::sync::Arc;

use std::time::Duration;

use earmark_core::{LeaseId, LimitKey, UnixMs};
use tokio::sync::watch;
use tokio::time::Instant;

use super::Shared;
use super::extend::{AskedBy, ExtendError, Extension, Extensions};
use super::keep_alive::{KeepAlive, Renewed};
use crate::answer::{Completed, Extended};
use crate::deadline::Deadline;
use crate::failure::Failure;
use crate::job::{Actuals, Job};
use crate::request::CompleteItem;

/// Holds the amounts of an admitted job. Completing consumes it, so that it happens once.
///
/// A dropped guard is completed in the background with unknown usage: concurrency slots are freed, and everything else
/// counts as fully used. If that fails, the lease expires.
#[must_use = "dropping it completes the job with unknown usage"]
pub struct Guard {
    shared: Arc<Shared>,
    lease: LeaseId,
    job: Job,
    admission: Admission,
    admitted_at: Instant,
    extensions: Arc<Extensions>,
    /// Set once the guard has ended, so that it is not kept alive any more.
    is_over: watch::Sender<bool>,
    is_open: bool,
}

/// The answer of the server that admitted a job.
pub(super) struct Admission {
    pub(super) reserved_at: UnixMs,
    pub(super) would_deny: Vec<LimitKey>,
}

impl Guard {
    pub(super) fn new(shared: Arc<Shared>, lease: LeaseId, job: Job, admission: Admission) -> Guard {
        Guard {
            shared,
            lease,
            job,
            admission,
            admitted_at: Instant::now(),
            extensions: Arc::new(Extensions::new(lease)),
            is_over: watch::Sender::new(false),
            is_open: true,
        }
    }

    /// The lease id, for logs.
    pub fn lease(&self) -> impl fmt::Display + use<> {
        self.lease
    }

    /// The admitted job, with the amounts that extensions took.
    pub const fn job(&self) -> &Job {
        &self.job
    }

    /// The server time of the admission.
    pub const fn reserved_at(&self) -> UnixMs {
        self.admission.reserved_at
    }

    /// The limits that are not enforced and would have denied the job.
    pub fn would_deny(&self) -> &[LimitKey] {
        &self.admission.would_deny
    }

    /// Changes the lease, all or nothing: takes more, moves its end, and reports the usage that [`Guard::used`] recorded.
    /// A denial changes nothing, and the job keeps what it has.
    ///
    /// # Errors
    /// When the extension is denied or refused, or no answer came before the deadline. Then its outcome is unknown. The
    /// next extension, of whatever kind, finishes this one first; the next call with the same extension returns its
    /// answer and takes nothing twice.
    pub async fn extend(&mut self, extension: &Extension, deadline: Deadline) -> Result<Extended, ExtendError> {
        let extended = self.extensions.extend(&self.shared, extension, AskedBy::Guard, deadline).await;
        self.grow();
        extended
    }

    /// Adds the amounts that extensions took to the job. Returns the limits that the lease may have besides.
    fn grow(&mut self) -> Vec<LimitKey> {
        let (taken, maybe) = self.extensions.take_growth();
        if !taken.is_empty() {
            self.job = self.job.grown(&taken);
        }
        maybe
    }

    /// Records the usage of a limit so far, in total. The next extension reports it, also one of [`Guard::keep_alive`]. It
    /// is charged even if this process dies, and a complete cannot report less.
    pub fn used(&self, key: LimitKey, amount: u64) {
        self.extensions.used(key, amount);
    }

    /// Keeps the lease of a long call alive: renews it whenever a third of `timeout` has passed, the shortest timeout of
    /// its concurrency and credit limits. It stops with this guard, or when it is dropped.
    ///
    /// ```
    /// # async fn stream(guard: earmark_client::Guard) {
    /// use std::time::Duration;
    ///
    /// let mut keep_alive = guard.keep_alive(Duration::from_secs(60));
    /// tokio::select! {
    ///     () = call() => { guard.complete(earmark_client::Actuals::unknown()).await.ok(); }
    ///     _ = keep_alive.lost() => { /* the lease has ended: stop the call */ }
    /// }
    /// # }
    /// # async fn call() {}
    /// ```
    pub fn keep_alive(&self, timeout: Duration) -> KeepAlive {
        let renewed = Renewed {
            shared: Arc::clone(&self.shared),
            extensions: Arc::clone(&self.extensions),
            admitted: (self.admission.reserved_at, self.admitted_at),
            timeout,
            is_over: self.is_over.subscribe(),
        };
        renewed.keep_alive()
    }

    /// Reports the actual usage. The complete continues in the background when the future is dropped.
    ///
    /// # Errors
    /// When no server took it within [`LimiterOptions::complete_within`](crate::LimiterOptions::complete_within). The
    /// lease is left to expire.
    pub async fn complete(mut self, actuals: Actuals) -> Result<Completed, Failure> {
        self.is_open = false;
        self.is_over.send_replace(true);
        let maybe = self.grow();
        let (actuals, ignored) = of_job(&self.job, &maybe, actuals);
        let item = CompleteItem { lease: self.lease, job: self.job.clone(), actuals };
        let mut completed = self.settle(item).await?;
        if let Some(ignored) = ignored {
            let note = completed.message.take();
            completed.message = Some(note.map_or(ignored.clone(), |note| format!("{note}; {ignored}")));
        }
        Ok(completed)
    }

    /// Frees everything, because no call was made.
    ///
    /// # Errors
    /// As [`Guard::complete`].
    pub async fn release(mut self) -> Result<Completed, Failure> {
        let maybe = self.grow();
        let actuals = Actuals::nothing_of(&self.job);
        let actuals = maybe.into_iter().fold(actuals, |actuals, key| actuals.used(key, 0));
        self.complete(actuals).await
    }

    async fn settle(&self, item: CompleteItem) -> Result<Completed, Failure> {
        #[cfg(feature = "local")]
        if let Some(Some(answer)) = self.shared.client.book().map(|book| book.complete_now(&item)) {
            self.shared.wait_queues.release(&item.job);
            return answer;
        }
        let lost =
            |error: tokio::task::JoinError| Failure::NoAnswer { server: "the runtime".into(), why: error.to_string() };
        self.shared.settle(item).await.map_err(lost)?
    }
}

/// The actuals of the limits that the job reserved or may have reserved, and a note about the others.
fn of_job(job: &Job, maybe: &[LimitKey], actuals: Actuals) -> (Actuals, Option<String>) {
    let reserved = job.requirements().iter().map(|(key, _)| key).chain(maybe);
    let is_reserved = |key: &LimitKey| reserved.clone().any(|known| known == key);
    if actuals.amounts().iter().all(|(key, _)| is_reserved(key)) {
        return (actuals, None);
    }
    let (known, others): (Vec<_>, Vec<_>) = actuals.amounts().iter().cloned().partition(|(key, _)| is_reserved(key));
    let others: Vec<&str> = others.iter().map(|(key, _)| key.as_str()).collect();
    let labelled = Actuals::unknown().labelled(actuals.labels().clone());
    let known = known.into_iter().fold(labelled, |all, (key, amount)| all.used(key, amount));
    (known, Some(format!("not reserved, so ignored: {}", others.join(", "))))
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.is_over.send_replace(true);
        if self.is_open {
            let (lease, job) = (self.lease, self.job.clone());
            self.shared.settle_in_background(CompleteItem { lease, job, actuals: Actuals::unknown() });
        }
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard").field("lease", &self.lease.to_string()).finish_non_exhaustive()
    }
}
