//! Conditions: CEL over the attributes of a call.
//!
//! The crate `cel` only parses. Its tree is compiled into [`Condition`], a form of our own that cannot fail, loop or
//! allocate. [`scan`] runs before the parser and bounds what the parser sees, because a parser that overflows its
//! stack would end the process.

mod compile;
mod scan;
#[cfg(test)]
mod tests;

use crate::policy::{Names, Slot, Values};

/// The maximum length of a condition in bytes.
pub const CONDITION_BYTES_MAX: usize = 1_024;
/// The maximum depth of brackets of all kinds in a condition, and the maximum number of `?`.
pub const CONDITION_NESTING_MAX: usize = 8;
/// The stack of the thread that parses. In a debug build, the longest chains of operators that [`CONDITION_BYTES_MAX`]
/// allows are parsed within 2 MiB.
const STACK_BYTES: usize = 16 << 20;

/// A compiled condition.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Condition {
    /// `true`, `false`.
    Constant(bool),
    /// `!a`.
    Not(Box<Condition>),
    /// `a && b && c`.
    All(Vec<Condition>),
    /// `a || b || c`.
    Any(Vec<Condition>),
    /// `a ? b : c`.
    Choice(Box<[Condition; 3]>),
    /// `a == b` of two conditions.
    Same(Box<[Condition; 2]>),
    /// A comparison of two texts.
    Texts(Comparison, Text, Text),
    /// A comparison of two numbers.
    Numbers(Comparison, Number, Number),
    /// `a in [b, c]`.
    OneOf(Text, Vec<Text>),
    /// `a.startsWith(b)` and the like.
    Part(PartOf, Text, Text),
}

/// An operator that compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Comparison {
    Equal,
    Unequal,
    Less,
    AtMost,
    Greater,
    AtLeast,
}

/// A function that looks for a text in another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PartOf {
    Start,
    End,
    Anywhere,
}

/// A text: of the document, or of an attribute. An attribute that the call lacks is empty.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Text {
    Literal(Box<str>),
    Attribute(Slot),
}

/// A whole number: of the document, or the number of characters of a text.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Number {
    Literal(i64),
    Size(Text),
}

impl Condition {
    /// Whether the condition holds for a call. The depth of recursion is bounded by [`compile::DEPTH_MAX`].
    pub(crate) fn holds(&self, values: &Values<'_>) -> bool {
        match self {
            Condition::Constant(value) => *value,
            Condition::Not(inner) => !inner.holds(values),
            Condition::All(inner) => inner.iter().all(|condition| condition.holds(values)),
            Condition::Any(inner) => inner.iter().any(|condition| condition.holds(values)),
            Condition::Choice(inner) => {
                let [condition, then, otherwise] = &**inner;
                if condition.holds(values) { then.holds(values) } else { otherwise.holds(values) }
            }
            Condition::Same(inner) => {
                let [left, right] = &**inner;
                left.holds(values) == right.holds(values)
            }
            Condition::Texts(comparison, left, right) => comparison.holds(left.get(values), right.get(values)),
            Condition::Numbers(comparison, left, right) => comparison.holds(left.get(values), right.get(values)),
            Condition::OneOf(text, list) => list.iter().any(|other| other.get(values) == text.get(values)),
            Condition::Part(PartOf::Start, text, part) => text.get(values).starts_with(part.get(values)),
            Condition::Part(PartOf::End, text, part) => text.get(values).ends_with(part.get(values)),
            Condition::Part(PartOf::Anywhere, text, part) => text.get(values).contains(part.get(values)),
        }
    }
}

impl Comparison {
    fn holds<T: Ord>(self, left: T, right: T) -> bool {
        match self {
            Comparison::Equal => left == right,
            Comparison::Unequal => left != right,
            Comparison::Less => left < right,
            Comparison::AtMost => left <= right,
            Comparison::Greater => left > right,
            Comparison::AtLeast => left >= right,
        }
    }
}

impl Text {
    fn get<'a>(&'a self, values: &Values<'a>) -> &'a str {
        match self {
            Text::Literal(text) => text,
            Text::Attribute(slot) => values.get(*slot).unwrap_or(""),
        }
    }
}

impl Number {
    fn get(&self, values: &Values<'_>) -> i64 {
        match self {
            Number::Literal(number) => *number,
            Number::Size(text) => i64::try_from(text.get(values).chars().count()).unwrap_or(i64::MAX),
        }
    }
}

/// Parses and compiles conditions, in order, on a thread with a stack of its own. Stops at the first mistake and returns
/// its place in the list.
pub(crate) fn compile_all(texts: &[&str], names: &mut Names) -> Result<Vec<Condition>, (usize, String)> {
    if texts.is_empty() {
        return Ok(Vec::new());
    }
    for (place, text) in texts.iter().enumerate() {
        scan::check(text).map_err(|what| (place, what))?;
    }
    let compile = || {
        let compiled = texts.iter().enumerate().map(|(place, text)| {
            let compiled = compile::parse(text).and_then(|parsed| parsed.compile(names));
            compiled.map_err(|what| (place, what))
        });
        compiled.collect()
    };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("cel".into()).stack_size(STACK_BYTES);
        match thread.spawn_scoped(scope, compile).map(std::thread::ScopedJoinHandle::join) {
            Ok(Ok(compiled)) => compiled,
            Ok(Err(_)) => Err((0, "the parser failed on one of the conditions".to_owned())),
            Err(error) => Err((0, format!("no thread to parse the conditions: {error}; try again"))),
        }
    })
}
