//! The mark: how far the log is known to be synced. Bad bytes before the mark are damage; bad bytes after it may be a
//! torn write.

use bytes::Bytes;

use crate::disk::Disk;
use crate::entry::{CodecError, Input};
use crate::fault::Fault;
use crate::slots::{SlotKind, Slots};
use crate::storage::header::FileKind;

const KIND: SlotKind = SlotKind { path: "log/mark", kind: FileKind { magic: *b"EMmk", format: 1 } };

/// The synced part of the log. Records behind it may be torn; records before it must be intact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    /// First index of the first segment in use. Older segments wait for removal.
    pub(crate) first: u64,
    /// First index of the last written segment.
    pub(crate) segment: u64,
    /// Synced bytes of that segment.
    pub(crate) offset: u64,
}

/// The file of the mark.
#[derive(Debug)]
pub(crate) struct MarkFile(Slots);

impl MarkFile {
    /// Creates the file. The caller syncs the folder.
    pub(crate) fn create(disk: &dyn Disk, cluster: u128, mark: Mark) -> Result<MarkFile, Fault> {
        Slots::create(disk, KIND, cluster, &encode(mark)).map(MarkFile)
    }

    pub(crate) fn open(disk: &dyn Disk, cluster: u128) -> Result<(MarkFile, Mark), Fault> {
        let found = Slots::open(disk, KIND, cluster)?;
        match decode(found.body) {
            Ok(mark) => Ok((MarkFile(found.slots), mark)),
            Err(error) => Err(found.slots.damaged(error)),
        }
    }

    pub(crate) fn set(&mut self, mark: Mark) -> Result<(), Fault> {
        self.0.write_both(&encode(mark))
    }

    /// Moves the mark forward without a sync. If the write is lost, the old mark is still correct.
    pub(crate) fn advance(&mut self, mark: Mark) -> Result<(), Fault> {
        self.0.write_one(&encode(mark))
    }
}

fn encode(mark: Mark) -> Vec<u8> {
    [mark.first, mark.segment, mark.offset].iter().flat_map(|number| number.to_le_bytes()).collect()
}

fn decode(bytes: Bytes) -> Result<Mark, CodecError> {
    let mut input = Input::new(bytes);
    let mark = Mark { first: input.u64()?, segment: input.u64()?, offset: input.u64()? };
    input.end()?;
    Ok(mark)
}
