//! `serve --config FILE` and `EARMARK_*`: every flag of `serve` as a field of a file and as a variable.
//!
//! The settings become words of the command line in front of the caller's own, so that one parser checks them all. A
//! flag wins over a variable, and a variable over the file.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use clap::{Arg, ArgAction, Args as _, Command};
use serde_json::Value;

use super::ServeArgs;
use crate::code::toml;
use crate::code::tree::{Entry, Mistake, Node, Tree};
use crate::failure::Failure;
use crate::text_file;

/// Bytes of a configuration file: 1 MiB, far more than all settings take.
const FILE_BYTES_MAX: usize = 1 << 20;
/// The flag that names the file.
const CONFIG: &str = "config";
/// Further variables of a flag, below `EARMARK_*`. RUST_LOG is common to Rust programs.
const OTHER_VARIABLES: [(&str, &str); 2] = [("log-level", "RUST_LOG"), ("credits", "EARMARK_CREDITS_URL")];
/// Flags that replace each other: one from a higher source hides the others from lower ones.
const ALTERNATIVES: [[&str; 2]; 2] = [["data", "in-memory"], ["credits", "credits-url-file"]];
/// Variables of `earmark` that are no flag of `serve`.
const RESERVED: [&str; 7] = [
    "EARMARK_SERVER",
    "EARMARK_KEY",
    "EARMARK_KEY_FILE",
    "EARMARK_CA_FILE",
    "EARMARK_CERT_FILE",
    "EARMARK_CERT_KEY_FILE",
    "EARMARK_INVITATION",
];

/// Where a setting comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// The command line.
    Flag,
    /// A variable of this name.
    Variable(String),
    /// A line of the configuration file.
    Line(usize),
}

/// The settings of a start, with their origins.
#[derive(Debug, Default)]
pub(crate) struct Settings {
    /// The file, if there is one.
    pub(crate) file: Option<PathBuf>,
    /// The values of each flag. Flags of the command line have none here.
    values: BTreeMap<String, (Origin, Vec<String>)>,
    /// Variables that begin like a setting and have no flag.
    unknown_variables: Vec<String>,
}

impl Settings {
    /// Reads the file and the variables for `serve` with these words, which follow the command's name.
    pub(crate) fn read(
        serve: &Command,
        words: &[OsString],
        variables: &BTreeMap<String, String>,
    ) -> Result<Settings, Failure> {
        let flags = on_command_line(words);
        let mut settings = Settings::default();
        for flag in &flags {
            settings.values.insert(flag.clone(), (Origin::Flag, Vec::new()));
        }
        for arg in settable(serve).chain(serve.get_arguments().filter(|arg| arg.get_long() == Some(CONFIG))) {
            settings.add_variable(arg, variables)?;
        }
        settings.unknown_variables = unknown(serve, variables);
        settings.file = match settings.values.get(CONFIG) {
            Some((Origin::Flag, _)) => value_of(words, CONFIG).map(PathBuf::from),
            Some((_, values)) => values.first().map(PathBuf::from),
            None => None,
        };
        if let Some(file) = settings.file.clone() {
            settings.add_file(serve, &file)?;
        }
        Ok(settings)
    }

    /// Reads a file alone, without variables and flags.
    pub(crate) fn of_file(serve: &Command, file: &Path) -> Result<Settings, Failure> {
        let mut settings = Settings { file: Some(file.to_owned()), ..Settings::default() };
        settings.add_file(serve, file)?;
        Ok(settings)
    }

    /// The settings of variables and file as words of a command line.
    pub(crate) fn words(&self) -> Vec<OsString> {
        let mut words = Vec::new();
        for (flag, (_, values)) in &self.values {
            words.extend(values.iter().map(|value| match value.as_str() {
                SWITCH => OsString::from(format!("--{flag}")),
                value => OsString::from(format!("--{flag}={value}")),
            }));
        }
        words
    }

    /// The first value of a flag that the file or a variable sets.
    pub(super) fn value(&self, flag: &str) -> Option<&str> {
        self.values.get(flag).and_then(|(_, values)| values.first()).map(String::as_str)
    }

    /// Logs the variables that have no effect.
    pub(super) fn warn(&self) {
        for name in &self.unknown_variables {
            tracing::warn!(
                "{name}: unknown variable; the variables are EARMARK_ and the name of a flag of `earmark serve`"
            );
        }
    }

    /// The origin of a flag's value; `None` for a default.
    pub(crate) fn origin(&self, flag: &str) -> Option<&Origin> {
        self.values.get(flag).map(|(origin, _)| origin)
    }

    /// The number of settings.
    pub(crate) fn len(&self) -> usize {
        self.values.len()
    }

    /// The flags whose values differ from those of `other`.
    pub(crate) fn changed(&self, other: &Settings) -> BTreeSet<String> {
        let differs = |flag: &&String| {
            let values = |settings: &Settings| settings.values.get(*flag).map(|(_, values)| values.clone());
            values(self) != values(other)
        };
        self.values.keys().chain(other.values.keys()).filter(differs).cloned().collect()
    }

    /// Which settings do not stand on the command line; a message about a conflict between flags needs it.
    pub(crate) fn note(&self) -> Option<String> {
        let elsewhere = |(flag, (origin, _)): (&String, &(Origin, Vec<String>))| match origin {
            Origin::Flag => None,
            Origin::Variable(name) => Some(format!("--{flag} from the variable {name}")),
            Origin::Line(line) => {
                let file = self.file.as_deref().unwrap_or(Path::new(""));
                Some(format!("--{flag} from {}:{line}", file.display()))
            }
        };
        let elsewhere: Vec<String> = self.values.iter().filter_map(elsewhere).collect();
        (!elsewhere.is_empty()).then(|| format!("not on the command line: {}", elsewhere.join(", ")))
    }

    /// Whether a flag, or one that replaces it, is set already.
    fn is_set(&self, flag: &str) -> bool {
        self.values.contains_key(flag)
            || self.is_replaced(flag, |(origin, values)| *origin == Origin::Flag || !values.is_empty())
    }

    /// Whether another flag replaces this one. A switch that is off has no values and replaces nothing.
    fn is_replaced(&self, flag: &str, by: impl Fn(&(Origin, Vec<String>)) -> bool) -> bool {
        let others =
            ALTERNATIVES.iter().filter(|group| group.contains(&flag)).flatten().filter(|other| **other != flag);
        others.filter_map(|other| self.values.get(*other)).any(by)
    }

    fn add_variable(&mut self, arg: &Arg, variables: &BTreeMap<String, String>) -> Result<(), Failure> {
        let flag = arg.get_long().unwrap_or_default();
        let mut names = vec![variable(flag)];
        names.extend(OTHER_VARIABLES.iter().filter(|(of, _)| *of == flag).map(|(_, name)| (*name).to_owned()));
        let set = |name: &String| variables.get(name).filter(|value| !value.is_empty());
        let Some((name, value)) = names.iter().find_map(|name| Some((name, set(name)?))) else { return Ok(()) };
        if self.values.contains_key(flag) || self.is_replaced(flag, |(origin, _)| *origin == Origin::Flag) {
            return Ok(());
        }
        let values = match arg.get_action() {
            ArgAction::SetTrue => switch(value),
            _ if may_stand_alone(arg) => switch(value).or_else(|_| Ok(vec![value.clone()])),
            ArgAction::Append => {
                let items = value.split([',', ' ']).filter(|item| !item.is_empty());
                Ok(items.map(str::to_owned).collect())
            }
            _ => Ok(vec![value.clone()]),
        };
        let values = values.and_then(|values| check(arg, values));
        let values = values.map_err(|what| Failure::Usage(format!("{name}: {what}")))?;
        self.values.insert(flag.to_owned(), (Origin::Variable(name.clone()), values));
        Ok(())
    }

    fn add_file(&mut self, serve: &Command, file: &Path) -> Result<(), Failure> {
        let text = text_file::read(file, FILE_BYTES_MAX)?;
        let found = fields(serve, &text)
            .map_err(|Mistake { line, what }| Failure::Usage(format!("{}:{line}: {what}", file.display())))?;
        let new: Vec<_> = found.into_iter().filter(|(flag, ..)| !self.is_set(flag)).collect();
        for (flag, line, values) in new {
            self.values.insert(flag, (Origin::Line(line), values));
        }
        Ok(())
    }
}

/// `earmark serve` as clap sees it.
pub(crate) fn command() -> Command {
    ServeArgs::augment_args(Command::new("serve"))
}

/// The variables of this process that may hold settings.
pub(crate) fn variables() -> Result<BTreeMap<String, String>, Failure> {
    let is_ours = |name: &str| name.starts_with("EARMARK_") || name == "RUST_LOG";
    let ours = std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value)));
    let utf8 = |(name, value): (String, OsString)| match value.into_string() {
        Ok(value) => Ok((name, value)),
        Err(_) => Err(Failure::Usage(format!("{name}: found bytes that are not UTF-8; allowed is text"))),
    };
    ours.filter(|(name, _)| is_ours(name)).map(utf8).collect()
}

/// The value of a switch that is on: the flag stands alone.
const SWITCH: &str = "";

/// The flags that a file may set.
fn settable(serve: &Command) -> impl Iterator<Item = &Arg> {
    serve.get_arguments().filter(|arg| arg.get_long().is_some_and(|long| ![CONFIG, "help"].contains(&long)))
}

/// The variable of a flag.
fn variable(flag: &str) -> String {
    format!("EARMARK_{}", flag.to_ascii_uppercase().replace('-', "_"))
}

/// The variables that begin like a setting and have no flag, such as a misspelt one.
fn unknown(serve: &Command, variables: &BTreeMap<String, String>) -> Vec<String> {
    let flags = serve.get_arguments().filter_map(Arg::get_long).map(variable);
    let others = OTHER_VARIABLES.iter().map(|(_, name)| (*name).to_owned());
    let known: BTreeSet<String> = flags.chain(others).chain(RESERVED.map(str::to_owned)).collect();
    variables.keys().filter(|name| name.starts_with("EARMARK_") && !known.contains(*name)).cloned().collect()
}

/// The names of the flags among these words. No value of a flag begins with two hyphens.
fn on_command_line(words: &[OsString]) -> BTreeSet<String> {
    let name = |word: &OsString| {
        let word = word.to_str()?.strip_prefix("--")?.to_owned();
        Some(word.split_once('=').map_or(word.clone(), |(name, _)| name.to_owned())).filter(|name| !name.is_empty())
    };
    words.iter().filter_map(name).collect()
}

/// The value of a flag among these words.
fn value_of(words: &[OsString], flag: &str) -> Option<OsString> {
    let (long, assigned) = (format!("--{flag}"), format!("--{flag}="));
    let mut words = words.iter();
    words
        .find_map(|word| match word.to_str().and_then(|word| word.strip_prefix(&assigned)) {
            Some(value) => Some(Some(OsString::from(value))),
            None => (word == OsStr::new(&long)).then_some(None),
        })?
        .or_else(|| words.next().cloned())
}

/// Whether the value of a flag is optional, so that it may be a switch.
fn may_stand_alone(arg: &Arg) -> bool {
    arg.get_num_args().is_some_and(|count| count.min_values() == 0 && count.takes_values())
}

fn switch(text: &str) -> Result<Vec<String>, String> {
    match text {
        "true" | "1" => Ok(vec![SWITCH.to_owned()]),
        "false" | "0" => Ok(Vec::new()),
        _ => Err(format!("found {text:?}, allowed are true and false")),
    }
}

/// The flags, lines and values of a file.
fn fields(serve: &Command, text: &str) -> Result<Vec<(String, usize, Vec<String>)>, Mistake> {
    let Tree::Map(entries) = toml::parse(text)?.value else { return Ok(Vec::new()) };
    let mut found = Vec::new();
    for Entry { line, name, node } in entries {
        let flag = name.replace('_', "-");
        let arg = settable(serve).find(|arg| arg.get_long() == Some(&flag) && !name.contains('-'));
        let arg = arg.ok_or_else(|| {
            let what =
                "unknown field; fields are the flags of `earmark serve --help`, such as peer_listen for --peer-listen";
            Mistake::new(line, format_args!("{name}: {what}"))
        })?;
        let values = values(arg, &node).and_then(|values| check(arg, values));
        let values = values.map_err(|what| Mistake::new(node.line, format_args!("{name}: {what}")))?;
        found.push((flag, line, values));
    }
    Ok(found)
}

/// The values of a field as the words of its flag.
fn values(arg: &Arg, node: &Node) -> Result<Vec<String>, String> {
    let scalar = |node: &Node| match &node.value {
        Tree::Scalar(Value::String(text)) => Some(text.clone()),
        Tree::Scalar(Value::Number(number)) => Some(number.to_string()),
        _ => None,
    };
    let wrong = |allowed: &str| format!("found {}, allowed is {allowed}", node.quoted());
    match (arg.get_action(), &node.value) {
        (ArgAction::SetTrue, Tree::Scalar(Value::Bool(is_on))) => switch(&is_on.to_string()),
        (ArgAction::SetTrue, _) => Err(wrong("true or false")),
        (_, Tree::Scalar(Value::Bool(is_on))) if may_stand_alone(arg) => switch(&is_on.to_string()),
        (ArgAction::Append, Tree::List(items)) => {
            items.iter().map(|item| scalar(item).ok_or_else(|| wrong("a list of texts"))).collect()
        }
        (ArgAction::Append, _) => {
            scalar(node).map(|value| vec![value]).ok_or_else(|| wrong("a text or a list of texts"))
        }
        (_, _) => scalar(node).map(|value| vec![value]).ok_or_else(|| wrong("a text or a number")),
    }
}

/// Checks values by the parser of their flag. An empty value would look like a switch.
fn check(arg: &Arg, values: Vec<String>) -> Result<Vec<String>, String> {
    let stands_alone = may_stand_alone(arg) && values.iter().all(|value| value == SWITCH);
    if matches!(arg.get_action(), ArgAction::SetTrue) || stands_alone {
        return Ok(values);
    }
    for value in &values {
        if value.is_empty() {
            return Err("found \"\", allowed is a value; leave it out for the default".into());
        }
        let alone = Arg::new("value").long("value").value_parser(arg.get_value_parser().clone());
        let parsed = Command::new("check").arg(alone).try_get_matches_from(["check", &format!("--value={value}")]);
        parsed.map_err(|error| match std::error::Error::source(&error) {
            Some(source) => source.to_string(),
            None => possible(arg, value),
        })?;
    }
    Ok(values)
}

fn possible(arg: &Arg, value: &str) -> String {
    let allowed: Vec<String> = arg.get_possible_values().iter().map(|one| one.get_name().to_owned()).collect();
    format!("found {value:?}, allowed are {}", allowed.join(", "))
}

#[cfg(test)]
mod tests;
