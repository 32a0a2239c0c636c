//! A table of values that few limits have, by slot.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::LimitSlot;

/// Slots of one chunk. A chunk that a snapshot shares is copied before a write, so this bounds the copy.
const CHUNK_SLOTS: u32 = 256;

type Chunk<T> = Vec<(LimitSlot, T)>;

/// Values by slot, in sorted chunks that a snapshot shares. No chunk is empty.
#[derive(Clone)]
pub(crate) struct SideTable<T>(BTreeMap<u32, Arc<Chunk<T>>>);

impl<T> Default for SideTable<T> {
    fn default() -> SideTable<T> {
        SideTable(BTreeMap::new())
    }
}

impl<T: Clone> SideTable<T> {
    pub(crate) fn get(&self, slot: LimitSlot) -> Option<&T> {
        let chunk = self.0.get(&(slot.0 / CHUNK_SLOTS))?;
        let position = chunk.binary_search_by_key(&slot, |(found, _)| *found).ok()?;
        chunk.get(position).map(|(_, value)| value)
    }

    pub(crate) fn insert(&mut self, slot: LimitSlot, value: T) {
        let chunk = Arc::make_mut(self.0.entry(slot.0 / CHUNK_SLOTS).or_default());
        match chunk.binary_search_by_key(&slot, |(found, _)| *found) {
            Ok(position) => chunk[position].1 = value,
            Err(position) => chunk.insert(position, (slot, value)),
        }
    }

    pub(crate) fn remove(&mut self, slot: LimitSlot) {
        let Some(chunk) = self.0.get_mut(&(slot.0 / CHUNK_SLOTS)) else { return };
        let Ok(position) = chunk.binary_search_by_key(&slot, |(found, _)| *found) else { return };
        let chunk = Arc::make_mut(chunk);
        chunk.remove(position);
        if chunk.is_empty() {
            self.0.remove(&(slot.0 / CHUNK_SLOTS));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_found_by_slot_and_a_copy_keeps_its_own() {
        let mut table = SideTable::default();
        let slots: Vec<LimitSlot> = (0..3_000).map(|number| LimitSlot(number * 7_919 % 10_007)).collect();
        for slot in &slots {
            table.insert(*slot, 0);
            table.insert(*slot, slot.0);
        }
        let copy = table.clone();
        for slot in slots.iter().step_by(2) {
            table.remove(*slot);
            table.remove(*slot);
        }
        for (place, slot) in slots.iter().enumerate() {
            assert_eq!(table.get(*slot), (place % 2 == 1).then_some(&slot.0));
            assert_eq!(copy.get(*slot), Some(&slot.0));
        }
        slots.iter().for_each(|slot| table.remove(*slot));
        assert!(table.0.is_empty());
    }
}
