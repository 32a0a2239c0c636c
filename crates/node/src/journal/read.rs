//! Journal reads: the records of one account, the changes, or all records in order. They run beside appends.

use std::sync::{Arc, PoisonError};

use bytes::{Bytes, BytesMut};
use earmark_core::{AccountId, JournalRecord};

use super::format::{self, JournalPosition};
use super::index::{CHANGES, IndexFile, MemoryIndex, Numbers, RecordLocation, Span};
use super::open::write_index;
use super::state::{Locations, Source};
use super::walk::{Step, Walk};
use super::{Journal, JournalEntry, Shared, index_path, segment_path};
use crate::fault::Fault;
use crate::storage::StoredFile;
use crate::storage::frame::FrameDefect;

/// First read per record, in bytes; most records are smaller.
const RECORD_READ_BYTES: usize = 512;
/// Records of the change log looked up at once.
const CHANGES_AT_ONCE: usize = 512;
/// Segments that one read of the change log looks at. A segment full of holds costs three small reads of its index.
const CHANGE_SEGMENTS_MAX: usize = 256;
/// Approximate chunk size of a stream, in bytes.
const CHUNK_BYTES: usize = 256 * 1024;

/// Bytes between two records of an account that are read with them: a larger read costs less than a second one.
const GAP_BYTES: u32 = 4 * 1024;
/// Bytes of an account's records that are read at once.
const WINDOW_BYTES: u32 = 64 * 1024;

/// A segment to read; its file is opened on demand.
#[derive(Debug)]
struct SegmentBytes {
    start: u64,
    file: Option<StoredFile>,
    /// Bytes that were read ahead, and their offset.
    window: (u64, Bytes),
}

impl SegmentBytes {
    const fn new(start: u64) -> SegmentBytes {
        SegmentBytes { start, file: None, window: (0, Bytes::new()) }
    }

    /// Reads the first of these locations, and those that follow it closely. The offsets ascend.
    fn read_ahead(&mut self, shared: &Shared, locations: &[RecordLocation]) -> Result<(), Fault> {
        let Some(first) = locations.first().map(|location| location.offset) else { return Ok(()) };
        if self.ahead(first.into()).is_some() {
            return Ok(());
        }
        let pairs = locations.iter().zip(locations.iter().skip(1));
        let close = pairs.take_while(|(one, next)| {
            next.offset.saturating_sub(one.offset) <= GAP_BYTES && next.offset.saturating_sub(first) <= WINDOW_BYTES
        });
        let last = close.last().map_or(first, |(_, next)| next.offset);
        if last > first {
            let most = (last - first) as usize + RECORD_READ_BYTES;
            self.window = (first.into(), self.read(shared, first.into(), most)?);
        }
        Ok(())
    }

    /// The bytes at an offset that were read ahead, if a whole record is among them.
    fn ahead(&self, offset: u64) -> Option<Bytes> {
        let skip = usize::try_from(offset.checked_sub(self.window.0)?).ok()?;
        let bytes = (skip < self.window.1.len()).then(|| self.window.1.slice(skip..))?;
        format::read_frame(&bytes).is_ok().then_some(bytes)
    }

    /// Reads up to `most` bytes at an offset; none after the end.
    fn read(&mut self, shared: &Shared, offset: u64, most: usize) -> Result<Bytes, Fault> {
        let source = shared.state().source(self.start, offset, most);
        let len = match source {
            None => return Ok(Bytes::new()),
            Some(Source::Memory(bytes)) => return Ok(bytes),
            Some(Source::File(len)) => len.min(most as u64),
        };
        let mut bytes = vec![0; len as usize];
        self.file(shared)?.read_into(&mut bytes, offset)?;
        Ok(Bytes::from(bytes))
    }

    fn file(&mut self, shared: &Shared) -> Result<&StoredFile, Fault> {
        match &mut self.file {
            Some(file) => Ok(file),
            closed => Ok(closed.insert(shared.disk.open_file(&segment_path(self.start))?)),
        }
    }

    /// Checks that the header names the start of the segment.
    fn check_header(&mut self, shared: &Shared, start: JournalPosition) -> Result<(), Fault> {
        if matches!(shared.state().source(self.start, 0, 1), Some(Source::Memory(_))) {
            return Ok(());
        }
        let file = self.file(shared)?;
        if format::read_header(file, shared.cluster)? == start {
            return Ok(());
        }
        Err(file.damaged(0, "the header does not match the segment before it"))
    }

    fn record(&mut self, shared: &Shared, number: u64, location: RecordLocation) -> Result<JournalEntry, Fault> {
        let (start, offset) = (self.start, u64::from(location.offset));
        let damaged = |what: String| shared.damaged(&segment_path(start), offset, what);
        let bytes = match self.ahead(offset) {
            Some(bytes) => bytes,
            None => self.frame_bytes(shared, offset)?,
        };
        let frame = format::read_frame(&bytes).map_err(|defect| damaged(defect.to_string()))?;
        let (found, log_index) = format::numbers(&frame);
        if found != number {
            return Err(damaged(format!("found record {found}, expected {number}")));
        }
        let record =
            JournalRecord::decode(frame.payload).map_err(|error| damaged(format!("record {number}: {error}")))?;
        Ok(JournalEntry { number, log_index, record })
    }

    /// Bytes that begin with the frame at an offset, unless it is damaged.
    fn frame_bytes(&mut self, shared: &Shared, offset: u64) -> Result<Bytes, Fault> {
        let mut most = RECORD_READ_BYTES;
        loop {
            let bytes = self.read(shared, offset, most)?;
            match format::read_frame(&bytes) {
                Err(FrameDefect::Truncated { needed }) if needed > most => most = needed,
                _ => return Ok(bytes),
            }
        }
    }

    /// A record that the index lists for an account.
    fn record_of(
        &mut self,
        shared: &Shared,
        account: AccountId,
        number: u64,
        location: RecordLocation,
    ) -> Result<JournalEntry, Fault> {
        let entry = self.record(shared, number, location)?;
        if entry.record.accounts().contains(&account) {
            return Ok(entry);
        }
        let what = format!("record {number} does not concern the account that the index names");
        Err(shared.damaged(&segment_path(self.start), location.offset.into(), what))
    }
}

impl Journal {
    /// Records of an account after a record number, oldest first, at most `limit`; and whether there are more.
    ///
    /// # Errors
    /// If a file cannot be read or is damaged.
    pub fn records_of(&self, account: AccountId, after: u64, limit: usize) -> Result<(Vec<JournalEntry>, bool), Fault> {
        let shared = &*self.0;
        let mut found = Vec::new();
        // One consistent end: a segment that grows between two lookups would leave a gap in the result.
        let (first, end) = {
            let state = shared.state();
            (state.segment_of(after.saturating_add(1)), state.end.records)
        };
        for segment in first.. {
            let most = (limit - found.len()).saturating_add(1);
            let Some((start, locations)) = shared.look_up(segment, account, Numbers::After(after), most)? else {
                break;
            };
            let mut bytes = SegmentBytes::new(start);
            for (place, location) in locations.iter().copied().enumerate() {
                let number = start + u64::from(location.relative);
                if number > end {
                    return Ok((found, false));
                }
                if found.len() == limit {
                    return Ok((found, true));
                }
                bytes.read_ahead(shared, &locations[place..])?;
                found.push(bytes.record_of(shared, account, number, location)?);
            }
        }
        Ok((found, false))
    }

    /// Records of an account before a record number, newest first, at most `limit`; and whether there are more. 0 starts
    /// at the newest.
    ///
    /// # Errors
    /// If a file cannot be read or is damaged.
    pub fn records_before(
        &self,
        account: AccountId,
        before: u64,
        limit: usize,
    ) -> Result<(Vec<JournalEntry>, bool), Fault> {
        let shared = &*self.0;
        let mut found = Vec::new();
        let (newest, before) = {
            let state = shared.state();
            // The number of a record that is written meanwhile is not smaller.
            let end = state.end.records.saturating_add(1);
            let before = if before == 0 { end } else { before.min(end) };
            (state.segment_of(before.saturating_sub(1)), before)
        };
        for segment in (0..=newest).rev() {
            let most = (limit - found.len()).saturating_add(1);
            let Some((start, locations)) = shared.look_up(segment, account, Numbers::Before(before), most)? else {
                continue;
            };
            let mut bytes = SegmentBytes::new(start);
            for location in locations {
                if found.len() == limit {
                    return Ok((found, true));
                }
                let number = start + u64::from(location.relative);
                found.push(bytes.record_of(shared, account, number, location)?);
            }
        }
        Ok((found, false))
    }

    /// Reads the records of the change log before a record number, newest first, until `each` returns false; 0 starts
    /// at the newest. Other records are not read. Returns the number to go on from if it stopped after
    /// `CHANGE_SEGMENTS_MAX` segments.
    ///
    /// # Errors
    /// If a file cannot be read or is damaged.
    pub fn changes(&self, before: u64, mut each: impl FnMut(&JournalEntry) -> bool) -> Result<Option<u64>, Fault> {
        let shared = &*self.0;
        let mut before = if before == 0 { u64::MAX } else { before };
        let newest = shared.state().segment_of(before.saturating_sub(1));
        for (looked_at, segment) in (0..=newest).rev().enumerate() {
            if looked_at == CHANGE_SEGMENTS_MAX {
                return Ok(Some(before));
            }
            loop {
                let found = shared.look_up(segment, CHANGES, Numbers::Before(before), CHANGES_AT_ONCE)?;
                let Some((start, locations)) = found else { break };
                let mut bytes = SegmentBytes::new(start);
                for location in &locations {
                    before = start + u64::from(location.relative);
                    if !each(&bytes.record(shared, before, *location)?) {
                        return Ok(None);
                    }
                }
                if locations.len() < CHANGES_AT_ONCE {
                    before = before.min(start.saturating_add(1));
                    break;
                }
            }
        }
        Ok(None)
    }
}

impl Shared {
    /// The number before a segment, and the records of an account in it; `None` if there is no such segment.
    fn look_up(
        &self,
        segment: usize,
        account: AccountId,
        numbers: Numbers,
        most: usize,
    ) -> Result<Option<(u64, Vec<RecordLocation>)>, Fault> {
        let Some(looked) = self.state().look_up(segment, account, numbers, most) else { return Ok(None) };
        let locations = match looked.locations {
            Locations::Known(locations) => locations,
            Locations::OnDisk(span) => self.look_up_on_disk(span, account, numbers.relative_to(span.start), most)?,
        };
        Ok(Some((looked.start.records, locations)))
    }

    fn look_up_on_disk(
        &self,
        span: Span,
        account: AccountId,
        numbers: Numbers,
        most: usize,
    ) -> Result<Vec<RecordLocation>, Fault> {
        let path = index_path(span.start.records);
        let index = IndexFile::open(&*self.disk, &path, self.cluster, span)?;
        let locations = index.map_or(Ok(None), |index| index.find(account, numbers, most))?;
        match locations {
            Some(locations) => Ok(locations),
            None => Ok(self.rebuild_index(span)?.find(account, numbers, most)),
        }
    }

    fn rebuild_index(&self, span: Span) -> Result<MemoryIndex, Fault> {
        let _one_at_a_time = self.rebuilding.lock().unwrap_or_else(PoisonError::into_inner);
        tracing::warn!(index = %self.disk.show(&index_path(span.start.records)), "rebuilding a damaged index");
        let mut bytes = SegmentBytes::new(span.start.records);
        bytes.check_header(self, span.start)?;
        let file = self.disk.show(&segment_path(span.start.records));
        let mut walk = Walk::new(file, span.start, 0);
        let index = walk.index(span, |offset, most| bytes.read(self, offset, most))?;
        walk.expect(span.end)?;
        write_index(&*self.disk, self.cluster, span, &index)?;
        Ok(index)
    }

    pub(super) fn damaged(&self, path: &str, offset: u64, found: String) -> Fault {
        Fault::Damaged { path: self.disk.show(path), offset, found }
    }
}

/// Reads all records up to a position in order, and checks that they lead to it.
#[derive(Debug)]
pub(super) struct Reader {
    shared: Arc<Shared>,
    bytes: SegmentBytes,
    walk: Walk,
    to: JournalPosition,
}

impl Reader {
    /// Starts at the beginning of the segment that contains a record.
    fn new(shared: Arc<Shared>, first: u64, to: JournalPosition) -> Result<Reader, Fault> {
        let start = {
            let state = shared.state();
            let start = state.start_of(state.segment_of(first));
            start.unwrap_or(to)
        };
        let mut reader =
            Reader { bytes: SegmentBytes::new(start.records), walk: Walk::new(String::new(), start, 0), shared, to };
        if start.records < to.records {
            reader.enter(start)?;
        }
        Ok(reader)
    }

    fn enter(&mut self, start: JournalPosition) -> Result<(), Fault> {
        self.walk.expect(start)?;
        self.bytes = SegmentBytes::new(start.records);
        self.bytes.check_header(&self.shared, start)?;
        let file = self.shared.disk.show(&segment_path(start.records));
        self.walk = Walk::new(file, start, self.walk.last_log_index);
        Ok(())
    }

    /// The next record; `None` at the position.
    fn next(&mut self) -> Result<Option<Step>, Fault> {
        if self.walk.at.records >= self.to.records {
            self.walk.expect(self.to)?;
            return Ok(None);
        }
        loop {
            let (shared, bytes) = (&self.shared, &mut self.bytes);
            if let Some(step) = self.walk.next(|offset, most| bytes.read(shared, offset, most))? {
                return Ok(Some(step));
            }
            let start = {
                let state = self.shared.state();
                state.start_of(state.segment_of(self.walk.at.records + 1))
            };
            match start.filter(|start| start.records != self.bytes.start) {
                Some(start) => self.enter(start)?,
                None => {
                    let path = self.shared.disk.show(&segment_path(self.bytes.start));
                    let (found, needed) = (self.walk.at.records, self.to.records);
                    return Err(Fault::JournalShort { path, found, needed });
                }
            }
        }
    }
}

impl Journal {
    /// Reads the records from a number up to a position, in order and in bounded memory, until `each` returns false.
    ///
    /// # Errors
    /// If a file cannot be read or is damaged, or the records do not lead to the position.
    pub fn scan(
        &self,
        from: u64,
        to: JournalPosition,
        mut each: impl FnMut(&JournalEntry) -> bool,
    ) -> Result<(), Fault> {
        if from > to.records {
            return Ok(());
        }
        let mut reader = Reader::new(Arc::clone(&self.0), from, to)?;
        while let Some(step) = reader.next()? {
            if step.number < from {
                continue;
            }
            let record = reader.walk.record(step)?;
            if !each(&JournalEntry { number: step.number, log_index: step.log_index, record }) {
                break;
            }
        }
        Ok(())
    }
}

/// Records from a number up to a position, encoded for [`Journal::import`](super::Journal::import). A chunk holds
/// whole records.
#[derive(Debug)]
pub struct JournalStream {
    shared: Arc<Shared>,
    reader: Option<Reader>,
    from: u64,
    to: JournalPosition,
    is_over: bool,
}

impl JournalStream {
    pub(super) const fn new(shared: Arc<Shared>, from: u64, to: JournalPosition) -> JournalStream {
        JournalStream { shared, reader: None, from, to, is_over: from > to.records }
    }

    fn chunk(&mut self) -> Result<Bytes, Fault> {
        let reader = match &mut self.reader {
            Some(reader) => reader,
            None => self.reader.insert(Reader::new(Arc::clone(&self.shared), self.from, self.to)?),
        };
        let mut chunk = BytesMut::with_capacity(CHUNK_BYTES);
        while chunk.len() < CHUNK_BYTES {
            let Some(step) = reader.next()? else {
                self.is_over = true;
                break;
            };
            if step.number >= self.from {
                chunk.extend_from_slice(reader.walk.raw());
            }
        }
        Ok(chunk.freeze())
    }
}

impl Iterator for JournalStream {
    type Item = Result<Bytes, Fault>;

    fn next(&mut self) -> Option<Result<Bytes, Fault>> {
        if self.is_over {
            return None;
        }
        match self.chunk() {
            Ok(chunk) if chunk.is_empty() => None,
            Ok(chunk) => Some(Ok(chunk)),
            Err(error) => {
                self.is_over = true;
                Some(Err(error))
            }
        }
    }
}
