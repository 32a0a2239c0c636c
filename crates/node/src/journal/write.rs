//! Writing the journal to disk.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use super::error::JournalError;
use super::format::JournalPosition;
use super::open::write_index;
use super::state::Piece;
use super::{FOLDER, Shared, index_path, segment_path};
use crate::disk::DiskFile;

/// Maximum unsynced files. Beyond this the files are synced when a segment completes.
const UNSYNCED_FILES_MAX: usize = 16;

/// Open files. The holder of its lock is the only writer.
#[derive(Debug, Default)]
pub(super) struct Writer {
    /// The growing segment.
    file: Option<(u64, Arc<dyn DiskFile>)>,
    unsynced: BTreeMap<String, Arc<dyn DiskFile>>,
    is_folder_unsynced: bool,
}

impl Shared {
    /// Writes the records appended so far. Later ones wait for the next call.
    pub(super) fn write(&self) -> Result<(), JournalError> {
        let mut writer = self.writer();
        self.write_with(&mut writer)
    }

    /// Syncs the records appended so far.
    pub(super) fn flush(&self) -> Result<JournalPosition, JournalError> {
        let flushed = self.state().end;
        let mut writer = self.writer();
        self.write_with(&mut writer)?;
        self.sync(&mut writer).map_err(|error| self.fail(error))?;
        Ok(flushed)
    }

    fn write_with(&self, writer: &mut Writer) -> Result<(), JournalError> {
        let pieces = {
            let mut state = self.state();
            state.check()?;
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

    fn write_piece(&self, writer: &mut Writer, piece: &Piece) -> Result<(), JournalError> {
        let path = segment_path(piece.start);
        let file = match &writer.file {
            Some((start, file)) if *start == piece.start => Arc::clone(file),
            _ => {
                let is_new = piece.offset == 0;
                let file =
                    self.disk.open(&path, is_new).map_err(|error| self.io(&path, "opening it", error))?;
                writer.is_folder_unsynced |= is_new;
                writer.file = Some((piece.start, Arc::clone(&file)));
                file
            }
        };
        file.write_at(&piece.bytes, piece.offset).map_err(|error| self.io(&path, "a write", error))?;
        writer.unsynced.insert(path, file);
        Ok(())
    }

    /// Writes the index of a complete segment.
    fn finish_segment(&self, writer: &mut Writer, start: u64) -> Result<(), JournalError> {
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

    fn sync(&self, writer: &mut Writer) -> Result<(), JournalError> {
        for (path, file) in std::mem::take(&mut writer.unsynced) {
            file.sync().map_err(|error| self.io(&path, "a sync", error))?;
        }
        if std::mem::take(&mut writer.is_folder_unsynced) {
            self.disk.sync_dir(FOLDER).map_err(|error| self.io(FOLDER, "a sync", error))?;
        }
        Ok(())
    }

    /// Stops the journal: after a failed write or sync the disk contents are unknown.
    pub(super) fn fail(&self, error: JournalError) -> JournalError {
        let mut state = self.state();
        if state.failure.is_none() {
            let failure = error.to_string();
            tracing::error!(%failure, "the journal has stopped");
            state.failure = Some(failure);
        }
        error
    }

    pub(super) fn io(&self, path: &str, operation: &'static str, source: io::Error) -> JournalError {
        JournalError::Io { file: self.disk.show(path), operation, source }
    }
}
