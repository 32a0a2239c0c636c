//! The definition of a limit, as an operator writes it.

use std::fmt;

use crate::id::{AccountName, AssetName, LimitKey, VaultName};

/// The longest window or timeout, in seconds: 366 days.
pub const HOLD_SECONDS_MAX: u32 = 366 * 24 * 60 * 60;
/// The longest unit, in bytes.
pub const UNIT_BYTES_MAX: usize = 64;
/// The longest description, in bytes.
pub const DESCRIPTION_BYTES_MAX: usize = 1_024;

/// The definition of a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Definition {
    /// The name within the namespace.
    pub key: LimitKey,
    /// The kind: when reserved capacity becomes free again.
    pub kind: Kind,
    /// The capacity; at least 1. For a credit limit 0, since the account's balance is the capacity.
    pub capacity: u64,
    /// The unit for display: `requests`, `tokens`.
    pub unit: String,
    /// A description for display.
    pub description: String,
    /// The treatment of usage beyond the reservation.
    pub overage: Overage,
}

/// When reserved capacity becomes free again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One window after it was reserved.
    Rolling {
        /// The window.
        window_seconds: u32,
    },
    /// When the lease completes, at the latest after the timeout.
    Concurrency {
        /// How long a lease that never completes holds it.
        timeout_seconds: u32,
    },
    /// The lease holds credit of an account until it settles the cost.
    Credit(CreditTerms),
}

/// The accounts and asset of a credit limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreditTerms {
    /// How long a lease that never completes holds the credit.
    pub timeout_seconds: u32,
    /// The vault of both accounts.
    pub vault: VaultName,
    /// The account that pays.
    pub account: AccountName,
    /// The asset to pay with.
    pub asset: AssetName,
    /// The account that receives the payment.
    pub revenue: AccountName,
}

impl Kind {
    /// How long a reservation is held if the lease never completes.
    #[must_use]
    pub const fn hold_seconds(&self) -> u32 {
        match self {
            Kind::Rolling { window_seconds } => *window_seconds,
            Kind::Concurrency { timeout_seconds } => *timeout_seconds,
            Kind::Credit(terms) => terms.timeout_seconds,
        }
    }

    /// Whether both are of the same kind.
    #[must_use]
    pub const fn is_same_kind(&self, other: &Kind) -> bool {
        self.is_rolling() == other.is_rolling() && self.is_credit() == other.is_credit()
    }

    /// The terms of a credit limit.
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

/// The treatment of usage beyond the reservation when it does not fit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Overage {
    /// Record it as debt of the limit.
    #[default]
    Debt = 1,
    /// Report it in the outcome only.
    Deny = 2,
}

/// Why a definition is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DefinitionError {
    /// The capacity is 0.
    #[error("capacity: found 0, allowed are integers from 1 on")]
    CapacityZero,
    /// A credit limit has a capacity.
    #[error("capacity: found {found}, a limit of kind credit has none")]
    CapacityOfCredit {
        /// The capacity found.
        found: u64,
    },
    /// A window or timeout of 0 or above 366 days.
    #[error("{field}: found {found}, allowed are 1 to {HOLD_SECONDS_MAX} (366 days)")]
    HoldSeconds {
        /// Which field.
        field: HoldField,
        /// The value found.
        found: u32,
    },
    /// The unit is too long.
    #[error("unit: found {found} bytes, allowed are up to {UNIT_BYTES_MAX}")]
    UnitTooLong {
        /// Its length in bytes.
        found: usize,
    },
    /// The description is too long.
    #[error("description: found {found} bytes, allowed are up to {DESCRIPTION_BYTES_MAX}")]
    DescriptionTooLong {
        /// Its length in bytes.
        found: usize,
    },
}

/// The field that holds the window or timeout.
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
    /// A limit without unit and description whose overage becomes debt.
    #[must_use]
    pub fn new(key: LimitKey, kind: Kind, capacity: u64) -> Definition {
        Definition { key, kind, capacity, unit: String::new(), description: String::new(), overage: Overage::Debt }
    }

    /// Checks that every field is within its bounds.
    ///
    /// # Errors
    /// The first field out of bounds, in declaration order.
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
