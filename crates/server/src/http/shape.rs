//! What a body may look like, said once: `/openapi.json` describes it by this, and a body that could not be
//! parsed is held against it to say which field is wrong, what was found and what is allowed.

mod explain;
mod requests;
mod writes;

pub(super) use requests::{
    BACKUP, COMPLETE, COMPLETE_BATCH, DEFINITION, DEFINITION_FIELDS, KEY, LIMIT_KINDS, LimitKind, MEMBER,
    NODE_ID, RESERVE, RESERVE_BATCH,
};
pub(super) use writes::{CHANGES_QUERY, CLIENT_QUERY, ENTRIES_QUERY, WRITE, WRITE_BATCH};

use earmark_admission::{BackupName, ChangeCursor};
use earmark_core::{
    AccountName, AssetName, ClientId, JobId, KeyId, KeyName, LimitKey, NameError, NamespaceName, VaultName,
    parse_credit,
};
use serde_json::{Map, Value, json};

use super::schema;

/// The most items of a list that is bounded by what is in them.
const ANY_NUMBER: usize = usize::MAX;

/// What a value may look like.
#[derive(Debug)]
pub(super) enum Shape {
    /// An integer, both ends allowed.
    Integer { min: u64, max: u64 },
    /// A name with an alphabet.
    Name(&'static Name),
    /// A ULID.
    Lease,
    /// Any text of so many bytes.
    Text { bytes_max: usize },
    /// One of these texts.
    Choice(&'static [&'static str]),
    /// Values of one shape. Of objects with a field `key`, no two may have the same.
    List { item: &'static Shape, min: usize, max: usize },
    /// Named fields, and no others.
    Object(&'static [Field]),
    /// Exactly one of these fields.
    OneOf(&'static [Field]),
    /// A limit: the fields that its kind has.
    Limit,
    /// An amount of credit: an integer from 1 on, or a text of its digits.
    Credit,
    /// A place in the log of changes.
    Place,
}

/// A field of an object.
#[derive(Debug)]
pub(super) struct Field {
    pub(super) name: &'static str,
    pub(super) shape: Shape,
    /// A field that is not required may also be null.
    pub(super) is_required: bool,
    pub(super) about: &'static str,
}

/// A kind of name, as `earmark_core` checks it.
#[derive(Debug)]
pub(super) struct Name {
    check: fn(&str) -> Result<(), NameError>,
    bytes_max: usize,
    pattern: &'static str,
}

pub(super) static LIMIT_KEY: Name = Name {
    check: |text| LimitKey::new(text).map(drop),
    bytes_max: LimitKey::BYTES_MAX,
    pattern: "^[A-Za-z0-9:._@+-]+$",
};

static JOB_ID: Name = Name {
    check: |text| JobId::new(text).map(drop),
    bytes_max: JobId::BYTES_MAX,
    pattern: "^[A-Za-z0-9:._@+-]+$",
};

static BACKUP_NAME: Name = Name {
    check: |text| BackupName::new(text).map(drop),
    bytes_max: BackupName::BYTES_MAX,
    pattern: "^[A-Za-z0-9_][A-Za-z0-9._-]*$",
};

macro_rules! plain {
    ($($(#[$doc:meta])* $name:ident: $of:ident, $pattern:literal;)*) => {$(
        $(#[$doc])*
        pub(super) static $name: Name =
            Name { check: |text| $of::new(text).map(drop), bytes_max: $of::BYTES_MAX, pattern: $pattern };
    )*};
}

plain! {
    ACCOUNT: AccountName, "^[A-Za-z0-9:._@+-]+$";
    NAMESPACE: NamespaceName, "^[A-Za-z0-9._@+-]+$";
    VAULT: VaultName, "^[A-Za-z0-9._@+-]+$";
    CLIENT: ClientId, "^[A-Za-z0-9._@+-]+$";
    ASSET: AssetName, "^[a-z0-9_]+$";
    KEY_NAME: KeyName, "^[A-Za-z0-9._@+-]+$";
    KEY_ID: KeyId, "^[a-z0-9]+$";
}

/// The digits of an amount of credit, without leading zeros.
pub(super) const CREDIT_PATTERN: &str = "^[1-9][0-9]{0,38}$";

/// An amount of credit as it stands in a body, if it is one: up to what an `i128` can count.
pub(super) fn credit(raw: &str) -> Option<u128> {
    let quoted = raw.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
    parse_credit(quoted.unwrap_or(raw))
}

pub(super) const LEASE_PATTERN: &str = "^[0-7][0-9A-HJKMNP-TV-Za-hjkmnp-tv-z]{25}$";

impl Shape {
    /// The shape as a JSON schema.
    pub(super) fn schema(&self) -> Value {
        match self {
            Shape::Integer { min, max } => json!({"type": "integer", "minimum": min, "maximum": max}),
            Shape::Name(name) => {
                json!({"type": "string", "minLength": 1, "maxLength": name.bytes_max, "pattern": name.pattern})
            }
            Shape::Lease => json!({"type": "string", "format": "ulid", "pattern": LEASE_PATTERN}),
            // Bytes cannot be counted by a schema; that many characters are never fewer bytes.
            Shape::Text { bytes_max } => json!({"type": "string", "maxLength": bytes_max}),
            Shape::Choice(texts) => json!({"type": "string", "enum": texts}),
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
            Shape::Place => json!({"type": "string", "pattern": ChangeCursor::PATTERN}),
            Shape::Credit => json!({"type": ["string", "integer"], "pattern": CREDIT_PATTERN, "minimum": 1}),
        }
    }
}

/// An object with these fields and no others, as a JSON schema.
pub(super) fn object(fields: &[Field]) -> Value {
    let properties: Map<String, Value> = fields.iter().map(property).collect();
    let required: Vec<&str> =
        fields.iter().filter(|field| field.is_required).map(|field| field.name).collect();
    json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false})
}

fn property(field: &Field) -> (String, Value) {
    let mut schema = field.shape.schema();
    if !field.is_required {
        schema["type"] = json!([schema["type"], "null"]);
        if let Some(Value::Array(texts)) = schema.get_mut("enum") {
            texts.push(Value::Null);
        }
    }
    schema["description"] = json!(field.about);
    (field.name.to_owned(), schema)
}

#[cfg(test)]
mod tests;
