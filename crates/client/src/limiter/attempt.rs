//! One attempt: one lease, from its first request until its outcome is known or the lease is too old.

use std::sync::Arc;

use earmark_core::LeaseId;

use super::guard::Admission;
use super::{AcquireError, Guard, Shared};
use crate::answer::{Denial, ReserveAnswer};
use crate::deadline::Deadline;
use crate::failure::{Certainty, Failure};
use crate::job::{Actuals, Job};
use crate::request::{CompleteItem, ReserveItem};

/// Milliseconds after which an attempt takes a new lease and completes the old one: 5 minutes. An outage may last longer
/// than the retention of leases, 15 minutes by default, and servers refuse older leases.
const LEASE_AGE_MAX_MS: u64 = 5 * 60 * 1_000;

/// The result of an attempt.
#[derive(Debug)]
pub(crate) enum Attempt {
    Admitted(Guard),
    Denied(Denial),
    Refused(AcquireError),
    /// The deadline passed. The outcome of the last request, if there was one, is unknown.
    NoAnswer(Option<Failure>),
}

/// The lease of an attempt. If it may hold amounts, dropping it completes it with a usage of 0.
struct Pending<'a> {
    shared: &'a Arc<Shared>,
    lease: LeaseId,
    job: &'a Job,
    may_hold: bool,
}

impl<'a> Pending<'a> {
    fn new(shared: &'a Arc<Shared>, job: &'a Job) -> Pending<'a> {
        Pending { shared, lease: shared.client.env().lease(), job, may_hold: false }
    }

    fn is_old(&self) -> bool {
        let now = self.shared.client.env().wall();
        now.get().saturating_sub(self.lease.time().get()) >= LEASE_AGE_MAX_MS
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        if self.may_hold {
            let (job, actuals) = (self.job.clone(), Actuals::nothing_of(self.job));
            self.shared.settle_in_background(CompleteItem { lease: self.lease, job, actuals });
        }
    }
}

impl Shared {
    pub(super) async fn attempt(self: &Arc<Self>, job: &Job, deadline: Deadline) -> Attempt {
        let mut pending = Pending::new(self, job);
        let mut backoff = self.client.backoff();
        let mut last = None;
        while !deadline.has_passed() {
            let may_have_held = pending.may_hold;
            pending.may_hold = true;
            let item = ReserveItem { lease: pending.lease, job: job.clone() };
            let answer = match self.reserve_now(&item) {
                Some(answer) => Some(answer),
                None => deadline.bound(self.ask_once(self.reserves.as_ref(), item, deadline)).await,
            };
            match answer {
                Some(Ok(answer)) => return self.judge(&mut pending, may_have_held, answer),
                Some(Err(failure)) => {
                    // An earlier copy of this request may still arrive.
                    pending.may_hold = may_have_held || failure.certainty() == Certainty::Unknown;
                    if !failure.is_transient() {
                        return Attempt::Refused(refused(failure));
                    }
                    let wait = backoff.wait(&failure, self.client.servers());
                    last = Some(failure);
                    _ = deadline.bound(tokio::time::sleep(wait)).await;
                    if pending.is_old() {
                        pending = Pending::new(self, job);
                    }
                }
                None => break,
            }
        }
        Attempt::NoAnswer(last)
    }

    /// The answer of a Book in this process.
    #[cfg(feature = "local")]
    fn reserve_now(&self, item: &ReserveItem) -> Option<Result<ReserveAnswer, Failure>> {
        self.client.book().and_then(|book| book.reserve_now(item))
    }

    #[cfg(not(feature = "local"))]
    fn reserve_now(&self, _: &ReserveItem) -> Option<Result<ReserveAnswer, Failure>> {
        None
    }

    fn judge(self: &Arc<Self>, pending: &mut Pending<'_>, may_have_held: bool, answer: ReserveAnswer) -> Attempt {
        pending.may_hold = match answer {
            // An earlier copy of a lease that expired meanwhile, or is refused for its age, may hold amounts.
            ReserveAnswer::LeaseExpired | ReserveAnswer::Invalid { .. } => pending.may_hold,
            // The server does not remember these leases, so a late earlier copy may still be admitted.
            ReserveAnswer::UnknownLimitKey(_)
            | ReserveAnswer::AccountNotFound(_)
            | ReserveAnswer::QuotaExceeded { .. }
            | ReserveAnswer::LimitPaused(_)
            | ReserveAnswer::LimitDecreasing(_) => may_have_held,
            ReserveAnswer::Allowed { .. }
            | ReserveAnswer::Denied(_)
            | ReserveAnswer::Never { .. }
            | ReserveAnswer::InsufficientCredit { .. } => false,
        };
        match answer {
            ReserveAnswer::Allowed { reserved_at, would_deny } => {
                let admission = Admission { reserved_at, would_deny };
                Attempt::Admitted(Guard::new(Arc::clone(self), pending.lease, pending.job.clone(), admission))
            }
            ReserveAnswer::Denied(denial)
            | ReserveAnswer::LimitDecreasing(denial)
            | ReserveAnswer::LimitPaused(denial) => Attempt::Denied(denial),
            // Leases are forgotten and days end, so waiting helps.
            ReserveAnswer::QuotaExceeded { retry_after, .. } => {
                Attempt::Denied(Denial { retry_after, limited_by: Vec::new() })
            }
            ReserveAnswer::LeaseExpired => {
                Attempt::Denied(Denial { retry_after: std::time::Duration::ZERO, limited_by: Vec::new() })
            }
            ReserveAnswer::Never { limited_by } => Attempt::Refused(AcquireError::Never { limited_by }),
            ReserveAnswer::InsufficientCredit { key, message } => {
                Attempt::Refused(AcquireError::InsufficientCredit { key, message })
            }
            ReserveAnswer::AccountNotFound(key) => Attempt::Refused(AcquireError::AccountNotFound { key }),
            ReserveAnswer::UnknownLimitKey(key) => Attempt::Refused(AcquireError::UnknownLimitKey { key }),
            ReserveAnswer::Invalid { message } => Attempt::Refused(AcquireError::InvalidRequest { message }),
        }
    }
}

fn refused(failure: Failure) -> AcquireError {
    match failure {
        Failure::Unauthorized { message } | Failure::Forbidden { message } => AcquireError::Unauthorized { message },
        other => AcquireError::InvalidRequest { message: other.to_string() },
    }
}
