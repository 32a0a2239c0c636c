//! In-memory index of the log: the disk position and leader of each entry, and the newest entries themselves.

use std::collections::VecDeque;
use std::ops::Range;

use openraft::{CommittedLeaderId, LogState};

use crate::entry::payload_bytes;
use crate::storage::StoredFile;
use crate::storage::frame::Seed;
use crate::types::{Entry, LogId, Types};

/// Memory per entry beside its payload, in bytes.
const ENTRY_BYTES: usize = std::mem::size_of::<Entry>();

/// A segment, shared by reader and writer.
#[derive(Clone, Debug)]
pub(crate) struct Segment {
    pub(crate) first: u64,
    pub(crate) seed: Seed,
    pub(crate) file: StoredFile,
    pub(crate) positions: Vec<u64>,
    pub(crate) end: u64,
}

impl Segment {
    pub(crate) fn next(&self) -> u64 {
        self.first.wrapping_add(self.positions.len() as u64)
    }

    /// Offset of an entry's record, or the end for the next entry.
    pub(crate) fn position(&self, index: u64) -> u64 {
        let at = usize::try_from(index.wrapping_sub(self.first)).unwrap_or(usize::MAX);
        self.positions.get(at).copied().unwrap_or(self.end)
    }
}

/// A part of one segment to read from disk.
#[derive(Debug)]
pub(crate) struct Piece {
    pub(crate) seed: Seed,
    pub(crate) file: StoredFile,
    pub(crate) entries: Range<u64>,
    pub(crate) bytes: Range<u64>,
}

/// Plan of a read: first pieces from disk, then entries from memory.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) pieces: Vec<Piece>,
    pub(crate) cached: Vec<Entry>,
    pub(crate) revision: u64,
}

/// The index of the log in memory: what exists, where it is on disk, and a cache of the newest entries.
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) purged: Option<LogId>,
    pub(crate) last: Option<LogId>,
    /// Leaders, each with the index of its first entry.
    leaders: VecDeque<(u64, CommittedLeaderId<u64>)>,
    /// Segments on disk. Only the writer changes them.
    pub(crate) segments: Vec<Segment>,
    /// The newest entries, contiguous up to the last.
    cache: VecDeque<Entry>,
    cache_bytes: usize,
    cache_bytes_max: usize,
    /// Pending truncations and resets. Until the writer has made them, an index may mean another entry on disk than
    /// in memory, so no entry is evicted.
    pub(crate) pending: usize,
    /// Incremented when entries are removed.
    pub(crate) revision: u64,
}

impl Memory {
    pub(crate) fn new(before: Option<LogId>, segments: Vec<Segment>, ids: &[LogId], cache_bytes_max: usize) -> Memory {
        let mut memory = Memory {
            purged: before,
            last: before,
            leaders: VecDeque::new(),
            segments,
            cache: VecDeque::new(),
            cache_bytes: 0,
            cache_bytes_max,
            pending: 0,
            revision: 0,
        };
        ids.iter().for_each(|&id| memory.note(id));
        memory
    }

    fn note(&mut self, id: LogId) {
        if self.leaders.back().is_none_or(|(_, leader)| *leader != id.leader_id) {
            self.leaders.push_back((id.index, id.leader_id));
        }
        self.last = Some(id);
    }

    pub(crate) fn next(&self) -> u64 {
        match self.last {
            Some(last) => last.index.wrapping_add(1),
            None => 0,
        }
    }

    pub(crate) fn start(&self) -> u64 {
        match self.purged {
            Some(purged) => purged.index.wrapping_add(1),
            None => self.leaders.front().map_or_else(|| self.next(), |(index, _)| *index),
        }
    }

    /// Id of an existing entry, or of the last purged one.
    pub(crate) fn id(&self, index: u64) -> Option<LogId> {
        if self.purged.is_some_and(|purged| purged.index == index) {
            return self.purged;
        }
        if index < self.start() || index >= self.next() {
            return None;
        }
        let run = self.leaders.partition_point(|(first, _)| *first <= index);
        let (_, leader) = self.leaders.get(run.checked_sub(1)?)?;
        Some(LogId::new(*leader, index))
    }

    pub(crate) fn state(&self) -> LogState<Types> {
        LogState { last_purged_log_id: self.purged, last_log_id: self.last }
    }

    pub(crate) fn push(&mut self, entry: Entry) {
        self.note(entry.log_id);
        self.cache_bytes = self.cache_bytes.saturating_add(cost(&entry));
        self.cache.push_back(entry);
    }

    /// Evicts entries that are on disk, to stay within the memory limit.
    pub(crate) fn evict(&mut self) {
        let flushed = self.segments.last().map_or(0, Segment::next);
        while self.cache_bytes > self.cache_bytes_max && self.pending == 0 {
            match self.cache.front() {
                Some(entry) if entry.log_id.index < flushed => self.drop_front(),
                _ => break,
            }
        }
    }

    fn drop_front(&mut self) {
        if let Some(entry) = self.cache.pop_front() {
            self.cache_bytes = self.cache_bytes.saturating_sub(cost(&entry));
        }
    }

    pub(crate) fn truncate(&mut self, since: u64) {
        while self.cache.back().is_some_and(|entry| entry.log_id.index >= since) {
            if let Some(entry) = self.cache.pop_back() {
                self.cache_bytes = self.cache_bytes.saturating_sub(cost(&entry));
            }
        }
        self.last = since.checked_sub(1).and_then(|index| self.id(index));
        while self.leaders.back().is_some_and(|(first, _)| *first >= since) {
            self.leaders.pop_back();
        }
        self.revision = self.revision.wrapping_add(1);
    }

    pub(crate) fn purge(&mut self, upto: LogId) {
        self.purged = Some(upto);
        while self.cache.front().is_some_and(|entry| entry.log_id.index <= upto.index) {
            self.drop_front();
        }
        while self.leaders.get(1).is_some_and(|(first, _)| *first <= upto.index.wrapping_add(1)) {
            self.leaders.pop_front();
        }
    }

    /// Drops everything: the log continues after an id that it does not have.
    pub(crate) fn reset(&mut self, before: Option<LogId>) {
        self.purged = before;
        self.last = before;
        self.leaders.clear();
        self.cache.clear();
        self.cache_bytes = 0;
        self.revision = self.revision.wrapping_add(1);
    }

    pub(crate) fn clip(&self, range: Range<u64>) -> Range<u64> {
        range.start.max(self.start())..range.end.min(self.next())
    }

    /// Start of a range with at most `bytes_max` bytes, but at least one entry.
    pub(crate) fn limit(&self, range: Range<u64>, bytes_max: u64) -> Range<u64> {
        let mut left = bytes_max;
        let fits = |&index: &u64| {
            let bytes = self.bytes(index);
            let fits = index == range.start || bytes <= left;
            left = left.saturating_sub(bytes);
            fits
        };
        let count = range.clone().take_while(fits).count() as u64;
        range.start..range.start.saturating_add(count)
    }

    fn bytes(&self, index: u64) -> u64 {
        if let Some(entry) = self.cached(index) {
            return cost(entry) as u64;
        }
        let segment = self.segments.get(self.segments.partition_point(|segment| segment.next() <= index));
        segment.map_or(0, |segment| segment.position(index.wrapping_add(1)).saturating_sub(segment.position(index)))
    }

    fn cached(&self, index: u64) -> Option<&Entry> {
        let at = index.checked_sub(self.cached_from())?;
        self.cache.get(usize::try_from(at).ok()?)
    }

    fn cached_from(&self) -> u64 {
        self.next().saturating_sub(self.cache.len() as u64)
    }

    /// Plans the read of an existing range. A disk read has at most `piece_bytes`, unless one entry is longer.
    pub(crate) fn plan(&self, range: Range<u64>, piece_bytes: u64) -> Plan {
        let mut pieces = Vec::new();
        let on_disk = range.start..range.end.min(self.cached_from());
        let from = self.segments.partition_point(|segment| segment.next() <= range.start);
        for segment in self.segments.get(from..).unwrap_or_default() {
            let (mut at, stop) = (on_disk.start.max(segment.first), on_disk.end.min(segment.next()));
            while at < stop {
                let begin = segment.position(at);
                let fits = |next: &u64| segment.position(*next).saturating_sub(begin) <= piece_bytes;
                let next = at.wrapping_add(1);
                let upto = (next..=stop).take_while(fits).last().unwrap_or(next);
                pieces.push(Piece {
                    seed: segment.seed.clone(),
                    file: segment.file.clone(),
                    entries: at..upto,
                    bytes: begin..segment.position(upto),
                });
                at = upto;
            }
        }
        let cached = (range.start.max(self.cached_from())..range.end).map_while(|index| self.cached(index).cloned());
        Plan { pieces, cached: cached.collect(), revision: self.revision }
    }
}

fn cost(entry: &Entry) -> usize {
    payload_bytes(&entry.payload).saturating_add(ENTRY_BYTES)
}
