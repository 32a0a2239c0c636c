//! The attributes that a policy names, and their values in a call.

use crate::Attributes;

/// The maximum number of different attributes that a policy names: the work of looking them up in a call.
pub const ATTRIBUTE_NAMES_MAX: usize = 64;

/// The place of an attribute in the list of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot(usize);

/// The attributes that a policy names.
#[derive(Clone, Debug, Default)]
pub(crate) struct Names(Vec<Box<str>>);

/// The values of a call, by slot.
pub(crate) struct Values<'a> {
    values: [Option<&'a str>; ATTRIBUTE_NAMES_MAX],
    model: Option<&'a str>,
}

impl Names {
    /// The slot of a name, which is added if it is new.
    pub(crate) fn slot(&mut self, name: &str) -> Result<Slot, String> {
        if let Some(place) = self.0.iter().position(|other| **other == *name) {
            return Ok(Slot(place));
        }
        if self.0.len() == ATTRIBUTE_NAMES_MAX {
            return Err(format!("found more than {ATTRIBUTE_NAMES_MAX} different attributes in the document"));
        }
        self.0.push(name.into());
        Ok(Slot(self.0.len().saturating_sub(1)))
    }

    /// The name in a slot.
    pub(crate) fn name(&self, slot: Slot) -> &str {
        self.0.get(slot.0).map_or("", |name| name)
    }

    /// The values of a call.
    pub(crate) fn values<'a>(&self, attributes: &'a Attributes) -> Values<'a> {
        let mut values = [None; ATTRIBUTE_NAMES_MAX];
        for (value, name) in values.iter_mut().zip(&self.0) {
            *value = attributes.get(name);
        }
        Values { values, model: attributes.get("model") }
    }
}

impl<'a> Values<'a> {
    pub(crate) fn get(&self, slot: Slot) -> Option<&'a str> {
        self.values.get(slot.0).copied().flatten()
    }

    /// The model, which prices are for.
    pub(crate) fn model(&self) -> Option<&'a str> {
        self.model
    }
}
