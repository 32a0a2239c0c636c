//! The definition of a limit, as an operator writes it.

use std::fmt;
use std::ops::RangeInclusive;

use super::calendar::Calendar;
use crate::id::{AccountName, AssetName, LimitKey, VaultName, pattern};
use crate::time::UnixMs;

/// The longest window or timeout, in seconds: 366 days.
pub const HOLD_SECONDS_MAX: u32 = 366 * 24 * 60 * 60;
/// The longest unit, in bytes.
pub const UNIT_BYTES_MAX: usize = 64;
/// The offsets from UTC that are in use on Earth, in minutes: -12 to +14 hours.
pub const UTC_OFFSET_MINUTES: RangeInclusive<i16> = -720..=840;
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
    /// Whether other namespaces may reserve it; never for a credit limit.
    pub shared: bool,
    /// Whether it denies. A limit that does not only counts; always true for a credit limit.
    pub enforce: bool,
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
    /// At the end of the calendar period in which it was reserved.
    Calendar {
        /// The period.
        period: Period,
        /// How far local time is ahead of UTC, in minutes; -720 to 840. Fixed: there is no daylight saving.
        utc_offset_minutes: i16,
    },
    /// The lease holds credit of an account until it settles the cost.
    Credit(CreditTerms),
}

/// The period of a calendar limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Period {
    /// From minute 0 to minute 0.
    Hour = 1,
    /// From midnight to midnight.
    Day = 2,
    /// From Monday to Monday, at midnight.
    Week = 3,
    /// From the first day of a month to the first day of the next, at midnight.
    Month = 4,
}

impl Period {
    /// All periods, the shortest first.
    pub const ALL: [Period; 4] = [Period::Hour, Period::Day, Period::Week, Period::Month];

    /// The longest duration, in seconds.
    #[must_use]
    pub const fn seconds_max(self) -> u32 {
        match self {
            Period::Hour => 60 * 60,
            Period::Day => 24 * 60 * 60,
            Period::Week => 7 * 24 * 60 * 60,
            Period::Month => 31 * 24 * 60 * 60,
        }
    }

    /// Half of the shortest duration, in milliseconds.
    pub(crate) fn half_ms(self) -> u64 {
        let seconds = match self {
            Period::Hour | Period::Day | Period::Week => self.seconds_max(),
            Period::Month => 28 * 24 * 60 * 60,
        };
        u64::from(seconds).saturating_mul(500)
    }

    /// The name in definitions.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Period::Hour => "hour",
            Period::Day => "day",
            Period::Week => "week",
            Period::Month => "month",
        }
    }

    /// The period with this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Period> {
        Period::ALL.into_iter().find(|period| period.as_str() == name)
    }
}

impl fmt::Display for Period {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
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
    /// The rule for a hold that times out.
    pub on_timeout: OnTimeout,
}

/// The rule for a hold whose lease neither completes nor is renewed in time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum OnTimeout {
    /// The usage that extensions reported is charged, and the rest returns to its owner.
    #[default]
    Release = 1,
    /// All of it is charged.
    Charge = 2,
}

impl OnTimeout {
    /// All values.
    pub const ALL: [OnTimeout; 2] = [OnTimeout::Release, OnTimeout::Charge];

    /// The name in definitions.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            OnTimeout::Release => "release",
            OnTimeout::Charge => "charge",
        }
    }

    /// The value with this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<OnTimeout> {
        OnTimeout::ALL.into_iter().find(|value| value.name() == name)
    }
}

impl CreditTerms {
    /// Stands for terms that only the template of a limit has.
    pub(crate) fn of_template(timeout_seconds: u32, on_timeout: OnTimeout) -> Option<CreditTerms> {
        Some(CreditTerms {
            timeout_seconds,
            vault: VaultName::new(VaultName::MAIN).ok()?,
            account: AccountName::new(AccountName::REVENUE).ok()?,
            asset: AssetName::new("template").ok()?,
            revenue: AccountName::new(AccountName::REVENUE).ok()?,
            on_timeout,
        })
    }
}

impl Kind {
    /// How long a reservation is held if the lease never completes; for a calendar limit the longest period.
    #[must_use]
    pub const fn hold_seconds(&self) -> u32 {
        match self {
            Kind::Rolling { window_seconds } => *window_seconds,
            Kind::Concurrency { timeout_seconds } => *timeout_seconds,
            Kind::Calendar { period, .. } => period.seconds_max(),
            Kind::Credit(terms) => terms.timeout_seconds,
        }
    }

    /// The end of the period of a calendar limit that contains `at`; `None` for other kinds.
    #[must_use]
    pub fn period_end(&self, at: UnixMs) -> Option<UnixMs> {
        match *self {
            Kind::Calendar { period, utc_offset_minutes } => Some(Calendar { period, utc_offset_minutes }.end(at)),
            Kind::Rolling { .. } | Kind::Concurrency { .. } | Kind::Credit(_) => None,
        }
    }

    /// The kind without its terms.
    #[must_use]
    pub const fn tag(&self) -> KindTag {
        match self {
            Kind::Rolling { .. } => KindTag::Rolling,
            Kind::Concurrency { .. } => KindTag::Concurrency,
            Kind::Credit(_) => KindTag::Credit,
            Kind::Calendar { .. } => KindTag::Calendar,
        }
    }

    /// Whether both are of the same kind.
    #[must_use]
    pub const fn is_same_kind(&self, other: &Kind) -> bool {
        matches!(
            (self, other),
            (Kind::Rolling { .. }, Kind::Rolling { .. })
                | (Kind::Concurrency { .. }, Kind::Concurrency { .. })
                | (Kind::Calendar { .. }, Kind::Calendar { .. })
                | (Kind::Credit(_), Kind::Credit(_))
        )
    }

    /// The terms of a credit limit.
    #[must_use]
    pub const fn terms(&self) -> Option<&CreditTerms> {
        match self {
            Kind::Credit(terms) => Some(terms),
            Kind::Rolling { .. } | Kind::Concurrency { .. } | Kind::Calendar { .. } => None,
        }
    }

    pub(crate) const fn is_rolling(&self) -> bool {
        matches!(self, Kind::Rolling { .. })
    }

    pub(crate) const fn is_credit(&self) -> bool {
        matches!(self, Kind::Credit(_))
    }
}

/// A kind of limit without its terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KindTag {
    /// See [`Kind::Rolling`].
    Rolling,
    /// See [`Kind::Concurrency`].
    Concurrency,
    /// See [`Kind::Credit`].
    Credit,
    /// See [`Kind::Calendar`].
    Calendar,
}

impl KindTag {
    /// The name of the kind, as in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            KindTag::Rolling => "rolling",
            KindTag::Concurrency => "concurrency",
            KindTag::Credit => "credit",
            KindTag::Calendar => "calendar",
        }
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
    /// The key or account has placeholders, which only a template may have.
    #[error("{field}: found a placeholder, allowed only in a template")]
    Placeholder {
        /// Which field.
        field: NameField,
    },
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
    /// The offset of a calendar limit is out of range.
    #[error(
        "utc_offset_minutes: found {found}, allowed are {} to {}",
        UTC_OFFSET_MINUTES.start(),
        UTC_OFFSET_MINUTES.end()
    )]
    UtcOffset {
        /// The offset found.
        found: i16,
    },
    /// A credit limit is shared.
    #[error("shared: found true, allowed is false for a limit of kind credit")]
    SharedCredit,
    /// A credit limit is not enforced.
    #[error("enforce: found false, allowed is true for a limit of kind credit")]
    ShadowCredit,
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

/// A field that has placeholders in a template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameField {
    /// The key.
    Key,
    /// The account of a credit limit.
    Account,
}

impl fmt::Display for NameField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NameField::Key => "key",
            NameField::Account => "account",
        })
    }
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
    /// A limit without unit and description whose overage becomes debt. It is enforced and not shared.
    #[must_use]
    pub fn new(key: LimitKey, kind: Kind, capacity: u64) -> Definition {
        Definition {
            key,
            kind,
            capacity,
            unit: String::new(),
            description: String::new(),
            overage: Overage::Debt,
            shared: false,
            enforce: true,
        }
    }

    /// Checks that every field is within its bounds.
    ///
    /// # Errors
    /// The first field out of bounds, in declaration order.
    pub fn validate(&self) -> Result<(), DefinitionError> {
        let account = self.kind.terms().map(|terms| &terms.account);
        if self.key.has_placeholders() {
            return Err(DefinitionError::Placeholder { field: NameField::Key });
        }
        if account.is_some_and(|account| pattern::has_placeholder(account.as_str())) {
            return Err(DefinitionError::Placeholder { field: NameField::Account });
        }
        self.validate_values()
    }

    /// Checks every field but the names.
    pub(crate) fn validate_values(&self) -> Result<(), DefinitionError> {
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
        if let Kind::Calendar { utc_offset_minutes: found, .. } = self.kind
            && !UTC_OFFSET_MINUTES.contains(&found)
        {
            return Err(DefinitionError::UtcOffset { found });
        }
        if self.unit.len() > UNIT_BYTES_MAX {
            return Err(DefinitionError::UnitTooLong { found: self.unit.len() });
        }
        if self.description.len() > DESCRIPTION_BYTES_MAX {
            return Err(DefinitionError::DescriptionTooLong { found: self.description.len() });
        }
        match (self.kind.is_credit(), self.shared, self.enforce) {
            (true, true, _) => return Err(DefinitionError::SharedCredit),
            (true, false, false) => return Err(DefinitionError::ShadowCredit),
            (true, false, true) | (false, ..) => {}
        }
        Ok(())
    }
}
