//! The YAML of envoyproxy/ratelimit: a tree of descriptors, of which a request follows exactly one path.
//!
//! A node of the tree with a limit becomes a rule. Its condition says that a descriptor has the entries of the path and
//! no other key of the file, and that no sibling is more specific. A value that is free becomes a placeholder. A limit
//! that replaces others by name becomes a rule that replaces theirs, in all descriptors of a request.

mod condition;
mod read;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use earmark_core::{NamespaceName, check_attribute_name};
use earmark_policy::{CONDITION_BYTES_MAX, RULES_MAX, escaped};
use serde_json::{Value, json};

use super::super::tree::{Mistake, Node};
use read::{Descriptor, Matches, Rate};

/// Placeholders of a template.
const PLACEHOLDERS_MAX: usize = 4;

/// The fields of an item of a list, in order.
pub(super) type Item = Vec<(&'static str, Value)>;

/// A converted configuration.
#[derive(Debug)]
pub(super) struct Converted {
    pub(super) namespace: NamespaceName,
    pub(super) limits: Vec<Item>,
    pub(super) templates: Vec<Item>,
    pub(super) rules: Vec<Item>,
    /// Settings that are left out because they do not change decisions.
    pub(super) notes: Vec<Mistake>,
}

/// Converts a configuration.
///
/// # Errors
/// All mistakes, and everything that cannot be expressed.
pub(super) fn convert(root: &Node) -> Result<Converted, Vec<Mistake>> {
    let mut reader = read::Reader::default();
    let (domain, descriptors) = reader.root(root);
    let read::Reader { mut mistakes, notes } = reader;
    let namespace = domain.and_then(|(line, name)| {
        let wrong = |error: earmark_core::NameError| Mistake::new(line, format_args!("domain: {}", error.mistake));
        NamespaceName::new(&name).map_err(|error| mistakes.push(wrong(error))).ok()
    });
    let mut converter = Converter {
        keys: descriptors.iter().flat_map(Descriptor::keys).collect(),
        limits: Vec::new(),
        templates: Vec::new(),
        rules: Vec::new(),
        paths: BTreeMap::new(),
        named: BTreeMap::new(),
        replacing: Vec::new(),
        mistakes,
    };
    converter.level(&descriptors, &[]);
    converter.replace();
    let Converter { limits, templates, rules, mut mistakes, .. } = converter;
    if rules.len() > RULES_MAX {
        mistakes.push(Mistake::new(1, format_args!("found {} limits, a policy has {RULES_MAX} rules", rules.len())));
    }
    mistakes.sort_by_key(|mistake| mistake.line);
    match namespace {
        Some(namespace) if mistakes.is_empty() => Ok(Converted { namespace, limits, templates, rules, notes }),
        Some(_) | None => Err(mistakes),
    }
}

/// One entry of a path.
struct Step<'a> {
    descriptor: &'a Descriptor,
    /// The conditions on its value.
    conditions: Vec<String>,
}

struct Converter {
    /// All keys of the file.
    keys: BTreeSet<String>,
    limits: Vec<Item>,
    templates: Vec<Item>,
    rules: Vec<Item>,
    /// The lines of nodes by the entries of their paths, in order of keys.
    paths: BTreeMap<Vec<String>, usize>,
    /// The names of rules by the names of their limits, of which several may share one.
    named: BTreeMap<String, Vec<String>>,
    /// Rules by their place, with the names of the limits that they replace.
    replacing: Vec<(usize, Vec<String>)>,
    mistakes: Vec<Mistake>,
}

impl Converter {
    fn level(&mut self, siblings: &[Descriptor], before: &[&Step<'_>]) {
        for (place, descriptor) in siblings.iter().enumerate() {
            if let Err(what) = check_attribute_name(&descriptor.key) {
                let what = format!("key: {what}; give the action of Envoy another descriptor_key");
                self.mistakes.push(Mistake::new(descriptor.line, what));
                continue;
            }
            if before.iter().any(|step| step.descriptor.key == descriptor.key) {
                let what = format!("key: found {} twice in a path, allowed is each key once", descriptor.key);
                self.mistakes.push(Mistake::new(descriptor.line, what));
                continue;
            }
            let step = Step { descriptor, conditions: condition::of(siblings, place) };
            let path: Vec<&Step<'_>> = before.iter().copied().chain([&step]).collect();
            if let Some(rate) = &descriptor.rate
                && let Err(mistake) = self.node(descriptor, rate, &path)
            {
                self.mistakes.push(mistake);
            }
            self.level(&descriptor.children, &path);
        }
    }

    /// Adds the rule and the limit of a node.
    fn node(&mut self, descriptor: &Descriptor, rate: &Rate, path: &[&Step<'_>]) -> Result<(), Mistake> {
        let line = descriptor.line;
        let when = self.condition(path);
        if when.len() > CONDITION_BYTES_MAX {
            let what = format!("its condition would have {} bytes, allowed are {CONDITION_BYTES_MAX}", when.len());
            return Err(Mistake::new(line, what));
        }
        let mut entries: Vec<String> = path.iter().flat_map(|step| step.conditions.iter().cloned()).collect();
        entries.sort_unstable();
        if let Some(first) = self.paths.insert(entries, line) {
            let what = format!("the same entries as on line {first} in another order, which attributes do not have");
            return Err(Mistake::new(line, what));
        }
        let rule_name = format!("{}.{line}", descriptor.key.chars().take(40).collect::<String>());
        let mut rule: Item = vec![("name", rule_name.as_str().into()), ("when", when.into())];
        if !descriptor.replaces.is_empty() {
            self.replacing.push((self.rules.len(), descriptor.replaces.clone()));
        }
        let (requests, window_seconds, name) = match rate {
            Rate::Limited { requests, window_seconds, name } if *requests > 0 || !descriptor.is_shadow => {
                (requests, window_seconds, name)
            }
            // Nothing to take. The rule is there only for what it replaces.
            Rate::Unlimited | Rate::Limited { .. } => {
                if !descriptor.replaces.is_empty() {
                    rule.push(("limits", json!([])));
                    self.rules.push(rule);
                }
                return Ok(());
            }
        };
        if let Some(name) = name {
            self.named.entry(name.clone()).or_default().push(rule_name);
        }
        if *requests == 0 {
            rule.push(("deny", "requests_per_unit is 0".into()));
            self.rules.push(rule);
            return Ok(());
        }
        let Key { pattern, template, placeholders } = key_of(path);
        if placeholders > PLACEHOLDERS_MAX {
            let what = format!("found {placeholders} free values in its path, a template has {PLACEHOLDERS_MAX}");
            return Err(Mistake::new(line, what));
        }
        rule.push(("limits", json!([{"key": pattern, "amount": "requests"}])));
        self.rules.push(rule);
        let mut limit: Item = vec![
            ("key", template.into()),
            ("kind", "rolling".into()),
            ("capacity", (*requests).into()),
            ("window_seconds", (*window_seconds).into()),
        ];
        if descriptor.is_shadow {
            limit.push(("enforce", false.into()));
        }
        if let Some(name) = name {
            limit.push(("description", name.as_str().into()));
        }
        if placeholders == 0 {
            self.limits.push(limit)
        } else {
            self.templates.push(limit)
        }
        Ok(())
    }

    /// Adds to each rule the rules that it replaces. A name that no limit has replaces nothing.
    fn replace(&mut self) {
        for (place, names) in std::mem::take(&mut self.replacing) {
            let rules: Vec<&String> = names.iter().filter_map(|name| self.named.get(name)).flatten().collect();
            let Some(rule) = self.rules.get_mut(place) else { continue };
            match rules.is_empty() {
                false => rule.insert(2, ("replaces", json!(rules))),
                // A policy has no rules without an effect.
                true if rule.iter().any(|(name, value)| *name == "limits" && *value == json!([])) => rule.clear(),
                true => {}
            }
        }
        self.rules.retain(|rule| !rule.is_empty());
    }

    /// The condition of a path: its entries, and none of the other keys.
    fn condition(&self, path: &[&Step<'_>]) -> String {
        let entries = path.iter().flat_map(|step| step.conditions.iter().cloned());
        let is_other = |key: &&String| path.iter().all(|step| step.descriptor.key != **key);
        let others = self.keys.iter().filter(is_other).map(|key| format!("{key} == \"\""));
        entries.chain(others).collect::<Vec<_>>().join(" && ")
    }
}

/// The key of the limit of a path.
struct Key {
    /// With attributes in braces, for the rule.
    pattern: String,
    /// With placeholders, for the template.
    template: String,
    placeholders: usize,
}

fn key_of(path: &[&Step<'_>]) -> Key {
    let mut key = Key { pattern: String::new(), template: String::new(), placeholders: 0 };
    // Attributes may have digits in their names, placeholders may not.
    let is_plain = |name: &str| name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
    let are_plain = path.iter().all(|step| is_plain(&step.descriptor.key));
    for Descriptor { key: name, matches, is_shared, .. } in path.iter().map(|step| step.descriptor) {
        let (literal, is_free) = match matches {
            Matches::Any => (None, true),
            Matches::Exactly(value) => (Some(escaped(value)), false),
            Matches::Prefix(prefix) => (Some(escaped(&format!("{prefix}*"))), !is_shared),
        };
        key.push(name);
        if let Some(literal) = literal {
            key.push(&literal);
        }
        if is_free {
            let letter = ["a", "b", "c", "d"].get(key.placeholders).copied().unwrap_or("e");
            key.pattern.push_str(&format!(":{{{name}}}"));
            key.template.push_str(&format!(":{{{}}}", if are_plain { name.as_str() } else { letter }));
            key.placeholders = key.placeholders.saturating_add(1);
        }
    }
    key
}

impl Key {
    /// Appends a segment to both.
    fn push(&mut self, segment: &str) {
        for text in [&mut self.pattern, &mut self.template] {
            if !text.is_empty() {
                text.push(':');
            }
            text.push_str(segment);
        }
    }
}
