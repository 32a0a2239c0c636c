//! The commands of one entry as bytes, and what they do to a Book.

use bytes::Bytes;
use earmark_core::{Book, CodecError, Command, CommandBuffer, Outcome, UnixMs};

use crate::types::Batch;

/// The newest format. A batch has the oldest that can say what it says, so that nodes of the version before read it for
/// as long as nothing is kept elsewhere.
const FORMAT: u8 = 2;
/// The format before anything could be kept elsewhere.
const FORMAT_ALL_HERE: u8 = 1;
/// The format, the time and the count.
const HEADER_BYTES: usize = 13;
/// So many commands are decoded and then applied together: enough for the Book to look ahead, and few enough to stay
/// in the processor's cache.
const GROUP: usize = 64;
/// More commands are in no batch, whatever its bytes say.
pub(crate) const COMMANDS_MAX: usize = 8_192;

/// Why bytes are no batch.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BatchError {
    #[error("it is shorter than its header")]
    Short,
    #[error("it has format {found}, and this version of Earmark reads up to {FORMAT}: use a newer one")]
    Format { found: u8 },
    #[error("it says that it has {found} commands, allowed are up to {COMMANDS_MAX}")]
    Count { found: u32 },
    #[error("command {place}: {source}")]
    Command { place: usize, source: CodecError },
    #[error("{left} bytes follow its last command")]
    Long { left: usize },
}

/// A batch in the making.
pub(crate) struct Builder {
    bytes: Vec<u8>,
    count: u32,
    format: u8,
}

impl Builder {
    /// An empty one, with room for so many bytes.
    pub(crate) fn new(bytes: usize) -> Builder {
        let mut buffer = Vec::with_capacity(bytes.saturating_add(HEADER_BYTES));
        buffer.resize(HEADER_BYTES, 0);
        Builder { bytes: buffer, count: 0, format: FORMAT_ALL_HERE }
    }

    pub(crate) fn push(&mut self, command: &Command<'_>) {
        command.encode(&mut self.bytes);
        self.count = self.count.saturating_add(1);
        if command.is_about_elsewhere() {
            self.format = FORMAT;
        }
    }

    /// The batch, to be applied at a time.
    pub(crate) fn finish(mut self, now: UnixMs) -> Batch {
        self.bytes[0] = self.format;
        self.bytes[1..9].copy_from_slice(&now.get().to_le_bytes());
        self.bytes[9..13].copy_from_slice(&self.count.to_le_bytes());
        Batch(Bytes::from(self.bytes))
    }
}

/// A batch, opened.
struct Open<'a> {
    now: UnixMs,
    count: usize,
    commands: &'a [u8],
}

fn open(batch: &Batch) -> Result<Open<'_>, BatchError> {
    let (header, commands) = batch.0.split_first_chunk::<HEADER_BYTES>().ok_or(BatchError::Short)?;
    let [format, rest @ ..] = header;
    let (now, count) = rest.split_first_chunk::<8>().ok_or(BatchError::Short)?;
    let count = count.first_chunk::<4>().ok_or(BatchError::Short)?;
    if !matches!(*format, FORMAT_ALL_HERE | FORMAT) {
        return Err(BatchError::Format { found: *format });
    }
    let found = u32::from_le_bytes(*count);
    let count = found as usize;
    if count > COMMANDS_MAX {
        return Err(BatchError::Count { found });
    }
    Ok(Open { now: UnixMs::new(u64::from_le_bytes(*now)), count, commands })
}

/// Reads batches. Used again and again, it soon allocates nothing for their commands.
#[derive(Default)]
pub(crate) struct Reader {
    buffers: Vec<CommandBuffer>,
}

impl Reader {
    /// Applies a batch. The outcomes are by position.
    pub(crate) fn apply(
        &mut self,
        book: &mut Book,
        log_index: u64,
        batch: &Batch,
    ) -> Result<Vec<Outcome>, BatchError> {
        let Open { now, count, commands: mut rest } = open(batch)?;
        let mut outcomes = Vec::with_capacity(count);
        while outcomes.len() < count {
            let group = count.saturating_sub(outcomes.len()).min(GROUP);
            if self.buffers.len() < group {
                self.buffers.resize_with(group, CommandBuffer::default);
            }
            let mut commands = Vec::with_capacity(group);
            for buffer in self.buffers.iter_mut().take(group) {
                let place = outcomes.len().saturating_add(commands.len());
                let (command, used) = buffer
                    .decode_at(rest, log_index)
                    .map_err(|source| BatchError::Command { place, source })?;
                rest = rest.get(used..).unwrap_or_default();
                commands.push(command);
            }
            book.apply_all(now, &commands, &mut outcomes);
        }
        if rest.is_empty() { Ok(outcomes) } else { Err(BatchError::Long { left: rest.len() }) }
    }

    /// Calls `take` with every command of a batch that another node sends, whose time means nothing here.
    pub(crate) fn each(
        &mut self,
        batch: &Batch,
        mut take: impl FnMut(&Command<'_>),
    ) -> Result<usize, BatchError> {
        let Open { count, commands: mut rest, .. } = open(batch)?;
        if self.buffers.is_empty() {
            self.buffers.push(CommandBuffer::default());
        }
        let Some(buffer) = self.buffers.first_mut() else { return Err(BatchError::Short) };
        for place in 0..count {
            let (command, used) =
                buffer.decode(rest).map_err(|source| BatchError::Command { place, source })?;
            take(&command);
            rest = rest.get(used..).unwrap_or_default();
        }
        if rest.is_empty() { Ok(count) } else { Err(BatchError::Long { left: rest.len() }) }
    }
}

#[cfg(test)]
mod tests {
    use earmark_core::{Elsewhere, UnixMs};

    use super::*;

    #[test]
    fn only_what_is_kept_elsewhere_needs_the_newer_format() {
        let keep = Command::Keep(Elsewhere { limits: true, credit: false }.into());
        for (commands, format) in [(&[Command::Tick][..], 1), (&[Command::Tick, keep, Command::Tick], 2)] {
            let mut builder = Builder::new(0);
            commands.iter().for_each(|command| builder.push(command));
            let batch = builder.finish(UnixMs::new(7));
            assert_eq!(batch.0[0], format);
            assert_eq!(Reader::default().each(&batch, |_| ()), Ok(commands.len()));
        }
    }

    #[test]
    fn a_format_to_come_is_refused_by_its_number() {
        let mut bytes = Builder::new(0).finish(UnixMs::new(7)).0.to_vec();
        bytes[0] = 3;
        let refused = Reader::default().each(&Batch(bytes.into()), |_| ());
        assert_eq!(refused, Err(BatchError::Format { found: 3 }));
    }
}
