//! A log segment: a header with its position in the log, then one record per entry.
//!
//! A record also stores the offset at which its write began. A write begins only after the previous one is synced, so
//! the record of a later write proves that everything before that write was durable.

use bytes::Bytes;
use openraft::CommittedLeaderId;

use crate::disk::Disk;
use crate::entry::{CodecError, Input, put_log_id, put_payload, take_log_id, take_payload};
use crate::fault::Fault;
use crate::storage::StoredFile;
use crate::storage::frame::{FrameDefect, FrameWalk, Framing, Seed, WalkError, meta_number};
use crate::storage::header::{FileKind, OVERHEAD_BYTES};
use crate::types::{Entry, LogId};

/// Length of a segment header: first index, previous log id and flags.
pub(crate) const HEADER_BYTES: u64 = (OVERHEAD_BYTES + 8 + 24 + 4) as u64;
/// The maximum payload is far above the largest batch.
const FRAMING: Framing = Framing { meta_bytes: 24 + 8, payload_bytes_max: 64 * 1024 * 1024 };
const KIND: FileKind = FileKind { magic: *b"EMlg", format: 1 };

pub(crate) fn path(first: u64) -> String {
    format!("log/{first:020}.log")
}

pub(crate) fn first_of(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(".log")?;
    let is_index = digits.len() == 20 && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_index.then(|| digits.parse().ok())?
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    pub(crate) cluster: u128,
    pub(crate) first: u64,
    /// Id of the entry before, if there ever was one.
    pub(crate) before: Option<LogId>,
    /// Whether the log restarts here. Older segments are leftovers then.
    pub(crate) beginning: bool,
}

/// Why a record of a segment is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Defect {
    #[error(transparent)]
    Frame(#[from] FrameDefect),
    #[error("found entry {found}, expected entry {expected}")]
    Index { expected: u64, found: u64 },
    #[error("the term of entry {index} is lower than that of the entry before")]
    Term { index: u64 },
    #[error("the record of entry {index} claims a write from byte {found}")]
    WriteStart { index: u64, found: u64 },
    #[error("the payload of entry {index} is invalid: {error}")]
    Payload { index: u64, error: CodecError },
}

impl SegmentHeader {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut body = Vec::new();
        body.extend_from_slice(&self.first.to_le_bytes());
        put_log_id(self.before.unwrap_or_default(), &mut body);
        let flags = u32::from(self.before.is_some()) | u32::from(self.beginning) << 1;
        body.extend_from_slice(&flags.to_le_bytes());
        KIND.encode(self.cluster, &body)
    }

    pub(crate) fn open(disk: &dyn Disk, cluster: u128, first: u64) -> Result<(SegmentHeader, StoredFile), Fault> {
        let file = disk.open_file(&path(first))?;
        let header = KIND.read(&file, cluster)?;
        let mut input = Input::new(header.body);
        let mut decode = || Ok((input.u64()?, take_log_id(&mut input)?, input.u32()?));
        let (found, before, flags) = decode().map_err(|error: CodecError| file.damaged(0, error))?;
        if found != first {
            return Err(file.damaged(0, format!("the header claims that entry {found} is the first")));
        }
        let before = Some(before).filter(|_| flags & 1 != 0);
        Ok((SegmentHeader { cluster, first, before, beginning: flags & 2 != 0 }, file))
    }

    /// Checksum seed of this segment's records, so that a record of another segment or cluster is invalid.
    pub(crate) fn seed(&self) -> Seed {
        Seed::new(&[&self.cluster.to_le_bytes(), &self.first.to_le_bytes()])
    }
}

/// Appends the record of an entry, which is part of the write that begins at `write_start`.
///
/// # Errors
/// The payload length, if it exceeds the maximum.
pub(crate) fn put_record(seed: &Seed, entry: &Entry, write_start: u64, out: &mut Vec<u8>) -> Result<(), usize> {
    let mut meta = Vec::with_capacity(FRAMING.meta_bytes);
    put_log_id(entry.log_id, &mut meta);
    meta.extend_from_slice(&write_start.to_le_bytes());
    FRAMING.put(seed, &meta, out, |out| put_payload(&entry.payload, out))
}

fn read_meta(meta: &[u8]) -> (LogId, u64) {
    let leader = CommittedLeaderId::new(meta_number(meta, 0), meta_number(meta, 1));
    (LogId::new(leader, meta_number(meta, 2)), meta_number(meta, 3))
}

/// Decodes the entry at the front of some bytes without copying its payload. Also returns the record length.
pub(crate) fn read_entry(seed: &Seed, bytes: &Bytes) -> Result<(Entry, usize), Defect> {
    let frame = FRAMING.read(seed, bytes)?;
    let (log_id, _) = read_meta(frame.meta);
    let payload = take_payload(bytes.slice_ref(frame.payload));
    let payload = payload.map_err(|error| Defect::Payload { index: log_id.index, error })?;
    Ok((Entry { log_id, payload }, frame.raw.len()))
}

/// The valid records at the start of a segment.
#[derive(Debug)]
pub(crate) struct Scan {
    pub(crate) positions: Vec<u64>,
    pub(crate) ids: Vec<LogId>,
    pub(crate) end: u64,
    /// The defect there, unless the file ends.
    pub(crate) defect: Option<Defect>,
}

/// Reads the records of a segment up to the first invalid one.
pub(crate) fn scan(header: &SegmentHeader, file: &StoredFile) -> Result<Scan, Fault> {
    let mut walk = FrameWalk::new(FRAMING, header.seed(), HEADER_BYTES);
    let mut scan = Scan { positions: Vec::new(), ids: Vec::new(), end: HEADER_BYTES, defect: None };
    let mut previous = (header.before, HEADER_BYTES);
    let len = file.len()?;
    loop {
        let read = |offset: u64, most: usize| {
            let mut bytes = vec![0; usize::try_from(len.saturating_sub(offset)).unwrap_or(most).min(most)];
            file.read_into(&mut bytes, offset)?;
            Ok(bytes.into())
        };
        let expected = header.first.wrapping_add(scan.ids.len() as u64);
        let checked = match walk.next(read) {
            Ok(None) => return Ok(scan),
            Ok(Some(frame)) => check(frame.meta, frame.payload, expected, scan.end, previous),
            Err(WalkError::Fault(fault)) => return Err(fault),
            Err(WalkError::Defect(defect)) => Err(defect.into()),
        };
        match checked {
            Ok((id, write_start)) => {
                previous = (Some(id), write_start);
                scan.positions.push(scan.end);
                scan.ids.push(id);
                scan.end = walk.offset;
            }
            Err(defect) => {
                scan.defect = Some(defect);
                return Ok(scan);
            }
        }
    }
}

fn check(
    meta: &[u8],
    payload: &[u8],
    expected: u64,
    at: u64,
    (before, previous_start): (Option<LogId>, u64),
) -> Result<(LogId, u64), Defect> {
    let (id, write_start) = read_meta(meta);
    let index = id.index;
    if index != expected {
        return Err(Defect::Index { expected, found: index });
    }
    if before.is_some_and(|before| before.leader_id > id.leader_id) {
        return Err(Defect::Term { index });
    }
    if write_start != at && write_start != previous_start {
        return Err(Defect::WriteStart { index, found: write_start });
    }
    let decoded = take_payload(Bytes::copy_from_slice(payload));
    decoded.map_err(|error| Defect::Payload { index, error })?;
    Ok((id, write_start))
}

/// Offset of a record behind a defect that belongs to a later write, which proves that the defect is no torn write.
pub(crate) fn later_write(header: &SegmentHeader, bytes: &[u8], defect_at: u64) -> Option<u64> {
    let from = usize::try_from(defect_at).unwrap_or(usize::MAX).saturating_add(1);
    let is_later = |at: usize, meta: &[u8]| {
        let (_, start) = read_meta(meta);
        start > defect_at && start <= at as u64
    };
    FRAMING.find(&header.seed(), bytes, from, is_later).map(|at| at as u64)
}
