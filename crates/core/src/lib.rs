//! The Book: one deterministic state machine for limits, leases, credit and sequenced writes.
//!
//! [`Book::apply`] takes a time and a [`Command`] and returns an [`Outcome`]. It has no clock, no randomness, no I/O
//! and no async: time and ids come with the command, so that a log of commands gives the same Book wherever it is
//! applied.
//!
//! ```
//! use earmark_core::*;
//!
//! let mut book = Book::new(Config::default(), 0);
//! let now = UnixMs::new(1_700_000_000_000);
//! let rpm = Definition {
//!     key: "openai:gpt-4o:rpm".parse()?,
//!     kind: Kind::Rolling { window_seconds: 60 },
//!     capacity: 1,
//!     unit: "requests".into(),
//!     description: String::new(),
//!     overage: Overage::Debt, shared: false, enforce: true,
//! };
//! let namespace = NamespaceId::DEFAULT;
//! book.apply(now, Command::PutLimit(PutLimit { namespace, definition: &rpm, expected_revision: None }));
//!
//! let requirements = [Part { limit: LimitRef::Key(rpm.key.clone()), amount: 1 }];
//! let mut reserve = |number, now| {
//!     let lease = LeaseId::from_parts(now, number);
//!     let reserve = Reserve { namespace, lease, job: None, call: None, by_gateway: false, requirements: &requirements };
//!     book.apply(now, Command::Reserve(reserve))
//! };
//! assert!(matches!(reserve(1, now), Outcome::Reserve(ReserveOutcome::Created { .. })));
//! assert!(matches!(reserve(2, now), Outcome::Reserve(ReserveOutcome::Denied(_))));
//! let later = now.plus_ms(60_000);
//! assert!(matches!(reserve(3, later), Outcome::Reserve(ReserveOutcome::Created { reserved_at, .. }) if reserved_at == later));
//! # Ok::<(), NameError>(())
//! ```

#![cfg_attr(test, allow(clippy::arithmetic_side_effects, reason = "a test that overflows fails"))]

mod book;
pub mod credits;
mod hash;
mod id;
mod idempotency;
mod keys;
mod limits;
mod policies;
mod quota;
mod sequence;
mod snapshot;
mod time;
mod wire;

pub use book::*;
pub use credits::{
    ACCOUNTS_MAX, ASSETS_MAX, AccountId, AccountInfo, AccountStatus, AssetId, AssetTotals, BalanceInfo, CarryOver,
    EXPIRY_SKEW_MS_MAX, GRANTS_MAX, GrantInfo, GrantTerms, Overdraft, PRIORITY_DEFAULT, Plan, PlanInfo, PlanPeriod,
    SETTLE_LABEL_NAME_BYTES_MAX, SETTLE_LABEL_VALUE_BYTES_MAX, SETTLE_LABELS_MAX, SettleLabels, VAULTS_MAX,
    parse_credit,
};
pub use id::*;
pub use idempotency::{IDEMPOTENCY_KEYS_MAX, KEY_RESULTS_MAX, KEY_RESULTS_MS};
pub use keys::{
    ATTRIBUTE_NAME_BYTES_MAX, ATTRIBUTE_VALUE_BYTES_MAX, ATTRIBUTES_MAX, ClientClaim, ClientOwner, CreateKey,
    KEY_ATTRIBUTE, KEY_SECONDS_MAX, KEYS_MAX, KeyInfo, KeyNumber, LabelError, Labels, MaySet, Principal, RevokeKey,
    Role, RoleError, SecretHash, check_attribute_name, check_attribute_value, quoted,
};
pub use limits::{
    Config, CreditTerms, DESCRIPTION_BYTES_MAX, Definition, DefinitionError, HOLD_SECONDS_MAX, Hints, HoldField, Kind,
    KindTag, LIMITS_MAX, LeaseInfo, LeaseState, LimitInfo, LimitUsage, NAMESPACES_MAX, NEVER_RETRY_MS, NameField,
    OnTimeout, Overage, PAUSE_MS_MAX, PAUSE_REASON_BYTES_MAX, PAUSES_MAX, PAUSES_NAMESPACE_MAX, Pause, Period, Setting,
    SettingChange, TEMPLATES_MAX, TIME_MAX, Template, TemplateError, TemplateInfo, TimedOut, TimeoutScan, Totals,
    UNIT_BYTES_MAX, UTC_OFFSET_MINUTES, Usage, UsageSort,
};
pub use policies::{POLICY_BYTES_MAX, POLICY_REVISIONS_MAX, PolicyOutcome, PolicyRevision, PutPolicy};
pub use quota::{JOURNAL_BYTES_PER_DAY, QUOTA_MAX, QuotaKind, QuotaUsage, QuotasOutcome, SetQuotas};
pub use sequence::{RESULTS_MAX, RESULTS_MS};
pub use snapshot::{
    Encoded, Frozen, FrozenAccount, FrozenAsset, FrozenVault, Restore, SNAPSHOT_VERSION, SnapshotError,
};
pub use time::{Moment, UnixMs};
