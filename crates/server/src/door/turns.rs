//! How many requests of one caller are worked on at once. The rest of that caller's wait behind their own, in the order in
//! which they came, while those of everyone else go on.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use earmark_core::LimitKey;
use metrics::{Counter, Gauge};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout_at};

use super::presence::Presence;
use crate::caller::Refused;

/// When those come back for whom there is no room to wait.
const RETRY_AFTER_MS: u64 = 1_000;
/// That requests of a caller wait is logged so often at most.
const SAID_EVERY_SECONDS: u64 = 60;
/// Lines that nobody stands in are looked for when there are so many, or twice as many as were in use the last time.
const SWEEP_MIN: usize = 1_024;
/// So many items of a batch, or fewer, cost about as much as a request by itself.
const ITEMS_A_PLACE: usize = 8;

/// How much each caller may have under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TurnTerms {
    /// So many requests are worked on at once, and of a batch every eight items are one; a larger batch takes all places.
    pub(crate) at_once: NonZeroU32,
    /// So many requests wait at most, a batch as one. More are refused.
    pub(crate) waiting_max: usize,
}

/// What is counted of those who wait.
#[derive(Clone)]
pub(crate) struct Waits {
    /// How many wait now.
    pub(crate) now: Gauge,
    /// How many ever had to.
    pub(crate) ever: Counter,
}

/// The lines of all callers that were heard of lately.
pub(super) struct Turns {
    terms: TurnTerms,
    waits: Waits,
    lines: Mutex<Lines>,
}

#[derive(Default)]
struct Lines {
    /// A line lives as long as somebody knows a caller that has it, and is forgotten with the last of them.
    by_caller: HashMap<LimitKey, Weak<Line>>,
    in_use: usize,
}

impl Turns {
    pub(super) fn new(terms: TurnTerms, waits: Waits) -> Turns {
        Turns { terms, waits, lines: Mutex::default() }
    }

    /// The line of a caller: one for each, whatever credentials they came with.
    pub(super) fn line(&self, caller: &LimitKey) -> Arc<Line> {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(line) = lines.by_caller.get(caller).and_then(Weak::upgrade) {
            return line;
        }
        if lines.by_caller.len() >= SWEEP_MIN.max(lines.in_use.saturating_mul(2)) {
            lines.by_caller.retain(|_, line| line.strong_count() > 0);
            lines.in_use = lines.by_caller.len();
        }
        let line = Arc::new(Line::new(self.terms, self.waits.clone()));
        lines.by_caller.insert(caller.clone(), Arc::downgrade(&line));
        line
    }
}

/// For how long a request waits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience<'a> {
    pub(crate) deadline: Instant,
    /// Whether its client is still there, where the protocol does not tell.
    pub(crate) presence: Option<&'a Presence>,
}

impl Patience<'_> {
    async fn gone(self) {
        match self.presence {
            Some(presence) => presence.gone().await,
            None => std::future::pending().await,
        }
    }
}

/// Where the requests of one caller wait for their turn.
pub(crate) struct Line {
    terms: TurnTerms,
    places: Semaphore,
    waiting: AtomicUsize,
    waits: Waits,
    started: Instant,
    /// In which second after the start, counted from 1, it was last said that requests wait.
    said: AtomicU64,
}

impl Line {
    fn new(terms: TurnTerms, waits: Waits) -> Line {
        Line {
            terms,
            places: Semaphore::new(terms.at_once.get() as usize),
            waiting: AtomicUsize::new(0),
            waits,
            started: Instant::now(),
            said: AtomicU64::new(0),
        }
    }

    /// Waits until it is the turn of a request of so many items. Whoever stops waiting leaves the line, and whoever still
    /// waits at the deadline, or when its client is gone, is refused.
    pub(crate) async fn enter(
        &self,
        items: usize,
        patience: Patience<'_>,
        say: impl FnOnce(),
    ) -> Result<Place<'_>, Refused> {
        let count = items.div_ceil(ITEMS_A_PLACE);
        let count = u32::try_from(count).unwrap_or(u32::MAX).clamp(1, self.terms.at_once.get());
        // It is given to nobody while others wait, so that nobody comes before them.
        if let Ok(permit) = self.places.try_acquire_many(count) {
            return Ok(Place { _permit: Some(permit) });
        }
        let too_many = Refused::TooMany { retry_after_ms: RETRY_AFTER_MS };
        let _waiting = Waiting::begin(self).ok_or(too_many)?;
        if self.is_to_say() {
            say();
        }
        tokio::select! {
            biased;
            permit = timeout_at(patience.deadline, self.places.acquire_many(count)) => match permit {
                Ok(Ok(permit)) => Ok(Place { _permit: Some(permit) }),
                Ok(Err(_)) | Err(_) => Err(too_many),
            },
            () = patience.gone() => Err(too_many),
        }
    }

    /// Whether it is time to say that requests wait.
    fn is_to_say(&self) -> bool {
        let now = self.started.elapsed().as_secs().saturating_add(1);
        let said = self.said.load(Ordering::Relaxed);
        let is_time = said == 0 || now.saturating_sub(said) >= SAID_EVERY_SECONDS;
        is_time && self.said.compare_exchange(said, now, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

impl std::fmt::Debug for Line {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Line").field("waiting", &self.waiting).finish_non_exhaustive()
    }
}

/// Room for a request to be worked on, until it is dropped.
#[must_use]
pub(crate) struct Place<'a> {
    /// None for those who need none.
    _permit: Option<SemaphorePermit<'a>>,
}

impl Place<'_> {
    /// Of somebody for whom there is no end of places.
    pub(crate) fn boundless() -> Self {
        Place { _permit: None }
    }
}

/// A request that waits, counted until it does no longer, however that ends.
struct Waiting<'a>(&'a Line);

impl<'a> Waiting<'a> {
    fn begin(line: &'a Line) -> Option<Waiting<'a>> {
        let waiting = line.waiting.fetch_add(1, Ordering::Relaxed);
        if waiting >= line.terms.waiting_max {
            line.waiting.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        line.waits.now.increment(1);
        line.waits.ever.increment(1);
        Some(Waiting(line))
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
        self.0.waits.now.decrement(1);
    }
}

#[cfg(test)]
mod tests;
