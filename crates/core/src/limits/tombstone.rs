//! Tombstones: the small records of denied and completed leases.

use std::collections::VecDeque;

use super::LeaseFlags;
use super::index::REFERENCES_MAX;
use super::slab::{Chunk, chunk_bits};
use crate::book::NamespaceId;
use crate::id::LeaseId;
use crate::time::UnixMs;

const CHUNK_RECORDS: usize = 1 << chunk_bits::<Tombstone>();

/// How a lease was resolved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Ending {
    /// Denied, with a retry hint until `at`.
    #[default]
    Denied = 1,
    /// Denied because the amount exceeds the capacity.
    DeniedNever = 2,
    /// Allowed at `at`, then completed.
    Completed = 3,
    /// Completed before it was reserved.
    Marked = 4,
    /// Denied for lack of credit.
    NoCredit = 5,
    /// Denied because the account is frozen.
    AccountFrozen = 6,
    /// Denied because the account is closed.
    AccountClosed = 7,
    /// Allowed at `at`, then released because an external credit store refused its credit.
    Released = 8,
}

/// The record of a lease that has ended or was denied, kept to answer retries.
#[derive(Clone, Copy, Default)]
pub(crate) struct Tombstone {
    pub(crate) id: LeaseId,
    /// See [`fingerprint`](super::fingerprint()).
    pub(crate) fingerprint: u64,
    pub(crate) resolved_at: UnixMs,
    pub(crate) at: UnixMs,
    /// The limit named in the denial: its rank among the requirements, ordered by namespace and key.
    pub(crate) limited_by: u8,
    pub(crate) namespace: NamespaceId,
    pub(crate) ending: Ending,
    pub(crate) flags: LeaseFlags,
}

impl Tombstone {
    pub(crate) fn new(namespace: NamespaceId, lease: LeaseId, ending: Ending, resolved_at: UnixMs) -> Tombstone {
        Tombstone { id: lease, namespace, ending, resolved_at, ..Tombstone::default() }
    }

    pub(crate) fn is_forgotten(&self, retention_ms: u64, now: UnixMs) -> bool {
        self.id.time().max(self.resolved_at).get().saturating_add(retention_ms) <= now.get()
    }
}

/// Tombstones in order of creation, each addressed by its own number.
#[derive(Default)]
pub(crate) struct Tombstones {
    chunks: VecDeque<Chunk<Tombstone>>,
    /// The number of the first position in the first chunk.
    base: u32,
    /// The first used position in the first chunk.
    start: usize,
    len: usize,
}

impl Tombstones {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn get(&self, number: u32) -> &Tombstone {
        let position = self.position(number);
        &self.chunks[position / CHUNK_RECORDS].records()[position % CHUNK_RECORDS]
    }

    pub(crate) fn push(&mut self, tombstone: Tombstone) -> u32 {
        let position = self.start.saturating_add(self.len);
        if position / CHUNK_RECORDS == self.chunks.len() {
            self.chunks.push_back(Chunk::default());
        }
        self.chunks[position / CHUNK_RECORDS].put(position % CHUNK_RECORDS, tombstone, CHUNK_RECORDS);
        self.len = self.len.saturating_add(1);
        self.base.wrapping_add(position as u32) % REFERENCES_MAX
    }

    pub(crate) fn add_flags(&mut self, number: u32, flags: LeaseFlags) {
        let position = self.position(number);
        let tombstone = &mut self.chunks[position / CHUNK_RECORDS].records_mut()[position % CHUNK_RECORDS];
        tombstone.flags = tombstone.flags.with(flags);
    }

    /// The oldest tombstone and its number.
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

    /// A copy for a snapshot.
    pub(crate) fn share(&mut self) -> Tombstones {
        let chunks = self.chunks.iter_mut().map(Chunk::share).collect();
        Tombstones { chunks, ..*self }
    }

    fn position(&self, number: u32) -> usize {
        (number.wrapping_sub(self.base) % REFERENCES_MAX) as usize
    }
}
