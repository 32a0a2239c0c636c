//! The part of JSON Schema that `/openapi.json` uses. An unknown keyword fails the test.

use earmark_admission::ChangeCursor;
use earmark_core::{AccountName, AssetName, ClientId, JobId, LeaseId, LimitKey};
use serde_json::{Map, Value};

/// An OpenAPI document to check responses against.
pub(crate) struct Schemas(pub(crate) Value);

impl Schemas {
    /// Checks a value against a schema.
    pub(crate) fn check(&self, schema: &Value, value: &Value) -> Result<(), String> {
        let wrong = |what: &str| Err(format!("{value} {what} {schema}"));
        for (keyword, rule) in schema.as_object().ok_or(format!("{schema} is no schema"))? {
            let holds = match keyword.as_str() {
                "description" | "title" | "format" | "discriminator" => true,
                "$ref" => {
                    let path = rule.as_str().and_then(|path| path.strip_prefix('#')).ok_or("a bad $ref")?;
                    let schema = self.0.pointer(path).ok_or(format!("{path} is not in the document"))?;
                    return self.check(schema, value);
                }
                "oneOf" => self.fitting(rule, value) == 1,
                "anyOf" => self.fitting(rule, value) >= 1,
                "const" => rule == value,
                "enum" => rule.as_array().is_some_and(|values| values.contains(value)),
                "type" => has_type(rule, value),
                "pattern" => matches(rule.as_str().unwrap_or_default(), value)?,
                "minLength" => length(value).is_none_or(|found| found >= bound(rule)),
                "maxLength" => length(value).is_none_or(|found| found <= bound(rule)),
                "minItems" => value.as_array().is_none_or(|found| found.len() as u64 >= bound(rule)),
                "maxItems" => value.as_array().is_none_or(|found| found.len() as u64 <= bound(rule)),
                "minimum" => value.as_u64().map_or(!value.is_i64(), |found| found >= bound(rule)),
                "maximum" => value.as_u64().is_none_or(|found| found <= bound(rule)),
                "minProperties" => value.as_object().is_none_or(|found| found.len() as u64 >= bound(rule)),
                "maxProperties" => value.as_object().is_none_or(|found| found.len() as u64 <= bound(rule)),
                "items" => {
                    for item in value.as_array().into_iter().flatten() {
                        self.check(rule, item)?;
                    }
                    true
                }
                "properties" => {
                    for (name, schema) in rule.as_object().into_iter().flatten() {
                        value.get(name).map_or(Ok(()), |value| self.check(schema, value))?;
                    }
                    true
                }
                "propertyNames" => {
                    for name in value.as_object().into_iter().flat_map(Map::keys) {
                        self.check(rule, &Value::from(name.as_str()))?;
                    }
                    true
                }
                "required" => names(rule).all(|name| value.get(name).is_some()),
                "additionalProperties" => {
                    if rule.is_object() {
                        for value in value.as_object().into_iter().flat_map(Map::values) {
                            self.check(rule, value)?;
                        }
                        continue;
                    }
                    assert_eq!(rule, false);
                    let known = schema["properties"].as_object().ok_or("no properties")?;
                    has_only(known, value)
                }
                other => return Err(format!("the keyword {other} is not known here")),
            };
            if !holds {
                return wrong(&format!("breaks {keyword} of"));
            }
        }
        Ok(())
    }

    fn fitting(&self, schemas: &Value, value: &Value) -> usize {
        schemas.as_array().into_iter().flatten().filter(|schema| self.check(schema, value).is_ok()).count()
    }
}

fn names(list: &Value) -> impl Iterator<Item = &str> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str)
}

fn has_only(known: &Map<String, Value>, value: &Value) -> bool {
    value.as_object().is_none_or(|fields| fields.keys().all(|name| known.contains_key(name)))
}

fn bound(rule: &Value) -> u64 {
    rule.as_u64().expect("a bound is an integer")
}

fn length(value: &Value) -> Option<u64> {
    value.as_str().map(|text| text.chars().count() as u64)
}

fn has_type(rule: &Value, value: &Value) -> bool {
    let has = |name: &str| match name {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        // Larger than 64 bits is still an integer; serde_json keeps it as a float.
        "integer" => value.is_u64() || value.is_i64() || value.as_f64().is_some_and(|found| found.fract() == 0.0),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => panic!("the type {other} is not known here"),
    };
    rule.as_str().map_or_else(|| names(rule).any(has), has)
}

fn is_amount(text: &str) -> bool {
    !text.is_empty() && !text.starts_with('0') && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// The patterns of the document, by what they mean.
fn matches(pattern: &str, value: &Value) -> Result<bool, String> {
    let Some(text) = value.as_str() else { return Ok(true) };
    match pattern {
        "^[A-Za-z0-9:._@+/|=~%-]+$" => Ok(LimitKey::new(text).is_ok()),
        "^[A-Za-z0-9:._@+/|=~%{}-]+$" => Ok(AccountName::pattern(text).is_ok()),
        "^(![A-Za-z0-9._@+-]+:)?[A-Za-z0-9:._@+/|=~%-]+$" => Ok(LimitKey::parse_qualified(text).is_ok()),
        "^[A-Za-z0-9:._@+-]+$" => Ok(JobId::new(text).is_ok()),
        "^[A-Za-z0-9._@+-]+$" => Ok(ClientId::new(text).is_ok()),
        ChangeCursor::PATTERN => Ok(text.parse::<ChangeCursor>().is_ok()),
        "^[0-9a-f]{16}$" => Ok(text.len() == 16 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))),
        "^[a-z0-9_]+$" => Ok(AssetName::new(text).is_ok()),
        "^[1-9][0-9]{0,38}$" => Ok(text.len() <= 39 && is_amount(text)),
        "^(0|-?[1-9][0-9]{0,38})$" => Ok(text == "0" || is_amount(text.strip_prefix('-').unwrap_or(text))),
        "^[0-7][0-9A-HJKMNP-TV-Za-hjkmnp-tv-z]{25}$" => Ok(text.parse::<LeaseId>().is_ok()),
        LEASE_ERRORS => Ok(is_lease_error(text)),
        CALL_ERRORS => {
            let by_name = ["missing_attribute:", "denied_by_rule:", "no_price:"];
            let is_by_policy = text == "no_rule" || by_name.iter().any(|code| text.starts_with(code));
            Ok(is_by_policy || is_lease_error(text))
        }
        "^[a-z][a-z0-9_]*$" => Ok(earmark_core::check_attribute_name(text).is_ok()),
        other => Err(format!("the pattern {other} is not known here")),
    }
}

const LEASE_ERRORS: &str = "^(|invalid_request|lease_expired|overloaded|backend_error|(unknown_limit_key|limit_decreasing|limit_paused|insufficient_credit|account_not_found|exceeds_capacity|quota_exceeded):(![A-Za-z0-9._@+-]+:)?[A-Za-z0-9:._@+/|=~%-]+)$";
const CALL_ERRORS: &str = "^(|invalid_request|lease_expired|overloaded|backend_error|(unknown_limit_key|limit_decreasing|limit_paused|insufficient_credit|account_not_found|exceeds_capacity|quota_exceeded):(![A-Za-z0-9._@+-]+:)?[A-Za-z0-9:._@+/|=~%-]+|no_rule|(missing_attribute|denied_by_rule):[A-Za-z0-9._@+-]+|no_price:.+)$";

fn is_lease_error(text: &str) -> bool {
    let by_key = [
        "unknown_limit_key:",
        "limit_decreasing:",
        "limit_paused:",
        "insufficient_credit:",
        "account_not_found:",
        "exceeds_capacity:",
        "quota_exceeded:",
    ];
    let is_key = |key: &str| LimitKey::parse_qualified(key).is_ok();
    let is_by_key = by_key.iter().any(|code| text.strip_prefix(code).is_some_and(is_key));
    let alone = ["", "invalid_request", "lease_expired", "overloaded", "backend_error"];
    is_by_key || alone.contains(&text)
}

#[test]
fn the_checker_refuses_what_breaks_a_schema() {
    use serde_json::json;

    let schemas = Schemas(json!({"components": {"schemas": {"Count": {"type": "integer", "minimum": 1}}}}));
    let list = json!({"type": "array", "minItems": 1, "items": {"$ref": "#/components/schemas/Count"}});
    let object = json!({
        "type": "object",
        "required": ["a"],
        "properties": {"a": {"oneOf": [{"const": 1}, {"type": ["string", "null"], "maxLength": 1}]}},
        "additionalProperties": false,
    });
    for (schema, value, is_right) in [
        (&list, json!([1, 2]), true),
        (&list, json!([]), false),
        (&list, json!([0]), false),
        (&list, json!(["1"]), false),
        (&object, json!({"a": 1}), true),
        (&object, json!({"a": null}), true),
        (&object, json!({"a": "bc"}), false),
        (&object, json!({"a": 2}), false),
        (&object, json!({}), false),
        (&object, json!({"a": 1, "b": 1}), false),
        (&json!({"unheard_of": 1}), json!(1), false),
    ] {
        assert_eq!(schemas.check(schema, &value).is_ok(), is_right, "{schema} {value}");
    }
}
