//! The fields of the configuration, with their lines.

use earmark_core::check_attribute_value;
use serde_json::Value;

use super::super::super::tree::{Entry, Mistake, Node, Tree};

/// The units of a limit and their seconds. Those of ratelimit are fixed too: a month has 30 days.
const UNITS: [(&str, u64); 7] = [
    ("second", 1),
    ("minute", 60),
    ("hour", 3_600),
    ("day", 86_400),
    ("week", 7 * 86_400),
    ("month", 30 * 86_400),
    ("year", 365 * 86_400),
];

/// A node of the tree.
#[derive(Debug)]
pub(super) struct Descriptor {
    pub(super) line: usize,
    pub(super) key: String,
    pub(super) matches: Matches,
    pub(super) rate: Option<Rate>,
    /// The names of limits that do not count for a request that reaches this node.
    pub(super) replaces: Vec<String>,
    pub(super) is_shadow: bool,
    /// All values of a prefix count together.
    pub(super) is_shared: bool,
    pub(super) children: Vec<Descriptor>,
}

/// The values that a node matches.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Matches {
    /// Every value, each with a limit of its own.
    Any,
    Exactly(String),
    Prefix(String),
}

/// The limit of a node.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Rate {
    /// No limit. Its name does not matter, because there is nothing to replace.
    Unlimited,
    Limited {
        requests: u64,
        window_seconds: u64,
        name: Option<String>,
    },
}

impl Descriptor {
    /// The keys of the node and of those below it.
    pub(super) fn keys(&self) -> Vec<String> {
        let below = self.children.iter().flat_map(Descriptor::keys);
        std::iter::once(self.key.clone()).chain(below).collect()
    }
}

/// Reads fields, and collects the mistakes.
#[derive(Default)]
pub(super) struct Reader {
    pub(super) mistakes: Vec<Mistake>,
    pub(super) notes: Vec<Mistake>,
}

impl Reader {
    fn wrong(&mut self, line: usize, what: impl std::fmt::Display) {
        self.mistakes.push(Mistake::new(line, what));
    }

    /// The domain with its line, and the descriptors.
    pub(super) fn root(&mut self, root: &Node) -> (Option<(usize, String)>, Vec<Descriptor>) {
        let (mut domain, mut descriptors) = (None, Vec::new());
        for entry in self.fields(root, "the file") {
            match entry.name.as_str() {
                "domain" => domain = self.text(entry).map(|name| (entry.line, name)),
                "descriptors" => descriptors = self.list(entry),
                other => self.wrong(entry.line, format_args!("found {other:?}, allowed are domain and descriptors")),
            }
        }
        if domain.is_none() && self.mistakes.is_empty() {
            self.wrong(root.line, "domain is required");
        }
        (domain, descriptors)
    }

    fn list(&mut self, entry: &Entry) -> Vec<Descriptor> {
        match &entry.node.value {
            Tree::Scalar(Value::Null) => Vec::new(),
            Tree::List(items) => items.iter().filter_map(|item| self.descriptor(item)).collect(),
            Tree::Scalar(_) | Tree::Map(_) => {
                self.wrong(
                    entry.line,
                    format_args!("{}: found {}, allowed is a list", entry.name, entry.node.quoted()),
                );
                Vec::new()
            }
        }
    }

    fn descriptor(&mut self, node: &Node) -> Option<Descriptor> {
        let (mut key, mut value, mut rate, mut replaces) = (None, None, None, Vec::new());
        let (mut is_shadow, mut is_shared, mut children) = (false, false, Vec::new());
        for entry in self.fields(node, "a descriptor") {
            match entry.name.as_str() {
                "key" => key = self.text(entry),
                "value" => value = self.text(entry).filter(|value| !value.is_empty()),
                "rate_limit" => (rate, replaces) = self.rate(entry),
                "descriptors" => children = self.list(entry),
                "shadow_mode" => is_shadow = self.flag(entry),
                "share_threshold" => is_shared = self.flag(entry),
                "metadata" => {
                    let note = "metadata: left out, it only describes an answer";
                    self.notes.push(Mistake::new(entry.line, note));
                }
                name @ ("detailed_metric" | "value_to_metric") => {
                    if self.flag(entry) {
                        let note = format!("{name}: left out, Earmark counts denials by limit and template");
                        self.notes.push(Mistake::new(entry.line, note));
                    }
                }
                "quota_mode" => {
                    if self.flag(entry) {
                        self.wrong(entry.line, "quota_mode: cannot be expressed; let a limit deny, or use shadow_mode");
                    }
                }
                other => self.wrong(
                    entry.line,
                    format_args!(
                        "found {other:?}, allowed are key, value, rate_limit, descriptors, shadow_mode, detailed_metric, \
                         value_to_metric, share_threshold and metadata"
                    ),
                ),
            }
        }
        let Some(key) = key.filter(|key| !key.is_empty()) else {
            self.wrong(node.line, "key is required");
            return None;
        };
        let matches = match value {
            None => Matches::Any,
            Some(value) => match value.strip_suffix('*') {
                Some(prefix) => Matches::Prefix(prefix.to_owned()),
                None => Matches::Exactly(value),
            },
        };
        if let Matches::Exactly(value) | Matches::Prefix(value) = &matches
            && let Err(what) =
                check_attribute_value(value).or_else(|what| if value.is_empty() { Ok(()) } else { Err(what) })
        {
            self.wrong(node.line, format_args!("value: {what}"));
        }
        if let Matches::Exactly(value) | Matches::Prefix(value) = &matches
            && value.contains('*')
        {
            self.wrong(node.line, "value: found * before its end, allowed is one * at the end");
        }
        if is_shared && !matches!(matches, Matches::Prefix(_)) {
            self.wrong(node.line, "share_threshold: allowed only with a value that ends in *");
        }
        Some(Descriptor { line: node.line, key, matches, rate, replaces, is_shadow, is_shared, children })
    }

    /// A limit, and the names of those that it replaces.
    fn rate(&mut self, entry: &Entry) -> (Option<Rate>, Vec<String>) {
        let (mut requests, mut unit, mut multiplier, mut name, mut is_unlimited) = (None, None, 1, None, false);
        let mut replaces = Vec::new();
        for field in self.fields(&entry.node, "rate_limit") {
            match field.name.as_str() {
                "requests_per_unit" => requests = self.number(field),
                "unit" => unit = self.unit(field),
                "unit_multiplier" => multiplier = self.number(field).unwrap_or(1),
                "unlimited" => is_unlimited = self.flag(field),
                "name" => name = self.text(field).filter(|name| !name.is_empty()),
                "replaces" => replaces = self.replaces(field),
                other => self.wrong(
                    field.line,
                    format_args!("found {other:?}, allowed are requests_per_unit, unit, unlimited, name and replaces"),
                ),
            }
        }
        if name.is_some() && replaces.iter().any(|replaced| Some(replaced) == name.as_ref()) {
            self.wrong(entry.line, "replaces: found the limit's own name, allowed are the names of others");
        }
        let rate = match is_unlimited {
            true => Some(Rate::Unlimited),
            false => self.limited(entry, (requests, unit, multiplier), name),
        };
        (rate, replaces)
    }

    fn limited(
        &mut self,
        entry: &Entry,
        (requests, unit, multiplier): (Option<u64>, Option<u64>, u64),
        name: Option<String>,
    ) -> Option<Rate> {
        // A wrong value has its mistake already.
        let has =
            |name| matches!(&entry.node.value, Tree::Map(fields) if fields.iter().any(|field| field.name == name));
        let (has_requests, has_unit) = (has("requests_per_unit"), has("unit"));
        match (requests, unit) {
            (Some(requests), Some(seconds)) => {
                let window_seconds =
                    multiplier.checked_mul(seconds).filter(|seconds| (1..=366 * 86_400).contains(seconds));
                if window_seconds.is_none() {
                    self.wrong(entry.line, "unit_multiplier: found a window that is not from a second to 366 days");
                }
                Some(Rate::Limited { requests, window_seconds: window_seconds?, name })
            }
            (None, _) if !has_requests => {
                self.wrong(entry.line, "requests_per_unit is required");
                None
            }
            (_, None) if !has_unit => {
                self.wrong(entry.line, "unit is required");
                None
            }
            (None, _) | (_, None) => None,
        }
    }

    /// The names in a list of `name: NAME`.
    fn replaces(&mut self, field: &Entry) -> Vec<String> {
        let Tree::List(items) = &field.node.value else {
            self.wrong(field.line, format_args!("replaces: found {}, allowed is a list", field.node.quoted()));
            return Vec::new();
        };
        let mut names = Vec::new();
        for item in items {
            let mut name = None;
            for entry in self.fields(item, "replaces") {
                match entry.name.as_str() {
                    "name" => name = self.text(entry).filter(|name| !name.is_empty()),
                    other => self.wrong(entry.line, format_args!("found {other:?}, allowed is name")),
                }
            }
            match name {
                Some(name) => names.push(name),
                None => self.wrong(item.line, "replaces: name is required"),
            }
        }
        names
    }

    fn unit(&mut self, field: &Entry) -> Option<u64> {
        let text = self.text(field)?;
        let seconds = UNITS.iter().find(|(name, _)| text.eq_ignore_ascii_case(name)).map(|(_, seconds)| *seconds);
        if seconds.is_none() {
            let names = UNITS.map(|(name, _)| name).join(", ");
            self.wrong(field.line, format_args!("unit: found {text:?}, allowed are {names}"));
        }
        seconds
    }

    /// The fields of a map. Anything else is a mistake.
    fn fields<'a>(&mut self, node: &'a Node, what: &str) -> &'a [Entry] {
        match &node.value {
            Tree::Map(entries) => entries,
            Tree::Scalar(_) | Tree::List(_) => {
                self.wrong(node.line, format_args!("{what}: found {}, allowed is a map of fields", node.quoted()));
                &[]
            }
        }
    }

    /// A text. A number or a boolean is one too, as it is in the YAML of ratelimit.
    fn text(&mut self, entry: &Entry) -> Option<String> {
        match &entry.node.value {
            Tree::Scalar(Value::String(text)) => Some(text.clone()),
            Tree::Scalar(value @ (Value::Number(_) | Value::Bool(_))) => Some(value.to_string()),
            Tree::Scalar(Value::Null) => Some(String::new()),
            Tree::Scalar(_) | Tree::List(_) | Tree::Map(_) => {
                self.wrong(
                    entry.line,
                    format_args!("{}: found {}, allowed is a text", entry.name, entry.node.quoted()),
                );
                None
            }
        }
    }

    fn flag(&mut self, entry: &Entry) -> bool {
        match &entry.node.value {
            Tree::Scalar(Value::Bool(flag)) => *flag,
            Tree::Scalar(_) | Tree::List(_) | Tree::Map(_) => {
                let found = entry.node.quoted();
                self.wrong(entry.line, format_args!("{}: found {found}, allowed are true and false", entry.name));
                false
            }
        }
    }

    fn number(&mut self, entry: &Entry) -> Option<u64> {
        let max = u64::from(u32::MAX);
        let number = match &entry.node.value {
            Tree::Scalar(Value::Number(number)) => number.as_u64().filter(|number| *number <= max),
            Tree::Scalar(_) | Tree::List(_) | Tree::Map(_) => None,
        };
        if number.is_none() {
            let found = entry.node.quoted();
            self.wrong(entry.line, format_args!("{}: found {found}, allowed are 0 to {max}", entry.name));
        }
        number
    }
}
