//! JSON, with the lines of its values.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

use super::lines::Lines;
use super::tree::{DEPTH_MAX, Entry, Mistake, Node, Tree, map};

pub(super) fn parse(text: &str) -> Result<Node, Mistake> {
    let raw: &RawValue = serde_json::from_str(text).map_err(|error| mistake(&error, 0))?;
    Reader { text, lines: Lines::of(text) }.node(raw, DEPTH_MAX)
}

fn mistake(error: &serde_json::Error, lines_before: usize) -> Mistake {
    let message = error.to_string();
    let place = format!(" at line {} column {}", error.line(), error.column());
    let message = message.strip_suffix(&place).unwrap_or(&message);
    Mistake::new(error.line().saturating_add(lines_before).max(1), format_args!("not valid JSON: {message}"))
}

struct Reader<'a> {
    text: &'a str,
    lines: Lines,
}

impl<'a> Reader<'a> {
    /// The line of a part of the text.
    fn line(&self, part: &str) -> usize {
        self.lines.at((part.as_ptr() as usize).saturating_sub(self.text.as_ptr() as usize))
    }

    fn node(&self, raw: &'a RawValue, depth: usize) -> Result<Node, Mistake> {
        let line = self.line(raw.get());
        let Some(depth) = depth.checked_sub(1) else {
            return Err(Mistake::new(line, format_args!("nested more than {DEPTH_MAX} levels deep")));
        };
        let wrong = |error: serde_json::Error| mistake(&error, line.saturating_sub(1));
        let value = match raw.get().as_bytes().first() {
            Some(b'{') => {
                let Fields(fields) = serde_json::from_str(raw.get()).map_err(wrong)?;
                let entry = |(name, raw): (String, &'a RawValue)| {
                    let node = self.node(raw, depth)?;
                    Ok(Entry { line: node.line, name, node })
                };
                map(fields.into_iter().map(entry).collect::<Result<_, _>>()?)?
            }
            Some(b'[') => {
                let items: Vec<&'a RawValue> = serde_json::from_str(raw.get()).map_err(wrong)?;
                Tree::List(items.into_iter().map(|item| self.node(item, depth)).collect::<Result<_, _>>()?)
            }
            _ => Tree::Scalar(serde_json::from_str::<Value>(raw.get()).map_err(wrong)?),
        };
        Ok(Node { line, value })
    }
}

/// The fields of an object, in order, repeated ones included.
struct Fields<'a>(Vec<(String, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for Fields<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Fields<'a>, D::Error> {
        struct Read;

        impl<'de> Visitor<'de> for Read {
            type Value = Vec<(String, &'de RawValue)>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut fields = Vec::new();
                while let Some(field) = map.next_entry()? {
                    fields.push(field);
                }
                Ok(fields)
            }
        }

        deserializer.deserialize_map(Read).map(Fields)
    }
}
