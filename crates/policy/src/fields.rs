//! The fields of a TOML table, with their paths and lines. Other documents of this workspace read their fields with it
//! too, so that mistakes look the same everywhere.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::mistake::{Mistake, quoted};

/// The byte offsets at which lines begin.
pub struct Lines(Vec<usize>);

impl Lines {
    /// The lines of a text.
    #[must_use]
    pub fn of(text: &str) -> Lines {
        let after_break = |(at, byte): (usize, u8)| (byte == b'\n').then_some(at.saturating_add(1));
        Lines(std::iter::once(0).chain(text.bytes().enumerate().filter_map(after_break)).collect())
    }

    /// The line of an offset; the first is 1.
    #[must_use]
    pub fn at(&self, offset: usize) -> usize {
        self.0.partition_point(|start| *start <= offset).max(1)
    }
}

/// A table of the document.
pub struct Fields<'a> {
    /// The lines of the document.
    pub lines: &'a Lines,
    /// The path of the table, with a dot at its end; empty for the document.
    pub path: String,
    /// The line of the table.
    pub line: usize,
    /// The table.
    pub table: &'a DeTable<'a>,
}

impl<'a> Fields<'a> {
    /// Refuses fields with other names.
    ///
    /// # Errors
    /// The first such field.
    pub fn allow(&self, names: &[&str]) -> Result<(), Mistake> {
        match self.table.iter().find(|(name, _)| !names.contains(&name.get_ref().as_ref())) {
            Some((name, _)) => {
                let (line, field) = (self.lines.at(name.span().start), quoted(name.get_ref()));
                Err(Mistake::new(
                    line,
                    self.path.trim_end_matches('.'),
                    format_args!("found the unknown field {field}, allowed are {}", names.join(", ")),
                ))
            }
            None => Ok(()),
        }
    }

    fn get(&self, name: &str) -> Option<&'a Spanned<DeValue<'a>>> {
        self.table.get(name)
    }

    /// The line of a field, or of the table if it lacks the field.
    #[must_use]
    pub fn line_of(&self, name: &str) -> usize {
        self.get(name).map_or(self.line, |value| self.lines.at(value.span().start))
    }

    /// A mistake in a field.
    #[must_use]
    pub fn wrong(&self, name: &str, what: impl std::fmt::Display) -> Mistake {
        Mistake::new(self.line_of(name), format_args!("{}{name}", self.path), what)
    }

    fn other_type(&self, name: &str, value: &DeValue<'_>, allowed: &str) -> Mistake {
        self.wrong(name, format_args!("found {}, allowed is {allowed}", shown(value)))
    }

    /// A text. `None` if there is no such field.
    ///
    /// # Errors
    /// When it is something else.
    pub fn text(&self, name: &str) -> Result<Option<&'a str>, Mistake> {
        match self.get(name).map(Spanned::get_ref) {
            None => Ok(None),
            Some(DeValue::String(text)) => Ok(Some(text)),
            Some(other) => Err(self.other_type(name, other, "a text in quotes")),
        }
    }

    /// A text that must be there.
    ///
    /// # Errors
    /// When it is missing or something else.
    pub fn required_text(&self, name: &str) -> Result<&'a str, Mistake> {
        self.text(name)?.ok_or_else(|| self.wrong(name, "is required"))
    }

    /// `true` or `false`. `None` if there is no such field.
    ///
    /// # Errors
    /// When it is something else.
    pub fn boolean(&self, name: &str) -> Result<Option<bool>, Mistake> {
        match self.get(name).map(Spanned::get_ref) {
            None => Ok(None),
            Some(DeValue::Boolean(value)) => Ok(Some(*value)),
            Some(other) => Err(self.other_type(name, other, "true or false")),
        }
    }

    /// A whole number from 0 to `max`.
    ///
    /// # Errors
    /// When it is something else.
    pub fn integer(&self, name: &str, max: u64) -> Result<Option<u64>, Mistake> {
        let wrong =
            |found: &str| self.wrong(name, format_args!("found {found}, allowed are whole numbers from 0 to {max}"));
        match self.get(name).map(Spanned::get_ref) {
            None => Ok(None),
            Some(DeValue::Integer(integer)) => {
                let number =
                    u64::from_str_radix(integer.as_str(), integer.radix()).ok().filter(|number| *number <= max);
                number.map(Some).ok_or_else(|| wrong(integer.as_str()))
            }
            Some(other) => Err(wrong(&shown(other))),
        }
    }

    /// Whether a field is a text.
    #[must_use]
    pub fn is_text(&self, name: &str) -> bool {
        matches!(self.get(name).map(Spanned::get_ref), Some(DeValue::String(_)))
    }

    /// A list of at most `max` texts. `None` if there is no such field.
    ///
    /// # Errors
    /// When it is something else.
    pub fn texts(&self, name: &str, max: usize) -> Result<Option<Vec<&'a str>>, Mistake> {
        let Some(items) = self.list(name, max, "a list of texts")? else { return Ok(None) };
        let texts = items.iter().enumerate().map(|(place, item)| match item.get_ref() {
            DeValue::String(text) => Ok(&**text),
            other => {
                let (line, path) = (self.lines.at(item.span().start), format!("{}{name}[{place}]", self.path));
                Err(Mistake::new(line, path, format_args!("found {}, allowed is a text in quotes", shown(other))))
            }
        });
        texts.collect::<Result<_, _>>().map(Some)
    }

    /// A table. `None` if there is no such field.
    ///
    /// # Errors
    /// When it is something else.
    pub fn table(&self, name: &str) -> Result<Option<Fields<'a>>, Mistake> {
        match self.get(name).map(Spanned::get_ref) {
            None => Ok(None),
            Some(DeValue::Table(table)) => {
                let path = format!("{}{name}.", self.path);
                Ok(Some(Fields { lines: self.lines, path, line: self.line_of(name), table }))
            }
            Some(other) => Err(self.other_type(name, other, "a table")),
        }
    }

    /// A list of at most `max` items.
    fn list(&self, name: &str, max: usize, allowed: &str) -> Result<Option<&'a [Spanned<DeValue<'a>>]>, Mistake> {
        match self.get(name).map(Spanned::get_ref) {
            None => Ok(None),
            Some(DeValue::Array(items)) if items.len() > max => {
                Err(self.wrong(name, format_args!("found {}, allowed are {max}", items.len())))
            }
            Some(DeValue::Array(items)) => Ok(Some(&**items)),
            Some(other) => Err(self.other_type(name, other, allowed)),
        }
    }

    /// A list of at most `max` tables. `None` if there is no such field.
    ///
    /// # Errors
    /// When it is something else.
    pub fn tables(&self, name: &str, max: usize) -> Result<Option<Vec<Fields<'a>>>, Mistake> {
        let Some(items) = self.list(name, max, "a list of tables")? else { return Ok(None) };
        let tables = items.iter().enumerate().map(|(place, item)| {
            let (line, path) = (self.lines.at(item.span().start), format!("{}{name}[{place}]", self.path));
            match item.get_ref() {
                DeValue::Table(table) => Ok(Fields { lines: self.lines, path: path + ".", line, table }),
                other => Err(Mistake::new(line, path, format_args!("found {}, allowed is a table", shown(other)))),
            }
        });
        tables.collect::<Result<_, _>>().map(Some)
    }
}

/// A value as it is quoted in a mistake.
fn shown(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => quoted(text),
        DeValue::Integer(integer) => integer.as_str().to_owned(),
        DeValue::Float(float) => float.as_str().to_owned(),
        DeValue::Boolean(value) => value.to_string(),
        DeValue::Datetime(_) => "a date".to_owned(),
        DeValue::Array(_) => "a list".to_owned(),
        DeValue::Table(_) => "a table".to_owned(),
    }
}
