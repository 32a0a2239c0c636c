//! A segment of the log as bytes: a header that says where it stands in the log, then one record per entry.
//!
//! Both parts of a record have a checksum, so that a damaged length is known for what it is. The checksums start from
//! the cluster and the segment, so that a record from elsewhere does not pass. A record also says where the write
//! began that it was part of: a write begins only when the one before is on disk, so the record of a later write
//! proves that everything before that write was there once.

use bytes::Bytes;
use crc32fast::Hasher;
use openraft::CommittedLeaderId;

use crate::entry::{CodecError, Input, put_log_id, put_payload, take_log_id, take_payload};
use crate::types::{Entry, LogId};

/// How long the header of a segment is.
pub(crate) const HEADER_BYTES: u64 = 64;
/// The format that is written.
pub(crate) const FORMAT: u32 = 1;
/// The longest payload of one entry.
pub(crate) const PAYLOAD_BYTES_MAX: usize = 64 * 1024 * 1024;

const SEGMENT_MAGIC: [u8; 4] = *b"EMlg";
const RECORD_MAGIC: [u8; 4] = *b"EMrc";
const RECORD_HEADER_BYTES: usize = 44;
const SUM_BYTES: usize = 4;

/// The name of the segment that begins with an index.
pub(crate) fn path(first: u64) -> String {
    format!("log/{first:020}.log")
}

/// The first index of a segment, from its name in the folder.
pub(crate) fn first_of(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(".log")?;
    if digits.len() == 20 && digits.bytes().all(|byte| byte.is_ascii_digit()) {
        digits.parse().ok()
    } else {
        None
    }
}

/// What a segment says about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) cluster: u128,
    /// The index of its first entry.
    pub(crate) first: u64,
    /// The entry before that one, if there ever was any.
    pub(crate) before: Option<LogId>,
    /// Whether the log begins here, whatever other segments are still there.
    pub(crate) beginning: bool,
}

/// Why bytes are not what should be there.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Defect {
    #[error("the header of the segment is cut short: {found} bytes")]
    ShortSegment { found: usize },
    #[error("the header of the segment has a wrong checksum")]
    SegmentSum,
    #[error("the segment has format {found}")]
    NewerFormat { found: u32 },
    #[error("the segment belongs to cluster {found:032x}")]
    OtherCluster { found: u128 },
    #[error("the segment says that it begins with entry {found}")]
    OtherFirst { found: u64 },
    #[error("the header of a record is cut short: {found} bytes")]
    ShortHeader { found: usize },
    #[error("no record begins here")]
    NoRecord,
    #[error("the header of a record has a wrong checksum")]
    HeaderSum,
    #[error("the record of entry {index} is cut short: {found} of {wanted} bytes")]
    ShortPayload { index: u64, wanted: usize, found: usize },
    #[error("the record of entry {index} has a wrong checksum")]
    PayloadSum { index: u64 },
    #[error("entry {found} stands where entry {wanted} should")]
    Index { wanted: u64, found: u64 },
    #[error("the term of entry {index} is lower than that of the one before")]
    Term { index: u64 },
    #[error("the record of entry {index} says that it was written from byte {found}")]
    Batch { index: u64, found: u64 },
    #[error("the payload of entry {index} cannot be read: {error}")]
    Payload { index: u64, error: CodecError },
}

impl Header {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend_from_slice(&SEGMENT_MAGIC);
        out.extend_from_slice(&FORMAT.to_le_bytes());
        out.extend_from_slice(&self.cluster.to_le_bytes());
        out.extend_from_slice(&self.first.to_le_bytes());
        put_log_id(self.before.unwrap_or_default(), &mut out);
        let flags = u32::from(self.before.is_some()) | u32::from(self.beginning) << 1;
        out.extend_from_slice(&flags.to_le_bytes());
        let sum = crc32fast::hash(&out);
        out.extend_from_slice(&sum.to_le_bytes());
        out
    }

    /// The header of the segment that is to begin with `first`.
    pub(crate) fn decode(bytes: &[u8], cluster: u128, first: u64) -> Result<Header, Defect> {
        let short = Defect::ShortSegment { found: bytes.len() };
        let (Some(summed), Some(sum)) = (bytes.get(..60), bytes.get(60..64)) else { return Err(short) };
        if sum != crc32fast::hash(summed).to_le_bytes() || !summed.starts_with(&SEGMENT_MAGIC) {
            return Err(Defect::SegmentSum);
        }
        let mut input = Input::new(Bytes::copy_from_slice(summed));
        let mut read = || {
            input.u32()?;
            let format = input.u32()?;
            let header = Header {
                cluster: input.u128()?,
                first: input.u64()?,
                before: Some(take_log_id(&mut input)?),
                beginning: false,
            };
            Ok::<_, CodecError>((format, header, input.u32()?))
        };
        let Ok((format, header, flags)) = read() else { return Err(short) };
        if format > FORMAT {
            return Err(Defect::NewerFormat { found: format });
        }
        if header.cluster != cluster {
            return Err(Defect::OtherCluster { found: header.cluster });
        }
        if header.first != first {
            return Err(Defect::OtherFirst { found: header.first });
        }
        Ok(Header { before: header.before.filter(|_| flags & 1 != 0), beginning: flags & 2 != 0, ..header })
    }

    /// What the checksums of this segment's records start from.
    pub(crate) fn seed(&self) -> Seed {
        let mut hasher = Hasher::new();
        hasher.update(&self.cluster.to_le_bytes());
        hasher.update(&self.first.to_le_bytes());
        Seed(hasher)
    }
}

/// What the checksums of a segment start from.
#[derive(Clone, Debug)]
pub(crate) struct Seed(Hasher);

impl Seed {
    fn sum(&self, parts: &[&[u8]]) -> [u8; SUM_BYTES] {
        let mut hasher = self.0.clone();
        parts.iter().for_each(|part| hasher.update(part));
        hasher.finalize().to_le_bytes()
    }
}

/// A record that is in order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record {
    pub(crate) id: LogId,
    /// Where the write began that it was part of.
    pub(crate) batch: u64,
    payload_len: usize,
}

impl Record {
    /// How many bytes it takes.
    pub(crate) fn len(&self) -> usize {
        RECORD_HEADER_BYTES.saturating_add(self.payload_len).saturating_add(SUM_BYTES)
    }

    /// Its payload, in the bytes that it begins.
    fn payload<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        bytes.get(RECORD_HEADER_BYTES..).and_then(|rest| rest.get(..self.payload_len)).unwrap_or_default()
    }
}

/// Adds the record of an entry to a write that begins at `batch`.
///
/// # Errors
/// If the payload is too long, with its length.
pub(crate) fn put_record(seed: &Seed, entry: &Entry, batch: u64, out: &mut Vec<u8>) -> Result<(), usize> {
    let start = out.len();
    out.resize(start.saturating_add(RECORD_HEADER_BYTES), 0);
    let body = out.len();
    put_payload(&entry.payload, out);
    let payload_len = out.len().saturating_sub(body);
    let len =
        u32::try_from(payload_len).ok().filter(|_| payload_len <= PAYLOAD_BYTES_MAX).ok_or(payload_len)?;

    let mut header = Vec::with_capacity(RECORD_HEADER_BYTES);
    header.extend_from_slice(&RECORD_MAGIC);
    header.extend_from_slice(&len.to_le_bytes());
    put_log_id(entry.log_id, &mut header);
    header.extend_from_slice(&batch.to_le_bytes());
    let header_sum = seed.sum(&[&header]);
    header.extend_from_slice(&header_sum);
    let sum = seed.sum(&[&header, out.get(body..).unwrap_or_default()]);
    if let Some(place) = out.get_mut(start..body) {
        place.copy_from_slice(&header);
    }
    out.extend_from_slice(&sum);
    Ok(())
}

fn read_header(seed: &Seed, bytes: &[u8]) -> Result<Record, Defect> {
    let Some(header) = bytes.get(..RECORD_HEADER_BYTES) else {
        return Err(Defect::ShortHeader { found: bytes.len() });
    };
    if !header.starts_with(&RECORD_MAGIC) {
        return Err(Defect::NoRecord);
    }
    let (summed, sum) = header.split_at(RECORD_HEADER_BYTES - SUM_BYTES);
    if seed.sum(&[summed]) != sum {
        return Err(Defect::HeaderSum);
    }
    let number = |at: usize| {
        let bytes = summed.get(at..at.saturating_add(8)).unwrap_or_default();
        u64::from_le_bytes(bytes.try_into().unwrap_or_default())
    };
    let id = LogId::new(CommittedLeaderId::new(number(8), number(16)), number(24));
    // The upper half of the first number is the length, the lower the magic.
    Ok(Record { id, batch: number(32), payload_len: usize::try_from(number(0) >> 32).unwrap_or(usize::MAX) })
}

/// The record that these bytes begin with.
pub(crate) fn read_record(seed: &Seed, bytes: &[u8]) -> Result<Record, Defect> {
    let record = read_header(seed, bytes)?;
    let index = record.id.index;
    let Some(whole) = bytes.get(..record.len()) else {
        return Err(Defect::ShortPayload { index, wanted: record.len(), found: bytes.len() });
    };
    let (summed, sum) = whole.split_at(whole.len().saturating_sub(SUM_BYTES));
    if seed.sum(&[summed]) != sum { Err(Defect::PayloadSum { index }) } else { Ok(record) }
}

/// The entry of the record that these bytes begin with, sharing their memory, and how long the record is.
pub(crate) fn read_entry(seed: &Seed, bytes: &Bytes) -> Result<(Entry, usize), Defect> {
    let record = read_record(seed, bytes)?;
    let payload = take_payload(bytes.slice_ref(record.payload(bytes)));
    let payload = payload.map_err(|error| Defect::Payload { index: record.id.index, error })?;
    Ok((Entry { log_id: record.id, payload }, record.len()))
}

/// What is in a segment, up to its end or to the first thing that is wrong.
#[derive(Debug)]
pub(crate) struct Scan {
    /// Where each entry's record begins.
    pub(crate) positions: Vec<u64>,
    /// The ids of the entries.
    pub(crate) ids: Vec<LogId>,
    /// Where the last good record ends.
    pub(crate) end: u64,
    /// What is wrong there.
    pub(crate) defect: Option<Defect>,
}

/// Reads a segment whose header was read already.
pub(crate) fn scan(header: &Header, bytes: &Bytes) -> Scan {
    let seed = header.seed();
    let mut scan = Scan { positions: Vec::new(), ids: Vec::new(), end: HEADER_BYTES, defect: None };
    let mut before = (header.before, HEADER_BYTES);
    let mut at = HEADER_BYTES as usize;
    while at < bytes.len() {
        let rest = bytes.slice(at..);
        let wanted = header.first.wrapping_add(scan.ids.len() as u64);
        match check(&seed, &rest, wanted, scan.end, before) {
            Ok(record) => {
                before = (Some(record.id), record.batch);
                scan.positions.push(scan.end);
                scan.ids.push(record.id);
                at = at.saturating_add(record.len());
                scan.end = at as u64;
            }
            Err(defect) => {
                scan.defect = Some(defect);
                break;
            }
        }
    }
    scan
}

fn check(
    seed: &Seed,
    bytes: &Bytes,
    wanted: u64,
    at: u64,
    (before, batch): (Option<LogId>, u64),
) -> Result<Record, Defect> {
    let record = read_record(seed, bytes)?;
    let index = record.id.index;
    if index != wanted {
        return Err(Defect::Index { wanted, found: index });
    }
    if before.is_some_and(|before| before.leader_id > record.id.leader_id) {
        return Err(Defect::Term { index });
    }
    if record.batch != at && record.batch != batch {
        return Err(Defect::Batch { index, found: record.batch });
    }
    take_payload(bytes.slice_ref(record.payload(bytes))).map_err(|error| Defect::Payload { index, error })?;
    Ok(record)
}

/// Where, behind a place at which something is wrong, a record begins that belongs to a later write.
pub(crate) fn later_write(header: &Header, bytes: &[u8], wrong_at: u64) -> Option<u64> {
    let seed = header.seed();
    let start = usize::try_from(wrong_at).unwrap_or(usize::MAX).saturating_add(1);
    let candidates = bytes.get(start..)?.windows(RECORD_HEADER_BYTES).enumerate();
    for (at, window) in candidates.filter(|(_, window)| window.starts_with(&RECORD_MAGIC)) {
        let at = at.saturating_add(start) as u64;
        if read_header(&seed, window).is_ok_and(|record| record.batch > wrong_at && record.batch <= at) {
            return Some(at);
        }
    }
    None
}
