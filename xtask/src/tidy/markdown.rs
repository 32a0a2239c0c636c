//! A minimal Markdown parser: links outside of code.

/// `[text](target)`, or `[text]: target` at the start of a line.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Link<'a> {
    pub(super) line: usize,
    pub(super) text: &'a str,
    pub(super) target: &'a str,
}

pub(super) fn links(text: &str) -> Vec<Link<'_>> {
    let mut links = Vec::new();
    let mut is_fenced = false;
    for (line, content) in (1..).zip(text.lines()) {
        let start = content.trim_start();
        if start.starts_with("```") || start.starts_with("~~~") {
            is_fenced = !is_fenced;
        } else if !is_fenced {
            links.extend(links_in(line, content));
        }
    }
    links
}

fn links_in(line: usize, content: &str) -> Vec<Link<'_>> {
    let masked = mask_code(content);
    let mut links = Vec::new();
    for (end, mark) in masked.match_indices("](") {
        let target = end + mark.len();
        if let Some(length) = masked[target..].find(')') {
            let start = opening(&masked[..end]).unwrap_or(0);
            links.push(Link { line, text: &content[start..end], target: path(&content[target..target + length]) });
        }
    }
    if masked.starts_with('[')
        && let Some(end) = masked.find("]: ")
    {
        links.push(Link { line, text: &content[1..end], target: path(&content[end + 3..]) });
    }
    links
}

/// Blanks out code spans byte for byte, so that offsets stay valid.
pub(super) fn mask_code(content: &str) -> String {
    let parts: Vec<&str> = content.split('`').collect();
    let last = parts.len() - 1;
    let mask = |(place, part): (usize, &&str)| match place % 2 == 1 && place < last {
        true => " ".repeat(part.len()),
        false => (*part).to_owned(),
    };
    parts.iter().enumerate().map(mask).collect::<Vec<_>>().join("`")
}

/// The offset after the `[` that matches a `]` right after `before`.
fn opening(before: &str) -> Option<usize> {
    let mut depth = 0_usize;
    for (at, character) in before.char_indices().rev() {
        match character {
            ']' => depth += 1,
            '[' if depth == 0 => return Some(at + 1),
            '[' => depth -= 1,
            _ => {}
        }
    }
    None
}

/// A link target without its optional title.
fn path(target: &str) -> &str {
    target.split_whitespace().next().unwrap_or("").trim_start_matches('<').trim_end_matches('>')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: &[(usize, &str, &str)]) {
        let found: Vec<_> = links(text).into_iter().map(|link| (link.line, link.text, link.target)).collect();
        assert_eq!(found, expected, "{text}");
    }

    #[test]
    fn links_are_found_with_their_text() {
        check("", &[]);
        check("a\n[b c](d.md), [e](f.md \"g\")", &[(2, "b c", "d.md"), (2, "e", "f.md")]);
        check("[`a` and [b]](c.md#d)", &[(1, "`a` and [b]", "c.md#d")]);
        check("![a](b.png)", &[(1, "a", "b.png")]);
        check("[a]: b.md", &[(1, "a", "b.md")]);
        check("broken over a line](a.md)", &[(1, "broken over a line", "a.md")]);
    }

    #[test]
    fn code_holds_no_links() {
        check("`[a](b)` and `x[0](y)`", &[]);
        check("```\n[a](b)\n```\n[c](d)", &[(4, "c", "d")]);
        check("é `é` [a](b) `", &[(1, "a", "b")]);
    }
}
