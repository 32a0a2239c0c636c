//! Reads the records of a segment in order and checks each.

use bytes::Bytes;
use earmark_core::JournalRecord;

use super::format::{self, FRAMING, HEADER_BYTES, JournalPosition};
use super::index::{self, MemoryIndex, RecordLocation, Span};
use super::state::relative;
use crate::fault::Fault;
use crate::storage::frame::{FrameWalk, Seed, WalkError};

/// Reads the records of one segment in order, and checks their numbers.
#[derive(Debug)]
pub(super) struct Walk {
    path: String,
    pub(super) at: JournalPosition,
    pub(super) last_log_index: u64,
    frames: FrameWalk,
}

/// A record that was read. The walk holds its bytes until the next one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    pub(super) number: u64,
    pub(super) log_index: u64,
    pub(super) offset: u64,
}

impl Walk {
    /// Starts at the first record of the segment that follows `start`.
    pub(super) fn new(path: String, start: JournalPosition, last_log_index: u64) -> Walk {
        let frames = FrameWalk::new(FRAMING, Seed::default(), HEADER_BYTES as u64);
        Walk { path, at: start, last_log_index, frames }
    }

    /// The next record; `None` if the segment ends after the last one. `read` returns up to the given number of bytes
    /// at an offset, and none at the end.
    pub(super) fn next(&mut self, read: impl FnMut(u64, usize) -> Result<Bytes, Fault>) -> Result<Option<Step>, Fault> {
        let offset = self.frames.offset;
        let (number, log_index, at) = match self.frames.next(read) {
            Ok(None) => return Ok(None),
            Ok(Some(frame)) => {
                let (number, log_index) = format::numbers(&frame);
                (number, log_index, self.at.after(frame.raw))
            }
            Err(WalkError::Fault(fault)) => return Err(fault),
            Err(WalkError::Defect(defect)) => return Err(self.damaged(offset, defect)),
        };
        if number != self.at.records.saturating_add(1) {
            return Err(self.damaged(offset, format!("found record {number}, expected {}", self.at.records + 1)));
        }
        if log_index < self.last_log_index {
            return Err(self.damaged(offset, "the log index of a record is lower than that of the record before"));
        }
        (self.at, self.last_log_index) = (at, log_index);
        Ok(Some(Step { number, log_index, offset }))
    }

    /// Reads the records of a segment up to its end and indexes them.
    pub(super) fn index(
        &mut self,
        span: Span,
        mut read: impl FnMut(u64, usize) -> Result<Bytes, Fault>,
    ) -> Result<MemoryIndex, Fault> {
        let mut found = MemoryIndex::default();
        while self.at.records < span.end.records {
            let Some(step) = self.next(&mut read)? else { break };
            let relative = relative(span.start, step.number);
            for account in index::keys(&self.record(step)?) {
                found.add(account, RecordLocation { relative, offset: step.offset as u32 });
            }
        }
        Ok(found)
    }

    pub(super) fn raw(&self) -> &[u8] {
        self.frames.frame().raw
    }

    pub(super) fn record(&self, step: Step) -> Result<JournalRecord, Fault> {
        JournalRecord::decode(self.frames.frame().payload)
            .map_err(|error| self.damaged(step.offset, format!("record {}: {error}", step.number)))
    }

    fn damaged(&self, offset: u64, found: impl std::fmt::Display) -> Fault {
        Fault::Damaged { path: self.path.clone(), offset, found: found.to_string() }
    }

    /// Checks the current position against the one that the next segment or a snapshot requires.
    pub(super) fn expect(&self, expected: JournalPosition) -> Result<(), Fault> {
        if self.at == expected {
            return Ok(());
        }
        let (at, found, needed) = (self.at.records, self.at.head, expected.head);
        let what = format!(
            "its records are not those that later data was written after: record {at} has the hash {found}, needed is {needed}"
        );
        Err(self.damaged(self.frames.offset, what))
    }
}
