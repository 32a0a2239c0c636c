//! Copy-on-write record storage in chunks.
//!
//! Growing adds a chunk and moves nothing. A snapshot shares the chunks, and the next write to a shared chunk copies
//! it. Freezing ten million leases therefore costs one reference count per chunk, and a command copies only the
//! chunks it touches.

use std::sync::Arc;

/// The slot number that means no record.
pub(crate) const NONE: u32 = u32::MAX;

const CHUNK_BYTES: usize = 64 * 1024;

/// A slab record. A free record stores the link to the next free one.
pub(crate) trait Record: Clone + Default {
    fn link(&self) -> u32;
    fn set_link(&mut self, link: u32);
}

/// Consecutive records, owned or shared with a snapshot until the next write. Asking an `Arc` on every write whether
/// it is shared would cost an atomic operation.
#[derive(Clone)]
pub(crate) struct Chunk<T> {
    own: Vec<T>,
    /// Replaces `own` while a snapshot shares the records.
    shared: Option<Arc<Vec<T>>>,
}

impl<T> Default for Chunk<T> {
    fn default() -> Chunk<T> {
        Chunk { own: Vec::new(), shared: None }
    }
}

impl<T: Clone> Chunk<T> {
    /// Writes the record at `position`, which exists or is the next one. There will be `most` records at most.
    #[inline]
    pub(crate) fn put(&mut self, position: usize, record: T, most: usize) {
        let records = self.own_mut();
        if let Some(found) = records.get_mut(position) {
            *found = record;
            return;
        }
        if records.len() == records.capacity() {
            records.reserve_exact(most.saturating_sub(records.len()));
        }
        records.push(record);
    }

    #[inline]
    pub(crate) fn records(&self) -> &[T] {
        match &self.shared {
            Some(records) => Chunk::read_shared(records),
            None => &self.own,
        }
    }

    /// A call, so that reads of own records are predicted instead of waiting for `shared`.
    #[inline(never)]
    fn read_shared(records: &Arc<Vec<T>>) -> &[T] {
        records
    }

    /// The records for writing. Shared records are first taken back, or copied if the snapshot still exists.
    #[inline]
    pub(crate) fn records_mut(&mut self) -> &mut [T] {
        self.own_mut()
    }

    #[inline]
    fn own_mut(&mut self) -> &mut Vec<T> {
        if self.shared.is_some() {
            self.take_back();
        }
        &mut self.own
    }

    #[cold]
    fn take_back(&mut self) {
        if let Some(records) = self.shared.take() {
            self.own = Arc::unwrap_or_clone(records);
        }
    }

    /// A second handle to the same records.
    pub(crate) fn share(&mut self) -> Chunk<T> {
        let own = std::mem::take(&mut self.own);
        let shared = self.shared.get_or_insert_with(|| Arc::new(own));
        Chunk { own: Vec::new(), shared: Some(Arc::clone(shared)) }
    }
}

/// A table of records with stable slot numbers and a list of free slots. A snapshot shares its chunks.
pub(crate) struct Slab<T> {
    chunks: Vec<Chunk<T>>,
    used: u32,
    free: u32,
}

impl<T> Default for Slab<T> {
    fn default() -> Slab<T> {
        Slab { chunks: Vec::new(), used: 0, free: NONE }
    }
}

/// The low bits of a slot that give the position in its chunk, such that a chunk is at most 64 KiB.
pub(crate) const fn chunk_bits<T>() -> u32 {
    CHUNK_BYTES.ilog2().saturating_sub(size_of::<T>().next_power_of_two().ilog2())
}

impl<T: Record> Slab<T> {
    const BITS: u32 = chunk_bits::<T>();
    const MASK: u32 = (1 << Self::BITS) - 1;

    #[inline]
    pub(crate) fn get(&self, slot: u32) -> &T {
        &self.chunks[(slot >> Self::BITS) as usize].records()[(slot & Self::MASK) as usize]
    }

    #[inline(always)]
    pub(crate) fn get_mut(&mut self, slot: u32) -> &mut T {
        &mut self.chunks[(slot >> Self::BITS) as usize].records_mut()[(slot & Self::MASK) as usize]
    }

    pub(crate) fn insert(&mut self, record: T) -> u32 {
        let slot = self.free;
        if slot != NONE {
            let position = self.get_mut(slot);
            let next = position.link();
            *position = record;
            self.free = next;
            return slot;
        }
        let slot = self.used;
        let (chunk, position) = ((slot >> Self::BITS) as usize, (slot & Self::MASK) as usize);
        if chunk == self.chunks.len() {
            self.chunks.push(Chunk::default());
        }
        self.used = self.used.saturating_add(1);
        self.chunks[chunk].put(position, record, 1 << Self::BITS);
        slot
    }

    /// The slot of the next record.
    #[inline]
    pub(crate) fn next(&self) -> u32 {
        if self.free == NONE { self.used } else { self.free }
    }

    pub(crate) fn remove(&mut self, slot: u32) {
        let free = self.free;
        self.get_mut(slot).set_link(free);
        self.free = slot;
    }

    /// Removes the last slot. Only for slabs from which nothing else is ever removed.
    pub(crate) fn pop(&mut self) {
        self.used = self.used.saturating_sub(1);
    }

    /// The highest number of slots ever in use.
    pub(crate) fn used(&self) -> u32 {
        self.used
    }

    /// A copy for a snapshot.
    pub(crate) fn share(&mut self) -> Slab<T> {
        let chunks = self.chunks.iter_mut().map(Chunk::share).collect();
        Slab { chunks, used: self.used, free: self.free }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy, Default, Debug, PartialEq)]
    struct Item {
        value: u64,
        link: u32,
    }

    impl Record for Item {
        fn link(&self) -> u32 {
            self.link
        }
        fn set_link(&mut self, link: u32) {
            self.link = link;
        }
    }

    fn item(value: u64) -> Item {
        Item { value, link: NONE }
    }

    #[test]
    fn a_freed_slot_is_used_again_before_the_slab_grows() {
        let mut slab = Slab::default();
        let slots: Vec<u32> = (0..10_000).map(|value| slab.insert(item(value))).collect();
        slab.remove(slots[3]);
        slab.remove(slots[9_000]);
        assert_eq!(slab.insert(item(7)), slots[9_000]);
        assert_eq!(slab.insert(item(8)), slots[3]);
        assert_eq!(slab.used(), 10_000);
        assert_eq!(slab.get(slots[9_999]).value, 9_999);
    }

    #[test]
    fn a_clone_keeps_what_it_saw_while_the_original_changes() {
        let mut slab = Slab::default();
        let slots: Vec<u32> = (0..10_000).map(|value| slab.insert(item(value))).collect();
        let frozen = slab.share();
        for &slot in &slots {
            slab.get_mut(slot).value = 1;
        }
        slab.insert(item(2));
        assert!(slots.iter().zip(0..).all(|(&slot, value)| frozen.get(slot).value == value));
        assert!(slots.iter().all(|&slot| slab.get(slot).value == 1));
    }

    #[test]
    fn a_chunk_whose_snapshot_is_gone_is_not_copied() {
        let mut chunk = Chunk::<u64>::default();
        (0..8).for_each(|position| chunk.put(position, 0, 8));
        let before = chunk.records().as_ptr();
        drop(chunk.share());
        chunk.records_mut()[0] = 1;
        assert_eq!(chunk.records().as_ptr(), before);
        let frozen = chunk.share();
        chunk.records_mut()[0] = 2;
        assert_ne!(chunk.records().as_ptr(), before);
        assert_eq!((frozen.records()[0], chunk.records()[0]), (1, 2));
    }
}
