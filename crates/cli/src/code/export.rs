//! `earmark export`: the definitions of a server as a file. Pages are written as they arrive.

use std::io::Write;

use earmark_core::NamespaceName;
use serde_json::Value;

use super::document::Format;
use super::policy;

/// Writes a document, list by list.
pub(super) struct Exporter<W> {
    out: W,
    format: Format,
    /// Whether the document has anything before the next list.
    is_begun: bool,
    /// Whether the list has an item already.
    has_items: bool,
    /// Whether the items are those of a namespace in `namespaces`.
    is_nested: bool,
    /// Whether a table has begun in the namespace. In TOML a field after it would be one of the table.
    has_tables: bool,
}

/// A text in quotes, with escapes that JSON, YAML and TOML share.
pub(super) fn quoted(text: &str) -> String {
    let json = Value::String(text.to_owned()).to_string();
    // TOML does not allow this control character, and JSON leaves it as it is.
    json.replace('\u{7f}', "\\u007f")
}

/// A value in YAML. A text that could be read as anything else is quoted.
fn yaml(value: &Value) -> String {
    const WORDS: [&str; 10] = ["null", "true", "false", "yes", "no", "on", "off", "y", "n", "nan"];
    match value {
        Value::String(text) => {
            let is_plain = text.starts_with(|first: char| first.is_ascii_alphabetic())
                && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._:/@+-".contains(&byte))
                && !text.ends_with(':')
                && !WORDS.contains(&text.to_ascii_lowercase().as_str());
            if is_plain { text.clone() } else { quoted(text) }
        }
        other => other.to_string(),
    }
}

impl<W: Write> Exporter<W> {
    pub(super) fn new(out: W, format: Format) -> Exporter<W> {
        Exporter { out, format, is_begun: false, has_items: false, is_nested: false, has_tables: false }
    }

    /// Begins the lists of a namespace. The lists of `default` stand at the top, and come first.
    pub(super) fn namespace(&mut self, namespace: &NamespaceName) -> std::io::Result<()> {
        if namespace.is_default() {
            return match self.format {
                Format::Json => self.out.write_all(b"{\n"),
                Format::Yaml | Format::Toml => Ok(()),
            };
        }
        let is_first = !std::mem::replace(&mut self.is_nested, true);
        self.has_tables = false;
        let name = namespace.as_str();
        match self.format {
            Format::Yaml if is_first => writeln!(self.out, "namespaces:\n  - namespace: {}", yaml(&name.into()))?,
            Format::Yaml => writeln!(self.out, "  - namespace: {}", yaml(&name.into()))?,
            Format::Toml => {
                let gap = if self.is_begun { "\n" } else { "" };
                writeln!(self.out, "{gap}[[namespaces]]\nnamespace = {}", quoted(name))?;
            }
            Format::Json if is_first => {
                let before = if self.is_begun { ",\n" } else { "{\n" };
                write!(self.out, "{before}  \"namespaces\": [\n    {{\"namespace\": {}", quoted(name))?;
            }
            Format::Json => write!(self.out, "}},\n    {{\"namespace\": {}", quoted(name))?,
        }
        self.is_begun = true;
        Ok(())
    }

    /// Writes a field of the namespace. It comes before all lists.
    pub(super) fn field(&mut self, name: &str, value: &Value) -> std::io::Result<()> {
        match (self.format, self.is_nested) {
            (Format::Yaml, true) => writeln!(self.out, "    {name}: {}", yaml(value))?,
            (Format::Yaml, false) => writeln!(self.out, "{name}: {}", yaml(value))?,
            (Format::Toml, _) => writeln!(self.out, "{name} = {}", policy::inline(value))?,
            (Format::Json, _) => {
                let before = if self.is_begun { ",\n" } else { "" };
                write!(self.out, "{before}  \"{name}\": {value}")?;
            }
        }
        self.is_begun = true;
        Ok(())
    }

    /// Begins a list. An empty one is written where the format can, so that a file says that it has the whole list.
    pub(super) fn list(&mut self, name: &str) -> std::io::Result<()> {
        self.has_items = false;
        if self.format == Format::Json {
            let before = if self.is_begun { ",\n" } else { "" };
            write!(self.out, "{before}  \"{name}\": [")?;
            self.is_begun = true;
        }
        Ok(())
    }

    /// Writes an item of a list with these fields, in order.
    pub(super) fn item(&mut self, list: &str, fields: Vec<(&str, &Value)>) -> std::io::Result<()> {
        let is_first = !std::mem::replace(&mut self.has_items, true);
        match self.format {
            Format::Yaml => {
                let margin = if self.is_nested { "    " } else { "" };
                if is_first {
                    writeln!(self.out, "{margin}{list}:")?;
                }
                for (place, (name, value)) in fields.into_iter().enumerate() {
                    let mark = if place == 0 { "- " } else { "  " };
                    writeln!(self.out, "{margin}  {mark}{name}: {}", yaml(value))?;
                }
            }
            Format::Toml => {
                let gap = if self.is_begun { "\n" } else { "" };
                let table = if self.is_nested { "namespaces." } else { "" };
                writeln!(self.out, "{gap}[[{table}{list}]]")?;
                for (name, value) in fields {
                    writeln!(self.out, "{name} = {}", policy::inline(value))?;
                }
            }
            Format::Json => {
                let gap = if is_first { "\n" } else { ",\n" };
                let fields = fields.into_iter().map(|(name, value)| format!("{}: {value}", quoted(name)));
                write!(self.out, "{gap}    {{{}}}", fields.collect::<Vec<_>>().join(", "))?;
            }
        }
        (self.is_begun, self.has_tables) = (true, true);
        Ok(())
    }

    /// Ends a list.
    pub(super) fn end_list(&mut self, name: &str) -> std::io::Result<()> {
        let is_empty = !self.has_items;
        match self.format {
            Format::Yaml if is_empty => {
                let margin = if self.is_nested { "    " } else { "" };
                writeln!(self.out, "{margin}{name}: []")?;
                self.is_begun = true;
            }
            Format::Toml if is_empty && !self.has_tables => {
                writeln!(self.out, "{name} = []")?;
                self.is_begun = true;
            }
            Format::Json => self.out.write_all(if is_empty { b"]" } else { b"\n  ]" })?,
            Format::Yaml | Format::Toml => {}
        }
        Ok(())
    }

    /// Ends the document.
    pub(super) fn end(mut self) -> std::io::Result<()> {
        match (self.format, self.is_nested) {
            (Format::Json, true) => self.out.write_all(b"}\n  ]\n}\n")?,
            (Format::Json, false) => self.out.write_all(b"\n}\n")?,
            (Format::Yaml | Format::Toml, _) => {}
        }
        self.out.flush()
    }
}

#[cfg(test)]
mod tests;
