//! The bodies of sequenced writes.

use earmark_admission::PAGE_MAX;
use earmark_core::{MEMO_BYTES_MAX, OPERATIONS_MAX};

use super::requests::{needed, optional};
use super::{ACCOUNT, ANY_NUMBER, ASSET, CLIENT, Field, LIMIT_KEY, NAMESPACE, Shape, VAULT};

const REVISION: Shape = Shape::Integer { min: 0, max: u64::MAX };

const OF_NAMESPACE: Field = needed(
    "namespace",
    Shape::Name(&NAMESPACE),
    "Where it belongs. The first limit, vault or key in a namespace opens it.",
);
const OF_VAULT: Field =
    optional("vault", Shape::Name(&VAULT), "The vault that it is about; without it, the namespace.");
const CLIENT_ID: Field =
    needed("client_id", Shape::Name(&CLIENT), "Who counts. A client has one stream in every scope.");
const SEQUENCE: Field = needed(
    "sequence",
    Shape::Integer { min: 1, max: u64::MAX },
    "The last committed one plus 1; the same again to retry.",
);

const NAMED_ACCOUNT: Field = needed("account", Shape::Name(&ACCOUNT), "Its name.");
const ONLY_ACCOUNT: Shape = Shape::Object(&[NAMED_ACCOUNT]);
const OF_ASSET: Field = needed("asset", Shape::Name(&ASSET), "What.");
const AMOUNT: Field = needed("amount", Shape::Credit, "How much, in minor units.");
const MEMO: Field = optional(
    "memo",
    Shape::Text { bytes_max: MEMO_BYTES_MAX },
    "BodyErrorKind, for people. In bytes of UTF-8.",
);

static OPERATION: Shape = Shape::OneOf(&[
    needed(
        "put_limit",
        Shape::Object(&[
            needed("definition", Shape::Limit, "What it is to be."),
            optional("expected_revision", REVISION, "The revision it must have now; 0: it must not exist."),
        ]),
        "Of a namespace: creates a limit or changes its definition.",
    ),
    needed(
        "delete_limit",
        Shape::Object(&[
            needed("key", Shape::Name(&LIMIT_KEY), "Its name."),
            optional("expected_revision", REVISION, "The revision it must have now."),
        ]),
        "Of a namespace: lets a limit run empty and then forgets it.",
    ),
    needed(
        "open_vault",
        Shape::Object(&[needed("vault", Shape::Name(&VAULT), "Its name.")]),
        "Of a namespace: makes a vault known.",
    ),
    needed(
        "open_account",
        Shape::Object(&[
            NAMED_ACCOUNT,
            needed("overdraft", Shape::Choice(&["deny", "allow"]), "Whether it may go below zero."),
        ]),
        "Of a vault: opens an account.",
    ),
    needed(
        "freeze_account",
        ONLY_ACCOUNT,
        "Of a vault: lets nothing but the cost of leases go out of an account.",
    ),
    needed("unfreeze_account", ONLY_ACCOUNT, "Of a vault: lets an account spend again."),
    needed("close_account", ONLY_ACCOUNT, "Of a vault: closes an empty account, for ever."),
    needed(
        "issue",
        Shape::Object(&[NAMED_ACCOUNT, OF_ASSET, AMOUNT, MEMO]),
        "Of a vault: makes credit from nothing.",
    ),
    needed(
        "transfer",
        Shape::Object(&[
            needed("from", Shape::Name(&ACCOUNT), "Who gives it."),
            needed("to", Shape::Name(&ACCOUNT), "Who gets it."),
            OF_ASSET,
            AMOUNT,
            MEMO,
        ]),
        "Of a vault: moves credit.",
    ),
    needed(
        "retire",
        Shape::Object(&[NAMED_ACCOUNT, OF_ASSET, AMOUNT, MEMO]),
        "Of a vault: makes credit nothing.",
    ),
]);

const OPERATIONS: Field = needed(
    "operations",
    Shape::List { item: &OPERATION, min: 0, max: OPERATIONS_MAX },
    "What to do: all of it, or none. Without any the write only consumes its number.",
);

static PART: Shape = Shape::Object(&[OPERATIONS]);

/// The body of `POST /v1/write`.
pub(in crate::http) static WRITE: Shape =
    Shape::Object(&[OF_NAMESPACE, OF_VAULT, CLIENT_ID, SEQUENCE, OPERATIONS]);

/// The body of `POST /v1/write/batch`.
pub(in crate::http) static WRITE_BATCH: Shape = Shape::Object(&[
    OF_NAMESPACE,
    OF_VAULT,
    CLIENT_ID,
    SEQUENCE,
    needed(
        "writes",
        Shape::List { item: &PART, min: 0, max: ANY_NUMBER },
        "Applied in this order under one number, all or none. At most 256 operations in all.",
    ),
]);

/// The query of `GET /v1/clients/{client_id}`.
pub(in crate::http) const CLIENT_QUERY: &[Field] = &[
    optional(
        "namespace",
        Shape::Name(&NAMESPACE),
        "The namespace; where the caller belongs if it is not given.",
    ),
    optional("vault", Shape::Name(&VAULT), "The vault; without it, the stream of the namespace."),
];

/// The query of an account's entries.
pub(in crate::http) const ENTRIES_QUERY: &[Field] = &[
    optional("after", Shape::Integer { min: 0, max: u64::MAX }, "`next` of the page before."),
    optional(
        "page_size",
        PAGE_SIZE,
        "How many at most; 100 if it is not given. Long memos make a page shorter.",
    ),
];

/// The query of what was changed.
pub(in crate::http) const CHANGES_QUERY: &[Field] = &[
    optional("after", Shape::Place, "`next` of the page before, or `place` of a change."),
    optional("page_size", PAGE_SIZE, "How many at most; 100 if it is not given. A page may be shorter."),
];

const PAGE_SIZE: Shape = Shape::Integer { min: 1, max: PAGE_MAX as u64 };
