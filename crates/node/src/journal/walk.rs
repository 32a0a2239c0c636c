//! Goes through the records of a segment, one after the other, and checks each.

use std::ops::Range;

use bytes::Bytes;
use earmark_core::JournalRecord;

use super::error::JournalError;
use super::format::{self, FrameFault, HEADER_BYTES, JournalPosition};

/// So much of a file is read at once.
pub(super) const READ_BYTES: usize = 256 * 1024;

/// A walk through a segment. Where the bytes come from is up to whoever walks.
#[derive(Debug)]
pub(super) struct Walk {
    /// The segment as a person knows it.
    file: String,
    /// Behind the last record that was passed.
    pub(super) at: JournalPosition,
    pub(super) last_log_index: u64,
    offset: u64,
    buffer: Vec<u8>,
    from: usize,
}

/// A record that was passed. Its bytes are in the walk until the next one is asked for.
#[derive(Clone, Debug)]
pub(super) struct Step {
    pub(super) number: u64,
    pub(super) log_index: u64,
    /// Where in the file it stands.
    pub(super) offset: u64,
    payload: Range<usize>,
    raw: Range<usize>,
}

impl Walk {
    /// A walk through a segment that begins behind `start`.
    pub(super) fn new(file: String, start: JournalPosition, last_log_index: u64) -> Walk {
        let offset = HEADER_BYTES as u64;
        Walk { file, at: start, last_log_index, offset, buffer: Vec::new(), from: 0 }
    }

    /// The next record; none where the bytes end behind one. `read` gives bytes from an offset on, so many or
    /// fewer, and none at the end.
    pub(super) fn next(
        &mut self,
        mut read: impl FnMut(u64, usize) -> Result<Bytes, JournalError>,
    ) -> Result<Option<Step>, JournalError> {
        loop {
            let needed = match format::read_frame(&self.buffer[self.from..]) {
                Ok(frame) => {
                    let (number, log_index) = (frame.number, frame.log_index);
                    let (payload, raw) = (frame.payload.len(), frame.raw.len());
                    return self.pass(number, log_index, payload, raw).map(Some);
                }
                Err(FrameFault::Damaged(what)) => return Err(self.damaged(what)),
                Err(FrameFault::Short(needed)) => needed,
            };
            self.buffer.drain(..self.from);
            self.from = 0;
            let has = self.buffer.len();
            let more = read(self.offset + has as u64, READ_BYTES.max(needed - has))?;
            if more.is_empty() {
                return if has == 0 { Ok(None) } else { Err(self.damaged("a record is cut short")) };
            }
            self.buffer.extend_from_slice(&more);
        }
    }

    fn pass(
        &mut self,
        number: u64,
        log_index: u64,
        payload: usize,
        raw: usize,
    ) -> Result<Step, JournalError> {
        if number != self.at.records.saturating_add(1) {
            return Err(self.damaged("a record has the number of another"));
        }
        if log_index < self.last_log_index {
            return Err(self.damaged("a record stands behind those of later entries of the log"));
        }
        let raw = self.from..self.from + raw;
        let payload = raw.start + format::HEAD_BYTES..raw.start + format::HEAD_BYTES + payload;
        let step = Step { number, log_index, offset: self.offset, payload, raw: raw.clone() };
        self.at = self.at.after(&self.buffer[raw.clone()]);
        self.last_log_index = log_index;
        self.offset += raw.len() as u64;
        self.from = raw.end;
        Ok(step)
    }

    /// The bytes of the record that was passed last.
    pub(super) fn raw(&self, step: &Step) -> &[u8] {
        &self.buffer[step.raw.clone()]
    }

    /// The record that was passed last.
    pub(super) fn record(&self, step: &Step) -> Result<JournalRecord, JournalError> {
        JournalRecord::decode(&self.buffer[step.payload.clone()]).map_err(|error| JournalError::Damaged {
            file: self.file.clone(),
            offset: step.offset,
            what: format!("record {}: {error}", step.number),
        })
    }

    fn damaged(&self, what: &str) -> JournalError {
        JournalError::Damaged { file: self.file.clone(), offset: self.offset, what: what.to_owned() }
    }

    /// Makes sure that this is where another place of the journal says it should be.
    pub(super) fn expect(&self, expected: JournalPosition) -> Result<(), JournalError> {
        if self.at == expected {
            return Ok(());
        }
        Err(self.damaged("its records are not those that were here when what follows was written"))
    }
}
