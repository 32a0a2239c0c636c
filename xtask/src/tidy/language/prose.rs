//! Extracts prose from source files: comments and docstrings, or whole documents. Each function returns the texts with
//! their line numbers, from 1.

/// All lines.
pub(super) fn markdown(text: &str) -> Vec<(usize, &str)> {
    (1..).zip(text.lines()).collect()
}

/// Comments that start with `//`.
pub(super) fn proto(text: &str) -> Vec<(usize, &str)> {
    after_marker(text, "//")
}

/// Comments that start with `--`.
pub(super) fn sql(text: &str) -> Vec<(usize, &str)> {
    after_marker(text, "--")
}

fn after_marker<'a>(text: &'a str, marker: &str) -> Vec<(usize, &'a str)> {
    let comment = |(line, content): (usize, &'a str)| Some((line, content.split_once(marker)?.1));
    (1..).zip(text.lines()).filter_map(comment).collect()
}

/// Comments on lines of their own: `//`, and blocks whose lines start with `*`.
pub(super) fn typescript(text: &str) -> Vec<(usize, &str)> {
    let mut prose = Vec::new();
    for (line, content) in (1..).zip(text.lines()) {
        let start = content.trim_start();
        let marked = ["//", "/**", "* "].iter().find_map(|marker| start.strip_prefix(marker));
        prose.extend(marked.map(|comment| (line, comment.trim_end_matches("*/"))));
    }
    prose
}

/// Comments that start with `#`, and docstrings.
pub(super) fn python(text: &str) -> Vec<(usize, &str)> {
    let mut prose = Vec::new();
    let mut is_docstring = false;
    for (line, content) in (1..).zip(text.lines()) {
        let mut quotes = content.split("\"\"\"").peekable();
        while let Some(part) = quotes.next() {
            if is_docstring {
                prose.push((line, part));
            } else if let Some((_, comment)) = part.split_once("# ") {
                prose.push((line, comment));
            }
            is_docstring ^= quotes.peek().is_some();
        }
    }
    prose
}

/// Line and block comments, with the markers of doc comments removed. Skips string and character literals.
pub(super) fn rust(text: &str) -> Vec<(usize, &str)> {
    let mut prose = Vec::new();
    let (mut at, mut line) = (0, 1);
    let bytes = text.as_bytes();
    while at < bytes.len() {
        let rest = &text[at..];
        let is_in_word = at > 0 && (bytes[at - 1].is_ascii_alphanumeric() || bytes[at - 1] == b'_');
        let length = if rest.starts_with("//") {
            let length = rest.find('\n').unwrap_or(rest.len());
            prose.push((line, rest[..length].trim_start_matches('/').trim_start_matches('!')));
            length
        } else if rest.starts_with("/*") {
            let length = rest.find("*/").map_or(rest.len(), |end| end + 2);
            prose.extend((line..).zip(rest[2..length].trim_end_matches("*/").lines()));
            length
        } else if let Some(length) = raw_string(rest).filter(|_| !is_in_word) {
            length
        } else if rest.starts_with('"') {
            string(rest)
        } else if rest.starts_with('\'') {
            character(rest)
        } else {
            rest.chars().next().map_or(1, char::len_utf8)
        };
        line += rest[..length].matches('\n').count();
        at += length;
    }
    prose
}

/// The length of a raw string literal at the start of `rest`.
fn raw_string(rest: &str) -> Option<usize> {
    let hashes_on = rest.strip_prefix("br").or_else(|| rest.strip_prefix('r'))?;
    let body = hashes_on.trim_start_matches('#');
    let end = format!("\"{}", "#".repeat(hashes_on.len() - body.len()));
    let body = body.strip_prefix('"')?;
    let start = rest.len() - body.len();
    Some(body.find(&end).map_or(rest.len(), |at| start + at + end.len()))
}

/// The length of a string literal at the start of `rest`.
fn string(rest: &str) -> usize {
    let mut is_escaped = false;
    for (at, byte) in rest.bytes().enumerate().skip(1) {
        match byte {
            b'"' if !is_escaped => return at + 1,
            b'\\' => is_escaped = !is_escaped,
            _ => is_escaped = false,
        }
    }
    rest.len()
}

/// The length of a character literal, or 1 for a lifetime.
fn character(rest: &str) -> usize {
    let mut characters = rest.char_indices().skip(1);
    match characters.next() {
        Some((_, '\\')) => rest[3.min(rest.len())..].find('\'').map_or(1, |end| end + 4),
        Some(_) => characters.next().filter(|(_, next)| *next == '\'').map_or(1, |(at, _)| at + 1),
        None => 1,
    }
}
