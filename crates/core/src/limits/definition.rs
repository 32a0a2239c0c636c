//! What a limit is, as an operator writes it down.

use std::fmt;

use crate::id::{AccountName, AssetName, LimitKey, VaultName};

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
    /// How much may be held at once; at least 1, and 0 for a limit of kind `credit`, whose account has it.
    pub capacity: u64,
    /// What is counted, for people: `requests`, `tokens`.
    pub unit: String,
    /// What it is for, for people.
    pub description: String,
    /// What becomes of usage that no longer fits.
    pub overage: Overage,
}

/// How what is taken from a limit becomes free again.
#[derive(Clone, Debug, PartialEq, Eq)]
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
    /// What a lease takes is credit of an account, held until it says what it cost.
    Credit(CreditTerms),
}

/// Whose credit a limit of kind `credit` takes, and who is paid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreditTerms {
    /// How long a lease that never completes holds it.
    pub timeout_seconds: u32,
    /// The vault of both accounts.
    pub vault: VaultName,
    /// The account that pays.
    pub account: AccountName,
    /// What it pays with.
    pub asset: AssetName,
    /// The account that is paid.
    pub revenue: AccountName,
}

impl Kind {
    /// How long a reservation that nobody completes is held.
    #[must_use]
    pub const fn hold_seconds(&self) -> u32 {
        match self {
            Kind::Rolling { window_seconds } => *window_seconds,
            Kind::Concurrency { timeout_seconds } => *timeout_seconds,
            Kind::Credit(terms) => terms.timeout_seconds,
        }
    }

    /// Whether both are rolling, both concurrency, or both credit.
    #[must_use]
    pub const fn is_same_kind(&self, other: &Kind) -> bool {
        self.is_rolling() == other.is_rolling() && self.is_credit() == other.is_credit()
    }

    /// Whose credit it is, if it is credit.
    #[must_use]
    pub const fn terms(&self) -> Option<&CreditTerms> {
        match self {
            Kind::Credit(terms) => Some(terms),
            Kind::Rolling { .. } | Kind::Concurrency { .. } => None,
        }
    }

    pub(crate) const fn is_rolling(&self) -> bool {
        matches!(self, Kind::Rolling { .. })
    }

    pub(crate) const fn is_credit(&self) -> bool {
        matches!(self, Kind::Credit(_))
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
    /// A capacity where an account has it.
    #[error("capacity: found {found}, a limit of kind credit has none")]
    CapacityOfCredit {
        /// What was found.
        found: u64,
    },
    /// A window or timeout of zero, or beyond 366 days.
    #[error("{field}: found {found}, allowed are 1 to {HOLD_SECONDS_MAX} (366 days)")]
    HoldSeconds {
        /// Which of the two.
        field: HoldField,
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

/// The field that says how long a reservation is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HoldField {
    /// Of a rolling limit.
    WindowSeconds,
    /// Of every other limit.
    TimeoutSeconds,
}

impl fmt::Display for HoldField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            HoldField::WindowSeconds => "window_seconds",
            HoldField::TimeoutSeconds => "timeout_seconds",
        })
    }
}

impl Definition {
    /// Whether every field is within its bounds.
    ///
    /// # Errors
    /// The first field that is not, in the order of the fields here.
    pub fn validate(&self) -> Result<(), DefinitionError> {
        match (self.kind.is_credit(), self.capacity) {
            (false, 0) => return Err(DefinitionError::CapacityZero),
            (false, _) | (true, 0) => {}
            (true, found) => return Err(DefinitionError::CapacityOfCredit { found }),
        }
        let found = self.kind.hold_seconds();
        let field = if self.kind.is_rolling() { HoldField::WindowSeconds } else { HoldField::TimeoutSeconds };
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
