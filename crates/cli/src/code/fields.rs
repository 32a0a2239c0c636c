//! The fields of a definition: their order, and which of them say only what is the default.

use serde_json::{Map, Value};

use super::document::Section;

/// The order in which a definition is shown and exported. Other fields follow by name.
const ORDER: [&str; 17] = [
    "key",
    "kind",
    "capacity",
    "window_seconds",
    "period",
    "utc_offset_minutes",
    "timeout_seconds",
    "on_timeout",
    "vault",
    "account",
    "asset",
    "revenue",
    "unit",
    "description",
    "overage",
    "shared",
    "enforce",
];

/// Names of fields in order, each once.
pub(super) fn ordered<'a>(names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut names: Vec<&str> = names.collect();
    let rank = |name: &str| ORDER.iter().position(|field| *field == name).unwrap_or(ORDER.len());
    names.sort_unstable_by(|a, b| rank(a).cmp(&rank(b)).then_with(|| a.cmp(b)));
    names.dedup();
    names
}

/// The fields that a definition needs, in order: without any of the others it is the same definition.
pub(super) fn needed(section: Section, fields: &Map<String, Value>) -> Vec<(&str, &Value)> {
    let is_needed = |name: &str| {
        let mut without = fields.clone();
        without.remove(name);
        section.canonical(Value::Object(without)).as_ref() != Ok(fields)
    };
    let names = ordered(fields.keys().map(String::as_str)).into_iter().filter(|name| is_needed(name));
    names.filter_map(|name| Some((name, fields.get(name)?))).collect()
}
