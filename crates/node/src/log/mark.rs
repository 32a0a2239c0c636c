//! How far the log is known to be on disk. What is wrong before the mark is damage; what is wrong behind it may be
//! a write that a power cut tore.

use bytes::Bytes;

use crate::disk::Disk;
use crate::entry::{CodecError, Input};
use crate::fault::Fault;
use crate::slots::{Kind, Slots};

const KIND: Kind = Kind { path: "log/mark", magic: *b"EMmk" };

/// A place in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    /// The first index of the first segment that counts. Older ones are waiting to be removed.
    pub(crate) first: u64,
    /// The first index of the segment that was written to last.
    pub(crate) segment: u64,
    /// That segment is on disk up to here.
    pub(crate) offset: u64,
}

/// The file `log/mark`.
#[derive(Debug)]
pub(crate) struct MarkFile(Slots);

impl MarkFile {
    /// Makes the file. The folder is not synced yet.
    pub(crate) fn create(disk: &dyn Disk, cluster: u128, mark: Mark) -> Result<MarkFile, Fault> {
        Slots::create(disk, KIND, cluster, &encode(mark)).map(MarkFile)
    }

    /// Reads the file and changes nothing.
    pub(crate) fn open(disk: &dyn Disk, cluster: u128) -> Result<(MarkFile, Mark), Fault> {
        let found = Slots::open(disk, KIND, cluster)?;
        match decode(found.body) {
            Ok(mark) => Ok((MarkFile(found.slots), mark)),
            Err(error) => Err(found.slots.damaged(error.to_string())),
        }
    }

    /// Moves the mark, for good.
    pub(crate) fn set(&mut self, mark: Mark) -> Result<(), Fault> {
        self.0.write_both(&encode(mark))
    }

    /// Moves the mark forward. If that is lost the old one still tells the truth.
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
