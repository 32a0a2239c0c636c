//! Writing the journal to disk.

use super::format::JournalPosition;
use super::open::write_index;
use super::state::Piece;
use super::{FOLDER, Shared, index_path, segment_path};
use crate::fault::Fault;
use crate::storage::StoredFile;
use std::collections::BTreeMap;

/// Maximum unsynced files. Beyond this the files are synced when a segment completes.
const UNSYNCED_FILES_MAX: usize = 16;

/// Open files. The holder of its lock is the only writer.
#[derive(Debug, Default)]
pub(super) struct Writer {
    file: Option<(u64, StoredFile)>,
    unsynced: BTreeMap<String, StoredFile>,
    is_folder_unsynced: bool,
}

impl Shared {
    /// Writes the records appended so far. Later ones wait for the next call.
    pub(super) fn write(&self) -> Result<(), Fault> {
        let mut writer = self.writer();
        self.write_with(&mut writer)
    }

    pub(super) fn flush(&self) -> Result<JournalPosition, Fault> {
        let flushed = self.state().end;
        let mut writer = self.writer();
        self.write_with(&mut writer)?;
        self.sync(&mut writer).map_err(|error| self.fail(error))?;
        Ok(flushed)
    }

    fn write_with(&self, writer: &mut Writer) -> Result<(), Fault> {
        let pieces = {
            self.check()?;
            let mut state = self.state();
            state.freeze();
            state.queue.len()
        };
        for _ in 0..pieces {
            let Some(piece) = self.state().queue.front().cloned() else { break };
            self.write_piece(writer, &piece).map_err(|error| self.fail(error))?;
            self.state().wrote();
            if piece.seals {
                self.finish_segment(writer, piece.start).map_err(|error| self.fail(error))?;
            }
        }
        Ok(())
    }

    fn write_piece(&self, writer: &mut Writer, piece: &Piece) -> Result<(), Fault> {
        let path = segment_path(piece.start);
        let file = match &writer.file {
            Some((start, file)) if *start == piece.start => file.clone(),
            _ => {
                let is_new = piece.offset == 0;
                let file = if is_new { self.disk.create_file(&path) } else { self.disk.open_file(&path) }?;
                writer.is_folder_unsynced |= is_new;
                writer.file = Some((piece.start, file.clone()));
                file
            }
        };
        file.write(&piece.bytes, piece.offset)?;
        writer.unsynced.insert(path, file);
        Ok(())
    }

    fn finish_segment(&self, writer: &mut Writer, start: u64) -> Result<(), Fault> {
        let sealed = self.state().sealed_mut(start).map(|sealed| (sealed.span, sealed.index.clone()));
        let Some((span, Some(index))) = sealed else { return Ok(()) };
        let file = write_index(&*self.disk, self.cluster, span, &index)?;
        writer.unsynced.insert(index_path(start), file);
        writer.is_folder_unsynced = true;
        if let Some(sealed) = self.state().sealed_mut(start) {
            sealed.index = None;
        }
        if writer.unsynced.len() > UNSYNCED_FILES_MAX {
            self.sync(writer)?;
        }
        Ok(())
    }

    fn sync(&self, writer: &mut Writer) -> Result<(), Fault> {
        std::mem::take(&mut writer.unsynced).values().try_for_each(StoredFile::sync)?;
        if std::mem::take(&mut writer.is_folder_unsynced) {
            self.disk.sync_folder(FOLDER)?;
        }
        Ok(())
    }

    /// Stops the journal: after a failed write or sync the disk contents are unknown.
    pub(super) fn fail(&self, fault: Fault) -> Fault {
        self.failure.set(&fault);
        fault
    }

    pub(super) fn check(&self) -> Result<(), Fault> {
        let stopped = |first: &str| Fault::Stopped { why: format!("the journal has stopped: {first}") };
        self.failure.get().map_or(Ok(()), |first| Err(stopped(first)))
    }
}
