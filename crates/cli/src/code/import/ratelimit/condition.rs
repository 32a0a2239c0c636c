//! The conditions on the value of a descriptor among its siblings.

use serde_json::Value;

use super::read::{Descriptor, Matches};

/// The conditions under which a value leads to this sibling and to no other: an exact value comes first, then the first
/// prefix of the file, then the free value.
pub(super) fn of(siblings: &[Descriptor], place: usize) -> Vec<String> {
    let Some(own) = siblings.get(place) else { return Vec::new() };
    let key = &own.key;
    let others = || siblings.iter().enumerate().filter(|(other, sibling)| *other != place && sibling.key == *key);
    let exact = others().filter_map(|(_, sibling)| match &sibling.matches {
        Matches::Exactly(value) => Some(value),
        Matches::Any | Matches::Prefix(_) => None,
    });
    let prefixes = others().filter_map(|(other, sibling)| match &sibling.matches {
        Matches::Prefix(prefix) => Some((other, prefix)),
        Matches::Any | Matches::Exactly(_) => None,
    });
    let not_equal = |value: &String| format!("{key} != {}", text(value));
    let no_prefix = |prefix: &String| format!("!{key}.startsWith({})", text(prefix));
    match &own.matches {
        Matches::Exactly(value) => vec![format!("{key} == {}", text(value))],
        Matches::Prefix(prefix) => {
            let mut all = vec![format!("{key}.startsWith({})", text(prefix))];
            if prefix.is_empty() {
                all = vec![format!("{key} != \"\"")];
            }
            all.extend(exact.filter(|value| value.starts_with(prefix.as_str())).map(not_equal));
            all.extend(prefixes.filter(|(other, _)| *other < place).map(|(_, prefix)| no_prefix(prefix)));
            all
        }
        Matches::Any => {
            let mut all = vec![format!("{key} != \"\"")];
            all.extend(exact.map(not_equal));
            all.extend(prefixes.map(|(_, prefix)| no_prefix(prefix)));
            all
        }
    }
}

/// A text of CEL, which has the escapes of JSON.
fn text(value: &str) -> String {
    Value::String(value.to_owned()).to_string()
}
