//! The bodies of the requests.

use earmark_admission::BATCH_MAX;
use earmark_core::{
    DESCRIPTION_BYTES_MAX, HOLD_SECONDS_MAX, KEY_SECONDS_MAX, REQUIREMENTS_MAX, UNIT_BYTES_MAX,
};

use super::{
    ACCOUNT, ASSET, BACKUP_NAME, CLIENT, Field, JOB_ID, KEY_NAME, LIMIT_KEY, NAMESPACE, Shape, VAULT,
};

const AMOUNT: Shape = Shape::Integer { min: 1, max: u64::MAX };
const ACTUAL_AMOUNT: Shape = Shape::Integer { min: 0, max: u64::MAX };
const HOLD_SECONDS: Shape = Shape::Integer { min: 1, max: HOLD_SECONDS_MAX as u64 };

pub(super) const fn needed(name: &'static str, shape: Shape, about: &'static str) -> Field {
    Field { name, shape, is_required: true, about }
}

pub(super) const fn optional(name: &'static str, shape: Shape, about: &'static str) -> Field {
    Field { name, shape, is_required: false, about }
}

const LEASE_ID: Field = needed(
    "lease_id",
    Shape::Lease,
    "A ULID that the caller makes: one reserve attempt. New after a denial.",
);
const JOB: Field =
    optional("job_id", Shape::Name(&JOB_ID), "The work behind it, across attempts; for logs only.");

static REQUIREMENT: Shape = Shape::Object(&[
    needed("key", Shape::Name(&LIMIT_KEY), "The limit to take from."),
    needed("amount", AMOUNT, "How much to take."),
]);

static ACTUAL: Shape = Shape::Object(&[
    needed("key", Shape::Name(&LIMIT_KEY), "A limit that the lease took from; others are ignored."),
    needed("actual_amount", ACTUAL_AMOUNT, "How much was really used."),
]);

/// The body of `POST /v1/reserve`.
pub(in crate::http) static RESERVE: Shape = Shape::Object(&[
    LEASE_ID,
    JOB,
    needed(
        "requirements",
        Shape::List { item: &REQUIREMENT, min: 1, max: REQUIREMENTS_MAX },
        "What to take: all of it, or none. No key twice; their order does not matter.",
    ),
]);

/// The body of `POST /v1/complete`.
pub(in crate::http) static COMPLETE: Shape = Shape::Object(&[
    LEASE_ID,
    JOB,
    needed(
        "actuals",
        Shape::List { item: &ACTUAL, min: 0, max: REQUIREMENTS_MAX },
        "What was really used. No key twice. A rolling limit that is not named stays as reserved, and of a \
         credit limit all that is held is charged.",
    ),
]);

/// The body of `POST /v1/reserve/batch`.
pub(in crate::http) static RESERVE_BATCH: Shape = Shape::Object(&[needed(
    "requests",
    Shape::List { item: &RESERVE, min: 1, max: BATCH_MAX },
    "Reserves, each on its own.",
)]);

/// The body of `POST /v1/complete/batch`.
pub(in crate::http) static COMPLETE_BATCH: Shape = Shape::Object(&[needed(
    "requests",
    Shape::List { item: &COMPLETE, min: 1, max: BATCH_MAX },
    "Completes, each on its own.",
)]);

/// The body of `PUT /v1/admin/limits`.
pub(in crate::http) static DEFINITION: Shape = Shape::Limit;

/// The id of a node.
pub(in crate::http) const NODE_ID: Shape = Shape::Integer { min: 1, max: u64::MAX };

/// The longest address of a node, `host:port`.
const ADDRESS_BYTES_MAX: usize = 256;

/// The body of `POST /v1/admin/cluster/members`.
pub(in crate::http) static MEMBER: Shape = Shape::Object(&[
    needed("node_id", NODE_ID, "The node that is to become a member. It runs, and was told to join."),
    needed(
        "address",
        Shape::Text { bytes_max: ADDRESS_BYTES_MAX },
        "Where the other nodes reach it, `host:port`.",
    ),
]);

/// The body of `POST /v1/admin/cluster/backup`.
pub(in crate::http) static BACKUP: Shape = Shape::Object(&[optional(
    "name",
    Shape::Name(&BACKUP_NAME),
    "What it is called, and its folder with it. By default the time in UTC.",
)]);

/// The body of `POST /v1/admin/keys`.
pub(in crate::http) static KEY: Shape = Shape::Object(&[
    needed("name", Shape::Name(&KEY_NAME), "What people call it."),
    needed("role", Shape::Choice(&["admin", "writer", "caller", "reader"]), "What it may do."),
    optional("namespace", Shape::Name(&NAMESPACE), "Where; that of the caller if it is not given."),
    optional("client_id", Shape::Name(&CLIENT), "The one client it may write as; any if it is not given."),
    optional(
        "expires_in_seconds",
        Shape::Integer { min: 1, max: KEY_SECONDS_MAX as u64 },
        "For how long it is valid; for ever if it is not given.",
    ),
]);

/// The fields of all kinds of limit.
pub(in crate::http) static DEFINITION_FIELDS: &[Field] = &[
    needed("key", Shape::Name(&LIMIT_KEY), "Its name."),
    needed(
        "kind",
        Shape::Choice(&["rolling", "concurrency", "credit"]),
        "How what is taken becomes free again.",
    ),
    optional("capacity", AMOUNT, "Not of credit: how much may be held at once."),
    optional("window_seconds", HOLD_SECONDS, "Rolling only: what is taken is free again after so long."),
    optional("timeout_seconds", HOLD_SECONDS, "Not of rolling: how long a lease that never completes holds."),
    optional("vault", Shape::Name(&VAULT), "Credit only: where its accounts are."),
    optional("account", Shape::Name(&ACCOUNT), "Credit only: who pays."),
    optional("asset", Shape::Name(&ASSET), "Credit only: what is paid with."),
    optional(
        "revenue",
        Shape::Name(&ACCOUNT),
        "Credit only: who is paid what leases cost; `revenue` if it is not given.",
    ),
    optional(
        "unit",
        Shape::Text { bytes_max: UNIT_BYTES_MAX },
        "What is counted, for people. In bytes of UTF-8.",
    ),
    optional(
        "description",
        Shape::Text { bytes_max: DESCRIPTION_BYTES_MAX },
        "What it is for, for people. In bytes of UTF-8.",
    ),
    optional(
        "overage",
        Shape::Choice(&["debt", "deny"]),
        "Usage beyond what was reserved that does not fit: recorded as debt (default), or only counted in the metrics.",
    ),
];

/// What a kind of limit has.
pub(in crate::http) struct LimitKind {
    pub(in crate::http) name: &'static str,
    /// The fields that it needs besides its key.
    pub(in crate::http) needs: &'static [&'static str],
    /// The fields that it has not.
    pub(in crate::http) lacks: &'static [&'static str],
}

/// All kinds of limit.
pub(in crate::http) static LIMIT_KINDS: [LimitKind; 3] = [
    LimitKind {
        name: "rolling",
        needs: &["capacity", "window_seconds"],
        lacks: &["timeout_seconds", "vault", "account", "asset", "revenue"],
    },
    LimitKind {
        name: "concurrency",
        needs: &["capacity", "timeout_seconds"],
        lacks: &["window_seconds", "vault", "account", "asset", "revenue"],
    },
    LimitKind {
        name: "credit",
        needs: &["timeout_seconds", "vault", "account", "asset"],
        lacks: &["capacity", "window_seconds"],
    },
];
