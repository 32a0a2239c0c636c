//! Time stamps. The Book has no clock: every time comes with a command.

use std::fmt;

/// Milliseconds since the Unix epoch in 48 bits, as in a ULID: up to the year 10889.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnixMs(u64);

impl UnixMs {
    /// The latest time. Later ones are clamped to it.
    pub const MAX: UnixMs = UnixMs((1 << 48) - 1);

    /// The time `ms` milliseconds after the epoch.
    #[must_use]
    pub const fn new(ms: u64) -> UnixMs {
        if ms > UnixMs::MAX.0 { UnixMs::MAX } else { UnixMs(ms) }
    }

    /// Milliseconds since the epoch.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The beginning of the second of this time.
    #[must_use]
    pub const fn second(self) -> UnixMs {
        UnixMs(self.0.saturating_sub(self.0 % 1_000))
    }

    /// This time plus `ms`.
    #[must_use]
    pub const fn plus_ms(self, ms: u64) -> UnixMs {
        UnixMs::new(self.0.saturating_add(ms))
    }

    /// This time minus `ms`, at the earliest the epoch.
    #[must_use]
    pub const fn minus_ms(self, ms: u64) -> UnixMs {
        UnixMs(self.0.saturating_sub(ms))
    }

    /// Milliseconds since `earlier`; 0 if `earlier` is not earlier.
    #[must_use]
    pub const fn ms_since(self, earlier: UnixMs) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// The time of a command, by both clocks of the leader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Moment {
    /// Log time, which decides when something expires. It never runs backwards.
    pub log: UnixMs,
    /// Wall-clock time, which an operator may set. It judges the age of leases and is shown in records of money.
    pub wall: UnixMs,
}

/// A moment at which both clocks agree, for tests and tools without a clock of their own.
impl From<UnixMs> for Moment {
    fn from(time: UnixMs) -> Moment {
        Moment { log: time, wall: time }
    }
}

impl fmt::Display for UnixMs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ms", self.0)
    }
}

/// Milliseconds in `seconds`.
pub(crate) const fn seconds_to_ms(seconds: u32) -> u64 {
    (seconds as u64).saturating_mul(1_000)
}
