//! Comments and documents avoid phrases that stand in for a noun, such as `so many` or `whoever`.

mod prose;

use super::markdown::mask_code;
use super::{Tree, Violation};

/// Phrases that stand in for a noun or a number. Name the thing instead.
const PHRASES: [&str; 12] = [
    "so many",
    "so long",
    "so often",
    "so much",
    "whoever",
    "somewhen",
    "is none",
    "are none",
    "of before",
    "of now",
    "what is there",
    "all the same",
];
/// A sentence that begins with one of these has no subject, unless it is a question.
const OPENINGS: [&str; 3] = ["What", "Who", "Whoever"];

/// The prose lines of a file, with their numbers.
type Extract = fn(&str) -> Vec<(usize, &str)>;
const EXTRACTS: [(&str, Extract); 6] = [
    (".md", prose::markdown),
    (".proto", prose::proto),
    (".py", prose::python),
    (".rs", prose::rust),
    (".sql", prose::sql),
    (".ts", prose::typescript),
];

pub(super) fn check(tree: &Tree) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (extension, extract) in EXTRACTS {
        for (path, text) in tree.named(extension) {
            violations.extend(lines(&extract(text)).into_iter().map(|(line, what)| {
                Violation::new(path, line, format!("{what}; name the thing, see the rules of plain English"))
            }));
        }
    }
    violations
}

/// A word of prose, with its line.
#[derive(Debug)]
struct Word {
    line: usize,
    text: String,
}

impl Word {
    fn bare(&self) -> &str {
        self.text.trim_matches(|character: char| !character.is_alphanumeric())
    }

    fn ends_sentence(&self) -> bool {
        self.text.trim_end_matches([')', '"', '*', '_']).ends_with(['.', '!', '?', ':'])
    }
}

/// Finds phrases and openings in prose. A blank line, a heading, a list item, a table row and a gap in the line numbers
/// each end a paragraph.
fn lines(prose: &[(usize, &str)]) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut paragraph: Vec<Word> = Vec::new();
    let (mut is_fenced, mut last) = (false, 0);
    for &(line, content) in prose {
        let start = content.trim_start();
        let is_fence = start.starts_with("```") || start.starts_with("~~~");
        let is_heading = start.starts_with('#');
        let is_row = start.starts_with('|');
        let is_item = start.starts_with("- ") || start.starts_with("* ");
        if is_fence || is_heading || is_row || is_item || start.is_empty() || line > last + 1 {
            found.extend(paragraph_faults(&std::mem::take(&mut paragraph), true));
        }
        last = line;
        is_fenced ^= is_fence;
        if is_fenced || is_fence {
            continue;
        }
        let masked = mask_code(content);
        let words = masked.split_whitespace().filter(|word| !matches!(*word, "-" | "*" | "#"));
        paragraph.extend(words.map(|word| Word { line, text: word.to_owned() }));
        if is_heading || is_row {
            found.extend(paragraph_faults(&std::mem::take(&mut paragraph), false));
        }
    }
    found.extend(paragraph_faults(&paragraph, true));
    found
}

fn paragraph_faults(words: &[Word], has_sentences: bool) -> Vec<(usize, String)> {
    let mut found: Vec<(usize, String)> = PHRASES.iter().flat_map(|phrase| occurrences(words, phrase)).collect();
    if has_sentences {
        for sentence in words.split_inclusive(Word::ends_sentence) {
            let (Some(first), Some(last)) = (sentence.first(), sentence.last()) else { continue };
            if OPENINGS.contains(&first.bare()) && !last.text.contains('?') {
                found.push((first.line, format!("a sentence begins with {:?}", first.bare())));
            }
        }
    }
    found
}

fn occurrences(words: &[Word], phrase: &str) -> Vec<(usize, String)> {
    let phrase_words: Vec<&str> = phrase.split(' ').collect();
    let matches = |window: &&[Word]| {
        let is_same = window.iter().zip(&phrase_words).all(|(word, wanted)| word.bare().eq_ignore_ascii_case(wanted));
        let inner = &window[..window.len() - 1];
        is_same && !inner.iter().any(|word| word.text.ends_with(|last: char| !last.is_alphanumeric()))
    };
    let windows = words.windows(phrase_words.len()).filter(matches);
    windows.map(|window| (window[0].line, format!("found {phrase:?}"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_file(path: &str, text: &str, expected: &[&str]) {
        let found = check(&Tree::of(&[(path, text)]));
        let found: Vec<String> = found
            .iter()
            .map(|violation| format!("{}: {}", violation.line, violation.what.split(';').next().unwrap()))
            .collect();
        assert_eq!(found, expected, "{text}");
    }

    #[test]
    fn a_banned_phrase_is_found_with_its_line() {
        for phrase in PHRASES {
            check_file("a.md", &format!("Good.\n\nIt has {phrase}, perhaps."), &[&format!("3: found {phrase:?}")]);
        }
        check_file("a.rs", "let a = 1;\n/// Allows so\n/// many calls.\n", &["2: found \"so many\""]);
        check_file("a.md", "There Is None.", &["1: found \"is none\""]);
        check_file("a.md", "It does so. Many do.\n\nalso many, whoeverest", &[]);
        check_file("a.md", "It does so\n\nmany times", &[]);
    }

    #[test]
    fn a_sentence_without_a_subject_is_found_and_a_question_is_not() {
        check_file("a.rs", "// What is kept.\n", &["1: a sentence begins with \"What\""]);
        check_file("a.rs", "/// Fine. Who calls\n/// this.\n", &["1: a sentence begins with \"Who\""]);
        check_file("a.rs", "// Whoever calls.\n", &["1: found \"whoever\"", "1: a sentence begins with \"Whoever\""]);
        check_file("a.rs", "// What is kept\n// where?\n", &[]);
        check_file("a.rs", "// Whether it is kept, and by whom: what else.\n", &[]);
        check_file("a.md", "- What it does.\n", &["1: a sentence begins with \"What\""]);
        check_file("a.md", "## What it is for\n\n| What | Who |\n| so | many |\n", &[]);
    }

    #[test]
    fn code_is_not_prose() {
        check_file("a.md", "`so many` and\n```\nso long\n```\n~~~\nis none\n~~~\n", &[]);
        check_file(
            "a.rs",
            "let a = \"so many // so long\"; let b = r#\"// \"is none\"#; let c = '\"'; // so much\n",
            &["1: found \"so much\""],
        );
        check_file("a.rs", "/// ```\n/// let a = b; // so many\n/// ```\nfn a<'a>() { '\\''; }\n", &[]);
        check_file("a.txt", "so many", &[]);
    }

    #[test]
    fn comments_of_every_language_are_read() {
        for (path, text) in [
            ("a.rs", "\n/* so many */\n"),
            ("a.proto", "\nmessage A {} // so many\n"),
            ("a.sql", "\nselect 1; -- so many\n"),
            ("a.ts", "/**\n * So many. */\n"),
            ("a.py", "\na = 1  # so many\n"),
            ("a.py", "\n\"\"\"Allows so many.\"\"\"\n"),
        ] {
            check_file(path, text, &["2: found \"so many\""]);
        }
        check_file("a.sql", "select 'so many';", &[]);
        check_file("a.py", "a = 'so many'", &[]);
    }
}
