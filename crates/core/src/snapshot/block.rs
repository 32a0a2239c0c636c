//! Blocks: the frames around the records of a snapshot.

use super::{SNAPSHOT_VERSION, SnapshotError};
use crate::wire::Put;

pub(super) const SIGNATURE: &[u8; 8] = b"EARMARK\n";
pub(super) const HEADER_BYTES: usize = 12;
/// Kind, length and checksum, in bytes.
pub(super) const FRAME_BYTES: usize = 9;
/// A block is closed by the record that takes it to this size: 256 KiB.
pub(super) const BLOCK_BYTES: usize = 256 * 1024;
/// The maximum block size. The longest record is a policy of 256 KiB, and 32 bytes around it.
pub(super) const BLOCK_BYTES_MAX: usize = BLOCK_BYTES + crate::policies::POLICY_BYTES_MAX + 32;
/// Room for the last record of a block, but for a policy: a vault with all its assets is the longest.
const LAST_RECORD_BYTES: usize = 32 * 1024;

/// The kind of records in a block, in the order of the blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
#[repr(u8)]
pub(super) enum Kind {
    Book = 1,
    Namespaces = 2,
    Vaults = 3,
    Accounts = 4,
    Grants = 5,
    Limits = 6,
    Leases = 7,
    Holds = 8,
    Cells = 9,
    Tombstones = 10,
    Jobs = 11,
    Clients = 12,
    Results = 13,
    Keys = 14,
    Quotas = 15,
    Retired = 16,
    Templates = 17,
    Pauses = 18,
    Policies = 19,
    Marks = 20,
    UsedKeys = 21,
    KeyAnswers = 22,
    Plans = 23,
    /// Room for more kinds before it.
    End = 31,
}

impl Kind {
    pub(super) fn of(byte: u8) -> Option<Kind> {
        Some(match byte {
            1 => Kind::Book,
            2 => Kind::Namespaces,
            3 => Kind::Vaults,
            4 => Kind::Accounts,
            5 => Kind::Grants,
            6 => Kind::Limits,
            7 => Kind::Leases,
            8 => Kind::Holds,
            9 => Kind::Cells,
            10 => Kind::Tombstones,
            11 => Kind::Jobs,
            12 => Kind::Clients,
            13 => Kind::Results,
            14 => Kind::Keys,
            15 => Kind::Quotas,
            16 => Kind::Retired,
            17 => Kind::Templates,
            18 => Kind::Pauses,
            19 => Kind::Policies,
            20 => Kind::Marks,
            21 => Kind::UsedKeys,
            22 => Kind::KeyAnswers,
            23 => Kind::Plans,
            31 => Kind::End,
            _ => return None,
        })
    }

    pub(super) fn next(self) -> Option<Kind> {
        ((self as u8).saturating_add(1)..=Kind::End as u8).find_map(Kind::of)
    }
}

pub(super) fn header() -> Vec<u8> {
    let mut header = SIGNATURE.to_vec();
    header.put_u32(SNAPSHOT_VERSION);
    header
}

/// Reserves room for the frame, which [`close`] fills in.
pub(super) fn open() -> Vec<u8> {
    let mut block = Vec::with_capacity(FRAME_BYTES + BLOCK_BYTES + LAST_RECORD_BYTES);
    block.resize(FRAME_BYTES, 0);
    block
}

/// Fills in the frame and returns the checksum, which the next block covers too.
pub(super) fn close(block: &mut [u8], kind: Kind, before: u32) -> u32 {
    let len = block.len().saturating_sub(FRAME_BYTES) as u32;
    block[0] = kind as u8;
    block[1..5].copy_from_slice(&len.to_le_bytes());
    let checksum = checksum(before, &block[..5], &block[FRAME_BYTES..]);
    block[5..FRAME_BYTES].copy_from_slice(&checksum.to_le_bytes());
    checksum
}

fn checksum(before: u32, frame: &[u8], records: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&before.to_le_bytes());
    hasher.update(frame);
    hasher.update(records);
    hasher.finalize()
}

/// The frame of a block.
pub(super) struct Frame {
    pub(super) kind: Kind,
    pub(super) len: usize,
    pub(super) checksum: u32,
}

impl Frame {
    pub(super) fn read(bytes: &[u8], block: u64) -> Result<Option<Frame>, SnapshotError> {
        let Some(frame) = bytes.first_chunk::<FRAME_BYTES>() else { return Ok(None) };
        let [kind, l0, l1, l2, l3, c0, c1, c2, c3] = *frame;
        let damaged = |what| SnapshotError::Damaged { block, what };
        let kind = Kind::of(kind).ok_or(damaged("its kind is unknown"))?;
        let len = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
        if len > BLOCK_BYTES_MAX {
            return Err(damaged("it is longer than any block"));
        }
        Ok(Some(Frame { kind, len, checksum: u32::from_le_bytes([c0, c1, c2, c3]) }))
    }

    pub(super) fn is_intact(&self, before: u32, bytes: &[u8]) -> bool {
        let end = FRAME_BYTES.saturating_add(self.len);
        checksum(before, &bytes[..5], &bytes[FRAME_BYTES..end]) == self.checksum
    }
}
