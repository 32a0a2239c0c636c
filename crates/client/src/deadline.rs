//! Until when a caller waits.

use std::future::Future;
use std::time::Duration;

use tokio::time::Instant;

/// Until when a caller waits. Every call that may wait takes one, so that none waits for ever by accident.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline(Instant);

impl Deadline {
    /// So long from now.
    #[must_use]
    pub fn after(wait: Duration) -> Deadline {
        let now = Instant::now();
        // What is too far away to be told is as good as thirty years.
        Deadline(now.checked_add(wait).unwrap_or(now + Duration::from_secs(86_400 * 365 * 30)))
    }

    /// At this moment.
    #[must_use]
    pub const fn at(moment: Instant) -> Deadline {
        Deadline(moment)
    }

    /// When it is.
    #[must_use]
    pub const fn instant(self) -> Instant {
        self.0
    }

    /// Whether it has passed.
    #[must_use]
    pub fn has_passed(self) -> bool {
        Instant::now() >= self.0
    }

    /// The earlier of this one and so long from now.
    pub(crate) fn or_after(self, wait: Duration) -> Deadline {
        self.min(Deadline::after(wait))
    }

    /// What comes of `work` if it comes in time.
    pub(crate) async fn bound<T>(self, work: impl Future<Output = T>) -> Option<T> {
        tokio::time::timeout_at(self.0, work).await.ok()
    }
}
