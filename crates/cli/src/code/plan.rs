//! The changes that make a server like the files.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::document::{Document, Name, Origin, Section, Wanted};
use super::fields::ordered;
use super::policy;
use crate::failure::Failure;
use crate::output::thousands;

/// A definition that a server has.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Existing {
    /// Every field, defaults included. The capacity is the target while it decreases.
    pub(super) fields: Map<String, Value>,
    pub(super) revision: u64,
    /// It was deleted, and some of it is still reserved.
    pub(super) is_deleting: bool,
}

/// The change of a definition.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Action {
    Create { fields: Map<String, Value>, origin: Origin },
    Change { fields: Map<String, Value>, origin: Origin, before: Map<String, Value> },
    Delete,
}

/// A change of one definition.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Change {
    pub(super) name: Name,
    pub(super) action: Action,
    /// The revision that the server must still have; 0 if the definition does not exist.
    pub(super) expected_revision: u64,
}

/// All changes, ordered by namespace, list and key; deletions last.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) changes: Vec<Change>,
    /// Definitions that are as the files have them.
    pub(super) unchanged: usize,
    /// Definitions that no file has, in the lists that the files name, if they are to be kept.
    pub(super) kept: usize,
}

/// Numbers of definitions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) created: usize,
    pub(super) changed: usize,
    pub(super) deleted: usize,
}

impl Plan {
    /// Compares the files with a server. Refuses what no server accepts, before anything is changed.
    pub(super) fn of(document: Document, mut existing: BTreeMap<Name, Existing>, prune: bool) -> Result<Plan, Failure> {
        let (mut plan, mut mistakes) = (Plan::default(), Vec::new());
        for (name, Wanted { fields, origin }) in document.definitions {
            let found = existing.remove(&name);
            let fields = match name.section {
                Section::Policy => {
                    let (fields, kept) = policy::merged(fields, found.as_ref().map(|found| &found.fields), prune);
                    plan.kept = plan.kept.saturating_add(kept);
                    fields
                }
                Section::Limits | Section::Templates => fields,
            };
            let expected_revision = found.as_ref().map_or(0, |found| found.revision);
            let action = match found.filter(|found| !found.is_deleting) {
                None => Action::Create { fields, origin },
                Some(found) if found.fields == fields => {
                    plan.unchanged = plan.unchanged.saturating_add(1);
                    continue;
                }
                Some(found) => {
                    if name.section == Section::Limits && found.fields.get("kind") != fields.get("kind") {
                        let text = |fields: &Map<String, Value>| text(fields.get("kind"));
                        let (wanted, kind) = (text(&fields), text(&found.fields));
                        mistakes.push(format!(
                            "{origin}: kind: found {wanted}, but {} is {kind} on the server and keeps its kind; delete it \
                             first, or use another key",
                            name.key
                        ));
                    }
                    Action::Change { fields, origin, before: found.fields }
                }
            };
            plan.changes.push(Change { name, action, expected_revision });
        }
        mistakes.extend(plan.renamed_templates(&existing));
        if !mistakes.is_empty() {
            return Err(Failure::Usage(mistakes.join("\n")));
        }
        for (name, found) in existing.into_iter().filter(|(_, found)| !found.is_deleting) {
            if prune {
                plan.changes.push(Change { name, action: Action::Delete, expected_revision: found.revision });
            } else {
                plan.kept = plan.kept.saturating_add(1);
            }
        }
        Ok(plan)
    }

    /// New templates that differ from one of the server only in the names of placeholders.
    fn renamed_templates(&self, existing: &BTreeMap<Name, Existing>) -> Vec<String> {
        let shapes: BTreeMap<Name, &Name> = existing.keys().filter_map(|name| Some((name.shape()?, name))).collect();
        let renamed = self.changes.iter().filter_map(|change| {
            let Action::Create { origin, .. } = &change.action else { return None };
            let (key, other) = (&change.name.key, &shapes.get(&change.name.shape()?)?.key);
            Some(format!(
                "{origin}: key: {key} differs from {other} on the server only in the names of its placeholders; use that \
                 key, or delete that template first"
            ))
        });
        renamed.collect()
    }

    pub(super) fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        self.changes.iter().for_each(|change| counts.add(change));
        counts
    }

    /// The number of definitions to be deleted: `3 limits in default, 1 limit in team`. Empty if nothing would.
    pub(super) fn deletions(&self) -> String {
        let mut counts: BTreeMap<(&str, Section), usize> = BTreeMap::new();
        for change in self.changes.iter().filter(|change| change.action == Action::Delete) {
            *counts.entry((change.name.namespace.as_str(), change.name.section)).or_default() += 1;
        }
        let texts = counts.into_iter().map(|((namespace, section), count)| {
            format!("{} {} in {namespace}", thousands(count as u128), section.noun(count))
        });
        let parts = self.changes.iter().flat_map(|change| {
            let namespace = &change.name.namespace;
            change.deleted_parts().into_iter().map(move |(list, count)| {
                let noun = if count == 1 { list.trim_end_matches('s') } else { list };
                format!("{} {noun} in {namespace}", thousands(count as u128))
            })
        });
        texts.chain(parts).collect::<Vec<_>>().join(", ")
    }
}

impl Counts {
    pub(super) fn add(&mut self, change: &Change) {
        let count = match change.action {
            Action::Create { .. } => &mut self.created,
            Action::Change { .. } => &mut self.changed,
            Action::Delete => &mut self.deleted,
        };
        *count = count.saturating_add(1);
    }
}

impl Change {
    /// Whether the change deletes a definition, a rule or a price.
    pub(super) fn deletes(&self) -> bool {
        self.action == Action::Delete || !self.deleted_parts().is_empty()
    }

    /// The rules and prices that a changed policy no longer has.
    fn deleted_parts(&self) -> Vec<(&'static str, usize)> {
        match (&self.action, self.name.section) {
            (Action::Change { fields, before, .. }, Section::Policy) => policy::deleted(before, fields),
            _ => Vec::new(),
        }
    }

    /// The fields that differ, with their values before and after; `None` where there is no such field.
    pub(super) fn differences(&self) -> Vec<(String, Option<Value>, Option<Value>)> {
        let (before, after) = match &self.action {
            Action::Create { fields, .. } => (None, fields),
            Action::Change { fields, before, .. } => (Some(before), fields),
            Action::Delete => return Vec::new(),
        };
        let is_policy = self.name.section == Section::Policy;
        let flat = |fields: &Map<String, Value>| if is_policy { policy::flat(fields) } else { fields.clone() };
        let (before, after) = (before.map(flat), flat(after));
        let names = ordered(before.iter().flat_map(Map::keys).chain(after.keys()).map(String::as_str));
        let value = |name: &str| (before.as_ref().and_then(|before| before.get(name)), after.get(name));
        let differing = names.into_iter().filter(|name| value(name).0 != value(name).1);
        differing.map(|name| (name.to_owned(), value(name).0.cloned(), value(name).1.cloned())).collect()
    }

    /// The change in lines for people: `~ key`, then a line for each field.
    pub(super) fn text(&self) -> String {
        let key = &self.name.key;
        let mut lines = match &self.action {
            Action::Create { .. } => format!("  + {key}\n"),
            Action::Change { .. } => format!("  ~ {key}\n"),
            Action::Delete => format!("  - {key}\n"),
        };
        for (field, before, after) in self.differences().into_iter().filter(|(field, ..)| field != "key") {
            let (before, after) = (before.as_ref(), after.as_ref());
            lines += &match &self.action {
                Action::Create { .. } if is_empty(after) => continue,
                Action::Create { .. } => format!("      {field}: {}\n", text(after)),
                _ => format!("      {field}: {} -> {}\n", text(before), text(after)),
            };
        }
        lines
    }

    /// The change as JSON.
    pub(super) fn json(&self) -> Value {
        let Name { namespace, section, key } = &self.name;
        let mut value = json!({"namespace": namespace.as_str(), "list": section.name(), "key": key});
        match &self.action {
            Action::Create { fields, .. } => value["definition"] = Value::Object(fields.clone()),
            Action::Change { .. } => {
                let fields = self.differences().into_iter();
                let fields = fields.map(|(field, from, to)| (field, json!({"from": from, "to": to})));
                value["fields"] = Value::Object(fields.collect());
            }
            Action::Delete => {}
        }
        value
    }
}

/// An empty text, which a new definition need not show.
fn is_empty(value: Option<&Value>) -> bool {
    value.and_then(Value::as_str).is_some_and(str::is_empty)
}

/// A value for people: numbers grouped, texts bare where that is clear.
fn text(value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Null) => "none".to_owned(),
        Some(Value::Number(number)) => {
            number.as_u64().map_or_else(|| number.to_string(), |number| thousands(number.into()))
        }
        Some(Value::String(text)) if !text.is_empty() && !text.contains([' ', '"', '\n']) => text.clone(),
        Some(other) => other.to_string(),
    }
}

/// The changes for people, by namespace.
pub(super) fn show(changes: &[Change]) -> String {
    let (mut lines, mut namespace) = (String::new(), None);
    for change in changes {
        if namespace != Some(&change.name.namespace) {
            namespace = Some(&change.name.namespace);
            lines += &format!("{}\n", change.name.namespace);
        }
        lines += &change.text();
    }
    lines
}

#[cfg(test)]
mod tests;
