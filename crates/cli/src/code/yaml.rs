//! YAML 1.2 with its core schema. One document in a file; no tags and no aliases, which could make a short file long.

use saphyr_parser::{Event, Parser, ScalarStyle, ScanError, Span, StrInput};
use serde_json::Value;

use super::tree::{DEPTH_MAX, Entry, Mistake, Node, Tree, map, number};

pub(super) fn parse(text: &str) -> Result<Node, Mistake> {
    let mut reader = Reader { events: Parser::new_from_str(text), line: 1 };
    let mut document = None;
    loop {
        match reader.next()? {
            Event::StreamEnd => break,
            Event::StreamStart | Event::DocumentEnd | Event::Nothing => {}
            Event::DocumentStart(_) if document.is_some() => {
                return Err(Mistake::new(reader.line, "found a second document, allowed is one in a file"));
            }
            Event::DocumentStart(_) => {}
            event => document = Some(reader.node(event, DEPTH_MAX)?),
        }
    }
    Ok(document.unwrap_or(Node { line: 1, value: Tree::Scalar(Value::Null) }))
}

struct Reader<'a> {
    events: Parser<'a, StrInput<'a>>,
    /// The line of the last event.
    line: usize,
}

impl<'a> Reader<'a> {
    fn next(&mut self) -> Result<Event<'a>, Mistake> {
        match self.events.next_event() {
            Some(Ok((event, Span { start, .. }))) => {
                self.line = start.line();
                Ok(event)
            }
            Some(Err(error)) => Err(mistake(&error)),
            None => Ok(Event::StreamEnd),
        }
    }

    fn node(&mut self, event: Event<'a>, depth: usize) -> Result<Node, Mistake> {
        let line = self.line;
        let Some(depth) = depth.checked_sub(1) else {
            return Err(Mistake::new(line, format_args!("nested more than {DEPTH_MAX} levels deep")));
        };
        let value = match event {
            Event::Scalar(_, _, _, Some(tag))
            | Event::SequenceStart(_, Some(tag))
            | Event::MappingStart(_, Some(tag)) => {
                let found = format!("found the tag {}{}, tags are not allowed", tag.handle, tag.suffix);
                return Err(Mistake::new(line, found));
            }
            Event::Scalar(text, style, _, None) => Tree::Scalar(scalar(&text, style)),
            Event::SequenceStart(..) => Tree::List(self.list(depth)?),
            Event::MappingStart(..) => map(self.entries(depth)?)?,
            Event::Alias(_) => return Err(Mistake::new(line, "found an alias (*name), aliases are not allowed")),
            Event::Nothing
            | Event::StreamStart
            | Event::StreamEnd
            | Event::DocumentStart(_)
            | Event::DocumentEnd
            | Event::SequenceEnd
            | Event::MappingEnd => return Err(Mistake::new(line, "the file ends too early")),
        };
        Ok(Node { line, value })
    }

    fn list(&mut self, depth: usize) -> Result<Vec<Node>, Mistake> {
        let mut items = Vec::new();
        loop {
            match self.next()? {
                Event::SequenceEnd => return Ok(items),
                event => items.push(self.node(event, depth)?),
            }
        }
    }

    fn entries(&mut self, depth: usize) -> Result<Vec<Entry>, Mistake> {
        let mut entries = Vec::new();
        loop {
            let event = self.next()?;
            let line = self.line;
            let name = match event {
                Event::MappingEnd => return Ok(entries),
                Event::Scalar(name, _, _, None) => name.into_owned(),
                _ => return Err(Mistake::new(line, "the name of a field must be a text")),
            };
            let event = self.next()?;
            entries.push(Entry { line, name, node: self.node(event, depth)? });
        }
    }
}

fn mistake(error: &ScanError) -> Mistake {
    Mistake::new(error.marker().line(), format_args!("not valid YAML: {}", error.info()))
}

/// A scalar by the core schema: only a plain one can be something else than a text.
fn scalar(text: &str, style: ScalarStyle) -> Value {
    if style != ScalarStyle::Plain {
        return Value::String(text.to_owned());
    }
    match text {
        "" | "~" | "null" | "Null" | "NULL" => Value::Null,
        "true" | "True" | "TRUE" => Value::Bool(true),
        "false" | "False" | "FALSE" => Value::Bool(false),
        text => number(text).unwrap_or_else(|| Value::String(text.to_owned())),
    }
}
