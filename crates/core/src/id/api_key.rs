//! API keys and invitations in places where they do not belong: the one function that finds them, and the one that hides
//! them.

use std::borrow::Cow;

/// The prefix of every API key, so that secret scanners find leaked keys.
pub const API_KEY_PREFIX: &str = "emk_";
/// The prefix of every invitation to a cluster.
pub const INVITATION_PREFIX: &str = "emi_";
/// The reason for refusing a text that looks like an API key. It does not repeat the text.
pub const LOOKS_LIKE_API_KEY: &str =
    "looks like an API key or an invitation; send it as a credential only, and revoke this one if others saw it";
/// The secrets that are found: their prefix, the fewest characters after it, and the text that replaces them. A name may
/// begin with `emi_`, so an invitation needs a quarter of its 52 characters, without `_`.
const SECRETS: [(&str, usize, &str); 2] = [(API_KEY_PREFIX, 1, "emk_***"), (INVITATION_PREFIX, 13, "emi_***")];

/// Whether `text` contains something that looks like an API key or an invitation: the prefix and some characters of a
/// key, in upper or lower case, plain, percent-encoded or as JSON escapes.
#[must_use]
pub fn contains_api_key(text: &str) -> bool {
    find(text.as_bytes()).is_some()
}

/// Replaces everything in `text` that looks like an API key by `emk_***`, and like an invitation by `emi_***`, because
/// people paste keys where ids belong.
#[must_use]
pub fn redact_api_keys(text: &str) -> Cow<'_, str> {
    let mut shown = String::new();
    let mut rest = text;
    while let Some(Secret { start, end, shown_as }) = find(rest.as_bytes()) {
        shown.extend([&rest[..start], shown_as]);
        rest = &rest[end..];
    }
    if shown.is_empty() { Cow::Borrowed(text) } else { Cow::Owned(shown + rest) }
}

/// The byte range of a secret, and the text that replaces it. Both ends are character boundaries, since a secret is ASCII.
struct Secret {
    start: usize,
    end: usize,
    shown_as: &'static str,
}

/// The first secret.
fn find(text: &[u8]) -> Option<Secret> {
    // Each prefix has a `_`, plain or encoded. This spares ordinary names the search.
    if !text.iter().any(|byte| matches!(byte, b'_' | b'%' | b'\\')) {
        return None;
    }
    (0..text.len()).find_map(|start| {
        let rest = text.get(start..)?;
        SECRETS.into_iter().find_map(|(prefix, chars_min, shown_as)| {
            let end = text.len().saturating_sub(after_secret(rest, prefix, chars_min)?.len());
            Some(Secret { start, end, shown_as })
        })
    })
}

/// The bytes after the secret at the start of `text`.
fn after_secret<'a>(text: &'a [u8], prefix: &str, chars_min: usize) -> Option<&'a [u8]> {
    let mut rest = text;
    for letter in prefix.bytes() {
        let (byte, after) = character(rest)?;
        if !byte.eq_ignore_ascii_case(&letter) {
            return None;
        }
        rest = after;
    }
    let mut count: usize = 0;
    while let Some((byte, after)) = character(rest)
        && (byte.is_ascii_alphanumeric() || (byte == b'_' && (chars_min == 1 || count >= chars_min)))
    {
        (rest, count) = (after, count.saturating_add(1));
    }
    (count >= chars_min).then_some(rest)
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

    const INVITATION: &str = "emi_0123456789abcdefghjkmnpqrstvwxyz0123456789abcdefghjk";

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
            (format!("it is {INVITATION}."), "it is emi_***."),
            (format!("{KEY} and {}", INVITATION.to_uppercase()), "emk_*** and emi_***"),
            (INVITATION.replace('i', "%69"), "emi_***"),
            (INVITATION[..17].to_owned(), "emi_***"),
        ] {
            assert!(contains_api_key(&text), "{text}");
            assert_eq!(redact_api_keys(&text), shown);
        }
    }

    #[test]
    fn other_texts_stay_as_they_are() {
        for text in [
            "",
            "a:rpm",
            "emk",
            "emk_",
            "emk_***",
            "emk_...",
            "emk-abc",
            "emi_***",
            "emi_loans",
            "emi_loans_of_the_month",
            "%",
            "%6",
            "%zz_",
            "e%6",
            "mk_a",
            "日_",
        ] {
            assert!(!contains_api_key(text), "{text}");
            assert!(matches!(redact_api_keys(text), Cow::Borrowed(same) if same == text), "{text}");
        }
    }
}
