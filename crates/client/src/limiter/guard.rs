//! The guard of an admitted job.

use std::fmt;
use std::sync::Arc;

use earmark_core::{LeaseId, LimitKey, UnixMs};

use super::Shared;
use crate::answer::Completed;
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
    is_open: bool,
}

/// The answer of the server that admitted a job.
pub(super) struct Admission {
    pub(super) reserved_at: UnixMs,
    pub(super) would_deny: Vec<LimitKey>,
}

impl Guard {
    pub(super) fn new(shared: Arc<Shared>, lease: LeaseId, job: Job, admission: Admission) -> Guard {
        Guard { shared, lease, job, admission, is_open: true }
    }

    /// The lease id, for logs.
    pub fn lease(&self) -> impl fmt::Display + use<> {
        self.lease
    }

    /// The admitted job.
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

    /// Reports the actual usage. The complete continues in the background when the future is dropped.
    ///
    /// # Errors
    /// When no server took it within [`LimiterOptions::complete_within`](crate::LimiterOptions::complete_within). The
    /// lease is left to expire.
    pub async fn complete(mut self, actuals: Actuals) -> Result<Completed, Failure> {
        self.is_open = false;
        let (actuals, ignored) = of_job(&self.job, actuals);
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
    pub async fn release(self) -> Result<Completed, Failure> {
        let actuals = Actuals::nothing_of(&self.job);
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

/// The actuals of the limits that the job reserved, and a note about the others.
fn of_job(job: &Job, actuals: Actuals) -> (Actuals, Option<String>) {
    let is_reserved = |key: &earmark_core::LimitKey| job.requirements().iter().any(|(known, _)| known == key);
    if actuals.amounts().iter().all(|(key, _)| is_reserved(key)) {
        return (actuals, None);
    }
    let (known, others): (Vec<_>, Vec<_>) = actuals.amounts().iter().cloned().partition(|(key, _)| is_reserved(key));
    let others: Vec<&str> = others.iter().map(|(key, _)| key.as_str()).collect();
    let known = known.into_iter().fold(Actuals::unknown(), |all, (key, amount)| all.used(key, amount));
    (known, Some(format!("not reserved, so ignored: {}", others.join(", "))))
}

impl Drop for Guard {
    fn drop(&mut self) {
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
