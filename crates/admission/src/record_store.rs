//! A bounded log of numbered records, for the decision log of a node.

use std::collections::VecDeque;
use std::fmt::Debug;
use std::sync::{Mutex, MutexGuard, PoisonError};

use earmark_core::UnixMs;

/// The largest payload of a record, in bytes. A decision about 32 limits with 32 attributes needs less than half.
pub const RECORD_BYTES_MAX: usize = 64 * 1_024;
/// The smallest bound of a log, in bytes.
pub const RECORDS_BYTES_MIN: u64 = 1 << 20;
/// The largest segment, in bytes. A read keeps one segment in memory.
const SEGMENT_BYTES_MAX: u64 = 4 << 20;
/// Segments of a full log, if they are smaller than the largest.
const SEGMENTS: u64 = 16;
/// A segment is closed after this part of the age, so that a log without much traffic forgets too.
const SEGMENT_AGES: u64 = 8;

/// A record of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredRecord {
    /// The number. Numbers rise; dropped records leave gaps.
    pub number: u64,
    /// When it was made.
    pub at: UnixMs,
    /// The content, at most [`RECORD_BYTES_MAX`].
    pub payload: Vec<u8>,
}

impl StoredRecord {
    /// The memory that it takes, and about the space in a file.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        (self.payload.len() as u64).saturating_add(28)
    }
}

/// The records of a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordSegment {
    /// The lowest number that the segment may have.
    pub first: u64,
    /// The records, in the order of their numbers.
    pub records: Vec<StoredRecord>,
}

/// The bounds of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordBounds {
    /// Bytes of all segments, at least [`RECORDS_BYTES_MIN`].
    pub bytes: u64,
    /// The age in milliseconds after which records are dropped.
    pub age_ms: u64,
}

impl RecordBounds {
    /// The size in bytes at which a segment is full.
    #[must_use]
    pub fn segment_bytes(&self) -> u64 {
        (self.bytes / SEGMENTS).min(SEGMENT_BYTES_MAX)
    }

    /// Whether a segment is full, by its bytes or its age.
    #[must_use]
    pub fn is_full(&self, bytes: u64, begun_at: UnixMs, now: UnixMs) -> bool {
        bytes >= self.segment_bytes() || now.ms_since(begun_at) >= self.age_ms / SEGMENT_AGES
    }

    /// The number of oldest segments to drop, before another one is begun. `segments` are bytes and beginnings, oldest
    /// first. A segment may exceed its size by one append, which is at most another segment.
    #[must_use]
    pub fn excess(&self, segments: &[(u64, UnixMs)], now: UnixMs) -> usize {
        let room = self.bytes.saturating_sub(self.segment_bytes().saturating_mul(2));
        let mut total = segments.iter().fold(0_u64, |sum, (bytes, _)| sum.saturating_add(*bytes));
        let mut dropped = 0_usize;
        for (place, (bytes, _)) in segments.iter().enumerate() {
            // All records of a segment are older than the beginning of the next one.
            let next = segments.get(place.saturating_add(1));
            let is_old = next.is_some_and(|(_, begun_at)| now.ms_since(*begun_at) > self.age_ms);
            if total <= room && !is_old {
                break;
            }
            total = total.saturating_sub(*bytes);
            dropped = dropped.saturating_add(1);
        }
        dropped
    }
}

/// A log of numbered records in segments. Beyond its bounds the oldest segments are dropped.
///
/// One thread appends. Reads may happen at the same time.
pub trait RecordStore: Debug + Send + Sync + 'static {
    /// The bounds of the log.
    fn bounds(&self) -> RecordBounds;

    /// The number of the next record.
    fn next_number(&self) -> u64;

    /// Appends records with rising numbers. Returns whether the newest segment is full.
    ///
    /// # Errors
    /// The records are not stored; the reason is for an operator.
    fn append(&self, records: &[StoredRecord]) -> Result<bool, String>;

    /// Closes the newest segment, and drops the oldest beyond the bounds.
    ///
    /// # Errors
    /// The reason, for an operator.
    fn rotate(&self, now: UnixMs) -> Result<(), String>;

    /// The newest segment that begins before a number; `None` if all begin later.
    ///
    /// # Errors
    /// The segment cannot be read; the reason is for an operator.
    fn segment_before(&self, number: u64) -> Result<Option<RecordSegment>, String>;
}

/// A log in memory, lost at exit.
#[derive(Debug)]
pub struct MemoryRecords {
    bounds: RecordBounds,
    segments: Mutex<VecDeque<MemorySegment>>,
}

#[derive(Debug)]
struct MemorySegment {
    records: RecordSegment,
    begun_at: UnixMs,
    bytes: u64,
}

impl MemoryRecords {
    /// An empty log.
    #[must_use]
    pub fn new(bounds: RecordBounds) -> MemoryRecords {
        MemoryRecords { bounds, segments: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<MemorySegment>> {
        self.segments.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RecordStore for MemoryRecords {
    fn bounds(&self) -> RecordBounds {
        self.bounds
    }

    fn next_number(&self) -> u64 {
        1
    }

    fn append(&self, records: &[StoredRecord]) -> Result<bool, String> {
        let (Some(first), Some(last)) = (records.first(), records.last()) else { return Ok(false) };
        let mut segments = self.lock();
        if segments.is_empty() {
            let empty = RecordSegment { first: first.number, records: Vec::new() };
            segments.push_back(MemorySegment { records: empty, begun_at: first.at, bytes: 0 });
        }
        let Some(newest) = segments.back_mut() else { return Ok(false) };
        newest.bytes = records.iter().fold(newest.bytes, |sum, record| sum.saturating_add(record.bytes()));
        newest.records.records.extend_from_slice(records);
        Ok(self.bounds.is_full(newest.bytes, newest.begun_at, last.at))
    }

    fn rotate(&self, now: UnixMs) -> Result<(), String> {
        let mut segments = self.lock();
        let sizes: Vec<(u64, UnixMs)> = segments.iter().map(|segment| (segment.bytes, segment.begun_at)).collect();
        let excess = self.bounds.excess(&sizes, now);
        segments.drain(..excess.min(sizes.len()));
        let next = segments.back().and_then(|newest| newest.records.records.last()).map(|last| last.number);
        if let Some(last) = next {
            let empty = RecordSegment { first: last.saturating_add(1), records: Vec::new() };
            segments.push_back(MemorySegment { records: empty, begun_at: now, bytes: 0 });
        }
        Ok(())
    }

    fn segment_before(&self, number: u64) -> Result<Option<RecordSegment>, String> {
        let segments = self.lock();
        let found = segments.iter().rev().find(|segment| segment.records.first < number);
        Ok(found.map(|segment| segment.records.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_in_memory_stays_within_its_bounds_and_drops_the_oldest() {
        let bounds = RecordBounds { bytes: RECORDS_BYTES_MIN, age_ms: 10_000 };
        let store = MemoryRecords::new(bounds);
        let mut full = 0;
        for number in 1..=20_000 {
            let at = UnixMs::new(1_000_000);
            if store.append(&[StoredRecord { number, at, payload: vec![7; 172] }]).unwrap() {
                store.rotate(at).unwrap();
                full += 1;
            }
            let total: u64 = store.lock().iter().map(|segment| segment.bytes).sum();
            assert!(total <= bounds.bytes, "{total} bytes after {number} records");
        }
        assert!(full > 20);
        let newest = store.segment_before(u64::MAX).unwrap().unwrap();
        assert_eq!(newest.records.last().unwrap().number, 20_000);
        let mut kept = 0;
        let mut before = u64::MAX;
        while let Some(segment) = store.segment_before(before).unwrap() {
            assert!(segment.records.iter().all(|record| record.number >= segment.first && record.number < before));
            kept += segment.records.len();
            before = segment.first;
        }
        assert!(kept > 4_000, "{kept}");
        // Age alone drops everything but the newest segment, in which the next record goes.
        store.rotate(UnixMs::new(1_020_000)).unwrap();
        store.rotate(UnixMs::new(1_040_000)).unwrap();
        assert_eq!(store.lock().iter().map(|segment| segment.records.records.len()).sum::<usize>(), 0);
    }
}
