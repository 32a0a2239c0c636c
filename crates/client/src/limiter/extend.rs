//! Extensions of an admitted job: more amounts, a later end, and usage that is certain.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use earmark_core::{EXTENSIONS_MAX, LeaseId, LimitKey};

use super::{AcquireError, Shared};
use crate::answer::{Denial, ExtendAnswer, Extended, ReserveAnswer};
use crate::deadline::Deadline;
use crate::failure::{Certainty, Failure};
use crate::request::ExtendItem;

/// The changes of one extension. By default it moves the end of the lease and nothing else.
///
/// ```
/// use earmark_client::Extension;
///
/// let more_tokens = Extension::new().add("gpt-4o:tpm".parse()?, 2_000);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extension {
    add: Vec<(LimitKey, u64)>,
    renew: bool,
}

impl Default for Extension {
    fn default() -> Extension {
        Extension { add: Vec::new(), renew: true }
    }
}

impl Extension {
    /// An extension that moves the end of the lease.
    #[must_use]
    pub fn new() -> Extension {
        Extension::default()
    }

    /// The same extension that also takes this amount of this limit, which replaces an earlier one. The limit may be new
    /// to the job.
    #[must_use]
    pub fn add(mut self, key: LimitKey, amount: u64) -> Extension {
        match self.add.iter_mut().find(|(known, _)| *known == key) {
            Some((_, known)) => *known = amount,
            None => self.add.push((key, amount)),
        }
        self
    }

    /// The same extension that leaves the end of the lease where it is.
    #[must_use]
    pub fn without_renewal(self) -> Extension {
        Extension { renew: false, ..self }
    }

    pub(crate) const fn renews(&self) -> bool {
        self.renew
    }

    pub(crate) fn added(&self) -> &[(LimitKey, u64)] {
        &self.add
    }
}

/// Why a job was not extended. It keeps the amounts that it has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ExtendError {
    /// A limit has no room now.
    #[error("no room in {}", super::keys(&.0.limited_by))]
    Denied(Denial),
    /// A limit is paused or decreasing, or a quota is used up.
    #[error("refused for now{}", named(&.0.limited_by))]
    NotNow(Denial),
    /// An amount exceeds the capacity of its limit, an account has too little credit, a name is unknown, or the caller was
    /// refused. Another attempt would end alike.
    #[error(transparent)]
    Refused(AcquireError),
    /// The lease has ended: it ran out. Acquire again.
    #[error("the lease has ended; acquire again")]
    LeaseExpired,
    /// The lease has the most extensions that it may have.
    #[error("the lease has {EXTENSIONS_MAX} extensions; acquire again")]
    TooMany,
    /// There was no answer, so the outcome is unknown. The next extension of the guard repeats this one first.
    #[error(transparent)]
    Failed(Failure),
}

fn named(limits: &[LimitKey]) -> String {
    if limits.is_empty() { String::new() } else { format!(" by {}", super::keys(limits)) }
}

/// Answers that are kept for extensions that the guard gave up on. Beyond this the oldest is forgotten; a job that gives
/// up on more than 16 different extensions has a deadline that is too short.
const ANSWERED_MAX: usize = 16;

/// The extensions of one lease. A guard and the task that keeps it alive share them.
pub(super) struct Extensions {
    lease: LeaseId,
    /// Locked while an extension is under way: the next one needs the next number.
    numbers: tokio::sync::Mutex<Numbers>,
    /// The certain usage of each limit, which the next extension reports.
    used: Mutex<Vec<(LimitKey, u64)>>,
    growth: Mutex<Growth>,
}

/// The part of the client that asks for an extension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AskedBy {
    Guard,
    KeepAlive,
}

#[derive(Default)]
struct Numbers {
    /// The last number that was used.
    last: u32,
    /// Extensions that the guard gave up on and a later one finished. Their answers are the guard's if it asks again.
    answered: VecDeque<(Extension, Extended)>,
}

/// The amounts of extensions that are not part of the guard's job yet. One lock covers both fields, so that a guard that
/// completes while an answer arrives finds the amounts in one of them.
#[derive(Default)]
struct Growth {
    /// The amounts of applied extensions.
    taken: Vec<(LimitKey, u64)>,
    unanswered: Option<Unanswered>,
}

/// An extension that was sent and has no answer.
#[derive(Clone)]
struct Unanswered {
    item: ExtendItem,
    by: AskedBy,
}

impl Numbers {
    /// The answer to an extension that the guard gave up on.
    fn answer_to(&mut self, asked: &Extension) -> Option<Extended> {
        let place = self.answered.iter().position(|(earlier, _)| earlier == asked)?;
        self.answered.remove(place).map(|(_, extended)| extended)
    }

    fn keep_answer(&mut self, asked: Extension, extended: Extended) {
        if self.answered.len() == ANSWERED_MAX {
            self.answered.pop_front();
        }
        self.answered.push_back((asked, extended));
    }
}

impl Extensions {
    pub(super) fn new(lease: LeaseId) -> Extensions {
        let (used, growth) = (Mutex::default(), Mutex::default());
        Extensions { lease, numbers: tokio::sync::Mutex::default(), used, growth }
    }

    /// Records certain usage. The largest amount of a limit counts.
    pub(super) fn used(&self, key: LimitKey, amount: u64) {
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        match used.iter_mut().find(|(known, _)| *known == key) {
            Some((_, known)) => *known = amount.max(*known),
            None => used.push((key, amount)),
        }
    }

    fn growth(&self) -> MutexGuard<'_, Growth> {
        self.growth.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The amounts that were taken since the last call, and the limits of an extension whose outcome is unknown: the lease
    /// may have them.
    pub(super) fn take_growth(&self) -> (Vec<(LimitKey, u64)>, Vec<LimitKey>) {
        let mut growth = self.growth();
        let unanswered = growth.unanswered.iter().flat_map(|unanswered| &unanswered.item.add);
        let maybe = unanswered.map(|(key, _)| key.clone()).collect();
        (std::mem::take(&mut growth.taken), maybe)
    }

    /// Sends an extension until it has an answer or the deadline passes. One without an answer is sent again first, with
    /// its number and body: if it is the same, its answer is the answer.
    pub(super) async fn extend(
        &self,
        shared: &Arc<Shared>,
        asked: &Extension,
        by: AskedBy,
        deadline: Deadline,
    ) -> Result<Extended, ExtendError> {
        let passed = || ExtendError::Failed(Failure::DeadlinePassed { last: None });
        let mut numbers = deadline.bound(self.numbers.lock()).await.ok_or_else(passed)?;
        if by == AskedBy::Guard
            && let Some(extended) = numbers.answer_to(asked)
        {
            return Ok(extended);
        }
        let unanswered = self.growth().unanswered.clone();
        if let Some(unanswered) = unanswered {
            let earlier = Extension { add: unanswered.item.add.clone(), renew: unanswered.item.renew };
            let asked_by = unanswered.by;
            match self.send(shared, &mut numbers, unanswered, deadline).await {
                answer @ Err(ExtendError::LeaseExpired | ExtendError::Failed(_)) => return answer,
                answer if earlier == *asked => return answer,
                Ok(extended) if asked_by == AskedBy::Guard => numbers.keep_answer(earlier, extended),
                // It took nothing, so it may be tried again.
                Ok(_) | Err(_) => {}
            }
        }
        if numbers.last >= EXTENSIONS_MAX {
            return Err(ExtendError::TooMany);
        }
        let used = self.used.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Extension { add, renew } = asked.clone();
        let item = ExtendItem { lease: self.lease, number: numbers.last + 1, add, used, renew };
        self.send(shared, &mut numbers, Unanswered { item, by }, deadline).await
    }

    /// Sends one extension with its number. It counts as unanswered until its answer is here, also when the caller drops
    /// this future.
    async fn send(
        &self,
        shared: &Arc<Shared>,
        numbers: &mut Numbers,
        sent: Unanswered,
        deadline: Deadline,
    ) -> Result<Extended, ExtendError> {
        let item = sent.item.clone();
        let was_sent = self.growth().unanswered.replace(sent).is_some();
        let attempt = || shared.ask_once(shared.extends.as_ref(), item.clone(), deadline);
        let answer = match shared.client.retry(true, deadline, attempt).await {
            Ok(answer) => answer,
            Err(failure) => {
                if failure.certainty() == Certainty::NothingHappened && !was_sent {
                    self.growth().unanswered = None;
                }
                return Err(failed(failure));
            }
        };
        let is_used = match &answer {
            ExtendAnswer::Extended(_) => true,
            ExtendAnswer::Not(answer) => uses_number(answer),
        };
        if is_used {
            numbers.last = item.number;
        }
        let mut growth = self.growth();
        growth.unanswered = None;
        match answer {
            ExtendAnswer::Extended(extended) => {
                growth.taken.extend(item.add);
                Ok(extended)
            }
            ExtendAnswer::Not(answer) => Err(not_extended(answer)),
        }
    }
}

/// Whether an extension that was answered like this has used its number. A refusal by name leaves it free.
fn uses_number(answer: &ReserveAnswer) -> bool {
    match answer {
        ReserveAnswer::Allowed { .. }
        | ReserveAnswer::Denied(_)
        | ReserveAnswer::Never { .. }
        | ReserveAnswer::InsufficientCredit { .. } => true,
        ReserveAnswer::LimitDecreasing(_)
        | ReserveAnswer::LimitPaused(_)
        | ReserveAnswer::AccountNotFound(_)
        | ReserveAnswer::UnknownLimitKey(_)
        | ReserveAnswer::LeaseExpired
        | ReserveAnswer::QuotaExceeded { .. }
        | ReserveAnswer::Invalid { .. } => false,
    }
}

fn not_extended(answer: ReserveAnswer) -> ExtendError {
    match answer {
        ReserveAnswer::Denied(denial) => ExtendError::Denied(denial),
        ReserveAnswer::LimitDecreasing(denial) | ReserveAnswer::LimitPaused(denial) => ExtendError::NotNow(denial),
        ReserveAnswer::QuotaExceeded { retry_after, .. } => {
            ExtendError::NotNow(Denial { retry_after, limited_by: Vec::new() })
        }
        ReserveAnswer::LeaseExpired => ExtendError::LeaseExpired,
        ReserveAnswer::Never { limited_by } => ExtendError::Refused(AcquireError::Never { limited_by }),
        ReserveAnswer::InsufficientCredit { key, message } => {
            ExtendError::Refused(AcquireError::InsufficientCredit { key, message })
        }
        ReserveAnswer::AccountNotFound(key) => ExtendError::Refused(AcquireError::AccountNotFound { key }),
        ReserveAnswer::UnknownLimitKey(key) => ExtendError::Refused(AcquireError::UnknownLimitKey { key }),
        ReserveAnswer::Invalid { message } => ExtendError::Refused(AcquireError::InvalidRequest { message }),
        ReserveAnswer::Allowed { .. } => {
            ExtendError::Refused(AcquireError::InvalidRequest { message: "the answer is one to a reserve".into() })
        }
    }
}

fn failed(failure: Failure) -> ExtendError {
    match failure {
        Failure::Unauthorized { message } | Failure::Forbidden { message } => {
            ExtendError::Refused(AcquireError::Unauthorized { message })
        }
        Failure::Invalid { message } => ExtendError::Refused(AcquireError::InvalidRequest { message }),
        other => ExtendError::Failed(other),
    }
}
