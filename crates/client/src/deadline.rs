//! The deadline of a call.

use std::future::Future;
use std::time::Duration;

use tokio::time::Instant;

/// The moment at which a caller stops waiting. Every call that may wait takes one, so that none waits forever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline(Instant);

impl Deadline {
    /// The deadline `wait` from now.
    #[must_use]
    pub fn after(wait: Duration) -> Deadline {
        let now = Instant::now();
        // An instant that overflows becomes thirty years from now.
        Deadline(now.checked_add(wait).unwrap_or(now + Duration::from_secs(86_400 * 365 * 30)))
    }

    /// The deadline at this moment.
    #[must_use]
    pub const fn at(moment: Instant) -> Deadline {
        Deadline(moment)
    }

    /// The moment of the deadline.
    pub const fn instant(self) -> Instant {
        self.0
    }

    /// Whether it has passed.
    pub fn has_passed(self) -> bool {
        Instant::now() >= self.0
    }

    /// The earlier of this deadline and `wait` from now.
    pub(crate) fn or_after(self, wait: Duration) -> Deadline {
        self.min(Deadline::after(wait))
    }

    /// The output of `work`, or `None` at the deadline.
    pub(crate) async fn bound<T>(self, work: impl Future<Output = T>) -> Option<T> {
        tokio::time::timeout_at(self.0, work).await.ok()
    }
}
