//! A minimal TOML parser: sections, keys and values of one line.

/// One `key = value` line.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Entry<'a> {
    pub(super) line: usize,
    /// The section header without brackets; empty at the top.
    pub(super) section: &'a str,
    pub(super) key: &'a str,
    pub(super) value: &'a str,
}

pub(super) fn entries(text: &str) -> Vec<Entry<'_>> {
    let mut section = "";
    let mut entries = Vec::new();
    for (line, content) in (1..).zip(text.lines()) {
        let content = without_comment(content).trim();
        if let Some(header) = content.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            section = header.trim();
        } else if let Some((key, value)) = content.split_once('=') {
            entries.push(Entry { line, section, key: key.trim(), value: value.trim() });
        }
    }
    entries
}

fn without_comment(line: &str) -> &str {
    let mut is_quoted = false;
    for (at, character) in line.char_indices() {
        match character {
            '"' => is_quoted = !is_quoted,
            '#' if !is_quoted => return &line[..at],
            _ => {}
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_found_under_their_sections() {
        let text = "top = 1\n# no = 1\n[a.b]\n\nx.y = \"#\" # why\n[ c ]\nz={ v = true }\n";
        let entry = |line, section, key, value| Entry { line, section, key, value };
        assert_eq!(
            entries(text),
            [entry(1, "", "top", "1"), entry(5, "a.b", "x.y", "\"#\""), entry(7, "c", "z", "{ v = true }"),]
        );
    }
}
