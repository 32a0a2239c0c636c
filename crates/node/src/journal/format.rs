//! Encoding of a journal segment: a file header with its start position, then framed records. Little-endian; the layout
//! is permanent.

use crc32fast::Hasher;
use earmark_core::JournalRecord;

use crate::entry::{CodecError, Input};
use crate::fault::Fault;
use crate::storage::StoredFile;
use crate::storage::frame::{Frame, FrameDefect, Framing, Seed, meta_number};
use crate::storage::header::{FileKind, OVERHEAD_BYTES};

const KIND: FileKind = FileKind { magic: *b"EMjl", format: 1 };
pub(super) const HEADER_BYTES: usize = OVERHEAD_BYTES + JournalPosition::BYTES;
/// Metadata: record number and log index. A transaction with the most and largest operations is far below the maximum
/// payload.
pub(super) const FRAMING: Framing = Framing { meta_bytes: 8 + 8, payload_bytes_max: 4 * 1024 * 1024 };

/// A position in the journal, with a checksum of everything before it. Journals at the same position are identical.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JournalPosition {
    /// Number of records before it, which is the number of the last one.
    pub records: u64,
    /// Bytes of these records, without segment headers.
    pub bytes: u64,
    /// CRC-32 of these bytes.
    pub chain: u32,
}

impl JournalPosition {
    /// Position before the first record.
    pub const START: JournalPosition = JournalPosition { records: 0, bytes: 0, chain: 0 };
    pub(super) const BYTES: usize = 20;

    pub(crate) fn put(self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.records.to_le_bytes());
        out.extend_from_slice(&self.bytes.to_le_bytes());
        out.extend_from_slice(&self.chain.to_le_bytes());
    }

    pub(crate) fn take(input: &mut Input) -> Result<JournalPosition, CodecError> {
        Ok(JournalPosition { records: input.u64()?, bytes: input.u64()?, chain: input.u32()? })
    }

    /// The position after one more record.
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

pub(super) fn numbers(frame: &Frame<'_>) -> (u64, u64) {
    (meta_number(frame.meta, 0), meta_number(frame.meta, 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_comes_back_from_its_bytes() {
        let position = JournalPosition { records: 1, bytes: 2, chain: 3 };
        let mut bytes = Vec::new();
        position.put(&mut bytes);
        assert_eq!(bytes, [1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0]);
        assert_eq!(JournalPosition::take(&mut Input::new(bytes.into())), Ok(position));
    }
}
