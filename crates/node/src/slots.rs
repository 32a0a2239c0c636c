//! A small value on disk that is changed in place, twice over: what is half written or damaged in one slot is whole in
//! the other.
//!
//! A change that must last goes to one slot, is synced, goes to the other, and is synced again. So whichever single
//! slot is lost, by a power cut in the middle or by a flipped bit later, the other has the last value that anybody
//! was told of.

use std::sync::Arc;

use bytes::Bytes;

use crate::disk::{Disk, DiskFile};
use crate::entry::Input;
use crate::fault::{At, Fault, Operation};

/// The slots lie in different blocks of the device, since a block that is being written may be lost as a whole.
const STRIDE: u64 = 4096;
const SLOT_BYTES: usize = 128;
const BODY_BYTES: usize = 64;
const FORMAT: u32 = 1;

/// What a file of slots is, and whose.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kind {
    pub(crate) path: &'static str,
    pub(crate) magic: [u8; 4],
}

/// A value of at most 64 bytes in a file of its own.
#[derive(Debug)]
pub(crate) struct Slots {
    file: Arc<dyn DiskFile>,
    path: String,
    kind: Kind,
    cluster: u128,
    generation: u64,
}

/// What the slots of a file say.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) slots: Slots,
    /// The value that was written last.
    pub(crate) body: Bytes,
    /// Whether both slots have it. If not, a change may not have reached the disk yet.
    pub(crate) settled: bool,
}

impl Slots {
    /// Makes the file, with its value on disk. The folder is not synced yet.
    pub(crate) fn create(disk: &dyn Disk, kind: Kind, cluster: u128, body: &[u8]) -> Result<Slots, Fault> {
        let path = disk.show(kind.path);
        let file = disk.open(kind.path, true).at(Operation::Create, || path.clone())?;
        let mut slots = Slots { file, path, kind, cluster, generation: 0 };
        slots.write_both(body)?;
        Ok(slots)
    }

    /// Reads the file and changes nothing.
    pub(crate) fn open(disk: &dyn Disk, kind: Kind, cluster: u128) -> Result<Found, Fault> {
        let path = disk.show(kind.path);
        let file = match disk.open(kind.path, false) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Err(Fault::Missing { path });
            }
            other => other.at(Operation::Open, || path.clone())?,
        };
        let mut slots = Slots { file, path, kind, cluster, generation: 0 };
        let (first, second) = (slots.read(0)?, slots.read(1)?);
        let settled = matches!((&first, &second), (Ok((_, a)), Ok((_, b))) if a == b);
        let (generation, body) = match (first, second) {
            (Ok(first), Ok(second)) => {
                if first.0 > second.0 {
                    first
                } else {
                    second
                }
            }
            (Ok(one), Err(found)) | (Err(found), Ok(one)) => {
                tracing::warn!("{}: {found}; the other of its two copies is used", slots.path);
                one
            }
            (Err(found), Err(_)) => return Err(slots.damaged(found)),
        };
        slots.generation = generation;
        Ok(Found { slots, body, settled })
    }

    /// Writes the value so that it outlasts any crash from here on.
    pub(crate) fn write_both(&mut self, body: &[u8]) -> Result<(), Fault> {
        for _ in 0..2 {
            self.write_one(body)?;
            self.file.sync().at(Operation::Sync, || self.path.clone())?;
        }
        Ok(())
    }

    /// Writes the value over the older slot. It reaches the disk some time, or never.
    pub(crate) fn write_one(&mut self, body: &[u8]) -> Result<(), Fault> {
        self.generation = self.generation.wrapping_add(1);
        let bytes = self.encode(body);
        self.file
            .write_at(&bytes, (self.generation % 2).wrapping_mul(STRIDE))
            .at(Operation::Write, || self.path.clone())
    }

    /// A value that is in order as bytes, and makes no sense.
    pub(crate) fn damaged(&self, found: String) -> Fault {
        Fault::Damaged { path: self.path.clone(), offset: 0, found }
    }

    fn encode(&self, body: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(SLOT_BYTES);
        out.extend_from_slice(&self.kind.magic);
        out.extend_from_slice(&FORMAT.to_le_bytes());
        out.extend_from_slice(&self.cluster.to_le_bytes());
        out.extend_from_slice(&self.generation.to_le_bytes());
        out.extend_from_slice(&u32::try_from(body.len()).unwrap_or(u32::MAX).to_le_bytes());
        out.extend_from_slice(body);
        out.resize(SLOT_BYTES.saturating_sub(4), 0);
        let sum = crc32fast::hash(&out);
        out.extend_from_slice(&sum.to_le_bytes());
        out
    }

    /// One slot, or in words why it is none.
    fn read(&self, slot: u64) -> Result<Result<(u64, Bytes), String>, Fault> {
        let mut bytes = vec![0; SLOT_BYTES];
        match self.file.read_at(&mut bytes, slot.wrapping_mul(STRIDE)) {
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
                return Ok(Err(format!("copy {slot} is cut short")));
            }
            other => other.at(Operation::Read, || self.path.clone())?,
        }
        self.decode(bytes).map(|decoded| decoded.ok_or(format!("the checksum of copy {slot} is wrong")))
    }

    fn decode(&self, bytes: Vec<u8>) -> Result<Option<(u64, Bytes)>, Fault> {
        let mut input = Input::new(bytes.into());
        let Ok(summed) = input.take(SLOT_BYTES.saturating_sub(4)) else { return Ok(None) };
        if input.u32() != Ok(crc32fast::hash(&summed)) || !summed.starts_with(&self.kind.magic) {
            return Ok(None);
        }
        let mut input = Input::new(summed.slice(self.kind.magic.len()..));
        let (Ok(format), Ok(cluster), Ok(generation), Ok(len)) =
            (input.u32(), input.u128(), input.u64(), input.u32())
        else {
            return Ok(None);
        };
        let path = || self.path.clone();
        if format > FORMAT {
            return Err(Fault::NewerFormat { path: path(), found: format, known: FORMAT });
        }
        if cluster != self.cluster {
            return Err(Fault::OtherCluster { path: path(), found: cluster, expected: self.cluster });
        }
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        Ok(if len > BODY_BYTES { None } else { input.take(len).ok().map(|body| (generation, body)) })
    }
}
