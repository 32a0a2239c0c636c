//! The table of limits by slot, in chunks that a snapshot shares.
//!
//! A slot whose limit was freed keeps its generation, which grows with each freeing, so that an id of an earlier owner
//! never names a later one. The lowest free slot is given out first: the choice depends on the state alone, and is the
//! same on every node and after a restore.

use std::ops::{Index, IndexMut};

use super::free_slots::FreeSlots;
use super::slab::{Chunk, chunk_bits};
use super::{Limit, Phase};
use crate::book::LimitId;

const CHUNK_BITS: u32 = chunk_bits::<Limit>();
const CHUNK_RECORDS: usize = 1 << CHUNK_BITS;

/// The position of a limit in the table. Valid while the limit is live or a lease record names it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LimitSlot(pub(crate) u32);

/// The limits by slot.
#[derive(Default)]
pub(crate) struct Table {
    chunks: Vec<Chunk<Limit>>,
    /// Slots given out so far, free ones included.
    used: u32,
    /// Empty in the copy of a snapshot, which adds no limits.
    free: FreeSlots,
    len: u32,
}

impl Table {
    /// The number of limits.
    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    /// The number of slots given out so far, free ones included.
    pub(crate) fn used(&self) -> u32 {
        self.used
    }

    #[inline]
    pub(crate) fn get(&self, slot: LimitSlot) -> Option<&Limit> {
        let chunk = self.chunks.get((slot.0 >> CHUNK_BITS) as usize)?;
        chunk.records().get(slot.0 as usize % CHUNK_RECORDS).filter(|limit| limit.phase != Phase::Free)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, slot: LimitSlot) -> Option<&mut Limit> {
        let chunk = self.chunks.get_mut((slot.0 >> CHUNK_BITS) as usize)?;
        chunk.records_mut().get_mut(slot.0 as usize % CHUNK_RECORDS).filter(|limit| limit.phase != Phase::Free)
    }

    /// A limit by id; `None` if the id is stale.
    #[inline]
    pub(crate) fn by_id(&self, id: LimitId) -> Option<&Limit> {
        self.get(LimitSlot(id.slot)).filter(|limit| limit.generation == id.generation)
    }

    /// The slot of a limit by id; `None` if the id is stale.
    #[inline]
    pub(crate) fn slot(&self, id: LimitId) -> Option<LimitSlot> {
        self.by_id(id).map(|_| LimitSlot(id.slot))
    }

    #[inline]
    pub(crate) fn id(&self, slot: LimitSlot) -> LimitId {
        LimitId { slot: slot.0, generation: self[slot].generation }
    }

    /// Adds a limit in the lowest free slot.
    pub(crate) fn insert(&mut self, limit: Limit) -> LimitSlot {
        let slot = match self.free.take_lowest() {
            Some(slot) => LimitSlot(slot),
            None => self.next_slot(),
        };
        let generation = self[slot].generation;
        self[slot] = Limit { generation, ..limit };
        self.len = self.len.saturating_add(1);
        slot
    }

    /// Frees a slot. Ids of its limit are stale from now on.
    pub(crate) fn remove(&mut self, slot: LimitSlot) {
        let generation = self[slot].generation;
        self.put_back(slot, generation.saturating_add(1));
    }

    /// Takes back an insert whose id nobody has seen.
    pub(crate) fn undo_insert(&mut self, slot: LimitSlot) {
        let generation = self[slot].generation;
        // A slot with generation 0 was never freed, so it is the last one.
        if generation == 0 && slot.0.saturating_add(1) == self.used {
            self[slot] = Limit::default();
            self.used = slot.0;
            self.len = self.len.saturating_sub(1);
        } else {
            self.put_back(slot, generation);
        }
    }

    fn put_back(&mut self, slot: LimitSlot, generation: u32) {
        self[slot] = Limit { generation, ..Limit::default() };
        self.len = self.len.saturating_sub(1);
        self.set_free(slot, generation);
    }

    /// A slot that used up its generations is not given out again.
    fn set_free(&mut self, slot: LimitSlot, generation: u32) {
        if generation < u32::MAX {
            self.free.insert(slot.0);
        }
    }

    fn next_slot(&mut self) -> LimitSlot {
        let slot = LimitSlot(self.used);
        let chunk = (slot.0 >> CHUNK_BITS) as usize;
        if chunk == self.chunks.len() {
            self.chunks.push(Chunk::default());
        }
        self.used = self.used.saturating_add(1);
        self.chunks[chunk].put(slot.0 as usize % CHUNK_RECORDS, Limit::default(), CHUNK_RECORDS);
        slot
    }

    /// Appends a free slot of a snapshot.
    pub(crate) fn restore_free(&mut self, generation: u32) {
        let slot = self.next_slot();
        self[slot].generation = generation;
        self.set_free(slot, generation);
    }

    /// Appends a limit of a snapshot, with its generation.
    pub(crate) fn restore(&mut self, limit: Limit) -> LimitSlot {
        let slot = self.next_slot();
        self[slot] = limit;
        self.len = self.len.saturating_add(1);
        slot
    }

    /// The generation of a free slot; `None` if it has a limit or was never given out.
    pub(crate) fn free_generation(&self, slot: LimitSlot) -> Option<u32> {
        (slot.0 < self.used && self[slot].phase == Phase::Free).then(|| self[slot].generation)
    }

    /// A copy for a snapshot.
    pub(crate) fn share(&mut self) -> Table {
        let chunks = self.chunks.iter_mut().map(Chunk::share).collect();
        Table { chunks, used: self.used, free: FreeSlots::default(), len: self.len }
    }
}

/// For slots that are known to exist.
impl Index<LimitSlot> for Table {
    type Output = Limit;

    #[inline]
    fn index(&self, slot: LimitSlot) -> &Limit {
        &self.chunks[(slot.0 >> CHUNK_BITS) as usize].records()[slot.0 as usize % CHUNK_RECORDS]
    }
}

impl IndexMut<LimitSlot> for Table {
    #[inline(always)]
    fn index_mut(&mut self, slot: LimitSlot) -> &mut Limit {
        &mut self.chunks[(slot.0 >> CHUNK_BITS) as usize].records_mut()[slot.0 as usize % CHUNK_RECORDS]
    }
}
