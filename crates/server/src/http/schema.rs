//! The JSON schemas of responses, and of limit definitions.

mod ledger;

use earmark_admission::{BATCH_MAX, quota_code};
use earmark_core::{JobId, LimitKey, NamespaceName, QuotaKind, REQUIREMENTS_MAX};
use serde_json::{Map, Value, json};

use super::reply::{
    CONFLICT, FORBIDDEN, METHOD_NOT_ALLOWED, NOT_FOUND, NOT_READY, RATE_LIMITED, REQUEST_TIMEOUT, UNAUTHENTICATED,
    UNAVAILABLE,
};
use super::shape::{DEFINITION_FIELDS, LIMIT_KEY, LIMIT_KINDS, LimitKind, Shape, WITH_PLACEHOLDERS, object};
use super::{audit, calls, charts, cluster, decisions, keys, policies, quotas, templates, top, usage, whoami};
use crate::answer::{
    ACCOUNT_NOT_FOUND, BACKEND_ERROR, EXCEEDS_CAPACITY, INSUFFICIENT_CREDIT, INVALID_REQUEST, LEASE_EXPIRED,
    LIMIT_DECREASING, LIMIT_PAUSED, OVERLOADED, UNKNOWN_LIMIT_KEY,
};

/// All named schemas.
pub(super) fn schemas() -> Value {
    let mut schemas = json!({
        "Problem": problem(),
        "ReserveAnswer": reserve_answer(),
        "ReserveResults": results("ReserveAnswer"),
        "ExtendAnswer": extend_answer(),
        "ExtendResults": results("ExtendAnswer"),
        "CompleteAnswer": complete_answer(),
        "CompleteResults": results("CompleteAnswer"),
        "LimitChanged": exactly(json!({
            "ok": {"const": true},
            "status": {"enum": ["active", "decreasing", "deleted"]},
        }), &[]),
        "LimitPaused": exactly(json!({
            "ok": {"const": true},
            "paused_until_unix_ms": described(count(), "When the pause ends; 0 if the limit is not paused."),
        }), &[]),
        "LimitInfo": limit_info(),
        "Limit": exactly(json!({"limit": reference("LimitInfo")}), &[]),
        "Limits": exactly(
            json!({
                "limits": {"type": "array", "items": reference("LimitInfo")},
                "next": {"type": ["string", "null"], "description": "`after` of the next page; null on the last one."},
            }),
            &[],
        ),
        "Usage": usage(),
        "UsageList": usage::schema(),
        "Lease": exactly(json!({"lease": lease()}), &[]),
        "Health": exactly(json!({"status": {"enum": ["ok", "ready"]}, "message": {"type": "string"}}), &["message"]),
        "OpenApi": {"type": "object", "required": ["openapi", "info", "paths", "components"]},
    });
    let more = cluster::schemas()
        .into_iter()
        .chain(keys::schemas())
        .chain(audit::schemas())
        .chain(calls::schemas())
        .chain(charts::schemas())
        .chain(decisions::schemas())
        .chain(policies::schemas())
        .chain(quotas::schemas())
        .chain(templates::schemas())
        .chain(top::schemas())
        .chain(whoami::schemas());
    for (name, schema) in ledger::schemas().into_iter().chain(more) {
        schemas[name] = schema;
    }
    schemas
}

/// The schema of an object with these properties and no others. All are required except `optional`.
pub(super) fn exactly(properties: Value, optional: &[&str]) -> Value {
    let names = properties.as_object().into_iter().flatten().map(|(name, _)| name.as_str());
    let required: Vec<&str> = names.filter(|name| !optional.contains(name)).collect();
    json!({"type": "object", "required": required, "properties": properties, "additionalProperties": false})
}

fn reference(name: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{name}")})
}

/// The schema of a limit definition in a request: the fields of its kind.
pub(super) fn definition() -> Value {
    let kinds: Vec<Value> = LIMIT_KINDS.iter().map(of_kind).collect();
    json!({"oneOf": kinds, "discriminator": {"propertyName": "kind"}})
}

fn of_kind(kind: &LimitKind) -> Value {
    let mut schema = object(DEFINITION_FIELDS);
    let fields = &mut schema["properties"];
    fields["kind"] = json!({"const": kind.name});
    for field in DEFINITION_FIELDS {
        if kind.needs.contains(&field.name) {
            fields[field.name]["type"] = field.shape.schema()["type"].take();
        } else if kind.lacks.contains(&field.name) {
            fields[field.name]["type"] = json!("null");
        }
    }
    schema["required"] = json!([&["key", "kind"], kind.needs].concat());
    schema["title"] = json!(kind.name);
    schema
}

/// The schema of a limit definition in a response: every field of its kind, none null.
pub(super) fn defined() -> Value {
    let answered = |kind: &LimitKind| {
        let mut schema = of_kind(kind);
        let mut required = vec![];
        if let Some(fields) = schema["properties"].as_object_mut() {
            fields.retain(|name, _| !kind.lacks.contains(&name.as_str()));
            fields.insert("unit".into(), json!({"type": "string"}));
            fields.insert("description".into(), json!({"type": "string"}));
            fields.insert("overage".into(), json!({"enum": ["debt", "deny"]}));
            if let Some(revenue) = fields.get_mut("revenue") {
                revenue["type"] = json!("string");
            }
            if let Some(on_timeout) = fields.get_mut("on_timeout") {
                *on_timeout = json!({"const": "charge", "description": "Absent if `release`."});
            }
            if let Some(offset) = fields.get_mut("utc_offset_minutes") {
                offset["type"] = json!("integer");
            }
            fields.insert("shared".into(), json!({"const": true, "description": "Absent if false."}));
            fields.insert("enforce".into(), json!({"const": false, "description": "Absent if true."}));
            let is_required = |name: &&String| !matches!(name.as_str(), "shared" | "enforce" | "on_timeout");
            required = fields.keys().filter(is_required).cloned().collect();
        }
        schema["required"] = json!(required);
        schema
    };
    let kinds: Vec<Value> = LIMIT_KINDS.iter().map(answered).collect();
    json!({"oneOf": kinds})
}

/// The schema of a definition whose key and account may have placeholders.
pub(super) fn with_placeholders(mut definition: Value) -> Value {
    let kinds = definition["oneOf"].as_array_mut().into_iter().flatten();
    for fields in kinds.filter_map(|kind| kind["properties"].as_object_mut()) {
        for name in ["key", "account"] {
            if let Some(field) = fields.get_mut(name) {
                field["pattern"] = json!(WITH_PLACEHOLDERS);
            }
        }
    }
    definition
}

fn count() -> Value {
    Shape::Integer { min: 0, max: u64::MAX }.schema()
}

pub(super) fn key() -> Value {
    Shape::Name(&LIMIT_KEY).schema()
}

fn problem() -> Value {
    let codes = [
        INVALID_REQUEST,
        NOT_FOUND,
        METHOD_NOT_ALLOWED,
        REQUEST_TIMEOUT,
        OVERLOADED,
        BACKEND_ERROR,
        NOT_READY,
        CONFLICT,
        UNAVAILABLE,
        UNAUTHENTICATED,
        FORBIDDEN,
        RATE_LIMITED,
    ];
    let quotas = QuotaKind::ALL.map(quota_code);
    let codes: Vec<&str> = codes.into_iter().chain(quotas.iter().map(String::as_str)).collect();
    exactly(json!({"error": {"enum": codes}, "message": {"type": "string"}}), &[])
}

const NAMED_KEY_PATTERN: &str = "^(![A-Za-z0-9._@+-]+:)?[A-Za-z0-9:._@+/|=~%-]+$";

/// A key in an answer about a lease. A limit of another namespace is marked with it.
pub(super) fn named_key() -> Value {
    let bytes_max = LimitKey::BYTES_MAX + NamespaceName::BYTES_MAX + 2;
    json!({"type": "string", "minLength": 1, "maxLength": bytes_max, "pattern": NAMED_KEY_PATTERN})
}

/// The field `error` of a reserve or an extension.
fn lease_error() -> Value {
    json!({"type": "string", "pattern": format!("^({})$", lease_errors())})
}

/// The field `error` of a call.
pub(super) fn call_error() -> Value {
    let by_policy = "no_rule|(missing_attribute|denied_by_rule):[A-Za-z0-9._@+-]+|no_price:.+";
    json!({"type": "string", "pattern": format!("^({}|{by_policy})$", lease_errors())})
}

fn lease_errors() -> String {
    let alone = [INVALID_REQUEST, LEASE_EXPIRED, OVERLOADED, BACKEND_ERROR].join("|");
    let by_key = [
        UNKNOWN_LIMIT_KEY,
        LIMIT_DECREASING,
        LIMIT_PAUSED,
        INSUFFICIENT_CREDIT,
        ACCOUNT_NOT_FOUND,
        EXCEEDS_CAPACITY,
        "quota_exceeded",
    ]
    .join("|");
    format!("|{alone}|({by_key}):(![A-Za-z0-9._@+-]+:)?[A-Za-z0-9:._@+/|=~%-]+")
}

fn named_keys(about: &str) -> Value {
    json!({
        "type": "array",
        "minItems": 1,
        "maxItems": REQUIREMENTS_MAX,
        "items": named_key(),
        "description": about,
    })
}

fn extend_answer() -> Value {
    let properties = json!({
        "allowed": {"type": "boolean"},
        "retry_after_ms": described(count(), "Milliseconds until another attempt may succeed; 0 if allowed, or if a retry cannot succeed."),
        "error": described(lease_error(), "Empty if allowed or denied for lack of capacity. A denial, `exceeds_capacity` and `insufficient_credit` use the number: the next attempt has the next one. After every other error the number is free."),
        "message": {"type": "string"},
        "limited_by": named_keys("The limits that denied it, the one that frees last first."),
        "never": {"const": true, "description": "An amount exceeds its limit's capacity."},
        "ends_at_unix_ms": described(count(), "When the first of its concurrency and credit reservations ends; 0 without any, or if not allowed."),
    });
    exactly(properties, &["message", "limited_by", "never"])
}

pub(super) fn reserve_answer() -> Value {
    let properties = json!({
        "allowed": {"type": "boolean"},
        "retry_after_ms": described(count(), "Milliseconds until a retry may succeed; 0 if allowed, or if a retry cannot succeed."),
        "reserved_at_unix_ms": described(count(), "When it was first allowed; 0 if it was denied."),
        "error": described(lease_error(), "Empty if allowed or denied for lack of capacity."),
        "message": {"type": "string"},
        "limited_by": named_keys("The limits that denied it, the one that frees last first."),
        "never": {"const": true, "description": "An amount exceeds its limit's capacity."},
        "would_deny": named_keys("The limits that are not enforced and would have denied it."),
    });
    exactly(properties, &["message", "limited_by", "never", "would_deny"])
}

pub(super) fn complete_answer() -> Value {
    let properties = json!({
        "ok": {"type": "boolean"},
        "error": {"enum": ["", INVALID_REQUEST, quota_code(QuotaKind::Leases), OVERLOADED, BACKEND_ERROR]},
        "message": {"type": "string"},
        "reconciled": {
            "type": "boolean",
            "description": "Whether the lease was known and its actuals were applied, now or before.",
        },
    });
    exactly(properties, &["message"])
}

/// The answers of a batch, in the order of its requests.
pub(super) fn results(answer: &str) -> Value {
    let items = reference(answer);
    exactly(json!({"results": {"type": "array", "minItems": 1, "maxItems": BATCH_MAX, "items": items}}), &[])
}

/// The fields that a limit and its usage share.
fn status_fields() -> Map<String, Value> {
    let paused = described(count(), "When its pause ends; absent if it is not paused.");
    let mut to = count();
    to["type"] = json!(["integer", "null"]);
    let to = described(to, "The pending lower capacity; 0 if the limit is being deleted.");
    let status = json!({"enum": ["active", "decreasing"]});
    let fields = [("status", status), ("pending_decrease_to", to), ("paused_until_unix_ms", paused)];
    fields.into_iter().map(|(name, schema)| (name.to_owned(), schema)).collect()
}

fn limit_info() -> Value {
    let mut properties = status_fields();
    properties.insert("definition".into(), defined());
    properties.insert(
        "revision".into(),
        described(count(), "The revision, for `expected_revision`; of a derived limit that of its template."),
    );
    let template =
        json!({"type": "string", "pattern": WITH_PLACEHOLDERS, "description": "The template of a derived limit."});
    properties.insert("template".into(), template);
    properties.insert("pause_reason".into(), json!({"type": "string"}));
    exactly(Value::Object(properties), &["template", "paused_until_unix_ms", "pause_reason"])
}

fn usage() -> Value {
    let mut properties = status_fields();
    properties.extend(amounts());
    exactly(Value::Object(properties), &["paused_until_unix_ms"])
}

/// The names of the kinds.
pub(super) fn kinds() -> Vec<&'static str> {
    LIMIT_KINDS.iter().map(|kind| kind.name).collect()
}

/// The amounts of a limit in use.
pub(super) fn amounts() -> Map<String, Value> {
    let mut properties = Map::new();
    let of_credit = "For a credit limit: what its account";
    let capacity = format!("The capacity in force. {of_credit} holds and can spend.");
    properties.insert("capacity".into(), described(count(), &capacity));
    let reserved = format!("The reserved amount. {of_credit} holds for leases.");
    properties.insert("reserved".into(), described(count(), &reserved));
    let available = format!("The free amount. {of_credit} can spend, without an overdraft.");
    properties.insert("available".into(), described(count(), &available));
    let debt = format!("Usage that was never reserved. {of_credit} owes.");
    let debt = json!({"type": "integer", "minimum": 0, "description": debt});
    properties.insert("debt".into(), debt);
    properties
}

fn lease() -> Value {
    let requirement = exactly(json!({"key": named_key(), "amount": count()}), &[]);
    let used = exactly(json!({"key": named_key(), "actual_amount": count()}), &[]);
    exactly(
        json!({
            "lease_id": Shape::Lease.schema(),
            "reserved_at_unix_ms": described(count(), "When it was allowed; 0 if it was denied."),
            "requirements": {
                "type": "array",
                "maxItems": REQUIREMENTS_MAX,
                "items": requirement,
                "description": "The reserved amounts. Empty for a denied or completed lease.",
            },
            "state": {"enum": ["live", "expired", "completed", "denied"]},
            "job_id": {
                "type": ["string", "null"],
                "maxLength": JobId::BYTES_MAX,
                "description": "The job of its first reserve. On TigerBeetle only the server that took it knows it.",
            },
            "extensions": described(count(), "The number of its last extension; 0 without one."),
            "used": {
                "type": "array",
                "maxItems": REQUIREMENTS_MAX,
                "items": used,
                "description": "The usage that its extensions reported.",
            },
            "ends_at_unix_ms": described(count(), "When the first of its concurrency and credit reservations ends; 0 without any, or if it is not live."),
        }),
        &[],
    )
}

pub(super) fn described(mut schema: Value, about: &str) -> Value {
    schema["description"] = json!(about);
    schema
}
