//! The attributes of a call.

pub(crate) use earmark_core::check_attribute_name as check_name;
use earmark_core::{ATTRIBUTES_MAX, KEY_ATTRIBUTE, check_attribute_value, id128};

/// Initial capacity for attributes; most calls have no more.
const PAIRS_INITIAL: usize = 8;

/// Why the attributes of a call are refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("attributes: {0}")]
pub struct AttributeError(String);

/// The attributes of a call: names and values, checked and sorted by name. `key`, which the server sets, comes on top of
/// the maximum.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Attributes {
    /// `name=value` and a line break for each. A name has no `=` and a value no line break, so no two lists give the same
    /// text. One text for all, because every call builds and hashes its attributes.
    text: Box<str>,
    places: Box<[Place]>,
}

/// The place of an attribute in the text: at most 33 lines of at most 322 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Place {
    name: u16,
    value: u16,
    end: u16,
}

impl Attributes {
    /// Checks names and values.
    ///
    /// # Errors
    /// There are too many, a name is there twice, or a name or a value is not allowed.
    pub fn new<N: AsRef<str>, V: AsRef<str>>(
        pairs: impl IntoIterator<Item = (N, V)>,
    ) -> Result<Attributes, AttributeError> {
        let mut checked: Vec<(N, V)> = Vec::with_capacity(PAIRS_INITIAL);
        let (mut left, mut bytes) = (ATTRIBUTES_MAX, 0_usize);
        for (name, value) in pairs {
            let (name_text, value_text) = (name.as_ref(), value.as_ref());
            if name_text != KEY_ATTRIBUTE {
                let too_many = || format!("found more than {ATTRIBUTES_MAX}, allowed are {ATTRIBUTES_MAX}");
                left = left.checked_sub(1).ok_or_else(|| AttributeError(too_many()))?;
            }
            check_name(name_text).map_err(AttributeError)?;
            check_attribute_value(value_text).map_err(|what| AttributeError(format!("{name_text}: {what}")))?;
            bytes = bytes.saturating_add(name_text.len()).saturating_add(value_text.len()).saturating_add(2);
            checked.push((name, value));
        }
        checked.sort_unstable_by(|(one, _), (other, _)| one.as_ref().cmp(other.as_ref()));
        let twice = checked.windows(2).find_map(|pair| match pair {
            [(first, _), (second, _)] if first.as_ref() == second.as_ref() => Some(second.as_ref()),
            _ => None,
        });
        match twice {
            Some(name) => Err(AttributeError(format!("found {name} twice, allowed is each name once"))),
            None => Ok(Attributes::of_sorted(&checked, bytes)),
        }
    }

    fn of_sorted<N: AsRef<str>, V: AsRef<str>>(pairs: &[(N, V)], bytes: usize) -> Attributes {
        let mut text = String::with_capacity(bytes);
        let mut places = Vec::with_capacity(pairs.len());
        // The bounds of names, values and their number keep every place below the maximum of the type.
        let place = |text: &String| u16::try_from(text.len()).unwrap_or(u16::MAX);
        for (name, value) in pairs {
            let start = place(&text);
            text.push_str(name.as_ref());
            text.push('=');
            let value_start = place(&text);
            text.push_str(value.as_ref());
            places.push(Place { name: start, value: value_start, end: place(&text) });
            text.push('\n');
        }
        Attributes { text: text.into(), places: places.into() }
    }

    fn at(&self, place: &Place) -> (&str, &str) {
        let text = |start: usize, end: usize| self.text.get(start..end).unwrap_or_default();
        let (name, value, end) = (usize::from(place.name), usize::from(place.value), usize::from(place.end));
        (text(name, value.saturating_sub(1)), text(value, end))
    }

    /// The value of an attribute.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.iter().find(|(other, _)| *other == name).map(|(_, value)| value)
    }

    /// A hash of names and values. A lease stores it to recognise its call, so it is the same on every node and in every
    /// version.
    #[must_use]
    pub fn hash32(&self) -> u32 {
        let [a, b, c, d, ..] = id128(&self.text).to_u128().to_le_bytes();
        u32::from_le_bytes([a, b, c, d])
    }

    /// Names and values, by name.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &str)> {
        self.places.iter().map(|place| self.at(place))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HASH: u32 = 921_844_551;

    #[test]
    fn attributes_are_found_by_name_whatever_their_order() {
        let attributes = Attributes::new([("user", "ü:1"), ("model", "gpt-4o"), ("a0_", "x")]).unwrap();
        assert_eq!(attributes.get("user"), Some("ü:1"));
        assert_eq!(attributes.get("use"), None);
        assert_eq!(attributes.iter().map(|(name, _)| name).collect::<Vec<_>>(), ["a0_", "model", "user"]);
    }

    #[test]
    fn the_hash_of_attributes_stays_and_covers_names_and_values() {
        let hash = |pairs: &[(&str, &str)]| Attributes::new(pairs.iter().copied()).unwrap().hash32();
        // Leases keep it on disk, so it must not change.
        assert_eq!(hash(&[("model", "gpt-4o"), ("tenant", "acme")]), HASH);
        assert_eq!(hash(&[("tenant", "acme"), ("model", "gpt-4o")]), HASH);
        let others = [&[][..], &[("tenant", "acme")], &[("a", "b")], &[("a", "b=c")], &[("ab", "c")], &[("a", "bc")]];
        for (place, one) in others.iter().enumerate() {
            assert_ne!(hash(one), HASH);
            assert!(others[..place].iter().all(|other| hash(other) != hash(one)), "{one:?}");
        }
    }

    #[test]
    fn a_refused_attribute_is_named() {
        let refused = |name: &str, value: &str| Attributes::new([(name, value)]).unwrap_err().to_string();
        for (name, value, what) in [
            ("", "x", "attributes: found the name \"\", allowed are 1 to 64 bytes"),
            ("User", "x", "attributes: found the name \"User\""),
            ("0a", "x", "attributes: found the name \"0a\""),
            ("a-b", "x", "attributes: found the name \"a-b\""),
            (&"a".repeat(65), "x", "attributes: found the name"),
            ("a", "", "attributes: a: found 0 bytes, allowed are 1 to 256"),
            ("a", &"x".repeat(257), "attributes: a: found 257 bytes"),
            ("a", "x\ny", "attributes: a: found the control character '\\n'"),
            ("a", "emk_4m8qk2v7d1xz_0123456789abcdefghjkmnpqrstv", "attributes: a: looks like an API key"),
        ] {
            assert!(refused(name, value).starts_with(what), "{name} {value}: {}", refused(name, value));
        }
        let twice = Attributes::new([("a", "1"), ("b", "1"), ("a", "2")]).unwrap_err();
        assert_eq!(twice.to_string(), "attributes: found a twice, allowed is each name once");
        let names: Vec<String> = (0..33).map(|number| format!("a{number}")).collect();
        assert!(Attributes::new(names.iter().map(|name| (name, "x"))).is_err());
        let most = || names.iter().take(32).map(|name| (name.as_str(), "x"));
        assert!(Attributes::new(most()).is_ok());
        assert!(Attributes::new(most().chain([("key", "k1")])).is_ok(), "key comes on top");
    }
}
