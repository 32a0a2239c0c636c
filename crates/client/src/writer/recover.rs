//! Going on where a writer left off, with its file or without.

use super::file::Record;
use super::{ContentHash, Danger, Fate, Unfinished, Writer, WriterError};
use crate::deadline::Deadline;

/// How often a fence may find its number taken while a writer starts over. A writer has one number under way at a
/// time, so after the first one the rest are somebody else's.
const FENCES_MAX: usize = 3;

impl Writer {
    pub(super) async fn last_of_server(&self, deadline: Deadline) -> Result<u64, WriterError> {
        let state = self.client.client_state(&self.scope, &self.client_id, deadline).await;
        state.map_err(WriterError::State)
    }

    /// Goes on with what the file says, if the server says nothing else.
    pub(super) async fn go_on(&mut self, record: Record, deadline: Deadline) -> Result<(), WriterError> {
        self.committed = record.committed;
        self.unfinished = record.unfinished;
        let server = self.last_of_server(deadline).await?;
        let used = self.unfinished.map_or(self.committed, |unfinished| unfinished.sequence);
        if server > used {
            return Err(self.stop(Danger::ServerAhead { server, file: used }));
        }
        if server < self.committed {
            return Err(self.stop(Danger::ServerBehind { server, file: self.committed }));
        }
        // A writer without a file was starting over when it ended.
        match self.unfinished {
            Some(unfinished) if unfinished.content.is_unknown() => self.start_over(deadline).await,
            _ => Ok(()),
        }
    }

    /// Goes on behind what the server has. Something may still be under way that the lost file knew of, so the next
    /// number is a fence.
    pub(super) async fn start_over(&mut self, deadline: Deadline) -> Result<(), WriterError> {
        for _ in 0..FENCES_MAX {
            self.committed = self.last_of_server(deadline).await?;
            let sequence = self.committed.checked_add(1).filter(|next| *next < u64::MAX);
            let sequence =
                sequence.ok_or_else(|| WriterError::Exhausted { client_id: self.client_id.clone() })?;
            // Of what was under way nothing is known, except that it had operations.
            let content = ContentHash::unknown();
            self.begin(Unfinished { sequence, content, is_fenced: true }).await?;
            let fate = self.fence(deadline).await?;
            self.ended(sequence);
            if fate == Fate::NeverHappened {
                return self.store(None).await;
            }
        }
        let (server, file) = (self.last_of_server(deadline).await?, self.committed);
        Err(self.stop(Danger::ServerAhead { server, file }))
    }
}
