//! A small value on disk, updated in place and stored twice: a torn or damaged slot leaves the other intact.
//!
//! A durable update writes one slot, syncs it, writes the other and syncs again. Whichever single slot is lost, by a
//! power cut or by later damage, the other holds the last acknowledged value.

use bytes::Bytes;

use crate::disk::Disk;
use crate::entry::Input;
use crate::fault::Fault;
use crate::storage::StoredFile;
use crate::storage::header::{FileKind, HeaderDefect, OVERHEAD_BYTES};

/// Distance of the slots in bytes. They lie in different device blocks, because a power cut may lose a whole block.
const STRIDE: u64 = 4096;
/// A header with the generation and a value of at most 64 bytes.
const SLOT_BYTES: usize = OVERHEAD_BYTES + 8 + 64;

/// The path and the header kind of a slot file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlotKind {
    pub(crate) path: &'static str,
    pub(crate) kind: FileKind,
}

/// A value of at most 64 bytes in its own file.
#[derive(Debug)]
pub(crate) struct Slots {
    file: StoredFile,
    kind: FileKind,
    cluster: u128,
    generation: u64,
}

/// A slot file that was opened, with its value.
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
    pub(crate) fn create(disk: &dyn Disk, kind: SlotKind, cluster: u128, body: &[u8]) -> Result<Slots, Fault> {
        let file = disk.create_file(kind.path)?;
        let mut slots = Slots { file, kind: kind.kind, cluster, generation: 0 };
        slots.write_both(body)?;
        Ok(slots)
    }

    pub(crate) fn open(disk: &dyn Disk, kind: SlotKind, cluster: u128) -> Result<OpenSlots, Fault> {
        let mut slots = Slots { file: disk.open_file(kind.path)?, kind: kind.kind, cluster, generation: 0 };
        let (first, second) = (slots.read(0)?, slots.read(1)?);
        let settled = matches!((&first, &second), (Ok((_, a)), Ok((_, b))) if a == b);
        let (generation, body) = match (first, second) {
            (Ok(first), Ok(second)) if first.0 > second.0 => first,
            (Ok(_), Ok(second)) => second,
            (Ok(one), Err(found)) | (Err(found), Ok(one)) => {
                tracing::warn!("{}: {found}; using the other copy", slots.file.path());
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
            self.file.sync()?;
        }
        Ok(())
    }

    /// Overwrites the older slot without a sync.
    pub(crate) fn write_one(&mut self, body: &[u8]) -> Result<(), Fault> {
        self.generation = self.generation.wrapping_add(1);
        let mut bytes = self.kind.encode(self.cluster, &[&self.generation.to_le_bytes(), body].concat());
        bytes.resize(SLOT_BYTES, 0);
        self.file.write(&bytes, (self.generation % 2).wrapping_mul(STRIDE))
    }

    /// A value that decodes but makes no sense.
    pub(crate) fn damaged(&self, found: impl std::fmt::Display) -> Fault {
        self.file.damaged(0, found)
    }

    /// Reads one slot, or says why it is invalid.
    fn read(&self, slot: u64) -> Result<Result<(u64, Bytes), String>, Fault> {
        let bytes = self.file.read(slot.wrapping_mul(STRIDE), SLOT_BYTES)?;
        let header = match self.kind.decode(&bytes) {
            Ok(header) => header,
            Err(HeaderDefect::Damaged(found)) => return Ok(Err(format!("copy {slot}: {found}"))),
            Err(newer) => return Err(self.kind.fault(&self.file, newer)),
        };
        self.kind.check_cluster(&self.file, &header, self.cluster)?;
        let mut input = Input::new(header.body);
        Ok(input.u64().map(|generation| (generation, input.rest())).map_err(|error| error.to_string()))
    }
}
