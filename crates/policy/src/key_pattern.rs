//! Keys with attributes in them: `tenant:{tenant}:tpd`.

use earmark_core::{LOOKS_LIKE_API_KEY, LimitKey, NameError, NamespaceName, contains_api_key, id128};

use crate::attributes::check_name;
use crate::mistake::quoted;
use crate::policy::{Names, Slot, Values};

/// The mark before the hash of a key that was too long. A `%` of a value is followed by two hexadecimal digits, and a
/// pattern must not contain the mark, so no other key contains it.
const HASH_MARK: &str = "%~";
/// The hexadecimal digits of a 128-bit hash.
const HASH_CHARS: usize = 32;
/// The bytes of a long key that stay: those of a key without mark and hash.
const KEPT_BYTES: usize = LimitKey::BYTES_MAX.saturating_sub(HASH_MARK.len()).saturating_sub(HASH_CHARS);

/// A key with attributes in it.
#[derive(Clone, Debug)]
pub(crate) struct KeyPattern {
    namespace: Option<NamespaceName>,
    parts: Vec<Part>,
}

#[derive(Clone, Debug)]
enum Part {
    Literal(Box<str>),
    Attribute(Slot),
}

/// Why a pattern gives no key for a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum KeyFault {
    /// The call lacks an attribute.
    Missing(Slot),
    /// The values give a text that cannot be a key.
    Invalid(NameError),
}

impl KeyPattern {
    /// Compiles a pattern. `namespace` is that of a shared limit of another namespace.
    pub(crate) fn compile(
        text: &str,
        namespace: Option<NamespaceName>,
        names: &mut Names,
    ) -> Result<KeyPattern, String> {
        let mut parts = Vec::new();
        for piece in pieces(text)? {
            parts.push(match piece {
                Piece::Literal(literal) => Part::Literal(literal.into()),
                Piece::Attribute(name) => Part::Attribute(names.slot(name)?),
            });
        }
        Ok(KeyPattern { namespace, parts })
    }

    /// The key for a call. `buffer` is only memory to reuse.
    pub(crate) fn key(&self, values: &Values<'_>, buffer: &mut String) -> Result<LimitKey, KeyFault> {
        buffer.clear();
        for part in &self.parts {
            match part {
                Part::Literal(literal) => buffer.push_str(literal),
                Part::Attribute(slot) => escape(values.get(*slot).ok_or(KeyFault::Missing(*slot))?, buffer),
            }
        }
        shorten(buffer);
        let key = LimitKey::new(buffer).map_err(KeyFault::Invalid)?;
        Ok(match &self.namespace {
            Some(namespace) => LimitKey::in_namespace(namespace, &key),
            None => key,
        })
    }
}

enum Piece<'a> {
    Literal(&'a str),
    Attribute(&'a str),
}

/// Checks a pattern without compiling it.
pub(crate) fn check(text: &str) -> Result<(), String> {
    pieces(text).map(drop)
}

fn pieces(text: &str) -> Result<Vec<Piece<'_>>, String> {
    if text.is_empty() || text.len() > LimitKey::BYTES_MAX {
        return Err(format!("found {} bytes, allowed are 1 to {}", text.len(), LimitKey::BYTES_MAX));
    }
    if contains_api_key(text) {
        return Err(LOOKS_LIKE_API_KEY.to_owned());
    }
    let mut pieces = Vec::new();
    let mut rest = text;
    while let Some((literal, after)) = rest.split_once('{') {
        pieces.extend(checked_literal(literal)?);
        let unclosed = || format!("found {}, allowed are attributes in braces such as {{tenant}}", quoted(text));
        let (name, after) = after.split_once('}').ok_or_else(unclosed)?;
        check_name(name)?;
        pieces.push(Piece::Attribute(name));
        rest = after;
    }
    pieces.extend(checked_literal(rest)?);
    Ok(pieces)
}

fn checked_literal(text: &str) -> Result<Option<Piece<'_>>, String> {
    if text.is_empty() {
        return Ok(None);
    }
    if text.contains(HASH_MARK) {
        return Err(format!("found {HASH_MARK}, which marks the hash in a key that was too long"));
    }
    LimitKey::new(text).map_err(|error| error.mistake)?;
    Ok(Some(Piece::Literal(text)))
}

/// Appends a value as part of a key: `%`, `:` and bytes outside the key alphabet become `%XX`.
fn escape(value: &str, key: &mut String) {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    if value.bytes().all(is_plain) {
        return key.push_str(value);
    }
    for byte in value.bytes() {
        if is_plain(byte) {
            key.push(char::from(byte));
        } else {
            let digit = |number: u8| char::from(HEX.get(usize::from(number)).copied().unwrap_or(b'0'));
            key.extend(['%', digit(byte >> 4), digit(byte & 15)]);
        }
    }
}

/// Whether a byte of a value stays as it is.
fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'@' | b'+' | b'-' | b'/' | b'|' | b'=' | b'~')
}

/// A value as part of a key, as [`Policy`](crate::Policy) writes it.
#[must_use]
pub fn escaped(value: &str) -> String {
    let mut key = String::with_capacity(value.len());
    escape(value, &mut key);
    key
}

/// Replaces the end of a key over [`LimitKey::BYTES_MAX`] bytes by its hash.
fn shorten(key: &mut String) {
    if key.len() <= LimitKey::BYTES_MAX {
        return;
    }
    // A key is ASCII, so every byte is a character boundary.
    let hash = id128(key.get(KEPT_BYTES..).unwrap_or_default()).to_u128();
    key.truncate(KEPT_BYTES);
    key.push_str(HASH_MARK);
    key.push_str(&format!("{hash:032x}"));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Attributes;

    fn key(pattern: &str, pairs: &[(&str, &str)]) -> Result<String, KeyFault> {
        let mut names = Names::default();
        let pattern = KeyPattern::compile(pattern, None, &mut names).unwrap();
        let attributes = Attributes::new(pairs.iter().copied()).unwrap();
        pattern.key(&names.values(&attributes), &mut String::new()).map(|key| key.as_str().to_owned())
    }

    #[test]
    fn a_value_is_escaped_where_it_becomes_part_of_a_key() {
        for (value, escaped) in [
            ("acme", "acme"),
            ("a:b", "a%3Ab"),
            ("100%", "100%25"),
            ("a b", "a%20b"),
            ("ü", "%C3%BC"),
            ("{x}", "%7Bx%7D"),
            ("!default", "%21default"),
            ("a/b|c=d~e.f_g@h+i-j", "a/b|c=d~e.f_g@h+i-j"),
        ] {
            assert_eq!(key("t:{tenant}:rpm", &[("tenant", value)]), Ok(format!("t:{escaped}:rpm")), "{value}");
        }
        assert_eq!(key("{a}{b}-{a}", &[("a", "1"), ("b", "2")]), Ok("12-1".into()));
    }

    /// Without the escape of `:` a user named `1:admin` would reach the limit of another key.
    #[test]
    fn two_calls_with_different_values_never_share_a_key() {
        let one = key("{a}:{b}", &[("a", "x:y"), ("b", "z")]);
        let two = key("{a}:{b}", &[("a", "x"), ("b", "y:z")]);
        assert_ne!(one, two);
    }

    #[test]
    fn a_key_over_256_bytes_ends_in_a_hash_of_the_rest() {
        let exact = "x".repeat(254);
        assert_eq!(key("t:{a}", &[("a", &exact)]).unwrap().len(), 256);
        let long = |last: &str| key("t:{a}:rpm", &[("a", &format!("{}{last}", ":".repeat(200)))]).unwrap();
        let (one, two) = (long("1"), long("2"));
        assert_eq!((one.len(), two.len()), (256, 256));
        assert_eq!(one.get(..222), two.get(..222));
        assert_eq!(one.get(222..224), Some("%~"));
        assert_ne!(one, two);
        assert_eq!(one, long("1"));
        assert!(one.bytes().skip(224).all(|byte| byte.is_ascii_hexdigit()));
    }

    #[test]
    fn a_missing_attribute_is_named() {
        assert!(matches!(key("{a}:{b}", &[("a", "1")]), Err(KeyFault::Missing(_))));
    }

    #[test]
    fn a_wrong_pattern_is_refused() {
        let long = "k".repeat(300);
        for (pattern, what) in [
            ("", "found 0 bytes, allowed are 1 to 256"),
            (long.as_str(), "found 300 bytes, allowed are 1 to 256"),
            ("a{b", "found \"a{b\", allowed are attributes in braces"),
            ("a{}", "found the name \"\""),
            ("a{B}", "found the name \"B\""),
            ("a}", "found '}' at byte 1"),
            ("a b", "found ' ' at byte 1"),
            ("a%~b", "found %~, which marks"),
            ("!x:{a}", "found '!' at byte 0"),
        ] {
            let error = check(pattern).unwrap_err();
            assert!(error.starts_with(what), "{pattern}: {error}");
        }
    }
}
