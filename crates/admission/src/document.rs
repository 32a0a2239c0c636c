//! A limit as JSON: in the limits file, and in what clients send and get.

use std::fmt;

use earmark_core::{Definition, HOLD_SECONDS_MAX, Kind, LimitKey, Overage};
use serde::de::value::MapAccessDeserializer;
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

/// A limit as JSON. Reading it refuses unknown fields and whatever is out of bounds, and says which field,
/// what was found and what is allowed. Writing it gives the fields that apply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitDocument(Definition);

impl LimitDocument {
    /// The document of a definition.
    #[must_use]
    pub fn of(definition: &Definition) -> LimitDocument {
        LimitDocument(definition.clone())
    }

    /// The definition, which is within all bounds.
    #[must_use]
    pub fn into_definition(self) -> Definition {
        self.0
    }

    /// The key of the limit.
    #[must_use]
    pub fn key(&self) -> &LimitKey {
        &self.0.key
    }
}

impl<'de> Deserialize<'de> for LimitDocument {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<LimitDocument, D::Error> {
        // A derived structure would also take a list of its fields.
        deserializer.deserialize_map(Object)
    }
}

struct Object;

impl<'de> Visitor<'de> for Object {
    type Value = LimitDocument;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a limit, which is an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<LimitDocument, A::Error> {
        let fields = Fields::deserialize(MapAccessDeserializer::new(map))?;
        LimitDocument::try_from(fields).map_err(A::Error::custom)
    }
}

/// The fields as they come, before anything is known of their types.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields {
    #[serde(default)]
    key: Value,
    #[serde(default)]
    kind: Value,
    #[serde(default)]
    capacity: Value,
    #[serde(default)]
    window_seconds: Value,
    #[serde(default)]
    timeout_seconds: Value,
    #[serde(default)]
    unit: Value,
    #[serde(default)]
    description: Value,
    #[serde(default)]
    overage: Value,
}

impl TryFrom<Fields> for LimitDocument {
    type Error = String;

    fn try_from(fields: Fields) -> Result<LimitDocument, String> {
        let key = text("key", &fields.key)?.ok_or("key: found none, a limit needs one")?;
        let key = LimitKey::new(key).map_err(|error| format!("key: {error}"))?;
        let window = seconds("window_seconds", &fields.window_seconds)?;
        let timeout = seconds("timeout_seconds", &fields.timeout_seconds)?;
        let kind = match text("kind", &fields.kind)? {
            Some("rolling") => {
                absent("timeout_seconds", timeout, "rolling limits have window_seconds")?;
                let window_seconds = window.ok_or("window_seconds: found none, a rolling limit needs it")?;
                Kind::Rolling { window_seconds }
            }
            Some("concurrency") => {
                absent("window_seconds", window, "concurrency limits have timeout_seconds")?;
                let timeout_seconds =
                    timeout.ok_or("timeout_seconds: found none, a concurrency limit needs it")?;
                Kind::Concurrency { timeout_seconds }
            }
            _ => return Err(format!("kind: found {}, allowed are rolling and concurrency", fields.kind)),
        };
        let capacity = fields.capacity.as_u64().filter(|capacity| *capacity > 0).ok_or_else(|| {
            format!("capacity: found {}, allowed are integers from 1 to {}", fields.capacity, u64::MAX)
        })?;
        let overage = match text("overage", &fields.overage)? {
            None | Some("debt") => Overage::Debt,
            Some("deny") => Overage::Deny,
            Some(found) => return Err(format!("overage: found {found:?}, allowed are debt and deny")),
        };
        let unit = text("unit", &fields.unit)?.unwrap_or_default().to_owned();
        let description = text("description", &fields.description)?.unwrap_or_default().to_owned();
        let definition = Definition { key, kind, capacity, unit, description, overage };
        definition.validate().map_err(|error| error.to_string())?;
        Ok(LimitDocument(definition))
    }
}

fn text<'a>(field: &str, value: &'a Value) -> Result<Option<&'a str>, String> {
    match value {
        Value::Null => Ok(None),
        Value::String(text) => Ok(Some(text)),
        other => Err(format!("{field}: found {other}, allowed is text")),
    }
}

fn seconds(field: &str, value: &Value) -> Result<Option<u32>, String> {
    if value.is_null() {
        return Ok(None);
    }
    let seconds = value.as_u64().and_then(|seconds| u32::try_from(seconds).ok());
    seconds.filter(|seconds| (1..=HOLD_SECONDS_MAX).contains(seconds)).map(Some).ok_or_else(|| {
        format!("{field}: found {value}, allowed are integers from 1 to {HOLD_SECONDS_MAX} (366 days)")
    })
}

fn absent(field: &str, found: Option<u32>, why: &str) -> Result<(), String> {
    found.map_or(Ok(()), |found| Err(format!("{field}: found {found}, but {why}")))
}

/// What is written.
#[derive(Serialize)]
struct Written<'a> {
    key: &'a str,
    kind: &'static str,
    capacity: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    window_seconds: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timeout_seconds: Option<u32>,
    unit: &'a str,
    description: &'a str,
    overage: &'static str,
}

impl Serialize for LimitDocument {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (kind, window_seconds, timeout_seconds) = match &self.0.kind {
            Kind::Rolling { window_seconds } => ("rolling", Some(*window_seconds), None),
            Kind::Concurrency { timeout_seconds } => ("concurrency", None, Some(*timeout_seconds)),
            Kind::Credit(terms) => ("credit", None, Some(terms.timeout_seconds)),
        };
        let overage = match self.0.overage {
            Overage::Debt => "debt",
            Overage::Deny => "deny",
        };
        let Definition { key, capacity, unit, description, .. } = &self.0;
        let (key, capacity) = (key.as_str(), *capacity);
        Written { key, kind, capacity, window_seconds, timeout_seconds, unit, description, overage }
            .serialize(serializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<LimitDocument, String> {
        serde_json::from_str(json).map_err(|error| error.to_string())
    }

    #[test]
    fn what_was_written_is_read_back() {
        let json = r#"{"key":"a:rpm","kind":"rolling","capacity":5,"window_seconds":60,"unit":"requests","description":"","overage":"deny"}"#;
        assert_eq!(serde_json::to_string(&read(json).unwrap()).unwrap(), json);
    }

    #[test]
    fn a_document_needs_only_what_has_no_default() {
        let document = read(r#"{"key":"a","kind":"concurrency","capacity":1,"timeout_seconds":30}"#).unwrap();
        assert_eq!(document.into_definition().overage, Overage::Debt);
    }

    #[test]
    fn what_is_wrong_is_said_by_field() {
        let rolling = |rest: &str| format!(r#"{{"key":"a","kind":"rolling",{rest}}}"#);
        for (json, message) in [
            (r#"{"kind":"rolling"}"#.into(), "key: found none"),
            (r#"{"key":"a/b","kind":"rolling"}"#.into(), "key: limit key: found '/' at byte 1"),
            (r#"{"key":5}"#.into(), "key: found 5, allowed is text"),
            (r#"{"key":"a","kind":"bursty"}"#.into(), "kind: found \"bursty\", allowed are rolling"),
            (rolling(r#""capacity":1"#), "window_seconds: found none"),
            (
                rolling(r#""capacity":1,"window_seconds":0"#),
                "window_seconds: found 0, allowed are integers from 1",
            ),
            (rolling(r#""capacity":1,"window_seconds":31622401"#), "window_seconds: found 31622401"),
            (rolling(r#""capacity":1,"window_seconds":1.5"#), "window_seconds: found 1.5"),
            (rolling(r#""capacity":0,"window_seconds":1"#), "capacity: found 0, allowed are integers from 1"),
            (rolling(r#""capacity":"5","window_seconds":1"#), "capacity: found \"5\""),
            (rolling(r#""capacity":-5,"window_seconds":1"#), "capacity: found -5"),
            (
                rolling(r#""capacity":18446744073709551616,"window_seconds":1"#),
                "capacity: found 1.8446744073709552e+19",
            ),
            (
                rolling(r#""capacity":1,"window_seconds":1,"timeout_seconds":1"#),
                "timeout_seconds: found 1, but",
            ),
            (rolling(r#""capacity":1,"window_seconds":1,"overage":"free""#), "overage: found \"free\""),
            (rolling(r#""capacity":1,"window_seconds":1,"burst":1"#), "unknown field `burst`"),
            (r#"["a","rolling",1,60]"#.into(), "expected a limit, which is an object"),
            (rolling(r#""capacity":1,"window_seconds":1,"capacity":2"#), "duplicate field `capacity`"),
        ] {
            let error = read(&json).unwrap_err();
            assert!(error.contains(message), "{json}: {error}");
        }
    }
}
