//! Explains what is wrong with a body.

use std::borrow::Cow;
use std::fmt;

use earmark_admission::{ChangeCursor, ChangeCursorError};
use earmark_core::{LOOKS_LIKE_API_KEY, contains_api_key};
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::{DEFINITION_FIELDS, Field, LIMIT_KINDS, Name, Shape, TEMPLATE_FIELDS, credit};

/// Characters of a found value that a message repeats.
const FOUND_CHARS_MAX: usize = 64;

impl Shape {
    /// The first mistake in `body`; `None` if it has none.
    pub(in crate::http) fn explain(&self, body: &[u8]) -> Option<String> {
        match serde_json::from_slice::<&RawValue>(body) {
            Ok(raw) => self.check(&FieldPath::Body, raw),
            Err(_) if body.is_empty() => Some("body: found nothing, allowed is one JSON object".into()),
            Err(error) => Some(format!("body: found no JSON ({error}), allowed is one JSON object")),
        }
    }

    fn check(&self, path: &FieldPath<'_>, raw: &RawValue) -> Option<String> {
        match self {
            Shape::Integer { min, max } => {
                let is_allowed = raw.get().parse::<u64>().is_ok_and(|integer| (*min..=*max).contains(&integer));
                (!is_allowed).then(|| {
                    format!("{path}: found {}, allowed are integers from {min} to {max}", Shortened(raw.get()))
                })
            }
            Shape::Signed { min, max } => {
                let is_allowed = raw.get().parse::<i64>().is_ok_and(|integer| (*min..=*max).contains(&integer));
                (!is_allowed).then(|| {
                    format!("{path}: found {}, allowed are integers from {min} to {max}", Shortened(raw.get()))
                })
            }
            Shape::Boolean => (!matches!(raw.get(), "true" | "false"))
                .then(|| format!("{path}: found {}, allowed are true and false", Shortened(raw.get()))),
            Shape::Name(name) => match text(raw) {
                Some(text) => name.explain(path, &text),
                None => Some(format!("{path}: found {}, allowed is a text", Shortened(raw.get()))),
            },
            Shape::Lease => lease(path, raw),
            Shape::Text { bytes_max } => match text(raw) {
                Some(text) if contains_api_key(&text) => Some(format!("{path}: {LOOKS_LIKE_API_KEY}")),
                Some(text) if text.len() <= *bytes_max => None,
                Some(text) => Some(format!("{path}: found {} bytes, allowed are up to {bytes_max}", text.len())),
                None => Some(format!("{path}: found {}, allowed is a text", Shortened(raw.get()))),
            },
            Shape::Choice(texts) | Shape::Choices(texts) => {
                let is_allowed = text(raw).is_some_and(|text| texts.contains(&text.as_ref()));
                (!is_allowed).then(|| format!("{path}: found {}, allowed are {}", Shortened(raw.get()), Listed(texts)))
            }
            Shape::ChoiceOr(_, fields) if raw.get().starts_with('{') => object(path, raw, fields),
            Shape::ChoiceOr(texts, fields) => {
                let is_allowed = text(raw).is_some_and(|text| texts.contains(&text.as_ref()));
                let (found, listed) = (Shortened(raw.get()), Listed(texts));
                (!is_allowed).then(|| {
                    format!("{path}: found {found}, allowed are {listed}, or an object with {}", Names(fields))
                })
            }
            Shape::List { item, min, max } => list(path, raw, item, *min..=*max),
            Shape::Object(fields) => object(path, raw, fields),
            Shape::Limit => object(path, raw, DEFINITION_FIELDS).or_else(|| limit(path, raw)),
            Shape::Template => object(path, raw, TEMPLATE_FIELDS).or_else(|| limit(path, raw)),
            Shape::OneOf(fields) => one_of(path, raw, fields),
            Shape::Texts { .. } => texts(path, raw),
            Shape::LogPosition => {
                let wrong = |error| format!("{path}: found {}, {error}", Shortened(raw.get()));
                text(raw).ok_or(ChangeCursorError).and_then(|text| text.parse::<ChangeCursor>()).err().map(wrong)
            }
            Shape::Credit { max } => credit(raw.get()).filter(|amount| amount <= max).is_none().then(|| {
                format!(
                    "{path}: found {}, allowed are integers from 1 to {max}, also as a text such as \"5000000\"",
                    Shortened(raw.get())
                )
            }),
        }
    }
}

impl Name {
    /// The mistake in a name, if it has one.
    pub(in crate::http) fn explain(&self, path: &impl fmt::Display, text: &str) -> Option<String> {
        let error = (self.check)(text).err()?;
        Some(format!("{path}: {}", error.mistake))
    }
}

fn lease(path: &FieldPath<'_>, raw: &RawValue) -> Option<String> {
    let Some(text) = text(raw) else {
        return Some(format!("{path}: found {}, allowed is a ULID as a text", Shortened(raw.get())));
    };
    let error = text.parse::<earmark_core::LeaseId>().err()?.to_string();
    Some(format!("{path}: {}", error.strip_prefix("lease_id: ").unwrap_or(&error)))
}

fn list(
    path: &FieldPath<'_>,
    raw: &RawValue,
    item: &Shape,
    allowed: std::ops::RangeInclusive<usize>,
) -> Option<String> {
    let Ok(items) = serde_json::from_str::<Vec<&RawValue>>(raw.get()) else {
        return Some(format!("{path}: found {}, allowed is a list", Shortened(raw.get())));
    };
    let mut keys: Vec<Cow<'_, str>> = Vec::new();
    for (index, raw) in items.iter().enumerate().take(*allowed.end()) {
        let path = FieldPath::Item { list: path, index };
        if let Some(wrong) = item.check(&path, raw) {
            return Some(wrong);
        }
        let Some(key) = key(item, raw) else { continue };
        if let Some(first) = keys.iter().position(|earlier| *earlier == key) {
            return Some(format!("{path}.key: found {key:?} as in item {first}, allowed is each key once"));
        }
        keys.push(key);
    }
    let (found, min, max) = (items.len(), allowed.start(), allowed.end());
    (!allowed.contains(&found)).then(|| format!("{path}: found {found} items, allowed are {min} to {max}"))
}

/// The key of a valid item that has one.
fn key<'a>(item: &Shape, raw: &'a RawValue) -> Option<Cow<'a, str>> {
    let Shape::Object(fields) = item else { return None };
    fields.iter().find(|field| field.name == "key")?;
    let Members(members) = serde_json::from_str(raw.get()).ok()?;
    let of = |wanted: &str| members.iter().find(|(name, _)| name == wanted).and_then(|(_, raw)| text(raw));
    let key = of("key")?;
    Some(of("namespace").map_or(key.clone(), |namespace| Cow::Owned(format!("!{namespace}:{key}"))))
}

fn object(path: &FieldPath<'_>, raw: &RawValue, fields: &'static [Field]) -> Option<String> {
    let Ok(Members(members)) = serde_json::from_str::<Members<'_>>(raw.get()) else {
        let found = Shortened(raw.get());
        return Some(format!("{path}: found {found}, allowed is an object with {}", Names(fields)));
    };
    for (position, (name, raw)) in members.iter().enumerate() {
        let inside = FieldPath::Field { object: path, name };
        let Some(field) = fields.iter().find(|field| field.name == name) else {
            return Some(format!("{inside}: found an unknown field, allowed are {}", Names(fields)));
        };
        if members[..position].iter().any(|(earlier, _)| earlier == name) {
            return Some(format!("{inside}: found it twice, allowed is each field once"));
        }
        let is_absent = !field.is_required && raw.get() == "null";
        if !is_absent && let Some(wrong) = field.shape.check(&inside, raw) {
            return Some(wrong);
        }
    }
    let is_there = |field: &&Field| members.iter().any(|(name, _)| name == field.name);
    let missing = fields.iter().filter(|field| field.is_required).find(|field| !is_there(field))?;
    let inside = FieldPath::Field { object: path, name: missing.name };
    Some(format!("{inside} is required"))
}

/// Checks that a limit has the fields of its kind.
fn limit(path: &FieldPath<'_>, raw: &RawValue) -> Option<String> {
    let Members(members) = serde_json::from_str(raw.get()).ok()?;
    let given = |name: &str| {
        let found = members.iter().find(|(found, _)| found == name).map(|(_, raw)| *raw);
        found.filter(|raw| raw.get() != "null")
    };
    let name = text(given("kind")?)?;
    let kind = LIMIT_KINDS.iter().find(|kind| kind.name == name)?;
    for field in kind.lacks {
        if let Some(raw) = given(field) {
            let (inside, found) = (FieldPath::Field { object: path, name: field }, Shortened(raw.get()));
            return Some(format!("{inside}: found {found}, but a {name} limit has none"));
        }
    }
    let missing = kind.needs.iter().find(|field| given(field).is_none())?;
    let inside = FieldPath::Field { object: path, name: missing };
    Some(format!("{inside} is required for a {name} limit"))
}

/// Checks that attributes or labels are texts by name. The request checks the names and the values.
fn texts(path: &FieldPath<'_>, raw: &RawValue) -> Option<String> {
    let Ok(Members(members)) = serde_json::from_str::<Members<'_>>(raw.get()) else {
        return Some(format!("{path}: found {}, allowed is an object of texts", Shortened(raw.get())));
    };
    members.iter().find(|(_, raw)| text(raw).is_none()).map(|(name, raw)| {
        let inside = FieldPath::Field { object: path, name };
        format!("{inside}: found {}, allowed is a text", Shortened(raw.get()))
    })
}

fn one_of(path: &FieldPath<'_>, raw: &RawValue, fields: &'static [Field]) -> Option<String> {
    let members = match serde_json::from_str::<Members<'_>>(raw.get()) {
        Ok(Members(members)) => members,
        Err(_) => {
            let found = Shortened(raw.get());
            return Some(format!("{path}: found {found}, allowed is an object with one of {}", Names(fields)));
        }
    };
    for (name, raw) in &members {
        let inside = FieldPath::Field { object: path, name };
        let Some(field) = fields.iter().find(|field| field.name == name) else {
            return Some(format!("{inside}: found an unknown field, allowed is one of {}", Names(fields)));
        };
        if let Some(wrong) = field.shape.check(&inside, raw) {
            return Some(wrong);
        }
    }
    let found = members.len();
    (found != 1).then(|| format!("{path}: found {found} fields, allowed is exactly one of {}", Names(fields)))
}

fn text(raw: &RawValue) -> Option<Cow<'_, str>> {
    serde_json::from_str::<Str<'_>>(raw.get()).ok().map(|text| text.0)
}

/// A text, borrowed if it has no escapes.
#[derive(serde::Deserialize)]
struct Str<'a>(#[serde(borrow)] Cow<'a, str>);

/// The members of an object in order, duplicates included.
struct Members<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Members<'de>, D::Error> {
        deserializer.deserialize_map(MembersVisitor)
    }
}

struct MembersVisitor;

impl<'de> Visitor<'de> for MembersVisitor {
    type Value = Members<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members<'de>, A::Error> {
        let mut members = Vec::new();
        while let Some((name, raw)) = map.next_entry::<Str<'de>, &'de RawValue>()? {
            members.push((name.0, raw));
        }
        Ok(Members(members))
    }
}

/// The path of a value in the body: `requests[3].requirements[2].amount`.
enum FieldPath<'a> {
    Body,
    Field { object: &'a FieldPath<'a>, name: &'a str },
    Item { list: &'a FieldPath<'a>, index: usize },
}

impl fmt::Display for FieldPath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FieldPath::Body => f.write_str("body"),
            FieldPath::Field { object: FieldPath::Body, name } => write!(f, "{}", Shortened(name)),
            FieldPath::Field { object, name } => write!(f, "{object}.{}", Shortened(name)),
            FieldPath::Item { list, index } => write!(f, "{list}[{index}]"),
        }
    }
}

/// A found value, shortened.
struct Shortened<'a>(&'a str);

impl fmt::Display for Shortened<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.char_indices().nth(FOUND_CHARS_MAX) {
            Some((end, _)) => write!(f, "{}...", &self.0[..end]),
            None => f.write_str(self.0),
        }
    }
}

/// The names of fields: `key, amount`.
struct Names(&'static [Field]);

impl fmt::Display for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (path, field) in self.0.iter().enumerate() {
            let comma = if path > 0 { ", " } else { "" };
            write!(f, "{comma}{}", field.name)?;
        }
        Ok(())
    }
}

/// Choices: `rolling, concurrency and credit`.
struct Listed(&'static [&'static str]);

impl fmt::Display for Listed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            [] => Ok(()),
            [one] => f.write_str(one),
            [first @ .., last] => write!(f, "{} and {last}", first.join(", ")),
        }
    }
}
