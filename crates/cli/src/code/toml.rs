//! TOML.

use serde_json::Value;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::lines::Lines;
use super::tree::{DEPTH_MAX, Entry, Mistake, Node, Tree, map, number};

pub(crate) fn parse(text: &str) -> Result<Node, Mistake> {
    let lines = Lines::of(text);
    match DeTable::parse(text) {
        Ok(table) => Ok(Node { line: 1, value: entries(&lines, table.get_ref(), DEPTH_MAX)? }),
        Err(error) => {
            let line = error.span().map_or(1, |span| lines.at(span.start));
            Err(Mistake::new(line, format_args!("not valid TOML: {}", error.message().trim_end())))
        }
    }
}

fn node(lines: &Lines, value: &Spanned<DeValue<'_>>, depth: usize) -> Result<Node, Mistake> {
    let line = lines.at(value.span().start);
    let Some(depth) = depth.checked_sub(1) else {
        return Err(Mistake::new(line, format_args!("nested more than {DEPTH_MAX} levels deep")));
    };
    let value = match value.get_ref() {
        DeValue::String(text) => Tree::Scalar(Value::String(text.to_string())),
        DeValue::Integer(integer) => {
            let digits = integer.as_str();
            let decimal = i128::from_str_radix(digits, integer.radix()).map_or(digits.to_owned(), |it| it.to_string());
            Tree::Scalar(number(&decimal).unwrap_or(Value::String(decimal)))
        }
        DeValue::Float(float) => Tree::Scalar(number(float.as_str()).unwrap_or_else(|| float.as_str().into())),
        DeValue::Boolean(is_true) => Tree::Scalar(Value::Bool(*is_true)),
        DeValue::Datetime(date) => Tree::Scalar(Value::String(date.to_string())),
        DeValue::Array(items) => {
            Tree::List(items.iter().map(|item| node(lines, item, depth)).collect::<Result<_, _>>()?)
        }
        DeValue::Table(table) => entries(lines, table, depth)?,
    };
    Ok(Node { line, value })
}

fn entries(lines: &Lines, table: &DeTable<'_>, depth: usize) -> Result<Tree, Mistake> {
    let entry = |(name, value): (&Spanned<_>, _)| {
        let line = lines.at(name.span().start);
        let name: &std::borrow::Cow<'_, str> = name.get_ref();
        Ok(Entry { line, name: name.to_string(), node: node(lines, value, depth)? })
    };
    map(table.iter().map(entry).collect::<Result<_, _>>()?)
}
