//! The files of the decision log: records in segments, bounded by bytes and age.
//!
//! The log is advice for people, not state. So a write is not synced before its segment is closed, the end of the newest
//! segment may be lost with the power, and damage in an older one ends the reading of that segment and not the node.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use earmark_admission::{RECORD_BYTES_MAX, RecordBounds, RecordSegment, RecordStore, StoredRecord};
use earmark_core::UnixMs;

use crate::disk::Disk;
use crate::entry::Input;
use crate::fault::Fault;
use crate::storage::StoredFile;
use crate::storage::frame::{FrameDefect, Framing, Seed, meta_number};
use crate::storage::header::{FileKind, HeaderDefect};

const FOLDER: &str = "decisions";
const EXTENSION: &str = ".decisions";
const KIND: FileKind = FileKind { magic: *b"EMdl", format: 1 };
/// Records are framed with their number and time.
const FRAMING: Framing = Framing { meta_bytes: 16, payload_bytes_max: RECORD_BYTES_MAX };

/// The decision log of a node on its data disk.
#[derive(Debug)]
pub struct DecisionFiles {
    disk: Arc<dyn Disk>,
    cluster: u128,
    bounds: RecordBounds,
    next_number: u64,
    segments: Mutex<Vec<Segment>>,
}

/// A segment file.
#[derive(Clone, Debug)]
struct Segment {
    first: u64,
    begun_at: UnixMs,
    /// The number of the last record; `None` without records, or unknown in a closed segment.
    last: Option<u64>,
    file: StoredFile,
    header_bytes: u64,
    bytes: u64,
}

fn path(first: u64) -> String {
    format!("{FOLDER}/{first:020}{EXTENSION}")
}

impl DecisionFiles {
    /// Opens the log in the data folder of a node, or creates it. The torn end of the newest segment is cut off.
    ///
    /// # Errors
    /// A file belongs to another cluster or has a newer format; nothing is changed then. Or the file system fails.
    pub fn open(disk: Arc<dyn Disk>, cluster: u128, bounds: RecordBounds, now: UnixMs) -> Result<DecisionFiles, Fault> {
        disk.make_folder(FOLDER)?;
        let names = disk.list_folder(FOLDER)?;
        let mut segments = Vec::new();
        for name in names.iter().filter(|name| name.ends_with(EXTENSION)) {
            segments.extend(open_segment(&*disk, &format!("{FOLDER}/{name}"), cluster)?);
        }
        let mut files = DecisionFiles { disk, cluster, bounds, next_number: 1, segments: Mutex::new(segments) };
        files.next_number = files.cut_torn_end()?;
        files.drop_excess(&mut files.lock(), now)?;
        Ok(files)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Segment>> {
        self.segments.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Cuts the torn end off the newest segment. Returns the number of the next record.
    fn cut_torn_end(&self) -> Result<u64, Fault> {
        let mut segments = self.lock();
        let Some(newest) = segments.last_mut() else { return Ok(1) };
        let (records, whole, defect) = self.read(newest)?;
        if let Some(defect) = defect {
            tracing::warn!(file = newest.file.path(), offset = whole, %defect, "cut the torn end of the decision log");
            newest.file.set_len(whole)?;
            newest.bytes = whole;
        }
        newest.last = records.last().map(|record| record.number);
        Ok(newest.last.map_or(newest.first, |last| last.saturating_add(1)))
    }

    /// The records of a segment up to its end or its first defect, the offset after them, and the defect.
    fn read(&self, segment: &Segment) -> Result<(Vec<StoredRecord>, u64, Option<FrameDefect>), Fault> {
        let seed = self.seed(segment.first);
        let len = usize::try_from(segment.bytes.saturating_sub(segment.header_bytes)).unwrap_or(usize::MAX);
        let bytes = segment.file.read(segment.header_bytes, len)?;
        let (mut records, mut offset) = (Vec::new(), 0_usize);
        while offset < bytes.len() {
            let frame = match FRAMING.read(&seed, &bytes[offset..]) {
                Ok(frame) => frame,
                Err(defect) => return Ok((records, segment.header_bytes + offset as u64, Some(defect))),
            };
            records.push(StoredRecord {
                number: meta_number(frame.meta, 0),
                at: UnixMs::new(meta_number(frame.meta, 1)),
                payload: frame.payload.to_vec(),
            });
            offset += frame.raw.len();
        }
        Ok((records, segment.header_bytes + offset as u64, None))
    }

    /// A record copied from another file has a wrong checksum.
    fn seed(&self, first: u64) -> Seed {
        Seed::new(&[&self.cluster.to_le_bytes(), &first.to_le_bytes()])
    }

    fn begin(&self, first: u64, begun_at: UnixMs) -> Result<Segment, Fault> {
        let file = self.disk.create_file(&path(first))?;
        let mut body = first.to_le_bytes().to_vec();
        body.extend_from_slice(&begun_at.get().to_le_bytes());
        let header = KIND.encode(self.cluster, &body);
        file.write(&header, 0)?;
        let bytes = header.len() as u64;
        Ok(Segment { first, begun_at, last: None, file, header_bytes: bytes, bytes })
    }

    fn drop_excess(&self, segments: &mut Vec<Segment>, now: UnixMs) -> Result<(), Fault> {
        let sizes: Vec<(u64, UnixMs)> = segments.iter().map(|segment| (segment.bytes, segment.begun_at)).collect();
        let excess = self.bounds.excess(&sizes, now).min(sizes.len());
        for segment in segments.drain(..excess) {
            self.disk.remove_file(&path(segment.first))?;
        }
        Ok(())
    }

    fn add(&self, records: &[StoredRecord]) -> Result<bool, Fault> {
        let (Some(first), Some(last)) = (records.first(), records.last()) else { return Ok(false) };
        let mut segments = self.lock();
        if segments.is_empty() {
            segments.push(self.begin(first.number, first.at)?);
        }
        let Some(newest) = segments.last_mut() else { return Ok(false) };
        let (seed, mut bytes) = (self.seed(newest.first), Vec::new());
        for record in records {
            let mut meta = record.number.to_le_bytes().to_vec();
            meta.extend_from_slice(&record.at.get().to_le_bytes());
            // A record that is too long is left out. None is: the bound is twice the largest decision.
            _ = FRAMING.put(&seed, &meta, &mut bytes, |out| out.extend_from_slice(&record.payload));
        }
        newest.file.write(&bytes, newest.bytes)?;
        newest.bytes += bytes.len() as u64;
        newest.last = Some(last.number);
        Ok(self.bounds.is_full(newest.bytes, newest.begun_at, last.at))
    }

    fn next_segment(&self, now: UnixMs) -> Result<(), Fault> {
        let mut segments = self.lock();
        let Some(newest) = segments.last() else { return Ok(()) };
        newest.file.sync()?;
        let Some(last) = newest.last else { return Ok(()) };
        self.drop_excess(&mut segments, now)?;
        segments.push(self.begin(last.saturating_add(1), now)?);
        self.disk.sync_folder(FOLDER)
    }
}

impl RecordStore for DecisionFiles {
    fn bounds(&self) -> RecordBounds {
        self.bounds
    }

    fn next_number(&self) -> u64 {
        self.next_number
    }

    fn append(&self, records: &[StoredRecord]) -> Result<bool, String> {
        self.add(records).map_err(|fault| fault.to_string())
    }

    fn rotate(&self, now: UnixMs) -> Result<(), String> {
        self.next_segment(now).map_err(|fault| fault.to_string())
    }

    fn segment_before(&self, number: u64) -> Result<Option<RecordSegment>, String> {
        let found = self.lock().iter().rev().find(|segment| segment.first < number).cloned();
        let Some(segment) = found else { return Ok(None) };
        // The newest segment may grow meanwhile; its bytes until now are whole.
        let (records, offset, defect) = self.read(&segment).map_err(|fault| fault.to_string())?;
        if let Some(defect) = defect {
            let file = segment.file.path();
            tracing::warn!(file, offset, %defect, "the rest of this file of the decision log is damaged and skipped");
        }
        Ok(Some(RecordSegment { first: segment.first, records }))
    }
}

/// Opens a segment. `None` if its header is torn or damaged: it is skipped, and removed with the space it takes.
fn open_segment(disk: &dyn Disk, path: &str, cluster: u128) -> Result<Option<Segment>, Fault> {
    let file = disk.open_file(path)?;
    let header = match KIND.read(&file, cluster) {
        Ok(header) => header,
        Err(Fault::Damaged { offset, found, .. }) => {
            tracing::warn!(file = path, offset, found, "this file of the decision log is damaged and removed");
            disk.remove_file(path)?;
            return Ok(None);
        }
        Err(fault) => return Err(fault),
    };
    let header_bytes = header.len();
    let mut input = Input::new(header.body);
    let (Ok(first), Ok(begun_at)) = (input.u64(), input.u64()) else {
        return Err(KIND.fault(&file, HeaderDefect::Damaged("the header is truncated")));
    };
    let bytes = file.len()?;
    let begun_at = UnixMs::new(begun_at);
    Ok(Some(Segment { first, begun_at, last: None, file, header_bytes, bytes }))
}
