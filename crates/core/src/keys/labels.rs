//! The attributes that a key fixes, and the names of those that its calls may set.

use std::fmt;
use std::sync::Arc;

use crate::book::CodecError;
use crate::id::{LOOKS_LIKE_API_KEY, contains_api_key, redact_api_keys};
use crate::wire::{Bytes, Malformed, Put, Wire};

/// The maximum number of labels of a key, of names in its `may_set`, and of attributes that a call states.
pub const ATTRIBUTES_MAX: usize = 32;
/// The maximum length of an attribute's name in bytes.
pub const ATTRIBUTE_NAME_BYTES_MAX: usize = 64;
/// The maximum length of an attribute's value in bytes.
pub const ATTRIBUTE_VALUE_BYTES_MAX: usize = 256;
/// The attribute that holds the id of the key that calls. The server sets it, so that no key may fix or set it.
pub const KEY_ATTRIBUTE: &str = "key";

/// Why labels or the names that a key may set are refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct LabelError(String);

impl LabelError {
    pub(crate) fn new(message: String) -> LabelError {
        LabelError(message)
    }
}

/// The labels of a key: attributes of each of its calls. Sorted by name, each name once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Labels(Arc<[(Box<str>, Box<str>)]>);

impl Labels {
    /// Checks names and values.
    ///
    /// # Errors
    /// There are too many, a name is there twice, or a name or a value is not allowed.
    pub fn new<N: AsRef<str>, V: AsRef<str>>(pairs: impl IntoIterator<Item = (N, V)>) -> Result<Labels, LabelError> {
        let mut checked: Vec<(Box<str>, Box<str>)> = Vec::new();
        for (name, value) in pairs {
            let (name, value) = (name.as_ref(), value.as_ref());
            check_count(checked.len()).map_err(LabelError)?;
            check_settable(name).map_err(LabelError)?;
            check_attribute_value(value).map_err(|what| LabelError(format!("{name}: {what}")))?;
            checked.push((name.into(), value.into()));
        }
        checked.sort_unstable();
        check_distinct(checked.iter().map(|(name, _)| &**name))?;
        Ok(Labels(checked.into()))
    }

    /// The value of a label.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        let place = self.0.binary_search_by(|(other, _)| (**other).cmp(name)).ok()?;
        self.0.get(place).map(|(_, value)| &**value)
    }

    /// Names and values, by name.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (&**name, &**value))
    }
}

impl Wire for Labels {
    fn write(&self, out: &mut Vec<u8>) {
        out.put_len(self.0.len());
        for (name, value) in self.iter() {
            out.put_text(name);
            out.put_text(value);
        }
    }

    fn read(input: &mut Bytes<'_>) -> Result<Labels, CodecError> {
        let count = read_count(input)?;
        let pairs = (0..count).map(|_| Ok((input.text()?, input.text()?))).collect::<Result<Vec<_>, Malformed>>()?;
        let labels =
            Labels::new(pairs.iter().copied()).map_err(|_| CodecError::Malformed("a key has an invalid label"))?;
        let is_sorted = labels.iter().eq(pairs);
        if is_sorted { Ok(labels) } else { Err(CodecError::Malformed("the labels of a key are out of order")) }
    }
}

/// `name=value`, with spaces in between.
impl fmt::Display for Labels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, (name, value)) in self.iter().enumerate() {
            write!(f, "{}{name}={value}", if place == 0 { "" } else { " " })?;
        }
        Ok(())
    }
}

/// The names of the attributes that a key's calls may set. Sorted, each name once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MaySet(Arc<[Box<str>]>);

impl MaySet {
    /// Checks the names.
    ///
    /// # Errors
    /// There are too many, a name is there twice, or a name is not allowed.
    pub fn new<N: AsRef<str>>(names: impl IntoIterator<Item = N>) -> Result<MaySet, LabelError> {
        let mut checked: Vec<Box<str>> = Vec::new();
        for name in names {
            check_count(checked.len()).map_err(LabelError)?;
            check_settable(name.as_ref()).map_err(LabelError)?;
            checked.push(name.as_ref().into());
        }
        checked.sort_unstable();
        check_distinct(checked.iter().map(|name| &**name))?;
        Ok(MaySet(checked.into()))
    }

    /// Whether a call may set this attribute.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.0.binary_search_by(|other| (**other).cmp(name)).is_ok()
    }

    /// The names, sorted.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &str> {
        self.0.iter().map(|name| &**name)
    }
}

impl Wire for MaySet {
    fn write(&self, out: &mut Vec<u8>) {
        out.put_len(self.0.len());
        for name in self.iter() {
            out.put_text(name);
        }
    }

    fn read(input: &mut Bytes<'_>) -> Result<MaySet, CodecError> {
        let count = read_count(input)?;
        let names = (0..count).map(|_| input.text()).collect::<Result<Vec<_>, Malformed>>()?;
        let may_set = MaySet::new(&names).map_err(|_| CodecError::Malformed("a key may set an invalid attribute"))?;
        let is_sorted = may_set.iter().eq(names);
        if is_sorted {
            Ok(may_set)
        } else {
            Err(CodecError::Malformed("the attributes that a key may set are out of order"))
        }
    }
}

/// The names, with spaces in between.
impl fmt::Display for MaySet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, name) in self.iter().enumerate() {
            write!(f, "{}{name}", if place == 0 { "" } else { " " })?;
        }
        Ok(())
    }
}

/// Checks the name of an attribute.
///
/// # Errors
/// The name is not allowed. The text says what is.
pub fn check_attribute_name(name: &str) -> Result<(), String> {
    let starts = name.bytes().next().is_some_and(|byte| byte.is_ascii_lowercase());
    let is_name_byte = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    if starts && name.len() <= ATTRIBUTE_NAME_BYTES_MAX && name.bytes().all(is_name_byte) {
        return Ok(());
    }
    Err(format!(
        "found the name {}, allowed are 1 to {ATTRIBUTE_NAME_BYTES_MAX} bytes of lower-case letters, digits and _, a \
         letter first",
        quoted(name)
    ))
}

/// Checks the value of an attribute.
///
/// # Errors
/// The value is not allowed. The text says what is.
pub fn check_attribute_value(value: &str) -> Result<(), String> {
    check_text(value, ATTRIBUTE_VALUE_BYTES_MAX)
}

/// Checks the value of an attribute or of a settlement's label, of at most `bytes_max` bytes.
pub(crate) fn check_text(value: &str, bytes_max: usize) -> Result<(), String> {
    if contains_api_key(value) {
        return Err(LOOKS_LIKE_API_KEY.to_owned());
    }
    if value.is_empty() || value.len() > bytes_max {
        return Err(format!("found {} bytes, allowed are 1 to {bytes_max}", value.len()));
    }
    // Nearly every value is visible ASCII, which needs no search by character.
    let suspect = if value.bytes().all(|byte| matches!(byte, b' '..=b'~')) { "" } else { value };
    match suspect.chars().find(|character| character.is_control()) {
        Some(character) => Err(format!("found the control character {character:?}, allowed is UTF-8 without any")),
        None => Ok(()),
    }
}

/// A text as it is quoted in a message: short, and without a text that looks like an API key.
#[must_use]
pub fn quoted(text: &str) -> String {
    const CHARACTERS_MAX: usize = 60;
    let shown = redact_api_keys(text);
    match shown.char_indices().nth(CHARACTERS_MAX) {
        Some((end, _)) => format!("{:?}...", shown.get(..end).unwrap_or_default()),
        None => format!("{shown:?}"),
    }
}

fn check_settable(name: &str) -> Result<(), String> {
    check_attribute_name(name)?;
    match name {
        KEY_ATTRIBUTE => Err(format!("found {KEY_ATTRIBUTE}, which the server sets to the id of the key that calls")),
        _ => Ok(()),
    }
}

fn check_count(count: usize) -> Result<(), String> {
    match count {
        ATTRIBUTES_MAX => Err(format!("found more than {ATTRIBUTES_MAX}, allowed are {ATTRIBUTES_MAX}")),
        _ => Ok(()),
    }
}

/// Refuses a name that is there twice, in sorted names.
pub(crate) fn check_distinct<'a>(names: impl Iterator<Item = &'a str> + Clone) -> Result<(), LabelError> {
    let twice = names.clone().zip(names.skip(1)).find(|(first, second)| first == second);
    match twice {
        Some((name, _)) => Err(LabelError(format!("found {name} twice, allowed is each name once"))),
        None => Ok(()),
    }
}

fn read_count(input: &mut Bytes<'_>) -> Result<usize, Malformed> {
    let count = input.u32()? as usize;
    if count <= ATTRIBUTES_MAX { Ok(count) } else { Err(Malformed("a key has too many labels")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_and_names_come_back_from_their_bytes_sorted() {
        let labels = Labels::new([("tenant", "acme"), ("plan", "ü pro")]).unwrap();
        let may_set = MaySet::new(["user", "feature"]).unwrap();
        assert_eq!((labels.get("plan"), labels.get("user")), (Some("ü pro"), None));
        assert!(may_set.has("user") && !may_set.has("use"));
        assert_eq!((labels.to_string(), may_set.to_string()), ("plan=ü pro tenant=acme".into(), "feature user".into()));
        let mut out = Vec::new();
        labels.write(&mut out);
        may_set.write(&mut out);
        let mut input = Bytes(&out);
        assert_eq!(Labels::read(&mut input), Ok(labels));
        assert_eq!(MaySet::read(&mut input), Ok(may_set));
        for shorter in 0..out.len() {
            let mut input = Bytes(&out[..shorter]);
            assert!(Labels::read(&mut input).and_then(|_| MaySet::read(&mut input)).is_err(), "{shorter}");
        }
    }

    #[test]
    fn a_refused_label_is_named_and_key_can_be_neither_fixed_nor_set() {
        let label = |name: &str, value: &str| Labels::new([(name, value)]).unwrap_err().to_string();
        assert!(label("Tenant", "a").starts_with("found the name \"Tenant\", allowed are 1 to 64 bytes"));
        assert_eq!(label("tenant", ""), "tenant: found 0 bytes, allowed are 1 to 256");
        assert!(label("tenant", "emk_4m8qk2v7d1xz_0123456789abc").starts_with("tenant: looks like an API key"));
        assert!(label("tenant", "a\nb").starts_with("tenant: found the control character '\\n'"));
        assert_eq!(label("key", "a"), "found key, which the server sets to the id of the key that calls");
        assert!(MaySet::new(["key"]).is_err());
        let twice = Labels::new([("a", "1"), ("b", "1"), ("a", "2")]).unwrap_err();
        assert_eq!(twice.to_string(), "found a twice, allowed is each name once");
        assert!(MaySet::new(["a", "a"]).is_err());
        let names: Vec<String> = (0..33).map(|number| format!("a{number}")).collect();
        assert!(MaySet::new(&names).is_err() && MaySet::new(&names[1..]).is_ok());
        let pairs = |names: &[String]| Labels::new(names.iter().map(|name| (name.clone(), "x")));
        assert!(pairs(&names).is_err() && pairs(&names[1..]).is_ok());
    }

    #[test]
    fn bytes_that_are_out_of_order_or_too_many_are_malformed() {
        let bytes = |texts: &[&str], count: u32| {
            let mut out = Vec::new();
            out.put_u32(count);
            texts.iter().for_each(|text| out.put_text(text));
            out
        };
        assert!(MaySet::read(&mut Bytes(&bytes(&["a", "b"], 2))).is_ok());
        assert!(MaySet::read(&mut Bytes(&bytes(&["b", "a"], 2))).is_err());
        assert!(Labels::read(&mut Bytes(&bytes(&["b", "1", "a", "2"], 2))).is_err());
        assert!(Labels::read(&mut Bytes(&bytes(&[], u32::MAX))).is_err());
    }
}
