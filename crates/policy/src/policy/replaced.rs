//! Rules that others replace.

use crate::document::{RULES_MAX, Rule};

/// Rules in a word.
const WORD: usize = 128;

/// Rules of a document, by their place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Replaced([u128; RULES_MAX / WORD]);

impl Replaced {
    /// The rules that a rule replaces. The document has all of their names.
    pub(super) fn by(rule: &Rule, rules: &[Rule]) -> Replaced {
        let mut all = Replaced::default();
        let place = |name: &String| rules.iter().position(|other| other.name == *name);
        rule.replaces.iter().filter_map(place).for_each(|place| all.add(place));
        all
    }

    fn add(&mut self, place: usize) {
        if let Some((word, bit)) = bit(place)
            && let Some(all) = self.0.get_mut(word)
        {
            *all |= bit;
        }
    }

    pub(super) fn add_all(&mut self, more: &Replaced) {
        self.0.iter_mut().zip(more.0).for_each(|(all, more)| *all |= more);
    }

    pub(super) fn contains(&self, place: usize) -> bool {
        bit(place).is_some_and(|(word, bit)| self.0.get(word).is_some_and(|all| all & bit != 0))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.iter().all(|all| *all == 0)
    }
}

/// The word of a rule, and its bit there.
fn bit(place: usize) -> Option<(usize, u128)> {
    let shift = place.checked_sub(WORD).unwrap_or(place);
    let bit = 1_u128.checked_shl(u32::try_from(shift).ok()?)?;
    Some((usize::from(place >= WORD), bit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rule_of_a_document_has_a_place_of_its_own() {
        let mut all = Replaced::default();
        assert!(all.is_empty());
        for place in 0..RULES_MAX {
            assert!(!all.contains(place), "{place}");
            all.add(place);
            assert!(all.contains(place), "{place}");
        }
        let before = all;
        all.add(RULES_MAX);
        assert_eq!((all, all.contains(RULES_MAX)), (before, false));
    }
}
