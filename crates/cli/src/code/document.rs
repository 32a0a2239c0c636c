//! The files of limits: lists `limits`, `templates`, `rules` and `prices`, and `namespaces` with lists of their own.
//!
//! The format is that of the limits file of a server, in YAML, TOML or JSON. All files are read and checked before
//! anything is sent. Mistakes are named with file, line and field.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use clap::ValueEnum;
use earmark_admission::{LimitDocument, TemplateDocument};
use earmark_core::NamespaceName;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::tree::{Entry, Mistake, Node, Tree};
use super::{json, policy, toml, yaml};
use crate::failure::Failure;

/// Bytes of a file: a million limits.
const FILE_BYTES_MAX: u64 = 256 << 20;
/// Mistakes that are listed. One wrong habit makes thousands.
const MISTAKES_SHOWN: usize = 20;
/// The version of the format, which a file may name.
const VERSION: u64 = 1;

/// The format of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    Yaml,
    Toml,
    Json,
}

impl Format {
    /// The format of a file name.
    fn of(path: &Path) -> Option<Format> {
        match path.extension()?.to_str()?.to_ascii_lowercase().as_str() {
            "yaml" | "yml" => Some(Format::Yaml),
            "toml" => Some(Format::Toml),
            "json" => Some(Format::Json),
            _ => None,
        }
    }
}

/// A list of a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Section {
    Limits,
    Templates,
    /// The rules and prices of a namespace, which are one document.
    Policy,
}

impl Section {
    /// The lists of definitions.
    pub(super) const ALL: [Section; 2] = [Section::Limits, Section::Templates];

    /// The name of the list.
    pub(super) fn name(self) -> &'static str {
        match self {
            Section::Limits => "limits",
            Section::Templates => "templates",
            Section::Policy => "policy",
        }
    }

    /// The word for its items, in a message.
    pub(super) fn noun(self, count: usize) -> &'static str {
        match (self, count) {
            (Section::Limits, 1) => "limit",
            (Section::Limits, _) => "limits",
            (Section::Templates, 1) => "template",
            (Section::Templates, _) => "templates",
            (Section::Policy, 1) => "policy",
            (Section::Policy, _) => "policies",
        }
    }

    fn of(name: &str) -> Option<Section> {
        Section::ALL.into_iter().find(|section| section.name() == name)
    }

    /// A definition with every field, defaults included, so that equal definitions are equal.
    pub(super) fn canonical(self, value: Value) -> Result<Map<String, Value>, String> {
        let written = match self {
            Section::Limits => {
                let document = LimitDocument::deserialize(value).map_err(|error| error.to_string())?;
                serde_json::to_value(document)
            }
            Section::Templates => {
                let document = TemplateDocument::deserialize(value).map_err(|error| error.to_string())?;
                serde_json::to_value(document)
            }
            Section::Policy => Ok(value),
        };
        match written {
            Ok(Value::Object(fields)) => Ok(fields),
            Ok(other) => Err(format!("found {other}, allowed is an object")),
            Err(error) => Err(error.to_string()),
        }
    }
}

/// The name of a definition: namespace, list, key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Name {
    pub(super) namespace: NamespaceName,
    pub(super) section: Section,
    pub(super) key: String,
}

impl Name {
    /// The name of a template without the names of its placeholders. No server accepts two templates with one shape.
    pub(super) fn shape(&self) -> Option<Name> {
        let blank = |segment| if str::starts_with(segment, '{') { "{}" } else { segment };
        let key = || self.key.split(':').map(blank).collect::<Vec<_>>().join(":");
        (self.section == Section::Templates).then(|| Name { key: key(), ..self.clone() })
    }
}

/// The place of a definition in the files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Origin {
    file: Rc<str>,
    line: usize,
}

impl Origin {
    pub(super) fn new(file: &Rc<str>, line: usize) -> Origin {
        Origin { file: Rc::clone(file), line }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

/// A definition of the files.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Wanted {
    /// Every field, defaults included.
    pub(super) fields: Map<String, Value>,
    pub(super) origin: Origin,
}

/// The content of all files.
#[derive(Debug, Default)]
pub(super) struct Document {
    pub(super) definitions: BTreeMap<Name, Wanted>,
    /// The lists that the files name, empty ones included. Only from these may anything be deleted.
    pub(super) lists: BTreeSet<(NamespaceName, Section)>,
}

/// Where to read from.
pub(super) struct Source<'a> {
    pub(super) files: &'a [PathBuf],
    /// The format of standard input.
    pub(super) format: Format,
    /// The namespace of lists that name none.
    pub(super) namespace: &'a NamespaceName,
}

impl Source<'_> {
    /// Reads all files, or names the mistakes of all of them.
    pub(super) fn read(&self) -> Result<Document, Failure> {
        let mut reader = Reader {
            namespace: self.namespace,
            document: Document::default(),
            templates: BTreeMap::new(),
            policies: policy::Parts::default(),
            mistakes: Vec::new(),
        };
        for path in self.files {
            let name = if path == Path::new("-") { "standard input".into() } else { path.display().to_string() };
            let (text, format) = (read(path)?, self.format_of(path)?);
            reader.file(&Rc::from(name), &text, format);
        }
        reader.policies();
        let Reader { document, mistakes, .. } = reader;
        if mistakes.is_empty() {
            return Ok(document);
        }
        let more = mistakes.len().saturating_sub(MISTAKES_SHOWN);
        let mut lines: Vec<String> = mistakes.into_iter().map(|(_, mistake)| mistake).take(MISTAKES_SHOWN).collect();
        if more > 0 {
            lines.push(format!("and {more} more mistakes"));
        }
        Err(Failure::Usage(lines.join("\n")))
    }

    fn format_of(&self, path: &Path) -> Result<Format, Failure> {
        if path == Path::new("-") {
            return Ok(self.format);
        }
        Format::of(path).ok_or_else(|| {
            let path = path.display();
            Failure::Usage(format!("{path}: unknown format, allowed are names that end in .yaml, .yml, .toml or .json"))
        })
    }
}

fn read(path: &Path) -> Result<String, Failure> {
    let wrong = |why: String| Failure::Usage(format!("cannot read {}: {why}", path.display()));
    let mut text = String::new();
    let read = match path == Path::new("-") {
        true => std::io::stdin().take(FILE_BYTES_MAX + 1).read_to_string(&mut text),
        false => File::open(path).and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text)),
    };
    let bytes = read.map_err(|error| wrong(error.to_string()))?;
    if u64::try_from(bytes).unwrap_or(u64::MAX) > FILE_BYTES_MAX {
        return Err(wrong(format!("it has more than {} MiB; divide it", FILE_BYTES_MAX >> 20)));
    }
    Ok(text)
}

struct Reader<'a> {
    namespace: &'a NamespaceName,
    document: Document,
    /// The key and the place of each template, by its shape.
    templates: BTreeMap<Name, (String, Origin)>,
    policies: policy::Parts,
    mistakes: Vec<(usize, String)>,
}

impl Reader<'_> {
    fn file(&mut self, file: &Rc<str>, text: &str, format: Format) {
        let parsed = match format {
            Format::Yaml => yaml::parse(text),
            Format::Toml => toml::parse(text),
            Format::Json => json::parse(text),
        };
        let first = self.mistakes.len();
        let read = parsed.and_then(|node| self.document(file, &node));
        self.note(file, read);
        // TOML orders tables by name.
        if let Some(of_file) = self.mistakes.get_mut(first..) {
            of_file.sort_by_key(|(line, _)| *line);
        }
    }

    fn note(&mut self, file: &str, read: Result<(), Mistake>) {
        if let Err(Mistake { line, what }) = read {
            self.mistakes.push((line, format!("{file}:{line}: {what}")));
        }
    }

    fn document(&mut self, file: &Rc<str>, node: &Node) -> Result<(), Mistake> {
        const ALLOWED: &str = "limits, templates, rules, prices, unmatched, namespaces and version";
        let entries = match &node.value {
            Tree::Map(entries) => entries,
            Tree::Scalar(Value::Null) => return Ok(()),
            _ => return Err(Mistake::new(node.line, format_args!("found {}, allowed are {ALLOWED}", node.quoted()))),
        };
        let namespace = self.namespace.clone();
        for entry in entries {
            let read = match (entry.name.as_str(), Section::of(&entry.name)) {
                (_, Some(section)) => self.list(file, &namespace, section, entry),
                (name, None) if policy::FIELDS.contains(&name) => self.policies.add(file, &namespace, entry),
                ("namespaces", None) => self.namespaces(file, entry),
                ("version", None) if entry.node.json() == VERSION => Ok(()),
                ("version", None) => Err(unexpected(entry, &VERSION.to_string())),
                (name, None) => {
                    Err(Mistake::new(entry.line, format_args!("{name}: unknown field, allowed are {ALLOWED}")))
                }
            };
            self.note(file, read);
        }
        Ok(())
    }

    /// Checks the policies that the files make up.
    fn policies(&mut self) {
        for (namespace, checked) in std::mem::take(&mut self.policies).checked() {
            match checked {
                Ok(wanted) => {
                    self.document.lists.insert((namespace.clone(), Section::Policy));
                    self.document.definitions.insert(policy::name(&namespace), wanted);
                }
                Err((file, mistake)) => self.note(&file, Err(mistake)),
            }
        }
    }

    fn namespaces(&mut self, file: &Rc<str>, entry: &Entry) -> Result<(), Mistake> {
        for item in items(entry, "a list of namespaces")? {
            let read = self.namespace(file, item);
            self.note(file, read);
        }
        Ok(())
    }

    fn namespace(&mut self, file: &Rc<str>, node: &Node) -> Result<(), Mistake> {
        let Tree::Map(entries) = &node.value else {
            return Err(Mistake::new(node.line, format_args!("found {}, allowed is a namespace", node.quoted())));
        };
        let named = entries.iter().find(|entry| entry.name == "namespace");
        let named = named.ok_or_else(|| Mistake::new(node.line, "namespace is required"))?;
        let Value::String(name) = named.node.json() else { return Err(unexpected(named, "a name")) };
        let namespace = NamespaceName::new(&name)
            .map_err(|error| Mistake::new(named.line, format_args!("namespace: {}", error.mistake)))?;
        for entry in entries.iter().filter(|entry| entry.name != "namespace") {
            let read = match Section::of(&entry.name) {
                Some(section) => self.list(file, &namespace, section, entry),
                None if policy::FIELDS.contains(&entry.name.as_str()) => self.policies.add(file, &namespace, entry),
                None => {
                    const ALLOWED: &str = "namespace, limits, templates, rules, prices and unmatched";
                    let what = format!("{}: unknown field, allowed are {ALLOWED}", entry.name);
                    Err(Mistake::new(entry.line, what))
                }
            };
            self.note(file, read);
        }
        Ok(())
    }

    fn list(
        &mut self,
        file: &Rc<str>,
        namespace: &NamespaceName,
        section: Section,
        entry: &Entry,
    ) -> Result<(), Mistake> {
        self.document.lists.insert((namespace.clone(), section));
        for item in items(entry, "a list")? {
            let read = self.definition(file, namespace, section, item);
            self.note(file, read);
        }
        Ok(())
    }

    fn definition(
        &mut self,
        file: &Rc<str>,
        namespace: &NamespaceName,
        section: Section,
        node: &Node,
    ) -> Result<(), Mistake> {
        let fields = section.canonical(node.json()).map_err(|what| Mistake { line: line_of(node, &what), what })?;
        let key = fields.get("key").and_then(Value::as_str).unwrap_or_default().to_owned();
        let name = Name { namespace: namespace.clone(), section, key };
        let origin = Origin { file: Rc::clone(file), line: node.line };
        if let Some(first) = self.document.definitions.get(&name) {
            let (key, first) = (&name.key, &first.origin);
            let what = format_args!("key: {key} is also defined in {first}; remove one of them");
            return Err(Mistake::new(node.line, what));
        }
        if let Some(shape) = name.shape() {
            if let Some((other, first)) = self.templates.get(&shape) {
                let key = &name.key;
                let what = format_args!(
                    "key: {key} differs from {other} in {first} only in the names of its placeholders; remove one of them"
                );
                return Err(Mistake::new(node.line, what));
            }
            self.templates.insert(shape, (name.key.clone(), origin.clone()));
        }
        self.document.definitions.insert(name, Wanted { fields, origin });
        Ok(())
    }
}

/// The items of a list. Null is an empty one.
pub(super) fn items<'a>(entry: &'a Entry, allowed: &str) -> Result<&'a [Node], Mistake> {
    match &entry.node.value {
        Tree::List(items) => Ok(items),
        Tree::Scalar(Value::Null) => Ok(&[]),
        Tree::Scalar(_) | Tree::Map(_) => Err(unexpected(entry, allowed)),
    }
}

fn unexpected(entry: &Entry, allowed: &str) -> Mistake {
    let (name, found) = (&entry.name, entry.node.quoted());
    Mistake::new(entry.line, format_args!("{name}: found {found}, allowed is {allowed}"))
}

/// The line of the field that a message is about, or of the whole definition.
fn line_of(node: &Node, message: &str) -> usize {
    let Tree::Map(entries) = &node.value else { return node.line };
    let first = message.split(|character: char| !character.is_ascii_lowercase() && character != '_').next();
    // Serde puts the name of an unknown field between backticks.
    let quoted = message.split('`').nth(1);
    let found = entries.iter().find(|entry| Some(entry.name.as_str()) == first || Some(entry.name.as_str()) == quoted);
    found.map_or(node.line, |entry| entry.line)
}

#[cfg(test)]
mod tests;
