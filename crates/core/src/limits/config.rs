//! The settings of a Book.

use std::ops::RangeInclusive;

use super::LIMITS_MAX;
use super::index::REFERENCES_MAX;

/// The longest retention: 366 days.
const RETENTION_MS_MAX: u64 = 366 * 24 * 60 * 60 * 1_000;
/// The longest hint that can be configured: 1 hour. A client that trusts a longer one seems to hang.
const HINT_MS_MAX: u64 = 60 * 60 * 1_000;
/// The highest divisor of a window that can be configured: a millionth of a window.
const WINDOW_PART_MAX: u64 = 1_000_000;

/// The settings of a Book. They are part of the replicated state, so that every replica decides alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// How long a resolved lease is remembered, in milliseconds.
    pub retention_ms: u64,
    /// How far a lease's ULID time may be ahead of the wall time of its command, in milliseconds.
    pub lease_ahead_ms: u64,
    /// The maximum number of lease records, tombstones included. Beyond it reserves get `overloaded`.
    pub leases_max: u32,
    /// The maximum number of limits, defined and derived together; deleted ones count until they are freed.
    pub limits_max: u32,
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
            limits_max: 10_000_000,
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
            limits_max: self.limits_max.min(LIMITS_MAX),
            clients_max: self.clients_max.min(REFERENCES_MAX),
            hints,
        }
    }
}

/// A setting that [`Command::Configure`](crate::Command::Configure) can change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Setting {
    /// [`Config::retention_ms`].
    RetentionMs = 1,
    /// [`Config::leases_max`].
    LeasesMax = 2,
    /// [`Hints::concurrency_base_ms`].
    HintConcurrencyBaseMs = 3,
    /// [`Hints::concurrency_max_ms`].
    HintConcurrencyMaxMs = 4,
    /// [`Hints::rolling_base_ms`].
    HintRollingBaseMs = 5,
    /// [`Hints::rolling_window_part`].
    HintRollingWindowPart = 6,
    /// [`Hints::rolling_max_ms`].
    HintRollingMaxMs = 7,
    /// [`Hints::jitter_percent`].
    HintJitterPercent = 8,
    /// [`Hints::decreasing_ms`].
    HintDecreasingMs = 9,
    /// [`Config::limits_max`].
    LimitsMax = 10,
}

impl Setting {
    /// All settings, in the order of their codes.
    pub const ALL: [Setting; 10] = [
        Setting::RetentionMs,
        Setting::LeasesMax,
        Setting::HintConcurrencyBaseMs,
        Setting::HintConcurrencyMaxMs,
        Setting::HintRollingBaseMs,
        Setting::HintRollingWindowPart,
        Setting::HintRollingMaxMs,
        Setting::HintJitterPercent,
        Setting::HintDecreasingMs,
        Setting::LimitsMax,
    ];

    /// The name in answers and logs.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Setting::RetentionMs => "retention_ms",
            Setting::LeasesMax => "leases_max",
            Setting::HintConcurrencyBaseMs => "hint_concurrency_base_ms",
            Setting::HintConcurrencyMaxMs => "hint_concurrency_max_ms",
            Setting::HintRollingBaseMs => "hint_rolling_base_ms",
            Setting::HintRollingWindowPart => "hint_rolling_window_part",
            Setting::HintRollingMaxMs => "hint_rolling_max_ms",
            Setting::HintJitterPercent => "hint_jitter_percent",
            Setting::HintDecreasingMs => "hint_decreasing_ms",
            Setting::LimitsMax => "limits_max",
        }
    }

    /// The values that can be configured.
    #[must_use]
    pub fn allowed(self) -> RangeInclusive<u64> {
        match self {
            Setting::RetentionMs => 0..=RETENTION_MS_MAX,
            Setting::LeasesMax => 1..=REFERENCES_MAX as u64,
            Setting::LimitsMax => 1..=LIMITS_MAX as u64,
            Setting::HintRollingWindowPart => 1..=WINDOW_PART_MAX,
            Setting::HintJitterPercent => 0..=100,
            Setting::HintConcurrencyBaseMs
            | Setting::HintConcurrencyMaxMs
            | Setting::HintRollingBaseMs
            | Setting::HintRollingMaxMs
            | Setting::HintDecreasingMs => 1..=HINT_MS_MAX,
        }
    }
}

/// A new value of a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SettingChange {
    /// The setting.
    pub setting: Setting,
    /// Its new value.
    pub value: u64,
}

impl SettingChange {
    /// Whether the value is in the allowed range.
    #[must_use]
    pub fn is_allowed(&self) -> bool {
        self.setting.allowed().contains(&self.value)
    }
}

impl Config {
    /// The value of a setting.
    #[must_use]
    pub fn get(&self, setting: Setting) -> u64 {
        match setting {
            Setting::RetentionMs => self.retention_ms,
            Setting::LeasesMax => self.leases_max.into(),
            Setting::HintConcurrencyBaseMs => self.hints.concurrency_base_ms,
            Setting::HintConcurrencyMaxMs => self.hints.concurrency_max_ms,
            Setting::HintRollingBaseMs => self.hints.rolling_base_ms,
            Setting::HintRollingWindowPart => self.hints.rolling_window_part,
            Setting::HintRollingMaxMs => self.hints.rolling_max_ms,
            Setting::HintJitterPercent => self.hints.jitter_percent,
            Setting::HintDecreasingMs => self.hints.decreasing_ms,
            Setting::LimitsMax => self.limits_max.into(),
        }
    }

    /// The settings after these changes.
    #[must_use]
    pub fn with(mut self, changes: &[SettingChange]) -> Config {
        for SettingChange { setting, value } in changes {
            let field = match setting {
                Setting::RetentionMs => &mut self.retention_ms,
                Setting::LeasesMax => {
                    self.leases_max = u32::try_from(*value).unwrap_or(u32::MAX);
                    continue;
                }
                Setting::LimitsMax => {
                    self.limits_max = u32::try_from(*value).unwrap_or(u32::MAX);
                    continue;
                }
                Setting::HintConcurrencyBaseMs => &mut self.hints.concurrency_base_ms,
                Setting::HintConcurrencyMaxMs => &mut self.hints.concurrency_max_ms,
                Setting::HintRollingBaseMs => &mut self.hints.rolling_base_ms,
                Setting::HintRollingWindowPart => &mut self.hints.rolling_window_part,
                Setting::HintRollingMaxMs => &mut self.hints.rolling_max_ms,
                Setting::HintJitterPercent => &mut self.hints.jitter_percent,
                Setting::HintDecreasingMs => &mut self.hints.decreasing_ms,
            };
            *field = *value;
        }
        self.bounded()
    }
}
