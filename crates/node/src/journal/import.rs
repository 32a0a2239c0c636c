//! Import of records from another node.

use earmark_core::JournalRecord;

use super::Journal;
use super::format::{self, JournalPosition};
use super::state::State;
use crate::fault::Fault;

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
    pub(crate) fn check(&mut self, chunk: &[u8]) -> Result<(), Fault> {
        self.take(chunk, |_, _, _| {})
    }

    /// Checks that the records lead to the position of the snapshot, by their hash chain.
    pub(crate) fn finish(&self, to: JournalPosition) -> Result<(), Fault> {
        if self.end == to {
            return Ok(());
        }
        let why = if self.end.records == to.records {
            format!("the records have the hash {}, the snapshot needs {}", self.end.head, to.head)
        } else {
            format!("the records end here, the snapshot needs {}", to.records)
        };
        Err(Fault::RecordRefused { number: self.end.records, why })
    }

    /// Validates a chunk and passes on the records that are new.
    fn take<'a>(&mut self, chunk: &'a [u8], mut fresh: impl FnMut(u64, JournalRecord, &'a [u8])) -> Result<(), Fault> {
        let (mut next, mut last_log_index) = (None, 0);
        let mut rest = chunk;
        while !rest.is_empty() {
            let expected = next.unwrap_or(self.end.records.saturating_add(1));
            let refused = |why: String| Fault::RecordRefused { number: expected, why };
            let frame = format::read_frame(rest).map_err(|defect| refused(defect.to_string()))?;
            let (number, log_index) = format::numbers(&frame);
            let is_next = match next {
                Some(next) => number == next,
                None => (1..=expected).contains(&number),
            };
            if !is_next {
                return Err(refused(format!("found record {number} instead")));
            }
            let is_fresh = number > self.end.records;
            if is_fresh {
                last_log_index = last_log_index.max(self.last_log_index);
            }
            if log_index < last_log_index {
                return Err(refused("its log index is lower than that of the record before it".into()));
            }
            last_log_index = log_index;
            let record = JournalRecord::decode(frame.payload).map_err(|error| refused(error.to_string()))?;
            if is_fresh {
                self.end = self.end.after(frame.raw);
                self.last_log_index = log_index;
                fresh(log_index, record, frame.raw);
            }
            next = Some(number.saturating_add(1));
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

    /// Appends records from another node's [`read_stream`](Self::read_stream). Known records are skipped, so a chunk
    /// may arrive twice. All of them are validated before the first is appended.
    ///
    /// # Errors
    /// If a record is damaged or does not follow the last one, or the journal has stopped or stops now.
    pub fn import(&self, chunk: &[u8]) -> Result<(), Fault> {
        self.0.check()?;
        let mut state = self.0.state();
        let mut fresh = Vec::new();
        Arriving::at(&state).take(chunk, |log_index, record, raw| fresh.push((log_index, record, raw)))?;
        for (log_index, record, raw) in fresh {
            // Only oversized records fail here, and these were decoded above.
            _ = state.push_raw(log_index, &record, raw);
        }
        drop(state);
        self.0.make_room()
    }
}
