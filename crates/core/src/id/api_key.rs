//! API keys in places where they do not belong: the one function that finds them, and the one that hides them.

use std::borrow::Cow;

/// The prefix of every API key, so that secret scanners find leaked keys.
pub const API_KEY_PREFIX: &str = "emk_";
/// The reason for refusing a text that looks like an API key. It does not repeat the text.
pub const LOOKS_LIKE_API_KEY: &str =
    "looks like an API key; send a key as a credential only, and revoke this one if others saw it";
/// The text that replaces an API key.
const REDACTED: &str = "emk_***";

/// Whether `text` contains something that looks like an API key: the prefix and at least one character of a key, in
/// upper or lower case, plain, percent-encoded or as JSON escapes.
#[must_use]
pub fn contains_api_key(text: &str) -> bool {
    find(text.as_bytes()).is_some()
}

/// Replaces everything in `text` that looks like an API key by `emk_***`, because people paste keys where ids belong.
#[must_use]
pub fn redact_api_keys(text: &str) -> Cow<'_, str> {
    let mut shown = String::new();
    let mut rest = text;
    while let Some((start, end)) = find(rest.as_bytes()) {
        shown.extend([&rest[..start], REDACTED]);
        rest = &rest[end..];
    }
    if shown.is_empty() { Cow::Borrowed(text) } else { Cow::Owned(shown + rest) }
}

/// The byte range of the first key. Both ends are character boundaries, since a key is ASCII.
fn find(text: &[u8]) -> Option<(usize, usize)> {
    // The prefix has a `_`, plain or encoded. This spares ordinary names the search.
    if !text.iter().any(|byte| matches!(byte, b'_' | b'%' | b'\\')) {
        return None;
    }
    (0..text.len()).find_map(|start| {
        let mut rest = text.get(start..)?;
        for letter in API_KEY_PREFIX.bytes() {
            let (byte, after) = character(rest)?;
            if !byte.eq_ignore_ascii_case(&letter) {
                return None;
            }
            rest = after;
        }
        let secret = rest;
        while let Some((byte, after)) = character(rest)
            && (byte.is_ascii_alphanumeric() || byte == b'_')
        {
            rest = after;
        }
        (rest.len() < secret.len()).then(|| (start, text.len().saturating_sub(rest.len())))
    })
}

/// The first character, decoded, and the bytes after it. A percent sign may itself be encoded: `%2565` is `e`.
fn character(text: &[u8]) -> Option<(u8, &[u8])> {
    let (&first, after) = text.split_first()?;
    let digits = match first {
        b'%' => {
            let mut digits = after;
            while let Some(rest) = digits.strip_prefix(b"25") {
                digits = rest;
            }
            Some(digits)
        }
        b'\\' => after.strip_prefix(b"u00"),
        _ => None,
    };
    let hex = |digit: &u8| char::from(*digit).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let encoded = digits.and_then(|digits| match digits {
        [high, low, after @ ..] => Some(((hex(high)? << 4) | hex(low)?, after)),
        _ => None,
    });
    Some(encoded.unwrap_or((first, after)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "emk_4m8qk2v7d1xz_0123456789abcdefghjkmnpqrstvwxyz0123456789abcdefghjk";

    #[test]
    fn nothing_of_a_key_is_left_in_a_text() {
        let percent: String = KEY.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let twice = percent.replace('%', "%25");
        let escaped: String = KEY.bytes().map(|byte| format!("\\u00{byte:02x}")).collect();
        let upper = KEY.to_uppercase();
        for (text, shown) in [
            (format!("/v1/admin/keys/{KEY}"), "/v1/admin/keys/emk_***"),
            (format!("found \"{KEY}\", and {upper}!"), "found \"emk_***\", and emk_***!"),
            (format!("{KEY}-{KEY}"), "emk_***-emk_***"),
            (format!("é{KEY}é"), "éemk_***é"),
            (format!("/{percent}/x%2F"), "/emk_***/x%2F"),
            (format!("/{twice}?a"), "/emk_***?a"),
            (format!("\"{escaped}\""), "\"emk_***\""),
            (KEY.replace('_', "%5f"), "emk_***"),
            (KEY.replace('e', "%65"), "emk_***"),
            (KEY[..20].to_owned(), "emk_***"),
        ] {
            assert!(contains_api_key(&text), "{text}");
            assert_eq!(redact_api_keys(&text), shown);
        }
    }

    #[test]
    fn other_texts_stay_as_they_are() {
        for text in
            ["", "a:rpm", "emk", "emk_", "emk_***", "emk_...", "emk-abc", "%", "%6", "%zz_", "e%6", "mk_a", "日_"]
        {
            assert!(!contains_api_key(text), "{text}");
            assert!(matches!(redact_api_keys(text), Cow::Borrowed(same) if same == text), "{text}");
        }
    }
}
