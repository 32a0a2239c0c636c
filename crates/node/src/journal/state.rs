//! In-memory state of the journal: segment boundaries, the index of the growing segment, and unwritten records.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use earmark_core::{AccountId, JournalRecord};

use super::format::{self, HEADER_BYTES, JournalPosition};
use super::index::{self, Accounts, CHANGES, MemoryIndex, Numbers, RecordLocation, Span};

/// A complete segment. Completion depends only on its bytes, so replicas agree.
#[derive(Debug)]
pub(super) struct Sealed {
    pub(super) span: Span,
    /// Bytes of the file already written.
    pub(super) written: u64,
    pub(super) accounts: Accounts,
    /// Its index, until the index file is written.
    pub(super) index: Option<Arc<MemoryIndex>>,
}

/// The segment that records are appended to.
#[derive(Debug)]
pub(super) struct Tail {
    pub(super) start: JournalPosition,
    pub(super) written: u64,
    pub(super) index: MemoryIndex,
    /// Records appended since the last write, and their file offset.
    pub(super) open: Vec<u8>,
    pub(super) open_offset: u64,
}

/// Bytes queued for writing, always whole records.
#[derive(Clone, Debug)]
pub(super) struct Piece {
    /// Start of the segment, which identifies it.
    pub(super) start: u64,
    pub(super) offset: u64,
    pub(super) bytes: Bytes,
    pub(super) seals: bool,
}

/// The journal in memory: its segments, and the bytes not written yet.
#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) cluster: u128,
    pub(super) segment_bytes: u64,
    pub(super) sealed: Vec<Sealed>,
    pub(super) tail: Option<Tail>,
    pub(super) end: JournalPosition,
    pub(super) last_log_index: u64,
    pub(super) queue: VecDeque<Piece>,
    pub(super) unwritten: usize,
    pub(super) is_writing: bool,
}

pub(super) enum Source {
    /// In the file, this many.
    File(u64),
    Memory(Bytes),
}

/// A segment that has records of an account, and where they are.
pub(super) struct Segment {
    pub(super) start: JournalPosition,
    pub(super) locations: Locations,
}

/// The positions of an account's records in a segment.
pub(super) enum Locations {
    Known(Vec<RecordLocation>),
    /// In the index file of the segment.
    OnDisk(Span),
}

impl State {
    pub(super) fn push(&mut self, log_index: u64, record: &JournalRecord) -> Result<(), &'static str> {
        if log_index < self.last_log_index {
            return Err("its log index is lower than that of the record before it");
        }
        let number = self.end.records.saturating_add(1);
        self.add(log_index, record, |out| format::put_record(out, number, log_index, record))
    }

    pub(super) fn push_raw(&mut self, log_index: u64, record: &JournalRecord, raw: &[u8]) -> Result<(), &'static str> {
        self.add(log_index, record, |out| {
            out.extend_from_slice(raw);
            true
        })
    }

    fn add(
        &mut self,
        log_index: u64,
        record: &JournalRecord,
        put: impl FnOnce(&mut Vec<u8>) -> bool,
    ) -> Result<(), &'static str> {
        let (cluster, start) = (self.cluster, self.end);
        let tail = self.tail.get_or_insert_with(|| Tail {
            start,
            written: 0,
            index: MemoryIndex::default(),
            open: format::header(cluster, start),
            open_offset: 0,
        });
        let before = tail.open.len();
        if !put(&mut tail.open) {
            return Err("the record exceeds the maximum size");
        }
        self.end = self.end.after(&tail.open[before..]);
        self.last_log_index = log_index;
        // Fits: segments are bounded to 1 GiB.
        let location = RecordLocation {
            relative: (self.end.records - tail.start.records) as u32,
            offset: (tail.open_offset + before as u64) as u32,
        };
        for account in index::keys(record) {
            tail.index.add(account, location);
        }
        self.unwritten += tail.open.len() - before;
        if self.end.bytes - tail.start.bytes >= self.segment_bytes {
            self.seal();
        }
        Ok(())
    }

    fn seal(&mut self) {
        self.freeze();
        if let Some(piece) = self.queue.back_mut() {
            piece.seals = true;
        }
        if let Some(tail) = self.tail.take() {
            self.sealed.push(Sealed {
                span: Span { start: tail.start, end: self.end },
                written: tail.written,
                accounts: tail.index.accounts(),
                index: Some(Arc::new(tail.index)),
            });
        }
    }

    /// Queues the records appended so far for writing.
    pub(super) fn freeze(&mut self) {
        let Some(tail) = self.tail.as_mut().filter(|tail| !tail.open.is_empty()) else { return };
        let bytes = Bytes::from(std::mem::take(&mut tail.open));
        let piece = Piece { start: tail.start.records, offset: tail.open_offset, bytes, seals: false };
        tail.open_offset += piece.bytes.len() as u64;
        self.queue.push_back(piece);
    }

    /// Removes the first queued piece, which is now in its file.
    pub(super) fn wrote(&mut self) {
        let Some(piece) = self.queue.pop_front() else { return };
        let header = if piece.offset == 0 { HEADER_BYTES } else { 0 };
        self.unwritten = self.unwritten.saturating_sub(piece.bytes.len().saturating_sub(header));
        let until = piece.offset + piece.bytes.len() as u64;
        match &mut self.tail {
            Some(tail) if tail.start.records == piece.start => tail.written = until,
            _ => {
                if let Some(sealed) = self.sealed_mut(piece.start) {
                    sealed.written = until;
                }
            }
        }
    }

    pub(super) fn sealed_mut(&mut self, start: u64) -> Option<&mut Sealed> {
        let at = self.sealed.binary_search_by_key(&start, |sealed| sealed.span.start.records).ok()?;
        self.sealed.get_mut(at)
    }

    /// Where the bytes of a segment from an offset on are, at most `most`; `None` after its end.
    pub(super) fn source(&self, start: u64, offset: u64, most: usize) -> Option<Source> {
        let tail = self.tail.as_ref().filter(|tail| tail.start.records == start);
        let written = match tail {
            Some(tail) => tail.written,
            None => {
                let at = self.sealed.binary_search_by_key(&start, |sealed| sealed.span.start.records).ok()?;
                self.sealed[at].written
            }
        };
        if offset < written {
            return Some(Source::File(written - offset));
        }
        let within = |from: u64, len: usize| {
            let skip = usize::try_from(offset.checked_sub(from)?).ok()?;
            (skip < len).then_some(skip..len.min(skip.saturating_add(most)))
        };
        let pieces = self.queue.iter().filter(|piece| piece.start == start);
        for piece in pieces {
            if let Some(range) = within(piece.offset, piece.bytes.len()) {
                return Some(Source::Memory(piece.bytes.slice(range)));
            }
        }
        let tail = tail?;
        let range = within(tail.open_offset, tail.open.len())?;
        Some(Source::Memory(Bytes::copy_from_slice(&tail.open[range])))
    }

    /// Number of the segment that contains a record, or will contain it.
    pub(super) fn segment_of(&self, number: u64) -> usize {
        self.sealed.partition_point(|sealed| sealed.span.end.records < number)
    }

    pub(super) fn start_of(&self, segment: usize) -> Option<JournalPosition> {
        match self.sealed.get(segment) {
            Some(sealed) => Some(sealed.span.start),
            None if segment == self.sealed.len() => Some(self.tail.as_ref()?.start),
            None => None,
        }
    }

    /// Records of an account, or [`CHANGES`], in one segment with these numbers, at most `most`.
    pub(super) fn look_up(&self, segment: usize, account: AccountId, numbers: Numbers, most: usize) -> Option<Segment> {
        let start = self.start_of(segment)?;
        let relative = numbers.relative_to(start);
        let is_absent = |sealed: &Sealed| {
            account != CHANGES && sealed.accounts.is_none_or(|(low, high)| account < low || high < account)
        };
        let locations = match self.sealed.get(segment) {
            None => Locations::Known(self.tail.as_ref()?.index.find(account, relative, most)),
            Some(sealed) if is_absent(sealed) => Locations::Known(Vec::new()),
            Some(Sealed { index: Some(index), .. }) => Locations::Known(index.find(account, relative, most)),
            Some(sealed) => Locations::OnDisk(sealed.span),
        };
        Some(Segment { start, locations })
    }
}

pub(super) fn relative(start: JournalPosition, number: u64) -> u32 {
    u32::try_from(number.saturating_sub(start.records)).unwrap_or(u32::MAX)
}
