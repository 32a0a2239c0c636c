//! The bytes of a segment: a header, then records one after the other. All numbers are little-endian, and every
//! layout is permanent.

use crc32fast::Hasher;
use earmark_core::JournalRecord;

pub(super) const VERSION: u32 = 1;
const MAGIC: [u8; 8] = *b"EMJOURNL";

/// The length of a segment's header.
pub(super) const HEADER_BYTES: usize = 8 + 4 + 16 + JournalPosition::BYTES + 4;
/// The length of what stands before the payload of a record.
pub(super) const HEAD_BYTES: usize = 4 + 8 + 8 + 4;
const CRC_BYTES: usize = 4;
/// The largest payload. A transaction with as many and as large operations as there may be is far smaller.
pub(super) const PAYLOAD_BYTES_MAX: usize = 4 * 1024 * 1024;

/// A place in the stream of records, with what all records before it are, in short. Two journals that are at the
/// same position hold the same records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JournalPosition {
    /// How many records there are before it, which is the number of the last one.
    pub records: u64,
    /// How many bytes they take, without the headers of segments.
    pub bytes: u64,
    /// The CRC-32 of these bytes.
    pub chain: u32,
}

impl JournalPosition {
    /// Before the first record.
    pub const START: JournalPosition = JournalPosition { records: 0, bytes: 0, chain: 0 };
    /// How many bytes [`to_bytes`](Self::to_bytes) gives.
    pub const BYTES: usize = 20;

    /// The position as bytes, for a snapshot.
    #[must_use]
    pub fn to_bytes(self) -> [u8; JournalPosition::BYTES] {
        let mut bytes = [0; JournalPosition::BYTES];
        bytes[..8].copy_from_slice(&self.records.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.bytes.to_le_bytes());
        bytes[16..].copy_from_slice(&self.chain.to_le_bytes());
        bytes
    }

    /// The position with these bytes.
    #[must_use]
    pub fn from_bytes(bytes: [u8; JournalPosition::BYTES]) -> JournalPosition {
        let mut input = Input(&bytes);
        JournalPosition {
            records: u64::from_le_bytes(input.take()),
            bytes: u64::from_le_bytes(input.take()),
            chain: u32::from_le_bytes(input.take()),
        }
    }

    /// The position behind one more record.
    pub(super) fn after(self, raw: &[u8]) -> JournalPosition {
        let mut hasher = Hasher::new_with_initial(self.chain);
        hasher.update(raw);
        JournalPosition {
            records: self.records.saturating_add(1),
            bytes: self.bytes.saturating_add(raw.len() as u64),
            chain: hasher.finalize(),
        }
    }
}

/// Takes arrays from the front of bytes whose length was checked before; what is missing reads as 0.
pub(super) struct Input<'a>(pub(super) &'a [u8]);

impl Input<'_> {
    pub(super) fn take<const N: usize>(&mut self) -> [u8; N] {
        let (array, rest) = self.0.split_first_chunk().unwrap_or((&[0; N], &[]));
        self.0 = rest;
        *array
    }
}

/// What is wrong with a header.
pub(super) enum HeaderFault {
    Damaged(&'static str),
    Newer(u32),
    OtherCluster(u128),
}

/// The header of a segment that starts behind `start`.
pub(super) fn header(cluster: u128, start: JournalPosition) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER_BYTES);
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.extend_from_slice(&cluster.to_le_bytes());
    bytes.extend_from_slice(&start.to_bytes());
    bytes.extend_from_slice(&crc32fast::hash(&bytes).to_le_bytes());
    bytes
}

/// Reads a header: the position that its segment starts behind.
pub(super) fn read_header(bytes: &[u8], cluster: u128) -> Result<JournalPosition, HeaderFault> {
    let Some((body, crc)) = bytes.split_last_chunk().filter(|_| bytes.len() == HEADER_BYTES) else {
        return Err(HeaderFault::Damaged("its header is cut short"));
    };
    let mut input = Input(body);
    if input.take() != MAGIC {
        return Err(HeaderFault::Damaged("it does not begin like a part of a journal"));
    }
    if crc32fast::hash(body) != u32::from_le_bytes(*crc) {
        return Err(HeaderFault::Damaged("the checksum of its header is wrong"));
    }
    let version = u32::from_le_bytes(input.take());
    if version != VERSION {
        return Err(HeaderFault::Newer(version));
    }
    let found = u128::from_le_bytes(input.take());
    if found != cluster {
        return Err(HeaderFault::OtherCluster(found));
    }
    Ok(JournalPosition::from_bytes(input.take()))
}

/// Appends a record; false, and nothing is appended, if it is larger than any can be.
pub(super) fn put_record(out: &mut Vec<u8>, number: u64, log_index: u64, record: &JournalRecord) -> bool {
    let start = out.len();
    out.extend_from_slice(&[0; HEAD_BYTES]);
    let payload = start + HEAD_BYTES;
    record.encode(out);
    let len = out.len() - payload;
    if len > PAYLOAD_BYTES_MAX {
        out.truncate(start);
        return false;
    }
    let crc = crc32fast::hash(&out[payload..]);
    out.extend_from_slice(&crc.to_le_bytes());
    let head = &mut out[start..payload];
    // The length is within its bound, so it fits.
    head[..4].copy_from_slice(&(len as u32).to_le_bytes());
    head[4..12].copy_from_slice(&number.to_le_bytes());
    head[12..20].copy_from_slice(&log_index.to_le_bytes());
    let crc = crc32fast::hash(&head[..20]);
    head[20..].copy_from_slice(&crc.to_le_bytes());
    true
}

/// A record as it stands in a segment, its checksums verified.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frame<'a> {
    pub(super) number: u64,
    pub(super) log_index: u64,
    pub(super) payload: &'a [u8],
    /// All of it.
    pub(super) raw: &'a [u8],
}

/// Why no record can be taken from the front of some bytes.
#[derive(Debug)]
pub(super) enum FrameFault {
    /// So many bytes are needed at least.
    Short(usize),
    Damaged(&'static str),
}

/// The record at the front of some bytes.
pub(super) fn read_frame(bytes: &[u8]) -> Result<Frame<'_>, FrameFault> {
    let Some(head) = bytes.first_chunk::<HEAD_BYTES>() else { return Err(FrameFault::Short(HEAD_BYTES)) };
    let mut input = Input(head);
    let len = u32::from_le_bytes(input.take()) as usize;
    let number = u64::from_le_bytes(input.take());
    let log_index = u64::from_le_bytes(input.take());
    if crc32fast::hash(&head[..HEAD_BYTES - CRC_BYTES]) != u32::from_le_bytes(input.take()) {
        return Err(FrameFault::Damaged("the checksum of a record's head is wrong"));
    }
    if len > PAYLOAD_BYTES_MAX {
        return Err(FrameFault::Damaged("a record is larger than any can be"));
    }
    let all = HEAD_BYTES + len + CRC_BYTES;
    let Some(raw) = bytes.get(..all) else { return Err(FrameFault::Short(all)) };
    let payload = &raw[HEAD_BYTES..HEAD_BYTES + len];
    if crc32fast::hash(payload).to_le_bytes() != raw[HEAD_BYTES + len..] {
        return Err(FrameFault::Damaged("the checksum of a record is wrong"));
    }
    Ok(Frame { number, log_index, payload, raw })
}
