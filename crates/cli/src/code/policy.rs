//! Policies in the files: `unmatched`, `rules` and `prices`, which are one document of a server.
//!
//! The fields of such a document are `unmatched`, `rules` and `prices`, with every default and prices in order. In the
//! files some may be missing: then the server keeps what it has.

use std::collections::BTreeMap;
use std::rc::Rc;

use earmark_core::NamespaceName;
use earmark_policy::{Document as PolicyDocument, Policy};
use serde_json::{Map, Value};

use super::document::{Name, Origin, Section, Wanted};
use super::toml;
use super::tree::{Entry, Mistake, Node, Tree};

/// The fields of a policy in a file.
pub(super) const FIELDS: [&str; 3] = ["unmatched", "rules", "prices"];
/// The lists among them.
pub(super) const LISTS: [&str; 2] = ["rules", "prices"];
/// The key of a policy, of which a namespace has one.
const KEY: &str = "policy";

/// The order of the fields of a rule and of a price.
const ORDER: [&str; 19] = [
    "name",
    "when",
    "optional",
    "replaces",
    "deny",
    "limits",
    "model",
    "provider",
    "asset",
    "key",
    "amount",
    "namespace",
    "input_tokens",
    "input",
    "cached_input",
    "cache_write",
    "cache_write_1h",
    "output",
    "reasoning",
];

pub(super) fn name(namespace: &NamespaceName) -> Name {
    Name { namespace: namespace.clone(), section: Section::Policy, key: KEY.to_owned() }
}

/// The policy of a namespace, or its first mistake with the file that has it.
type Checked = Result<Wanted, (Rc<str>, Mistake)>;

/// The parts of policies in all files.
#[derive(Debug, Default)]
pub(super) struct Parts(BTreeMap<NamespaceName, Part>);

#[derive(Debug)]
struct Part {
    unmatched: Option<(Value, Place)>,
    rules: Option<Vec<(Node, Place)>>,
    prices: Option<Vec<(Node, Place)>>,
    first: Place,
}

/// A file and a line.
#[derive(Clone, Debug)]
struct Place {
    file: Rc<str>,
    line: usize,
}

impl Parts {
    /// Adds a field of a file.
    pub(super) fn add(&mut self, file: &Rc<str>, namespace: &NamespaceName, entry: &Entry) -> Result<(), Mistake> {
        let place = |line| Place { file: Rc::clone(file), line };
        let part = self.0.entry(namespace.clone()).or_insert_with(|| Part {
            unmatched: None,
            rules: None,
            prices: None,
            first: place(entry.line),
        });
        let list = match entry.name.as_str() {
            "rules" => &mut part.rules,
            "prices" => &mut part.prices,
            _ => {
                let found = (entry.node.json(), place(entry.line));
                return match part.unmatched.replace(found) {
                    None => Ok(()),
                    Some((_, first)) => {
                        let what = format!("unmatched: also in {}:{}; remove one of them", first.file, first.line);
                        Err(Mistake::new(entry.line, what))
                    }
                };
            }
        };
        let items = super::document::items(entry, "a list")?;
        list.get_or_insert_default().extend(items.iter().map(|item| (item.clone(), place(item.line))));
        Ok(())
    }

    /// The policies of the files, or their mistakes with file and line.
    pub(super) fn checked(self) -> Vec<(NamespaceName, Checked)> {
        self.0.into_iter().map(|(namespace, part)| (namespace.clone(), part.checked(&namespace))).collect()
    }
}

impl Part {
    fn checked(self, namespace: &NamespaceName) -> Checked {
        let mut fields = Map::new();
        if let Some((unmatched, _)) = &self.unmatched {
            fields.insert("unmatched".into(), unmatched.clone());
        }
        let json = |list: &[(Node, Place)]| Value::Array(list.iter().map(|(node, _)| node.json()).collect());
        for (name, list) in [("rules", &self.rules), ("prices", &self.prices)] {
            list.as_ref().map(|list| fields.insert(name.to_owned(), json(list)));
        }
        let text = text(&fields);
        let document = Policy::parse(namespace, &text).and_then(|_| PolicyDocument::parse(&text));
        let document = document.map_err(|mistake| self.placed(&mistake.field, &mistake.what))?;
        let mut canonical = canonical(&document);
        canonical.retain(|name, _| fields.contains_key(name));
        let origin = Origin::new(&self.first.file, self.first.line);
        Ok(Wanted { fields: canonical, origin })
    }

    /// The place of a mistake in a field such as `rules[2].limits[0].key`.
    fn placed(&self, field: &str, what: &str) -> (Rc<str>, Mistake) {
        let named = if field.is_empty() { what.to_owned() } else { format!("{field}: {what}") };
        let item = |list: &Option<Vec<(Node, Place)>>| {
            let (number, rest) = field.split_once('[')?.1.split_once(']')?;
            let (node, place) = list.as_ref()?.get(number.parse::<usize>().ok()?)?.clone();
            let first = rest.trim_start_matches('.').split(['[', '.']).next().unwrap_or_default();
            let line = match &node.value {
                Tree::Map(entries) => entries.iter().find(|entry| entry.name == first).map(|entry| entry.line),
                Tree::List(_) | Tree::Scalar(_) => None,
            };
            Some(Place { line: line.unwrap_or(place.line), ..place })
        };
        let place = match field.split(['[', '.']).next() {
            Some("rules") => item(&self.rules),
            Some("prices") => item(&self.prices),
            _ => self.unmatched.as_ref().map(|(_, place)| place.clone()),
        };
        let Place { file, line } = place.unwrap_or_else(|| self.first.clone());
        (file, Mistake::new(line, named))
    }
}

/// The fields of a policy, with every default.
pub(super) fn canonical(document: &PolicyDocument) -> Map<String, Value> {
    let mut document = document.clone();
    document.prices.sort_by(|one, two| (&one.model, &one.provider).cmp(&(&two.model, &two.provider)));
    let printed = toml::parse(&document.to_string()).map(|node| node.json());
    let mut fields = match printed {
        Ok(Value::Object(fields)) => fields,
        // A printed document reads back.
        Ok(_) | Err(_) => Map::new(),
    };
    fields.entry("unmatched").or_insert_with(|| "refuse".into());
    for list in LISTS {
        fields.entry(list).or_insert_with(|| Value::Array(Vec::new()));
    }
    fields
}

/// The policy that a server shall have: what the files name, and for the rest what it has. Rules and prices that no file
/// names stay behind those of the files, unless they are to be deleted. Returns how many stay.
pub(super) fn merged(
    wanted: Map<String, Value>,
    existing: Option<&Map<String, Value>>,
    prune: bool,
) -> (Map<String, Value>, usize) {
    let mut kept = 0_usize;
    let mut fields = existing.cloned().unwrap_or_else(|| canonical(&PolicyDocument::default()));
    for (name, mut value) in wanted {
        let found = existing.and_then(|existing| existing.get(&name)).and_then(Value::as_array);
        if let (Some(items), Some(found), false) = (value.as_array_mut(), found, prune) {
            let ids: Vec<String> = items.iter().map(id).collect();
            let rest: Vec<Value> = found.iter().filter(|item| !ids.contains(&id(item))).cloned().collect();
            kept = kept.saturating_add(rest.len());
            items.extend(rest);
        }
        fields.insert(name, value);
    }
    // The order of prices does not matter, so it is always the same.
    if let Some(Value::Array(prices)) = fields.get_mut("prices") {
        prices.sort_by_key(id);
    }
    (fields, kept)
}

/// The name of a rule, or the model and provider of a price.
pub(super) fn id(item: &Value) -> String {
    let text = |name: &str| item[name].as_str().unwrap_or_default();
    match (text("name"), text("provider")) {
        ("", "") => text("model").to_owned(),
        ("", provider) => format!("{} of {provider}", text("model")),
        (name, _) => name.to_owned(),
    }
}

/// The rules and prices of `before` that are gone: the number in each list that has some.
pub(super) fn deleted(before: &Map<String, Value>, after: &Map<String, Value>) -> Vec<(&'static str, usize)> {
    let ids = |fields: &Map<String, Value>, list: &str| -> Vec<String> {
        fields.get(list).and_then(Value::as_array).into_iter().flatten().map(id).collect()
    };
    let count = |list: &'static str| {
        let after = ids(after, list);
        (list, ids(before, list).iter().filter(|id| !after.contains(id)).count())
    };
    LISTS.map(count).into_iter().filter(|(_, count)| *count > 0).collect()
}

/// A policy with a field for each rule and price, so that a difference names them.
pub(super) fn flat(fields: &Map<String, Value>) -> Map<String, Value> {
    let mut flat = Map::new();
    for (name, value) in fields {
        let Some(items) = value.as_array() else {
            flat.insert(name.clone(), value.clone());
            continue;
        };
        for item in items {
            flat.insert(format!("{name}.{}", id(item)), item.clone());
        }
        if name == "rules" && items.len() > 1 {
            flat.insert("order of rules".into(), items.iter().map(|item| Value::from(id(item))).collect());
        }
    }
    flat
}

/// The document of a policy's fields, in TOML.
pub(super) fn text(fields: &Map<String, Value>) -> String {
    let mut text = String::new();
    for name in FIELDS {
        if let Some(value) = fields.get(name) {
            text += &format!("{name} = {}\n", inline(value));
        }
    }
    // In the form that people write, if it is right.
    PolicyDocument::parse(&text).map_or(text, |document| document.to_string())
}

/// The fields of a rule or a price in order.
pub(super) fn ordered(item: &Map<String, Value>) -> Vec<(&str, &Value)> {
    let rank = |name: &str| ORDER.iter().position(|field| *field == name).unwrap_or(ORDER.len());
    let mut fields: Vec<(&str, &Value)> = item.iter().map(|(name, value)| (name.as_str(), value)).collect();
    fields.sort_by(|(one, _), (two, _)| rank(one).cmp(&rank(two)).then_with(|| one.cmp(two)));
    fields
}

/// A value in TOML on one line.
pub(super) fn inline(value: &Value) -> String {
    match value {
        Value::String(text) => super::export::quoted(text),
        Value::Array(items) => format!("[{}]", items.iter().map(inline).collect::<Vec<_>>().join(", ")),
        Value::Object(fields) => {
            let field = |(name, value): (&str, &Value)| {
                let is_bare = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte));
                let name = if is_bare && !name.is_empty() { name.to_owned() } else { super::export::quoted(name) };
                format!("{name} = {}", inline(value))
            };
            format!("{{ {} }}", ordered(fields).into_iter().map(field).collect::<Vec<_>>().join(", "))
        }
        // TOML has no null; the document refuses the text.
        Value::Null => "\"\"".to_owned(),
        other => other.to_string(),
    }
}
