//! Records from another node.

use earmark_core::JournalRecord;

use super::error::JournalError;
use super::format::{self, FrameFault, JournalPosition};
use super::state::State;
use super::{Journal, Shared};

/// Records on their way here, as far as they were checked.
#[derive(Debug)]
pub(crate) struct Arriving {
    /// Behind the last of them, or of those that are here already.
    end: JournalPosition,
    last_log_index: u64,
}

impl Arriving {
    const fn at(state: &State) -> Arriving {
        Arriving { end: state.end, last_log_index: state.last_log_index }
    }

    /// Makes sure that a chunk follows on those before it.
    pub(crate) fn check(&mut self, chunk: &[u8]) -> Result<(), JournalError> {
        self.take(chunk, |_, _, _| {})
    }

    /// Makes sure that there are as many records as a snapshot relies on.
    pub(crate) fn finish(&self, to: JournalPosition) -> Result<(), JournalError> {
        if self.end.records == to.records {
            return Ok(());
        }
        let what = format!("it is the last, and the snapshot relies on {}", to.records);
        Err(JournalError::Refused { number: self.end.records, what })
    }

    /// Checks a chunk, and hands over those of its records that are not here yet.
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
            let is_fresh = frame.number > self.end.records;
            if is_fresh {
                last_log_index = last_log_index.max(self.last_log_index);
            }
            if frame.log_index < last_log_index {
                return Err(refused("it belongs before those of earlier numbers".into()));
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
    /// What records that another node sends are checked against before any of them is taken.
    pub(crate) fn arriving(&self) -> Arriving {
        Arriving::at(&self.0.state())
    }
}

impl Shared {
    /// Appends the records of a chunk that are not here yet. All of them are checked before the first is taken.
    pub(super) fn import(&self, chunk: &[u8]) -> Result<(), JournalError> {
        let mut state = self.state();
        state.check()?;
        let mut fresh = Vec::new();
        Arriving::at(&state).take(chunk, |log_index, record, raw| fresh.push((log_index, record, raw)))?;
        for (log_index, record, raw) in fresh {
            // Nothing can be refused any more: only records that are too large are, and these were read.
            _ = state.push_raw(log_index, &record, raw);
        }
        Ok(())
    }
}
