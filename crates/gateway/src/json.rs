//! A strict JSON reader over bytes that stay where they are.
//!
//! It refuses every body that two parsers may read differently, builds no tree, and needs memory for the keys of open
//! objects only. All positions are offsets in the body, so that values can be replaced in place.

use std::borrow::Cow;
use std::ops::Range;

/// The maximum nesting of objects and arrays: that of serde_json and other common parsers.
pub const DEPTH_MAX: usize = 128;
/// The maximum length of a key in bytes, as written.
pub const KEY_BYTES_MAX: usize = 4_096;
/// The maximum number of keys of all open objects together: 512 KiB of memory.
pub const OPEN_KEYS_MAX: usize = 65_536;

/// Why a body is not read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Malformed {
    /// The body is not JSON, or in a form that parsers disagree about.
    #[error("byte {at}: {what}")]
    Syntax {
        /// The offset in the body.
        at: usize,
        /// The mistake.
        what: &'static str,
    },
    /// A key occurs twice in one object.
    #[error("an object that ends at byte {at} has the same key twice")]
    DuplicateKey {
        /// The offset of the object's end.
        at: usize,
    },
    /// A key equals a known field but for the case of its letters.
    #[error("found the key {found:?}, allowed is {known:?}: providers may read either")]
    KeyCase {
        /// The key.
        found: String,
        /// The known field.
        known: &'static str,
    },
}

/// The kind of a value, by its first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Object,
    Array,
    String,
    Number,
    Bool,
    Null,
}

impl Kind {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Kind::Object => "an object",
            Kind::Array => "a list",
            Kind::String => "a string",
            Kind::Number => "a number",
            Kind::Bool => "true or false",
            Kind::Null => "null",
        }
    }
}

/// A string value, as written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Text<'a> {
    /// The text between the quotes.
    raw: &'a str,
    has_escapes: bool,
    has_lone_surrogates: bool,
}

impl<'a> Text<'a> {
    /// Bytes between the quotes.
    pub(crate) const fn raw_len(&self) -> usize {
        self.raw.len()
    }

    /// The decoded text. `None` if a surrogate stands alone, which parsers decode differently.
    pub(crate) fn decode(&self) -> Option<Cow<'a, str>> {
        match (self.has_escapes, self.has_lone_surrogates) {
            (_, true) => None,
            (false, false) => Some(Cow::Borrowed(self.raw)),
            (true, false) => Some(Cow::Owned(decode(self.raw))),
        }
    }
}

/// Decodes escapes that were checked before.
pub(crate) fn decode(raw: &str) -> String {
    let mut text = String::with_capacity(raw.len());
    let mut rest = raw;
    let mut high: Option<u32> = None;
    while let Some(at) = rest.find('\\') {
        let (before, escape) = rest.split_at(at);
        text.push_str(before);
        let Some(kind) = escape.as_bytes().get(1) else { break };
        let mut len = 2_usize;
        let decoded = match kind {
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => {
                len = 6;
                let unit = escape.get(2..6).and_then(|hex| u32::from_str_radix(hex, 16).ok()).unwrap_or(0xFFFD);
                if (0xD800..0xDC00).contains(&unit) {
                    high = Some(unit);
                    rest = escape.get(len..).unwrap_or_default();
                    continue;
                }
                combine(high.take(), unit)
            }
            other => char::from(*other),
        };
        text.push(decoded);
        rest = escape.get(len..).unwrap_or_default();
    }
    text.push_str(rest);
    text
}

/// The character of a code unit, behind a high surrogate or not.
fn combine(high: Option<u32>, unit: u32) -> char {
    let code = match high {
        Some(high) if (0xDC00..0xE000).contains(&unit) => {
            0x1_0000_u32.saturating_add((high & 0x3FF) << 10).saturating_add(unit & 0x3FF)
        }
        _ => unit,
    };
    char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER)
}

/// Folds a key like the loosest common parsers: ASCII letters, and the two letters that Unicode folds to ASCII.
pub(crate) fn fold(key: &str) -> String {
    key.chars()
        .map(|character| match character {
            'ſ' => 's',
            '\u{212A}' => 'k',
            other => other.to_ascii_lowercase(),
        })
        .collect()
}

/// Reads one JSON document.
pub(crate) struct Reader<'a> {
    text: &'a str,
    at: usize,
    depth: usize,
    /// Hashes of the keys of all open objects. A collision refuses a body that has no duplicate, once in 10^10 bodies
    /// of the largest kind; a duplicate is never missed.
    keys: Vec<u64>,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(body: &'a [u8]) -> Result<Reader<'a>, Malformed> {
        let text = std::str::from_utf8(body)
            .map_err(|error| Malformed::Syntax { at: error.valid_up_to(), what: "found invalid UTF-8" })?;
        Ok(Reader { text, at: 0, depth: 0, keys: Vec::new() })
    }

    /// The offset of the next unread byte.
    pub(crate) const fn at(&self) -> usize {
        self.at
    }

    fn syntax<T>(&self, what: &'static str) -> Result<T, Malformed> {
        Err(Malformed::Syntax { at: self.at, what })
    }

    fn byte(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn advance(&mut self) {
        self.at = self.at.saturating_add(1);
    }

    fn skip_whitespace(&mut self) {
        while matches!(self.byte(), Some(b' ' | b'\n' | b'\r' | b'\t')) {
            self.advance();
        }
    }

    /// The kind of the next value. The reader then stands at its first byte.
    pub(crate) fn kind(&mut self) -> Result<Kind, Malformed> {
        self.skip_whitespace();
        match self.byte() {
            Some(b'{') => Ok(Kind::Object),
            Some(b'[') => Ok(Kind::Array),
            Some(b'"') => Ok(Kind::String),
            Some(b'-' | b'0'..=b'9') => Ok(Kind::Number),
            Some(b't' | b'f') => Ok(Kind::Bool),
            Some(b'n') => Ok(Kind::Null),
            Some(_) => self.syntax("expected a value"),
            None => self.syntax("the body ends where a value is expected"),
        }
    }

    /// Checks that nothing but whitespace follows.
    pub(crate) fn end(&mut self) -> Result<(), Malformed> {
        self.skip_whitespace();
        if self.byte().is_some() { self.syntax("expected the end of the body") } else { Ok(()) }
    }

    fn literal(&mut self, literal: &'static str) -> Result<(), Malformed> {
        let rest = self.text.as_bytes().get(self.at..).unwrap_or_default();
        if !rest.starts_with(literal.as_bytes()) {
            return self.syntax("expected a value");
        }
        self.at = self.at.saturating_add(literal.len());
        Ok(())
    }

    pub(crate) fn null(&mut self) -> Result<(), Malformed> {
        self.literal("null")
    }

    pub(crate) fn bool(&mut self) -> Result<bool, Malformed> {
        let value = self.byte() == Some(b't');
        self.literal(if value { "true" } else { "false" })?;
        Ok(value)
    }

    /// A number, as written.
    pub(crate) fn number(&mut self) -> Result<&'a str, Malformed> {
        let start = self.at;
        if self.byte() == Some(b'-') {
            self.advance();
        }
        let leads_with_zero = self.byte() == Some(b'0');
        let digits = self.digits()?;
        if leads_with_zero && digits > 1 {
            return self.syntax("a number begins with 0");
        }
        if self.byte() == Some(b'.') {
            self.advance();
            self.digits()?;
        }
        if matches!(self.byte(), Some(b'e' | b'E')) {
            self.advance();
            if matches!(self.byte(), Some(b'+' | b'-')) {
                self.advance();
            }
            self.digits()?;
        }
        Ok(self.text.get(start..self.at).unwrap_or_default())
    }

    fn digits(&mut self) -> Result<usize, Malformed> {
        let start = self.at;
        while matches!(self.byte(), Some(b'0'..=b'9')) {
            self.advance();
        }
        match self.at.saturating_sub(start) {
            0 => self.syntax("expected a digit"),
            count => Ok(count),
        }
    }

    /// A string, checked.
    pub(crate) fn string(&mut self) -> Result<Text<'a>, Malformed> {
        if self.byte() != Some(b'"') {
            return self.syntax("expected a string");
        }
        self.advance();
        let start = self.at;
        let (mut has_escapes, mut has_lone_surrogates) = (false, false);
        loop {
            let rest = self.text.as_bytes().get(self.at..).unwrap_or_default();
            let plain = memchr::memchr2(b'"', b'\\', rest).unwrap_or(rest.len());
            // Two passes that the compiler vectorizes are faster than one that stops at the first of either.
            if rest.get(..plain).unwrap_or_default().iter().fold(false, |found, byte| found | (*byte < 0x20)) {
                return self.syntax("found a control character in a string that begins here");
            }
            self.at = self.at.saturating_add(plain);
            match self.byte() {
                Some(b'"') => break,
                Some(_) => {
                    has_escapes = true;
                    has_lone_surrogates |= self.escape()?;
                }
                None => return self.syntax("the body ends inside a string"),
            }
        }
        let raw = self.text.get(start..self.at).unwrap_or_default();
        self.advance();
        Ok(Text { raw, has_escapes, has_lone_surrogates })
    }

    /// Skips an escape, or the two of a surrogate pair. Returns whether it is a surrogate alone.
    fn escape(&mut self) -> Result<bool, Malformed> {
        self.advance();
        match self.byte() {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => {
                self.advance();
                Ok(false)
            }
            Some(b'u') => {
                let unit = self.code_unit()?;
                if (0xDC00..0xE000).contains(&unit) {
                    return Ok(true);
                }
                if !(0xD800..0xDC00).contains(&unit) {
                    return Ok(false);
                }
                let before = self.at;
                let follows = self.text.as_bytes().get(before..).is_some_and(|rest| rest.starts_with(b"\\u"));
                if !follows {
                    return Ok(true);
                }
                self.advance();
                let low = self.code_unit()?;
                if !(0xDC00..0xE000).contains(&low) {
                    // The second escape is looked at again, on its own.
                    self.at = before;
                    return Ok(true);
                }
                Ok(false)
            }
            _ => self.syntax("found an unknown escape"),
        }
    }

    /// The four digits behind a `u`, which the reader stands at.
    fn code_unit(&mut self) -> Result<u32, Malformed> {
        self.advance();
        let end = self.at.saturating_add(4);
        let hex = self.text.get(self.at..end).filter(|hex| hex.bytes().all(|digit| digit.is_ascii_hexdigit()));
        let Some(unit) = hex.and_then(|hex| u32::from_str_radix(hex, 16).ok()) else {
            return self.syntax("expected four hexadecimal digits");
        };
        self.at = end;
        Ok(unit)
    }

    fn enter(&mut self) -> Result<(), Malformed> {
        if self.depth >= DEPTH_MAX {
            return self.syntax("nested deeper than 128 levels");
        }
        self.depth = self.depth.saturating_add(1);
        self.advance();
        Ok(())
    }

    fn leave(&mut self) {
        self.depth = self.depth.saturating_sub(1);
        self.advance();
    }

    /// Reads an object. `member` reads the value of each key. Returns the offset behind the opening brace, and the number
    /// of members.
    pub(crate) fn object<E: From<Malformed>>(
        &mut self,
        mut member: impl FnMut(&mut Self, &str) -> Result<(), E>,
    ) -> Result<(usize, usize), E> {
        self.enter()?;
        let (open, first_key) = (self.at, self.keys.len());
        self.skip_whitespace();
        while self.byte() != Some(b'}') {
            if self.keys.len() > first_key {
                self.separator()?;
            }
            let key = self.key()?;
            self.skip_whitespace();
            if self.byte() != Some(b':') {
                return Err(Malformed::Syntax { at: self.at, what: "expected a colon" }.into());
            }
            self.advance();
            self.kind()?;
            member(self, &key)?;
            self.skip_whitespace();
        }
        let count = self.keys.len().saturating_sub(first_key);
        let keys = self.keys.get_mut(first_key..).unwrap_or_default();
        keys.sort_unstable();
        if keys.windows(2).any(|pair| pair.first() == pair.last()) {
            return Err(Malformed::DuplicateKey { at: self.at }.into());
        }
        self.keys.truncate(first_key);
        self.leave();
        Ok((open, count))
    }

    /// A comma, between two members or items.
    fn separator(&mut self) -> Result<(), Malformed> {
        if self.byte() != Some(b',') {
            return self.syntax("expected a comma or the end of the object or list");
        }
        self.advance();
        self.skip_whitespace();
        Ok(())
    }

    fn key(&mut self) -> Result<Cow<'a, str>, Malformed> {
        let at = self.at;
        let refuse = |what| Malformed::Syntax { at, what };
        let text = self.string()?;
        if text.raw_len() > KEY_BYTES_MAX {
            return Err(refuse("a key is longer than 4,096 bytes"));
        }
        let key = text.decode().ok_or_else(|| refuse("a key has half of a surrogate pair"))?;
        if key.contains('\0') {
            return Err(refuse("a key has a NUL character"));
        }
        if self.keys.len() >= OPEN_KEYS_MAX {
            return Err(refuse("more than 65,536 keys in objects that are open at once"));
        }
        self.keys.push(hash(&key));
        Ok(key)
    }

    /// Reads a list. `item` reads each value.
    pub(crate) fn array<E: From<Malformed>>(
        &mut self,
        mut item: impl FnMut(&mut Self) -> Result<(), E>,
    ) -> Result<usize, E> {
        self.enter()?;
        let mut count = 0_usize;
        self.skip_whitespace();
        while self.byte() != Some(b']') {
            if count > 0 {
                self.separator()?;
            }
            self.kind()?;
            item(self)?;
            count = count.saturating_add(1);
            self.skip_whitespace();
        }
        self.leave();
        Ok(count)
    }

    /// Skips a value, checked like every other. Returns its position.
    pub(crate) fn skip(&mut self) -> Result<Range<usize>, Malformed> {
        let kind = self.kind()?;
        let start = self.at;
        match kind {
            Kind::Object => self.object(|reader, _| reader.skip().map(drop)).map(drop)?,
            Kind::Array => self.array(|reader| reader.skip().map(drop)).map(drop)?,
            Kind::String => self.string().map(drop)?,
            Kind::Number => self.number().map(drop)?,
            Kind::Bool => self.bool().map(drop)?,
            Kind::Null => self.null()?,
        }
        Ok(start..self.at)
    }
}

/// FNV-1a of a key. Equal keys always have equal hashes; who finds two others with equal ones gets a refusal.
fn hash(key: &str) -> u64 {
    key.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests;
