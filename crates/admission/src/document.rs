//! The JSON form of a limit, in the limits file and in the HTTP API.

use std::fmt;

use earmark_core::{
    AccountName, AssetName, CreditTerms, Definition, HOLD_SECONDS_MAX, Kind, LOOKS_LIKE_API_KEY, LimitKey, NameError,
    OnTimeout, Overage, Period, Template, UTC_OFFSET_MINUTES, VaultName, contains_api_key,
};
use serde::de::value::MapAccessDeserializer;
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

/// A template as JSON: a limit whose key, and account for credit, may have placeholders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TemplateDocument(Template);

impl TemplateDocument {
    /// The JSON form of a template.
    #[must_use]
    pub fn of(template: &Template) -> TemplateDocument {
        TemplateDocument(template.clone())
    }

    /// The template.
    #[must_use]
    pub fn into_template(self) -> Template {
        self.0
    }
}

impl<'de> Deserialize<'de> for TemplateDocument {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<TemplateDocument, D::Error> {
        deserializer.deserialize_map(Object(|fields| fields.template().map(TemplateDocument)))
    }
}

impl Serialize for TemplateDocument {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        LimitDocument::of(self.0.definition()).serialize(serializer)
    }
}

/// A limit, or a template if its key has a placeholder.
pub(crate) struct AnyDocument(pub(crate) Definition);

impl<'de> Deserialize<'de> for AnyDocument {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<AnyDocument, D::Error> {
        deserializer.deserialize_map(Object(|fields| {
            let definition = match fields.key.as_str() {
                Some(key) if key.contains('{') => fields.template().map(Template::into_definition),
                _ => fields.limit(),
            };
            definition.map(AnyDocument)
        }))
    }
}

/// A limit as JSON. Parsing rejects unknown fields and values out of range; the error names the field, the value found
/// and the values allowed. Serializing omits fields that the kind does not have, and `shared` and `enforce` if they have
/// their defaults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitDocument(Definition);

impl LimitDocument {
    /// The JSON form of a definition.
    #[must_use]
    pub fn of(definition: &Definition) -> LimitDocument {
        LimitDocument(definition.clone())
    }

    /// The validated definition.
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
        // A derived implementation would also accept an array.
        deserializer.deserialize_map(Object(|fields| fields.limit().map(LimitDocument)))
    }
}

/// Reads a limit from a JSON object, and names the field that is wrong.
struct Object<T>(fn(&Fields) -> Result<T, String>);

impl<'de, T> Visitor<'de> for Object<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a limit, which is an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
        let fields = Fields::deserialize(MapAccessDeserializer::new(map))?;
        (self.0)(&fields).map_err(A::Error::custom)
    }
}

/// The fields as JSON values, before their types are checked.
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
    period: Value,
    #[serde(default)]
    utc_offset_minutes: Value,
    #[serde(default)]
    vault: Value,
    #[serde(default)]
    account: Value,
    #[serde(default)]
    asset: Value,
    #[serde(default)]
    revenue: Value,
    #[serde(default)]
    on_timeout: Value,
    #[serde(default)]
    unit: Value,
    #[serde(default)]
    description: Value,
    #[serde(default)]
    overage: Value,
    #[serde(default)]
    shared: Value,
    #[serde(default)]
    enforce: Value,
}

impl Fields {
    fn limit(&self) -> Result<Definition, String> {
        let definition = self.definition(LimitKey::new, AccountName::new)?;
        definition.validate().map_err(|error| error.to_string())?;
        Ok(definition)
    }

    fn template(&self) -> Result<Template, String> {
        let definition = self.definition(LimitKey::pattern, AccountName::pattern)?;
        Template::new(definition).map_err(|error| error.to_string())
    }

    /// The definition, whose key and account are parsed by `key` and `account`.
    fn definition(
        &self,
        key: fn(&str) -> Result<LimitKey, NameError>,
        account: fn(&str) -> Result<AccountName, NameError>,
    ) -> Result<Definition, String> {
        let fields = self;
        let key = name("key", &fields.key, key)?.ok_or("key is required")?;
        let kind = fields.kind(account)?;
        let capacity = match kind {
            Kind::Rolling { .. } | Kind::Concurrency { .. } | Kind::Calendar { .. } => capacity(&fields.capacity)?,
            Kind::Credit(_) => 0,
        };
        let overage = match text("overage", &fields.overage)? {
            None | Some("debt") => Overage::Debt,
            Some("deny") => Overage::Deny,
            Some(found) => return Err(format!("overage: found {found:?}, allowed are debt and deny")),
        };
        let unit = free_text("unit", &fields.unit)?;
        let description = free_text("description", &fields.description)?;
        let shared = boolean("shared", &fields.shared)?.unwrap_or(false);
        let enforce = boolean("enforce", &fields.enforce)?.unwrap_or(true);
        Ok(Definition { key, kind, capacity, unit, description, overage, shared, enforce })
    }

    /// The kind with its fields. Fields of other kinds must be absent.
    fn kind(&self, account: fn(&str) -> Result<AccountName, NameError>) -> Result<Kind, String> {
        let of_credit = [
            ("vault", &self.vault),
            ("account", &self.account),
            ("asset", &self.asset),
            ("revenue", &self.revenue),
            ("on_timeout", &self.on_timeout),
        ];
        let window = ("window_seconds", &self.window_seconds);
        let timeout = ("timeout_seconds", &self.timeout_seconds);
        let of_calendar = [("period", &self.period), ("utc_offset_minutes", &self.utc_offset_minutes)];
        match text("kind", &self.kind)? {
            Some("rolling") => {
                absent("rolling", of_credit.into_iter().chain([timeout]).chain(of_calendar))?;
                Ok(Kind::Rolling { window_seconds: seconds("rolling", window)? })
            }
            Some("concurrency") => {
                absent("concurrency", of_credit.into_iter().chain([window]).chain(of_calendar))?;
                Ok(Kind::Concurrency { timeout_seconds: seconds("concurrency", timeout)? })
            }
            Some("calendar") => {
                absent("calendar", of_credit.into_iter().chain([window, timeout]))?;
                self.calendar()
            }
            Some("credit") => {
                absent("credit", [window, ("capacity", &self.capacity)].into_iter().chain(of_calendar))?;
                self.terms(seconds("credit", timeout)?, account).map(Kind::Credit)
            }
            _ => Err(format!("kind: found {}, allowed are rolling, concurrency, calendar and credit", self.kind)),
        }
    }

    fn calendar(&self) -> Result<Kind, String> {
        let name = text("period", &self.period)?.ok_or("period is required for a calendar limit")?;
        let period = Period::from_name(name)
            .ok_or_else(|| format!("period: found {name:?}, allowed are hour, day, week and month"))?;
        let offset = &self.utc_offset_minutes;
        let utc_offset_minutes = match offset {
            Value::Null => 0,
            offset => (offset.as_i64().and_then(|minutes| i16::try_from(minutes).ok()))
                .filter(|minutes| UTC_OFFSET_MINUTES.contains(minutes))
                .ok_or_else(|| format!("utc_offset_minutes: found {offset}, allowed are integers from -720 to 840"))?,
        };
        Ok(Kind::Calendar { period, utc_offset_minutes })
    }

    fn terms(
        &self,
        timeout_seconds: u32,
        account: fn(&str) -> Result<AccountName, NameError>,
    ) -> Result<CreditTerms, String> {
        let missing = |field: &str| format!("{field} is required for a credit limit");
        let vault = name("vault", &self.vault, VaultName::new)?.ok_or_else(|| missing("vault"))?;
        let account = name("account", &self.account, account)?.ok_or_else(|| missing("account"))?;
        let asset = name("asset", &self.asset, AssetName::new)?.ok_or_else(|| missing("asset"))?;
        let revenue = match name("revenue", &self.revenue, AccountName::new)? {
            Some(revenue) => revenue,
            None => AccountName::new(AccountName::REVENUE).map_err(|error| error.to_string())?,
        };
        let on_timeout = match text("on_timeout", &self.on_timeout)? {
            None => OnTimeout::Release,
            Some(found) => OnTimeout::from_name(found)
                .ok_or_else(|| format!("on_timeout: found {found:?}, allowed are release and charge"))?,
        };
        Ok(CreditTerms { timeout_seconds, vault, account, asset, revenue, on_timeout })
    }
}

fn name<T>(field: &str, value: &Value, new: impl Fn(&str) -> Result<T, NameError>) -> Result<Option<T>, String> {
    text(field, value)?.map(new).transpose().map_err(|error| format!("{field}: {}", error.mistake))
}

fn capacity(value: &Value) -> Result<u64, String> {
    value
        .as_u64()
        .filter(|capacity| *capacity > 0)
        .ok_or_else(|| format!("capacity: found {value}, allowed are integers from 1 to {}", u64::MAX))
}

fn text<'a>(field: &str, value: &'a Value) -> Result<Option<&'a str>, String> {
    match value {
        Value::Null => Ok(None),
        Value::String(text) => Ok(Some(text)),
        other => Err(format!("{field}: found {other}, allowed is a string")),
    }
}

fn boolean(field: &str, value: &Value) -> Result<Option<bool>, String> {
    match value {
        Value::Null => Ok(None),
        Value::Bool(value) => Ok(Some(*value)),
        other => Err(format!("{field}: found {other}, allowed are true and false")),
    }
}

/// A text for people, empty by default, without API keys.
fn free_text(field: &str, value: &Value) -> Result<String, String> {
    let text = text(field, value)?.unwrap_or_default();
    if contains_api_key(text) { Err(format!("{field}: {LOOKS_LIKE_API_KEY}")) } else { Ok(text.to_owned()) }
}

fn seconds(kind: &str, (field, value): (&str, &Value)) -> Result<u32, String> {
    if value.is_null() {
        return Err(format!("{field} is required for a {kind} limit"));
    }
    let seconds = value.as_u64().and_then(|seconds| u32::try_from(seconds).ok());
    seconds
        .filter(|seconds| (1..=HOLD_SECONDS_MAX).contains(seconds))
        .ok_or_else(|| format!("{field}: found {value}, allowed are integers from 1 to {HOLD_SECONDS_MAX} (366 days)"))
}

fn absent<'a>(kind: &str, fields: impl IntoIterator<Item = (&'a str, &'a Value)>) -> Result<(), String> {
    match fields.into_iter().find(|(_, value)| !value.is_null()) {
        Some((field, found)) => Err(format!("{field}: found {found}, but a {kind} limit has none")),
        None => Ok(()),
    }
}

/// The fields that are serialized.
#[derive(Serialize)]
struct Written<'a> {
    key: &'a str,
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    capacity: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    window_seconds: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timeout_seconds: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    period: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    utc_offset_minutes: Option<i16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    vault: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    account: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    asset: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    revenue: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    on_timeout: Option<&'static str>,
    unit: &'a str,
    description: &'a str,
    overage: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    shared: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    enforce: Option<bool>,
}

impl Serialize for LimitDocument {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Definition { key, kind, capacity, unit, description, overage, shared, enforce } = &self.0;
        let (kind, capacity, window_seconds, timeout_seconds) = match kind {
            Kind::Rolling { window_seconds } => ("rolling", Some(*capacity), Some(*window_seconds), None),
            Kind::Concurrency { timeout_seconds } => ("concurrency", Some(*capacity), None, Some(*timeout_seconds)),
            Kind::Calendar { .. } => ("calendar", Some(*capacity), None, None),
            Kind::Credit(terms) => ("credit", None, None, Some(terms.timeout_seconds)),
        };
        let terms = self.0.kind.terms();
        let calendar = match self.0.kind {
            Kind::Calendar { period, utc_offset_minutes } => Some((period, utc_offset_minutes)),
            Kind::Rolling { .. } | Kind::Concurrency { .. } | Kind::Credit(_) => None,
        };
        let written = Written {
            key: key.as_str(),
            kind,
            capacity,
            window_seconds,
            timeout_seconds,
            period: calendar.map(|(period, _)| period.as_str()),
            utc_offset_minutes: calendar.map(|(_, minutes)| minutes),
            vault: terms.map(|terms| terms.vault.as_str()),
            account: terms.map(|terms| terms.account.as_str()),
            asset: terms.map(|terms| terms.asset.as_str()),
            revenue: terms.map(|terms| terms.revenue.as_str()),
            on_timeout: terms.map(|terms| terms.on_timeout).filter(|on| *on != OnTimeout::Release).map(OnTimeout::name),
            unit,
            description,
            overage: match overage {
                Overage::Debt => "debt",
                Overage::Deny => "deny",
            },
            shared: shared.then_some(true),
            enforce: (!enforce).then_some(false),
        };
        written.serialize(serializer)
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
        for json in [
            r#"{"key":"a:rpm","kind":"rolling","capacity":5,"window_seconds":60,"unit":"requests","description":"","overage":"deny"}"#,
            r#"{"key":"a","kind":"concurrency","capacity":5,"timeout_seconds":60,"unit":"","description":"","overage":"debt"}"#,
            r#"{"key":"a:tpd","kind":"calendar","capacity":5,"period":"month","utc_offset_minutes":-300,"unit":"","description":"","overage":"debt","shared":true,"enforce":false}"#,
            r#"{"key":"a:usd","kind":"credit","timeout_seconds":60,"vault":"main","account":"acme","asset":"usd","revenue":"shop","unit":"","description":"","overage":"debt"}"#,
            r#"{"key":"a:usd","kind":"credit","timeout_seconds":60,"vault":"main","account":"acme","asset":"usd","revenue":"shop","on_timeout":"charge","unit":"","description":"","overage":"debt"}"#,
        ] {
            assert_eq!(serde_json::to_string(&read(json).unwrap()).unwrap(), json);
        }
    }

    #[test]
    fn a_document_needs_only_what_has_no_default() {
        let document = read(r#"{"key":"a","kind":"concurrency","capacity":1,"timeout_seconds":30}"#).unwrap();
        assert_eq!(document.into_definition().overage, Overage::Debt);
        let calendar = r#"{"key":"a","kind":"calendar","capacity":1,"period":"day","shared":false,"enforce":true}"#;
        let definition = read(calendar).unwrap().into_definition();
        assert_eq!(definition.kind, Kind::Calendar { period: Period::Day, utc_offset_minutes: 0 });
        assert_eq!((definition.shared, definition.enforce), (false, true));
        let credit = r#"{"key":"a","kind":"credit","timeout_seconds":30,"vault":"main","account":"b","asset":"usd"}"#;
        let definition = read(credit).unwrap().into_definition();
        assert_eq!(definition.kind.terms().unwrap().revenue.as_str(), "revenue");
        assert_eq!(definition.capacity, 0);
    }

    #[test]
    fn what_is_wrong_is_said_by_field() {
        let rolling = |rest: &str| format!(r#"{{"key":"a","kind":"rolling",{rest}}}"#);
        let credit = |rest: &str| {
            format!(r#"{{"key":"a","kind":"credit","timeout_seconds":1,"vault":"main","account":"b"{rest}}}"#)
        };
        let calendar = |rest: &str| format!(r#"{{"key":"a","kind":"calendar","capacity":1{rest}}}"#);
        for (json, message) in [
            (r#"{"kind":"rolling"}"#.into(), "key is required"),
            (r#"{"key":"a!b","kind":"rolling"}"#.into(), "key: found '!' at byte 1"),
            (r#"{"key":5}"#.into(), "key: found 5, allowed is a string"),
            (r#"{"key":"a","kind":"bursty"}"#.into(), "kind: found \"bursty\", allowed are rolling"),
            (rolling(r#""capacity":1"#), "window_seconds is required for a rolling limit"),
            (rolling(r#""capacity":1,"window_seconds":0"#), "window_seconds: found 0, allowed are integers from 1"),
            (rolling(r#""capacity":1,"window_seconds":31622401"#), "window_seconds: found 31622401"),
            (rolling(r#""capacity":1,"window_seconds":1.5"#), "window_seconds: found 1.5"),
            (rolling(r#""capacity":0,"window_seconds":1"#), "capacity: found 0, allowed are integers from 1"),
            (rolling(r#""capacity":"5","window_seconds":1"#), "capacity: found \"5\""),
            (rolling(r#""capacity":-5,"window_seconds":1"#), "capacity: found -5"),
            (
                rolling(r#""capacity":18446744073709551616,"window_seconds":1"#),
                "capacity: found 1.8446744073709552e+19",
            ),
            (rolling(r#""capacity":1,"window_seconds":1,"timeout_seconds":1"#), "timeout_seconds: found 1, but"),
            (
                rolling(r#""capacity":1,"window_seconds":1,"vault":"main""#),
                "vault: found \"main\", but a rolling limit has none",
            ),
            (calendar(""), "period is required for a calendar limit"),
            (calendar(r#","period":"year""#), "period: found \"year\", allowed are hour, day, week and month"),
            (calendar(r#","period":1"#), "period: found 1, allowed is a string"),
            (calendar(r#","period":"day","utc_offset_minutes":841"#), "utc_offset_minutes: found 841, allowed are"),
            (calendar(r#","period":"day","utc_offset_minutes":-721"#), "utc_offset_minutes: found -721"),
            (calendar(r#","period":"day","utc_offset_minutes":0.5"#), "utc_offset_minutes: found 0.5"),
            (
                calendar(r#","period":"day","window_seconds":1"#),
                "window_seconds: found 1, but a calendar limit has none",
            ),
            (calendar(r#","period":"day","timeout_seconds":1"#), "timeout_seconds: found 1, but a calendar limit"),
            (rolling(r#""capacity":1,"window_seconds":1,"period":"day""#), "period: found \"day\", but a rolling"),
            (rolling(r#""capacity":1,"window_seconds":1,"shared":1"#), "shared: found 1, allowed are true and false"),
            (rolling(r#""capacity":1,"window_seconds":1,"enforce":"no""#), "enforce: found \"no\", allowed are true"),
            (credit(r#","asset":"usd","shared":true"#), "shared: found true, allowed is false"),
            (credit(r#","asset":"usd","enforce":false"#), "enforce: found false, allowed is true"),
            (credit(r#","asset":"usd","utc_offset_minutes":0"#), "utc_offset_minutes: found 0, but a credit limit"),
            (credit(""), "asset is required for a credit limit"),
            (credit(r#","asset":"USD""#), "asset: found 'U' at byte 0"),
            (credit(r#","asset":"usd","capacity":1"#), "capacity: found 1, but a credit limit has none"),
            (credit(r#","asset":"usd","window_seconds":1"#), "window_seconds: found 1, but a credit limit"),
            (credit(r#","asset":"usd","revenue":"a b""#), "revenue: found ' ' at byte 1"),
            (
                credit(r#","asset":"usd","on_timeout":"keep""#),
                "on_timeout: found \"keep\", allowed are release and charge",
            ),
            (
                rolling(r#""capacity":1,"window_seconds":1,"on_timeout":"charge""#),
                "on_timeout: found \"charge\", but a rolling limit has none",
            ),
            (credit("").replace("\"main\"", "null"), "vault is required for a credit limit"),
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
