//! The check of a condition before it is parsed: length, nesting, and words that are not supported.

use super::{CONDITION_BYTES_MAX, CONDITION_NESTING_MAX};

/// Functions that are refused: the macros of CEL, and regular expressions.
const REFUSED: [&str; 7] = ["all", "exists", "exists_one", "filter", "has", "map", "matches"];

/// Checks a condition. Strings are skipped as CEL's own lexer does it; spellings that would need more than that (raw
/// strings, bytes, three quotes, comments) are refused.
pub(super) fn check(text: &str) -> Result<(), String> {
    if text.len() > CONDITION_BYTES_MAX {
        return Err(format!("found {} bytes, allowed are {CONDITION_BYTES_MAX}", text.len()));
    }
    let mut scanner = Scanner { rest: text, length: text.len(), depth: 0, choices: 0 };
    while scanner.step()? {}
    Ok(())
}

struct Scanner<'a> {
    rest: &'a str,
    length: usize,
    depth: usize,
    choices: usize,
}

impl<'a> Scanner<'a> {
    /// Reads one token. Returns false at the end.
    fn step(&mut self) -> Result<bool, String> {
        let Some(first) = self.rest.chars().next() else { return Ok(false) };
        match first {
            '"' | '\'' => self.string(first)?,
            'a'..='z' | 'A'..='Z' | '_' => self.word()?,
            '(' | '[' | '{' => {
                self.depth = self.depth.saturating_add(1);
                self.bounded(self.depth, "nesting")?;
                self.skip(1);
            }
            ')' | ']' | '}' => {
                self.depth = self.depth.saturating_sub(1);
                self.skip(1);
            }
            '?' => {
                self.choices = self.choices.saturating_add(1);
                self.bounded(self.choices, "number of ?")?;
                self.skip(1);
            }
            '`' => return Err(self.refused("`", "allowed are names of attributes")),
            '/' if self.rest.starts_with("//") => {
                return Err(self.refused("a comment", "write it outside the condition"));
            }
            _ => self.skip(first.len_utf8()),
        }
        Ok(true)
    }

    /// Skips a string with its quotes.
    fn string(&mut self, quote: char) -> Result<(), String> {
        let mut escaped = false;
        for (place, character) in self.rest.char_indices().skip(1) {
            match character {
                '\n' | '\r' => return Err(self.refused("a line break in a string", "allowed is \\n")),
                _ if escaped => escaped = false,
                '\\' => escaped = true,
                _ if character == quote => {
                    let after = self.rest.get(place.saturating_add(1)..).unwrap_or_default();
                    if place == 1 && after.starts_with(quote) {
                        return Err(self.refused("three quotes", "allowed is one"));
                    }
                    self.rest = after;
                    return Ok(());
                }
                _ => {}
            }
        }
        Err(self.refused("a string without its end", "close it with the quote that opened it"))
    }

    /// Skips a name.
    fn word(&mut self) -> Result<(), String> {
        let end = self.rest.find(|character: char| !(character.is_ascii_alphanumeric() || character == '_'));
        let (word, after) = self.rest.split_at_checked(end.unwrap_or(self.rest.len())).unwrap_or((self.rest, ""));
        if after.starts_with(['"', '\'']) {
            return Err(self.refused(&format!("{word} before a quote"), "allowed are strings without a prefix"));
        }
        if REFUSED.contains(&word) && after.trim_start().starts_with('(') {
            return Err(self.refused(
                &format!("{word}()"),
                "macros and regular expressions are not supported; use ==, in, startsWith, endsWith or contains",
            ));
        }
        self.rest = after;
        Ok(())
    }

    fn bounded(&self, found: usize, what: &str) -> Result<(), String> {
        if found <= CONDITION_NESTING_MAX {
            return Ok(());
        }
        Err(self.refused(&format!("a {what} of {found}"), &format!("allowed are {CONDITION_NESTING_MAX}")))
    }

    fn skip(&mut self, bytes: usize) {
        self.rest = self.rest.get(bytes..).unwrap_or_default();
    }

    fn refused(&self, found: &str, allowed: &str) -> String {
        let at = self.length.saturating_sub(self.rest.len());
        format!("at byte {at}: found {found}, {allowed}")
    }
}
