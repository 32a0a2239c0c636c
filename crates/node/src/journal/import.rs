//! Import of records from another node.

use earmark_core::JournalRecord;

use super::error::JournalError;
use super::format::{self, FrameFault, JournalPosition};
use super::state::State;
use super::{Journal, Shared};

/// Validation of incoming records.
#[derive(Debug)]
pub(crate) struct Arriving {
    /// Position after the last validated or known record.
    end: JournalPosition,
    last_log_index: u64,
}

impl Arriving {
    const fn at(state: &State) -> Arriving {
        Arriving { end: state.end, last_log_index: state.last_log_index }
    }

    /// Validates that a chunk continues the previous one.
    pub(crate) fn check(&mut self, chunk: &[u8]) -> Result<(), JournalError> {
        self.take(chunk, |_, _, _| {})
    }

    /// Checks that the snapshot's last record has arrived.
    pub(crate) fn finish(&self, to: JournalPosition) -> Result<(), JournalError> {
        if self.end.records == to.records {
            return Ok(());
        }
        let what = format!("the records end here, the snapshot needs {}", to.records);
        Err(JournalError::Refused { number: self.end.records, what })
    }

    /// Validates a chunk and passes on the records that are new.
    fn take<'a>(
        &mut self,
        chunk: &'a [u8],
        mut fresh: impl FnMut(u64, JournalRecord, &'a [u8]),
    ) -> Result<(), JournalError> {
        let (mut next, mut last_log_index) = (None, 0);
        let mut rest = chunk;
        while !rest.is_empty() {
            let expected = next.unwrap_or(self.end.records.saturating_add(1));
            let refused = |what: String| JournalError::Refused { number: expected, what };
            let frame = format::read_frame(rest).map_err(|fault| match fault {
                FrameFault::Short(_) => refused("the record is truncated".into()),
                FrameFault::Damaged(what) => refused(what.into()),
            })?;
            let is_next = match next {
                Some(next) => frame.number == next,
                None => frame.number >= 1 && frame.number <= expected,
            };
            if !is_next {
                return Err(refused(format!("found record {} instead", frame.number)));
            }
            let is_fresh = frame.number > self.end.records;
            if is_fresh {
                last_log_index = last_log_index.max(self.last_log_index);
            }
            if frame.log_index < last_log_index {
                return Err(refused("its log index is lower than that of the record before it".into()));
            }
            last_log_index = frame.log_index;
            let record = JournalRecord::decode(frame.payload).map_err(|error| refused(error.to_string()))?;
            if is_fresh {
                self.end = self.end.after(frame.raw);
                self.last_log_index = frame.log_index;
                fresh(frame.log_index, record, frame.raw);
            }
            next = Some(frame.number.saturating_add(1));
            rest = &rest[frame.raw.len()..];
        }
        Ok(())
    }
}

impl Journal {
    /// Validates incoming records before any of them is appended.
    pub(crate) fn arriving(&self) -> Arriving {
        Arriving::at(&self.0.state())
    }
}

impl Shared {
    /// Appends the new records of a chunk. All of them are validated first.
    pub(super) fn import(&self, chunk: &[u8]) -> Result<(), JournalError> {
        let mut state = self.state();
        state.check()?;
        let mut fresh = Vec::new();
        Arriving::at(&state).take(chunk, |log_index, record, raw| fresh.push((log_index, record, raw)))?;
        for (log_index, record, raw) in fresh {
            // Only oversized records fail here, and these were decoded above.
            _ = state.push_raw(log_index, &record, raw);
        }
        Ok(())
    }
}
