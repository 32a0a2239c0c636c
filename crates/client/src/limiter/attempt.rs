//! One attempt: one lease, from its first request to an answer that says what became of it, or until it is too old.

use std::sync::Arc;

use earmark_core::LeaseId;

use super::{AcquireError, Guard, Shared};
use crate::ask::{CompleteItem, Denial, ReserveAnswer, ReserveItem};
use crate::batcher::ask_alone;
use crate::deadline::Deadline;
use crate::failure::{Certainty, Failure};
use crate::job::{Actuals, Job};

/// An outage may last longer than a server remembers leases, 15 minutes by default, and older ones are refused. So an
/// attempt that goes on for so long takes a new one, and gives the old one back.
const LEASE_AGE_MAX_MS: u64 = 5 * 60 * 1_000;

/// What became of an attempt.
#[derive(Debug)]
pub(crate) enum Attempt {
    Admitted(Guard),
    Denied(Denial),
    Refused(AcquireError),
    /// The deadline passed, and the outcome of the last request is unknown if there was one.
    NoAnswer(Option<Failure>),
}

/// A lease that may hold something. Dropped like that, it is given back as never used.
struct Pending<'a> {
    shared: &'a Arc<Shared>,
    lease: LeaseId,
    job: &'a Job,
    may_hold: bool,
}

impl<'a> Pending<'a> {
    fn new(shared: &'a Arc<Shared>, job: &'a Job) -> Pending<'a> {
        Pending { shared, lease: shared.client.around().lease(), job, may_hold: false }
    }

    fn is_old(&self) -> bool {
        let now = self.shared.client.around().wall();
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
            let knew_nothing = pending.may_hold;
            pending.may_hold = true;
            let item = ReserveItem { lease: pending.lease, job: job.clone() };
            let answer = match self.reserve_now(&item) {
                Some(answer) => Some(answer),
                None => deadline.bound(self.reserve_once(item, deadline)).await,
            };
            match answer {
                Some(Ok(answer)) => return self.judge(&mut pending, knew_nothing, answer),
                Some(Err(failure)) => {
                    // An earlier copy of this request may still be under way.
                    pending.may_hold = knew_nothing || failure.certainty() == Certainty::Unknown;
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

    async fn reserve_once(&self, item: ReserveItem, deadline: Deadline) -> Result<ReserveAnswer, Failure> {
        match &self.reserves {
            Some(batcher) => batcher.ask(item, deadline).await,
            // Boxed, for it is large, and every call would carry room for it that shares a request.
            None => Box::pin(ask_alone(&self.client, item, deadline)).await,
        }
    }

    fn judge(
        self: &Arc<Self>,
        pending: &mut Pending<'_>,
        knew_nothing: bool,
        answer: ReserveAnswer,
    ) -> Attempt {
        pending.may_hold = match answer {
            // Of a lease that has expired meanwhile, or is refused for its age, an earlier copy may hold something.
            ReserveAnswer::LeaseExpired | ReserveAnswer::Invalid { .. } => pending.may_hold,
            // These leave no trace of the lease, so an earlier copy that is late may still be admitted.
            ReserveAnswer::UnknownLimitKey(_) | ReserveAnswer::LimitDecreasing(_) => knew_nothing,
            ReserveAnswer::Allowed { .. }
            | ReserveAnswer::Denied(_)
            | ReserveAnswer::Never { .. }
            | ReserveAnswer::InsufficientCredit { .. } => false,
        };
        match answer {
            ReserveAnswer::Allowed { reserved_at } => {
                let shared = Arc::clone(self);
                Attempt::Admitted(Guard::new(shared, pending.lease, pending.job.clone(), reserved_at))
            }
            ReserveAnswer::Denied(denial) | ReserveAnswer::LimitDecreasing(denial) => Attempt::Denied(denial),
            ReserveAnswer::LeaseExpired => {
                Attempt::Denied(Denial { retry_after: std::time::Duration::ZERO, limited_by: Vec::new() })
            }
            ReserveAnswer::Never { limited_by } => Attempt::Refused(AcquireError::Never { limited_by }),
            ReserveAnswer::InsufficientCredit { key, message } => {
                Attempt::Refused(AcquireError::InsufficientCredit { key, message })
            }
            ReserveAnswer::UnknownLimitKey(key) => Attempt::Refused(AcquireError::UnknownLimitKey { key }),
            ReserveAnswer::Invalid { message } => Attempt::Refused(AcquireError::InvalidRequest { message }),
        }
    }
}

fn refused(failure: Failure) -> AcquireError {
    match failure {
        Failure::Unauthorized { message } => AcquireError::Unauthorized { message },
        other => AcquireError::InvalidRequest { message: other.to_string() },
    }
}
