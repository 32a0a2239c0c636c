//! What a limit is, as an operator writes it down.

use crate::id::LimitKey;

/// The longest window or timeout: 366 days.
pub const HOLD_SECONDS_MAX: u32 = 366 * 24 * 60 * 60;
/// The longest unit, in bytes.
pub const UNIT_BYTES_MAX: usize = 64;
/// The longest description, in bytes.
pub const DESCRIPTION_BYTES_MAX: usize = 1_024;

/// A named capacity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Definition {
    /// Its name within the namespace.
    pub key: LimitKey,
    /// How what is taken becomes free again.
    pub kind: Kind,
    /// How much may be held at once; at least 1.
    pub capacity: u64,
    /// What is counted, for people: `requests`, `tokens`.
    pub unit: String,
    /// What it is for, for people.
    pub description: String,
    /// What becomes of usage that no longer fits.
    pub overage: Overage,
}

/// How what is taken from a limit becomes free again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Exactly one window after it was taken.
    Rolling {
        /// The window.
        window_seconds: u32,
    },
    /// When its lease completes, at the latest after the timeout.
    Concurrency {
        /// How long a lease that never completes holds it.
        timeout_seconds: u32,
    },
}

impl Kind {
    /// How long a reservation that nobody completes is held.
    #[must_use]
    pub const fn hold_seconds(self) -> u32 {
        match self {
            Kind::Rolling { window_seconds } => window_seconds,
            Kind::Concurrency { timeout_seconds } => timeout_seconds,
        }
    }

    /// Whether both are rolling, or both concurrency.
    #[must_use]
    pub const fn is_same_kind(self, other: Kind) -> bool {
        self.is_rolling() == other.is_rolling()
    }

    pub(crate) const fn is_rolling(self) -> bool {
        matches!(self, Kind::Rolling { .. })
    }
}

/// What becomes of usage beyond what was reserved, when it no longer fits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Overage {
    /// It is recorded as the limit's debt.
    #[default]
    Debt = 1,
    /// It is reported in the outcome and nowhere else.
    Deny = 2,
}

/// Why a definition is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DefinitionError {
    /// A limit of nothing.
    #[error("capacity: found 0, allowed are integers from 1 on")]
    CapacityZero,
    /// A window or timeout of zero, or beyond 366 days.
    #[error("{field}: found {found}, allowed are 1 to {HOLD_SECONDS_MAX} (366 days)")]
    HoldSeconds {
        /// `window_seconds` or `timeout_seconds`.
        field: &'static str,
        /// What was found.
        found: u32,
    },
    /// A unit that is too long.
    #[error("unit: found {found} bytes, allowed are up to {UNIT_BYTES_MAX}")]
    UnitTooLong {
        /// Its length.
        found: usize,
    },
    /// A description that is too long.
    #[error("description: found {found} bytes, allowed are up to {DESCRIPTION_BYTES_MAX}")]
    DescriptionTooLong {
        /// Its length.
        found: usize,
    },
}

impl Definition {
    /// Whether every field is within its bounds.
    ///
    /// # Errors
    /// The first field that is not, in the order of the fields here.
    pub fn validate(&self) -> Result<(), DefinitionError> {
        if self.capacity == 0 {
            return Err(DefinitionError::CapacityZero);
        }
        let (field, found) = match self.kind {
            Kind::Rolling { window_seconds } => ("window_seconds", window_seconds),
            Kind::Concurrency { timeout_seconds } => ("timeout_seconds", timeout_seconds),
        };
        if found == 0 || found > HOLD_SECONDS_MAX {
            return Err(DefinitionError::HoldSeconds { field, found });
        }
        if self.unit.len() > UNIT_BYTES_MAX {
            return Err(DefinitionError::UnitTooLong { found: self.unit.len() });
        }
        if self.description.len() > DESCRIPTION_BYTES_MAX {
            return Err(DefinitionError::DescriptionTooLong { found: self.description.len() });
        }
        Ok(())
    }
}
