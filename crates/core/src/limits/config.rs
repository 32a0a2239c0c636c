//! The settings of a Book.

use super::index::REFERENCES_MAX;

/// The longest retention: 366 days.
const RETENTION_MS_MAX: u64 = 366 * 24 * 60 * 60 * 1_000;

/// The settings of a Book. They are part of the replicated state, so that every replica decides alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// How long a resolved lease is remembered, in milliseconds.
    pub retention_ms: u64,
    /// How far a lease's ULID time may be ahead of the wall time of its command, in milliseconds.
    pub lease_ahead_ms: u64,
    /// The maximum number of lease records, tombstones included. Beyond it reserves get `overloaded`.
    pub leases_max: u32,
    /// The maximum number of clients, counted once per scope. Clients are never removed.
    pub clients_max: u32,
    /// The retry hints of denials.
    pub hints: Hints,
}

/// The retry hints of denials, in milliseconds unless the name says otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hints {
    /// Concurrency backoff after the first denial. Doubles with every further denial.
    pub concurrency_base_ms: u64,
    /// Maximum concurrency backoff.
    pub concurrency_max_ms: u64,
    /// Minimum rolling backoff after the first denial. Grows by half with every further denial.
    pub rolling_base_ms: u64,
    /// Divisor of the window that gives the first rolling backoff: 10 means a tenth of the window.
    pub rolling_window_part: u64,
    /// Maximum rolling backoff.
    pub rolling_max_ms: u64,
    /// The share of a backoff, in percent, that the random bits of the lease may subtract.
    pub jitter_percent: u64,
    /// Hint while a limit is decreasing.
    pub decreasing_ms: u64,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            retention_ms: 15 * 60 * 1_000,
            lease_ahead_ms: 60_000,
            leases_max: 1 << 26,
            clients_max: 1 << 20,
            hints: Hints::default(),
        }
    }
}

impl Default for Hints {
    fn default() -> Hints {
        Hints {
            concurrency_base_ms: 50,
            concurrency_max_ms: 2_000,
            rolling_base_ms: 100,
            rolling_window_part: 10,
            rolling_max_ms: 5_000,
            jitter_percent: 20,
            decreasing_ms: 10_000,
        }
    }
}

impl Config {
    /// Clamps every setting to the range that the Book supports.
    pub(crate) fn bounded(self) -> Config {
        let hints = Hints {
            rolling_window_part: self.hints.rolling_window_part.max(1),
            jitter_percent: self.hints.jitter_percent.min(100),
            ..self.hints
        };
        Config {
            retention_ms: self.retention_ms.min(RETENTION_MS_MAX),
            lease_ahead_ms: self.lease_ahead_ms.min(RETENTION_MS_MAX),
            leases_max: self.leases_max.min(REFERENCES_MAX),
            clients_max: self.clients_max.min(REFERENCES_MAX),
            hints,
        }
    }
}
