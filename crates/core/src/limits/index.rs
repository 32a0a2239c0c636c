//! A hash table from leases, accounts and clients to slots.
//!
//! It consists of 4,096 segments that grow independently, so that growing never stalls: at ten million leases one
//! step moves about 3,000 cells, at a hundred million about 25,000. The layout depends on the seed and on history, so
//! nothing iterates over it.

use crate::book::NamespaceId;
use crate::hash::fold;
use crate::id::LeaseId;

const SEGMENT_BITS: u32 = 12;
const SEGMENTS: usize = 1 << SEGMENT_BITS;
const CELLS_MIN: usize = 8;
const EMPTY: u64 = u64::MAX;

/// A lease record or a tombstone. The highest bit tells which; slots stay below [`REFERENCES_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reference(u32);

/// The target of a reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    Record(u32),
    Tombstone(u32),
}

/// The maximum number of records, and of tombstones, that a reference can address.
pub(crate) const REFERENCES_MAX: u32 = 1 << 30;
const TOMBSTONE: u32 = 1 << 31;

impl Reference {
    pub(crate) fn record(slot: u32) -> Reference {
        Reference(slot)
    }

    pub(crate) fn tombstone(number: u32) -> Reference {
        Reference(number | TOMBSTONE)
    }

    pub(crate) fn found(self) -> Found {
        if self.0 & TOMBSTONE == 0 { Found::Record(self.0) } else { Found::Tombstone(self.0 & !TOMBSTONE) }
    }
}

/// The hash of a lease in its namespace, or of a name in its scope.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hash(u64);

/// The position of a cell. Valid until the table changes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CellPosition {
    segment: usize,
    cell: usize,
}

/// One open-addressing table; the index doubles one segment at a time.
#[derive(Default)]
struct Segment {
    cells: Box<[u64]>,
    used: usize,
}

/// A hash table from lease ids or names to slots of other tables. It stores references only; callers compare the keys.
pub(crate) struct Index {
    segments: Box<[Segment]>,
    seed: u64,
}

impl Index {
    pub(crate) fn new(seed: u64) -> Index {
        Index { segments: (0..SEGMENTS).map(|_| Segment::default()).collect(), seed }
    }

    /// Seeded, since callers choose lease ids: otherwise they could fill one segment on purpose.
    pub(crate) fn hash(&self, namespace: NamespaceId, lease: LeaseId) -> Hash {
        let bits = lease.to_u128();
        let scope = fold(u64::from(namespace.0) ^ self.seed ^ 0x2545_f491_4f6c_dd1d, 0x9e37_79b9_7f4a_7c15);
        let low = bits as u64 ^ scope;
        let high = (bits >> 64) as u64 ^ scope.rotate_left(32) ^ 0xd1b5_4a32_d192_ed03;
        Hash(fold(fold(low, high) ^ high, 0xa076_1d64_78bd_642f))
    }

    /// Seeded like [`Index::hash`], since callers choose names too.
    pub(crate) fn hash_name(&self, scope: u64, name: &str) -> Hash {
        let mut mixed = fold(self.seed ^ scope ^ 0x9e37_79b9_7f4a_7c15, name.len() as u64 ^ 0xd1b5_4a32_d192_ed03);
        for bytes in name.as_bytes().chunks(8) {
            let mut word = [0_u8; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            mixed = fold(mixed ^ u64::from_le_bytes(word) ^ self.seed.rotate_left(32), 0xa076_1d64_78bd_642f);
        }
        Hash(fold(mixed ^ self.seed, 0xe703_7ed1_a0b4_28db))
    }

    /// The reference in the first cell of this hash, unchecked. Calling it for several hashes first lets the cache
    /// misses overlap.
    pub(crate) fn peek(&self, hash: Hash) -> Option<Reference> {
        let cells = &self.segments[hash.segment()].cells;
        let mask = cells.len().checked_sub(1)?;
        let content = cells[hash.home() & mask];
        ((content >> 32) as u32 == hash.tag() && content != EMPTY).then_some(Reference(content as u32))
    }

    /// The reference with this hash for which `is_meant` holds.
    pub(crate) fn find(&self, hash: Hash, is_meant: impl Fn(Reference) -> bool) -> Option<(CellPosition, Reference)> {
        let number = hash.segment();
        let cells = &self.segments[number].cells;
        let mask = cells.len().checked_sub(1)?;
        let mut cell = hash.home() & mask;
        loop {
            let content = cells[cell];
            if content == EMPTY {
                return None;
            }
            if (content >> 32) as u32 == hash.tag() {
                let reference = Reference(content as u32);
                if is_meant(reference) {
                    return Some((CellPosition { segment: number, cell }, reference));
                }
            }
            cell = cell.wrapping_add(1) & mask;
        }
    }

    pub(crate) fn insert(&mut self, hash: Hash, reference: Reference) {
        let segment = &mut self.segments[hash.segment()];
        if segment.used.saturating_mul(4) >= segment.cells.len().saturating_mul(3) {
            segment.grow();
        }
        segment.used = segment.used.saturating_add(1);
        segment.put(content(hash.tag(), reference));
    }

    pub(crate) fn replace(&mut self, position: CellPosition, reference: Reference) {
        let cell = &mut self.segments[position.segment].cells[position.cell];
        *cell = content((*cell >> 32) as u32, reference);
    }

    /// Empties a cell and moves back the cells that linear probing had pushed past it.
    pub(crate) fn remove(&mut self, position: CellPosition) {
        let segment = &mut self.segments[position.segment];
        segment.used = segment.used.saturating_sub(1);
        let cells = &mut segment.cells;
        let Some(mask) = cells.len().checked_sub(1) else { return };
        let mut hole = position.cell;
        let mut cell = hole;
        loop {
            cell = cell.wrapping_add(1) & mask;
            let content = cells[cell];
            if content == EMPTY {
                break;
            }
            let home = (content >> 32) as usize & mask;
            let distance = cell.wrapping_sub(home) & mask;
            if distance >= (cell.wrapping_sub(hole) & mask) {
                cells[hole] = content;
                hole = cell;
            }
        }
        cells[hole] = EMPTY;
    }
}

impl Hash {
    fn segment(self) -> usize {
        (self.0 >> (64 - SEGMENT_BITS)) as usize
    }

    fn tag(self) -> u32 {
        self.0 as u32
    }

    fn home(self) -> usize {
        self.tag() as usize
    }
}

impl Segment {
    fn grow(&mut self) {
        let len = self.cells.len().saturating_mul(2).max(CELLS_MIN);
        let old = std::mem::replace(&mut self.cells, vec![EMPTY; len].into());
        for &content in old.iter().filter(|content| **content != EMPTY) {
            self.put(content);
        }
    }

    fn put(&mut self, content: u64) {
        let Some(mask) = self.cells.len().checked_sub(1) else { return };
        let mut cell = (content >> 32) as usize & mask;
        while self.cells[cell] != EMPTY {
            cell = cell.wrapping_add(1) & mask;
        }
        self.cells[cell] = content;
    }
}

fn content(tag: u32, reference: Reference) -> u64 {
    (u64::from(tag) << 32) | u64::from(reference.0)
}

#[cfg(test)]
mod tests;
