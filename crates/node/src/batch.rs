//! Encoding of the commands of one log entry, and their application to a Book.

use bytes::Bytes;
use earmark_core::{Book, By, CodecError, Command, CommandBuffer, Outcome, UnixMs, put_right, take_right};

use crate::types::Batch;

/// Newest format: commands carry their right, and keys are created and revoked. A batch uses the oldest format that
/// can express it.
const FORMAT: u8 = 3;
/// Format without keys.
const FORMAT_ELSEWHERE: u8 = 2;
/// Format without external stores.
const FORMAT_ALL_HERE: u8 = 1;
/// Format, time and count.
const HEADER_BYTES: usize = 13;
/// Commands decoded and applied together: enough for the Book to prefetch, few enough for the processor cache.
const GROUP: usize = 64;
/// Maximum commands per batch.
pub(crate) const COMMANDS_MAX: usize = 8_192;

/// Why bytes are not a batch.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BatchError {
    #[error("the batch header is truncated")]
    Short,
    #[error("batch format {found} is newer than {FORMAT}; use a newer version of Earmark")]
    Format { found: u8 },
    #[error("{found} commands exceed the maximum of {COMMANDS_MAX}")]
    Count { found: u32 },
    #[error("command {place}: {source}")]
    Command { place: usize, source: CodecError },
    #[error("{left} bytes follow the last command")]
    Long { left: usize },
}

/// Encodes a batch.
pub(crate) struct BatchBuilder {
    bytes: Vec<u8>,
    count: u32,
    format: u8,
}

impl BatchBuilder {
    /// An empty batch with capacity for `bytes`.
    pub(crate) fn new(bytes: usize) -> BatchBuilder {
        let mut buffer = Vec::with_capacity(bytes.saturating_add(HEADER_BYTES));
        buffer.resize(HEADER_BYTES, 0);
        BatchBuilder { bytes: buffer, count: 0, format: FORMAT_ALL_HERE }
    }

    pub(crate) fn push(&mut self, command: &Command<'_>) {
        self.push_by(&By::Itself, command);
    }

    /// Adds a command with its right.
    pub(crate) fn push_by(&mut self, by: &By, command: &Command<'_>) {
        put_right(&mut self.bytes, by);
        command.encode(&mut self.bytes);
        self.count = self.count.saturating_add(1);
        let format = if *by != By::Itself || command.is_about_keys() {
            FORMAT
        } else if command.is_about_elsewhere() {
            FORMAT_ELSEWHERE
        } else {
            FORMAT_ALL_HERE
        };
        self.format = self.format.max(format);
    }

    /// Completes the batch with the log time to apply it at.
    pub(crate) fn finish(mut self, now: UnixMs) -> Batch {
        self.bytes[0] = self.format;
        self.bytes[1..9].copy_from_slice(&now.get().to_le_bytes());
        self.bytes[9..13].copy_from_slice(&self.count.to_le_bytes());
        Batch(Bytes::from(self.bytes))
    }
}

/// A decoded batch header with the encoded commands.
struct BatchHeader<'a> {
    now: UnixMs,
    count: usize,
    commands: &'a [u8],
}

fn open(batch: &Batch) -> Result<BatchHeader<'_>, BatchError> {
    let (header, commands) = batch.0.split_first_chunk::<HEADER_BYTES>().ok_or(BatchError::Short)?;
    let [format, rest @ ..] = header;
    let (now, count) = rest.split_first_chunk::<8>().ok_or(BatchError::Short)?;
    let count = count.first_chunk::<4>().ok_or(BatchError::Short)?;
    if !matches!(*format, FORMAT_ALL_HERE..=FORMAT) {
        return Err(BatchError::Format { found: *format });
    }
    let found = u32::from_le_bytes(*count);
    let count = found as usize;
    if count > COMMANDS_MAX {
        return Err(BatchError::Count { found });
    }
    Ok(BatchHeader { now: UnixMs::new(u64::from_le_bytes(*now)), count, commands })
}

/// Decodes the right of the next command.
fn right(rest: &mut &[u8]) -> Result<By, CodecError> {
    let (by, used) = take_right(rest)?;
    *rest = rest.get(used..).unwrap_or_default();
    Ok(by)
}

/// Decodes batches. Reuses its buffers, so it allocates only at first.
#[derive(Default)]
pub(crate) struct BatchReader {
    buffers: Vec<CommandBuffer>,
}

impl BatchReader {
    /// Applies a batch. Returns the outcomes by position.
    pub(crate) fn apply(
        &mut self,
        book: &mut Book,
        log_index: u64,
        batch: &Batch,
    ) -> Result<Vec<Outcome>, BatchError> {
        let BatchHeader { now, count, commands: mut rest } = open(batch)?;
        let mut outcomes = Vec::with_capacity(count);
        while outcomes.len() < count {
            let group = count.saturating_sub(outcomes.len()).min(GROUP);
            if self.buffers.len() < group {
                self.buffers.resize_with(group, CommandBuffer::default);
            }
            let mut commands = Vec::with_capacity(group);
            let mut rights = Vec::with_capacity(group);
            for buffer in self.buffers.iter_mut().take(group) {
                let place = outcomes.len().saturating_add(commands.len());
                let failed = |source| BatchError::Command { place, source };
                rights.push(right(&mut rest).map_err(failed)?);
                let (command, used) = buffer.decode_at(rest, log_index).map_err(failed)?;
                rest = rest.get(used..).unwrap_or_default();
                commands.push(command);
            }
            book.apply_all_by(now, &rights, &commands, &mut outcomes);
        }
        if rest.is_empty() { Ok(outcomes) } else { Err(BatchError::Long { left: rest.len() }) }
    }

    /// Calls `take` with every command of a batch from another node. Its time is ignored.
    pub(crate) fn each(
        &mut self,
        batch: &Batch,
        mut take: impl FnMut(&By, &Command<'_>),
    ) -> Result<usize, BatchError> {
        let BatchHeader { count, commands: mut rest, .. } = open(batch)?;
        if self.buffers.is_empty() {
            self.buffers.push(CommandBuffer::default());
        }
        let Some(buffer) = self.buffers.first_mut() else { return Err(BatchError::Short) };
        for place in 0..count {
            let failed = |source| BatchError::Command { place, source };
            let by = right(&mut rest).map_err(failed)?;
            let (command, used) = buffer.decode(rest).map_err(failed)?;
            take(&by, &command);
            rest = rest.get(used..).unwrap_or_default();
        }
        if rest.is_empty() { Ok(count) } else { Err(BatchError::Long { left: rest.len() }) }
    }
}

#[cfg(test)]
mod tests {
    use earmark_core::{Elsewhere, KeyNumber, UnixMs};

    use super::*;

    #[test]
    fn only_what_is_kept_elsewhere_and_rights_need_a_newer_format() {
        let keep = Command::Keep(Elsewhere { limits: true, credit: false }.into());
        let (own, by_key) = (By::Itself, By::Key(KeyNumber(7)));
        let named = By::Named("user:7".parse().unwrap());
        for (commands, format) in [
            (&[(&own, Command::Tick)][..], 1),
            (&[(&own, Command::Tick), (&own, keep), (&own, Command::Tick)], 2),
            (&[(&By::Anyone, Command::Tick), (&own, keep)], 3),
            (&[(&own, keep), (&by_key, Command::Tick), (&own, Command::Tick)], 3),
            (&[(&named, Command::Tick)], 3),
        ] {
            let mut builder = BatchBuilder::new(0);
            commands.iter().for_each(|(by, command)| builder.push_by(by, command));
            let batch = builder.finish(UnixMs::new(7));
            assert_eq!(batch.0[0], format);
            let mut rights = Vec::new();
            assert_eq!(
                BatchReader::default().each(&batch, |by, _| rights.push(by.clone())),
                Ok(commands.len())
            );
            assert!(rights.iter().eq(commands.iter().map(|(by, _)| *by)));
        }
    }

    #[test]
    fn a_format_to_come_is_refused_by_its_number() {
        let mut bytes = BatchBuilder::new(0).finish(UnixMs::new(7)).0.to_vec();
        bytes[0] = 4;
        let refused = BatchReader::default().each(&Batch(bytes.into()), |_, _| ());
        assert_eq!(refused, Err(BatchError::Format { found: 4 }));
    }
}
