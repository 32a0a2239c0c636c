//! Labels of settlements: what a cost was for, such as its model or its user.

use std::fmt;
use std::sync::Arc;

use crate::keys::{ATTRIBUTE_NAME_BYTES_MAX, LabelError, check_attribute_name, check_distinct, check_text};
use crate::wire::{Bytes, Malformed, Put};

/// The maximum number of labels of a complete. They are stored with the settlement of each of its credit limits, forever.
pub const SETTLE_LABELS_MAX: usize = 8;
/// The maximum length of a label's name in bytes: that of an attribute.
pub const SETTLE_LABEL_NAME_BYTES_MAX: usize = ATTRIBUTE_NAME_BYTES_MAX;
/// The maximum length of a label's value in bytes.
pub const SETTLE_LABEL_VALUE_BYTES_MAX: usize = 128;

/// The labels of a complete, and of the settlements it makes. Sorted by name, each name once. None of them costs no
/// memory, and a copy shares them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SettleLabels(Option<Arc<[Pair]>>);

/// A name and a value.
type Pair = (Box<str>, Box<str>);

impl SettleLabels {
    /// No labels.
    pub const NONE: SettleLabels = SettleLabels(None);

    /// Checks names and values.
    ///
    /// # Errors
    /// There are too many, a name is there twice, or a name or a value is not allowed.
    pub fn new<N: AsRef<str>, V: AsRef<str>>(
        pairs: impl IntoIterator<Item = (N, V)>,
    ) -> Result<SettleLabels, LabelError> {
        let mut checked: Vec<Pair> = Vec::new();
        for (name, value) in pairs {
            let (name, value) = (name.as_ref(), value.as_ref());
            if checked.len() == SETTLE_LABELS_MAX {
                let most = SETTLE_LABELS_MAX;
                return Err(LabelError::new(format!("found more than {most}, allowed are {most}")));
            }
            check_attribute_name(name).map_err(LabelError::new)?;
            check_text(value, SETTLE_LABEL_VALUE_BYTES_MAX)
                .map_err(|what| LabelError::new(format!("{name}: {what}")))?;
            checked.push((name.into(), value.into()));
        }
        checked.sort_unstable();
        check_distinct(checked.iter().map(|(name, _)| &**name))?;
        Ok(SettleLabels((!checked.is_empty()).then(|| checked.into())))
    }

    /// Whether it has no label.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// The value of a label.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.iter().find(|(other, _)| *other == name).map(|(_, value)| value)
    }

    /// Names and values, by name.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &str)> {
        self.0.as_deref().unwrap_or_default().iter().map(|(name, value)| (&**name, &**value))
    }

    /// Appends labels that are not empty.
    pub(crate) fn put(&self, out: &mut impl Put) {
        out.put_u8(u8::try_from(self.iter().len()).unwrap_or(u8::MAX));
        for (name, value) in self.iter() {
            out.put_text(name);
            out.put_text(value);
        }
    }

    /// Reads labels that are not empty.
    pub(crate) fn read(input: &mut Bytes<'_>) -> Result<SettleLabels, Malformed> {
        let count = usize::from(input.u8()?);
        if count == 0 || count > SETTLE_LABELS_MAX {
            return Err(Malformed("it has no labels, or too many"));
        }
        let pairs = (0..count).map(|_| Ok((input.text()?, input.text()?))).collect::<Result<Vec<_>, Malformed>>()?;
        let labels = SettleLabels::new(pairs.iter().copied()).map_err(|_| Malformed("it has an invalid label"))?;
        let is_sorted = labels.iter().eq(pairs);
        if is_sorted { Ok(labels) } else { Err(Malformed("its labels are out of order")) }
    }
}

/// `name=value`, with spaces in between.
impl fmt::Display for SettleLabels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, (name, value)) in self.iter().enumerate() {
            write!(f, "{}{name}={value}", if place == 0 { "" } else { " " })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_sorted_and_found_by_name() {
        let labels = SettleLabels::new([("user", "u1"), ("key", "k"), ("model", "gpt 4o")]).unwrap();
        assert_eq!(labels.to_string(), "key=k model=gpt 4o user=u1");
        assert_eq!((labels.get("model"), labels.get("tenant")), (Some("gpt 4o"), None));
        assert_eq!(SettleLabels::new::<&str, &str>([]).unwrap(), SettleLabels::NONE);
    }

    #[test]
    fn what_is_wrong_with_a_label_is_named() {
        let (long, short) = ("x".repeat(SETTLE_LABEL_VALUE_BYTES_MAX + 1), "x".repeat(SETTLE_LABEL_VALUE_BYTES_MAX));
        for (pairs, named) in [
            (vec![("Model", "x")], "found the name"),
            (vec![("", "x")], "found the name"),
            (vec![("model", "")], "model: found 0 bytes, allowed are 1 to 128"),
            (vec![("model", &*long)], "model: found 129 bytes, allowed are 1 to 128"),
            (vec![("model", "a\nb")], "control character"),
            (vec![("model", "x"), ("model", "y")], "found model twice"),
        ] {
            let found = SettleLabels::new(pairs.clone()).unwrap_err().to_string();
            assert!(found.contains(named), "{pairs:?}: {found}");
        }
        assert!(SettleLabels::new([("x".repeat(64), short)]).is_ok());
        assert!(SettleLabels::new([("x".repeat(65), "x")]).is_err());
        let names = |count: usize| (0..count).map(|name| (format!("n{name}"), "x"));
        assert!(SettleLabels::new(names(8)).is_ok());
        assert!(SettleLabels::new(names(9)).unwrap_err().to_string().contains("found more than 8"));
    }

    #[test]
    fn labels_have_one_encoding() {
        let labels = SettleLabels::new([("b", "2"), ("a", "1")]).unwrap();
        let mut bytes = Vec::new();
        labels.put(&mut bytes);
        assert_eq!(SettleLabels::read(&mut Bytes(&bytes)).unwrap(), labels);
        let swapped = [2, 1, 0, 0, 0, b'b', 1, 0, 0, 0, b'2', 1, 0, 0, 0, b'a', 1, 0, 0, 0, b'1'];
        for wrong in [&swapped[..], &[0], &[9], &[255]] {
            assert!(SettleLabels::read(&mut Bytes(wrong)).is_err(), "{wrong:?}");
        }
    }
}
