//! The definition of a limit, which `earmark_admission` parses.

use earmark_core::{DESCRIPTION_BYTES_MAX, HOLD_SECONDS_MAX, UNIT_BYTES_MAX, UTC_OFFSET_MINUTES};

use super::{ACCOUNT, ASSET, Field, LIMIT_KEY, Name, Shape, TEMPLATE_ACCOUNT, TEMPLATE_KEY, VAULT};

const AMOUNT: Shape = Shape::Integer { min: 1, max: u64::MAX };
const UTC_OFFSET: Shape =
    Shape::Signed { min: *UTC_OFFSET_MINUTES.start() as i64, max: *UTC_OFFSET_MINUTES.end() as i64 };
const HOLD_SECONDS: Shape = Shape::Integer { min: 1, max: HOLD_SECONDS_MAX as u64 };

const fn needed(name: &'static str, shape: Shape, about: &'static str) -> Field {
    Field { name, shape, is_required: true, about }
}

const fn optional(name: &'static str, shape: Shape, about: &'static str) -> Field {
    Field { name, shape, is_required: false, about }
}

/// The fields of all kinds of limits.
pub(in crate::http) static DEFINITION_FIELDS: &[Field] = &fields(&LIMIT_KEY, &ACCOUNT);

/// The fields of all kinds of templates.
pub(in crate::http) static TEMPLATE_FIELDS: &[Field] = &fields(&TEMPLATE_KEY, &TEMPLATE_ACCOUNT);

const fn fields(key: &'static Name, account: &'static Name) -> [Field; 17] {
    [
        needed("key", Shape::Name(key), "The key of the limit."),
        needed(
            "kind",
            Shape::Choice(&["rolling", "concurrency", "calendar", "credit"]),
            "How reserved capacity becomes free again.",
        ),
        optional("capacity", AMOUNT, "All but credit: how much may be reserved at once."),
        optional("window_seconds", HOLD_SECONDS, "Rolling: seconds until reserved capacity is free again."),
        optional(
            "timeout_seconds",
            HOLD_SECONDS,
            "Concurrency and credit: seconds until a lease without a complete times out.",
        ),
        optional(
            "period",
            Shape::Choice(&["hour", "day", "week", "month"]),
            "Calendar: the period at whose end reserved capacity is free again; weeks begin on Monday.",
        ),
        optional(
            "utc_offset_minutes",
            UTC_OFFSET,
            "Calendar: minutes by which local time is ahead of UTC; by default 0. Without daylight saving.",
        ),
        optional("vault", Shape::Name(&VAULT), "Credit: the vault of its accounts."),
        optional("account", Shape::Name(account), "Credit: the account that pays."),
        optional("asset", Shape::Name(&ASSET), "Credit: the asset."),
        optional("revenue", Shape::Name(&ACCOUNT), "Credit: the account that is paid; by default `revenue`."),
        optional(
            "on_timeout",
            Shape::Choice(&["release", "charge"]),
            "Credit: what becomes of a hold that times out. The usage that extensions reported is charged and the rest \
             released (default), or all of it is charged.",
        ),
        optional("unit", Shape::Text { bytes_max: UNIT_BYTES_MAX }, "The unit, for people."),
        optional("description", Shape::Text { bytes_max: DESCRIPTION_BYTES_MAX }, "The purpose, for people."),
        optional(
            "overage",
            Shape::Choice(&["debt", "deny"]),
            "Usage beyond the reservation that does not fit: recorded as debt (default), or only counted in metrics.",
        ),
        optional(
            "shared",
            Shape::Boolean,
            "Whether other namespaces may reserve it; by default false. Not for credit.",
        ),
        optional(
            "enforce",
            Shape::Boolean,
            "Whether it denies; by default true. If false it only counts. Not for credit.",
        ),
    ]
}

/// A kind of limit.
pub(in crate::http) struct LimitKind {
    pub(in crate::http) name: &'static str,
    /// Required fields besides the key.
    pub(in crate::http) needs: &'static [&'static str],
    /// Fields that it must not have.
    pub(in crate::http) lacks: &'static [&'static str],
}

/// All kinds of limits.
pub(in crate::http) static LIMIT_KINDS: [LimitKind; 4] = [
    LimitKind {
        name: "rolling",
        needs: &["capacity", "window_seconds"],
        lacks: &[
            "timeout_seconds",
            "period",
            "utc_offset_minutes",
            "vault",
            "account",
            "asset",
            "revenue",
            "on_timeout",
        ],
    },
    LimitKind {
        name: "concurrency",
        needs: &["capacity", "timeout_seconds"],
        lacks: &[
            "window_seconds",
            "period",
            "utc_offset_minutes",
            "vault",
            "account",
            "asset",
            "revenue",
            "on_timeout",
        ],
    },
    LimitKind {
        name: "calendar",
        needs: &["capacity", "period"],
        lacks: &["window_seconds", "timeout_seconds", "vault", "account", "asset", "revenue", "on_timeout"],
    },
    LimitKind {
        name: "credit",
        needs: &["timeout_seconds", "vault", "account", "asset"],
        lacks: &["capacity", "window_seconds", "period", "utc_offset_minutes"],
    },
];
