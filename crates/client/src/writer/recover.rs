//! Recovery of a writer, with its file or without.

use super::file::Record;
use super::{ContentHash, Fate, SequenceConflict, Unfinished, Writer, WriterError};
use crate::deadline::Deadline;

/// Attempts to place a fence without a file. One unknown write of the lost file may take a sequence; more than that means
/// another writer.
const FENCES_MAX: usize = 3;

impl Writer {
    pub(super) async fn server_sequence(&self, deadline: Deadline) -> Result<u64, WriterError> {
        let state = self.client.client_state(&self.scope, &self.client_id, deadline).await;
        state.map_err(WriterError::State)
    }

    /// Continues from the file, if the server agrees with it.
    pub(super) async fn resume(&mut self, record: Record, deadline: Deadline) -> Result<(), WriterError> {
        self.committed = record.committed;
        self.unfinished = record.unfinished;
        let server = self.server_sequence(deadline).await?;
        let used = self.unfinished.map_or(self.committed, |unfinished| unfinished.sequence);
        if server > used {
            return Err(self.stop(SequenceConflict::ServerAhead { server, file: used }));
        }
        if server < self.committed {
            return Err(self.stop(SequenceConflict::ServerBehind { server, file: self.committed }));
        }
        // The process ended while it recovered without a file.
        match self.unfinished {
            Some(unfinished) if unfinished.content.is_unknown() => self.recover_without_file(deadline).await,
            _ => Ok(()),
        }
    }

    /// Continues after the last sequence of the server. A write of the lost file may still arrive, so the next sequence is
    /// a fence.
    pub(super) async fn recover_without_file(&mut self, deadline: Deadline) -> Result<(), WriterError> {
        for _ in 0..FENCES_MAX {
            self.committed = self.server_sequence(deadline).await?;
            let sequence = self.committed.checked_add(1).filter(|next| *next < u64::MAX);
            let sequence = sequence.ok_or_else(|| WriterError::Exhausted { client_id: self.client_id.clone() })?;
            // The operations of the lost write are unknown.
            let content = ContentHash::unknown();
            self.begin(Unfinished { sequence, content, is_fenced: true }).await?;
            let fate = self.fence(deadline).await?;
            self.mark_known(sequence);
            if fate == Fate::NeverHappened {
                return self.store(None).await;
            }
        }
        let (server, file) = (self.server_sequence(deadline).await?, self.committed);
        Err(self.stop(SequenceConflict::ServerAhead { server, file }))
    }
}
