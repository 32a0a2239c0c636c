//! A small value on disk, updated in place and stored twice: a torn or damaged slot leaves the other intact.
//!
//! A durable update writes one slot, syncs it, writes the other and syncs again. Whichever single slot is lost, by a
//! power cut or by later damage, the other holds the last acknowledged value.

use std::sync::Arc;

use bytes::Bytes;

use crate::disk::{Disk, DiskFile};
use crate::entry::Input;
use crate::fault::{Fault, IoContext, Operation};

/// Distance of the slots in bytes. They lie in different device blocks, because a power cut may lose a whole block.
const STRIDE: u64 = 4096;
const SLOT_BYTES: usize = 128;
const BODY_BYTES: usize = 64;
const FORMAT: u32 = 1;

/// Path and magic of a slot file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kind {
    pub(crate) path: &'static str,
    pub(crate) magic: [u8; 4],
}

/// A value of at most 64 bytes in its own file.
#[derive(Debug)]
pub(crate) struct Slots {
    file: Arc<dyn DiskFile>,
    path: String,
    kind: Kind,
    cluster: u128,
    generation: u64,
}

/// Contents of a slot file.
#[derive(Debug)]
pub(crate) struct OpenSlots {
    pub(crate) slots: Slots,
    /// The latest value.
    pub(crate) body: Bytes,
    /// Whether both slots hold it. If not, the last update may not be synced.
    pub(crate) settled: bool,
}

impl Slots {
    /// Creates the file and syncs its value. The caller syncs the folder.
    pub(crate) fn create(disk: &dyn Disk, kind: Kind, cluster: u128, body: &[u8]) -> Result<Slots, Fault> {
        let path = disk.show(kind.path);
        let file = disk.open(kind.path, true).at(Operation::Create, || path.clone())?;
        let mut slots = Slots { file, path, kind, cluster, generation: 0 };
        slots.write_both(body)?;
        Ok(slots)
    }

    /// Reads the file without writing.
    pub(crate) fn open(disk: &dyn Disk, kind: Kind, cluster: u128) -> Result<OpenSlots, Fault> {
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
                tracing::warn!("{}: {found}; using the other copy", slots.path);
                one
            }
            (Err(found), Err(_)) => return Err(slots.damaged(found)),
        };
        slots.generation = generation;
        Ok(OpenSlots { slots, body, settled })
    }

    /// Writes the value durably.
    pub(crate) fn write_both(&mut self, body: &[u8]) -> Result<(), Fault> {
        for _ in 0..2 {
            self.write_one(body)?;
            self.file.sync().at(Operation::Sync, || self.path.clone())?;
        }
        Ok(())
    }

    /// Overwrites the older slot without a sync.
    pub(crate) fn write_one(&mut self, body: &[u8]) -> Result<(), Fault> {
        self.generation = self.generation.wrapping_add(1);
        let bytes = self.encode(body);
        self.file
            .write_at(&bytes, (self.generation % 2).wrapping_mul(STRIDE))
            .at(Operation::Write, || self.path.clone())
    }

    /// A value that decodes but makes no sense.
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

    /// Reads one slot, or says why it is invalid.
    fn read(&self, slot: u64) -> Result<Result<(u64, Bytes), String>, Fault> {
        let mut bytes = vec![0; SLOT_BYTES];
        match self.file.read_at(&mut bytes, slot.wrapping_mul(STRIDE)) {
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
                return Ok(Err(format!("copy {slot} is truncated")));
            }
            other => other.at(Operation::Read, || self.path.clone())?,
        }
        self.decode(bytes).map(|decoded| decoded.ok_or(format!("copy {slot} has a wrong checksum")))
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
