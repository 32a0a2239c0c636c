//! The shapes of request bodies and query parameters. One description drives the parser, the error messages and
//! `/openapi.json`: a body is a struct made by [`body!`], whose field types name their shapes by [`Described`].

mod explain;
mod limit;

pub(super) use limit::{DEFINITION_FIELDS, LIMIT_KINDS, LimitKind, TEMPLATE_FIELDS};

use earmark_admission::{
    BackupName, ChangeCursor, EntryOrder, LimitDocument, PAGE_MAX, STATEMENT_GROUPS_MAX, TemplateDocument,
};
use earmark_core::{
    ATTRIBUTE_NAME_BYTES_MAX, ATTRIBUTE_VALUE_BYTES_MAX, ATTRIBUTES_MAX, AccountName, Actor, AssetName, ClientId,
    IdempotencyKey, JobId, KeyId, KeyName, LeaseId, LimitKey, NameError, NamespaceName, Role, UnixMs, UsageSort,
    VaultName, parse_credit,
};
use serde_json::{Map, Value, json};

use super::parse::{Count, Object, Text};
use super::schema;
use crate::decisions::Outcome;
use crate::events::Topics;
use crate::top::{Measure, Within};

/// A type in a request body. Its shape explains parse errors and becomes the JSON schema.
pub(super) trait Described {
    const SHAPE: Shape;
    /// An optional field may be absent or null.
    const IS_REQUIRED: bool = true;
}

impl<T: Described> Described for Option<T> {
    const SHAPE: Shape = T::SHAPE;
    const IS_REQUIRED: bool = false;
}

impl<T: Described> Described for Object<T> {
    const SHAPE: Shape = T::SHAPE;
}

impl<const MIN: u64> Described for Count<MIN> {
    const SHAPE: Shape = Shape::Integer { min: MIN, max: u64::MAX };
}

impl Described for bool {
    const SHAPE: Shape = Shape::Boolean;
}

impl Described for LimitDocument {
    const SHAPE: Shape = Shape::Limit;
}

impl Described for TemplateDocument {
    const SHAPE: Shape = Shape::Template;
}

impl Described for Text<LeaseId> {
    const SHAPE: Shape = Shape::Lease;
}

impl Described for Text<Role> {
    const SHAPE: Shape = Shape::Choice(&["admin", "writer", "caller", "reader", "gateway", "client"]);
}

/// Defines the struct of a body, or of an object in one. The doc comment of a field becomes its description.
macro_rules! body {
    ($(#[$attribute:meta])* $vis:vis struct $name:ident { $($(#[doc = $about:literal])+ $field:ident: $type:ty,)* }) => {
        $(#[$attribute])*
        #[derive(serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        $vis struct $name { $($vis $field: $type,)* }

        impl $name {
            const FIELDS: &'static [$crate::http::shape::Field] = &[$($crate::http::shape::Field {
                name: stringify!($field),
                shape: <$type as $crate::http::shape::Described>::SHAPE,
                is_required: <$type as $crate::http::shape::Described>::IS_REQUIRED,
                about: concat!($($about),+),
            }),*];
        }

        impl $crate::http::shape::Described for $name {
            const SHAPE: $crate::http::shape::Shape = $crate::http::shape::Shape::Object($name::FIELDS);
        }
    };
}
pub(super) use body;

/// The maximum of a list without one.
pub(super) const ANY_NUMBER: usize = usize::MAX;

/// A time in milliseconds of Unix time.
const TIME: Shape = Shape::Integer { min: 0, max: UnixMs::MAX.get() };

/// The shape of a JSON value.
#[derive(Debug)]
pub(super) enum Shape {
    /// An integer within inclusive bounds.
    Integer { min: u64, max: u64 },
    /// An integer within inclusive bounds, which may be negative.
    Signed { min: i64, max: i64 },
    /// `true` or `false`.
    Boolean,
    /// A name with an alphabet.
    Name(&'static Name),
    /// A ULID.
    Lease,
    /// Any text of at most this many bytes.
    Text { bytes_max: usize },
    /// One of these texts.
    Choice(&'static [&'static str]),
    /// One of these texts, or an object with these fields.
    ChoiceOr(&'static [&'static str], &'static [Field]),
    /// Some of these texts, each once, with commas between them.
    Choices(&'static [&'static str]),
    /// Values of one shape. Objects with a field `key` must have different keys.
    List { item: &'static Shape, min: usize, max: usize },
    /// Named fields, and no others.
    Object(&'static [Field]),
    /// Exactly one of these fields.
    OneOf(&'static [Field]),
    /// A limit definition: the fields of its kind.
    Limit,
    /// A limit definition whose key and account may have placeholders.
    Template,
    /// An amount of credit: a positive integer, or its digits as text.
    Credit { max: u128 },
    /// A position in the change log.
    LogPosition,
    /// Texts by name, of at most this many bytes: the attributes of a call, or the labels of a settlement.
    Texts { count_max: usize, value_bytes_max: usize },
}

/// A field of an object.
#[derive(Debug)]
pub(super) struct Field {
    pub(super) name: &'static str,
    pub(super) shape: Shape,
    /// An optional field may also be null.
    pub(super) is_required: bool,
    pub(super) about: &'static str,
}

/// A kind of name, with the check of `earmark_core`.
#[derive(Debug)]
pub(super) struct Name {
    check: fn(&str) -> Result<(), NameError>,
    bytes_max: usize,
    pattern: &'static str,
}

macro_rules! names {
    ($($name:ident: $of:ident, $pattern:literal;)*) => {$(
        pub(super) static $name: Name =
            Name { check: |text| $of::new(text).map(drop), bytes_max: $of::BYTES_MAX, pattern: $pattern };

        impl Described for Text<$of> {
            const SHAPE: Shape = Shape::Name(&$name);
        }
    )*};
}

/// The key of a limit, or of a template if it has a placeholder.
pub(super) fn limit_or_template(text: &str) -> Result<LimitKey, NameError> {
    if text.contains('{') { LimitKey::pattern(text) } else { LimitKey::new(text) }
}

/// The characters of a name with placeholders.
pub(super) const WITH_PLACEHOLDERS: &str = "^[A-Za-z0-9:._@+/|=~%{}-]+$";

pub(super) static TEMPLATE_KEY: Name = Name {
    check: |text| LimitKey::pattern(text).map(drop),
    bytes_max: LimitKey::BYTES_MAX,
    pattern: WITH_PLACEHOLDERS,
};
/// The beginning of a key, which may be empty.
pub(super) static PREFIX: Name = Name {
    check: |text| if text.is_empty() { Ok(()) } else { LimitKey::new(text).map(drop) },
    bytes_max: LimitKey::BYTES_MAX,
    pattern: "^[A-Za-z0-9:._@+/|=~%-]*$",
};
/// The beginning of a key, which may name another namespace.
pub(super) static QUALIFIED_PREFIX: Name = Name {
    check: |text| match text.strip_prefix('!').unwrap_or(text) {
        "" => Ok(()),
        rest => LimitKey::new(rest).map(drop),
    },
    bytes_max: LimitKey::BYTES_MAX,
    pattern: "^!?[A-Za-z0-9:._@+/|=~%-]*$",
};
/// The key of a limit or of a template.
pub(super) static CHANGED_KEY: Name = Name {
    check: |text| limit_or_template(text).map(drop),
    bytes_max: LimitKey::BYTES_MAX,
    pattern: WITH_PLACEHOLDERS,
};
pub(super) static TEMPLATE_ACCOUNT: Name = Name {
    check: |text| AccountName::pattern(text).map(drop),
    bytes_max: AccountName::BYTES_MAX,
    pattern: WITH_PLACEHOLDERS,
};

names! {
    LIMIT_KEY: LimitKey, "^[A-Za-z0-9:._@+/|=~%-]+$";
    JOB_ID: JobId, "^[A-Za-z0-9:._@+-]+$";
    BACKUP_NAME: BackupName, "^[A-Za-z0-9_][A-Za-z0-9._-]*$";
    ACCOUNT: AccountName, "^[A-Za-z0-9:._@+/|=~%-]+$";
    NAMESPACE: NamespaceName, "^[A-Za-z0-9._@+-]+$";
    VAULT: VaultName, "^[A-Za-z0-9._@+-]+$";
    CLIENT: ClientId, "^[A-Za-z0-9._@+-]+$";
    IDEMPOTENCY_KEY: IdempotencyKey, "^[!-~]+$";
    ASSET: AssetName, "^[a-z0-9_]+$";
    KEY_NAME: KeyName, "^[A-Za-z0-9._@+-]+$";
    KEY_ID: KeyId, "^[a-z0-9]+$";
    ACTOR: Actor, "^(user|client|system):[A-Za-z0-9:._@+-]+$";
}

/// The attributes of a call, or the labels of a key.
pub(super) const ATTRIBUTES: Shape =
    Shape::Texts { count_max: ATTRIBUTES_MAX, value_bytes_max: ATTRIBUTE_VALUE_BYTES_MAX };

/// The name of an attribute or of a settlement's label.
const ATTRIBUTE_PATTERN: &str = "^[a-z][a-z0-9_]*$";

/// A positive amount of credit, without leading zeros.
pub(super) const CREDIT_PATTERN: &str = "^[1-9][0-9]{0,38}$";

/// Parses an amount of credit from raw JSON: an integer or a text, at most `i128::MAX`.
pub(super) fn credit(raw: &str) -> Option<u128> {
    let quoted = raw.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
    parse_credit(quoted.unwrap_or(raw))
}

pub(super) const LEASE_PATTERN: &str = "^[0-7][0-9A-HJKMNP-TV-Za-hjkmnp-tv-z]{25}$";

impl Shape {
    /// The JSON schema of the shape.
    pub(super) fn schema(&self) -> Value {
        match self {
            Shape::Integer { min, max } => json!({"type": "integer", "minimum": min, "maximum": max}),
            Shape::Signed { min, max } => json!({"type": "integer", "minimum": min, "maximum": max}),
            Shape::Boolean => json!({"type": "boolean"}),
            Shape::Name(name) => {
                let min = u8::from((name.check)("").is_err());
                json!({"type": "string", "minLength": min, "maxLength": name.bytes_max, "pattern": name.pattern})
            }
            Shape::Lease => json!({"type": "string", "format": "ulid", "pattern": LEASE_PATTERN}),
            // A schema counts characters; that many characters are at least as many bytes.
            Shape::Text { bytes_max } => json!({"type": "string", "maxLength": bytes_max}),
            Shape::Choice(texts) => json!({"type": "string", "enum": texts}),
            Shape::ChoiceOr(texts, fields) => {
                json!({"oneOf": [{"type": "string", "enum": texts}, object(fields)]})
            }
            Shape::Choices(texts) => {
                let one = texts.join("|");
                json!({"type": "string", "pattern": format!("^({one})(,({one}))*$")})
            }
            Shape::List { item, min, max: ANY_NUMBER } => {
                json!({"type": "array", "minItems": min, "items": item.schema()})
            }
            Shape::List { item, min, max } => {
                json!({"type": "array", "minItems": min, "maxItems": max, "items": item.schema()})
            }
            Shape::Object(fields) => object(fields),
            Shape::OneOf(fields) => {
                let mut schema = object(fields);
                schema["required"] = json!([]);
                schema["minProperties"] = json!(1);
                schema["maxProperties"] = json!(1);
                schema
            }
            Shape::Limit => schema::definition(),
            Shape::Template => schema::with_placeholders(schema::definition()),
            Shape::Texts { count_max, value_bytes_max } => json!({
                "type": "object",
                "maxProperties": count_max,
                "propertyNames": {"pattern": ATTRIBUTE_PATTERN, "maxLength": ATTRIBUTE_NAME_BYTES_MAX},
                "additionalProperties": {"type": "string", "minLength": 1, "maxLength": value_bytes_max},
            }),
            Shape::LogPosition => json!({"type": "string", "pattern": ChangeCursor::PATTERN}),
            Shape::Credit { .. } => json!({"type": ["string", "integer"], "pattern": CREDIT_PATTERN, "minimum": 1}),
        }
    }
}

/// The JSON schema of an object with these fields and no others.
pub(super) fn object(fields: &[Field]) -> Value {
    let properties: Map<String, Value> = fields.iter().map(property).collect();
    let required: Vec<&str> = fields.iter().filter(|field| field.is_required).map(|field| field.name).collect();
    json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false})
}

fn property(field: &Field) -> (String, Value) {
    let mut schema = field.shape.schema();
    if !field.is_required {
        match schema.get_mut("oneOf") {
            Some(Value::Array(shapes)) => shapes.push(json!({"type": "null"})),
            _ => schema["type"] = json!([schema["type"], "null"]),
        }
        if let Some(Value::Array(texts)) = schema.get_mut("enum") {
            texts.push(Value::Null);
        }
    }
    schema["description"] = json!(field.about.trim_start());
    (field.name.to_owned(), schema)
}

/// The id of a node.
pub(super) const NODE_ID: Shape = Count::<1>::SHAPE;

/// An optional query parameter.
const fn parameter(name: &'static str, shape: Shape, about: &'static str) -> Field {
    Field { name, shape, is_required: false, about }
}

/// The query of `GET /v1/clients/{client_id}`.
pub(super) const CLIENT_QUERY: &[Field] = &[
    NAMESPACE_PARAMETER,
    parameter("vault", Shape::Name(&VAULT), "The vault; without it, the stream of the namespace."),
];

const PAGE_SIZE: Shape = Shape::Integer { min: 1, max: PAGE_MAX as u64 };

const NAMESPACE_PARAMETER: Field = parameter(
    "namespace",
    Shape::Name(&NAMESPACE),
    "The namespace; by default the caller's. An admin of `default` may name any.",
);

/// The query of the list of templates.
pub(super) const TEMPLATES_QUERY: &[Field] = &[NAMESPACE_PARAMETER];

/// The query of a call.
pub(super) const CALL_QUERY: &[Field] = &[parameter(
    "status",
    Shape::Choice(&["true", "false"]),
    "`true`: a denial has another status than 200. By default `false`.",
)];

/// The query of an explanation.
pub(super) const EXPLAIN_QUERY: &[Field] = &[NAMESPACE_PARAMETER];

/// The query of a policy.
pub(super) const POLICY_QUERY: &[Field] = &[NAMESPACE_PARAMETER];

/// The query of a put template.
pub(super) const PUT_TEMPLATE_QUERY: &[Field] = &[
    NAMESPACE_PARAMETER,
    parameter("expected_revision", Count::<0>::SHAPE, "The revision it must have; 0 if it must not exist."),
];

/// The query of a deleted template.
pub(super) const DELETE_TEMPLATE_QUERY: &[Field] = &[
    Field { is_required: true, ..parameter("key", Shape::Name(&TEMPLATE_KEY), "The key, with placeholders.") },
    NAMESPACE_PARAMETER,
    parameter("expected_revision", Count::<0>::SHAPE, "The revision it must have."),
];

/// The query of one limit.
pub(super) const LIMIT_QUERY: &[Field] = &[NAMESPACE_PARAMETER];

const PREFIX_PARAMETER: Field =
    parameter("prefix", Shape::Name(&PREFIX), "Only limits whose key begins like this; all if it is empty.");

/// The query of the list of limits.
pub(super) const LIMITS_QUERY: &[Field] = &[
    NAMESPACE_PARAMETER,
    PREFIX_PARAMETER,
    parameter("after", Shape::Name(&LIMIT_KEY), "`next` of the previous page."),
    parameter("page_size", PAGE_SIZE, "Limits per page, by default 1,000."),
    parameter(
        "defined",
        Shape::Choice(&["true", "false"]),
        "`true`: only limits that were put. Pages then cost nothing for derived limits. By default `false`.",
    ),
];

/// The query of the list of limits with their usage.
pub(super) const USAGE_QUERY: &[Field] = &[
    NAMESPACE_PARAMETER,
    PREFIX_PARAMETER,
    parameter(
        "sort",
        Shape::Choice(&UsageSort::NAMES),
        "The order, by default `key`. `fullness`: the largest reserved share of the capacity first. `debt`: the largest \
         debt first. Both have one page.",
    ),
    parameter("after", Shape::Name(&LIMIT_KEY), "`next` of the previous page; only with the order by key."),
    parameter("page_size", PAGE_SIZE, "Limits per page, by default 1,000."),
];

/// The query of the decision log.
pub(super) const DECISIONS_QUERY: &[Field] = &[
    NAMESPACE_PARAMETER,
    parameter("key", Shape::Name(&QUALIFIED_PREFIX), "Only decisions about a limit whose key begins like this."),
    parameter("actor", Shape::Name(&ACTOR), "Only decisions about requests of exactly this actor."),
    parameter("job", Shape::Name(&JOB_ID), "Only decisions about exactly this job."),
    parameter("outcome", Shape::Choice(&Outcome::NAMES), "Only this outcome."),
    parameter("since", TIME, "Only decisions at this time or later, in milliseconds of Unix time."),
    parameter("until", TIME, "Only decisions before this time, in milliseconds of Unix time."),
    parameter("after", Count::<0>::SHAPE, "`next` of the previous page, with the same filters."),
    parameter("page_size", PAGE_SIZE, "Decisions per page, by default 100. A page with a filter may be shorter."),
];

/// The query of the heaviest limits.
pub(super) const TOP_QUERY: &[Field] = &[
    NAMESPACE_PARAMETER,
    parameter(
        "of",
        Shape::Choice(&Measure::NAMES),
        "What is counted, by default `taken`: amounts reserved. `denied`: denials. `debt`: usage beyond the reservation \
         that became debt.",
    ),
    parameter("within", Shape::Choice(&Within::NAMES), "The window until now, by default `5m`."),
    parameter("prefix", Shape::Name(&QUALIFIED_PREFIX), "Only limits whose key begins like this."),
];

const CREDIT_NAMESPACE: Field = parameter(
    "namespace",
    Shape::Name(&NAMESPACE),
    "The namespace; by default the caller's. A key may name no other one; on a server without keys any caller may.",
);

/// The query of a read of credit that has no other parameters.
pub(super) const CREDIT_QUERY: &[Field] = &[CREDIT_NAMESPACE];

/// The query of the list of vaults.
pub(super) const VAULTS_QUERY: &[Field] = &[
    CREDIT_NAMESPACE,
    parameter("after", Shape::Name(&VAULT), "`next` of the previous page."),
    parameter("page_size", PAGE_SIZE, "Vaults per page, by default 100."),
];

/// The query of the list of accounts.
pub(super) const ACCOUNTS_QUERY: &[Field] = &[
    CREDIT_NAMESPACE,
    parameter("prefix", Shape::Name(&PREFIX), "Only accounts whose name begins like this; all if it is empty."),
    parameter("after", Shape::Name(&ACCOUNT), "`next` of the previous page."),
    parameter("page_size", PAGE_SIZE, "Accounts per page, by default 100."),
];

/// The query of the charts.
pub(super) const CHARTS_QUERY: &[Field] = &[
    NAMESPACE_PARAMETER,
    parameter(
        "of",
        Shape::Choice(&["namespace", "node"]),
        "Whose reserves, by default `namespace`. `node`: all of this node; only an admin of `default` may ask for it.",
    ),
];

/// The query of the event stream.
pub(super) const EVENTS_QUERY: &[Field] = &[
    NAMESPACE_PARAMETER,
    parameter("topics", Shape::Choices(&Topics::NAMES), "Topics with commas between them, by default all."),
];

/// The query of an account's entries.
pub(super) const ENTRIES_QUERY: &[Field] = &[
    CREDIT_NAMESPACE,
    parameter("since", TIME, "Only entries at this time or later, in milliseconds of Unix time."),
    parameter("until", TIME, "Only entries before this time, in milliseconds of Unix time."),
    parameter("order", Shape::Choice(&EntryOrder::NAMES), "`asc`, the default: oldest first. `desc`: newest first."),
    parameter("after", Count::<0>::SHAPE, "`next` of the previous page, with the same order and filters."),
    parameter(
        "page_size",
        PAGE_SIZE,
        "Entries per page, by default 100. Long memos make a page shorter. A page with a filter may even be empty before \
         the last one.",
    ),
];

/// The name of a label.
static LABEL_NAME: Name = Name {
    // The statement checks it: its alphabet is not that of other names.
    check: |_| Ok(()),
    bytes_max: ATTRIBUTE_NAME_BYTES_MAX,
    pattern: ATTRIBUTE_PATTERN,
};

/// The query of an account's statement.
pub(super) const STATEMENT_QUERY: &[Field] = &[
    CREDIT_NAMESPACE,
    parameter("since", TIME, "Start of the period, in milliseconds of Unix time; by default the first entry."),
    parameter("until", TIME, "End of the period, which does not belong to it; by default after the last entry."),
    parameter("group_by", Shape::Name(&LABEL_NAME), "A label, such as `model`: spending is also given by its value."),
    parameter("format", Shape::Choice(&["json", "csv"]), "`json`, the default, or `csv`."),
    parameter(
        "after",
        Shape::Text { bytes_max: CURSOR_BYTES_MAX },
        "`next` of the previous page, with the same query.",
    ),
    parameter(
        "page_size",
        Shape::Integer { min: 1, max: STATEMENT_GROUPS_MAX as u64 },
        "Groups per page, over all assets, by default 10,000. The groups of one value stay together. Each page reads the whole \
         history of the account, so large pages are cheapest.",
    ),
];

/// Bytes of `next` of a statement: more than a number and a longest value in hexadecimal.
const CURSOR_BYTES_MAX: usize = 300;

/// The query of the change log.
pub(super) const CHANGES_QUERY: &[Field] = &[
    parameter("key", Shape::Name(&CHANGED_KEY), "Only changes of the limit or template with exactly this key."),
    parameter("actor", Shape::Name(&ACTOR), "Only changes by exactly this actor."),
    parameter(
        "after",
        Shape::LogPosition,
        "`next` of the previous page, or `place` of a change, with the same filters.",
    ),
    parameter("page_size", PAGE_SIZE, "Changes per page, by default 100. A page may be shorter."),
];

#[cfg(test)]
mod tests;
