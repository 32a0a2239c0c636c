//! What an operator may set, once, when a Book is made.

use super::index::REFERENCES_MAX;

/// The longest retention: 366 days.
const RETENTION_MS_MAX: u64 = 366 * 24 * 60 * 60 * 1_000;

/// The settings of a Book. They are part of its state, so that every replica has the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// How long a lease is remembered once it is resolved, in milliseconds.
    pub retention_ms: u64,
    /// How far the time in a lease may be ahead of the wall time of its command, in milliseconds.
    pub lease_ahead_ms: u64,
    /// The most leases that are remembered at once, resolved ones included.
    pub leases_max: u32,
    /// The most writers, each counted once in every scope it writes to. They are never forgotten.
    pub clients_max: u32,
    /// When a denied caller should come back.
    pub hints: Hints,
}

/// When a denied caller should come back, while nobody can know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hints {
    /// Concurrency: after the first denial. It doubles with every further one.
    pub concurrency_base_ms: u64,
    /// Concurrency: at most.
    pub concurrency_max_ms: u64,
    /// Rolling: after the first denial, at least. It grows by half with every further one.
    pub rolling_base_ms: u64,
    /// Rolling: after the first denial, this part of the window: 10 is a tenth.
    pub rolling_window_part: u64,
    /// Rolling: at most.
    pub rolling_max_ms: u64,
    /// How much of a wait the random bits of the lease may take away, in percent.
    pub jitter_percent: u64,
    /// While a limit is decreasing.
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
    /// The nearest settings that can be kept: a retention of at most a year, as many leases and clients as can be told
    /// apart, a jitter of at most all, a part that can be divided by.
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
