//! Encoding of a journal segment: a file header with its start position, then framed records. Little-endian; the layout
//! is permanent.

use std::fmt;

use earmark_core::JournalRecord;
use sha2::{Digest as _, Sha256};

use crate::entry::{CodecError, Input};
use crate::fault::Fault;
use crate::signing_key::unhex;
use crate::storage::StoredFile;
use crate::storage::frame::{Frame, FrameDefect, Framing, Seed, meta_number};
use crate::storage::header::{FileKind, OVERHEAD_BYTES};

const KIND: FileKind = FileKind { magic: *b"EMjl", format: 1 };
pub(super) const HEADER_BYTES: usize = OVERHEAD_BYTES + JournalPosition::BYTES;
/// Metadata: record number and log index. A transaction with the most and largest operations is far below the maximum
/// payload.
pub(crate) const FRAMING: Framing = Framing { meta_bytes: 8 + 8, payload_bytes_max: 4 * 1024 * 1024 };

/// Head of the hash chain: the SHA-256 of the head before it and of the last record's bytes. Equal heads mean equal
/// journals: a head that was noted earlier shows whether any record before it was changed since.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct ChainHead(pub [u8; 32]);

impl ChainHead {
    /// Length in bytes.
    pub const BYTES: usize = 32;

    /// The head after one more record. The chain begins with 32 zero bytes.
    #[must_use]
    pub fn after(self, raw: &[u8]) -> ChainHead {
        ChainHead(Sha256::new().chain_update(self.0).chain_update(raw).finalize().into())
    }
}

impl fmt::Display for ChainHead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl std::str::FromStr for ChainHead {
    type Err = String;

    fn from_str(text: &str) -> Result<ChainHead, String> {
        unhex(text).map(ChainHead).ok_or_else(|| "a head is 64 hexadecimal digits".to_owned())
    }
}

impl fmt::Debug for ChainHead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A position in the journal, with the hash of everything before it. Journals at the same position are identical.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JournalPosition {
    /// Number of records before it, which is the number of the last one.
    pub records: u64,
    /// Bytes of these records, without segment headers.
    pub bytes: u64,
    /// Hash chain over these records.
    pub head: ChainHead,
}

impl JournalPosition {
    /// Position before the first record.
    pub const START: JournalPosition = JournalPosition { records: 0, bytes: 0, head: ChainHead([0; ChainHead::BYTES]) };
    pub(crate) const BYTES: usize = 8 + 8 + ChainHead::BYTES;

    pub(crate) fn put(self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.records.to_le_bytes());
        out.extend_from_slice(&self.bytes.to_le_bytes());
        out.extend_from_slice(&self.head.0);
    }

    pub(crate) fn take(input: &mut Input) -> Result<JournalPosition, CodecError> {
        Ok(JournalPosition { records: input.u64()?, bytes: input.u64()?, head: ChainHead(input.array()?) })
    }

    /// The position after one more record.
    pub(crate) fn after(self, raw: &[u8]) -> JournalPosition {
        JournalPosition {
            records: self.records.saturating_add(1),
            bytes: self.bytes.saturating_add(raw.len() as u64),
            head: self.head.after(raw),
        }
    }
}

pub(super) fn header(cluster: u128, start: JournalPosition) -> Vec<u8> {
    let mut body = Vec::with_capacity(JournalPosition::BYTES);
    start.put(&mut body);
    KIND.encode(cluster, &body)
}

/// Reads the header of a segment: the position that it follows.
pub(super) fn read_header(file: &StoredFile, cluster: u128) -> Result<JournalPosition, Fault> {
    let mut input = Input::new(KIND.read(file, cluster)?.body);
    let start = JournalPosition::take(&mut input).and_then(|start| input.end().map(|()| start));
    start.map_err(|error| file.damaged(0, error))
}

/// Appends a record; false if it exceeds the maximum size.
pub(super) fn put_record(out: &mut Vec<u8>, number: u64, log_index: u64, record: &JournalRecord) -> bool {
    let mut meta = [0; 16];
    meta[..8].copy_from_slice(&number.to_le_bytes());
    meta[8..].copy_from_slice(&log_index.to_le_bytes());
    FRAMING.put(&Seed::default(), &meta, out, |out| record.encode(out)).is_ok()
}

pub(super) fn read_frame(bytes: &[u8]) -> Result<Frame<'_>, FrameDefect> {
    FRAMING.read(&Seed::default(), bytes)
}

/// The bytes of the first record in a chunk of a stream.
pub(crate) fn split_record(chunk: &[u8]) -> Result<&[u8], FrameDefect> {
    read_frame(chunk).map(|frame| frame.raw)
}

pub(super) fn numbers(frame: &Frame<'_>) -> (u64, u64) {
    (meta_number(frame.meta, 0), meta_number(frame.meta, 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_comes_back_from_its_bytes() {
        let position = JournalPosition { records: 1, bytes: 2, head: ChainHead([3; ChainHead::BYTES]) };
        let mut bytes = Vec::new();
        position.put(&mut bytes);
        assert_eq!(bytes, [&[1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0][..], &[3; 32]].concat());
        assert_eq!(JournalPosition::take(&mut Input::new(bytes.into())), Ok(position));
    }

    /// Auditors compute the chain with other programs, so its definition is permanent.
    #[test]
    fn a_head_is_the_sha_256_of_the_head_before_it_and_the_record() {
        let first = ChainHead::default().after(b"abc");
        assert_eq!(first.to_string(), "365aa7d8f7f9402c4b9434502b4cc89ddb09fe50d7cd95b493b834c62d5a5370");
        assert_ne!(first.after(b"abc"), first);
    }
}
