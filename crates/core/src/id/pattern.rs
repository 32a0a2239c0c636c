//! Names with placeholders: the keys of templates, and the accounts of credit templates.
//!
//! A placeholder is a whole segment between colons: `user:{user}:rpm`.

use super::api_key::{LOOKS_LIKE_API_KEY, contains_api_key};
use super::name::{NameError, is_key};

/// The maximum number of placeholders of a template key.
pub const PLACEHOLDERS_MAX: usize = 4;

/// The maximum number of segments of a template key. The search for the template of a key tries literals before
/// placeholders, so its cost grows with the number of ways to place 4 placeholders: 2,378 steps at most for 12 segments.
pub(crate) const SEGMENTS_MAX: usize = 12;

/// A segment of a name with placeholders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Segment<'a> {
    /// Stands for itself.
    Literal(&'a str),
    /// Stands for any text that is not empty. The name is without braces.
    Placeholder(&'a str),
}

/// The segments of a name that [`check`] accepted.
pub(crate) fn segments(text: &str) -> impl Iterator<Item = Segment<'_>> + Clone {
    text.split(':').map(|segment| match placeholder(segment) {
        Some(name) => Segment::Placeholder(name),
        None => Segment::Literal(segment),
    })
}

/// The names of the placeholders, in order.
pub(crate) fn placeholders(text: &str) -> impl Iterator<Item = &str> + Clone {
    segments(text).filter_map(|segment| match segment {
        Segment::Placeholder(name) => Some(name),
        Segment::Literal(_) => None,
    })
}

/// Whether a name has a placeholder, so that it stands for many names.
pub(crate) fn has_placeholder(text: &str) -> bool {
    text.contains('{')
}

/// The name inside the braces of a placeholder.
fn placeholder(segment: &str) -> Option<&str> {
    segment.strip_prefix('{')?.strip_suffix('}')
}

/// Checks length and characters, and that every placeholder is a whole segment with a valid name.
pub(super) fn check(kind: &'static str, bytes_max: usize, text: &str) -> Result<(), NameError> {
    let wrong = |mistake: String| Err(NameError { kind, mistake });
    if contains_api_key(text) {
        return wrong(LOOKS_LIKE_API_KEY.to_owned());
    }
    if text.is_empty() || text.len() > bytes_max {
        return wrong(format!("found {} bytes, allowed are 1 to {bytes_max}", text.len()));
    }
    for segment in text.split(':') {
        let allowed = "allowed is a placeholder such as {user} as a whole segment between colons, \
                       named with lower-case letters and _";
        match placeholder(segment) {
            Some(name) if !name.is_empty() && name.bytes().all(is_placeholder_byte) => {}
            Some(_) => return wrong(format!("found {segment:?}, {allowed}")),
            None if segment.contains(['{', '}']) => return wrong(format!("found {segment:?}, {allowed}")),
            None => {
                if let Some(character) = segment.chars().find(|character| !is_key(0, *character)) {
                    return wrong(format!(
                        "found {character:?} in {segment:?}, allowed are characters of keys and placeholders such as \
                         {{user}}"
                    ));
                }
            }
        }
    }
    Ok(())
}

/// Checks the placeholders of a template key: one to [`PLACEHOLDERS_MAX`], each once, and its number of segments.
pub(super) fn check_key(kind: &'static str, text: &str) -> Result<(), NameError> {
    let wrong = |mistake: String| Err(NameError { kind, mistake });
    let count = placeholders(text).count();
    if count == 0 {
        return wrong(format!("found {text:?}, a template needs a placeholder such as {{user}}"));
    }
    if count > PLACEHOLDERS_MAX {
        return wrong(format!("found {count} placeholders, allowed are 1 to {PLACEHOLDERS_MAX}"));
    }
    let count = text.split(':').count();
    if count > SEGMENTS_MAX {
        return wrong(format!("found {count} segments, allowed are 1 to {SEGMENTS_MAX}"));
    }
    let twice = placeholders(text).enumerate().find(|(position, name)| {
        let mut before = placeholders(text).take(*position);
        before.any(|other| other == *name)
    });
    match twice {
        Some((_, name)) => wrong(format!("found {{{name}}} twice, allowed is each placeholder once")),
        None => Ok(()),
    }
}

const fn is_placeholder_byte(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte == b'_'
}
