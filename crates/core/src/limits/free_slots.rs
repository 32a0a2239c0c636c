//! A set of slot numbers from which the lowest is taken first.

const WORD_BITS: u32 = 64;

/// A bitmap of free slots with summary levels: a bit of one level says whether a word of the level below has any. Taking
/// the lowest of ten million slots therefore reads four words.
#[derive(Default)]
pub(super) struct FreeSlots {
    /// The bitmap first, the shortest summary last.
    levels: Vec<Vec<u64>>,
}

impl FreeSlots {
    pub(super) fn insert(&mut self, slot: u32) {
        let mut position = slot;
        let mut level = 0;
        loop {
            let (word, bit) = (position / WORD_BITS, position % WORD_BITS);
            if level == self.levels.len() {
                self.levels.push(Vec::new());
                self.summarize(level);
            }
            let words = &mut self.levels[level];
            if words.len() <= word as usize {
                words.resize((word as usize).saturating_add(1), 0);
            }
            words[word as usize] |= 1 << bit;
            level = usize::saturating_add(level, 1);
            if word == 0 && level >= self.levels.len() {
                return;
            }
            position = word;
        }
    }

    /// Fills a new top level from the level below, which had one word until now.
    fn summarize(&mut self, level: usize) {
        let Some(below) = level.checked_sub(1) else { return };
        let has_any = self.levels[below].first().is_some_and(|word| *word != 0);
        self.levels[level].push(u64::from(has_any));
    }

    pub(super) fn take_lowest(&mut self) -> Option<u32> {
        let mut position = 0_u32;
        for words in self.levels.iter().rev() {
            let word = words.get(position as usize).copied().filter(|word| *word != 0)?;
            position = position.checked_mul(WORD_BITS)?.checked_add(word.trailing_zeros())?;
        }
        if self.levels.is_empty() {
            return None;
        }
        let slot = position;
        for words in &mut self.levels {
            let (word, bit) = ((position / WORD_BITS) as usize, position % WORD_BITS);
            words[word] &= !(1 << bit);
            if words[word] != 0 {
                break;
            }
            position /= WORD_BITS;
        }
        Some(slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn the_lowest_slot_is_taken_first_in_any_order_of_insertion() {
        let (mut slots, mut model) = (FreeSlots::default(), BTreeSet::new());
        assert_eq!(slots.take_lowest(), None);
        let mut state = 7_u32;
        for round in 0..20_000 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let slot = (state >> 8) % [10, 70, 5_000, 300_000, 16_000_000][round % 5];
            slots.insert(slot);
            model.insert(slot);
            if round % 3 == 0 {
                assert_eq!(slots.take_lowest(), model.pop_first());
            }
        }
        while let Some(slot) = model.pop_first() {
            assert_eq!(slots.take_lowest(), Some(slot));
        }
        assert_eq!(slots.take_lowest(), None);
    }
}
