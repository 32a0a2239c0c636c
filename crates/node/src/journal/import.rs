//! Records from another node.

use earmark_core::JournalRecord;

use super::Shared;
use super::error::JournalError;
use super::format::{self, FrameFault};

impl Shared {
    /// Appends the records of a chunk that are not here yet. All of them are checked before the first is taken.
    pub(super) fn import(&self, chunk: &[u8]) -> Result<(), JournalError> {
        let mut state = self.state();
        state.check()?;
        let mut fresh = Vec::new();
        let (mut next, mut last_log_index) = (None, 0);
        let mut rest = chunk;
        while !rest.is_empty() {
            let expected = next.unwrap_or(state.end.records.saturating_add(1));
            let refused = |what: String| JournalError::Refused { number: expected, what };
            let frame = format::read_frame(rest).map_err(|fault| match fault {
                FrameFault::Short(_) => refused("it is cut short".into()),
                FrameFault::Damaged(what) => refused(what.into()),
            })?;
            let is_next = match next {
                Some(next) => frame.number == next,
                None => frame.number >= 1 && frame.number <= expected,
            };
            if !is_next {
                return Err(refused(format!("record {} came instead", frame.number)));
            }
            let is_fresh = frame.number > state.end.records;
            if is_fresh && fresh.is_empty() {
                last_log_index = last_log_index.max(state.last_log_index);
            }
            if frame.log_index < last_log_index {
                return Err(refused("it belongs before those of earlier numbers".into()));
            }
            last_log_index = frame.log_index;
            let record = JournalRecord::decode(frame.payload).map_err(|error| refused(error.to_string()))?;
            if is_fresh {
                fresh.push((frame.log_index, record, frame.raw));
            }
            next = Some(frame.number.saturating_add(1));
            rest = &rest[frame.raw.len()..];
        }
        for (log_index, record, raw) in fresh {
            // Nothing can be refused any more: only records that are too large are, and these were read.
            _ = state.push_raw(log_index, &record, raw);
        }
        Ok(())
    }
}
