//! What is left of a lease that was denied or completed.

use std::collections::VecDeque;

use super::index::REFERENCES_MAX;
use super::slab::{Chunk, chunk_bits};
use crate::book::{LimitId, NamespaceId};
use crate::id::LeaseId;
use crate::time::UnixMs;

const CHUNK_RECORDS: usize = 1 << chunk_bits::<Tombstone>();

/// How a lease ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Ending {
    /// It was refused, until `at` for what it asked.
    #[default]
    Denied = 1,
    /// It was refused for good: it asked for more than there is.
    DeniedNever = 2,
    /// It was allowed at `at`, and completed.
    Completed = 3,
    /// It was completed before anyone reserved it.
    Marked = 4,
    /// All limits had room, and an account had too little.
    NoCredit = 5,
    /// The account was never opened.
    NoAccount = 6,
    /// The account was frozen.
    AccountFrozen = 7,
    /// The account was closed.
    AccountClosed = 8,
    /// It was allowed at `at`, and all of it was given back, for its credit was refused elsewhere.
    Released = 9,
}

#[derive(Clone, Copy, Default)]
pub(crate) struct Tombstone {
    pub(crate) id: LeaseId,
    /// A hash of what it asked for.
    pub(crate) fingerprint: u64,
    pub(crate) resolved_at: UnixMs,
    pub(crate) at: UnixMs,
    /// What stood in the way.
    pub(crate) limited_by: LimitId,
    pub(crate) namespace: NamespaceId,
    pub(crate) ending: Ending,
}

impl Tombstone {
    pub(crate) fn new(
        namespace: NamespaceId,
        lease: LeaseId,
        ending: Ending,
        resolved_at: UnixMs,
    ) -> Tombstone {
        Tombstone { id: lease, namespace, ending, resolved_at, ..Tombstone::default() }
    }

    pub(crate) fn is_forgotten(&self, retention_ms: u64, now: UnixMs) -> bool {
        self.id.time().max(self.resolved_at).get().saturating_add(retention_ms) <= now.get()
    }
}

/// Tombstones in the order in which they were made, each under a number of its own.
#[derive(Default)]
pub(crate) struct Tombstones {
    chunks: VecDeque<Chunk<Tombstone>>,
    /// The number of the first place in the first chunk.
    base: u32,
    /// The first place in the first chunk that is in use.
    start: usize,
    len: usize,
}

impl Tombstones {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn get(&self, number: u32) -> &Tombstone {
        let place = self.place(number);
        &self.chunks[place / CHUNK_RECORDS].records()[place % CHUNK_RECORDS]
    }

    pub(crate) fn push(&mut self, tombstone: Tombstone) -> u32 {
        let place = self.start.saturating_add(self.len);
        if place / CHUNK_RECORDS == self.chunks.len() {
            self.chunks.push_back(Chunk::blank(CHUNK_RECORDS));
        }
        self.chunks[place / CHUNK_RECORDS].records_mut()[place % CHUNK_RECORDS] = tombstone;
        self.len = self.len.saturating_add(1);
        self.base.wrapping_add(place as u32) % REFERENCES_MAX
    }

    /// The oldest, and its number.
    pub(crate) fn first(&self) -> Option<(u32, &Tombstone)> {
        let number = self.base.wrapping_add(self.start as u32) % REFERENCES_MAX;
        (self.len > 0).then(|| (number, &self.chunks[0].records()[self.start]))
    }

    pub(crate) fn pop(&mut self) {
        self.start = self.start.saturating_add(1);
        self.len = self.len.saturating_sub(1);
        if self.start == CHUNK_RECORDS {
            self.chunks.pop_front();
            self.start = 0;
            self.base = self.base.wrapping_add(CHUNK_RECORDS as u32) % REFERENCES_MAX;
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Tombstone> {
        let all = self.chunks.iter().flat_map(Chunk::records);
        all.skip(self.start).take(self.len)
    }

    /// The tombstones as they are now, for a snapshot.
    pub(crate) fn share(&mut self) -> Tombstones {
        let chunks = self.chunks.iter_mut().map(Chunk::share).collect();
        Tombstones { chunks, ..*self }
    }

    fn place(&self, number: u32) -> usize {
        (number.wrapping_sub(self.base) % REFERENCES_MAX) as usize
    }
}
