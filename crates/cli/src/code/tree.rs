//! A parsed file: values with the lines on which they stand, whatever the format.

use std::fmt;

use serde_json::{Map, Number, Value};

/// Levels of nesting. A document has five.
pub(crate) const DEPTH_MAX: usize = 16;

/// A value and its line.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Node {
    pub(crate) line: usize,
    pub(crate) value: Tree,
}

/// A value of a file.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Tree {
    /// Null, a boolean, a number or a text.
    Scalar(Value),
    List(Vec<Node>),
    Map(Vec<Entry>),
}

/// A field of a map. Its line is that of its name.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Entry {
    pub(crate) line: usize,
    pub(crate) name: String,
    pub(crate) node: Node,
}

/// A mistake and its line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mistake {
    pub(crate) line: usize,
    pub(crate) what: String,
}

impl Mistake {
    pub(crate) fn new(line: usize, what: impl fmt::Display) -> Mistake {
        Mistake { line, what: what.to_string() }
    }
}

/// A map. Refuses a name that occurs twice.
pub(crate) fn map(entries: Vec<Entry>) -> Result<Tree, Mistake> {
    let mut names: Vec<(&str, usize)> = entries.iter().map(|entry| (entry.name.as_str(), entry.line)).collect();
    names.sort_unstable();
    let twice = names.windows(2).find_map(|pair| match pair {
        [(first, at), (second, line)] if first == second => Some((*second, *at, *line)),
        _ => None,
    });
    match twice {
        Some((name, at, line)) => Err(Mistake::new(line, format_args!("{name}: found it twice, first on line {at}"))),
        None => Ok(Tree::Map(entries)),
    }
}

impl Node {
    /// The value without lines.
    pub(crate) fn json(&self) -> Value {
        match &self.value {
            Tree::Scalar(value) => value.clone(),
            Tree::List(items) => Value::Array(items.iter().map(Node::json).collect()),
            Tree::Map(entries) => {
                let entry = |entry: &Entry| (entry.name.clone(), entry.node.json());
                Value::Object(entries.iter().map(entry).collect::<Map<_, _>>())
            }
        }
    }

    /// The value as it is quoted in a message.
    pub(crate) fn quoted(&self) -> String {
        const CHARACTERS_MAX: usize = 60;
        let text = self.json().to_string();
        match text.char_indices().nth(CHARACTERS_MAX) {
            Some((end, _)) => format!("{}...", text.get(..end).unwrap_or_default()),
            None => text,
        }
    }
}

/// An integer or a decimal number. Integers of more than 64 bits keep about 16 digits.
pub(crate) fn number(text: &str) -> Option<Value> {
    let plain = text.strip_prefix('+').unwrap_or(text);
    if let Ok(number) = plain.parse::<u64>() {
        return Some(number.into());
    }
    if let Ok(number) = plain.parse::<i64>() {
        return Some(number.into());
    }
    let is_decimal = plain.bytes().any(|byte| byte.is_ascii_digit())
        && plain.bytes().all(|byte| byte.is_ascii_digit() || b"+-.eE".contains(&byte));
    let number = plain.parse::<f64>().ok().filter(|_| is_decimal)?;
    Number::from_f64(number).map(Value::Number)
}
